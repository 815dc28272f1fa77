package mirror

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

// lastSync is a partition that waits to be STOPPED.
type lastSync struct {
	k    partKey
	b    groupBounds
	done chan error
}

const (
	// groupLastLimit bounds how long a stop waits for its last sync.
	groupLastLimit = 5 * time.Second
	// groupLastSource is the source's part of it: a dead one must not hold it.
	groupLastSource = 2 * time.Second
	// groupDownFor is how long a source that didn't answer isn't asked again by a
	// stop.
	groupDownFor = time.Minute
	// groupGather lets the partitions of one stop come together.
	groupGather = 100 * time.Millisecond
)

var errGroupsEnded = errors.New("the sync of group offsets has ended")

// last syncs the groups' offsets of a partition that is about to be STOPPED with
// these bounds, and returns when that is done or has taken too long.
func (s *groupSync) last(ctx context.Context, k partKey, b groupBounds) error {
	ctx, cancel := context.WithTimeout(ctx, groupLastLimit)
	defer cancel()
	x := &lastSync{k, b, make(chan error, 1)}
	s.mu.Lock()
	s.waiting = append(s.waiting, x)
	if s.cancel != nil {
		s.cancel()
	}
	s.mu.Unlock()
	s.wake.wake()
	select {
	case err := <-x.done:
		return err
	case <-ctx.Done():
		s.mu.Lock()
		s.waiting = slices.DeleteFunc(s.waiting, func(y *lastSync) bool { return y == x })
		s.mu.Unlock()
		return fmt.Errorf("not done within %v: %w", groupLastLimit, ctx.Err())
	}
}

// finish does the last syncs that are waited for.
func (s *groupSync) finish(ctx context.Context) bool {
	s.mu.Lock()
	n := len(s.waiting)
	s.mu.Unlock()
	if n == 0 {
		return false
	}
	pause(ctx, groupGather)
	s.mu.Lock()
	all := s.waiting
	s.waiting = nil
	s.mu.Unlock()
	last := map[partKey]groupBounds{}
	for _, x := range all {
		last[x.k] = x.b
	}
	lctx, cancel := context.WithTimeout(ctx, groupLastLimit)
	defer cancel()
	_, err := s.cycle(lctx, last, func(c context.Context) (context.Context, context.CancelFunc) {
		limit := groupLastSource
		if !s.down.IsZero() && s.now().Sub(s.down) < groupDownFor {
			limit = 0
		}
		return context.WithTimeout(c, limit)
	})
	if ctx.Err() != nil {
		err = errGroupsEnded
	}
	for _, x := range all {
		x.done <- err
	}
	return true
}
