package mirror

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-kafka/lockstep/epoch"
	"github.com/lockstep-kafka/lockstep/protocol"
)

// Where share groups stand in the destination's own log, and back: in the middle of batches, over batches that are dead
// (answers were lost), over several generations, at the end and beyond the start.
func TestPlacesInTheOwnLog(t *testing.T) {
	r := newRig(t, 1)
	var bs []rawBatch
	for v := int64(0); v < 40; v += 4 {
		bs = append(bs, rawBatch{base: v, n: 3}) // a hole of one behind each
	}
	r.write(0, bs...)
	n := 0
	r.dst.onProduce = func(_ partKey, l *fakeLog, b protocol.Batch) (int16, bool) {
		if n++; n%3 != 2 {
			return 0, false
		}
		l.land(b) // but the connection breaks
		return -1, true
	}
	r.start()
	r.reached(0, 39)
	r.same(0)
	l := r.store.Partition("t", 0).Log
	require.Greater(t, len(l.Spans), 2)

	type place struct{ v, p int64 }
	var live []place
	var end int64
	r.dst.with("t", 0, func(f *fakeLog) {
		w := l.Walk(l.Spans[0].VStart, true)
		for _, raw := range f.batches {
			if pl, verdict := w.Next(readHeader(raw)); verdict == epoch.Live {
				for i := range pl.PEnd - pl.P {
					live = append(live, place{pl.V + i, pl.P + i})
				}
			}
		}
		end = f.end()
	})
	require.Len(t, live, 30)
	logs, k := engineLogs{&source{engine: r.eng}}, partKey{"t", 0}
	next := 0
	for v := range int64(39) { // holes too: the record behind
		for live[next].v < v {
			next++
		}
		at, err := logs.physical(t.Context(), k, l, v)
		require.NoError(t, err)
		require.Equal(t, live[next].p, at, "of %d", v)
	}
	next = 0
	for p := range end { // dead ones too
		for next < len(live) && live[next].p < p {
			next++
		}
		if next == len(live) {
			break
		}
		v, err := logs.virtual(t.Context(), k, l, p)
		require.NoError(t, err)
		require.LessOrEqual(t, v, live[next].v, "at %d", p)
		if next > 0 {
			require.Greater(t, v, live[next-1].v, "at %d", p)
		}
	}
	last := live[len(live)-1]
	at, err := logs.physical(t.Context(), k, l, 39)
	require.NoError(t, err)
	require.Greater(t, at, last.p)
	require.LessOrEqual(t, at, end)
}
