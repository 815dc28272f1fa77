package proxy

import (
	"github.com/panjf2000/gnet/v2/pkg/netpoll"
	"golang.org/x/sys/unix"
)

// registration is what the poller has been told about a socket.
type registration uint8

const (
	regNone registration = iota
	regRead
	regWrite
	regReadWrite
	regWatch // neither: only to hear of an error, see update
)

// update tells the poller what the connection waits for now.
//
// A paused socket is registered edge triggered for writing: one event at once,
// which is ignored, then only errors and hang-ups, so that a client that
// vanishes while it is paused is noticed. Level triggered an error would be
// reported for ever.
func (c *sockConn) update() error {
	want := regWatch
	switch r, w := c.wantRead(), c.out.n > 0; {
	case r && w:
		want = regReadWrite
	case r:
		want = regRead
	case w:
		want = regWrite
	}
	if want == c.reg {
		return nil
	}
	var events uint32
	switch want {
	case regRead:
		events = netpoll.ReadEvents
	case regWrite:
		events = netpoll.WriteEvents
	case regReadWrite:
		events = netpoll.ReadWriteEvents
	default:
		events = netpoll.WriteEvents | unix.EPOLLET | unix.EPOLLRDHUP
	}
	known := c.reg != regNone
	c.reg = want
	if known {
		return c.l.poller.Change(c.fd, events)
	}
	return c.l.poller.Add(c.fd, events)
}

func (c *sockConn) unregister() {
	if c.reg != regNone {
		c.reg = regNone
		_ = c.l.poller.Delete(c.fd) // closing the fd removes it as well
	}
}

// peerClosed tells whether the peer has shut down its side, whatever is still
// unread.
func peerClosed(fd int) bool {
	p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLRDHUP}}
	n, err := unix.Poll(p, 0)
	return err == nil && n > 0 && p[0].Revents != 0
}
