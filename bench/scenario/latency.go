package scenario

import (
	"context"
	"fmt"
	"time"

	"github.com/lockstep-kafka/lockstep/bench/lab"
	"github.com/lockstep-kafka/lockstep/bench/peer"
	"github.com/lockstep-kafka/lockstep/bench/report"
)

// latency measures from the producer's ack on the source to the arrival at a
// consumer on the destination.
func latency(l *lab.Lab, o Options) *Scenario {
	rates, lasts, rounds, mm2 := []int{1000, 20_000}, 10*time.Second, 2, 1
	switch o.Mode {
	case Quick:
		rates, lasts, mm2 = []int{1000}, 6*time.Second, 0
	case Full:
		lasts, rounds, mm2 = time.Minute, 5, 5
	}
	s := &Scenario{
		Scenario: report.Scenario{
			Name: "latency", Title: "Replication latency", Chart: "p99_ms", Ratios: []string{"p50_ms", "p99_ms"}, Limits: []string{"bare pass", "source"},
			About: "From the producer's acknowledgement on the source to the arrival at a consumer on the destination (of Lockstep: through its proxy), 1 KiB records, 4 partitions, " +
				"sent on a fixed schedule whatever the answers. The columns from when a record was due count the producer's own delay too, so that nothing is omitted by a sender that waits. " +
				"\"bare pass\" reads and writes each batch as it is, one request after the other, and its consumer reads from the broker: what two brokers and this machine take for it. " +
				"\"source\" is a consumer on the source: no mirror at all.",
			Metrics: []string{"p50_ms", "p99_ms", "p999_ms", "max_ms", "due_p50_ms", "due_p99_ms", "cpu_pct", "rss_mb"},
		},
		Rounds: rounds,
	}
	type started struct {
		p        *peer.Process
		to, name string // where the consumer reads, and what
		end      func()
	}
	n := 0
	add := func(name string, sure int, start func(ctx context.Context, topic string) (started, error)) {
		s.Runs = append(s.Runs, Run{Peer: name, Sure: sure, Warms: sure == 0, Do: func(ctx context.Context, round int) (out []report.Sample, err error) {
			lasts := lasts
			if round < 0 { // the warm-up
				lasts = time.Second
			}
			defer tidy(ctx, l)
			n++
			topic := fmt.Sprintf("latency-%d", n)
			if err := lab.Create(ctx, l.Source, topic, 4, nil); err != nil {
				return nil, err
			}
			st, err := start(ctx, topic)
			if err != nil {
				return nil, err
			}
			defer st.end()
			warm := peerWarm
			for _, rate := range rates {
				f := flow{
					from: l.Source.Addr(1), to: st.to, topic: topic, dst: st.name, partitions: 4, record: 1024,
					rate: int(l.Count(int64(rate), 100)), warm: warm, lasts: lasts, proc: st.p,
				}
				warm = peerWarm / 2
				v, err := f.measure(ctx)
				if err != nil {
					return out, err
				}
				out = append(out, report.Sample{Case: fmt.Sprintf("%d records/s", f.rate), Values: v.replication()})
			}
			return out, nil
		}})
	}
	add(report.Subject, 0, func(ctx context.Context, topic string) (started, error) {
		p, err := peer.StartLockstep(ctx, l, peer.LockstepOptions{Topics: []string{topic}, Profile: "latency"})
		if err != nil {
			return started{}, err
		}
		return started{p.Process, p.Addr, topic, p.End}, nil
	})
	add("kgo copier", 0, func(ctx context.Context, topic string) (started, error) {
		p, err := peer.StartCopier(ctx, l, peer.CopierOptions{Topic: topic, Dst: topic, Partitions: 4})
		if err != nil {
			return started{}, err
		}
		return started{p, l.Dest.Addr(1), topic, p.End}, nil
	})
	if mm2 > 0 {
		add("MirrorMaker 2", mm2, func(ctx context.Context, topic string) (started, error) {
			mo := peer.MM2Options{Topic: topic, N: int(time.Now().UnixMilli() % 1e9)}
			p, err := peer.StartMM2(ctx, l, mo)
			if err != nil {
				return started{}, err
			}
			return started{p, l.Dest.Addr(1), mo.Remote(), p.End}, nil
		})
	}
	add("bare pass", 0, func(ctx context.Context, topic string) (started, error) {
		p, err := peer.StartPass(ctx, l, topic, 4)
		if err != nil {
			return started{}, err
		}
		return started{p, l.Dest.Addr(1), topic, p.End}, nil
	})
	add("source", 0, func(_ context.Context, topic string) (started, error) {
		return started{nil, l.Source.Addr(1), topic, func() {}}, nil
	})
	return s
}

// peerWarm is how long a peer works before it counts, at the first rate; half of
// it at each later one. A JVM compiles what it runs often while it runs, and takes
// processors from all that is measured for as long: a peer's own, here; the
// brokers', in the warm-up round.
const peerWarm = 10 * time.Second
