package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"runtime/pprof"
	"strings"
	"syscall"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/lockstep-kafka/lockstep/bench/measure"
	"github.com/lockstep-kafka/lockstep/internal/app"
	"github.com/lockstep-kafka/lockstep/internal/config"
	"github.com/lockstep-kafka/lockstep/internal/testkafka"
)

const (
	fakeBrokers   = 3   // of each cluster
	perTopic      = 100 // partitions of a topic
	recordBytes   = 1024
	phaseTime     = 25 * time.Second // five checkpoints
	betweenWrites = 4 * time.Second  // of one partition: each moves between two checkpoints
)

// point runs one Lockstep, as a process of its own, between two fake clusters
// that count what goes over their sockets.
func point(ctx context.Context, partitions int) (_ Point, err error) {
	p := Point{Partitions: partitions, Topics: (partitions + perTopic - 1) / perTopic, Brokers: fakeBrokers, Load: measure.Load()}
	each := int32(partitions / p.Topics)
	if int(each)*p.Topics != partitions {
		return p, fmt.Errorf("%d partitions: below %d, or a multiple of it", partitions, perTopic)
	}
	var names []string
	for i := range p.Topics {
		names = append(names, fmt.Sprintf("orders-%06d", i))
	}
	quiet := kfake.WithLogger(kfake.BasicLogger(io.Discard, kfake.LogLevelNone))
	srcCount, dstCount := newCounter(), newCounter()
	src, err := kfake.NewCluster(quiet, kfake.NumBrokers(fakeBrokers), kfake.ClusterID("source"), kfake.SeedTopics(each, names...), kfake.ListenFn(srcCount.listen))
	if err != nil {
		return p, fmt.Errorf("source: %w", err)
	}
	defer src.Close()
	dst, err := kfake.NewCluster(quiet, kfake.NumBrokers(fakeBrokers), kfake.ClusterID("destination"), kfake.ListenFn(dstCount.listen))
	if err != nil {
		return p, fmt.Errorf("destination: %w", err)
	}
	defer dst.Close()
	w, err := kgo.NewClient(kgo.SeedBrokers(src.ListenAddrs()...), kgo.ClientID("writer"), kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.ProducerLinger(0), kgo.DisableIdempotentWrite(), kgo.ProducerBatchCompression(kgo.NoCompression()))
	if err != nil {
		return p, fmt.Errorf("writer: %w", err)
	}
	defer w.Close()
	l, err := startLockstep(ctx, src.ListenAddrs(), dst.ListenAddrs())
	if err != nil {
		return p, err
	}
	defer func() { err = errors.Join(err, l.stop()) }()

	watch := func(d time.Duration, f func(context.Context) error) (ph Phase, err error) {
		before, err := measure.Process(l.pid())
		if err != nil {
			return ph, err
		}
		s, t, began := srcCount.now(), dstCount.now(), time.Now()
		fctx, cancel := context.WithTimeout(ctx, d)
		err = f(fctx)
		cancel()
		ph = Phase{Seconds: time.Since(began).Seconds(), Source: srcCount.since(s), Dest: dstCount.since(t)}
		after, perr := measure.Process(l.pid())
		ph.CPU = (after.CPU - before.CPU).Seconds()
		return ph, errors.Join(err, perr, ctx.Err())
	}
	if p.Start, err = watch(10*time.Minute, func(ctx context.Context) error {
		if _, err := writeRound(ctx, w, names, each, 0); err != nil {
			return err
		}
		return mirrored(ctx, dst, names, each)
	}); err != nil {
		return p, fmt.Errorf("start of %d partitions: %w", partitions, err)
	}
	p.StartS = p.Start.Seconds
	// Two checkpoints later nothing of the start is left.
	if err := sleep(ctx, 12*time.Second); err != nil {
		return p, err
	}
	if p.Idle, err = watch(phaseTime, wait); err != nil {
		return p, fmt.Errorf("idle: %w", err)
	}
	busy, end := context.WithCancel(ctx)
	defer end()
	var written int64
	done := make(chan error, 1)
	counts := make(chan int64, 1024)
	go func() {
		for busy.Err() == nil {
			n, err := writeRound(busy, w, names, each, betweenWrites)
			if err != nil && busy.Err() == nil {
				done <- err
				return
			}
			counts <- n
		}
		done <- nil
	}()
	if err := sleep(ctx, 2*betweenWrites); err != nil {
		return p, err
	}
	for len(counts) > 0 {
		<-counts
	}
	if _, err := l.ask("profile"); err != nil {
		return p, err
	}
	if p.Busy, err = watch(phaseTime, wait); err != nil {
		return p, fmt.Errorf("busy: %w", err)
	}
	profile, err := l.ask("profile")
	if err != nil {
		return p, err
	}
	if p.BusyCPU, err = shares(profile); err != nil {
		return p, err
	}
	end()
	if err := <-done; err != nil {
		return p, fmt.Errorf("writer: %w", err)
	}
	for len(counts) > 0 {
		written += <-counts
	}
	p.BusyWrites = written
	var h heap
	b, err := l.ask("heap")
	if err == nil {
		err = json.Unmarshal(b, &h)
	}
	if err != nil {
		return p, err
	}
	p.HeapBytes, p.Goroutines = h.Heap, h.Goroutines
	p.Join, err = join(ctx, src, dst, dstCount)
	if err != nil {
		return p, fmt.Errorf("a second instance: %w", err)
	}
	return p, nil
}

// join starts a second instance, which takes over half of the ledger
// partitions, and waits until both write no more to the ledger.
func join(ctx context.Context, src, dst *kfake.Cluster, count *counter) (j Join, err error) {
	if err := sleep(ctx, 12*time.Second); err != nil { // the last checkpoints
		return j, err
	}
	const txn, produce = "lockstep-ledger EndTxn", "lockstep-ledger InitProducerID"
	before := count.now()
	began := time.Now()
	l, err := startLockstep(ctx, src.ListenAddrs(), dst.ListenAddrs())
	if err != nil {
		return j, err
	}
	defer func() { err = errors.Join(err, l.stop()) }()
	last, seen := began, int64(-1)
	for time.Since(last) < 5*time.Second || seen == 0 {
		if time.Since(began) > 5*time.Minute {
			return j, errors.New("it takes nothing over")
		}
		if err := sleep(ctx, 50*time.Millisecond); err != nil {
			return j, err
		}
		now := count.now()
		if n := now[txn].Requests - before[txn].Requests; n != seen {
			last, seen = time.Now(), n
		}
		j.Acquired = now[produce].Requests - before[produce].Requests
	}
	j.Seconds, j.Txns = last.Sub(began).Seconds(), seen
	return j, nil
}

func wait(ctx context.Context) error { <-ctx.Done(); return nil }

// writeRound writes one record to each partition, spread over a time.
func writeRound(ctx context.Context, w *kgo.Client, topics []string, partitions int32, over time.Duration) (n int64, err error) {
	value := make([]byte, recordBytes)
	began := time.Now()
	total := len(topics) * int(partitions)
	failed := make(chan error, 1)
	for i := range total {
		if due := time.Duration(float64(over) * float64(i) / float64(total)); due > time.Since(began) {
			if err := sleep(ctx, due-time.Since(began)); err != nil {
				return n, err
			}
		}
		w.Produce(ctx, &kgo.Record{Topic: topics[i%len(topics)], Partition: int32(i / len(topics)), Value: value}, func(_ *kgo.Record, err error) {
			if err != nil {
				select {
				case failed <- err:
				default:
				}
			}
		})
		n++
	}
	if err := w.Flush(ctx); err != nil {
		return n, err
	}
	select {
	case err := <-failed:
		return n, err
	default:
	}
	return n, sleep(ctx, over-time.Since(began))
}

// mirrored waits until each partition has a record on the destination.
func mirrored(ctx context.Context, dst *kfake.Cluster, topics []string, partitions int32) error {
	for _, t := range topics {
		for p := range partitions {
			for {
				if i := dst.PartitionInfo(t, p); i != nil && i.HighWatermark > 0 {
					break
				}
				if err := sleep(ctx, 50*time.Millisecond); err != nil {
					return fmt.Errorf("%s/%d is not mirrored: %w", t, p, err)
				}
			}
		}
	}
	return nil
}

func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// child is a running Lockstep.
type child struct {
	cmd   *exec.Cmd
	in    io.WriteCloser
	out   *bufio.Reader
	dir   string
	ports *testkafka.Ports
}

func startLockstep(ctx context.Context, src, dst []string) (_ *child, err error) {
	c := &child{}
	if c.dir, err = os.MkdirTemp("", "lockstep-model"); err != nil {
		return nil, err
	}
	if c.ports, err = testkafka.ReservePorts(fakeBrokers + 1); err != nil {
		return nil, err
	}
	list := func(a []string) string { return "[\"" + strings.Join(a, "\", \"") + "\"]" }
	text := fmt.Sprintf(`listeners:
  - address: %s
    broker_ports: %d-%d
destination:
  bootstrap: %s
mirrors:
  - name: model
    source: {bootstrap: %s}
    topics: {include: ["orders-.*"]}
admin: {address: ""}
log: {level: warn}
`, c.ports.Addr(0), c.ports.First+1, c.ports.First+fakeBrokers, list(dst), list(src))
	path := filepath.Join(c.dir, "lockstep.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		return nil, err
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	c.cmd = exec.CommandContext(ctx, self, "-child", path)
	c.cmd.Stderr = os.Stderr
	c.cmd.Cancel = func() error { return c.cmd.Process.Signal(syscall.SIGTERM) }
	if c.in, err = c.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := c.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	c.out = bufio.NewReader(out)
	if err := c.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start Lockstep: %w", err)
	}
	return c, nil
}

func (c *child) pid() int { return c.cmd.Process.Pid }

type heap struct{ Heap, Goroutines float64 }

// ask sends the child a word and takes one answer, in a line.
func (c *child) ask(word string) ([]byte, error) {
	if _, err := io.WriteString(c.in, word+"\n"); err != nil {
		return nil, err
	}
	line, err := c.out.ReadBytes('\n')
	if err != nil {
		return nil, fmt.Errorf("%s of Lockstep: %w", word, err)
	}
	var b []byte
	return b, json.Unmarshal(line, &b)
}

func (c *child) stop() error {
	_ = c.in.Close()
	err := c.cmd.Wait()
	c.ports.Release()
	return errors.Join(err, os.RemoveAll(c.dir))
}

// serve is the child's side: Lockstep until standard input ends.
func serve(ctx context.Context, path string) error {
	c, err := config.Load(path)
	if err != nil {
		return err
	}
	ctx, cancel := signal.NotifyContext(ctx, syscall.SIGTERM)
	defer cancel()
	go func() {
		defer cancel()
		answers(os.Stdin, os.Stdout)
	}()
	return app.Run(ctx, c, app.Options{LogTo: os.Stderr})
}

// answers are the child's to the words of its parent: "heap", and "profile" at
// the beginning and the end of one.
func answers(from io.Reader, to io.Writer) {
	var profile bytes.Buffer
	running := false
	for in := bufio.NewScanner(from); in.Scan(); {
		var out []byte
		switch in.Text() {
		case "heap":
			runtime.GC()
			var m runtime.MemStats
			runtime.ReadMemStats(&m)
			out, _ = json.Marshal(heap{float64(m.HeapAlloc), float64(runtime.NumGoroutine())})
		case "profile":
			if running = !running; running {
				profile.Reset()
				if err := pprof.StartCPUProfile(&profile); err != nil {
					fmt.Fprintln(os.Stderr, "profile:", err)
				}
			} else {
				pprof.StopCPUProfile()
				out = profile.Bytes()
			}
		}
		line, _ := json.Marshal(out)
		fmt.Fprintf(to, "%s\n", line)
	}
}
