package mirror

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-kafka/lockstep/epoch"
	"github.com/lockstep-kafka/lockstep/internal/ledger"
)

// Random rounds of failover, failback and drills between two clusters, with
// owners killed at any time, elections and lost connections on both sides:
// after each alignment both virtual logs are equal, without an unclean election
// nothing is cut after phase one, and epochs shown never fall.
func TestRandomRounds(t *testing.T) {
	seeds := 12
	if testing.Short() {
		seeds = 3
	}
	for seed := range seeds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			randomRounds(t, rand.New(rand.NewPCG(uint64(seed), 1)), false, false)
		})
	}
}

// The same with unclean elections, on the side that is written to and on the
// one that mirrors: both logs are equal all the same.
func TestRandomRoundsUnclean(t *testing.T) {
	seeds := 12
	if testing.Short() {
		seeds = 3
	}
	for seed := range seeds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			randomRounds(t, rand.New(rand.NewPCG(uint64(seed), 2)), true, false)
		})
	}
}

// lose is an unclean election that takes some of the newest batches.
func (s *site) lose(r *rand.Rand) {
	s.phys.with("t", 0, func(l *fakeLog) {
		if n := len(l.batches); n > 0 {
			l.truncate(l.batches[max(0, n-1-r.IntN(4))].BaseOffset())
		}
		l.epoch++
		l.chain = l.chain.Assign(l.epoch+1, l.end())
	})
	s.elect()
}

// The same with a compacted topic, which is written once more after each cut: in
// the end nothing lies behind what is live that a cleaner would keep instead, also
// when it becomes what the other side mirrors (H1, H15).
func TestRandomRoundsCompacted(t *testing.T) {
	seeds := 6
	if testing.Short() {
		seeds = 2
	}
	for seed := range seeds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			randomRounds(t, rand.New(rand.NewPCG(uint64(seed), 4)), seed%2 == 1, true)
		})
	}
}

func randomRounds(t *testing.T, r *rand.Rand, unclean, compacted bool) {
	a, b := newSite(t, "A"), newSite(t, "B")
	for _, s := range []*site{a, b} {
		s.tuning.RetryAttempts = 1 << 20
		s.tuning.BumpStep = 7
		s.unclean.Store(unclean)
		s.compact = compacted
	}
	shown := map[*site]int32{}
	rises := func(s *site) {
		if s.part() == nil {
			return
		}
		e := s.shownEpoch()
		require.GreaterOrEqual(t, e, shown[s], "%s: the epoch shown fell", s.name)
		shown[s] = e
	}
	writes := func(s *site) {
		for range r.IntN(4) {
			s.write(1 + r.IntN(3))
			if r.IntN(4) == 0 {
				s.elect()
			}
			if unclean && r.IntN(5) == 0 {
				s.lose(r)
			}
		}
	}
	disturb := func(m, src *site) {
		switch r.IntN(6) {
		case 0:
			m.run() // another owner
		case 1:
			m.phys.dropConns()
		case 2:
			m.elect()
		case 4:
			if unclean {
				m.lose(r)
			}
		case 3:
			src.phys.dropConns()
			src.proxy.dropConns()
		}
		m.meta()
		rises(m)
	}
	equal := func(m, src *site) {
		t.Helper()
		for end := time.Now().Add(patience); ; time.Sleep(3 * time.Millisecond) {
			m.meta()
			if m.rec().State == epoch.StateMirroring && m.content() == src.content() && (!compacted || m.rec().Shadow == nil && len(m.deadBehind()) == 0) {
				break
			}
			if time.Now().After(end) {
				t.Fatalf("dead %v %s %s %q:\n%s\n%s shows:\n%s\nlog %+v", compacted && len(m.deadBehind()) > 0, m.name, m.rec().State, m.rec().Error, m.content(), src.name, src.content(), *m.part().Log)
			}
		}
		if !unclean {
			m.neverWas(epoch.StateULERecovery)
		}
		rises(m)
	}
	active, mirror := a, b
	writes(active)
	mirror.mirrors(active)
	for range 5 {
		for range r.IntN(5) {
			writes(active)
			disturb(mirror, active)
		}
		if r.IntN(2) == 0 {
			equal(mirror, active)
		}
		mirror.meta()
		if mirror.rec().State == epoch.StateFailed {
			t.Fatalf("%s: %s", mirror.name, mirror.rec().Error)
		}
		mirror.want(epoch.StateStopped)
		// Not for ever: where a stop takes longer than there is peace (-race, one
		// thread), it would never come to its end.
		for range 50 {
			if mirror.rec().State == epoch.StateStopped {
				break
			}
			disturb(mirror, active)
			time.Sleep(time.Duration(r.IntN(4)) * time.Millisecond)
		}
		eventually(t, "STOPPED", func() bool { mirror.meta(); return mirror.rec().State == epoch.StateStopped })
		rises(mirror)
		writes(mirror)
		writes(active)
		if r.IntN(3) > 0 {
			active, mirror = mirror, active
		}
		discard := mirror.part() == nil
		mirror.mirrors(active)
		if discard { // nothing may be shared, when nothing was mirrored
			mirror.stopped()
		}
		if mirror.rec().State == epoch.StateStopped {
			mirror.command(ledger.Command{Desired: epoch.StateMirroring, DiscardLocal: true})
		}
		for range r.IntN(3) {
			disturb(mirror, active)
			time.Sleep(time.Duration(r.IntN(4)) * time.Millisecond)
		}
		equal(mirror, active)
	}
}
