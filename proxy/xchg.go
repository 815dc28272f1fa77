package proxy

import (
	"log/slog"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/protocol"
)

// xchg is the exchange of a session.
type xchg struct {
	s      *session
	hdr    protocol.RequestHeader
	frame  []byte
	local  bool // an ApiVersions request that no handler and no broker sees
	over   bool
	bodies [][]byte // answers to Ask, given back at the end
	stops  []func() // timers
	ends   []func() // OnEnd

	// dropped: the exchange ended in order; answers that still come belong to
	// nobody.
	dropped bool
}

var _ exchange = (*xchg)(nil)

func (x *xchg) start() {
	if x.local {
		x.Reply([][]byte{protocol.UnsupportedApiVersionsBody()})
		return
	}
	x.s.p.handler.handle(x)
}

func (x *xchg) Header() protocol.RequestHeader { return x.hdr }
func (x *xchg) Frame() []byte                  { return x.frame }
func (x *xchg) State() *connState              { return &x.s.state }
func (x *xchg) BrokerID() int32                { return x.s.brokerID }
func (x *xchg) Log() *slog.Logger              { return x.s.log }

func (x *xchg) UpstreamVersion(key int16) (minVersion, maxVersion int16, ok bool) {
	v := x.s.known
	if v == nil {
		v = x.s.p.topology.versions(x.s.brokerID)
	}
	return v.get(key)
}

func (x *xchg) Ask(req kmsg.Request, cb func(body []byte, err error)) {
	x.AskFrame(req.Key(), req.GetVersion(), [][]byte{req.AppendTo(nil)}, cb)
}

func (x *xchg) AskFrame(key, version int16, bufs [][]byte, cb func(body []byte, err error)) {
	if x.over {
		return
	}
	s := x.s
	s.enter()
	defer s.leave()
	// Correlation ids need not be unique: answers are told apart by their order.
	head := protocol.AppendRequestHeader(make([]byte, protocol.FrameSizeLen, 64), key, version, x.hdr.CorrelationID, x.hdr.ClientID)
	size := len(head) - protocol.FrameSizeLen
	for _, b := range bufs {
		size += len(b)
	}
	protocol.AppendFrameSize(head[:0], size)
	s.fifo.push(awaited{key: key, version: version, corr: x.hdr.CorrelationID, kind: respAsk, x: x, cb: cb})
	s.upstream.writev(append([][]byte{head}, bufs...))
}

// answered gets the answer to an Ask; the header takes n bytes of frame.
func (x *xchg) answered(a awaited, frame []byte, n int, err error) {
	if x.dropped {
		x.s.l.holdFrame(-len(frame), len(frame))
		x.s.l.putFrame(frame)
		return
	}
	x.bodies = append(x.bodies, frame)
	if err != nil {
		x.s.close(ReasonProtocolError, err)
		a.cb(nil, errExchangeOver)
		return
	}
	a.cb(frame[n:], nil)
}

func (x *xchg) Release(body []byte) {
	if cap(body) == 0 {
		return
	}
	for i, frame := range x.bodies {
		// Bodies are the tails of their frames' buffers.
		if cap(frame) < cap(body) || &frame[:cap(frame)][cap(frame)-1] != &body[:cap(body)][cap(body)-1] {
			continue
		}
		last := len(x.bodies) - 1
		x.bodies[i] = x.bodies[last]
		x.bodies[last] = nil
		x.bodies = x.bodies[:last]
		l := x.s.l
		l.holdFrame(-len(frame), len(frame))
		if len(frame) >= freeFrameBytes {
			x.s.dropRoom(frameCost(len(frame)))
		}
		l.after(func() { l.putFrame(frame) })
		return
	}
}

func (x *xchg) Reply(body [][]byte) {
	if x.over {
		return
	}
	s := x.s
	s.enter()
	defer s.leave()
	head := protocol.AppendResponseHeader(s.small[:protocol.FrameSizeLen], x.hdr.Key, x.hdr.Version, x.hdr.CorrelationID)
	size := len(head) - protocol.FrameSizeLen
	for _, b := range body {
		size += len(b)
	}
	protocol.AppendFrameSize(head[:0], size)
	s.client.writev(append([][]byte{head}, body...))
	x.end()
}

func (x *xchg) ReplyNothing() {
	if x.over {
		return
	}
	x.s.enter()
	defer x.s.leave()
	x.end()
}

func (x *xchg) Forward() {
	if x.over {
		return
	}
	s := x.s
	s.enter()
	defer s.leave()
	h := requestHead{key: x.hdr.Key, version: x.hdr.Version, corr: x.hdr.CorrelationID}
	if h.key == protocol.KeyProduce {
		api, _ := protocol.LookupAPI(h.key)
		acks, need, err := produceAcks(x.frame, len(x.frame), api.Flexible(h.version), h.version)
		if err == nil && need > 0 {
			err = errBadProduce
		}
		if err != nil {
			s.badFrame(err)
			return
		}
		h.noAnswer = acks == 0
	}
	s.awaitAnswer(h)
	size := protocol.AppendFrameSize(s.small[:0], len(x.frame))
	s.iov = [3][]byte{size, x.frame, nil}
	s.upstream.writev(s.iov[:2])
	clear(s.iov[:])
	x.end()
}

func (x *xchg) Close(reason CloseReason, err error) {
	if x.over {
		return
	}
	x.s.enter()
	defer x.s.leave()
	x.s.close(reason, err)
}

func (x *xchg) After(d time.Duration, cb func()) (cancel func()) {
	if x.over {
		return func() {}
	}
	stop := x.s.l.afterFunc(d, func() {
		if x.over {
			return
		}
		x.s.enter()
		defer x.s.leave()
		cb()
	})
	x.stops = append(x.stops, stop)
	return stop
}

func (x *xchg) OnEnd(f func()) {
	if x.over {
		f()
		return
	}
	x.ends = append(x.ends, f)
}

// Post runs f on the loop, or never when the exchange has ended. Unlike the
// rest it may be called from any goroutine (offload.go).
func (x *xchg) Post(f func()) {
	x.s.l.post(func() {
		if x.over {
			return
		}
		x.s.enter()
		defer x.s.leave()
		f()
	})
}

// end ends the exchange; the session goes on when what runs now is done.
func (x *xchg) end() {
	x.over, x.dropped = true, true
	if x.s.x == x {
		x.s.x = nil
	}
	x.release(true)
}

// release gives the buffers back once what runs now is done: the caller may
// still hold slices of them. reuse is false when the connection went away in the
// middle: a worker may still be reading them, so they are left to the collector.
func (x *xchg) release(reuse bool) {
	for _, stop := range x.stops {
		stop()
	}
	for _, f := range x.ends {
		f()
	}
	x.stops, x.ends = nil, nil
	l := x.s.l
	l.after(func() {
		for _, b := range append(x.bodies, x.frame) {
			l.holdFrame(-len(b), len(b))
			if reuse {
				l.putFrame(b)
			}
		}
		x.bodies, x.frame = nil, nil
	})
}

// ration is how much should be asked for in one answer, most at best (rationer).
func (x *xchg) ration(most int32) int32 {
	if n := x.s.p.limits().FetchUpstreamMax; n > 0 {
		most = n
	}
	return x.s.p.budget.ration(most)
}

// Advertise is how this client sees a broker's address (addresser).
func (x *xchg) Advertise(nodeID int32, host string, port int32) (newHost string, newPort int32, ok bool) {
	return x.s.front.advertise(nodeID, host, port)
}
