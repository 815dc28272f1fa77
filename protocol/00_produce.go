package protocol

import (
	"encoding/binary"
	"fmt"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// ProduceRequest is a Produce request v0 to v13, walked, not copied: records
// alias the body. A handler marks partitions with Refuse, then sends on the rest
// (EncodeAllowed), and puts the answers together (MergeAnswer), or answers all
// by itself (AppendAnswer). acks=0 has no answer: a refusal closes the
// connection there, as Kafka does (M15).
type ProduceRequest struct {
	Version         int16
	TransactionalID []byte // v3+; nil: null. Aliases the body
	Acks            int16  // 0 none, 1 leader, −1 all
	TimeoutMillis   int32
	Topics          []ProduceTopic
	Tags            Tags
	body            []byte
	topicsAt        int // where the array of topics begins
}

// ProduceTopic: Name up to v12, ID from v13.
type ProduceTopic struct {
	Name       string
	ID         [16]byte
	Partitions []ProducePartition
	Tags       Tags
}

// ProducePartition is one partition's records.
type ProducePartition struct {
	Partition int32
	Records   []byte // aliases the body; nil: null
	// RecordsStart and RecordsEnd are where they lie in the body, [start,end).
	RecordsStart, RecordsEnd int

	start, end int // the whole entry in the body
	refused    bool
	code       int16
	message    string
}

// Refuse marks the partition: it is not sent on, and answered with code and,
// from v8, message. POLICY_VIOLATION (44) fails a producer at once; a retriable
// code keeps idempotent ones trying for ever.
func (p *ProducePartition) Refuse(code int16, message string) {
	p.refused, p.code, p.message = true, code, message
}

// Refused says whether Refuse was called.
func (p *ProducePartition) Refused() bool { return p.refused }

const (
	produceFlexible = 9
	produceTopicIDs = 13
	produceMax      = 13
)

// OldRecords: v0 to v2 carry message sets of magic 0 and 1 (KIP-98 came with
// v3), which can't hold what a mirror topic needs: refuse them there.
func (q *ProduceRequest) OldRecords() bool { return q.Version < 3 }

// Decode reads a body of the given version. On an error q is unusable.
func (q *ProduceRequest) Decode(version int16, body []byte) error {
	if version < 0 || version > produceMax {
		return fmt.Errorf("%w: Produce v%d", ErrUnknownVersion, version)
	}
	*q = ProduceRequest{Version: version, Topics: q.Topics[:0], body: body}
	r := wireReader{b: body, flex: version >= produceFlexible}
	if version >= 3 {
		if id, ok := r.nullableString(); ok {
			q.TransactionalID = id
		}
	}
	q.Acks = r.i16()
	q.TimeoutMillis = r.i32()
	q.topicsAt = r.off
	n, _ := r.arrayLen(produceTopicMin(version))
	for range n {
		var t *ProduceTopic
		q.Topics, t = grow(q.Topics)
		t.decode(version, &r)
		if r.err != nil {
			break
		}
	}
	q.Tags = r.tags()
	if err := r.done(); err != nil {
		return fmt.Errorf("produce request v%d: %w", version, err)
	}
	return nil
}

func produceTopicMin(version int16) int {
	switch {
	case version >= produceTopicIDs:
		return 16 + 1 + 1
	case version >= produceFlexible:
		return 1 + 1 + 1
	}
	return 2 + 4
}

func (t *ProduceTopic) decode(version int16, r *wireReader) {
	t.Partitions = t.Partitions[:0]
	if version >= produceTopicIDs {
		t.Name, t.ID = "", r.uuid()
	} else {
		t.Name, t.ID = keepString(t.Name, r.str()), [16]byte{}
	}
	n, _ := r.arrayLen(4 + 1)
	for range n {
		p := ProducePartition{start: r.off}
		p.Partition = r.i32()
		p.Records, _ = r.nullableBytes()
		p.RecordsEnd = r.off
		p.RecordsStart = r.off - len(p.Records)
		r.tags()
		p.end = r.off
		if r.err != nil {
			return
		}
		t.Partitions = append(t.Partitions, p)
	}
	t.Tags = r.tags()
}

// SetAcks changes acks, in the body too.
func (q *ProduceRequest) SetAcks(acks int16) {
	q.Acks = acks
	binary.BigEndian.PutUint16(q.body[q.topicsAt-6:], uint16(acks)) // acks and timeout stand before the topics
}

// Count gives the number of refused and of all partitions.
func (q *ProduceRequest) Count() (refused, all int) {
	for i := range q.Topics {
		all += len(q.Topics[i].Partitions)
		refused += q.Topics[i].refused()
	}
	return refused, all
}

func (t *ProduceTopic) refused() (n int) {
	for i := range t.Partitions {
		if t.Partitions[i].refused {
			n++
		}
	}
	return n
}

// EncodeAllowed writes the request without the refused partitions, and without
// topics that have none left, into parts (after a Reset of it). Every partition
// kept is one piece of the body it came in.
func (q *ProduceRequest) EncodeAllowed(parts *Parts) {
	parts.Reset()
	flex := q.Version >= produceFlexible
	topics := 0
	for i := range q.Topics {
		if t := &q.Topics[i]; t.refused() < len(t.Partitions) || len(t.Partitions) == 0 {
			topics++
		}
	}
	parts.payload(q.body[:q.topicsAt])
	parts.meta = appendCount(parts.meta, topics, flex)
	for i := range q.Topics {
		t := &q.Topics[i]
		refused := t.refused()
		if refused == len(t.Partitions) && refused > 0 {
			continue
		}
		if q.Version >= produceTopicIDs {
			parts.meta = append(parts.meta, t.ID[:]...)
		} else {
			parts.meta = appendStr(parts.meta, t.Name, flex)
		}
		parts.meta = appendCount(parts.meta, len(t.Partitions)-refused, flex)
		for j := range t.Partitions {
			if p := &t.Partitions[j]; !p.refused {
				parts.payload(q.body[p.start:p.end])
			}
		}
		if flex {
			parts.meta = t.Tags.appendTo(parts.meta)
		}
	}
	if flex {
		parts.meta = q.Tags.appendTo(parts.meta)
	}
}

// AppendAnswer appends an answer that holds the refused partitions only.
func (q *ProduceRequest) AppendAnswer(dst []byte) []byte {
	resp := kmsg.NewProduceResponse()
	resp.Version = q.Version
	q.addRefused(&resp)
	return resp.AppendTo(dst)
}

// MergeAnswer adds the refused partitions to the broker's answer to what
// EncodeAllowed sent. Topics keep the broker's order, refused ones come behind.
func (q *ProduceRequest) MergeAnswer(body []byte) ([]byte, error) {
	resp := kmsg.NewProduceResponse()
	if err := DecodeBody(q.Version, body, &resp); err != nil {
		return nil, err
	}
	q.addRefused(&resp)
	return resp.AppendTo(nil), nil
}

func (q *ProduceRequest) addRefused(resp *kmsg.ProduceResponse) {
	for i := range q.Topics {
		t := &q.Topics[i]
		if t.refused() == 0 {
			continue
		}
		var out *kmsg.ProduceResponseTopic
		for k := range resp.Topics {
			if o := &resp.Topics[k]; o.TopicID == t.ID && o.Topic == t.Name {
				out = o
				break
			}
		}
		if out == nil {
			o := kmsg.NewProduceResponseTopic()
			o.Topic, o.TopicID = t.Name, t.ID
			resp.Topics = append(resp.Topics, o)
			out = &resp.Topics[len(resp.Topics)-1]
		}
		for j := range t.Partitions {
			p := &t.Partitions[j]
			if !p.refused {
				continue
			}
			o := kmsg.NewProduceResponseTopicPartition()
			o.Partition, o.ErrorCode, o.BaseOffset = p.Partition, p.code, -1
			if p.message != "" {
				o.ErrorMessage = &p.message
			}
			out.Partitions = append(out.Partitions, o)
		}
	}
}
