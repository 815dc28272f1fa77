package mirror

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"golang.org/x/sync/errgroup"

	"github.com/lockstep-kafka/lockstep/internal/kconn"
	"github.com/lockstep-kafka/lockstep/internal/ledger"
)

// source is one mirror at work: its engine, and which topics it mirrors.
type source struct {
	o      MirrorOptions
	m      *Manager
	log    *slog.Logger
	client *kgo.Client
	admin  *topicAdmin
	engine *Engine
	groups *groupSync // nil: off
	poll   *poller
	wake   wakeChan        // reconcile soon
	resync wakeChan        // look at the topics soon
	gained wakeChan        // ledger partitions may have become ours
	ahead  chan lookResult // a look from before the ledger was read
	life   context.Context // of Manager.Run; nil before
	led    sourceLedger
	reach  reach

	mu     sync.Mutex
	id     string                // cluster id of the source
	topics map[string]*topicSync // matching topics of the newest sync
	left   map[string]string     // those that are included and left out all the same, with the reason
	rules  []uncleanRule
	bare   map[string]bool // topics that the source itself mirrors, read past its proxy
	err    error           // of the newest sync as a whole
	synced time.Time       // when the newest one that went well began
}

// topicSync is a topic as the newest sync left it.
type topicSync struct {
	source kadm.TopicDetail
	dest   *destTopic // nil: not ready
	err    error
	missed time.Time      // when the newest look began, if that was the first without it
	taken  map[int32]bool // partitions that held records before they had a ledger record
}

// run keeps the topics in sync, and what runs here as it should. The two don't
// wait for one another: a stop must work while the source is dead.
func (s *source) run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return s.syncs(ctx) })
	g.Go(func() error {
		for ctx.Err() == nil {
			var again <-chan time.Time
			if err := errors.Join(s.stopExcluded(ctx), s.reconcile(ctx)); err != nil && ctx.Err() == nil {
				s.log.Warn("partitions could not be started", "err", err)
				again = time.After(s.o.RetryMin)
			}
			select {
			case <-s.wake:
			case <-again:
			case <-ctx.Done():
			}
		}
		return nil
	})
	return g.Wait()
}

func (s *source) syncs(ctx context.Context) error {
	select {
	case <-s.m.learned: // else a source that is the destination itself would not be noticed
	case <-ctx.Done():
		return nil
	}
	tick := time.NewTicker(s.o.Refresh)
	defer tick.Stop()
	retry := s.o.RetryMin
	var last lookResult // what serves the next sync too
	select {
	case last = <-s.ahead:
	case <-ctx.Done():
		return nil
	}
	for ctx.Err() == nil {
		if last.err == nil && (last.sourceLook == nil || time.Since(last.began) > lookGood) {
			last = s.looks(ctx)
		}
		err := last.err
		if err == nil {
			err = s.sync(ctx, last.sourceLook)
		}
		s.setErr(err)
		s.wake.wake()
		var again <-chan time.Time
		pending := false
		switch {
		case err != nil && ctx.Err() == nil:
			s.m.metrics.syncFailed(s.o.Name)
			if cause := kconn.Name(err); cause != "other" {
				s.engine.Metrics.dials.WithLabelValues(s.o.Name, "source", cause).Inc()
			}
			s.reached(err)
			s.log.Warn("sync of topics failed", "err", err, "cause", errorCode(err), "in", retry)
			again = time.After(retry)
			retry = min(2*retry, s.o.Refresh)
		default:
			s.reached(nil)
			retry = s.o.RetryMin
			if pending = s.pending(); pending {
				again = time.After(pendingPause)
			}
		}
		gained := false
		select {
		case <-tick.C:
		case <-again:
			gained = true
		case <-s.gained:
			gained = true
		case <-s.resync:
		case <-ctx.Done():
		}
		if !pending || !gained {
			last = lookResult{}
		}
	}
	return nil
}

// syncLimit is how long a look at the source may take, and what comes of it.
const syncLimit = 2 * time.Minute

// pendingPause is how soon a topic that waits for other instances' records is
// looked at again.
const pendingPause = 500 * time.Millisecond

// pending tells whether a topic waits for ledger records.
func (s *source) pending() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, t := range s.topics {
		if errors.Is(t.err, errPending) {
			return true
		}
	}
	return false
}

// sync makes the destination's topics fit what the source was found to have. A
// topic that can't be mirrored is remembered with its reason; the others go on.
func (s *source) sync(ctx context.Context, l *sourceLook) error {
	ctx, cancel := context.WithTimeout(ctx, syncLimit)
	defer cancel()
	found, left := l.found, l.left
	if s.deleted() {
		clear(found)
		clear(left)
	}
	s.mu.Lock()
	if s.id != "" && s.id != l.cluster {
		s.mu.Unlock()
		return fmt.Errorf("the source's cluster id changed from %s to %s: is source.bootstrap right? Nothing is mirrored until it is %s again", s.id, l.cluster, s.id)
	}
	if self := s.m.self(); self == l.cluster && self != "" {
		s.mu.Unlock()
		return fmt.Errorf("source and destination are the same cluster (%s): correct source.bootstrap; nothing is mirrored until then", self)
	}
	s.id = l.cluster
	old := s.topics
	s.mu.Unlock()
	bare, src := l.bare, l.configs
	s.setBare(bare)
	if time.Since(l.began) < metadataEvery { // else a topic may have been made anew since, and be taken for the one before
		s.engine.firstSource(l.meta)
	}
	names := sortedKeys(found)
	known, err := s.m.knownConfigs(ctx)
	if err != nil {
		return err
	}
	next := make(map[string]*topicSync, len(found))
	var g errgroup.Group
	g.SetLimit(reconcilers)
	for _, name := range names {
		t := &topicSync{source: found[name]}
		next[name] = t
		if prev := old[name]; prev != nil && prev.err == nil && prev.dest != nil {
			t.dest = prev.dest // what runs goes on while this sync has trouble with it
		}
		g.Go(func() error {
			t.err = s.ensure(ctx, t, src[name], known, bare, l.listed)
			s.report(name, old[name], t)
			return nil
		})
	}
	_ = g.Wait()
	// A topic that is missing may be one that may not be described any more, or a
	// broker's outdated metadata: only two looks in a row mean something (facts §7).
	if err := s.missing(ctx, old, next); err != nil {
		return err
	}
	for name, t := range old {
		if next[name] == nil && (t.missed.IsZero() || t.missed.Equal(l.began)) && !s.deleted() && s.admin.filter.Match(name) {
			gone := *t
			gone.missed = l.began
			next[name] = &gone
		}
	}
	for name, t := range old {
		if next[name] == nil && t.err != nil {
			s.m.metrics.topicFailed(s.o.Name, name, "", false)
		}
	}
	s.mu.Lock()
	s.topics, s.left, s.synced = next, left, l.began
	s.mu.Unlock()
	s.findLoops()
	s.poll.refresh()
	return nil
}

// missing asks for topics by name that the source doesn't list any more: those
// that Lockstep's user may not describe go on as far as they can, and are named.
func (s *source) missing(ctx context.Context, old, next map[string]*topicSync) error {
	var names []string
	for name := range old {
		if next[name] == nil && !s.deleted() && s.admin.filter.Match(name) {
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		return nil
	}
	ts, err := topicDetails(ctx, s.client, names)
	if err != nil {
		return fmt.Errorf("look up topics of the source that it does not list any more: %w", err)
	}
	for _, name := range names {
		if !errors.Is(ts[name].Err, kerr.TopicAuthorizationFailed) {
			continue
		}
		now := *old[name]
		now.missed = time.Time{}
		now.err = topicFailed("authorization", "topic %s can't be looked up on the source any more (needs Describe and Read on it): %w", name, ts[name].Err)
		next[name] = &now
		s.report(name, old[name], &now)
	}
	return nil
}

func (s *source) ensure(ctx context.Context, t *topicSync, src, known topicConfigs, bare map[string]bool, listed time.Time) error {
	name := t.source.Topic
	switch {
	case t.source.Err != nil:
		return topicFailed("source_topic", "topic %s can't be used on the source: %w", name, t.source.Err)
	case bare[name]:
		return topicFailed(reasonBareMirror, "topic %s: %w", name, ErrBareMirror)
	case src == nil:
		return topicFailed("describe_configs", "the configs of topic %s can't be read on the source: grant DescribeConfigs on it", name)
	}
	if was := s.recordedSource(name); was != "" && s.cluster() != was {
		return topicFailed("source_cluster_changed", "topic %s was mirrored from cluster %s, source.bootstrap leads to cluster %s: correct it, or start the topic anew", name, was, s.cluster())
	}
	if by := s.mirroredBy(name); by != "" && by != s.o.Name {
		return topicFailed("two_mirrors", "topic %s is mirrored by %q already: exclude it from one of the two", name, by)
	}
	have, err := s.admin.destination(ctx, name)
	if err != nil {
		return err
	}
	began := s.begun(name)
	if have == nil && began {
		return topicFailed("destination_topic_deleted", "topic %s was deleted on the destination: its mirrored records are gone; restore it, or delete the mirror's records of it, then start again", name)
	}
	if have != nil && !began {
		if began, err = s.ownOrTaken(ctx, t, have, listed); err != nil {
			return err
		}
	}
	if have != nil && s.rested(name) {
		t.dest, err = s.admin.destinationOnly(ctx, have)
		return err
	}
	// The ledger knows each partition before the topic is created: no client
	// may ever take the topic for an ordinary one and see physical offsets.
	if err := s.records(ctx, t); err != nil {
		return err
	}
	wish := destWish{
		topic: name, partitions: len(t.source.Partitions), compacted: compacted(src),
		keepsTombs: time.Duration(number(src["delete.retention.ms"].value)) * time.Millisecond,
		configs: func(now topicConfigs) (map[string]string, error) {
			want := wantedConfigs(src, known, s.admin.rules)
			if len(s.m.held(name)) > 0 { // its owner changes them, and puts them back
				for k := range cleanerHold() {
					delete(want, k)
					if e := now[k]; e.dynamic {
						want[k] = e.value
					}
				}
			}
			return want, s.roomForDead(ctx, name, len(t.source.Partitions), src, now, want)
		},
		keep: func(ctx context.Context, set map[string]string) error {
			return s.m.opts.Writer.PutTopicConfigs(ctx, name, set)
		},
	}
	if began { // else the memory is of another topic of that name
		wish.set = s.m.opts.View.TopicConfigs(name)
	}
	d, err := s.admin.ensure(ctx, wish, have)
	if err != nil {
		return err
	}
	t.dest = d
	return nil
}

// errPending: another instance has not written its partitions' records yet, or
// nobody owns their ledger partitions for now, or something else that is about
// to be known.
var errPending = errors.New("waiting for the ledger records of all partitions")

// records writes the missing records of the partitions that are ours. All must
// be there, whoever writes them.
func (s *source) records(ctx context.Context, t *topicSync) error {
	name := t.source.Topic
	var missing []int32
	for p := range int32(len(t.source.Partitions)) {
		if s.m.opts.View.Partition(name, p) == nil {
			missing = append(missing, p)
		}
	}
	pending := false
	var first []*ledger.Record
	for _, p := range missing {
		if !s.m.owned.has(ledger.PartitionOf(name, p)) {
			pending = true // the others' are not held up by it
			continue
		}
		first = append(first, s.record(partKey{name, p}, t))
	}
	for _, err := range s.m.owned.PutAll(ctx, first) {
		if err != nil {
			return err
		}
	}
	if pending {
		return errPending
	}
	return nil
}

// begun tells whether mirroring of a topic has got as far as creating it: from
// then on its destination topic is ours.
func (s *source) begun(topic string) bool {
	for p := int32(0); ; p++ {
		e := s.m.opts.View.Partition(topic, p)
		if e == nil {
			return false
		}
		if e.Err != nil || e.Record != nil && (!e.Record.TopicID.IsZero() || len(e.Record.Log.Spans) > 0) {
			return true
		}
	}
}

// mirroredBy is the mirror that the ledger names for a topic.
func (s *source) mirroredBy(topic string) string {
	if p := s.m.opts.View.Partition(topic, 0); bound(p) {
		return p.Record.Mirror
	}
	return ""
}

// recordedSource is the source cluster that the ledger names for a topic.
func (s *source) recordedSource(topic string) string {
	if p := s.m.opts.View.Partition(topic, 0); bound(p) {
		return p.Record.SourceCluster
	}
	return ""
}

func (s *source) cluster() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.id
}

// report logs a topic's trouble once, and its end.
func (s *source) report(name string, old, now *topicSync) {
	if errors.Is(now.err, errPending) {
		return
	}
	var before error
	if old != nil {
		before = old.err
	}
	reason := topicReason(now.err)
	switch {
	case now.err != nil && before != nil && before.Error() == now.err.Error():
	case elsewhere(now.err):
		s.log.Info("topic is not mirrored", "topic", name, "why", now.err)
	case now.err != nil:
		s.log.Error("topic can't be mirrored", "topic", name, "reason", reason, "err", now.err)
	case now.err == nil && before != nil:
		s.log.Info("topic can be mirrored", "topic", name)
	}
	s.m.metrics.topicFailed(s.o.Name, name, reason, now.err != nil && !elsewhere(now.err))
}
