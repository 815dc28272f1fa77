package proxy

import (
	"log/slog"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/panjf2000/gnet/v2/pkg/netpoll"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	gerrors "github.com/panjf2000/gnet/v2/pkg/errors"
)

// polled runs p until the test ends; event gets what it hands out.
func polled(t *testing.T, event func(fd int, ev netpoll.IOEvent)) *poller {
	p, err := openPoller()
	require.NoError(t, err)
	done := make(chan error, 1)
	go func() {
		done <- p.Polling(func(fd int, ev netpoll.IOEvent, _ netpoll.IOFlags) error {
			event(fd, ev)
			return nil
		})
	}()
	t.Cleanup(func() {
		require.NoError(t, p.Trigger(func() error { return gerrors.ErrEngineShutdown }))
		select {
		case err := <-done:
			require.ErrorIs(t, err, gerrors.ErrEngineShutdown)
			require.NoError(t, p.Close())
		case <-time.After(testPatience):
			t.Error("the wake-up for a task was lost")
		}
	})
	return p
}

func socketPair(t *testing.T) (a, b int) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	return fds[0], fds[1]
}

// No wake-up is lost between the set and the runtime's poller that waits for
// it: bytes go round and round between sockets of two pollers, one at a time,
// each sent by the event before it, while tasks come from elsewhere.
func TestPollerLosesNoWakeUp(t *testing.T) {
	leakCheck(t)
	const rounds = 20_000
	a, b := socketPair(t)
	defer func() { _, _ = unix.Close(a), unix.Close(b) }()
	turns := make(chan struct{})
	n := 0
	back := func(count bool) func(int, netpoll.IOEvent) {
		return func(fd int, _ netpoll.IOEvent) {
			var one [1]byte
			if k, _ := unix.Read(fd, one[:]); k != 1 {
				return // drained by the event before
			}
			if count {
				if n++; n == rounds {
					close(turns)
					return
				}
			}
			_, _ = unix.Write(fd, one[:])
		}
	}
	left, right := polled(t, back(true)), polled(t, back(false))
	require.NoError(t, left.Add(a, netpoll.ReadEvents))
	require.NoError(t, right.Add(b, netpoll.ReadEvents))
	_, err := unix.Write(b, []byte{1})
	require.NoError(t, err)

	var tasks sync.WaitGroup
	for range rounds {
		tasks.Add(2)
		for _, p := range []*poller{left, right} {
			require.NoError(t, p.Trigger(func() error { tasks.Done(); return nil }))
		}
	}
	within(t, turns)
	all := make(chan struct{})
	go func() { tasks.Wait(); close(all) }()
	within(t, all)
}

func within(t *testing.T, c <-chan struct{}) {
	t.Helper()
	select {
	case <-c:
	case <-time.After(testPatience):
		t.Fatal("a wake-up was lost")
	}
}

// A loop that waits holds no processor (P) of Go's: it waits where the runtime
// waits for sockets, not in a system call. With one loop for each processor the
// process's other sockets would else be nobody's for up to 20 ms.
func TestLoopsThatWaitHoldNoProcessor(t *testing.T) {
	leakCheck(t)
	e, err := newEngine(0, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	e.start()
	defer e.stop()
	for range 3 { // also after they had something to do
		for _, l := range e.loops {
			done := make(chan struct{})
			require.True(t, l.post(func() { close(done) }))
			within(t, done)
		}
		require.Eventually(t, func() bool { return statesOf("proxy.(*loop).run(")["IO wait"] == len(e.loops) }, testPatience, time.Millisecond,
			"loops that wait: %v", statesOf("proxy.(*loop).run("))
	}
}

// statesOf counts the goroutines that have a function on their stack by what
// they are doing.
func statesOf(function string) map[string]int {
	buf := make([]byte, 1<<20)
	buf = buf[:runtime.Stack(buf, true)]
	states := map[string]int{}
	for _, g := range strings.Split(string(buf), "\n\n") {
		if strings.Contains(g, function) {
			_, head, _ := strings.Cut(g, "[")
			state, _, _ := strings.Cut(head, "]")
			state, _, _ = strings.Cut(state, ",") // how many minutes
			states[state]++
		}
	}
	return states
}
