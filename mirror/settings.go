package mirror

import (
	"context"
	"fmt"
	"regexp"
	"time"
)

// uncleanRule says what the configuration wants for some topics; the last that
// matches counts.
type uncleanRule struct {
	topics *regexp.Regexp // nil: all
	on     bool
}

// SetUnclean switches the support for unclean leader elections of a mirror's
// source, for topics that match an expression ("": all), from now on. What
// verbs have said stands above it.
func (m *Manager) SetUnclean(mirror, topics string, on bool) error {
	s := m.source(mirror)
	if s == nil {
		return fmt.Errorf("no mirror %q", mirror)
	}
	return s.setUnclean(topics, on)
}

func (s *source) setUnclean(topics string, on bool) error {
	r := uncleanRule{on: on}
	if topics != "" {
		re, err := regexp.Compile(`\A(?:` + topics + `)\z`)
		if err != nil {
			return fmt.Errorf("topic expression %q: %w", topics, err)
		}
		r.topics = re
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if r.topics == nil {
		s.rules = nil
	}
	s.rules = append(s.rules, r)
	return nil
}

// unclean tells whether unclean leader elections of the source are followed for
// a topic.
func (s *source) unclean(topic string) bool {
	if f := s.m.opts.Unclean; f != nil {
		return f(s.o.Name, topic)
	}
	s.mu.Lock()
	on := false
	for _, r := range s.rules {
		if r.topics == nil || r.topics.MatchString(topic) {
			on = r.on
		}
	}
	s.mu.Unlock()
	return s.m.opts.View.MirrorSettings(s.o.Name).Unclean(topic, on)
}

// deleted tells whether a verb has deleted the mirror: it mirrors nothing.
func (s *source) deleted() bool {
	ms := s.m.opts.View.MirrorSettings(s.o.Name)
	return ms != nil && ms.Deleted
}

// clusters are the ids of destination and source, "" while not known.
func (s *source) clusters() (self, source string) { return s.m.self(), s.cluster() }

func (m *Manager) self() string {
	if id := m.cluster.Load(); id != nil {
		return *id
	}
	return ""
}

// learnCluster asks for the destination's cluster id until it is known.
func (m *Manager) learnCluster(ctx context.Context) error {
	for ctx.Err() == nil {
		meta, err := brokers(ctx, m.client)
		if err == nil && meta.Cluster != "" {
			m.cluster.Store(&meta.Cluster)
			close(m.learned)
			return nil
		}
		if err != nil && ctx.Err() == nil {
			m.log.Warn("the destination can't be asked for its cluster id", "err", err, "cause", errorCode(err))
		}
		pause(ctx, time.Second)
	}
	return nil
}

func (s *source) setLife(ctx context.Context) {
	s.led.mu.Lock()
	s.life = ctx
	s.led.mu.Unlock()
}

func (s *source) setBare(bare map[string]bool) {
	s.mu.Lock()
	s.bare = bare
	s.mu.Unlock()
}

// PartitionStatus is what one instance knows of a partition that runs there.
type PartitionStatus struct {
	Mirror    string
	Topic     string
	Partition int32
	Status
}

// Partitions are those that run on this instance.
func (m *Manager) Partitions() []PartitionStatus {
	var out []PartitionStatus
	for _, e := range m.engines() {
		for _, p := range e.all() {
			out = append(out, PartitionStatus{Mirror: e.Mirror, Topic: p.topic, Partition: p.partition, Status: p.Status()})
		}
	}
	return out
}
