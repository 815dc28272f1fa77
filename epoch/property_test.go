package epoch

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/lockstep-kafka/lockstep/internal/histories"
)

// The model: a source log, the destination's physical log as a slice of
// batches, and what is live computed from DESIGN §3 by brute force. The owner
// acts by the package's own decisions; nobody tells it of losses, of late
// writes or of foreign ones.

type srcBatch struct {
	v, n  int64
	epoch int32
	id    int // identity of the content; 0: skipped (control, aborted)
}

type dstBatch struct {
	Batch
	id int // content; < 0: foreign
}

type world struct {
	t   *rapid.T
	uid int

	src      []srcBatch
	srcEnd   int64
	srcStart int64
	srcEpoch int32
	// srcEpochs: where each epoch began, an election's epoch at the log end then.
	srcEpochs []Entry
	suspect   bool // the source lost records since the owner's last good fetch

	phys   []dstBatch // whole history, what retention took included
	pStart int64
	gone   int64 // retention took what lay below, virtually
	pEnd   int64
	pe     int32

	l        *Log
	cp       *Checkpoint
	pos      int64
	chainEnd int64
	last     int32
	doubt    bool
	inflight []dstBatch
	zombies  []dstBatch
	ix       *Index
	shown    int32
}

// live by brute force, in the whole history.
func bruteLive(l *Log, phys []dstBatch) []dstBatch {
	var out []dstBatch
	for si, s := range l.Spans {
		inSpan := func(b dstBatch) bool {
			return b.P >= s.PStart && (si == len(l.Spans)-1 || b.P < l.Spans[si+1].PStart)
		}
		fits := func(v, n int64) bool {
			return v >= s.VStart && (si == len(l.Spans)-1 || v+n <= l.Spans[si+1].VStart)
		}
		next, begun, gap := s.VStart, false, false
		for _, b := range phys {
			switch {
			case !inSpan(b):
			case s.Kind == Native:
				closedBefore := si < len(l.Spans)-1 && b.PEpoch > l.Spans[si+1].PEpoch
				if v := s.VStart + b.P - s.PStart; !b.Stamped && !closedBefore && fits(v, b.Count) {
					b.V, b.Epoch = v, b.PEpoch+s.Bump
					out = append(out, b)
				}
			case !b.Stamped || b.Gen != s.Gen || b.PEpoch != s.PEpoch || !fits(b.V, b.Count) || gap || b.V < next:
			case b.V == next+int64(b.Hole) && b.Hole < 255, b.Hole == 255 && b.V-next >= 255, !begun && b.V-int64(b.Hole) <= next:
				next, begun = b.V+b.Count, true
				out = append(out, b)
			default:
				gap = true
			}
		}
	}
	return out
}

func (w *world) live() []dstBatch {
	all := bruteLive(w.l, w.phys)
	return slices.DeleteFunc(all, func(b dstBatch) bool { return b.P < w.pStart })
}

// srcEndFor is facts.md §2 on the source, by looking at its elections.
func (w *world) srcEndFor(e int32) (int32, int64) {
	below, above := int32(-1), int64(-1)
	newest := int32(-1)
	for _, x := range w.srcEpochs {
		if x.Epoch <= e {
			below = x.Epoch
		} else if above < 0 {
			above = x.Start
		}
		newest = x.Epoch
	}
	switch {
	case e < 0:
		return -1, -1
	case e == newest:
		return e, w.srcEnd
	case above < 0:
		return -1, -1
	case below < 0:
		return e, above
	}
	return below, above
}

func (w *world) draw(n int, label string) int { return rapid.IntRange(0, n-1).Draw(w.t, label) }

// ---- source

func (w *world) srcAppend() {
	n := int64(1 + w.draw(3, "n"))
	if w.draw(12, "hole") == 0 {
		w.srcEnd += int64([]int{1, 200, 254, 255, 256, 700}[w.draw(6, "by")]) // compacted away
	}
	b := srcBatch{v: w.srcEnd, n: n, epoch: w.srcEpoch}
	if w.draw(5, "kind") > 0 {
		w.uid++
		b.id = w.uid
	}
	w.src = append(w.src, b)
	w.srcEnd += n
}

func (w *world) srcElect() {
	w.srcEpoch += int32(1 + w.draw(3, "by"))
	w.srcEpochs = slices.DeleteFunc(w.srcEpochs, func(e Entry) bool { return e.Start >= w.srcEnd })
	w.srcEpochs = append(w.srcEpochs, Entry{w.srcEpoch, w.srcEnd})
}

func (w *world) srcUnclean() {
	for k := 1 + w.draw(4, "lose"); k > 0 && len(w.src) > 1; k-- {
		w.srcEnd = w.src[len(w.src)-1].v
		w.src = w.src[:len(w.src)-1]
	}
	w.suspect = true
	w.srcElect()
}

// ---- destination

func (w *world) land(b dstBatch) {
	b.P, b.PEpoch = w.pEnd, w.pe
	w.phys = append(w.phys, b)
	w.pEnd += b.Count
}

func (w *world) foreign() {
	w.uid++
	w.land(dstBatch{Batch: Batch{Count: int64(1 + w.draw(3, "n"))}, id: -w.uid})
}

func (w *world) deliver() {
	if len(w.inflight) == 0 {
		return
	}
	i := 0
	if w.draw(6, "order") == 0 {
		i = w.draw(len(w.inflight), "which") // overtaken on another connection
		w.doubt = w.doubt || i > 0           // its base will be lower than expected
	}
	b := w.inflight[i]
	w.inflight = slices.Delete(w.inflight, i, i+1)
	switch w.draw(12, "outcome") {
	case 0: // refused
		w.doubt = true
	case 1: // timed out, may land later
		w.doubt = true
		w.zombies = append(w.zombies, b)
	case 2: // landed, answer lost
		w.land(b)
		w.doubt = true
	case 3: // landed twice (sent again by the client library)
		w.land(b)
		w.land(b)
	default:
		w.land(b)
	}
}

func (w *world) zombie() {
	if n := len(w.zombies); n > 0 {
		i := w.draw(n, "which")
		w.land(w.zombies[i])
		w.zombies = slices.Delete(w.zombies, i, i+1)
	}
}

func (w *world) dstElect() { w.pe++ }

func (w *world) dstUnclean() {
	for k := 1 + w.draw(5, "lose"); k > 0 && len(w.phys) > 0; k-- {
		b := w.phys[len(w.phys)-1]
		if b.P < w.pStart {
			break
		}
		w.pEnd = b.P
		w.phys = w.phys[:len(w.phys)-1]
	}
	w.pe++
}

func (w *world) retention() {
	if lv := w.live(); len(lv) > 0 {
		b := lv[w.draw(len(lv), "to")]
		w.pStart, w.gone = b.P, b.V
		w.ix.DropBelow(w.pStart)
		w.l = w.l.DropBelow(w.pStart)
	}
}

func (w *world) checkpoint() {
	lv := w.live()
	if len(lv) == 0 || len(w.inflight) > 0 || w.l.Open().PEpoch != w.pe {
		return
	}
	b := lv[len(lv)-1]
	if b.Gen != w.l.Open().Gen || !b.Stamped || b.ChainEnd() != w.chainEnd {
		return
	}
	w.cp = &Checkpoint{Gen: b.Gen, V: b.ChainEnd(), ChainEnd: b.ChainEnd(), P: b.PEnd(), Position: w.pos}
}

// ---- owner

func (w *world) recovered(withCp bool) Recovered {
	in := RecoverInput{PStart: w.pStart, PEnd: w.pEnd, LeaderEpoch: w.pe, MayLand: w.doubt}
	if withCp {
		in.Checkpoint = w.cp
	}
	r := w.l.Recover(in)
	for range len(w.l.Spans) + 3 {
		from, to, ok := r.Next()
		if !ok {
			return r.Result()
		}
		require.Less(w.t, from, to)
		for _, b := range w.phys {
			if b.P >= w.pStart && b.PEnd() > from && b.P < to {
				r.Feed(b.Batch)
			}
		}
	}
	w.t.Fatal("recovery does not end")
	return Recovered{}
}

// newGen cuts to t at most, never above what the log itself holds (F4d).
func (w *world) newGen(t int64) {
	t = min(t, w.recovered(true).Position)
	for _, b := range w.live() {
		if b.V < t && t < b.V+b.Count {
			t = b.V
		}
	}
	liveCut := slices.ContainsFunc(w.live(), func(b dstBatch) bool { return b.V >= t })
	gen, err := w.l.NextGeneration(nil)
	require.NoError(w.t, err)
	cut := w.l.Cut
	if liveCut {
		cut = w.l.CutLive
	}
	n, err := cut(t, w.pEnd, w.pe, gen)
	require.NoError(w.t, err)
	require.LessOrEqual(w.t, n.Open().VStart, t)
	w.ix.Follow(w.l, n)
	w.l = n
	w.zombies = append(w.zombies, w.inflight...)
	w.inflight, w.doubt = nil, false
	w.pos = n.Open().VStart
	w.chainEnd = w.pos
	w.last = n.Chain.Newest()
}

// look: the owner compares the destination's leader epoch and settles doubts.
func (w *world) look() {
	if w.doubt || w.pe != w.l.Open().PEpoch {
		w.newGen(MaxVirtualOffset)
	}
}

func (w *world) takeover() {
	r := w.recovered(w.draw(2, "cp") == 0)
	w.zombies = append(w.zombies, w.inflight...)
	clean := len(w.inflight) == 0 && !w.doubt && !r.NewGeneration && w.draw(2, "clean") == 0
	w.inflight = nil
	if clean {
		w.pos, w.chainEnd, w.last = r.Position, r.ChainEnd, r.LastEpoch
		return
	}
	w.newGen(MaxVirtualOffset)
}

func (w *world) fetch() {
	if len(w.inflight) >= 3 || w.doubt {
		return
	}
	if w.last >= 0 {
		e, end := w.srcEndFor(w.last)
		if e < 0 || e < w.last || end < w.pos {
			t, _ := w.l.Chain.Truncate(w.pos).TruncateTo(e, end, w.pos)
			if e < 0 {
				t = min(w.pos, w.srcEnd) // the source's end fell below all of that epoch
			}
			w.newGen(t)
			return
		}
	}
	if w.pos > w.srcEnd {
		w.newGen(w.srcEnd)
		return
	}
	w.suspect = false
	i := slices.IndexFunc(w.src, func(b srcBatch) bool { return b.v+b.n > w.pos })
	if i < 0 {
		return
	}
	b := w.src[i]
	if b.id != 0 && b.v < w.pos { // F8: the first batch begins below the position
		w.newGen(b.v)
		return
	}
	hole := b.v - w.chainEnd
	if b.id != 0 && hole >= 255 && len(w.inflight) > 0 {
		return // hole 255 only when all before it is confirmed
	}
	w.l = w.l.WithEpoch(b.epoch, b.v)
	w.pos, w.last = b.v+b.n, b.epoch
	if b.id == 0 {
		return
	}
	w.chainEnd = w.pos
	w.inflight = append(w.inflight, dstBatch{Batch: Batch{
		Count: b.n, Stamped: true, V: b.v, VCount: b.n, Hole: uint8(min(hole, 255)), Gen: w.l.Open().Gen, Epoch: b.epoch,
	}, id: b.id})
}

func newWorld(t *rapid.T) *world {
	w := &world{t: t, l: &Log{}, srcEpochs: []Entry{{0, 0}}, last: -1, ix: NewIndex(4 + rapid.IntRange(0, 8).Draw(t, "index"))}
	switch rapid.IntRange(0, 2).Draw(t, "begin") {
	case 0: // fresh
	case 1: // junk on the destination, the source's log start inside a batch
		w.foreign()
		for range 3 {
			w.srcAppend()
		}
		w.srcStart = rapid.Int64Range(0, w.srcEnd).Draw(t, "start")
	case 2: // a shared native past (failback): native here, mirrored there
		w.l = &Log{Spans: []Span{{Kind: Native, PEnd: -1}}, Chain: Chain{{0, 0}}}
		for range 4 {
			w.uid++
			n := int64(1 + w.draw(3, "n"))
			w.src = append(w.src, srcBatch{v: w.srcEnd, n: n, id: w.uid})
			w.srcEnd += n
			w.land(dstBatch{Batch: Batch{Count: n}, id: w.uid})
		}
		w.newGen(w.srcEnd)
		return w
	}
	n, err := w.l.Restart(w.srcStart, w.pEnd, w.pe, 1)
	require.NoError(t, err)
	w.l, w.pos, w.chainEnd = n, w.srcStart, w.srcStart
	return w
}

func TestRandomHistories(t *testing.T) {
	histories.Check(t, func(t *rapid.T) {
		w := newWorld(t)
		ops := []struct {
			name   string
			weight int
			do     func()
		}{
			{"src append", 10, w.srcAppend},
			{"src elect", 2, w.srcElect},
			{"src unclean", 1, w.srcUnclean},
			{"fetch", 16, w.fetch},
			{"deliver", 14, w.deliver},
			{"zombie", 3, w.zombie},
			{"foreign", 1, w.foreign},
			{"elect", 1, w.dstElect},
			{"unclean", 1, w.dstUnclean},
			{"look", 6, w.look},
			{"takeover", 1, w.takeover},
			{"retention", 1, w.retention},
			{"checkpoint", 3, w.checkpoint},
			{"reader", 4, w.reader},
		}
		var pick []int
		for i, o := range ops {
			for range o.weight {
				pick = append(pick, i)
			}
		}
		for range rapid.IntRange(1, 150).Draw(t, "steps") {
			o := ops[rapid.SampledFrom(pick).Draw(t, "op")]
			t.Log(o.name)
			o.do()
			w.check()
		}
		w.drain()
	})
}

// drain lets everything settle; then both logs must be equal.
func (w *world) drain() {
	for range 4*len(w.src) + 50 {
		w.look()
		if len(w.inflight) > 0 {
			w.land(w.inflight[0])
			w.inflight = w.inflight[1:]
		} else if pos, spans := w.pos, len(w.l.Spans); true {
			w.fetch()
			if pos == w.pos && spans == len(w.l.Spans) && w.pos >= w.srcEnd {
				break
			}
		}
		w.check()
	}
	require.False(w.t, w.suspect)
	w.check()
	lv := w.live()
	for i := len(w.src) - 1; i >= 0; i-- {
		if b := w.src[i]; b.id != 0 {
			if b.v+b.n > max(w.srcStart, w.gone) {
				require.NotEmpty(w.t, lv)
				require.Equal(w.t, b.id, lv[len(lv)-1].id, "not drained")
			}
			break
		}
	}
}
