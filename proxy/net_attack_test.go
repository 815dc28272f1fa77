package proxy

import (
	"crypto/tls"
	"encoding/binary"
	"errors"
	"io"
	"log/slog"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kmsg"
	"golang.org/x/sys/unix"

	"github.com/lockstep-kafka/lockstep/internal/tlsconf/tlstest"
	"github.com/lockstep-kafka/lockstep/protocol"
)

// A client that always has one more large request under way, or one more large
// answer, holds the room of one or two, not of all that it has ever sent: others
// would wait for ever.
func TestMemoryOfPipelines(t *testing.T) {
	const size, n = 300 << 10, 40
	large := make([]byte, size)
	for name, c := range map[string]struct {
		handler *stubHandler
		request func(corr int32) []byte
		answer  int
	}{
		"large handled requests": {&stubHandler{key: protocol.KeyListOffsets, do: func(x exchange) {
			x.AskFrame(keyHeartbeat, 0, nil, func(_ []byte, err error) {
				if err == nil {
					x.Reply([][]byte{large[:8]})
				}
			})
		}}, func(corr int32) []byte { return request(protocol.KeyListOffsets, 1, corr, nil, large) }, 8},
		"large requests passed on whole": {
			&stubHandler{key: protocol.KeyProduce, mine: func([]byte) bool { return false }},
			func(corr int32) []byte {
				return request(protocol.KeyProduce, 3, corr, nil, append([]byte{0xff, 0xff, 0, 1}, large...))
			}, 8,
		},
		"large answers to handled requests": {asksWhole(), func(corr int32) []byte { return request(protocol.KeyListOffsets, 1, corr, nil, nil) }, size},
	} {
		t.Run(name, func(t *testing.T) {
			leakCheck(t)
			p := testProxy(t, scriptedBroker(t, serveFrames(func(protocol.RequestHeader, []byte) []byte { return large[:c.answer] })), func(o *Options) {
				o.handler = c.handler
				o.Limits.Memory = 64 << 20
			})
			var all []byte
			for corr := range int32(n) {
				all = append(all, c.request(corr)...)
			}
			cl := dialRaw(t, p)
			sent := make(chan error, 1)
			go func() {
				_, err := cl.Write(all)
				sent <- err
			}()
			var most int64
			for range n {
				cl.answer()
				most = max(most, p.budget.granted.Load())
			}
			require.NoError(t, <-sent)
			require.LessOrEqual(t, most, int64(p.limits().ClientOutboundMax)+3*frameCost(size+100)) // the broker may be slow
			eventually(t, "all given back", func() bool { return p.budget.granted.Load() == 0 })
		})
	}
}

// The same for large answers that are rewritten, which come without a gap.
func TestMemoryOfPipelinedAnswers(t *testing.T) {
	leakCheck(t)
	const n = 40
	meta := kmsg.NewPtrMetadataResponse()
	meta.SetVersion(1)
	for range 3000 {
		topic := kmsg.NewMetadataResponseTopic()
		topic.Topic = kmsg.StringPtr(strings.Repeat("t", 100))
		meta.Topics = append(meta.Topics, topic)
	}
	body := meta.AppendTo(nil)
	p := testProxy(t, scriptedBroker(t, func(c *net.TCPConn) {
		var all []byte
		for corr := range int32(n) {
			if _, err := readFrame(c); err != nil {
				return
			}
			all = append(all, answerFrame(corr, body)...)
		}
		_, _ = c.Write(all)
		_, _ = readFrame(c)
	}), func(o *Options) { o.Limits.Memory = 64 << 20 })
	cl := dialRaw(t, p)
	for corr := range int32(n) {
		cl.send(request(protocol.KeyMetadata, 1, corr, nil, metadataBody))
	}
	var most int64
	for range n {
		_, got := cl.answer()
		require.Len(t, got, len(body))
		most = max(most, p.budget.granted.Load())
	}
	require.LessOrEqual(t, most, int64(p.limits().ClientOutboundMax)+4*frameCost(len(body)))
	eventually(t, "all given back", func() bool { return p.budget.granted.Load() == 0 })
}

// Room that is given back just when somebody finds that there is none must wake
// him.
func TestMemoryClaimIsNotMissed(t *testing.T) {
	var b *budget
	back := make(chan struct{})
	first := true
	b = &budget{passing: func() int64 { return 0 }, limit: func() int64 {
		if first { // take has looked at what is granted
			first = false
			go func() {
				defer close(back)
				b.giveBack(100)
			}()
			select {
			case <-back:
			case <-time.After(100 * time.Millisecond): // waits for take
			}
		}
		return 200
	}}
	b.force(100)
	met := make(chan struct{})
	require.NotNil(t, b.take(50, func() { close(met) }))
	<-back
	select {
	case <-met:
	case <-time.After(testPatience):
		t.Fatal("waits for ever")
	}
	require.EqualValues(t, 50, b.granted.Load())
	require.Zero(t, b.waiting.Load())
}

// A claim that is given up lets those behind it go on.
func TestMemoryClaimGivenUp(t *testing.T) {
	b := &budget{passing: func() int64 { return 0 }, limit: func() int64 { return 200 }}
	b.force(90)
	met := 0
	large := b.take(50, func() { t.Error("there is no room for it") })
	require.NotNil(t, b.take(5, func() { met++ }))
	require.True(t, b.cancel(large))
	require.Equal(t, 1, met)
	require.EqualValues(t, 95, b.granted.Load())
}

// Room that a session gets just when it ends is given back.
func TestMemoryGrantedAtTheEnd(t *testing.T) {
	leakCheck(t)
	opts := testOptions(scriptedBroker(t, hugeAnswers(1<<20, 0)))
	opts.Limits.Memory = 32 << 20
	opts.handler = asksWhole()
	opts.Loops = 1
	p, err := New(opts)
	require.NoError(t, err)
	p.budget.patience = time.Hour
	runProxy(t, p)
	p.budget.force(16 << 20)
	c := dialRaw(t, p)
	c.send(request(protocol.KeyListOffsets, 1, 1, nil, nil))
	eventually(t, "waits", func() bool { return p.budget.waiting.Load() == 1 })
	l := p.engine.loops[0]
	l.post(func() {
		p.budget.giveBack(16 << 20) // the session hears of it when this is done
		for s := range l.sessions {
			s.close(ReasonClientEOF, nil)
		}
	})
	c.ended()
	require.NoError(t, c.Close())
	eventually(t, "given back", func() bool { return p.budget.granted.Load() == 0 && p.sockets.Load() == 0 })
}

// A bound that is raised while running lets those go on that wait.
func TestMemoryBoundRaised(t *testing.T) {
	leakCheck(t)
	opts := testOptions(scriptedBroker(t, hugeAnswers(1<<20, 0)))
	opts.Limits.Memory = 32 << 20
	opts.handler = asksWhole()
	p, err := New(opts)
	require.NoError(t, err)
	p.budget.patience = time.Hour
	runProxy(t, p)
	p.budget.force(16 << 20)
	defer p.budget.giveBack(16 << 20)
	c := dialRaw(t, p)
	c.send(request(protocol.KeyListOffsets, 1, 1, nil, nil))
	eventually(t, "waits", func() bool { return p.budget.waiting.Load() == 1 })
	l := *p.limits()
	l.Memory = 256 << 20
	p.SetLimits(l)
	_, body := c.answer()
	require.Len(t, body, 1<<20)
}

// Nothing is buffered for an ApiVersions of a version we don't know but what a
// client could mean.
func TestHugeUnknownApiVersions(t *testing.T) {
	leakCheck(t)
	p := testProxy(t, scriptedBroker(t, serveFrames(sumAnswer)), nil)
	c := dialRaw(t, p)
	b := request(protocol.KeyApiVersions, 99, 1, nil, nil)
	c.send(protocol.AppendFrameSize(nil, 50<<20))
	c.send(b[4:])
	c.ended()
	eventually(t, "reason", func() bool { return closedFor(p, ReasonFrameTooLarge) == 1 })
}

// A client whose session has ended counts as long as its socket is there: else
// who provokes the end and stays could use up all files.
func TestLingeringClientsCount(t *testing.T) {
	leakCheck(t)
	const answer = 16 << 20
	p := testProxy(t, scriptedBroker(t, hugeAnswers(answer, 0)), func(o *Options) {
		o.Limits.MaxConnections, o.Limits.MaxConnectionsPerIP = 3, 2
	})
	stay := func() *rawClient {
		c := dialRaw(t, p)
		require.NoError(t, c.SetReadBuffer(4<<10))
		c.send(request(keyHeartbeat, 0, 1, nil, nil))
		eventually(t, "an answer waits", func() bool { now, _ := p.engine.held(); return now > 0 })
		c.send([]byte("GET / HTTP/1.1\r\n\r\n"))
		return c
	}
	a, b := stay(), stay()
	eventually(t, "sessions over", func() bool { return closedFor(p, ReasonLooksLikeHTTP) == 2 && p.open.Load() == 0 })
	require.Empty(t, dialRaw(t, p).ended())
	require.Equal(t, 1, closedFor(p, ReasonMaxConnectionsPerIP))
	require.NoError(t, a.Close())
	require.NoError(t, b.Close())
	eventually(t, "counted out", func() bool { return p.sockets.Load() == 0 })
	c := dialRaw(t, p)
	c.send(request(keyHeartbeat, 0, 1, nil, nil))
	_, body := c.answer()
	require.Len(t, body, answer)
}

// Who takes a little now and then of what was left for it is not waited for.
func TestLingerEndsForDrips(t *testing.T) {
	leakCheck(t)
	p := testProxy(t, scriptedBroker(t, hugeAnswers(16<<20, 0)), nil)
	raw, err := p.fronts[0].lns[0].Listener.(*net.TCPListener).SyscallConn()
	require.NoError(t, err)
	require.NoError(t, raw.Control(func(fd uintptr) { // what it accepts has it, too: little waits in the kernel
		err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_SNDBUF, 4<<10)
	}))
	require.NoError(t, err)
	c := dialRaw(t, p)
	require.NoError(t, c.SetReadBuffer(4<<10))
	c.send(request(keyHeartbeat, 0, 1, nil, nil))
	eventually(t, "an answer waits", func() bool { now, _ := p.engine.held(); return now > 0 })
	p.SetLimits(Limits{HandshakeTimeout: 200 * time.Millisecond})
	c.send([]byte("GET / HTTP/1.1\r\n\r\n"))
	dripped := make(chan struct{})
	go func() {
		defer close(dripped)
		b := make([]byte, 512)
		for {
			if _, err := c.Read(b); err != nil {
				return
			}
			time.Sleep(20 * time.Millisecond)
		}
	}()
	eventually(t, "its socket is closed", func() bool { return p.sockets.Load() == 0 })
	require.NoError(t, c.Close())
	<-dripped
}

// A client that goes away while its broker hangs leaves nothing behind, also
// when requests behind the one that is handled were sent: it comes back again and
// again.
func TestClientGoneWhileBrokerHangs(t *testing.T) {
	leakCheck(t)
	var got atomic.Int64
	p := testProxy(t, scriptedBroker(t, serveFrames(func(protocol.RequestHeader, []byte) []byte { got.Add(1); return nil })), func(o *Options) {
		o.handler = asksWhole()
		o.Limits.MaxInFlight = 2
	})
	handled := request(protocol.KeyListOffsets, 1, 1, nil, nil)
	for i, b := range [][]byte{
		handled,
		append(handled, request(keyHeartbeat, 0, 2, nil, make([]byte, 100))...),
		append(append(request(keyHeartbeat, 0, 1, nil, nil), request(keyHeartbeat, 0, 2, nil, nil)...), request(keyHeartbeat, 0, 3, nil, nil)...),
	} {
		p.SetLimits(Limits{MaxInFlight: 2})
		before := got.Load()
		c := dialRaw(t, p)
		c.send(b)
		eventually(t, "asked", func() bool { return got.Load() > before })
		require.NoError(t, c.Close())
		p.SetLimits(Limits{MaxInFlight: 2, HandshakeTimeout: time.Millisecond})
		eventually(t, "gone", func() bool { lookAtAll(p); return p.open.Load() == 0 && p.sockets.Load() == 0 })
		require.Equal(t, i+1, closedFor(p, ReasonClientEOF))
	}
}

// What waited to be looked at is not kept by a connection that idles.
func TestIdleSessionKeepsNoBuffer(t *testing.T) {
	leakCheck(t)
	release := make(chan struct{})
	p := testProxy(t, scriptedBroker(t, serveFrames(func(h protocol.RequestHeader, f []byte) []byte {
		if h.CorrelationID == 1 {
			<-release
		}
		return sumAnswer(h, f)
	})), func(o *Options) { o.handler = asksWhole() })
	c := dialRaw(t, p)
	c.send(request(protocol.KeyListOffsets, 1, 1, nil, nil))
	c.send(request(keyHeartbeat, 0, 2, nil, make([]byte, 100<<10)))
	eventually(t, "waits", func() bool { now, _ := p.engine.held(); return now > 50<<10 })
	close(release)
	c.answer()
	c.answer()
	for _, l := range p.engine.loops {
		done := make(chan int, 1)
		l.post(func() {
			n := 0
			for s := range l.sessions {
				n += cap(s.pending) + cap(s.resp.stash) + cap(s.req.frame)
			}
			done <- n
		})
		require.Zero(t, <-done)
	}
}

// A TLS broker's last answer isn't lost when it has to wait for room, and the
// broker closes behind it.
func TestTLSBrokerClosesWhileAnswerWaits(t *testing.T) {
	leakCheck(t)
	ca := tlstest.NewCA(t)
	const size = 90 << 10
	broker := scriptedBroker(t, func(c *net.TCPConn) {
		held := &heldConn{Conn: c}
		tc := tls.Server(held, &tls.Config{Certificates: []tls.Certificate{ca.Certificate(t, "broker", "broker.test")}})
		for {
			f, err := readFrame(tc)
			if err != nil {
				return
			}
			body := make([]byte, size)
			pattern(body, 0)
			held.hold = true // in one segment with the alert
			_, _ = tc.Write(answerFrame(int32(binary.BigEndian.Uint32(f[4:])), body))
			_ = tc.CloseWrite()
			_ = c.SetWriteDeadline(time.Time{}) // CloseWrite has ended it
			held.hold = false
			_, _ = held.Write(nil)
			_, _ = io.Copy(io.Discard, c)
		}
	})
	opts := testOptions(broker)
	opts.TLS = fixedTLS(&tls.Config{RootCAs: ca.Pool, ServerName: "broker.test"})
	opts.Limits.Memory = 32 << 20
	opts.handler = asksWhole()
	p, err := New(opts)
	require.NoError(t, err)
	p.budget.patience = time.Hour
	runProxy(t, p)
	p.budget.force(16 << 20)
	c := dialRaw(t, p)
	c.send(request(protocol.KeyListOffsets, 1, 1, nil, nil))
	eventually(t, "waits", func() bool { return p.budget.waiting.Load() == 1 })
	p.budget.giveBack(16 << 20)
	_, body := c.answer()
	require.Len(t, body, size)
	require.Empty(t, c.ended())
}

// onLoop is a session of p between two memConns, and a way to run something on
// its loop.
func onLoop(p *Proxy, log *slog.Logger) (s *session, client, broker *memConn, run func(f func())) {
	l := p.engine.loops[0]
	run = func(f func()) {
		done := make(chan struct{})
		if l.post(func() { defer close(done); f() }) {
			<-done
		}
	}
	client, broker = &memConn{reading: true}, &memConn{reading: true}
	s = &session{p: p, l: l, client: client, upstream: broker, brokerID: bootstrap, front: p.fronts[0], log: log}
	run(func() {
		l.sessions[s] = struct{}{}
		p.open.Add(1)
		p.sockets.Add(1)
	})
	return s, client, broker, run
}

// A broker that ends behind an answer that waits for room: the answer is
// delivered, then the session ends, and the log says why. (What TLS delivers
// together may end so; where the socket was cut is in TestTLSBrokerClosesWhileAnswerWaits.)
func TestBrokerEndsBehindWaitingAnswer(t *testing.T) {
	for name, end := range map[string]error{"in order": io.EOF, "broken": errors.New("cut by a test")} {
		t.Run(name, func(t *testing.T) {
			leakCheck(t)
			p := testProxy(t, "", func(o *Options) { o.Limits.Memory = 32 << 20 })
			p.budget.force(16 << 20)
			var log syncBuffer
			s, client, broker, run := onLoop(p, slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug})))
			meta := kmsg.NewPtrMetadataResponse()
			meta.SetVersion(1)
			for range 90 {
				topic := kmsg.NewMetadataResponseTopic()
				topic.Topic = kmsg.StringPtr(strings.Repeat("t", 1000))
				meta.Topics = append(meta.Topics, topic)
			}
			body := meta.AppendTo(nil)
			require.Greater(t, len(body), freeFrameBytes)
			run(func() {
				s.onData(client, request(protocol.KeyMetadata, 1, 7, nil, metadataBody))
				s.onData(broker, answerFrame(7, body))
				s.onEOF(broker, end)
			})
			var waits, closed bool
			run(func() { waits, closed = s.answers.claim != nil && len(client.out) == 0, s.closed })
			require.True(t, waits)
			require.False(t, closed)
			p.budget.giveBack(16 << 20)
			eventually(t, "end", func() bool { return closedFor(p, ReasonBrokerEOF) == 1 })
			var got []byte
			run(func() { got = client.out })
			require.Equal(t, answerFrame(7, body), got)
			require.Equal(t, !errors.Is(end, io.EOF), strings.Contains(log.String(), "cut by a test"))
		})
	}
}

// A client that arrives just when the loops have ended: its socket is closed, it
// counts no more, and it has a reason.
func TestArrivalAfterTheEnd(t *testing.T) {
	leakCheck(t)
	p, err := New(testOptions("127.0.0.1:1"))
	require.NoError(t, err)
	runProxy(t, p)()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer ln.Close()
	client := dialTCP(t, ln.Addr().String())
	c, err := ln.Accept()
	require.NoError(t, err)
	a := arrival{front: p.fronts[0], brokerID: bootstrap, name: "late"}
	_, ok := p.admit()
	require.True(t, ok)
	got, _, err := p.meet(c, &a)
	require.NoError(t, err)
	p.place(got, a)
	_, err = client.Read(make([]byte, 1))
	require.ErrorIs(t, err, io.EOF, "the socket is still open")
	require.Zero(t, p.sockets.Load())
	require.Empty(t, p.from)
	require.Equal(t, 1, closedFor(p, ReasonDraining))
}
