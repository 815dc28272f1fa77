package proxy

import (
	"encoding/binary"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/protocol"
)

// scriptedExchange answers what a handler asks with the next of the answers,
// each with two bytes of length in front; behind the last one the connection
// ends.
type scriptedExchange struct {
	*fakeExchange
	answers []byte
}

func (x *scriptedExchange) Ask(req kmsg.Request, cb func([]byte, error)) {
	x.AskFrame(req.Key(), req.GetVersion(), nil, cb)
}

func (x *scriptedExchange) AskFrame(_, _ int16, _ [][]byte, cb func([]byte, error)) {
	if x.done != nil {
		return
	}
	x.queue = append(x.queue, func() {
		if x.done != nil {
			return
		}
		if len(x.answers) < 2 {
			x.end(result{closed: ReasonBrokerEOF})
			cb(nil, errExchangeOver)
			return
		}
		n := min(int(binary.BigEndian.Uint16(x.answers)), len(x.answers)-2)
		body := x.answers[2 : 2+n : 2+n]
		x.answers = x.answers[2+n:]
		cb(body, nil)
	})
}

// turn runs the exchange to its end.
func (x *scriptedExchange) turn() {
	for turns := 0; x.done == nil; turns++ {
		require.Less(x.b.t, turns, 10_000, "no end")
		switch {
		case len(x.queue) > 0:
			f := x.queue[0]
			x.queue = x.queue[1:]
			f()
			continue
		case x.offloaded():
			continue
		}
		require.NotEmpty(x.b.t, x.timer, "nothing left to do, and no answer")
		first := 0
		for i := range x.timer {
			if x.timer[i].at.Before(x.timer[first].at) {
				first = i
			}
		}
		tm := x.timer[first]
		x.timer = append(x.timer[:first], x.timer[first+1:]...)
		x.b.pass(max(tm.at.Sub(x.b.now), 0))
		tm.f()
	}
}

// offloaded runs what a worker has posted.
func (x *scriptedExchange) offloaded() bool {
	x.b.h.wait()
	select {
	case f := <-x.posts:
		f()
		return true
	default:
		return false
	}
}

// recorded is the body of a request, and the answers that the simulated broker
// gives to what its handler asks.
func (b *bench) recorded(req kmsg.Request) (body, answers []byte) {
	b.sim.asked = nil
	b.run(req)
	for _, q := range b.sim.asked {
		a := b.sim.answer(q).AppendTo(nil)
		answers = append(binary.BigEndian.AppendUint16(answers, uint16(len(a))), a...)
	}
	return req.AppendTo(nil), answers
}

// Whatever a client asks of a mirror topic and a broker answers: the exchange
// ends, without a panic, and what the client gets can be read.
func FuzzHandlers(f *testing.F) {
	start := func(t testing.TB, native bool) *bench {
		b := newBench(t)
		h := newHistory(t, b.sim.part("m", 0))
		h.append(4, 0)
		h.src = 5
		h.append(5, 0)
		h.src = 7
		h.append(3, 0)
		if native {
			h.foreign(2)
			h.stop(0, 100)
		}
		h.show(b)
		b.id("m", 9)
		return b
	}
	for _, native := range []bool{false, true} {
		b := start(f, native)
		newAdminBroker(f, b)
		for _, req := range mirrorRequests(f, b.h, [16]byte{15: 9}) {
			body, answers := b.recorded(req)
			f.Add(req.Key(), req.GetVersion(), native, body, answers)
		}
	}
	f.Fuzz(func(t *testing.T, key, version int16, native bool, body, answers []byte) {
		api, ok := protocol.LookupAPI(key)
		if !ok || version < api.Min || version > api.Max {
			return
		}
		b := start(t, native)
		if b.h.handlerOf(key) == nil {
			return
		}
		b.view.freshAt = b.now.Add(time.Second)
		hdr := protocol.RequestHeader{Key: key, Version: version, ClientID: []byte("test")}
		frame := protocol.AppendRequestHeader(nil, key, version, 7, hdr.ClientID)
		hdr.HeaderLen = len(frame)
		x := &scriptedExchange{&fakeExchange{b: b, hdr: hdr, frame: append(frame, body...), posts: make(chan func(), 64)}, append([]byte(nil), answers...)}
		b.h.handle(x)
		x.turn()
		if x.done.body != nil {
			require.NoError(t, protocol.DecodeBody(version, x.done.body, kmsg.ResponseForKey(key)))
		}
	})
}
