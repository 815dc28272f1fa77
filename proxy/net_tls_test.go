package proxy

import (
	"bufio"
	"crypto/tls"
	"encoding/binary"
	"io"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-kafka/lockstep/internal/tlsconf/tlstest"
	"github.com/lockstep-kafka/lockstep/protocol"
)

// tlsFront makes the first listener a TLS one.
func tlsFront(cfg *tls.Config) func(*Options) {
	return func(o *Options) { o.Listeners[0].TLS = func() *tls.Config { return cfg } }
}

// tlsClient is a rawClient's like over TLS.
type tlsClient struct {
	*tls.Conn
	t *testing.T
	r *bufio.Reader
}

func dialTLS(t *testing.T, addr string, cfg *tls.Config) *tlsClient {
	t.Helper()
	return overTLS(t, dialTCP(t, addr), cfg)
}

func dialTCP(t *testing.T, addr string) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	require.NoError(t, err)
	t.Cleanup(func() { c.Close() })
	require.NoError(t, c.SetDeadline(time.Now().Add(testPatience)))
	return c
}

func overTLS(t *testing.T, c net.Conn, cfg *tls.Config) *tlsClient {
	t.Helper()
	tc := tls.Client(c, cfg)
	require.NoError(t, tc.Handshake())
	return &tlsClient{tc, t, bufio.NewReader(tc)}
}

func (c *tlsClient) send(b []byte) {
	c.t.Helper()
	_, err := c.Write(b)
	require.NoError(c.t, err)
}

func (c *tlsClient) answer() (corr int32, body []byte) {
	c.t.Helper()
	frame, err := readFrame(c.r)
	require.NoError(c.t, err)
	return int32(binary.BigEndian.Uint32(frame)), frame[4:]
}

// Requests and answers of all sizes come through in order, unchanged, with
// either version of TLS, also when both sides speak it.
func TestTLSListener(t *testing.T) {
	leakCheck(t)
	ca := tlstest.NewCA(t)
	server := &tls.Config{Certificates: []tls.Certificate{ca.Certificate(t, "lockstep", "lockstep.test")}}
	broker := scriptedBroker(t, serveFrames(sumAnswer))
	tlsBroker := scriptedBroker(t, func(c *net.TCPConn) {
		tc := tls.Server(c, &tls.Config{Certificates: []tls.Certificate{ca.Certificate(t, "broker", "broker.test")}})
		for {
			f, err := readFrame(tc)
			if err != nil {
				return
			}
			if _, err := tc.Write(answerFrame(int32(binary.BigEndian.Uint32(f[4:])), sumOf(f))); err != nil {
				return
			}
		}
	})
	for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
		for name, change := range map[string]func(*Options){
			"to a plaintext broker": func(o *Options) {},
			"to a TLS broker": func(o *Options) {
				*o = testOptions(tlsBroker)
				o.TLS = fixedTLS(&tls.Config{RootCAs: ca.Pool, ServerName: "broker.test"})
			},
		} {
			t.Run(tls.VersionName(version)+" "+name, func(t *testing.T) {
				p := testProxy(t, broker, func(o *Options) {
					change(o)
					tlsFront(server)(o)
				})
				c := dialTLS(t, p.Addr().String(), &tls.Config{RootCAs: ca.Pool, ServerName: "lockstep.test", MaxVersion: version})
				var sums [][]byte
				for corr := range int32(60) {
					b := make([]byte, corr*corr*corr*2)
					pattern(b, int(corr))
					req := request(keyHeartbeat, 0, corr, []byte("c"), b)
					sums = append(sums, sumOf(req[protocol.FrameSizeLen:]))
					c.send(req)
				}
				for corr, sum := range sums {
					got, body := c.answer()
					require.EqualValues(t, corr, got)
					require.Equal(t, sum, body)
				}
				require.NoError(t, c.Close())
				eventually(t, "closed", func() bool { return closedFor(p, ReasonClientEOF) == 1 })
			})
		}
	}
}

// crypto/tls goes on after a Read that had nothing, wherever in a record the
// bytes stopped.
func TestTLSByteByByte(t *testing.T) {
	leakCheck(t)
	ca := tlstest.NewCA(t)
	p := testProxy(t, scriptedBroker(t, serveFrames(sumAnswer)),
		tlsFront(&tls.Config{Certificates: []tls.Certificate{ca.Certificate(t, "lockstep", "lockstep.test")}}))
	c := overTLS(t, dripConn{dialTCP(t, p.Addr().String()).(*net.TCPConn)}, &tls.Config{RootCAs: ca.Pool, ServerName: "lockstep.test"})
	for corr := range int32(3) {
		req := request(keyHeartbeat, 0, corr, nil, make([]byte, 300))
		c.send(req)
		got, body := c.answer()
		require.Equal(t, corr, got)
		require.Equal(t, sumOf(req[4:]), body)
	}
}

// dripConn writes byte by byte, each a packet of its own.
type dripConn struct{ *net.TCPConn }

func (c dripConn) Write(b []byte) (int, error) {
	for i := range b {
		if _, err := c.TCPConn.Write(b[i : i+1]); err != nil {
			return i, err
		}
		time.Sleep(50 * time.Microsecond)
	}
	return len(b), nil
}

// heldConn sends nothing until it is told to, then all at once.
type heldConn struct {
	net.Conn
	hold bool
	b    []byte
}

func (c *heldConn) Write(b []byte) (int, error) {
	if c.hold {
		c.b = append(c.b, b...)
		return len(b), nil
	}
	_, err := c.Conn.Write(append(c.b, b...))
	c.b = nil
	return len(b), err
}

// What comes in one segment with the end of the handshake isn't lost, and not
// waited with until more comes.
func TestTLSRequestWithHandshake(t *testing.T) {
	leakCheck(t)
	ca := tlstest.NewCA(t)
	p := testProxy(t, scriptedBroker(t, serveFrames(sumAnswer)),
		tlsFront(&tls.Config{Certificates: []tls.Certificate{ca.Certificate(t, "lockstep", "lockstep.test")}}))
	held := &heldConn{Conn: dialTCP(t, p.Addr().String())}
	tc := tls.Client(held, &tls.Config{
		RootCAs: ca.Pool, ServerName: "lockstep.test",
		VerifyConnection: func(tls.ConnectionState) error { held.hold = true; return nil }, // before the client's last message
	})
	require.NoError(t, tc.Handshake())
	c := &tlsClient{tc, t, bufio.NewReader(tc)}
	req := request(keyHeartbeat, 0, 5, nil, make([]byte, 60)) // so short that crypto/tls reads it with the handshake
	c.send(req[:20])
	held.hold = false
	c.send(req[20:])
	_, body := c.answer()
	require.Equal(t, sumOf(req[4:]), body)
}

// The last answer reaches a TLS client before its connection ends, whoever ends
// it, and the end is TLS's own.
func TestTLSCloseFlushes(t *testing.T) {
	leakCheck(t)
	ca := tlstest.NewCA(t)
	body := make([]byte, 3<<20)
	pattern(body, 0)
	broker := scriptedBroker(t, func(c *net.TCPConn) {
		f, err := readFrame(c)
		if err != nil {
			return
		}
		_, _ = c.Write(answerFrame(int32(binary.BigEndian.Uint32(f[4:])), body))
	})
	p := testProxy(t, broker, tlsFront(&tls.Config{Certificates: []tls.Certificate{ca.Certificate(t, "lockstep", "lockstep.test")}}))
	raw := &recordedConn{Conn: dialTCP(t, p.Addr().String())}
	c := overTLS(t, raw, &tls.Config{RootCAs: ca.Pool, ServerName: "lockstep.test", MaxVersion: tls.VersionTLS12})
	c.send(request(keyHeartbeat, 0, 7, nil, nil))
	eventually(t, "the session is over", func() bool { return closedFor(p, ReasonBrokerEOF) == 1 }) // nothing read yet
	_, got := c.answer()
	require.Equal(t, body, got)
	_, err := c.r.ReadByte()
	require.Equal(t, io.EOF, err)
	last, b := byte(0), raw.b
	for len(b) > 5 {
		last = b[0]
		b = b[5+int(binary.BigEndian.Uint16(b[3:])):]
	}
	require.EqualValues(t, 21, last, "the last record is no alert")
}

// recordedConn keeps what was read.
type recordedConn struct {
	net.Conn
	b []byte
}

func (c *recordedConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.b = append(c.b, b[:n]...)
	return n, err
}

// A TLS client that reads slowly costs a bounded buffer, as a plaintext one.
func TestTLSSlowReader(t *testing.T) {
	leakCheck(t)
	ca := tlstest.NewCA(t)
	body := make([]byte, 1<<20)
	pattern(body, 0)
	p := testProxy(t, scriptedBroker(t, serveFrames(func(protocol.RequestHeader, []byte) []byte { return body })),
		tlsFront(&tls.Config{Certificates: []tls.Certificate{ca.Certificate(t, "lockstep", "lockstep.test")}}))
	c := dialTLS(t, p.Addr().String(), &tls.Config{RootCAs: ca.Pool, ServerName: "lockstep.test"})
	const n = 40
	for corr := range int32(n) {
		c.send(request(keyHeartbeat, 0, corr, nil, make([]byte, 1000)))
	}
	eventually(t, "the mark is reached", func() bool {
		now, _ := p.engine.held()
		return now > int64(p.limits().ClientOutboundMax)
	})
	for range n {
		_, err := io.CopyN(io.Discard, c.r, 8)
		require.NoError(t, err)
		checkPattern(t, c.r, 1<<20)
	}
	_, peak := p.engine.held()
	require.LessOrEqual(t, peak, bound(p))
}
