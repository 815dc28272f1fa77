package report

import (
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
// the two is missing, or zero, don't count.
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
				mine, ok := s.find(Subject, r.kase, x.Round, m)
				theirs, ok2 := x.Values[m]
				if ok && ok2 && mine > 0 && theirs > 0 {
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

func (s *Scenario) find(peer, kase string, round int, metric string) (float64, bool) {
	for _, x := range s.Samples {
		if x.Peer == peer && x.Case == kase && x.Round == round {
			v, ok := x.Values[metric]
			return v, ok
		}
	}
	return 0, false
}

// Loses says whether a rival is ahead of the subject, beyond what rounds differ
// by: in every round, and by more than a twentieth.
func (r Ratio) Loses() bool {
	if r.Limit {
		return false
	}
	if Metrics()[r.Metric].Smaller {
		return r.Min > 1.05
	}
	return r.Max < 1/1.05
}

// Superlinear are pairs of neighbouring points between which a metric of the
// subject grew by more than x did: their exponent is above 1.1.
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
			if a.X <= 0 || a.Y <= 0 || b.X <= a.X || b.Y <= 0 {
				continue
			}
			if e := math.Log(b.Y/a.Y) / math.Log(b.X/a.X); e > 1.1 {
				out = append(out, Growth{Metric: m, From: a, To: b, Exponent: e})
			}
		}
	}
	return out
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

// loads are the lowest and highest load average before a measurement.
func (r *Run) loads() Spread {
	var v []float64
	for _, s := range r.Scenarios {
		for _, x := range s.Samples {
			v = append(v, x.Load)
		}
	}
	return SpreadOf(v)
}

// Busy says whether the machine did something else when the run began: its own
// brokers and peers load it later.
func (r *Run) Busy() bool { return r.LoadStart > 0.25*float64(r.Machine.CPUs) }
