package proxy

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// halfCloser is a connection whose writing side can be shut alone: TCP, TLS and
// Unix sockets.
type halfCloser interface {
	net.Conn
	CloseWrite() error
}

// bridge puts a connection without a socket of its own (TLS) in front of the
// event loops: its bytes are copied to and from one end of a socket pair by two
// goroutines, the other end is what the loop gets. Back-pressure and half-closes
// carry over; a stalled side stalls its goroutine only.
func (p *Proxy) bridge(c halfCloser) (net.Conn, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	if err != nil {
		return nil, fmt.Errorf("make a socket pair (raise the limit on open files?): %w", err)
	}
	var ends [2]net.Conn
	for i, fd := range fds {
		unix.CloseOnExec(fd)
		f := os.NewFile(uintptr(fd), "bridge")
		end, endErr := net.FileConn(f) // a duplicate, non-blocking
		err = errors.Join(err, endErr, f.Close())
		ends[i] = end
	}
	if err != nil {
		for _, e := range ends {
			if e != nil {
				e.Close() // already failing
			}
		}
		return nil, fmt.Errorf("make a socket pair: %w", err)
	}
	inner := ends[0].(*net.UnixConn)
	linger := p.limits().linger()
	p.wg.Go(func() {
		done := make(chan struct{})
		p.wg.Go(func() {
			defer close(done)
			_, err := io.Copy(inner, c)
			if err == nil {
				err = inner.CloseWrite()
			}
			if err != nil {
				inner.Close() // ends the other direction
			}
		})
		_, err := io.Copy(c, inner)
		if err == nil {
			err = c.CloseWrite()
		}
		if err != nil {
			c.Close() // ends the other direction
		} else if err := c.SetReadDeadline(time.Now().Add(linger)); err != nil {
			c.Close() // ends the other direction
		}
		<-done
		c.Close()     // both directions are over
		inner.Close() // both directions are over
	})
	return ends[1], nil
}
