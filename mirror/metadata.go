package mirror

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/internal/kconn"
	"github.com/lockstep-kafka/lockstep/internal/ledger"
)

const (
	metadataEvery = 3 * time.Second        // without a reason: leader epochs must be noticed soon (F4b)
	metadataPause = 100 * time.Millisecond // between two, whatever the reason
)

// Cluster is a snapshot of a cluster's metadata. It is not changed after it
// was handed over.
type Cluster struct {
	Brokers map[int32]string // node id -> host:port
	Topics  map[string]*TopicMeta
	// Unsure are topics that the cluster gave an error for: what was known of
	// them before counts on, and the others are not held up.
	Unsure map[string]error
}

// sure tells whether the metadata says something of a topic, if only that it is
// not there.
func (c *Cluster) sure(topic string) bool { return c != nil && c.Unsure[topic] == nil }

// TopicMeta is one topic of a Cluster. ID is zero when the cluster has no
// topic ids.
type TopicMeta struct {
	ID         ledger.ID
	Partitions []PartitionMeta // by partition
}

// PartitionMeta: Leader -1 and Epoch -1 stand for unknown.
type PartitionMeta struct {
	Leader int32
	Epoch  int32
}

// leader is where a partition is led, as one side's metadata has it.
type leader struct {
	known  bool // the topic is in the metadata
	broker int32
	addr   string
	epoch  int32
	id     ledger.ID
}

func (c *Cluster) leader(topic string, p int32) leader {
	l := leader{broker: -1, epoch: -1}
	if c == nil {
		return l
	}
	t := c.Topics[topic]
	if t == nil || int(p) >= len(t.Partitions) {
		return l
	}
	m := t.Partitions[p]
	l.known, l.id, l.broker, l.epoch = true, t.ID, m.Leader, m.Epoch
	l.addr = c.Brokers[m.Leader]
	if l.addr == "" {
		l.broker = -1
	}
	return l
}

// poller keeps one cluster's metadata of some topics up to date.
type poller struct {
	cl     *kgo.Client
	topics func() []string
	set    func(*Cluster)
	wake   wakeChan
	failed func(error)
}

func newPoller(cl *kgo.Client, topics func() []string, set func(*Cluster), failed func(error)) *poller {
	return &poller{cl: cl, topics: topics, set: set, wake: make(wakeChan, 1), failed: failed}
}

// refresh asks for newer metadata soon; it doesn't block.
func (p *poller) refresh() { p.wake.wake() }

func (p *poller) run(ctx context.Context) error {
	told := ""
	for ctx.Err() == nil {
		if topics := p.topics(); len(topics) > 0 {
			switch c, err := metadata(ctx, p.cl, topics); {
			case err == nil:
				text := ""
				if err := c.firstUnsure(); err != nil {
					if text = err.Error(); text != told { // a right may be missing for long
						p.failed(err)
					}
				}
				told = text
				p.set(c)
			case ctx.Err() == nil:
				p.failed(err)
			}
		}
		pause(ctx, metadataPause)
		select {
		case <-p.wake:
		case <-time.After(metadataEvery):
		case <-ctx.Done():
		}
	}
	return nil
}

// answerWait is how long a cluster may take to answer a first, small question.
const answerWait = 10 * time.Second

// brokers asks a cluster for its brokers and its id. One that takes connections
// and never answers is called by its name, soon.
func brokers(ctx context.Context, cl *kgo.Client) (kadm.Metadata, error) {
	var m kadm.Metadata
	err := answered(ctx, cl, func(ctx context.Context) (err error) {
		m, err = kadm.NewClient(cl).BrokerMetadata(ctx)
		return err
	})
	return m, kconn.OfClient(cl, err)
}

// answered asks a first, small question.
func answered(ctx context.Context, cl *kgo.Client, ask func(context.Context) error) error {
	tctx, cancel := context.WithTimeout(ctx, answerWait)
	defer cancel()
	err := ask(tctx)
	if err != nil && ctx.Err() == nil && tctx.Err() != nil {
		seeds, _ := cl.OptValue(kgo.SeedBrokers).([]string)
		err = fmt.Errorf("%w: no answer from %s within %v: %w", kconn.ErrTimeout, strings.Join(seeds, ", "), answerWait, err)
	}
	return err
}

func (c *Cluster) firstUnsure() error {
	for _, name := range sortedKeys(c.Unsure) {
		return fmt.Errorf("metadata of topic %s: %w", name, c.Unsure[name])
	}
	return nil
}

// metadata asks for the metadata of topics. A topic that the cluster doesn't
// know is missing in the answer; one that it can't answer for now is Unsure, so
// that it isn't taken for deleted.
func metadata(ctx context.Context, cl *kgo.Client, topics []string) (*Cluster, error) {
	ctx, cancel := context.WithTimeout(ctx, 15*time.Second)
	defer cancel()
	m, err := askMetadata(ctx, cl, topics)
	if err != nil {
		return nil, fmt.Errorf("metadata: %w", err)
	}
	return clusterOf(m), nil
}

func clusterOf(m *kmsg.MetadataResponse) *Cluster {
	c := &Cluster{Brokers: map[int32]string{}, Topics: map[string]*TopicMeta{}, Unsure: map[string]error{}}
	for _, b := range m.Brokers {
		c.Brokers[b.NodeID] = net.JoinHostPort(b.Host, strconv.Itoa(int(b.Port)))
	}
	for i := range m.Topics {
		t := &m.Topics[i]
		switch err := kerr.ErrorForCode(t.ErrorCode); {
		case t.Topic == nil, errors.Is(err, kerr.UnknownTopicOrPartition):
		case err != nil:
			c.Unsure[*t.Topic] = err
		default:
			c.Topics[*t.Topic] = topicMeta(t)
		}
	}
	return c
}

// askMetadata asks for the metadata of topics, nil: of all that may be
// described. kadm would answer from kgo's cache, and with an error for all when
// one topic may not be described.
func askMetadata(ctx context.Context, cl *kgo.Client, topics []string) (*kmsg.MetadataResponse, error) {
	req := kmsg.NewPtrMetadataRequest()
	for _, t := range topics {
		rt := kmsg.NewMetadataRequestTopic()
		rt.Topic = kmsg.StringPtr(t)
		req.Topics = append(req.Topics, rt)
	}
	resp, err := req.RequestWith(ctx, cl)
	if err == nil {
		err = kerr.ErrorForCode(resp.ErrorCode)
	}
	return resp, kconn.OfClient(cl, err)
}

// maxMetaPartitions bounds what a garbled answer can make us allocate; Kafka's
// own limit for a whole cluster is of this size.
const maxMetaPartitions = 1 << 20

func topicMeta(t *kmsg.MetadataResponseTopic) *TopicMeta {
	tm := &TopicMeta{ID: ledger.ID(t.TopicID), Partitions: make([]PartitionMeta, 0, len(t.Partitions))}
	slices.SortFunc(t.Partitions, func(a, b kmsg.MetadataResponseTopicPartition) int { return cmp.Compare(a.Partition, b.Partition) })
	for _, p := range t.Partitions {
		if p.Partition < int32(len(tm.Partitions)) || p.Partition >= maxMetaPartitions {
			continue // below 0, named twice, or no number that a topic has
		}
		for int(p.Partition) > len(tm.Partitions) { // a hole: not known
			tm.Partitions = append(tm.Partitions, PartitionMeta{Leader: -1, Epoch: -1})
		}
		tm.Partitions = append(tm.Partitions, PartitionMeta{Leader: p.Leader, Epoch: p.LeaderEpoch})
	}
	return tm
}

// sortedKeys keeps requests and logs in one order.
func sortedKeys[V any](m map[string]V) []string {
	out := make([]string, 0, len(m))
	for k := range m {
		out = append(out, k)
	}
	slices.Sort(out)
	return out
}
