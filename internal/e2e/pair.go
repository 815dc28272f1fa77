package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/lockstep-kafka/lockstep/internal/testkafka"
	"github.com/lockstep-kafka/lockstep/internal/testkafka/oracle"
)

// Side is a cluster and the Lockstep in front of it; two of them mirror one another's topics.
type Side struct {
	*Lockstep
	Cluster *testkafka.Cluster
	name    string
	mirrors []string // blocks of the configuration
}

// NewSide reserves ports, so that the other side can name this one, and starts nothing.
func NewSide(t testing.TB, b *Binary, name string, c *testkafka.Cluster) *Side {
	t.Helper()
	ports, err := testkafka.ReservePorts(16)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(ports.Release)
	dir := t.TempDir()
	l := &Lockstep{
		t: t, setup: Setup{Source: c, Destination: c}, bin: b.Path(t), ports: ports,
		conf: filepath.Join(dir, "lockstep.yaml"), log: filepath.Join(dir, "lockstep-"+name+".log"),
	}
	t.Cleanup(l.finish)
	return &Side{Lockstep: l, Cluster: c, name: name}
}

// Mirrors declares a mirror of topics of an address, with further lines of its block. It takes effect with the next
// Launch.
func (s *Side) Mirrors(name, from string, topics []string, lines ...string) {
	s.t.Helper()
	block := fmt.Sprintf("  - name: %s\n    source:\n      bootstrap: [%s]\n    topics:\n      include: [\"%s\"]\n"+
		"    metadata_refresh: 500ms\n    retry_backoff_max: 1s\n    retry_attempts: 1000\n", name, from, strings.Join(topics, `", "`))
	for _, l := range lines {
		block += "    " + l + "\n"
	}
	s.mirrors = append(s.mirrors, block)
	s.WriteConfig()
}

// ReplaceConfig changes a text in the configuration file, for reloads.
func (s *Side) ReplaceConfig(from, to string) {
	s.t.Helper()
	for i, m := range s.mirrors {
		s.mirrors[i] = strings.ReplaceAll(m, from, to)
	}
	s.WriteConfig()
}

// WriteConfig writes the configuration file.
func (s *Side) WriteConfig() {
	s.t.Helper()
	conf := fmt.Sprintf("listeners:\n  - address: %s\n    broker_ports: %d-%d\ndestination:\n  bootstrap: [%s]\n",
		s.Bootstrap(), s.ports.First+2, s.ports.First+15, s.Cluster.Bootstrap())
	if len(s.mirrors) > 0 {
		conf += "mirrors:\n" + strings.Join(s.mirrors, "")
	}
	conf += fmt.Sprintf("admin:\n  address: %s\ninstance:\n  id: e2e-%s\n  session_timeout: 6s\nlimits:\n  drain_timeout: 1s\nlog:\n  level: debug\n", s.ports.Addr(1), s.name)
	if err := os.WriteFile(s.conf, []byte(conf), 0o644); err != nil {
		s.t.Fatal(err)
	}
}

// Up writes the configuration and starts the process.
func (s *Side) Up() {
	s.t.Helper()
	s.WriteConfig()
	s.Launch()
}

// CLI runs a verb of the command line against this side, and returns its standard output and exit code.
func (l *Lockstep) CLI(ctx context.Context, args ...string) (out string, code int) {
	l.t.Helper()
	cmd := exec.CommandContext(ctx, l.bin, append(args, "--config", l.conf)...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit):
		code = exit.ExitCode()
	case err != nil:
		l.t.Fatalf("lockstep %s: %v", strings.Join(args, " "), err)
	}
	l.t.Logf("lockstep %s: exit code %d\n%s%s", strings.Join(args, " "), code, stdout.String(), stderr.String())
	return stdout.String(), code
}

// Verb runs a verb that has to succeed, and decodes its JSON into v (nil: not).
func (l *Lockstep) Verb(ctx context.Context, v any, args ...string) {
	l.t.Helper()
	out, code := l.CLI(ctx, append(args, "--json")...)
	if code != 0 {
		l.t.Fatalf("lockstep %s: exit code %d\n%s", strings.Join(args, " "), code, l.LogTail(40))
	}
	if v != nil {
		if err := json.Unmarshal([]byte(out), v); err != nil {
			l.t.Fatalf("lockstep %s: %v", strings.Join(args, " "), err)
		}
	}
}

// PartitionStatus is a row of describe, as far as tests look at it.
type PartitionStatus struct {
	Mirror            string   `json:"mirror"`
	Topic             string   `json:"topic"`
	Partition         int32    `json:"partition"`
	State             string   `json:"state"`
	Error             string   `json:"error"`
	SourceOffset      int64    `json:"source_offset"`
	DestinationOffset int64    `json:"destination_offset"`
	Lag               int64    `json:"lag"`
	LME               int32    `json:"lme"`
	LMO               int64    `json:"lmo"`
	ShownEpoch        int32    `json:"shown_epoch"`
	WaitingFor        []string `json:"waiting_for"`
	Left              *struct {
		Offset    int64 `json:"offset"`
		Epoch     int32 `json:"epoch"`
		Timestamp int64 `json:"timestamp"`
		SourceEnd int64 `json:"sourceEnd"`
	} `json:"left"`
	Held    *Held  `json:"held"`
	Outcome string `json:"outcome"`
	Text    string `json:"text"`
}

// Held is who holds a partition back on the source.
type Held struct {
	Offset        int64  `json:"offset"`
	HighWatermark int64  `json:"high_watermark"`
	Error         string `json:"error"`
	Transactions  []struct {
		ProducerID      int64     `json:"producer_id"`
		TransactionalID string    `json:"transactional_id"`
		Hanging         bool      `json:"hanging"`
		FirstOffset     int64     `json:"first_offset"`
		Started         time.Time `json:"started"`
	} `json:"transactions"`
}

// Describe asks the admin API for a topic's partitions; none when the topic is not mirrored.
func (l *Lockstep) Describe(ctx context.Context, topic string) []PartitionStatus {
	l.t.Helper()
	code, body, err := l.Get(ctx, "/v1/partitions?topic="+topic)
	if err != nil || code != 200 {
		return nil
	}
	var got struct {
		Partitions []PartitionStatus `json:"partitions"`
	}
	if err := json.Unmarshal([]byte(body), &got); err != nil {
		l.t.Fatal(err)
	}
	return got.Partitions
}

// WaitState waits until every partition of a topic is in a state.
func (l *Lockstep) WaitState(ctx context.Context, topic string, partitions int, state string) []PartitionStatus {
	l.t.Helper()
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		ps := l.Describe(ctx, topic)
		n := 0
		for _, p := range ps {
			if p.State == state {
				n++
			}
		}
		if n == partitions {
			return ps
		}
		select {
		case <-ctx.Done():
			l.t.Fatalf("%s is not %s: %+v\n%s", topic, state, ps, l.LogTail(40))
		case <-l.proc.Done():
			l.t.Fatalf("lockstep ended: %v\n%s", l.proc.Err(), l.LogTail(40))
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// Same compares what readers see of a partition at two addresses, record by record, and returns it. The first is
// waited for to reach the second's end.
func (l *Lockstep) Same(ctx context.Context, follower, leader, topic string, partition int32) []oracle.Rec {
	l.t.Helper()
	end, err := oracle.LiveEnd(ctx, leader, topic, partition)
	if err != nil {
		l.t.Fatalf("end of %s-%d: %v\n%s", topic, partition, err, l.LogTail(40))
	}
	wctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		got, err := oracle.LiveEnd(wctx, follower, topic, partition)
		if err == nil && got == end {
			break
		}
		select {
		case <-wctx.Done():
			l.t.Fatalf("end of %s-%d: %d, want %d (%v)\n%s", topic, partition, got, end, err, l.LogTail(60))
		case <-time.After(100 * time.Millisecond):
		}
	}
	var want []oracle.Rec
	for _, iso := range levels {
		if want, err = oracle.Dump(ctx, leader, topic, partition, oracle.ReadCommitted); err != nil {
			l.t.Fatal(err)
		}
		got, err := oracle.Dump(ctx, follower, topic, partition, iso)
		if err != nil {
			l.t.Fatalf("%s-%d %v: %v\n%s", topic, partition, iso, err, l.LogTail(40))
		}
		if iso == oracle.ReadUncommitted && len(got) > len(want) {
			continue // aborted records of clients here
		}
		if d := oracle.Diff(want, got); d != "" {
			l.t.Fatalf("%s-%d, %v: %s\n%s", topic, partition, iso, d, l.LogTail(40))
		}
	}
	return want
}
