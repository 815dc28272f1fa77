package scenario

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"sync"
	"syscall"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/lockstep-kafka/lockstep/bench/lab"
	"github.com/lockstep-kafka/lockstep/bench/peer"
	"github.com/lockstep-kafka/lockstep/bench/report"
)

// interruption ends one of two instances while records flow.
func interruption(l *lab.Lab, o Options) *Scenario {
	s := &Scenario{
		Scenario: report.Scenario{
			Name: "interruption", Title: "One of two instances goes", Metrics: []string{"seconds"},
			About: "Two instances in front of one destination with default settings (instance.session_timeout 10 s), a topic of one partition that gets 100 records a second. " +
				"The instance that mirrors it is ended; measured is the longest pause between two records on the destination from then until the other one has mirrored a record that was written after the end of the first.",
		},
		Rounds: map[Mode]int{Core: 2, Full: 10}[o.Mode],
	}
	for _, how := range []struct {
		name string
		sig  syscall.Signal
	}{{"kill -9", syscall.SIGKILL}, {"SIGTERM", syscall.SIGTERM}} {
		s.Runs = append(s.Runs, Run{Peer: report.Subject, Do: func(ctx context.Context, _ int) ([]report.Sample, error) {
			d, err := takeOver(ctx, l, how.sig)
			if err != nil {
				return nil, err
			}
			return []report.Sample{{Case: how.name, Values: map[string]float64{"seconds": d.Seconds()}}}, nil
		}})
	}
	return s
}

func takeOver(ctx context.Context, l *lab.Lab, sig syscall.Signal) (time.Duration, error) {
	const topic = "interrupted"
	ctx, cancel := context.WithTimeout(ctx, 3*time.Minute)
	defer cancel()
	if err := clear(ctx, l); err != nil {
		return 0, err
	}
	if err := lab.Create(ctx, l.Source, topic, 1, nil); err != nil {
		return 0, err
	}
	var both [2]*peer.Lockstep
	for i := range both {
		p, err := peer.StartLockstep(ctx, l, peer.LockstepOptions{Topics: []string{topic}})
		if err != nil {
			return 0, err
		}
		defer p.End()
		both[i] = p
	}
	for both[0].Shares(ctx) == 0 || both[1].Shares(ctx) == 0 {
		if err := lab.Sleep(ctx, 200*time.Millisecond); err != nil {
			return 0, fmt.Errorf("the two instances don't share the work: %w\n%s", err, both[1].Tail())
		}
	}
	cl, err := kgo.NewClient(kgo.SeedBrokers(l.Source.Addr(1)), kgo.ProducerLinger(0))
	if err != nil {
		return 0, err
	}
	defer cl.Close()
	read, err := kgo.NewClient(kgo.SeedBrokers(l.Dest.Addr(1)), kgo.ConsumeTopics(topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.MetadataMinAge(100*time.Millisecond), kgo.MetadataMaxAge(time.Second))
	if err != nil {
		return 0, err
	}
	defer read.Close()
	arrivals := make(chan arrival, 1000)
	var reading sync.WaitGroup
	defer reading.Wait()
	defer cancel()
	reading.Go(func() {
		for ctx.Err() == nil {
			read.PollFetches(ctx).EachRecord(func(r *kgo.Record) {
				select {
				case arrivals <- arrival{time.Now(), r.Timestamp}:
				case <-ctx.Done():
				}
			})
		}
	})
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	var (
		gone        <-chan struct{} // of the instance that was told to end
		ended, last time.Time
		pause       time.Duration
	)
	for n := 0; ; n++ {
		select {
		case <-tick.C:
			cl.Produce(ctx, &kgo.Record{Topic: topic, Value: []byte("x")}, nil)
			if gone == nil && ended.IsZero() && !last.IsZero() && n%10 == 0 {
				if p := owner(ctx, both, topic); p != nil {
					if err := p.Signal(sig); err != nil {
						return 0, err
					}
					gone = p.Done()
				}
			}
		case <-gone:
			ended, gone = time.Now(), nil
		case a := <-arrivals:
			if gone != nil || !ended.IsZero() {
				pause = max(pause, a.at.Sub(last))
			}
			last = a.at
			if !ended.IsZero() && a.written.After(ended) {
				return pause, nil
			}
		case <-ctx.Done():
			return 0, fmt.Errorf("no record of the other instance: %w\n%s\n%s", context.Cause(ctx), both[0].Tail(), both[1].Tail())
		}
	}
}

// arrival is a record that came, and when it was written.
type arrival struct{ at, written time.Time }

// owner is the one of two instances that mirrors a topic; nil while that isn't
// clear.
func owner(ctx context.Context, both [2]*peer.Lockstep, topic string) *peer.Lockstep {
	a, b := both[0].Mirrors(ctx, topic), both[1].Mirrors(ctx, topic)
	switch {
	case a == b:
		return nil
	case a:
		return both[0]
	}
	return both[1]
}

// stopMany times the failover of a topic with many partitions, and the way
// back.
func stopMany(l *lab.Lab, o Options) *Scenario {
	n := int(l.Count(1000, 10))
	return &Scenario{
		Scenario: report.Scenario{
			Name: "stop", Title: fmt.Sprintf("Failover of %d partitions", n), Metrics: []string{"stop_s", "start_s", "rss_mb"},
			About: "`lockstep stop` and `lockstep start` of a topic with so many partitions that is mirrored to its end, until every partition is there. " +
				"A stop appends one batch to each partition; \"direct produce\" does nothing else, on the same destination.",
			Ratios: []string{"stop_s"}, Limits: []string{"direct produce"},
		},
		Rounds: map[Mode]int{Core: 1, Full: 5}[o.Mode],
		Runs: []Run{{Peer: report.Subject, Do: func(ctx context.Context, _ int) ([]report.Sample, error) {
			return one(stopAndStart(ctx, l, n))
		}}, {Peer: "direct produce", Do: func(ctx context.Context, _ int) ([]report.Sample, error) {
			return one(appendToEach(ctx, l, n))
		}}},
	}
}

// stopped is the topic that is stopped: a batch in each partition.
func stopped(partitions int) lab.Shape {
	return lab.Shape{Topic: "stopped", Partitions: partitions, Bytes: int64(partitions) * 16 << 10, Record: 1024, Min: 16, Max: 16}
}

// appendToEach times the writes that a stop can't do without.
func appendToEach(ctx context.Context, l *lab.Lab, partitions int) (map[string]float64, error) {
	if err := clear(ctx, l); err != nil {
		return nil, err
	}
	s := stopped(partitions)
	if err := lab.Create(ctx, l.Dest, s.Topic, partitions, nil); err != nil {
		return nil, err
	}
	if _, err := lab.Produce(ctx, l.Dest.Addr(1), s); err != nil {
		return nil, err
	}
	s.Bytes, s.Min, s.Max = int64(partitions)*int64(s.Record), 1, 1
	began := time.Now()
	_, err := lab.Produce(ctx, l.Dest.Addr(1), s)
	return map[string]float64{"stop_s": time.Since(began).Seconds()}, err
}

func stopAndStart(ctx context.Context, l *lab.Lab, partitions int) (map[string]float64, error) {
	shape := stopped(partitions)
	topic := shape.Topic
	if err := clear(ctx, l); err != nil {
		return nil, err
	}
	d, err := l.Fill(ctx, shape)
	if err != nil {
		return nil, err
	}
	began := time.Now()
	p, err := peer.StartLockstep(ctx, l, peer.LockstepOptions{Topics: []string{topic}, Profile: "stop"})
	if err != nil {
		return nil, err
	}
	defer p.End()
	if _, err := (&copying{l: l, proc: p.Process, data: d, dst: topic, began: began, whole: true}).watch(ctx); err != nil {
		return nil, err
	}
	v := map[string]float64{}
	if v["stop_s"], err = verb(ctx, l, p, "stop", topic); err != nil {
		return nil, err
	}
	if v["start_s"], err = verb(ctx, l, p, "start", topic); err != nil {
		return nil, err
	}
	u, err := p.Usage()
	v["rss_mb"] = float64(u.Peak) / 1e6
	return v, err
}

// verb runs a command of lockstep on a topic and waits until it is done.
func verb(ctx context.Context, l *lab.Lab, p *peer.Lockstep, name, topic string) (seconds float64, err error) {
	began := time.Now()
	out, err := exec.CommandContext(ctx, l.Program("lockstep"), name, "--admin", "http://"+p.Admin, "--topic", topic, "--timeout", "10m").CombinedOutput()
	if err != nil {
		return 0, errors.Join(fmt.Errorf("lockstep %s: %w\n%s", name, err, out), p.Ended())
	}
	return time.Since(began).Seconds(), nil
}
