package proxy

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/epoch"
	"github.com/lockstep-kafka/lockstep/protocol"
)

// show gives the view the history's log, STOPPED when it is.
func (h *history) show(b *bench) {
	lp := b.mirror("m", 0, h.log)
	lp.Record.State = epoch.StateMirroring
	if h.native {
		lp.Record.State = epoch.StateStopped
	}
}

// stoppedBench is chainBench, stopped at virtual offset 12: physically there are
// a foreign batch and the span-opening one in front, so the native span begins
// at p 15. Physical epoch 5, bump 10 + 100.
func stoppedBench(t *testing.T) (*bench, *history) {
	b, h := chainBench(t)
	h.foreign(2)
	h.stop(0, 100)
	h.show(b)
	require.EqualValues(t, 15, h.log.Open().PStart)
	require.EqualValues(t, 12, h.log.Open().VStart)
	return b, h
}

// idempotent gives a batch a producer id.
func idempotent(b protocol.Batch, pid int64) protocol.Batch {
	binary.BigEndian.PutUint64(b[43:], uint64(pid))
	binary.BigEndian.PutUint16(b[51:], 0)
	binary.BigEndian.PutUint32(b[53:], 0)
	binary.BigEndian.PutUint32(b[17:], crc32.Checksum(b[21:], crc32.MakeTable(crc32.Castagnoli)))
	return b
}

func (s *sim) askedFor(key int16) (n int) {
	for _, q := range s.asked {
		if q.Key() == key {
			n++
		}
	}
	return n
}

// H8: the broker takes a retried batch for a duplicate of one that a cut has
// removed; of one in an older native part; or of one that was there all along.
func TestH8DeadDuplicates(t *testing.T) {
	b, h := stoppedBench(t)
	h.write(3, -1, false) // v12..14, p15..17
	h.write(2, -1, false) // v15..16, p18..19: will be cut
	h.startAgain(15)
	h.append(4, 0)
	h.stop(0, 100)
	h.show(b)
	h.write(1, -1, false)
	send := func(pid, base int64) kmsg.ProduceResponseTopicPartition {
		b.sim.base = func(protocol.Batch) int64 { return base }
		return produceOne(b, idempotent(dense(t, 0, 1, 5), pid))
	}
	dups := 0
	b.h.count.deadDup = func(string, int32) { dups++ }
	a := send(7, 16)
	require.Zero(t, a.ErrorCode)
	require.EqualValues(t, 13, a.BaseOffset, "a true duplicate in an older native part")
	for _, base := range []int64{18, 19, 3, 13} { // cut, cut, mirrored, foreign
		a = send(7, base)
		require.Equal(t, kerr.UnknownProducerID.Code, a.ErrorCode, "base %d", base)
		require.EqualValues(t, -1, a.BaseOffset)
	}
	require.Equal(t, 4, dups)
	a = send(-1, 18) // nobody remembers batches without a producer id: written just now, behind a cut
	require.Equal(t, retryLater, a.ErrorCode)
	o := h.log.Open()
	a = send(7, o.PStart)
	require.Zero(t, a.ErrorCode)
	require.Equal(t, o.VStart, a.BaseOffset)
}

// H10: the lease must be valid when the answer comes, and the span as it is then
// counts.
func TestH10LeaseAtTheAnswer(t *testing.T) {
	b, h := stoppedBench(t)
	b.sim.base = func(protocol.Batch) int64 { b.view.fresh = false; return -1 }
	require.Equal(t, retryLater, produceOne(b, idempotent(dense(t, 0, 1, 5), 7)).ErrorCode)
	h.sync()
	b.view.fresh = true

	// A cut while it was under way: written, acknowledged by the broker, gone.
	b.sim.base = func(protocol.Batch) int64 {
		h.startAgain(12)
		h.show(b)
		return 15
	}
	require.Equal(t, kerr.UnknownProducerID.Code, produceOne(b, idempotent(dense(t, 0, 1, 5), 7)).ErrorCode)
	// And the next one is refused before it is sent.
	end := h.part.end()
	b.sim.base = nil
	require.Equal(t, kerr.PolicyViolation.Code, produceOne(b, dense(t, 0, 1, 5)).ErrorCode)
	require.Equal(t, end, h.part.end())
}

// H11, TX-07: the source's log ended in a marker and aborted records, and was
// stopped there: the end is LMO, and whoever stands in front of it is sent on to
// it by a batch without records, once.
func TestH11HoleInFrontOfTheNativeSpan(t *testing.T) {
	b, h := chainBench(t)
	h.foreign(2)
	h.stop(3, 100) // behind v12..14
	h.show(b)
	at := func(offset int64) kmsg.FetchResponseTopicPartition {
		q := fetchOne(12, "m", [16]byte{}, offset, 1000)
		q.MaxWaitMillis = 0
		p := respond[*kmsg.FetchResponse](b, q).Topics[0].Partitions[0]
		require.Zero(t, p.ErrorCode)
		require.EqualValues(t, 15, p.HighWatermark)
		require.EqualValues(t, 15, p.LastStableOffset)
		return p
	}
	for _, offset := range []int64{12, 14, 12} {
		x, rest, err := protocol.NextBatch(at(offset).RecordBatches)
		require.NoError(t, err)
		require.Empty(t, rest)
		require.True(t, x.CheckCRC())
		require.Equal(t, []int64{offset, 15, 0, 7, -1, 0}, []int64{
			x.BaseOffset(), x.NextOffset(), int64(x.NumRecords()), int64(x.PartitionLeaderEpoch()), x.ProducerID(), int64(x.Attributes()),
		})
		require.Empty(t, at(offset).RecordBatches, "a client that stays there doesn't ask all the time")
		require.Empty(t, at(offset).RecordBatches)
	}
	b.now = b.now.Add(holeAgain)
	require.NotEmpty(t, at(12).RecordBatches, "it may have dropped the first one")
	require.Empty(t, at(12).RecordBatches)
	require.Empty(t, at(15).RecordBatches, "the end")
	recs, next := readBatches(t, at(10).RecordBatches)
	require.EqualValues(t, 12, next, "what is left of the source's log")
	require.Len(t, recs, 3)

	h.write(2, -1, false)
	h.show(b)
	for _, offset := range []int64{12, 13, 15} {
		p := respond[*kmsg.FetchResponse](b, fetchOne(12, "m", [16]byte{}, offset, 1000)).Topics[0].Partitions[0]
		recs, _ := readBatches(t, p.RecordBatches)
		require.Len(t, recs, 2)
		require.EqualValues(t, 15, recs[0].v)
	}
}

// A late write of an old owner lands in a native span (hazards, "Smaller ones"): it is dead and takes its offsets with it.
// Readers get to the end that they are told of all the same, in both isolation levels, and over it when more is written.
func TestLateWriteAtTheEndOfANativeSpan(t *testing.T) {
	for level := range int8(2) {
		b, h := stoppedBench(t)
		h.write(2, -1, false) // v12..13
		h.part.lead(6)
		late := func() {
			h.part.put(stamp(t, dense(t, 0, 3, h.ts), protocol.Stamp{V: 12, Gen: 1, Epoch: 3}))
			h.show(b)
		}
		late()
		at := func(offset int64) ([]liveRecord, int64, int64, protocol.Batch) {
			q := fetchOne(12, "m", [16]byte{}, offset, 1000)
			q.MaxWaitMillis, q.Topics[0].Partitions[0].CurrentLeaderEpoch = 0, -1
			q.IsolationLevel = level
			p := respond[*kmsg.FetchResponse](b, q).Topics[0].Partitions[0]
			require.Zero(t, p.ErrorCode)
			x := protocol.Batch(p.RecordBatches)
			recs, next := readBatches(t, p.RecordBatches)
			return recs, next, p.HighWatermark, x
		}
		recs, next, hw, _ := at(12)
		require.Len(t, recs, 2)
		require.EqualValues(t, 14, next)
		require.EqualValues(t, 17, hw)
		for range 2 {
			_, _, _, x := at(next)
			require.NotEmpty(t, x, "sent on to the end")
			require.Equal(t, []int64{14, 17, 0, 116, -1}, []int64{x.BaseOffset(), x.NextOffset(), int64(x.NumRecords()), int64(x.PartitionLeaderEpoch()), x.ProducerID()})
			_, _, _, x = at(next)
			require.Empty(t, x, "a client that stays there doesn't ask all the time")
			b.now = b.now.Add(holeAgain)
		}
		_, _, _, x := at(17)
		require.Empty(t, x, "the end")
		require.EqualValues(t, 17, epochEnd(b, 4, 116, -1).EndOffset, "its epoch reaches to there")
		late()
		_, _, hw, x = at(15) // from the middle of it, over two of them
		require.EqualValues(t, 20, hw)
		require.EqualValues(t, 20, x.NextOffset())
		h.write(1, -1, false)
		h.show(b)
		for _, offset := range []int64{14, 15, 17, 19, 20} {
			recs, next, _, _ = at(offset)
			require.Len(t, recs, 1)
			require.EqualValues(t, 20, recs[0].v)
			require.EqualValues(t, 21, next)
		}
	}
}

// Where no record lies below the hole, its batch has the native span's epoch: a
// reader without any could not be told that the span begins anew, lower, when the
// destination has lost it (found by TestReadersOfAMovingLog).
func TestH11HoleWithoutRecordsBelow(t *testing.T) {
	b := newBench(t)
	h := newHistory(t, b.sim.part("m", 0))
	h.takeOver()
	h.stop(1, 1)
	h.show(b)
	q := fetchOne(12, "m", [16]byte{}, 0, 1000)
	q.MaxWaitMillis = 0
	x, _, err := protocol.NextBatch(respond[*kmsg.FetchResponse](b, q).Topics[0].Partitions[0].RecordBatches)
	require.NoError(t, err)
	require.Equal(t, []int64{0, 1}, []int64{x.BaseOffset(), x.NextOffset()})
	require.Equal(t, h.log.Chain.At(1), x.PartitionLeaderEpoch())
	require.GreaterOrEqual(t, x.PartitionLeaderEpoch(), int32(0))
}

// H4, H11: what lies below the native span was lost, and a client has written in
// its place: no reader is sent over what only looks like a hole, until the owner
// has ruled. It would miss what begins there (found by TestReadersOfAMovingLog).
func TestH4NoHoleWhereRecordsWereLost(t *testing.T) {
	b := newBench(t)
	h := newHistory(t, b.sim.part("m", 0))
	h.append(1, 0)
	h.stop(0, 1)
	h.write(1, -1, false)
	h.show(b)
	at := func(offset int64) kmsg.FetchResponseTopicPartition {
		q := fetchOne(11, "m", [16]byte{}, offset, 1000)
		q.MaxWaitMillis = 0
		return respond[*kmsg.FetchResponse](b, q).Topics[0].Partitions[0]
	}
	h.loseOnly(3)
	require.True(t, h.lost)
	for range 2 {
		h.part.put(dense(t, 9_000_000, 1, 7))
	}
	require.GreaterOrEqual(t, h.part.end(), nativeSpan(h.log).PStart)
	a := at(0)
	require.Equal(t, retryLater, a.ErrorCode)
	require.Empty(t, a.RecordBatches)
	h.repair()
	h.show(b)
	x, _, err := protocol.NextBatch(at(0).RecordBatches)
	require.NoError(t, err)
	require.Equal(t, []int64{0, 1}, []int64{x.BaseOffset(), x.NextOffset()})
	require.EqualValues(t, 1, x.NumRecords())
}

// H4: what was passed over as dead in the native span is looked at again by the
// next Fetch: an unclean election may have taken it, and clients have written there
// (found by TestReadersOfAMovingLog).
func TestH4DeadStretchIsLookedAtAgain(t *testing.T) {
	b := newBench(t)
	h := newHistory(t, b.sim.part("m", 0))
	h.append(1, 0)
	h.stop(0, 1)
	h.write(1, -1, false) // v1
	h.late(h.log.Spans[0].Gen, 2)
	h.sync()
	h.write(1, -1, false) // v4
	h.show(b)
	at := func(offset int64) (recs []liveRecord) {
		q := fetchOne(11, "m", [16]byte{}, offset, 1)
		q.MaxWaitMillis = 0
		recs, _ = readBatches(t, respond[*kmsg.FetchResponse](b, q).Topics[0].Partitions[0].RecordBatches)
		return recs
	}
	require.EqualValues(t, 4, at(2)[0].v)
	h.loseOnly(2)
	require.False(t, h.lost)
	for range 3 {
		h.write(1, -1, false)
	}
	require.EqualValues(t, 2, at(2)[0].v)
}

// A reader gets over a dead stretch that is longer than what one Fetch reads.
func TestDeadStretchLongerThanAFetch(t *testing.T) {
	b := newBench(t)
	h := newHistory(t, b.sim.part("m", 0))
	h.append(1, 0)
	h.stop(0, 1)
	h.write(1, -1, false) // v1
	x := simBatch(t, 0, 0, simRecord{0, 5, strings.Repeat("x", maxFetchRead+1)})
	for range 2 {
		h.part.put(stamp(t, slices.Clone(x), h.next[h.log.Spans[0].Gen]))
	}
	h.sync()
	h.write(1, -1, false) // v4
	h.show(b)
	var recs []liveRecord
	for range 4 {
		q := fetchOne(11, "m", [16]byte{}, 2, 1)
		q.MaxWaitMillis = 0
		if recs, _ = readBatches(t, respond[*kmsg.FetchResponse](b, q).Topics[0].Partitions[0].RecordBatches); len(recs) > 0 {
			break
		}
	}
	require.Len(t, recs, 1)
	require.EqualValues(t, 4, recs[0].v)
}

// H4, F5: an election costs one look-up when nothing was lost below the native
// span; when something was, nobody is told anything but to come again, until the
// owner has ruled.
func TestH4TailLostBelowNativeSpan(t *testing.T) {
	b, h := stoppedBench(t)
	h.write(3, -1, false)
	at := func(offset int64) kmsg.FetchResponseTopicPartition {
		q := fetchOne(12, "m", [16]byte{}, offset, 1000)
		q.MaxWaitMillis = 0
		return respond[*kmsg.FetchResponse](b, q).Topics[0].Partitions[0]
	}
	require.Zero(t, at(12).ErrorCode)
	h.part.lead(6)
	b.sim.asked = nil
	require.Zero(t, produceOne(b, dense(t, 0, 1, 5)).ErrorCode)
	h.sync()
	require.Zero(t, at(15).ErrorCode)
	require.Zero(t, at(15).ErrorCode)
	require.LessOrEqual(t, b.sim.askedFor(23), 2)

	unsound := 0
	b.h.count.unsound = func(string, int32) { unsound++ }
	h.loseOnly(6) // of 4 + 3 native, hidden and foreign batches and the last mirrored one
	require.True(t, h.lost)
	end := h.part.end()
	require.Less(t, end, int64(15))
	// The connection was asked lately, so the write is passed on: it lands below.
	a := produceOne(b, idempotent(dense(t, 0, 1, 5), 7))
	require.Equal(t, retryLater, a.ErrorCode)
	require.EqualValues(t, -1, a.BaseOffset)
	// A second later it isn't even sent.
	b.pass(2 * soundFor)
	before := h.part.end()
	require.Equal(t, retryLater, produceOne(b, dense(t, 0, 1, 5)).ErrorCode)
	require.Equal(t, before, h.part.end())
	require.Equal(t, retryLater, at(15).ErrorCode)
	require.Equal(t, retryLater, offsetsOf(b, 7, protocol.TimestampLatest).ErrorCode)
	require.Equal(t, retryLater, epochEnd(b, 4, 116, -1).ErrorCode)
	// Also when what was written since reaches beyond the old start.
	for range 12 {
		h.part.put(dense(t, 0, 1, 5))
	}
	require.Equal(t, retryLater, produceOne(b, dense(t, 0, 1, 5)).ErrorCode)
	require.Equal(t, retryLater, at(15).ErrorCode)
	require.Equal(t, retryLater, at(12).ErrorCode)
	require.Equal(t, retryLater, offsetsOf(b, 7, protocol.TimestampLatest).ErrorCode)
	require.Positive(t, unsound)

	h.repair()
	h.show(b)
	a = produceOne(b, dense(t, 0, 1, 5))
	require.Zero(t, a.ErrorCode)
	require.Equal(t, h.vend, a.BaseOffset)
	h.sync()
	require.Equal(t, h.vend, offsetsOf(b, 7, protocol.TimestampLatest).Offset)
	// A consumer that stood above what was lost learns of it.
	q := fetchOne(12, "m", [16]byte{}, 15, 1000)
	q.Topics[0].Partitions[0].LastFetchedEpoch = 115
	p := respond[*kmsg.FetchResponse](b, q).Topics[0].Partitions[0]
	require.Zero(t, p.ErrorCode)
	require.Less(t, p.DivergingEpoch.EndOffset, int64(12))
	require.GreaterOrEqual(t, p.DivergingEpoch.EndOffset, int64(0))
}

// M10: an aborted transaction whose marker was cut must not make a client drop
// what the same producer committed in the next native span.
func TestM10AbortedTransactionsOfOneSpan(t *testing.T) {
	b, h := stoppedBench(t)
	h.transact(true, 2)
	marker := h.markers[0]
	h.startAgain(marker)
	h.append(1, 0)
	h.stop(0, 1)
	h.pids-- // the same producer
	h.transact(false, 2)
	h.transact(true, 1)
	h.show(b)
	fetch := func(at int64) kmsg.FetchResponseTopicPartition {
		q := fetchOne(12, "m", [16]byte{}, at, 1<<20)
		q.IsolationLevel = 1
		return respond[*kmsg.FetchResponse](b, q).Topics[0].Partitions[0]
	}
	p := fetch(12)
	require.Len(t, p.AbortedTransactions, 1)
	require.EqualValues(t, 12, p.AbortedTransactions[0].FirstOffset)
	recs, next := readBatches(t, p.RecordBatches)
	require.Len(t, recs, 2)
	require.Empty(t, committed(t, recs, p))
	require.Equal(t, marker, next)

	p = fetch(marker) // the mirrored span: no list at all
	require.Empty(t, p.AbortedTransactions)
	_, next = readBatches(t, p.RecordBatches)
	p = fetch(next)
	recs, _ = readBatches(t, p.RecordBatches)
	require.Len(t, recs, 3)
	require.Len(t, p.AbortedTransactions, 1)
	require.Equal(t, recs[2].v, p.AbortedTransactions[0].FirstOffset)
	require.Len(t, committed(t, recs, p), 2)
	require.Equal(t, h.vend, p.HighWatermark)
	require.Equal(t, h.vend, p.LastStableOffset)
	h.part.lso = h.part.end() - 2
	p = fetch(next)
	require.Equal(t, h.vend-2, p.LastStableOffset)
	require.EqualValues(t, h.vend-2, offsetsOf(b, 7, protocol.TimestampLatest).Offset, "read_committed")
}

// The joined chain: ledger below, broker above, as one (DESIGN §3).
func TestJoinedChain(t *testing.T) {
	b, h := stoppedBench(t)
	h.write(3, -1, false) // 115@12
	h.part.lead(7)
	h.write(2, -1, false) // 117@15, end 17
	h.part.lead(9)        // 119@17, empty
	want := h.joined()
	require.Equal(t, epoch.Chain{{Epoch: 3, Start: 0}, {Epoch: 5, Start: 4}, {Epoch: 7, Start: 9}, {Epoch: 115, Start: 12}, {Epoch: 117, Start: 15}, {Epoch: 119, Start: 17}}, want)
	for e := int32(0); e <= 119; e++ {
		we, end := want.EndOffsetFor(e, 17)
		a := epochEnd(b, 4, e, -1)
		require.Zero(t, a.ErrorCode, e)
		require.Equal(t, end, a.EndOffset, "end of %d", e)
		if e > 7 && e < 115 {
			require.EqualValues(t, 7, a.LeaderEpoch)
			continue
		}
		require.Equal(t, we, a.LeaderEpoch, "epoch of %d", e)
	}
	require.EqualValues(t, -1, epochEnd(b, 4, 120, -1).EndOffset)
	require.EqualValues(t, 119, b.h.shownEpoch("m", [16]byte{}, 0, 9))
	require.Equal(t, kerr.FencedLeaderEpoch.Code, epochEnd(b, 4, 117, 117).ErrorCode)
	require.Zero(t, epochEnd(b, 4, 117, 119).ErrorCode)

	for _, c := range []struct {
		offset   int64
		last     int32
		code     int16
		epoch    int32
		end      int64
		diverges bool
	}{
		{offset: 15, last: 115},
		{offset: 16, last: 115, epoch: 115, end: 15, diverges: true},
		{offset: 17, last: 117},
		{offset: 18, last: 117, epoch: 117, end: 17, diverges: true},
		{offset: 12, last: 7},
		{offset: 13, last: 7, epoch: 7, end: 12, diverges: true},
		{offset: 13, last: 116, epoch: 115, end: 15, diverges: true},
		{offset: 17, last: 130, code: kerr.OffsetOutOfRange.Code},
		{offset: 18, last: -1, code: kerr.OffsetOutOfRange.Code},
		{offset: 17, last: -1},
	} {
		q := fetchOne(12, "m", [16]byte{}, c.offset, 1000)
		q.MaxWaitMillis = 0
		q.Topics[0].Partitions[0].LastFetchedEpoch = c.last
		p := respond[*kmsg.FetchResponse](b, q).Topics[0].Partitions[0]
		require.Equal(t, c.code, p.ErrorCode, "%+v", c)
		require.Equal(t, c.diverges, p.DivergingEpoch.EndOffset >= 0, "%+v", c)
		if c.diverges {
			require.Equal(t, c.epoch, p.DivergingEpoch.Epoch, "%+v", c)
			require.Equal(t, c.end, p.DivergingEpoch.EndOffset, "%+v", c)
		}
	}
	// Above the high watermark, not above the log end: in range, nothing yet.
	h.part.hw = h.part.end() - 1
	p := only(t, b.fetch(fetchOne(12, "m", [16]byte{}, 17, 1000)))
	require.Zero(t, p.ErrorCode)
	require.Empty(t, p.RecordBatches)
	require.EqualValues(t, 16, p.HighWatermark)
}

// M7: DeleteRecords on a STOPPED partition deletes what lies below the offset as
// clients see it, wherever that is; the answer says what was asked.
func TestM7DeleteRecordsWhenStopped(t *testing.T) {
	for _, c := range []struct {
		v     int64
		code  int16
		start int64 // physical
		low   int64
	}{
		{v: 3, start: 3, low: 3},
		{v: 11, start: 11, low: 11},
		{v: 12, start: 15, low: 12}, // over the foreign and the hidden batch
		{v: 13, start: 16, low: 13},
		{v: 15, start: 25, low: 15}, // over what was cut
		{v: 16, start: 26, low: 16},
		{v: 18, start: 28, low: 18},                                // a hole: the next record
		{v: 22, start: 30, low: 22},                                // behind all mirrored ones: the next native one
		{v: 24, start: 32, low: 24},                                // the end
		{v: 25, code: kerr.OffsetOutOfRange.Code, low: -1},         // above it
		{v: -1, start: 32, low: 24},                                // all
		{v: 99, code: kerr.TopicAuthorizationFailed.Code, low: -1}, // the broker's word first
	} {
		b, h := stoppedBench(t)
		h.write(3, -1, false) // v12..14, p15..17
		h.write(3, -1, false) // v15..17: cut
		h.startAgain(15)
		h.foreign(4)   // p21..24
		h.append(3, 0) // v15..17, p25..27
		h.append(1, 3) // v21, p28
		h.stop(0, 1)   // opening at p29
		h.write(2, -1, false)
		h.show(b)
		require.EqualValues(t, 24, h.vend)
		if c.v == 99 {
			b.sim.deny["m"] = map[int16]int16{21: c.code}
			c.v = 3
		}
		a := deleteOne(b, c.v)
		require.Equal(t, c.code, a.ErrorCode, "%+v", c)
		require.Equal(t, c.low, a.LowWatermark, "%+v", c)
		require.Equal(t, c.start, h.part.start, "%+v", c)
		if c.code == 0 && c.v > 0 {
			first := offsetsOf(b, 7, protocol.TimestampEarliest)
			require.Zero(t, first.ErrorCode)
			require.GreaterOrEqual(t, first.Offset, c.v)
			for _, r := range h.live {
				if r.v >= c.v {
					require.LessOrEqual(t, first.Offset, r.v, "%+v", c)
					break
				}
			}
		}
	}
}

// acks=0 to a STOPPED partition: the broker is asked to answer, so that it is
// known when the write is over; the client gets nothing, or is cut off.
func TestAcks0ToStopped(t *testing.T) {
	b, h := stoppedBench(t)
	r := b.run(produceReq(0, map[string][]byte{"m": dense(t, 0, 1, 5)}))
	require.True(t, r.nothing)
	require.EqualValues(t, 16, h.part.end())
	for _, q := range b.sim.asked {
		if p, ok := q.(*kmsg.ProduceRequest); ok {
			require.EqualValues(t, 1, p.Acks)
		}
	}
	b.sim.deny["m"] = map[int16]int16{0: kerr.TopicAuthorizationFailed.Code}
	r = b.run(produceReq(0, map[string][]byte{"m": dense(t, 0, 1, 5)}))
	require.Equal(t, ReasonAcks0Refused, r.closed)
}

// What clients write comes back as they wrote it: payload, CRC, producer fields.
func TestNativeBatchesAreUntouched(t *testing.T) {
	b, h := stoppedBench(t)
	sent := transactional(dense(t, 0, 3, 77), 4, false)
	require.Zero(t, produceOne(b, bytes.Clone(sent)).ErrorCode)
	h.part.put(transactional(endMarker(t, false, 78), 4, true))
	p := only(t, b.fetch(fetchOne(12, "m", [16]byte{}, 12, 1<<20)))
	got, rest, err := protocol.NextBatch(p.RecordBatches)
	require.NoError(t, err)
	require.True(t, got.CheckCRC())
	require.EqualValues(t, 12, got.BaseOffset())
	require.EqualValues(t, 115, got.PartitionLeaderEpoch())
	require.Equal(t, []byte(sent[16:]), []byte(got[16:]), "all behind the leader epoch, CRC included")
	marker, _, err := protocol.NextBatch(rest)
	require.NoError(t, err)
	require.True(t, marker.IsControl())
	require.EqualValues(t, 15, marker.BaseOffset())
}

// H4, H8: a Produce that names a partition twice, which no broker minds: each
// part of the answer is mapped once, and the second is not let through where the
// first is refused.
func TestProduceNamesAPartitionTwice(t *testing.T) {
	b, h := stoppedBench(t)
	h.write(3, -1, false)
	twice := func() []kmsg.ProduceResponseTopicPartition {
		q := produceReq(-1, map[string][]byte{"m": dense(t, 0, 1, 5)})
		q.Topics[0].Partitions = append(q.Topics[0].Partitions, q.Topics[0].Partitions[0])
		return respond[*kmsg.ProduceResponse](b, q).Topics[0].Partitions
	}
	ps := twice()
	require.Len(t, ps, 2)
	for i, a := range ps {
		require.Zero(t, a.ErrorCode)
		require.EqualValues(t, 15+i, a.BaseOffset)
	}
	h.sync()
	h.part.lead(6)
	h.loseOnly(8)
	require.True(t, h.lost)
	b.pass(2 * soundFor)
	before := h.part.end()
	for _, a := range twice() {
		require.Equal(t, retryLater, a.ErrorCode)
	}
	require.Equal(t, before, h.part.end(), "nothing is sent")
}
