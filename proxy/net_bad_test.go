package proxy

import (
	"encoding/binary"
	"net"
	"os"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/internal/testkafka"
	"github.com/lockstep-kafka/lockstep/protocol"
)

// What is no Kafka request closes the connection, under its own reason, and no
// broker is bothered with it.
func TestBadClients(t *testing.T) {
	leakCheck(t)
	var dialled atomic.Int64
	p := testProxy(t, scriptedBroker(t, func(c *net.TCPConn) {
		dialled.Add(1)
		serveFrames(sumAnswer)(c)
	}), nil)
	may := int64(0)
	for _, tc := range []struct {
		name   string
		send   []byte
		reason CloseReason
		dials  int64
	}{
		{"tls", []byte{0x16, 0x03, 0x01, 0x02, 0x00, 0x01, 0x00, 0x01, 0xfc, 0x03, 0x03, 0, 0, 0, 0, 0}, ReasonLooksLikeTLS, 0},
		{"http", []byte("GET / HTTP/1.1\r\nHost: x\r\n\r\n"), ReasonLooksLikeHTTP, 0},
		{"negative", []byte{0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0}, ReasonBadFrame, 0},
		{"huge", []byte{0x7f, 0xff, 0xff, 0xff, 0, 0, 0, 0}, ReasonFrameTooLarge, 0},
		{"empty", []byte{0, 0, 0, 0}, ReasonBadFrame, 0},
		{"tiny", []byte{0, 0, 0, 7, 0, 0, 0}, ReasonBadFrame, 0},
		{"unknown key", request(keyHeartbeat, 0, 1, nil, nil)[:4:4], ReasonUnknownAPI, 1},
		{"blocked key", binary.BigEndian.AppendUint64([]byte{0, 0, 0, 8}, 4<<48), ReasonUnknownAPI, 1},
		{"version above", binary.BigEndian.AppendUint64([]byte{0, 0, 0, 8}, 12<<48|99<<32), ReasonUnknownAPI, 1},
		{"version negative", binary.BigEndian.AppendUint64([]byte{0, 0, 0, 8}, 12<<48|0xffff<<32), ReasonUnknownAPI, 1},
		{"fetch v3", binary.BigEndian.AppendUint64([]byte{0, 0, 0, 8}, 1<<48|3<<32), ReasonUnknownAPI, 1},
		{"raw sasl without a mechanism", binary.BigEndian.AppendUint64([]byte{0, 0, 0, 8}, 17<<48), ReasonBadFrame, 1},
		{"raw sasl, unknown mechanism", request(protocol.KeySaslHandshake, 0, 1, nil, []byte{0, 3, 'X', 'Y', 'Z'}), ReasonUnknownAPI, 1},
		{"produce without acks", request(protocol.KeyProduce, 3, 1, []byte("x"), []byte{0xff, 0xff}), ReasonBadFrame, 1},
		{"produce, bad client id", append([]byte{0, 0, 0, 12, 0, 0, 0, 3, 0, 0, 0, 1, 0x80, 0}, 0, 0), ReasonBadFrame, 1},
		{"second frame bad", append(request(keyHeartbeat, 0, 1, nil, nil), 0xff, 0, 0, 0), ReasonBadFrame, 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if tc.name == "unknown key" {
				tc.send = binary.BigEndian.AppendUint64([]byte{0, 0, 0, 8}, 9999<<48)
			}
			before := closedFor(p, tc.reason)
			may += tc.dials // in all: a broker may count the client before's only now
			c := dialRaw(t, p)
			c.send(tc.send)
			c.ended()
			eventually(t, "reason "+tc.reason.String(), func() bool { return closedFor(p, tc.reason) == before+1 })
			require.LessOrEqual(t, dialled.Load(), may)
		})
	}
}

// Answers that nobody asked for, out of order or nonsense: the client is never
// given them.
func TestBadBroker(t *testing.T) {
	leakCheck(t)
	for name, sends := range map[string][]byte{
		"other correlation id": answerFrame(8, []byte("xx")),
		"two for one":          append(answerFrame(7, nil), answerFrame(7, nil)...),
		"negative size":        {0xff, 0xff, 0xff, 0xff, 0, 0, 0, 7},
		"no room for the id":   {0, 0, 0, 3, 0, 0, 0, 7},
		"tls alert":            {0x15, 0x03, 0x03, 0, 0x02, 0x02, 0x50, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			p := testProxy(t, scriptedBroker(t, func(c *net.TCPConn) {
				if _, err := readFrame(c); err == nil {
					_, _ = c.Write(sends)
					_, _ = readFrame(c)
				}
			}), nil)
			c := dialRaw(t, p)
			c.send(request(keyHeartbeat, 0, 7, nil, nil))
			rest := c.ended()
			if name == "two for one" {
				require.Equal(t, answerFrame(7, nil), rest)
			} else {
				require.Empty(t, rest)
			}
			eventually(t, "reason", func() bool { return closedFor(p, ReasonProtocolError) == 1 })
		})
	}
	t.Run("before any request", func(t *testing.T) {
		p := testProxy(t, scriptedBroker(t, func(c *net.TCPConn) {
			_, _ = c.Write(answerFrame(7, nil))
			_, _ = readFrame(c)
			_, _ = readFrame(c)
		}), nil)
		c := dialRaw(t, p)
		c.send(request(protocol.KeyProduce, 7, 1, nil, []byte{0xff, 0xff, 0, 0})) // acks=0, so nothing is awaited
		require.Empty(t, c.ended())
		eventually(t, "reason", func() bool { return closedFor(p, ReasonProtocolError) == 1 })
	})
}

// ApiVersions of a version from the future is answered the v0 way, in order.
func TestUnknownApiVersions(t *testing.T) {
	leakCheck(t)
	p := testProxy(t, scriptedBroker(t, serveFrames(sumAnswer)), nil)
	c := dialRaw(t, p)
	first := request(keyHeartbeat, 0, 1, nil, nil)
	future := request(protocol.KeyApiVersions, 127, 2, []byte("x"), []byte{0xde, 0xad})
	c.send(append(append(first, future...), request(keyHeartbeat, 0, 3, nil, nil)...))
	corr, _ := c.answer()
	require.EqualValues(t, 1, corr)
	corr, body := c.answer()
	require.EqualValues(t, 2, corr)
	resp := kmsg.NewPtrApiVersionsResponse()
	require.NoError(t, resp.ReadFrom(body))
	require.EqualValues(t, 35, resp.ErrorCode)
	require.EqualValues(t, 18, resp.ApiKeys[0].ApiKey)
	corr, _ = c.answer()
	require.EqualValues(t, 3, corr)
}

func TestLimits(t *testing.T) {
	leakCheck(t)
	broker := scriptedBroker(t, serveFrames(func(h protocol.RequestHeader, f []byte) []byte {
		if h.CorrelationID == 99 {
			return nil // never answered
		}
		return sumAnswer(h, f)
	}))
	p := testProxy(t, broker, nil)
	t.Run("no request", func(t *testing.T) {
		p.SetLimits(Limits{HandshakeTimeout: time.Millisecond})
		dialRaw(t, p).ended()
		eventually(t, "reason", func() bool { return closedFor(p, ReasonHandshakeTimeout) == 1 })
	})
	t.Run("idle", func(t *testing.T) {
		p.SetLimits(Limits{})
		c := dialRaw(t, p)
		c.send(request(keyHeartbeat, 0, 1, nil, nil))
		c.answer()
		p.SetLimits(Limits{IdleTimeout: time.Millisecond})
		eventually(t, "reason", func() bool { lookAtAll(p); return closedFor(p, ReasonIdle) == 1 })
		c.ended()
	})
	t.Run("stalled frame", func(t *testing.T) {
		p.SetLimits(Limits{})
		c := dialRaw(t, p)
		frame := request(keyHeartbeat, 0, 2, nil, make([]byte, 100))
		c.send(append(request(keyHeartbeat, 0, 1, nil, nil), frame[:50]...))
		c.answer()
		p.SetLimits(Limits{StalledFrameTimeout: time.Millisecond})
		eventually(t, "reason", func() bool { lookAtAll(p); return closedFor(p, ReasonStalledFrame) == 1 })
		c.ended()
	})
	t.Run("waiting for the broker is no stall", func(t *testing.T) {
		p.SetLimits(Limits{})
		c := dialRaw(t, p)
		c.send(request(keyHeartbeat, 0, 99, nil, nil))
		eventually(t, "asked", func() bool { return count(p, func(s *session) bool { return s.fifo.len() == 1 }) == 1 })
		p.SetLimits(Limits{HandshakeTimeout: time.Millisecond, IdleTimeout: time.Millisecond, StalledFrameTimeout: time.Millisecond})
		for range 20 {
			time.Sleep(time.Millisecond)
			lookAtAll(p)
		}
		require.EqualValues(t, 1, p.open.Load())
		require.NoError(t, c.Close())
		eventually(t, "closed", func() bool { return p.open.Load() == 0 })
	})
	t.Run("max connections", func(t *testing.T) {
		p.SetLimits(Limits{MaxConnections: 3})
		for range 3 {
			c := dialRaw(t, p)
			c.send(request(keyHeartbeat, 0, 99, nil, nil))
		}
		eventually(t, "three are open", func() bool { return p.open.Load() == 3 })
		dialRaw(t, p).ended()
		require.Equal(t, 1, closedFor(p, ReasonMaxConnections))
	})
}

// All bootstrap addresses are tried (PX-097); a client of an unknown broker
// waits, but not for ever.
func TestUnreachable(t *testing.T) {
	leakCheck(t)
	broker := scriptedBroker(t, serveFrames(sumAnswer))
	dead, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, dead.Close())
	deadAddr := dead.Addr().String()
	ports := freePorts(t, 1)
	p := testProxy(t, "", func(o *Options) {
		o.Dial = nil
		o.Bootstrap = []string{deadAddr, deadAddr, broker, deadAddr}
		o.Listeners[0].FirstPort, o.Listeners[0].LastPort = ports, ports
	})
	for range 4 {
		c := dialRaw(t, p)
		c.send(request(keyHeartbeat, 0, 1, nil, nil))
		c.answer()
	}
	p.SetLimits(Limits{HandshakeTimeout: 300 * time.Millisecond})
	for closedFor(p, ReasonConnectFailed) == 0 { // a client that takes too long to ask hears something else
		c := dialTCP(t, p.fronts[0].lns[1].Addr().String())
		_, _ = c.Write(request(keyHeartbeat, 0, 1, nil, nil))
		_, err := c.Read(make([]byte, 1))
		require.Error(t, err)
		require.NotErrorIs(t, err, os.ErrDeadlineExceeded)
	}
}

// freePorts is n neighbouring ports that nobody else uses during the test, other
// test processes neither.
func freePorts(t *testing.T, n int) (first int) {
	t.Helper()
	p, err := testkafka.ReservePorts(n)
	require.NoError(t, err)
	t.Cleanup(p.Release)
	return p.First
}

// PX-043: acks is found behind every form of client id and transactional id,
// and never before it is there.
func TestProduceAcks(t *testing.T) {
	long := string(make([]byte, 3000))
	s := func(v string) *string { return &v }
	for version := int16(0); version <= 13; version++ {
		api, _ := protocol.LookupAPI(protocol.KeyProduce)
		for _, client := range [][]byte{nil, {}, []byte("kafka-client"), []byte(long)} {
			for _, txn := range []*string{nil, s(""), s("transaction"), s(long)} {
				for _, acks := range []int16{0, 1, -1} {
					req := kmsg.NewPtrProduceRequest()
					req.SetVersion(version)
					req.Acks = acks
					req.TransactionID = txn
					frame := request(protocol.KeyProduce, version, 1, client, req.AppendTo(nil))[4:]
					if at := minRequest + 2 + len(client); api.Flexible(version) { // header tags, a long one among them
						frame = slices.Replace(frame, at, at+1, append([]byte{2, 0, 3, 'a', 'b', 'c', 0xc8, 1, 0xac, 2}, make([]byte, 300)...)...)
					}
					step := minRequest
					var got int16
					for n := 0; ; {
						a, need, err := produceAcks(frame[:step], len(frame), api.Flexible(version), version)
						require.NoError(t, err)
						if need == 0 {
							got = a
							break
						}
						require.Greater(t, need, step)
						step = need
						if n++; n > 40 {
							t.Fatal("no progress")
						}
					}
					require.Equal(t, acks, got, "v%d client id %d txn %v", version, len(client), txn)
				}
			}
		}
	}
}

func FuzzProduceAcks(f *testing.F) {
	f.Add([]byte{0, 0, 0, 9, 0, 0, 0, 1, 0, 1, 'x', 0, 0, 0xff, 0xff}, int16(9))
	f.Add([]byte{0, 0, 0, 3, 0, 0, 0, 1, 0xff, 0xff, 0xff, 0xff, 0, 0}, int16(3))
	f.Fuzz(func(t *testing.T, b []byte, version int16) {
		if len(b) < minRequest {
			return
		}
		for _, flexible := range []bool{false, true} {
			for n := minRequest; n <= len(b); n++ {
				_, need, err := produceAcks(b[:n], len(b), flexible, version)
				if err == nil && need > 0 && (need <= n || need > len(b)) {
					t.Fatalf("needs %d of %d, has %d", need, len(b), n)
				}
			}
		}
	})
}
