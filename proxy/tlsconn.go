package proxy

import (
	"crypto/tls"
	"errors"
	"io"
	"net"
	"time"
)

// tlsConn is a conn over TLS. The handshake runs on a goroutine, as it costs
// time; then crypto/tls works on the loop, between the socket and the session,
// without a goroutine, a pipe or a buffer of its own for each connection.
//
// crypto/tls expects a connection that blocks. It is given tlsPipe, which on the
// loop never does: a Write goes to a scratch buffer, a Read that has nothing
// fails with errNoData. That is a temporary net.Error, as a passed deadline is,
// and after such a one crypto/tls goes on where it was: TestTLSByteByByte holds
// it to that.
type tlsConn struct {
	sock *sockConn
	tls  *tls.Conn
	pipe *tlsPipe
	h    connHandler // nil: finishing, or closed
	eof  bool        // no more data comes
}

// tlsPipe is what crypto/tls takes for its connection.
type tlsPipe struct {
	net.Conn        // while the handshake runs
	in       []byte // received and not yet taken
	l        *loop  // nil: the handshake runs
	refused  error  // the name in the client's hello leads nowhere (sni.go)
}

func (p *tlsPipe) Read(b []byte) (int, error) {
	switch {
	case len(p.in) > 0:
		n := copy(b, p.in)
		p.in = p.in[n:]
		return n, nil
	case p.l == nil:
		return p.Conn.Read(b)
	}
	return 0, errNoData
}

func (p *tlsPipe) Write(b []byte) (int, error) {
	if p.l == nil {
		return p.Conn.Write(b)
	}
	p.l.cipher = append(p.l.cipher, b...)
	return len(b), nil
}

// SetWriteDeadline is called by crypto/tls for its close_notify.
func (p *tlsPipe) SetWriteDeadline(t time.Time) error {
	if p.l == nil {
		return p.Conn.SetWriteDeadline(t)
	}
	return nil
}

// noDataError is the error of a Read that would have to wait.
type noDataError struct{}

func (noDataError) Error() string   { return "no more data yet" }
func (noDataError) Timeout() bool   { return true }
func (noDataError) Temporary() bool { return true }

var errNoData net.Error = noDataError{}

// tlsBatch is how much is encrypted before it is handed to the socket;
// tlsRecord is the most that a TLS record holds.
const (
	tlsRecord = 16 << 10
	tlsBatch  = 4 * tlsRecord
)

// newTLSConn takes over a connection whose handshake is done; its socket is
// pipe.Conn's. Any goroutine may call it.
func newTLSConn(tc *tls.Conn, pipe *tlsPipe, name string) (*tlsConn, error) {
	sock, err := adopt(pipe.Conn, name)
	if err != nil {
		return nil, err
	}
	return &tlsConn{sock: sock, tls: tc, pipe: pipe}, nil
}

func (c *tlsConn) attach(l *loop, h connHandler, in, sent counter) error {
	c.h, c.pipe.l = h, l
	if l.plain == nil {
		l.plain = make([]byte, readBufferBytes+2*tlsRecord)
		l.stage = make([]byte, 0, tlsRecord)
	}
	if err := c.sock.attach(l, c, in, sent); err != nil {
		return err
	}
	l.after(c.pump) // the handshake may have read more than it needed
	return nil
}

func (c *tlsConn) discard()        { c.sock.discard() }
func (c *tlsConn) remote() string  { return c.sock.remote() }
func (c *tlsConn) buffered() int   { return c.sock.buffered() }
func (c *tlsConn) progress() int64 { return c.sock.progress() }
func (c *tlsConn) hungUp() bool    { return c.sock.hungUp() }

// setReading: what was read together is still delivered together.
func (c *tlsConn) setReading(on bool) { c.sock.setReading(on) }

func (c *tlsConn) onData(_ conn, b []byte) {
	c.pipe.in = b
	c.pump()
	c.pipe.in = nil // b is the loop's
}

// pump decrypts what there is, and delivers it.
func (c *tlsConn) pump() {
	for c.h != nil && !c.eof {
		b := c.pipe.l.plain
		n, err := 0, error(nil)
		for err == nil && n < len(b) {
			var k int
			k, err = c.tls.Read(b[n:])
			n += k
		}
		c.flush() // an alert, or the answer to a key update
		if n > 0 {
			c.h.onData(c, b[:n])
		}
		switch {
		case err == nil:
			continue
		case errors.Is(err, errNoData):
			return
		case c.h != nil:
			c.eof = true
			c.h.onEOF(c, err)
		}
	}
}

// flush hands what crypto/tls has written to the socket.
func (c *tlsConn) flush() {
	l := c.pipe.l
	if len(l.cipher) > 0 {
		c.sock.write(l.cipher)
		l.cipher = l.cipher[:0]
	}
}

func (c *tlsConn) write(b []byte) {
	for len(b) > 0 && !c.sock.broken && !c.sock.closed {
		n := min(len(b), tlsBatch)
		_, err := c.tls.Write(b[:n])
		c.flush()
		if err != nil {
			c.sock.setBroken(err)
			return
		}
		b = b[n:]
	}
}

// writev puts small pieces together, as each write is at least one record.
func (c *tlsConn) writev(bufs [][]byte) {
	stage := c.pipe.l.stage
	for _, b := range bufs {
		for len(b) > 0 {
			if len(stage) == 0 && len(b) >= tlsRecord {
				n := len(b) - len(b)%tlsRecord
				c.write(b[:n])
				b = b[n:]
				continue
			}
			n := min(len(b), tlsRecord-len(stage))
			stage = append(stage, b[:n]...)
			b = b[n:]
			if len(stage) == tlsRecord {
				c.write(stage)
				stage = stage[:0]
			}
		}
	}
	c.write(stage)
}

func (c *tlsConn) room(conn) int {
	if c.h == nil {
		return readBufferBytes
	}
	return c.h.room(c)
}

func (c *tlsConn) onDrained(conn) {
	if c.h != nil {
		c.h.onDrained(c)
	}
}

// onEOF: an end without TLS's own close_notify is taken for one: a Kafka frame
// that is cut short is noticed by its length.
func (c *tlsConn) onEOF(_ conn, err error) {
	switch {
	case c.h == nil:
	case !c.eof:
		c.eof = true
		c.h.onEOF(c, err)
	case !errors.Is(err, io.EOF):
		c.h.onBroken(c, err)
	}
}

func (c *tlsConn) onBroken(_ conn, err error) {
	if c.h != nil {
		c.h.onBroken(c, err)
	}
}

func (c *tlsConn) finish(linger time.Duration) {
	if c.sock.finishing || c.sock.closed {
		return
	}
	c.h = nil
	_ = c.tls.CloseWrite() // fails only when writing has failed before
	c.flush()
	c.sock.finish(linger)
}

func (c *tlsConn) atEnd(f func()) { c.sock.atEnd(f) }

func (c *tlsConn) abort() {
	c.h = nil
	c.sock.abort()
}
