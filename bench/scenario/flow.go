package scenario

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/lockstep-kafka/lockstep/bench/lab"
	"github.com/lockstep-kafka/lockstep/bench/measure"
	"github.com/lockstep-kafka/lockstep/bench/peer"
)

// flow sends records on a fixed schedule to one place and reads them at
// another.
type flow struct {
	from, topic        string // where and what is produced
	to, dst            string // where and what is consumed
	partitions, record int
	rate               int // records a second
	warm, lasts        time.Duration
	proc               *peer.Process // whose usage counts; nil: nobody's
}

// latencies are what a flow found.
type latencies struct {
	ackToArrival, dueToArrival, dueToAck *measure.Latency
	usage                                map[string]float64
}

func (v *latencies) replication() map[string]float64 {
	m := map[string]float64{
		"p50_ms": v.ackToArrival.Quantile(0.5), "p99_ms": v.ackToArrival.Quantile(0.99), "p999_ms": v.ackToArrival.Quantile(0.999), "max_ms": v.ackToArrival.Max(),
		"due_p50_ms": v.dueToArrival.Quantile(0.5), "due_p99_ms": v.dueToArrival.Quantile(0.99),
	}
	for k, x := range v.usage {
		m[k] = x
	}
	return m
}

// times are those of one record, in nanoseconds since the flow's start; 0: not
// yet.
type times struct{ acked, arrived atomic.Int64 }

// probe is the number of records that only find out whether the flow runs.
const probe = ^uint64(0)

// measure waits until records arrive at all, warms up, and then measures.
func (f flow) measure(ctx context.Context) (*latencies, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	producer, err := kgo.NewClient(kgo.SeedBrokers(f.from), kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.ProducerLinger(0),
		kgo.ProducerBatchCompression(kgo.NoCompression()), kgo.MaxBufferedRecords(1<<20), kgo.MaxBufferedBytes(1<<30))
	if err != nil {
		return nil, err
	}
	defer producer.Close()
	consumer, err := kgo.NewClient(kgo.SeedBrokers(f.to), kgo.ConsumeTopics(f.dst), kgo.ConsumeResetOffset(kgo.NewOffset().AtEnd()),
		kgo.MetadataMinAge(100*time.Millisecond), kgo.MetadataMaxAge(time.Second), kgo.FetchMaxWait(time.Second))
	if err != nil {
		return nil, err
	}
	defer consumer.Close()
	total := int(float64(f.rate) * (f.warm + f.lasts).Seconds())
	c := &counting{flow: f, base: time.Now(), records: make([]times, total), flowing: make(chan struct{}), done: make(chan struct{})}
	var reading sync.WaitGroup
	defer reading.Wait()
	defer cancel()
	reading.Go(func() { c.consume(ctx, consumer) })
	if err := c.probe(ctx, producer); err != nil {
		return nil, err
	}
	return c.run(ctx, producer)
}

type counting struct {
	flow
	base    time.Time
	records []times
	missing atomic.Int64
	flowing chan struct{} // closed when every partition has shown a probe
	done    chan struct{} // closed when all records arrived
}

func (c *counting) consume(ctx context.Context, consumer *kgo.Client) {
	c.missing.Store(int64(len(c.records)))
	seen := map[int32]bool{}
	for ctx.Err() == nil {
		fs := consumer.PollFetches(ctx)
		now := int64(time.Since(c.base))
		fs.EachRecord(func(r *kgo.Record) {
			if len(r.Value) < 16 || binary.BigEndian.Uint64(r.Value[8:]) != uint64(c.base.UnixNano()) {
				return // of an earlier flow
			}
			n := binary.BigEndian.Uint64(r.Value)
			if n == probe {
				if seen[r.Partition] = true; len(seen) == c.partitions {
					select {
					case <-c.flowing:
					default:
						close(c.flowing)
					}
				}
				return
			}
			if c.records[n].arrived.CompareAndSwap(0, now) && c.missing.Add(-1) == 0 {
				close(c.done)
			}
		})
	}
}

func (c *counting) value(n uint64) []byte {
	b := make([]byte, c.record)
	binary.BigEndian.PutUint64(b, n)
	binary.BigEndian.PutUint64(b[8:], uint64(c.base.UnixNano()))
	return b
}

// probe sends to every partition now and then until all of them arrive.
func (c *counting) probe(ctx context.Context, producer *kgo.Client) error {
	ctx, cancel := context.WithTimeout(ctx, peer.MM2Start)
	defer cancel()
	for {
		for p := range c.partitions {
			producer.Produce(ctx, &kgo.Record{Topic: c.topic, Partition: int32(p), Value: c.value(probe)}, nil)
		}
		select {
		case <-c.flowing:
			return nil
		case <-time.After(200 * time.Millisecond):
		case <-ctx.Done():
			return fmt.Errorf("nothing arrives at %s: %w", c.dst, context.Cause(ctx))
		}
		if c.proc != nil {
			if err := c.proc.Ended(); err != nil {
				return err
			}
		}
	}
}

func (c *counting) run(ctx context.Context, producer *kgo.Client) (*latencies, error) {
	var failed atomic.Pointer[error]
	start := time.Now()
	due := func(i int) time.Duration { return time.Duration(float64(i) / float64(c.rate) * float64(time.Second)) }
	warm := int(float64(c.rate) * c.warm.Seconds())
	var before measure.Usage
	for i := 0; i < len(c.records); {
		for now := time.Since(start); i < len(c.records) && due(i) <= now; i++ {
			if i == warm && c.proc != nil {
				var err error
				if before, err = c.proc.Usage(); err != nil {
					return nil, errors.Join(c.proc.Ended(), err)
				}
			}
			r := &c.records[i]
			producer.Produce(ctx, &kgo.Record{Topic: c.topic, Partition: int32(i % c.partitions), Value: c.value(uint64(i))}, func(_ *kgo.Record, err error) {
				if err != nil {
					failed.Store(&err)
					return
				}
				r.acked.Store(int64(time.Since(c.base)))
			})
		}
		if i == len(c.records) {
			break
		}
		if err := lab.Sleep(ctx, max(due(i)-time.Since(start), time.Millisecond/2)); err != nil {
			return nil, err
		}
	}
	out := &latencies{measure.NewLatency(), measure.NewLatency(), measure.NewLatency(), map[string]float64{}}
	if c.proc != nil {
		after, err := c.proc.Usage()
		if err != nil {
			return nil, errors.Join(c.proc.Ended(), err)
		}
		out.usage["cpu_pct"] = 100 * (after.CPU - before.CPU).Seconds() / c.lasts.Seconds()
		out.usage["rss_mb"] = float64(after.Peak) / 1e6
	}
	if err := producer.Flush(ctx); err != nil {
		return nil, err
	}
	if err := failed.Load(); err != nil {
		return nil, fmt.Errorf("produce: %w", *err)
	}
	select {
	case <-c.done:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	case <-time.After(time.Minute):
		return nil, fmt.Errorf("%d of %d records did not arrive within a minute", c.missing.Load(), len(c.records))
	}
	offset := start.Sub(c.base)
	for i := warm; i < len(c.records); i++ {
		acked, arrived, planned := c.records[i].acked.Load(), c.records[i].arrived.Load(), int64(offset+due(i))
		out.ackToArrival.Record(time.Duration(arrived - acked))
		out.dueToArrival.Record(time.Duration(arrived - planned))
		out.dueToAck.Record(time.Duration(acked - planned))
	}
	return out, nil
}
