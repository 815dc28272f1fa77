package proxy

import (
	"net"
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
	opts.Limits.DrainTimeout = 2 * time.Second
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
