// Package content fills topics of a real Kafka with everything that is hard to mirror or to show: one kind of
// difficulty per topic, always in partition 0.
package content

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

	"github.com/lockstep-kafka/lockstep/internal/testkafka"
	"github.com/lockstep-kafka/lockstep/internal/testkafka/oracle"
)

// Kind is one kind of topic.
type Kind struct {
	// Name is the default topic name.
	Name string
	// Configs of the topic. Retention is off for all kinds: some timestamps are old.
	Configs map[string]string
	// Restarts says that filling moves the leader: the brokers of the cluster are restarted, or the partition moved.
	Restarts bool
	fill     func(context.Context, *Filler) error
}

// Kinds are all of them, the quick ones first.
func Kinds() []Kind {
	return []Kind{
		{Name: "values", fill: fillValues},
		{Name: "codecs", fill: fillCodecs},
		{Name: "timestamps", fill: fillTimestamps},
		{Name: "large", fill: fillLarge, Configs: map[string]string{"max.message.bytes": "4194304"}},
		{Name: "log-append", fill: fillLogAppend, Configs: map[string]string{"message.timestamp.type": "LogAppendTime"}},
		{Name: "log-start", fill: fillLogStart},
		{Name: "all-deleted", fill: fillAllDeleted},
		{Name: "transactions", fill: fillTransactions},
		{Name: "compacted", fill: fillCompacted, Configs: map[string]string{
			"cleanup.policy": "compact", "segment.ms": "500", "min.cleanable.dirty.ratio": "0.0001", "min.compaction.lag.ms": "0",
		}},
		{Name: "epochs", fill: fillEpochs, Restarts: true},
	}
}

// Get is the kind with that name.
func Get(name string) (Kind, error) {
	for _, k := range Kinds() {
		if k.Name == name {
			return k, nil
		}
	}
	return Kind{}, fmt.Errorf("content: no kind %q", name)
}

// Fill creates the topic (one partition) and writes the kind's content into it.
func (k Kind) Fill(ctx context.Context, c *testkafka.Cluster, topic string) error {
	configs := map[string]string{"retention.ms": "-1"}
	maps.Copy(configs, k.Configs)
	if err := CreateTopic(ctx, c.Bootstrap(), topic, 1, configs); err != nil {
		return err
	}
	if err := k.fill(ctx, &Filler{Cluster: c, Topic: topic}); err != nil {
		return fmt.Errorf("content: fill %s (%s): %w", topic, k.Name, err)
	}
	return nil
}

// CreateTopic creates a topic with replication factor 1 and waits until its partitions have leaders.
func CreateTopic(ctx context.Context, bootstrap, topic string, partitions int32, configs map[string]string) error {
	cl, err := kgo.NewClient(kgo.SeedBrokers(seeds(bootstrap)...))
	if err != nil {
		return fmt.Errorf("content: %w", err)
	}
	defer cl.Close()
	conf := map[string]*string{}
	for k, v := range configs {
		conf[k] = &v
	}
	// A broker that has just lost its ZooKeeper session says UNKNOWN_SERVER_ERROR, whether it made the topic or not; one whose
	// heartbeats were late, INVALID_REPLICATION_FACTOR.
	for try := 1; ; try++ {
		_, err := kadm.NewClient(cl).CreateTopic(ctx, partitions, 1, conf, topic)
		if err == nil || try > 1 && errors.Is(err, kerr.TopicAlreadyExists) {
			break
		}
		if again := errors.Is(err, kerr.UnknownServerError) || errors.Is(err, kerr.InvalidReplicationFactor) || kerr.IsRetriable(err); !again || try == 20 || ctx.Err() != nil {
			return fmt.Errorf("content: create topic %s: %w", topic, err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(500 * time.Millisecond):
		}
	}
	for p := range partitions {
		if err := WaitLeader(ctx, bootstrap, topic, p, func(q oracle.Partition) bool { return q.Addr != "" }); err != nil {
			return err
		}
	}
	return nil
}

// SetConfig changes one dynamic config of a topic.
func SetConfig(ctx context.Context, bootstrap, topic, key, value string) error {
	cl, err := kgo.NewClient(kgo.SeedBrokers(seeds(bootstrap)...))
	if err != nil {
		return fmt.Errorf("content: %w", err)
	}
	defer cl.Close()
	adm := kadm.NewClient(cl)
	vs, err := adm.ApiVersions(ctx)
	if err != nil {
		return fmt.Errorf("content: set %s of %s: %w", key, topic, err)
	}
	set := []kadm.AlterConfig{{Op: kadm.SetConfig, Name: key, Value: &value}}
	alter := adm.AlterTopicConfigs
	for _, v := range vs {
		if _, ok := v.KeyMaxVersion(kmsg.IncrementalAlterConfigs.Int16()); ok {
			continue
		}
		// Before 2.3 all configs are set at once.
		alter = adm.AlterTopicConfigsState
		have, err := adm.DescribeTopicConfigs(ctx, topic)
		if err != nil {
			return fmt.Errorf("content: configs of %s: %w", topic, err)
		}
		for _, c := range have[0].Configs {
			if c.Source == kmsg.ConfigSourceDynamicTopicConfig && c.Key != key {
				set = append(set, kadm.AlterConfig{Name: c.Key, Value: c.Value})
			}
		}
		break
	}
	resp, err := alter(ctx, set, topic)
	if err != nil {
		return fmt.Errorf("content: set %s of %s: %w", key, topic, err)
	}
	for _, r := range resp {
		if r.Err != nil {
			return fmt.Errorf("content: set %s of %s: %w %s", key, topic, r.Err, r.ErrMessage)
		}
	}
	return nil
}

// WaitLeader waits until a partition's metadata is as wanted.
func WaitLeader(ctx context.Context, bootstrap, topic string, partition int32, ok func(oracle.Partition) bool) error {
	for {
		q, err := oracle.Lookup(ctx, bootstrap, topic, partition)
		if err == nil && ok(q) {
			return nil
		}
		if err == nil {
			err = fmt.Errorf("it is %+v", q)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("content: metadata of %s-%d: %w: %w", topic, partition, ctx.Err(), err)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// Filler writes to partition 0 of one topic.
type Filler struct {
	Cluster *testkafka.Cluster
	Topic   string
}

// write appends one batch.
func (f *Filler) write(ctx context.Context, codec oracle.Codec, recs ...record) error {
	b, err := encode(codec, recs)
	if err != nil {
		return err
	}
	_, err = Produce(ctx, f.Cluster.Bootstrap(), f.Topic, 0, b)
	return err
}

// each writes every list of records as a batch of its own.
func (f *Filler) each(ctx context.Context, codec oracle.Codec, batches ...[]record) error {
	for _, b := range batches {
		if err := f.write(ctx, codec, b...); err != nil {
			return err
		}
	}
	return nil
}

// Produce sends one raw batch with acks=all and returns the offset that the broker gave it. While the partition has
// no leader it waits a little; no answer that leaves open whether the batch was appended is tried again.
func Produce(ctx context.Context, bootstrap, topic string, partition int32, batch []byte) (base int64, err error) {
	var final error
	err = oracle.Retry(ctx, func() error {
		base, final = produce(ctx, bootstrap, topic, partition, batch)
		if errors.Is(final, kerr.NotLeaderForPartition) || errors.Is(final, kerr.LeaderNotAvailable) {
			return final
		}
		return nil
	})
	if err == nil {
		err = final
	}
	return base, err
}

func produce(ctx context.Context, bootstrap, topic string, partition int32, batch []byte) (int64, error) {
	c, _, err := oracle.DialLeader(ctx, bootstrap, topic, partition)
	if err != nil {
		return 0, err
	}
	defer c.Close()
	r := kmsg.NewPtrProduceRequest()
	r.Acks, r.TimeoutMillis = -1, 10000
	t := kmsg.NewProduceRequestTopic()
	t.Topic = topic
	p := kmsg.NewProduceRequestTopicPartition()
	p.Partition, p.Records = partition, batch
	t.Partitions = append(t.Partitions, p)
	r.Topics = append(r.Topics, t)
	resp, err := c.Do(ctx, r, 9)
	if err != nil {
		return 0, err
	}
	ts := resp.(*kmsg.ProduceResponse).Topics
	if len(ts) != 1 || len(ts[0].Partitions) != 1 {
		return 0, fmt.Errorf("content: produce to %s-%d: empty answer", topic, partition)
	}
	a := ts[0].Partitions[0]
	if err := kerr.ErrorForCode(a.ErrorCode); err != nil {
		msg := ""
		if a.ErrorMessage != nil {
			msg = *a.ErrorMessage
		}
		return 0, fmt.Errorf("content: produce to %s-%d: %w %s", topic, partition, err, msg)
	}
	return a.BaseOffset, nil
}

// DeleteRecords moves a partition's log start; -1 means to the high watermark.
func DeleteRecords(ctx context.Context, bootstrap, topic string, partition int32, to int64) error {
	c, _, err := oracle.DialLeader(ctx, bootstrap, topic, partition)
	if err != nil {
		return err
	}
	defer c.Close()
	r := kmsg.NewPtrDeleteRecordsRequest()
	r.TimeoutMillis = 10000
	t := kmsg.NewDeleteRecordsRequestTopic()
	t.Topic = topic
	p := kmsg.NewDeleteRecordsRequestTopicPartition()
	p.Partition, p.Offset = partition, to
	t.Partitions = append(t.Partitions, p)
	r.Topics = append(r.Topics, t)
	resp, err := c.Do(ctx, r, 2)
	if err != nil {
		return err
	}
	for _, t := range resp.(*kmsg.DeleteRecordsResponse).Topics {
		for _, p := range t.Partitions {
			if err := kerr.ErrorForCode(p.ErrorCode); err != nil {
				return fmt.Errorf("content: delete records of %s-%d: %w", topic, partition, err)
			}
		}
	}
	return nil
}

// BumpEpoch gives partition 0 of a topic a new leader epoch: the only broker is restarted, or the partition is moved
// to the next broker.
func BumpEpoch(ctx context.Context, c *testkafka.Cluster, topic string) error {
	was, err := oracle.Lookup(ctx, c.Bootstrap(), topic, 0)
	if err != nil {
		return err
	}
	if c.Brokers() == 1 {
		if err := c.Stop(1); err != nil {
			return err
		}
		if err := c.StartBroker(ctx, 1); err != nil {
			return err
		}
	} else {
		cl, err := kgo.NewClient(kgo.SeedBrokers(c.Seeds()...))
		if err != nil {
			return fmt.Errorf("content: %w", err)
		}
		defer cl.Close()
		var req kadm.AlterPartitionAssignmentsReq
		req.Assign(topic, 0, []int32{was.Leader%int32(c.Brokers()) + 1})
		resp, err := kadm.NewClient(cl).AlterPartitionAssignments(ctx, req)
		if err == nil {
			err = resp.Error()
		}
		if err != nil {
			return fmt.Errorf("content: move %s-0: %w", topic, err)
		}
	}
	return WaitLeader(ctx, c.Bootstrap(), topic, 0, func(q oracle.Partition) bool { return q.Addr != "" && q.Epoch > was.Epoch && len(q.Replicas) == 1 })
}
