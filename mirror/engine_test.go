package mirror

import (
	"context"
	"fmt"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/epoch"
	"github.com/lockstep-kafka/lockstep/internal/ledger"
	"github.com/lockstep-kafka/lockstep/protocol"
)

func TestMirrorPlain(t *testing.T) {
	r := newRig(t, 3)
	for p := range int32(3) {
		r.write(p, rawBatch{base: 0, n: 3}, rawBatch{base: 3, n: 1, epoch: 2})
	}
	r.start()
	for p := range int32(3) {
		r.reached(p, 4)
		r.write(p, rawBatch{base: 4, n: 5, epoch: 2}, rawBatch{base: 9, n: 1, epoch: 7})
		r.reached(p, 10)
		r.same(p)
		tail := r.store.Partition("t", p).Live.Tail()
		require.True(t, tail.Known)
		require.Equal(t, int64(10), tail.VEnd)
		rec := r.store.Partition("t", p).Record
		require.Equal(t, epoch.StateMirroring, rec.State)
		require.Equal(t, epoch.Chain{{Epoch: 0, Start: 0}, {Epoch: 2, Start: 3}, {Epoch: 7, Start: 9}}, rec.Log.Chain)
		require.Zero(t, r.eng.Partition("t", p).Lag().Offsets)
	}
	cps := r.eng.Checkpoints()
	require.Len(t, cps, 3)
	require.Equal(t, int64(10), cps[0].V)
	require.Empty(t, r.eng.Checkpoints(), "nothing new")
	cp, ok := r.eng.Remove(context.Background(), "t", 0)
	require.True(t, ok)
	require.True(t, cp.Released)
	require.Nil(t, r.eng.Partition("t", 0))
	require.False(t, r.store.Partition("t", 0).Live.Tail().Known)
}

func TestMirrorManyBatchesAndReuse(t *testing.T) {
	r := newRig(t, 2)
	r.tuning.FetchPartitionMaxBytes = 2000
	r.start()
	off := [2]int64{}
	for range 300 {
		for p := range int32(2) {
			r.src.with("t", p, func(l *fakeLog) { l.append(rawBatch{base: off[p], n: 7}.bytes()) })
			off[p] += 7
		}
	}
	for p := range int32(2) {
		r.reached(p, off[p])
		r.same(p)
	}
}

func TestMirrorTransactionsHolesLogAppend(t *testing.T) {
	r := newRig(t, 1)
	r.src.with("t", 0, func(l *fakeLog) {
		l.aborted = aborted(7, 0)
		l.lso = 100
	})
	r.write(
		0,
		rawBatch{base: 0, n: 2, pid: 7, txn: true},
		rawBatch{base: 2, n: 2, pid: 8, txn: true, epoch: 1},
		rawBatch{base: 4, n: 1, pid: 7, control: true, abort: true, epoch: 1},
		rawBatch{base: 5, n: 3, holes: true, lastHole: 2, epoch: 1, maxTS: 77},
		rawBatch{base: 12, n: 2, logTime: true, epoch: 1, maxTS: 5000},
		rawBatch{base: 14, n: 2, logTime: true, holes: true, epoch: 1, maxTS: -7},
		rawBatch{base: 17, n: 1, pid: 8, control: true, epoch: 3},
		rawBatch{base: 18, n: 4, empty: true, epoch: 3},
	)
	r.start()
	r.reached(0, 22)
	r.same(0)
	l := r.store.Partition("t", 0).Log
	require.Equal(t, int32(3), l.Chain.Newest(), "a skipped control batch feeds the chain")
	tail := r.store.Partition("t", 0).Live.Tail()
	require.Equal(t, int64(17), tail.VEnd)
	require.Equal(t, int64(22), tail.Position)
	// The position above the virtual end survives a take-over by the checkpoint.
	cps := r.eng.Checkpoints()
	require.Len(t, cps, 1)
	r.store.checkpoint(cps[0])
	r.stop()
	r.start()
	r.reached(0, 22)
	r.write(0, rawBatch{base: 22, n: 1, epoch: 3})
	r.reached(0, 23)
	r.same(0)
}

func TestTakeOverWithoutCheckpoint(t *testing.T) {
	r := newRig(t, 1)
	r.write(0, rawBatch{base: 0, n: 3}, rawBatch{base: 3, n: 2, holes: true, lastHole: 3}, rawBatch{base: 9, n: 1, epoch: 1})
	for i := range int64(4) {
		r.start()
		r.reached(0, 10+i)
		r.same(0)
		r.stop()
		r.write(0, rawBatch{base: 10 + i, n: 1, epoch: 1})
	}
	r.start()
	r.reached(0, 14)
	r.same(0)
}

// A produce that the broker surely refused needs no new generation.
func TestRefusedKeepsGeneration(t *testing.T) {
	r := newRig(t, 1)
	r.write(0, rawBatch{base: 0, n: 1}, rawBatch{base: 1, n: 1})
	n := 0
	r.dst.onProduce = func(partKey, *fakeLog, protocol.Batch) (int16, bool) {
		if n++; n == 2 || n == 3 {
			return kerr.NotEnoughReplicas.Code, true
		}
		return 0, false
	}
	r.start()
	r.reached(0, 2)
	r.same(0)
	require.Len(t, r.store.Partition("t", 0).Log.Spans, 1)
}

// Below Fetch v12 the end is checked by OffsetForLeaderEpoch.
func TestOldSourceAsksForEpoch(t *testing.T) {
	r := newRig(t, 1)
	r.src.maxFetch = 10
	r.write(0, rawBatch{base: 0, n: 3})
	r.start()
	r.reached(0, 3)
	r.write(0, rawBatch{base: 3, n: 1, epoch: 1})
	r.reached(0, 4)
	r.same(0)
	r.src.with("t", 0, func(l *fakeLog) {
		l.truncate(3)
		l.append(rawBatch{base: 3, n: 9, epoch: 2}.bytes())
		l.epoch = 2
	})
	r.meta()
	r.failedWith(0, "unclean")
}

func TestRejectedNamesSetting(t *testing.T) {
	for _, tc := range []struct {
		code int16
		want string
	}{
		{kerr.MessageTooLarge.Code, "max.message.bytes"},
		{kerr.InvalidTimestamp.Code, "message.timestamp.before.max.ms"},
		{kerr.TopicAuthorizationFailed.Code, "WRITE"},
		{kerr.PolicyViolation.Code, "POLICY_VIOLATION"},
	} {
		t.Run(fmt.Sprint(tc.code), func(t *testing.T) {
			r := newRig(t, 2)
			bad := true
			r.dst.onProduce = func(k partKey, _ *fakeLog, _ protocol.Batch) (int16, bool) {
				if k.partition == 0 && bad {
					return tc.code, true
				}
				return 0, false
			}
			r.write(0, rawBatch{base: 0, n: 1}, rawBatch{base: 1, n: 1})
			r.write(1, rawBatch{base: 0, n: 1})
			r.start()
			r.failedWith(0, tc.want)
			r.reached(1, 1)
			r.dst.with("t", 0, func(*fakeLog) { bad = false })
			r.reached(0, 2) // a retry takes it back to where it was
			r.same(0)
			require.Equal(t, epoch.StateMirroring, r.store.Partition("t", 0).Record.State)
		})
	}
}

func TestRetriesEnd(t *testing.T) {
	r := newRig(t, 1)
	r.tuning.RetryAttempts = 3
	r.dst.onProduce = func(partKey, *fakeLog, protocol.Batch) (int16, bool) { return kerr.PolicyViolation.Code, true }
	r.write(0, rawBatch{base: 0, n: 1})
	r.start()
	eventually(t, "gives up", func() bool {
		rec := r.store.Partition("t", 0).Record
		return rec.State == epoch.StateFailed && rec.Retries == 3
	})
	require.Equal(t, epoch.StateMirroring, r.store.Partition("t", 0).Record.Previous)
}

// A foreign write is passed over on a delete-policy topic; on a compacted one
// all is written once more behind it (H1).
func TestForeignWrite(t *testing.T) {
	for _, compacted := range []bool{false, true} {
		t.Run(fmt.Sprint(compacted), func(t *testing.T) {
			r := newRig(t, 1)
			r.specs[0].Compacted = compacted
			r.write(0, rawBatch{base: 0, n: 2})
			r.start()
			r.reached(0, 2)
			r.dst.with("t", 0, func(l *fakeLog) {
				b := rawBatch{base: l.end(), n: 1}.bytes()
				l.append(b)
			})
			r.write(0, rawBatch{base: 2, n: 1})
			r.reached(0, 3)
			eventually(t, "shown", func() bool { return r.store.Partition("t", 0).Record.Shadow == nil && len(r.view(0)) == 2 })
			r.same(0)
			if compacted {
				require.Empty(t, r.deadBehindLive(0))
				require.Len(t, r.spans(0), 1, "all of it once more")
			}
		})
	}
}

// The destination's topic already holds somebody's records.
func TestForeignTopic(t *testing.T) {
	r := newRig(t, 1)
	r.dst.with("t", 0, func(l *fakeLog) { l.append(rawBatch{base: 0, n: 2}.bytes()) })
	r.write(0, rawBatch{base: 0, n: 1})
	r.start()
	r.failedWith(0, "--discard-local")
	r.stop()
	rec := r.store.parts[partKey{"t", 0}].Record
	rec.DiscardLocal, rec.State, rec.Retries = true, epoch.StateLogAlignment, 0
	r.start()
	r.reached(0, 1)
	r.same(0)
}

func TestLedgerDownThenUp(t *testing.T) {
	r := newRig(t, 1)
	r.write(0, rawBatch{base: 0, n: 1}, rawBatch{base: 1, n: 1, epoch: 1})
	fails := 3
	r.store.onPut = func(*ledger.Record) error {
		if fails--; fails >= 0 {
			return errLedgerDown
		}
		return nil
	}
	r.start()
	r.reached(0, 2)
	r.same(0)
}

func TestFencedStops(t *testing.T) {
	r := newRig(t, 1)
	r.write(0, rawBatch{base: 0, n: 1})
	r.store.err = fmt.Errorf("put: %w", ledger.ErrFenced)
	r.start()
	select {
	case <-r.fenced:
	case <-time.After(10 * time.Second):
		t.Fatal("not told")
	}
	_, ok := r.eng.Remove(context.Background(), "t", 0)
	require.False(t, ok)
}

// The epoch shown is never behind the source's: the ledger write comes first.
func TestEpochFencing(t *testing.T) {
	r := newRig(t, 1)
	r.write(0, rawBatch{base: 0, n: 1, epoch: 40})
	r.dst.onProduce = func(_ partKey, l *fakeLog, b protocol.Batch) (int16, bool) {
		s, _ := b.ReadStamp()
		led := r.store.Partition("t", 0).Log
		if led.Shown(l.epoch) < s.Epoch || led.Chain.Newest() != s.Epoch {
			t.Errorf("epoch %d was appended before the ledger had it: shown %d, chain %v", s.Epoch, led.Shown(l.epoch), led.Chain)
		}
		return 0, false
	}
	r.start()
	r.reached(0, 1)
	require.Equal(t, int32(50), r.store.Partition("t", 0).Log.Shown(0))
	// Metadata alone raises it, too.
	r.src.with("t", 0, func(l *fakeLog) { l.epoch = 48 })
	r.meta()
	eventually(t, "bump", func() bool { return r.store.Partition("t", 0).Log.Shown(0) == 58 })
	r.write(0, rawBatch{base: 1, n: 1, epoch: 200})
	r.reached(0, 2)
	r.same(0)
}

func TestConnectionLossUnderLoad(t *testing.T) {
	r := newRig(t, 2)
	r.tuning.FetchPartitionMaxBytes = 3000
	r.start()
	off := int64(0)
	for i := range 40 {
		for p := range int32(2) {
			r.src.with("t", p, func(l *fakeLog) {
				for k := range int64(5) {
					l.append(rawBatch{base: off + 3*k, n: 3}.bytes())
				}
			})
		}
		off += 15
		switch i % 4 {
		case 1:
			r.src.dropConns()
		case 3:
			r.dst.dropConns()
			time.Sleep(time.Millisecond)
		}
	}
	for p := range int32(2) {
		r.reached(p, off)
		r.same(p)
	}
}

// M21: never more than one unacknowledged batch for a partition.
func TestM21OneInFlight(t *testing.T) {
	r := newRig(t, 1)
	r.tuning.Acks, r.tuning.Lanes = 1, 2
	var last int64 = -1
	r.dst.onProduce = func(_ partKey, _ *fakeLog, b protocol.Batch) (int16, bool) {
		s, _ := b.ReadStamp()
		if s.V <= last {
			t.Errorf("v%d after v%d", s.V, last)
		}
		last = s.V
		return 0, false
	}
	for i := range int64(50) {
		r.write(0, rawBatch{base: i, n: 1})
	}
	r.start()
	r.reached(0, 50)
	r.same(0)
	require.Equal(t, 50, r.dst.produces)
}

func TestFetchRequestFields(t *testing.T) {
	r := newRig(t, 1)
	var seen []kmsg.FetchRequestTopicPartition
	r.src.onFetch = func(q *kmsg.FetchRequest) {
		if q.IsolationLevel != 1 || q.ReplicaID != -1 || q.SessionEpoch != -1 {
			t.Errorf("request %+v", q)
		}
		seen = append(seen, q.Topics[0].Partitions[0])
	}
	r.src.with("t", 0, func(l *fakeLog) { l.epoch = 3 })
	r.start()
	r.reached(0, 0)
	r.write(0, rawBatch{base: 0, n: 2, epoch: 3})
	r.reached(0, 2)
	eventually(t, "asked again", func() bool {
		r.src.mu.Lock()
		defer r.src.mu.Unlock()
		return len(seen) > 0 && seen[len(seen)-1].FetchOffset == 2
	})
	r.stop()
	require.Equal(t, int32(-1), seen[0].LastFetchedEpoch, "an empty log sends none")
	require.Equal(t, int32(3), seen[0].CurrentLeaderEpoch)
	require.Equal(t, int32(3), seen[len(seen)-1].LastFetchedEpoch)
}

// The source's topic is deleted, or created again.
func TestSourceTopicGone(t *testing.T) {
	t.Run("deleted", func(t *testing.T) {
		r := newRig(t, 1)
		r.tuning.GoneAfter = time.Millisecond
		r.write(0, rawBatch{base: 0, n: 1})
		r.start()
		r.reached(0, 1)
		gone := r.src.cluster()
		delete(gone.Topics, "t")
		r.eng.SetSource(gone)
		require.False(t, r.eng.Partition("t", 0).Status().Failed, "one look is not enough")
		eventually(t, "FAILED", func() bool {
			r.eng.SetSource(gone)
			return r.eng.Partition("t", 0).Status().Failed
		})
		r.failedWith(0, "gone")
	})
	t.Run("created again", func(t *testing.T) {
		r := newRig(t, 1)
		r.write(0, rawBatch{base: 0, n: 1})
		r.start()
		r.reached(0, 1)
		r.src.mu.Lock()
		r.src.id = ledger.ID{7}
		r.src.mu.Unlock()
		r.meta()
		r.failedWith(0, "created again")
	})
}

// The destination topic is created again under a running mirror: nothing is
// written into the new one.
func TestDestTopicRecreated(t *testing.T) {
	r := newRig(t, 1)
	r.store.parts[partKey{"t", 0}].Record.TopicID = r.dst.id
	r.write(0, rawBatch{base: 0, n: 1})
	r.start()
	r.reached(0, 1)
	r.dst.mu.Lock()
	r.dst.id, r.dst.logs[partKey{"t", 0}] = ledger.ID{7}, &fakeLog{lso: -1}
	r.dst.mu.Unlock()
	r.meta()
	r.failedWith(0, "created again")
	require.Zero(t, r.dst.logs[partKey{"t", 0}].end())
}

// The source is away at the start, comes, and goes again: the partition waits
// and goes on by itself.
func TestSourceAway(t *testing.T) {
	r := newRig(t, 1)
	r.write(0, rawBatch{base: 0, n: 1})
	addr := r.src.ln.Addr().String()
	r.src.ln.Close()
	r.start()
	time.Sleep(20 * time.Millisecond)
	require.False(t, r.eng.Partition("t", 0).Status().Failed)
	ln, err := net.Listen("tcp", addr)
	require.NoError(t, err)
	r.src.ln = ln
	r.src.wg.Go(func() { r.src.accept(ln) })
	r.reached(0, 1)
	r.same(0)
}
