package mirror

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// GroupOptions are a mirror's settings for consumer groups.
type GroupOptions struct {
	Filter   *TopicFilter // of group names
	Interval time.Duration
}

// groupSync carries the offsets of a mirror's consumer groups over (DESIGN
// §10): of the partitions that this instance owns, so that each is some
// instance's, with bounds that are known here and a state that changes here.
// One goroutine, run, does it; status is read from others.
type groupSync struct {
	o   GroupOptions
	log *slog.Logger
	met *groupMetrics

	src, dst *groupCluster
	// look are the partitions that are ours now, each with its bounds or why it
	// has none. mine tells whether one may still be written.
	look   func() map[partKey]groupLook
	mine   func(k partKey, last bool) bool
	places ownLog        // where offsets are on the destination, for share groups
	source func() string // the source's cluster id, "": not known
	now    func() time.Time

	cycles int32                   // run's own, from 1
	topics map[string][]*groupPart // run's own, by partition number; nil where there is none
	ids    int32
	down   time.Time // when the source last didn't answer

	mu      sync.Mutex
	groups  map[string]*group
	done    time.Time // of the newest whole cycle
	err     error     // of the newest cycle
	waiting []*lastSync
	cancel  context.CancelFunc // of the cycle under way
	wake    wakeChan
}

type groupLook struct {
	bounds groupBounds
	why    GroupReason
}

func newGroupSync(o GroupOptions, src, dst []kgo.Opt, log *slog.Logger, met *groupMetrics) (*groupSync, error) {
	s := &groupSync{o: o, log: log, met: met, now: time.Now, topics: map[string][]*groupPart{}, groups: map[string]*group{}, wake: make(wakeChan, 1)}
	var err error
	if s.src, err = newGroupCluster(src); err != nil {
		return nil, err
	}
	if s.dst, err = newGroupCluster(dst); err != nil {
		s.src.close()
		return nil, err
	}
	return s, nil
}

func (s *groupSync) close() {
	s.src.close()
	s.dst.close()
}

// groupsSoon is how soon to look again while no partition is mirrored yet, and
// after a cycle that failed.
const groupsSoon = 5 * time.Second

// run syncs until ctx ends.
func (s *groupSync) run(ctx context.Context) error {
	timer := time.NewTimer(min(s.o.Interval, time.Second))
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
		case <-s.wake:
		case <-ctx.Done():
			return nil
		}
		if s.finish(ctx) {
			continue
		}
		began := time.Now()
		cctx, cancel := context.WithCancel(ctx)
		s.mu.Lock()
		s.cancel = cancel
		stop := len(s.waiting) > 0
		s.mu.Unlock()
		if stop { // it came just now; the timer may have fired
			cancel()
			timer.Reset(0)
			continue
		}
		ready, err := s.cycle(cctx, nil, nil)
		interrupted := cctx.Err() != nil
		cancel()
		next := s.o.Interval
		switch {
		case interrupted: // by a stop, which comes first
			next = 0
		case err != nil:
			s.met.failed.Inc()
			s.log.Warn("sync of group offsets failed", "err", err, "cause", errorCode(err))
			next = min(next, groupsSoon)
		case !ready:
			next = min(next, time.Second)
		}
		s.mu.Lock()
		s.cancel = nil
		if !interrupted {
			s.err = err
		}
		s.mu.Unlock()
		timer.Reset(max(next-time.Since(began), 0))
	}
}

// take takes in what was seen of each partition; in a last sync, only of those
// given. mu is held.
func (s *groupSync) take(looks map[partKey]groupLook, last map[partKey]groupBounds) (ready bool) {
	if last != nil {
		for k, b := range last {
			s.part(k).look(b, 0, s.cycles)
		}
		return true
	}
	for k, l := range looks {
		s.part(k).look(l.bounds, l.why, s.cycles)
		ready = ready || l.why == 0
	}
	for t, ps := range s.topics {
		left := false
		for i, p := range ps {
			if p == nil {
				continue
			}
			if _, ok := looks[p.partKey]; !ok {
				p.gone = true
				ps[i] = nil
				continue
			}
			left = true
		}
		if !left {
			delete(s.topics, t)
		}
	}
	return ready
}

func (s *groupSync) part(k partKey) *groupPart {
	if p := s.find(k.topic, k.partition); p != nil {
		return p
	}
	ps := s.topics[k.topic]
	if n := int(k.partition) + 1; n > len(ps) {
		ps = append(ps, make([]*groupPart, n-len(ps))...)
	}
	s.ids++
	ps[k.partition] = &groupPart{partKey: k, id: s.ids}
	s.topics[k.topic] = ps
	return ps[k.partition]
}

func (s *groupSync) find(topic string, p int32) *groupPart {
	if ps := s.topics[topic]; p >= 0 && int(p) < len(ps) {
		return ps[p]
	}
	return nil
}

// cycle syncs once. last restricts it to partitions that are about to be
// STOPPED, with their final bounds; source bounds how long the source is waited
// for then. ready is false while there is no partition to sync.
func (s *groupSync) cycle(ctx context.Context, last map[partKey]groupBounds, source func(context.Context) (context.Context, context.CancelFunc)) (ready bool, err error) {
	s.cycles++
	began := s.now()
	var looks map[partKey]groupLook
	if last == nil {
		looks = s.look() // takes locks of others: mu is a leaf
	}
	s.mu.Lock()
	ready = s.take(looks, last)
	s.mu.Unlock()
	if !ready {
		s.restAll()
		s.tellDone(last, began)
		return false, nil
	}
	inScope := func(p *groupPart) bool { return p.cycle == s.cycles }
	here, hereMissing, err := s.dst.list(ctx)
	if err != nil {
		return true, fmt.Errorf("destination: %w", err)
	}
	sctx, cancel := ctx, context.CancelFunc(func() {})
	if source != nil {
		sctx, cancel = source(ctx)
	}
	defer cancel()
	todo, err := s.fromSource(sctx, inScope, here, last != nil)
	if err != nil {
		if last == nil {
			return true, fmt.Errorf("source: %w", err)
		}
		s.log.Warn("the source can't be asked for group offsets before the stop: the newest ones known are taken", "err", err, "cause", errorCode(err))
		todo = s.remembered(inScope)
	}
	todo = append(todo, s.onlyHere(here)...)
	s.markActive(here, inScope)
	todo = slices.DeleteFunc(todo, func(name string) bool { return here[name].active })
	s.apply(ctx, todo, inScope, last != nil)
	if hereMissing != nil {
		s.log.Warn("not every broker of the destination lists its groups", "err", hereMissing)
	}
	if ctx.Err() != nil {
		return true, ctx.Err()
	}
	s.tellDone(last, began)
	return true, nil
}

func (s *groupSync) tellDone(last map[partKey]groupBounds, began time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if last == nil {
		s.done = s.now()
	}
	s.met.cycle.Set(s.now().Sub(began).Seconds())
}

// fromSource takes in the source's commits, and says which groups have
// something that is not settled.
func (s *groupSync) fromSource(ctx context.Context, scope func(*groupPart) bool, here map[string]listedGroup, last bool) (todo []string, err error) {
	meta, err := brokers(ctx, s.src.cl)
	var listed map[string]listedGroup
	var missing error
	if err == nil {
		listed, missing, err = s.src.list(ctx)
	}
	if err != nil {
		s.down = s.now()
		return nil, err
	}
	s.down = time.Time{}
	if id := s.source(); id != "" && id != meta.Cluster {
		return nil, fmt.Errorf("source.bootstrap leads to cluster %s, mirrored is %s: no group offsets are taken from it", meta.Cluster, id)
	}
	names := make([]string, 0, len(listed))
	var shares []string
	sort := func(name string, share bool) {
		if share {
			shares = append(shares, name)
		} else {
			names = append(names, name)
		}
	}
	s.mu.Lock()
	for name, l := range listed {
		if name == Group || !s.o.Filter.Match(name) {
			continue
		}
		if g := s.groups[name]; g != nil && g.share != l.share {
			delete(s.groups, name) // deleted, and another kind of group now
		}
		sort(name, l.share)
	}
	for name, g := range s.groups {
		if _, ok := listed[name]; ok {
			continue
		}
		if missing == nil {
			delete(s.groups, name) // deleted on the source, or expired: what is here stays
		} else {
			sort(name, g.share) // its coordinator may be the one that doesn't answer
		}
	}
	s.mu.Unlock()
	slices.Sort(names)
	slices.Sort(shares)
	if missing != nil {
		s.log.Warn("not every broker of the source lists its groups", "err", missing)
	}
	now := s.now()
	take := func(share bool, name string, ts []kmsg.OffsetFetchResponseGroupTopic, err error) {
		s.mu.Lock()
		defer s.mu.Unlock()
		if err != nil {
			g := s.group(name)
			g.share = share
			g.mark(sourceReason(err), err, now)
			if last && g.inScope(scope) { // what was known stays
				todo = append(todo, name)
			}
			return
		}
		g := s.groups[name]
		if g == nil {
			g = &group{name: name, share: share}
		}
		g.reason, g.err = 0, ""
		g.merge(ts, s.find, scope, s.cycles, now)
		if len(g.entries) == 0 {
			delete(s.groups, name) // nothing of what is mirrored
			return
		}
		s.groups[name] = g
		if g.unsettled(scope, now, here[name].active, last) {
			todo = append(todo, name)
		}
	}
	s.src.offsets(ctx, names, func(name string, ts []kmsg.OffsetFetchResponseGroupTopic, err error) { take(false, name, ts, err) })
	s.src.shareOffsets(ctx, shares, func(name string, ts []kmsg.OffsetFetchResponseGroupTopic, err error) { take(true, name, ts, err) })
	return todo, ctx.Err()
}

// unsettled marks what can't be synced now, and tells whether anything else is
// not in step.
func (g *group) unsettled(scope func(*groupPart) bool, now time.Time, active, all bool) bool {
	any := false
	for i := range g.entries {
		e := &g.entries[i]
		switch {
		case !scope(e.part):
		case e.part.reason != 0:
			e.mark(e.part.reason, now)
		case active:
		case all || !e.settled(now):
			any = true
		default:
			e.mark(GroupSynced, now)
		}
	}
	return any
}

// inScope tells whether anything of the group is.
func (g *group) inScope(scope func(*groupPart) bool) bool {
	return slices.ContainsFunc(g.entries, func(e groupEntry) bool { return scope(e.part) })
}

// restAll marks everything, when there is no partition to sync.
func (s *groupSync) restAll() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, g := range s.groups {
		g.entries = slices.DeleteFunc(g.entries, func(e groupEntry) bool { return e.part.gone })
		g.unsettled(func(*groupPart) bool { return true }, s.now(), false, false)
	}
}

func (s *groupSync) group(name string) *group {
	g := s.groups[name]
	if g == nil {
		g = &group{name: name}
		s.groups[name] = g
	}
	return g
}

// remembered are the groups with something in scope.
func (s *groupSync) remembered(scope func(*groupPart) bool) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []string
	for name, g := range s.groups {
		if g.inScope(scope) {
			out = append(out, name)
		}
	}
	return out
}

// onlyHere are the groups that the source doesn't have, when a log was cut in
// this cycle: their commits may stand above the cut (H13).
func (s *groupSync) onlyHere(here map[string]listedGroup) []string {
	cut := false
	for _, ps := range s.topics {
		for _, p := range ps {
			if p != nil && p.reason == 0 && p.cycle == s.cycles && (p.bounds.exact || p.cutNow()) {
				cut = true
			}
		}
	}
	if !cut {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []string
	for name, l := range here {
		if s.groups[name] == nil && !l.share && name != Group && s.o.Filter.Match(name) {
			out = append(out, name)
		}
	}
	return out
}

// markActive marks the groups that have members on the destination: they are
// left alone.
func (s *groupSync) markActive(here map[string]listedGroup, scope func(*groupPart) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	for name, g := range s.groups {
		if !here[name].active {
			continue
		}
		for i := range g.entries {
			if e := &g.entries[i]; scope(e.part) && e.part.reason == 0 {
				e.mark(GroupActive, now)
			}
		}
	}
}
