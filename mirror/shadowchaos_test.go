package mirror

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/lockstep-kafka/lockstep/epoch"
	"github.com/lockstep-kafka/lockstep/internal/ledger"
	"github.com/lockstep-kafka/lockstep/protocol"
)

// heldCleaner is a destination's cleaner.
type heldCleaner struct{ held atomic.Bool }

func (c *heldCleaner) Was(context.Context, string) (map[string]string, error) {
	return map[string]string{"min.cleanable.dirty.ratio": ""}, nil
}

func (c *heldCleaner) Hold(context.Context, string) error { c.held.Store(true); return nil }

func (c *heldCleaner) Release(context.Context, string, int32, map[string]string) (bool, error) {
	c.held.Store(false)
	return true, nil
}

// A compacted topic under everything at once: direct writes, late writes,
// refusals, broken connections, owner changes, a slow and failing ledger, losses
// on both sides, stops without a source, small batches merged (with support for
// unclean elections off). What is shown is at every moment what the source had;
// in the end both logs are equal and nothing dead lies behind what is live
// without a live copy (H1, H15, M26).
func TestH1H15RandomShadows(t *testing.T) {
	seeds := uint64(16)
	if testing.Short() {
		seeds = 4
	}
	for seed := range seeds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			randomShadows(t, rand.New(rand.NewPCG(seed, 77)), seed%2 == 1)
		})
	}
}

func randomShadows(t *testing.T, r *rand.Rand, unclean bool) {
	a, b := newSite(t, "A"), newSite(t, "B")
	cleaner := &heldCleaner{}
	b.compact, b.cleaner = true, cleaner
	b.tuning.RetryAttempts = 1 << 20
	b.tuning.FetchPartitionMaxBytes = int32(150 + r.IntN(800))
	b.unclean.Store(unclean)
	history := map[string]bool{}
	lines := func(content string) []string { return strings.Split(content, "\n") }
	remember := func() {
		for _, l := range lines(a.content()) {
			history[l] = true
		}
	}
	e := int32(0)
	writes := func() {
		for range 1 + r.IntN(4) {
			a.write(1 + r.IntN(3))
		}
		remember()
		b.meta()
	}

	var late []protocol.Batch // with b.phys.mu held
	faults, foreign := true, 3
	brng := rand.New(rand.NewPCG(r.Uint64(), 1))
	b.phys.hook(func(_ partKey, l *fakeLog, x protocol.Batch) (int16, bool) {
		if !faults { // what is still on its way comes now: each on its own may hold up a stop for a whole wait
			for _, y := range late {
				l.land(y)
			}
			late = nil
			return 0, false
		}
		if len(late) > 0 && brng.IntN(3) == 0 {
			l.land(late[0])
			late = late[1:]
		}
		switch brng.IntN(24) {
		case 0:
			l.land(x)
			return kerr.RequestTimedOut.Code, true
		case 1, 2:
			late = append(late, x)
			return kerr.RequestTimedOut.Code, true
		case 3:
			return -1, true
		case 4:
			late = append(late, x)
			return -1, true
		case 5:
			return kerr.NotEnoughReplicas.Code, true
		case 6:
			if foreign > 0 {
				foreign--
				l.land(rawBatch{base: 0, n: 2}.bytes())
			}
		case 7:
			if unclean && len(l.batches) > 1 {
				l.truncate(l.batches[len(l.batches)-1-brng.IntN(min(len(l.batches), 4))].BaseOffset())
				l.epoch++
				return kerr.NotLeaderForPartition.Code, true
			}
		}
		return 0, false
	})
	lrng := rand.New(rand.NewPCG(r.Uint64(), 2))
	var shaky atomic.Bool
	shaky.Store(true)
	b.store.hook(func(*ledger.Record) error {
		switch {
		case !shaky.Load():
		case lrng.IntN(12) == 0:
			return errLedgerDown
		case lrng.IntN(12) == 0:
			return fmt.Errorf("put: %w", ledger.ErrUnknownOutcome)
		}
		return nil
	})
	// Everything that is shown has been the source's, in order.
	looks := func() {
		t.Helper()
		last := int64(-1)
		bs, _ := b.visible()
		for _, x := range bs {
			require.Greater(t, x.BaseOffset(), last, "shown twice")
			last = x.NextOffset() - 1
			for _, l := range recordTexts([]string{text(t, x)}, 0) {
				require.True(t, history[l], "shown, and never was the source's: %s", l)
			}
		}
	}
	writes()
	b.mirrors(a)
	for range 30 {
		switch r.IntN(9) {
		case 0, 1, 2:
			writes()
		case 3:
			for _, cp := range b.eng.Checkpoints() {
				if r.IntN(8) == 0 {
					cp.CaughtUp = time.Now().Add(-48 * time.Hour)
				}
				b.store.checkpoint(cp)
			}
		case 4:
			b.run()
		case 5:
			b.phys.dropConns()
		case 6:
			b.elect()
		case 7:
			if unclean {
				var keep int64
				a.phys.with("t", 0, func(l *fakeLog) { keep = max(0, l.end()-int64(r.IntN(6))) })
				e += 3
				uncleanElection(a, keep, e)
				writes()
			}
		case 8:
			if r.IntN(3) > 0 {
				break
			}
			b.want(epoch.StateStopped)
			// A few owners and a while of faults: a look at an end that seems to be lost takes longer than a life here.
			for owners, end := 5, time.Now().Add(5*time.Second); b.rec().State != epoch.StateStopped && time.Now().Before(end); {
				looks()
				if owners > 0 && r.IntN(6) == 0 {
					owners--
					b.run()
				}
				b.meta()
				time.Sleep(time.Duration(r.IntN(8)) * time.Millisecond)
			}
			b.phys.with("t", 0, func(*fakeLog) { faults = false })
			shaky.Store(false)
			eventually(t, "STOPPED", func() bool { b.meta(); return b.rec().State == epoch.StateStopped })
			shaky.Store(true)
			b.phys.with("t", 0, func(*fakeLog) { late, faults = nil, true })
			// What an owner that is gone had on its way may land at any time, also behind the span that was opened: not
			// before a start will that be dealt with.
			dead := slices.DeleteFunc(b.deadBehind(), func(p int64) bool { return p >= b.part().Log.Open().PStart })
			require.Empty(t, dead, "STOPPED with a dirty end: %s", b.physical())
			looks()
			// A direct write may lie behind the native span's beginning, and nothing may be shared.
			b.command(ledger.Command{Desired: epoch.StateMirroring, DiscardLocal: true})
			eventually(t, "started", func() bool { b.meta(); return b.rec().State != epoch.StateStopped })
		}
		looks()
		b.meta()
		time.Sleep(time.Duration(r.IntN(12)) * time.Millisecond)
	}
	writes()
	b.phys.with("t", 0, func(*fakeLog) { faults = false })
	shaky.Store(false)
	for end := time.Now().Add(patience); ; time.Sleep(3 * time.Millisecond) {
		b.meta()
		var waiting int
		b.phys.with("t", 0, func(*fakeLog) { waiting = len(late) })
		if waiting > 0 {
			writes()
		}
		looks()
		if waiting == 0 && b.rec().State == epoch.StateMirroring && b.rec().Shadow == nil && b.rec().Cleaner == nil && b.content() == a.content() && len(b.deadBehind()) == 0 {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("%s %q late %d dead %v same %v held %v:\n%s\nsource:\n%s\nlog %+v\nshadow %+v", b.rec().State, b.rec().Error, waiting, b.deadBehind(), b.content() == a.content(), cleaner.held.Load(), b.content(), a.content(), *b.part().Log, b.rec().Shadow)
		}
	}
	require.False(t, cleaner.held.Load(), "the cleaner may run again")
}

// physical is the log as the broker has it, and what the ledger makes of it.
func (s *site) physical() string {
	var out strings.Builder
	l := s.part().Log
	w := l.Walk(l.Spans[0].VStart, true)
	s.phys.with("t", 0, func(f *fakeLog) {
		for _, raw := range f.batches {
			b := readHeader(raw)
			_, v := w.Next(b)
			fmt.Fprintf(&out, "p%d+%d e%d g%d v%d %s\n", b.P, b.Count, b.PEpoch, b.Gen, b.V, v)
		}
	})
	return fmt.Sprintf("%+v\n%s", *l, out.String())
}
