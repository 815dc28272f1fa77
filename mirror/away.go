package mirror

import (
	"sync"
	"time"
)

// reach knows since when a mirror's source has not answered.
type reach struct {
	mu    sync.Mutex
	since time.Time // zero: it answers
	why   string
}

// tell takes in what a question to the source has come to.
func (r *reach) tell(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case err == nil:
		r.since, r.why = time.Time{}, ""
		return
	case r.since.IsZero():
		r.since = time.Now().UTC()
	}
	r.why = err.Error()
}

// reached notes whether the source has answered.
func (s *source) reached(err error) {
	s.reach.tell(err)
	s.m.metrics.sourceUp(s.o.Name, err == nil)
}

// SourceAway says since when a mirror's source has not answered this instance,
// and why; zero: it does, or the mirror is none of this instance's.
func (m *Manager) SourceAway(mirror string) (since time.Time, why string) {
	s := m.source(mirror)
	if s == nil {
		return time.Time{}, ""
	}
	s.reach.mu.Lock()
	defer s.reach.mu.Unlock()
	return s.reach.since, s.reach.why
}
