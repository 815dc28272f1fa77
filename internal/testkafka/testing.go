package testkafka

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"
)

// Require skips a test where real Kafka can't run, after saying so on stderr and, when LOCKSTEP_SKIPPED names a
// file, in that file (make test prints it at its end). With CI=true a missing tool fails the test instead.
func Require(t testing.TB, tools ...string) {
	t.Helper()
	var lacking []string
	for _, tool := range append([]string{"java", "javac", "mvn"}, tools...) {
		if _, err := exec.LookPath(tool); err != nil {
			lacking = append(lacking, tool)
		}
	}
	if len(lacking) == 0 {
		return
	}
	msg := fmt.Sprintf("NOT TESTED: %s needs a real Kafka, and this machine lacks: %s", t.Name(), strings.Join(lacking, ", "))
	if os.Getenv("CI") == "true" {
		t.Fatal(msg)
	}
	fmt.Fprintln(os.Stderr, "\n*** "+msg+"\n")
	if path := os.Getenv("LOCKSTEP_SKIPPED"); path != "" {
		f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
		if err != nil {
			t.Fatalf("LOCKSTEP_SKIPPED: %v", err)
		}
		_, _ = fmt.Fprintln(f, msg)
		_ = f.Close()
	}
	t.Skip(msg)
}

// logsOfTest is how many bytes of logs a test's clusters make, at most.
const logsOfTest = 2 << 30

// Start starts a cluster that ends with the test. When the test fails the brokers' last log lines are printed.
func Start(t testing.TB, opts Options) *Cluster {
	t.Helper()
	Require(t)
	if opts.Logf == nil {
		opts.Logf = t.Logf
	}
	if opts.LogRoot == "" {
		dir, _, remove, err := LogRoot("testkafka-logs", logsOfTest)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(remove)
		opts.LogRoot = dir
	}
	c, err := Up(t.Context(), t.TempDir(), opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		logOnFailure(t, c)
		c.Close()
	})
	return c
}

func logOnFailure(t testing.TB, c *Cluster) {
	if t.Failed() {
		t.Log(c.LogTail(30))
	}
}

// Pair is a source and a destination cluster that the tests of one package share. They start when the first test
// asks for them, so a run without real-Kafka tests starts none.
//
//	var kafka = testkafka.Pair{}
//	func TestMain(m *testing.M) { os.Exit(kafka.Main(m)) }
type Pair struct {
	// SourceOptions and DestinationOptions are used when the clusters start.
	SourceOptions, DestinationOptions Options

	mu       sync.Mutex
	dir      string
	logs     string
	remove   []func()
	src, dst *Cluster
	err      error
}

// Main runs the package's tests and ends the clusters. Its result is for os.Exit.
func (p *Pair) Main(m *testing.M) int {
	code := m.Run()
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range []*Cluster{p.src, p.dst} {
		if c != nil {
			c.Close()
		}
	}
	for _, remove := range p.remove {
		remove()
	}
	return code
}

// Source is the shared source cluster, every node of it running.
func (p *Pair) Source(t testing.TB) *Cluster {
	t.Helper()
	return p.get(t, &p.src, p.SourceOptions, "source")
}

// Destination is the shared destination cluster, every node of it running.
func (p *Pair) Destination(t testing.TB) *Cluster {
	t.Helper()
	return p.get(t, &p.dst, p.DestinationOptions, "destination")
}

func (p *Pair) folders() error {
	dir, remove, err := Scratch("testkafka")
	if err != nil {
		return err
	}
	p.dir, p.remove = dir, append(p.remove, remove)
	logs, _, remove, err := LogRoot("testkafka-logs", logsOfTest)
	if err != nil {
		return err
	}
	p.logs, p.remove = logs, append(p.remove, remove)
	return nil
}

func (p *Pair) get(t testing.TB, at **Cluster, opts Options, name string) *Cluster {
	t.Helper()
	Require(t)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.err != nil {
		t.Fatalf("the shared clusters didn't start: %v", p.err)
	}
	if *at == nil {
		opts.Name = name
		opts.Logf = func(f string, a ...any) { fmt.Fprintf(os.Stderr, f+"\n", a...) }
		if p.dir == "" {
			p.err = p.folders() // they outlive the test
		}
		opts.LogRoot = p.logs
		if p.err == nil {
			// Not the test's context: the cluster outlives the test.
			ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
			defer cancel()
			*at, p.err = Up(ctx, p.dir, opts)
		}
		if p.err != nil {
			t.Fatal(p.err)
		}
	}
	c := *at
	if err := c.Heal(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { logOnFailure(t, c) })
	return c
}
