package content

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/lockstep-kafka/lockstep/internal/testkafka/oracle"
)

// producer is a franz-go client for partition 0 of the topic: transactions and idempotent batches need one.
type producer struct {
	*kgo.Client
	topic string
}

func (f *Filler) producer(codec kgo.CompressionCodec, opts ...kgo.Opt) (*producer, error) {
	o := append([]kgo.Opt{
		kgo.SeedBrokers(f.Cluster.Seeds()...), kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.ProducerBatchCompression(codec), kgo.ProducerLinger(30 * time.Millisecond),
	}, opts...)
	cl, err := kgo.NewClient(o...)
	if err != nil {
		return nil, fmt.Errorf("content: %w", err)
	}
	return &producer{cl, f.Topic}, nil
}

// put writes "key=value" records as one batch; the value "null" is null.
func (p *producer) put(ctx context.Context, kvs ...string) error {
	var rs []*kgo.Record
	for _, kv := range kvs {
		k, v, _ := strings.Cut(kv, "=")
		r := &kgo.Record{Topic: p.topic, Key: []byte(k), Value: []byte(v)}
		if v == "null" {
			r.Value = nil
		}
		rs = append(rs, r)
	}
	return p.ProduceSync(ctx, rs...).FirstErr()
}

// step is one action of a scenario.
type step func(context.Context) error

func run(ctx context.Context, steps ...step) error {
	for i, s := range steps {
		if err := s(ctx); err != nil {
			return fmt.Errorf("step %d: %w", i, err)
		}
	}
	return nil
}

func (p *producer) begin() step { return func(context.Context) error { return p.BeginTransaction() } }

func (p *producer) end(how kgo.TransactionEndTry) step {
	return func(ctx context.Context) error { return p.EndTransaction(ctx, how) }
}

func (p *producer) puts(kvs ...string) step {
	return func(ctx context.Context) error { return p.put(ctx, kvs...) }
}

// fillTransactions: committed, aborted and interleaved ones, around records outside of any.
func fillTransactions(ctx context.Context, f *Filler) error {
	var ps []*producer
	for i := range 4 {
		opts := []kgo.Opt{kgo.DisableIdempotentWrite()}
		if i > 0 {
			opts = []kgo.Opt{kgo.TransactionalID(fmt.Sprintf("%s-%d", f.Topic, i))}
		}
		p, err := f.producer(kgo.NoCompression(), opts...)
		if err != nil {
			return err
		}
		defer p.Close()
		ps = append(ps, p)
	}
	plain, a, b, c := ps[0], ps[1], ps[2], ps[3]
	const commit, abort = kgo.TryCommit, kgo.TryAbort
	if err := run(
		ctx,
		plain.puts("n=0", "n=1"),
		a.begin(), a.puts("a=committed", "a=2"), a.end(commit),
		b.begin(), b.puts("b=aborted", "b=2"), b.puts("b=3"), b.end(abort),
		// b aborts around c's commit; the plain record is outside of both.
		b.begin(), b.puts("b=x1"), c.begin(), c.puts("c=d1"), plain.puts("n=2"), b.puts("b=x2"), c.puts("c=d2"), c.end(commit), b.puts("b=x3"), b.end(abort),
		// a commits around b's abort, and c's two transactions follow each other without a gap.
		a.begin(), a.puts("a=y1"), b.begin(), b.puts("b=z1", "b=z2"), b.end(abort), a.puts("a=y2"), a.end(commit),
		c.begin(), c.puts("c=e1"), c.end(abort), c.begin(), c.puts("c=e2"), c.end(commit),
		// Aborted records are the last data of the log, and a marker its last batch.
		plain.puts("n=3"), b.begin(), b.puts("b=last"), b.end(abort),
	); err != nil {
		return err
	}
	return WaitDecided(ctx, f.Cluster.Bootstrap(), f.Topic, 0)
}

// WaitDecided waits until no transaction is open in a partition: the coordinator answers before its markers are in
// the log.
func WaitDecided(ctx context.Context, bootstrap, topic string, partition int32) error {
	for {
		var ends [2]int64
		for i, iso := range []oracle.Isolation{oracle.ReadCommitted, oracle.ReadUncommitted} {
			o, err := oracle.ListOffset(ctx, bootstrap, topic, partition, iso, oracle.Latest)
			if err != nil {
				return err
			}
			ends[i] = o.Offset
		}
		if ends[0] == ends[1] {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("content: a transaction stays open at %d of %s-%d: %w", ends[0], topic, partition, ctx.Err())
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// OpenTransaction begins a transaction on the topic, writes into it and leaves it open: the last stable offset
// stays behind. The result ends it and waits until it is decided in the log (no other may be open).
func (f *Filler) OpenTransaction(ctx context.Context, kvs ...string) (end func(ctx context.Context, commit bool) error, err error) {
	p, err := f.producer(kgo.NoCompression(), kgo.TransactionalID(fmt.Sprintf("%s-open-%d", f.Topic, time.Now().UnixNano())))
	if err != nil {
		return nil, err
	}
	if err := run(ctx, p.begin(), p.puts(kvs...)); err != nil {
		p.Close()
		return nil, err
	}
	return func(ctx context.Context, commit bool) error {
		defer p.Close()
		if err := p.EndTransaction(ctx, kgo.TransactionEndTry(commit)); err != nil {
			return err
		}
		return WaitDecided(ctx, f.Cluster.Bootstrap(), f.Topic, 0)
	}, nil
}

// fillCompacted: every kind of hole that the cleaner leaves. It returns when the cleaner has passed.
func fillCompacted(ctx context.Context, f *Filler) error {
	var err error
	mk := func(codec kgo.CompressionCodec, opts ...kgo.Opt) *producer {
		if err != nil {
			return nil
		}
		var p *producer
		p, err = f.producer(codec, opts...)
		return p
	}
	none, raw := kgo.NoCompression(), kgo.DisableIdempotentWrite()
	plain, gz := mk(none, raw), mk(kgo.GzipCompression(), raw)
	id1, id2 := mk(none), mk(none)
	ta, tb := mk(none, kgo.TransactionalID(f.Topic+"-a")), mk(none, kgo.TransactionalID(f.Topic+"-b"))
	for _, p := range []*producer{plain, gz, id1, id2, ta, tb} {
		if p != nil {
			defer p.Close()
		}
	}
	if err != nil {
		return err
	}
	a, b := strings.Repeat("a", 200), strings.Repeat("b", 200)
	err = run(
		ctx,
		plain.puts("k0=a0", "k1=a1"), // vanishes: a hole at the start of the log
		plain.puts("k1=b1", "k2=b2", "k3=b3", "k4=b4", "k5=b5"),
		plain.puts("k5=c5"),                   // vanishes: a hole between batches
		plain.puts("k0=c0", "k2=c2", "k6=c6"), // keeps some
		id1.puts("x1=i1", "x2=i1"),            // an idempotent producer's batch that is not its last: vanishes
		id1.puts("x1=i2", "x2=i2"),            // and its last one: stays as an empty batch
		id2.puts("x1=j1", "x2=j2"),
		gz.puts("g1="+a, "g2="+a, "g3="+a, "g4="+a), // compressed, with holes
		gz.puts("g2="+b, "g4="+b),
		ta.begin(), ta.puts("t1=a", "t2=a"), ta.end(kgo.TryCommit),
		tb.begin(), tb.puts("t1=X", "t3=X"), tb.end(kgo.TryAbort),
		ta.begin(), ta.puts("t2=b"), ta.end(kgo.TryCommit),
		plain.puts("k3=null", "k7=d7"), // a tombstone
		plain.puts("t2=c"),
	)
	if err != nil {
		return err
	}
	return f.waitCleaned(ctx)
}

// waitCleaned waits until the raw log has a batch with holes and an emptied one. The cleaner leaves the active
// segment alone, and a segment rolls only at an append that is late enough (segment.ms): so records are added.
// Then the cleaner is kept off, so that every later reader sees the same log.
func (f *Filler) waitCleaned(ctx context.Context) error {
	frozen := false
	var before []oracle.Batch
	for i := 0; ; i++ {
		batches, err := oracle.Batches(ctx, f.Cluster.Bootstrap(), f.Topic, 0)
		if err != nil {
			return err
		}
		holes, empty := Cleaned(batches)
		switch {
		case frozen && reflect.DeepEqual(before, batches):
			return nil
		case frozen: // a pass that had begun before
		case holes && empty:
			if err := SetConfig(ctx, f.Cluster.Bootstrap(), f.Topic, "min.compaction.lag.ms", "604800000"); err != nil {
				return err
			}
			frozen = true
		case i%2 == 0:
			if err := f.write(ctx, oracle.None, rec(time.Now().UnixMilli(), "roll", fmt.Sprint(i))); err != nil {
				return err
			}
		}
		before = batches
		select {
		case <-ctx.Done():
			return errors.Join(fmt.Errorf("the cleaner left no holes: %v", batches), ctx.Err())
		case <-time.After(500 * time.Millisecond): // more than log.cleaner.backoff.ms
		}
	}
}

// Cleaned says whether the log cleaner left a batch with holes, and one without records.
func Cleaned(batches []oracle.Batch) (holes, empty bool) {
	for _, b := range batches {
		if b.Control() {
			continue
		}
		holes = holes || (b.Count > 0 && b.Count <= b.LastDelta)
		empty = empty || b.Count == 0
	}
	return holes, empty
}
