package mirror

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
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
	from, to *kgo.Client // the same clusters
	filter   *TopicFilter
	rf       int16 // -1: the destination's default
	rules    configRules
}

// selected are the selected topics among all of the source, and those that are
// included and left out all the same, with the reason.
func (a *topicAdmin) selected(all kadm.TopicDetails) (found map[string]kadm.TopicDetail, left map[string]string) {
	found, left = map[string]kadm.TopicDetail{}, map[string]string{}
	for name, t := range all {
		switch ok, why := a.filter.Select(name, t.IsInternal); {
		case ok:
			found[name] = t
		case why != "":
			left[name] = why
		}
	}
	return found, left
}

// topicDetails asks for topics, nil: all that may be described.
func topicDetails(ctx context.Context, cl *kgo.Client, topics []string) (kadm.TopicDetails, error) {
	resp, err := askMetadata(ctx, cl, topics)
	if err != nil {
		return nil, err
	}
	return detailsOf(resp), nil
}

func detailsOf(resp *kmsg.MetadataResponse) kadm.TopicDetails {
	out := kadm.TopicDetails{}
	for _, t := range resp.Topics {
		if t.Topic == nil {
			continue
		}
		d := kadm.TopicDetail{Topic: *t.Topic, ID: t.TopicID, IsInternal: t.IsInternal, Partitions: kadm.PartitionDetails{}, Err: kerr.ErrorForCode(t.ErrorCode)}
		for _, p := range t.Partitions {
			d.Partitions[p.Partition] = kadm.PartitionDetail{
				Topic: d.Topic, Partition: p.Partition, Leader: p.Leader, LeaderEpoch: p.LeaderEpoch, Replicas: p.Replicas, ISR: p.ISR,
				OfflineReplicas: p.OfflineReplicas, Err: kerr.ErrorForCode(p.ErrorCode),
			}
		}
		out[d.Topic] = d
	}
	return out
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
	keepsTombs time.Duration // the source's delete.retention.ms
}

// destWish is what the destination's topic should be.
type destWish struct {
	topic      string
	partitions int
	compacted  bool
	keepsTombs time.Duration // the source's delete.retention.ms
	// configs are what is wanted, given what the topic has now; have is nil for
	// one that is to be created.
	configs func(have topicConfigs) (map[string]string, error)
	set     map[string]string                              // configs that Lockstep remembers to have set
	keep    func(context.Context, map[string]string) error // remembers them
}

// ensure makes the destination's topic fit: creates it with its configs in the
// same request (CF-01), adds partitions, alters what differs. have is the
// destination's topic, nil when there is none.
func (a *topicAdmin) ensure(ctx context.Context, w destWish, have *kadm.TopicDetail) (_ *destTopic, err error) {
	n := w.partitions
	if have == nil {
		want, err := w.configs(nil)
		if err != nil {
			return nil, err
		}
		if err := w.keep(ctx, want); err != nil {
			return nil, err
		}
		if err := a.create(ctx, w.topic, n, want); err != nil {
			return nil, err
		}
		if have, err = a.await(ctx, w.topic, n); err != nil {
			return nil, err
		}
		return w.result(have), nil
	}
	switch m := len(have.Partitions); {
	case m > n:
		return nil, partitionCount(w.topic, m, n)
	case m < n:
		if err := a.grow(ctx, w.topic, n); err != nil {
			return nil, err
		}
		if have, err = a.await(ctx, w.topic, n); err != nil {
			return nil, err
		}
	}
	cs, err := configs(ctx, a.dst, w.topic)
	if err != nil {
		return nil, topicFailed("describe_configs", "%w", err)
	}
	want, err := w.configs(cs[w.topic])
	if err != nil {
		return nil, err
	}
	plan := planConfigs(cs[w.topic], want, w.set)
	if !maps.Equal(plan.set, w.set) {
		if err := w.keep(ctx, plan.set); err != nil {
			return nil, err
		}
	}
	if err := a.alter(ctx, w.topic, plan); err != nil {
		return nil, err
	}
	return w.result(have), nil
}

func (w *destWish) result(t *kadm.TopicDetail) *destTopic {
	return &destTopic{id: t.ID, partitions: t.Partitions, compacted: w.compacted, keepsTombs: w.keepsTombs}
}

// destination is the topic there, nil when it doesn't exist.
func (a *topicAdmin) destination(ctx context.Context, topic string) (*kadm.TopicDetail, error) {
	ts, err := topicDetails(ctx, a.to, []string{topic})
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

// grow adds partitions up to n.
func (a *topicAdmin) grow(ctx context.Context, topic string, n int) error {
	rs, err := a.dst.UpdatePartitions(ctx, n, topic)
	if err != nil {
		return fmt.Errorf("add partitions to topic %s on the destination: %w", topic, err)
	}
	for _, r := range rs {
		switch {
		case errors.Is(r.Err, kerr.InvalidReplicationFactor): // while a broker is down, as in create
			return fmt.Errorf("add partitions to topic %s on the destination: %w (%s)", topic, r.Err, r.ErrMessage)
		case r.Err != nil:
			return topicFailed("create_partitions", "the destination refuses more partitions of topic %s (needs Alter on it): %w (%s)", topic, r.Err, r.ErrMessage)
		}
	}
	return nil
}

func (a *topicAdmin) alter(ctx context.Context, topic string, plan configPlan) error {
	var acs []kadm.AlterConfig
	for _, k := range sortedKeys(plan.alter) {
		v := plan.alter[k]
		acs = append(acs, kadm.AlterConfig{Op: kadm.SetConfig, Name: k, Value: &v})
	}
	for _, k := range plan.drop {
		acs = append(acs, kadm.AlterConfig{Op: kadm.DeleteConfig, Name: k})
	}
	if len(acs) == 0 {
		return nil
	}
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
			a.served(ctx, t)
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

// servedLimit is how long a new topic's leaders are waited for.
const servedLimit = 10 * time.Second

// served waits until the leaders serve a new topic's partitions: metadata names
// them at once, and each broker gets to its partitions one by one, some
// milliseconds each. Begun together they cost a few ledger writes together; begun
// as they come, some for each of them, in the way of the broker. Whoever takes
// long is not waited for: its partitions ask again by themselves.
func (a *topicAdmin) served(ctx context.Context, t *kadm.TopicDetail) {
	ctx, cancel := context.WithTimeout(ctx, servedLimit)
	defer cancel()
	left := map[int32][]int32{}
	for _, p := range t.Partitions {
		left[p.Leader] = append(left[p.Leader], p.Partition)
	}
	for wait := 10 * time.Millisecond; len(left) > 0 && ctx.Err() == nil; wait = min(2*wait, 200*time.Millisecond) {
		for broker, ps := range left {
			if ps = a.unserved(ctx, t.Topic, broker, ps); len(ps) > 0 {
				left[broker] = ps
			} else {
				delete(left, broker)
			}
		}
		if len(left) > 0 {
			pause(ctx, wait)
		}
	}
}

// unserved are those of ps that broker does not serve yet, as their leader; none
// if it can't be asked.
func (a *topicAdmin) unserved(ctx context.Context, topic string, broker int32, ps []int32) (left []int32) {
	req := kmsg.NewPtrListOffsetsRequest()
	req.ReplicaID = -1
	rt := kmsg.NewListOffsetsRequestTopic()
	rt.Topic = topic
	for _, p := range ps {
		rp := kmsg.NewListOffsetsRequestTopicPartition()
		rp.Partition, rp.CurrentLeaderEpoch, rp.Timestamp = p, -1, tsLatest
		rt.Partitions = append(rt.Partitions, rp)
	}
	req.Topics = append(req.Topics, rt)
	resp, err := a.to.Broker(int(broker)).Request(ctx, req)
	if err != nil {
		return nil
	}
	for _, rt := range resp.(*kmsg.ListOffsetsResponse).Topics {
		for _, rp := range rt.Partitions {
			switch rp.ErrorCode {
			case kerr.NotLeaderForPartition.Code, kerr.UnknownTopicOrPartition.Code, kerr.LeaderNotAvailable.Code:
				left = append(left, rp.Partition)
			}
		}
	}
	return left
}
