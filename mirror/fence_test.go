package mirror

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/lockstep-kafka/lockstep/epoch"
	"github.com/lockstep-kafka/lockstep/internal/ledger"
)

// twoOwners are two instances' ways to one ledger.
func twoOwners(t *testing.T) (x, y *owned) {
	t.Helper()
	c, err := kfake.NewCluster(kfake.NumBrokers(1))
	require.NoError(t, err)
	t.Cleanup(c.Close)
	opts := []kgo.Opt{kgo.SeedBrokers(c.ListenAddrs()...)}
	cl, err := kgo.NewClient(opts...)
	require.NoError(t, err)
	defer cl.Close()
	require.NoError(t, ledger.EnsureTopic(t.Context(), kadm.NewClient(cl), 1))
	mk := func() *owned {
		v := ledger.NewView(ledger.ViewOptions{Client: opts})
		ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
		var wg sync.WaitGroup
		wg.Go(func() { _ = v.Run(ctx) })
		require.NoError(t, v.WaitReady(ctx))
		w, err := ledger.NewWriter(ledger.WriterOptions{Client: opts, View: v})
		require.NoError(t, err)
		t.Cleanup(func() { w.Close(); cancel(); wg.Wait() })
		return newOwned(v, w)
	}
	return mk(), mk()
}

func firstRecord(t *testing.T) *ledger.Record {
	t.Helper()
	l, err := (&epoch.Log{}).Restart(0, 0, 0, 1)
	require.NoError(t, err)
	return &ledger.Record{
		Mirror: "m", Topic: "t", State: epoch.StateMirroring, StateEpoch: 1, Log: *l,
		Lineage: "l", SourceCluster: "s", Path: []string{"s"},
	}
}

// M20: an owner that was frozen finds itself fenced at its first write, by
// whatever it writes first, and never takes the ledger partition back by
// itself.
func TestM20FencedOwnerStaysFenced(t *testing.T) {
	for _, first := range []string{"checkpoint", "record"} {
		t.Run(first, func(t *testing.T) {
			x, y := twoOwners(t)
			ctx := t.Context()
			var told []int32
			x.fenced = func(n int32) { told = append(told, n) }
			n := ledger.PartitionOf("t", 0)
			require.NoError(t, x.take(ctx, n))
			rec := firstRecord(t)
			require.NoError(t, x.Put(ctx, rec))
			old := x.Partition("t", 0).Record

			require.NoError(t, y.take(ctx, n))
			yr := y.Partition("t", 0).Record.Next()
			l, err := yr.Log.Cut(5, 5, 0, 2)
			require.NoError(t, err)
			yr.Log = *l
			require.NoError(t, y.Put(ctx, yr))

			write := map[string]func() error{
				"checkpoint": func() error {
					return x.checkpoint(ctx, []ledger.Checkpoint{{Topic: "t", Lineage: "l", V: 1, P: 1, Position: 1}})
				},
				"record": func() error {
					base := old
					if s := x.Partition("t", 0); s.Record.StateEpoch > base.StateEpoch {
						base = s.Record
					}
					next := base.Next()
					next.Log = *old.Log.WithEpoch(7, 1) // of what it has in memory
					return x.Put(ctx, next)
				},
			}
			// The view may not have the other's record yet: that is a conflict
			// at most for the writer itself.
			require.NoError(t, x.view.WaitFor(ctx, n, y.view.Position(n)))
			require.ErrorIs(t, write[first](), ledger.ErrFenced)
			require.False(t, x.has(n))
			require.Equal(t, []int32{n}, told)
			for range 3 {
				require.ErrorIs(t, write["record"](), ledger.ErrFenced)
				require.ErrorIs(t, write["checkpoint"](), ledger.ErrFenced)
			}
			require.Equal(t, []int32{n}, told, "told once")
			require.NoError(t, y.Put(ctx, yr.Next()), "the real owner was not fenced")
			require.Equal(t, y.Partition("t", 0).Log.Spans, yr.Log.Spans)

			// It comes back when the group says so, and what ran has stopped.
			require.Error(t, x.take(ctx, n), "what ran here may still run")
			lost := x.left([]int32{n})
			require.Equal(t, map[int32]bool{n: true}, lost)
			x.forget(lost)
			x.stopped(lost)
			require.NoError(t, x.take(ctx, n))
			require.Empty(t, x.left([]int32{n}))
			require.NoError(t, x.Put(ctx, x.Partition("t", 0).Record.Next()))
			require.NoError(t, y.view.WaitFor(ctx, n, x.view.Position(n))) // as above
			require.ErrorIs(t, y.Put(ctx, y.Partition("t", 0).Record.Next()), ledger.ErrFenced)
		})
	}
}

// M20: without a confirmation of the group nothing is written, and nothing is
// acquired.
func TestM20UnconfirmedOwnerWritesNothing(t *testing.T) {
	x, y := twoOwners(t)
	ctx := t.Context()
	n := ledger.PartitionOf("t", 0)
	require.NoError(t, x.take(ctx, n))
	require.NoError(t, x.Put(ctx, firstRecord(t)))
	healthy := false
	x.healthy = func() bool { return healthy }
	require.ErrorIs(t, x.Put(ctx, x.Partition("t", 0).Record.Next()), ledger.ErrFenced)
	require.False(t, x.has(n))
	require.NoError(t, y.take(ctx, n))
	require.ErrorIs(t, x.take(ctx, n), ledger.ErrFenced)
	require.NoError(t, y.Put(ctx, y.Partition("t", 0).Record.Next()), "the other was not fenced")
}

// A write of our own that failed is renewed, without fencing anybody.
func TestRenewAfterOwnFailure(t *testing.T) {
	x, _ := twoOwners(t)
	n := ledger.PartitionOf("t", 0)
	require.NoError(t, x.take(t.Context(), n))
	short, cancel := context.WithTimeout(t.Context(), time.Nanosecond)
	defer cancel()
	<-short.Done()
	for range 20 { // some of them get the turn first
		require.Error(t, x.Put(short, firstRecord(t)))
	}
	require.NoError(t, x.Put(t.Context(), firstRecord(t)))
	require.True(t, x.has(n))
}

// M20: an owner that sees a record in the ledger which it did not write stops,
// and overwrites nothing.
func TestM20ForeignRecordStopsOwner(t *testing.T) {
	r := newRig(t, 1)
	r.write(0, rawBatch{base: 0, n: 1})
	r.start()
	r.reached(0, 1)
	n := r.store.Partition("t", 0).Record.Next()
	l, err := n.Log.CutLive(1, 1, 0, 2)
	require.NoError(t, err)
	l.Bump = 500
	n.Log = *l
	require.NoError(t, r.store.Put(t.Context(), n))
	r.src.with("t", 0, func(l *fakeLog) { l.append(rawBatch{base: 1, n: 1, epoch: 3}.bytes()); l.epoch = 3 })
	r.eng.Poke() // as Manager.notice does at every change
	eventually(t, "fenced", func() bool { return len(r.fenced) == 1 })
	require.EqualValues(t, 2, r.store.Partition("t", 0).Log.LastGen)
	require.EqualValues(t, 500, r.store.Partition("t", 0).Log.Bump)
	require.Equal(t, n.StateEpoch, r.store.Partition("t", 0).Record.StateEpoch)
	require.False(t, r.eng.Partition("t", 0).running())
}
