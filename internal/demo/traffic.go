package demo

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
)

// traffic keeps the source cluster busy with what makes offsets and epochs
// interesting: a log that doesn't start at 0, leader changes, and transactions
// of which some are aborted.
type traffic struct {
	source  *kfake.Cluster
	client  *kgo.Client // plain records
	tx      *kgo.Client // transactions
	written atomic.Int64
	moves   atomic.Int64
	aborted atomic.Int64
}

func newTraffic(ctx context.Context, source *kfake.Cluster) (*traffic, error) {
	t := &traffic{source: source}
	var err error
	if t.client, err = kgo.NewClient(kgo.SeedBrokers(source.ListenAddrs()...), kgo.ProducerBatchCompression(kgo.Lz4Compression())); err != nil {
		return nil, fmt.Errorf("traffic: %w", err)
	}
	if t.tx, err = kgo.NewClient(kgo.SeedBrokers(source.ListenAddrs()...), kgo.TransactionalID("demo")); err != nil {
		t.client.Close()
		return nil, fmt.Errorf("traffic: %w", err)
	}
	if err := t.prepare(ctx); err != nil {
		t.close()
		return nil, err
	}
	return t, nil
}

// prepare creates the topics with some history whose beginning is deleted
// already, so that offset 0 exists nowhere.
func (t *traffic) prepare(ctx context.Context) error {
	adm := kadm.NewClient(t.client)
	for name, n := range topics {
		if _, err := adm.CreateTopic(ctx, n, 1, nil, name); err != nil {
			return fmt.Errorf("create topic %s: %w", name, err)
		}
	}
	for range 300 {
		t.produce(ctx, t.client)
	}
	if err := t.client.Flush(ctx); err != nil {
		return fmt.Errorf("write history: %w", err)
	}
	for name, n := range topics {
		for p := range n {
			if err := t.source.DeleteRecords(name, p, int64(11+p)); err != nil {
				return fmt.Errorf("delete records: %w", err)
			}
		}
	}
	return nil
}

func (t *traffic) produce(ctx context.Context, c *kgo.Client) {
	n := t.written.Add(1)
	topic := "orders"
	if n%4 == 0 {
		topic = "payments"
	}
	c.Produce(ctx, &kgo.Record{
		Topic: topic, Key: fmt.Appendf(nil, "k%d", n%97), Value: fmt.Appendf(nil, `{"n":%d}`, n),
		Headers: []kgo.RecordHeader{{Key: "n", Value: fmt.Append(nil, n)}},
	}, nil)
}

// run writes until ctx ends, and returns with everything written or given up.
func (t *traffic) run(ctx context.Context) error {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	flush := context.WithoutCancel(ctx)
	for i := 1; ; i++ {
		select {
		case <-ctx.Done():
			return t.client.Flush(flush)
		case <-tick.C:
		}
		for range 5 {
			t.produce(flush, t.client)
		}
		if i%50 == 0 {
			if err := t.transaction(flush, i%100 == 0); err != nil {
				return err
			}
		}
		if i%150 == 0 {
			t.moveLeaders()
		}
	}
}

func (t *traffic) transaction(ctx context.Context, commit bool) error {
	if err := t.tx.BeginTransaction(); err != nil {
		return fmt.Errorf("begin transaction: %w", err)
	}
	for range 7 {
		t.produce(ctx, t.tx)
	}
	err := t.tx.Flush(ctx)
	if !commit {
		t.aborted.Add(7)
	}
	return errors.Join(err, t.tx.EndTransaction(ctx, kgo.TransactionEndTry(commit)))
}

// moveLeaders moves each partition to the next broker: one leader epoch up.
func (t *traffic) moveLeaders() {
	for name, n := range topics {
		for p := range n {
			if t.source.MoveTopicPartition(name, p, (t.source.LeaderFor(name, p)+1)%brokers) == nil {
				t.moves.Add(1)
			}
		}
	}
}

func (t *traffic) close() {
	t.client.Close()
	t.tx.Close()
}
