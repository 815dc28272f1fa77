package mirror

import (
	"context"
	"errors"
	"fmt"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/epoch"
)

// A share group (KIP-932) has, for each partition, a start offset, below which
// all is done with, and above it the state of single records, which no API
// tells. The start offset is carried over, so that records above it that were
// acknowledged on the source are delivered again on the destination. The
// destination's broker reads its own log for the group: there it is physical.

// ownLog tells where virtual offsets are in the destination's log.
type ownLog interface {
	// physical is where the first live record at or behind virtual offset v of l
	// is, or the next one will be.
	physical(ctx context.Context, k partKey, l *epoch.Log, v int64) (int64, error)
	// virtual is the virtual offset of the first live record at or behind
	// physical offset p.
	virtual(ctx context.Context, k partKey, l *epoch.Log, p int64) (int64, error)
}

var errNotPlaced = errors.New("the offset can't be looked up in the destination's log")

// byKind parts share groups from the others.
func (s *groupSync) byKind(names []string) (others, shares []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, name := range names {
		if g := s.groups[name]; g != nil && g.share {
			shares = append(shares, name)
		} else {
			others = append(others, name)
		}
	}
	return others, shares
}

// applyShares compares share groups with the destination.
func (s *groupSync) applyShares(ctx context.Context, names []string, scope func(*groupPart) bool, last bool) (jobs []groupJob) {
	type answer struct {
		name   string
		topics []kmsg.OffsetFetchResponseGroupTopic
	}
	var answers []answer
	s.dst.shareOffsets(ctx, names, func(name string, ts []kmsg.OffsetFetchResponseGroupTopic, err error) {
		if err == nil {
			answers = append(answers, answer{name, ts})
			return
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		g := s.groups[name]
		g.each(scope, func(e *groupEntry) { e.mark(commitReason(err), s.now()) })
		g.err = err.Error()
	})
	for _, a := range answers {
		err := s.translate(ctx, a.name, a.topics, scope)
		s.mu.Lock()
		g := s.groups[a.name]
		if err != nil {
			g.each(scope, func(e *groupEntry) { e.mark(GroupNotReady, s.now()) })
			g.err = err.Error()
		} else if j := s.decide(g, a.topics, scope, last); len(j.list) > 0 {
			jobs = append(jobs, j)
		}
		s.mu.Unlock()
	}
	return jobs
}

// translate makes a share group's offsets on the destination virtual.
func (s *groupSync) translate(ctx context.Context, name string, ts []kmsg.OffsetFetchResponseGroupTopic, scope func(*groupPart) bool) error {
	for i := range ts {
		for j := range ts[i].Partitions {
			a := &ts[i].Partitions[j]
			p := s.find(ts[i].Topic, a.Partition)
			if p == nil || !scope(p) || p.reason != 0 || a.ErrorCode != 0 || a.Offset < 0 {
				continue
			}
			a.LeaderEpoch = -1
			if to := s.placed(name, p); to >= 0 {
				at, err := s.places.physical(ctx, p.partKey, p.bounds.log, to)
				if err != nil {
					return err
				}
				if at == a.Offset { // also where it is inside a renumbered batch
					a.Offset = to
					continue
				}
			}
			v, err := s.places.virtual(ctx, p.partKey, p.bounds.log, a.Offset)
			if err != nil {
				return err
			}
			a.Offset = min(v, p.bounds.end)
		}
	}
	return nil
}

// placed is the virtual offset at which a share group should be here; -1: it
// has none on the source.
func (s *groupSync) placed(name string, p *groupPart) int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range s.groups[name].entries {
		if e := &s.groups[name].entries[i]; e.part == p && e.src.offset >= 0 {
			return p.bounds.clamp(e.src).offset
		}
	}
	return -1
}

// send commits a group's offsets on the destination.
func (s *groupSync) send(ctx context.Context, g *group, list []groupCommit) []error {
	if !g.share {
		return s.dst.commit(ctx, g.name, list)
	}
	moved := make([]groupCommit, len(list))
	for i, c := range list {
		p := s.find(c.topic, c.partition)
		at, err := s.places.physical(ctx, c.partKey, p.bounds.log, c.offset)
		if err != nil {
			errs := make([]error, len(list))
			for j := range errs {
				errs[j] = fmt.Errorf("%w: %w", errNotPlaced, err)
			}
			return errs
		}
		c.offset = at
		moved[i] = c
	}
	return s.dst.alterShare(ctx, g.name, moved)
}
