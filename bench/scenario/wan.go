package scenario

import (
	"context"
	"fmt"
	"time"

	"github.com/lockstep-kafka/lockstep/bench/lab"
	"github.com/lockstep-kafka/lockstep/bench/peer"
	"github.com/lockstep-kafka/lockstep/bench/report"
)

// wanRoundTrip is how far the source is away.
const wanRoundTrip = 100 * time.Millisecond

// wan mirrors from a source that is far away.
func wan(l *lab.Lab, o Options) *Scenario {
	partitions, lasts, rounds := []int{1, 100}, 8*time.Second, 2
	bytes := l.Count(1<<30, 8<<20)
	switch o.Mode {
	case Quick:
		partitions, lasts, rounds, bytes = []int{1}, 5*time.Second, 1, bytes/2
	case Full:
		lasts, rounds = time.Minute, 5
		bytes *= 4
	}
	var relay *peer.Process
	data := map[int]lab.Data{}
	s := &Scenario{
		Scenario: report.Scenario{
			Name: "wan", Title: "Wide area: a source 100 ms away", Chart: "mb_s", Ratios: []string{"mb_s", "cpu_s_gb"},
			About: "Between source and peer is a relay that delivers each byte 50 ms later, in both directions, without a limit on bandwidth or window. " +
				"1 KiB records in batches of about 128 KiB; what arrives within some seconds after the first record counts.",
			Metrics: []string{"mb_s", "cpu_s_gb", "rss_mb", "startup_s"},
		},
		Rounds: rounds,
		Prepare: func(ctx context.Context) (err error) {
			if err = clear(ctx, l); err != nil {
				return err
			}
			for _, n := range partitions {
				data[n], err = l.Fill(ctx, lab.Shape{Topic: fmt.Sprintf("wan-%d", n), Partitions: n, Bytes: bytes, Record: 1024, Min: 100, Max: 150})
				if err != nil {
					return err
				}
			}
			relay, err = peer.StartRelay(ctx, l, l.FarSource.Outer, l.FarSource.Inner, wanRoundTrip/2)
			return err
		},
		Finish: func() {
			if relay != nil {
				relay.End()
			}
		},
	}
	add := func(name string, start func(ctx context.Context, d lab.Data) (p *peer.Process, dst string, end func(), err error)) {
		s.Runs = append(s.Runs, Run{Peer: name, Do: func(ctx context.Context, _ int) (out []report.Sample, err error) {
			for _, n := range partitions {
				v, err := func() (map[string]float64, error) {
					defer tidy(ctx, l, keepSource)
					began := time.Now()
					p, dst, end, err := start(ctx, data[n])
					if err != nil {
						return nil, err
					}
					defer end()
					return (&copying{l: l, proc: p, data: data[n], dst: dst, began: began, most: lasts}).watch(ctx)
				}()
				if err != nil {
					return out, err
				}
				out = append(out, report.Sample{Case: plural(n, "partition"), Values: v})
			}
			return out, nil
		}})
	}
	add(report.Subject, func(ctx context.Context, d lab.Data) (*peer.Process, string, func(), error) {
		p, err := peer.StartLockstep(ctx, l, peer.LockstepOptions{Topics: []string{d.Topic}, Source: l.FarSource.Outer, Profile: "wan"})
		if err != nil {
			return nil, "", nil, err
		}
		return p.Process, d.Topic, p.End, nil
	})
	copier := func(tuned bool) func(context.Context, lab.Data) (*peer.Process, string, func(), error) {
		return func(ctx context.Context, d lab.Data) (*peer.Process, string, func(), error) {
			p, err := peer.StartCopier(ctx, l, peer.CopierOptions{Source: l.FarSource.Outer, Topic: d.Topic, Dst: "copied", Partitions: d.Partitions, Tuned: tuned})
			if err != nil {
				return nil, "", nil, err
			}
			return p, "copied", p.End, nil
		}
	}
	add("kgo copier", copier(false))
	if o.Mode == Full {
		add("kgo copier, tuned", copier(true))
	}
	return s
}
