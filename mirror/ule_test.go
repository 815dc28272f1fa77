package mirror

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-kafka/lockstep/epoch"
	"github.com/lockstep-kafka/lockstep/internal/ledger"
)

// both runs a test with a source that tells of a truncation in its Fetch
// answers, and one from before Fetch v12, which must be asked.
func both(t *testing.T, f func(t *testing.T, maxFetch int16)) {
	for _, v := range []int16{18, 12, 11, 4} {
		t.Run(fmt.Sprintf("fetch v%d", v), func(t *testing.T) { f(t, v) })
	}
}

// E5: an unclean election while mirroring.
func TestE5UncleanElection(t *testing.T) {
	both(t, func(t *testing.T, maxFetch int16) {
		a, b := newSite(t, "A"), newSite(t, "B")
		a.phys.maxFetch = maxFetch
		b.unclean.Store(true)
		a.write(2)
		a.elect()
		a.write(2)
		b.mirrors(a)
		b.shows("0(0) 1(0) 2(1) 3(1)")
		var asked []bool
		hold := true
		b.store.setWaiting(func(_ *ledger.Partition, all bool) []string {
			asked = append(asked, all)
			if hold {
				return []string{"away"}
			}
			return nil
		})
		a.phys.with("t", 0, func(l *fakeLog) {
			// One record of the last batch is on the new leader.
			l.truncate(2)
			l.append(rawBatch{base: 2, n: 1, epoch: 1, maxTS: 65002}.bytes())
			l.epoch = 4
		})
		a.write(1)
		b.meta()
		b.is(epoch.StateULERecovery)
		time.Sleep(50 * time.Millisecond)
		require.Equal(t, epoch.StateULERecovery, b.rec().State, "waits for every instance")
		require.Equal(t, "0(0) 1(0)", b.dump(), "cut, rounded down to a batch")
		b.store.mu.Lock()
		hold = false
		require.NotContains(t, asked, false, "all known instances, as the support is on")
		b.store.mu.Unlock()
		b.shows("0(0) 1(0) 2(1) 3(4)")
		require.Equal(t, a.content(), b.content())
		a.write(1)
		b.meta()
		b.shows("0(0) 1(0) 2(1) 3(4) 4(4)")
	})
}

// A new owner goes on with ULE_RECOVERY.
func TestULERecoveryNewOwner(t *testing.T) {
	a, b := examples(t)
	b.unclean.Store(true)
	hold := true
	b.store.setWaiting(func(*ledger.Partition, bool) []string {
		if hold {
			return []string{"away"}
		}
		return nil
	})
	a.phys.with("t", 0, func(l *fakeLog) { l.truncate(1); l.epoch = 7 })
	a.write(2)
	b.meta()
	b.is(epoch.StateULERecovery)
	b.run()
	time.Sleep(50 * time.Millisecond)
	require.Equal(t, epoch.StateULERecovery, b.rec().State)
	b.store.mu.Lock()
	hold = false
	b.store.mu.Unlock()
	b.shows("0(0) 1(7) 2(7)")
	require.Equal(t, a.content(), b.content())
}

// Off: FAILED, not retryable, naming the setting; the switch is dynamic, and
// recover goes on with it.
func TestULESwitchIsDynamic(t *testing.T) {
	both(t, func(t *testing.T, maxFetch int16) {
		a, b := examples(t)
		a.phys.maxFetch = maxFetch
		b.run()
		b.shows("0(0) 1(1)")
		a.phys.with("t", 0, func(l *fakeLog) { l.truncate(1); l.epoch = 7 })
		a.write(2)
		b.meta()
		b.is(epoch.StateFailed)
		require.Contains(t, b.rec().Error, "mirror.unclean.leader.election.enable")
		require.Contains(t, b.rec().Error, "`lockstep set --mirror m --unclean-leader-election true`, then `lockstep recover`")
		require.Equal(t, -1, b.rec().Retries)
		require.Equal(t, "0(0) 1(1)", b.dump())
		b.command(ledger.Command{Recover: true})
		eventually(t, "fails again", func() bool { return b.rec().State == epoch.StateFailed && b.rec().CommandSeq == 1 })
		b.unclean.Store(true)
		b.command(ledger.Command{Recover: true})
		b.shows("0(0) 1(7) 2(7)")
		require.Equal(t, a.content(), b.content())
	})
}

// Several rounds: the answered end equals our own log end and still means a cut
// (`ule-scenario … flip`): ours has e4 to 9 and e0 to 5, the source e0 to 5 and
// then e2.
func TestULEFlip(t *testing.T) {
	both(t, func(t *testing.T, maxFetch int16) {
		a, b := newSite(t, "A"), newSite(t, "B")
		a.phys.maxFetch = maxFetch
		b.unclean.Store(true)
		for range 5 {
			a.write(1)
		}
		a.phys.with("t", 0, func(l *fakeLog) { l.epoch = 4 })
		for range 4 {
			a.write(1)
		}
		b.mirrors(a)
		b.shows("0(0) 1(0) 2(0) 3(0) 4(0) 5(4) 6(4) 7(4) 8(4)")
		a.phys.with("t", 0, func(l *fakeLog) { l.truncate(5); l.epoch = 2 })
		for range 4 {
			a.write(1)
		}
		a.phys.with("t", 0, func(l *fakeLog) { l.epoch = 6; l.chain = l.chain.Assign(6, l.end()) }) // as a new leader does
		b.meta()
		b.shows("0(0) 1(0) 2(0) 3(0) 4(0) 5(2) 6(2) 7(2) 8(2)")
		require.Equal(t, a.content(), b.content())
	})
}

// H17: the source un-decides a transaction: T is its last stable offset.
func TestH17CutToTheStableOffset(t *testing.T) {
	a, b := newSite(t, "A"), newSite(t, "B")
	b.unclean.Store(true)
	a.phys.with("t", 0, func(l *fakeLog) {
		l.append(rawBatch{base: 0, n: 2}.bytes())
		l.append(rawBatch{base: 2, n: 2, pid: 5, txn: true}.bytes())
		l.append(rawBatch{base: 4, n: 2}.bytes())
		l.append(rawBatch{base: 6, n: 1, pid: 5, control: true}.bytes())
	})
	b.mirrors(a)
	b.shows("0(0) 1(0) 2(0) 3(0) 4(0) 5(0)")
	a.phys.with("t", 0, func(l *fakeLog) { l.truncate(6); l.epoch = 1; l.lso = 2 })
	b.meta()
	b.shows("0(0) 1(0)")
	// It is aborted there now.
	a.phys.with("t", 0, func(l *fakeLog) {
		l.append(rawBatch{base: 6, n: 1, pid: 5, control: true, abort: true, epoch: 1}.bytes())
		l.aborted, l.lso = aborted(5, 2), -1
	})
	b.shows("0(0) 1(0) 4(0) 5(0)")
}

// Pairs are lowered with the cut, in the same write; so a later failback does
// not believe what was cut.
func TestULELowersPairs(t *testing.T) {
	a, b := examples(t)
	b.stopped()
	b.unclean.Store(true)
	b.run()
	b.want(epoch.StateMirroring)
	b.shows("0(0) 1(1)")
	require.Equal(t, int64(2), b.rec().Pairs[0].LMO)
	a.phys.with("t", 0, func(l *fakeLog) { l.truncate(1); l.epoch = 5 })
	a.write(1)
	b.meta()
	b.shows("0(0) 1(5)")
	require.Equal(t, int64(1), b.rec().Pairs[0].LMO)
	require.Equal(t, int32(0), b.rec().Pairs[0].LME)
	b.store.mu.Lock()
	defer b.store.mu.Unlock()
	for _, r := range b.store.puts {
		if r.State == epoch.StateULERecovery {
			require.Equal(t, int64(1), r.Pairs[0].LMO, "in the write of the cut")
		}
	}
}

// A source that is upgraded or downgraded while mirroring changes path by
// itself, on its next connection.
func TestSourceChangesItsVersions(t *testing.T) {
	a, b := newSite(t, "A"), newSite(t, "B")
	b.unclean.Store(true)
	want := []string{}
	for i, v := range []int16{18, 11, 12, 7} {
		a.phys.mu.Lock()
		a.phys.maxFetch = v
		a.phys.mu.Unlock()
		a.phys.dropConns()
		a.phys.with("t", 0, func(l *fakeLog) {
			if i > 0 {
				l.truncate(l.end() - 1)
			}
			l.epoch += 3
		})
		a.write(1)
		a.write(1)
		if i == 0 {
			b.mirrors(a)
		}
		b.meta()
		want = strings.Fields(a.dump())
		b.shows(strings.Join(want, " "))
		require.Equal(t, a.content(), b.content())
	}
	require.Len(t, want, 5)
}

// A compacted topic is mirrored anew: nothing dead stays behind what is live.
func TestULEOnCompactedTopic(t *testing.T) {
	a, b := newSite(t, "A"), newSite(t, "B")
	b.compact = true
	b.unclean.Store(true)
	a.write(1)
	a.write(1)
	b.mirrors(a)
	b.shows("0(0) 1(0)")
	n := b.end()
	a.phys.with("t", 0, func(l *fakeLog) { l.truncate(1); l.epoch = 5 })
	a.write(1)
	b.meta()
	b.shows("0(0) 1(5)")
	require.Equal(t, n, b.part().Log.Spans[0].PStart)
	require.Equal(t, a.content(), b.content())
}

// H12: what a checkpoint of before a cut says was shown does not come back with
// the next owner: who stands there is out of range, not early.
func TestEndShownOfBeforeTheCut(t *testing.T) {
	a, b := newSite(t, "A"), newSite(t, "B")
	b.unclean.Store(true)
	for range 4 {
		a.write(1)
	}
	b.mirrors(a)
	b.shows(offsets(0, 4, 0))
	cps := b.eng.Checkpoints()
	require.Len(t, cps, 1)
	require.Equal(t, int64(4), cps[0].EndShown)
	uncleanElection(a, 2, 5)
	b.meta()
	b.shows(offsets(0, 2, 0))
	b.stop()
	b.store.checkpoint(cps[0]) // the owner died before it wrote another
	b.run()
	eventually(t, "known", func() bool { return b.part().Tail().Known })
	require.Equal(t, int64(2), b.part().Tail().EverShown)
	require.Equal(t, int64(-1), cps[0].Shown(b.rec()))
}
