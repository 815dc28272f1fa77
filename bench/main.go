// Command bench measures Lockstep beside what people would use instead, on
// real brokers, in interleaved rounds on the same machine and the same data.
// The ratios inside a round are what counts.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/lockstep-kafka/lockstep/internal/testkafka"
)

type settings struct {
	mib        int
	recordSize int
	partitions int
	rounds     int
	acks       string
	out        string
	profile    string
}

func main() {
	var s settings
	flag.IntVar(&s.mib, "mib", 1024, "MiB of values to mirror")
	flag.IntVar(&s.recordSize, "record", 1024, "bytes of a record's value")
	flag.IntVar(&s.partitions, "partitions", 4, "partitions of the topic")
	flag.IntVar(&s.rounds, "rounds", 3, "rounds")
	flag.StringVar(&s.acks, "acks", "all", "how Lockstep writes: all or leader (M21)")
	flag.StringVar(&s.out, "json", "", "file for the figures as JSON")
	flag.StringVar(&s.profile, "cpuprofile", "", "file for a CPU profile of Lockstep in the last round")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, s); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, s settings) error {
	dir, err := os.MkdirTemp("", "lockstep-bench")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	b := &bench{s: s, dir: dir}
	if err := b.build(ctx); err != nil {
		return err
	}
	source, err := testkafka.Up(ctx, filepath.Join(dir, "source"), testkafka.Options{Name: "source", Heap: "512m"})
	if err != nil {
		return fmt.Errorf("start the source broker: %w", err)
	}
	defer source.Close()
	b.source = source
	fmt.Printf("machine: %s\n", machine())
	if err := b.fill(ctx); err != nil {
		return fmt.Errorf("fill the source: %w\n%s", err, source.LogTail(20))
	}
	for round := range s.rounds {
		if err := b.round(ctx, round); err != nil {
			return fmt.Errorf("round %d: %w", round+1, err)
		}
	}
	return b.report()
}

// machine says where the figures come from, with the load at the start.
func machine() string {
	load, _ := os.ReadFile("/proc/loadavg")
	info, _ := os.ReadFile("/proc/cpuinfo")
	model, cpus := "unknown processor", 0
	for line := range strings.Lines(string(info)) {
		if k, v, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(k) == "model name" {
			model, cpus = strings.TrimSpace(v), cpus+1
		}
	}
	return fmt.Sprintf("%d x %s, load average at the start %s", cpus, model, strings.Join(strings.Fields(string(load))[:3], " "))
}
