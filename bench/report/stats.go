package report

import (
	"fmt"
	"math"
	"slices"
)

// Spread is what several rounds gave.
type Spread struct {
	Min, Median, Max float64
	N                int
}

// SpreadOf sums up values; of none it is all zero.
func SpreadOf(v []float64) Spread {
	if len(v) == 0 {
		return Spread{}
	}
	s := slices.Sorted(slices.Values(v))
	mid := s[len(s)/2]
	if len(s)%2 == 0 {
		mid = (s[len(s)/2-1] + mid) / 2
	}
	return Spread{s[0], mid, s[len(s)-1], len(s)}
}

// Ratio compares the subject with another peer inside each round.
type Ratio struct {
	Peer, Case, Metric string
	Limit              bool // the peer is no rival
	Spread                  // subject's value : peer's value
}

// RatiosOf are the scenario's, for each case and peer. Rounds in which one of
// the two is missing, zero, or too short don't count.
func (s *Scenario) RatiosOf() (out []Ratio) {
	for _, r := range s.rows() {
		if r.peer == Subject {
			continue
		}
		for _, m := range s.Ratios {
			var v []float64
			for _, x := range s.Samples {
				if x.Peer != r.peer || x.Case != r.kase {
					continue
				}
				y, ok := s.find(Subject, r.kase, x.Round)
				mine, theirs := y.Values[m], x.Values[m]
				if ok && mine > 0 && theirs > 0 && !x.shortFor(m) && !y.shortFor(m) {
					v = append(v, mine/theirs)
				}
			}
			if len(v) > 0 {
				out = append(out, Ratio{r.peer, r.kase, m, slices.Contains(s.Limits, r.peer), SpreadOf(v)})
			}
		}
	}
	return out
}

func (s *Scenario) find(peer, kase string, round int) (Sample, bool) {
	for _, x := range s.Samples {
		if x.Peer == peer && x.Case == kase && x.Round == round {
			return x, true
		}
	}
	return Sample{}, false
}

// Loses says whether a rival is ahead of the subject, beyond what rounds differ
// by: in every round, and by more than a twentieth.
func (r Ratio) Loses() bool {
	if Metrics()[r.Metric].Smaller {
		return !r.Limit && r.Min > 1.05
	}
	return !r.Limit && r.Max < 1/1.05
}

// MostlyLoses says whether it is so in the median, but not in every round.
func (r Ratio) MostlyLoses() bool {
	if r.Limit || r.Loses() {
		return false
	}
	if Metrics()[r.Metric].Smaller {
		return r.Median > 1.05
	}
	return r.Median < 1/1.05
}

// Superlinear are pairs of neighbouring points between which a metric of the
// subject grew by more than x did, beyond what noise makes: by an exponent above
// 1.15, by more than the metric's noise, and above 1 also from the highest of
// the lower point's rounds to the lowest of the upper one's.
func (s *Scenario) Superlinear() (out []Growth) {
	if s.Axis == "" {
		return nil
	}
	for _, m := range s.Metrics {
		if !Metrics()[m].Smaller {
			continue
		}
		pts := s.points(Subject, m)
		for i := 1; i < len(pts); i++ {
			a, b := pts[i-1], pts[i]
			if a.X <= 0 || a.Y <= 0 || b.X <= a.X || b.Y-a.Y <= noise(m) {
				continue
			}
			by := math.Log(b.X / a.X)
			if e := math.Log(b.Y/a.Y) / by; e > 1.15 && b.Low > 0 && math.Log(b.Low/a.High)/by > 1 {
				out = append(out, Growth{Metric: m, From: a, To: b, Exponent: e})
			}
		}
	}
	return out
}

// noise is by how much a metric differs without a reason, from one start of a
// process to another: waits of tenths of a second, ticks of the kernel's clock,
// pages of memory.
func noise(metric string) float64 {
	switch metric {
	case "seconds", "stop_s", "start_s":
		return 0.25
	case "cpu_s":
		return 0.1
	case "rss_mb", "idle_rss_mb":
		return 10
	}
	return 0
}

// Growth of a metric between two points.
type Growth struct {
	Metric   string
	From, To point
	Exponent float64
}

type point struct{ X, Y, Low, High float64 }

// points are the medians over rounds, by x.
func (s *Scenario) points(peer, metric string) (out []point) {
	by := map[float64][]float64{}
	for _, x := range s.Samples {
		if v, ok := x.Values[metric]; ok && x.Peer == peer {
			by[x.X] = append(by[x.X], v)
		}
	}
	for x, v := range by {
		sp := SpreadOf(v)
		out = append(out, point{x, sp.Median, sp.Min, sp.Max})
	}
	slices.SortFunc(out, func(a, b point) int {
		if a.X < b.X {
			return -1
		}
		return 1
	})
	return out
}

// furthest is the largest x.
func (s *Scenario) furthest() (x float64) {
	for _, v := range s.Samples {
		x = max(x, v.X)
	}
	return x
}

// loads are the lowest and highest load average before a measurement.
func (r *Run) loads() Spread { return r.spread(func(x *Sample) float64 { return x.Load }) }

// spread is that of something in all samples.
func (r *Run) spread(of func(*Sample) float64) Spread {
	var v []float64
	for _, s := range r.Scenarios {
		for i := range s.Samples {
			v = append(v, of(&s.Samples[i]))
		}
	}
	return SpreadOf(v)
}

// Busy says by what the machine was kept busy when the run began; "" when by
// nothing that matters. The run's own brokers and peers load it later. The load
// average counts only where nobody looked at what others use: it still has what
// ended a minute before.
func (r *Run) Busy() string {
	switch {
	case r.InUse != nil && *r.InUse > 10:
		return fmt.Sprintf("%s %% of the CPUs in use by others, load average %s", number(*r.InUse, 0), number(r.LoadStart, 1))
	case r.InUse == nil && HighLoad(r.LoadStart, r.Machine.CPUs):
		return fmt.Sprintf("load average %s on %d CPUs", number(r.LoadStart, 1), r.Machine.CPUs)
	}
	return ""
}

// HighLoad says that a load average asks for a longer look.
func HighLoad(load float64, cpus int) bool { return load > 0.75*float64(cpus) }

// stolen is what other virtual machines took of the CPUs during measurements, in
// percent.
func (r *Run) stolen() Spread { return r.spread(func(x *Sample) float64 { return x.Stolen }) }
