package proxy

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kmsg"
	"pgregory.net/rapid"

	"github.com/lockstep-kafka/lockstep/epoch"
	"github.com/lockstep-kafka/lockstep/internal/histories"
	"github.com/lockstep-kafka/lockstep/internal/ledger"
	"github.com/lockstep-kafka/lockstep/protocol"
)

// liveRecord is a record that clients are to see, and the physical batch it
// lies in.
type liveRecord struct {
	v     int64
	epoch int32
	ts    int64
	value string
	batch int64 // virtual base of its batch
	end   int64 // virtual end of its batch
	p     int64 // physical base of its batch
	gone  bool  // of an aborted transaction
}

// history plays the owner of one mirror partition: what it does to the physical
// log, to the ledger's log, and to what clients are to see.
type history struct {
	t     require.TestingT
	log   *epoch.Log
	part  *simPart
	live  []liveRecord
	vend  int64 // of the last live batch, or where the span began
	chain int64 // where the next hole counts from
	pend  int64 // physical end of the last live batch
	src   int32
	ts    int64

	old  []protocol.Batch         // live ones as they were sent, for late copies
	next map[int16]protocol.Stamp // what the owner of an older generation had still in flight

	native  bool // STOPPED
	lost    bool // the log was cut below the native span, and the owner has not ruled yet
	saved   *ledger.Checkpoint
	markers []int64 // virtual offsets of transaction markers in native spans
	pids    int64
}

func newHistory(t require.TestingT, part *simPart) *history { return newHistoryAt(t, part, 5) }

// newHistoryAt begins under the destination's leader epoch pe.
func newHistoryAt(t require.TestingT, part *simPart, pe int32) *history {
	l, err := (&epoch.Log{Bump: 10}).Restart(0, 0, pe, 1)
	require.NoError(t, err)
	l = l.WithEpoch(3, 0)
	part.epoch = pe
	return &history{t: t, log: l, part: part, src: 3, ts: 1000, next: map[int16]protocol.Stamp{}}
}

func (h *history) gen() int16 { return h.log.Open().Gen }

// append mirrors a batch of n records, hole offsets behind the last.
func (h *history) append(n int, hole int64) {
	v := h.vend + hole
	h.put(dense(h.t, v, n, h.ts), v, int64(n), 0)
}

// appendHoles mirrors a batch that has holes inside: first and last of the
// given deltas, renumbered.
func (h *history) appendHoles(hole int64, last int32, deltas ...int32) {
	v := h.vend + hole
	var recs []simRecord
	for i, d := range deltas {
		recs = append(recs, simRecord{d, h.ts + int64(i), fmt.Sprint(v + int64(d))})
	}
	b, err := protocol.Densify(simBatch(h.t, v, last, recs...), false, 1<<20)
	require.NoError(h.t, err)
	h.put(b, v, int64(last)+1, epoch.FlagRenumbered, deltas...)
}

func (h *history) put(b protocol.Batch, v, vcount int64, flags uint8, deltas ...int32) {
	count := int64(b.LastOffsetDelta()) + 1
	stamp(h.t, b, protocol.Stamp{V: v, Hole: uint8(min(v-h.chain, 255)), Flags: flags, Gen: h.gen(), Epoch: h.src})
	h.log = h.log.WithEpoch(h.src, v)
	if h.src > h.log.Shown(h.part.epoch) { // nothing is appended before the bump is in the ledger
		h.log = h.log.Raised(h.src, h.part.epoch, epoch.FenceHeadroom)
	}
	h.old = append(h.old, slices.Clone(b))
	p := h.part.put(b)
	if deltas == nil {
		for i := range int32(count) {
			deltas = append(deltas, i)
		}
	}
	for i, d := range deltas {
		ts := h.ts
		if flags&epoch.FlagRenumbered != 0 {
			ts += int64(i)
		}
		h.live = append(h.live, liveRecord{v: v + int64(d), epoch: h.src, ts: ts, value: fmt.Sprint(v + int64(d)), batch: v, end: v + vcount, p: p})
	}
	h.vend, h.chain, h.pend = v+vcount, v+count, p+count
}

// foreign: somebody writes past Lockstep.
func (h *history) foreign(n int) { h.part.put(dense(h.t, 7_000_000, n, h.ts)) }

// late: a write that an older owner had in flight lands.
func (h *history) late(gen int16, n int) {
	s := h.next[gen]
	h.part.put(stamp(h.t, dense(h.t, s.V, n, h.ts), s))
}

// again: a write of an older owner that was answered with a time-out lands once
// more. (An owner itself never sends anything twice in one generation.)
func (h *history) again(i int) {
	if s, _ := h.old[i].ReadStamp(); s.Gen != h.gen() {
		h.part.put(slices.Clone(h.old[i]))
	}
}

// takeOver opens a new generation at the virtual end.
func (h *history) takeOver() { h.cut(h.vend) }

// elect: the destination's leader changes, and with it the generation.
func (h *history) elect() {
	h.part.lead(h.part.epoch + 1)
	h.takeOver()
}

// cut to t, a batch's base or the end.
func (h *history) cut(t int64) {
	h.next[h.gen()] = protocol.Stamp{V: h.vend, Hole: uint8(min(h.vend-h.chain, 255)), Gen: h.gen(), Epoch: h.src}
	gen, err := h.log.NextGeneration(nil)
	require.NoError(h.t, err)
	cut := h.log.Cut
	if t < h.vend {
		cut = h.log.CutLive
	}
	h.live = slices.DeleteFunc(h.live, func(r liveRecord) bool { return r.v >= t })
	// Where live batches end: behind the last one that stays.
	h.pend = 0
	if n := len(h.live); n > 0 {
		for _, b := range h.part.batches {
			if b.BaseOffset() == h.live[n-1].p {
				h.pend = b.NextOffset()
			}
		}
	}
	l, err := cut(t, h.part.end(), h.part.epoch, gen)
	if err != nil { // a second span at the same place: write something between
		h.foreign(1)
		l, err = cut(t, h.part.end(), h.part.epoch, gen)
		require.NoError(h.t, err)
	}
	h.log = l.WithLiveEnd(h.pend)
	h.vend = h.log.Open().VStart
	h.chain = h.vend
}

// lose: the destination loses its last n batches in an unclean election; the
// owner finds out, and goes on behind the last live batch that is left.
func (h *history) lose(n int) {
	h.part.truncate(n)
	end := h.part.end()
	h.live = slices.DeleteFunc(h.live, func(r liveRecord) bool { return r.p >= end })
	h.part.lead(h.part.epoch + 1)
	vend := h.log.Spans[0].VStart
	if n := len(h.live); n > 0 {
		vend = h.live[n-1].end
	}
	h.cut(vend)
}

// gap: a batch lands although the one before it was lost; the owner has not
// ruled yet.
func (h *history) gap() {
	v := h.vend + 2
	h.part.put(stamp(h.t, dense(h.t, v, 2, h.ts), protocol.Stamp{V: v, Gen: h.gen(), Epoch: h.src}))
	h.log = h.log.WithEpoch(h.src, v)
}

// retain drops what lies below physical offset p.
func (h *history) retain(p int64) {
	h.part.start = p
	h.part.batches = slices.DeleteFunc(h.part.batches, func(b protocol.Batch) bool { return b.NextOffset() <= p })
	h.live = slices.DeleteFunc(h.live, func(r liveRecord) bool { return r.p < p })
}

// bases are the virtual offsets at which the log may be cut.
func (h *history) bases() []int64 {
	out := []int64{h.vend}
	for _, v := range h.markers { // between what a transaction wrote and its end
		if n := len(h.live); n > 0 && v >= h.live[0].batch && v < h.vend {
			out = append(out, v)
		}
	}
	for _, r := range h.live {
		out = append(out, r.batch)
	}
	return slices.Compact(slices.Sorted(slices.Values(out)))
}

// start of what clients see.
func (h *history) start() int64 {
	if h.part.start <= h.log.Spans[0].PStart {
		return max(h.log.Start, h.log.Spans[0].VStart)
	}
	if o := h.log.Open(); h.native && h.part.start >= o.PStart {
		return h.part.start - o.PStart + o.VStart
	}
	for _, b := range h.part.batches {
		at, verdict := h.log.Classify(headerOf(b))
		if verdict == epoch.Live && jump(h.log, at.P) == at.P {
			return max(h.log.Start, at.V)
		}
	}
	if h.native {
		return h.log.Open().VStart
	}
	return h.vend
}

// checkpoint is what the owner would have written now.
func (h *history) checkpoint() *ledger.Checkpoint {
	if h.native {
		return h.saved
	}
	return &ledger.Checkpoint{
		Topic: "m", Lineage: "a", Gen: h.gen(), Under: h.gen(), V: h.end(), ChainEnd: h.chain, P: max(h.pend, h.log.Open().PStart), Position: h.vend, EndShown: h.vend,
	}
}

// fetchOne asks for one partition.
func fetchOne(version int16, topic string, id [16]byte, offset int64, maxBytes int32) *kmsg.FetchRequest {
	q := kmsg.NewPtrFetchRequest()
	q.Version, q.MaxWaitMillis, q.MinBytes, q.MaxBytes = version, 500, 1, 1<<20
	q.SessionEpoch = -1
	p := kmsg.NewFetchRequestTopicPartition()
	p.FetchOffset, p.PartitionMaxBytes = offset, maxBytes
	q.Topics = []kmsg.FetchRequestTopic{{Topic: topic, TopicID: id, Partitions: []kmsg.FetchRequestTopicPartition{p}}}
	return q
}

// readBatches takes a partition's answer apart; every batch must be as on the
// source: right CRC, no stamp.
func readBatches(t require.TestingT, records []byte) (out []liveRecord, next int64) {
	next = -1
	for len(records) > 0 {
		b, rest, err := protocol.NextBatch(records)
		require.NoError(t, err)
		require.True(t, b.CheckCRC())
		if !b.IsTransactional() { // those are from clients here
			require.EqualValues(t, -1, b.ProducerID())
			require.EqualValues(t, -1, b.ProducerEpoch())
			require.EqualValues(t, -1, b.BaseSequence())
		}
		records = rest
		if b.IsControl() {
			next = b.NextOffset()
			continue
		}
		require.NoError(t, protocol.Records(b, func(r protocol.RecordView) bool {
			out = append(out, liveRecord{
				v: b.BaseOffset() + int64(r.OffsetDelta), epoch: b.PartitionLeaderEpoch(), ts: b.Timestamp(r), value: string(r.Value), batch: b.BaseOffset(), end: b.NextOffset(),
			})
			return true
		}))
		require.GreaterOrEqual(t, b.BaseOffset(), next)
		next = b.NextOffset()
	}
	return out, next
}

// drawHistory makes a random one.
func drawHistory(t *rapid.T, part *simPart) *history {
	h := newHistory(t, part)
	for range rapid.IntRange(0, 30).Draw(t, "steps") {
		drawStep(t, h)
	}
	require.NoError(t, h.log.Validate())
	return h
}

// drawStep is one random step of its owner, of clients or of the destination.
func drawStep(t *rapid.T, h *history) {
	h.ts += rapid.Int64Range(-50, 100).Draw(t, "dt")
	if h.native {
		drawNative(t, h)
		return
	}
	switch op := rapid.IntRange(0, 13).Draw(t, "op"); op {
	case 0, 1, 2, 3:
		h.append(rapid.IntRange(1, 4).Draw(t, "n"), rapid.SampledFrom([]int64{0, 0, 0, 1, 3, 300}).Draw(t, "hole"))
	case 4:
		last := rapid.Int32Range(1, 9).Draw(t, "last")
		deltas := []int32{}
		for d := range last + 1 {
			if rapid.Bool().Draw(t, "kept") {
				deltas = append(deltas, d)
			}
		}
		if len(deltas) == 0 {
			deltas = append(deltas, last/2)
		}
		if len(deltas) == int(last)+1 {
			deltas = deltas[1:]
		}
		h.appendHoles(rapid.Int64Range(0, 3).Draw(t, "hole"), last, deltas...)
	case 5, 6:
		h.foreign(rapid.IntRange(1, 6).Draw(t, "n"))
	case 7:
		if h.gen() > 1 {
			h.late(rapid.Int16Range(1, h.gen()-1).Draw(t, "gen"), rapid.IntRange(1, 4).Draw(t, "n"))
		}
		if len(h.old) > 0 {
			h.again(rapid.IntRange(0, len(h.old)-1).Draw(t, "again"))
		}
	case 8:
		h.takeOver()
	case 9:
		h.elect()
	case 10:
		h.src += rapid.Int32Range(1, 2).Draw(t, "epochs")
		h.cut(rapid.SampledFrom(h.bases()).Draw(t, "cut"))
	case 11:
		h.src++
	case 12:
		h.lose(rapid.IntRange(1, 5).Draw(t, "lost"))
	case 13:
		h.stop(rapid.Int64Range(0, 2).Draw(t, "tail"), rapid.Int32Range(1, 1000).Draw(t, "bump"))
	}
}

// TestFetchShowsExactlyTheLiveRecords: whatever lies in the physical log, a
// client that fetches from anywhere gets the live records from there on, in
// order, each once, never anything else, and its reading ends.
func TestFetchShowsExactlyTheLiveRecords(t *testing.T) {
	histories.Check(t, func(rt *rapid.T) {
		b := newBenchOn(t, rt)
		h := drawHistory(rt, b.sim.part("m", 0))
		if rapid.Bool().Draw(rt, "retention") && len(h.part.batches) > 0 {
			h.retain(h.part.batches[rapid.IntRange(0, len(h.part.batches)-1).Draw(rt, "from")].BaseOffset())
		} else if !h.native && rapid.Bool().Draw(rt, "gap") {
			h.gap()
		}
		lp := b.mirror("m", 0, h.log)
		id := b.id("m", 1)
		knows := rapid.IntRange(0, 2).Draw(rt, "knows")
		if h.native {
			knows = min(knows, 1)
		}
		if len(h.live) == 0 && h.part.start > 0 {
			knows = max(knows, 1) // only a checkpoint keeps the end of an emptied log
		}
		switch knows {
		case 1:
			lp.Checkpoint = h.checkpoint()
		case 2:
			lp.Live.Publish(ledger.Tail{VEnd: h.vend, Position: h.vend, PEnd: max(h.pend, h.log.Open().PStart), EverShown: h.vend, Gen: h.log.Open().Gen})
		}
		seed := rapid.Uint64().Draw(rt, "seed")
		rnd := rand.New(rand.NewPCG(seed, 1))
		for range 3 {
			start, end := h.start(), h.vend
			if start > end {
				start = end
			}
			at := start + rnd.Int64N(end-start+1)
			readAll(rt, b, h, id, at, rnd)
		}
	})
}

// readAll reads from virtual offset at to the end.
func readAll(t *rapid.T, b *bench, h *history, id [16]byte, at int64, rnd *rand.Rand) {
	readSome(t, b, h, id, at, rnd, 1<<30)
}

// readSome is readAll for at most so many answers; it returns where it stands.
func readSome(t *rapid.T, b *bench, h *history, id [16]byte, at int64, rnd *rand.Rand, answers int) int64 {
	rc := rnd.IntN(3) == 0
	var want, got []liveRecord
	for _, r := range h.live {
		if r.v >= at && (!rc || !r.gone) {
			r.p, r.gone = 0, false
			want = append(want, r)
		}
	}
	version := []int16{4, 6, 7, 11, 12, 13, 18}[rnd.IntN(7)]
	sessions := version >= 7 && rnd.IntN(2) == 0
	var session int32
	var epoch int32
	pos, idle := at, 0
	for rounds := 0; idle < 2 && rounds < answers; rounds++ {
		require.Less(t, rounds, 3*len(h.part.batches)+20, "no end: at %d of %d", pos, h.vend)
		q := fetchOne(version, "m", id, pos, int32(1+rnd.IntN(600)))
		if sessions {
			q.SessionID, q.SessionEpoch = session, epoch
			if session != 0 && rnd.IntN(3) == 0 && idle > 0 {
				q.Topics = nil // nothing changed
			}
		}
		if rc {
			q.IsolationLevel = 1
		}
		r := b.run(q)
		require.False(t, r.forwarded)
		require.NoError(t, r.err)
		resp := q.ResponseKind().(*kmsg.FetchResponse)
		require.NoError(t, resp.ReadFrom(r.body))
		require.Zero(t, resp.ErrorCode)
		if sessions {
			session, epoch = resp.SessionID, nextSessionEpoch(epoch)
			require.NotZero(t, session)
		}
		idle++
		for _, rt := range resp.Topics {
			for _, p := range rt.Partitions {
				require.Zero(t, p.ErrorCode, "at %d", pos)
				require.LessOrEqual(t, p.HighWatermark, h.vend)
				require.Equal(t, p.HighWatermark, p.LastStableOffset)
				if version >= 5 {
					require.Equal(t, h.start(), p.LogStartOffset)
				}
				recs, next := readBatches(t, p.RecordBatches)
				if next < 0 {
					continue
				}
				if rc {
					recs = committed(t, recs, p)
				}
				require.Greater(t, next, pos, "no progress")
				require.GreaterOrEqual(t, p.HighWatermark, next)
				for _, r := range recs {
					if r.v >= pos {
						got = append(got, r)
					}
				}
				pos, idle = next, 0
			}
		}
	}
	if idle < 2 {
		require.LessOrEqual(t, len(got), len(want))
		want = append([]liveRecord{}, want...)
		require.Equal(t, want[:len(got)], append([]liveRecord{}, got...), "from %d", at)
		return pos
	}
	require.Equal(t, want, got, "from %d", at)
	if len(want) > 0 && !h.native {
		require.GreaterOrEqual(t, pos, want[len(want)-1].end)
	}
	return pos
}
