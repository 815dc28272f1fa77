//go:build darwin || dragonfly || freebsd || netbsd || openbsd

package proxy

import (
	"github.com/panjf2000/gnet/v2/pkg/netpoll"
	"github.com/panjf2000/gnet/v2/pkg/socket"
	"golang.org/x/sys/unix"
)

// registration is what the poller has been told about a socket.
type registration uint8

const (
	regRead registration = 1 << iota
	regWrite
)

// update tells the poller what the connection waits for now.
//
// gnet's kqueue poller can add both filters and remove the write filter, but
// not the read filter. kqueue forgets an fd that is closed, so to stop reading
// the socket goes on under a duplicate of its fd.
func (c *sockConn) update() error {
	var want registration
	if c.wantRead() {
		want |= regRead
	}
	if c.out.n > 0 {
		want |= regWrite
	}
	p := c.l.poller.Poller
	if c.reg&regRead != 0 && want&regRead == 0 {
		fd, err := socket.Dup(c.fd)
		if err != nil {
			return err
		}
		if err := unix.SetNonblock(fd, true); err != nil {
			_ = unix.Close(fd)
			return err
		}
		delete(c.l.conns, c.fd)
		_ = unix.Close(c.fd)
		c.fd, c.reg = fd, 0
		c.l.conns[fd] = c
	}
	pa := &netpoll.PollAttachment{FD: c.fd}
	if c.reg&regWrite != 0 && want&regWrite == 0 {
		c.reg &^= regWrite
		if err := p.ModRead(pa, false); err != nil { // only deletes the write filter
			return err
		}
	}
	if add := want &^ c.reg; add&regRead != 0 {
		if err := p.AddRead(pa, false); err != nil {
			return err
		}
	}
	if add := want &^ c.reg; add&regWrite != 0 {
		if err := p.AddWrite(pa, false); err != nil {
			return err
		}
	}
	c.reg = want
	return nil
}

func (c *sockConn) unregister() { c.reg = 0 } // closing the fd does it

// peerClosed can't be told here without reading what is unread.
func peerClosed(int) bool { return false }
