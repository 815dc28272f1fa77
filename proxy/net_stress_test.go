package proxy

import (
	"bytes"
	"hash/crc32"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/lockstep-kafka/lockstep/protocol"
)

// patternAnswer answers with a pattern whose length follows from the request.
func patternAnswer(h protocol.RequestHeader, frame []byte) []byte {
	body := make([]byte, int(crc32.ChecksumIEEE(frame[8:]))%150_000)
	pattern(body, int(h.CorrelationID))
	return body
}

// Marks so low that every connection pauses and resumes all the time, on both
// sides, with handled, forwarded and streamed requests between each other: no
// byte is lost, doubled or out of place.
func TestStressTinyMarks(t *testing.T) {
	leakCheck(t)
	p := testProxy(t, scriptedBroker(t, func(c *net.TCPConn) {
		rng := rand.New(rand.NewPCG(9, 9))
		serveFrames(func(h protocol.RequestHeader, f []byte) []byte {
			if rng.IntN(10) == 0 {
				time.Sleep(time.Duration(rng.IntN(2000)) * time.Microsecond)
			}
			return patternAnswer(h, f)
		})(c)
	}), func(o *Options) {
		o.Limits.ClientOutboundMax = 16 << 10
		o.handler = &stubHandler{
			key:  protocol.KeyListOffsets,
			mine: func(f []byte) bool { return f[len(f)-1]%3 != 0 },
			do: func(x exchange) {
				f := x.Frame()
				if f[len(f)-1]%3 == 1 {
					x.Forward()
					return
				}
				// Asked for in the client's stead: same request, same answer.
				x.AskFrame(protocol.KeyListOffsets, 1, [][]byte{f[x.Header().HeaderLen:]}, func(body []byte, err error) {
					if err == nil {
						x.Reply([][]byte{body[:len(body)/2], body[len(body)/2:]})
					}
				})
			},
		}
	})
	const conns, requests = 12, 200
	var wg sync.WaitGroup
	for id := range conns {
		c := dialRaw(t, p)
		rng := rand.New(rand.NewPCG(uint64(id), 7))
		var want [][]byte
		var stream []byte
		for corr := range int32(requests) {
			body := make([]byte, rng.IntN(40_000))
			pattern(body, rng.IntN(1000))
			key := []int16{protocol.KeyListOffsets, keyHeartbeat}[rng.IntN(2)]
			frame := request(key, 1, corr, []byte("stress"), body)
			stream = append(stream, frame...)
			want = append(want, patternAnswer(protocol.RequestHeader{CorrelationID: corr}, frame[4:]))
		}
		wg.Go(func() {
			for len(stream) > 0 {
				n := min(len(stream), 1+rng.IntN(50_000))
				if _, err := c.Write(stream[:n]); err != nil {
					t.Error(err)
					return
				}
				stream = stream[n:]
			}
		})
		wg.Go(func() {
			slow := rand.New(rand.NewPCG(uint64(id), 8))
			for i, w := range want {
				if slow.IntN(20) == 0 {
					time.Sleep(time.Duration(slow.IntN(3000)) * time.Microsecond)
				}
				frame, err := readFrame(c.r)
				if err != nil {
					t.Errorf("conn %d answer %d: %v", id, i, err)
					return
				}
				if !bytes.Equal(w, frame[4:]) {
					t.Errorf("conn %d answer %d: %d bytes, want %d, or other content", id, i, len(frame)-4, len(w))
					return
				}
			}
		})
	}
	wg.Wait()
	_, peak := p.engine.held()
	// Per connection: both directions over the mark by one read or one frame,
	// one read pending, one request and one answer buffered.
	require.LessOrEqual(t, peak, int64(conns*(2*(16<<10+readBufferBytes)+readBufferBytes+2*150_000+40_000)))
}

// PX-091, PX-107: connections that come and go in every early state leave
// nothing behind, and the metrics don't grow.
func TestChurn(t *testing.T) {
	leakCheck(t)
	reg := prometheus.NewRegistry()
	p := testProxy(t, scriptedBroker(t, serveFrames(sumAnswer)), func(o *Options) { o.Registerer = reg })
	count := func() (n int) {
		families, err := reg.Gather()
		require.NoError(t, err)
		for _, f := range families {
			n += len(f.Metric)
		}
		return n
	}
	before := count()
	frame := request(keyHeartbeat, 0, 1, nil, nil)
	var wg sync.WaitGroup
	for w := range 20 {
		wg.Go(func() {
			for i := range 100 {
				c, err := net.Dial("tcp", p.Addr().String())
				if err != nil {
					t.Error(err)
					return
				}
				n := (w + i) % (len(frame) + 3)
				_, _ = c.Write(frame[:min(n, len(frame))])
				if n > len(frame) {
					_ = c.SetReadDeadline(time.Now().Add(testPatience))
					if _, err := io.ReadFull(c, make([]byte, 16)); err != nil {
						t.Error(err)
					}
				}
				if i%2 == 0 {
					_ = c.(*net.TCPConn).SetLinger(0)
				}
				c.Close()
			}
		})
	}
	wg.Wait()
	eventually(t, "all are closed", func() bool { return p.open.Load() == 0 && p.engine.connections() == 0 })
	require.Equal(t, before, count())
}
