package proxy

import (
	"math/rand/v2"
	"time"
)

// drainPace is the time over which closings are spread, for each connection.
const drainPace = 50 * time.Millisecond

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
	for p.open.Load() > 0 || p.engine.connections() > 0 {
		select {
		case <-p.engine.gone:
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
