package proxy

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"log/slog"
	"net"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-kafka/lockstep/internal/tlsconf/tlstest"
	"github.com/lockstep-kafka/lockstep/protocol"
)

// syncBuffer takes a log of several goroutines.
type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *syncBuffer) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(b)
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

// reasonsHandler refuses produces, panics in ListOffsets, and finds that the
// topics of each Metadata answer have moved.
type reasonsHandler struct{}

func (reasonsHandler) takes(h protocol.RequestHeader) bool {
	return h.Key == protocol.KeyProduce || h.Key == protocol.KeyListOffsets
}

func (reasonsHandler) handle(x exchange) {
	if x.Header().Key == protocol.KeyListOffsets {
		panic("a fault")
	}
	x.Close(ReasonAcks0Refused, nil)
}

func (reasonsHandler) response(key, _ int16, body []byte) ([]byte, error) {
	if key == protocol.KeyMetadata {
		return nil, errTopicsMoved
	}
	return body, nil
}

// Every reason to close a connection: what brings it about, the word in the log
// and the documentation, the label of the metric. A reason without a row fails.
func TestCloseReasons(t *testing.T) {
	leakCheck(t)
	frame := func(words ...uint32) []byte {
		var b []byte
		for _, w := range words {
			b = binary.BigEndian.AppendUint32(b, w)
		}
		return b
	}
	ca := tlstest.NewCA(t)
	cert := ca.Certificate(t, "lockstep", "lockstep.test", "*.lockstep.test")
	overTLSByName := func(l *Listener) {
		l.TLS = func() *tls.Config { return &tls.Config{Certificates: []tls.Certificate{cert}} }
		l.SNI = &SNI{BootstrapHost: "lockstep.test", BrokerHost: "broker-%d.lockstep.test"}
		l.FirstPort, l.LastPort = 0, 0
	}
	beat := request(keyHeartbeat, 0, 1, nil, nil)
	sends := func(b []byte) func(*testing.T, *Proxy) {
		return func(t *testing.T, p *Proxy) {
			c := dialRaw(t, p)
			c.send(b)
			c.ended()
		}
	}
	// One short limit at a time: on a busy machine another one would be over first.
	idle := func(l *Limits) { l.IdleTimeout = 50 * time.Millisecond }
	rows := [numReasons]struct {
		limits  func(*Limits)
		listen  func(*Listener)
		broker  func(c *net.TCPConn) // nil: answers
		dial    error
		run     func(*testing.T, *Proxy)
		handler requestHandler
	}{
		ReasonClientEOF: {run: func(t *testing.T, p *Proxy) {
			c := dialRaw(t, p)
			c.send(beat)
			c.answer()
			require.NoError(t, c.Close())
		}},
		ReasonBrokerEOF:     {run: sends(beat), broker: func(c *net.TCPConn) { _, _ = readFrame(c) }},
		ReasonFrameTooLarge: {run: sends(frame(1<<30, 0))},
		ReasonBadFrame:      {run: sends(frame(0xffffffff, 0))},
		ReasonLooksLikeTLS:  {run: sends([]byte{0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3, 0, 0, 0, 0, 0})},
		ReasonLooksLikeHTTP: {run: sends([]byte("GET / HTTP/1.1\r\nHost: x\r\n\r\n"))},
		ReasonUnknownAPI:    {run: sends(frame(8, 9999<<16, 0))},
		ReasonSlowConsumer: {limits: idle, run: func(t *testing.T, p *Proxy) { // takes nothing
			dialRaw(t, p).send(beat)
		}, broker: serveFrames(func(protocol.RequestHeader, []byte) []byte { return make([]byte, 32<<20) })},
		ReasonIdle: {limits: idle, run: sends(beat)},
		ReasonStalledFrame: {limits: func(l *Limits) { l.StalledFrameTimeout = 30 * time.Millisecond }, run: func(t *testing.T, p *Proxy) {
			// Slow loris: a byte now and then is no progress.
			c := dialRaw(t, p)
			c.send(append(beat, request(keyHeartbeat, 0, 2, nil, make([]byte, 60<<10))[:50]...))
			for closedFor(p, ReasonStalledFrame) == 0 {
				if _, err := c.Write([]byte{0}); err != nil {
					return
				}
				time.Sleep(2 * time.Millisecond)
			}
		}},
		ReasonHandshakeTimeout: {limits: func(l *Limits) { l.HandshakeTimeout = 20 * time.Millisecond }, run: func(t *testing.T, p *Proxy) { dialRaw(t, p).ended() }},
		ReasonConnectFailed:    {run: sends(beat), dial: errors.New("no route")},
		ReasonDraining:         {run: sends(beat), broker: func(c *net.TCPConn) { _, _ = readFrame(c); _, _ = readFrame(c) }},
		ReasonAcks0Refused:     {run: sends(request(protocol.KeyProduce, 3, 1, nil, []byte{0xff, 0xff, 0, 0}))},
		ReasonProtocolError:    {run: sends(beat), broker: func(c *net.TCPConn) { _, _ = c.Write(answerFrame(8, nil)); _, _ = readFrame(c); _, _ = readFrame(c) }},
		ReasonViewStale:        {run: sends(request(protocol.KeyMetadata, 0, 1, nil, nil)), broker: serveFrames(func(protocol.RequestHeader, []byte) []byte { return make([]byte, 8) })},
		ReasonMaxConnections: {limits: func(l *Limits) { l.MaxConnections = 1 }, run: func(t *testing.T, p *Proxy) {
			dialRaw(t, p)
			dialRaw(t, p).ended()
		}},
		ReasonMaxConnectionsPerIP: {limits: func(l *Limits) { l.MaxConnectionsPerIP = 1 }, run: func(t *testing.T, p *Proxy) {
			first := dialRaw(t, p)
			dialRaw(t, p).ended()
			require.NoError(t, first.Close()) // gives its place back
			eventually(t, "closed", func() bool { return p.open.Load() == 0 })
			c := dialRaw(t, p)
			c.send(request(keyHeartbeat, 0, 1, nil, nil))
			c.answer()
		}},
		ReasonLooksLikePlaintext: {run: sends(beat), listen: overTLSByName},
		ReasonTLSHandshake: {listen: overTLSByName, run: func(t *testing.T, p *Proxy) {
			cfg := &tls.Config{RootCAs: ca.Pool, ServerName: "lockstep.test", MaxVersion: tls.VersionTLS11, MinVersion: tls.VersionTLS10}
			require.Error(t, tls.Client(dialTCP(t, p.Addr().String()), cfg).Handshake())
		}},
		ReasonUnknownSNI: {listen: overTLSByName, run: func(t *testing.T, p *Proxy) {
			require.Error(t, tls.Client(dialTCP(t, p.Addr().String()), &tls.Config{RootCAs: ca.Pool, ServerName: "broker-x.lockstep.test"}).Handshake())
		}},
		ReasonBadProxyHeader: {run: sends(beat), listen: func(l *Listener) { l.ProxyProtocol = ProxyRequired }},
		ReasonMaxAge:         {run: sends(beat), limits: func(l *Limits) { l.MaxAge = 200 * time.Millisecond }},
		ReasonInternal:       {run: sends(request(protocol.KeyListOffsets, 1, 1, nil, nil))},
		ReasonMemory: {handler: asksWhole(), limits: func(l *Limits) { l.Memory = 32 << 20 }, run: func(t *testing.T, p *Proxy) {
			for range 2 { // the second one waits for the first
				dialRaw(t, p).send(request(protocol.KeyListOffsets, 1, 1, nil, nil))
			}
		}, broker: hugeAnswers(16<<20, 0)},
	}
	docs, err := os.ReadFile("../docs/operations.md")
	require.NoError(t, err)
	words := map[string]bool{}
	for reason, row := range rows {
		r := CloseReason(reason)
		require.False(t, words[r.String()], "two reasons are called %s", r)
		words[r.String()] = true
		t.Run(r.String(), func(t *testing.T) {
			require.NotNil(t, row.run, "no test brings this reason about")
			require.Contains(t, string(docs), "`"+r.String()+"`", "docs/operations.md")
			var log syncBuffer
			broker := row.broker
			if broker == nil {
				broker = serveFrames(sumAnswer)
			}
			opts := testOptions(scriptedBroker(t, broker))
			opts.Logger = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))
			opts.handler = reasonsHandler{}
			if row.handler != nil {
				opts.handler = row.handler
			}
			if row.dial != nil {
				opts.Dial = func(context.Context, string, string) (net.Conn, error) { return nil, row.dial }
			}
			if row.listen != nil {
				row.listen(&opts.Listeners[0])
			}
			if row.limits != nil {
				row.limits(&opts.Limits)
			}
			p, err := New(opts)
			require.NoError(t, err)
			p.budget.patience = 20 * time.Millisecond
			stop := runProxy(t, p)
			if r == ReasonDraining {
				done := make(chan struct{})
				go func() { defer close(done); row.run(t, p) }()
				eventually(t, "the broker is asked", func() bool { return p.engine.connections() == 2 })
				stop()
				<-done
			} else {
				row.run(t, p)
			}
			eventually(t, "metric", func() bool { return closedFor(p, r) >= 1 })
			eventually(t, "log", func() bool { return bytes.Contains([]byte(log.String()), []byte("reason="+r.String())) })
		})
	}
}
