package proxy

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/protocol"
)

// produce is one Produce request with a mirror topic in it. What may not be
// written is taken out, the rest is sent on, and the answers are put together
// (M15).
type produce struct {
	h      *handlers
	x      exchange
	q      protocol.ProduceRequest
	stops  []*stoppedPart // STOPPED partitions in it: their answers have to be mapped
	first  string         // the first refusal's message
	silent bool           // acks=0
}

// stoppedPart is a STOPPED partition in a Produce request.
type stoppedPart struct {
	nativeCheck
	id   [16]byte
	p    *protocol.ProducePartition
	anon bool // a producer without an id: nobody remembers its batches
}

func (h *handlers) handleProduce(x exchange, version int16, body []byte) {
	f := &produce{h: h, x: x}
	if err := f.q.Decode(version, body); err != nil {
		badRequest(x, err)
		return
	}
	x.OnEnd(h.writes.begin()) // before the view is looked at
	var checks []*nativeCheck
	for i := range f.q.Topics {
		t := &f.q.Topics[i]
		name, ok := h.mirrorTopic(t.Name, t.ID)
		if !ok {
			continue
		}
		for j := range t.Partitions {
			s := &stoppedPart{id: t.ID, p: &t.Partitions[j]}
			s.key = partKey{name, s.p.Partition}
			if !f.allow(s) {
				continue
			}
			if b, _, err := protocol.NextBatch(s.p.Records); err == nil {
				s.anon = b.ProducerID() < 0
			}
			f.stops = append(f.stops, s)
			checks = append(checks, &s.nativeCheck)
		}
	}
	if len(f.stops) == 0 {
		f.proceed()
		return
	}
	h.sound(x, false, checks, func() {
		for _, s := range f.stops { // the ledger may have moved meanwhile
			if s.code != 0 {
				f.refuse(s, s.code, fmt.Sprintf("topic %s partition %d: the destination's leader has changed, and what it has is not known yet", s.key.topic, s.key.partition))
			} else {
				f.allow(s)
			}
		}
		f.proceed()
	})
}

// allow looks whether a partition may be written, and refuses it if not.
func (f *produce) allow(s *stoppedPart) bool {
	code, message := f.h.mayProduce(s.key.topic, s.id, s.p)
	if code != 0 {
		f.refuse(s, code, message)
		return false
	}
	s.log = f.h.partition(s.key, s.id)
	return s.log != nil
}

func (f *produce) refuse(s *stoppedPart, code int16, message string) {
	if f.first == "" {
		f.first = message
	}
	s.p.Refuse(code, message)
	if f.h.count.refused != nil {
		f.h.count.refused(s.key.topic, s.key.partition, "Produce")
	}
}

// proceed sends on what is left.
func (f *produce) proceed() {
	refused, all := f.q.Count()
	switch {
	case refused > 0 && f.q.Acks == 0:
		f.x.Close(ReasonAcks0Refused, fmt.Errorf("produce with acks=0 refused: %s", f.first))
	case refused == 0 && len(f.stops) == 0:
		f.x.Forward()
	case f.q.Acks == 0:
		// Nobody could say when it has been written, or where: the broker is asked
		// to answer, the client isn't.
		f.silent = true
		f.q.SetAcks(1)
		f.sendOn()
	case refused == 0:
		f.sendOn()
	case refused == all:
		f.authorise(func() { f.x.Reply([][]byte{f.q.AppendAnswer(nil)}) })
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
		r := kmsg.NewPtrProduceResponse()
		if err == nil {
			err = protocol.DecodeBody(f.q.Version, body, r)
		}
		if err != nil {
			f.failed(err)
			return
		}
		f.mapAnswer(r, func() { f.reply(r) })
	})
}

func (f *produce) failed(err error) {
	if !errors.Is(err, errExchangeOver) {
		f.x.Close(ReasonProtocolError, fmt.Errorf("produce answer: %w", err))
	}
}

func (f *produce) reply(r *kmsg.ProduceResponse) {
	if f.silent {
		for _, t := range r.Topics {
			for _, a := range t.Partitions {
				if a.ErrorCode != 0 { // as a broker does
					f.x.Close(ReasonAcks0Refused, fmt.Errorf("produce with acks=0 to %s failed: %w", t.Topic, kerr.ErrorForCode(a.ErrorCode)))
					return
				}
			}
		}
		f.x.ReplyNothing()
		return
	}
	to := addresses(f.x)
	if to == nil {
		r.Brokers = nil
	}
	body, err := f.q.MergeAnswer(r.AppendTo(nil))
	if err == nil && to != nil {
		body, err = protocol.RewriteAddresses(protocol.KeyProduce, f.q.Version, body, to)
	}
	if err != nil {
		f.failed(err)
		return
	}
	f.x.Reply([][]byte{body})
}

// mapAnswer turns the base offsets of STOPPED mirror partitions into virtual
// ones, by the span that contains them and never by the newest shift (H8).
//
// A base at or behind the start of the open native span is a new record, or a
// true duplicate of one. Any other is of an older part of the log: so was it
// lost, or was it found by the producer's sequence number? The broker is asked
// anew whether it still has what lies below the span.
func (f *produce) mapAnswer(r *kmsg.ProduceResponse, done func()) {
	type place struct {
		s *stoppedPart
		a *kmsg.ProduceResponseTopicPartition
	}
	stops := make(map[partKey]*stoppedPart, len(f.stops))
	for _, s := range f.stops {
		if first := stops[s.key]; first != nil { // named twice
			first.anon = first.anon || s.anon
			continue
		}
		stops[s.key] = s
	}
	var older []place
	checks := map[*stoppedPart]*nativeCheck{}
	for i := range r.Topics {
		t := &r.Topics[i]
		name, ok := f.h.mirrorTopic(t.Topic, t.TopicID)
		if !ok {
			continue
		}
		for j := range t.Partitions {
			a := &t.Partitions[j]
			s := stops[partKey{name, a.Partition}]
			if s == nil {
				continue
			}
			a.LogStartOffset = -1
			if a.ErrorCode != 0 || a.BaseOffset < 0 {
				continue
			}
			s.log = f.h.partition(s.key, s.id) // as it is now (H10)
			if s.log == nil {
				mapFailed(a, retryLater)
				continue
			}
			if o := nativeSpan(s.log.Log); o == nil || a.BaseOffset < o.PStart {
				older = append(older, place{s, a})
				checks[s] = &s.nativeCheck
				continue
			}
			a.BaseOffset, _ = nativeOffset(s.log, a.BaseOffset)
			if first, ok := f.h.atlas.chart(s.key, s.log).startKnown(s.log, 0); ok {
				a.LogStartOffset = first
			}
		}
	}
	if len(older) == 0 {
		done()
		return
	}
	f.h.sound(f.x, true, slices.Collect(maps.Values(checks)), func() {
		for _, o := range older {
			f.mapOlder(o.s, o.a)
		}
		done()
	})
}

// mapOlder: in an older native part it is a true duplicate; in a dead zone or a
// mirrored span a duplicate of what a cut has removed, or a write that landed
// after one, and the producer must not count it as written.
func (f *produce) mapOlder(s *stoppedPart, a *kmsg.ProduceResponseTopicPartition) {
	if s.code != 0 {
		mapFailed(a, s.code)
		return
	}
	if v, ok := nativeOffset(s.log, a.BaseOffset); ok && !s.anon {
		a.BaseOffset = v
		return
	}
	if f.h.count.deadDup != nil {
		f.h.count.deadDup(s.key.topic, s.key.partition)
	}
	code := kerr.UnknownProducerID.Code
	if s.anon {
		code = retryLater
	}
	mapFailed(a, code)
}

func mapFailed(a *kmsg.ProduceResponseTopicPartition, code int16) {
	a.ErrorCode, a.BaseOffset, a.LogAppendTime = code, -1, -1
}
