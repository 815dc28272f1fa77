package proxy

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"slices"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kmsg"
	"pgregory.net/rapid"

	"github.com/lockstep-kafka/lockstep/epoch"
	"github.com/lockstep-kafka/lockstep/protocol"
)

// Histories with native spans: what clients write while the partition is
// STOPPED, what the destination loses of it, and the start of the mirror again.

// stop opens a native span; tail source offsets behind the virtual end were
// skipped.
func (h *history) stop(tail int64, step int32) {
	h.saved = h.checkpoint()
	h.next[h.gen()] = protocol.Stamp{V: h.vend + tail, Hole: uint8(min(h.vend+tail-h.chain, 255)), Gen: h.gen(), Epoch: h.src}
	opening := stamp(h.t, dense(h.t, h.vend+tail, 1, h.ts), protocol.Stamp{V: h.vend + tail, Flags: epoch.FlagHidden, Gen: h.gen(), Epoch: max(h.src, 0)})
	h.part.put(opening)
	l, err := h.log.OpenNative(h.vend+tail, h.part.end(), h.part.epoch, step)
	if err != nil { // nothing was mirrored since the span began
		h.append(1, 0)
		l, err = h.log.OpenNative(h.vend+tail, h.part.end(), h.part.epoch, step)
		require.NoError(h.t, err)
	}
	h.log, h.native = l.WithLiveEnd(h.pend), true
	h.sync()
}

// sync: in a native span the end is the log's.
func (h *history) sync() {
	o := h.log.Open()
	h.vend = h.part.end() - o.PStart + o.VStart
	h.chain = h.vend
}

// joined is the chain, with the broker's own epochs of an open native span.
func (h *history) joined() epoch.Chain {
	h.part.endFor(0)
	return h.log.Joined(h.part.chain)
}

// write is what a client writes: n records, of a transaction when pid >= 0.
func (h *history) write(n int, pid int64, gone bool) {
	o := h.log.Open()
	b := dense(h.t, h.vend, n, h.ts)
	if pid >= 0 {
		transactional(b, pid, false)
	}
	p := h.part.put(b)
	v := p - o.PStart + o.VStart
	for i := range int64(n) {
		h.live = append(h.live, liveRecord{
			v: v + i, epoch: h.part.epoch + o.Bump, ts: h.ts, value: fmt.Sprint(v + i), batch: v, end: v + int64(n), p: p, gone: gone,
		})
	}
	h.pend = h.part.end()
	h.sync()
}

// transact writes a transaction of some batches and its end.
func (h *history) transact(abort bool, sizes ...int) {
	h.pids++
	first := h.part.end()
	for _, n := range sizes {
		h.write(n, h.pids%3, abort)
	}
	h.markers = append(h.markers, h.vend)
	marker := h.part.put(transactional(endMarker(h.t, abort, h.ts), h.pids%3, true))
	if abort {
		h.part.aborted = append(h.part.aborted, simTxn{h.pids % 3, first, marker})
	}
	h.sync()
}

// transactional sets the producer fields and attributes of a client's batch.
func transactional(b protocol.Batch, pid int64, control bool) protocol.Batch {
	attrs := uint16(1 << 4)
	if control {
		attrs |= 1 << 5
	}
	binary.BigEndian.PutUint16(b[21:], attrs)
	binary.BigEndian.PutUint64(b[43:], uint64(pid))
	binary.BigEndian.PutUint16(b[51:], 0)
	binary.BigEndian.PutUint32(b[53:], 0)
	binary.BigEndian.PutUint32(b[17:], crc32.Checksum(b[21:], crc32.MakeTable(crc32.Castagnoli)))
	return b
}

// endMarker is a transaction's marker, without the attributes.
func endMarker(t require.TestingT, abort bool, ts int64) protocol.Batch {
	typ := kmsg.ControlRecordKeyTypeCommit
	if abort {
		typ = kmsg.ControlRecordKeyTypeAbort
	}
	key := kmsg.ControlRecordKey{Type: typ}
	value := kmsg.EndTxnMarker{}
	rec := kmsg.Record{Key: key.AppendTo(nil), Value: value.AppendTo(nil)}
	rec.Length = int32(len(rec.AppendTo(nil)) - 1)
	payload := rec.AppendTo(nil)
	h := kmsg.RecordBatch{
		Length: int32(49 + len(payload)), Magic: 2, NumRecords: 1, FirstTimestamp: ts, MaxTimestamp: ts, Records: payload, ProducerID: -1,
	}
	b, _, err := protocol.NextBatch(h.AppendTo(nil))
	require.NoError(t, err)
	return b
}

// startAgain starts the mirror again, with a cut to t; the source has gone on under
// later epochs.
func (h *history) startAgain(t int64) {
	h.log = h.log.Join(h.part.chain)
	h.src = max(h.src, h.log.Chain.Newest()) + 1
	h.markers = nil
	h.native = false
	h.cut(t)
}

// loseNative: an unclean election takes the last n batches. Below the native
// span the owner opens a new one.
func (h *history) loseNative(n int) {
	if h.loseOnly(n); h.lost {
		h.repair()
	}
}

// loseOnly is loseNative without the owner.
func (h *history) loseOnly(n int) {
	h.part.truncate(n)
	end := h.part.end()
	h.live = slices.DeleteFunc(h.live, func(r liveRecord) bool { return r.p >= end })
	h.part.lead(h.part.epoch + 1)
	o := h.log.Open()
	if h.lost = end < o.PStart; !h.lost {
		h.markers = slices.DeleteFunc(h.markers, func(v int64) bool { return v >= end-o.PStart+o.VStart })
		h.sync()
	}
}

// repair is what the owner does when the log was cut below its native span.
func (h *history) repair() {
	r := h.log.NativeLost(h.part.chain, h.part.end())
	require.NotNil(h.t, r)
	vend := h.log.Spans[0].VStart
	h.pend = 0
	if n := len(h.live); n > 0 {
		vend = h.live[n-1].end
		for _, b := range h.part.batches {
			if b.BaseOffset() == h.live[n-1].p {
				h.pend = b.NextOffset()
			}
		}
	}
	if i := h.log.SpanAtP(r.P - 1); i >= 0 && h.log.Spans[i].Kind == epoch.Native { // markers count there
		s := h.log.Spans[i]
		vend, h.pend = s.VStart+r.P-s.PStart, r.P
		if i+1 < len(h.log.Spans) {
			vend = min(vend, h.log.Spans[i+1].VStart)
		}
	}
	l, err := h.log.OpenNative(vend, r.P, r.PEpoch, 0)
	require.NoError(h.t, err)
	h.log, h.lost = l.WithLiveEnd(h.pend), false
	h.markers = nil
	o := h.log.Open()
	for _, b := range h.part.batches { // written before the owner had ruled
		if b.BaseOffset() < r.P {
			continue
		}
		v := b.BaseOffset() - o.PStart + o.VStart
		require.NoError(h.t, protocol.Records(b, func(rec protocol.RecordView) bool {
			h.live = append(h.live, liveRecord{
				v: v + int64(rec.OffsetDelta), epoch: b.PartitionLeaderEpoch() + o.Bump, ts: b.Timestamp(rec), value: string(rec.Value),
				batch: v, end: v + b.NextOffset() - b.BaseOffset(), p: b.BaseOffset(),
			})
			return true
		}))
	}
	h.sync()
}

// drawNative is one step of a STOPPED partition.
func drawNative(t *rapid.T, h *history) {
	switch rapid.IntRange(0, 9).Draw(t, "native op") {
	case 0, 1, 2:
		h.write(rapid.IntRange(1, 4).Draw(t, "n"), -1, false)
	case 3, 4:
		h.transact(rapid.Bool().Draw(t, "abort"), rapid.SliceOfN(rapid.IntRange(1, 3), 1, 3).Draw(t, "sizes")...)
	case 5:
		if len(h.next) > 0 {
			gens := slices.Sorted(func(yield func(int16) bool) {
				for g := range h.next {
					if !yield(g) {
						return
					}
				}
			})
			h.late(rapid.SampledFrom(gens).Draw(t, "gen"), rapid.IntRange(1, 3).Draw(t, "n"))
			h.sync()
		}
	case 6:
		h.part.lead(h.part.epoch + 1)
	case 7:
		h.loseNative(rapid.IntRange(1, 5).Draw(t, "lost"))
	case 8:
		h.startAgain(rapid.SampledFrom(h.bases()).Draw(t, "cut"))
	case 9:
		h.startAgain(h.vend)
	}
}

// drawLater goes on with a STOPPED partition, without anything that its owner
// would have to rule on.
func drawLater(t *rapid.T, h *history) {
	for range rapid.IntRange(1, 6).Draw(t, "later") {
		h.ts += rapid.Int64Range(-50, 100).Draw(t, "dt")
		switch rapid.IntRange(0, 3).Draw(t, "later op") {
		case 0, 1:
			h.write(rapid.IntRange(1, 4).Draw(t, "n"), -1, false)
		case 2:
			h.part.lead(h.part.epoch + 1)
		case 3:
			if n := h.losable(); n > 0 {
				h.loseOnly(rapid.IntRange(1, n).Draw(t, "lost"))
				require.False(t, h.lost)
			}
		}
	}
}

// losable is how many batches the open native span has behind the last
// transaction, at most.
func (h *history) losable() (n int) {
	for i := len(h.part.batches) - 1; i >= 0; i-- {
		if b := h.part.batches[i]; b.BaseOffset() < h.log.Open().PStart || b.IsTransactional() {
			break
		}
		n++
	}
	return n
}

// committed is what a read_committed consumer, as Java's, keeps of an answer.
func committed(t require.TestingT, recs []liveRecord, p kmsg.FetchResponseTopicPartition) (out []liveRecord) {
	aborted := slices.Clone(p.AbortedTransactions)
	slices.SortFunc(aborted, func(a, b kmsg.FetchResponseTopicPartitionAbortedTransaction) int {
		return int(a.FirstOffset - b.FirstOffset)
	})
	gone := map[int64]bool{}
	records := p.RecordBatches
	for len(records) > 0 {
		b, rest, err := protocol.NextBatch(records)
		require.NoError(t, err)
		records = rest
		for len(aborted) > 0 && aborted[0].FirstOffset <= b.NextOffset()-1 {
			gone[aborted[0].ProducerID] = true
			aborted = aborted[1:]
		}
		switch {
		case b.IsControl():
			require.NoError(t, protocol.Records(b, func(r protocol.RecordView) bool {
				if binary.BigEndian.Uint16(r.Key[2:]) == 0 { // an abort
					delete(gone, b.ProducerID())
				}
				return true
			}))
		case b.IsTransactional() && gone[b.ProducerID()]:
		default:
			for _, r := range recs {
				if r.batch == b.BaseOffset() {
					out = append(out, r)
				}
			}
		}
	}
	return out
}
