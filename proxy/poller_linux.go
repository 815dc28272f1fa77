package proxy

import (
	"errors"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/panjf2000/gnet/v2/pkg/netpoll"
	"golang.org/x/sys/unix"
)

// poller is an epoll set that is waited for where Go waits for its own sockets:
// in the runtime's poller, in which the set is itself a file that becomes
// readable.
//
// A goroutine that waits in epoll_wait has a processor (P) of Go's for as long
// as nobody takes it away. As there is a loop for each of them, all may be held
// by loops that wait; then nobody looks after the process's other sockets until
// the runtime's watch comes by, which takes up to 20 ms. So the mirror slept
// whenever both loops of a machine with two CPUs had just had something to do.
type poller struct {
	set  int      // the epoll set
	file *os.File // the same
	wait syscall.RawConn
	wake int // an eventfd in the set

	mu    sync.Mutex
	tasks []func() error
}

// pollEvents is what is taken from the set at once; the rest stays in it.
const pollEvents = 256

func openPoller() (*poller, error) {
	set, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("epoll_create1", err)
	}
	if err := unix.SetNonblock(set, true); err != nil { // what os.NewFile hands to the runtime's poller
		_ = unix.Close(set)
		return nil, os.NewSyscallError("fcntl", err)
	}
	p := &poller{set: set, file: os.NewFile(uintptr(set), "epoll"), wake: -1}
	if err = p.file.SetReadDeadline(time.Time{}); err == nil { // else the runtime can't wait for it
		p.wait, err = p.file.SyscallConn()
	}
	if err == nil {
		p.wake, err = unix.Eventfd(0, unix.EFD_NONBLOCK|unix.EFD_CLOEXEC)
	}
	if err == nil {
		err = p.control(unix.EPOLL_CTL_ADD, p.wake, unix.EPOLLIN)
	}
	if err != nil {
		return nil, errors.Join(err, p.Close())
	}
	return p, nil
}

// Close is for when Polling has returned and Trigger is not called any more.
func (p *poller) Close() error {
	var err error
	if p.wake >= 0 {
		err = os.NewSyscallError("close", unix.Close(p.wake))
	}
	return errors.Join(err, p.file.Close())
}

// Trigger has task run by Polling, in the order of the calls. Any goroutine may
// call it.
func (p *poller) Trigger(task func() error) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.tasks = append(p.tasks, task)
	if len(p.tasks) > 1 {
		return nil // on its way
	}
	one := [8]byte{1}
	for {
		switch _, err := unix.Write(p.wake, one[:]); {
		case err == nil, errors.Is(err, unix.EAGAIN): // it is readable
			return nil
		case !errors.Is(err, unix.EINTR):
			return os.NewSyscallError("write", err)
		}
	}
}

// Polling hands out events and runs tasks until a task returns an error.
func (p *poller) Polling(event func(fd int, ev netpoll.IOEvent, flags netpoll.IOFlags) error) error {
	var events [pollEvents]unix.EpollEvent
	var n int
	var failed error
	// What the runtime knows of the set is edge triggered: it parks only when
	// nothing was there after it was asked to tell.
	look := func(uintptr) bool {
		for {
			n, failed = unix.EpollWait(p.set, events[:], 0)
			if !errors.Is(failed, unix.EINTR) {
				return n > 0 || failed != nil
			}
		}
	}
	for {
		if err := p.wait.Read(look); err != nil {
			return err
		}
		if failed != nil {
			return os.NewSyscallError("epoll_wait", failed)
		}
		woken := false
		for i := range events[:n] {
			if fd := int(events[i].Fd); fd != p.wake {
				if err := event(fd, events[i].Events, 0); err != nil {
					return err
				}
				continue
			}
			woken = true
		}
		if woken {
			if err := p.run(); err != nil {
				return err
			}
		}
	}
}

// run runs what was triggered until now.
func (p *poller) run() error {
	var count [8]byte
	_, _ = unix.Read(p.wake, count[:]) // first, so that what is triggered from here on wakes again
	p.mu.Lock()
	tasks := p.tasks
	p.tasks = nil
	p.mu.Unlock()
	for _, task := range tasks {
		if err := task(); err != nil {
			return err
		}
	}
	return nil
}

func (p *poller) control(op, fd int, events uint32) error {
	return os.NewSyscallError("epoll_ctl", unix.EpollCtl(p.set, op, fd, &unix.EpollEvent{Fd: int32(fd), Events: events}))
}

// Add has fd watched for events; Change and Delete are what they say.
func (p *poller) Add(fd int, events uint32) error { return p.control(unix.EPOLL_CTL_ADD, fd, events) }

func (p *poller) Change(fd int, events uint32) error {
	return p.control(unix.EPOLL_CTL_MOD, fd, events)
}

func (p *poller) Delete(fd int) error {
	return os.NewSyscallError("epoll_ctl", unix.EpollCtl(p.set, unix.EPOLL_CTL_DEL, fd, nil))
}
