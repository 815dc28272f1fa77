package scenario

import (
	"context"
	"fmt"
	"time"

	"github.com/lockstep-kafka/lockstep/bench/lab"
	"github.com/lockstep-kafka/lockstep/bench/measure"
	"github.com/lockstep-kafka/lockstep/bench/peer"
	"github.com/lockstep-kafka/lockstep/bench/report"
)

// copying watches a peer that copies a topic until all is there.
type copying struct {
	l     *lab.Lab
	proc  *peer.Process
	data  lab.Data
	dst   string        // its name on the destination
	start time.Duration // allowed until the first record; 0: two minutes
	most  time.Duration // > 0: what is there so long after the first record is enough
	whole bool          // measure from the process's start, not from the first record
	began time.Time
}

// reading is a moment of a copy.
type reading struct {
	at                   time.Time
	records              int64
	proc, source, broker measure.Usage
}

func (c *copying) read(records int64) (r reading, err error) {
	r.at, r.records = time.Now(), records
	if r.proc, err = c.proc.Usage(); err != nil {
		if ended := c.proc.Ended(); ended != nil {
			return r, ended
		}
		return r, err
	}
	if r.source, err = measure.Process(c.l.Source.Pid(1)); err != nil {
		return r, err
	}
	r.broker, err = measure.Process(c.l.Dest.Pid(1))
	return r, err
}

// watch counts from the first records that are seen on the destination to the
// last: start-up is told apart. What was there at the first look doesn't count.
func (c *copying) watch(ctx context.Context) (map[string]float64, error) {
	if c.start == 0 {
		c.start = 2 * time.Minute
	}
	adm, err := lab.Admin(c.l.Dest)
	if err != nil {
		return nil, err
	}
	defer adm.Close()
	pause := 10 * time.Millisecond
	if c.data.Partitions > 16 {
		pause = 100 * time.Millisecond
	}
	var first, last reading
	for {
		have := lab.Records(ctx, adm, c.dst)
		enough := have >= c.data.Records || c.most > 0 && first.records > 0 && time.Since(first.at) > c.most
		if have > 0 && first.records == 0 && !enough {
			if first, err = c.read(have); err != nil {
				return nil, err
			}
		}
		if enough {
			if last, err = c.read(have); err != nil {
				return nil, err
			}
			break
		}
		if err := c.proc.Ended(); err != nil {
			return nil, err
		}
		limit := c.start
		if first.records > 0 {
			limit = 10 * time.Minute
		}
		if time.Since(c.began) > limit+c.start {
			return nil, fmt.Errorf("%d of %d records arrived in %v\n%s", have, c.data.Records, time.Since(c.began).Round(time.Second), c.proc.Tail())
		}
		if err := lab.Sleep(ctx, pause); err != nil {
			return nil, err
		}
	}
	return c.figures(first, last), nil
}

func (c *copying) figures(first, last reading) map[string]float64 {
	v := map[string]float64{"rss_mb": float64(last.proc.Peak) / 1e6}
	if first.records > 0 {
		v["startup_s"], v["startup_cpu_s"] = first.at.Sub(c.began).Seconds(), first.proc.CPU.Seconds()
	}
	if c.whole {
		v["seconds"], v["cpu_s"] = last.at.Sub(c.began).Seconds(), last.proc.CPU.Seconds()
		return v
	}
	if first.records == 0 { // all came at once: from the start
		first.at = c.began
		first.source, first.broker = last.source, last.broker
	}
	gb := float64(last.records-first.records) * float64(c.data.Record) / 1e9
	seconds := last.at.Sub(first.at).Seconds()
	if gb <= 0 || seconds <= 0 {
		return v
	}
	lasted(v, last.at.Sub(first.at), last.proc.CPU-first.proc.CPU)
	v["mb_s"] = gb * 1000 / seconds
	v["cpu_s_gb"] = (last.proc.CPU - first.proc.CPU).Seconds() / gb
	v["source_cpu_s_gb"] = (last.source.CPU - first.source.CPU).Seconds() / gb
	v["dest_cpu_s_gb"] = (last.broker.CPU - first.broker.CPU).Seconds() / gb
	return v
}

// lasted notes of how much time, and how much of a process's CPU time, figures
// are made; of several measurements the shortest.
func lasted(v map[string]float64, took, cpu time.Duration) {
	for k, d := range map[string]time.Duration{report.MeasuredSeconds: took, report.MeasuredCPU: cpu} {
		if old, ok := v[k]; !ok || d.Seconds() < old {
			v[k] = d.Seconds()
		}
	}
}
