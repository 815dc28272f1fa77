package proxy

import (
	"encoding/binary"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-kafka/lockstep/protocol"
)

// PX-095: a connection that is older than its share of limits.MaxAge is closed
// between two requests: what is under way is answered first, what is idle ends at
// once, and no request is left without its answer. One that always has something
// under way begins no further request after limits.DrainTimeout.
func TestMaxAge(t *testing.T) {
	leakCheck(t)
	asked, answer := make(chan struct{}, 100), make(chan struct{})
	p := testProxy(t, scriptedBroker(t, serveFrames(func(h protocol.RequestHeader, frame []byte) []byte {
		if h.CorrelationID == 1 {
			asked <- struct{}{}
			<-answer
		}
		return sumOf(frame)
	})), func(o *Options) { o.Limits.DrainTimeout = time.Hour })
	// look has every session look at its age now, not when its timer says so.
	look := func(is func(s *session) bool) int {
		return count(p, func(s *session) bool {
			s.lookAtAge(s.p.limits(), time.Now())
			return is(s)
		})
	}
	setAge := func(age, drain time.Duration) {
		lim := *p.limits()
		lim.MaxAge, lim.DrainTimeout = age, drain
		p.SetLimits(lim)
	}
	idle, waits, busy := dialRaw(t, p), dialRaw(t, p), dialRaw(t, p)
	idle.send(request(keyHeartbeat, 0, 2, nil, nil))
	idle.answer()
	for _, c := range []*rawClient{waits, busy} {
		c.send(request(keyHeartbeat, 0, 1, nil, nil))
		<-asked
	}
	eventually(t, "three sessions", func() bool { return p.open.Load() == 3 })
	setAge(time.Millisecond, time.Hour)
	eventually(t, "all are old", func() bool { return look(func(s *session) bool { return !s.aged }) == 0 })
	require.Empty(t, idle.ended())
	require.Equal(t, 2, look(func(s *session) bool { return s.aged }), "only the idle one ends")
	require.Equal(t, 1, closedFor(p, ReasonMaxAge))

	// A request begun before the answer to the last one keeps the session.
	busy.send(request(keyHeartbeat, 0, 3, nil, nil))
	eventually(t, "the broker's turn", func() bool { return count(p, func(s *session) bool { return s.fifo.len() == 2 }) == 1 })
	answer <- struct{}{}
	answer <- struct{}{}
	for _, c := range []*rawClient{waits, busy} {
		corr, _ := c.answer()
		require.EqualValues(t, 1, corr)
	}
	corr, _ := busy.answer()
	require.EqualValues(t, 3, corr)
	require.Empty(t, waits.ended())
	require.Empty(t, busy.ended())
	eventually(t, "reason", func() bool { return closedFor(p, ReasonMaxAge) == 3 })

	// Never a moment without a request.
	setAge(0, time.Hour)
	never := dialRaw(t, p)
	never.send(request(keyHeartbeat, 0, 1, nil, nil))
	<-asked
	setAge(time.Millisecond, -1)
	eventually(t, "draining", func() bool { return look(func(s *session) bool { return s.draining }) == 1 })
	never.send(request(keyHeartbeat, 0, 4, nil, nil))
	eventually(t, "waits", func() bool { return count(p, func(s *session) bool { return len(s.pending) > 0 }) == 1 })
	answer <- struct{}{}
	corr, _ = never.answer()
	require.EqualValues(t, 1, corr)
	require.Empty(t, never.ended(), "it begins another request")
	eventually(t, "reason", func() bool { return closedFor(p, ReasonMaxAge) == 4 })
}

// eachSession runs f on every session's loop and waits.
func eachSession(p *Proxy, f func(s *session)) {
	for _, l := range p.engine.loops {
		done := make(chan struct{})
		if l.post(func() {
			defer close(done)
			for s := range l.sessions {
				f(s)
			}
		}) {
			<-done
		}
	}
}

// lookAtAll has every session look at its limits now, not when its timer says so.
func lookAtAll(p *Proxy) { eachSession(p, (*session).look) }

func count(p *Proxy, is func(s *session) bool) (n int) {
	eachSession(p, func(s *session) {
		if is(s) {
			n++
		}
	})
	return n
}

// PX-095: connections that began together don't end together.
func TestAgeShares(t *testing.T) {
	var quarters [4]int
	for range 4000 {
		share := randomShare()
		require.Greater(t, share, 1-ageSpread)
		require.LessOrEqual(t, share, 1.0)
		quarters[min(3, int((1-share)/ageSpread*4))]++
	}
	for _, n := range quarters {
		require.Greater(t, n, 500)
	}
}

// PX-095: an instance that joins behind a load balancer gets its part of the
// clients that were there before, none of which sees more than a reconnect
// between two requests.
func TestMaxAgeSpreadsClients(t *testing.T) {
	leakCheck(t)
	broker := scriptedBroker(t, serveFrames(sumAnswer))
	start := func() *Proxy {
		return testProxy(t, broker, func(o *Options) { o.Limits.MaxAge = 300 * time.Millisecond })
	}
	first := start()
	balancer := newBalancer(t, "127.0.0.1:0", first.Addr().String())
	const clients = 20
	var (
		wg   sync.WaitGroup
		stop = make(chan struct{})
		errs = make(chan error, clients)
	)
	for range clients {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if err := beatUntilClosed(balancer.Addr().String(), stop); err != nil {
					errs <- err
					return
				}
			}
		})
	}
	eventually(t, "all are at the first", func() bool { return first.open.Load() == clients })
	second := start()
	balancer.add(second.Addr().String())
	eventually(t, "the second has its part", func() bool {
		return second.open.Load() >= clients/4 && first.open.Load() >= clients/4
	})
	close(stop)
	wg.Wait()
	close(errs)
	for err := range errs {
		require.NoError(t, err)
	}
	require.Positive(t, closedFor(first, ReasonMaxAge))
}

// beatUntilClosed asks again and again until the connection ends, which it may
// only do in place of an answer's first byte.
func beatUntilClosed(addr string, stop chan struct{}) error {
	c, err := net.Dial("tcp", addr)
	if err != nil {
		return err
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(testPatience)); err != nil {
		return err
	}
	for i := int32(1); ; i++ {
		select {
		case <-stop:
			return nil
		case <-time.After(time.Millisecond):
		}
		if _, err := c.Write(request(keyHeartbeat, 0, i, nil, nil)); err != nil {
			return nil // closed meanwhile
		}
		var size [4]byte
		if n, err := io.ReadFull(c, size[:]); err != nil {
			if n > 0 {
				return err
			}
			return nil
		}
		if _, err := io.CopyN(io.Discard, c, int64(binary.BigEndian.Uint32(size[:]))); err != nil {
			return err
		}
	}
}

// balancer gives each new connection to the next of its targets that takes it.
type balancer struct {
	net.Listener
	mu      sync.Mutex
	targets []string
	next    int
}

func newBalancer(t *testing.T, address string, targets ...string) *balancer {
	ln, err := net.Listen("tcp", address)
	require.NoError(t, err)
	b := &balancer{Listener: ln, targets: targets}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			wg.Go(func() { b.relay(c.(*net.TCPConn)) })
		}
	})
	t.Cleanup(func() {
		ln.Close()
		wg.Wait()
	})
	return b
}

func (b *balancer) add(target string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.targets = append(b.targets, target)
}

func (b *balancer) relay(c *net.TCPConn) {
	defer c.Close()
	b.mu.Lock()
	b.next++
	next, targets := b.next, b.targets
	b.mu.Unlock()
	var up net.Conn
	for i := range targets {
		var err error
		if up, err = net.Dial("tcp", targets[(next+i)%len(targets)]); err == nil {
			break
		}
	}
	if up == nil {
		return
	}
	defer up.Close()
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = io.Copy(up, c)
		_ = up.(*net.TCPConn).CloseWrite()
	}()
	_, _ = io.Copy(c, up)
	c.Close()
	<-done
}
