package mirror

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-kafka/lockstep/epoch"
	"github.com/lockstep-kafka/lockstep/internal/ledger"
)

// examples is A with 0(0) 1(1), mirrored to a fresh B (facts.md E1, E2).
func examples(t *testing.T) (a, b *site) {
	a, b = newSite(t, "A"), newSite(t, "B")
	a.write(1)
	a.elect()
	a.write(1)
	b.mirrors(a)
	b.shows("0(0) 1(1)")
	require.Equal(t, epoch.Chain{{Epoch: 0, Start: 0}, {Epoch: 1, Start: 1}}, b.part().Log.Chain)
	return a, b
}

// E1: a destination with junk, start with --discard-local.
func TestE1FirstMirrorDiscardLocal(t *testing.T) {
	a, b := newSite(t, "A"), newSite(t, "B")
	a.write(1)
	a.elect()
	a.write(1)
	b.phys.with("t", 0, func(l *fakeLog) { l.epoch = 3 })
	b.write(2)
	b.mirrors(a)
	b.is(epoch.StateFailed)
	require.Contains(t, b.rec().Error, "--discard-local")
	require.Equal(t, "0(3) 1(3)", b.dump(), "nothing lost, still to be read")
	b.stopped()
	require.Equal(t, "0(3) 1(3)", b.dump())
	b.command(ledger.Command{Desired: epoch.StateMirroring, DiscardLocal: true})
	b.shows("0(0) 1(1)")
	require.Equal(t, epoch.Chain{{Epoch: 0, Start: 0}, {Epoch: 1, Start: 1}}, b.part().Log.Chain)
}

// E1: a start that failed for want of --discard-local is told so afterwards, without a stop in between. Without the flag
// nothing is dropped, however often it is tried.
func TestE1DiscardLocalAfterFailed(t *testing.T) {
	a, b := newSite(t, "A"), newSite(t, "B")
	a.write(2)
	b.write(3)
	b.mirrors(a)
	b.is(epoch.StateFailed)
	before := b.dump()
	b.command(ledger.Command{Desired: epoch.StateMirroring, Recover: true})
	eventually(t, "the recovery fails again", func() bool {
		r := b.rec()
		return r.State == epoch.StateFailed && r.CommandSeq > 0 && r.Retries < 0
	})
	require.Equal(t, before, b.dump())
	b.command(ledger.Command{Desired: epoch.StateMirroring, DiscardLocal: true})
	b.shows("0(0) 1(0)")
}

// E2 and E3: failback, and back again, two rounds.
func TestE2E3Failback(t *testing.T) {
	a, b := examples(t)
	r := b.stopped()
	require.Len(t, r.Pairs, 1)
	require.Equal(t, ledger.Pair{Cluster: "A", TopicID: a.phys.id, LME: 1, LMO: 2}, r.Pairs[0])
	require.Equal(t, &ledger.Left{Offset: 2, Epoch: 1, Timestamp: r.Left.Timestamp, SourceEnd: 2, At: r.Left.At}, r.Left)
	require.Positive(t, r.Left.Timestamp)
	require.Equal(t, int32(2), b.shownEpoch())
	a.write(1) // 2(1), never mirrored
	require.Equal(t, "0(0) 1(1) 2(1)", a.dump())
	b.write(1)
	b.elect()
	b.write(1)
	require.Equal(t, "0(0) 1(1) 2(2) 3(3)", b.dump())

	a.mirrors(b)
	a.shows("0(0) 1(1) 2(2) 3(3)")
	require.Contains(t, a.said.String(), `msg="records here that the source does not have are cut: lockstep diverged lists and exports them"`)
	require.Contains(t, a.said.String(), "from=2 end=3")
	cut := func(s *site) *ledger.Cut { return s.rec().Cut }
	require.Equal(t, &ledger.Cut{From: 2, End: 3}, cut(a))
	require.Equal(t, &ledger.Cut{}, cut(b), "nothing was here at the first start")
	require.Equal(t, b.content(), a.content())
	a.neverWas(epoch.StateULERecovery)
	require.Equal(t, epoch.Chain{{Epoch: 0, Start: 0}, {Epoch: 1, Start: 1}, {Epoch: 2, Start: 2}, {Epoch: 3, Start: 3}}, a.part().Log.Chain)

	// E3
	r = a.stopped()
	require.Equal(t, int32(3), r.Pairs[0].LME)
	require.Equal(t, int64(4), r.Pairs[0].LMO)
	require.Equal(t, int32(4), a.shownEpoch())
	a.write(1)
	b.write(1) // 4(3) that A never saw
	require.Equal(t, "0(0) 1(1) 2(2) 3(3) 4(3)", b.dump())
	b.mirrors(a)
	b.want(epoch.StateMirroring)
	b.shows("0(0) 1(1) 2(2) 3(3) 4(4)")
	require.Equal(t, &ledger.Cut{From: 4, End: 5}, cut(b))
	b.neverWas(epoch.StateULERecovery)
	require.Equal(t, a.content(), b.content())

	// And a second round.
	a.write(2)
	a.show()
	b.shows("0(0) 1(1) 2(2) 3(3) 4(4) 5(4) 6(4)")
	last := b.shownEpoch()
	b.stopped()
	require.Greater(t, b.shownEpoch(), last)
	b.write(1)
	a.write(3)
	a.mirrors(b)
	a.want(epoch.StateMirroring)
	a.shows(b.dump())
	require.Equal(t, b.content(), a.content())
	a.neverWas(epoch.StateULERecovery)
}

// E4: LMO, where LME alone would cut nothing.
func TestE4LMO(t *testing.T) {
	a, b := newSite(t, "A"), newSite(t, "B")
	b.phys.with("t", 0, func(l *fakeLog) { l.epoch = 9 })
	a.write(2)
	b.mirrors(a)
	b.shows("0(0) 1(0)")
	r := b.stopped()
	require.Equal(t, int32(0), r.Pairs[0].LME)
	require.Equal(t, int64(2), r.Pairs[0].LMO)
	a.write(1)
	b.write(1)
	require.Equal(t, "0(0) 1(0) 2(10)", b.dump())
	a.mirrors(b)
	a.shows("0(0) 1(0) 2(10)")
	require.Equal(t, b.content(), a.content())
	a.neverWas(epoch.StateULERecovery)
}

// M4: a drill. B was promoted, wrote, and mirrors A again: what is shared stays.
func TestM4Drill(t *testing.T) {
	a, b := examples(t)
	b.stopped()
	b.write(10)
	a.write(1)
	n := b.end()
	b.want(epoch.StateMirroring)
	b.shows("0(0) 1(1) 2(1)")
	require.Equal(t, a.content(), b.content())
	require.Less(t, b.end()-n, int64(3), "only what is new was copied")
}

// H12: what may have been shown before a failover was cut by the failback: nobody is told to wait for it.
func TestH12CutByFailback(t *testing.T) {
	a, b := examples(t)
	b.stopped()
	b.write(10)
	a.write(1)
	p := b.eng.Partition("t", 0)
	p.mu.Lock()
	p.mayShow = 1000 // so far ahead the source was
	p.mu.Unlock()
	b.want(epoch.StateMirroring)
	b.shows("0(0) 1(1) 2(1)")
	tail := func() ledger.Tail { return b.part().Tail() }
	eventually(t, "the tail of the new generation", func() bool { return tail().Known && tail().Sure && tail().VEnd == 3 })
	require.EqualValues(t, 3, tail().EverShown)
}

// M1: the default step is large.
func TestM1BumpStep(t *testing.T) {
	a, b := newSite(t, "A"), newSite(t, "B")
	b.tuning.BumpStep = 0
	a.write(1)
	b.mirrors(a)
	b.shows("0(0)")
	b.stopped()
	b.write(1)
	require.GreaterOrEqual(t, b.shownEpoch(), int32(1000))
}
