package proxy

import (
	"math/rand/v2"
	"time"
)

// A client that keeps its connections for days stays at the instance where it
// began, however many others there are by now. So a connection may have a
// greatest age (limits.MaxAge): from then on it is closed at the first moment at
// which nothing is under way, and the client connects anew, to whatever its load
// balancer or DNS says. One that always has something under way begins no
// further request after limits.DrainTimeout more, as in a drain.

// ageSpread: connections that began together, as after a restart, don't end
// together. Each one's own age is a share of the limit between 1-ageSpread and 1.
const ageSpread = 0.2

func randomShare() float64 { return 1 - ageSpread*rand.Float64() }

// overAge is by how much the session is older than it may become.
func (s *session) overAge(lim *Limits, now time.Time) (over time.Duration, limited bool) {
	return now.Sub(s.started) - time.Duration(float64(lim.MaxAge)*s.ageShare), lim.MaxAge > 0
}

// nextAge is in how long lookAtAge is due.
func (s *session) nextAge(lim *Limits) time.Duration {
	over, limited := s.overAge(lim, time.Now())
	switch {
	case !limited || s.aged && s.draining:
		return lim.IdleTimeout // looked at more often for other reasons
	case over < 0:
		return -over
	}
	return max(lim.DrainTimeout-over, 0)
}

func (s *session) lookAtAge(lim *Limits, now time.Time) {
	s.enter()
	defer s.leave()
	over, limited := s.overAge(lim, now)
	s.aged = limited && over >= 0
	s.draining = s.draining || s.aged && over >= lim.DrainTimeout
}
