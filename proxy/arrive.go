package proxy

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"syscall"
	"time"

	"github.com/lockstep-kafka/lockstep/protocol"
)

// arrival is a client on its way from the listener to a session.
type arrival struct {
	front    *frontend
	brokerID int32      // bootstrap: any
	name     string     // its address in logs; behind a load balancer that of the PROXY header
	ip       netip.Addr // the same, once it is counted to it
}

// accept gets a new connection: it is counted, what comes before Kafka's own
// protocol (PROXY header, TLS) is done on a goroutine, then a loop gets it.
func (p *Proxy) accept(ctx context.Context, c net.Conn, f *frontend, brokerID int32) {
	a := arrival{front: f, brokerID: brokerID, name: c.RemoteAddr().String()}
	if limit, ok := p.admit(); !ok {
		p.refuse(ctx, c, a, ReasonMaxConnections, overLimit(ReasonMaxConnections, limit))
		return
	}
	if f.TLS != nil || f.ProxyProtocol != ProxyOff {
		p.wg.Go(func() { p.greet(ctx, c, a) })
		return
	}
	client, reason, err := p.meet(c, &a)
	if err != nil {
		p.refuse(ctx, c, a, reason, err)
		return
	}
	p.place(client, a)
}

func overLimit(reason CloseReason, limit int) error {
	return fmt.Errorf("above limits.%s (%d): raise it, or find out who connects so often", reason, limit)
}

// place hands a client to the loop with the fewest connections.
func (p *Proxy) place(c netConn, a arrival) {
	l := p.engine.next()
	if !l.post(func() { p.newSession(l, c, a) }) {
		c.discard()
		p.countOut(a.ip)
		p.sessionClosed(ReasonDraining)
	}
}

// greet is meet within the handshake timeout; the end of ctx ends it at once.
func (p *Proxy) greet(ctx context.Context, c net.Conn, a arrival) {
	if err := c.SetDeadline(time.Now().Add(p.limits().HandshakeTimeout)); err != nil {
		p.refuse(ctx, c, a, ReasonInternal, err)
		return
	}
	stop := context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Unix(1, 0)) }) // fails on a closed one only
	client, reason, err := p.meet(c, &a)
	stop()
	if err == nil {
		p.place(client, a)
		return
	}
	switch {
	case ctx.Err() != nil:
		reason = ReasonDraining
	case errors.Is(err, os.ErrDeadlineExceeded):
		reason = ReasonHandshakeTimeout
	}
	p.refuse(ctx, c, a, reason, err)
}

// meet does what comes before Kafka's own protocol.
func (p *Proxy) meet(c net.Conn, a *arrival) (netConn, CloseReason, error) {
	f, peer := a.front, c.RemoteAddr()
	var early []byte
	if f.ProxyProtocol != ProxyOff {
		src, rest, err := readProxyHeader(c, f.ProxyProtocol)
		switch {
		case errors.Is(err, errProxyHeader):
			return nil, ReasonBadProxyHeader, err
		case err != nil:
			return nil, ReasonClientEOF, err
		case src != nil:
			a.name, peer = src.String(), src
		}
		early = rest
	}
	a.ip = ipOf(peer)
	if limit, ok := p.admitIP(a.ip); !ok {
		return nil, ReasonMaxConnectionsPerIP, overLimit(ReasonMaxConnectionsPerIP, limit)
	}
	if f.TLS == nil {
		sc, err := adopt(c, a.name)
		if err != nil {
			return nil, ReasonInternal, err
		}
		sc.early = early
		return sc, 0, nil
	}
	settings := f.TLS()
	if f.names != nil {
		settings = f.names.with(settings)
	}
	pipe := &tlsPipe{Conn: c, in: early}
	tc := tls.Server(pipe, settings)
	if err := tc.Handshake(); err != nil {
		if pipe.refused != nil {
			err = pipe.refused
		}
		return nil, handshakeReason(err), err
	}
	if f.names != nil {
		a.brokerID, _ = f.names.brokerID(tc.ConnectionState().ServerName) // checked in the handshake
	}
	client, err := newTLSConn(tc, pipe, a.name)
	if err != nil {
		return nil, ReasonInternal, err
	}
	return client, 0, nil
}

// handshakeReason sorts the errors of a client's TLS handshake.
func handshakeReason(err error) CloseReason {
	var record tls.RecordHeaderError
	switch {
	case errors.Is(err, errUnknownSNI):
		return ReasonUnknownSNI
	case errors.As(err, &record):
		head := record.RecordHeader[:]
		switch _, _, frameErr := protocol.ReadFrameSize(head, minRequest, 0); {
		case errors.Is(frameErr, protocol.ErrLooksLikeHTTP):
			return ReasonLooksLikeHTTP
		case errors.Is(frameErr, protocol.ErrLooksLikeProxy):
			return ReasonBadProxyHeader
		case !errors.Is(frameErr, protocol.ErrLooksLikeTLS):
			return ReasonLooksLikePlaintext
		}
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, syscall.ECONNRESET):
		return ReasonClientEOF
	}
	return ReasonTLSHandshake
}

// refuse ends a connection that never became a session.
func (p *Proxy) refuse(ctx context.Context, c net.Conn, a arrival, reason CloseReason, err error) {
	p.sessionClosed(reason)
	defer p.countOut(a.ip)
	level, skipped := p.logged[reason].level(reason, time.Now())
	p.log.Log(ctx, level, "client refused", "conn", a.name, "reason", reason.String(), "err", err, "more_like_it", skipped)
	if tcp, ok := c.(*net.TCPConn); ok && (reason == ReasonTLSHandshake || reason == ReasonUnknownSNI) {
		// An alert is on its way. A close with unread bytes is a reset, which may
		// destroy it.
		if tcp.CloseWrite() == nil && tcp.SetReadDeadline(time.Now().Add(time.Second)) == nil {
			_, _ = io.CopyN(io.Discard, tcp, 64<<10) // ends with the client, or the second
		}
	}
	c.Close() // refused anyway
}
