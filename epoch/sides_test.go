package epoch

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"testing"

	"pgregory.net/rapid"

	"github.com/lockstep-kafka/lockstep/internal/histories"
)

// sides is the world: clusters by name, and what must hold.
type sides struct {
	t    interface{ Fatalf(string, ...any) }
	out  func(string)
	by   map[string]*side
	all  []*side
	uid  int
	ule  int
	at   map[int][2]int64 // id → offset, epoch, for ever
	both map[int]bool     // ids that were live on two sides at once
	dead map[int]bool     // ids below a moved log start
	stat map[string]int
}

func newSides(t interface{ Fatalf(string, ...any) }, out func(string), replicas int, names ...string) *sides {
	w := &sides{t: t, out: out, by: map[string]*side{}, at: map[int][2]int64{}, both: map[int]bool{}, dead: map[int]bool{}, stat: map[string]int{}}
	for _, n := range names {
		s := newSide(w, n, replicas)
		w.by[n], w.all = s, append(w.all, s)
	}
	return w
}

func (w *sides) logf(f string, a ...any) {
	if w.out != nil {
		w.out(fmt.Sprintf(f, a...))
	}
}

func (w *sides) that(ok bool, f string, a ...any) {
	if !ok {
		w.t.Fatalf(f, a...)
	}
}

func (w *sides) no(err error) {
	if err != nil {
		w.t.Fatalf("%v", err)
	}
}

func (w *sides) newIDs(n int64) []int {
	ids := make([]int, n)
	for i := range ids {
		w.uid++
		ids[i] = w.uid
	}
	return ids
}

func (w *sides) losses() (n int) {
	for _, s := range w.all {
		n += s.k.losses
	}
	return n
}

// cut: an alignment takes gone out of s.
func (w *sides) cut(s *side, gone []lrec) {
	if w.losses() > 0 || s.own.alStep.Empty || len(w.all) > 2 {
		return
	}
	src := map[int]bool{}
	for _, x := range s.source().live() {
		for _, id := range x.ids {
			src[id] = true
		}
	}
	for _, x := range gone {
		for _, id := range x.ids {
			w.that(!s.unsettled[id] || !w.both[id] || src[id] || w.dead[id], "%s: alignment cuts record %d at v%d, which was mirrored", s.name, id, x.V)
		}
	}
}

// cutByStop: a write that was given up and landed behind the re-read end was
// live until STOPPED cut it; it was not mirrored.
func (w *sides) cutByStop(s *side, was []lrec) {
	for _, x := range s.live() {
		was = slices.DeleteFunc(was, func(y lrec) bool { return slices.Equal(x.ids, y.ids) })
	}
	for _, x := range was {
		for _, id := range x.ids {
			delete(w.both, id)
		}
	}
}

func (w *sides) check() {
	on := map[int]int{}
	for _, s := range w.all {
		w.that(s.lead() >= s.shown, "%s: epoch shown falls from %d to %d", s.name, s.shown, s.lead())
		s.shown = s.lead()
		if s.book.BeforeCut() && s.book.Log.NativeLost(s.k.leader().epochs, s.k.leader().end()) != nil {
			continue // not shown before the owner has looked (F5)
		}
		end, epoch, chain := int64(-1), int32(-1), s.chain()
		seen := map[int]bool{}
		for _, x := range s.live() {
			w.that(x.V >= end, "%s: v%d after %d", s.name, x.V, end)
			w.that(x.Epoch >= epoch, "%s: epoch %d after %d at v%d", s.name, x.Epoch, epoch, x.V)
			w.that(x.VEnd <= s.vStart() || chain.At(max(x.V, s.vStart())) == x.Epoch, "%s: chain %v at v%d, the record has %d", s.name, chain, x.V, x.Epoch)
			end, epoch = x.VEnd, x.Epoch
			if x.kind != 'd' {
				continue
			}
			for j, id := range x.ids {
				w.that(!seen[id], "%s: record %d twice", s.name, id)
				seen[id] = true
				on[id]++
				at := [2]int64{x.V + int64(j), int64(x.Epoch)}
				was, ok := w.at[id]
				w.that(!ok || was == at, "%s: record %d was at (offset, epoch) %v, now %v", s.name, id, was, at)
				w.at[id] = at
			}
		}
		if s.book.State == StateMirroring && s.own != nil && s.own.ready && s.own.tr == nil && s.valid && !s.suspect {
			w.same(s, false)
		}
	}
	for id, n := range on {
		if n > 1 {
			w.both[id] = true
		}
	}
}

// same: what s mirrored is its source's log, all of it when drained.
func (w *sides) same(s *side, drained bool) {
	src := s.source()
	lo, hi := max(s.vStart(), src.vStart()), int64(1<<60)
	if !drained {
		hi = s.vEnd()
	}
	list := func(x *side) (out []string) {
		for _, b := range x.live() {
			for j, id := range b.ids {
				if v := b.V + int64(j); b.kind == 'd' && v >= lo && v < hi {
					out = append(out, fmt.Sprintf("%d(%d)#%d", v, b.Epoch, id))
				}
			}
		}
		return out
	}
	a, b := list(src), list(s)
	w.that(slices.Equal(a, b), "%s differs from its source (drained %v):\n%v\n%v", s.name, drained, a, b)
}

// drain lets the mirror settle, then both logs are equal.
func (w *sides) drain(s *side) {
	if s.own == nil {
		s.takeover()
	}
	for range 600 {
		if s.own == nil || s.book.State == StateFailed || s.book.State == StateStopped || s.book.State == StateLogAlignment {
			return
		}
		s.k.sync()
		s.source().k.sync()
		switch {
		case s.deliver("lands"):
		case s.mirror():
		default:
			w.check()
			if s.source().book.State == StateStopped || s.source().book.State == StateUnknown {
				w.same(s, true)
				w.kept()
				w.stat["drained"]++
			}
			return
		}
		w.check()
	}
	w.that(false, "%s: no progress", s.name)
}

// kept: without unclean elections nothing that was mirrored is lost.
func (w *sides) kept() {
	if w.losses() > 0 {
		return
	}
	have := map[int]bool{}
	for _, s := range w.all {
		for _, x := range s.live() {
			for _, id := range x.ids {
				have[id] = true
			}
		}
	}
	for id := range w.both {
		w.that(have[id] || w.dead[id], "record %d was on both sides and is gone from both", id)
	}
}

// ---- random histories

type hist struct {
	*sides
	// One drawn number makes all the choices of one step: they are then even,
	// and shrinking drops whole steps.
	r *rand.Rand
	// loss: unclean elections happen.
	loss, move bool
}

func (h *hist) n(n int, _ string) int { return h.r.IntN(n) }

func (h *hist) yes(oneIn int, label string) bool { return h.n(oneIn, label) == 0 }

func (h *hist) op(name string, c *side) {
	src := h.all[0]
	if c == src {
		src = h.all[1]
	}
	switch name {
	case "write":
		if len(c.k.leader().log) < 16 || h.yes(3, "more") {
			c.write(int64(1+h.n(3, "n")), "dddddca"[h.n(7, "kind")], !h.yes(8, "unacked"))
		}
	case "foreign":
		b := c.k.append(kbatch{Batch: Batch{Count: int64(1 + h.n(3, "n"))}, kind: 'd'})
		c.k.leader().log[len(c.k.leader().log)-1].ids = h.newIDs(b.Count)
		h.logf("%s: foreign write p%d under %d", c.name, b.P, b.PEpoch)
	case "elect":
		i := h.n(len(c.k.reps), "replica")
		if c.k.elect(i, false) {
			h.logf("%s: replica %d leads, %d, log end %d", c.name, i, c.k.pe, c.k.leader().end())
		}
	case "unclean":
		if i, n := h.n(len(c.k.reps), "replica"), c.k.losses; h.loss && i != c.k.lead && c.k.reps[i].end() >= c.k.pStart {
			c.k.elect(i, true)
			if c.k.losses > n {
				for _, x := range h.all {
					x.suspect = x.suspect || x != c
				}
			}
			h.logf("%s: UNCLEAN: replica %d leads, %d, log end %d", c.name, i, c.k.pe, c.k.leader().end())
		}
	case "leave":
		if c.k.hw() == c.k.leader().end() {
			c.k.leave(h.n(len(c.k.reps), "replica"))
		}
	case "join":
		c.k.join(h.n(len(c.k.reps), "replica"))
	case "sync":
		c.k.sync()
	case "logstart":
		if lv := c.live(); h.move && len(lv) > 0 && (c.book.State == StateStopped || c.book.State == StateUnknown) {
			x := lv[h.n(len(lv), "batch")]
			for _, y := range lv {
				for _, id := range y.ids {
					h.dead[id] = h.dead[id] || y.P <= x.P
				}
			}
			c.k.pStart = x.P + int64(h.n(int(x.PEnd-x.P), "in"))
			h.logf("%s: log start moves to p%d", c.name, c.k.pStart)
		}
	case "zombie":
		c.zombie(h.n(4, "which"))
	case "start":
		c.start(src)
	case "align":
		c.align()
	case "mirror":
		c.mirror()
	case "deliver":
		c.deliver([]string{"lands", "lands", "lands", "lands", "lands", "lands", "refused", "timed out", "unconfirmed", "answer lost"}[h.n(10, "fate")])
	case "crash":
		c.crash()
	case "takeover":
		c.takeover()
	case "stop":
		c.stop()
	case "stopstep":
		c.stopStep(h.yes(3, "stale"))
	case "recover":
		c.recover()
	case "drain":
		if c.book.State == StateMirroring {
			h.drain(c)
		}
	}
}

var weights = []struct {
	name string
	n    int
}{
	{"write", 12},
	{"elect", 2},
	{"unclean", 3},
	{"leave", 4},
	{"join", 2},
	{"sync", 4},
	{"logstart", 1},
	{"foreign", 1},
	{"zombie", 2},
	{"start", 2},
	{"align", 10},
	{"mirror", 24},
	{"deliver", 14},
	{"crash", 1},
	{"takeover", 6},
	{"stop", 2},
	{"stopstep", 9},
	{"recover", 1},
	{"drain", 1},
}

func (h *hist) step() {
	var act []*side
	for _, s := range h.all {
		if s.book.State.Active() {
			act = append(act, s)
		}
	}
	c := h.all[h.n(len(h.all), "side")]
	var pick []string
	for _, x := range weights {
		for range x.n {
			pick = append(pick, x.name)
		}
	}
	if len(act) == 0 {
		pick = []string{"write", "write", "write", "write", "write", "start", "elect", "unclean", "zombie", "logstart", "leave", "sync", "start", "leave", "start", "start"}
	} else if !h.yes(4, "any") {
		c = act[h.n(len(act), "active")]
	}
	name := pick[h.n(len(pick), "op")]
	if len(act) > 0 && (name == "write" || name == "logstart") {
		for _, s := range h.all {
			if !s.book.State.Active() {
				c = s
			}
		}
	}
	if len(act) == 1 && c == act[0] {
		switch st := c.book.State; {
		case c.own == nil && h.yes(2, "soon"):
			name = "takeover"
		case st == StateLogAlignment && h.yes(2, "soon"):
			name = "align"
		case st == StateStopping && h.yes(2, "soon"):
			name = "stopstep"
		case st == StateFailed && h.yes(2, "soon"):
			name = "stop"
		}
	}
	if c.discard = true; name == "start" {
		c.support = true
	}
	h.op(name, c)
}

// steps is how long a random history is; LOCKSTEP_EPOCH_STEPS makes it longer.
func steps() int {
	if n, err := strconv.Atoi(os.Getenv("LOCKSTEP_EPOCH_STEPS")); err == nil {
		return n
	}
	return 200
}

func twoClusters(t *testing.T, loss, move bool) func(*rapid.T) {
	total := map[string]int{}
	t.Cleanup(func() { t.Log(total) })
	return func(t *rapid.T) {
		h := &hist{loss: loss, move: move}
		h.sides = newSides(t, func(s string) { t.Log(s) }, 3, "A", "B")
		for _, x := range rapid.SliceOfN(rapid.Uint64(), steps()/2, steps()).Draw(t, "steps") {
			if x == 0 {
				continue
			}
			h.r = rand.New(rand.NewPCG(x, 1))
			h.step()
			h.check()
		}
		for _, s := range h.all {
			if s.book.State == StateMirroring {
				h.drain(s)
			}
		}
		for k, n := range h.stat {
			total[k] += n
		}
		total["unclean cuts"] += h.ule
		total["losses"] += h.losses()
	}
}

// Random histories of writes, elections, failovers, failbacks, crashes and late
// writes on two clusters of three replicas (issue 4).
func TestTwoClusters(t *testing.T) { histories.Check(t, twoClusters(t, true, true)) }

// Without unclean elections: nothing live is cut after an alignment, and
// nothing mirrored is lost.
func TestTwoClustersClean(t *testing.T) { histories.Check(t, twoClusters(t, false, true)) }
