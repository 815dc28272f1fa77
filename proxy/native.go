package proxy

import (
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/epoch"
	"github.com/lockstep-kafka/lockstep/internal/ledger"
	"github.com/lockstep-kafka/lockstep/protocol"
)

// The open native span of a STOPPED partition: v and p differ by a constant,
// epochs by the span's bump, and the broker's own word is mapped. It holds as
// long as the broker still has everything below the span's start: an unclean
// election may have taken it, and what is written then must not be taken for
// what was (H4, F5). The broker's own epoch chain tells: while the epoch that the
// span was opened under ends at or behind its start, nothing below is lost.

// nativeSpan is the open span when it is native, else nil.
func nativeSpan(l *epoch.Log) *epoch.Span {
	if s := l.Open(); s != nil && s.Kind == epoch.Native {
		return s
	}
	return nil
}

// soundFor is how long that is believed of one connection to a broker, without
// asking again. A leader loses its log's tail only by being down (its
// connections end), or by following another for a while, which takes longer.
const soundFor = time.Second

// nativeCheck is one partition to be asked about: code 0, or why its native
// span can't be served now.
type nativeCheck struct {
	key  partKey
	log  *ledger.Partition
	code int16
}

// sound asks the broker about the native spans of parts, in one request; for
// those it was asked about lately only if anew is set. A log whose open span is
// not native, or begins at the very start, is sound.
func (h *handlers) sound(x exchange, anew bool, parts []*nativeCheck, done func()) {
	now := h.now()
	q := kmsg.NewPtrOffsetForLeaderEpochRequest()
	q.ReplicaID = -1
	asked := map[partKey][]*nativeCheck{} // a client may name a partition twice
	for _, c := range parts {
		c.code = 0
		s := nativeSpan(c.log.Log)
		if s == nil || s.PStart == 0 {
			continue
		}
		if at := x.State().cursor(c.key, c.log).sound; !anew && !at.IsZero() && now.Sub(at) < soundFor && now.Sub(at) >= 0 {
			continue
		}
		c.code = kerr.UnknownServerError.Code
		if asked[c.key] = append(asked[c.key], c); len(asked[c.key]) > 1 {
			continue
		}
		p := kmsg.NewOffsetForLeaderEpochRequestTopicPartition()
		p.Partition, p.CurrentLeaderEpoch, p.LeaderEpoch = c.key.partition, -1, s.PEpoch
		addEpochQuestion(q, c.key.topic, p)
	}
	if len(asked) == 0 {
		done()
		return
	}
	_, hi, ok := x.UpstreamVersion(q.Key())
	if !ok {
		for _, cs := range asked {
			for _, c := range cs {
				c.code = kerr.UnsupportedVersion.Code
			}
		}
		done()
		return
	}
	q.Version = min(hi, 4)
	ask(x, q, func(r *kmsg.OffsetForLeaderEpochResponse) {
		for i := range r.Topics {
			for j := range r.Topics[i].Partitions {
				a := &r.Topics[i].Partitions[j]
				for _, c := range asked[partKey{r.Topics[i].Topic, a.Partition}] {
					h.judgeSound(x, c, a, now)
				}
			}
		}
		done()
	})
}

// judgeSound takes in what the broker says of the epoch below a native span.
func (h *handlers) judgeSound(x exchange, c *nativeCheck, a *kmsg.OffsetForLeaderEpochResponseTopicPartition, now time.Time) {
	switch s := nativeSpan(c.log.Log); {
	case a.ErrorCode != 0:
		c.code = a.ErrorCode
	case a.EndOffset < s.PStart: // or -1: the epoch is not known any more
		c.code = retryLater
		if h.count.unsound != nil {
			h.count.unsound(c.key.topic, c.key.partition)
		}
	default:
		c.code = 0
		x.State().cursor(c.key, c.log).sound = now
	}
}

func addEpochQuestion(q *kmsg.OffsetForLeaderEpochRequest, topic string, p kmsg.OffsetForLeaderEpochRequestTopicPartition) {
	n := len(q.Topics)
	if n == 0 || q.Topics[n-1].Topic != topic {
		t := kmsg.NewOffsetForLeaderEpochRequestTopic()
		t.Topic = topic
		q.Topics = append(q.Topics, t)
		n++
	}
	q.Topics[n-1].Partitions = append(q.Topics[n-1].Partitions, p)
}

// sound is handlers.sound for the reader's partition.
func (r *reader) sound(p *ledger.Partition, anew bool, cb func(code int16)) {
	c := &nativeCheck{key: r.key, log: p}
	r.h.sound(r.x, anew, []*nativeCheck{c}, func() { cb(c.code) })
}

// nativeTail is tail for an open native span: the broker's own end, shifted.
func (r *reader) nativeTail(p *ledger.Partition, s *epoch.Span, hw int64, cb func(e ends, code int16)) {
	if hw < s.PStart { // lost, or a new leader that does not know its high watermark yet
		cb(ends{}, retryLater)
		return
	}
	r.sound(p, false, func(code int16) {
		v := hw - s.PStart + s.VStart
		cb(ends{v, v, v}, code)
	})
}

// asksBroker says whether the end of leader epoch e is the broker's to tell: it
// is one of the open native span.
func asksBroker(l *epoch.Log, e int32) bool {
	s := nativeSpan(l)
	return s != nil && e >= l.Chain.Newest() && e >= s.Bump
}

// joined maps the broker's answer for an epoch of the open native span: to the
// joined chain, ledger and broker, without having to know all of the latter.
// (-1, -1) stays.
func joined(l *epoch.Log, s *epoch.Span, e int32, end int64) (int32, int64) {
	if end < 0 {
		return -1, -1
	}
	if e += s.Bump; e < l.Chain.Newest() { // of before the span: it ends where the span begins, at the latest
		e = l.Chain.Newest()
	}
	return e, max(end, s.PStart) - s.PStart + s.VStart
}

// endOffset asks the broker where epoch e of the open native span ends.
func (r *reader) endOffset(p *ledger.Partition, e int32, cb func(epoch int32, end int64, code int16)) {
	s := nativeSpan(p.Log)
	_, hi, ok := r.x.UpstreamVersion(protocol.KeyOffsetForLeaderEpoch)
	if !ok {
		cb(-1, -1, kerr.UnsupportedVersion.Code)
		return
	}
	q := kmsg.NewPtrOffsetForLeaderEpochRequest()
	q.Version, q.ReplicaID = min(hi, 4), -1
	part := kmsg.NewOffsetForLeaderEpochRequestTopicPartition()
	part.Partition, part.CurrentLeaderEpoch, part.LeaderEpoch = r.key.partition, -1, e-s.Bump
	addEpochQuestion(q, r.key.topic, part)
	ask(r.x, q, func(resp *kmsg.OffsetForLeaderEpochResponse) {
		for _, t := range resp.Topics {
			for _, a := range t.Partitions {
				if t.Topic != r.key.topic || a.Partition != r.key.partition {
					continue
				}
				if a.ErrorCode != 0 {
					cb(-1, -1, a.ErrorCode)
					return
				}
				at, end := joined(p.Log, s, answeredEpoch(q.Version, &a, e-s.Bump), a.EndOffset)
				cb(at, end, 0)
				return
			}
		}
		cb(-1, -1, kerr.UnknownServerError.Code)
	})
}

// answeredEpoch: version 0 does not say which epoch the end is of.
func answeredEpoch(version int16, a *kmsg.OffsetForLeaderEpochResponseTopicPartition, asked int32) int32 {
	if version == 0 {
		return asked
	}
	return a.LeaderEpoch
}

// nativeEpoch is the epoch shown for what the broker says of physical offset p
// (ListOffsets): its own shifted in the open native span, else the chain's.
func nativeEpoch(l *epoch.Log, p, v int64, pe int32) int32 {
	if s := nativeSpan(l); s != nil && p >= s.PStart && pe >= 0 {
		return max(pe+s.Bump, l.Chain.Newest())
	}
	return l.Chain.At(v)
}

// nativeOffset is the virtual offset of a physical one in a native span.
func nativeOffset(p *ledger.Partition, at int64) (int64, bool) {
	i := p.Log.SpanAtP(at)
	if i < 0 || p.Log.Spans[i].Kind != epoch.Native {
		return -1, false
	}
	s := p.Log.Spans[i]
	v := at - s.PStart + s.VStart
	if s.PEnd >= 0 && at >= s.PEnd || i+1 < len(p.Log.Spans) && v >= p.Log.Spans[i+1].VStart {
		return -1, false
	}
	return v, true
}
