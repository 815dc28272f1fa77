// Package lab is the place of the measurements: a source and a destination
// broker, the test data, and what is true of all peers.
package lab

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/lockstep-kafka/lockstep/internal/testkafka"
)

// Lab is one run's brokers and folder.
type Lab struct {
	Dir          string // for files of this run, removed with it
	Source, Dest *testkafka.Cluster
	// FarSource is the source behind a delaying relay, whose two sides these
	// are: clients dial and are told Outer, the relay dials Inner. Near is the
	// same for a plain relay in front of the destination.
	FarSource, Near Relayed
	Acks            string  // how Lockstep writes
	Scale           float64 // of amounts of data and counts
	ProfileDir      string  // for Lockstep's CPU profiles; empty: none
	Logf            func(format string, args ...any)

	// Build is another build of Lockstep that peers start now; empty: this tree's.
	Build string

	logs     string
	ports    *testkafka.Ports
	remove   func() // of Dir
	profiles int
}

// Relayed is a broker's listener for a relay.
type Relayed struct{ Outer, Inner string }

// Options of a lab.
type Options struct {
	Acks       string
	Scale      float64
	ProfileDir string
	LogRoot    string // folder for the brokers' logs; empty: with their other files
	// Upstream is a further listener of the destination, host:port, for proxies
	// that somebody else runs; empty: none.
	Upstream string
	Logf     func(format string, args ...any)
}

// Open builds the programs and starts both brokers.
func Open(ctx context.Context, o Options) (_ *Lab, err error) {
	dir, remove, err := testkafka.Scratch("lockstep-bench")
	if err != nil {
		return nil, err
	}
	l := &Lab{Dir: dir, remove: remove, logs: o.LogRoot, Acks: o.Acks, Scale: o.Scale, ProfileDir: o.ProfileDir, Logf: o.Logf}
	defer func() {
		if err != nil {
			l.Close()
		}
	}()
	for name, pkg := range map[string]string{"lockstep": "./cmd/lockstep", "worker": "./bench/worker"} {
		cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-o", l.Program(name), pkg)
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			return nil, fmt.Errorf("go build %s (run the bench from the repository's root): %w\n%s", pkg, err, out)
		}
	}
	if l.ports, err = testkafka.ReservePorts(4); err != nil {
		return nil, err
	}
	l.FarSource = Relayed{Outer: l.ports.Addr(0), Inner: l.ports.Addr(1)}
	l.Near = Relayed{Outer: l.ports.Addr(2), Inner: l.ports.Addr(3)}
	far := testkafka.Listener{Name: "FAR", Listen: l.FarSource.Inner, Advertised: l.FarSource.Outer}
	if l.Source, err = testkafka.Up(ctx, dir, l.broker("source", far)); err != nil {
		return nil, fmt.Errorf("start the source broker: %w", err)
	}
	near := []testkafka.Listener{{Name: "NEAR", Listen: l.Near.Inner, Advertised: l.Near.Outer}}
	if o.Upstream != "" {
		near = append(near, testkafka.Listener{Name: "OTHER", Listen: o.Upstream, Advertised: o.Upstream})
	}
	if l.Dest, err = testkafka.Up(ctx, dir, l.broker("destination", near...)); err != nil {
		return nil, fmt.Errorf("start the destination broker: %w", err)
	}
	return l, nil
}

// JVMScript is what Kafka's own kafka-run-class.sh gives every JVM, if nothing
// else is asked for.
var JVMScript = []string{"-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20", "-XX:InitiatingHeapOccupancyPercent=35", "-XX:+ExplicitGCInvokesConcurrent"}

// broker is a broker with the compiler, the collector and the heap that Kafka's
// own scripts start servers with, not those that make tests start quickly: a heap
// that begins small is collected many times as often.
func (l *Lab) broker(name string, listeners ...testkafka.Listener) testkafka.Options {
	return testkafka.Options{
		Name: name, Heap: "1g", LogRoot: l.logs, Listeners: listeners, Logf: l.Logf,
		JVMArgs: append([]string{"-Xms1g", "-XX:TieredStopAtLevel=4", "-XX:ReservedCodeCacheSize=128m", "-XX:-UseSerialGC"}, JVMScript...),
		Props: map[string]string{
			"log.segment.delete.delay.ms": "1000", "log.cleaner.dedupe.buffer.size": "67108864",
			"log.retention.check.interval.ms": "3600000", "message.max.bytes": "4194304",
			"broker.session.timeout.ms": "9000", "broker.heartbeat.interval.ms": "1000",
		},
	}
}

// Program is the path of a program built for this run.
func (l *Lab) Program(name string) string {
	if name == "lockstep" && l.Build != "" {
		return l.Build
	}
	return filepath.Join(l.Dir, name)
}

// Profile is a file for the next CPU profile; "" when none is wanted.
func (l *Lab) Profile(name string) string {
	if l.ProfileDir == "" {
		return ""
	}
	l.profiles++
	return filepath.Join(l.ProfileDir, fmt.Sprintf("%02d-%s.pprof", l.profiles, name))
}

// Count scales a number of bytes, records or things, down to least.
func (l *Lab) Count(n, least int64) int64 { return max(least, int64(float64(n)*l.Scale)) }

// Broken says whether a broker has died, with its last log lines.
func (l *Lab) Broken() error {
	for _, c := range []*testkafka.Cluster{l.Source, l.Dest} {
		if !c.Alive(1) {
			return errors.New(c.LogTail(30))
		}
	}
	return nil
}

// Ended are closed when a broker's process has ended.
func (l *Lab) Ended() []<-chan struct{} { return []<-chan struct{}{l.Source.Done(1), l.Dest.Done(1)} }

// Close ends the brokers and removes the folder.
func (l *Lab) Close() {
	for _, c := range []*testkafka.Cluster{l.Source, l.Dest} {
		if c != nil {
			c.Close()
		}
	}
	if l.ports != nil {
		l.ports.Release()
	}
	l.remove()
}

// Admin is an admin client of a cluster.
func Admin(c *testkafka.Cluster) (*kadm.Client, error) {
	cl, err := kgo.NewClient(kgo.SeedBrokers(c.Seeds()...), kgo.MetadataMinAge(50*time.Millisecond))
	if err != nil {
		return nil, err
	}
	return kadm.NewClient(cl), nil
}

// Create makes a topic and waits until every partition has a leader.
func Create(ctx context.Context, c *testkafka.Cluster, topic string, partitions int, configs map[string]string) error {
	adm, err := Admin(c)
	if err != nil {
		return err
	}
	defer adm.Close()
	set := map[string]*string{}
	for k, v := range configs {
		set[k] = kadm.StringPtr(v)
	}
	if _, err := adm.CreateTopic(ctx, int32(partitions), 1, set, topic); err != nil {
		return fmt.Errorf("create topic %s: %w", topic, err)
	}
	for {
		ends, err := adm.ListEndOffsets(ctx, topic)
		if err == nil && ends.Error() == nil && len(ends[topic]) == partitions {
			return nil
		}
		if err := Sleep(ctx, 50*time.Millisecond); err != nil {
			return fmt.Errorf("create topic %s: %w", topic, err)
		}
	}
}

// Clear deletes all topics of a cluster but the broker's own and keep, and
// waits until they are gone: the next peer finds a cluster as new.
func Clear(ctx context.Context, c *testkafka.Cluster, keep ...string) error {
	adm, err := Admin(c)
	if err != nil {
		return err
	}
	defer adm.Close()
	kept := map[string]bool{"__consumer_offsets": true, "__transaction_state": true, "__share_group_state": true}
	for _, k := range keep {
		kept[k] = true
	}
	for {
		topics, err := adm.ListTopicsWithInternal(ctx)
		if err != nil {
			return fmt.Errorf("list topics: %w", err)
		}
		var names []string
		for _, t := range topics.Names() {
			if !kept[t] {
				names = append(names, t)
			}
		}
		if len(names) == 0 {
			return nil
		}
		if _, err := adm.DeleteTopics(ctx, names...); err != nil {
			return fmt.Errorf("delete topics %v: %w", names, err)
		}
		if err := Sleep(ctx, 200*time.Millisecond); err != nil {
			return err
		}
	}
}

// Delete deletes topics; those that aren't there don't matter.
func Delete(ctx context.Context, c *testkafka.Cluster, topics ...string) error {
	adm, err := Admin(c)
	if err != nil {
		return err
	}
	defer adm.Close()
	_, err = adm.DeleteTopics(ctx, topics...)
	return err
}

// Records counts what a topic has: the sum of its end offsets. A topic that
// isn't there yet has none.
func Records(ctx context.Context, adm *kadm.Client, topic string) (n int64) {
	ends, err := adm.ListEndOffsets(ctx, topic)
	if err != nil {
		return 0
	}
	ends.Each(func(o kadm.ListedOffset) {
		if o.Err == nil {
			n += o.Offset
		}
	})
	return n
}

// Sleep waits, or returns the context's error.
func Sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-t.C:
		return nil
	}
}

// MiB writes a number of bytes.
func MiB(n int64) string { return strconv.FormatInt(n>>20, 10) + " MiB" }
