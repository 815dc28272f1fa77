package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/lockstep-kafka/lockstep/internal/testkafka"
)

const topic = "bench"

// bench is one run: a filled source, and a fresh destination for each round.
type bench struct {
	s       settings
	dir     string
	source  *testkafka.Cluster
	records int64
	results []result
}

// result of one peer in one round.
type result struct {
	Round    int     `json:"round"`
	Peer     string  `json:"peer"`
	Seconds  float64 `json:"seconds"` // from its first record on the destination to its last
	MB       float64 `json:"mb"`      // of values, 10^6 bytes
	CPU      float64 `json:"cpu_seconds"`
	PeakRSS  int64   `json:"peak_rss_bytes"`
	StartUp  float64 `json:"startup_seconds"` // until its first record
	LoadAvg1 string  `json:"load_average"`
}

func (b *bench) build(ctx context.Context) error {
	for name, pkg := range map[string]string{"lockstep": "./cmd/lockstep", "copier": "./bench/copier"} {
		cmd := exec.CommandContext(ctx, "go", "build", "-o", filepath.Join(b.dir, name), pkg)
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("go build %s: %w\n%s", pkg, err, out)
		}
	}
	return nil
}

// fill writes the records that every peer will copy, as a kgo producer with
// default settings batches them.
func (b *bench) fill(ctx context.Context) error {
	c, err := kgo.NewClient(kgo.SeedBrokers(b.source.Seeds()...), kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.ProducerBatchCompression(kgo.NoCompression()))
	if err != nil {
		return err
	}
	defer c.Close()
	if _, err := kadm.NewClient(c).CreateTopic(ctx, int32(b.s.partitions), 1, nil, topic); err != nil {
		return err
	}
	value := make([]byte, b.s.recordSize)
	r := rand.NewChaCha8([32]byte{})
	_, _ = r.Read(value)
	b.records = int64(b.s.mib) << 20 / int64(b.s.recordSize)
	failed := make(chan error, 1)
	for i := range b.records {
		c.Produce(ctx, &kgo.Record{Topic: topic, Partition: int32(i % int64(b.s.partitions)), Value: value}, func(_ *kgo.Record, err error) {
			if err != nil {
				select {
				case failed <- err:
				default:
				}
			}
		})
	}
	if err := c.Flush(ctx); err != nil {
		return err
	}
	select {
	case err := <-failed:
		return err
	default:
		return nil
	}
}

// round starts a fresh destination broker and lets each peer copy into it, in
// turns as to who goes first.
func (b *bench) round(ctx context.Context, n int) error {
	dest, err := testkafka.Up(ctx, filepath.Join(b.dir, fmt.Sprintf("destination-%d", n)), testkafka.Options{Name: "destination", Heap: "512m"})
	if err != nil {
		return fmt.Errorf("start the destination broker: %w", err)
	}
	defer dest.Close()
	peers := []func(context.Context, int, *testkafka.Cluster) error{b.lockstep, b.copier}
	for i := range peers {
		if err := peers[(i+n)%len(peers)](ctx, n, dest); err != nil {
			return fmt.Errorf("%w\n%s", err, dest.LogTail(20))
		}
	}
	return nil
}

func (b *bench) copier(ctx context.Context, n int, dest *testkafka.Cluster) error {
	const name = "bench-copy"
	c, err := kgo.NewClient(kgo.SeedBrokers(dest.Seeds()...))
	if err != nil {
		return err
	}
	defer c.Close()
	if _, err := kadm.NewClient(c).CreateTopic(ctx, int32(b.s.partitions), 1, nil, name); err != nil {
		return err
	}
	return b.measure(ctx, n, "kgo copier", dest, name, filepath.Join(b.dir, "copier"),
		"-from", b.source.Bootstrap(), "-to", dest.Bootstrap(), "-src", topic, "-dst", name)
}

func (b *bench) lockstep(ctx context.Context, n int, dest *testkafka.Cluster) error {
	ports, err := testkafka.ReservePorts(8)
	if err != nil {
		return err
	}
	defer ports.Release()
	path := filepath.Join(b.dir, fmt.Sprintf("lockstep-%d.yaml", n))
	text := fmt.Sprintf(`listeners: [{address: "127.0.0.1:%d", broker_ports: "%d-%d"}]
destination: {bootstrap: [%q]}
mirrors: [{name: bench, source: {bootstrap: [%q]}, topics: {include: [%s]}, acks: %s}]
admin: {address: "127.0.0.1:%d"}
log: {level: warn}
`, ports.First, ports.First+2, ports.First+7, dest.Seeds()[0], b.source.Seeds()[0], topic, b.s.acks, ports.First+1)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		return err
	}
	args := []string{"serve", "--config", path}
	if b.s.profile != "" && n == b.s.rounds-1 {
		args = append(args, "--cpuprofile", b.s.profile)
	}
	return b.measure(ctx, n, "lockstep", dest, topic, filepath.Join(b.dir, "lockstep"), args...)
}

// measure runs a peer until the destination's topic has all records.
func (b *bench) measure(ctx context.Context, round int, peer string, dest *testkafka.Cluster, dst, name string, args ...string) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Minute)
	defer cancel()
	load, _ := os.ReadFile("/proc/loadavg")
	started := time.Now()
	p, err := startProcess(ctx, name, args...)
	if err != nil {
		return err
	}
	defer p.stop()
	c, err := kgo.NewClient(kgo.SeedBrokers(dest.Seeds()...), kgo.MetadataMinAge(100*time.Millisecond))
	if err != nil {
		return err
	}
	defer c.Close()
	adm := kadm.NewClient(c)
	var first time.Time
	for {
		if err := p.ended(); err != nil {
			return err
		}
		have := total(ctx, adm, dst)
		if have > 0 && first.IsZero() {
			first = time.Now()
		}
		if have >= b.records {
			break
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s: %d of %d records arrived: %w\n%s", peer, have, b.records, ctx.Err(), lastLines(p.out.String(), 20))
		case <-time.After(10 * time.Millisecond):
		}
	}
	end := time.Now()
	u, err := p.usage()
	if err != nil {
		return err
	}
	r := result{
		Round: round + 1, Peer: peer, Seconds: end.Sub(first).Seconds(), MB: float64(b.records) * float64(b.s.recordSize) / 1e6,
		CPU: u.CPU.Seconds(), PeakRSS: u.RSS, StartUp: first.Sub(started).Seconds(), LoadAvg1: string(load[:4]),
	}
	b.results = append(b.results, r)
	fmt.Printf("round %d  %-10s  %6.1f MB/s  %6.0f MB per CPU-second  peak RSS %4.0f MB  (first record after %.1f s, load %s)\n",
		r.Round, r.Peer, r.MB/r.Seconds, r.MB/r.CPU, float64(r.PeakRSS)/1e6, r.StartUp, r.LoadAvg1)
	return nil
}

// total counts the records of a topic on the destination; a topic that is not
// there yet has none.
func total(ctx context.Context, adm *kadm.Client, topic string) (n int64) {
	ends, err := adm.ListEndOffsets(ctx, topic)
	if err != nil || errors.Is(ends.Error(), context.Canceled) {
		return 0
	}
	ends.Each(func(o kadm.ListedOffset) {
		if o.Err == nil {
			n += o.Offset
		}
	})
	return n
}
