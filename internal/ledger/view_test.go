package ledger

import (
	"context"
	"encoding/binary"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"
)

// H10: a view that can't reach the cluster is not fresh once the lease is
// over, says so by itself, and becomes fresh again by itself.
func TestFreshEndsWithTheCluster(t *testing.T) {
	c := newCluster(t)
	ctx := c.ctx()
	var d valve
	v := c.view(ViewOptions{Client: append(c.opts(), kgo.Dialer(d.dial)), Lease: 2 * time.Second})
	require.False(t, v.Fresh(), "no topic yet")
	c.ensure()
	require.NoError(t, v.WaitReady(ctx))
	w := c.writer(v)
	require.NoError(t, w.Acquire(ctx, PartitionOf("orders", 0)))
	require.NoError(t, w.Put(ctx, newRecord(0)))
	require.True(t, v.Fresh())
	d.set(true)
	c.until(ctx, func() bool { return !v.Fresh() })
	require.NotNil(t, v.Partition("orders", 0))
	d.set(false)
	c.until(ctx, v.Fresh)
}

// M5: what can't be read is there, with its reason; nothing is guessed.
func TestBrokenEntries(t *testing.T) {
	c := newCluster(t)
	c.ensure()
	ctx := c.ctx()
	v := c.view(ViewOptions{})
	w := c.writer(v)
	n := PartitionOf("orders", 0)
	require.NoError(t, w.Acquire(ctx, n))
	require.NoError(t, w.Put(ctx, newRecord(0)))
	live := v.Partition("orders", 0).Live

	wait := func(partition int32, offset int64) { require.NoError(t, v.WaitFor(ctx, partition, offset+1)) }
	wait(n, c.put(n, "orders/0", []byte(`{"v":1,"topic":`)))
	p := v.Partition("orders", 0)
	require.ErrorContains(t, p.Err, `"orders/0": garbled`)
	require.Nil(t, p.Record)
	require.Nil(t, p.Log)
	require.Same(t, live, p.Live)
	require.True(t, v.Topic("orders"))
	require.ErrorContains(t, w.Put(ctx, newRecord(0)), "not overwritten")

	// One that never was readable is there too.
	n1 := PartitionOf("orders", 1)
	wait(n1, c.put(n1, "orders/1", []byte(`{"v":9,"future":true}`)))
	require.ErrorIs(t, v.Partition("orders", 1).Err, ErrNewer)

	// A good record of the wrong key, of the wrong ledger partition, a key of
	// nobody: no entry takes it.
	good, err := newRecord(2).Encode()
	require.NoError(t, err)
	n2 := PartitionOf("orders", 2)
	wrong := (n2 + 1) % Partitions
	wait(wrong, c.put(wrong, "orders/2", good))
	require.Nil(t, v.Partition("orders", 2))
	require.Len(t, v.Broken(), 1)
	wait(n2, c.put(n2, "orders/2/x", good))
	require.Len(t, v.Broken(), 2)

	// A writer of another program that goes back in state epochs.
	n3 := PartitionOf("orders", 3)
	r := newRecord(3)
	r.StateEpoch = 5
	five, err := r.Encode()
	require.NoError(t, err)
	r.StateEpoch = 4
	four, err := r.Encode()
	require.NoError(t, err)
	wait(n3, c.put(n3, "orders/3", five))
	require.NoError(t, v.Partition("orders", 3).Err)
	wait(n3, c.put(n3, "orders/3", four))
	require.ErrorIs(t, v.Partition("orders", 3).Err, ErrLost)

	// A broken checkpoint.
	n2 = PartitionOf("orders", 2)
	wait(n2, c.put(n2, "orders/2", good))
	require.NoError(t, v.Partition("orders", 2).Err)
	wait(n2, c.put(n2, "c/orders/2", []byte(`{}`)))
	require.ErrorContains(t, v.Partition("orders", 2).Err, `"c/orders/2"`)

	// Settings of a newer program are not overwritten.
	n4 := PartitionFor("m//dc1", Partitions)
	wait(n4, c.put(n4, "m//dc1", []byte(`{"v":99}`)))
	require.ErrorContains(t, w.PutMirrorSettings(ctx, sampleSettings()), "not overwritten")
	require.ErrorIs(t, v.Broken()["m//dc1"], ErrNewer)

	// H10: an instance that can't be read is one to wait for, a while from when its
	// record was written; its own next one, or its end, is taken in.
	n5 := PartitionFor("i//new", Partitions)
	began := time.Now()
	wait(n5, c.put(n5, "i//new", []byte(`{"v":99}`)))
	require.Len(t, v.Instances(), 1)
	at := &Partition{Topic: "orders", Partition: 3}
	require.Equal(t, []string{"new"}, Waiting(v.Instances(), at, false, began))
	require.Empty(t, Waiting(v.Instances(), at, false, time.Now().Add(DefaultLease+RequestTimeout+time.Second)))
	require.Equal(t, []string{"new"}, Waiting(v.Instances(), at, true, began.Add(time.Hour)), "with support for unclean elections")
	good5, err := (&Instance{ID: "new", Lease: began}).Encode()
	require.NoError(t, err)
	wait(n5, c.put(n5, "i//new", good5))
	require.True(t, began.Equal(v.Instances()[0].Lease))
	require.NotContains(t, v.Broken(), "i//new")
	require.NoError(t, w.DeleteInstance(ctx, "new"))
	require.Eventually(t, func() bool { return len(v.Instances()) == 0 }, 10*time.Second, 5*time.Millisecond)
	wait(n4, c.put(n4, "m//dc1", nil))

	v2 := c.view(ViewOptions{})
	require.NoError(t, v2.WaitReady(ctx))
	for _, p := range []int32{0, 1, 2} {
		require.Equal(t, v.Partition("orders", p).Err.Error(), v2.Partition("orders", p).Err.Error())
	}
}

// H3: the topic is deleted and made again. Its entries are known to be lost,
// not absent, and nothing is fresh before that is known.
func TestLostTopic(t *testing.T) {
	c := newCluster(t)
	c.ensure()
	ctx := c.ctx()
	v := c.view(ViewOptions{Lease: time.Second})
	w := c.writer(v)
	n := PartitionOf("orders", 0)
	require.NoError(t, w.Acquire(ctx, n))
	r := newRecord(0)
	require.NoError(t, w.Put(ctx, r))
	require.NoError(t, w.Put(ctx, r.Next()))
	c.deleteTopic()
	c.until(ctx, func() bool { return !v.Fresh() })
	c.ensure()
	c.until(ctx, func() bool { return v.Partition("orders", 0).Err != nil })
	require.ErrorIs(t, v.Partition("orders", 0).Err, ErrLost)
	c.until(ctx, v.Fresh)
	require.True(t, v.Topic("orders"))
}

func TestChanged(t *testing.T) {
	c := newCluster(t)
	c.ensure()
	ctx := c.ctx()
	v := c.view(ViewOptions{})
	w := c.writer(v)
	require.NoError(t, w.Acquire(ctx, PartitionOf("orders", 0)))
	ch := v.Changed()
	require.NoError(t, w.Put(ctx, newRecord(0)))
	<-ch
}

// The proxy asks for every partition of every request.
func TestReadsDoNotAllocate(t *testing.T) {
	v := NewView(ViewOptions{})
	now := time.Now()
	v.fresh.Store(&now)
	v.mu.Lock()
	r := newRecord(4)
	v.apply([]change{{key: Key{Kind: KindRecord, Topic: "orders", Partition: 4}, val: r}})
	v.mu.Unlock()
	require.NotNil(t, v.Partition("orders", 4))
	require.Nil(t, v.Partition("orders", 5))
	require.Nil(t, v.Partition("orders", -1))
	require.Nil(t, v.Partition("orders", 3))
	require.Zero(t, testing.AllocsPerRun(100, func() {
		p := v.Partition("orders", 4)
		_ = v.Fresh() && p.Live.Tail().Known
		_, _ = v.TopicByID(r.TopicID)
		_ = v.Topic("orders")
	}))
}

// After the topic lost its tail, an entry that is read again as it was is as
// good as before; one that comes back older, or not at all, is lost.
func TestReloadCompares(t *testing.T) {
	v := NewView(ViewOptions{Logger: slog.New(slog.DiscardHandler)})
	v.mu.Lock()
	defer v.mu.Unlock()
	read := func(n int32, rs ...*Record) map[string]change {
		m := map[string]change{}
		for _, r := range rs {
			if k := (Key{Kind: KindRecord, Topic: r.Topic, Partition: r.Partition}); k.LedgerPartition() == n {
				m[k.String()] = change{key: k, val: r}
			}
		}
		return m
	}
	same, older, gone := newRecord(0), newRecord(1), newRecord(2)
	same.StateEpoch, older.StateEpoch, gone.StateEpoch = 5, 5, 5
	back := newRecord(1)
	back.StateEpoch = 4
	for n := range int32(Partitions) {
		v.parts[n].loading = read(n, same, older, gone)
		v.loaded(n)
	}
	for n := range int32(Partitions) {
		v.parts[n].reset(0)
		v.parts[n].reload = true
		v.parts[n].loading = read(n, same, back)
		v.loaded(n)
	}
	require.NoError(t, v.Partition("orders", 0).Err)
	require.Same(t, same, v.Partition("orders", 0).Record)
	require.ErrorIs(t, v.Partition("orders", 1).Err, ErrLost)
	require.ErrorIs(t, v.Partition("orders", 2).Err, ErrLost)
}

func FuzzLastBatch(f *testing.F) {
	f.Add(encodeBatch(1, 0, 0, true, []entry{{key: "orders/1", value: []byte("{}")}, {key: "orders/2"}}))
	f.Fuzz(func(t *testing.T, b []byte) {
		whole := encodeBatch(-1, -1, -1, false, []entry{{key: "k"}})
		end, _ := lastBatch(append(whole, b...))
		if alone, _ := lastBatch(b); alone == -1 && end != 1 {
			t.Fatalf("one whole batch and rubbish end at %d", end)
		}
	})
}

func TestLastBatch(t *testing.T) {
	b := encodeBatch(1, 0, 0, true, []entry{{key: "orders/1", value: []byte("{}")}, {key: "orders/2"}})
	end, epoch := lastBatch(b)
	require.EqualValues(t, 2, end)
	require.EqualValues(t, -1, epoch)
	binary.BigEndian.PutUint64(b, 40)
	end, _ = lastBatch(append(b, b[:len(b)-1]...))
	require.EqualValues(t, 42, end, "a partial batch at the end is no batch")
	end, epoch = lastBatch(b[:60])
	require.EqualValues(t, -1, end)
	require.EqualValues(t, -1, epoch)
}

// A topic that is no ledger is an error at once, not a wait for the end of ctx.
func TestReadOnceOfWrongTopic(t *testing.T) {
	c := clusterAt(t, "") // embedded: the topic is made by hand
	require.NoError(t, c.fake.CreateTopic(Topic, 3, nil))
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	_, err := ReadOnce(ctx, ViewOptions{Client: c.opts()})
	var wrong *TopicError
	require.ErrorAs(t, err, &wrong)
	require.NoError(t, ctx.Err())
}
