package proxy

import (
	"bytes"
	"encoding/binary"
	"io"
	"math/rand/v2"
	"net"
	"sync/atomic"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/protocol"
)

const keyHeartbeat = 12

func closedFor(p *Proxy, r CloseReason) int { return int(testutil.ToFloat64(p.m.closed[r])) }

// Requests and answers of all sizes, in segments cut anywhere, pipelined: every
// one arrives whole, and the answers come in order.
func TestStreamKeepsOrderAndBytes(t *testing.T) {
	leakCheck(t)
	p := testProxy(t, scriptedBroker(t, serveFrames(sumAnswer)), nil)
	rng := rand.New(rand.NewPCG(1, 2))
	var stream []byte
	var want [][]byte
	for corr := range int32(1500) {
		body := make([]byte, rng.IntN(3000))
		if corr%100 == 0 {
			body = make([]byte, 200<<10+rng.IntN(100<<10))
		}
		for i := range body {
			body[i] = byte(rng.Uint32())
		}
		var frame []byte
		switch rng.IntN(3) {
		case 0:
			frame = request(protocol.KeyProduce, 7, corr, []byte("c"), append([]byte{0xff, 0xff, 0, 0}, body...)) // acks=0
			stream = append(stream, frame...)
			continue
		case 1:
			frame = request(protocol.KeyProduce, 7, corr, []byte("c"), append([]byte{0xff, 0xff, 0xff, 0xff}, body...))
		default:
			frame = request(keyHeartbeat, 0, corr, nil, body)
		}
		stream = append(stream, frame...)
		want = append(want, answerFrame(corr, sumOf(frame[4:]))[4:])
	}
	c := dialRaw(t, p)
	go func() {
		for rest := stream; len(rest) > 0; {
			n := min(len(rest), 1+rng.IntN(20000))
			if rng.IntN(3) == 0 {
				n = min(n, 1+rng.IntN(15))
			}
			if _, err := c.Write(rest[:n]); err != nil {
				return
			}
			rest = rest[n:]
		}
	}()
	for i := range want {
		frame, err := readFrame(c.r)
		require.NoError(t, err, "answer %d", i)
		require.Equal(t, want[i], frame, "answer %d", i)
	}
}

// PX-041: a flood of requests without answers, then one with.
func TestAcks0FloodThenMetadata(t *testing.T) {
	leakCheck(t)
	var seen atomic.Int64
	first := freePorts(t, 5)
	meta := kmsg.NewPtrMetadataResponse()
	meta.SetVersion(1)
	meta.Brokers = []kmsg.MetadataResponseBroker{{NodeID: 3, Host: "internal.example", Port: 9092}}
	p := testProxy(t, scriptedBroker(t, serveFrames(func(h protocol.RequestHeader, f []byte) []byte {
		if h.Key == protocol.KeyMetadata {
			return meta.AppendTo(nil)
		}
		seen.Add(1)
		return sumAnswer(h, f)
	})), func(o *Options) { o.Listeners[0].FirstPort, o.Listeners[0].LastPort = first, first+4 })
	c := dialRaw(t, p)
	const n = 100_000
	go func() {
		var b []byte
		for corr := range int32(n) {
			b = append(b, request(protocol.KeyProduce, 9, corr, []byte("id"), []byte{0, 0, 0, 1, 2, 3})...)
			if len(b) > 50_000 {
				if _, err := c.Write(b); err != nil {
					return
				}
				b = b[:0]
			}
		}
		_, _ = c.Write(append(b, request(protocol.KeyMetadata, 1, n, nil, []byte{0xff, 0xff, 0xff, 0xff})...))
	}()
	corr, body := c.answer()
	require.EqualValues(t, n, corr)
	require.EqualValues(t, n, seen.Load())
	got := kmsg.NewPtrMetadataResponse()
	got.SetVersion(1)
	require.NoError(t, got.ReadFrom(body))
	require.Equal(t, "127.0.0.1", got.Brokers[0].Host)
	require.EqualValues(t, first+3, got.Brokers[0].Port)
}

// pattern fills b with what stands at offset off of an endless stream.
func pattern(b []byte, off int) {
	for i := range b {
		x := off + i
		b[i] = byte(x*7 + x>>8 + x>>16)
	}
}

// checkPattern reads n bytes and compares them.
func checkPattern(t *testing.T, r io.Reader, n int) {
	t.Helper()
	got, want := make([]byte, 64<<10), make([]byte, 64<<10)
	for off := 0; off < n; {
		k := min(len(got), n-off)
		_, err := io.ReadFull(r, got[:k])
		require.NoError(t, err)
		pattern(want[:k], off)
		require.True(t, bytes.Equal(want[:k], got[:k]), "bytes differ near %d", off)
		off += k
	}
}

// bound is the most that may wait in Lockstep for one direction of one client.
func bound(p *Proxy) int64 {
	return int64(p.limits().ClientOutboundMax) + readBufferBytes + 2*chunkBytes
}

const slowTotal, slowFrame = 256 << 20, 4 << 20

// A client that doesn't read: its broker is no longer read, memory stays
// bounded, and when it reads at last every byte is there.
func TestSlowReader(t *testing.T) {
	leakCheck(t)
	p := testProxy(t, scriptedBroker(t, func(c *net.TCPConn) {
		body := make([]byte, slowFrame)
		pattern(body, 0)
		serveFrames(func(protocol.RequestHeader, []byte) []byte { return body })(c)
	}), nil)
	c := dialRaw(t, p)
	for corr := range int32(slowTotal / slowFrame) {
		c.send(request(keyHeartbeat, 0, corr, nil, nil))
	}
	eventually(t, "the mark is reached", func() bool {
		now, _ := p.engine.held()
		return now > int64(p.limits().ClientOutboundMax)
	})
	in := testutil.ToFloat64(p.m.upstreamIn)
	require.Less(t, in, float64(slowTotal), "everything was read from the broker")
	for corr := range int32(slowTotal / slowFrame) {
		var head [8]byte
		_, err := io.ReadFull(c.r, head[:])
		require.NoError(t, err)
		require.EqualValues(t, slowFrame+4, binary.BigEndian.Uint32(head[:]))
		require.EqualValues(t, corr, binary.BigEndian.Uint32(head[4:]))
		checkPattern(t, c.r, slowFrame)
	}
	_, peak := p.engine.held()
	require.LessOrEqual(t, peak, bound(p))
}

// A broker that doesn't read: the client is no longer read.
func TestSlowBroker(t *testing.T) {
	leakCheck(t)
	read := make(chan struct{})
	result := make(chan *net.TCPConn)
	done := make(chan struct{})
	p := testProxy(t, scriptedBroker(t, func(c *net.TCPConn) {
		<-read
		result <- c
		<-done
	}), nil)
	defer close(done)
	c := dialRaw(t, p)
	head := request(protocol.KeyProduce, 3, 1, nil, []byte{0xff, 0xff, 0, 1})
	protocol.AppendFrameSize(head[:0], len(head)-4+slowFrame)
	sent := make(chan error, 1)
	go func() {
		body := make([]byte, slowFrame)
		pattern(body, 0)
		for range slowTotal / slowFrame {
			if _, err := (&net.Buffers{head, body}).WriteTo(c); err != nil {
				sent <- err
				return
			}
		}
		sent <- nil
	}()
	eventually(t, "the mark is reached", func() bool {
		now, _ := p.engine.held()
		return now > int64(p.limits().ClientOutboundMax)
	})
	require.Less(t, testutil.ToFloat64(p.m.clientIn), float64(slowTotal))
	close(read)
	b := <-result
	got := make([]byte, len(head))
	for range slowTotal / slowFrame {
		_, err := io.ReadFull(b, got)
		require.NoError(t, err)
		require.Equal(t, head, got)
		checkPattern(t, b, slowFrame)
	}
	require.NoError(t, <-sent)
	_, peak := p.engine.held()
	require.LessOrEqual(t, peak, bound(p))
}

// kroxylicious #4094: what a client sent before it closed reaches the broker,
// also when the broker is slow: acks=0 has no other proof of delivery.
func TestHalfCloseDeliversAcks0Tail(t *testing.T) {
	leakCheck(t)
	for _, hard := range []bool{false, true} {
		read := make(chan struct{})
		got := make(chan int, 1)
		p := testProxy(t, scriptedBroker(t, func(c *net.TCPConn) {
			<-read
			b, _ := io.ReadAll(c)
			got <- len(b)
		}), nil)
		c := dialRaw(t, p)
		frame := request(protocol.KeyProduce, 9, 5, []byte("id"), append([]byte{0, 0, 0}, make([]byte, 1<<20)...))
		const n = 24
		wrote := make(chan struct{})
		go func() {
			defer close(wrote)
			for range n {
				if _, err := c.Write(frame); err != nil {
					return
				}
			}
			if hard {
				c.Close()
			} else {
				_ = c.CloseWrite()
			}
		}()
		eventually(t, "the broker's side backs up", func() bool {
			now, _ := p.engine.held()
			return now > int64(p.limits().ClientOutboundMax)
		})
		close(read)
		<-wrote
		require.Equal(t, n*len(frame), <-got)
		eventually(t, "closed", func() bool { return closedFor(p, ReasonClientEOF) == 1 })
	}
}

// The broker's last bytes reach the client before the end does, at whatever
// byte of an answer it closes; and an idle client is closed with its broker
// (PX-103).
func TestBrokerClosesAnywhere(t *testing.T) {
	leakCheck(t)
	answer := answerFrame(7, []byte("0123456789"))
	var cut atomic.Int64
	p := testProxy(t, scriptedBroker(t, func(c *net.TCPConn) {
		if _, err := readFrame(c); err == nil {
			_, _ = c.Write(answer[:cut.Load()])
		}
	}), nil)
	for n := 0; n <= len(answer); n++ {
		cut.Store(int64(n))
		c := dialRaw(t, p)
		c.send(request(keyHeartbeat, 0, 7, nil, nil))
		rest := c.ended()
		if n >= 8 { // the size and correlation id are held back until they are whole
			require.Equal(t, answer[:n], rest)
		} else {
			require.Empty(t, rest)
		}
	}
	eventually(t, "reasons", func() bool { return closedFor(p, ReasonBrokerEOF) == len(answer)+1 })
}

// A client that stops at any byte of a request.
func TestClientClosesAnywhere(t *testing.T) {
	leakCheck(t)
	frame := request(protocol.KeyProduce, 9, 7, []byte("an-id"), []byte{3, 'x', 'y', 0, 0, 1, 2, 3})
	got := make(chan []byte, 1)
	p := testProxy(t, scriptedBroker(t, func(c *net.TCPConn) {
		b, _ := io.ReadAll(c)
		got <- b
	}), nil)
	for n := 0; n <= len(frame); n++ {
		c := dialRaw(t, p)
		c.send(frame[:n])
		require.NoError(t, c.CloseWrite())
		require.Empty(t, c.ended())
		if n < 12 { // not dialled yet
			continue
		}
		b := <-got
		acksAt := len(frame) - 3
		if n < acksAt {
			require.Empty(t, b)
		} else {
			require.Equal(t, frame[:n], b)
		}
	}
	eventually(t, "reasons", func() bool { return closedFor(p, ReasonClientEOF) == len(frame)+1 })
}
