package proxy

import (
	"github.com/lockstep-kafka/lockstep/protocol"
)

// hole is where a reader goes on that is given nothing, as nothing lies between:
// in front of the open native span, where the source's log ended in a
// transaction marker or aborted records, and at the log's end, where a late
// write of an old owner lies (dead, and what it takes of the offsets stays
// empty). Kafka would move readers over both; they have to get to the end that
// they are told of. -1: there is none.
func (f *fetch) hole(p *fetchPart, c *cursor, raw protocol.FetchPartition, out pick) int64 {
	s := nativeSpan(p.log.Log)
	if s == nil || out.held || out.next < s.PStart || raw.HighWatermark < s.PStart {
		return -1
	}
	if p.offset < s.VStart {
		return s.VStart
	}
	end := raw.HighWatermark
	if f.q.IsolationLevel != 0 && raw.LastStableOffset >= 0 {
		end = min(end, raw.LastStableOffset)
	}
	if to := out.next - s.PStart + s.VStart; to > p.offset && out.next >= end && max(out.deadPE, c.deadPE) >= 0 {
		return to
	}
	return -1
}

// astray tells that a reader would be read on at physical offset at although its
// own place in the open native span lies lower: what was passed over is dead.
// That is not kept from one request to the next: an unclean election may have
// taken it meanwhile, and clients have written there.
func (p *fetchPart) astray(at int64) bool {
	s := nativeSpan(p.log.Log)
	return s != nil && at > s.PStart+max(p.offset-s.VStart, 0)
}

// passedOver: all up to physical offset at is hidden.
func (f *fetch) passedOver(p *fetchPart, c *cursor, at int64) outcome {
	switch {
	case !p.astray(at):
		return outMoved
	case f.spent <= maxFetchRead:
		return outAgain // now or never: the next request does not begin there
	}
	c.far = at // or it would never get over it
	return outMoved
}

// overHole looks, when a reader is to be sent over a hole, whether the broker still has everything below the span (H4):
// else records may come to stand where there seems to be nothing.
func (f *fetch) overHole(p *fetchPart, raw protocol.FetchPartition, out pick, done func(code int16)) {
	for i := range out.batches {
		if out.batches[i].at.VEnd > p.offset {
			done(0)
			return
		}
	}
	if c := f.x.State().cursor(p.partKey, p.log); f.hole(p, c, raw, out) < 0 || f.sentOn(c, p) {
		done(0)
		return
	}
	f.reader(p.partKey).sound(p.log, true, done)
}

// sentOn tells whether the client was sent over the hole from there lately.
func (f *fetch) sentOn(c *cursor, p *fetchPart) bool {
	return c.hole == p.offset && f.h.now().Sub(c.holeAt) < holeAgain
}

// sendOver is the batch that takes the reader over the hole. It is sent once for
// a while: a client that can't go over it would ask again at once, for ever.
func (f *fetch) sendOver(c *cursor, p *fetchPart, out pick, v int64) protocol.Batch {
	l := p.log.Log
	s := nativeSpan(l)
	e := l.Chain.At(v - 1)
	switch {
	case v > s.VStart: // the broker's own, as it is for what clients wrote
		e = max(c.deadPE+s.Bump, l.Chain.Newest())
	case e < 0: // no record below it: without an epoch the reader could not be told if the span begins anew lower
		e = l.Chain.At(v)
	}
	p.outcome, c.hole, c.holeAt = outAnswer, p.offset, f.h.now()
	c.lose()
	if v > s.VStart || out.next == s.PStart {
		c.advance(mark{v, out.next, -1})
	}
	return protocol.HoleBatch(p.offset, v, e)
}
