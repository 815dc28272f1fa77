package proxy

import (
	"context"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-kafka/lockstep/protocol"
)

// On SIGTERM: nobody new is accepted, open requests are answered, new ones are
// not begun, idle connections are closed.
func TestDrain(t *testing.T) {
	leakCheck(t)
	got := make(chan struct{})
	answer := make(chan struct{})
	broker := scriptedBroker(t, serveFrames(func(h protocol.RequestHeader, f []byte) []byte {
		if h.CorrelationID == 50 {
			close(got)
			<-answer
		}
		return sumAnswer(h, f)
	}))
	opts := testOptions(broker)
	opts.Limits.DrainTimeout = time.Hour
	p, err := New(opts)
	require.NoError(t, err)
	stop := runProxy(t, p)
	idle, busy := dialRaw(t, p), dialRaw(t, p)
	idle.send(request(keyHeartbeat, 0, 1, nil, nil))
	idle.answer()
	busy.send(request(keyHeartbeat, 0, 50, nil, nil))
	<-got
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		stop()
	}()
	require.Empty(t, idle.ended())
	eventually(t, "the busy one drains, too", func() bool {
		done := make(chan bool, 1)
		for _, l := range p.engine.loops {
			l.post(func() {
				n := 0
				for s := range l.sessions {
					if s.draining {
						n++
					}
				}
				if n > 0 {
					done <- true
				}
			})
		}
		select {
		case <-done:
			return true
		case <-time.After(10 * time.Millisecond):
			return false
		}
	})
	busy.send(request(keyHeartbeat, 0, 51, nil, nil)) // not begun any more
	_, err = net.DialTimeout("tcp", p.Addr().String(), time.Second)
	require.Error(t, err)
	close(answer)
	corr, _ := busy.answer()
	require.EqualValues(t, 50, corr)
	require.Empty(t, busy.ended())
	<-stopped
	require.Equal(t, 2, closedFor(p, ReasonDraining))
}

// What doesn't end in time is ended.
func TestDrainHardStop(t *testing.T) {
	leakCheck(t)
	broker := scriptedBroker(t, serveFrames(func(protocol.RequestHeader, []byte) []byte { return nil }))
	opts := testOptions(broker)
	opts.Limits.DrainTimeout = 50 * time.Millisecond
	p, err := New(opts)
	require.NoError(t, err)
	stop := runProxy(t, p)
	c := dialRaw(t, p)
	c.send(request(keyHeartbeat, 0, 1, nil, nil))
	eventually(t, "open", func() bool { return p.open.Load() == 1 })
	stop()
	require.Empty(t, c.ended())
	require.Equal(t, 1, closedFor(p, ReasonDraining))
}

// A dial that is under way when the time for the drain is over ends with the
// drain, and doesn't say that the broker can't be reached.
func TestDrainHardStopWhileDialling(t *testing.T) {
	leakCheck(t)
	opts := testOptions("")
	opts.Loops = 1
	opts.Dial = func(ctx context.Context, _, _ string) (net.Conn, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	p, err := New(opts)
	require.NoError(t, err)
	ended := make(chan struct{})
	cancel := p.cancel
	p.cancel = func() {
		cancel()
		p.wg.Wait() // the dial has told the loop
		close(ended)
	}
	stop := runProxy(t, p)
	c := dialRaw(t, p)
	c.send(request(keyHeartbeat, 0, 1, nil, nil))
	eventually(t, "dials", func() bool { return count(p, func(s *session) bool { return s.dialing != nil }) == 1 })
	p.engine.loops[0].post(func() { <-ended }) // it has something else to do meanwhile
	stop()
	require.Empty(t, c.ended())
	require.Equal(t, 1, closedFor(p, ReasonDraining))
}

// PX-091: connections in every early state (nothing sent, part of a size, part
// of a header, part of a frame, a broker that is being dialled) end with the
// drain, with their files and goroutines, however often it happens.
func TestDrainOfEarlyStates(t *testing.T) {
	leakCheck(t)
	broker := scriptedBroker(t, serveFrames(sumAnswer))
	frame := request(keyHeartbeat, 0, 1, nil, make([]byte, 100))
	for round := range 20 {
		opts := testOptions(broker)
		opts.Limits.DrainTimeout = 200 * time.Millisecond
		if round%2 == 1 { // the broker never answers the dial
			opts.Dial = func(ctx context.Context, _, _ string) (net.Conn, error) {
				<-ctx.Done()
				return nil, ctx.Err()
			}
		}
		p, err := New(opts)
		require.NoError(t, err)
		stop := runProxy(t, p)
		var clients []*rawClient
		for _, n := range []int{0, 2, 4, 11, 12, 50, len(frame) - 1, len(frame)} {
			c := dialRaw(t, p)
			c.send(frame[:n])
			clients = append(clients, c)
		}
		eventually(t, "all are here", func() bool { return p.open.Load() == int64(len(clients)) })
		stop()
		require.Error(t, p.Ready())
		require.Equal(t, len(clients), closedFor(p, ReasonDraining))
		for _, c := range clients {
			c.ended()
			require.NoError(t, c.Close())
		}
	}
}

// A drain is over when the last connection is gone, however long it might take;
// clients are accepted during the delay before it, and the proxy isn't ready.
func TestDrainDelayAndEarlyEnd(t *testing.T) {
	leakCheck(t)
	opts := testOptions(scriptedBroker(t, serveFrames(sumAnswer)))
	opts.Limits.DrainTimeout = time.Hour
	opts.Limits.DrainDelay = time.Hour
	p, err := New(opts)
	require.NoError(t, err)
	delay := make(chan struct{})
	p.sleep = func(d time.Duration) {
		if d == time.Hour {
			<-delay
		}
	}
	stop := runProxy(t, p)
	early := dialRaw(t, p)
	early.send(request(keyHeartbeat, 0, 1, nil, nil))
	early.answer()
	require.NoError(t, early.Close())
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		stop()
	}()
	eventually(t, "not ready", func() bool { return p.ending.Load() })
	require.ErrorContains(t, p.Ready(), "shutting down")
	c := dialRaw(t, p)
	c.send(request(keyHeartbeat, 0, 1, nil, nil))
	c.answer()
	close(delay)
	c.ended()
	require.NoError(t, c.Close())
	select {
	case <-stopped:
	case <-time.After(testPatience):
		t.Fatal("waits though nobody is left")
	}
}

// A client with max_in_flight unanswered requests is read no further, and goes
// on when they are answered.
func TestMaxInFlight(t *testing.T) {
	leakCheck(t)
	const most, all = 5, 50
	var got atomic.Int64
	release := make(chan struct{})
	p := testProxy(t, scriptedBroker(t, func(c *net.TCPConn) {
		var frames [][]byte
		for range most {
			f, err := readFrame(c)
			if err != nil {
				return
			}
			got.Add(1)
			frames = append(frames, f)
		}
		<-release
		for _, f := range frames {
			h, _ := protocol.ParseRequestHeader(f)
			_, _ = c.Write(answerFrame(h.CorrelationID, sumOf(f)))
		}
		serveFrames(sumAnswer)(c)
	}), func(o *Options) { o.Limits.MaxInFlight = most })
	c := dialRaw(t, p)
	for i := range int32(all) {
		c.send(request(keyHeartbeat, 0, i, nil, nil))
	}
	eventually(t, "as many as allowed", func() bool { return got.Load() == most })
	bound := func() (n int) {
		done := make(chan int)
		for _, l := range p.engine.loops {
			l.post(func() {
				n := 0
				for s := range l.sessions {
					n += s.fifo.len()
				}
				done <- n
			})
			n += <-done
		}
		return n
	}
	require.Equal(t, most, bound())
	close(release)
	for i := range int32(all) {
		corr, _ := c.answer()
		require.Equal(t, i, corr)
	}
}
