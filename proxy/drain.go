package proxy

import (
	"math/rand/v2"
	"time"
)

// drainPace is the time over which closings are spread, for each connection.
const drainPace = 50 * time.Millisecond

// drainLinger is how long a client may take to notice that its connection was
// closed in order; an idle one may notice only when it has something to send.
const drainLinger = time.Second

// drain ends all sessions in order, at most limits.DrainTimeout long, and
// returns when the last one is gone: each one ends at its own moment, so that
// the clients don't all come to the other instances at once; many of them within
// the first four fifths of that time, few of them sooner (drainPace). From its moment on a session
// begins no further request; it is closed when its open ones are answered.
func (p *Proxy) drain() {
	p.draining.Store(true) // sessions that start now end at once
	timeout := p.limits().DrainTimeout
	spread := min(timeout*4/5, time.Duration(p.open.Load())*drainPace)
	p.log.Info("draining", "connections", p.open.Load(), "timeout", timeout)
	for _, l := range p.engine.loops {
		l.post(func() {
			for s := range l.sessions {
				delay := time.Duration(0)
				if spread > 0 {
					delay = rand.N(spread)
				}
				l.afterFunc(delay, func() {
					if !s.closed {
						s.drain()
					}
				})
			}
		})
	}
	hard := time.NewTimer(timeout)
	defer hard.Stop()
	var grace <-chan time.Time
	for p.open.Load() > 0 || p.engine.connections() > 0 {
		if grace == nil && p.open.Load() == 0 {
			grace = time.After(drainLinger)
		}
		select {
		case <-p.engine.gone:
		case <-grace:
			if held, _ := p.engine.held(); held == 0 {
				return
			}
			grace = nil // something is still on its way
		case <-hard.C:
			p.log.Warn("drain timed out, closing what is left", "connections", p.open.Load())
			return
		}
	}
}

// closeAll ends the sessions that are left.
func (p *Proxy) closeAll() {
	for _, l := range p.engine.loops {
		l.post(func() {
			for s := range l.sessions {
				s.close(ReasonDraining, nil)
			}
		})
	}
}
