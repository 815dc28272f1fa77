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

// ofAnOwnerBefore is a write of n records at offset v, of a generation that is
// none of the log's.
func ofAnOwnerBefore(v int64, n int) protocol.Batch {
	x := rawBatch{base: v, n: n}.bytes()
	if x.WriteStamp(protocol.Stamp{V: v, Gen: 99}) != nil {
		panic("stamp")
	}
	return x
}

// mirrorsAnewUpTo begins to mirror src, which writes a compacted topic once more,
// and gets to offset v and no further until the hook is taken away.
func (s *site) mirrorsAnewUpTo(src *site, v int64) {
	s.t.Helper()
	s.phys.hook(func(_ partKey, _ *fakeLog, x protocol.Batch) (int16, bool) {
		if at, _ := x.ReadStamp(); at.V == v && s.rec().Shadow != nil && !s.rec().Shadow.Local {
			return 7, true // REQUEST_TIMED_OUT for ever: not before the stop
		}
		return 0, false
	})
	s.mirrors(src)
	eventually(s.t, "begun", func() bool { return s.part() != nil && s.rec().Shadow != nil && s.rec().State == epoch.StateMirroring })
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
							l.land(x)
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
			l.land(ofAnOwnerBefore(2, 1))
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
