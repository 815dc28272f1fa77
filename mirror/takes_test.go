package mirror

import (
	"context"
	"log/slog"
	"slices"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/internal/ledger"
)

// hang makes a cluster put off everything that acquires or writes ledger
// partition n in a transaction, for as long as on is set.
func hang(c *kfake.Cluster, n int32) (on *atomic.Bool) {
	on = &atomic.Bool{}
	on.Store(true)
	id := ledger.TransactionalIDPrefix + strconv.Itoa(int(n))
	c.ControlKey(int16(kmsg.InitProducerID), func(req kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		r := req.(*kmsg.InitProducerIDRequest)
		if !on.Load() || r.TransactionalID == nil || *r.TransactionalID != id {
			return nil, nil, false
		}
		resp := r.ResponseKind().(*kmsg.InitProducerIDResponse)
		resp.ErrorCode = kerr.ConcurrentTransactions.Code
		return resp, nil, true
	})
	c.ControlKey(int16(kmsg.AddPartitionsToTxn), func(req kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		r := req.(*kmsg.AddPartitionsToTxnRequest)
		if !on.Load() || r.TransactionalID != id {
			return nil, nil, false
		}
		resp := r.ResponseKind().(*kmsg.AddPartitionsToTxnResponse)
		for _, t := range r.Topics {
			rt := kmsg.NewAddPartitionsToTxnResponseTopic()
			rt.Topic = t.Topic
			for _, p := range t.Partitions {
				rp := kmsg.NewAddPartitionsToTxnResponseTopicPartition()
				rp.Partition, rp.ErrorCode = p, kerr.ConcurrentTransactions.Code
				rt.Partitions = append(rt.Partitions, rp)
			}
			resp.Topics = append(resp.Topics, rt)
		}
		return resp, nil, true
	})
	return on
}

// A ledger partition that can't be acquired, as its brokers hang, keeps its owner
// neither from taking others that the group gives to it later, nor from handing
// over what the group takes away, that one included.
func TestHangingLedgerPartition(t *testing.T) {
	const n = 7
	src, dst := fakeCluster(t, kfake.SeedTopics(1, "t")), fakeCluster(t)
	require.NoError(t, ledger.EnsureTopic(t.Context(), kadm.NewClient(fakeClient(t, dst)), 0))
	on := hang(dst, n)
	count := func(x *managed, want int) func() bool {
		return func() bool { return len(x.m.owned.list()) == want }
	}
	a := startManaged(t, src, dst, "t")
	eventually(t, "the first one has the others", count(a, ledger.Partitions-1))
	b := startManaged(t, src, dst, "t")
	eventually(t, "shared", func() bool {
		return len(a.m.owned.list()) > 0 && len(b.m.owned.list()) > 0 && len(a.m.owned.list())+len(b.m.owned.list()) == ledger.Partitions-1
	})
	stays, goes := a, b
	if slices.Contains(b.m.owner.Owned(), n) {
		stays, goes = b, a
	}
	goes.end()
	eventually(t, "who waits for it takes the rest over", count(stays, ledger.Partitions-1))
	c := startManaged(t, src, dst, "t")
	eventually(t, "shared again", func() bool {
		return len(c.m.owned.list()) > 0 && len(stays.m.owned.list())+len(c.m.owned.list()) == ledger.Partitions-1
	})
	stays.end()
	eventually(t, "handed over", count(c, ledger.Partitions-1))
	on.Store(false)
	eventually(t, "it too", count(c, ledger.Partitions))
}

// M20: what is being handed over is not acquired again, and what is given up is
// over before its end is told.
func TestTakesAndHandOver(t *testing.T) {
	handing := map[int32]bool{2: true}
	var asked atomic.Int32
	x := &takes{
		take: func(ctx context.Context, _ int32) error {
			asked.Add(1)
			<-ctx.Done()
			return ctx.Err()
		},
		mayTake: func(n int32) bool { return !handing[n] },
		log:     slog.New(slog.DiscardHandler), ended: make(wakeChan, 1), now: map[int32]*taking{},
	}
	defer x.close()
	for range 2 { // the second time they are at it
		for n := range int32(3) {
			x.begin(t.Context(), n)
		}
	}
	require.Equal(t, 2, x.running())
	eventually(t, "both", func() bool { return asked.Load() == 2 })
	x.end(func(n int32) bool { return n == 1 })
	require.Equal(t, 1, x.running())
	require.Empty(t, x.ended, "nothing was acquired")
}

// M22: checkpoints of a ledger partition that hangs hold up nobody else's.
func TestHangingCheckpoints(t *testing.T) {
	var topics []string // each with its only partition in another ledger partition
	for i, seen := 0, map[int32]bool{}; len(topics) < 2; i++ {
		name := "t" + strconv.Itoa(i)
		if n := ledger.PartitionOf(name, 0); !seen[n] {
			seen[n] = true
			topics = append(topics, name)
		}
	}
	src, dst := fakeCluster(t, kfake.SeedTopics(1, topics...)), fakeCluster(t)
	require.NoError(t, ledger.EnsureTopic(t.Context(), kadm.NewClient(fakeClient(t, dst)), 0))
	cl := fakeClient(t, src)
	a := startManaged(t, src, dst, topics...)
	end := int64(0)
	write := func() {
		end++
		for _, name := range topics {
			require.NoError(t, cl.ProduceSync(t.Context(), &kgo.Record{Topic: name, Value: []byte("x")}).FirstErr())
		}
		for _, name := range topics {
			eventually(t, "mirrored", func() bool {
				e := a.view.Partition(name, 0)
				return e != nil && e.Record != nil && e.Live.Tail().VEnd == end
			})
		}
	}
	write()
	on := hang(dst, ledger.PartitionOf(topics[0], 0))
	defer a.end()
	defer on.Store(false)
	for range 3 {
		write()
		done := make(chan struct{})
		go func() {
			a.m.checkpoint(t.Context(), a.m.sources[0])
			close(done)
		}()
		select {
		case <-done:
		case <-time.After(patience):
			t.Fatal("waits for the one that hangs")
		}
		eventually(t, "checkpoint", func() bool {
			cp := a.view.Partition(topics[1], 0).Checkpoint
			return cp != nil && cp.Position == end
		})
	}
	cp := a.view.Partition(topics[0], 0).Checkpoint
	require.True(t, cp == nil || cp.Position < end)
}
