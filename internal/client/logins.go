package client

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/sasl"

	"github.com/lockstep-kafka/lockstep/internal/kconn"
)

const (
	loginPatience = 2 * time.Second // a login that isn't accepted by then was refused
	loginMinWait  = time.Second
	loginMaxWait  = 30 * time.Second
	loginsAtOnce  = 8 // unanswered ones, while credentials are known to be good
)

// logins holds a cluster's logins back while they are refused, so that a wrong or
// locked user isn't tried by every connection for itself: until one login was
// accepted there is one at a time, and after each that was refused a pause that
// doubles, up to 30 s. kgo doesn't tell a mechanism that the broker refused it, so
// there a login without an end counts as refused after loginPatience.
type logins struct {
	sasl.Mechanism

	mu      sync.Mutex
	open    map[*login]time.Time // when they began
	good    bool                 // the last one that ended was accepted
	refused int                  // in a row
	next    time.Time            // not before
	why     error                // what the broker said last, if it is known
	ended   chan struct{}        // closed when one of open ends
}

func newLogins(m sasl.Mechanism) *logins {
	return &logins{Mechanism: m, open: map[*login]time.Time{}, ended: make(chan struct{})}
}

// HeldBackError is a login that was not tried, as the last one was refused.
type HeldBackError struct {
	In  time.Duration // until the next one is tried
	Why error         // what the broker said, if it is known
}

func (e *HeldBackError) Error() string {
	text := fmt.Sprintf("the last login was not accepted (are the credentials right?), the next one is tried in %s", e.In)
	if e.Why != nil {
		text += fmt.Sprintf(" (%v)", e.Why)
	}
	return text
}

func (e *HeldBackError) Unwrap() error { return e.Why }

// login is one of them.
type login struct {
	sasl.Session
	of *logins
}

// Authenticate implements sasl.Mechanism.
func (l *logins) Authenticate(ctx context.Context, host string) (sasl.Session, []byte, error) {
	in, err := l.enter(ctx)
	if err != nil {
		return nil, nil, err
	}
	session, msg, err := l.Mechanism.Authenticate(ctx, host)
	if err != nil { // the broker has seen nothing of it
		l.mu.Lock()
		l.end(in)
		l.mu.Unlock()
		return nil, nil, err
	}
	in.Session = session
	return in, msg, nil
}

// enter waits for a turn.
func (l *logins) enter(ctx context.Context) (*login, error) {
	for {
		l.mu.Lock()
		now := time.Now()
		oldest := l.sweep(now)
		if now.Before(l.next) {
			err := &HeldBackError{In: time.Until(l.next).Round(100 * time.Millisecond), Why: l.why}
			l.mu.Unlock()
			return nil, err
		}
		if most := 1 + b2i(l.good)*(loginsAtOnce-1); len(l.open) < most {
			in := &login{of: l}
			l.open[in] = now
			l.mu.Unlock()
			return in, nil
		}
		ended := l.ended
		l.mu.Unlock()
		wait := time.NewTimer(time.Until(oldest.Add(loginPatience)))
		select {
		case <-ended:
		case <-wait.C:
		case <-ctx.Done():
			wait.Stop()
			return nil, fmt.Errorf("wait for another login to end: %w", ctx.Err())
		}
		wait.Stop()
	}
}

func b2i(b bool) int {
	if b {
		return 1
	}
	return 0
}

// sweep ends what was given up, and returns when the oldest of the others began.
func (l *logins) sweep(now time.Time) (oldest time.Time) {
	oldest = now
	for in, began := range l.open {
		switch {
		case now.Sub(began) >= loginPatience:
			l.end(in)
			l.refuse(now, nil)
		case began.Before(oldest):
			oldest = began
		}
	}
	return oldest
}

// end takes a login out, once.
func (l *logins) end(in *login) bool {
	if _, ok := l.open[in]; !ok {
		return false
	}
	delete(l.open, in)
	close(l.ended)
	l.ended = make(chan struct{})
	return true
}

// refuse lets the next login wait; those that were under way together count once.
func (l *logins) refuse(now time.Time, why error) {
	l.good, l.why = false, why
	if now.Before(l.next) {
		return
	}
	wait := min(loginMinWait<<min(l.refused, 10), loginMaxWait)
	l.refused++
	l.next = now.Add(wait/2 + rand.N(wait/2))
}

// Challenge implements sasl.Session.
func (in *login) Challenge(answer []byte) (bool, []byte, error) {
	done, msg, err := in.Session.Challenge(answer)
	if err == nil && !done {
		return done, msg, nil
	}
	l := in.of
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case !l.end(in) && err != nil:
	case err != nil:
		l.refuse(time.Now(), nil)
	default:
		l.good, l.refused, l.next, l.why = true, 0, time.Time{}, nil
	}
	return done, msg, err
}

// Failed implements kconn.Failer.
func (in *login) Failed(err error, refused bool) {
	l := in.of
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.end(in) && refused {
		l.refuse(time.Now(), err)
	}
}

var _ kconn.Failer = (*login)(nil)
