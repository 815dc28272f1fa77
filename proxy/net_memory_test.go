package proxy

import (
	"errors"
	"io"
	"net"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"

	"github.com/lockstep-kafka/lockstep/protocol"
)

// hugeAnswers answers each request with size bytes, which cost the test nothing.
func hugeAnswers(size, sendBuffer int) func(c *net.TCPConn) {
	body := make([]byte, 1<<20)
	pattern(body, 0)
	return func(c *net.TCPConn) {
		if sendBuffer > 0 { // the kernel's buffers of a thousand connections are memory, too
			_ = c.SetWriteBuffer(sendBuffer)
		}
		for {
			f, err := readFrame(c)
			if err != nil {
				return
			}
			h, _ := protocol.ParseRequestHeader(f)
			head := answerFrame(h.CorrelationID, nil)
			protocol.AppendFrameSize(head[:0], 4+size)
			if _, err := c.Write(head); err != nil {
				return
			}
			for left := size; left > 0; {
				n, err := c.Write(body[:min(left, len(body))])
				if err != nil {
					return
				}
				left -= n
			}
		}
	}
}

func heapInUse() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// asksWhole makes each request of the handled key one whole answer of the broker.
func asksWhole() *stubHandler {
	return &stubHandler{key: protocol.KeyListOffsets, do: func(x exchange) {
		x.AskFrame(keyHeartbeat, 0, nil, func(body []byte, err error) {
			if err == nil {
				x.Reply([][]byte{body})
			}
		})
	}}
}

// A thousand clients that fetch 50 MB each and don't read: what is held for them
// stays below limits.proxy_memory, whether their answers pass or have to be
// whole. All that comes on top are floorBytes and a chunk for each connection,
// and one read for each loop.
func TestMemoryBound(t *testing.T) {
	const clients, answer, limit = 1000, 50_000_000, 256 << 20
	for name, key := range map[string]int16{"passing": keyHeartbeat, "both": -1} {
		t.Run(name, func(t *testing.T) {
			leakCheck(t)
			broker := scriptedBroker(t, hugeAnswers(answer, 128<<10))
			before := heapInUse()
			opts := testOptions(broker)
			opts.Limits.Memory = limit
			opts.handler = asksWhole()
			p, err := New(opts)
			require.NoError(t, err)
			p.budget.patience = time.Hour // nobody is closed
			runProxy(t, p)
			for i := range clients {
				k := key
				if key < 0 {
					k = []int16{keyHeartbeat, protocol.KeyListOffsets}[i%2]
				}
				c := dialRaw(t, p)
				require.NoError(t, c.SetReadBuffer(32<<10))
				c.send(request(k, 1, 1, nil, nil))
			}
			// Until nothing moves any more.
			for last := -1.0; ; {
				runtime.Gosched()
				time.Sleep(100 * time.Millisecond)
				in := testutil.ToFloat64(p.m.upstreamIn)
				if in == last && p.open.Load() == clients && in > clients*1000 {
					break
				}
				last = in
			}
			const each = floorBytes + chunkBytes + 2<<10 // 2 KiB: the stash and pending of each are below the floor
			most := int64(limit + clients*each + len(p.engine.loops)*readBufferBytes)
			_, peak := p.engine.held()
			heap := heapInUse() - before
			t.Logf("held at most %d MiB, heap %d MiB, limit %d MiB", peak>>20, heap>>20, limit>>20)
			require.LessOrEqual(t, peak, most)
			require.LessOrEqual(t, heap, most+64<<20) // goroutines and sockets of a thousand clients of the test itself
		})
	}
}

// insist connects and asks until it gets through, as a client would: on a
// machine that stands still for the patience of a test, it may be closed, too.
func insist(t *testing.T, p *Proxy, ask func(c net.Conn) error) {
	for end := time.Now().Add(testPatience); ; {
		c, err := net.Dial("tcp", p.Addr().String())
		if err == nil {
			err = errors.Join(c.SetDeadline(end), ask(c), c.Close())
		}
		if err == nil {
			return
		}
		if time.Now().After(end) {
			t.Error(err)
			return
		}
	}
}

// outlast waits for those that insist. Once none of the stuck clients is left they
// may take their time: on a busy machine they would else be closed, too, again and
// again. p has one loop.
func outlast(t *testing.T, p *Proxy, stuck []*rawClient, insisting *sync.WaitGroup) {
	done := make(chan struct{})
	go func() {
		insisting.Wait()
		close(done)
	}()
	names := map[string]bool{}
	for _, c := range stuck {
		names[c.LocalAddr().String()] = true
	}
	eventually(t, "those that are stuck are closed", func() bool {
		select {
		case <-done: // before
			return true
		default:
			return count(p, func(s *session) bool { return names[s.client.remote()] }) == 0
		}
	})
	p.engine.loops[0].post(func() { p.budget.patience = time.Hour })
	<-done
}

// Those that don't take their answers hold nobody up for ever: they are closed
// when others wait for the memory. What others get is complete, and everything
// is given back.
func TestMemoryIsSharedOut(t *testing.T) {
	leakCheck(t)
	const answer, limit, stuck, readers = 8 << 20, 64 << 20, 20, 10
	opts := testOptions(scriptedBroker(t, hugeAnswers(answer, 0)))
	opts.Limits.Memory = limit
	opts.Loops = 1
	opts.handler = asksWhole()
	p, err := New(opts)
	require.NoError(t, err)
	p.budget.patience = 200 * time.Millisecond
	stop := runProxy(t, p)
	var sticky []*rawClient
	for range stuck {
		c := dialRaw(t, p)
		require.NoError(t, c.SetReadBuffer(32<<10))
		c.send(request(protocol.KeyListOffsets, 1, 1, nil, nil))
		sticky = append(sticky, c)
	}
	eventually(t, "some wait", func() bool { return p.budget.waiting.Load() >= stuck/2 })
	var wg sync.WaitGroup
	for range readers {
		wg.Go(func() {
			insist(t, p, func(c net.Conn) error {
				if _, err := c.Write(request(protocol.KeyListOffsets, 1, 1, nil, nil)); err != nil {
					return err
				}
				_, err := io.CopyN(io.Discard, c, 8+answer)
				return err
			})
		})
	}
	outlast(t, p, sticky, &wg)
	require.Positive(t, closedFor(p, ReasonMemory))
	stop()
	require.Zero(t, p.budget.granted.Load())
	require.Zero(t, p.budget.waiting.Load())
	require.Zero(t, p.budget.rest.Load())
	require.Zero(t, p.engine.passing())
}

// Large requests that are handled wait for room as answers do: one that was
// announced and doesn't come is closed, the others go through.
func TestMemoryOfRequests(t *testing.T) {
	leakCheck(t)
	const size = 8 << 20
	opts := testOptions(scriptedBroker(t, serveFrames(sumAnswer)))
	opts.Limits.Memory = 64 << 20
	opts.Loops = 1
	opts.handler = &stubHandler{key: protocol.KeyProduce, do: func(x exchange) { x.Forward() }}
	p, err := New(opts)
	require.NoError(t, err)
	p.budget.patience = 200 * time.Millisecond
	stop := runProxy(t, p)
	head := request(protocol.KeyProduce, 3, 1, nil, append([]byte{0xff, 0xff, 0, 1}, make([]byte, size)...))
	var stuck []*rawClient
	for range 10 {
		c := dialRaw(t, p)
		c.send(head[:1000])
		stuck = append(stuck, c)
	}
	eventually(t, "all the room is taken", func() bool { return p.budget.waiting.Load() > 0 })
	var wg sync.WaitGroup
	for range 5 {
		wg.Go(func() {
			insist(t, p, func(c net.Conn) error {
				if _, err := c.Write(head); err != nil {
					return err
				}
				f, err := readFrame(c)
				if err == nil && string(f[4:]) != string(sumOf(head[4:])) {
					t.Errorf("answer %x", f)
				}
				return err
			})
		})
	}
	outlast(t, p, stuck, &wg)
	require.Positive(t, closedFor(p, ReasonMemory))
	stop()
	require.Zero(t, p.budget.granted.Load())
}
