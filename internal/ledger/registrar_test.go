package ledger

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/epoch"
)

// H10: a record that others wait for is acknowledged soon, after the drain, and
// an instance without a lease serves nothing.
func TestRegistrarAcknowledges(t *testing.T) {
	c := newCluster(t)
	c.ensure()
	ctx := c.ctx()
	v := c.view(ViewOptions{Lease: 3 * time.Second})
	require.NoError(t, v.WaitReady(ctx))
	w := c.writer(v)
	var drained atomic.Int64
	gate := make(chan struct{}, 100)
	gate <- struct{}{}
	r := NewRegistrar(RegistrarOptions{ID: "x", View: v, Writer: w, Drain: func(ctx context.Context) error {
		select {
		case <-gate:
			drained.Add(1)
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}})
	rctx, stop := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() { done <- r.Run(rctx) }()
	c.until(ctx, func() bool { return len(v.Instances()) == 1 })
	rec := newRecord(0)
	rec.State = epoch.StateLogAlignment
	require.NoError(t, acquireAndPut(ctx, w, rec))
	p := v.Partition("orders", 0)
	require.Equal(t, []string{"x"}, Waiting(v.Instances(), p, false, time.Now()), "not drained yet")
	time.Sleep(50 * time.Millisecond)
	require.Equal(t, []string{"x"}, Waiting(v.Instances(), p, true, time.Now()))
	for range 90 {
		gate <- struct{}{}
	}
	c.until(ctx, func() bool { return len(Waiting(v.Instances(), p, true, time.Now())) == 0 })
	n := drained.Load()
	time.Sleep(200 * time.Millisecond)
	require.LessOrEqual(t, drained.Load(), n+1, "nothing to acknowledge, nothing written")
	require.True(t, v.Fresh())
	stop()
	require.NoError(t, <-done)
	require.False(t, v.Fresh(), "deregistered: nothing is served")
	c.until(ctx, func() bool { return len(v.Instances()) == 0 })
}

func TestWaiting(t *testing.T) {
	now := time.Now()
	p := &Partition{Topic: "orders", Partition: 3, RecordOffset: 10}
	applied := func(at int64) []int64 {
		a := make([]int64, Partitions)
		a[PartitionOf("orders", 3)] = at
		return a
	}
	all := []*Instance{
		{ID: "took", Lease: now.Add(time.Second), Applied: applied(11)},
		{ID: "behind", Lease: now.Add(time.Second), Applied: applied(10)},
		{ID: "new", Lease: now.Add(time.Second)},
		{ID: "over", Lease: now.Add(-RequestTimeout + time.Second), Applied: applied(0)},
		{ID: "gone", Lease: now.Add(-RequestTimeout - time.Second), Applied: applied(0)},
	}
	require.Equal(t, []string{"behind", "new", "over"}, Waiting(all, p, false, now))
	require.Equal(t, []string{"behind", "new", "over", "gone"}, Waiting(all, p, true, now))
}

// A command is seen with its partition, newest first, and goes with it.
func TestCommand(t *testing.T) {
	c := newCluster(t)
	c.ensure()
	ctx := c.ctx()
	v := c.view(ViewOptions{})
	require.NoError(t, v.WaitReady(ctx))
	w := c.writer(v)
	require.Error(t, w.PutCommands(ctx, Command{Topic: "orders"}))
	require.NoError(t, acquireAndPut(ctx, w, newRecord(0)))
	require.Nil(t, v.Partition("orders", 0).Command)
	require.NoError(t, w.PutCommands(ctx, Command{Mirror: "m", Topic: "orders", Desired: epoch.StateStopped, Seq: 3}))
	c.until(ctx, func() bool { p := v.Partition("orders", 0); return p.Command != nil && p.Command.Seq == 3 })
	require.NoError(t, w.Delete(ctx, "orders", 0))
	require.NoError(t, acquireAndPut(ctx, w, newRecord(0)))
	require.Nil(t, v.Partition("orders", 0).Command)
}

// The commands of a topic with many partitions are a request for each ledger
// partition: so the partitions act together, and their own writes go together.
func TestCommandsGoTogether(t *testing.T) {
	c := newFake(t)
	c.ensure()
	ctx := c.ctx()
	v := c.view(ViewOptions{})
	require.NoError(t, v.WaitReady(ctx))
	w := c.writer(v)
	var cs []Command
	for p := range int32(1000) {
		cs = append(cs, Command{Mirror: "m", Topic: "orders", Partition: p, Desired: epoch.StateStopped, Seq: 1})
	}
	for range 3 { // of one ledger partition, and with no room for two in a batch
		cs = append(cs, Command{Mirror: "m", Topic: "large", Desired: epoch.StateStopped, Seq: int64(len(cs)), By: strings.Repeat("x", groupBytes*2/3)})
	}
	var requests, largest atomic.Int32
	c.fake.ControlKey(int16(kmsg.Produce), func(req kmsg.Request) (kmsg.Response, error, bool) {
		c.fake.KeepControl()
		requests.Add(1)
		for _, rt := range req.(*kmsg.ProduceRequest).Topics {
			for _, rp := range rt.Partitions {
				largest.Store(max(largest.Load(), int32(len(rp.Records)))) // one at a time
			}
		}
		return nil, nil, false
	})
	require.NoError(t, w.PutCommands(ctx, cs...))
	c.until(ctx, func() bool {
		for _, x := range cs[:1000] {
			if got := v.Command(x.Topic, x.Partition); got == nil || got.Seq != 1 {
				return false
			}
		}
		last := v.Command("large", 0)
		return last != nil && last.Seq == 1002
	})
	require.LessOrEqual(t, requests.Load(), int32(Partitions+3))
	require.LessOrEqual(t, largest.Load(), int32(groupBytes), "a batch that every broker takes")
	require.Error(t, w.PutCommands(ctx, cs[0], Command{Topic: "orders"}))
}
