package scenario

import (
	"context"
	"time"

	"github.com/lockstep-kafka/lockstep/bench/lab"
	"github.com/lockstep-kafka/lockstep/bench/peer"
	"github.com/lockstep-kafka/lockstep/bench/report"
)

// kind is a catch-up of one kind of data.
type kind struct {
	name, title, about string
	shape              lab.Shape
	rounds             int // in the core
	mm2                int // sure rounds with MirrorMaker 2 in the core; 0: without it
	tunedCopier        bool
	whole              bool // the time from the start counts: there is too little data to measure a rate
}

func ordinary() kind {
	return kind{
		name: "catchup", title: "Catch-up, uncompressed",
		about:  "2 GiB of 1 KiB records, 4 partitions, batches of about 128 KiB, are mirrored from the beginning.",
		shape:  lab.Shape{Topic: "catchup", Partitions: 4, Bytes: 2 << 30, Record: 1024, Min: 100, Max: 150},
		rounds: 3, mm2: 1, tunedCopier: true,
	}
}

func lz4() kind {
	k := ordinary()
	k.name, k.title = "catchup-lz4", "Catch-up, lz4"
	k.about = "The same, compressed by the producers with lz4. The copier and MirrorMaker 2 (tuned) compress anew; MirrorMaker 2 with default settings stores it uncompressed."
	k.shape.Topic, k.shape.LZ4 = "catchup-lz4", true
	return k
}

func small() kind {
	return kind{
		name: "catchup-small", title: "Catch-up, small batches",
		about:  "Batches of 1 to 10 records of 1 KiB, 4 partitions. The copier and MirrorMaker 2 make larger batches of them; Lockstep keeps what it can't merge.",
		shape:  lab.Shape{Topic: "catchup-small", Partitions: 4, Bytes: 1 << 30, Record: 1024, Min: 1, Max: 10},
		rounds: 2,
	}
}

func smallLZ4() kind {
	k := small()
	k.name, k.title = "catchup-small-lz4", "Catch-up, small batches, lz4"
	k.about = "The same, compressed with lz4."
	k.shape.Topic, k.shape.LZ4 = "catchup-small-lz4", true
	return k
}

func large() kind {
	return kind{
		name: "catchup-large", title: "Catch-up, batches of 1 MiB",
		about:  "Batches as large as Kafka's default limit allows, 1 KiB records, 4 partitions.",
		shape:  lab.Shape{Topic: "catchup-large", Partitions: 4, Bytes: 2 << 30, Record: 1024, Min: 1000, Max: 1010},
		rounds: 2,
	}
}

func holes() kind {
	return kind{
		name: "catchup-compacted", title: "Catch-up, compacted topic",
		about: "A compacted topic after the cleaner, which left about half of 1 GiB: batches with holes, 256 B records, 600,000 keys in each of 4 partitions. A broker takes no batch with holes, so Lockstep writes those anew; the peers lose the offsets. " +
			"A direct produce of the same batches isn't possible.",
		shape:  lab.Shape{Topic: "catchup-compacted", Partitions: 4, Bytes: 1 << 30, Record: 256, Min: 50, Max: 100, Keys: 600_000},
		rounds: 2,
	}
}

func many() kind {
	return kind{
		name: "catchup-500", title: "Catch-up, 500 partitions",
		about:  "500 partitions with 256 KiB each, batches of 8 to 16 records of 1 KiB, from the start of the peer until all is there; making the topic on the destination included.",
		shape:  lab.Shape{Topic: "catchup-500", Partitions: 500, Bytes: 128 << 20, Record: 1024, Min: 8, Max: 16},
		rounds: 2, whole: true,
	}
}

// catchUp measures how fast a filled topic is mirrored, beside peers and
// physical limits.
func catchUp(l *lab.Lab, o Options, k kind) *Scenario {
	var data lab.Data
	shape := k.shape
	shape.Bytes = l.Count(shape.Bytes, 1<<20)
	if shape.Keys > 0 {
		shape.Keys = int(l.Count(int64(shape.Keys), 100))
	}
	if o.Mode == Quick {
		shape.Bytes /= 4
		k.rounds, k.tunedCopier = 2, false
		k.about += " In this quick run a quarter of it."
	}
	if o.Mode == Full {
		k.rounds, k.mm2, k.tunedCopier = 5, 5, true
	}
	s := &Scenario{
		Scenario: report.Scenario{
			Name: k.name, Title: k.title, About: k.about, Chart: "mb_s", Ratios: []string{"mb_s", "cpu_s_gb"}, Limits: []string{"bare relay", "direct produce"},
			Metrics: []string{"mb_s", "cpu_s_gb", "source_cpu_s_gb", "dest_cpu_s_gb", "rss_mb", "startup_s", "startup_cpu_s"},
		},
		Rounds: k.rounds,
		Prepare: func(ctx context.Context) error {
			if err := clear(ctx, l); err != nil {
				return err
			}
			var err error
			data, err = l.Fill(ctx, shape)
			return err
		},
	}
	if k.whole {
		s.Metrics, s.Ratios, s.Chart = []string{"seconds", "cpu_s", "rss_mb", "startup_s"}, []string{"seconds", "cpu_s"}, "seconds"
	}
	watch := func(ctx context.Context, p *peer.Process, dst string, began time.Time, start time.Duration) (map[string]float64, error) {
		return (&copying{l: l, proc: p, data: data, dst: dst, began: began, start: start, whole: k.whole}).watch(ctx)
	}
	add := func(name string, sure int, do func(ctx context.Context, round int) (map[string]float64, error)) {
		// Enough for the brokers' compilers: they are asked for the same by the tuned copier, and by the relay for nothing.
		warms := sure == 0 && name != "bare relay" && name != "kgo copier, tuned"
		s.Runs = append(s.Runs, Run{Peer: name, Sure: sure, Warms: warms, Do: func(ctx context.Context, round int) ([]report.Sample, error) {
			defer tidy(ctx, l, keepSource)
			return one(do(ctx, round))
		}})
	}
	add(report.Subject, 0, func(ctx context.Context, _ int) (map[string]float64, error) {
		began := time.Now()
		p, err := peer.StartLockstep(ctx, l, peer.LockstepOptions{Topics: []string{shape.Topic}, Profile: k.name})
		if err != nil {
			return nil, err
		}
		defer p.End()
		return watch(ctx, p.Process, shape.Topic, began, 0)
	})
	copier := func(tuned bool) func(context.Context, int) (map[string]float64, error) {
		return func(ctx context.Context, _ int) (map[string]float64, error) {
			began := time.Now()
			o := peer.CopierOptions{Topic: shape.Topic, Dst: "copied", Partitions: shape.Partitions, LZ4: shape.LZ4, Tuned: tuned}
			if shape.Keys > 0 { // as Lockstep makes it
				o.Configs = map[string]string{"cleanup.policy": "compact", "min.compaction.lag.ms": "3600000"}
			}
			p, err := peer.StartCopier(ctx, l, o)
			if err != nil {
				return nil, err
			}
			defer p.End()
			return watch(ctx, p, "copied", began, 0)
		}
	}
	add("kgo copier", 0, copier(false))
	if k.tunedCopier {
		add("kgo copier, tuned", 0, copier(true))
	}
	mm2 := func(tuned bool) func(context.Context, int) (map[string]float64, error) {
		return func(ctx context.Context, _ int) (map[string]float64, error) {
			began := time.Now()
			mo := peer.MM2Options{Topic: shape.Topic, Tuned: tuned, LZ4: shape.LZ4, N: int(began.UnixMilli() % 1e9)}
			p, err := peer.StartMM2(ctx, l, mo)
			if err != nil {
				return nil, err
			}
			defer tidy(ctx, l, shape.Topic)
			defer p.End()
			return watch(ctx, p, mo.Remote(), began, peer.MM2Start)
		}
	}
	if k.mm2 > 0 {
		add("MirrorMaker 2, tuned", k.mm2, mm2(true))
		if o.Mode != Quick {
			add("MirrorMaker 2", k.mm2, mm2(false))
		}
	}
	if !k.whole {
		add("bare relay", 0, func(ctx context.Context, _ int) (map[string]float64, error) { return relayed(ctx, l, data) })
	}
	if shape.Keys == 0 {
		add("direct produce", 0, func(ctx context.Context, _ int) (map[string]float64, error) {
			began := time.Now()
			p, err := peer.StartProduce(ctx, l, shape.Topic, "produced", shape.Partitions)
			if err != nil {
				return nil, err
			}
			defer p.End()
			return watch(ctx, p, "produced", began, 0)
		})
	}
	return s
}

// relayed sends the topic's own files through a bare relay.
func relayed(ctx context.Context, l *lab.Lab, d lab.Data) (map[string]float64, error) {
	files, err := lab.SegmentFiles(l.Source, d.Topic)
	if err != nil {
		return nil, err
	}
	// More than once, if there is little: a relay is fast.
	passes := max(1, int(l.Count(2<<30, 1)/max(d.Stored, 1)))
	var paths []string
	for range passes {
		for _, f := range files {
			paths = append(paths, f.Path)
		}
	}
	took, _, u, err := peer.RelayFiles(ctx, l, paths)
	if err != nil {
		return nil, err
	}
	gb := float64(d.Records) * float64(d.Record) * float64(passes) / 1e9
	v := map[string]float64{"mb_s": gb * 1000 / took.Seconds(), "cpu_s_gb": u.CPU.Seconds() / gb, "rss_mb": float64(u.Peak) / 1e6}
	lasted(v, took, u.CPU)
	return v, nil
}
