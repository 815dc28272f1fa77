package verify

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"golang.org/x/time/rate"

	"github.com/lockstep-kafka/lockstep/protocol"
)

// cluster is one side.
type cluster struct {
	what     string // source, destination
	cl       *kgo.Client
	adm      *kadm.Client
	limit    *rate.Limiter // nil: none
	maxBytes int32         // of an answer
	patience time.Duration
	hole     time.Duration // how long a log may be empty below its end before it is taken for a hole
	read     func(bytes int)

	mu    sync.Mutex
	meta  kadm.Metadata
	stale time.Time // when meta was asked for; zero: ask again
}

const answerBytes = 4 << 20

func (c *cluster) id(ctx context.Context) (string, error) {
	m, err := c.adm.BrokerMetadata(ctx)
	if err != nil {
		return "", fmt.Errorf("reach the %s: %w", c.what, err)
	}
	return m.Cluster, nil
}

// topic is what metadata says of one that is there.
type topicInfo struct {
	name       string
	id         kadm.TopicID
	internal   bool
	partitions []int32
	err        error
}

// topics lists them by name; those asked for by name that are not there have an
// err.
func (c *cluster) topics(ctx context.Context, names ...string) (map[string]topicInfo, error) {
	m, err := c.adm.Metadata(ctx, names...)
	if err != nil {
		return nil, fmt.Errorf("metadata of the %s: %w", c.what, err)
	}
	c.mu.Lock()
	c.meta, c.stale = m, time.Now()
	c.mu.Unlock()
	out := make(map[string]topicInfo, len(m.Topics))
	for _, t := range m.Topics {
		out[t.Topic] = topicInfo{name: t.Topic, id: t.ID, internal: t.IsInternal, partitions: t.Partitions.Numbers(), err: t.Err}
	}
	return out, nil
}

// leader is who leads a partition, by metadata not older than the last forget.
func (c *cluster) leader(ctx context.Context, at place) (int32, kadm.TopicID, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stale.IsZero() {
		names := make([]string, 0, len(c.meta.Topics))
		for n := range c.meta.Topics {
			names = append(names, n)
		}
		if !slices.Contains(names, at.topic) {
			names = append(names, at.topic)
		}
		m, err := c.adm.Metadata(ctx, names...)
		if err != nil {
			return -1, kadm.TopicID{}, err
		}
		c.meta, c.stale = m, time.Now()
	}
	t, ok := c.meta.Topics[at.topic]
	if !ok {
		return -1, kadm.TopicID{}, kerr.UnknownTopicOrPartition
	}
	if t.Err != nil {
		return -1, t.ID, t.Err
	}
	p, ok := t.Partitions[at.partition]
	switch {
	case !ok:
		return -1, t.ID, kerr.UnknownTopicOrPartition
	case p.Leader < 0:
		return -1, t.ID, kerr.LeaderNotAvailable
	}
	return p.Leader, t.ID, nil
}

// forget lets the next leader ask for metadata, if what there is is of before
// since.
func (c *cluster) forget(since time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stale.Before(since) {
		c.stale = time.Time{}
	}
}

// again tells whether an error may pass.
func again(ctx context.Context, err error) bool {
	var moved *movedError
	if ctx.Err() != nil || errors.Is(err, kgo.ErrClientClosed) || errors.Is(err, errBroken) || errors.As(err, &moved) {
		return false
	}
	var ke *kerr.Error
	return !errors.As(err, &ke) || ke.Retriable
}

// retry calls f until it succeeds, fails for good, or patience is over.
func (c *cluster) retry(ctx context.Context, f func() error) error {
	began := time.Now()
	for wait := 50 * time.Millisecond; ; wait = min(2*wait, time.Second) {
		asked := time.Now()
		err := f()
		if err == nil || !again(ctx, err) {
			return err
		}
		if time.Since(began) > c.patience {
			return fmt.Errorf("%w (tried for %s)", err, c.patience)
		}
		c.forget(asked)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(wait):
		}
	}
}

var errNothing = errors.New("the log has nothing to show at an offset below its end")

// fetch is the answer at an offset below to.
func (c *cluster) fetch(ctx context.Context, at place, from, to int64) chunk {
	began := time.Now()
	var out chunk
	err := c.retry(ctx, func() error {
		a, err := c.fetchOnce(ctx, at, from)
		if errors.Is(err, kerr.OffsetOutOfRange) {
			return c.outOfRange(ctx, at, from)
		}
		if err != nil {
			return err
		}
		out = chunk{records: a.RecordBatches, aborted: a.AbortedTransactions, next: from}
		for rest := a.RecordBatches; ; {
			var b protocol.Batch
			if b, rest, err = protocol.NextBatch(rest); err != nil {
				break // at the end; or met again by who reads it
			}
			out.next = max(out.next, b.NextOffset())
		}
		if out.next > from {
			return nil
		}
		if len(a.RecordBatches) > 0 {
			if !errors.Is(err, protocol.ErrPartialBatch) && !errors.Is(err, io.EOF) {
				return fmt.Errorf("%w: %w", errBroken, err)
			}
			return fmt.Errorf("no whole batch came: %w", errNothing)
		}
		// A compacted log may end with a hole.
		if a.LastStableOffset >= to && time.Since(began) >= c.hole {
			return nil
		}
		return errNothing
	})
	if err != nil {
		var moved *movedError
		if !errors.As(err, &moved) {
			err = fmt.Errorf("read the %s at offset %d: %w", c.what, from, err)
		}
		return chunk{err: err}
	}
	return out
}

// errBroken is an answer that isn't record batches: no use to try again.
var errBroken = errors.New("not a record batch")

// outOfRange says what an offset below the end and out of range means.
func (c *cluster) outOfRange(ctx context.Context, at place, from int64) error {
	start, err := c.offset(ctx, at, c.adm.ListStartOffsets)
	if err != nil {
		return err
	}
	if start > from {
		return &movedError{start}
	}
	end, err := c.offset(ctx, at, c.adm.ListEndOffsets)
	if err != nil {
		return err
	}
	return fmt.Errorf("%w: the log ends at %d now: it was cut while it was read; run it again", kerr.OffsetOutOfRange, end)
}

func (c *cluster) offset(ctx context.Context, at place, list func(context.Context, ...string) (kadm.ListedOffsets, error)) (int64, error) {
	l, err := list(ctx, at.topic)
	if o, ok := l.Lookup(at.topic, at.partition); ok {
		return o.Offset, o.Err
	}
	if err == nil {
		err = kerr.UnknownTopicOrPartition
	}
	return 0, err
}

func (c *cluster) fetchOnce(ctx context.Context, at place, from int64) (*kmsg.FetchResponseTopicPartition, error) {
	leader, id, err := c.leader(ctx, at)
	if err != nil {
		return nil, err
	}
	rp := kmsg.NewFetchRequestTopicPartition()
	rp.Partition, rp.CurrentLeaderEpoch, rp.FetchOffset, rp.PartitionMaxBytes = at.partition, -1, from, c.maxBytes
	rt := kmsg.NewFetchRequestTopic()
	rt.Topic, rt.TopicID, rt.Partitions = at.topic, id, append(rt.Partitions, rp)
	req := kmsg.NewPtrFetchRequest()
	req.ReplicaID, req.MinBytes, req.MaxBytes, req.MaxWaitMillis, req.IsolationLevel = -1, 1, c.maxBytes, 100, 1
	req.SessionID, req.SessionEpoch = 0, -1
	req.Topics = append(req.Topics, rt)
	kresp, err := c.cl.Broker(int(leader)).Request(ctx, req)
	if err != nil {
		return nil, err
	}
	resp := kresp.(*kmsg.FetchResponse)
	if err := kerr.ErrorForCode(resp.ErrorCode); err != nil {
		return nil, err
	}
	if len(resp.Topics) != 1 || len(resp.Topics[0].Partitions) != 1 {
		return nil, errors.New("the broker's answer lacks the partition")
	}
	a := &resp.Topics[0].Partitions[0]
	if err := kerr.ErrorForCode(a.ErrorCode); err != nil {
		return nil, err
	}
	n := len(a.RecordBatches)
	c.read(n)
	return a, c.wait(ctx, n)
}

// wait holds back who has read n bytes.
func (c *cluster) wait(ctx context.Context, n int) error {
	for c.limit != nil && n > 0 {
		m := min(n, c.limit.Burst())
		if err := c.limit.WaitN(ctx, m); err != nil {
			return err
		}
		n -= m
	}
	return nil
}

// ends are start and end of every partition of topics: the last stable offset
// is the end.
func (c *cluster) ends(ctx context.Context, topics []string) (starts, ends kadm.ListedOffsets, err error) {
	for _, x := range []struct {
		list func(context.Context, ...string) (kadm.ListedOffsets, error)
		into *kadm.ListedOffsets
	}{{c.adm.ListStartOffsets, &starts}, {c.adm.ListCommittedOffsets, &ends}} {
		err := c.retry(ctx, func() error {
			var err error
			if *x.into, err = x.list(ctx, topics...); err != nil {
				return err
			}
			var wait error
			x.into.Each(func(o kadm.ListedOffset) {
				if o.Err != nil && again(ctx, o.Err) {
					wait = o.Err
				}
			})
			if wait != nil && len(topics) > 0 {
				return wait
			}
			return nil
		})
		if err != nil && len(*x.into) == 0 {
			return nil, nil, fmt.Errorf("offsets of the %s: %w", c.what, err)
		}
	}
	return starts, ends, nil
}

// configs are what cleans a topic.
type configs struct {
	compact     bool
	retentionMS int64 // -1: none
	bytes       bool  // retention.bytes is set
}

// deletes tells whether old segments go.
func (c configs) deletes() bool { return c.bytes || c.retentionMS >= 0 }

func (c *cluster) configs(ctx context.Context, topics []string) (map[string]configs, error) {
	rcs, err := c.adm.DescribeTopicConfigs(ctx, topics...)
	if err != nil {
		return nil, fmt.Errorf("configs of the %s's topics: %w", c.what, err)
	}
	out := map[string]configs{}
	for _, rc := range rcs {
		if rc.Err != nil {
			err = fmt.Errorf("configs of topic %s on the %s: %w", rc.Name, c.what, rc.Err)
			continue
		}
		x := configs{retentionMS: -1}
		var deletes bool
		for _, kv := range rc.Configs {
			switch v := kv.MaybeValue(); kv.Key {
			case "cleanup.policy":
				policies := strings.Split(v, ",")
				x.compact, deletes = slices.Contains(policies, "compact"), slices.Contains(policies, "delete")
			case "retention.ms":
				if _, err := fmt.Sscan(v, &x.retentionMS); err != nil {
					x.retentionMS = -1
				}
			case "retention.bytes":
				x.bytes = v != "" && v != "-1"
			}
		}
		if !deletes {
			x.retentionMS, x.bytes = -1, false
		}
		out[rc.Name] = x
	}
	return out, err
}
