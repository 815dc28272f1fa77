package proxy

import (
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/epoch"
	"github.com/lockstep-kafka/lockstep/internal/ledger"
	"github.com/lockstep-kafka/lockstep/protocol"
)

// epochLookup is one mirror partition in an OffsetForLeaderEpoch request.
type epochLookup struct {
	key     partKey
	current int32
	asked   int32
	log     *ledger.Partition
	native  bool                                             // the broker's answer is mapped
	raw     *kmsg.OffsetForLeaderEpochResponseTopicPartition // what the broker says, nil: nothing
	code    int16
	epoch   int32
	end     int64
}

// epochLookups is one OffsetForLeaderEpoch request with a mirror topic in it.
// The broker is asked, for authorisation and for whether the epoch asked for is
// above the one shown; the answer comes from the virtual chain (facts §2).
type epochLookups struct {
	h     *handlers
	x     exchange
	parts []*epochLookup
	spent int64
	resp  *kmsg.OffsetForLeaderEpochResponse
}

func (h *handlers) handleOffsetForLeaderEpoch(x exchange, version int16, body []byte) {
	q, err := protocol.DecodeOffsetForLeaderEpochRequest(version, body)
	if err != nil {
		badRequest(x, err)
		return
	}
	f := &epochLookups{h: h, x: x}
	for i := range q.Topics {
		t := &q.Topics[i]
		if !h.view.Topic(t.Topic) {
			continue
		}
		for j := range t.Partitions {
			p := &t.Partitions[j]
			l := &epochLookup{key: partKey{t.Topic, p.Partition}, current: p.CurrentLeaderEpoch, asked: p.LeaderEpoch}
			l.log = h.partition(l.key, [16]byte{})
			p.CurrentLeaderEpoch, p.LeaderEpoch = -1, 0
			if l.log != nil {
				p.CurrentLeaderEpoch = fencedBy(l.log, l.current)
				// (-1, -1) for this says: above the leader epoch shown. An epoch of the
				// open native span is the broker's own.
				p.LeaderEpoch = max(l.asked-l.log.Log.Bump, 0)
				if l.native = asksBroker(l.log.Log, l.asked); l.native {
					p.LeaderEpoch = l.asked - l.log.Log.Open().Bump
				}
			}
			f.parts = append(f.parts, l)
		}
	}
	if len(f.parts) == 0 {
		x.Forward()
		return
	}
	ask(x, q, func(r *kmsg.OffsetForLeaderEpochResponse) {
		f.resp = r
		f.index()
		inTurn(len(f.parts), func(i int, next func()) { f.answer(f.parts[i], next) }, f.reply)
	})
}

// index finds the broker's answer for each partition: one that was named twice,
// with different epochs, has two, in the same order.
func (f *epochLookups) index() {
	asked := make(map[partKey][]*epochLookup, len(f.parts))
	for _, l := range f.parts {
		asked[l.key] = append(asked[l.key], l)
	}
	for i := range f.resp.Topics {
		t := &f.resp.Topics[i]
		for j := range t.Partitions {
			k := partKey{t.Topic, t.Partitions[j].Partition}
			if ls := asked[k]; len(ls) > 0 {
				ls[0].raw, asked[k] = &t.Partitions[j], ls[1:]
			}
		}
	}
}

// reply puts what was found into the broker's answer.
func (f *epochLookups) reply() {
	for _, l := range f.parts {
		if a := l.raw; a != nil {
			a.ErrorCode, a.LeaderEpoch, a.EndOffset = l.code, l.epoch, l.end
		}
	}
	replyKmsg(f.x, f.resp)
}

// answer decides about one partition.
func (f *epochLookups) answer(l *epochLookup, next func()) {
	l.epoch, l.end = -1, -1
	raw := l.raw
	now := f.h.partition(l.key, [16]byte{})
	switch {
	case raw == nil:
		next()
		return
	case raw.ErrorCode != 0:
		l.code = raw.ErrorCode
		next()
		return
	case now == nil || l.log == nil:
		l.code = retryLater
		next()
		return
	}
	if _, ok := physicalEpoch(now, l.current); !ok || now.Log.Bump != l.log.Log.Bump && l.current >= 0 {
		l.code = kerr.FencedLeaderEpoch.Code
		next()
		return
	}
	above := raw.EndOffset < 0          // of the epoch asked for less the bump: above the broker's own
	if spansOf(now) != spansOf(l.log) { // stopped, or started again, meanwhile
		l.code = retryLater
		next()
		return
	}
	l.log = now
	r := &reader{h: f.h, x: f.x, key: l.key, spent: &f.spent}
	// A client takes its position for validated under the leader epoch shown now.
	// So not even an older epoch is answered for while the owner has not ruled.
	r.sound(now, true, func(code int16) {
		switch {
		case code != 0:
			l.code = code
			next()
		case above || !l.native:
			f.fromChain(l, r, above, next)
		default:
			s := nativeSpan(now.Log)
			l.epoch, l.end = joined(now.Log, s, answeredEpoch(f.resp.Version, raw, l.asked-s.Bump), raw.EndOffset)
			next()
		}
	})
}

// fromChain answers from the ledger's chain. above: the epoch asked for is above
// the broker's own.
func (f *epochLookups) fromChain(l *epochLookup, r *reader, above bool, next func()) {
	f.lookUp(l, r, func() {
		switch {
		case l.code != 0 || l.end >= 0 || l.asked < 0:
			next()
		case !above:
			// Not above what is shown, yet unknown: somebody knows more than
			// this instance, or it is just being begun (H12).
			l.code = kerr.UnknownLeaderEpoch.Code
			next()
		default:
			f.confirm(l, r, next)
		}
	})
}

// lookUp asks the chain, with a position that is re-read from the log.
func (f *epochLookups) lookUp(l *epochLookup, r *reader, done func()) {
	r.bounds(func(code int16) {
		if code != 0 {
			l.code = code
			done()
			return
		}
		r.virtualStart(l.log, func(start int64, code int16) {
			if code != 0 {
				l.code = code
				done()
				return
			}
			r.tail(l.log, r.end, func(e ends, code int16) {
				if l.code = code; code == 0 && !f.renew(l) {
					l.code = retryLater
				} else if code == 0 {
					// A tail that the destination lost is mirrored again up to
					// the end ever shown, before anybody's position is judged.
					// If that is not known now, whoever asks is not above it.
					l.epoch, l.end = l.log.Log.EndOffsetFrom(l.asked, start, max(e.position, min(e.shown, epoch.MaxVirtualOffset)))
				}
				done()
			})
		})
	})
}

// renew takes the ledger's newest record for the answer. The ends were found
// after the one it began with: in between, a newer epoch may have come into the
// chain and records of it onto the log, and with the old chain these would be the
// end of the epoch before. ok is false if it is another log by now.
func (f *epochLookups) renew(l *epochLookup) (ok bool) {
	now := f.h.partition(l.key, [16]byte{})
	if now == nil || spansOf(now) != spansOf(l.log) {
		return false
	}
	l.log = now
	return true
}

// confirm: (-1, -1) makes clients reset, and another cluster's mirror cut
// everything; it is given only after the ledger was read anew (H12).
func (f *epochLookups) confirm(l *epochLookup, r *reader, done func()) {
	f.h.reread(f.x, func(ok bool) {
		if l.log = f.h.partition(l.key, [16]byte{}); !ok || l.log == nil {
			l.code = retryLater
			done()
			return
		}
		r.bounded = false
		f.lookUp(l, r, done)
	})
}
