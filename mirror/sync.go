package mirror

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"golang.org/x/sync/errgroup"

	"github.com/lockstep-kafka/lockstep/epoch"
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
	poll   *poller
	wake   wakeChan // reconcile soon

	mu     sync.Mutex
	id     string                // cluster id of the source
	topics map[string]*topicSync // matching topics of the newest sync
	bare   map[string]bool       // topics that the source itself mirrors, read past its proxy
	err    error                 // of the newest sync as a whole
}

// topicSync is a topic as the newest sync left it.
type topicSync struct {
	source kadm.TopicDetail
	dest   *destTopic // nil: not ready
	err    error
	missed int // syncs in a row without it
}

func (s *source) run(ctx context.Context) error {
	tick := time.NewTicker(s.o.Refresh)
	defer tick.Stop()
	retry := s.o.RetryMin
	for ctx.Err() == nil {
		err := s.sync(ctx)
		if err == nil {
			err = s.reconcile(ctx)
		}
		s.setErr(err)
		var again <-chan time.Time
		if err != nil && ctx.Err() == nil {
			s.m.metrics.syncFailed(s.o.Name)
			s.log.Warn("sync of topics failed", "err", err, "in", retry)
			again = time.After(retry)
			retry = min(2*retry, s.o.Refresh)
		} else {
			retry = s.o.RetryMin
			if s.pending() {
				again = time.After(pendingPause)
			}
		}
	wait:
		for {
			select {
			case <-tick.C:
				break wait
			case <-again:
				break wait
			case <-s.wake: // ownership changed
				if s.pending() {
					break wait
				}
				if err := s.reconcile(ctx); err != nil && ctx.Err() == nil {
					s.log.Warn("partitions could not be started", "err", err)
					again = time.After(s.o.RetryMin)
				}
			case <-ctx.Done():
				break wait
			}
		}
	}
	return nil
}

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

// sync looks at the source's topics and makes the destination's fit. A topic
// that can't be mirrored is remembered with its reason; the others go on.
func (s *source) sync(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	meta, err := s.admin.src.BrokerMetadata(ctx)
	if err != nil {
		return fmt.Errorf("reach the source: %w", err)
	}
	found, err := s.admin.sourceTopics(ctx)
	if err != nil {
		return err
	}
	s.mu.Lock()
	if s.id != "" && s.id != meta.Cluster {
		s.mu.Unlock()
		return fmt.Errorf("the source's cluster id changed from %s to %s: is source.bootstrap right? Nothing is mirrored until it is %s again", s.id, meta.Cluster, s.id)
	}
	s.id = meta.Cluster
	old := s.topics
	s.mu.Unlock()
	bare, err := s.findBare(ctx)
	if err != nil {
		return err
	}
	names := sortedKeys(found)
	src, cfgErr := configs(ctx, s.admin.src, names...)
	if src == nil {
		return cfgErr
	}
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
			t.err = s.ensure(ctx, t, src[name], known, bare)
			s.report(name, old[name], t)
			return nil
		})
	}
	_ = g.Wait()
	// A topic that is missing may be a broker's outdated metadata: only two
	// syncs in a row mean something (facts §7).
	for name, t := range old {
		if next[name] == nil && t.missed == 0 && s.admin.filter.Match(name) {
			gone := *t
			gone.missed++
			next[name] = &gone
		}
	}
	s.mu.Lock()
	s.topics, s.bare = next, bare
	s.mu.Unlock()
	s.poll.refresh()
	return nil
}

func (s *source) ensure(ctx context.Context, t *topicSync, src, known topicConfigs, bare map[string]bool) error {
	name := t.source.Topic
	switch {
	case t.source.Err != nil:
		return topicFailed("source_topic", "topic %s can't be used on the source: %w", name, t.source.Err)
	case bare[name]:
		return topicFailed(reasonBareMirror, "topic %s: %w", name, ErrBareMirror)
	case src == nil:
		return topicFailed("describe_configs", "the configs of topic %s can't be read on the source: grant DescribeConfigs on it", name)
	}
	if was := s.recordedSource(name); was != "" && was != s.cluster() {
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
		if err := s.admin.mustBeEmpty(ctx, name); err != nil {
			return err
		}
	}
	// The ledger knows each partition before the topic is created: no client
	// may ever take the topic for an ordinary one and see physical offsets.
	if err := s.records(ctx, t); err != nil {
		return err
	}
	d, err := s.admin.ensure(ctx, t.source, src, known, have)
	if err != nil {
		return err
	}
	t.dest = d
	return nil
}

// errPending: another instance has not written its partitions' records yet, or
// nobody owns their ledger partitions for now.
var errPending = errors.New("waiting for the ledger records of all partitions")

// records writes the missing records of the partitions that are ours. All must
// be there, whoever writes them.
func (s *source) records(ctx context.Context, t *topicSync) error {
	name := t.source.Topic
	for p := range int32(len(t.source.Partitions)) {
		if s.m.opts.View.Partition(name, p) != nil {
			continue
		}
		if !s.m.owned.has(ledger.PartitionOf(name, p)) {
			return errPending
		}
		if err := s.record(ctx, partKey{name, p}, t); err != nil {
			return err
		}
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
	if p := s.m.opts.View.Partition(topic, 0); p != nil && p.Record != nil {
		return p.Record.Mirror
	}
	return ""
}

// recordedSource is the source cluster that the ledger names for a topic.
func (s *source) recordedSource(topic string) string {
	if p := s.m.opts.View.Partition(topic, 0); p != nil && p.Record != nil {
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
	var te *topicError
	reason := "sync"
	if errors.As(now.err, &te) {
		reason = te.reason
	}
	switch {
	case now.err != nil && (before == nil || before.Error() != now.err.Error()):
		s.log.Error("topic can't be mirrored", "topic", name, "reason", reason, "err", now.err)
	case now.err == nil && before != nil:
		s.log.Info("topic can be mirrored again", "topic", name)
	}
	s.m.metrics.topicFailed(s.o.Name, name, reason, now.err != nil)
}

// findBare lists topics that the source itself mirrors while we read it past
// its proxy (hazard H18): physical offsets there are not the topic's own.
func (s *source) findBare(ctx context.Context) (map[string]bool, error) {
	addr, err := s.anyBroker(ctx)
	if err != nil {
		return nil, err
	}
	conn, err := s.o.Source.Dialer.Dial(ctx, addr)
	if err != nil {
		return nil, fmt.Errorf("reach the source: %w", err)
	}
	lockstep := conn.IsLockstep()
	_ = conn.Close()
	if lockstep {
		return map[string]bool{}, nil
	}
	ts, err := s.admin.src.ListTopics(ctx, ledger.Topic)
	if t := ts[ledger.Topic]; err == nil {
		err = t.Err
	}
	switch {
	case errors.Is(err, kerr.UnknownTopicOrPartition):
		return map[string]bool{}, nil
	case err != nil: // unreadable is not absent (hazard M5)
		return nil, fmt.Errorf("look for a ledger on the source (needs Describe and Read on topic %s there, to tell mirrors from topics): %w", ledger.Topic, err)
	}
	return ledgerTopics(ctx, s.o.Source.Client, s.log)
}

func (s *source) anyBroker(ctx context.Context) (string, error) {
	c, err := cluster(ctx, s.admin.src, []string{ledger.Topic})
	if err != nil {
		return "", err
	}
	for _, addr := range c.Brokers {
		return addr, nil
	}
	return "", errors.New("the source lists no broker")
}

// ledgerTopics reads a ledger once, to its end.
func ledgerTopics(ctx context.Context, client []kgo.Opt, log *slog.Logger) (map[string]bool, error) {
	v := ledger.NewView(ledger.ViewOptions{Client: client, Logger: log})
	vctx, cancel := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() { done <- v.Run(vctx) }()
	err := v.WaitReady(vctx)
	topics := map[string]bool{}
	for t := range v.Topics() {
		topics[t] = true
	}
	cancel()
	if e := <-done; err == nil {
		err = e
	}
	if err != nil {
		return nil, fmt.Errorf("the source has a ledger (%s) that can't be read, so it can't be told which of its topics are mirrors: %w", ledger.Topic, err)
	}
	return topics, nil
}

// wanted is what should run here: partitions of ready topics whose ledger
// partition is ours.
func (s *source) wanted() map[partKey]*topicSync {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := map[partKey]*topicSync{}
	for name, t := range s.topics {
		if t.dest == nil || s.bare[name] {
			continue
		}
		for p := range int32(len(t.source.Partitions)) {
			if s.m.owned.has(ledger.PartitionOf(name, p)) {
				out[partKey{name, p}] = t
			}
		}
	}
	return out
}

// reconcile starts and stops partitions so that what is wanted runs.
func (s *source) reconcile(ctx context.Context) error {
	want := s.wanted()
	var g errgroup.Group
	g.SetLimit(reconcilers)
	var mu sync.Mutex
	var errs []error
	for k, t := range want {
		if s.engine.Partition(k.topic, k.partition) != nil {
			continue
		}
		g.Go(func() error {
			if err := s.adopt(ctx, k, t); err != nil {
				mu.Lock()
				errs = append(errs, fmt.Errorf("%s: %w", k, err))
				mu.Unlock()
				return nil
			}
			s.engine.Add(Spec{Topic: k.topic, Partition: k.partition, Compacted: t.dest.compacted})
			return nil
		})
	}
	for _, p := range s.engine.all() {
		if want[partKey{p.topic, p.partition}] == nil {
			g.Go(func() error { s.stop(ctx, p.topic, p.partition); return nil })
		}
	}
	_ = g.Wait()
	s.poll.refresh()
	s.m.dest.refresh()
	return errors.Join(errs...)
}

// stopAll ends the partitions of some ledger partitions.
func (s *source) stopAll(ctx context.Context, lps map[int32]bool) {
	var g errgroup.Group
	g.SetLimit(reconcilers)
	for _, p := range s.engine.all() {
		if lps[ledger.PartitionOf(p.topic, p.partition)] {
			g.Go(func() error { s.stop(ctx, p.topic, p.partition); return nil })
		}
	}
	_ = g.Wait()
}

// reconcilers is how many partitions are started or stopped at once.
const reconcilers = 16

// record writes the first record of a partition, of which nothing is shown
// until a first generation is in it.
func (s *source) record(ctx context.Context, k partKey, t *topicSync) error {
	id := s.cluster()
	lineage := make([]byte, 16)
	_, _ = rand.Read(lineage)
	return s.m.owned.Put(ctx, &ledger.Record{
		Mirror: s.o.Name, Topic: k.topic, Partition: k.partition,
		State: epoch.StateLogAlignment, Desired: epoch.StateMirroring, StateEpoch: 1,
		Lineage:       hex.EncodeToString(lineage),
		SourceTopicID: ledger.ID(t.source.ID), SourceCluster: id, Path: []string{id},
	})
}

// adopt binds a partition's record to the destination topic, once.
func (s *source) adopt(ctx context.Context, k partKey, t *topicSync) error {
	e := s.m.opts.View.Partition(k.topic, k.partition)
	if e == nil {
		return errPending
	}
	switch {
	case e.Record == nil: // can't be read: the engine reports it
		return nil
	case !e.Record.TopicID.IsZero() || t.dest.id == (kadm.TopicID{}):
		return nil
	}
	r := e.Record.Next()
	r.TopicID = ledger.ID(t.dest.id)
	return s.m.owned.Put(ctx, r)
}

// releaseTime is how long a partition may take to finish what is in flight.
const releaseTime = 3 * time.Second

// stop ends a partition and writes its last checkpoint.
func (s *source) stop(ctx context.Context, topic string, partition int32) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseTime)
	defer cancel()
	cp, ok := s.engine.Remove(ctx, topic, partition)
	if !ok || !s.m.owned.has(ledger.PartitionOf(topic, partition)) {
		return
	}
	if err := s.m.owned.checkpoint(ctx, []ledger.Checkpoint{cp}); err != nil {
		s.log.Warn("last checkpoint not written: the next owner re-reads the tail", "topic", topic, "partition", partition, "err", err)
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
