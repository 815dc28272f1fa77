package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/bench/measure"
	"github.com/lockstep-kafka/lockstep/epoch"
	"github.com/lockstep-kafka/lockstep/internal/ledger"
)

// measureAll measures the points, and the parts when they are not given.
func measureAll(ctx context.Context, sizes []int, known *Parts) (*Measured, error) {
	m := &Measured{Started: time.Now().UTC().Truncate(time.Second), Machine: measure.ThisMachine(), Load: measure.Load()}
	if out, err := exec.CommandContext(ctx, "git", "rev-parse", "--short", "HEAD").Output(); err == nil {
		m.Commit = strings.TrimSpace(string(out))
	}
	var err error
	if known != nil {
		m.Parts = *known
	} else if m.Parts, err = parts(ctx); err != nil {
		return nil, err
	}
	for _, n := range sizes {
		fmt.Printf("%d partitions (about 90 s, load %.1f)\n", n, measure.Load())
		p, err := point(ctx, n)
		if err != nil {
			return nil, err
		}
		m.Points = append(m.Points, p)
	}
	return m, nil
}

// typical are a partition's entries as they are in the middle of its life.
func typical(topic string, p int32) (*ledger.Record, *ledger.Checkpoint) {
	const lineage = "0123456789abcdef0123456789abcdef"
	id := ledger.ID{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16}
	r := &ledger.Record{
		Mirror: "model", Topic: topic, Partition: p, State: epoch.StateMirroring, Desired: epoch.StateMirroring, StateEpoch: 4,
		Log: epoch.Log{
			Bump: 10, MaxEpoch: 4,
			Spans: []epoch.Span{{Kind: epoch.Mirrored, Gen: 1, PEpoch: 3, PEnd: -1}},
			Chain: epoch.Chain{{Epoch: 2, Start: 0}, {Epoch: 4, Start: 123_456_789}},
		},
		Lineage: lineage, TopicID: id, SourceTopicID: id, SourceCluster: "MkU3OEVBNTcwNTJENDM2Qk", Path: []string{"MkU3OEVBNTcwNTJENDM2Qk"},
	}
	c := &ledger.Checkpoint{
		Topic: topic, Partition: p, Lineage: lineage, Gen: 1, V: 987_654_321, ChainEnd: 987_654_321, P: 987_654_321, Position: 987_654_321,
		LastEpoch: 4, EndShown: 987_654_321, SourceEnd: 987_654_321, StateEpoch: 4, At: time.UnixMilli(1_800_000_000_123).UTC(),
	}
	return r, c
}

func parts(ctx context.Context) (Parts, error) {
	var p Parts
	r, c := typical("orders-000012", 42)
	cp, err := c.Encode()
	if err != nil {
		return p, err
	}
	rec, err := r.Encode()
	if err != nil {
		return p, err
	}
	in := &ledger.Instance{ID: "lockstep-042", Version: "1.0.0", Address: "10.0.0.42:9090", Started: time.Now().UTC(), Lease: time.Now().UTC(), ServesUntil: time.Now().UTC()}
	for range ledger.Partitions {
		in.Applied = append(in.Applied, 123_456_789)
	}
	inst, err := in.Encode()
	if err != nil {
		return p, err
	}
	p.BatchBytes = 61
	p.MarkerBytes = 78 // a control batch of one record: 61 + 17
	p.CheckpointBytes = recordSize(c.Key(), cp)
	p.RecordBytes = recordSize(r.Key(), rec)
	p.InstanceBytes = recordSize(in.Key(), inst)
	p.MetadataBytes, p.FetchAskBytes, p.FetchAnswerBytes = wireSizes()

	least := func(f func(b *testing.B)) (ns, allocs float64) {
		for i := range 5 {
			b := testing.Benchmark(f)
			if n := float64(b.T.Nanoseconds()) / float64(b.N); i == 0 || n < ns {
				ns = n
			}
			allocs = float64(b.AllocsPerOp())
		}
		return ns, allocs
	}
	p.CheckpointDecodeNs, p.CheckpointDecodeAlc = least(func(b *testing.B) {
		for b.Loop() {
			if _, err := ledger.Decode([]byte(c.Key()), cp); err != nil {
				b.Fatal(err)
			}
		}
	})
	p.RecordDecodeNs, _ = least(func(b *testing.B) {
		for b.Loop() {
			if _, err := ledger.Decode([]byte(r.Key()), rec); err != nil {
				b.Fatal(err)
			}
		}
	})
	p.CheckpointEncodeNs, _ = least(func(b *testing.B) {
		for b.Loop() {
			if _, err := c.Encode(); err != nil {
				b.Fatal(err)
			}
		}
	})
	for _, n := range []int{1000, 10_000, 50_000} {
		s, apply, bytes, err := view(ctx, n)
		if err != nil {
			return p, fmt.Errorf("view of %d partitions: %w", n, err)
		}
		p.ScanNs = append(p.ScanNs, s)
		p.ViewApplyNs, p.ViewBytes = apply, bytes // of the largest
	}
	return p, nil
}

// recordSize is what an entry takes in a batch of the ledger.
func recordSize(key string, value []byte) float64 {
	r := kmsg.NewRecord()
	r.Key, r.Value, r.OffsetDelta = []byte(key), value, 100
	r.Length = int32(len(r.AppendTo(nil)) - 1)
	return float64(len(r.AppendTo(nil)))
}

// wireSizes are bytes of one more partition in messages: the difference of two
// sizes.
func wireSizes() (metadata, ask, answer float64) {
	meta := func(n int) int {
		m := kmsg.NewPtrMetadataResponse()
		m.Version = 12
		t := kmsg.NewMetadataResponseTopic()
		for i := range n {
			p := kmsg.NewMetadataResponseTopicPartition()
			p.Partition, p.Replicas, p.ISR = int32(i), []int32{1, 2, 3}, []int32{1, 2, 3}
			t.Partitions = append(t.Partitions, p)
		}
		m.Topics = append(m.Topics, t)
		return len(m.AppendTo(nil))
	}
	req := func(n int) int {
		m := kmsg.NewPtrFetchRequest()
		m.Version = 17
		t := kmsg.NewFetchRequestTopic()
		for range n {
			t.Partitions = append(t.Partitions, kmsg.NewFetchRequestTopicPartition())
		}
		m.Topics = append(m.Topics, t)
		return len(m.AppendTo(nil))
	}
	resp := func(n int) int {
		m := kmsg.NewPtrFetchResponse()
		m.Version = 17
		t := kmsg.NewFetchResponseTopic()
		for range n {
			p := kmsg.NewFetchResponseTopicPartition()
			p.RecordBatches = []byte{}
			t.Partitions = append(t.Partitions, p)
		}
		m.Topics = append(m.Topics, t)
		return len(m.AppendTo(nil))
	}
	per := func(f func(int) int) float64 { return float64(f(101)-f(1)) / 100 }
	return per(meta), per(req), per(resp)
}

// view fills a ledger with partitions and reads it.
func view(ctx context.Context, n int) (s Scan, applyNs, heapBytes float64, err error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	c, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.WithLogger(kfake.BasicLogger(io.Discard, kfake.LogLevelNone)))
	if err != nil {
		return s, 0, 0, err
	}
	defer c.Close()
	opts := []kgo.Opt{kgo.SeedBrokers(c.ListenAddrs()...)}
	cl, err := kgo.NewClient(append(opts, kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.DisableIdempotentWrite(), kgo.ProducerBatchCompression(kgo.NoCompression()))...)
	if err != nil {
		return s, 0, 0, err
	}
	defer cl.Close()
	if err := ledger.EnsureTopic(ctx, kadm.NewClient(cl), 1); err != nil {
		return s, 0, 0, err
	}
	put := func(key string, value []byte, part int32) {
		cl.Produce(ctx, &kgo.Record{Topic: ledger.Topic, Partition: part, Key: []byte(key), Value: value}, nil)
	}
	quiet := ledger.ViewOptions{Client: opts, Logger: slog.New(slog.DiscardHandler)}
	heapNow := func() float64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return float64(m.HeapAlloc)
	}
	each := func(f func(topic string, p int32, r *ledger.Record, c *ledger.Checkpoint) error) error {
		for i := range n {
			topic, p := fmt.Sprintf("orders-%06d", i/perTopic), int32(i%perTopic)
			r, c := typical(topic, p)
			r.TopicID[0], r.TopicID[1], r.TopicID[2] = byte(i/perTopic), byte(i/perTopic>>8), 9
			if err := f(topic, p, r, c); err != nil {
				return err
			}
		}
		return cl.Flush(ctx)
	}
	if err := each(func(topic string, p int32, r *ledger.Record, c *ledger.Checkpoint) error {
		v, err := r.Encode()
		if err != nil {
			return err
		}
		w, err := c.Encode()
		if err != nil {
			return err
		}
		put(r.Key(), v, ledger.PartitionOf(topic, p))
		put(c.Key(), w, ledger.PartitionOf(topic, p))
		return nil
	}); err != nil {
		return s, 0, 0, err
	}
	before := heapNow()
	v, err := ledger.ReadOnce(ctx, quiet)
	if err != nil {
		return s, 0, 0, err
	}
	heapBytes = (heapNow() - before) / float64(n)
	s = Scan{Partitions: len(v.All())}
	if s.Partitions != n {
		return s, 0, 0, fmt.Errorf("the view has %d partitions", s.Partitions)
	}
	for i := range 5 {
		began := time.Now()
		_ = v.All()
		if d := float64(time.Since(began).Nanoseconds()); i == 0 || d < s.AllNs {
			s.AllNs = d
		}
	}
	runtime.KeepAlive(v)
	for i := range 3 {
		began := cpu()
		if _, err := ledger.ReadOnce(ctx, quiet); err != nil {
			return s, 0, 0, err
		}
		if d := float64((cpu() - began).Nanoseconds()) / float64(2*n); i == 0 || d < applyNs {
			applyNs = d
		}
	}
	return s, applyNs, heapBytes, nil
}

// cpu is this process's time so far.
func cpu() time.Duration {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
