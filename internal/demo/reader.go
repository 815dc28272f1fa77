package demo

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// reader is an ordinary consumer group behind the proxy. It keeps what it read
// for the comparison.
type reader struct {
	client *kgo.Client
	mu     sync.Mutex
	got    map[string]map[int32][]*kgo.Record
	epochs map[string]map[int32]int32
}

func newReader(proxy string) (*reader, error) {
	var names []string
	for t := range topics {
		names = append(names, t)
	}
	c, err := kgo.NewClient(kgo.SeedBrokers(proxy), kgo.ConsumerGroup("demo"), kgo.ConsumeTopics(names...),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.MetadataMinAge(200*time.Millisecond))
	if err != nil {
		return nil, fmt.Errorf("reader: %w", err)
	}
	r := &reader{client: c, got: map[string]map[int32][]*kgo.Record{}, epochs: map[string]map[int32]int32{}}
	for t, n := range topics {
		r.got[t], r.epochs[t] = make(map[int32][]*kgo.Record, n), make(map[int32]int32, n)
	}
	return r, nil
}

// run reads until ctx ends.
func (r *reader) run(ctx context.Context) error {
	for ctx.Err() == nil {
		r.poll(ctx)
	}
	return nil
}

func (r *reader) poll(ctx context.Context) {
	fs := r.client.PollFetches(ctx)
	r.mu.Lock()
	defer r.mu.Unlock()
	fs.EachRecord(func(x *kgo.Record) {
		r.got[x.Topic][x.Partition] = append(r.got[x.Topic][x.Partition], x)
		r.epochs[x.Topic][x.Partition] = x.LeaderEpoch
	})
}

// read is how many records of a partition were read and the last one's epoch.
func (r *reader) read(topic string, p int32) (n int, epoch int32) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.got[topic][p]), r.epochs[topic][p]
}

func (r *reader) close() { r.client.Close() }
