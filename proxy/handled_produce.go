package proxy

import (
	"errors"
	"fmt"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/epoch"
	"github.com/lockstep-kafka/lockstep/internal/ledger"
	"github.com/lockstep-kafka/lockstep/protocol"
)

// produce is one Produce request with a mirror topic in it. What may not be
// written is taken out, the rest is sent on, and the answers are put together
// (M15).
type produce struct {
	h        *handlers
	x        exchange
	q        protocol.ProduceRequest
	name     map[*protocol.ProducePartition]string
	writable bool // a STOPPED partition is in it: its answer has to be mapped
}

func (h *handlers) handleProduce(x exchange, version int16, body []byte) {
	f := &produce{h: h, x: x, name: map[*protocol.ProducePartition]string{}}
	if err := f.q.Decode(version, body); err != nil {
		badRequest(x, err)
		return
	}
	first := ""
	for i := range f.q.Topics {
		t := &f.q.Topics[i]
		name, ok := h.mirrorTopic(t.Name, t.ID)
		if !ok {
			continue
		}
		for j := range t.Partitions {
			p := &t.Partitions[j]
			f.name[p] = name
			code, message := h.mayProduce(name, t.ID, p)
			if code == 0 {
				f.writable = true
				continue
			}
			if first == "" {
				first = message
			}
			p.Refuse(code, message)
			if h.count.refused != nil {
				h.count.refused(name, p.Partition, "Produce")
			}
		}
	}
	refused, all := f.q.Count()
	switch {
	case refused == 0 && !f.writable:
		x.Forward()
	case refused > 0 && f.q.Acks == 0:
		x.Close(ReasonAcks0Refused, fmt.Errorf("produce with acks=0 refused: %s", first))
	case f.q.Acks == 0:
		x.Forward()
	case refused == 0:
		f.sendOn()
	case refused == all:
		f.authorise(func() { x.Reply([][]byte{f.q.AppendAnswer(nil)}) })
	default:
		f.authorise(f.sendOn)
	}
}

// mayProduce says whether a client may write to a mirror partition now.
// POLICY_VIOLATION fails a producer at once, with the message; KIP-1279's
// READ_ONLY_TOPIC is unknown to today's clients.
func (h *handlers) mayProduce(topic string, id [16]byte, p *protocol.ProducePartition) (code int16, message string) {
	lp := h.partition(partKey{topic, p.Partition}, id)
	if lp == nil {
		return retryLater, fmt.Sprintf("topic %s partition %d belongs to a mirror whose state is not known right now", topic, p.Partition)
	}
	if !lp.Record.State.Writable() {
		return kerr.PolicyViolation.Code, fmt.Sprintf("topic %s partition %d is mirrored by mirror %q and is %s: read-only until the mirror is stopped",
			topic, p.Partition, lp.Record.Mirror, lp.Record.State)
	}
	for rest := p.Records; len(rest) > 0; {
		b, after, err := protocol.NextBatch(rest)
		if err != nil {
			break // the broker says what is wrong with it
		}
		if b.ProducerID() < -1 { // looks like a stamp (M14)
			return kerr.InvalidRecord.Code, fmt.Sprintf("topic %s partition %d: producer id %d is reserved for mirroring", topic, p.Partition, b.ProducerID())
		}
		rest = after
	}
	return 0, ""
}

// authorise asks the broker as the client what it says to an empty produce to
// the refused partitions: who may not write, or writes to what isn't there, is
// told so and not what we know of it. A broker authorises first and then
// answers INVALID_RECORD to an empty set of records, without writing anything.
func (f *produce) authorise(done func()) {
	req := kmsg.NewPtrProduceRequest()
	req.Version, req.Acks, req.TimeoutMillis = f.q.Version, -1, f.q.TimeoutMillis
	type place struct {
		topic string
		id    [16]byte
		p     int32
	}
	at := map[place]*protocol.ProducePartition{}
	for i := range f.q.Topics {
		t := &f.q.Topics[i]
		rt := kmsg.NewProduceRequestTopic()
		rt.Topic, rt.TopicID = t.Name, t.ID
		for j := range t.Partitions {
			p := &t.Partitions[j]
			if !p.Refused() {
				continue
			}
			at[place{t.Name, t.ID, p.Partition}] = p
			rp := kmsg.NewProduceRequestTopicPartition()
			rp.Partition, rp.Records = p.Partition, []byte{}
			rt.Partitions = append(rt.Partitions, rp)
		}
		if len(rt.Partitions) > 0 {
			req.Topics = append(req.Topics, rt)
		}
	}
	ask(f.x, req, func(r *kmsg.ProduceResponse) {
		for _, t := range r.Topics {
			for _, a := range t.Partitions {
				p := at[place{t.Topic, t.TopicID, a.Partition}]
				if p == nil {
					continue
				}
				switch a.ErrorCode {
				case 0, kerr.InvalidRecord.Code, kerr.CorruptMessage.Code, kerr.PolicyViolation.Code:
				default:
					message := ""
					if a.ErrorMessage != nil {
						message = *a.ErrorMessage
					}
					p.Refuse(a.ErrorCode, message)
				}
			}
		}
		done()
	})
}

// sendOn sends what is allowed, and merges the answers.
func (f *produce) sendOn() {
	var parts protocol.Parts
	f.q.EncodeAllowed(&parts)
	f.x.AskFrame(protocol.KeyProduce, f.q.Version, parts.Bufs(), func(body []byte, err error) {
		if err == nil {
			err = protocol.AdjustLeaderEpochs(protocol.KeyProduce, f.q.Version, body, f.h.shownEpoch)
		}
		to := addresses(f.x)
		if err == nil && (f.writable || to == nil) {
			body, err = f.mapAnswer(body, to == nil)
		}
		if err == nil {
			body, err = f.q.MergeAnswer(body)
		}
		if err == nil && to != nil {
			body, err = protocol.RewriteAddresses(protocol.KeyProduce, f.q.Version, body, to)
		}
		if err != nil {
			if !errors.Is(err, errExchangeOver) {
				f.x.Close(ReasonProtocolError, err)
			}
			return
		}
		f.x.Reply([][]byte{body})
	})
}

// mapAnswer turns the base offsets of STOPPED mirror partitions into virtual
// ones; strip takes out the node endpoints.
func (f *produce) mapAnswer(body []byte, strip bool) ([]byte, error) {
	r := kmsg.NewPtrProduceResponse()
	if err := protocol.DecodeBody(f.q.Version, body, r); err != nil {
		return nil, fmt.Errorf("produce answer: %w", err)
	}
	if strip {
		r.Brokers = nil
	}
	for i := range r.Topics {
		t := &r.Topics[i]
		name, ok := f.h.mirrorTopic(t.Topic, t.TopicID)
		if !ok {
			continue
		}
		for j := range t.Partitions {
			f.mapPartition(partKey{name, t.Partitions[j].Partition}, t.TopicID, &t.Partitions[j])
		}
	}
	return r.AppendTo(nil), nil
}

// mapPartition maps by the span that contains the answered base, never by the
// newest shift (H8): a base in a native span is its v; one in a dead zone or a
// mirrored span was a duplicate of a record that a cut has removed, or a write
// that landed after one, and the producer must not count it as written.
func (f *produce) mapPartition(k partKey, id [16]byte, a *kmsg.ProduceResponseTopicPartition) {
	a.LogStartOffset = -1
	if a.ErrorCode != 0 || a.BaseOffset < 0 {
		return
	}
	p := f.h.partition(k, id)
	if p == nil {
		f.mapFailed(a, retryLater)
		return
	}
	v, ok := nativeOffset(p, a.BaseOffset)
	if !ok {
		f.mapFailed(a, kerr.UnknownProducerID.Code)
		return
	}
	a.BaseOffset = v
	if first, ok := f.h.startKnown(k, p, 0); ok {
		a.LogStartOffset = first
	}
}

func (f *produce) mapFailed(a *kmsg.ProduceResponseTopicPartition, code int16) {
	a.ErrorCode, a.BaseOffset, a.LogAppendTime = code, -1, -1
}

// nativeOffset is the virtual offset of a physical one in a native span.
func nativeOffset(p *ledger.Partition, at int64) (int64, bool) {
	i := p.Log.SpanAtP(at)
	if i < 0 || p.Log.Spans[i].Kind != epoch.Native {
		return -1, false
	}
	s := p.Log.Spans[i]
	v := at - s.PStart + s.VStart
	if i+1 < len(p.Log.Spans) && v >= p.Log.Spans[i+1].VStart {
		return -1, false
	}
	return v, true
}
