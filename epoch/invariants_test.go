package epoch

// What must hold after every step of a random history.

import (
	"fmt"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func (w *world) check() {
	t := w.t
	require.NoError(t, w.l.Validate())
	require.GreaterOrEqual(t, w.l.Shown(w.pe), w.shown, "epoch shown falls")
	w.shown = w.l.Shown(w.pe)

	lv := w.live()
	seen := map[int]bool{}
	end := int64(-1)
	for _, b := range lv {
		require.Greater(t, b.V, end-1, "live v rise")
		end = b.V + b.Count
		require.False(t, seen[b.id], "content %d twice", b.id)
		seen[b.id] = true
		require.Equal(t, b.Epoch, w.l.Chain.At(b.V), "chain %v at v%d", w.l.Chain, b.V)
	}

	// The forward view of the package is the brute-force view, and recovery
	// ends where it does, with and without checkpoint.
	w.forward(lv)
	for _, cp := range []bool{false, true} {
		r := w.recovered(cp)
		if len(lv) > 0 {
			require.Equal(t, BasisLog, r.Basis)
			require.Equal(t, end, r.VEnd, "recovery, checkpoint %v %+v", cp, w.cp)
			require.Equal(t, lv[len(lv)-1].PEnd(), r.LivePEnd)
			require.GreaterOrEqual(t, r.Position, r.VEnd)
		}
	}

	// The mirrored prefix is the source's prefix.
	if w.suspect {
		return
	}
	at := int64(0)
	if len(lv) > 0 {
		at = lv[0].V
	}
	var want, got []string
	for _, b := range w.src {
		if b.id != 0 && b.v >= at && b.v < end {
			want = append(want, fmt.Sprintf("v%d+%d e%d #%d", b.v, b.n, b.epoch, b.id))
		}
	}
	for _, b := range lv {
		got = append(got, fmt.Sprintf("v%d+%d e%d #%d", b.V, b.Count, b.Epoch, b.id))
	}
	require.Equal(t, want, got, "live is not the source's prefix")
}

func (w *world) forward(lv []dstBatch) {
	walk := w.l.Walk(w.l.Spans[0].VStart, true)
	var got []int
	for _, b := range w.phys {
		pl, v := walk.Next(b.Batch)
		if v != Live || b.P < w.pStart {
			continue
		}
		got = append(got, b.id)
		w.ix.Add(pl.V, pl.P)
	}
	var want []int
	for _, b := range lv {
		want = append(want, b.id)
	}
	require.Equal(w.t, want, got, "forward view")
}

// reader reads from any position, by the index, as the proxy does: it must see
// every live batch from its position on and nothing else.
func (w *world) reader() {
	lv := w.live()
	if len(lv) == 0 {
		return
	}
	end := lv[len(lv)-1]
	span := end.V + end.Count - lv[0].V
	v := lv[0].V + rapid.Int64Range(0, span-1).Draw(w.t, "v")
	var want []int
	for _, b := range lv {
		if b.V+b.Count > v {
			want = append(want, b.id)
		}
	}
	p, from, _ := w.l.SeekV(w.ix, v)
	walk := w.l.Walk(from, false)
	var got []int
	for _, b := range w.phys {
		if b.PEnd() <= p || b.P < w.pStart {
			continue
		}
		if pl, verdict := walk.Next(b.Batch); verdict == Live && pl.VEnd > v {
			got = append(got, b.id)
		}
	}
	require.Equal(w.t, want, got, "reader at v%d, from p%d v%d", v, p, from)
}
