package ledger

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/epoch"
)

// What a writer has written its own view shows at once, and another view soon
// and the same.
func TestPutIsReadBackAndViewsAgree(t *testing.T) {
	c := newCluster(t)
	c.ensure()
	ctx := c.ctx()
	v1, v2 := c.view(ViewOptions{}), c.view(ViewOptions{})
	require.NoError(t, v1.WaitReady(ctx))
	require.True(t, v1.Fresh())
	require.Nil(t, v1.Partition("orders", 0))
	require.False(t, v1.Topic("orders"))
	w := c.writer(v1)

	const n = 12
	var wg sync.WaitGroup
	for p := range int32(n) {
		wg.Go(func() {
			if err := acquireAndPut(ctx, w, newRecord(p)); err != nil {
				t.Errorf("partition %d: %v", p, err)
			}
		})
	}
	wg.Wait()
	for p := range int32(n) {
		got := v1.Partition("orders", p)
		require.NotNil(t, got)
		require.NoError(t, got.Err)
		require.EqualValues(t, 1, got.Record.StateEpoch)
		require.Same(t, got.Log, &got.Record.Log)
		next := got.Record.Next()
		next.State = epoch.StatePausing
		require.NoError(t, w.Put(ctx, next))
		again := v1.Partition("orders", p)
		require.Equal(t, epoch.StatePausing, again.Record.State)
		require.Equal(t, epoch.StateMirroring, got.Record.State, "a snapshot never changes")
		require.Same(t, got.Live, again.Live)
	}
	require.True(t, v1.Topic("orders"))
	topic, ok := v1.TopicByID(newRecord(0).TopicID)
	require.True(t, ok)
	require.Equal(t, "orders", topic)
	require.Positive(t, v1.TopicsVersion())

	var cps []Checkpoint
	for p := range int32(n) {
		cps = append(cps, Checkpoint{Topic: "orders", Partition: p, V: int64(100 + p), Released: true, At: time.Now().UTC().Round(0)})
	}
	require.NoError(t, w.PutCheckpoints(ctx, cps))
	require.Len(t, v1.All(), n)
	for i, p := range v1.All() {
		require.EqualValues(t, i, p.Partition)
		require.Equal(t, &cps[i], p.Checkpoint)
	}
	require.NoError(t, w.PutInstance(ctx, &Instance{ID: "one"}))
	for n := range int32(Partitions) {
		require.NoError(t, v2.WaitFor(ctx, n, v1.Position(n)))
	}
	c.until(ctx, func() bool { return len(v1.Instances()) == 1 && len(v2.Instances()) == 1 })
	require.Equal(t, dump(v1), dump(v2))

	version := v1.TopicsVersion()
	for p := range int32(n) {
		require.NoError(t, w.Delete(ctx, "orders", p))
		require.Nil(t, v1.Partition("orders", p))
	}
	require.False(t, v1.Topic("orders"))
	require.Greater(t, v1.TopicsVersion(), version)
	require.NoError(t, w.Put(ctx, newRecord(0)), "a deleted one begins again at state epoch 1")
	v3 := c.view(ViewOptions{}) // reads it all from the start
	require.NoError(t, v3.WaitReady(ctx))
	require.Equal(t, dump(v1), dump(v3))
}

func acquireAndPut(ctx context.Context, w *Writer, r *Record) error {
	for {
		err := w.Put(ctx, r)
		if !errors.Is(err, ErrNotAcquired) {
			return err
		}
		if err := w.Acquire(ctx, PartitionOf(r.Topic, r.Partition)); err != nil {
			return err
		}
	}
}

func dump(v *View) []string {
	var out []string
	for _, p := range v.All() {
		out = append(out, fmt.Sprintf("%s/%d err=%v %+v %+v", p.Topic, p.Partition, p.Err, p.Record, p.Checkpoint))
	}
	return out
}

func TestOlderOwnerIsFenced(t *testing.T) {
	c := newCluster(t)
	c.ensure()
	ctx := c.ctx()
	va, vb := c.view(ViewOptions{}), c.view(ViewOptions{})
	a, b := c.writer(va), c.writer(vb)
	r := newRecord(0)
	n := PartitionOf("orders", 0)
	require.ErrorIs(t, a.Put(ctx, r), ErrNotAcquired)
	require.NoError(t, a.Acquire(ctx, n))
	require.NoError(t, a.Put(ctx, r))

	require.NoError(t, b.Acquire(ctx, n))
	require.EqualValues(t, 1, vb.Partition("orders", 0).Record.StateEpoch, "acquired means: read to the end")
	err := a.Put(ctx, r.Next())
	require.ErrorIs(t, err, ErrFenced)
	require.NotErrorIs(t, err, ErrUnknownOutcome)
	require.ErrorIs(t, a.Put(ctx, r.Next()), ErrNotAcquired)
	require.ErrorIs(t, a.PutCheckpoints(ctx, []Checkpoint{{Topic: "orders"}}), ErrNotAcquired)

	next := vb.Partition("orders", 0).Record.Next()
	require.NoError(t, b.Put(ctx, next))
	require.ErrorIs(t, b.Put(ctx, next), ErrConflict)
	require.NoError(t, b.Put(ctx, next.Next()), "a conflict leaves the partition acquired")

	require.NoError(t, a.Acquire(ctx, n))
	require.EqualValues(t, 3, va.Partition("orders", 0).Record.StateEpoch)
	require.ErrorIs(t, b.PutCheckpoints(ctx, []Checkpoint{{Topic: "orders"}}), ErrFenced)
	require.NoError(t, a.Release(ctx, n))
	require.ErrorIs(t, a.Put(ctx, next), ErrNotAcquired)
}

// M19: an owner dies in the middle of a transaction. The next one isn't held
// up by it, nobody sees its record, and what the dead one still sends is
// refused.
func TestOpenTransactionOfDeadOwner(t *testing.T) {
	c := newCluster(t)
	c.ensure()
	ctx := c.ctx()
	va, vb := c.view(ViewOptions{}), c.view(ViewOptions{})
	a, b := c.writer(va), c.writer(vb)
	n := PartitionOf("orders", 0)
	require.NoError(t, a.Acquire(ctx, n))
	p, err := a.lock(ctx, n)
	require.NoError(t, err)
	r := newRecord(0)
	r.Mirror = "dead"
	value, err := r.Encode()
	require.NoError(t, err)
	es := []entry{{key: r.Key(), value: value}}
	require.NoError(t, a.addPartition(ctx, n, p))
	base, err := a.produce(ctx, n, transactional(n, p, es))
	require.NoError(t, err)

	require.NoError(t, b.Acquire(ctx, n))
	require.Greater(t, vb.Position(n), base, "read past what was aborted")
	require.Nil(t, vb.Partition("orders", 0))
	require.NoError(t, b.Put(ctx, newRecord(0)))
	require.Equal(t, "m", vb.Partition("orders", 0).Record.Mirror)

	p.seq++
	_, err = a.produce(ctx, n, transactional(n, p, es))
	require.Error(t, err) // kfake: INVALID_TXN_STATE; Kafka: fenced
	require.ErrorIs(t, a.commit(ctx, n, p), ErrFenced)
	p.unlock()
	require.NoError(t, va.WaitFor(ctx, n, vb.Position(n)))
	require.Equal(t, dump(vb), dump(va))
}

// An answer that never comes is no answer: the outcome is unknown, and the
// next Acquire shows it.
func TestCommitWithoutAnAnswer(t *testing.T) {
	c := newFake(t)
	c.ensure()
	ctx := c.ctx()
	v := c.view(ViewOptions{})
	w := c.writer(v)
	n := PartitionOf("orders", 0)
	require.NoError(t, w.Acquire(ctx, n))
	c.fake.ControlKey(int16(kmsg.EndTxn), func(kmsg.Request) (kmsg.Response, error, bool) {
		c.fake.KeepControl()
		return nil, errors.New("connection lost"), true
	})
	short, cancel := context.WithTimeout(ctx, 500*time.Millisecond)
	defer cancel()
	r := newRecord(0)
	require.ErrorIs(t, w.Put(short, r), ErrUnknownOutcome)
	require.ErrorIs(t, w.Put(ctx, r), ErrNotAcquired)
	require.NoError(t, w.Acquire(ctx, n))
	require.Nil(t, v.Partition("orders", 0), "kfake never saw the commit")
}

// A refused produce is tried again with the same sequence; it is never there
// twice.
func TestProduceIsRetried(t *testing.T) {
	c := newFake(t)
	c.ensure()
	ctx := c.ctx()
	v := c.view(ViewOptions{})
	w := c.writer(v)
	n := PartitionOf("orders", 0)
	require.NoError(t, w.Acquire(ctx, n))
	c.fake.ControlKey(int16(kmsg.Produce), func(kmsg.Request) (kmsg.Response, error, bool) {
		return nil, errors.New("connection lost"), true
	})
	require.NoError(t, c.fake.MoveTopicPartition(Topic, n, (w.leaders[n]+1)%3))
	require.NoError(t, w.Put(ctx, newRecord(0)))
	require.NoError(t, w.Put(ctx, newRecord(0).Next()))
	require.EqualValues(t, 4, v.Position(n), "two records, two markers")
}

func TestContexts(t *testing.T) {
	c := newCluster(t)
	c.ensure()
	v := c.view(ViewOptions{})
	w := c.writer(v)
	ctx, cancel := context.WithCancelCause(c.ctx())
	why := errors.New("enough")
	cancel(why)
	require.ErrorIs(t, w.Acquire(ctx, 0), why)
	require.ErrorIs(t, v.WaitFor(ctx, 0, 1000), why)
	require.Error(t, w.Acquire(c.ctx(), Partitions))
	require.NoError(t, w.Acquire(c.ctx(), 0), "and again with a live one")
}

// What is never answered has an end: who acquires tries again, and who wants to
// write meanwhile learns that it can't.
func TestAcquireHasAnEnd(t *testing.T) {
	c := newFake(t)
	c.ensure()
	ctx := c.ctx()
	v := c.view(ViewOptions{})
	w := c.writer(v)
	n := PartitionOf("orders", 0)
	require.NoError(t, w.Acquire(ctx, n))
	require.NoError(t, w.Put(ctx, newRecord(0)))
	w.acquiring = 300 * time.Millisecond
	var hang atomic.Bool
	hang.Store(true)
	c.fake.ControlKey(int16(kmsg.InitProducerID), func(req kmsg.Request) (kmsg.Response, error, bool) {
		c.fake.KeepControl()
		if !hang.Load() {
			return nil, nil, false
		}
		resp := req.ResponseKind().(*kmsg.InitProducerIDResponse)
		resp.ErrorCode = kerr.ConcurrentTransactions.Code
		return resp, nil, true
	})
	require.ErrorIs(t, w.Acquire(ctx, n), errAcquire)
	require.ErrorIs(t, w.Renew(ctx, n), errAcquire)
	next := v.Partition("orders", 0).Record.Next()
	require.ErrorIs(t, w.Put(ctx, next), ErrNotAcquired)
	hang.Store(false)
	w.acquiring = AcquireTimeout
	require.NoError(t, w.Renew(ctx, n), "it was ours all the time")
	require.NoError(t, w.Put(ctx, next))
}
