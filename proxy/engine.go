package proxy

import (
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	gerrors "github.com/panjf2000/gnet/v2/pkg/errors"
	"github.com/panjf2000/gnet/v2/pkg/netpoll"
)

// The engine is a set of event loops over a poller (epoll on Linux, gnet's
// kqueue elsewhere). gnet's own connection type is not used,
// because what a proxy needs of a connection it doesn't have (gnet 2.9.7):
//
//   - no pause: it reads a socket for as long as there is something, and what
//     the handler leaves goes to an unbounded buffer. Its work-around
//     (duplicate the fd, close, enrol the duplicate again) costs a worker
//     goroutine, two dups and several epoll calls per toggle, and a slow reader
//     toggles all the time. Here a pause is one epoll_ctl call and touches no
//     byte;
//   - nobody is told when the outbound buffer has drained, so a pause could
//     only be ended by polling. Here EPOLLOUT comes to us;
//   - Close drops what is left after EAGAIN, and a half-close is a close. Here
//     a connection flushes, shuts its writing side down, and only then closes.
//
// So bytes wait in one place only, sockConn.out, which we count and bound.
type engine struct {
	loops []*loop
	gone  chan struct{}
	turn  atomic.Uint32
	log   *slog.Logger
	wg    sync.WaitGroup
}

// readBufferBytes is what one read takes at most: also the overshoot of every
// bound on buffered bytes.
const readBufferBytes = 128 << 10

// loop is one event loop: everything of a client's session (both sockets,
// timers, parser state) lives on one, so nothing of it needs a lock.
type loop struct {
	idx    int
	log    *slog.Logger
	poller *poller
	conns  map[int]*sockConn

	sessions map[*session]struct{}
	gone     chan struct{} // shared by the loops, capacity 1: some connection closed

	buf    []byte     // the read buffer, shared by all connections of the loop
	plain  []byte     // the same, decrypted; the next two are scratch of tlsConn, too
	stage  []byte     // small pieces put together for a TLS record
	cipher []byte     // encrypted, not yet given to the socket
	iov    [][]byte   // scratch of flush
	chunks [][]byte   // free list of outQueue chunks
	frames [][]byte   // free list of frame buffers
	large  sync.Pool  // *[]byte, those above frameKeep
	later  []func()   // run when the current event is done
	timers timerQueue // see timers.go
	wake   *time.Timer

	load atomic.Int64 // connections, for placing new ones
	held atomic.Int64 // bytes waiting in outQueues and session buffers
	peak atomic.Int64 // highest held ever
	// of held, what is in frames that have room in the budget
	whole atomic.Int64

	mu     sync.Mutex // guards ended and closed against post
	ended  bool       // what is posted from now on would not be run
	closed bool       // the poller's fds are gone
}

// newEngine opens n loops (n <= 0: one per usable CPU); none runs yet.
func newEngine(n int, log *slog.Logger) (*engine, error) {
	if n <= 0 {
		n = runtime.GOMAXPROCS(0)
	}
	e := &engine{log: log, gone: make(chan struct{}, 1)}
	for i := range n {
		p, err := openPoller()
		if err != nil {
			e.closePollers()
			return nil, fmt.Errorf("open an event loop (raise the limit on open files?): %w", err)
		}
		l := &loop{
			idx: i, log: log, poller: p, gone: e.gone, buf: make([]byte, readBufferBytes),
			conns: make(map[int]*sockConn), sessions: make(map[*session]struct{}),
		}
		l.wake = time.AfterFunc(time.Hour, func() { l.post(l.runTimers) })
		l.wake.Stop()
		e.loops = append(e.loops, l)
	}
	return e, nil
}

// start runs the loops until stop.
func (e *engine) start() {
	for _, l := range e.loops {
		e.wg.Go(l.run)
	}
}

// stop closes every connection that is left, ends the loops and waits for them.
func (e *engine) stop() {
	for _, l := range e.loops {
		l.last(func() error {
			for _, c := range l.conns {
				c.abort()
			}
			l.runLater()
			return gerrors.ErrEngineShutdown
		})
	}
	e.wg.Wait()
	e.closePollers()
}

func (e *engine) closePollers() {
	for _, l := range e.loops {
		l.mu.Lock()
		if !l.closed {
			l.closed = true
			l.wake.Stop()
			if err := l.poller.Close(); err != nil {
				e.log.Warn("closing an event loop failed", "err", err)
			}
		}
		l.mu.Unlock()
	}
}

// next is the loop with the fewest connections; among equals (a burst of new
// ones isn't counted yet) they take turns.
func (e *engine) next() *loop {
	n := len(e.loops)
	first := int(e.turn.Add(1)) % n
	best := e.loops[first]
	for i := 1; i < n; i++ {
		if l := e.loops[(first+i)%n]; l.load.Load() < best.load.Load() {
			best = l
		}
	}
	return best
}

// connections is the number of sockets of both sides that are open.
func (e *engine) connections() (n int64) {
	for _, l := range e.loops {
		n += l.load.Load()
	}
	return n
}

// held is the number of bytes that wait in Lockstep's own buffers.
func (e *engine) held() (now, peak int64) {
	for _, l := range e.loops {
		now += l.held.Load()
		peak += l.peak.Load()
	}
	return now, peak
}

// passing is held without whole frames.
func (e *engine) passing() (n int64) {
	for _, l := range e.loops {
		n += l.held.Load() - l.whole.Load()
	}
	return n
}

func (l *loop) run() {
	err := l.poller.Polling(func(fd int, ev netpoll.IOEvent, flags netpoll.IOFlags) error {
		// No connection: it was closed by an earlier event of this round. fds are
		// not reused within a round, new ones are registered between rounds.
		if c := l.conns[fd]; c != nil {
			c.onEvent(ev, flags)
			l.runLater()
		}
		return nil
	})
	if err != nil && !errors.Is(err, gerrors.ErrEngineShutdown) {
		l.log.Error("event loop ended", "loop", l.idx, "err", err)
	}
}

// post runs f on the loop soon; false: the loop is closed and f won't run. Any
// goroutine may call it.
func (l *loop) post(f func()) bool {
	return l.trigger(func() error {
		f()
		l.runLater()
		return nil
	})
}

func (l *loop) trigger(f func() error) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended || l.closed {
		return false
	}
	return l.poller.Trigger(f) == nil
}

// last is trigger for the task that ends the loop: what was posted before it is
// run, what comes after it is refused (a dial that ends just now would else leave
// its socket behind).
func (l *loop) last(f func() error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.ended && !l.closed {
		l.ended = true
		_ = l.poller.Trigger(f) // fails only for a closed poller
	}
}

// after runs f on the loop when what runs now is done; loop only.
func (l *loop) after(f func()) { l.later = append(l.later, f) }

func (l *loop) runLater() {
	for i := 0; i < len(l.later); i++ { // may grow while it runs
		l.later[i]()
		l.later[i] = nil
	}
	l.later = l.later[:0]
}

// hold counts n bytes more (or less) in Lockstep's own buffers; loop only.
func (l *loop) hold(n int) {
	if h := l.held.Add(int64(n)); h > l.peak.Load() {
		l.peak.Store(h)
	}
}
