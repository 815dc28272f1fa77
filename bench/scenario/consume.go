package scenario

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/lockstep-kafka/lockstep/bench/lab"
	"github.com/lockstep-kafka/lockstep/bench/measure"
	"github.com/lockstep-kafka/lockstep/bench/peer"
	"github.com/lockstep-kafka/lockstep/bench/raw"
	"github.com/lockstep-kafka/lockstep/bench/report"
)

// consume reads a mirrored topic through the proxy, and the same bytes without
// it.
func consume(l *lab.Lab, o Options) *Scenario {
	shape := lab.Shape{Topic: "consume", Partitions: 4, Bytes: l.Count(1<<30, 4<<20), Record: 1024, Min: 100, Max: 150}
	rounds := 3
	switch o.Mode {
	case Quick:
		shape.Bytes, rounds = shape.Bytes/2, 2
	case Full:
		shape.Bytes, rounds = shape.Bytes*4, 10
	}
	var (
		data    lab.Data
		ls      *peer.Lockstep
		haproxy *peer.Process
		missing error
	)
	s := &Scenario{
		Scenario: report.Scenario{
			Name: "consume", Title: "Consuming a mirrored topic", Chart: "mb_s", Ratios: []string{"mb_s", "cpu_s_gb"}, Limits: []string{"direct"},
			About: "Two connections read 4 GiB of a mirrored topic, which they go through several times, 1 KiB records in batches of about 128 KiB, and throw it away. Through Lockstep offsets and leader epochs are the source's; " +
				"direct and through HAProxy the same bytes come with the destination's offsets and the stamps in them. CPU is the proxy's.",
			Metrics: []string{"mb_s", "cpu_s_gb", "dest_cpu_s_gb", "rss_mb"},
		},
		Rounds: rounds,
		Prepare: func(ctx context.Context) (err error) {
			if err = clear(ctx, l); err != nil {
				return err
			}
			if data, err = l.Fill(ctx, shape); err != nil {
				return err
			}
			began := time.Now()
			if ls, err = peer.StartLockstep(ctx, l, peer.LockstepOptions{Topics: []string{shape.Topic}, Profile: "consume"}); err != nil {
				return err
			}
			if _, err = (&copying{l: l, proc: ls.Process, data: data, dst: shape.Topic, began: began}).watch(ctx); err != nil {
				return err
			}
			haproxy, missing = peer.StartHAProxy(ctx, l)
			if missing != nil && !errors.Is(missing, peer.ErrMissing) {
				return missing
			}
			return nil
		},
		Finish: func() {
			if ls != nil {
				ls.End()
			}
			if haproxy != nil {
				haproxy.End()
			}
		},
	}
	add := func(name string, where func() (string, *peer.Process, error)) {
		s.Runs = append(s.Runs, Run{Peer: name, Warms: true, Do: func(ctx context.Context, _ int) ([]report.Sample, error) {
			addr, p, err := where()
			if err != nil {
				return nil, err
			}
			pid := 0
			if p != nil {
				pid = p.Pid()
			}
			return one(through(l, pid, func() (int64, error) { return readTimes(ctx, addr, data, l.Count(4<<30, 1)) }))
		}})
	}
	add(report.Subject, func() (string, *peer.Process, error) { return ls.Addr, ls.Process, nil })
	add("HAProxy", func() (string, *peer.Process, error) { return l.Near.Outer, haproxy, missing })
	add("direct", func() (string, *peer.Process, error) { return l.Dest.Addr(1), nil, nil })
	return s
}

// readTimes reads a topic as many times as it takes to have so many bytes.
func readTimes(ctx context.Context, addr string, d lab.Data, atLeast int64) (n int64, err error) {
	for err == nil && n < atLeast {
		var more int64
		more, err = readAll(ctx, addr, d)
		if more == 0 && err == nil {
			return n, fmt.Errorf("%s has no records", d.Topic)
		}
		n += more
	}
	return n, err
}

// readAll reads all records of a topic over two connections, and returns the
// bytes of their values.
func readAll(ctx context.Context, addr string, d lab.Data) (int64, error) {
	g, gctx := errgroup.WithContext(ctx)
	const conns = 2
	var got [conns]int64
	for i := range conns {
		var ps []int32
		for p := i; p < d.Partitions; p += conns {
			ps = append(ps, int32(p))
		}
		if len(ps) == 0 {
			continue
		}
		g.Go(func() (err error) {
			got[i], err = readPartitions(gctx, addr, d, ps)
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return 0, err
	}
	var n int64
	for _, x := range got {
		n += x
	}
	return n * int64(d.Record), nil
}

func readPartitions(ctx context.Context, addr string, d lab.Data, ps []int32) (records int64, err error) {
	r, err := raw.NewReader(ctx, addr, d.Topic, ps)
	if err != nil {
		return 0, err
	}
	defer r.Close()
	left := func(p int32) bool { return r.Next[p] < d.Ends[p] }
	for slices.ContainsFunc(ps, left) {
		n, err := r.Fetch(ctx)
		if err != nil {
			return 0, err
		}
		records += n
	}
	return records, nil
}

// through runs work that moves a number of bytes and says what that took of
// the process in between and of the destination broker.
func through(l *lab.Lab, pid int, work func() (int64, error)) (map[string]float64, error) {
	usage := func() (p, b measure.Usage, err error) {
		if pid != 0 {
			if p, err = measure.Process(pid); err != nil {
				return p, b, err
			}
		}
		b, err = measure.Process(l.Dest.Pid(1))
		return p, b, err
	}
	p0, b0, err := usage()
	if err != nil {
		return nil, err
	}
	began := time.Now()
	n, err := work()
	if err != nil {
		return nil, err
	}
	took := time.Since(began)
	p1, b1, err := usage()
	if err != nil {
		return nil, err
	}
	gb := float64(n) / 1e9
	v := map[string]float64{"mb_s": gb * 1000 / took.Seconds(), "dest_cpu_s_gb": (b1.CPU - b0.CPU).Seconds() / gb, report.MeasuredSeconds: took.Seconds()}
	if pid != 0 {
		lasted(v, took, p1.CPU-p0.CPU)
		v["cpu_s_gb"], v["rss_mb"] = (p1.CPU-p0.CPU).Seconds()/gb, float64(p1.Peak)/1e6
	}
	return v, nil
}
