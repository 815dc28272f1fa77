package mirror

import (
	"context"
	"errors"
	"fmt"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// The destination's cleaner keeps the later record of a key, dead or not, so it
// must leave a topic alone while live records lie in front of dead ones.
// min.compaction.lag.ms goes by the records' own timestamps, which mirrored
// ones brought along: it protects new records only. A dirty ratio of 1 is never
// exceeded.

// holdCleaner sets that and returns when every broker with a replica goes by it.
func (m *Manager) holdCleaner(ctx context.Context, topic string) error {
	v := cleanerHold
	if err := m.alterCleaner(ctx, topic, kadm.AlterConfig{Op: kadm.SetConfig, Name: cleanerRatio, Value: &v}); err != nil {
		return err
	}
	ts, err := m.admin.ListTopics(ctx, topic)
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
		held, err := m.cleanerHeld(ctx, b, topic)
		if err != nil {
			return err
		}
		if !held {
			return fmt.Errorf("broker %d does not yet go by %s=%s of topic %s", b, cleanerRatio, cleanerHold, topic)
		}
	}
	return nil
}

func (m *Manager) cleanerHeld(ctx context.Context, broker int32, topic string) (bool, error) {
	q := kmsg.NewPtrDescribeConfigsRequest()
	r := kmsg.NewDescribeConfigsRequestResource()
	r.ResourceType, r.ResourceName, r.ConfigNames = kmsg.ConfigResourceTypeTopic, topic, []string{cleanerRatio}
	q.Resources = append(q.Resources, r)
	resp, err := q.RequestWith(ctx, m.client.Broker(int(broker)))
	if err != nil {
		return false, fmt.Errorf("describe configs of topic %s at broker %d: %w", topic, broker, err)
	}
	for _, r := range resp.Resources {
		if err := kerr.ErrorForCode(r.ErrorCode); err != nil {
			return false, fmt.Errorf("describe configs of topic %s (needs DescribeConfigs on it): %w", topic, err)
		}
		for _, c := range r.Configs {
			if c.Name == cleanerRatio && c.Value != nil {
				return number(*c.Value) == 1 || *c.Value == "1.0", nil
			}
		}
	}
	return false, nil
}

// releaseCleaner takes it back, unless another partition of the topic still
// needs it. The next sync sets what the source has.
func (m *Manager) releaseCleaner(ctx context.Context, topic string, partition int32) error {
	if m.shadowed(topic, partition) {
		return nil
	}
	return m.alterCleaner(ctx, topic, kadm.AlterConfig{Op: kadm.DeleteConfig, Name: cleanerRatio})
}

// shadowed tells whether some partition but one of a topic is built beside what
// it shows.
func (m *Manager) shadowed(topic string, but int32) bool {
	for _, e := range m.opts.View.All() {
		if e.Topic == topic && e.Partition != but && e.Record != nil && e.Record.Shadow != nil {
			return true
		}
	}
	return false
}

func (m *Manager) alterCleaner(ctx context.Context, topic string, c kadm.AlterConfig) error {
	rs, err := m.admin.AlterTopicConfigs(ctx, []kadm.AlterConfig{c}, topic)
	if err != nil {
		return fmt.Errorf("alter %s of topic %s on the destination: %w", cleanerRatio, topic, err)
	}
	var errs []error
	for _, r := range rs {
		if r.Err != nil {
			errs = append(errs, fmt.Errorf("the destination refuses %s for topic %s (needs AlterConfigs on it): %w (%s)", cleanerRatio, topic, r.Err, r.ErrMessage))
		}
	}
	return errors.Join(errs...)
}
