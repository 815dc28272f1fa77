package mirror

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/lockstep-kafka/lockstep/epoch"
	"github.com/lockstep-kafka/lockstep/internal/ledger"
	"github.com/lockstep-kafka/lockstep/protocol"
)

func hidden(b protocol.Batch) bool {
	s, ok := b.ReadStamp()
	return ok && s.Flags&epoch.FlagHidden != 0
}

// openings are the span-opening batches in a site's log.
func (s *site) openings() (out []protocol.Batch) {
	s.phys.with("t", 0, func(l *fakeLog) {
		for _, b := range l.batches {
			if hidden(b) {
				out = append(out, b)
			}
		}
	})
	return out
}

// F10 and DESIGN §8: killed between any two steps of STOPPING, and with the
// source dead, the next owner ends it the same way.
func TestStoppingSurvivesKills(t *testing.T) {
	dead := errors.New("killed")
	for _, c := range []struct {
		name string
		kill func(b *site, die func())
	}{
		{"before STOPPING is written", func(b *site, die func()) {
			b.store.hook(func(r *ledger.Record) error {
				if r.State == epoch.StateStopping {
					die()
					return dead
				}
				return nil
			})
		}},
		{"after STOPPING is written", func(b *site, die func()) {
			b.phys.hook(func(_ partKey, _ *fakeLog, x protocol.Batch) (int16, bool) {
				die()
				return -1, true
			})
		}},
		{"after the opening batch, before its answer", func(b *site, die func()) {
			b.phys.hook(func(_ partKey, l *fakeLog, x protocol.Batch) (int16, bool) {
				x.SetBase(l.end(), l.epoch)
				l.append(append(protocol.Batch(nil), x...))
				die()
				return -1, true
			})
		}},
		{"before STOPPED is written", func(b *site, die func()) {
			b.store.hook(func(r *ledger.Record) error {
				if r.State == epoch.StateStopped {
					die()
					return dead
				}
				return nil
			})
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			a, b := examples(t)
			killed := make(chan struct{})
			c.kill(b, func() {
				select {
				case <-killed:
				default:
					close(killed)
				}
			})
			b.want(epoch.StateStopped)
			<-killed
			b.stop()
			b.store.mu.Lock()
			b.store.onPut = nil
			b.store.mu.Unlock()
			b.phys.mu.Lock()
			b.phys.onProduce = nil
			b.phys.mu.Unlock()
			a.phys.close() // the source is dead
			b.run()
			b.is(epoch.StateStopped)
			r := b.rec()
			require.Equal(t, ledger.Pair{Cluster: "A", TopicID: a.phys.id, LME: 1, LMO: 2}, r.Pairs[0])
			b.write(1)
			require.Equal(t, "0(0) 1(1) 2(2)", b.dump(), "the first local record has offset LMO")
			require.Equal(t, b.end()-1, r.Log.Open().PStart)
			os := b.openings()
			require.Equal(t, r.Log.Open().PStart, os[len(os)-1].NextOffset())
		})
	}
}

// H3: the span-opening batch says enough to find the native span again.
func TestH3SpanOpeningBatch(t *testing.T) {
	_, b := examples(t)
	r := b.stopped()
	os := b.openings()
	require.Len(t, os, 1)
	require.NoError(t, protocol.Records(os[0], func(rv protocol.RecordView) bool {
		require.Equal(t, "lockstep.span.1", string(rv.Key))
		require.JSONEq(t, fmt.Sprintf(`{"v":1,"lmo":2,"lme":1,"bump":2,"chain":[{"e":0,"s":0},{"e":1,"s":1}],"start":0,"gen":1,"cluster":"B","topicId":%q,"lineage":"first-B"}`, b.phys.id), string(rv.Value))
		return true
	}))
	require.Equal(t, os[0].NextOffset(), r.Log.Open().PStart)
}

// H4, F5: STOPPED, and the destination loses its tail below the native span.
func TestH4F5NativeSpanLost(t *testing.T) {
	_, b := examples(t)
	r := b.stopped()
	b.write(2)
	was := b.shownEpoch()
	require.Equal(t, "0(0) 1(1) 2(2) 3(2)", b.dump())
	b.phys.with("t", 0, func(l *fakeLog) { l.truncate(1) })
	b.elect()
	require.Equal(t, epoch.StateStopped, b.rec().State)
	b.write(2)
	require.Greater(t, b.shownEpoch(), was)
	require.Equal(t, fmt.Sprintf("0(0) 1(%d) 2(%[1]d)", b.shownEpoch()), b.dump(), "acknowledged writes are read")
	require.Equal(t, r.Pairs, b.rec().Pairs, "the pair is not touched")
	// A loss above the span's start is the cluster's own.
	spans := b.part().Log.Spans
	b.write(1)
	b.phys.with("t", 0, func(l *fakeLog) { l.truncate(3) })
	b.elect()
	b.write(1)
	require.Equal(t, spans, b.part().Log.Spans)
}

// A new owner looks at a STOPPED log that lost its tail while nobody watched.
func TestH4NewOwner(t *testing.T) {
	_, b := examples(t)
	b.stopped()
	b.stop()
	b.phys.with("t", 0, func(l *fakeLog) { l.truncate(1); l.epoch++ })
	b.run()
	eventually(t, "looked at", func() bool { return b.rec().Checked == 1 })
	b.write(1)
	require.Greater(t, b.shownEpoch(), int32(2))
	require.Equal(t, fmt.Sprintf("0(0) 1(%d)", b.shownEpoch()), b.dump())
}

// H9: STOPPING asserts that no transaction is open below the native span.
func TestH9StoppingEndsTransactions(t *testing.T) {
	_, b := examples(t)
	b.phys.with("t", 0, func(l *fakeLog) { l.lso = 1 })
	ended := 0
	b.endTxns = func() error {
		ended++
		b.phys.with("t", 0, func(l *fakeLog) { l.lso = -1 })
		return nil
	}
	r := b.stopped()
	require.Equal(t, 1, ended)
	require.Equal(t, int64(2), r.Pairs[0].LMO)
}

// M11: a source transaction that is open at the end is left out.
func TestM11HalfATransaction(t *testing.T) {
	a, b := newSite(t, "A"), newSite(t, "B")
	b.tuning.KeepBatches = true // joined, they would be refused together
	a.phys.with("t", 0, func(l *fakeLog) {
		l.append(rawBatch{base: 0, n: 2}.bytes())
		l.append(rawBatch{base: 2, n: 3, pid: 7, txn: true}.bytes())
		l.append(rawBatch{base: 6, n: 3, pid: 7, txn: true}.bytes()) // behind a hole: it is not merged with the first half
		l.append(rawBatch{base: 9, n: 1, pid: 7, control: true}.bytes())
	})
	// The destination refuses the second half of the transaction.
	b.tuning.KeepBatches = true
	b.phys.hook(func(_ partKey, l *fakeLog, x protocol.Batch) (int16, bool) {
		if s, _ := x.ReadStamp(); s.V == 6 {
			return kerr.NotEnoughReplicas.Code, true
		}
		return 0, false
	})
	b.mirrors(a)
	eventually(t, "half", func() bool { return b.dump() == "0(0) 1(0) 2(0) 3(0) 4(0)" })
	b.want(epoch.StateStopped)
	b.is(epoch.StateStopped)
	require.Equal(t, int64(2), b.rec().Pairs[0].LMO)
	require.Equal(t, "0(0) 1(0)", b.dump())
	b.write(1)
	require.Equal(t, "0(0) 1(0) 2(1)", b.dump())
}

// M11: LMO is a prefix of the source's log in which no transaction is half. Where
// transactions overlap without a break there is none but in front of them all,
// however many have ended: no other prefix keeps them whole, and what is no prefix
// could not be aligned with. When they have ended, all of it is kept.
func TestM11OverlapWithoutABreak(t *testing.T) {
	const txns = 40
	for _, ended := range []bool{false, true} {
		t.Run(fmt.Sprintf("all ended: %v", ended), func(t *testing.T) {
			a, b := newSite(t, "A"), newSite(t, "B")
			b.tuning.KeepBatches = true
			var last int64
			a.phys.with("t", 0, func(l *fakeLog) {
				l.append(rawBatch{base: 0, n: 2}.bytes())
				for i := range int64(txns) { // each begins before the one in front of it ends
					if i%2 == 0 {
						l.append(rawBatch{base: l.end(), n: 1, pid: 7, txn: true}.bytes())
					} else {
						l.append(rawBatch{base: l.end(), n: 1, pid: 8, txn: true}.bytes())
					}
					if i > 0 {
						l.append(rawBatch{base: l.end(), n: 1, pid: 8 - i%2, control: true}.bytes())
					}
				}
				last = l.end()
				if ended {
					l.append(rawBatch{base: l.end(), n: 1, pid: 8, control: true}.bytes())
				} else {
					l.lso = l.end() - 2 // where the last one begins
				}
			})
			b.mirrors(a)
			whole := 2 + txns
			if !ended {
				whole--
			}
			eventually(t, "mirrored", func() bool { return len(strings.Fields(b.dump())) == whole })
			if ended {
				eventually(t, "the last marker", func() bool { return b.part().Tail().Position == last+1 })
			}
			r := b.stopped()
			if ended {
				require.Equal(t, last+1, r.Pairs[0].LMO)
				require.Len(t, strings.Fields(b.dump()), whole)
				return
			}
			require.Equal(t, int64(2), r.Pairs[0].LMO, "in front of the first")
			require.Equal(t, int64(2), r.Left.Offset, "and it says so")
			require.Equal(t, "0(0) 1(0)", b.dump())
			b.write(1)
			b.show()
			a.endTxns = func() error { a.phys.with("t", 0, func(l *fakeLog) { l.lso = -1 }); return nil }
			a.mirrors(b) // what A has of them is cut there too
			a.shows("0(0) 1(0) 2(1)")
			require.Equal(t, b.content(), a.content())
		})
	}
}

// M11: transactions that have ended are whole, though every batch was inside one
// when it was read: they overlap, and only markers follow. A later owner finds that
// out by the source.
func TestM11EndedTransactions(t *testing.T) {
	for _, owner := range []string{"the same", "another"} {
		t.Run(owner, func(t *testing.T) {
			a, b := newSite(t, "A"), newSite(t, "B")
			a.phys.with("t", 0, func(l *fakeLog) {
				l.append(rawBatch{base: 0, n: 1, pid: 7, txn: true}.bytes())
				l.append(rawBatch{base: 1, n: 1, pid: 8, txn: true}.bytes())
				l.append(rawBatch{base: 2, n: 1, pid: 7, control: true}.bytes())
				l.append(rawBatch{base: 3, n: 1, pid: 9, txn: true}.bytes())
				l.append(rawBatch{base: 4, n: 1, pid: 8, control: true}.bytes())
				l.append(rawBatch{base: 5, n: 1}.bytes()) // inside 9's
				l.append(rawBatch{base: 6, n: 1, pid: 9, control: true}.bytes())
			})
			b.mirrors(a)
			b.shows("0(0) 1(0) 3(0) 5(0)")
			position := func() (at int64, open bool) {
				b.eng.mu.Lock()
				p := b.eng.parts[partKey{"t", 0}]
				b.eng.mu.Unlock()
				p.mu.Lock()
				defer p.mu.Unlock()
				return p.tail.position, p.tail.openAt
			}
			if owner == "another" {
				b.run()
			}
			eventually(t, "position", func() bool {
				at, open := position()
				return at == 7 && !open
			})
			b.want(epoch.StateStopped)
			b.is(epoch.StateStopped)
			require.Equal(t, int64(7), b.rec().Pairs[0].LMO)
			require.Equal(t, "0(0) 1(0) 3(0) 5(0)", b.dump())
		})
	}
}

// F1: a stop before phase one's cut leaves pairs and log alone.
func TestF1StopBeforeTheCut(t *testing.T) {
	a, b := examples(t)
	_ = a
	r := b.stopped()
	b.write(3)
	before := b.content()
	n := b.shownEpoch()
	b.ledger = b.gated(epoch.SourceRecord{Reading: epoch.Unreadable, Err: "no"})
	b.tuning.RetryAttempts = 1 << 20
	b.run()
	b.want(epoch.StateMirroring)
	b.is(epoch.StateFailed)
	b.stopped()
	require.Equal(t, r.Pairs, b.rec().Pairs)
	require.Equal(t, r.Log.Spans, b.part().Log.Spans)
	require.Equal(t, before, b.content())
	require.Equal(t, n, b.shownEpoch())
}

// F1, H4: a stop before phase one's cut that has to open a span of its own, as the
// epoch shown is above the native span's, when the destination has lost that
// span's beginning meanwhile: nothing is left out in front of the new one.
func TestH4StopBeforeTheCutAfterALoss(t *testing.T) {
	_, b := examples(t)
	pairs := b.stopped().Pairs
	b.write(2)
	require.Equal(t, "0(0) 1(1) 2(2) 3(2)", b.dump())
	b.stop()
	rec := *b.rec()
	rec.State, rec.Desired, rec.Log.Bump, rec.StateEpoch = epoch.StateStopping, epoch.StateStopped, rec.Log.Bump+5, rec.StateEpoch+1
	require.NoError(t, b.store.Put(t.Context(), &rec))
	b.phys.with("t", 0, func(l *fakeLog) { l.truncate(1); l.epoch++ })
	b.run()
	b.is(epoch.StateStopped)
	require.Equal(t, pairs, b.rec().Pairs, "no pair of a start that did not cut")
	require.NoError(t, b.rec().Log.Validate())
	b.write(1)
	require.Equal(t, fmt.Sprintf("0(0) 1(%d)", b.shownEpoch()), b.dump())
}

// F2: epochs that were cut are not used again.
func TestF2EpochsNeverReused(t *testing.T) {
	a, b := examples(t)
	b.stopped()
	b.write(1) // 2(2), will be cut
	require.Equal(t, "0(0) 1(1) 2(2)", b.dump())
	b.want(epoch.StateMirroring)
	b.is(epoch.StateMirroring)
	b.stopped()
	b.write(1)
	require.NotEqual(t, "0(0) 1(1) 2(2)", b.dump())
	require.True(t, strings.HasPrefix(b.dump(), "0(0) 1(1) 2("), b.dump())
	_ = a
}

// F6: the physical epoch changes between the re-read and STOPPED, and with it a
// tail is lost: again from the start.
func TestF6EpochChangesWhileStopping(t *testing.T) {
	a, b := examples(t)
	_ = a
	n := 0
	b.phys.hook(func(_ partKey, l *fakeLog, x protocol.Batch) (int16, bool) {
		if n++; n == 1 && hidden(x) {
			l.truncate(1)
			l.epoch++
			x.SetBase(l.end(), l.epoch)
			l.append(append(protocol.Batch(nil), x...))
			go b.meta()
			return kerr.NotLeaderForPartition.Code, true
		}
		return 0, false
	})
	b.want(epoch.StateStopped)
	eventually(t, "metadata", func() bool { b.meta(); return b.rec().State == epoch.StateStopped })
	r := b.rec()
	require.Equal(t, int64(1), r.Pairs[0].LMO, "only what is there")
	require.Equal(t, int32(0), r.Pairs[0].LME)
	b.write(1)
	require.Equal(t, fmt.Sprintf("0(0) 1(%d)", b.shownEpoch()), b.dump())
	require.NoError(t, r.Log.Validate())
}

// A write in flight that lands after the stop is dead.
func TestStoppingGivesUpAWrite(t *testing.T) {
	a, b := examples(t)
	var late protocol.Batch
	hold := make(chan struct{})
	b.phys.hook(func(_ partKey, l *fakeLog, x protocol.Batch) (int16, bool) {
		if !hidden(x) && late == nil {
			late = append(protocol.Batch(nil), x...)
			close(hold)
			return -1, true // the connection breaks: outcome unknown
		}
		return 0, false
	})
	a.write(1)
	b.meta()
	<-hold
	b.stopped()
	if lmo := b.rec().Pairs[0].LMO; lmo == 2 {
		b.phys.with("t", 0, func(l *fakeLog) {
			l.land(late)
		})
		b.write(1)
		require.Equal(t, "0(0) 1(1) 3(2)", b.dump(), "dead, and it leaves a hole")
	}
}

// Pause and resume: no new alignment, nothing twice.
func TestPauseResume(t *testing.T) {
	a, b := examples(t)
	b.want(epoch.StatePaused)
	b.is(epoch.StatePaused)
	spans := len(b.part().Log.Spans)
	a.write(2)
	b.meta()
	time.Sleep(60 * time.Millisecond)
	require.Equal(t, "0(0) 1(1)", b.dump())
	b.want(epoch.StateMirroring)
	b.shows("0(0) 1(1) 2(1) 3(1)")
	require.Len(t, b.part().Log.Spans, spans)
	require.Equal(t, a.content(), b.content())
	for _, r := range b.store.written()[2:] {
		require.NotEqual(t, epoch.StateLogAlignment, r.State)
	}
	// Paused across owners, then stopped.
	b.want(epoch.StatePaused)
	b.is(epoch.StatePaused)
	b.run()
	time.Sleep(20 * time.Millisecond)
	require.Equal(t, epoch.StatePaused, b.rec().State)
	b.stopped()
	require.Equal(t, int64(4), b.rec().Pairs[0].LMO)
	// What doesn't fit is skipped, and noted.
	b.want(epoch.StatePaused)
	eventually(t, "noted", func() bool { return b.rec().CommandSeq == b.part().Command.Seq })
	require.Equal(t, epoch.StateStopped, b.rec().State)
}

// F13: retry and recover go back to the state before, never to an alignment.
func TestF13RecoverGoesBack(t *testing.T) {
	a, b := examples(t)
	b.tuning.RetryAttempts = 2
	b.run()
	bad := true
	b.phys.hook(func(partKey, *fakeLog, protocol.Batch) (int16, bool) {
		if bad {
			return kerr.PolicyViolation.Code, true
		}
		return 0, false
	})
	a.write(1)
	b.meta()
	eventually(t, "gave up", func() bool { return b.rec().State == epoch.StateFailed && b.rec().Retries >= 2 })
	require.Equal(t, epoch.StateMirroring, b.rec().Previous)
	b.phys.mu.Lock()
	bad = false
	b.phys.mu.Unlock()
	time.Sleep(30 * time.Millisecond)
	require.Equal(t, epoch.StateFailed, b.rec().State)
	n := len(b.store.written())
	b.command(ledger.Command{Recover: true})
	b.shows("0(0) 1(1) 2(1)")
	for _, r := range b.store.written()[n:] {
		require.NotEqual(t, epoch.StateLogAlignment, r.State)
	}
	require.Zero(t, b.rec().Retries)
}

// M11, H1: on a compacted topic what is left out of a half mirrored transaction
// must not lie behind what stays.
func TestM11HalfATransactionCompacted(t *testing.T) {
	a, b := newSite(t, "A"), newSite(t, "B")
	b.compact, b.tuning.KeepBatches = true, true
	a.phys.with("t", 0, func(l *fakeLog) {
		l.append(rawBatch{base: 0, n: 2}.bytes())
		l.append(rawBatch{base: 2, n: 3, pid: 7, txn: true}.bytes())
		l.append(rawBatch{base: 5, n: 3, pid: 7, txn: true}.bytes())
		l.append(rawBatch{base: 8, n: 1, pid: 7, control: true}.bytes())
	})
	b.phys.hook(func(_ partKey, _ *fakeLog, x protocol.Batch) (int16, bool) {
		if s, _ := x.ReadStamp(); s.V == 5 {
			return kerr.NotEnoughReplicas.Code, true
		}
		return 0, false
	})
	b.mirrors(a)
	eventually(t, "half", func() bool { return b.dump() == "0(0) 1(0) 2(0) 3(0) 4(0)" })
	b.want(epoch.StateStopped)
	b.is(epoch.StateStopped)
	require.Equal(t, "0(0) 1(0)", b.dump())
	require.Equal(t, int64(2), b.rec().Pairs[0].LMO)
	require.Empty(t, b.deadBehind())
}

// A transition whose ledger write landed although its answer was lost is acted
// on, also where the write after it, made to find out, fails.
func TestUnknownTransitionLanded(t *testing.T) {
	for fails := range 3 {
		t.Run(fmt.Sprint(fails), func(t *testing.T) { unknownTransitionLanded(t, fails) })
	}
}

func unknownTransitionLanded(t *testing.T, fails int) {
	a, b := newSite(t, "A"), newSite(t, "B")
	a.write(1)
	b.mirrors(a)
	b.shows("0(0)")
	for _, to := range []struct{ want, first, end ledger.State }{
		{epoch.StateStopped, epoch.StateStopping, epoch.StateStopped},
		{epoch.StateMirroring, epoch.StateLogAlignment, epoch.StateMirroring},
		{epoch.StatePaused, epoch.StatePausing, epoch.StatePaused},
		{epoch.StateMirroring, epoch.StateMirroring, epoch.StateMirroring},
	} {
		lost, left := false, fails
		b.store.hook(func(r *ledger.Record) error {
			switch {
			case !lost && r.State == to.first:
				lost = true
				return ledger.ErrUnknownOutcome
			case lost && left > 0:
				left--
				return errors.New("ledger down")
			}
			return nil
		})
		b.want(to.want)
		b.is(to.end)
		b.store.hook(nil)
		require.True(t, lost)
	}
	a.write(1)
	b.meta()
	b.shows("0(0) 1(0)")
}
