package mirror

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-kafka/lockstep/epoch"
	"github.com/lockstep-kafka/lockstep/internal/ledger"
	"github.com/lockstep-kafka/lockstep/protocol"
)

// H10: the cut waits until every instance refuses client writes and has
// drained, and MIRRORING until all have the new generation.
func TestH10StartWaitsForInstances(t *testing.T) {
	a, b := examples(t)
	b.stopped()
	b.write(1)
	taken := int64(0)
	b.store.setWaiting(func(p *ledger.Partition, _ bool) []string {
		if taken > p.RecordOffset || taken == p.RecordOffset && taken > 0 {
			return nil
		}
		return []string{"x"}
	})
	b.want(epoch.StateMirroring)
	b.is(epoch.StateLogAlignment)
	eventually(t, "says for whom", func() bool { w := b.eng.Partition("t", 0).Status().Waiting; return len(w) == 1 && w[0] == "x" })
	spans := len(b.part().Log.Spans)
	// A write that was forwarded before lands now; it is cut, not lost in the middle.
	b.phys.with("t", 0, func(l *fakeLog) { l.append(rawBatch{base: l.end(), n: 1, epoch: l.epoch}.bytes()) })
	require.Len(t, b.part().Log.Spans, spans, "no cut before the gate is closed everywhere")
	b.store.mu.Lock()
	taken = b.store.offset
	b.store.mu.Unlock()
	eventually(t, "cut", func() bool { return b.part().Log.Open().Kind == epoch.Mirrored })
	time.Sleep(100 * time.Millisecond)
	require.Equal(t, epoch.StateLogAlignment, b.rec().State, "the generation is not taken in")
	b.store.mu.Lock()
	taken = b.store.offset
	b.store.mu.Unlock()
	b.shows("0(0) 1(1)")
	a.write(1)
	b.meta()
	b.shows("0(0) 1(1) 2(1)")
	require.Equal(t, a.content(), b.content())
}

// H9: a transaction open across the cut: T is at most its first offset, and it
// is ended before readers go on.
func TestH9OpenTransactionAtStart(t *testing.T) {
	a, b := newSite(t, "A"), newSite(t, "B")
	a.write(4)
	b.mirrors(a)
	b.shows("0(0) 1(0) 2(0) 3(0)")
	b.stopped()
	// A lost a marker in its crash: records below LMO are open on it.
	a.phys.with("t", 0, func(l *fakeLog) { l.batches = nil; l.chain = nil })
	a.stamp = 0
	a.phys.with("t", 0, func(l *fakeLog) {
		l.append(rawBatch{base: 0, n: 2, maxTS: 1}.bytes())
		l.append(rawBatch{base: 2, n: 2, pid: 9, txn: true, maxTS: 2}.bytes())
		l.lso = 2
	})
	a.endTxns = func() error {
		require.Equal(t, int64(2), a.part().Log.Open().VStart, "the cut is in the ledger before anything is aborted")
		a.phys.with("t", 0, func(l *fakeLog) {
			l.append(rawBatch{base: l.end(), n: 1, pid: 9, control: true, abort: true}.bytes())
			l.lso = -1
		})
		return nil
	}
	a.mirrors(b)
	a.shows("0(0) 1(0) 2(0) 3(0)")
}

// M5: a ledger of the source that can't be read is an error, never "nothing is
// shared"; one that is not understood waits for an operator.
func TestM5UnreadableIsNotAbsent(t *testing.T) {
	a, b := examples(t)
	b.stopped()
	b.write(2)
	before := b.content()
	reading := epoch.SourceRecord{Reading: epoch.Unreadable, Err: "TOPIC_AUTHORIZATION_FAILED"}
	b.ledger = func() epoch.SourceRecord { return b.gated(reading)() }
	b.tuning.RetryMin = 50 * time.Millisecond
	b.tuning.RetryAttempts = 1 << 20
	b.run()
	b.command(ledger.Command{Desired: epoch.StateMirroring, DiscardLocal: true})
	b.is(epoch.StateFailed)
	require.Contains(t, b.rec().Error, "TOPIC_AUTHORIZATION_FAILED")
	require.Equal(t, before, b.content())
	reading = epoch.SourceRecord{Reading: epoch.Garbled, Err: `ledger entry "t/0": newer format`}
	eventually(t, "for good", func() bool { return b.rec().State == epoch.StateFailed && b.rec().Retries < 0 })
	require.Contains(t, b.rec().Error, "t/0")
	require.Equal(t, before, b.content())
	_ = a
}

// H7: a pair counts only for the logs it was made of.
func TestH7ReplacedLog(t *testing.T) {
	for name, change := range map[string]func(a *site){
		"topic made anew": func(a *site) {
			a.phys.with("t", 0, func(*fakeLog) { a.phys.id[0]++ })
			a.proxy.with("t", 0, func(*fakeLog) { a.proxy.id[0]++ })
		},
		"another cluster": func(a *site) { a.name = "C" },
	} {
		t.Run(name, func(t *testing.T) {
			a, b := examples(t)
			b.stopped()
			change(a)
			b.write(1)
			b.run()
			b.want(epoch.StateMirroring)
			b.refuses("--discard-local")
			require.Equal(t, "0(0) 1(1) 2(2)", b.dump())
		})
	}
	// A was emptied and is D's history now: B's pair names another lineage.
	a, b := examples(t)
	b.stopped()
	d := newSite(t, "D")
	d.write(3)
	a.mirrors(d)
	a.is(epoch.StateFailed) // it holds records of its own
	a.stopped()
	a.command(ledger.Command{Desired: epoch.StateMirroring, DiscardLocal: true})
	a.shows("0(0) 1(0) 2(0)")
	a.stopped()
	b.write(1)
	b.run()
	b.want(epoch.StateMirroring)
	b.refuses("--discard-local")
	require.Equal(t, "0(0) 1(1) 2(2)", b.dump())
}

// H6: a native span keeps its bump; later ones don't change what it shows.
func TestH6BumpIsFrozen(t *testing.T) {
	a, b := examples(t)
	b.stopped()
	b.write(2)
	b.show()
	a.mirrors(b)
	a.shows("0(0) 1(1) 2(2) 3(2)")
	a.stopped()
	a.write(1)
	b.mirrors(a)
	b.want(epoch.StateMirroring)
	b.shows("0(0) 1(1) 2(2) 3(2) 4(3)")
	b.stopped()
	b.write(1)
	require.Equal(t, fmt.Sprintf("0(0) 1(1) 2(2) 3(2) 4(3) 5(%d)", b.shownEpoch()), b.dump())
}

// M18: two that start to mirror one another: one goes back, the other goes on.
func TestM18MirrorLoop(t *testing.T) {
	a, b := examples(t) // B mirrors A
	a.mirrors(b)
	a.is(epoch.StateFailed)
	require.Contains(t, a.rec().Error, "mirror loop")
	require.Equal(t, -1, a.rec().Retries, "not by itself")
	require.Equal(t, "0(0) 1(1)", a.dump(), "nothing is cut")
	require.Equal(t, epoch.StateMirroring, b.rec().State)
	a.stopped()
	b.meta()
	a.write(1)
	b.meta()
	b.shows("0(0) 1(1) 2(" + itoa(a.shownEpoch()) + ")")

	// Both at once, from STOPPED.
	a, b = examples(t)
	b.stopped()
	a.mirrors(b)
	a.shows("0(0) 1(1)")
	a.stopped()
	b.mirrors(a)
	a.want(epoch.StateMirroring)
	b.want(epoch.StateMirroring)
	loses := func(s *site) bool {
		st := s.rec().State
		return (st == epoch.StateFailed || st == epoch.StateStopped) && strings.Contains(s.rec().Error, "mirror loop")
	}
	eventually(t, "one goes back, or doesn't begin", func() bool {
		return loses(a) != loses(b) && (a.rec().State == epoch.StateMirroring) != (b.rec().State == epoch.StateMirroring)
	})
	// A ring: C is asked to mirror what it feeds.
	a, b = examples(t)
	b.ledger = func() epoch.SourceRecord {
		return epoch.SourceRecord{Reading: epoch.Present, State: epoch.StateMirroring, From: "X", Path: []string{"X", "B"}}
	}
	b.stopped()
	b.run()
	b.want(epoch.StateMirroring)
	b.refuses("mirror loop")
	_ = a
}

// Killed between any two ledger writes of a start, the next owner ends it.
func TestStartSurvivesKills(t *testing.T) {
	for n := 1; n <= 3; n++ {
		a, b := examples(t)
		b.stopped()
		b.write(3)
		a.write(1)
		left := n
		killed := make(chan struct{})
		b.store.hook(func(r *ledger.Record) error {
			if left--; left == 0 {
				close(killed)
			}
			if left <= 0 {
				return errLedgerDown
			}
			return nil
		})
		b.want(epoch.StateMirroring)
		<-killed
		b.stop()
		b.store.mu.Lock()
		b.store.onPut = nil
		b.store.mu.Unlock()
		b.run()
		b.shows("0(0) 1(1) 2(1)")
		require.Equal(t, a.content(), b.content())
	}
}

// M2: every cut of live records raises the epoch shown.
func TestM2CutRaisesTheEpoch(t *testing.T) {
	a, b := examples(t)
	b.unclean.Store(true)
	was := b.shownEpoch()
	a.phys.with("t", 0, func(l *fakeLog) { l.truncate(1); l.epoch++ })
	a.write(1)
	b.meta()
	b.shows("0(0) 1(2)")
	require.Greater(t, b.shownEpoch(), was)
	require.GreaterOrEqual(t, b.shownEpoch(), int32(2))
}

// A compacted topic is mirrored anew at a start that cuts (H15 without its
// shadow): nothing dead stays behind what is live.
func TestStartOnCompactedTopic(t *testing.T) {
	a, b := newSite(t, "A"), newSite(t, "B")
	b.compact = true
	a.write(2)
	b.mirrors(a)
	b.shows("0(0) 1(0)")
	b.stopped()
	b.write(2)
	a.write(1)
	n := b.end()
	b.want(epoch.StateMirroring)
	b.shows("0(0) 1(0) 2(0)")
	require.Equal(t, a.content(), b.content())
	require.Equal(t, n, b.part().Log.Spans[0].PStart)
}

// F8 at a failback: T lies inside a batch.
func TestStartRoundsDown(t *testing.T) {
	a, b := newSite(t, "A"), newSite(t, "B")
	a.write(2)
	b.mirrors(a)
	b.shows("0(0) 1(0)")
	b.stopped()
	a.write(3)
	b.write(1)
	a.mirrors(b)
	a.shows("0(0) 1(0) 2(1)")
	// A's own batch straddles the pair: it goes as a whole and comes again.
	a2, b2 := newSite(t, "A"), newSite(t, "B")
	a2.write(2)
	b2.mirrors(a2)
	b2.shows("0(0) 1(0)")
	b2.stopped()
	a2.phys.with("t", 0, func(l *fakeLog) {
		l.batches, l.chain = nil, nil
		l.append(rawBatch{base: 0, n: 4, maxTS: 65001}.bytes())
	})
	a2.mirrors(b2)
	a2.shows("0(0) 1(0)")
}

// The epoch fencing state is in the ledger before anything of the epoch is
// appended.
func TestEpochFencingState(t *testing.T) {
	a, b := newSite(t, "A"), newSite(t, "B")
	a.write(1)
	b.mirrors(a)
	b.shows("0(0)")
	b.phys.hook(func(_ partKey, _ *fakeLog, x protocol.Batch) (int16, bool) {
		s, _ := x.ReadStamp()
		require.LessOrEqual(t, s.Epoch, b.part().Log.Shown(0))
		return 0, false
	})
	// The batch is there before the epoch shown could be raised for the source's
	// metadata alone.
	b.store.hook(func(r *ledger.Record) error {
		if r.State == epoch.StateMirroring && r.Log.Chain.Newest() < 40 {
			return errors.New("not now")
		}
		return nil
	})
	a.phys.with("t", 0, func(l *fakeLog) {
		l.append(rawBatch{base: 1, n: 1, epoch: 40}.bytes())
		l.epoch = 40
	})
	b.meta()
	b.shows("0(0) 1(40)")
	var states []epoch.State
	for _, r := range b.store.written() {
		if n := len(states); n == 0 || states[n-1] != r.State {
			states = append(states, r.State)
		}
	}
	require.Equal(t, []epoch.State{epoch.StateEpochFencing, epoch.StateMirroring}, states[len(states)-2:], "two writes")
}

// A start is in the ledger though its answer was lost, and the next write fails: the partition follows all the same
// (found by TestH1H15RandomShadows: it stood in LOG_ALIGNMENT for ever).
func TestStartWhoseAnswerIsLost(t *testing.T) {
	a, b := newSite(t, "A"), newSite(t, "B")
	a.write(2)
	b.mirrors(a)
	b.is(epoch.StateMirroring)
	b.want(epoch.StateStopped)
	b.is(epoch.StateStopped)
	n := 0
	b.store.hook(func(r *ledger.Record) error {
		switch n++; n {
		case 1:
			return fmt.Errorf("put: %w", ledger.ErrUnknownOutcome) // it lands
		case 2:
			return errLedgerDown
		}
		return nil
	})
	b.want(epoch.StateMirroring)
	b.is(epoch.StateMirroring)
}
