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

// M8: a dead record with a far-future timestamp is the broker's answer to every
// look-up behind the live ones, and to -3; it is never shown, and the log behind
// it is read once, not at every look-up.
func TestM8DeadTimestamps(t *testing.T) {
	b := newBench(t)
	h := newHistory(t, b.sim.part("m", 0))
	h.append(3, 0)
	h.ts = 1 << 50
	h.foreign(1)
	for i := range int64(50) {
		h.ts = 2000 + i
		h.append(1, 0)
	}
	b.mirror("m", 0, h.log)
	a := offsetsOf(b, 7, protocol.TimestampMax)
	require.Zero(t, a.ErrorCode)
	require.EqualValues(t, 52, a.Offset)
	require.EqualValues(t, 2049, a.Timestamp)
	require.EqualValues(t, 5, offsetsOf(b, 7, 2002).Offset)
	b.sim.reads = 0
	require.EqualValues(t, -1, offsetsOf(b, 7, 5000).Offset)
	require.EqualValues(t, 45, offsetsOf(b, 7, 2042).Offset)
	require.Less(t, b.sim.reads, 10)
	for _, q := range b.sim.asked {
		if q, ok := q.(*kmsg.ListOffsetsRequest); ok {
			require.Zero(t, q.IsolationLevel, "never read_committed for mirrored spans")
		}
	}
}

// M8: what was learned of a native span does not outlive its records. When an
// unclean election of the destination takes some of them, what is written in
// their place is found by time, as the first one, and at the maximum.
func TestM8LearnedBeforeTheDestinationLostATail(t *testing.T) {
	b := newBench(t)
	h := newHistory(t, b.sim.part("m", 0))
	h.append(3, 0)
	h.ts = 1 << 50
	h.foreign(1)
	h.ts = 1000
	h.stop(0, 1)
	h.late(1, 1) // at the head of the span, never shown
	h.ts = 2000
	h.write(1, -1, false) // v4
	h.ts = 3000
	h.write(1, -1, false) // v5
	h.part.start = 3      // retention took what was mirrored, not what lies dead behind it
	b.mirror("m", 0, h.log)
	require.EqualValues(t, 4, offsetsOf(b, 7, protocol.TimestampEarliest).Offset)
	require.EqualValues(t, 5, offsetsOf(b, 7, 2500).Offset)
	require.EqualValues(t, 3000, offsetsOf(b, 7, protocol.TimestampMax).Timestamp)
	fetched := func(v int64) kmsg.FetchResponseTopicPartition {
		q := fetchOne(11, "m", [16]byte{}, v, 1)
		q.MaxWaitMillis = 0
		return only(t, b.fetch(q))
	}
	require.EqualValues(t, 4, fetched(4).LogStartOffset)

	h.loseOnly(3)
	require.False(t, h.lost)
	h.ts = 2600
	h.write(1, -1, false) // v3, where the late one was
	require.EqualValues(t, 3, fetched(4).LogStartOffset, "nobody has met the new leader yet")
	h.ts = 2700
	h.write(2, -1, false)
	a := offsetsOf(b, 7, protocol.TimestampEarliest)
	require.EqualValues(t, 3, a.Offset)
	require.Equal(t, h.live[len(h.live)-1].epoch, a.LeaderEpoch)
	require.EqualValues(t, 3, offsetsOf(b, 7, 2500).Offset)
	require.EqualValues(t, 4, offsetsOf(b, 7, 2650).Offset)
	require.EqualValues(t, -1, offsetsOf(b, 7, 2800).Offset)
	a = offsetsOf(b, 7, protocol.TimestampMax)
	require.EqualValues(t, 4, a.Offset)
	require.EqualValues(t, 2700, a.Timestamp)
}

// M8: who fills the time index asks that one, whatever other connections make of
// the partition's page meanwhile.
func TestM8LookUpsByTimeAtOnce(t *testing.T) {
	// A dead record far in the future is the broker's answer to what is asked for
	// above the timestamp of the first live one, which is the largest.
	setUp := func(t *testing.T) (*bench, *history) {
		b := newBench(t)
		h := newHistory(t, b.sim.part("m", 0))
		h.ts = 4000
		h.append(2, 0)
		h.ts = 1 << 40
		h.foreign(1)
		h.ts = 3000
		h.append(2, 0)
		h.ts = 1 << 50
		h.foreign(1)
		h.ts = 2000
		h.append(2, 0)
		b.mirror("m", 0, h.log)
		return b, h
	}
	// indexing turns an exchange until it has an index that begins at from.
	indexing := func(b *bench, x *fakeExchange, from int64) {
		for {
			if c := b.h.atlas.chart(partKey{"m", 0}, b.view.Partition("m", 0)); c.times != nil && c.times.from == from {
				return
			}
			require.Nil(b.t, x.done)
			b.turn(x)
		}
	}
	answer := func(b *bench, x *fakeExchange) int64 {
		for x.done == nil {
			b.turn(x)
		}
		r := kmsg.NewPtrListOffsetsResponse()
		r.Version = 7
		require.NoError(b.t, r.ReadFrom(x.done.body))
		require.Zero(b.t, r.Topics[0].Partitions[0].ErrorCode)
		return r.Topics[0].Partitions[0].Offset
	}
	t.Run("the index is begun again further down", func(t *testing.T) {
		b, _ := setUp(t)
		other := *b
		other.st = &connState{}
		x := b.begin(askOffset(7, 4001)) // none is shown: all from p2 on is looked at
		indexing(b, x, 2)
		y := other.begin(askOffset(7, protocol.TimestampMax))
		indexing(&other, y, 0)
		require.EqualValues(t, -1, answer(b, x))
		require.EqualValues(t, 0, answer(&other, y))
		require.EqualValues(t, 0, offsetsOf(b, 7, protocol.TimestampMax).Offset)
	})
	t.Run("a later leader", func(t *testing.T) {
		b, h := setUp(t)
		other := *b
		other.st = &connState{}
		x := b.begin(askOffset(7, protocol.TimestampMax))
		indexing(b, x, 0)
		h.part.lead(6)
		require.EqualValues(t, 6, offsetsOf(&other, 7, protocol.TimestampLatest).Offset)
		require.EqualValues(t, 0, offsetsOf(&other, 7, protocol.TimestampMax).Offset)
		require.EqualValues(t, 0, answer(b, x))
	})
	t.Run("a leader of before", func(t *testing.T) { // a broker that does not know yet that it is deposed
		b, h := setUp(t)
		h.part.epoch = 4
		b.h.atlas.chartUnder(partKey{"m", 0}, b.view.Partition("m", 0), 5)
		require.EqualValues(t, 0, offsetsOf(b, 7, protocol.TimestampMax).Offset)
	})
}

// M22: a topic that was deleted and mirrored anew has the first one's numbers
// again: its first generation, from offset 0 on, under the first leader epoch. What
// was learned of the one before is not believed of it.
func TestM22MadeAnewWithTheSameNumbers(t *testing.T) {
	b := newBench(t)
	h := newHistory(t, b.sim.part("m", 0))
	h.append(2, 0)
	h.ts = 1 << 50
	h.foreign(3)
	h.ts = 3000
	h.append(2, 0)
	b.mirror("m", 0, h.log)
	require.EqualValues(t, 2, offsetsOf(b, 7, protocol.TimestampMax).Offset)
	a := b.fetch(fetchOne(12, "m", [16]byte{}, 2, 1<<20)).Topics[0].Partitions[0]
	require.EqualValues(t, 4, a.HighWatermark)

	delete(b.view.parts, partKey{"m", 0})
	*b.sim.part("m", 0) = simPart{hw: -1, lso: -1, preferred: -1}
	h = newHistory(t, b.sim.part("m", 0))
	h.append(1, 0)
	h.ts = 1 << 50
	h.foreign(1)
	h.ts = 2000
	h.append(2, 0) // v1 and v2, where the dead ones lay
	p := b.mirror("m", 0, h.log)
	p.Record.Lineage = "another"
	m := offsetsOf(b, 7, protocol.TimestampMax)
	require.EqualValues(t, 1, m.Offset)
	require.EqualValues(t, 2000, m.Timestamp)
	a = b.fetch(fetchOne(12, "m", [16]byte{}, 1, 1<<20)).Topics[0].Partitions[0]
	require.EqualValues(t, 3, a.HighWatermark, "not that of before")
	require.Len(t, a.RecordBatches, len(h.part.batches[2]))
}

// M8: the maximum is one of what is still there.
func TestM8MaximumAfterRetention(t *testing.T) {
	b := newBench(t)
	h := newHistory(t, b.sim.part("m", 0))
	h.ts = 4000
	h.append(2, 0)
	h.ts = 3000
	h.append(2, 0)
	h.ts = 1 << 50
	h.foreign(1)
	h.ts = 2000
	h.append(2, 0)
	b.mirror("m", 0, h.log)
	require.EqualValues(t, 0, offsetsOf(b, 7, protocol.TimestampMax).Offset)
	h.retain(2)
	for range 2 {
		require.EqualValues(t, 2, offsetsOf(b, 7, protocol.TimestampMax).Offset)
	}
}

// M7, M8: where DeleteRecords has cut into a batch, what it has deleted is not
// found by time either.
func TestM7TimesBelowTheStart(t *testing.T) {
	for _, far := range []bool{false, true} { // with the time index
		b := newBench(t)
		h := newHistory(t, b.sim.part("m", 0))
		h.append(3, 0)
		h.stop(0, 1)
		h.ts = 2000
		if far {
			h.ts = 1 << 50
			h.late(1, 1)
			h.ts = 2000
		}
		h.write(3, -1, false)
		b.mirror("m", 0, h.log)
		h.part.start = h.live[len(h.live)-1].p + 1
		first := h.live[len(h.live)-2].v
		require.Equal(t, first, offsetsOf(b, 7, protocol.TimestampEarliest).Offset)
		require.Equal(t, first, offsetsOf(b, 7, 1500).Offset)
		require.Equal(t, first, offsetsOf(b, 7, protocol.TimestampMax).Offset)
	}
}

// M8: negative timestamps that are no special ones are plain ones.
func TestM8NegativeTimestamps(t *testing.T) {
	b := newBench(t)
	h := newHistory(t, b.sim.part("m", 0))
	for _, ts := range []int64{-5000, -1000, -7, 10} {
		h.ts = ts
		h.append(1, 0)
	}
	b.mirror("m", 0, h.log)
	require.EqualValues(t, 1, offsetsOf(b, 7, -1000).Offset)
	require.EqualValues(t, 0, offsetsOf(b, 7, -6000).Offset)
	require.EqualValues(t, 2, offsetsOf(b, 7, -100).Offset)
	require.EqualValues(t, 1, offsetsOf(b, 7, -1000).Offset)
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
