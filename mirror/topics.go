package mirror

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sort"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// topicError fails a topic as a whole, before any of its partitions has a
// ledger record: it is reported and tried again at the next sync, and clients
// of a topic that is not ours notice nothing.
type topicError struct {
	reason string // short and stable: a metric label
	err    error
}

func (e *topicError) Error() string { return e.err.Error() }
func (e *topicError) Unwrap() error { return e.err }

func topicFailed(reason, format string, args ...any) error {
	return &topicError{reason: reason, err: fmt.Errorf(format, args...)}
}

// topicAdmin looks at topics on both sides and makes the destination's fit.
type topicAdmin struct {
	src, dst *kadm.Client
	filter   *TopicFilter
	rf       int16 // -1: the destination's default
	minLag   time.Duration
}

// sourceTopics lists the selected topics of the source, and those that are
// included and left out all the same, with the reason.
func (a *topicAdmin) sourceTopics(ctx context.Context) (_ map[string]kadm.TopicDetail, left map[string]string, _ error) {
	all, err := a.src.ListTopics(ctx)
	if err != nil {
		return nil, nil, fmt.Errorf("list the source's topics: %w", err)
	}
	out, left := map[string]kadm.TopicDetail{}, map[string]string{}
	for name, t := range all {
		switch ok, why := a.filter.Select(name, t.IsInternal); {
		case ok:
			out[name] = t
		case why != "":
			left[name] = why
		}
	}
	return out, left, nil
}

// configs describes topics of one side; a topic that is missing or may not be
// described is missing in the answer too and named in the error.
func configs(ctx context.Context, c *kadm.Client, topics ...string) (map[string]topicConfigs, error) {
	out := map[string]topicConfigs{}
	if len(topics) == 0 {
		return out, nil
	}
	rs, err := c.DescribeTopicConfigs(ctx, topics...)
	var auth *kadm.AuthError
	if errors.As(err, &auth) {
		// kadm answers so for all when one may not be described: that one is
		// looked for, so that it doesn't stop the others.
		if len(topics) == 1 {
			return out, fmt.Errorf("describe configs of topic %s (needs DescribeConfigs on it): %w", topics[0], err)
		}
		half := len(topics) / 2
		var errs []error
		for _, part := range [][]string{topics[:half], topics[half:]} {
			cs, err := configs(ctx, c, part...)
			if cs == nil {
				return nil, err
			}
			maps.Copy(out, cs)
			errs = append(errs, err)
		}
		return out, errors.Join(errs...)
	}
	if err != nil {
		return nil, fmt.Errorf("describe topic configs: %w", err)
	}
	var errs []error
	for _, r := range rs {
		if r.Err != nil {
			errs = append(errs, fmt.Errorf("describe configs of topic %s (needs DescribeConfigs on it): %w", r.Name, r.Err))
			continue
		}
		tc := topicConfigs{}
		for _, e := range r.Configs {
			tc[e.Key] = configEntry{value: e.MaybeValue(), dynamic: e.Source == kmsg.ConfigSourceDynamicTopicConfig}
		}
		out[r.Name] = tc
	}
	return out, errors.Join(errs...)
}

// destTopic is the destination's side of a topic, ready to be written to.
type destTopic struct {
	id         kadm.TopicID
	partitions kadm.PartitionDetails
	compacted  bool
}

// ensure makes the destination's topic fit the source's: creates it with its
// configs in the same request (CF-01), adds partitions, alters what differs.
// have is the destination's topic, nil when there is none.
func (a *topicAdmin) ensure(ctx context.Context, st kadm.TopicDetail, src, known topicConfigs, have *kadm.TopicDetail) (_ *destTopic, err error) {
	want := wantedConfigs(src, known, a.minLag)
	n := len(st.Partitions)
	if have == nil {
		if err := a.create(ctx, st.Topic, n, want); err != nil {
			return nil, err
		}
		if have, err = a.await(ctx, st.Topic, n); err != nil {
			return nil, err
		}
		return a.result(have, src), nil
	}
	switch m := len(have.Partitions); {
	case m > n:
		return nil, partitionCount(st.Topic, m, n)
	case m < n:
		rs, err := a.dst.UpdatePartitions(ctx, n, st.Topic)
		if err == nil {
			err = rs.Error()
		}
		if err != nil {
			return nil, topicFailed("create_partitions", "add partitions to topic %s on the destination (needs Alter on it): %w", st.Topic, err)
		}
		if have, err = a.await(ctx, st.Topic, n); err != nil {
			return nil, err
		}
	}
	cs, err := configs(ctx, a.dst, st.Topic)
	if err != nil {
		return nil, topicFailed("describe_configs", "%w", err)
	}
	if err := a.alter(ctx, st.Topic, differing(cs[st.Topic], want)); err != nil {
		return nil, err
	}
	return a.result(have, src), nil
}

func (a *topicAdmin) result(t *kadm.TopicDetail, src topicConfigs) *destTopic {
	return &destTopic{id: t.ID, partitions: t.Partitions, compacted: compacted(src)}
}

// destination is the topic there, nil when it doesn't exist.
func (a *topicAdmin) destination(ctx context.Context, topic string) (*kadm.TopicDetail, error) {
	ts, err := a.dst.ListTopics(ctx, topic)
	if err != nil {
		return nil, fmt.Errorf("look up topic %s on the destination: %w", topic, err)
	}
	t, ok := ts[topic]
	switch {
	case !ok || errors.Is(t.Err, kerr.UnknownTopicOrPartition):
		return nil, nil
	case errors.Is(t.Err, kerr.TopicAuthorizationFailed):
		return nil, topicFailed("authorization", "look up topic %s on the destination (needs Describe on it): %w", topic, t.Err)
	case t.Err != nil:
		return nil, fmt.Errorf("look up topic %s on the destination: %w", topic, t.Err)
	}
	return &t, nil
}

func (a *topicAdmin) create(ctx context.Context, topic string, partitions int, want map[string]string) error {
	cs := map[string]*string{}
	for k, v := range want {
		cs[k] = &v
	}
	r, err := a.dst.CreateTopic(ctx, int32(partitions), a.rf, cs, topic)
	switch {
	case err == nil, errors.Is(err, kerr.TopicAlreadyExists):
		return nil
	case errors.Is(err, kerr.InvalidReplicationFactor):
		// Seen while a broker is down (wire.md §3): the next sync tries again.
		return fmt.Errorf("create topic %s on the destination: %w (%s)", topic, err, r.ErrMessage)
	case r.Err != nil:
		return topicFailed("create_topic", "the destination refuses topic %s: %w (%s)", topic, r.Err, r.ErrMessage)
	}
	return fmt.Errorf("create topic %s on the destination: %w", topic, err)
}

func (a *topicAdmin) alter(ctx context.Context, topic string, diff map[string]string) error {
	if len(diff) == 0 {
		return nil
	}
	var acs []kadm.AlterConfig
	for k, v := range diff {
		acs = append(acs, kadm.AlterConfig{Op: kadm.SetConfig, Name: k, Value: &v})
	}
	sort.Slice(acs, func(i, j int) bool { return acs[i].Name < acs[j].Name })
	rs, err := a.dst.AlterTopicConfigs(ctx, acs, topic)
	if err != nil {
		return fmt.Errorf("alter configs of topic %s on the destination: %w", topic, err)
	}
	for _, r := range rs {
		if r.Err != nil {
			return topicFailed("alter_configs", "the destination refuses configs of topic %s (needs AlterConfigs on it): %w (%s)", topic, r.Err, r.ErrMessage)
		}
	}
	return nil
}

// await waits until metadata shows the topic with n partitions that have
// leaders: CreateTopics is answered before that.
func (a *topicAdmin) await(ctx context.Context, topic string, n int) (*kadm.TopicDetail, error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	for wait := 10 * time.Millisecond; ; wait = min(2*wait, time.Second) {
		t, err := a.destination(ctx, topic)
		if err == nil && t != nil && len(t.Partitions) >= n && allLed(t.Partitions) {
			return t, nil
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("topic %s was created on the destination but has not got leaders for its %d partitions: %w", topic, n, errors.Join(ctx.Err(), err))
		case <-time.After(wait):
		}
	}
}

func allLed(ps kadm.PartitionDetails) bool {
	for _, p := range ps {
		if p.Leader < 0 || p.Err != nil {
			return false
		}
	}
	return true
}
