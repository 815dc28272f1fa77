package mirror

import (
	"fmt"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/lockstep-kafka/lockstep/protocol"
)

// mergingRig is a rig whose source has n batches of one record.
func mergingRig(t *testing.T, n int64) *rig {
	t.Helper()
	r := newRig(t, 1)
	r.tuning.KeepBatches = false
	for i := range n {
		r.write(0, rawBatch{base: i, n: 1})
	}
	return r
}

func (r *rig) produced(p int32) (sizes []int32) {
	r.dst.with("t", p, func(l *fakeLog) {
		for _, b := range l.batches {
			sizes = append(sizes, b.NumRecords())
		}
	})
	return sizes
}

// What is fetched at once is written at once; records, offsets and epochs stay.
func TestMergeWhileBehind(t *testing.T) {
	r := mergingRig(t, 50)
	r.start()
	r.reached(0, 50)
	r.same(0)
	require.Equal(t, []int32{50}, r.produced(0))
	require.EqualValues(t, 50, testutil.ToFloat64(r.met.merged.WithLabelValues("m", "t")))
	// Caught up: one by one.
	r.write(0, rawBatch{base: 50, n: 2})
	r.reached(0, 52)
	r.same(0)
	require.Equal(t, []int32{50, 2}, r.produced(0))
}

// A stamp speaks of the whole batch: what differs in it is not joined.
func TestMergeKeepsApart(t *testing.T) {
	r := mergingRig(t, 3)
	for _, b := range []rawBatch{
		{base: 3, n: 1, epoch: 1},
		{base: 4, n: 1, epoch: 1}, // another leader epoch
		{base: 6, n: 1, epoch: 1},
		{base: 7, n: 1, epoch: 1}, // a hole in front
		{base: 8, n: 1, epoch: 1, pid: 7, txn: true},
		{base: 9, n: 1, epoch: 1}, // inside a transaction (M11)
		{base: 10, n: 1, epoch: 1, pid: 7, control: true},
		{base: 11, n: 1, epoch: 1},
		{base: 12, n: 1, epoch: 1},
	} {
		r.write(0, b)
	}
	r.src.with("t", 0, func(l *fakeLog) { l.epoch = 1 })
	r.start()
	r.reached(0, 13)
	r.same(0)
	require.Equal(t, []int32{3, 2, 2, 2, 2}, r.produced(0))
}

// M9: batches with holes have to be written anew in any case, so they are
// joined, and the chain (H2) counts on from the joined one; without it the next
// batch would be dead.
func TestMergeHoles(t *testing.T) {
	for _, compacted := range []bool{false, true} {
		t.Run(fmt.Sprint("compacted=", compacted), func(t *testing.T) {
			r := mergingRig(t, 0)
			r.specs[0].Compacted = compacted
			for _, b := range []rawBatch{
				{base: 2, n: 3, holes: true, lastHole: 4}, // 2, 4, 6, ends at 11
				{base: 20, n: 2, holes: true},             // 20, 22
				{base: 23, n: 1},                          // none inside
				{base: 400, n: 2},                         // more than the stamp's field can say
				{base: 403, n: 1, epoch: 1},               // another leader epoch
				{base: 405, n: 1, epoch: 1},               // a hole between two that have none
				{base: 406, n: 2, epoch: 1},
				{base: 420, n: 2, epoch: 1, holes: true, logTime: true},
				{base: 430, n: 2, epoch: 1, holes: true},
				{base: 440, n: 1, epoch: 1, pid: 7, txn: true},
				{base: 441, n: 1, epoch: 1, pid: 7, control: true},
				{base: 450, n: 2, epoch: 1, holes: true},
				{base: 456, n: 2, epoch: 1, holes: true}, // an answer ends with a joined one
			} {
				r.write(0, b)
			}
			r.src.with("t", 0, func(l *fakeLog) { l.epoch = 1 })
			r.start()
			r.reached(0, 459)
			r.same(0)
			want := []int32{3 + 2 + 1 + 2, 1, 3, 2, 2, 1, 2 + 2}
			if compacted {
				want = []int32{3 + 2 + 1 + 2, 1 + 1 + 2, 2, 2, 1, 2 + 2}
			}
			require.Equal(t, want, r.produced(0))
			// Caught up: one by one, and the chain goes on.
			r.write(0, rawBatch{base: 459, n: 2, epoch: 1, holes: true})
			r.reached(0, 462)
			r.write(0, rawBatch{base: 470, n: 1, epoch: 1})
			r.reached(0, 471)
			r.same(0)
		})
	}
}

// How far a joined batch reaches has a bound: who wants one record reads all of it.
func TestMergeSpanIsBounded(t *testing.T) {
	r := mergingRig(t, 0)
	r.specs[0].Compacted = true
	for _, base := range []int64{0, 1000, mergeSpan - 1, mergeSpan, 5 * mergeSpan} {
		r.write(0, rawBatch{base: base, n: 1})
	}
	r.start()
	r.reached(0, 5*mergeSpan+1)
	r.same(0)
	require.Equal(t, []int32{3, 1, 1}, r.produced(0))
}

// Whatever a destination has against a merged batch, its parts are tried alone
// before the partition fails.
func TestMergeRefusedByDestination(t *testing.T) {
	r := mergingRig(t, 20)
	r.dst.onProduce = func(_ partKey, _ *fakeLog, b protocol.Batch) (int16, bool) {
		if b.NumRecords() > 1 {
			return kerr.MessageTooLarge.Code, true
		}
		return 0, false
	}
	r.start()
	r.reached(0, 20)
	r.same(0)
	require.Len(t, r.produced(0), 20)
}

// A corrupt batch among them is found and named, what lies in front of it is
// mirrored.
func TestMergeCorruptSource(t *testing.T) {
	r := mergingRig(t, 5)
	bad := rawBatch{base: 5, n: 1}.bytes()
	bad[len(bad)-1] ^= 1
	r.src.with("t", 0, func(l *fakeLog) { l.append(bad) })
	r.write(0, rawBatch{base: 6, n: 1})
	r.dst.corrupt = true
	r.dst.onProduce = func(_ partKey, _ *fakeLog, b protocol.Batch) (int16, bool) {
		if !b.CheckCRC() {
			return kerr.CorruptMessage.Code, true
		}
		return 0, false
	}
	r.start()
	eventually(t, "FAILED", func() bool { return r.eng.Partition("t", 0).Status().Failed })
	s := r.eng.Partition("t", 0).Status()
	require.Contains(t, s.Error, "CORRUPT_MESSAGE")
	require.EqualValues(t, 5, s.Position)
}

// Where the source may lose records, a cut has to be exact: nothing is joined.
func TestMergeNotWithUncleanElections(t *testing.T) {
	s, src := newSite(t, "a"), newSite(t, "b")
	s.unclean.Store(true)
	for range 20 {
		src.write(1)
	}
	s.mirrors(src)
	eventually(t, "mirrored", func() bool { return s.eng.Partition("t", 0).Status().Position == 20 })
	require.Equal(t, src.content(), s.content())
	s.phys.with("t", 0, func(l *fakeLog) { require.Len(t, l.batches, 20) })
}
