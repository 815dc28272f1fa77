package proxy

import (
	"bytes"
	"encoding/binary"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/protocol"
)

// stubHandler takes one key; do handles, mine says which frames concern it.
type stubHandler struct {
	key  int16
	mine func(frame []byte) bool
	do   func(x exchange)
}

func (h *stubHandler) takes(hdr protocol.RequestHeader) bool { return hdr.Key == h.key }
func (h *stubHandler) concerns(_ protocol.RequestHeader, frame []byte) bool {
	return h.mine == nil || h.mine(frame)
}
func (h *stubHandler) handle(x exchange)                                { h.do(x) }
func (h *stubHandler) response(_, _ int16, body []byte) ([]byte, error) { return body, nil }

// A handled request starts when what is before it is answered, asks in order on
// the same connection as the client, and what is behind it waits.
func TestExchangeOrder(t *testing.T) {
	leakCheck(t)
	var order []int32 // of the broker, one connection
	var clients []string
	p := testProxy(t, scriptedBroker(t, serveFrames(func(h protocol.RequestHeader, f []byte) []byte {
		order = append(order, int32(h.Key))
		clients = append(clients, string(h.ClientID))
		return sumAnswer(h, f)
	})), func(o *Options) {
		o.handler = &stubHandler{key: protocol.KeyListOffsets, do: func(x exchange) {
			require.Equal(t, []byte("body"), x.Frame()[x.Header().HeaderLen:])
			var answers [][]byte
			got := func(body []byte, err error) {
				require.NoError(t, err)
				answers = append(answers, body)
				if len(answers) == 2 {
					x.After(time.Millisecond, func() {
						x.Reply(append([][]byte{[]byte("two:")}, answers...))
						x.Reply(nil) // no-op
						x.After(0, func() { panic("after the end") })
					})
				}
			}
			req := kmsg.NewPtrOffsetForLeaderEpochRequest()
			req.SetVersion(3)
			x.Ask(req, got)
			x.AskFrame(14, 0, [][]byte{[]byte("a"), []byte("b")}, got)
		}}
	})
	c := dialRaw(t, p)
	var all []byte
	all = append(all, request(keyHeartbeat, 0, 1, []byte("me"), []byte("first"))...)
	all = append(all, request(protocol.KeyListOffsets, 1, 2, []byte("me"), []byte("body"))...)
	all = append(all, request(keyHeartbeat, 0, 3, []byte("me"), []byte("third"))...)
	all = append(all, request(protocol.KeyListOffsets, 1, 4, []byte("me"), []byte("body"))...)
	for _, chunk := range [][]byte{all[:20], all[20:50], all[50:]} {
		c.send(chunk)
	}
	for want := int32(1); want <= 4; want++ {
		corr, body := c.answer()
		require.Equal(t, want, corr)
		if want%2 == 0 {
			require.Equal(t, "two:", string(body[:4]))
			require.Len(t, body, 4+8+8)
		}
	}
	require.Equal(t, []int32{12, 23, 14, 12, 23, 14}, order)
	require.Equal(t, []string{"me", "me", "me", "me", "me", "me"}, clients)
}

// Forwarded requests: changed or not, with their answer or without one.
func TestExchangeForward(t *testing.T) {
	leakCheck(t)
	p := testProxy(t, scriptedBroker(t, serveFrames(func(h protocol.RequestHeader, f []byte) []byte {
		if answer := sumAnswer(h, f); answer == nil {
			return nil
		}
		return bytes.Clone(f[h.HeaderLen:])
	})), func(o *Options) {
		o.handler = &stubHandler{
			key:  protocol.KeyProduce,
			mine: func(f []byte) bool { return f[len(f)-1] == 'm' },
			do: func(x exchange) {
				f := x.Frame()
				f[len(f)-1] = 'M'
				x.Forward()
			},
		}
	})
	c := dialRaw(t, p)
	head := []byte{0xff, 0xff, 0, 1} // transactional id null, acks
	acks0 := []byte{0xff, 0xff, 0, 0}
	var all []byte
	var want []string
	for i := range int32(200) {
		body := append(bytes.Clone(head), bytes.Repeat([]byte{'x'}, int(i)*300)...)
		switch i % 4 {
		case 0:
			body = append(body, 'm')
			want = append(want, string(body[:len(body)-1])+"M")
		case 1:
			body = append(bytes.Clone(acks0), 'm')
		case 2:
			body = append(bytes.Clone(acks0), 'x')
		default:
			body = append(body, 'x')
			want = append(want, string(body))
		}
		all = append(all, request(protocol.KeyProduce, 3, i, nil, body)...)
	}
	go func() { _, _ = c.Write(all) }()
	for i, w := range want {
		_, body := c.answer()
		require.Equal(t, w, string(body), "answer %d", i)
	}
}

// A frame that doesn't concern the handler isn't held up: it is at the broker
// while the answer before it is still out.
func TestExchangeLetsOthersPipeline(t *testing.T) {
	leakCheck(t)
	p := testProxy(t, scriptedBroker(t, func(c *net.TCPConn) {
		var frames [][]byte
		for range 3 { // answered only when all three are here
			f, err := readFrame(c)
			if err != nil {
				return
			}
			frames = append(frames, f)
		}
		for _, f := range frames {
			_, _ = c.Write(answerFrame(int32(binary.BigEndian.Uint32(f[4:])), sumOf(f)))
		}
		_, _ = readFrame(c)
	}), func(o *Options) {
		o.handler = &stubHandler{key: protocol.KeyProduce, mine: func([]byte) bool { return false }}
	})
	c := dialRaw(t, p)
	for i := range int32(3) {
		c.send(request(protocol.KeyProduce, 3, i, nil, []byte{0xff, 0xff, 0, 1}))
	}
	for i := range int32(3) {
		corr, _ := c.answer()
		require.Equal(t, i, corr)
	}
}

// The connection goes away in the middle of an exchange, on either side, or by
// the handler's wish; a handler that panics costs its connection only.
func TestExchangeEnds(t *testing.T) {
	leakCheck(t)
	var over, panics atomic.Int64
	asked := make(chan struct{}, 10)
	p := testProxy(t, scriptedBroker(t, func(c *net.TCPConn) {
		f, err := readFrame(c)
		if err != nil || f[len(f)-1] == 'b' {
			return
		}
		_, _ = readFrame(c)
	}), func(o *Options) {
		o.handler = &stubHandler{key: protocol.KeyListOffsets, do: func(x exchange) {
			f := x.Frame()
			switch f[len(f)-1] {
			case 'p':
				panics.Add(1)
				panic("a fault")
			case 'r':
				x.Close(ReasonAcks0Refused, nil)
				return
			}
			x.After(time.Hour, func() { panic("not cancelled") })
			x.AskFrame(keyHeartbeat, 0, [][]byte{f[len(f)-1:]}, func(_ []byte, err error) {
				if err == errExchangeOver { //nolint:errorlint // exactly this
					over.Add(1)
				}
				x.Reply(nil)
				x.Forward()
				x.AskFrame(keyHeartbeat, 0, nil, nil)
				x.Close(ReasonInternal, nil)
			})
			asked <- struct{}{}
		}}
	})
	for _, tc := range []struct {
		kind   byte
		reason CloseReason
	}{{'b', ReasonBrokerEOF}, {'r', ReasonAcks0Refused}, {'p', ReasonInternal}} {
		c := dialRaw(t, p)
		c.send(request(protocol.KeyListOffsets, 1, 2, nil, []byte{tc.kind}))
		require.Empty(t, c.ended())
		eventually(t, "reason "+tc.reason.String(), func() bool { return closedFor(p, tc.reason) == 1 })
	}
	<-asked
	eventually(t, "the handler hears of it", func() bool { return over.Load() == 1 })
	require.EqualValues(t, 1, panics.Load())

	c := dialRaw(t, p)
	c.send(request(protocol.KeyListOffsets, 1, 2, nil, []byte{'c'}))
	<-asked
	require.NoError(t, c.SetLinger(0)) // a reset
	require.NoError(t, c.Close())
	eventually(t, "noticed", func() bool { return closedFor(p, ReasonClientEOF) == 1 })
	eventually(t, "the handler hears of it", func() bool { return over.Load() == 2 })
}

// Clients whose answers wait don't get more of them made.
func TestExchangeRespectsBacklog(t *testing.T) {
	leakCheck(t)
	body := make([]byte, 1<<20)
	var made atomic.Int64
	p := testProxy(t, scriptedBroker(t, serveFrames(sumAnswer)), func(o *Options) {
		o.handler = &stubHandler{key: protocol.KeyListOffsets, do: func(x exchange) {
			made.Add(1)
			x.Reply([][]byte{body})
		}}
	})
	c := dialRaw(t, p)
	const n = 100
	for i := range int32(n) {
		c.send(request(protocol.KeyListOffsets, 1, i, nil, nil))
	}
	eventually(t, "backlog", func() bool {
		now, _ := p.engine.held()
		return now > int64(p.limits().ClientOutboundMax)
	})
	require.Less(t, made.Load(), int64(n))
	for range n {
		_, got := c.answer()
		require.Len(t, got, len(body))
	}
	_, peak := p.engine.held()
	require.LessOrEqual(t, peak, bound(p)+int64(len(body)))
}

// An exchange that asks often and gives answers back holds one of them at a time.
func TestExchangeReleases(t *testing.T) {
	leakCheck(t)
	answer := make([]byte, 256<<10)
	p := testProxy(t, scriptedBroker(t, serveFrames(func(_ protocol.RequestHeader, _ []byte) []byte { return answer })), func(o *Options) {
		o.handler = &stubHandler{key: protocol.KeyListOffsets, do: func(x exchange) {
			left := 50
			var again func()
			again = func() {
				x.AskFrame(keyHeartbeat, 0, nil, func(body []byte, err error) {
					require.NoError(t, err)
					require.Len(t, body, len(answer))
					if left--; left > 0 {
						again()
						x.Release(body)
						x.Release(body) // no-op
						x.Release(nil)
						return
					}
					x.Reply([][]byte{body[:3]})
					x.Release(body)
				})
			}
			again()
		}}
	})
	c := dialRaw(t, p)
	c.send(request(protocol.KeyListOffsets, 1, 2, nil, nil))
	_, body := c.answer()
	require.Len(t, body, 3)
	_, most := p.engine.held()
	require.Less(t, most, int64(4*len(answer)))
}
