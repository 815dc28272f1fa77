package mirror

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"golang.org/x/sync/errgroup"

	"github.com/lockstep-kafka/lockstep/epoch"
	"github.com/lockstep-kafka/lockstep/internal/ledger"
)

// plan is how a partition should run here.
type plan struct {
	topic *topicSync // nil: only the ledger knows it
	idle  bool       // obeys, is stopped and watched, not mirrored
}

// fits tells whether p runs as it should. A change between delete and compact
// begins with a look at the log (nowCompacted).
func (w plan) fits(p *Partition) bool {
	return w.idle == p.idleOnly && (w.topic == nil || w.topic.dest.compacted == p.compacted)
}

// wanted is what should run here, of what is ours: partitions of ready topics,
// and all that the ledger has of this mirror. The latter need no source: a stop
// must work when that is dead.
func (s *source) wanted() map[partKey]plan {
	out := map[partKey]plan{}
	s.each(func(k partKey, w plan) bool { out[k] = w; return true })
	return out
}

// each calls f for all that is wanted, in no order, until it says false.
func (s *source) each(f func(partKey, plan) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	mine := s.m.owned.mine()
	for name, t := range s.topics {
		if t.dest == nil || s.bare[name] {
			continue
		}
		for p := range int32(len(t.source.Partitions)) {
			e := s.m.opts.View.Partition(name, p)
			if !mine[home(name, p, e)] {
				continue
			}
			if w, ok := s.plan(name, p, e); ok && !f(partKey{name, p}, w) {
				return
			}
		}
	}
	more := true
	s.m.opts.View.Each(func(e *ledger.Partition) {
		if !more || !mine[e.Home] {
			return
		}
		if w, ok := s.plan(e.Topic, e.Partition, e); ok && w.topic == nil {
			more = f(partKey{e.Topic, e.Partition}, w)
		}
	})
}

// home is the ledger partition of a partition, e if the ledger has it.
func home(topic string, p int32, e *ledger.Partition) int32 {
	if e != nil {
		return e.Home
	}
	return ledger.PartitionOf(topic, p)
}

// plan is how a partition of ours should run, by what the ledger has of it; ok
// is false when it should not. mu is held.
func (s *source) plan(topic string, p int32, e *ledger.Partition) (w plan, ok bool) {
	if t := s.topics[topic]; t != nil && t.dest != nil && !s.bare[topic] && int(p) < len(t.source.Partitions) &&
		(e == nil || e.Record == nil || e.Record.Mirror == s.o.Name) {
		return plan{topic: t}, true
	}
	if e == nil || !begunRecord(e) || e.Record.Mirror != s.o.Name {
		return plan{}, false
	}
	return plan{idle: true}, true
}

// begunRecord tells whether a record speaks of a destination topic that is
// there.
func begunRecord(e *ledger.Partition) bool {
	return e.Record != nil && (!e.Record.TopicID.IsZero() || len(e.Record.Log.Spans) > 0)
}

// reconcile starts and stops partitions so that what is wanted runs.
func (s *source) reconcile(ctx context.Context) error {
	want := s.wanted()
	var g errgroup.Group
	g.SetLimit(reconcilers)
	var mu sync.Mutex
	var errs []error
	for _, p := range s.engine.all() {
		if w, ok := want[partKey{p.topic, p.partition}]; !ok || !w.fits(p) {
			g.Go(func() error { s.m.stop(ctx, s.engine, p.topic, p.partition); return nil })
		}
	}
	_ = g.Wait()
	var starting errgroup.Group
	failed := func(k partKey, err error) {
		mu.Lock()
		defer mu.Unlock()
		errs = append(errs, fmt.Errorf("%s: %w", k, err))
	}
	look := s.m.compactions(ctx)
	groups := map[int32]map[partKey]*topicSync{} // by ledger partition: none waits for another
	idle := map[partKey]bool{}
	for k, w := range want {
		switch n := ledger.PartitionOf(k.topic, k.partition); {
		case s.engine.Partition(k.topic, k.partition) != nil:
		case w.topic == nil:
			idle[k] = true
		case groups[n] == nil:
			groups[n] = map[partKey]*topicSync{k: w.topic}
		default:
			groups[n][k] = w.topic
		}
	}
	for _, group := range groups {
		starting.Go(func() error { s.add(ctx, group, failed); return nil })
	}
	starting.Go(func() error {
		for k := range idle {
			if err := s.m.addIdle(s.engine, k, look); err != nil {
				failed(k, err)
			}
		}
		return nil
	})
	_ = starting.Wait()
	s.poll.refresh()
	s.m.dest.refresh()
	return errors.Join(errs...)
}

// add starts partitions whose records are in one ledger partition.
func (s *source) add(ctx context.Context, group map[partKey]*topicSync, failed func(partKey, error)) {
	start := func(k partKey) {
		d := group[k].dest
		s.engine.Add(Spec{Topic: k.topic, Partition: k.partition, Compacted: d.compacted, KeepsTombs: d.keepsTombs})
	}
	var adopted []partKey
	var records []*ledger.Record
	for k, t := range group {
		switch r, err := s.adopt(k, t); {
		case err != nil:
			failed(k, err)
		case r == nil:
			start(k)
		default:
			adopted, records = append(adopted, k), append(records, r)
		}
	}
	for i, err := range s.m.owned.PutAll(ctx, records) {
		if err != nil {
			failed(adopted[i], err)
			continue
		}
		start(adopted[i])
	}
}

// addIdle runs a partition that only the ledger knows.
func (m *Manager) addIdle(e *Engine, k partKey, look compactions) error {
	c, err := look(k.topic)
	if err != nil {
		return err
	}
	e.Add(Spec{Topic: k.topic, Partition: k.partition, Compacted: c, Idle: true})
	return nil
}

// compactions tells whether a topic of the destination is compacted.
type compactions func(topic string) (bool, error)

// compactions asks once for each topic.
func (m *Manager) compactions(ctx context.Context) compactions {
	var mu sync.Mutex
	looks := map[string]func() (bool, error){}
	return func(topic string) (bool, error) {
		mu.Lock()
		look := looks[topic]
		if look == nil {
			look = sync.OnceValues(func() (bool, error) {
				cs, err := configs(ctx, m.admin, topic)
				return compacted(cs[topic]), err
			})
			looks[topic] = look
		}
		mu.Unlock()
		return look()
	}
}

// names are the mirrors' that are configured.
func (m *Manager) names() map[string]bool {
	names := map[string]bool{}
	for _, s := range m.sources {
		names[s.o.Name] = true
	}
	return names
}

// kept tells whether a partition is one of a mirror that is not configured any
// more.
func (m *Manager) kept(e *ledger.Partition, names map[string]bool) bool {
	return begunRecord(e) && !names[e.Record.Mirror]
}

// keep runs the partitions of mirrors that are not configured any more: their
// STOPPED logs are watched all the same (H4), and can be stopped.
func (m *Manager) keep(ctx context.Context) {
	names := m.names()
	want := map[partKey]bool{}
	mine := m.owned.mine()
	m.opts.View.Each(func(e *ledger.Partition) {
		if mine[e.Home] && m.kept(e, names) {
			want[partKey{e.Topic, e.Partition}] = true
		}
	})
	for _, p := range m.keeper.all() {
		if !want[partKey{p.topic, p.partition}] {
			m.stop(ctx, m.keeper, p.topic, p.partition)
		}
	}
	added := false
	look := m.compactions(ctx)
	for k := range want {
		if m.keeper.Partition(k.topic, k.partition) != nil {
			continue
		}
		if err := m.addIdle(m.keeper, k, look); err != nil {
			m.log.Warn("partition not watched yet", "topic", k.topic, "partition", k.partition, "err", err)
			continue
		}
		added = true
	}
	if added {
		m.dest.refresh()
	}
}

// notice follows the ledger: commands for partitions that run here, and
// partitions that change hands between mirrors. It looks at what has changed;
// at all of it only now and then, as what is ours changes without the ledger.
func (m *Manager) notice(ctx context.Context) error {
	feed := m.opts.View.Feed()
	defer feed.Close()
	all := time.NewTicker(metadataEvery)
	defer all.Stop()
	look := true
	for ctx.Err() == nil {
		if look {
			for _, e := range m.engines() {
				e.Poke()
			}
			m.keep(ctx)
			for _, s := range m.sources {
				if s.stale() {
					s.wake.wake()
				}
			}
		} else {
			m.noticed(ctx, feed)
		}
		pause(ctx, noticePause)
		select {
		case <-all.C:
			look = true
		case <-feed.Wake():
			look = false
		case <-ctx.Done():
		}
	}
	return nil
}

// noticed looks at the partitions that have changed in the ledger.
func (m *Manager) noticed(ctx context.Context, feed *ledger.Feed) {
	mine, names := m.owned.mine(), m.names()
	keep := false
	feed.Take(func(topic string, partition int32, e *ledger.Partition) {
		k := partKey{topic, partition}
		for _, s := range m.sources {
			p := s.engine.Partition(topic, partition)
			if p != nil {
				p.poke()
			}
			if s.misfit(k, e, p, mine) {
				s.wake.wake()
			}
		}
		p := m.keeper.Partition(topic, partition)
		if p != nil {
			p.poke()
		}
		keep = keep || (p != nil) != (e != nil && mine[e.Home] && m.kept(e, names))
	})
	if keep {
		m.keep(ctx)
	}
}

// misfit tells whether a partition doesn't run as is wanted; p is what runs, nil
// for nothing.
func (s *source) misfit(k partKey, e *ledger.Partition, p *Partition, mine [ledger.Partitions]bool) bool {
	s.mu.Lock()
	w, ok := s.plan(k.topic, k.partition, e)
	s.mu.Unlock()
	if !ok || !mine[home(k.topic, k.partition, e)] {
		return p != nil
	}
	return p == nil || !w.fits(p)
}

// noticePause bounds how often a busy ledger is looked over.
const noticePause = 50 * time.Millisecond

// stale tells whether what runs is not what is wanted.
func (s *source) stale() (stale bool) {
	n := 0
	s.each(func(k partKey, w plan) bool {
		p := s.engine.Partition(k.topic, k.partition)
		stale = p == nil || !w.fits(p)
		n++
		return !stale
	})
	return stale || n != len(s.engine.all())
}

// engines are those of all mirrors, and the keeper.
func (m *Manager) engines() []*Engine {
	out := []*Engine{m.keeper}
	for _, s := range m.sources {
		out = append(out, s.engine)
	}
	return out
}

// stopAll ends the partitions of some ledger partitions. Their last checkpoints
// go together.
func (m *Manager) stopAll(ctx context.Context, e *Engine, lps map[int32]bool) {
	var g errgroup.Group
	g.SetLimit(reconcilers)
	var mu sync.Mutex
	var last []ledger.Checkpoint
	for _, p := range e.all() {
		if lps[ledger.PartitionOf(p.topic, p.partition)] {
			g.Go(func() error {
				if cp, ok := m.remove(ctx, e, p.topic, p.partition); ok {
					mu.Lock()
					defer mu.Unlock()
					last = append(last, cp)
				}
				return nil
			})
		}
	}
	_ = g.Wait()
	m.last(ctx, last)
}

// reconcilers is how many topics are looked at, or partitions stopped, at once.
const reconcilers = 16

// record is the first record of a partition, of which nothing is shown until a
// first generation is in it. A log that holds records already keeps the
// empty lineage, in which pairs of other clusters speak of it.
func (s *source) record(k partKey, t *topicSync) *ledger.Record {
	id := s.cluster()
	lineage := newLineage()
	if t.taken[k.partition] {
		lineage = ""
	}
	// A command of before (the topic was started anew) has been obeyed: it must
	// not stop the new mirror at once.
	cmd := s.m.opts.View.Command(k.topic, k.partition)
	var seq int64
	if cmd != nil && cmd.Desired != epoch.StateMirroring {
		seq = cmd.Seq
	}
	return &ledger.Record{
		CommandSeq: seq,
		Mirror:     s.o.Name, Topic: k.topic, Partition: k.partition,
		State: epoch.StateLogAlignment, Desired: epoch.StateMirroring, StateEpoch: 1,
		Lineage: lineage, DiscardLocal: cmd != nil && cmd.DiscardLocal,
		SourceTopicID: ledger.ID(t.source.ID), SourceCluster: id, Path: []string{id},
	}
}

// adopt is the record of a partition bound to the destination topic; nil when
// it is already.
func (s *source) adopt(k partKey, t *topicSync) (*ledger.Record, error) {
	e := s.m.opts.View.Partition(k.topic, k.partition)
	if e == nil {
		return nil, errPending
	}
	switch {
	case e.Record == nil: // can't be read: the engine reports it
		return nil, nil
	case !e.Record.TopicID.IsZero() || t.dest.id == (kadm.TopicID{}):
		return nil, nil
	}
	r := e.Record.Next()
	r.TopicID = ledger.ID(t.dest.id)
	return r, nil
}

// releaseTime is how long a partition may take to finish what is in flight.
const releaseTime = 3 * time.Second

// stop ends a partition and writes its last checkpoint.
func (m *Manager) stop(ctx context.Context, e *Engine, topic string, partition int32) {
	if cp, ok := m.remove(ctx, e, topic, partition); ok {
		m.last(ctx, []ledger.Checkpoint{cp})
	}
}

// remove ends a partition. ok: it has a last checkpoint, to be written here.
func (m *Manager) remove(ctx context.Context, e *Engine, topic string, partition int32) (cp ledger.Checkpoint, ok bool) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseTime)
	defer cancel()
	cp, ok = e.Remove(ctx, topic, partition)
	return cp, ok && m.owned.has(ledger.PartitionOf(topic, partition))
}

// last writes checkpoints of partitions that have ended.
func (m *Manager) last(ctx context.Context, cps []ledger.Checkpoint) {
	if len(cps) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseTime)
	defer cancel()
	if err := m.owned.checkpoint(ctx, cps); err != nil {
		m.log.Warn("last checkpoints not written: the next owner re-reads the tails", "partitions", len(cps), "err", err)
	}
}

// names are the topics whose metadata the engine needs.
func (s *source) names() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return sortedKeys(s.topics)
}

func (s *source) setErr(err error) {
	s.mu.Lock()
	s.err = err
	s.mu.Unlock()
}
