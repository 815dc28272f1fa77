package e2e

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/lockstep-kafka/lockstep/internal/testkafka"
	"github.com/lockstep-kafka/lockstep/internal/testkafka/content"
)

// Traffic writes to a topic of the source until Stop, at a modest rate: small batches, several partitions, some in
// transactions that are aborted now and then.
type Traffic struct {
	cluster    *testkafka.Cluster
	topic      string
	partitions int32
	cancel     context.CancelFunc
	wg         sync.WaitGroup
	mu         sync.Mutex
	err        error
	count      int
}

// StartTraffic begins; the test's end stops it.
func StartTraffic(t testing.TB, c *testkafka.Cluster, topic string, partitions int32) *Traffic {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	w := &Traffic{cluster: c, topic: topic, partitions: partitions, cancel: cancel}
	plain, err := trafficClient(c)
	if err != nil {
		t.Fatal(err)
	}
	w.wg.Add(2)
	go func() { defer w.wg.Done(); w.fail(w.plain(ctx, plain)) }()
	go func() { defer w.wg.Done(); w.fail(w.transactions(ctx)) }()
	t.Cleanup(func() {
		cancel()
		w.wg.Wait()
		plain.Close()
	})
	return w
}

func trafficClient(c *testkafka.Cluster, opts ...kgo.Opt) (*kgo.Client, error) {
	return kgo.NewClient(append([]kgo.Opt{
		kgo.SeedBrokers(c.Seeds()...), kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.ProducerLinger(5 * time.Millisecond),
		kgo.RetryTimeout(2 * time.Minute), kgo.MetadataMinAge(100 * time.Millisecond),
	}, opts...)...)
}

func (w *Traffic) fail(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err == nil {
		w.err = err
	}
}

// Stop ends the writing, waits for what is under way, transaction markers included, and returns how many records were
// acknowledged.
func (w *Traffic) Stop(t testing.TB) int {
	t.Helper()
	w.cancel()
	w.wg.Wait()
	if w.err != nil {
		t.Fatalf("traffic: %v", w.err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for p := range w.partitions {
		if err := content.WaitDecided(ctx, w.cluster.Bootstrap(), w.topic, p); err != nil {
			t.Fatal(err)
		}
	}
	return w.count
}

func (w *Traffic) wait(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

// send writes n records to every partition. It finishes what it began: cancelling a kgo producer in the middle
// would leave it open whether its records are in the log.
func (w *Traffic) send(cl *kgo.Client, round, n int, kind string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	var rs []*kgo.Record
	for p := range w.partitions {
		for i := range n {
			rs = append(rs, &kgo.Record{Topic: w.topic, Partition: p, Key: []byte(kind), Value: fmt.Appendf(nil, "%s %d.%d", kind, round, i)})
		}
	}
	if err := cl.ProduceSync(ctx, rs...).FirstErr(); err != nil {
		return fmt.Errorf("%s, round %d: %w", kind, round, err)
	}
	w.mu.Lock()
	w.count += len(rs)
	w.mu.Unlock()
	return nil
}

func (w *Traffic) plain(ctx context.Context, cl *kgo.Client) error {
	for i := 0; w.wait(ctx, 10*time.Millisecond); i++ {
		if err := w.send(cl, i, 1+i%7, "plain"); err != nil {
			return err
		}
	}
	return nil
}

// transactions writes some until ctx ends. kgo can't go on with a producer id after some errors (a coordinator that no
// metadata lists, while brokers restart): then the next client has the same transactional id, like an application that
// is restarted, and aborts what is open.
func (w *Traffic) transactions(ctx context.Context) error {
	for round, failed := 0, 0; ctx.Err() == nil; {
		cl, err := trafficClient(w.cluster, kgo.TransactionalID(w.topic+"-traffic"), kgo.TransactionTimeout(30*time.Second))
		if err != nil {
			return err
		}
		was := round
		err = w.transact(ctx, cl, &round)
		cl.Close()
		if failed++; round > was {
			failed = 0
		}
		if err != nil && failed > 10 {
			return err
		}
	}
	return nil
}

func (w *Traffic) transact(ctx context.Context, cl *kgo.Client, round *int) error {
	for ; w.wait(ctx, 50*time.Millisecond); *round++ {
		if err := cl.BeginTransaction(); err != nil {
			return fmt.Errorf("begin of transaction %d: %w", *round, err)
		}
		how := kgo.TryCommit
		if *round%3 == 0 {
			how = kgo.TryAbort
		}
		if err := w.send(cl, *round, 2, "txn"); err != nil { // a broker restart may fail a transaction: abort it
			how = kgo.TryAbort
		}
		end, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
		err := cl.EndTransaction(end, how)
		cancel()
		if err != nil {
			return fmt.Errorf("end of transaction %d: %w", *round, err)
		}
	}
	return nil
}
