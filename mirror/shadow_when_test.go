package mirror

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/lockstep-kafka/lockstep/epoch"
	"github.com/lockstep-kafka/lockstep/internal/ledger"
	"github.com/lockstep-kafka/lockstep/protocol"
)

// H1: a write of unknown outcome landed, and before its copy has come the source
// has lost it: what comes in its place is no copy.
func TestH1SourceLosesWhatLanded(t *testing.T) {
	for _, after := range []string{"mirrored on", "another owner", "stopped"} {
		t.Run(after, func(t *testing.T) {
			a, b := newSite(t, "A"), newSite(t, "B")
			b.compact = true
			b.unclean.Store(true) // batches stay apart
			a.write(1)
			a.write(1)
			b.mirrors(a)
			b.shows("0(0) 1(0)")
			landed, gone := false, false
			b.phys.hook(func(_ partKey, l *fakeLog, x protocol.Batch) (int16, bool) {
				s, ok := x.ReadStamp()
				switch {
				case !ok || s.V < 2 || gone || s.Flags&epoch.FlagHidden != 0:
					return 0, false
				case landed:
					return kerr.NotEnoughReplicas.Code, true
				}
				landed = true
				x = append(protocol.Batch(nil), x...)
				l.land(x)
				return -1, true // the connection breaks
			})
			a.write(1)
			b.meta()
			eventually(t, "the next generation", func() bool { return b.end() == 3 && b.part().Log.Open().PStart == 3 })
			uncleanElection(a, 2, 9)
			b.phys.with("t", 0, func(*fakeLog) { gone = true })
			if after != "mirrored on" {
				b.stop()
			}
			a.write(1)
			if after == "mirrored on" {
				b.meta()
			} else {
				b.run()
			}
			b.shows("0(0) 1(0) 2(9)")
			if after == "stopped" {
				b.stopped()
			}
			eventually(t, "clean", func() bool { return b.rec().Shadow == nil && len(b.deadBehind()) == 0 })
			require.Equal(t, a.content(), b.content())
		})
	}
}

// H1: a late copy is found, and the owner dies before the ledger knows of it,
// and before there was any checkpoint. The next one finds it too, whether it
// mirrors on or stops; so does a stop of the same one that comes first.
func TestH1LateCopyBeforeTheFirstCheckpoint(t *testing.T) {
	for _, c := range []struct{ stop, same bool }{{}, {stop: true}, {stop: true, same: true}} {
		stop := c.stop
		t.Run(fmt.Sprintf("%+v", c), func(t *testing.T) {
			a, b := newSite(t, "A"), newSite(t, "B")
			b.compact = true
			b.unclean.Store(true) // batches stay apart
			a.write(2)
			b.mirrors(a)
			b.shows(offsets(0, 2, 0))
			landed := false
			b.phys.hook(func(_ partKey, l *fakeLog, x protocol.Batch) (int16, bool) {
				if s, ok := x.ReadStamp(); ok && s.V == 2 && !landed {
					landed = true
					l.land(ofAnOwnerBefore(0, 2))
				}
				return 0, false
			})
			found := make(chan struct{})
			var once sync.Once
			b.store.hook(func(r *ledger.Record) error {
				if r.Shadow == nil || r.Shadow.Local {
					return nil
				}
				once.Do(func() { close(found) })
				return errLedgerDown
			})
			a.write(2)
			b.meta()
			<-found
			if stop {
				a.phys.close()
			}
			if !c.same {
				b.stop()
				b.store.hook(nil)
				b.run()
			}
			if stop {
				b.stopped()
			}
			eventually(t, "a clean log", func() bool { return b.rec().Shadow == nil && len(b.deadBehind()) == 0 })
			require.Equal(t, a.content(), b.content())
		})
	}
}

// H1: what lies dead ahead is of a branch that the source lost before it was
// mirrored: nothing is cut, and no copy of it comes. All is mirrored anew behind it.
func TestH1DeadAheadOfALostBranch(t *testing.T) {
	for _, hole := range []bool{false, true} {
		t.Run(fmt.Sprint("hole ", hole), func(t *testing.T) {
			a, b := shadowed(t, 1, 1)
			landed := false
			b.phys.hook(func(_ partKey, l *fakeLog, x protocol.Batch) (int16, bool) {
				if s, _ := x.ReadStamp(); s.V == 1 && !landed {
					landed = true
					l.land(ofAnOwnerBefore(2, 1))
				}
				return 0, false
			})
			a.write(1)
			b.meta()
			p := b.eng.Partition("t", 0)
			eventually(t, "it was looked at", func() bool {
				p.mu.Lock()
				defer p.mu.Unlock()
				return p.suspect == nil && p.tail.position == 2 && p.awaits == 3
			})
			uncleanElection(a, 2, 5)
			want := "0(0) 1(0) 2(5)"
			if hole { // a transaction was given up in the election
				a.phys.with("t", 0, func(l *fakeLog) { l.append(rawBatch{base: 2, n: 1, epoch: 5, pid: 1, control: true}.bytes()) })
				want = "0(0) 1(0) 3(5)"
			}
			a.write(1)
			b.meta()
			b.shows(want)
			eventually(t, "mirrored anew", func() bool { return b.rebuilt() && b.rec().Shadow == nil })
			b.shows(want)
			require.Empty(t, b.deadBehind())
			require.Equal(t, a.content(), b.content())
		})
	}
}

// M17, H1: a topic that becomes a compacted one is written once more, as dead
// records may lie behind live ones, also when something else is in the ledger
// before anybody has looked.
func TestM17CompactedWhileSomethingElseHappens(t *testing.T) {
	// Of five records that were mirrored the source has lost three.
	cut := func(t *testing.T) (a, b *site) {
		a, b = newSite(t, "A"), newSite(t, "B")
		b.unclean.Store(true)
		for range 5 {
			a.write(1)
		}
		b.mirrors(a)
		b.shows(offsets(0, 5, 0))
		uncleanElection(a, 2, 9)
		a.write(1)
		b.meta()
		b.shows("0(0) 1(0) 2(9)")
		require.NotEmpty(t, b.deadBehind())
		return a, b
	}
	compacted := func(b *site) {
		b.stop()
		b.compact = true
		b.run()
	}
	same := func(t *testing.T, a, b *site) {
		t.Helper()
		a.write(1)
		b.meta()
		b.shows("0(0) 1(0) 2(9) 3(9)")
		require.Equal(t, a.content(), b.content())
		eventually(t, "clean", func() bool { return b.rec().Shadow == nil && len(b.deadBehind()) == 0 })
		require.False(t, b.rec().Plain, "from now on a look at the end is enough")
	}
	t.Run("resume", func(t *testing.T) {
		a, b := cut(t)
		b.want(epoch.StatePaused)
		b.is(epoch.StatePaused)
		compacted(b)
		b.want(epoch.StateMirroring)
		same(t, a, b)
	})
	t.Run("stop", func(t *testing.T) {
		a, b := cut(t)
		b.want(epoch.StatePaused)
		b.is(epoch.StatePaused)
		compacted(b)
		b.stopped()
		require.Equal(t, a.content(), b.content())
		require.Empty(t, b.deadBehind())
		require.True(t, b.rec().Lacks, "the cleaner may have been here")
		b.want(epoch.StateMirroring)
		same(t, a, b)
	})
	t.Run("start", func(t *testing.T) {
		a, b := cut(t)
		b.stopped()
		compacted(b)
		b.elect() // it is looked at, and that is written
		b.want(epoch.StateMirroring)
		same(t, a, b)
	})
}

// M26: a mirror that was away from a compacted source for longer than that keeps
// tombstones mirrors anew; one that was not, and cuts nothing, does not.
func TestM26TombstonesMissed(t *testing.T) {
	for _, away := range []time.Duration{time.Hour, 25 * time.Hour} {
		t.Run(away.String(), func(t *testing.T) {
			a, b := newSite(t, "A"), newSite(t, "B")
			b.compact = true
			a.write(1)
			a.write(1)
			b.mirrors(a)
			b.shows("0(0) 1(0)")
			var cps []ledger.Checkpoint
			eventually(t, "checkpoint", func() bool {
				cps = append(cps, b.eng.Checkpoints()...)
				return len(cps) > 0 && !cps[len(cps)-1].CaughtUp.IsZero()
			})
			b.stop()
			cp := cps[len(cps)-1]
			cp.CaughtUp = time.Now().Add(-away)
			b.store.checkpoint(cp)
			// Offset 0's key was deleted there, and the tombstone is gone too.
			a.phys.with("t", 0, func(l *fakeLog) { l.batches = l.batches[1:] })
			a.write(1)
			b.run()
			if away > 24*time.Hour {
				b.shows("1(0) 2(0)")
				require.Equal(t, a.content(), b.content())
				eventually(t, "clean", func() bool { return b.rec().Shadow == nil })
				require.Empty(t, b.deadBehind())
				return
			}
			b.shows("0(0) 1(0) 2(0)")
			for _, r := range b.store.written() {
				require.Nil(t, r.Shadow)
			}
		})
	}
}

// A short failback of a compacted topic that cuts nothing copies nothing.
func TestStartOnCompactedTopicWithoutCut(t *testing.T) {
	a, b := newSite(t, "A"), newSite(t, "B")
	a.compact, b.compact = true, true
	a.write(2)
	b.mirrors(a)
	b.shows("0(0) 1(0)")
	b.stopped()
	b.write(1)
	a.mirrors(b)
	a.shows("0(0) 1(0) 2(1)")
	require.Equal(t, b.content(), a.content())
	for _, r := range a.store.written() {
		require.Nil(t, r.Shadow)
	}
	require.Equal(t, int64(3), a.end(), "nothing was written twice")
}
