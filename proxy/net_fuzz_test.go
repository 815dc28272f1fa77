package proxy

import (
	"bytes"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/protocol"
)

// memConn is a conn without a socket: the session core needs no event loop.
type memConn struct {
	out     []byte
	reading bool
	over    bool
}

func (c *memConn) write(b []byte) { c.out = append(c.out, b...) }
func (c *memConn) writev(bufs [][]byte) {
	for _, b := range bufs {
		c.write(b)
	}
}
func (c *memConn) buffered() int        { return 0 }
func (c *memConn) atEnd(f func())       { f() }
func (c *memConn) progress() int64      { return 0 }
func (c *memConn) hungUp() bool         { return false }
func (c *memConn) setReading(on bool)   { c.reading = on }
func (c *memConn) finish(time.Duration) { c.over = true }
func (c *memConn) abort()               { c.over = true }
func (c *memConn) remote() string       { return "mem" }

// memSession is a session between two memConns, the broker connected already.
func memSession(t *testing.T, h requestHandler) (s *session, client, broker *memConn) {
	p := &Proxy{log: slog.New(slog.DiscardHandler), handler: h}
	p.SetLimits(Limits{MaxFrameBytes: 1 << 20})
	p.engine = &engine{}
	p.budget = newBudget(p.engine, func() int64 { return p.limits().Memory })
	m, err := newMetrics(nil, p)
	require.NoError(t, err)
	p.m = m
	l := &loop{log: p.log, sessions: map[*session]struct{}{}, wake: time.NewTimer(time.Hour)}
	t.Cleanup(func() { l.wake.Stop() })
	client, broker = &memConn{reading: true}, &memConn{reading: true}
	front := &frontend{Listener: Listener{AdvertisedHost: "proxy", FirstPort: 100, LastPort: 200}, p: p}
	s = &session{p: p, l: l, client: client, upstream: broker, brokerID: -1, front: front, log: p.log}
	p.open.Add(1)
	l.sessions[s] = struct{}{}
	return s, client, broker
}

// feed gives b in chunks whose sizes follow from cuts.
func feed(s *session, c *memConn, b, cuts []byte) {
	for i := 0; len(b) > 0 && !s.closed; i++ {
		n := len(b)
		if len(cuts) > 0 {
			n = min(n, 1+int(cuts[i%len(cuts)]))
		}
		s.onData(c, b[:n:n])
		s.l.runLater()
		b = b[n:]
	}
}

// Whatever a client sends, cut anywhere: no panic, what reaches the broker is a
// prefix of it when nothing is handled, and nothing stays counted as held.
func FuzzClientBytes(f *testing.F) {
	ok := request(keyHeartbeat, 0, 1, nil, []byte("abc"))
	f.Add(append(bytes.Clone(ok), request(protocol.KeyProduce, 9, 2, []byte("c"), []byte{0, 0, 0, 1, 2})...), []byte{3, 0, 7}, false)
	f.Add(append(request(protocol.KeyApiVersions, 99, 2, []byte("c"), nil), ok...), []byte{0}, false)
	f.Add(append(request(protocol.KeyListOffsets, 1, 2, nil, []byte("x")), ok...), []byte{200}, true)
	f.Add([]byte("GET / HTTP/1.1\r\n\r\n"), []byte{}, false)
	f.Fuzz(func(t *testing.T, b, cuts []byte, handled bool) {
		var h requestHandler = noHandler{}
		if handled {
			h = &stubHandler{key: protocol.KeyListOffsets, do: func(x exchange) { x.Forward() }}
		}
		s, client, broker := memSession(t, h)
		feed(s, client, b, cuts)
		if len(client.out) == 0 { // no ApiVersions was answered here
			require.True(t, bytes.HasPrefix(b, broker.out), "the broker got something else")
		}
		s.close(ReasonClientEOF, nil)
		s.l.runLater()
		require.Zero(t, s.l.held.Load())
		require.Zero(t, closedFor(s.p, ReasonInternal), "panic")
	})
}

// Whatever a broker answers, cut anywhere: no panic, and nothing stays counted as
// held.
func FuzzBrokerBytes(f *testing.F) {
	fetch := kmsg.NewPtrFetchResponse()
	fetch.SetVersion(16)
	fetch.Brokers = []kmsg.FetchResponseBroker{{NodeID: 2, Host: "internal", Port: 9092}}
	meta := kmsg.NewPtrMetadataResponse()
	meta.SetVersion(1)
	meta.Brokers = []kmsg.MetadataResponseBroker{{NodeID: 2, Host: "internal", Port: 9092}}
	f.Add(append(append(answerFrame(1, []byte("x")), answerFrame(2, append([]byte{0}, fetch.AppendTo(nil)...))...), answerFrame(3, meta.AppendTo(nil))...), []byte{5})
	f.Add(answerFrame(9, nil), []byte{})
	f.Fuzz(func(t *testing.T, b, cuts []byte) {
		s, client, broker := memSession(t, noHandler{})
		feed(s, client, request(keyHeartbeat, 0, 1, nil, nil), nil)
		feed(s, client, request(protocol.KeyFetch, 16, 2, nil, nil), nil)
		feed(s, client, request(protocol.KeyMetadata, 1, 3, nil, nil), nil)
		feed(s, client, request(protocol.KeyApiVersions, 3, 4, nil, nil), nil)
		feed(s, broker, b, cuts)
		s.close(ReasonClientEOF, nil)
		s.l.runLater()
		require.Zero(t, s.l.held.Load())
		require.Zero(t, closedFor(s.p, ReasonInternal), "panic")
	})
}

// A client in raw SASL mode, and a broker that answers anything: no panic, what
// the broker gets is what the client sent, and nothing stays held.
func FuzzRawSASL(f *testing.F) {
	i := uint8(0)
	for mechanism, turns := range rawMechanisms() {
		var client, broker []byte
		for _, turn := range turns {
			client = append(client, sized(turn.client)...)
			if turn.broker != nil {
				broker = append(broker, sized(turn.broker)...)
			}
		}
		client = append(client, request(protocol.KeyMetadata, 1, 2, nil, metadataBody)...)
		f.Add(mechanism, client, append(broker, answerFrame(2, metadataAnswer())...), []byte{i, 3, 9})
		i++
	}
	f.Fuzz(func(t *testing.T, mechanism string, toBroker, toClient, cuts []byte) {
		s, client, broker := memSession(t, noHandler{})
		handshake := saslHandshake(0, 1, mechanism)
		feed(s, client, handshake, nil)
		feed(s, broker, saslHandshakeAnswer(1, 0), nil)
		sent := append(bytes.Clone(handshake), toBroker...)
		for i := 0; !s.closed && len(toBroker)+len(toClient) > 0; i++ {
			n := 16
			if len(cuts) > 0 {
				n = 1 + int(cuts[i%len(cuts)])
			}
			a, b := min(n, len(toBroker)), min(n, len(toClient))
			feed(s, client, toBroker[:a], nil)
			feed(s, broker, toClient[:b], nil)
			toBroker, toClient = toBroker[a:], toClient[b:]
		}
		if len(client.out) == 0 || !bytes.Contains(client.out, protocol.UnsupportedApiVersionsBody()) {
			require.True(t, bytes.HasPrefix(sent, broker.out), "the broker got something else")
		}
		s.close(ReasonClientEOF, nil)
		s.l.runLater()
		require.Zero(t, s.l.held.Load())
		require.Zero(t, closedFor(s.p, ReasonInternal), "panic")
	})
}
