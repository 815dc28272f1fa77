package mirror

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/epoch"
	"github.com/lockstep-kafka/lockstep/internal/ledger"
	"github.com/lockstep-kafka/lockstep/protocol"
)

// vOf is a stamped batch's virtual offset.
func vOf(b protocol.Batch) int64 {
	s, _ := b.ReadStamp()
	return s.V
}

// deadBehindLive are stamped batches that lie physically behind a live batch
// with the same records (H1).
func (r *rig) deadBehindLive(p int32) (out []int64) {
	r.t.Helper()
	l := r.store.Partition("t", p).Log
	w := l.Walk(l.Spans[0].VStart, true)
	r.dst.mu.Lock()
	defer r.dst.mu.Unlock()
	end := int64(0)
	for _, raw := range r.dst.log("t", p).batches {
		b := readHeader(raw)
		pl, v := w.Next(b)
		switch {
		case v == epoch.Live:
			end = pl.VEnd
		case b.Stamped && b.V < end:
			out = append(out, b.P)
		}
	}
	return out
}

func (r *rig) spans(p int32) []epoch.Span { return r.store.Partition("t", p).Log.Spans }

// A batch that the destination rejects is the last thing of the partition that
// it gets until the partition has been read again: what is queued behind it
// would stand where it belongs. The partition's goroutine is busy meanwhile.
func TestRejectedBatchStopsWhatFollows(t *testing.T) {
	r := newRig(t, 1)
	bad := true
	var order []int64
	r.dst.onProduce = func(_ partKey, _ *fakeLog, b protocol.Batch) (int16, bool) {
		order = append(order, vOf(b))
		if vOf(b) == 1 && bad {
			return kerr.MessageTooLarge.Code, true
		}
		return 0, false
	}
	r.write(0, rawBatch{base: 0, n: 1})
	r.start()
	r.reached(0, 1)
	block, in := make(chan struct{}), make(chan struct{})
	var first atomic.Bool
	r.store.hook(func(*ledger.Record) error {
		if first.CompareAndSwap(false, true) {
			close(in)
			<-block
		}
		return nil
	})
	r.src.with("t", 0, func(l *fakeLog) { l.epoch = 40 })
	r.meta()
	<-in
	r.src.with("t", 0, func(l *fakeLog) {
		// A stretch without records behind it must not move the position either.
		for i := int64(1); i < 4; i++ {
			l.append(rawBatch{base: i, n: 1}.bytes())
		}
		l.append(rawBatch{base: 4, n: 1, pid: 7, control: true}.bytes())
	})
	eventually(t, "rejected", func() bool {
		r.dst.mu.Lock()
		defer r.dst.mu.Unlock()
		return slices.Contains(order, 1)
	})
	time.Sleep(100 * time.Millisecond)
	require.EqualValues(t, 1, r.eng.Partition("t", 0).Status().Position)
	r.dst.with("t", 0, func(*fakeLog) {
		require.Equal(t, []int64{0, 1}, order, "nothing was sent behind the rejected batch")
		bad = false
	})
	close(block)
	r.reached(0, 5)
	r.same(0)
}

// A batch that can't be re-encoded in the middle of a queue: what lies in front
// of it is mirrored, nothing behind it.
func TestBadDataStopsWhatFollows(t *testing.T) {
	r := newRig(t, 1)
	broken := rawBatch{base: 3, n: 2, holes: true}.bytes()
	broken[61] = 0xff // the first record's length
	broken[62] = 0xff
	binary.BigEndian.PutUint32(broken[17:], crc32.Checksum(broken[21:], crc32.MakeTable(crc32.Castagnoli)))
	r.write(0, rawBatch{base: 0, n: 1}, rawBatch{base: 1, n: 2})
	r.src.with("t", 0, func(l *fakeLog) {
		l.append(broken)
		l.append(rawBatch{base: broken.NextOffset(), n: 1}.bytes())
	})
	r.start()
	r.failedWith(0, "offset 3 can't be re-encoded")
	require.EqualValues(t, 3, r.eng.Partition("t", 0).Status().Position)
	require.Len(t, r.view(0), 2)
}

// H11: the position above the virtual end survives any number of take-overs,
// and none of them reads more than the log's end.
func TestH11PositionSurvivesTakeOvers(t *testing.T) {
	r := newRig(t, 1)
	for i := range int64(50) {
		r.write(0, rawBatch{base: i, n: 1})
	}
	r.write(0, rawBatch{base: 50, n: 1, pid: 8, control: true})
	r.start()
	r.reached(0, 51)
	for i := range 4 {
		for _, cp := range r.eng.Checkpoints() {
			require.EqualValues(t, 51, cp.EndShown, "an offset up to the position is in range for good")
			r.store.checkpoint(cp)
		}
		r.stop()
		if i == 1 { // the source is gone: nothing but the checkpoint knows
			r.src.ln.Close()
			r.src.dropConns()
		}
		lo := int64(1 << 40)
		r.dst.with("t", 0, func(*fakeLog) {
			r.dst.onFetch = func(q *kmsg.FetchRequest) { lo = min(lo, q.Topics[0].Partitions[0].FetchOffset) }
		})
		r.start()
		eventually(t, "runs", func() bool { return r.eng.Partition("t", 0).running() })
		require.EqualValues(t, 51, r.eng.Partition("t", 0).Status().Position, "take-over %d", i)
		require.EqualValues(t, 50, r.eng.Partition("t", 0).Status().VirtualEnd)
		tail := r.store.Partition("t", 0).Tail()
		require.True(t, tail.Known)
		require.EqualValues(t, 51, tail.EverShown)
		r.dst.with("t", 0, func(*fakeLog) { require.GreaterOrEqual(t, lo, int64(49), "take-over %d reads the end only", i) })
	}
}

// The same within one owner, which recovers again and again.
func TestH11PositionSurvivesRecoveries(t *testing.T) {
	r := newRig(t, 1)
	for i := range int64(50) {
		r.write(0, rawBatch{base: i, n: 1})
	}
	r.write(0, rawBatch{base: 50, n: 1, pid: 8, control: true})
	r.start()
	r.reached(0, 51)
	r.src.ln.Close()
	r.src.dropConns()
	lo := int64(1 << 40)
	r.dst.with("t", 0, func(*fakeLog) {
		r.dst.onFetch = func(q *kmsg.FetchRequest) { lo = min(lo, q.Topics[0].Partitions[0].FetchOffset) }
	})
	for e := int32(1); e < 4; e++ {
		r.dst.with("t", 0, func(l *fakeLog) { l.epoch = e })
		r.meta()
		eventually(t, "generation", func() bool {
			return r.store.Partition("t", 0).Log.Open().PEpoch == e && r.eng.Partition("t", 0).running()
		})
		require.EqualValues(t, 51, r.eng.Partition("t", 0).Status().Position)
	}
	r.dst.with("t", 0, func(*fakeLog) { require.GreaterOrEqual(t, lo, int64(49)) })
}

// After a cut by the source's word the tail and the checkpoint speak of a batch
// that is still live, and what was shown above the cut is forgotten.
func TestCheckpointAfterCut(t *testing.T) {
	s := newSite(t, "a")
	src := newSite(t, "b")
	s.unclean.Store(true)
	for range 20 {
		src.write(1)
	}
	s.mirrors(src)
	eventually(t, "mirrored", func() bool { return s.eng.Partition("t", 0).Status().Position == 20 })
	src.phys.with("t", 0, func(l *fakeLog) { l.truncate(15); l.epoch++ })
	s.meta()
	eventually(t, "cut", func() bool {
		p := s.eng.Partition("t", 0)
		return p.Status().Position == 15 && p.running() && s.rec().State == epoch.StateMirroring
	})
	cps := s.eng.Checkpoints()
	require.Len(t, cps, 1)
	require.Equal(t, []int64{15, 15, 15, 15}, []int64{cps[0].P, cps[0].V, cps[0].ChainEnd, cps[0].EndShown})
	require.Equal(t, s.part().Log.Spans[0].Gen, cps[0].Gen)
	src.write(1)
	s.meta()
	eventually(t, "cut", func() bool {
		p := s.eng.Partition("t", 0)
		return p.Status().Position == 16 && p.running() && s.rec().State == epoch.StateMirroring
	})
	require.Equal(t, src.content(), s.content())
	cps = s.eng.Checkpoints()
	require.Len(t, cps, 1)
	require.EqualValues(t, 16, cps[0].EndShown)
	require.Equal(t, s.part().Log.Open().Gen, cps[0].Gen)
}

// A ledger write that fails is made again: the bump for a source epoch that no
// batch has yet, and the log start.
func TestLedgerWriteIsMadeAgain(t *testing.T) {
	r := newRig(t, 1)
	r.write(0, rawBatch{base: 0, n: 1}, rawBatch{base: 1, n: 1}, rawBatch{base: 2, n: 1})
	r.start()
	r.reached(0, 3)
	var fails atomic.Int32
	fails.Store(2)
	r.store.hook(func(*ledger.Record) error {
		if fails.Add(-1) >= 0 {
			return errLedgerDown
		}
		return nil
	})
	r.src.with("t", 0, func(l *fakeLog) { l.epoch = 40 })
	r.meta()
	eventually(t, "bump", func() bool { return r.store.Partition("t", 0).Log.Shown(0) == 50 })
	fails.Store(2)
	// The source stays as it is: nothing else would bring it up again.
	p := r.eng.Partition("t", 0)
	p.mu.Lock()
	p.advanced = time.Now().Add(-time.Hour)
	p.mu.Unlock()
	r.src.with("t", 0, func(l *fakeLog) { l.start, l.batches = 2, l.batches[2:] })
	eventually(t, "asked once", func() bool { return fails.Load() < 2 })
	p.mu.Lock()
	p.advanced = time.Now().Add(time.Hour)
	p.mu.Unlock()
	eventually(t, "start", func() bool { return r.store.Partition("t", 0).Log.Start == 2 })
}

// A ledger write whose outcome was unknown has landed: what is computed next
// starts from it. The log start never moves back.
func TestUnknownLedgerWriteLanded(t *testing.T) {
	r := newRig(t, 1)
	r.write(0, rawBatch{base: 0, n: 1}, rawBatch{base: 1, n: 1}, rawBatch{base: 2, n: 1})
	r.start()
	r.reached(0, 3)
	var done atomic.Bool
	p := r.eng.Partition("t", 0)
	r.store.hook(func(*ledger.Record) error {
		if done.CompareAndSwap(false, true) { // the start; an epoch waits behind it
			r.write(0, rawBatch{base: 3, n: 1, epoch: 6})
			eventually(t, "epoch", func() bool {
				p.mu.Lock()
				defer p.mu.Unlock()
				return p.assignDue()
			})
			return fmt.Errorf("put: %w", ledger.ErrUnknownOutcome)
		}
		return nil
	})
	r.src.with("t", 0, func(l *fakeLog) { l.start, l.batches = 2, l.batches[2:] })
	eventually(t, "landed", func() bool { return r.store.Partition("t", 0).Log.Start == 2 })
	r.reached(0, 4)
	r.same(0)
	start := int64(0)
	for _, rec := range r.store.written() {
		require.GreaterOrEqual(t, rec.Log.Start, start)
		start = rec.Log.Start
	}
}

// EPOCH_FENCING ends, though the write that ends it failed once.
func TestEpochFencingEndsAfterFailedWrite(t *testing.T) {
	r := newRig(t, 1)
	r.write(0, rawBatch{base: 0, n: 1})
	r.start()
	r.reached(0, 1)
	var raised, fencing, failed atomic.Bool
	r.store.hook(func(rec *ledger.Record) error {
		if raised.CompareAndSwap(false, true) {
			return errLedgerDown // the raise by metadata alone: the batch comes first
		}
		if rec.State == epoch.StateEpochFencing {
			fencing.Store(true)
		} else if fencing.Load() && failed.CompareAndSwap(false, true) {
			return errLedgerDown
		}
		return nil
	})
	r.write(0, rawBatch{base: 1, n: 1, epoch: 200})
	r.reached(0, 2)
	require.True(t, failed.Load())
	eventually(t, "MIRRORING", func() bool { return r.store.Partition("t", 0).Record.State == epoch.StateMirroring })
}

// A request above the destination's socket.request.max.bytes is answered by
// nothing but a closed connection.
func TestRequestTooLarge(t *testing.T) {
	r := newRig(t, 1)
	r.tuning.RetryMin, r.tuning.RetryMax = time.Hour, time.Hour
	r.tuning.FetchPartitionMaxBytes = 4 << 20
	var large, small atomic.Bool
	large.Store(true)
	small.Store(true)
	r.dst.onProduce = func(_ partKey, _ *fakeLog, b protocol.Batch) (int16, bool) {
		if small.Load() && vOf(b) == 0 || large.Load() && len(b) > 1<<20 {
			return -1, true
		}
		return 0, false
	}
	r.write(0, rawBatch{base: 0, n: 1}, rawBatch{base: 1, n: 100_000}, rawBatch{base: 100_001, n: 1})
	r.start()
	// A small batch is no reason, however often.
	eventually(t, "generations", func() bool { return r.store.Partition("t", 0).Log.LastGen > cutOffTimes+1 })
	require.False(t, r.eng.Partition("t", 0).Status().Failed)
	small.Store(false)
	eventually(t, "FAILED", func() bool { return r.store.Partition("t", 0).Record.State == epoch.StateFailed })
	text := r.failedWith(0, "socket.request.max.bytes")
	require.Contains(t, text, "source offset 1 ")
	gens := r.store.Partition("t", 0).Log.LastGen
	time.Sleep(50 * time.Millisecond)
	require.Equal(t, gens, r.store.Partition("t", 0).Log.LastGen, "no more generations")
	large.Store(false)
	r.stop()
	r.store.parts[partKey{"t", 0}].Record.State = epoch.StateMirroring
	r.start()
	r.reached(0, 100_002)
	require.Len(t, r.view(0), 3)
}

// M21: while one batch of a partition is unanswered, no other one is taken.
func TestM21NothingBehindUnanswered(t *testing.T) {
	r := newRig(t, 1)
	r.tuning.FetchPartitionMaxBytes = 300
	hold, in := make(chan struct{}), make(chan struct{})
	var once atomic.Bool
	r.dst.onProduce = func(partKey, *fakeLog, protocol.Batch) (int16, bool) {
		if once.CompareAndSwap(false, true) {
			close(in)
			<-hold
		}
		return 0, false
	}
	for i := range int64(10) {
		r.write(0, rawBatch{base: i, n: 1})
	}
	r.start()
	<-in
	p := r.eng.Partition("t", 0)
	eventually(t, "queued", func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		return len(p.queue) > 1
	})
	_, _, ok := p.take(p.dst.broker, roomForOne, time.Now())
	require.False(t, ok)
	close(hold)
	r.reached(0, 10)
	r.same(0)
	require.Equal(t, 10, r.dst.produces)
}

// M7, F12: the source's log start moves while the partition is mirrored.
func TestSourceStartMoves(t *testing.T) {
	r := newRig(t, 1)
	r.write(0, rawBatch{base: 0, n: 2}, rawBatch{base: 2, n: 2, epoch: 1}, rawBatch{base: 4, n: 2, epoch: 3})
	r.start()
	r.reached(0, 6)
	r.src.with("t", 0, func(l *fakeLog) {
		l.start, l.batches, l.chain = 3, l.batches[1:], l.chain.AdvanceStart(3)
	})
	eventually(t, "start", func() bool { return r.store.Partition("t", 0).Log.Start == 3 })
	require.Equal(t, epoch.Chain{{Epoch: 1, Start: 3}, {Epoch: 3, Start: 4}}, r.store.Partition("t", 0).Log.Chain)
	require.Len(t, r.spans(0), 1, "no new generation")
}

// M7: what somebody else wrote between ours is counted and passed over.
func TestForeignWriteIsCounted(t *testing.T) {
	r := newRig(t, 1)
	r.write(0, rawBatch{base: 0, n: 2})
	r.start()
	r.reached(0, 2)
	r.dst.with("t", 0, func(l *fakeLog) { l.append(rawBatch{base: l.end(), n: 3}.bytes()) })
	r.write(0, rawBatch{base: 2, n: 1})
	r.reached(0, 3)
	r.same(0)
	require.EqualValues(t, 1, testutil.ToFloat64(r.eng.Partition("t", 0).met.foreign))
}

// The ledger can't be told of a failure: the retry goes back to where the
// partition was, not to what the record before had as its previous state.
func TestFailedCouldNotBeWritten(t *testing.T) {
	r := newRig(t, 1)
	var refused, untold atomic.Bool
	r.dst.onProduce = func(partKey, *fakeLog, protocol.Batch) (int16, bool) {
		if refused.CompareAndSwap(false, true) {
			return kerr.MessageTooLarge.Code, true
		}
		return 0, false
	}
	r.write(0, rawBatch{base: 0, n: 2})
	r.store.onPut = func(rec *ledger.Record) error {
		if rec.State == epoch.StateFailed && untold.CompareAndSwap(false, true) {
			return errLedgerDown
		}
		return nil
	}
	r.start()
	r.reached(0, 2)
	require.True(t, untold.Load())
	eventually(t, "MIRRORING", func() bool { return r.store.Partition("t", 0).Record.State == epoch.StateMirroring })
	r.same(0)
}

// A new leader epoch that could not be written to the ledger, and whose batch is
// no longer the next one when that turns out: the one behind it asks anew. It
// was left waiting for good when another batch was in flight at that moment.
func TestEpochIsAskedForAgain(t *testing.T) {
	r := newRig(t, 1)
	r.write(0, rawBatch{base: 0, n: 1})
	r.start()
	r.reached(0, 1)
	p := r.eng.Partition("t", 0)
	began, fail := make(chan struct{}), make(chan struct{})
	var puts atomic.Int32
	r.store.mu.Lock()
	r.store.onPut = func(*ledger.Record) error {
		if puts.Add(1) == 1 {
			close(began)
			<-fail
			return errLedgerDown
		}
		return nil
	}
	r.store.mu.Unlock()
	r.write(0, rawBatch{base: 1, n: 1, epoch: 1})
	<-began // epoch 1 is being written
	sent, answer := make(chan struct{}), make(chan struct{})
	var once sync.Once
	r.dst.with("t", 0, func(*fakeLog) {
		r.dst.onProduce = func(partKey, *fakeLog, protocol.Batch) (int16, bool) {
			once.Do(func() { close(sent); <-answer })
			return 0, false
		}
	})
	r.src.with("t", 0, func(l *fakeLog) { // another leader has other records
		l.truncate(1)
		l.append(rawBatch{base: 1, n: 1}.bytes())
		l.append(rawBatch{base: 2, n: 1, epoch: 2}.bytes())
		l.epoch = 2
	})
	p.mu.Lock()
	p.dropQueue()

	p.mu.Unlock()
	r.meta()
	<-sent
	close(fail)
	// The partition's goroutine looks at what is to be done while the batch is
	// in flight; should it be slower than this, the test only sees less.
	time.Sleep(3 * tryMin)
	close(answer)
	r.reached(0, 3)
	r.same(0)
}
