package proxy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"runtime/debug"
	"time"

	"github.com/lockstep-kafka/lockstep/protocol"
)

// session is one client connection and its connection to a broker. Client bytes
// are parsed only as far as the request headers (request.go), answers only as
// far as their size and correlation id (response.go); everything else goes from
// the loop's read buffer straight to the other socket.
//
// Memory is bounded: what waits for a slow client is at most clientOutboundMax
// plus one read (reading of the broker pauses above it, goes on below half of
// it), less when all clients together hold much (budget.go), the same towards
// the broker; one read waits in pending; one request
// and one answer are buffered at a time, each up to maxFrameBytes, where they
// are handled or rewritten.
//
// Everything runs on the loop. enter and leave bracket every way in: the last
// leave runs pump, which starts what has become possible.
type session struct {
	p        *Proxy
	l        *loop
	log      *slog.Logger
	front    *frontend
	brokerID int32      // -1: bootstrap
	ip       netip.Addr // of the client, for limits

	client   conn
	upstream conn // nil until it is connected
	dialing  context.CancelFunc
	depth    int
	closed   bool

	clientEOF    bool
	brokerEOF    bool  // and what came before waits for room
	brokerErr    error // why
	clientFull   bool  // what waits for the client is above the mark
	upstreamFull bool
	draining     bool
	aged         bool    // see age.go
	ageShare     float64 // of limits.MaxAge

	asked   holding // room for requests that have to be whole
	answers holding // and for answers
	pending []byte  // client bytes that can't be consumed yet
	req     requestParser
	resp    responseParser
	fifo    fifo
	waiting *xchg // a whole handled request, until its turn comes
	x       *xchg // the exchange that runs
	state   connState
	known   *versions // what the broker behind said in ApiVersions, nil: nothing yet

	sasl       *rawSASL // not nil: the client sends, or may soon send, bare SASL tokens (sasl.go)
	emptyToken bool     // the next bytes of the broker may be an empty SASL token

	unwatch  func() // cancels the timer of watch
	stall    stall
	started  time.Time
	active   time.Time // when something last moved
	requests int64
	iov      [3][]byte
	small    [64]byte
}

// prebufferBytes is how much of a client is taken in before its broker is
// connected.
const prebufferBytes = 64 << 10

// newSession starts a session on the loop; client is not attached yet.
func (p *Proxy) newSession(l *loop, client netConn, a arrival) {
	s := &session{p: p, l: l, client: client, ip: a.ip, front: a.front, brokerID: a.brokerID, started: time.Now(), ageShare: randomShare()}
	s.active = s.started
	s.log = p.log.With("conn", client.remote())
	if a.brokerID >= 0 {
		s.log = s.log.With("broker", a.brokerID)
	}
	l.sessions[s] = struct{}{}
	if err := client.attach(l, s, p.m.clientIn, p.m.clientOut); err != nil {
		s.close(ReasonInternal, err)
		return
	}
	s.log.Debug("client connected")
	s.watch()
	if p.draining.Load() { // accepted just before the listeners closed
		s.drain()
	}
}

func (s *session) enter() { s.depth++ }

// leave is always deferred: a fault while one connection is served ends that
// connection, not the process.
func (s *session) leave() {
	if r := recover(); r != nil {
		s.fault(r)
	}
	if s.depth == 1 {
		func() {
			defer func() {
				if r := recover(); r != nil {
					s.fault(r)
				}
			}()
			s.pump()
			s.trim()
		}()
	}
	s.depth--
}

func (s *session) fault(r any) {
	s.log.Error("panic while serving a connection: please report it", "panic", r, "stack", string(debug.Stack()))
	s.close(ReasonInternal, fmt.Errorf("panic: %v", r))
}

// pump starts what can go on now: the handled request whose turn it is, client
// bytes that waited, the end of the session.
func (s *session) pump() {
	for !s.closed {
		s.trim()
		switch {
		case s.waiting != nil && s.x == nil && s.fifo.len() == 0 && !s.overMark(&s.clientFull, s.client):
			s.x, s.waiting = s.waiting, nil
			s.x.start()
		case len(s.pending) > 0 && s.upstream != nil && !s.blocked():
			n := s.consume(s.pending)
			if s.closed {
				return // pending is gone
			}
			s.l.hold(-n)
			s.pending = s.pending[:copy(s.pending, s.pending[n:])]
			if len(s.pending) == 0 { // ten thousand clients that once had some would keep it
				s.l.putFrame(s.pending)
				s.pending = nil
			}
		default:
			s.settle()
			return
		}
	}
}

// blocked: no further client frame may be begun.
func (s *session) blocked() bool {
	return s.upstream == nil || s.waiting != nil || s.x != nil || s.asked.claim != nil || s.draining || s.fifo.len() >= s.p.limits().MaxInFlight || s.awaitsSASL()
}

// settle is what remains when nothing can be started.
func (s *session) settle() {
	quiet := s.waiting == nil && s.x == nil
	if s.upstream == nil && s.dialing == nil && len(s.pending) > 0 && !s.precheck() {
		return
	}
	if s.clientEOF && quiet && (len(s.pending) == 0 || s.upstream == nil) && s.dialing == nil {
		s.close(ReasonClientEOF, nil)
		return
	}
	if quiet && s.fifo.len() == 0 && !s.req.midFrame() {
		switch {
		case s.aged && (s.draining || len(s.pending) == 0):
			s.close(ReasonMaxAge, nil)
			return
		case s.draining:
			s.close(ReasonDraining, nil)
			return
		}
	}
	s.updateReading()
}

// precheck looks at the first bytes of a connection: a broker is only dialled
// for what may be a Kafka request. false: the session was closed.
func (s *session) precheck() bool {
	_, ok, err := protocol.ReadFrameSize(s.pending, minRequest, s.p.limits().MaxFrameBytes)
	if err != nil {
		s.badFrame(err)
		return false
	}
	if ok && len(s.pending) >= protocol.FrameSizeLen+minRequest {
		s.dial()
	}
	return true
}

// overMark says whether what waits for c is above the mark. It has hysteresis,
// so a slow reader toggles once per half a mark, not with every packet.
func (s *session) overMark(is *bool, c conn) bool {
	n := c.buffered()
	if n == 0 {
		*is = false
		return false
	}
	mark := s.p.budget.mark(s.p.limits().ClientOutboundMax)
	if *is {
		mark /= 2
	}
	*is = n > mark
	return *is
}

// updateReading pauses and resumes both sides.
func (s *session) updateReading() {
	clientOn := len(s.pending) == 0 && s.asked.claim == nil
	if s.upstream == nil {
		clientOn = len(s.pending) < prebufferBytes
	} else {
		clientOn = clientOn && !s.overMark(&s.upstreamFull, s.upstream)
		s.upstream.setReading(!s.overMark(&s.clientFull, s.client) && s.answers.claim == nil)
	}
	s.client.setReading(clientOn)
}

// room: what waits for the other side may have come above the mark without a
// byte of this one, as the mark falls when memory is short.
func (s *session) room(c conn) int {
	to, full, whole := s.client, &s.clientFull, s.resp.size > 0
	if c == s.client {
		to, full, whole = s.upstream, &s.upstreamFull, s.req.size > 0
	}
	if whole { // its room is there
		return readBufferBytes
	}
	if to != nil && s.overMark(full, to) {
		s.updateReading()
		return 0
	}
	return s.p.budget.readSize()
}

func (s *session) onData(c conn, b []byte) {
	s.enter()
	defer s.leave()
	s.active = time.Now()
	if c == s.upstream {
		if s.answers.claim != nil { // was read together with what is stashed
			s.stashAnswers(b)
			return
		}
		s.consumeAnswers(b)
		s.updateReading()
		return
	}
	s.stall.in += int64(len(b))
	if len(s.pending) == 0 && !s.blocked() || s.req.midFrame() && len(s.pending) == 0 && s.upstream != nil {
		b = b[s.consume(b):]
	}
	if len(b) > 0 && !s.closed {
		if s.pending == nil {
			s.pending = s.l.getFrame(len(b))
		}
		s.pending = append(s.pending, b...)
		s.l.hold(len(b))
	}
}

func (s *session) onDrained(conn) {
	s.enter()
	defer s.leave()
	s.active = time.Now()
	s.updateReading()
}

func (s *session) onEOF(c conn, err error) {
	s.enter()
	defer s.leave()
	if c == s.upstream {
		if errors.Is(err, io.EOF) {
			err = nil
		}
		if s.answers.claim != nil { // with TLS the end may come with what is stashed
			s.brokerEOF, s.brokerErr = true, err
			return
		}
		s.close(ReasonBrokerEOF, err)
		return
	}
	// What the client sent before it went is still passed on: an acks=0
	// produce is complete when it is written.
	s.clientEOF = true
	if !errors.Is(err, io.EOF) && (s.x != nil || s.waiting != nil) {
		s.close(ReasonClientEOF, err) // nobody is there for the answer
	}
}

func (s *session) onBroken(c conn, err error) {
	s.enter()
	defer s.leave()
	// On the broker's side the end of its data follows. On the client's side,
	// too, unless it isn't read because an answer is being made for it.
	if c == s.client && (s.x != nil || s.waiting != nil) {
		s.close(ReasonClientEOF, err)
	}
}

// dial connects to the broker on a goroutine of its own.
func (s *session) dial() {
	ctx, cancel := context.WithTimeout(s.p.ctx, s.p.limits().HandshakeTimeout)
	s.dialing = cancel
	s.p.wg.Go(func() {
		defer cancel()
		up, err := s.p.dialBroker(ctx, s.front, s.brokerID)
		if !s.l.post(func() { s.dialled(up, err) }) && up != nil {
			up.discard()
		}
	})
}

func (s *session) dialled(up netConn, err error) {
	s.enter()
	defer s.leave()
	s.dialing = nil
	if s.closed {
		if up != nil {
			up.discard()
		}
		return
	}
	if err != nil {
		s.close(ReasonConnectFailed, err)
		return
	}
	if err := up.attach(s.l, s, s.p.m.upstreamIn, s.p.m.upstreamOut); err != nil {
		s.close(ReasonInternal, err)
		return
	}
	s.upstream = up
	s.active = time.Now()
	s.log.Debug("connected to a broker", "address", up.remote())
}

// watch looks from time to time whether the session has stalled. Waiting for
// the broker (a long poll, a JoinGroup) is no stall: the client has its own
// time limit for that.
func (s *session) watch() {
	lim := s.p.limits()
	s.unwatch = s.l.afterFunc(min(lim.HandshakeTimeout, lim.IdleTimeout, lim.StalledFrameTimeout, s.nextAge(lim)), func() {
		if s.look(); !s.closed {
			s.watch()
		}
	})
}

// look closes a session that has stalled, or is too old.
func (s *session) look() {
	lim, now := s.p.limits(), time.Now()
	quiet := now.Sub(s.active)
	waits := s.fifo.len() > 0 || s.x != nil || s.waiting != nil || s.dialing != nil
	switch {
	case s.requests == 0 && s.dialing == nil && now.Sub(s.started) >= lim.HandshakeTimeout:
		s.close(ReasonHandshakeTimeout, nil)
	case s.slowConsumer(now, lim.IdleTimeout):
		s.close(ReasonSlowConsumer, nil)
	case s.stalledFrame(now, lim.StalledFrameTimeout):
		s.close(ReasonStalledFrame, nil)
	case !waits && quiet >= lim.IdleTimeout:
		s.close(ReasonIdle, nil)
	case quiet >= lim.linger() && s.clientGone():
		s.close(ReasonClientEOF, nil)
	default:
		s.lookAtAge(lim, now)
	}
}

// clientGone: the client has closed, and what it asked for is not done. A broker
// that hangs may keep it so for a quarter of an hour, until the kernel gives its
// connection up; the client comes back meanwhile, again and again.
func (s *session) clientGone() bool {
	return s.clientEOF || len(s.pending) > 0 && s.client.hungUp()
}

// drain: no new request is begun; the session ends when the last one is
// answered.
func (s *session) drain() {
	s.enter()
	defer s.leave()
	s.draining = true
}

// close ends the session, once. What is already on its way to either side still
// gets there.
func (s *session) close(reason CloseReason, err error) {
	if s.closed {
		return
	}
	s.closed = true
	if s.dialing != nil {
		s.dialing()
	}
	if s.unwatch != nil {
		s.unwatch()
	}
	delete(s.l.sessions, s)
	s.p.sessionClosed(reason)
	attrs := []slog.Attr{slog.String("reason", reason.String()), slog.Int64("requests", s.requests)}
	if err != nil {
		attrs = append(attrs, slog.Any("err", err))
	}
	level, skipped := s.p.logged[reason].level(reason, time.Now())
	if skipped > 0 {
		attrs = append(attrs, slog.Int64("more_like_it", skipped))
	}
	s.log.LogAttrs(context.Background(), level, "connection closed", attrs...)

	if reason == ReasonMemory || reason == ReasonSlowConsumer {
		s.client.abort() // what it doesn't take is what is to be freed
	} else {
		s.client.finish(s.p.limits().linger())
	}
	s.client.atEnd(func() { s.p.countOut(s.ip) })
	if s.upstream != nil {
		if reason == ReasonProtocolError {
			s.upstream.abort()
		} else {
			s.upstream.finish(s.p.limits().linger())
		}
	}
	if s.x != nil {
		s.x.over = true
	}
	for s.fifo.len() > 0 {
		if a := s.fifo.pop(); a.cb != nil && !a.x.dropped {
			a.cb(nil, errExchangeOver)
		}
	}
	s.release()
}

// release gives back what the session has buffered.
func (s *session) release() {
	for _, x := range []*xchg{s.x, s.waiting} {
		if x != nil {
			x.release(false)
		}
	}
	s.x, s.waiting = nil, nil
	s.endClaims()
	s.l.hold(-len(s.pending))
	s.pending = nil
	s.req.release(s.l)
	s.resp.release(s.l)
}

// badFrame closes for a frame whose size or header is no Kafka client's.
func (s *session) badFrame(err error) {
	reason := ReasonBadFrame
	switch {
	case errors.Is(err, protocol.ErrLooksLikeTLS):
		reason = ReasonLooksLikeTLS
	case errors.Is(err, protocol.ErrLooksLikeHTTP):
		reason = ReasonLooksLikeHTTP
	case errors.Is(err, protocol.ErrLooksLikeProxy):
		reason = ReasonBadProxyHeader
	case errors.Is(err, protocol.ErrFrameTooLarge):
		reason = ReasonFrameTooLarge
	}
	s.close(reason, err)
}
