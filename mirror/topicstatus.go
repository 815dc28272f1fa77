package mirror

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/lockstep-kafka/lockstep/epoch"
	"github.com/lockstep-kafka/lockstep/internal/ledger"
)

// The states of a topic as a whole, when it isn't mirrored as its mirror wants.
const (
	TopicFailed     = "FAILED"     // refused, with the reason; tried again at each sync
	TopicExcluded   = "EXCLUDED"   // topics.include matches it, it is left out all the same
	TopicUnselected = "UNSELECTED" // mirrored once, topics.include matches it no more
)

// TopicStatus is a topic that isn't mirrored, and why.
type TopicStatus struct {
	Mirror, Topic string
	State         string
	Reason        string // the short word of a TopicFailed
	Text          string
}

// maxTopicRows bounds how many of them are listed.
const maxTopicRows = 1000

// Topics are the topics that aren't mirrored as this instance's newest syncs
// left them, those that failed first; left is how many more there are.
func (m *Manager) Topics() (rows []TopicStatus, left int) {
	for _, s := range m.sources {
		rows = append(rows, s.unmirrored()...)
	}
	rank := map[string]int{TopicFailed: 0, TopicUnselected: 1, TopicExcluded: 2}
	slices.SortFunc(rows, func(a, b TopicStatus) int {
		return cmp.Or(rank[a.State]-rank[b.State], cmp.Compare(a.Topic, b.Topic), cmp.Compare(a.Mirror, b.Mirror))
	})
	if left = len(rows) - maxTopicRows; left > 0 {
		return rows[:maxTopicRows], left
	}
	return rows, 0
}

func (s *source) unmirrored() []TopicStatus {
	var rows []TopicStatus
	add := func(topic, state, reason, text string) {
		rows = append(rows, TopicStatus{Mirror: s.o.Name, Topic: topic, State: state, Reason: reason, Text: text})
	}
	s.mu.Lock()
	for name, t := range s.topics {
		switch {
		case t.err == nil, errors.Is(t.err, errPending):
		case elsewhere(t.err):
			add(name, TopicExcluded, reasonLoop, t.err.Error())
		default:
			add(name, TopicFailed, topicReason(t.err), t.err.Error())
		}
	}
	for name, why := range s.left {
		add(name, TopicExcluded, "", why)
	}
	s.mu.Unlock()
	seen := ""
	for _, e := range s.m.opts.View.All() {
		if e.Topic == seen || !s.unselected(e.Record) {
			continue
		}
		seen = e.Topic
		add(e.Topic, TopicUnselected, "", "no expression of topics.include matches it any more: it is not mirrored and not writable; include it again, or `lockstep stop` it")
	}
	return rows
}

// unselected tells whether a partition stands still because topics.include
// matches its topic no more.
func (s *source) unselected(r *ledger.Record) bool {
	return r != nil && r.Mirror == s.o.Name && r.State != epoch.StateStopped && !s.admin.filter.Match(r.Topic) && !s.admin.filter.Excluded(r.Topic)
}

// Unselected tells whether a partition is of a topic that is listed as
// [TopicUnselected]: whatever its state says, nobody mirrors it.
func (m *Manager) Unselected(r *ledger.Record) bool {
	s := m.source(r.Mirror)
	return s != nil && s.unselected(r)
}

// topicReason is the short word for what a topic as a whole is refused for.
func topicReason(err error) string {
	var te *topicError
	if errors.As(err, &te) {
		return te.reason
	}
	return "sync"
}

// stopExcluded stops what is mirrored and matches topics.exclude now. It is a
// stop like an operator's: the topic is STOPPED, clients may write to it, and
// nothing but `lockstep start` mirrors it again.
func (s *source) stopExcluded(ctx context.Context) error {
	var cs []ledger.Command
	told := ""
	var excluded []*ledger.Partition
	mine := s.m.owned.mine()
	s.m.opts.View.Each(func(e *ledger.Partition) {
		if e.Record != nil && e.Record.Mirror == s.o.Name && mine[e.Home] && s.admin.filter.Excluded(e.Topic) {
			excluded = append(excluded, e)
		}
	})
	slices.SortFunc(excluded, func(a, b *ledger.Partition) int {
		return cmp.Or(cmp.Compare(a.Topic, b.Topic), cmp.Compare(a.Partition, b.Partition))
	})
	for _, e := range excluded {
		r := e.Record
		desired := cmp.Or(r.Desired, r.State)
		if c := e.Command; c != nil && c.Seq > r.CommandSeq {
			desired = cmp.Or(c.Desired, desired)
		}
		if desired == epoch.StateStopped {
			continue
		}
		if told != e.Topic {
			told = e.Topic
			s.log.Warn("topics.exclude matches a mirrored topic: it is stopped, clients may write to it then", "topic", e.Topic)
		}
		now := time.Now()
		c := ledger.Command{
			Mirror: r.Mirror, Topic: e.Topic, Partition: e.Partition, Desired: epoch.StateStopped,
			Seq: max(now.UnixMilli(), r.CommandSeq+1), By: "stop by topics.exclude", At: now.UTC(),
		}
		if e.Command != nil {
			c.Seq = max(c.Seq, e.Command.Seq+1)
		}
		cs = append(cs, c)
	}
	return s.m.opts.Writer.PutCommands(ctx, cs...)
}
