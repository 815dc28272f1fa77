package proxy

import (
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"
	"time"

	"github.com/panjf2000/gnet/v2/pkg/netpoll"
	"github.com/panjf2000/gnet/v2/pkg/socket"
	"golang.org/x/sys/unix"
)

// conn is one side of a session, as the session core sees it. All methods and
// all callbacks run on one event loop.
type conn interface {
	// write sends b: what the socket takes at once goes out from b itself, the
	// rest is copied and sent later. b may be reused after the call. After an
	// error it does nothing.
	write(b []byte)
	// writev is write of several buffers; the slices in bufs are changed.
	writev(bufs [][]byte)
	// buffered is the number of bytes written and not yet taken by the socket.
	buffered() int
	// progress is the number of bytes that the socket has taken so far.
	progress() int64
	// hungUp tells whether the peer has closed while nothing is read.
	hungUp() bool
	// setReading starts or stops reading. Nothing is lost: bytes stay in the
	// socket. A callback that stops reading gets no more data.
	setReading(on bool)
	// finish ends the connection in order: what is buffered is sent, the writing
	// side is shut down, what still comes is discarded until the peer closes (a
	// close with unread bytes would be a reset, which may destroy what the peer
	// has not read yet), or until linger passed without progress. No callback
	// comes any more.
	finish(linger time.Duration)
	// atEnd calls f once when the connection is closed, after finish or abort; at
	// once if it is.
	atEnd(f func())
	// abort ends it now. No callback comes any more.
	abort()
	remote() string
}

// netConn is a conn that isn't registered with a loop yet.
type netConn interface {
	conn
	// attach registers it; loop only.
	attach(l *loop, h connHandler, in, sent counter) error
	// discard closes a connection that was never attached.
	discard()
}

// connHandler gets a conn's events.
type connHandler interface {
	// room is how much may be read now; 0: nothing, reading has been stopped.
	room(c conn) int
	// onData: b is the loop's read buffer, valid during the call.
	onData(c conn, b []byte)
	// onDrained: something of what was buffered has gone out.
	onDrained(c conn)
	// onEOF: the peer closed its writing side (io.EOF) or the connection broke;
	// no more data comes. What was buffered may still go out.
	onEOF(c conn, err error)
	// onBroken: nothing can be sent any more; sent bytes may be lost. Data may
	// still come, then onEOF.
	onBroken(c conn, err error)
}

// frameFiller is a connHandler that may want bytes right where they belong.
type frameFiller interface {
	// target is where the next bytes go; empty: they go through onData.
	target(c conn) []byte
	// filled: the first n bytes of target are there.
	filled(c conn, n int)
}

// sockConn is a conn over a socket that the loop's poller watches.
type sockConn struct {
	l   *loop
	fd  int
	h   connHandler // nil: finishing, or closed
	f   frameFiller // h, if it is one
	out outQueue
	reg registration

	reading   bool // the session wants data
	eof       bool // the reading side has ended
	broken    bool // the writing side has ended
	finishing bool
	shut      bool // SHUT_WR done
	closed    bool

	addr     string
	early    []byte   // received before the loop got the connection
	took     int64    // bytes written
	linger   func()   // cancels the timer of finish
	ends     []func() // atEnd
	in, sent counter
}

// counter is a metric of bytes.
type counter interface{ Add(float64) }

// adopt takes over c's socket: c is closed, a duplicate of its fd lives on.
// The result isn't registered with a loop yet. name stands for the peer in logs.
// Any goroutine may call it.
func adopt(c net.Conn, name string) (*sockConn, error) {
	defer c.Close() // the duplicate lives on
	sc, ok := c.(syscall.Conn)
	if !ok {
		return nil, fmt.Errorf("a connection of type %T has no socket", c)
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return nil, err
	}
	fd := -1
	var dupErr error
	if err := raw.Control(func(f uintptr) { fd, dupErr = socket.Dup(int(f)) }); err != nil {
		return nil, err
	}
	if dupErr != nil {
		return nil, fmt.Errorf("duplicate a socket (raise the limit on open files?): %w", dupErr)
	}
	return &sockConn{fd: fd, addr: name}, nil
}

// attach registers the connection with the loop; loop only.
func (c *sockConn) attach(l *loop, h connHandler, in, sent counter) error {
	c.l, c.h, c.in, c.sent = l, h, in, sent
	c.f, _ = h.(frameFiller)
	l.conns[c.fd] = c
	l.load.Add(1)
	c.reading = true
	if err := c.update(); err != nil {
		c.abort()
		return err
	}
	if len(c.early) > 0 {
		l.after(func() {
			if c.h != nil {
				c.in.Add(float64(len(c.early)))
				c.h.onData(c, c.early)
			}
			c.early = nil
		})
	}
	return nil
}

// discard closes a connection that was never attached.
func (c *sockConn) discard() { _ = unix.Close(c.fd) }

func (c *sockConn) remote() string  { return c.addr }
func (c *sockConn) buffered() int   { return c.out.n }
func (c *sockConn) progress() int64 { return c.took }
func (c *sockConn) hungUp() bool    { return !c.closed && peerClosed(c.fd) }

func (c *sockConn) onEvent(ev netpoll.IOEvent, flags netpoll.IOFlags) {
	failed := netpoll.IsErrorEvent(ev, flags)
	if netpoll.IsWriteEvent(ev) || failed {
		c.flush()
	}
	if c.closed {
		return
	}
	if c.wantRead() {
		if netpoll.IsReadEvent(ev) || failed {
			c.read()
		}
		return
	}
	// Not reading: the registration is edge triggered (see update), so this
	// comes once. What the peer sent before stays readable for the session.
	if failed && c.out.n == 0 {
		c.setBroken(errHangup)
	}
}

var errHangup = errors.New("the peer is gone")

func (c *sockConn) read() {
	most := len(c.l.buf)
	if c.h != nil {
		if most = min(most, c.h.room(c)); most <= 0 || c.closed {
			return
		}
	}
	var target []byte
	if c.h != nil && c.f != nil {
		target = c.f.target(c)
	}
	into := c.l.buf[:most]
	if len(target) > 0 {
		into = target
	}
	n, err := unix.Read(c.fd, into)
	switch {
	case n > 0:
		if c.finishing {
			return // discarded
		}
		c.in.Add(float64(n))
		if len(target) > 0 {
			c.f.filled(c, n)
		} else {
			c.h.onData(c, c.l.buf[:n])
		}
		return
	case err == unix.EAGAIN || err == unix.EINTR:
		return
	case err == nil:
		err = io.EOF
	}
	c.eof = true
	if !errors.Is(err, io.EOF) {
		c.dropOut()
		c.broken = true
	}
	if c.finishing {
		c.finishStep()
		return
	}
	c.mustUpdate()
	if c.h != nil {
		c.h.onEOF(c, err)
	}
}

func (c *sockConn) write(b []byte) {
	if c.broken || c.closed || len(b) == 0 {
		return
	}
	if c.out.n == 0 {
		n, err := writeSome(c.fd, b)
		c.wrote(n)
		if err != nil {
			c.setBroken(err)
			return
		}
		b = b[n:]
	}
	if len(b) > 0 {
		c.out.push(c.l, b)
		c.mustUpdate()
	}
}

func (c *sockConn) writev(bufs [][]byte) {
	if c.broken || c.closed {
		return
	}
	if c.out.n == 0 {
		for len(bufs) > 0 {
			k := min(len(bufs), 512) // below IOV_MAX
			n, err := unix.Writev(c.fd, bufs[:k])
			if n > 0 {
				c.wrote(n)
			}
			if err == unix.EINTR {
				continue
			}
			if err != nil && err != unix.EAGAIN {
				c.setBroken(err)
				return
			}
			n = max(n, 0)
			for len(bufs) > 0 && n >= len(bufs[0]) {
				n -= len(bufs[0])
				bufs = bufs[1:]
				k--
			}
			if len(bufs) > 0 && n > 0 {
				bufs[0] = bufs[0][n:]
			}
			if k > 0 { // the socket is full
				break
			}
		}
	}
	for _, b := range bufs {
		c.out.push(c.l, b)
	}
	if c.out.n > 0 {
		c.mustUpdate()
	}
}

// writeSome writes until the socket is full.
func writeSome(fd int, b []byte) (done int, err error) {
	for done < len(b) {
		n, err := unix.Write(fd, b[done:])
		if n > 0 {
			done += n
		}
		if err == unix.EAGAIN {
			return done, nil
		}
		if err != nil && err != unix.EINTR {
			return done, err
		}
	}
	return done, nil
}

func (c *sockConn) wrote(n int) {
	if n > 0 {
		c.took += int64(n)
		c.sent.Add(float64(n))
	}
}

// flush sends what waits, as far as the socket takes it.
func (c *sockConn) flush() {
	if c.out.n == 0 || c.closed {
		return
	}
	progress := false
	for c.out.n > 0 {
		iov := c.l.iov[:0]
		for i, b := range c.out.chunks[:min(len(c.out.chunks), maxFlushChunks)] {
			if i == 0 {
				b = b[c.out.head:]
			}
			iov = append(iov, b)
		}
		n, err := unix.Writev(c.fd, iov)
		clear(iov)
		c.l.iov = iov
		if n > 0 {
			c.wrote(n)
			c.out.drop(c.l, n)
			progress = true
		}
		if err == unix.EAGAIN {
			break
		}
		if err != nil && err != unix.EINTR {
			c.setBroken(err)
			return
		}
	}
	c.mustUpdate()
	if !progress {
		return
	}
	if c.finishing {
		c.finishStep()
	} else if c.h != nil {
		c.h.onDrained(c)
	}
}

func (c *sockConn) dropOut() {
	if c.out.n > 0 {
		c.out.drop(c.l, c.out.n)
	}
}

// setBroken: nothing can be sent any more. The handler hears of it when the
// current event is done, as it may be what is writing.
func (c *sockConn) setBroken(err error) {
	if c.broken || c.closed {
		return
	}
	c.broken = true
	c.dropOut()
	c.mustUpdate()
	if c.finishing {
		c.finishStep()
		return
	}
	c.l.after(func() {
		if c.h != nil {
			c.h.onBroken(c, err)
		}
	})
}

func (c *sockConn) setReading(on bool) {
	if c.reading != on && !c.closed {
		c.reading = on
		c.mustUpdate()
	}
}

func (c *sockConn) wantRead() bool { return c.reading && !c.eof }

func (c *sockConn) finish(linger time.Duration) {
	if c.finishing || c.closed {
		return
	}
	c.h = nil
	c.finishing = true
	c.reading = true
	c.mustUpdate()
	c.finishStep()
	if !c.closed {
		c.lingerOn(linger)
	}
}

// lingerOn closes the connection when less than a chunk was taken in a whole
// linger: a byte now and then would keep what waits for days. Once the writing
// side is shut down the time isn't prolonged: a peer that goes on sending would
// keep it alive.
func (c *sockConn) lingerOn(linger time.Duration) {
	wasShut, took, least := c.shut, c.took, int64(min(c.out.n, chunkBytes))
	c.linger = c.l.afterFunc(linger, func() {
		if c.closed {
			return
		}
		if wasShut || c.took-took < least {
			c.abort()
			return
		}
		c.lingerOn(linger)
	})
}

func (c *sockConn) atEnd(f func()) {
	if c.closed {
		f()
		return
	}
	c.ends = append(c.ends, f)
}

func (c *sockConn) finishStep() {
	if c.out.n > 0 {
		return
	}
	if c.eof || c.broken {
		c.abort()
		return
	}
	if !c.shut {
		c.shut = true
		if err := unix.Shutdown(c.fd, unix.SHUT_WR); err != nil {
			c.abort()
		}
	}
}

func (c *sockConn) abort() {
	if c.closed {
		return
	}
	c.closed = true
	c.h = nil
	if c.linger != nil {
		c.linger()
	}
	c.dropOut()
	for _, f := range c.ends {
		f()
	}
	c.ends = nil
	c.unregister()
	if err := unix.Close(c.fd); err != nil {
		c.l.log.Warn("closing a socket failed", "conn", c.addr, "err", err)
	}
	delete(c.l.conns, c.fd)
	c.l.load.Add(-1)
	select {
	case c.l.gone <- struct{}{}:
	default:
	}
}

// mustUpdate sets the poller's interest; epoll_ctl fails only for want of
// memory or by a fault of ours: then the connection is ended.
func (c *sockConn) mustUpdate() {
	if c.closed {
		return
	}
	if err := c.update(); err != nil {
		c.l.log.Error("event poller refused a connection", "conn", c.addr, "err", err)
		h := c.h
		c.abort()
		if h != nil {
			c.l.after(func() { h.onEOF(c, fmt.Errorf("event poller: %w", err)) })
		}
	}
}
