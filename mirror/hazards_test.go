package mirror

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/epoch"
	"github.com/lockstep-kafka/lockstep/internal/ledger"
	"github.com/lockstep-kafka/lockstep/protocol"
)

// H2: the outcome of a produce is unknown and it lands after all.
func TestH2LateWrite(t *testing.T) {
	for _, compacted := range []bool{false, true} {
		t.Run(fmt.Sprint(compacted), func(t *testing.T) { lateWrite(t, compacted) })
	}
}

func lateWrite(t *testing.T, compacted bool) {
	r := newRig(t, 1)
	r.specs[0].Compacted = compacted
	r.write(0, rawBatch{base: 0, n: 1}, rawBatch{base: 1, n: 1}, rawBatch{base: 2, n: 1}, rawBatch{base: 3, n: 1})
	var late []protocol.Batch
	n := 0
	r.dst.onProduce = func(_ partKey, l *fakeLog, b protocol.Batch) (int16, bool) {
		switch n++; n {
		case 2: // timed out; lands later
			late = append(late, b)
			return kerr.RequestTimedOut.Code, true
		case 3: // the late one lands in front of the first of the new generation
			late[0].SetBase(l.end(), l.epoch)
			l.append(late[0])
		case 5: // appended, but the connection breaks
			l.land(b)
			return -1, true
		}
		return 0, false
	}
	r.start()
	r.reached(0, 4)
	r.same(0)
	require.Len(t, late, 1)
	require.GreaterOrEqual(t, len(r.store.Partition("t", 0).Log.Spans), 2)
}

// H12: a batch lands and may be read at once, its answer is lost, and the generation that begins then says that it is
// dead. What it reached to counts as shown all the same, from before the batch was sent; a new owner doesn't know until
// the source has told it its end. After a cut nothing above it counts. (TestSoak, seed 101.)
func TestH12WhatMayHaveBeenShown(t *testing.T) {
	r := newRig(t, 1)
	r.write(0, rawBatch{base: 0, n: 1}, rawBatch{base: 1, n: 1})
	tail := func() ledger.Tail { return r.store.Partition("t", 0).Live.Tail() }
	var atLanding ledger.Tail
	lose := true
	r.dst.onProduce = func(_ partKey, l *fakeLog, b protocol.Batch) (int16, bool) {
		if l.end() < 1 || !lose {
			return 0, false
		}
		lose = false
		atLanding = tail()
		l.land(b)
		return -1, true // landed; the connection breaks
	}
	r.start()
	r.reached(0, 2)
	r.same(0)
	require.True(t, atLanding.Sure)
	require.EqualValues(t, 1, atLanding.Position)
	require.EqualValues(t, 2, atLanding.EverShown, "before the answer is there")
	require.True(t, tail().Sure)
	require.EqualValues(t, 2, tail().EverShown)
	r.stop()
}

// H12: what the source says of its end counts only as far as it can: not of a new leader's, whose high watermark is
// still below the position. Until then the checkpoint doesn't say that it knows.
func TestH12SourceThatLags(t *testing.T) {
	r := newRig(t, 1)
	r.write(0, rawBatch{base: 0, n: 5})
	r.start()
	r.reached(0, 5)
	p := r.eng.Partition("t", 0)
	r.stop()
	p.phase, p.mayShow, p.saved = phaseRun, -1, ledger.Checkpoint{}
	answer := func(end int64) (ledger.Tail, ledger.Checkpoint) {
		a := kmsg.NewFetchResponseTopicPartition()
		a.HighWatermark, a.LastStableOffset, a.LogStartOffset = end, end, 0
		require.False(t, p.took(p.token, fetchSpec{offset: 5, current: -1}, &a, nil))
		cp, ok := p.checkpoint(false, false)
		require.True(t, ok)
		return p.live.Tail(), cp
	}
	tail, cp := answer(3)
	require.False(t, tail.Sure)
	require.EqualValues(t, -1, cp.SourceEnd)
	tail, cp = answer(8)
	require.True(t, tail.Sure)
	require.EqualValues(t, 8, tail.EverShown)
	require.Equal(t, []int64{8, 8}, []int64{cp.EndShown, cp.SourceEnd})
	p.phase = phaseClosed
}

// H2: a produce timed out, and lands in front of the first batch of the new
// generation. It must be dead there: were it sent again in the same generation,
// the second copy would be the dead one, behind a live one.
func TestH2TimedOutIsANewGeneration(t *testing.T) {
	for _, landed := range []bool{false, true} {
		t.Run(fmt.Sprint(landed), func(t *testing.T) {
			r := newRig(t, 1)
			r.specs[0].Compacted = true
			r.write(0, rawBatch{base: 0, n: 1}, rawBatch{base: 1, n: 1}, rawBatch{base: 2, n: 1})
			var late protocol.Batch
			land := func(l *fakeLog, b protocol.Batch) {
				l.land(b)
			}
			n := 0
			r.dst.onProduce = func(_ partKey, l *fakeLog, b protocol.Batch) (int16, bool) {
				switch n++; {
				case n == 2 && landed:
					land(l, b)
					return kerr.RequestTimedOut.Code, true
				case n == 2:
					late = b
					return kerr.RequestTimedOut.Code, true
				case n == 3 && !landed:
					land(l, late)
				}
				return 0, false
			}
			r.start()
			r.reached(0, 3)
			r.same(0)
			require.Len(t, r.spans(0), 2, "one doubt, one new generation")
			require.Empty(t, r.deadBehindLive(0))
			r.dst.with("t", 0, func(l *fakeLog) { require.Len(t, l.batches, 4) })
		})
	}
}

// H1: on a compacted topic a late copy behind live records makes the cleaner
// remove those: what it copies is written once more behind it, also by the next
// owner; what is shown stays meanwhile.
func TestH1LateCopyBehindLive(t *testing.T) {
	r := newRig(t, 1)
	r.specs[0].Compacted = true
	r.write(0, rawBatch{base: 0, n: 1}, rawBatch{base: 1, n: 1})
	var late protocol.Batch
	r.dst.onProduce = func(_ partKey, l *fakeLog, b protocol.Batch) (int16, bool) {
		if late == nil {
			late = b
			return kerr.RequestTimedOut.Code, true
		}
		return 0, false
	}
	r.start()
	r.reached(0, 2)
	r.dst.with("t", 0, func(l *fakeLog) {
		l.land(late)
	})
	r.write(0, rawBatch{base: 2, n: 1})
	eventually(t, "repaired", func() bool {
		return r.store.Partition("t", 0).Record.Shadow == nil && len(r.deadBehindLive(0)) == 0 && len(r.view(0)) == 3
	})
	r.reached(0, 3)
	r.same(0)
	cps := r.eng.Checkpoints()
	r.stop()
	// A late copy that nobody has seen land: the next owner finds it.
	r.store.checkpoint(cps[0])
	r.dst.with("t", 0, func(l *fakeLog) {
		b := append(protocol.Batch(nil), l.batches[len(l.batches)-1]...)
		l.land(b)
	})
	r.start()
	eventually(t, "repaired", func() bool {
		return r.store.Partition("t", 0).Record.Shadow == nil && len(r.deadBehindLive(0)) == 0
	})
	r.reached(0, 3)
	r.same(0)
}

// F3: the destination lost what it had acknowledged, and the next batch lands
// below the expected offset.
func TestF3BaseBelowExpected(t *testing.T) {
	r := newRig(t, 1)
	r.write(0, rawBatch{base: 0, n: 2}, rawBatch{base: 2, n: 1}, rawBatch{base: 3, n: 1})
	n := 0
	r.dst.onProduce = func(_ partKey, l *fakeLog, _ protocol.Batch) (int16, bool) {
		if n++; n == 3 {
			l.truncate(2)
		}
		return 0, false
	}
	r.start()
	r.reached(0, 4)
	r.same(0)
}

// F4a: the tail is lost unnoticed under a new leader epoch and something else
// has landed at the same offsets: the batch found there is not ours to believe.
func TestF4aTailLostAndRegrown(t *testing.T) {
	r := newRig(t, 1)
	r.write(0, rawBatch{base: 0, n: 1}, rawBatch{base: 1, n: 3}, rawBatch{base: 4, n: 1})
	r.start()
	r.reached(0, 5)
	// Unnoticed: no metadata yet. The next batch lands where lost ones were.
	r.dst.with("t", 0, func(l *fakeLog) { l.truncate(1); l.epoch = 4 })
	r.src.with("t", 0, func(l *fakeLog) { l.append(rawBatch{base: 5, n: 4}.bytes()) })
	eventually(t, "landed", func() bool {
		r.dst.mu.Lock()
		defer r.dst.mu.Unlock()
		return r.dst.log("t", 0).end() >= 5
	})
	r.meta()
	r.reached(0, 9)
	eventually(t, "same", func() bool { return len(r.view(0)) == 4 })
	r.same(0)
}

// F4a for a new owner that only has the ledger's checkpoint.
func TestF4aNewOwner(t *testing.T) {
	r := newRig(t, 1)
	r.write(0, rawBatch{base: 0, n: 1}, rawBatch{base: 1, n: 3}, rawBatch{base: 4, n: 1})
	r.start()
	r.reached(0, 5)
	cps := r.eng.Checkpoints()
	require.Len(t, cps, 1)
	r.store.checkpoint(cps[0])
	r.stop()
	gen := r.store.Partition("t", 0).Log.Open().Gen
	r.dst.with("t", 0, func(l *fakeLog) {
		l.truncate(1)
		l.epoch = 4
		for range 6 { // late writes of the old owner
			b := rawBatch{n: 1}.bytes()
			require.NoError(t, b.WriteStamp(protocol.Stamp{V: 5, Gen: gen}))
			l.land(b)
		}
	})
	r.start()
	r.reached(0, 5)
	r.same(0)
}

// F4a: what has regrown looks, by stamps and offsets, exactly like the end of
// what was confirmed. Only the leader epoch tells: by the bound that the
// destination's epochs give, and by the epoch in the batch itself.
func TestF4aRegrownLooksLikeOurs(t *testing.T) {
	for _, owner := range []string{"same", "new"} {
		t.Run(owner, func(t *testing.T) {
			r := newRig(t, 1)
			r.write(0, rawBatch{base: 0, n: 1}, rawBatch{base: 1, n: 3}, rawBatch{base: 4, n: 1})
			r.start()
			r.reached(0, 5)
			r.store.checkpoint(r.eng.Checkpoints()[0])
			if owner == "new" {
				r.stop()
			}
			gen := r.store.Partition("t", 0).Log.Open().Gen
			r.dst.with("t", 0, func(l *fakeLog) {
				l.truncate(1)
				l.epoch = 4
				foreign := rawBatch{base: 1, n: 3, epoch: 4}.bytes()
				l.append(foreign)
				late := rawBatch{base: 4, n: 1}.bytes()
				require.NoError(t, late.WriteStamp(protocol.Stamp{V: 4, Gen: gen}))
				late.SetBase(4, l.epoch)
				l.append(late)
			})
			if owner == "new" {
				r.start()
			}
			r.meta()
			eventually(t, "generation", func() bool { return r.store.Partition("t", 0).Log.Open().PEpoch == 4 })
			r.reached(0, 5)
			eventually(t, "all of it", func() bool { return len(r.view(0)) == 3 })
			r.same(0)
		})
	}
}

// F4b: the leader epoch changed and the tail was lost while nothing was in
// flight: a new generation at the re-read end before the next write.
func TestF4bIdleLoss(t *testing.T) {
	r := newRig(t, 1)
	r.write(0, rawBatch{base: 0, n: 2}, rawBatch{base: 2, n: 2})
	r.start()
	r.reached(0, 4)
	r.dst.with("t", 0, func(l *fakeLog) { l.truncate(2); l.epoch = 2 })
	r.meta()
	eventually(t, "mirrored again", func() bool {
		o := r.store.Partition("t", 0).Log.Open()
		return o.PEpoch == 2 && r.eng.Partition("t", 0).Status().Position == 4
	})
	r.same(0)
	require.Equal(t, int64(2), r.store.Partition("t", 0).Log.Open().VStart)
	// A dropped connection alone needs none.
	spans := len(r.store.Partition("t", 0).Log.Spans)
	r.dst.dropConns()
	r.write(0, rawBatch{base: 4, n: 1})
	r.reached(0, 5)
	r.same(0)
	require.LessOrEqual(t, len(r.store.Partition("t", 0).Log.Spans), spans+1)
}

// F4d: a cut never lands above what the destination really has. The position
// is 7 in memory, the destination lost all but v0, the source diverges at 5.
func TestF4dCutAboveReread(t *testing.T) {
	r := newRig(t, 1)
	r.write(0, rawBatch{base: 0, n: 1}, rawBatch{base: 1, n: 1}, rawBatch{base: 5, n: 1, pid: 3, control: true, epoch: 2}, rawBatch{base: 6, n: 1, pid: 3, control: true, epoch: 2})
	r.start()
	r.reached(0, 7)
	r.dst.with("t", 0, func(l *fakeLog) { l.truncate(1); l.epoch = 1 })
	// Unnoticed for now. The source lost the two markers: no live record goes, so
	// no ULE, and the cut at 5 is decided before the loss is known.
	r.src.with("t", 0, func(l *fakeLog) {
		l.truncate(2)
		l.append(rawBatch{base: 5, n: 1, epoch: 4}.bytes())
		l.epoch = 4
	})
	r.eng.SetSource(r.src.cluster())
	p := r.eng.Partition("t", 0)
	eventually(t, "cut decided", func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		return p.todo.regen != nil && p.todo.regen.hasCut && p.todo.regen.cut == 5
	})
	r.meta()
	r.reached(0, 6)
	r.same(0)
	require.Equal(t, int64(1), r.spans(0)[1].VStart, "not above what was read again")
}

// F8, M9: the source's log start lies inside a batch.
func TestF8StartInsideBatch(t *testing.T) {
	r := newRig(t, 1)
	r.src.with("t", 0, func(l *fakeLog) { l.start = 6 })
	r.write(0, rawBatch{base: 5, n: 3}, rawBatch{base: 8, n: 1})
	r.start()
	r.reached(0, 9)
	r.same(0)
	l := r.store.Partition("t", 0).Log
	require.Equal(t, int64(6), l.Start)
	require.Equal(t, int64(5), l.Spans[0].VStart)
	// The same batch is not written twice by the next owner.
	r.stop()
	r.start()
	r.reached(0, 9)
	r.same(0)
}

// F9: the newest span is still empty and its place is above the log's end:
// neither its start nor the checkpoint counts.
func TestF9EmptySpanLost(t *testing.T) {
	r := newRig(t, 1)
	r.write(0, rawBatch{base: 0, n: 3}, rawBatch{base: 3, n: 2})
	r.start()
	r.reached(0, 5)
	cps := r.eng.Checkpoints()
	r.store.checkpoint(cps[0])
	r.stop()
	r.start() // an empty span at v5
	r.reached(0, 5)
	r.stop()
	require.Equal(t, int64(5), r.store.Partition("t", 0).Log.Open().VStart)
	r.dst.with("t", 0, func(l *fakeLog) { l.truncate(3); l.epoch = 1 })
	r.start()
	r.reached(0, 5)
	r.same(0)
}

// M22: a partition emptied by retention goes on at the checkpoint; one that was
// created again goes FAILED.
func TestM22EmptiedOrRecreated(t *testing.T) {
	r := newRig(t, 1)
	r.write(0, rawBatch{base: 0, n: 3}, rawBatch{base: 3, n: 2})
	r.start()
	r.reached(0, 5)
	cps := r.eng.Checkpoints()
	r.store.checkpoint(cps[0])
	r.stop()
	r.dst.with("t", 0, func(l *fakeLog) { l.start, l.batches = l.end(), nil })
	r.start()
	r.reached(0, 5)
	r.write(0, rawBatch{base: 5, n: 1})
	r.reached(0, 6)
	got := r.view(0)
	require.Len(t, got, 1)
	require.Equal(t, int64(5), got[0].BaseOffset())
	r.stop()

	r.store.parts[partKey{"t", 0}].Record.TopicID = ledger.ID{9}
	r.start()
	r.failedWith(0, "created again")
}

// H18: stamped batches on the source.
func TestH18BareMirror(t *testing.T) {
	r := newRig(t, 2)
	b := rawBatch{base: 0, n: 1}.bytes()
	require.NoError(t, b.WriteStamp(protocol.Stamp{V: 10}))
	r.src.with("t", 0, func(l *fakeLog) { l.append(b) })
	r.write(1, rawBatch{base: 0, n: 1})
	r.start()
	r.failedWith(0, "without its proxy")
	r.reached(1, 1) // the other partition goes on
	eventually(t, "FAILED in the ledger", func() bool { return r.store.Partition("t", 0).Record.State == epoch.StateFailed })
	require.Equal(t, -1, r.store.Partition("t", 0).Record.Retries, "no retry by itself")
}

// LO-01, F12: retention on the source passed the mirror.
func TestSourceRetentionPassed(t *testing.T) {
	r := newRig(t, 1)
	r.write(0, rawBatch{base: 0, n: 3}, rawBatch{base: 3, n: 2, epoch: 2})
	r.start()
	r.reached(0, 5)
	r.stop()
	before := r.store.Partition("t", 0).Record.Lineage
	r.src.with("t", 0, func(l *fakeLog) {
		l.batches = nil
		l.start = 20
		l.chain = nil
		l.append(rawBatch{base: 20, n: 2, epoch: 5}.bytes())
		l.epoch = 5
	})
	r.start()
	r.reached(0, 22)
	r.same(0)
	l := r.store.Partition("t", 0).Log
	require.Equal(t, int64(20), l.Start)
	require.Equal(t, epoch.Chain{{Epoch: 5, Start: 20}}, l.Chain)
	// H7: an emptied log is another history.
	require.NotEqual(t, before, r.store.Partition("t", 0).Record.Lineage)
	require.Empty(t, r.store.Partition("t", 0).Record.Pairs)
}

// An unclean election on the source that would cut live records.
func TestULEFails(t *testing.T) {
	r := newRig(t, 1)
	r.write(0, rawBatch{base: 0, n: 3}, rawBatch{base: 3, n: 2})
	r.start()
	r.reached(0, 5)
	r.src.with("t", 0, func(l *fakeLog) {
		l.truncate(3)
		l.append(rawBatch{base: 3, n: 9, epoch: 2}.bytes())
		l.epoch = 2
	})
	r.meta()
	text := r.failedWith(0, "mirror.unclean.leader.election.enable")
	require.Contains(t, text, "from offset 3 on")
	require.Len(t, r.view(0), 2, "nothing cut")
}

// H17: the source's last stable offset fell below the position.
func TestH17Undecided(t *testing.T) {
	r := newRig(t, 1)
	r.write(0, rawBatch{base: 0, n: 3}, rawBatch{base: 3, n: 2})
	r.start()
	r.reached(0, 5)
	r.src.with("t", 0, func(l *fakeLog) { l.lso = 3 })
	r.failedWith(0, "from offset 3 on")
}

// A cut that removes no live record is no unclean election.
func TestCutWithoutLiveRecord(t *testing.T) {
	r := newRig(t, 1)
	r.write(0, rawBatch{base: 0, n: 3}, rawBatch{base: 3, n: 1, pid: 4, control: true, epoch: 3})
	r.start()
	r.reached(0, 4)
	r.src.with("t", 0, func(l *fakeLog) {
		l.truncate(3)
		l.append(rawBatch{base: 3, n: 2, epoch: 5}.bytes())
		l.epoch = 5
	})
	r.meta()
	r.reached(0, 5)
	r.same(0)
	require.Equal(t, epoch.Chain{{Epoch: 0, Start: 0}, {Epoch: 5, Start: 3}}, r.store.Partition("t", 0).Log.Chain)
}
