package proxy

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/epoch"
	"github.com/lockstep-kafka/lockstep/protocol"
)

// The handlers' tests run against a simulated broker: logs of physical batches
// in memory, answering as Kafka 4.x does, behind an exchange whose loop and
// clock the test turns by hand.

// simRecord is a record of a batch to be built.
type simRecord struct {
	delta int32
	ts    int64
	value string
}

// simBatch builds a v2 batch as a producer on the source would have.
func simBatch(t require.TestingT, base int64, last int32, recs ...simRecord) protocol.Batch {
	var payload []byte
	h := kmsg.RecordBatch{
		FirstOffset: base, Magic: 2, LastOffsetDelta: last, ProducerID: -1, ProducerEpoch: -1, FirstSequence: -1, PartitionLeaderEpoch: -1,
		NumRecords: int32(len(recs)),
	}
	if len(recs) > 0 {
		h.FirstTimestamp, h.MaxTimestamp = recs[0].ts, recs[0].ts
	}
	for _, r := range recs {
		k := kmsg.Record{TimestampDelta64: r.ts - h.FirstTimestamp, OffsetDelta: r.delta, Value: []byte(r.value)}
		k.Length = int32(len(k.AppendTo(nil)) - 1)
		payload = k.AppendTo(payload)
		h.MaxTimestamp = max(h.MaxTimestamp, r.ts)
	}
	h.Records = payload
	h.Length = int32(49 + len(payload))
	b := protocol.Batch(h.AppendTo(nil))
	binary.BigEndian.PutUint32(b[17:], crc32.Checksum(b[21:], crc32.MakeTable(crc32.Castagnoli)))
	out, rest, err := protocol.NextBatch(b)
	require.NoError(t, err)
	require.Empty(t, rest)
	return out
}

// dense is a batch of n records without holes, values "<v>" from v on.
func dense(t require.TestingT, v int64, n int, ts int64) protocol.Batch {
	recs := make([]simRecord, n)
	for i := range recs {
		recs[i] = simRecord{int32(i), ts, fmt.Sprint(v + int64(i))}
	}
	return simBatch(t, v, int32(n-1), recs...)
}

// simPart is one partition on the simulated broker.
type simPart struct {
	batches   []protocol.Batch
	start     int64
	hw        int64 // -1: the log end
	lso       int64 // -1: the high watermark
	epoch     int32
	aborted   []simTxn    // transactions that were aborted
	chain     epoch.Chain // of leader epochs, kept by put, truncate and endFor
	preferred int32
}

// simTxn is a transaction: its first record's offset, and that of its marker.
type simTxn struct{ pid, first, marker int64 }

// lead makes e the leader epoch: it begins at the log end, as in a broker.
func (p *simPart) lead(e int32) {
	p.epoch = e
	p.chain = p.chain.Assign(e, p.end())
}

// truncate drops the last n batches, as a follower of a leader without them; no
// transaction is left open.
func (p *simPart) truncate(n int) {
	p.batches = p.batches[:max(0, len(p.batches)-n)]
	for i := len(p.batches); i > 0 && p.batches[i-1].IsTransactional() && !p.batches[i-1].IsControl(); i-- {
		p.batches = p.batches[:i-1]
	}
	p.chain = p.chain.Truncate(p.end())
	for n := len(p.aborted); n > 0 && p.aborted[n-1].marker >= p.end(); n-- {
		p.aborted = p.aborted[:n-1]
	}
}

// endFor is a broker's answer to OffsetForLeaderEpoch.
func (p *simPart) endFor(e int32) (int32, int64) {
	if p.chain.Newest() < p.epoch {
		p.lead(p.epoch)
	}
	return p.chain.AdvanceStart(p.start).EndOffsetFor(e, p.end())
}

func (p *simPart) end() int64 {
	if n := len(p.batches); n > 0 {
		return p.batches[n-1].NextOffset()
	}
	return p.start
}

func (p *simPart) high() int64 {
	if p.hw >= 0 {
		return p.hw
	}
	return p.end()
}

func (p *simPart) stable() int64 {
	if p.lso >= 0 {
		return p.lso
	}
	return p.high()
}

// put appends a batch, stamped or not, as Produce would.
func (p *simPart) put(b protocol.Batch) (base int64) {
	base = p.end()
	if p.chain.Newest() < p.epoch {
		p.lead(p.epoch)
	}
	b.SetBase(base, p.epoch)
	p.batches = append(p.batches, b)
	return base
}

// sim is the broker.
type sim struct {
	t       require.TestingT
	parts   map[partKey]*simPart
	ids     map[[16]byte]string
	deny    map[string]map[int16]int16       // topic → api key → error
	asked   []kmsg.Request                   // all but the forwarded
	reads   int                              // partitions fetched
	base    func(b protocol.Batch) int64     // of a batch that the broker has already, as it says; -1: it hasn't
	admin   func(kmsg.Request) kmsg.Response // the APIs of administrators
	onFetch func()                           // before a main Fetch (v13+, or by a client) is answered
	// leaveOut makes an answer of Fetch say nothing of a partition.
	leaveOut func(q *kmsg.FetchRequest, topic string, p int32) bool
}

func newSim(t require.TestingT) *sim {
	return &sim{t: t, parts: map[partKey]*simPart{}, ids: map[[16]byte]string{}, deny: map[string]map[int16]int16{}}
}

func (s *sim) part(topic string, p int32) *simPart {
	k := partKey{topic, p}
	if s.parts[k] == nil {
		s.parts[k] = &simPart{hw: -1, lso: -1, preferred: -1, epoch: 5}
	}
	return s.parts[k]
}

func (s *sim) refusal(topic string, key int16, p int32) (*simPart, int16) {
	if code := s.deny[topic][key]; code != 0 {
		return nil, code
	}
	part := s.parts[partKey{topic, p}]
	if part == nil {
		return nil, kerr.UnknownTopicOrPartition.Code
	}
	return part, 0
}

func (s *sim) answer(req kmsg.Request) kmsg.Response {
	s.asked = append(s.asked, req)
	switch q := req.(type) {
	case *kmsg.FetchRequest:
		return s.fetch(q)
	case *kmsg.ListOffsetsRequest:
		return s.listOffsets(q)
	case *kmsg.OffsetForLeaderEpochRequest:
		return s.epochs(q)
	case *kmsg.ProduceRequest:
		return s.produce(q)
	case *kmsg.DeleteRecordsRequest:
		return s.deleteRecords(q)
	}
	if s.admin == nil {
		require.FailNow(s.t, "unexpected request", "%T", req)
	}
	return s.admin(req)
}

func (s *sim) fetch(q *kmsg.FetchRequest) kmsg.Response {
	require.EqualValues(s.t, 0, q.SessionID, "the proxy keeps sessions itself")
	require.EqualValues(s.t, -1, q.SessionEpoch)
	if s.onFetch != nil {
		s.onFetch()
	}
	r := q.ResponseKind().(*kmsg.FetchResponse)
	left, first := int64(q.MaxBytes), true
	for _, t := range q.Topics {
		name := t.Topic
		unknownID := false
		if q.Version >= 13 {
			n, ok := s.ids[t.TopicID]
			name, unknownID = n, !ok
		}
		rt := kmsg.NewFetchResponseTopic()
		rt.Topic, rt.TopicID = t.Topic, t.TopicID
		for _, p := range t.Partitions {
			if s.leaveOut != nil && s.leaveOut(q, name, p.Partition) {
				continue
			}
			s.reads++
			a := kmsg.NewFetchResponseTopicPartition()
			a.Partition, a.HighWatermark, a.LastStableOffset, a.LogStartOffset = p.Partition, -1, -1, -1
			a.RecordBatches = []byte{}
			part, code := s.refusal(name, 1, p.Partition)
			switch {
			case unknownID:
				code = kerr.UnknownTopicID.Code
			case code != 0:
			case p.CurrentLeaderEpoch >= 0 && p.CurrentLeaderEpoch < part.epoch:
				code = kerr.FencedLeaderEpoch.Code
			case p.CurrentLeaderEpoch > part.epoch:
				code = kerr.UnknownLeaderEpoch.Code
			case q.Version >= 12 && p.LastFetchedEpoch >= 0:
				e, end := part.endFor(p.LastFetchedEpoch)
				switch {
				case e < 0 || p.FetchOffset < part.start:
					code = kerr.OffsetOutOfRange.Code
				case e < p.LastFetchedEpoch || end < p.FetchOffset:
					a.DivergingEpoch.Epoch, a.DivergingEpoch.EndOffset = e, end
				}
			}
			if code == 0 && a.DivergingEpoch.EndOffset < 0 && (p.FetchOffset < part.start || p.FetchOffset > part.end()) {
				code = kerr.OffsetOutOfRange.Code
			}
			if a.ErrorCode = code; code == 0 && a.DivergingEpoch.EndOffset < 0 {
				a.HighWatermark, a.LastStableOffset, a.LogStartOffset = part.high(), part.stable(), part.start
				a.PreferredReadReplica = part.preferred
				limit := part.high()
				if q.IsolationLevel == 1 {
					limit = part.stable()
				}
				room := min(left, int64(p.PartitionMaxBytes))
				for _, b := range part.batches {
					if b.NextOffset() <= p.FetchOffset || b.NextOffset() > limit {
						continue
					}
					if first || int64(len(b)) <= room {
						a.RecordBatches = append(a.RecordBatches, b...)
					} else {
						a.RecordBatches = append(a.RecordBatches, b[:max(room, 0)]...)
						break
					}
					room -= int64(len(b))
					first = false
				}
				left -= int64(len(a.RecordBatches))
				if q.IsolationLevel == 1 {
					for _, txn := range part.aborted { // all up to the end: a broker may name too many
						if txn.marker >= p.FetchOffset {
							at := kmsg.NewFetchResponseTopicPartitionAbortedTransaction()
							at.ProducerID, at.FirstOffset = txn.pid, txn.first
							a.AbortedTransactions = append(a.AbortedTransactions, at)
						}
					}
				}
			}
			rt.Partitions = append(rt.Partitions, a)
		}
		r.Topics = append(r.Topics, rt)
	}
	return r
}

func (s *sim) listOffsets(q *kmsg.ListOffsetsRequest) kmsg.Response {
	r := q.ResponseKind().(*kmsg.ListOffsetsResponse)
	for _, t := range q.Topics {
		rt := kmsg.NewListOffsetsResponseTopic()
		rt.Topic = t.Topic
		for _, p := range t.Partitions {
			a := kmsg.NewListOffsetsResponseTopicPartition()
			a.Partition, a.Timestamp, a.Offset = p.Partition, -1, -1
			part, code := s.refusal(t.Topic, 2, p.Partition)
			if a.ErrorCode = code; code == 0 {
				s.offsetOf(part, q, p.Timestamp, &a)
			}
			rt.Partitions = append(rt.Partitions, a)
		}
		r.Topics = append(r.Topics, rt)
	}
	return r
}

func (s *sim) offsetOf(p *simPart, q *kmsg.ListOffsetsRequest, ts int64, a *kmsg.ListOffsetsResponseTopicPartition) {
	a.LeaderEpoch = p.epoch
	switch ts {
	case protocol.TimestampLatest:
		if a.Offset = p.high(); q.IsolationLevel == 1 {
			a.Offset = p.stable()
		}
		return
	case protocol.TimestampEarliest, protocol.TimestampEarliestLocal:
		a.Offset = p.start
		p.endFor(0)
		a.LeaderEpoch = p.chain.At(p.start)
		return
	case protocol.TimestampLatestTiered, protocol.TimestampEarliestUpload:
		return
	}
	best := int64(-1)
	for _, b := range p.batches {
		err := protocol.Records(b, func(r protocol.RecordView) bool {
			at, t := b.BaseOffset()+int64(r.OffsetDelta), b.Timestamp(r)
			if at < p.start || at >= p.high() {
				return true
			}
			if ts == protocol.TimestampMax {
				if a.Offset < 0 || t > best {
					best, a.Offset, a.Timestamp = t, at, t
				}
			} else if a.Offset < 0 && t >= ts {
				a.Offset, a.Timestamp = at, t
			}
			return true
		})
		require.NoError(s.t, err)
	}
}

func (s *sim) epochs(q *kmsg.OffsetForLeaderEpochRequest) kmsg.Response {
	r := q.ResponseKind().(*kmsg.OffsetForLeaderEpochResponse)
	for _, t := range q.Topics {
		rt := kmsg.NewOffsetForLeaderEpochResponseTopic()
		rt.Topic = t.Topic
		for _, p := range t.Partitions {
			a := kmsg.NewOffsetForLeaderEpochResponseTopicPartition()
			a.Partition, a.LeaderEpoch, a.EndOffset = p.Partition, -1, -1
			part, code := s.refusal(t.Topic, 23, p.Partition)
			switch {
			case code != 0:
			case p.CurrentLeaderEpoch >= 0 && p.CurrentLeaderEpoch < part.epoch:
				code = kerr.FencedLeaderEpoch.Code
			case p.CurrentLeaderEpoch > part.epoch:
				code = kerr.UnknownLeaderEpoch.Code
			default:
				a.LeaderEpoch, a.EndOffset = part.endFor(p.LeaderEpoch)
			}
			a.ErrorCode = code
			rt.Partitions = append(rt.Partitions, a)
		}
		r.Topics = append(r.Topics, rt)
	}
	return r
}

func (s *sim) produce(q *kmsg.ProduceRequest) kmsg.Response {
	r := q.ResponseKind().(*kmsg.ProduceResponse)
	for _, t := range q.Topics {
		rt := kmsg.NewProduceResponseTopic()
		rt.Topic, rt.TopicID = t.Topic, t.TopicID
		name := t.Topic
		if q.Version >= 13 {
			name = s.ids[t.TopicID]
		}
		for _, p := range t.Partitions {
			a := kmsg.NewProduceResponseTopicPartition()
			a.Partition, a.BaseOffset = p.Partition, -1
			part, code := s.refusal(name, 0, p.Partition)
			if code == 0 && len(p.Records) == 0 {
				code = kerr.InvalidRecord.Code // ProduceRequest.validateRecords
			}
			if a.ErrorCode = code; code == 0 {
				b, _, err := protocol.NextBatch(append([]byte(nil), p.Records...))
				require.NoError(s.t, err)
				if s.base != nil {
					a.BaseOffset = s.base(b)
				}
				if a.BaseOffset < 0 {
					a.BaseOffset = part.put(b)
				}
			}
			rt.Partitions = append(rt.Partitions, a)
		}
		r.Topics = append(r.Topics, rt)
	}
	return r
}

func (s *sim) deleteRecords(q *kmsg.DeleteRecordsRequest) kmsg.Response {
	r := q.ResponseKind().(*kmsg.DeleteRecordsResponse)
	for _, t := range q.Topics {
		rt := kmsg.NewDeleteRecordsResponseTopic()
		rt.Topic = t.Topic
		for _, p := range t.Partitions {
			a := kmsg.NewDeleteRecordsResponseTopicPartition()
			a.Partition, a.LowWatermark = p.Partition, -1
			part, code := s.refusal(t.Topic, 21, p.Partition)
			if a.ErrorCode = code; code == 0 {
				if p.Offset == -1 {
					p.Offset = part.high()
				}
				part.start = max(part.start, p.Offset)
				a.LowWatermark = part.start
			}
			rt.Partitions = append(rt.Partitions, a)
		}
		r.Topics = append(r.Topics, rt)
	}
	return r
}

// logOf is a log with one mirrored span from v 0 and p 0, generation 1, under
// physical epoch 5, source epoch 3 from offset 0.
func logOf(t require.TestingT) *epoch.Log {
	l, err := (&epoch.Log{Bump: 10}).Restart(0, 0, 5, 1)
	require.NoError(t, err)
	return l.WithEpoch(3, 0)
}

// stamp marks a batch as mirrored.
func stamp(t require.TestingT, b protocol.Batch, s protocol.Stamp) protocol.Batch {
	require.NoError(t, b.WriteStamp(s))
	return b
}
