package proxy

import (
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/protocol"
)

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
