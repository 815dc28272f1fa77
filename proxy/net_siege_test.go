package proxy

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-kafka/lockstep/internal/tlsconf/tlstest"
	"github.com/lockstep-kafka/lockstep/protocol"
)

// fragConn writes in pieces of any size: TLS records, and frames, come cut
// anywhere.
type fragConn struct {
	net.Conn
	mu  sync.Mutex
	rng *rand.Rand
}

func newFragConn(c net.Conn, seed uint64) *fragConn {
	return &fragConn{Conn: c, rng: rand.New(rand.NewPCG(seed, 1))}
}

func (c *fragConn) Write(b []byte) (done int, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for done < len(b) {
		most := []int{1, 7, 100, 5_000, 100_000, 1_000_000}[c.rng.IntN(6)]
		for range 1 + c.rng.IntN(4) {
			n := min(len(b)-done, 1+c.rng.IntN(most))
			if n, err = c.Conn.Write(b[done : done+n]); err != nil {
				return done + n, err
			}
			done += n
		}
	}
	return done, nil
}

// siege is a proxy with little memory, whose bounds change all the time, under
// clients that pipeline requests of every kind, read by fits and starts, come and
// go in every early state.
type siege struct {
	clientTLS, brokerTLS bool
	clients, requests    int
}

const siegeAnswer = 300_000

func siegeAnswerTo(f []byte) []byte {
	sum := crc32.ChecksumIEEE(f)
	size := int(sum % 200)
	if sum>>8%3 == 0 {
		size = int(sum % siegeAnswer)
	}
	body := make([]byte, size)
	pattern(body, int(sum%1000))
	return body
}

func (g siege) run(t *testing.T, seed uint64) {
	leakCheck(t)
	ca := tlstest.NewCA(t)
	server := &tls.Config{Certificates: []tls.Certificate{ca.Certificate(t, "lockstep", "lockstep.test")}}
	brokerCert := &tls.Config{Certificates: []tls.Certificate{ca.Certificate(t, "broker", "broker.test")}}
	opts := testOptions(scriptedBroker(t, func(c *net.TCPConn) {
		var conn net.Conn = newFragConn(c, seed)
		if g.brokerTLS {
			conn = tls.Server(conn, brokerCert)
		}
		r := bufio.NewReader(conn)
		for {
			f, err := readFrame(r)
			if err != nil {
				return
			}
			// What Lockstep asks in the client's stead has the same body.
			h, _ := protocol.ParseRequestHeader(f)
			if _, err := conn.Write(answerFrame(h.CorrelationID, siegeAnswerTo(f[h.HeaderLen:]))); err != nil {
				return
			}
		}
	}))
	if g.clientTLS {
		tlsFront(server)(&opts)
	}
	if g.brokerTLS {
		opts.TLS = fixedTLS(&tls.Config{RootCAs: ca.Pool, ServerName: "broker.test"})
	}
	opts.handler = &stubHandler{key: protocol.KeyListOffsets, mine: func(f []byte) bool { return f[len(f)-1]%4 != 0 }, do: func(x exchange) {
		f := x.Frame()
		body := f[x.Header().HeaderLen:]
		if f[len(f)-1]%4 == 1 {
			x.Forward()
			return
		}
		twice := f[len(f)-1]%4 == 2
		x.AskFrame(protocol.KeyListOffsets, 1, [][]byte{body}, func(b []byte, err error) {
			switch {
			case err != nil:
			case twice:
				x.Release(b)
				x.AskFrame(protocol.KeyListOffsets, 1, [][]byte{body}, func(b []byte, err error) {
					if err == nil {
						x.After(time.Millisecond, func() { x.Reply([][]byte{b}) })
					}
				})
			default:
				x.Reply([][]byte{b[:len(b)/2], b[len(b)/2:]})
			}
		})
	}}
	limits := []Limits{
		{Memory: 2 << 20, ClientOutboundMax: 16 << 10}, {Memory: 8 << 20, ClientOutboundMax: 1 << 20}, {Memory: 1 << 20, ClientOutboundMax: 64 << 10},
	}
	for i := range limits {
		limits[i].MaxInFlight, limits[i].DrainTimeout = 20, 2*time.Second
	}
	opts.Limits = limits[0]
	p, err := New(opts)
	require.NoError(t, err)
	p.budget.patience = time.Hour // nobody is closed: all must get through
	stop := runProxy(t, p)

	connect := func(seed uint64) (net.Conn, error) {
		c, err := net.Dial("tcp", p.Addr().String())
		if err != nil {
			return nil, err
		}
		_ = c.(*net.TCPConn).SetReadBuffer(16 << 10)
		c = newFragConn(c, seed)
		if g.clientTLS {
			c = tls.Client(c, &tls.Config{RootCAs: ca.Pool, ServerName: "lockstep.test"})
		}
		return c, nil
	}
	over := make(chan struct{})
	var others, all sync.WaitGroup
	others.Go(func() { // reloads
		for i := 0; ; i++ {
			select {
			case <-over:
				return
			case <-time.After(3 * time.Millisecond):
				p.SetLimits(limits[i%len(limits)])
			}
		}
	})
	for id := range uint64(3) {
		others.Go(func() { // those that come and go
			rng := rand.New(rand.NewPCG(seed, 100+id))
			frame := request(protocol.KeyListOffsets, 1, 1, nil, bytes.Repeat([]byte{2}, 200_000))
			for {
				select {
				case <-over:
					return
				default:
				}
				c, err := connect(rng.Uint64())
				if err != nil {
					t.Error(err)
					return
				}
				n := []int{0, 3, 4, 12, 5000, len(frame) - 1, len(frame)}[rng.IntN(7)]
				if rng.IntN(4) == 0 { // no TLS, or half of it
					if tc, ok := c.(*tls.Conn); ok {
						_, _ = tc.NetConn().Write([]byte("\x16\x03\x01\x02\x00\x01\x00")[:rng.IntN(8)])
					}
				} else {
					_, _ = c.Write(frame[:n])
				}
				time.Sleep(time.Duration(rng.IntN(5)) * time.Millisecond)
				_ = c.Close()
			}
		})
	}
	for id := range uint64(g.clients) {
		all.Go(func() {
			if err := g.client(connect, seed, id); err != nil {
				t.Errorf("client %d: %v", id, err)
			}
		})
	}
	all.Wait()
	close(over)
	others.Wait()
	stop()
	require.Zero(t, p.budget.granted.Load())
	require.Zero(t, p.budget.waiting.Load())
	require.Zero(t, p.budget.rest.Load())
	require.Zero(t, p.engine.passing())
	require.Zero(t, closedFor(p, ReasonInternal))
	require.Zero(t, closedFor(p, ReasonProtocolError))
}

func (g siege) client(connect func(seed uint64) (net.Conn, error), seed, id uint64) error {
	rng := rand.New(rand.NewPCG(seed, id))
	c, err := connect(rng.Uint64())
	if err != nil {
		return err
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(3 * testPatience)); err != nil {
		return err
	}
	bodies := make([][]byte, g.requests)
	for i := range bodies {
		size := 1 + rng.IntN(300)
		if rng.IntN(4) == 0 {
			size = 1 + rng.IntN(200_000)
		}
		bodies[i] = make([]byte, size)
		pattern(bodies[i], rng.IntN(1000))
		bodies[i][size-1] = byte(rng.IntN(256))
	}
	sent := make(chan error, 1)
	writer := rand.New(rand.NewPCG(seed, 1000+id))
	go func() {
		for i, body := range bodies {
			key := []int16{protocol.KeyListOffsets, protocol.KeyListOffsets, keyHeartbeat}[writer.IntN(3)]
			if _, err := c.Write(request(key, 1, int32(i), []byte("siege"), body)); err != nil {
				sent <- err
				return
			}
		}
		sent <- nil
	}()
	r := bufio.NewReaderSize(c, 8<<10)
	for i, body := range bodies {
		if rng.IntN(8) == 0 {
			time.Sleep(time.Duration(rng.IntN(60)) * time.Millisecond)
		}
		var head [8]byte
		if _, err := io.ReadFull(r, head[:]); err != nil {
			return fmt.Errorf("answer %d: %w", i, err)
		}
		want := siegeAnswerTo(body)
		if corr, size := binary.BigEndian.Uint32(head[4:]), binary.BigEndian.Uint32(head[:]); corr != uint32(i) || size != uint32(4+len(want)) {
			return fmt.Errorf("answer %d has correlation id %d and %d bytes, want %d", i, corr, size, 4+len(want))
		}
		got := make([]byte, len(want))
		if _, err := io.ReadFull(r, got); err != nil {
			return fmt.Errorf("answer %d: %w", i, err)
		}
		if !bytes.Equal(got, want) {
			return fmt.Errorf("answer %d has other bytes", i)
		}
	}
	return <-sent
}

// Whatever happens at once: every byte arrives, in order, everything that can
// finish does, and nothing is left.
func TestSiege(t *testing.T) {
	for i, g := range []siege{
		{clients: 10, requests: 15}, {clientTLS: true, brokerTLS: true, clients: 10, requests: 15},
	} {
		t.Run(fmt.Sprintf("TLS of clients %v, of brokers %v", g.clientTLS, g.brokerTLS), func(t *testing.T) { g.run(t, uint64(i)) })
	}
}
