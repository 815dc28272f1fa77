package scenario

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"time"

	"github.com/lockstep-kafka/lockstep/bench/lab"
	"github.com/lockstep-kafka/lockstep/bench/measure"
	"github.com/lockstep-kafka/lockstep/bench/peer"
	"github.com/lockstep-kafka/lockstep/bench/report"
)

// proxyScenario compares what passes through untouched with other proxies.
func proxyScenario(l *lab.Lab, o Options) *Scenario {
	connections := 1000
	bytes := l.Count(2<<30, 4<<20)
	lasts := 10 * time.Second
	if o.Mode == Full {
		lasts = time.Minute
	}
	var (
		ls      *peer.Lockstep
		haproxy *peer.Process
		missing error
		n       int
	)
	s := &Scenario{
		Scenario: report.Scenario{
			Name: "proxy", Title: "The proxy alone", Chart: "consume_cpu_s_gb", Limits: []string{"direct"},
			Ratios: []string{"produce_mb_s", "consume_mb_s", "produce_cpu_s_gb", "consume_cpu_s_gb", "through_p50_ms", "through_p99_ms", "idle_rss_mb"},
			About: "No topic is mirrored: everything passes through. 2 GiB of 1 KiB records in batches of about 128 KiB are produced, and consumed twice, over two connections; " +
				"1,000 records a second are sent on a fixed schedule and consumed, both through the proxy; 1,000 connections are idle. \"Added\" is the difference to \"direct\" in the same round, from due to consumed. CPU and RSS are the proxy's.",
			Metrics: []string{
				"produce_mb_s", "consume_mb_s", "produce_cpu_s_gb", "consume_cpu_s_gb", "ack_p50_ms", "ack_p99_ms", "through_p50_ms", "through_p99_ms",
				"added_p50_ms", "added_p99_ms", "rss_mb", "idle_rss_mb", "idle_kb_connection",
			},
		},
		Derive: added,
		Rounds: 3,
		Prepare: func(ctx context.Context) (err error) {
			if err = clear(ctx, l); err != nil {
				return err
			}
			if ls, err = peer.StartLockstep(ctx, l, peer.LockstepOptions{Profile: "proxy"}); err != nil {
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
	add := func(name string, where func() (addr string, pid int, err error)) {
		s.Runs = append(s.Runs, Run{Peer: name, Warms: true, Do: func(ctx context.Context, round int) ([]report.Sample, error) {
			addr, pid, err := where()
			if err != nil {
				return nil, err
			}
			n++
			lasts, connections := lasts, connections
			if round < 0 { // the warm-up
				lasts, connections = time.Second, 0
			}
			return one(proxied(ctx, l, fmt.Sprintf("proxied-%d", n), addr, pid, bytes, lasts, connections))
		}})
	}
	add(report.Subject, func() (string, int, error) { return ls.Addr, ls.Pid(), nil })
	add("HAProxy", func() (string, int, error) {
		if missing != nil {
			return "", 0, missing
		}
		return l.Near.Outer, haproxy.Pid(), nil
	})
	for _, other := range o.Others {
		add(other.Name, func() (string, int, error) { return other.Addr, other.pid(), nil })
	}
	add("direct", func() (string, int, error) { return l.Dest.Addr(1), 0, nil })
	return s
}

// added says by how much a proxy's latency is above a direct connection's.
func added(round []report.Sample) {
	for _, direct := range round {
		if direct.Peer != "direct" {
			continue
		}
		for _, x := range round {
			for _, q := range []string{"p50_ms", "p99_ms"} {
				with, ok := x.Values["through_"+q]
				if without, ok2 := direct.Values["through_"+q]; ok && ok2 && x.Peer != "direct" {
					x.Values["added_"+q] = with - without
				}
			}
		}
	}
}

// pid is that of a proxy on this machine; 0 where it can't be found: then its
// CPU time and memory are not known.
func (o Other) pid() int {
	host, port, err := net.SplitHostPort(o.Addr)
	if err != nil || !net.ParseIP(host).IsLoopback() && host != "localhost" {
		return 0
	}
	n, err := strconv.Atoi(port)
	if err != nil {
		return 0
	}
	pid, err := measure.ListenerPid(n)
	if err != nil {
		return 0
	}
	return pid
}

// proxied measures one proxy (or none, with pid 0).
func proxied(ctx context.Context, l *lab.Lab, topic, addr string, pid int, bytes int64, lasts time.Duration, connections int) (map[string]float64, error) {
	shape := lab.Shape{Topic: topic, Partitions: 4, Bytes: bytes, Record: 1024, Min: 100, Max: 150}
	if err := lab.Create(ctx, l.Dest, topic, shape.Partitions, nil); err != nil {
		return nil, err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), tidyTime)
		defer cancel()
		_ = lab.Delete(ctx, l.Dest, topic, topic+"-slow") // the next one has other names
	}()
	var ends []int64
	in, err := through(l, pid, func() (n int64, err error) {
		ends, err = lab.Produce(ctx, addr, shape)
		for _, e := range ends {
			n += e * int64(shape.Record)
		}
		return n, err
	})
	if err != nil {
		return nil, fmt.Errorf("produce: %w", err)
	}
	out, err := through(l, pid, func() (int64, error) { return readTimes(ctx, addr, lab.Data{Shape: shape, Ends: ends}, 2*bytes) })
	if err != nil {
		return nil, fmt.Errorf("consume: %w", err)
	}
	v := map[string]float64{"produce_mb_s": in["mb_s"], "consume_mb_s": out["mb_s"]}
	for _, k := range []string{report.MeasuredSeconds, report.MeasuredCPU} {
		if x, ok := in[k]; ok {
			v[k] = min(x, out[k])
		}
	}
	if pid != 0 {
		v["produce_cpu_s_gb"], v["consume_cpu_s_gb"], v["rss_mb"] = in["cpu_s_gb"], out["cpu_s_gb"], out["rss_mb"]
	}
	if lasts > 0 {
		if err := lab.Create(ctx, l.Dest, topic+"-slow", 4, nil); err != nil {
			return nil, err
		}
		f := flow{from: addr, to: addr, topic: topic + "-slow", dst: topic + "-slow", partitions: 4, record: 1024, rate: 1000, warm: 2 * time.Second, lasts: lasts}
		lat, err := f.measure(ctx)
		if err != nil {
			return nil, err
		}
		v["ack_p50_ms"], v["ack_p99_ms"] = lat.dueToAck.Quantile(0.5), lat.dueToAck.Quantile(0.99)
		v["through_p50_ms"], v["through_p99_ms"] = lat.dueToArrival.Quantile(0.5), lat.dueToArrival.Quantile(0.99)
	}
	if pid != 0 && connections > 0 {
		before, with, err := idle(ctx, addr, pid, connections)
		if err != nil {
			return nil, fmt.Errorf("idle connections: %w", err)
		}
		v["idle_rss_mb"] = float64(with.RSS) / 1e6
		v["idle_kb_connection"] = float64(with.RSS-before.RSS) / 1000 / float64(connections)
	}
	return v, nil
}
