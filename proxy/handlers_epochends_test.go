package proxy

import (
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/internal/ledger"
)

// epochEnd asks OffsetForLeaderEpoch for one partition.
func epochEnd(b *bench, version int16, epoch, current int32) kmsg.OffsetForLeaderEpochResponseTopicPartition {
	q := kmsg.NewPtrOffsetForLeaderEpochRequest()
	q.Version, q.ReplicaID = version, -1
	p := kmsg.NewOffsetForLeaderEpochRequestTopicPartition()
	p.LeaderEpoch, p.CurrentLeaderEpoch = epoch, current
	q.Topics = []kmsg.OffsetForLeaderEpochRequestTopic{{Topic: "m", Partitions: []kmsg.OffsetForLeaderEpochRequestTopicPartition{p}}}
	r := respond[*kmsg.OffsetForLeaderEpochResponse](b, q)
	return r.Topics[0].Partitions[0]
}

// A partition named twice, with different epochs, gets two answers, each from the
// virtual chain.
func TestEpochEndsOfAPartitionNamedTwice(t *testing.T) {
	b, _ := chainBench(t)
	q := kmsg.NewPtrOffsetForLeaderEpochRequest()
	q.Version, q.ReplicaID = 4, -1
	q.Topics = []kmsg.OffsetForLeaderEpochRequestTopic{{Topic: "m"}}
	for _, e := range []int32{3, 5} {
		p := kmsg.NewOffsetForLeaderEpochRequestTopicPartition()
		p.LeaderEpoch, p.CurrentLeaderEpoch = e, -1
		q.Topics[0].Partitions = append(q.Topics[0].Partitions, p)
	}
	ps := respond[*kmsg.OffsetForLeaderEpochResponse](b, q).Topics[0].Partitions
	require.Len(t, ps, 2)
	for i, end := range []int64{4, 9} {
		require.Zero(t, ps[i].ErrorCode)
		require.Equal(t, end, ps[i].EndOffset)
	}
}

// chainBench is a partition with chain {3@0, 5@4, 7@9}, end 12, shown epoch
// 5 + 10.
func chainBench(t *testing.T) (*bench, *history) {
	b := newBench(t)
	h := newHistory(t, b.sim.part("m", 0))
	h.append(4, 0)
	h.src = 5
	h.append(5, 0)
	h.src = 7
	h.append(3, 0)
	b.mirror("m", 0, h.log).Checkpoint = h.checkpoint()
	return b, h
}

func TestOffsetForLeaderEpoch(t *testing.T) {
	b, _ := chainBench(t)
	for _, c := range []struct {
		asked, epoch int32
		end          int64
	}{
		{3, 3, 4}, {4, 3, 4}, {5, 5, 9}, {6, 5, 9}, {7, 7, 12}, {2, 2, 0}, {-1, -1, -1},
	} {
		a := epochEnd(b, 4, c.asked, -1)
		require.Zero(t, a.ErrorCode)
		require.Equal(t, c.epoch, a.LeaderEpoch, "epoch for %d", c.asked)
		require.Equal(t, c.end, a.EndOffset, "end for %d", c.asked)
	}
	require.Equal(t, kerr.FencedLeaderEpoch.Code, epochEnd(b, 4, 5, 14).ErrorCode)
	require.Equal(t, kerr.FencedLeaderEpoch.Code, epochEnd(b, 4, 5, 4).ErrorCode)
	require.Equal(t, kerr.UnknownLeaderEpoch.Code, epochEnd(b, 4, 5, 16).ErrorCode)
	require.Zero(t, epochEnd(b, 4, 5, 15).ErrorCode)
	require.Zero(t, epochEnd(b, 0, 5, -1).ErrorCode)
}

// H12: what would make a client, or the other cluster's mirror, throw records
// away is said only after the ledger was read anew; an epoch that is not above
// the one shown but unknown here gets a retriable error.
func TestH12LagIsNotDestructive(t *testing.T) {
	b, h := chainBench(t)
	a := epochEnd(b, 4, 8, -1) // above the chain, not above 15
	require.Equal(t, kerr.UnknownLeaderEpoch.Code, a.ErrorCode)

	asked := b.now
	a = epochEnd(b, 4, 16, -1)
	require.Zero(t, a.ErrorCode)
	require.EqualValues(t, -1, a.EndOffset)
	require.True(t, b.view.freshAt.After(asked), "answered without reading the ledger anew")

	// The ledger can't be read now: no destructive answer at all.
	out := fetchOne(12, "m", [16]byte{}, 40, 1000)
	b.onWait = func() { b.view.fresh = false }
	p := respond[*kmsg.FetchResponse](b, out).Topics[0].Partitions[0]
	require.Equal(t, retryLater, p.ErrorCode)
	require.Equal(t, retryLater, epochEnd(b, 4, 16, -1).ErrorCode)
	b.view.fresh, b.onWait = true, nil
	b.view.freshAt = b.now

	// The ledger has moved on meanwhile: what looked out of range is not.
	grown := false
	b.onWait = func() {
		if !grown {
			grown = true
			h.append(30, 0)
			b.mirror("m", 0, h.log)
		}
	}
	p = respond[*kmsg.FetchResponse](b, out).Topics[0].Partitions[0]
	require.Zero(t, p.ErrorCode)
	recs, _ := readBatches(t, p.RecordBatches)
	require.NotEmpty(t, recs)
	b.onWait = nil
}

// H12: an end that was shown before is not out of range because the
// destination lost its tail; the reader waits until it is mirrored again.
func TestH12EndEverShown(t *testing.T) {
	b := newBench(t)
	h := newHistory(t, b.sim.part("m", 0))
	h.append(5, 0)
	lp := b.mirror("m", 0, h.log)
	lp.Checkpoint = h.checkpoint()
	lp.Checkpoint.EndShown = 9
	p := respond[*kmsg.FetchResponse](b, fetchOne(12, "m", [16]byte{}, 8, 1000)).Topics[0].Partitions[0]
	require.Zero(t, p.ErrorCode)
	require.Empty(t, p.RecordBatches)
	require.EqualValues(t, 9, epochEnd(b, 4, 3, -1).EndOffset)
	require.Equal(t, kerr.OffsetOutOfRange.Code,
		respond[*kmsg.FetchResponse](b, fetchOne(12, "m", [16]byte{}, 10, 1000)).Topics[0].Partitions[0].ErrorCode)
}

// H12: a batch was shown, its answer was lost, and the owner, this one or the next, began a generation in front of it.
// Who has read it isn't out of range and finds no truncation: its records come again. How far that can be is known when
// the owner has asked the source for its end; until then nobody is sent away. (TestSoak, seed 101.)
func TestH12ShownInFrontOfANewGeneration(t *testing.T) {
	b := newBench(t)
	h := newHistory(t, b.sim.part("m", 0))
	h.append(5, 0)
	before := h.checkpoint()
	lost := h.log.Open().Gen
	h.takeOver()
	h.late(lost, 3)
	require.EqualValues(t, 8, b.sim.part("m", 0).end())
	lp := b.mirror("m", 0, h.log)
	code := func(at int64) int16 {
		t.Helper()
		p := respond[*kmsg.FetchResponse](b, fetchOne(12, "m", [16]byte{}, at, 1000)).Topics[0].Partitions[0]
		require.Empty(t, p.RecordBatches)
		return p.ErrorCode
	}
	asked := *before
	asked.Under, asked.SourceEnd = h.gen(), -1
	tail := ledger.Tail{Known: true, VEnd: 5, Position: 5, PEnd: 5, EverShown: 5, Gen: h.gen()}
	for name, set := range map[string]func(){
		"no checkpoint":              func() { lp.Checkpoint = nil },
		"one of before":              func() { lp.Checkpoint = before },
		"one without a source's end": func() { lp.Checkpoint = &asked },
		"the owner, not sure yet":    func() { lp.Live.Publish(tail) },
	} {
		t.Run(name, func(t *testing.T) {
			set()
			defer lp.Live.Retract()
			require.Zero(t, code(8))
			require.Zero(t, code(1000), "nobody knows")
			a := epochEnd(b, 4, 3, -1)
			require.Zero(t, a.ErrorCode)
			require.EqualValues(t, 3, a.LeaderEpoch)
			require.GreaterOrEqual(t, a.EndOffset, int64(8))
		})
	}
	sure := asked
	sure.SourceEnd, sure.EndShown = 9, 9
	tail.Sure, tail.EverShown = true, 9
	for name, set := range map[string]func(){
		"the checkpoint knows": func() { lp.Checkpoint = &sure },
		"the owner knows":      func() { lp.Checkpoint = before; lp.Live.Publish(tail) },
	} {
		t.Run(name, func(t *testing.T) {
			set()
			defer lp.Live.Retract()
			require.Zero(t, code(8))
			require.Zero(t, code(9))
			require.Equal(t, kerr.OffsetOutOfRange.Code, code(10))
			require.EqualValues(t, 9, epochEnd(b, 4, 3, -1).EndOffset)
		})
	}
	// What was cut is gone for good, whatever a checkpoint of before says.
	lp.Checkpoint = &sure
	lp.Record.CutAt = sure.StateEpoch + 1
	require.Equal(t, kerr.OffsetOutOfRange.Code, code(7)) // this connection has been let wait at 8
	require.EqualValues(t, 5, epochEnd(b, 4, 3, -1).EndOffset)
}

// H12: who was let wait above the end, as nobody knew what may have been shown, is looked at again: it is sent away as
// soon as it is known to be out of range, on the same connection, and nobody waits for ever. One that is early goes on.
func TestH12NobodyWaitsForEver(t *testing.T) {
	b := newBench(t)
	h := newHistory(t, b.sim.part("m", 0))
	h.append(5, 0)
	before := h.checkpoint()
	h.takeOver()
	lp := b.mirror("m", 0, h.log)
	lp.Checkpoint = before
	code := func(at int64) int16 {
		t.Helper()
		q := fetchOne(12, "m", [16]byte{}, at, 1000)
		q.MaxWaitMillis = 0
		return respond[*kmsg.FetchResponse](b, q).Topics[0].Partitions[0].ErrorCode
	}
	require.Zero(t, code(1000))
	require.Zero(t, code(1000))
	sure := *before
	sure.Under, sure.SourceEnd, sure.EndShown = h.gen(), 9, 9
	lp.Checkpoint = &sure
	b.now, b.view.freshAt = b.now.Add(earlyAgain), b.view.freshAt.Add(earlyAgain)
	require.Equal(t, kerr.OffsetOutOfRange.Code, code(1000))
	require.Zero(t, code(8))
	b.now, b.view.freshAt = b.now.Add(earlyAgain), b.view.freshAt.Add(earlyAgain)
	require.Zero(t, code(8), "early, still")
	h.append(4, 0)
	h.show(b)
	b.now, b.view.freshAt = b.now.Add(earlyAgain), b.view.freshAt.Add(earlyAgain)
	p := respond[*kmsg.FetchResponse](b, fetchOne(12, "m", [16]byte{}, 8, 1000)).Topics[0].Partitions[0]
	require.Zero(t, p.ErrorCode)
	recs, next := readBatches(t, p.RecordBatches)
	require.NotEmpty(t, recs)
	require.EqualValues(t, 9, next)
}

// A log that was emptied has another lineage: what its checkpoints of before say was cut, and nobody is told to wait
// for it.
func TestEndShownOfBeforeTheRestart(t *testing.T) {
	b := newBench(t)
	h := newHistory(t, b.sim.part("m", 0))
	h.append(5, 0)
	lp := b.mirror("m", 0, h.log)
	lp.Checkpoint = h.checkpoint()
	lp.Record.Lineage, lp.Record.CutAt = "b", lp.Checkpoint.StateEpoch+1
	q := fetchOne(12, "m", [16]byte{}, 1000, 1000)
	require.Equal(t, kerr.OffsetOutOfRange.Code, respond[*kmsg.FetchResponse](b, q).Topics[0].Partitions[0].ErrorCode)
}
