//go:build darwin || dragonfly || freebsd || netbsd || openbsd

package proxy

import (
	"github.com/panjf2000/gnet/v2/pkg/netpoll"
	"github.com/panjf2000/gnet/v2/pkg/queue"
)

// poller is gnet's, which waits in kevent: see poller_linux.go for what that
// costs.
type poller struct{ *netpoll.Poller }

func openPoller() (*poller, error) {
	p, err := netpoll.OpenPoller()
	return &poller{p}, err
}

// Trigger has task run by Polling. Any goroutine may call it.
func (p *poller) Trigger(task func() error) error {
	return p.Poller.Trigger(queue.HighPriority, func(any) error { return task() }, nil)
}

// Polling hands out events and runs tasks until a task ends it.
func (p *poller) Polling(event func(fd int, ev netpoll.IOEvent, flags netpoll.IOFlags) error) error {
	return p.Poller.Polling(event)
}
