package proxy

import (
	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/lockstep-kafka/lockstep/epoch"
	"github.com/lockstep-kafka/lockstep/internal/ledger"
	"github.com/lockstep-kafka/lockstep/protocol"
)

// ends are the two ends of a mirror partition (DESIGN §3, H11), both in virtual
// offsets.
type ends struct {
	virtual  int64 // end of the last live batch: what "latest" and the high watermark say
	position int64 // >= virtual: up to here offsets are in range
	shown    int64 // >= position: nothing above it was ever shown; maxOffset: not known
}

// tail finds the ends below the broker's high watermark hw: what the owner
// published if it is this instance, else the last live batch, re-read from the
// log, and never less than the checkpoint knows.
func (r *reader) tail(p *ledger.Partition, hw int64, cb func(e ends, code int16)) {
	if s := nativeSpan(p.Log); s != nil {
		r.nativeTail(p, s, hw, cb)
		return
	}
	done := cb
	cb = func(e ends, code int16) {
		e.shown = max(e.shown, everShown(p))
		done(e, code)
	}
	hw = frozen(p, hw)
	known := endBelow(p, hw)
	if known.ok && (known.p >= hw || p.Tail().Known) {
		cb(known.ends(), 0)
		return
	}
	// Behind the checkpoint nothing needs the physical start, unless retention
	// has passed it.
	from := func(done func(code int16)) { done(0) }
	if !known.ok || r.bounded {
		from = r.bounds
	}
	from(func(code int16) {
		if code != 0 {
			cb(ends{}, code)
			return
		}
		low := r.start
		if known.ok {
			low = max(low, known.p)
		}
		r.lastChained(p, low, hw, func(h hit, ok bool, code int16) {
			switch {
			case code == kerr.OffsetOutOfRange.Code && !r.bounded:
				r.bounds(func(code int16) {
					if code != 0 {
						cb(ends{}, code)
						return
					}
					r.tail(p, hw, cb)
				})
			case code == kerr.TopicAuthorizationFailed.Code && known.ok:
				// May describe but not read the topic: the checkpoint, at most
				// 10 s old, has to do.
				cb(known.ends(), 0)
			case code != 0:
				cb(ends{}, code)
			case ok:
				r.endOf(h, func(v int64, code int16) {
					// The newest span begins where the owner stood, at the least.
					position := max(v, known.position, p.Log.Open().VStart)
					cb(ends{v, position, max(position, known.shown)}, code)
				})
			case known.ok:
				cb(known.ends(), 0)
			default:
				cb(emptyEnds(p, r.start), 0)
			}
		})
	})
}

func (k knownEnd) ends() ends {
	return ends{k.v, max(k.v, k.position), max(k.v, k.position, k.shown)}
}

// emptyEnds are the ends of a log without a live batch at or above physical log
// start: retention took the last one, or none was ever written.
func emptyEnds(p *ledger.Partition, start int64) ends {
	if known := endBelow(p, maxOffset); known.ok && known.p <= start && nativeSpan(p.Log) == nil {
		return known.ends()
	}
	v := max(p.Log.Spans[len(p.Log.Spans)-1].VStart, p.Log.Start)
	return ends{v, v, v}
}

// lastChained is lastLive for the open end of the log: a batch that does not
// follow the one before it was let through where that one was lost (H2). Readers
// stop in front of it, so the end shown must be there too. Only what lies behind
// the checkpoint is looked at; the owner has ruled on the rest.
func (r *reader) lastChained(p *ledger.Partition, low, hi int64, cb func(h hit, ok bool, code int16)) {
	l := p.Log
	r.lastLive(p, low, hi, 1, func(h hit, ok bool, code int16) {
		if !ok || h.at.Span != len(l.Spans)-1 || l.Spans[h.at.Span].Kind != epoch.Mirrored {
			cb(h, ok, code)
			return
		}
		first := l.Spans[h.at.Span].PStart
		r.lastLive(p, max(low, first), h.at.P, 1, func(before hit, found bool, code int16) {
			expect := int64(-1) // retention took what was before
			switch cp := checkpointOf(p); {
			case code != 0:
				cb(hit{}, false, code)
				return
			case found:
				expect = before.head.ChainEnd()
			case cp != nil && cp.P == low && low > first:
				expect = cp.ChainEnd
			case low <= first:
				expect = l.Spans[h.at.Span].VStart
			}
			if expect >= 0 && !follows(h.head, expect) {
				r.lastChained(p, low, h.at.P, cb)
				return
			}
			cb(h, true, 0)
		})
	})
}

// reachable says whether readers can get to a live batch: beyond what the owner
// has ruled on, only if it follows the one before it.
func (r *reader) reachable(p *ledger.Partition, h hit, cb func(ok bool, code int16)) {
	low := max(confirmed(p), r.start)
	if h.at.PEnd <= low {
		cb(true, 0)
		return
	}
	r.lastChained(p, low, h.at.PEnd, func(last hit, ok bool, code int16) {
		cb(ok && last.at.P == h.at.P, code)
	})
}

// follows says whether a batch chains to the chain end before it.
func follows(b epoch.Batch, end int64) bool {
	if b.Hole == epoch.HoleMore {
		return b.V-end >= int64(epoch.HoleMore)
	}
	return b.V-int64(b.Hole) == end
}

// lastLive finds the last live batch that begins in [low, hi): one batch back
// first, then in strides that grow over what is dead.
func (r *reader) lastLive(p *ledger.Partition, low, hi, stride int64, cb func(h hit, ok bool, code int16)) {
	l := p.Log
	for i := l.SpanAtP(hi - 1); i >= 0; i = l.SpanAtP(hi - 1) { // over the dead end of closed spans
		if s := l.Spans[i]; s.PEnd < 0 || hi <= s.PEnd || hi <= low {
			break
		} else if hi = s.PEnd; s.PEnd > s.PStart {
			break
		}
	}
	c := r.chart(p)
	hi = c.skipBack(hi)
	if hi <= low || len(l.Spans) == 0 || hi <= l.Spans[0].PStart {
		cb(hit{}, false, 0)
		return
	}
	from := max(low, hi-stride, l.Spans[0].PStart)
	size := probeBytes
	if stride > 1 {
		size = scanBytes
	}
	var last hit
	dead := true
	r.scan(l, from, hi, size, func(b protocol.Batch, e epoch.Batch) bool {
		at, live, ahead := place(l, e)
		if live {
			last = hit{append(last.batch[:0], b...), e, at} // the read's buffer goes
		}
		dead = dead && !live && !ahead
		return true
	}, func(end scanEnd) {
		if dead && end.code == 0 && end.next >= hi { // all of it was seen
			c.noteDead(from, hi)
		}
		if last.batch != nil || end.code != 0 {
			cb(last, end.code == 0, end.code)
			return
		}
		r.lastLive(p, low, from, stride*8, cb)
	})
}

// endOf is a live batch's virtual end. A renumbered one says it in its records
// only.
func (r *reader) endOf(h hit, cb func(v int64, code int16)) {
	if h.head.VCount != 0 {
		cb(h.at.VEnd, 0)
		return
	}
	b := protocol.Batch(append([]byte(nil), h.batch...)) // a worker's own: the buffer may go with the exchange
	var n int64
	var err error
	r.h.work.offload(r.x, func() {
		n, err = protocol.VirtualCount(b)
	}, func() {
		if err != nil {
			r.x.Log().Error("a renumbered batch can't be read", "topic", r.key.topic, "partition", r.key.partition, "offset", h.at.V, "err", err)
			cb(0, kerr.UnknownServerError.Code)
			return
		}
		cb(h.at.V+n, 0)
	})
}

// virtualStart is the virtual log start shown (M7): what the source said, or,
// when retention here has taken more, where the first live batch begins.
func (r *reader) virtualStart(p *ledger.Partition, cb func(v int64, code int16)) {
	r.bounds(func(code int16) {
		if code != 0 {
			cb(0, code)
			return
		}
		if v, ok := r.chart(p).startKnown(p, r.start); ok {
			cb(v, 0)
			return
		}
		start := r.start
		r.firstLive(p, start, r.end, func(h hit, ok bool, code int16) {
			switch {
			case code != 0:
				cb(0, code)
			case ok:
				v := h.at.V
				if in := start - h.at.P; in > 0 && h.head.Flags&epoch.FlagRenumbered == 0 { // DeleteRecords cut into it
					v += in
				}
				if s := nativeSpan(p.Log); s == nil || v < s.VStart { // else an election may take it, and who asks may not know
					r.chart(p).setStart(start, v)
				}
				cb(max(p.Log.Start, v), 0)
			default:
				cb(max(p.Log.Start, emptyEnds(p, start).position), 0)
			}
		})
	})
}

// startKnown is virtualStart as far as it needs no reading.
func (c *chart) startKnown(p *ledger.Partition, physicalStart int64) (int64, bool) {
	if first := p.Log.Spans[0]; physicalStart <= first.PStart {
		return max(p.Log.Start, first.VStart), true
	}
	if s := nativeSpan(p.Log); s != nil && physicalStart >= s.PStart {
		return max(p.Log.Start, physicalStart-s.PStart+s.VStart), true
	}
	if v, ok := c.start(physicalStart); ok {
		return max(p.Log.Start, v), true
	}
	return 0, false
}
