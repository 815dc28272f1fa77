package proxy

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"io"
	"log/slog"
	"net"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/lockstep-kafka/lockstep/internal/leaktest"
	"github.com/lockstep-kafka/lockstep/protocol"
)

// testPatience bounds waits for what must happen; no test asserts how long
// something took.
const testPatience = 3 * time.Minute

// leakCheck fails the test when it leaves goroutines or files behind. It must
// be called before anything is started.
func leakCheck(t *testing.T) {
	t.Helper()
	before := openFiles(t)
	goroutines := goleak.IgnoreCurrent()
	t.Cleanup(func() {
		leaktest.None(t, goroutines)
		require.Eventually(t, func() bool { return openFiles(t) <= before }, testPatience, 5*time.Millisecond, "files were left open")
	})
}

func openFiles(t *testing.T) int {
	d, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	return len(d)
}

// testProxy runs a Proxy whose clients are connected to broker, whatever
// address they ask for.
func testProxy(t *testing.T, broker string, change func(*Options)) *Proxy {
	t.Helper()
	opts := testOptions(broker)
	if change != nil {
		change(&opts)
	}
	p, err := New(opts)
	require.NoError(t, err)
	runProxy(t, p)
	return p
}

func testOptions(broker string) Options {
	opts := Options{
		Listeners: []Listener{{Address: "127.0.0.1:0", FirstPort: 19100, LastPort: 19099}},
		Bootstrap: []string{"127.0.0.1:1"},
		Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
			// Loopback: it ends by itself, however long this machine stands still.
			return (&net.Dialer{}).DialContext(context.WithoutCancel(ctx), network, broker)
		},
		// Nobody is closed for being slow, but where a test asks for it.
		Limits: Limits{DrainTimeout: -1, HandshakeTimeout: testPatience, StalledFrameTimeout: testPatience},
		Logger: slog.New(slog.DiscardHandler),
		Loops:  2,
	}
	if testing.Verbose() {
		opts.Logger = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	return opts
}

// runProxy returns a function that stops the proxy and waits; the test's end
// does so as well.
func runProxy(t *testing.T, p *Proxy) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- p.Run(ctx) }()
	var once sync.Once
	stop = func() {
		once.Do(func() {
			cancel()
			require.NoError(t, <-done)
			held, _ := p.engine.held()
			require.Zero(t, held, "bytes still counted as buffered")
			require.Zero(t, p.open.Load())
			require.Zero(t, p.sockets.Load())
			require.Zero(t, p.engine.connections())
		})
	}
	t.Cleanup(stop)
	return stop
}

// scriptedBroker accepts connections and runs script on each.
func scriptedBroker(t *testing.T, script func(c *net.TCPConn)) (addr string) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	var (
		wg    sync.WaitGroup
		mu    sync.Mutex
		conns []net.Conn
	)
	wg.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			conns = append(conns, c)
			mu.Unlock()
			wg.Go(func() {
				defer c.Close()
				script(c.(*net.TCPConn))
			})
		}
	})
	t.Cleanup(func() {
		ln.Close()
		mu.Lock()
		for _, c := range conns {
			c.Close()
		}
		mu.Unlock()
		wg.Wait()
	})
	return ln.Addr().String()
}

// serveFrames answers each frame with what answer returns (after the
// correlation id; nil: no answer) until the connection ends.
func serveFrames(answer func(h protocol.RequestHeader, frame []byte) []byte) func(c *net.TCPConn) {
	return func(c *net.TCPConn) {
		r := bufio.NewReaderSize(c, 64<<10)
		for {
			frame, err := readFrame(r)
			if err != nil {
				return
			}
			h, _ := protocol.ParseRequestHeader(frame)
			body := answer(h, frame)
			if body == nil {
				continue
			}
			if _, err := c.Write(answerFrame(h.CorrelationID, body)); err != nil {
				return
			}
		}
	}
}

func answerFrame(corr int32, body []byte) []byte {
	b := protocol.AppendFrameSize(nil, 4+len(body))
	b = binary.BigEndian.AppendUint32(b, uint32(corr))
	return append(b, body...)
}

// sumAnswer answers with the request's CRC and length, or nothing to an acks=0
// produce.
func sumAnswer(h protocol.RequestHeader, frame []byte) []byte {
	if h.Key == protocol.KeyProduce {
		api, _ := protocol.LookupAPI(h.Key)
		if acks, _, err := produceAcks(frame, len(frame), api.Flexible(h.Version), h.Version); err == nil && acks == 0 {
			return nil
		}
	}
	return sumOf(frame)
}

func sumOf(frame []byte) []byte {
	b := binary.BigEndian.AppendUint32(nil, crc32.ChecksumIEEE(frame))
	return binary.BigEndian.AppendUint32(b, uint32(len(frame)))
}

func readFrame(r io.Reader) ([]byte, error) {
	var size [4]byte
	if _, err := io.ReadFull(r, size[:]); err != nil {
		return nil, err
	}
	n := int32(binary.BigEndian.Uint32(size[:]))
	if n < 0 || n > 1<<30 {
		return nil, errors.New("nonsense size")
	}
	frame := make([]byte, n)
	_, err := io.ReadFull(r, frame)
	return frame, err
}

// rawClient is a client that says exactly what it is told.
type rawClient struct {
	*net.TCPConn
	t *testing.T
	r *bufio.Reader
}

func dialRaw(t *testing.T, p *Proxy) *rawClient {
	t.Helper()
	c, err := net.Dial("tcp", p.Addr().String())
	require.NoError(t, err)
	t.Cleanup(func() { c.Close() })
	require.NoError(t, c.SetDeadline(time.Now().Add(testPatience)))
	return &rawClient{c.(*net.TCPConn), t, bufio.NewReader(c)}
}

func (c *rawClient) send(b []byte) {
	c.t.Helper()
	_, err := c.Write(b)
	require.NoError(c.t, err)
}

// answer reads the next answer.
func (c *rawClient) answer() (corr int32, body []byte) {
	c.t.Helper()
	frame, err := readFrame(c.r)
	require.NoError(c.t, err)
	return int32(binary.BigEndian.Uint32(frame)), frame[4:]
}

// ended reads to the end of the stream.
func (c *rawClient) ended() (rest []byte) {
	c.t.Helper()
	rest, err := io.ReadAll(c.r)
	if err != nil {
		var ne net.Error
		require.False(c.t, errors.As(err, &ne) && ne.Timeout(), "connection was not closed")
	}
	return rest
}

// request is a frame with its size.
func request(key, version int16, corr int32, clientID []byte, body []byte) []byte {
	b := protocol.AppendRequestHeader(make([]byte, 4), key, version, corr, clientID)
	b = append(b, body...)
	protocol.AppendFrameSize(b[:0], len(b)-4)
	return b
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	require.Eventually(t, ok, testPatience, 2*time.Millisecond, what)
}
