package proxy

import (
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
	"pgregory.net/rapid"

	"github.com/lockstep-kafka/lockstep/epoch"
	"github.com/lockstep-kafka/lockstep/internal/histories"
	"github.com/lockstep-kafka/lockstep/internal/ledger"
	"github.com/lockstep-kafka/lockstep/protocol"
)

func askOffset(version int16, timestamp int64) *kmsg.ListOffsetsRequest {
	q := kmsg.NewPtrListOffsetsRequest()
	q.Version, q.ReplicaID, q.IsolationLevel = version, -1, 1
	p := kmsg.NewListOffsetsRequestTopicPartition()
	p.Timestamp = timestamp
	q.Topics = []kmsg.ListOffsetsRequestTopic{{Topic: "m", Partitions: []kmsg.ListOffsetsRequestTopicPartition{p}}}
	return q
}

// offsetsOf asks for one partition.
func offsetsOf(b *bench, version int16, timestamp int64) kmsg.ListOffsetsResponseTopicPartition {
	r := respond[*kmsg.ListOffsetsResponse](b, askOffset(version, timestamp))
	require.Len(b.t, r.Topics, 1)
	require.Equal(b.t, "m", r.Topics[0].Topic)
	require.Len(b.t, r.Topics[0].Partitions, 1)
	return r.Topics[0].Partitions[0]
}

// end of the last live batch, which may be a transaction's marker that a loss or
// a cut has left as the last.
func (h *history) end() int64 {
	if h.native {
		return h.vend
	}
	end := int64(-1)
	if n := len(h.live); n > 0 {
		end = h.live[n-1].end
	}
	for _, b := range h.part.batches {
		if !b.IsControl() {
			continue
		}
		if at, verdict := h.log.Classify(headerOf(b)); verdict == epoch.Live && jump(h.log, at.P) == at.P {
			end = max(end, at.VEnd)
		}
	}
	if end < 0 {
		return h.vend
	}
	return end
}

// TestListOffsetsSpeaksOfTheLiveRecords: on any history, start, end, look-ups
// by time and the maximum are those of the records that are shown.
func TestListOffsetsSpeaksOfTheLiveRecords(t *testing.T) {
	histories.Check(t, func(rt *rapid.T) {
		b := newBenchOn(t, rt)
		h := drawHistory(rt, b.sim.part("m", 0))
		if rapid.Bool().Draw(rt, "retention") && len(h.part.batches) > 0 {
			h.retain(h.part.batches[rapid.IntRange(0, len(h.part.batches)-1).Draw(rt, "from")].BaseOffset())
		}
		h.ts = 9_000_000
		if !h.native && rapid.Bool().Draw(rt, "farFuture") {
			h.foreign(1) // a dead record far in the future (M8)
			h.ts = 1000
			h.append(2, 0)
			h.append(1, 2)
		}
		lp := b.mirror("m", 0, h.log)
		if len(h.live) == 0 || rapid.Bool().Draw(rt, "checkpoint") {
			lp.Checkpoint = h.checkpoint()
		}
		if h.native && rapid.Bool().Draw(rt, "askedBefore") {
			for range 2 {
				offsetsOf(b, 7, rapid.SampledFrom([]int64{protocol.TimestampEarliest, protocol.TimestampMax, 0, 1000, 2000}).Draw(rt, "asked"))
			}
			drawLater(rt, h)
		}
		if len(h.live) == 0 {
			return
		}
		checkOffsets(rt, b, h)
	})
}

// checkOffsets asks for all that ListOffsets can say of a log with live records.
func checkOffsets(rt *rapid.T, b *bench, h *history) {
	version := rapid.SampledFrom([]int16{1, 4, 7, 8, 11}).Draw(rt, "version")
	check := func(what string, a kmsg.ListOffsetsResponseTopicPartition, v, ts int64, epoch int32) {
		require.Zero(rt, a.ErrorCode, what)
		require.Equal(rt, v, a.Offset, what)
		require.Equal(rt, ts, a.Timestamp, what)
		if version >= 4 {
			require.Equal(rt, epoch, a.LeaderEpoch, what)
		}
	}
	check("latest", offsetsOf(b, version, protocol.TimestampLatest), h.end(), -1, h.joined().Newest())
	first := offsetsOf(b, version, protocol.TimestampEarliest)
	check("earliest", first, h.start(), -1, h.joined().At(h.start()))
	for range 3 {
		ts := rapid.Int64Range(0, 4000).Draw(rt, "ts")
		want := liveRecord{v: -1, ts: -1, epoch: -1}
		for _, r := range h.live {
			if r.ts >= ts {
				want = r
				break
			}
		}
		check("by time", offsetsOf(b, version, ts), want.v, want.ts, want.epoch)
	}
	if version >= 7 {
		want := h.live[0]
		for _, r := range h.live {
			if r.ts > want.ts {
				want = r
			}
		}
		check("maximum", offsetsOf(b, version, protocol.TimestampMax), want.v, want.ts, want.epoch)
	}
	if version >= 9 {
		check("tiered", offsetsOf(b, version, protocol.TimestampLatestTiered), -1, -1, -1)
	}
}

// H11: a checkpoint of before a cut says nothing of what lies above it, also when
// the log has got as far since with a failover (found by
// TestQuestionsAlongAHistory).
func TestH11CheckpointOfBeforeACut(t *testing.T) {
	b := newBench(t)
	h := newHistory(t, b.sim.part("m", 0))
	h.append(1, 0)
	h.append(1, 0)
	lp := b.mirror("m", 0, h.log)
	lp.Checkpoint = h.checkpoint()
	lp.Checkpoint.Position = 9
	require.EqualValues(t, 2, endBelow(lp, maxOffset).v)
	require.EqualValues(t, 9, endBelow(lp, maxOffset).position)
	h.src++
	h.cut(1)
	h.foreign(1)
	h.cut(1)
	h.stop(0, 1)
	h.late(1, 1)
	h.sync()
	h.startAgain(2)
	lp = b.mirror("m", 0, h.log)
	require.EqualValues(t, 2, h.log.Open().VStart)
	require.False(t, endBelow(lp, maxOffset).ok)
	require.EqualValues(t, 1, offsetsOf(b, 7, protocol.TimestampLatest).Offset)
	lp.Checkpoint.V = 1
	require.EqualValues(t, 1, endBelow(lp, maxOffset).position)
}

// H2, H11: "latest" stops in front of a gap, as readers do.
func TestH2LatestStopsAtGap(t *testing.T) {
	histories.Check(t, func(rt *rapid.T) {
		b := newBenchOn(t, rt)
		h := drawHistory(rt, b.sim.part("m", 0))
		if h.native {
			h.startAgain(h.vend)
			h.append(1, 0)
		}
		checkpoint := h.checkpoint()
		checkpoint.V = h.end()
		h.gap()
		if rapid.Bool().Draw(rt, "foreign") {
			h.foreign(2)
		}
		lp := b.mirror("m", 0, h.log)
		if len(h.live) == 0 || rapid.Bool().Draw(rt, "checkpoint") {
			lp.Checkpoint = checkpoint
		}
		require.Equal(rt, h.end(), offsetsOf(b, 7, protocol.TimestampLatest).Offset)
		require.Less(rt, offsetsOf(b, 7, h.ts).Offset, h.end()+1, "by time")
	})
}

// M7: the start shown is what the source said, even inside a batch or before
// the first record; once retention has passed it here, the first live batch.
func TestM7LogStart(t *testing.T) {
	b := newBench(t)
	part := b.sim.part("m", 0)
	h := newHistory(t, part)
	h.append(5, 2) // v2..6, log start 5 inside it
	h.append(5, 0)
	h.foreign(30)
	h.append(5, 0)
	h.log = h.log.AdvanceStart(5)
	b.mirror("m", 0, h.log)
	require.EqualValues(t, 5, offsetsOf(b, 7, protocol.TimestampEarliest).Offset)
	f := fetchOne(11, "m", [16]byte{}, 5, 1000)
	p := respond[*kmsg.FetchResponse](b, f).Topics[0].Partitions[0]
	require.EqualValues(t, 5, p.LogStartOffset)
	recs, _ := readBatches(t, p.RecordBatches)
	require.EqualValues(t, 2, recs[0].v, "a batch with a base below is returned whole")
	f = fetchOne(11, "m", [16]byte{}, 4, 1000)
	require.Equal(t, kerr.OffsetOutOfRange.Code, respond[*kmsg.FetchResponse](b, f).Topics[0].Partitions[0].ErrorCode)

	h.retain(12) // the first two live batches are gone
	require.EqualValues(t, 12, offsetsOf(b, 7, protocol.TimestampEarliest).Offset)
	f = fetchOne(11, "m", [16]byte{}, 12, 1000)
	p = respond[*kmsg.FetchResponse](b, f).Topics[0].Partitions[0]
	require.EqualValues(t, 12, p.LogStartOffset)
	f = fetchOne(11, "m", [16]byte{}, 7, 1000)
	require.Equal(t, kerr.OffsetOutOfRange.Code, respond[*kmsg.FetchResponse](b, f).Topics[0].Partitions[0].ErrorCode)
}

// M7: where the first record left is one of a later leader epoch in a native
// span, that is the epoch shown with the start, not the span's first.
func TestM7EpochOfTheStart(t *testing.T) {
	b := newBench(t)
	h := newHistory(t, b.sim.part("m", 0))
	h.append(1, 0)
	h.append(2, 0)
	h.foreign(1)
	h.stop(0, 1)
	h.late(1, 1)
	h.part.lead(9)
	h.write(1, -1, false)
	h.part.start = 3
	b.mirror("m", 0, h.log)
	for range 2 { // the second time without reading
		a := offsetsOf(b, 7, protocol.TimestampEarliest)
		require.EqualValues(t, 4, a.Offset)
		require.Equal(t, h.live[len(h.live)-1].epoch, a.LeaderEpoch)
	}
}

// H11: "latest" is the virtual end, not the position: a reader up to it never
// waits at a hole in the tail; offsets up to the position are in range, and
// empty.
func TestH11TwoEnds(t *testing.T) {
	b := newBench(t)
	h := newHistory(t, b.sim.part("m", 0))
	h.append(4, 0)
	lp := b.mirror("m", 0, h.log)
	lp.Checkpoint = h.checkpoint()
	lp.Checkpoint.Position = 6 // a marker and an aborted record behind it
	require.EqualValues(t, 4, offsetsOf(b, 7, protocol.TimestampLatest).Offset)
	for _, v := range []int64{4, 5, 6} {
		p := respond[*kmsg.FetchResponse](b, fetchOne(11, "m", [16]byte{}, v, 1000)).Topics[0].Partitions[0]
		require.Zero(t, p.ErrorCode, "at %d", v)
		require.Empty(t, p.RecordBatches)
		require.EqualValues(t, 4, p.HighWatermark)
	}
	p := respond[*kmsg.FetchResponse](b, fetchOne(11, "m", [16]byte{}, 7, 1000)).Topics[0].Partitions[0]
	require.Equal(t, kerr.OffsetOutOfRange.Code, p.ErrorCode)
	require.EqualValues(t, 6, epochEnd(b, 4, 3, -1).EndOffset, "endOffsetFor uses the position")
	// And the hole is no gap: the next batch is shown to whoever stands in it.
	h.append(1, 2)
	b.mirror("m", 0, h.log)
	p = respond[*kmsg.FetchResponse](b, fetchOne(11, "m", [16]byte{}, 5, 1000)).Topics[0].Partitions[0]
	recs, _ := readBatches(t, p.RecordBatches)
	require.EqualValues(t, 6, recs[0].v)
}

// M13: ListOffsets carries the epoch of the chain, never the one shown in
// metadata, which OffsetForLeaderEpoch would know nothing of.
func TestM13EpochsOfListOffsets(t *testing.T) {
	b, _ := chainBench(t)
	for _, ts := range []int64{protocol.TimestampLatest, protocol.TimestampEarliest, 0} {
		a := offsetsOf(b, 7, ts)
		require.GreaterOrEqual(t, epochEnd(b, 4, a.LeaderEpoch, -1).EndOffset, a.Offset)
	}
	require.EqualValues(t, 7, offsetsOf(b, 7, protocol.TimestampLatest).LeaderEpoch)
	require.EqualValues(t, 3, offsetsOf(b, 7, protocol.TimestampEarliest).LeaderEpoch)
}

// Errors of the broker, authorisation first of all, are passed on by every API.
func TestAuthorisationIsTheBrokers(t *testing.T) {
	b, h := chainBench(t)
	b.sim.deny["m"] = map[int16]int16{}
	for _, key := range []int16{0, 1, 2, 21, 23} {
		b.sim.deny["m"][key] = kerr.TopicAuthorizationFailed.Code
	}
	denied := kerr.TopicAuthorizationFailed.Code
	require.Equal(t, denied, offsetsOf(b, 7, -1).ErrorCode)
	require.Equal(t, denied, epochEnd(b, 4, 5, -1).ErrorCode)
	require.Equal(t, denied, respond[*kmsg.FetchResponse](b, fetchOne(12, "m", [16]byte{}, 0, 1000)).Topics[0].Partitions[0].ErrorCode)
	require.Equal(t, denied, produceOne(b, dense(t, 0, 1, 5)).ErrorCode)
	require.Equal(t, denied, deleteOne(b, 5).ErrorCode)
	// An error of ours does not hide the broker's.
	require.Equal(t, denied, respond[*kmsg.FetchResponse](b, fetchOne(12, "m", [16]byte{}, 900, 1000)).Topics[0].Partitions[0].ErrorCode)

	// May describe, but not read: the end comes from what is known.
	b.sim.deny["m"] = map[int16]int16{1: denied}
	lp := b.mirror("m", 0, h.log)
	lp.Checkpoint = h.checkpoint()
	h.append(1, 0)
	b.mirror("m", 0, h.log)
	require.EqualValues(t, 12, offsetsOf(b, 7, -1).Offset)
}

// H10: without a fresh view, or with a record that can't be read, mirror topics
// get a retriable error (never one that is fatal to Java clients), others pass.
func TestH10FailClosed(t *testing.T) {
	b, h := chainBench(t)
	stale := func() {
		require.Equal(t, retryLater, offsetsOf(b, 7, -1).ErrorCode)
		require.Equal(t, retryLater, epochEnd(b, 4, 5, -1).ErrorCode)
		require.Equal(t, retryLater, respond[*kmsg.FetchResponse](b, fetchOne(12, "m", [16]byte{}, 0, 1000)).Topics[0].Partitions[0].ErrorCode)
		require.Equal(t, retryLater, produceOne(b, dense(t, 0, 1, 5)).ErrorCode)
		require.Equal(t, retryLater, deleteOne(b, 5).ErrorCode)
	}
	require.NotEqual(t, kerr.BrokerNotAvailable.Code, retryLater)
	require.True(t, kerr.IsRetriable(kerr.ErrorForCode(retryLater)))
	b.view.fresh = false
	stale()
	b.view.fresh = true
	b.view.parts[partKey{"m", 0}] = &ledger.Partition{Topic: "m", Err: errStuck}
	stale()
	delete(b.view.parts, partKey{"m", 0}) // of a mirror topic, but not in the ledger yet
	stale()
	b.view.fresh = false
	b.sim.part("other", 0)
	require.True(t, b.run(fetchOne(12, "other", [16]byte{}, 0, 1000)).forwarded)
	_ = h
}
