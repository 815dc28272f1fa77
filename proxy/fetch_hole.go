package proxy

import (
	"github.com/lockstep-kafka/lockstep/protocol"
)

// atHole tells that nothing lies between the offset asked for and the start of
// the open native span: the source's log ended in a transaction marker or aborted
// records there. Kafka would move readers over them; they have to get to the end
// that they are told of.
func (p *fetchPart) atHole(out pick, raw protocol.FetchPartition) bool {
	s := nativeSpan(p.log.Log)
	return s != nil && !out.held && p.offset < s.VStart && out.next >= s.PStart && raw.HighWatermark >= s.PStart
}

// overHole looks, when a reader is to be sent over the hole in front of the open
// native span, whether the broker still has everything below the span (H4):
// else records may come to stand where there seems to be nothing.
func (f *fetch) overHole(p *fetchPart, raw protocol.FetchPartition, out pick, done func(code int16)) {
	for i := range out.batches {
		if out.batches[i].at.VEnd > p.offset {
			done(0)
			return
		}
	}
	if c := f.x.State().cursor(p.partKey, p.log.Log); !p.atHole(out, raw) || f.sentOn(c, p) {
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
func (f *fetch) sendOver(c *cursor, p *fetchPart, out pick) protocol.Batch {
	l := p.log.Log
	v := nativeSpan(l).VStart
	e := l.Chain.At(v - 1)
	if e < 0 { // no record below it: without an epoch the reader could not be told if the span begins anew lower
		e = l.Chain.At(v)
	}
	p.outcome, c.hole, c.holeAt = outAnswer, p.offset, f.h.now()
	c.advance(mark{p.offset, out.next, out.chain})
	c.advance(mark{v, out.next, -1})
	return protocol.HoleBatch(p.offset, v, e)
}
