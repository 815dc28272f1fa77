package e2e

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/lockstep-kafka/lockstep/internal/testkafka/clients"
	"github.com/lockstep-kafka/lockstep/internal/testkafka/oracle"
)

// both isolation levels: through the proxy a mirror topic reads the same in both.
var levels = []oracle.Isolation{oracle.ReadUncommitted, oracle.ReadCommitted}

// SourceRecs is what a read_committed reader of the source gets: what every reader through the proxy has to get.
func (l *Lockstep) SourceRecs(ctx context.Context, topic string, partition int32) []oracle.Rec {
	l.t.Helper()
	recs, err := oracle.Dump(ctx, l.setup.Source.Bootstrap(), topic, partition, oracle.ReadCommitted)
	if err != nil {
		l.t.Fatal(err)
	}
	return recs
}

// WaitCaughtUp waits until ListOffsets through the proxy says that every partition's end is the source's. Nothing
// may be written to the source meanwhile. An end beyond the source's fails the test.
func (l *Lockstep) WaitCaughtUp(ctx context.Context, topic string, partitions int32) {
	l.t.Helper()
	l.waitEnds(ctx, topic, partitions, false)
}

// WaitCut is WaitCaughtUp after the source lost records: until Lockstep has seen that, it shows the old branch, whose
// end may lie beyond the source's.
func (l *Lockstep) WaitCut(ctx context.Context, topic string, partitions int32) {
	l.t.Helper()
	l.waitEnds(ctx, topic, partitions, true)
}

func (l *Lockstep) waitEnds(ctx context.Context, topic string, partitions int32, beyond bool) {
	l.t.Helper()
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	began := time.Now()
	defer func() { l.t.Logf("%s caught up after %.1fs", topic, time.Since(began).Seconds()) }()
	for p := range partitions {
		want, err := oracle.LiveEnd(ctx, l.setup.Source.Bootstrap(), topic, p)
		if err != nil {
			l.t.Fatal(err)
		}
		if err := l.waitEnd(ctx, topic, p, want, beyond); err != nil {
			l.t.Fatalf("%v\n%s", err, l.LogTail(40))
		}
	}
}

// WaitPosition waits until a partition has taken in the source's log up to an offset. The end that readers are shown is
// that of the last record: what lies behind it, markers and aborted records, is passed over a moment later.
func (l *Lockstep) WaitPosition(ctx context.Context, topic string, partition int32, want int64) {
	l.t.Helper()
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		ps := l.Describe(ctx, topic)
		for _, p := range ps {
			if p.Partition == partition && p.DestinationOffset >= want {
				return
			}
		}
		select {
		case <-ctx.Done():
			l.t.Fatalf("%s-%d isn't taken in up to %d: %+v\n%s", topic, partition, want, ps, l.LogTail(40))
		case <-l.proc.Done():
			l.t.Fatalf("lockstep ended: %v\n%s", l.proc.Err(), l.LogTail(40))
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// WaitMirroring waits until something of every partition is shown.
func (l *Lockstep) WaitMirroring(ctx context.Context, topic string, partitions int32) {
	l.t.Helper()
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for p := range partitions {
		for {
			got, err := oracle.ListOffset(ctx, l.Bootstrap(), topic, p, oracle.ReadUncommitted, oracle.Latest)
			if err == nil && got.Offset > 0 {
				break
			}
			select {
			case <-ctx.Done():
				l.t.Fatalf("nothing of %s-%d is shown: %v\n%s", topic, p, err, l.LogTail(40))
			case <-time.After(100 * time.Millisecond):
			}
		}
	}
}

func (l *Lockstep) waitEnd(ctx context.Context, topic string, partition int32, want int64, beyond bool) error {
	for {
		one, cancel := context.WithTimeout(ctx, 10*time.Second)
		got, err := oracle.ListOffset(one, l.Bootstrap(), topic, partition, oracle.ReadUncommitted, oracle.Latest)
		cancel()
		switch {
		case err != nil:
			err = fmt.Errorf("end of %s-%d: %w", topic, partition, err)
		case got.Offset == want:
			return nil
		case got.Offset > want && !beyond:
			return fmt.Errorf("end of %s-%d: the proxy says %d, the source %d", topic, partition, got.Offset, want)
		default:
			err = fmt.Errorf("end of %s-%d is %d, the source's %d", topic, partition, got.Offset, want)
		}
		select {
		case <-ctx.Done():
			return errors.Join(err, ctx.Err())
		case <-l.proc.Done():
			return errors.Join(err, errors.New("lockstep has ended"), l.proc.Err())
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// CompareRaw compares the raw wire through the proxy with the source, in both isolation levels, and the log start.
// Quick: for use after every incident.
func (l *Lockstep) CompareRaw(ctx context.Context, topic string, partition int32) []oracle.Rec {
	l.t.Helper()
	want := l.SourceRecs(ctx, topic, partition)
	for _, iso := range levels {
		got, err := oracle.Dump(ctx, l.Bootstrap(), topic, partition, iso)
		if err != nil {
			l.t.Fatalf("%s-%d %v: %v\n%s", topic, partition, iso, err, l.LogTail(40))
		}
		if d := oracle.Diff(want, got); d != "" {
			l.t.Fatalf("%s-%d through the proxy, %v: %s", topic, partition, iso, d)
		}
	}
	src, err := oracle.ListOffset(ctx, l.setup.Source.Bootstrap(), topic, partition, oracle.ReadCommitted, oracle.Earliest)
	if err != nil {
		l.t.Fatal(err)
	}
	got, err := oracle.ListOffset(ctx, l.Bootstrap(), topic, partition, oracle.ReadCommitted, oracle.Earliest)
	if err != nil {
		l.t.Fatal(err)
	}
	// A log that begins with a hole (compacted) may show its start behind it.
	most := src.Offset
	if len(want) > 0 {
		most = want[0].Offset
	}
	if got.Offset < src.Offset || got.Offset > most {
		l.t.Fatalf("%s-%d starts at %d through the proxy, the source at %d, its first record is %d", topic, partition, got.Offset, src.Offset, most)
	}
	return want
}

// CompareAll compares the oracle and every client through the proxy with the source, in both isolation levels.
func (l *Lockstep) CompareAll(ctx context.Context, topic string) []oracle.Rec {
	l.t.Helper()
	want := l.CompareRaw(ctx, topic, 0)
	for _, iso := range levels {
		for _, r := range clients.Readers() {
			l.CompareClient(ctx, r, clients.Read{Topic: topic, Isolation: iso}, want)
		}
	}
	return want
}

// CompareClient reads through the proxy with one client and compares. Its reading has to end by itself.
func (l *Lockstep) CompareClient(ctx context.Context, r clients.Reader, read clients.Read, want []oracle.Rec) clients.Result {
	l.t.Helper()
	read.Bootstrap, read.Expect = l.Bootstrap(), len(want)
	began := time.Now()
	defer func() {
		l.t.Logf("%s read %s (%v) in %.1fs", r.Name, read.Topic, read.Isolation, time.Since(began).Seconds())
	}()
	got, err := r.Read(ctx, read)
	if err != nil {
		l.t.Fatalf("%s, %v: %v\n%s", r.Name, read.Isolation, err, l.LogTail(40))
	}
	if d := oracle.Diff(r.Shown(want), got.Recs); d != "" {
		l.t.Fatalf("%s through the proxy, topic %s from %q, %v: %s", r.Name, read.Topic, read.From, read.Isolation, d)
	}
	if got.TimedOut() {
		l.t.Fatalf("%s through the proxy, topic %s from %q, %v: it did not reach the end", r.Name, read.Topic, read.From, read.Isolation)
	}
	return got
}
