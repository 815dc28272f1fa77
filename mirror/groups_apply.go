package mirror

import (
	"context"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
	"golang.org/x/sync/errgroup"
)

// groupJob is what has to be committed for one group.
type groupJob struct {
	g      *group
	places []int // in g.entries
	list   []groupCommit
}

// apply compares groups with the destination and commits what is not in step,
// with one request for each group.
func (s *groupSync) apply(ctx context.Context, names []string, scope func(*groupPart) bool, last bool) {
	for ; len(names) > 0; names = names[min(groupsAtOnce, len(names)):] {
		s.applyTo(ctx, names[:min(groupsAtOnce, len(names))], scope, last)
	}
}

// groupsAtOnce bounds the commits that wait to be sent.
const groupsAtOnce = 1000

func (s *groupSync) applyTo(ctx context.Context, names []string, scope func(*groupPart) bool, last bool) {
	var jobs []groupJob
	names, shares := s.byKind(names)
	s.dst.offsets(ctx, names, func(name string, ts []kmsg.OffsetFetchResponseGroupTopic, err error) {
		s.mu.Lock()
		defer s.mu.Unlock()
		g := s.groups[name]
		if g == nil {
			g = &group{name: name} // of the destination alone
		}
		if err != nil {
			g.each(scope, func(e *groupEntry) { e.mark(commitReason(err), s.now()) })
			g.err = err.Error()
			return
		}
		if j := s.decide(g, ts, scope, last); len(j.list) > 0 {
			jobs = append(jobs, j)
		}
	})
	jobs = append(jobs, s.applyShares(ctx, shares, scope, last)...)
	var g errgroup.Group
	g.SetLimit(groupCommits)
	for _, j := range jobs {
		g.Go(func() error { s.commit(ctx, j, last); return nil })
	}
	_ = g.Wait()
}

func (g *group) each(scope func(*groupPart) bool, f func(*groupEntry)) {
	for i := range g.entries {
		if e := &g.entries[i]; scope(e.part) && e.part.reason == 0 {
			f(e)
		}
	}
}

// decide compares a group with what stands on the destination. mu is held.
func (s *groupSync) decide(g *group, ts []kmsg.OffsetFetchResponseGroupTopic, scope func(*groupPart) bool, last bool) groupJob {
	now := s.now()
	type standing struct {
		groupOffset
		meta *string
		code int16
	}
	found := make(map[*groupPart]standing, len(g.entries))
	for i := range ts {
		for j := range ts[i].Partitions {
			a := &ts[i].Partitions[j]
			if p := s.find(ts[i].Topic, a.Partition); p != nil && scope(p) && p.reason == 0 {
				found[p] = standing{groupOffset{a.Offset, a.LeaderEpoch}, a.Metadata, a.ErrorCode}
			}
		}
	}
	if s.groups[g.name] == nil {
		for p := range found {
			g.entries = append(g.entries, groupEntry{part: p, src: noOffset, looked: s.cycles - 1, since: now.Unix()})
		}
	}
	j := groupJob{g: g}
	for i := range g.entries {
		e := &g.entries[i]
		p := e.part
		if !scope(p) || p.reason != 0 || !last && (e.reason == GroupDenied || e.reason == GroupNoAnswer) {
			continue
		}
		at, ok := found[p]
		switch {
		case !ok:
			at.groupOffset = noOffset
		case at.code != 0:
			e.mark(GroupDeniedHere, now)
			continue
		}
		e.dst = at.groupOffset
		var before *syncedOffset
		if e.ours {
			before = &e.last
		}
		cut := p.cut(e.looked, e.dst)
		if g.share {
			cut = -1 // where it is was found in the log as it is now: never above a cut
		}
		d := decideGroup(e.src, e.dst, before, &p.bounds, cut)
		if g.share && d.commit {
			d.to.epoch = -1
			d.commit = d.to != e.dst
		}
		text := e.text
		if text == nil && e.meta == metaHash(at.meta) {
			text = at.meta
		}
		if d.reason == GroupSynced && !d.commit && !g.share { // share groups' don't expire
			stale := e.ours && now.Unix()-e.written >= int64(groupRewrite/time.Second)
			if metaHash(at.meta) != e.meta && e.text != nil || stale {
				d.commit = true
			}
		}
		if !d.commit {
			e.looked = s.cycles
			e.mark(d.reason, now)
			if d.reason == GroupSynced {
				e.inStep(now, d.to)
			}
			continue
		}
		j.places = append(j.places, i)
		j.list = append(j.list, groupCommit{p.partKey, d.to, text})
	}
	return j
}

// inStep notes that what stands on the destination is what the source's commit
// comes to.
func (e *groupEntry) inStep(now time.Time, dst groupOffset) {
	e.dst, e.ours, e.text = dst, true, nil
	e.last = syncedOffset{e.src, dst}
	e.checked = now.Unix()
	if e.written == 0 {
		e.written = e.checked
	}
	e.mark(GroupSynced, now)
}

// commit writes what was decided, of what may still be written.
func (s *groupSync) commit(ctx context.Context, j groupJob, last bool) {
	var list []groupCommit
	var places []int
	for i, c := range j.list {
		if s.mine(c.partKey, last) {
			list, places = append(list, c), append(places, j.places[i])
		}
	}
	if len(list) == 0 || ctx.Err() != nil {
		return
	}
	errs := s.send(ctx, j.g, list)
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	var failed error
	for i, err := range errs {
		e := &j.g.entries[places[i]]
		if err == nil {
			e.looked = s.cycles
			e.written = now.Unix()
			e.inStep(now, list[i].groupOffset)
			continue
		}
		r := commitReason(err)
		e.mark(r, now)
		if r != GroupActive {
			failed = err
		}
	}
	s.met.commits.Inc()
	j.g.err = ""
	if failed != nil {
		j.g.err = failed.Error()
		s.met.errors.WithLabelValues(s.met.mirror, errorCode(failed)).Inc()
		s.log.Warn("group offsets not committed on the destination", "group", j.g.name, "reason", commitReason(failed), "err", failed)
	}
}
