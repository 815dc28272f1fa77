package proxy

import (
	"math/rand/v2"
	"testing"

	"pgregory.net/rapid"

	"github.com/lockstep-kafka/lockstep/internal/histories"
	"github.com/lockstep-kafka/lockstep/internal/ledger"
)

// TestQuestionsAlongAHistory: what this instance and its connections have learned
// of a log, at any time before, never makes an answer wrong. The history goes on
// between the questions: cuts, losses, elections, retention, stops and starts. Two
// connections read on from where they stood, or from anywhere; what ListOffsets
// says is exact each time.
func TestQuestionsAlongAHistory(t *testing.T) {
	histories.Check(t, func(rt *rapid.T) {
		b := newBenchOn(t, rt)
		h := newHistory(rt, b.sim.part("m", 0))
		b.mirror("m", 0, h.log)
		id := b.id("m", 1)
		conns := []*connState{{}, {}}
		stood := [][]int64{{0}, {0}} // where each stood, newest last
		for range rapid.IntRange(1, 40).Draw(rt, "steps") {
			switch op := rapid.IntRange(0, 9).Draw(rt, "what"); {
			case op < 6:
				drawStep(rt, h)
				continue
			case op == 6:
				if n := len(h.part.batches); n > 0 {
					h.retain(h.part.batches[rapid.IntRange(0, n-1).Draw(rt, "from")].BaseOffset())
				}
				continue
			}
			lp := b.mirror("m", 0, h.log)
			lp.Live = &ledger.Live{}
			if knows := rapid.IntRange(0, 2).Draw(rt, "knows"); knows == 1 || len(h.live) == 0 {
				lp.Checkpoint = h.checkpoint()
			} else if knows == 2 && !h.native {
				lp.Live.Publish(ledger.Tail{VEnd: h.end(), Position: h.vend, PEnd: max(h.pend, h.log.Open().PStart), EverShown: h.vend, Gen: h.log.Open().Gen})
			}
			i := rapid.IntRange(0, 1).Draw(rt, "conn")
			b.st = conns[i]
			if rapid.Bool().Draw(rt, "offsets") {
				if len(h.live) > 0 {
					checkOffsets(rt, b, h)
				}
				continue
			}
			rnd := rand.New(rand.NewPCG(rapid.Uint64().Draw(rt, "seed"), 1))
			start, end := min(h.start(), h.vend), h.vend
			at := start + rnd.Int64N(end-start+1)
			if was := stood[i][rnd.IntN(len(stood[i]))]; rnd.IntN(3) > 0 && was >= start && was <= end {
				at = was
			}
			to := readSome(rt, b, h, id, at, rnd, 1+rnd.IntN(12))
			stood[i] = append(stood[i], at, to)
			stood[i] = stood[i][max(0, len(stood[i])-4):]
		}
	})
}
