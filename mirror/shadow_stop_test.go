package mirror

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/lockstep-kafka/lockstep/epoch"
	"github.com/lockstep-kafka/lockstep/internal/ledger"
	"github.com/lockstep-kafka/lockstep/protocol"
)

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
			return ofAnOwnerBefore(11, 1)
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
					l.land(x)
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
				l.land(x)
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
		l.land(x)
	})
	b.phys.hook(func(_ partKey, l *fakeLog, x protocol.Batch) (int16, bool) {
		s, _ := x.ReadStamp()
		switch {
		case s.Flags&epoch.FlagHidden == 0 && s.V == 2 && !sent:
			sent, late = true, x
			return -1, true
		case s.Flags&epoch.FlagHidden != 0 && late != nil:
			l.land(late)
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
					l.land(ofAnOwnerBefore(v, 2))
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
	a.mirrorsAnewUpTo(b, 2)
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
	a.mirrorsAnewUpTo(b, 1)
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
				l.land(x)
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
