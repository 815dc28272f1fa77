package scenario

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/lockstep-kafka/lockstep/bench/lab"
	"github.com/lockstep-kafka/lockstep/bench/measure"
	"github.com/lockstep-kafka/lockstep/bench/peer"
	"github.com/lockstep-kafka/lockstep/bench/raw"
	"github.com/lockstep-kafka/lockstep/bench/report"
	"github.com/lockstep-kafka/lockstep/internal/kconn"
)

// growth are the scenarios that show how time and memory go with a quantity.
func growth(l *lab.Lab, o Options) []*Scenario {
	full := o.Mode == Full || o.Mode == Growth
	pick := func(core, all []int) []int {
		if full {
			return all
		}
		return core
	}
	failovers := []int{1, 4, 16, 64, 256}
	if o.Mode == Growth {
		failovers = failovers[:4] // the last one takes as long as all the rest
	}
	var out []*Scenario
	for _, q := range []quantity{
		{
			name: "growth-partitions", title: "Growth: partitions", axis: "partitions", chart: "seconds", metrics: []string{"seconds", "cpu_s", "rss_mb"},
			about: "A topic with so many partitions and one batch of 16 KiB in each, from the start of Lockstep until all is mirrored; making the topic on the destination included.",
			xs:    pick([]int{10, 100, 1000}, []int{10, 100, 500, 1000, 2000, 5000}), do: manyPartitions,
		},
		{
			name: "growth-batch", title: "Growth: records in a batch", axis: "records in a batch", chart: "mb_s", metrics: []string{"mb_s", "cpu_s_gb", "rss_mb"},
			about: "Catch-up of 1 KiB records in batches of so many, 4 partitions.",
			xs:    pick([]int{1, 16, 256}, []int{1, 4, 16, 64, 256, 1000}), fixed: true, do: batchSize,
		},
		{
			name: "growth-spans", title: "Growth: spans and generations", axis: "failovers before", chart: "stop_s", metrics: []string{"stop_s", "start_s", "consume_mb_s", "rss_mb"},
			about: "A topic that was stopped and started so many times, with some records mirrored in between: each time adds a native span and a generation. Then `stop`, `start`, and reading all of it through the proxy.",
			xs:    pick([]int{1, 8}, failovers), do: spans,
		},
		{
			name: "growth-connections", title: "Growth: connections", axis: "connections", chart: "idle_rss_mb", metrics: []string{"seconds", "idle_rss_mb", "cpu_s"},
			about: "So many clients connect through the proxy one after the other, ask for its versions, and stay.",
			xs:    pick([]int{1, 10, 100, 1000}, []int{1, 10, 100, 500, 1000, 2000}), do: connections,
		},
		{
			name: "growth-groups", title: "Growth: consumer groups", axis: "groups", chart: "seconds", metrics: []string{"seconds", "cpu_s", "rss_mb"},
			about: "So many consumer groups with committed offsets in 4 partitions, from the start of Lockstep until all of them are on the destination (`groups.interval` 1 s).",
			xs:    pick([]int{10, 100, 1000}, []int{10, 100, 1000, 10_000}), do: manyGroups,
		},
	} {
		out = append(out, grows(l, o, q))
	}
	return out
}

// quantity is something that grows.
type quantity struct {
	name, title, about, axis, chart string
	metrics                         []string
	xs                              []int
	fixed                           bool // not to be scaled
	do                              func(ctx context.Context, l *lab.Lab, profile string, x int) (map[string]float64, error)
}

// grows makes a scenario of Lockstep alone with a sample for each x.
func grows(l *lab.Lab, o Options, q quantity) *Scenario {
	return &Scenario{
		Scenario: report.Scenario{Name: q.name, Title: q.title, About: q.about, Metrics: q.metrics, Axis: q.axis, Chart: q.chart},
		Rounds:   map[Mode]int{Core: 1, Growth: 1, Full: 3}[o.Mode],
		Runs: []Run{{Peer: report.Subject, Do: func(ctx context.Context, _ int) (out []report.Sample, err error) {
			for _, x := range q.xs {
				if !q.fixed {
					x = int(l.Count(int64(x), 1))
				}
				if len(out) > 0 && out[len(out)-1].X == float64(x) {
					continue // scaled to the same
				}
				if err := clear(ctx, l); err != nil {
					return out, err
				}
				v, err := q.do(ctx, l, q.name, x)
				if err != nil {
					return out, fmt.Errorf("%s %d: %w", q.axis, x, err)
				}
				out = append(out, report.Sample{Case: strconv.Itoa(x), X: float64(x), Values: v})
			}
			return out, clear(ctx, l)
		}}},
	}
}

func manyPartitions(ctx context.Context, l *lab.Lab, profile string, n int) (map[string]float64, error) {
	return caughtUp(ctx, l, profile, true, lab.Shape{Topic: "growth", Partitions: n, Bytes: int64(n) * 16 << 10, Record: 1024, Min: 16, Max: 16})
}

func batchSize(ctx context.Context, l *lab.Lab, profile string, n int) (map[string]float64, error) {
	bytes := l.Count(1<<30, 1<<20)
	if n < 16 {
		bytes /= 4
	}
	return caughtUp(ctx, l, profile, false, lab.Shape{Topic: "growth", Partitions: 4, Bytes: bytes, Record: 1024, Min: n, Max: n})
}

func caughtUp(ctx context.Context, l *lab.Lab, profile string, whole bool, s lab.Shape) (map[string]float64, error) {
	d, err := l.Fill(ctx, s)
	if err != nil {
		return nil, err
	}
	began := time.Now()
	p, err := peer.StartLockstep(ctx, l, peer.LockstepOptions{Topics: []string{s.Topic}, Profile: profile})
	if err != nil {
		return nil, err
	}
	defer p.End()
	return (&copying{l: l, proc: p.Process, data: d, dst: s.Topic, began: began, whole: whole}).watch(ctx)
}

func spans(ctx context.Context, l *lab.Lab, profile string, n int) (_ map[string]float64, err error) {
	const topic = "spans"
	d, err := l.Fill(ctx, lab.Shape{Topic: topic, Partitions: 1, Bytes: l.Count(64<<20, 1<<20), Record: 1024, Min: 100, Max: 100})
	if err != nil {
		return nil, err
	}
	p, err := peer.StartLockstep(ctx, l, peer.LockstepOptions{Topics: []string{topic}, Profile: profile})
	if err != nil {
		return nil, err
	}
	defer p.End()
	v := map[string]float64{}
	for range n {
		if err := mirroredTo(ctx, p, topic, d.Ends[0]); err != nil {
			return nil, err
		}
		if v["stop_s"], err = verb(ctx, l, p, "stop", topic); err != nil {
			return nil, err
		}
		if v["start_s"], err = verb(ctx, l, p, "start", topic); err != nil {
			return nil, err
		}
		added, err := l.Add(ctx, d.Shape)
		if err != nil {
			return nil, err
		}
		d.Ends[0] += added
		d.Records += added
	}
	if err := mirroredTo(ctx, p, topic, d.Ends[0]); err != nil {
		return nil, err
	}
	read, err := through(l, p.Pid(), func() (int64, error) { return readTimes(ctx, p.Addr, d, l.Count(2<<30, 1)) })
	if err != nil {
		return nil, err
	}
	v["consume_mb_s"], v["rss_mb"], v[report.MeasuredSeconds] = read["mb_s"], read["rss_mb"], read[report.MeasuredSeconds]
	return v, nil
}

// mirroredTo waits until a reader through the proxy sees partition 0 up to an
// offset.
func mirroredTo(ctx context.Context, p *peer.Lockstep, topic string, end int64) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	for {
		got, err := raw.EndOffset(ctx, p.Addr, topic, 0)
		if err == nil && got >= end {
			return nil
		}
		if serr := lab.Sleep(ctx, 100*time.Millisecond); serr != nil {
			return errors.Join(fmt.Errorf("%s is at %d, not at %d: %w\n%s", topic, got, end, serr, p.Tail()), err)
		}
	}
}

func connections(ctx context.Context, l *lab.Lab, profile string, n int) (map[string]float64, error) {
	p, err := peer.StartLockstep(ctx, l, peer.LockstepOptions{Profile: profile})
	if err != nil {
		return nil, err
	}
	defer p.End()
	began := time.Now()
	_, after, err := idle(ctx, p.Addr, p.Pid(), n)
	if err != nil {
		return nil, err
	}
	return map[string]float64{"seconds": time.Since(began).Seconds(), "idle_rss_mb": float64(after.RSS) / 1e6, "cpu_s": after.CPU.Seconds()}, nil
}

// idle opens connections, and reads a process's usage before and with them.
func idle(ctx context.Context, addr string, pid, n int) (before, with measure.Usage, err error) {
	if before, err = measure.Process(pid); err != nil {
		return before, with, err
	}
	d := (&kconn.Dialer{ClientID: "bench"}).Init()
	for range n {
		c, err := d.Dial(ctx, addr)
		if err != nil {
			return before, with, err
		}
		defer func() { _ = c.Close() }()
	}
	with, err = measure.Process(pid)
	return before, with, err
}
