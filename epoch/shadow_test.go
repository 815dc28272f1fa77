package epoch

import (
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/lockstep-kafka/lockstep/internal/histories"
)

// A compacted partition that is mirrored, cut, built anew beside what is shown,
// repaired and copied, on a destination with a cleaner that keeps the later
// record of a key, dead or alive. Each batch is one record.

type keyed struct {
	Batch
	key, id int
}

type shadowWorld struct {
	t   *rapid.T
	src []keyed // P: its offset
	uid int
	e   int32 // source's leader epoch
	// kept is below what an election may take, as the cleaner was there.
	kept  int64
	gone  map[int]bool // what the cleaner took
	chain Chain

	phys []keyed
	// cleanedTo is where the log ended when the cleaner was there last.
	cleanedTo int64

	pEnd int64
	pe   int32
	b    Book
	pos  int64 // of Work
	late []keyed
	bump int32
	end  int64
	// shown is the leader epoch shown.
	shown int32
	calm  bool // no more mishaps
}

func (w *shadowWorld) srcWrite() {
	w.uid++
	w.chain = w.chain.Assign(w.e, w.srcEnd())
	w.src = append(w.src, keyed{Batch{P: w.srcEnd(), Count: 1, Epoch: w.e}, w.uid % 4, w.uid})
}

// srcClean is the source's cleaner, which does not reach the last record, nor what an
// election may take.
func (w *shadowWorld) srcClean() {
	last := map[int]int64{}
	for _, x := range w.src {
		last[x.key] = x.P
	}
	w.src = slices.DeleteFunc(w.src, func(x keyed) bool {
		w.gone[x.id] = w.gone[x.id] || last[x.key] != x.P
		return last[x.key] != x.P
	})
	w.kept = w.srcEnd()
}

func (w *shadowWorld) srcEnd() int64 {
	if n := len(w.src); n > 0 {
		return w.src[n-1].P + 1
	}
	return 0
}

// srcChain outlives the records.
func (w *shadowWorld) srcChain() Chain { return w.chain.Assign(w.e, w.srcEnd()) }

// live are the records that l shows.
func (w *shadowWorld) live(l *Log) (out []keyed) {
	if len(l.Spans) == 0 {
		return nil
	}
	walk := l.Walk(l.Spans[0].VStart, true).Lenient(w.pEnd)
	for _, x := range w.phys {
		if _, v := walk.Next(x.Batch); v == Live {
			out = append(out, x)
		}
	}
	return out
}

func (w *shadowWorld) gen(not int16) int16 {
	g, err := w.b.NextGeneration(not)
	require.NoError(w.t, err)
	return g
}

// took checks what every ledger write must keep.
func (w *shadowWorld) took(b Book, err error) {
	require.NoError(w.t, err)
	require.NoError(w.t, b.Log.Validate())
	require.NoError(w.t, b.ValidateShadow())
	require.GreaterOrEqual(w.t, b.Log.Bump, w.bump, "the epoch shown never falls")
	l := w.live(b.Log)
	end := b.Log.Spans[0].VStart
	if len(l) > 0 {
		end = l[len(l)-1].V + 1
	}
	if end < w.end {
		require.Greater(w.t, b.Log.Shown(w.pe), w.shown, "the end falls only with the epoch raised")
	}
	w.b, w.bump, w.end, w.shown = b, b.Log.Bump, end, b.Log.Shown(w.pe)
}

func (w *shadowWorld) append(x keyed) {
	x.P, x.PEpoch, x.Count = w.pEnd, w.pe, 1
	w.phys = append(w.phys, x)
	w.pEnd++
}

// mirror appends the source's next record.
func (w *shadowWorld) mirror() {
	l := w.b.Work()
	for _, x := range w.src {
		if x.P < w.pos {
			continue
		}
		if n := l.WithEpoch(x.Epoch, x.P); n != l {
			w.took(w.b.WithWork(n), nil)
			l = w.b.Work()
		}
		expect := l.Open().VStart
		if lv := w.live(l); len(lv) > 0 && lv[len(lv)-1].Gen == l.Open().Gen {
			expect = lv[len(lv)-1].V + 1
		}
		y := keyed{Batch{Stamped: true, V: x.P, VCount: 1, Hole: uint8(x.P - expect), Gen: l.Open().Gen, Epoch: x.Epoch}, x.key, x.id}
		if !w.calm && rapid.IntRange(0, 9).Draw(w.t, "lost answer") == 0 { // it may land at any time
			w.late = append(w.late, y)
			w.newOwner()
			return
		}
		w.append(y)
		w.pos = x.P + 1
		return
	}
}

// newOwner goes on behind the last live record, in a new generation.
func (w *shadowWorld) newOwner() {
	l := w.b.Work()
	v := l.Spans[0].VStart
	if lv := w.live(l); len(lv) > 0 {
		v = lv[len(lv)-1].V + 1
	}
	n, err := l.Cut(v, w.pEnd, w.pe, w.gen(-1))
	require.NoError(w.t, err)
	w.took(w.b.WithWork(n), nil)
	w.pos = n.Open().VStart
}

// lose is an unclean election of the destination that takes the last n records,
// and what the owner then does. It does not take what the cleaner has gone by: were
// the source to lose the same, nothing would say that older values are missing.
func (w *shadowWorld) lose(n int) {
	free := 0
	for _, x := range w.phys {
		if x.P >= w.cleanedTo {
			free++
		}
	}
	n = min(n, free)
	if n > 0 {
		w.pEnd = w.phys[len(w.phys)-n].P
	}
	w.phys = w.phys[:len(w.phys)-n]
	w.pe++
	if o := w.b.Log.Open(); w.b.Shadow != nil && w.pEnd < o.PStart {
		t := w.b.Log.Spans[0].VStart
		if lv := w.live(w.b.Log); len(lv) > 0 {
			t = lv[len(lv)-1].V + 1
		}
		w.took(w.b.ViewLost(CutTo{T: min(t, o.VStart), PEnd: w.pEnd, PEpoch: w.pe, Gen: w.gen(-1)}))
	}
	w.newOwner()
}

// dirty finds dead records behind live ones of l, with no live copy behind; those
// from ahead on will get one.
func (w *shadowWorld) dirty(l *Log, ahead int64) (copies, foreign bool, lowest int64) {
	lv := w.live(l)
	alive := map[int64]bool{}
	for _, x := range lv {
		alive[x.P] = true
	}
	for _, x := range w.phys {
		if alive[x.P] || len(lv) == 0 || x.P < lv[0].P {
			continue
		}
		followed, front := false, int64(0)
		for _, y := range lv {
			followed = followed || y.P > x.P && y.id == x.id
			if y.P < x.P {
				front = y.V + 1
			}
		}
		same := x.Stamped && l.Chain.At(x.V) == x.Epoch
		switch {
		case same && x.V >= front && x.V < w.pos && w.gone[x.id]: // what took its place there comes behind
		case same && x.V >= front && x.V < w.pos && !followed: // of a branch that the source lost
			foreign = true
		case followed, x.V >= ahead && x.Stamped && l.Chain.At(x.V) == x.Epoch: // will be
		case x.Stamped && l.Chain.At(x.V) == x.Epoch:
			if !copies || x.V < lowest {
				lowest = x.V
			}
			copies = true
		default:
			foreign = true
		}
	}
	return copies, foreign, lowest
}

func (w *shadowWorld) beside(s ShadowStart, t int64, cut bool) {
	b := w.b
	var err error
	s.PEnd, s.PEpoch = w.pEnd, w.pe
	if b.Shadow == nil || cut {
		b, err = b.Cut(CutTo{T: t, VEnd: w.end, PEnd: w.pEnd, PEpoch: w.pe, Gen: w.gen(-1)})
		require.NoError(w.t, err)
	}
	s.Target = b.Log.Open().VStart
	if b.Shadow != nil && !s.Local && !cut {
		s.Target = b.Shadow.Target
	}
	g, err := b.NextGeneration(b.Log.Open().Gen)
	require.NoError(w.t, err)
	s.Gen = g
	b, err = b.Beside(s)
	w.took(b, err)
	w.pos = w.b.Work().Open().VStart
}

// notice is what an owner does about the tail and the source: one repair.
func (w *shadowWorld) notice() {
	l := w.b.Work()
	// The source's answer to a fetch with the last epoch.
	if e := l.Chain.Truncate(w.pos).Newest(); e >= 0 {
		at, end := w.srcChain().EndOffsetFor(e, w.srcEnd())
		if at < e || end < w.pos {
			x := Truncation{Chain: l.Chain, Position: w.pos, VEnd: w.pos, RereadEnd: w.pos, Support: true, Compacted: true, Start: -1}
			x.Ask()
			step := w.answer(&x)
			require.Equal(w.t, TruncShadow, step.Do)
			w.beside(ShadowStart{}, min(step.T, w.b.Log.Open().VStart+w.pos), w.b.Shadow == nil)
			return
		}
	}
	copies, foreign, lowest := w.dirty(l, w.pos)
	switch {
	case foreign:
		w.beside(ShadowStart{}, w.pos, false)
	case copies:
		w.beside(ShadowStart{Keep: true, From: lowest}, w.pos, false)
	}
}

func (w *shadowWorld) answer(x *Truncation) TruncStep {
	for {
		switch s := x.Next(); s.Do {
		case TruncAskEnd:
			x.Diverging(w.srcChain().EndOffsetFor(s.Epoch, w.srcEnd()))
		case TruncAskLSO:
			x.Stable(w.srcEnd())
		default:
			return s
		}
	}
}

func (w *shadowWorld) switchOver() {
	if !w.b.Shadow.Due(w.pos, w.srcEnd()) {
		return
	}
	t := w.b.Log.Open().VStart
	{
		x := Truncation{Chain: w.b.Log.Chain, Position: t, VEnd: t, RereadEnd: t, Support: true, Compacted: true, Start: -1}
		x.Ask()
		if s := w.answer(&x); s.Do != TruncGoOn {
			t = s.T
		} else if w.pos < w.b.Shadow.Target {
			return
		}
	}
	if w.b.WantsAnew(t) {
		w.beside(ShadowStart{}, t, false)
		return
	}
	was, cut := w.end, t < w.b.Log.Open().VStart
	b, err := w.b.Switch(t)
	w.took(b, err)
	require.True(w.t, cut || w.end >= was, "the end shown falls from %d to %d with the switch", was, w.end)
}

// top is the end of what is live in the log shown.
func (w *shadowWorld) top() int64 {
	if lv := w.live(w.b.Log); len(lv) > 0 {
		return lv[len(lv)-1].V + 1
	}
	return w.b.Log.Spans[0].VStart
}

// stop makes the tail clean without the source, as STOPPING does.
func (w *shadowWorld) stop() {
	before := w.live(w.b.Log)
	copied := MaxVirtualOffset // from there on all that is here was
	for range 10 {
		copies, foreign, lowest := w.dirty(w.b.Log, MaxVirtualOffset)
		copies = copies && lowest < copied
		for _, x := range w.phys { // never mirrored: no copy of it follows
			foreign = foreign || copies && x.Stamped && x.V >= w.top()
		}
		switch {
		case w.b.Shadow == nil && !copies && !foreign:
			after := w.live(w.b.Log)
			require.Equal(w.t, ids(before), ids(after), "nothing is lost, nothing moves")
			return
		case w.b.Shadow == nil || !w.b.Shadow.Local:
			keep := w.b.Shadow == nil && !foreign
			s := ShadowStart{Keep: keep, Local: true, From: w.b.Log.Spans[0].VStart}
			if keep {
				s.From = lowest
			}
			w.beside(s, max(w.top(), w.b.Log.Open().VStart), false)
			copied = s.From
		}
		for _, x := range w.live(w.b.Log) {
			if x.V < w.pos {
				continue
			}
			l := w.b.Work()
			if n := l.WithEpoch(x.Epoch, x.V); n != l {
				w.took(w.b.WithWork(n), nil)
				l = w.b.Work()
			}
			expect := l.Open().VStart
			if lv := w.live(l); len(lv) > 0 && lv[len(lv)-1].Gen == l.Open().Gen {
				expect = lv[len(lv)-1].V + 1
			}
			y := x
			y.Gen, y.Hole = l.Open().Gen, uint8(x.V-expect)
			w.append(y)
			w.pos = x.V + 1
		}
		b, err := w.b.Switch(w.b.Log.Open().VStart)
		w.took(b, err)
	}
	require.Fail(w.t, "the tail does not get clean")
}

// start mirrors again after a stop, from the same source: the alignment's cut
// takes nothing.
func (w *shadowWorld) start() {
	if !w.b.Lacks {
		w.newOwner()
		return
	}
	w.beside(ShadowStart{}, w.top(), true)
}

func ids(xs []keyed) (out []string) {
	for _, x := range xs {
		out = append(out, fmt.Sprint(x.V, "=", x.id, "e", x.Epoch))
	}
	return out
}

// clean is the cleaner: it is kept off while a shadow is built, and may run
// whenever the tail is clean (it never reaches the active segment, so not what
// the next appends follow).
func (w *shadowWorld) clean() {
	if copies, foreign, _ := w.dirty(w.b.Log, MaxVirtualOffset); w.b.Shadow != nil || copies || foreign {
		return
	}
	newest := map[int]keyed{}
	for _, x := range w.live(w.b.Log) {
		newest[x.key] = x
	}
	w.scrub()
	kept := map[int]keyed{}
	for _, x := range w.live(w.b.Log) {
		kept[x.key] = x
	}
	for k, x := range newest {
		if slices.ContainsFunc(w.phys, func(y keyed) bool { return y.key == k && y.V > x.V && w.gone[y.id] }) {
			continue // the source has nothing of the key either, up to here
		}
		require.Equal(w.t, x.id, kept[k].id, "H1: the cleaner took the newest live record of key %d", k)
	}
}

// neglect is what happens while nobody owns the partition: the cleaner may take
// live records where the end is not clean, though not the last one, as it leaves
// the active segment alone.
func (w *shadowWorld) neglect() {
	before := w.live(w.b.Log)
	if w.b.Shadow != nil || len(before) == 0 || !rapid.Bool().Draw(w.t, "neglected") {
		return
	}
	w.land()
	was, to := slices.Clone(w.phys), w.cleanedTo
	w.scrub()
	if l := w.live(w.b.Log); len(l) == 0 || l[len(l)-1].P != before[len(before)-1].P {
		w.phys, w.cleanedTo = was, to
	}
}

// land appends what nobody expects.
func (w *shadowWorld) land() {
	if len(w.late) > 0 {
		w.append(w.late[0])
		w.late = w.late[1:]
	} else if rapid.Bool().Draw(w.t, "foreign") {
		w.append(keyed{Batch{Count: 1}, 1, -1})
	}
}

// scrub keeps the last record of each key.
func (w *shadowWorld) scrub() {
	last := map[int]int64{}
	for _, x := range w.phys {
		last[x.key] = x.P
	}
	w.phys = slices.DeleteFunc(slices.Clone(w.phys), func(x keyed) bool { return last[x.key] != x.P })
	w.cleanedTo = w.pEnd
}

func newest(xs []keyed, key int) (out keyed) {
	for _, x := range xs {
		if x.key == key {
			out = x
		}
	}
	return out
}

// H1, H15: random histories of a compacted partition.
func TestShadowHistories(t *testing.T) {
	histories.Check(t, func(t *rapid.T) {
		first := &Log{Spans: []Span{{Kind: Mirrored, Gen: 0, PEnd: -1}}}
		w := &shadowWorld{t: t, gone: map[int]bool{}, b: Book{Log: first, Pairs: []Pair{{Cluster: "S", LME: 0, LMO: 3}}}}
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			switch rapid.IntRange(0, 13).Draw(t, "step") {
			case 0, 1, 2:
				w.srcWrite()
			case 3, 4, 5, 6:
				w.mirror()
			case 7: // an unclean election of the source
				keep := rapid.Int64Range(w.kept, w.srcEnd()).Draw(t, "keep")
				for len(w.src) > 0 && w.srcEnd() > keep {
					w.src = w.src[:len(w.src)-1]
				}
				w.chain = w.chain.Truncate(w.srcEnd())
				w.e++
				w.srcWrite()
			case 8:
				w.land()
			case 9:
				w.neglect()
				w.newOwner()
			case 10:
				w.clean()
			case 12: // the source's cleaner
				w.srcClean()
			case 13:
				w.lose(rapid.IntRange(0, 6).Draw(t, "lost"))
			case 11:
				if rapid.IntRange(0, 3).Draw(t, "stop") == 0 {
					w.neglect()
					w.stop()
					w.start()
				}
			}
			w.notice()
			w.switchOver()
		}
		// It settles: equal to the source, clean, and the cleaner harms nothing.
		for _, x := range w.late {
			w.append(x)
		}
		w.late = nil
		w.calm = true
		for range 300 {
			w.notice()
			w.mirror()
			w.switchOver()
			// Both sides had an unclean election: the source has to go on up to the end ever shown.
			if w.b.Shadow != nil && w.pos >= w.srcEnd() && w.pos < w.b.Shadow.Target {
				w.srcWrite()
			}
		}
		require.Nil(t, w.b.Shadow)
		require.Equal(t, w.srcEnd(), w.pos)
		w.clean()
		want := map[int]int{}
		for _, x := range w.src {
			want[x.key] = x.id
		}
		have := map[int]int{}
		for _, x := range w.live(w.b.Log) {
			have[x.key] = x.id
			require.True(t, slices.ContainsFunc(w.src, func(y keyed) bool { return y.P == x.V && y.id == x.id }) || newest(w.src, x.key).P > x.V)
			require.Equal(t, x.Epoch, w.b.Log.Chain.At(x.V))
		}
		require.Equal(t, want, have)
	})
}

// H15: what shares the front with the log shown does not take its place with a cut.
func TestH15SwitchWithACutIsAnew(t *testing.T) {
	l := &Log{Spans: []Span{{Kind: Mirrored, Gen: 1, PEnd: -1}}, Chain: Chain{{0, 0}}, LastGen: 1}
	for _, keep := range []bool{true, false} {
		b, err := Book{Log: l}.Cut(CutTo{T: 4, VEnd: 4, PEnd: 5, PEpoch: 3, Gen: 2})
		require.NoError(t, err)
		b, err = b.Beside(ShadowStart{Keep: keep, From: 2, Target: 4, PEnd: 5, PEpoch: 3, Gen: 3})
		require.NoError(t, err)
		require.False(t, b.WantsAnew(4))
		_, err = b.Switch(4)
		require.NoError(t, err)
		require.Equal(t, keep, b.WantsAnew(2))
		_, err = b.Switch(2)
		require.Equal(t, keep, err != nil)
	}
}
