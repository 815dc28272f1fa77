package mirror

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/internal/ledger"
)

// The destination's cleaner keeps the later record of a key, dead or not, so it
// must leave a topic alone while live records lie in front of dead ones.
// min.compaction.lag.ms goes by the records' own timestamps, which mirrored
// ones brought along: it protects new records only. A dirty ratio of 1 is never
// exceeded; a log with records older than max.compaction.lag.ms is cleaned all
// the same, so that must be without end.

// Cleaner is what a partition asks of the destination's cleaner.
type Cleaner interface {
	// Was tells what the configs that Hold changes are on the topic itself ("":
	// not set), before another partition's Hold. nil: nothing can be held.
	Was(ctx context.Context, topic string) (map[string]string, error)
	// Hold keeps the cleaner off and returns when every broker goes by it.
	Hold(ctx context.Context, topic string) error
	// Release puts back what was. False: another partition of the topic still
	// needs the hold, nothing was done.
	Release(ctx context.Context, topic string, partition int32, was map[string]string) (bool, error)
}

type noCleaner struct{}

func (noCleaner) Was(context.Context, string) (map[string]string, error) { return nil, nil }
func (noCleaner) Hold(context.Context, string) error                     { return nil }
func (noCleaner) Release(context.Context, string, int32, map[string]string) (bool, error) {
	return true, nil
}

// cleanerHold keeps the cleaner off a topic.
func cleanerHold() map[string]string {
	return map[string]string{
		"min.cleanable.dirty.ratio": "1",
		"max.compaction.lag.ms":     strconv.FormatInt(math.MaxInt64, 10),
	}
}

// isHeld tells whether a topic's configs keep the cleaner off.
func isHeld(get func(key string) string) bool {
	for k, want := range cleanerHold() {
		have, err := strconv.ParseFloat(get(k), 64)
		if w, _ := strconv.ParseFloat(want, 64); err != nil || have < w {
			return false
		}
	}
	return true
}

// topicCleaner is the destination's.
type topicCleaner struct{ m *Manager }

func (t topicCleaner) Was(ctx context.Context, topic string) (map[string]string, error) {
	cs, err := configs(ctx, t.m.admin, topic)
	if err != nil {
		return nil, err
	}
	was := map[string]string{}
	for k := range cleanerHold() {
		if e := cs[topic][k]; e.dynamic {
			was[k] = e.value
		} else {
			was[k] = ""
		}
	}
	if isHeld(func(k string) string { return was[k] }) {
		for _, r := range t.m.held(topic) {
			return r.Cleaner, nil
		}
	}
	return was, nil
}

func (t topicCleaner) Hold(ctx context.Context, topic string) error {
	if err := t.alter(ctx, topic, cleanerHold()); err != nil {
		return err
	}
	ts, err := t.m.admin.ListTopics(ctx, topic)
	if err != nil {
		return fmt.Errorf("look up topic %s on the destination: %w", topic, err)
	}
	have := map[int32]bool{}
	for _, p := range ts[topic].Partitions {
		for _, b := range p.Replicas {
			have[b] = true
		}
		for _, b := range p.OfflineReplicas {
			delete(have, b) // it reads its configs before its log when it is back
		}
	}
	for b := range have {
		held, err := t.heldAt(ctx, b, topic)
		if err != nil {
			return err
		}
		if !held {
			return fmt.Errorf("broker %d does not yet go by %v of topic %s", b, cleanerHold(), topic)
		}
	}
	return nil
}

func (t topicCleaner) heldAt(ctx context.Context, broker int32, topic string) (bool, error) {
	q := kmsg.NewPtrDescribeConfigsRequest()
	r := kmsg.NewDescribeConfigsRequestResource()
	r.ResourceType, r.ResourceName, r.ConfigNames = kmsg.ConfigResourceTypeTopic, topic, sortedKeys(cleanerHold())
	q.Resources = append(q.Resources, r)
	resp, err := q.RequestWith(ctx, t.m.client.Broker(int(broker)))
	if err != nil {
		return false, fmt.Errorf("describe configs of topic %s at broker %d: %w", topic, broker, err)
	}
	have := map[string]string{}
	for _, r := range resp.Resources {
		if err := kerr.ErrorForCode(r.ErrorCode); err != nil {
			return false, fmt.Errorf("describe configs of topic %s (needs DescribeConfigs on it): %w", topic, err)
		}
		for _, c := range r.Configs {
			if c.Value != nil {
				have[c.Name] = *c.Value
			}
		}
	}
	return isHeld(func(k string) string { return have[k] }), nil
}

func (t topicCleaner) Release(ctx context.Context, topic string, partition int32, was map[string]string) (bool, error) {
	for _, r := range t.m.held(topic) {
		if r.Partition != partition && r.Shadow != nil {
			return false, nil
		}
	}
	return true, t.alter(ctx, topic, was)
}

// held are the records of a topic's partitions that hold the cleaner back.
func (m *Manager) held(topic string) (rs []*ledger.Record) {
	m.opts.View.EachOf(topic, func(e *ledger.Partition) {
		if e.Record != nil && e.Record.Cleaner != nil {
			rs = append(rs, e.Record)
		}
	})
	return rs
}

// alter sets configs of a topic; those with "" are given up.
func (t topicCleaner) alter(ctx context.Context, topic string, to map[string]string) error {
	var cs []kadm.AlterConfig
	for _, k := range sortedKeys(to) {
		if v := to[k]; v != "" {
			cs = append(cs, kadm.AlterConfig{Op: kadm.SetConfig, Name: k, Value: &v})
		} else {
			cs = append(cs, kadm.AlterConfig{Op: kadm.DeleteConfig, Name: k})
		}
	}
	rs, err := t.m.admin.AlterTopicConfigs(ctx, cs, topic)
	if err != nil {
		return fmt.Errorf("alter configs of topic %s on the destination: %w", topic, err)
	}
	var errs []error
	for _, r := range rs {
		if r.Err != nil {
			errs = append(errs, fmt.Errorf("the destination refuses %v for topic %s (needs AlterConfigs on it): %w (%s)", to, topic, r.Err, r.ErrMessage))
		}
	}
	return errors.Join(errs...)
}

// holdAgain is how often the hold is looked after: an operator, or another
// instance's sync that was under way when it began, may have undone it.
const holdAgain = 5 * time.Second

// holdCleaner keeps the cleaner off; what was before is in the ledger first.
func (p *Partition) holdCleaner(ctx context.Context) error {
	if p.rec.Cleaner == nil {
		was, err := p.eng.Cleaner.Was(ctx, p.topic)
		if err != nil {
			return err
		}
		if was != nil {
			if err := p.put(ctx, func(r *ledger.Record) { r.Cleaner = was }); err != nil {
				return err
			}
		}
	}
	if err := p.eng.Cleaner.Hold(ctx, p.topic); err != nil {
		return err
	}
	p.mu.Lock()
	p.heldAt = time.Now()
	p.mu.Unlock()
	return nil
}

// holdDue tells whether to look after the hold. mu is held.
func (p *Partition) holdDue() bool { return p.shadowing() && time.Since(p.heldAt) >= holdAgain }

// releasable tells whether the cleaner is held back for nothing any more: only
// after the switch has been read back. mu is held.
func (p *Partition) releasable() bool {
	return p.rec != nil && p.rec.Cleaner != nil && p.rec.Shadow == nil
}

// releaseCleaner puts the topic's configs back.
func (p *Partition) releaseCleaner(ctx context.Context) error {
	done, err := p.eng.Cleaner.Release(ctx, p.topic, p.partition, p.rec.Cleaner)
	switch {
	case err != nil:
		return fmt.Errorf("let the cleaner at a compacted topic again: %w", err)
	case !done:
		p.rest(ctx, time.Second)
		return nil
	}
	return p.put(ctx, func(r *ledger.Record) { r.Cleaner = nil })
}
