package mirror

import (
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/lockstep-kafka/lockstep/internal/ledger"
	"github.com/lockstep-kafka/lockstep/protocol"
)

const chaosSeeds = 12

// TestRandomFaults: whatever the destination loses, delays or refuses, whatever
// connections break and owners change, with transactions, holes, markers and
// leader changes on the source, in the end the virtual log equals the source
// (H2, F3, F4a, F4b, F4d, F9, M20).
func TestRandomFaults(t *testing.T) {
	for seed := range uint64(chaosSeeds) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { randomFaults(t, rand.New(rand.NewPCG(seed, 3))) })
	}
}

func randomFaults(t *testing.T, rng *rand.Rand) {
	r := newRig(t, 1)
	if rng.IntN(2) == 0 {
		r.tuning.Acks = 1
	}
	r.tuning.KeepBatches = rng.IntN(3) == 0
	sparse := rng.IntN(2) == 0 // most batches have holes inside: they are joined over the holes between them (M9)
	r.tuning.FetchPartitionMaxBytes = int32(200 + rng.IntN(2000))
	var late []protocol.Batch
	faults := true
	brng := rand.New(rand.NewPCG(rng.Uint64(), 1)) // the broker's own: it runs elsewhere
	r.dst.onProduce = func(_ partKey, l *fakeLog, b protocol.Batch) (int16, bool) {
		land := func(b protocol.Batch) {
			l.land(b)
		}
		for len(late) > 0 && brng.IntN(4) == 0 {
			land(late[0])
			late = late[1:]
		}
		if !faults {
			return 0, false
		}
		switch brng.IntN(27) {
		case 8, 9: // this one batch, this one time
			return kerr.MessageTooLarge.Code, true
		case 0: // not answered in time; appended
			land(b)
			return kerr.RequestTimedOut.Code, true
		case 1: // not answered in time; lands later
			late = append(late, b)
			return kerr.RequestTimedOut.Code, true
		case 2: // lost
			return kerr.NotLeaderForPartition.Code, true
		case 3:
			land(b)
			return kerr.NotLeaderForPartition.Code, true
		case 4:
			land(b)
			return -1, true
		case 5:
			return -1, true
		case 6:
			return kerr.NotEnoughReplicas.Code, true
		case 7: // an unclean election that nobody has told us of
			if n := len(l.batches); n > 0 {
				l.truncate(l.batches[n-1-brng.IntN(min(n, 4))].BaseOffset())
				l.epoch++
			}
		}
		return 0, false
	}
	off, e := int64(0), int32(0)
	open := map[int64]int64{}
	write := func() {
		r.src.with("t", 0, func(l *fakeLog) {
			for range 1 + rng.IntN(12) {
				b := rawBatch{base: off, n: 1 + rng.IntN(3), epoch: e}
				pid := int64(1 + rng.IntN(2))
				if sparse && rng.IntN(4) > 0 {
					b.holes, b.lastHole = b.n > 1, rng.IntN(3)
				}
				switch rng.IntN(9) {
				case 0:
					off += int64(rng.IntN(300))
					continue
				case 1:
					b.holes = b.n > 1
				case 2:
					b.logTime = true
				case 3:
					b.pid, b.txn = pid, true
					if _, ok := open[pid]; !ok {
						open[pid] = off
					}
				case 4, 5:
					first, ok := open[pid]
					if !ok {
						continue
					}
					b.n, b.pid, b.control, b.abort = 1, pid, true, rng.IntN(2) == 0
					if b.abort {
						l.aborted = append(l.aborted, aborted(pid, first)...)
						l.abortedEnd = append(l.abortedEnd, off)
					}
					delete(open, pid)
				}
				x := b.bytes()
				l.append(x)
				off = x.NextOffset()
			}
			if rng.IntN(3) == 0 {
				e++
				l.epoch = e
			}
			l.lso = l.end()
			for _, first := range open {
				l.lso = min(l.lso, first)
			}
		})
		if r.eng != nil {
			r.meta()
		}
	}
	// The ledger is slow now and then, fails, or does not tell.
	lrng := rand.New(rand.NewPCG(rng.Uint64(), 2))
	var down atomic.Bool
	down.Store(true)
	r.store.onPut = func(*ledger.Record) error {
		if !down.Load() {
			return nil
		}
		switch lrng.IntN(8) {
		case 0, 1:
			time.Sleep(time.Duration(lrng.IntN(30)) * time.Millisecond)
		case 2:
			return errLedgerDown
		case 3:
			return fmt.Errorf("put: %w", ledger.ErrUnknownOutcome)
		}
		return nil
	}
	write()
	r.start()
	for range 40 {
		switch rng.IntN(9) {
		case 8: // retention on the source, sometimes past what is mirrored
			r.src.with("t", 0, func(l *fakeLog) {
				if n := len(l.batches); n > 1 {
					l.batches = l.batches[rng.IntN(n/2+1):]
					l.start = l.batches[0].BaseOffset()
					l.chain = l.chain.AdvanceStart(l.start)
				}
			})
		case 0, 1, 2:
			write()
		case 3:
			r.dst.with("t", 0, func(l *fakeLog) { l.epoch++ })
		case 4:
			r.dst.dropConns()
		case 5:
			r.src.dropConns()
		case 6:
			for _, cp := range r.eng.Checkpoints() {
				r.store.checkpoint(cp)
			}
			if rng.IntN(2) == 0 {
				r.stop()
				r.start()
			}
		case 7:
			r.meta()
		}
		time.Sleep(time.Duration(rng.IntN(15)) * time.Millisecond)
	}
	r.src.with("t", 0, func(l *fakeLog) {
		for pid := range open {
			x := rawBatch{base: l.end(), n: 1, epoch: e, pid: pid, control: true}.bytes()
			l.append(x)
		}
		x := rawBatch{base: l.end(), n: 1, epoch: e}.bytes()
		l.append(x)
		off = l.end()
		l.lso = off
	})
	r.dst.with("t", 0, func(*fakeLog) { faults = false })
	down.Store(false)
	// As the manager does, until all is quiet.
	var stand int
	eventually(t, "caught up", func() bool {
		r.meta()
		s := r.eng.Partition("t", 0).Status()
		if s.Failed {
			require.Contains(t, s.Error, "the destination refuses a batch")
		}
		if s.Position == off && r.eng.Partition("t", 0).running() && r.store.Partition("t", 0).Log.Open().PEpoch == s.DestEpoch {
			stand++
		} else {
			stand = 0
		}
		return stand > 20
	})
	r.same(0)
	require.NotEmpty(t, r.view(0))
}
