package mirror

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/lockstep-kafka/lockstep/epoch"
	"github.com/lockstep-kafka/lockstep/internal/ledger"
	"github.com/lockstep-kafka/lockstep/protocol"
)

// rebuilt tells whether a log was ever begun anew beside the one that is shown.
func (s *site) rebuilt() bool {
	return slices.ContainsFunc(s.store.written(), func(r *ledger.Record) bool { return r.Shadow != nil })
}

// deadBehind are the physical offsets of dead records that lie behind live ones
// and are followed by no live copy of themselves, so that a cleaner would keep
// them instead (H1).
func (s *site) deadBehind() (out []int64) {
	s.t.Helper()
	l := s.part().Log
	w := l.Walk(l.Spans[0].VStart, true)
	s.phys.mu.Lock()
	defer s.phys.mu.Unlock()
	live := false
	dead := map[int64]epoch.Batch{}
	for _, raw := range s.phys.log("t", 0).batches {
		b := readHeader(raw)
		at, v := w.Next(b)
		switch {
		case v == epoch.Live:
			live = true
			for p, d := range dead {
				if d.Stamped && d.Epoch == at.Epoch && at.V <= d.V && d.V < at.VEnd {
					delete(dead, p)
				}
			}
		case live && b.Flags&epoch.FlagHidden == 0 && !b.Control:
			dead[b.P] = b
		}
	}
	for p := range dead {
		out = append(out, p)
	}
	return out
}

// shadowed is a site B that mirrors a compacted topic of n batches, whose source
// then has an unclean election that leaves it keep of them, and writes two more.
func shadowed(t *testing.T, n, keep int) (a, b *site) {
	a, b = newSite(t, "A"), newSite(t, "B")
	b.compact = true
	b.unclean.Store(true)
	for range n {
		a.write(1)
	}
	b.mirrors(a)
	b.shows(offsets(0, n, 0))
	return a, b
}

func uncleanElection(a *site, keep int64, e int32) {
	a.phys.with("t", 0, func(l *fakeLog) { l.truncate(keep); l.epoch = e; l.chain = l.chain.Assign(e, l.end()) })
}

func offsets(from, to int, e int) string {
	var out []string
	for i := from; i < to; i++ {
		out = append(out, fmt.Sprintf("%d(%d)", i, e))
	}
	return strings.Join(out, " ")
}

// H15: while a compacted topic is mirrored anew readers see the old log up to
// the cut, whose end does not fall; then one ledger write switches. Everything
// dead lies in front.
func TestH15ShadowKeepsWhatIsShown(t *testing.T) {
	a, b := shadowed(t, 6, 4)
	gate, first := make(chan struct{}), true
	b.phys.hook(func(_ partKey, _ *fakeLog, x protocol.Batch) (int16, bool) {
		if s, _ := x.ReadStamp(); s.V == 2 && first && b.rec().Shadow != nil {
			first = false
			b.phys.mu.Unlock()
			<-gate
			b.phys.mu.Lock()
		}
		return 0, false
	})
	was := b.shownEpoch()
	pairs := len(b.rec().Pairs)
	uncleanElection(a, 4, 5)
	a.write(1)
	a.write(1)
	b.meta()
	eventually(t, "half of it", func() bool { return b.rec().Shadow != nil && b.end() >= 8 })
	require.Equal(t, offsets(0, 4, 0), b.dump(), "the old log up to the cut")
	require.Greater(t, b.shownEpoch(), was, "readers above the cut must look")
	mid := b.shownEpoch()
	require.Equal(t, epoch.StateMirroring, b.rec().State)
	tail := b.part().Tail()
	require.True(t, tail.Known)
	require.Equal(t, int64(4), tail.VEnd, "the end shown is the cut's")
	require.Equal(t, int64(4), tail.Position)
	close(gate)
	b.shows(offsets(0, 4, 0) + " 4(5) 5(5)")
	require.Equal(t, a.content(), b.content())
	require.Nil(t, b.rec().Shadow)
	require.Greater(t, b.shownEpoch(), mid, "and rises with the switch")
	require.Empty(t, b.deadBehind())
	require.Len(t, b.rec().Pairs, pairs)
	ule := false
	for _, r := range b.store.written() {
		ule = ule || r.State == epoch.StateULERecovery
		if r.Shadow != nil {
			require.Equal(t, int64(4), r.Log.Open().VStart, "the end shown never falls")
		}
	}
	require.True(t, ule, "passes through ULE_RECOVERY")
	a.write(1)
	b.meta()
	b.shows(offsets(0, 4, 0) + " 4(5) 5(5) 6(5)")
}

// H15: a crash at any ledger write or any append of the rebuild, or an owner
// change, and the next one goes on. What is shown is always a prefix.
func TestH15ShadowSurvivesCrashes(t *testing.T) {
	for _, at := range []string{"put", "put landed", "append", "append landed"} {
		for k := 1; k <= 6; k++ {
			t.Run(fmt.Sprint(at, k), func(t *testing.T) {
				a, b := shadowed(t, 5, 3)
				n, died := 0, make(chan struct{})
				die := func() bool {
					if n++; n == k {
						close(died)
						return true
					}
					return n > k
				}
				switch at {
				case "put", "put landed":
					b.store.hook(func(*ledger.Record) error {
						if !die() {
							return nil
						}
						if at == "put" || n > k {
							return errors.New("ledger down")
						}
						return ledger.ErrUnknownOutcome
					})
				default:
					b.phys.hook(func(_ partKey, l *fakeLog, x protocol.Batch) (int16, bool) {
						if b.rec().Shadow == nil || !die() {
							return 0, false
						}
						if at == "append landed" && n == k {
							x.SetBase(l.end(), l.epoch)
							l.append(x)
						}
						return -1, true
					})
				}
				uncleanElection(a, 3, 5)
				a.write(1)
				a.write(1)
				b.meta()
				select {
				case <-died:
				case <-time.After(time.Second): // fewer steps than that
				}
				if b.rec().Shadow != nil {
					require.Equal(t, offsets(0, 3, 0), b.dump())
				}
				b.store.hook(nil)
				b.phys.hook(nil)
				b.run()
				b.shows(offsets(0, 3, 0) + " 3(5) 4(5)")
				eventually(t, "switched, clean", func() bool { return b.rec().Shadow == nil && len(b.deadBehind()) == 0 })
				require.Equal(t, a.content(), b.content())
			})
		}
	}
}

// H15: a second unclean election of the source in the middle, below and above
// what is written anew so far.
func TestH15SecondElectionMeanwhile(t *testing.T) {
	for _, c := range []struct {
		second int64
		more   int
	}{{1, 8}, {3, 8}, {5, 8}, {1, 2}, {4, 1}} { // also a source that ends below the first cut for good
		second, more := c.second, c.more
		t.Run(fmt.Sprint(second, more), func(t *testing.T) {
			a, b := shadowed(t, 8, 6)
			gate, first := make(chan struct{}), true
			b.phys.hook(func(_ partKey, _ *fakeLog, x protocol.Batch) (int16, bool) {
				if s, _ := x.ReadStamp(); s.V == 3 && first && b.rec().Shadow != nil {
					first = false
					b.phys.mu.Unlock()
					<-gate
					b.phys.mu.Lock()
				}
				return 0, false
			})
			uncleanElection(a, 6, 5)
			a.write(1)
			b.meta()
			eventually(t, "half of it", func() bool { return b.rec().Shadow != nil && b.end() >= 11 })
			uncleanElection(a, second, 9)
			for range more {
				a.write(1)
			}
			b.meta()
			close(gate)
			b.shows(offsets(0, int(second), 0) + " " + offsets(int(second), int(second)+more, 9))
			eventually(t, "clean", func() bool { return b.rec().Shadow == nil && len(b.deadBehind()) == 0 })
			require.Equal(t, a.content(), b.content())
		})
	}
}

// H15: the destination loses what is shown, or what is written anew, in the
// middle: what is left is shown, and the end comes back with the switch.
func TestH15DestinationLossMeanwhile(t *testing.T) {
	for _, left := range []int64{2, 7, 9} {
		t.Run(fmt.Sprint(left), func(t *testing.T) {
			a, b := shadowed(t, 6, 5)
			first := true
			b.phys.hook(func(_ partKey, l *fakeLog, x protocol.Batch) (int16, bool) {
				if s, _ := x.ReadStamp(); s.V == 4 && first && b.rec().Shadow != nil {
					first = false
					l.truncate(left)
					l.epoch++
					return -1, true
				}
				return 0, false
			})
			uncleanElection(a, 5, 5)
			a.write(1)
			b.meta()
			eventually(t, "lost", func() bool { b.phys.mu.Lock(); defer b.phys.mu.Unlock(); return !first })
			b.meta()
			b.shows(offsets(0, 5, 0) + " 5(5)")
			eventually(t, "clean", func() bool { return b.rec().Shadow == nil && len(b.deadBehind()) == 0 })
			require.Equal(t, a.content(), b.content())
			for _, r := range b.store.written() {
				if r.Shadow != nil {
					require.Equal(t, int64(5), r.Shadow.Target, "the end that was shown must come back before the switch")
				}
			}
		})
	}
}

// H15: the destination changes its leader, and loses the end of what was written
// anew, while the source is asked whether that may be shown: the answer is one
// about the log of before.
func TestH15SwitchOvertakenByALeader(t *testing.T) {
	a, b := shadowed(t, 8, 6)
	b.tuning.FetchPartitionMaxBytes = 1 // so that little is queued of what the source loses
	b.run()
	gate := make(chan struct{})
	b.phys.hook(func(_ partKey, _ *fakeLog, x protocol.Batch) (int16, bool) {
		if s, _ := x.ReadStamp(); s.V == 2 && b.rec().Shadow != nil {
			b.phys.mu.Unlock()
			<-gate
			b.phys.mu.Lock()
		}
		return 0, false
	})
	uncleanElection(a, 6, 5)
	a.write(1)
	b.meta()
	eventually(t, "half of it", func() bool { return b.rec().Shadow != nil && b.end() >= 10 })
	uncleanElection(a, 4, 9) // so that the source does not have what is shown
	a.write(1)
	p, eng := b.eng.Partition("t", 0), b.eng
	var once sync.Once
	overtake := func() {
		p.mu.Lock()
		due := p.phase == phaseRun && p.switchDue()
		p.mu.Unlock()
		if !due {
			return
		}
		once.Do(func() {
			b.phys.with("t", 0, func(l *fakeLog) {
				l.truncate(l.end() - 1)
				l.epoch++
			})
			eng.SetDest(b.phys.cluster())
		})
	}
	a.phys.asked.Store(&overtake)
	b.meta()
	close(gate)
	b.shows(offsets(0, 4, 0) + " 4(9)")
	eventually(t, "clean", func() bool { return b.rec().Shadow == nil && len(b.deadBehind()) == 0 })
	require.Equal(t, a.content(), b.content())
	once.Do(func() { t.Error("the source was not asked") })
}

// H1, TD-03: a compacted topic whose end is not clean can be stopped without
// its source: what is shown is copied behind what is dead.
func TestH1StopRepairsWithoutTheSource(t *testing.T) {
	for name, dirt := range map[string]func(l *fakeLog) protocol.Batch{
		"late copy": func(l *fakeLog) protocol.Batch {
			x := append(protocol.Batch(nil), l.batches[2]...)
			s, _ := x.ReadStamp()
			s.Gen = 99 // of an owner of before
			x.Restore(s.V, s.Epoch)
			if err := x.WriteStamp(s); err != nil {
				panic(err)
			}
			return x
		},
		"of what was never mirrored": func(l *fakeLog) protocol.Batch {
			x := rawBatch{base: 11, n: 1}.bytes()
			if x.WriteStamp(protocol.Stamp{V: 11, Gen: 99}) != nil {
				panic("stamp")
			}
			return x
		},
		"direct write": func(*fakeLog) protocol.Batch { return rawBatch{base: 0, n: 2}.bytes() },
	} {
		for _, crash := range []int{0, 1, 2, 3, 4} {
			t.Run(fmt.Sprint(name, crash), func(t *testing.T) {
				a, b := newSite(t, "A"), newSite(t, "B")
				b.compact = true
				b.unclean.Store(true) // batches stay apart
				for range 3 {
					a.write(2)
				}
				a.phys.with("t", 0, func(l *fakeLog) { l.append(rawBatch{base: 6, n: 3, holes: true}.bytes()) })
				b.mirrors(a)
				eventually(t, "all of it", func() bool { return b.part().Tail().Position == 11 })
				before := b.content()
				b.phys.with("t", 0, func(l *fakeLog) {
					x := dirt(l)
					x.SetBase(l.end(), l.epoch)
					l.append(x)
				})
				require.NotEmpty(t, b.deadBehind())
				a.phys.close()
				died := make(chan struct{})
				n := 0
				b.store.hook(func(*ledger.Record) error {
					if n++; crash > 0 && n >= crash {
						if n == crash {
							close(died)
						}
						return errors.New("ledger down")
					}
					return nil
				})
				b.want(epoch.StateStopped)
				if crash > 0 {
					select {
					case <-died:
					case <-time.After(2 * time.Second):
					}
					require.Equal(t, before, b.content(), "readers see all of it meanwhile")
					b.store.hook(nil)
					b.run()
				}
				b.is(epoch.StateStopped)
				require.Equal(t, before, b.content())
				require.Empty(t, b.deadBehind())
				require.Nil(t, b.rec().Shadow)
				require.Equal(t, int64(11), b.rec().Log.Open().VStart, "LMO")
				require.True(t, b.rec().Lacks, "the cleaner may have been here")
			})
		}
	}
}

// H1: writes of unknown outcome that landed lie between the generations, where no
// recovery reads any more once the next one has begun. A stop looks there: if their
// copy never came, what is shown is copied behind them; else nothing is.
func TestH1StopLooksBetweenGenerations(t *testing.T) {
	const v = 4 // of the write
	for name, c := range map[string]struct {
		land   int  // so many times it lands, and the answer is lost
		copied bool // the source lives until its copy has come
	}{
		"its copy has not come":           {land: 1},
		"its copy has not come, two dead": {land: 2},
		"its copy has come":               {land: 1, copied: true},
	} {
		t.Run(name, func(t *testing.T) {
			a, b := newSite(t, "A"), newSite(t, "B")
			b.compact = true
			b.unclean.Store(true) // batches stay apart
			a.write(2)
			a.write(2)
			b.mirrors(a)
			b.shows(offsets(0, v, 0))
			landed := 0
			b.phys.hook(func(_ partKey, l *fakeLog, x protocol.Batch) (int16, bool) {
				s, ok := x.ReadStamp()
				switch {
				case !ok || s.V != v || s.Flags&epoch.FlagHidden != 0 || landed == c.land && c.copied:
					return 0, false
				case landed == c.land:
					return kerr.NotEnoughReplicas.Code, true
				}
				landed++
				x = append(protocol.Batch(nil), x...)
				x.SetBase(l.end(), l.epoch)
				l.append(x)
				return -1, true // the connection breaks
			})
			a.write(2)
			b.meta()
			if c.copied {
				b.shows(offsets(0, v+2, 0))
				// Shown it may be as soon as the first has landed, and go with it.
				eventually(t, "the copy", func() bool { return b.part().Tail().Position == v+2 })
			} else {
				eventually(t, "the last generation", func() bool { return b.end() == v+2*int64(c.land) && b.part().Log.Open().PStart == b.end() })
			}
			before := b.content()
			a.phys.close()
			b.stopped()
			require.Equal(t, before, b.content())
			require.Empty(t, b.deadBehind())
			require.Equal(t, !c.copied, b.rebuilt())
		})
	}
}

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
				x.SetBase(l.end(), l.epoch)
				l.append(x)
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
					late := rawBatch{base: 0, n: 2}.bytes()
					if late.WriteStamp(protocol.Stamp{Gen: 99}) != nil {
						panic("stamp")
					}
					late.SetBase(l.end(), l.epoch)
					l.append(late)
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

// H1, H2: the connection breaks under a write of the copy, and that lands when
// the copy is done: it is of a generation of its own, not one that the copy went
// on in (the log ended behind it, 4 records short; TestH1H15RandomShadows found it).
func TestH1LateWriteOfTheStopsCopy(t *testing.T) {
	a, b := newSite(t, "A"), newSite(t, "B")
	b.compact = true
	b.unclean.Store(true) // batches stay apart
	for range 4 {
		a.write(2)
	}
	b.mirrors(a)
	b.shows(offsets(0, 8, 0))
	before := b.content()
	var late protocol.Batch
	sent, landed := false, false
	b.phys.with("t", 0, func(l *fakeLog) {
		x := rawBatch{base: 0, n: 1}.bytes() // a direct write: the stop makes a copy
		x.SetBase(l.end(), l.epoch)
		l.append(x)
	})
	b.phys.hook(func(_ partKey, l *fakeLog, x protocol.Batch) (int16, bool) {
		s, _ := x.ReadStamp()
		switch {
		case s.Flags&epoch.FlagHidden == 0 && s.V == 2 && !sent:
			sent, late = true, x
			return -1, true
		case s.Flags&epoch.FlagHidden != 0 && late != nil:
			late.SetBase(l.end(), l.epoch)
			l.append(late)
			late, landed = nil, true
		}
		return 0, false
	})
	a.phys.close()
	b.stopped()
	b.phys.with("t", 0, func(*fakeLog) { require.True(t, landed) })
	require.Equal(t, before, b.content())
	require.Equal(t, int64(8), b.rec().Log.Open().VStart, "LMO")
	require.Empty(t, b.deadBehind())
}

// H1: a late write of what comes next lands between two writes of the open
// generation. Nothing is to be done while its copy is on its way; a stop before
// that, by this owner or another, makes a copy of what is shown behind it.
func TestH1StopBeforeTheCopyOfALateWrite(t *testing.T) {
	const v = 4 // of the write that lands late
	for name, c := range map[string]struct {
		copied  bool // the source lives until its copy has come
		another bool // owner stops
	}{
		"its copy has not come":                {},
		"its copy has not come, another owner": {another: true},
		"its copy has come":                    {copied: true},
	} {
		t.Run(name, func(t *testing.T) {
			a, b := newSite(t, "A"), newSite(t, "B")
			b.compact = true
			b.unclean.Store(true) // batches stay apart
			a.write(2)
			b.mirrors(a)
			b.shows(offsets(0, 2, 0))
			p := b.eng.Partition("t", 0)
			eventually(t, "a checkpoint", func() bool {
				cp, ok := p.checkpoint(false, false)
				if ok = ok && cp.V == 2; ok {
					b.store.checkpoint(cp)
				}
				return ok
			})
			landed := false
			b.phys.hook(func(_ partKey, l *fakeLog, x protocol.Batch) (int16, bool) {
				switch s, ok := x.ReadStamp(); {
				case !ok || s.Flags&epoch.FlagHidden != 0:
				case s.V == v && !c.copied:
					return kerr.NotEnoughReplicas.Code, true
				case s.V == 2 && !landed:
					landed = true
					late := rawBatch{base: v, n: 2}.bytes()
					if late.WriteStamp(protocol.Stamp{V: v, Gen: 99}) != nil {
						panic("stamp")
					}
					late.SetBase(l.end(), l.epoch)
					l.append(late)
				}
				return 0, false
			})
			a.write(2)
			b.meta()
			b.shows(offsets(0, v, 0))
			eventually(t, "it was looked at", func() bool {
				p.mu.Lock()
				defer p.mu.Unlock()
				return p.suspect == nil && p.tail.position == v && p.awaits == v+2
			})
			_, ok := p.checkpoint(false, false)
			require.False(t, ok, "the next owner has to find it")
			a.write(2)
			b.meta()
			if c.copied {
				b.shows(offsets(0, v+2, 0))
				eventually(t, "the copy", func() bool { _, ok := p.checkpoint(false, false); return ok })
			}
			before := b.content()
			require.Equal(t, !c.copied, len(b.deadBehind()) > 0)
			a.phys.close()
			if c.another {
				b.run()
				eventually(t, "the next owner knows", func() bool {
					p := b.eng.Partition("t", 0)
					_, ok := p.checkpoint(false, false)
					p.mu.Lock()
					defer p.mu.Unlock()
					return p.phase == phaseRun && p.awaits == v+2 && !ok
				})
			}
			b.stopped()
			require.Equal(t, before, b.content())
			require.Empty(t, b.deadBehind())
			require.Equal(t, !c.copied, b.rebuilt())
		})
	}
}

// TD-03: a stop while a topic is mirrored anew, and the source is gone: what is
// shown becomes the log, native records of before too.
func TestStopWhileMirroredAnew(t *testing.T) {
	a, b := newSite(t, "A"), newSite(t, "B")
	a.compact, b.compact = true, true
	a.unclean.Store(true) // batches stay apart
	b.unclean.Store(true)
	a.write(2)
	a.write(1)
	b.mirrors(a)
	b.shows("0(0) 1(0) 2(0)")
	b.stopped()
	b.write(1)
	a.write(1) // never mirrored
	a.phys.hook(func(_ partKey, _ *fakeLog, x protocol.Batch) (int16, bool) {
		if s, _ := x.ReadStamp(); s.V == 2 && a.rec().Shadow != nil && !a.rec().Shadow.Local {
			return 7, true // REQUEST_TIMED_OUT for ever: not before the stop
		}
		return 0, false
	})
	a.mirrors(b)
	eventually(t, "begun", func() bool { return a.part() != nil && a.rec().Shadow != nil && a.rec().State == epoch.StateMirroring })
	require.Equal(t, "0(0) 1(0) 2(0)", a.dump(), "up to the cut")
	shown := a.content()
	a.want(epoch.StateStopped)
	a.is(epoch.StateStopped)
	require.Equal(t, shown, a.content())
	require.Empty(t, a.deadBehind())
	require.Nil(t, a.rec().Shadow)
	require.Equal(t, int64(3), a.rec().Log.Open().VStart)
	// And the pair of the two is still good: it goes on as if nothing had been.
	a.phys.hook(nil)
	a.want(epoch.StateMirroring)
	a.shows("0(0) 1(0) 2(0) 3(1)")
	require.Equal(t, b.content(), a.content())
}

// H15: a stop while a compacted topic is mirrored anew gives up what only the
// source has: values of keys that the cleaner here took for later ones, which were
// cut. The next start brings them back, though it has nothing to cut.
func TestH15StopLeavesOlderValuesToTheNextStart(t *testing.T) {
	a, b := newSite(t, "A"), newSite(t, "B")
	a.compact, b.compact = true, true
	a.unclean.Store(true) // batches stay apart
	b.unclean.Store(true)
	for range 3 {
		a.write(1)
	}
	b.mirrors(a)
	b.shows("0(0) 1(0) 2(0)")
	b.stopped()
	b.write(1)
	a.write(1)                                                                                         // never mirrored; of the key of offset 1,
	a.phys.with("t", 0, func(l *fakeLog) { l.batches = slices.Delete(slices.Clone(l.batches), 1, 2) }) // so the cleaner takes that
	a.phys.hook(func(_ partKey, _ *fakeLog, x protocol.Batch) (int16, bool) {
		if s, _ := x.ReadStamp(); s.V == 1 && a.rec().Shadow != nil && !a.rec().Shadow.Local {
			return 7, true // REQUEST_TIMED_OUT for ever: not before the stop
		}
		return 0, false
	})
	a.mirrors(b)
	eventually(t, "begun", func() bool { return a.part() != nil && a.rec().Shadow != nil && a.rec().State == epoch.StateMirroring })
	require.Equal(t, "0(0) 2(0)", a.dump())
	a.stopped()
	require.Equal(t, "0(0) 2(0)", a.dump(), "the source may be gone")
	require.True(t, a.rec().Lacks)
	a.phys.hook(nil)
	a.want(epoch.StateMirroring)
	a.shows("0(0) 1(0) 2(0) 3(1)")
	require.Equal(t, b.content(), a.content())
	require.Empty(t, a.deadBehind())
	eventually(t, "switched", func() bool { return a.rec().Shadow == nil && !a.rec().Lacks })
}

// H15: a topic of which only the end is written once more, as a late write lies
// behind it, takes its place with a cut only when all of it was copied from the
// source: of what stays the cleaner here took values for later ones that go.
func TestH15KeptFrontDoesNotOutliveACut(t *testing.T) {
	a, b := shadowed(t, 4, 2)
	b.phys.with("t", 0, func(l *fakeLog) {
		l.batches = slices.Delete(slices.Clone(l.batches), 1, 2) // offset 1, for offset 2, say
	})
	landed := false
	b.phys.hook(func(_ partKey, l *fakeLog, x protocol.Batch) (int16, bool) {
		switch s, _ := x.ReadStamp(); {
		case s.V == 4 && !landed:
			landed = true
			late := rawBatch{base: 2, n: 1}.bytes()
			if late.WriteStamp(protocol.Stamp{V: 2, Gen: 99}) != nil {
				panic("stamp")
			}
			late.SetBase(l.end(), l.epoch)
			l.append(late)
		case s.V == 2: // the end is not written once more yet
			return 7, true // REQUEST_TIMED_OUT
		}
		return 0, false
	})
	a.write(1)
	b.meta()
	eventually(t, "begun", func() bool { s := b.rec().Shadow; return s != nil && !s.Anew })
	uncleanElection(a, 2, 5)
	a.write(1)
	b.phys.hook(nil)
	b.meta()
	b.shows("0(0) 1(0) 2(5)")
	require.Equal(t, a.content(), b.content())
	require.Empty(t, b.deadBehind())
}

// H1: what the cleaner took for something dead is not here to be copied, when a
// stop is the first to find that. The next start brings it back.
func TestH1StopLeavesWhatTheCleanerTook(t *testing.T) {
	for name, dirt := range map[string]func(l *fakeLog) protocol.Batch{
		"direct write": func(*fakeLog) protocol.Batch { return rawBatch{n: 1}.bytes() },
		"late copy": func(l *fakeLog) protocol.Batch {
			x := append(protocol.Batch(nil), l.batches[1]...)
			s, _ := x.ReadStamp()
			s.Gen = 99 // of an owner of before
			x.Restore(s.V, s.Epoch)
			if err := x.WriteStamp(s); err != nil {
				panic(err)
			}
			return x
		},
	} {
		t.Run(name, func(t *testing.T) {
			a, b := newSite(t, "A"), newSite(t, "B")
			b.compact = true
			b.unclean.Store(true) // batches stay apart
			for range 3 {
				a.write(1)
			}
			b.mirrors(a)
			b.shows("0(0) 1(0) 2(0)")
			eventually(t, "all of it", func() bool { return b.part().Tail().Position == 3 })
			b.phys.with("t", 0, func(l *fakeLog) {
				x := dirt(l)
				x.SetBase(l.end(), l.epoch)
				l.append(x)
				l.batches = slices.Delete(slices.Clone(l.batches), 1, 2) // it is of the key of offset 1
			})
			b.stopped()
			require.Equal(t, "0(0) 2(0)", b.dump(), "the source may be gone")
			require.True(t, b.rec().Lacks)
			a.write(1)
			b.want(epoch.StateMirroring)
			b.shows("0(0) 1(0) 2(0) 3(0)")
			require.Equal(t, a.content(), b.content())
			require.Empty(t, b.deadBehind())
			eventually(t, "switched", func() bool { return b.rec().Shadow == nil && !b.rec().Lacks })
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
					late := rawBatch{base: 2, n: 1}.bytes()
					if late.WriteStamp(protocol.Stamp{V: 2, Gen: 99}) != nil {
						panic("stamp")
					}
					late.SetBase(l.end(), l.epoch)
					l.append(late)
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

// H13, H15, M23: while a compacted topic is mirrored anew groups are held to what
// is shown, and the switch is no cut.
func TestH15GroupsWhileMirroredAnew(t *testing.T) {
	for name, stop := range map[string]bool{"switched": false, "stopped before that": true} {
		t.Run(name, func(t *testing.T) {
			a, b := shadowed(t, 6, 4)
			b.phys.hook(func(_ partKey, _ *fakeLog, x protocol.Batch) (int16, bool) {
				if s, _ := x.ReadStamp(); s.V == 2 && b.rec().Shadow != nil && !b.rec().Shadow.Local {
					return 7, true // REQUEST_TIMED_OUT: not before this is over
				}
				return 0, false
			})
			var part groupPart
			look := func(end int64) { // what was appended is shown before its answer has come
				t.Helper()
				var at groupBounds
				eventually(t, "bounds", func() (ok bool) {
					var why GroupReason
					at, why = b.eng.Partition("t", 0).groupBounds()
					return why == 0 && at.end == end
				})
				part.look(at, 0, part.cycle+1)
			}
			decide := func(src, dst groupOffset) groupOffset {
				d := decideGroup(src, dst, nil, &part.bounds, part.cut(part.cycle-1, dst))
				if !d.commit {
					return dst
				}
				return d.to
			}
			stays := func() {
				t.Helper()
				for _, e := range []int32{-1, 0} {
					require.EqualValues(t, 3, decide(groupOffset{3, e}, groupOffset{3, e}).offset)
					require.EqualValues(t, 3, decide(groupOffset{1, e}, groupOffset{3, e}).offset, "it has moved here")
					require.EqualValues(t, 3, decide(noOffset, groupOffset{3, e}).offset)
				}
			}
			look(6)
			stays()
			uncleanElection(a, 4, 9)
			a.write(1)
			b.meta()
			eventually(t, "begun", func() bool { return b.rec().Shadow != nil && b.rec().State == epoch.StateMirroring })
			look(4)
			stays()
			require.Equal(t, groupOffset{4, 0}, decide(groupOffset{5, 0}, groupOffset{5, 0}), "above the cut")
			require.EqualValues(t, 4, decide(noOffset, groupOffset{5, -1}).offset)
			require.Equal(t, groupOffset{2, 0}, decide(groupOffset{2, 0}, groupOffset{1, 0}), "as ever")
			look(4)
			stays()
			if stop {
				b.stopped()
				b.want(epoch.StateMirroring) // all is copied once more
				eventually(t, "begun again", func() bool { return b.rec().Shadow != nil && b.rec().State == epoch.StateMirroring })
				look(4)
				stays()
			}
			b.phys.hook(nil)
			b.shows("0(0) 1(0) 2(0) 3(0) 4(9)")
			eventually(t, "switched", func() bool { return b.rec().Shadow == nil })
			look(5)
			stays()
			require.EqualValues(t, 5, decide(groupOffset{5, 9}, groupOffset{4, 0}).offset)
			require.EqualValues(t, 5, decide(noOffset, groupOffset{5, -1}).offset)
		})
	}
}
