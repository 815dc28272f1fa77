package report

import (
	"fmt"
	"slices"
	"strings"

	"github.com/jedib0t/go-pretty/v6/table"
)

// Goal is what Lockstep sets itself: a bound on a ratio inside a round, or,
// against nobody, on its own value in every round.
type Goal struct {
	Scenario, Case  string // Case "": each case
	Metric, Against string
	Bound           float64
}

// Goals are all of them.
func Goals() []Goal {
	var g []Goal
	for _, s := range []string{"catchup", "catchup-lz4", "catchup-large"} {
		g = append(g,
			Goal{s, "", "mb_s", "kgo copier", 1},
			Goal{s, "", "cpu_s_gb", "kgo copier", 1. / 3},
			Goal{s, "", "cpu_s_gb", "MirrorMaker 2, tuned", 1. / 15},
			Goal{s, "", "cpu_s_gb", "bare relay", 1.5},
			Goal{s, "", "rss_mb", "", 150},
		)
	}
	return append(g,
		Goal{"catchup-small", "", "mb_s", "kgo copier", 1},
		Goal{"catchup-small", "", "rss_mb", "", 150},
		Goal{"catchup-small-lz4", "", "mb_s", "kgo copier", 1},
		Goal{"catchup-small-lz4", "", "rss_mb", "", 150},
		Goal{"catchup-compacted", "", "rss_mb", "", 150},
		Goal{"catchup-500", "", "rss_mb", "", 150},
		Goal{"latency", "", "p50_ms", "kgo copier", 1},
		Goal{"latency", "", "p99_ms", "kgo copier", 1},
		Goal{"latency", "", "p99_ms", "MirrorMaker 2", 0.1},
		Goal{"consume", "", "cpu_s_gb", "HAProxy", 1.5},
		Goal{"proxy", "", "produce_cpu_s_gb", "HAProxy", 1.25},
		Goal{"proxy", "", "consume_cpu_s_gb", "HAProxy", 1.25},
		Goal{"wan", "1 partition", "mb_s", "", 50},
		Goal{"growth-partitions", "5000", "rss_mb", "", 300},
	)
}

// outcome of a goal in one case.
type outcome struct {
	kase    string
	found   Spread
	reached bool
}

// outcomes are empty where it wasn't measured. A ratio reaches its bound by its
// median, an absolute value in every round.
func (g Goal) outcomes(s *Scenario) (out []outcome) {
	smaller := Metrics()[g.Metric].Smaller
	within := func(v float64) bool { return v <= g.Bound && smaller || v >= g.Bound && !smaller }
	if g.Against != "" {
		for _, r := range s.RatiosOf() {
			if r.Peer == g.Against && r.Metric == g.Metric && (g.Case == "" || g.Case == r.Case) {
				out = append(out, outcome{r.Case, r.Spread, within(r.Median)})
			}
		}
		return out
	}
	for _, r := range s.rows() {
		if v := s.values(r, g.Metric); r.peer == Subject && len(v) > 0 && (g.Case == "" || g.Case == r.kase) {
			sp := SpreadOf(v)
			out = append(out, outcome{r.kase, sp, within(sp.Min) && within(sp.Max)})
		}
	}
	return out
}

func goals(b *strings.Builder, list []shown) {
	t := newTable(true)
	t.AppendHeader(table.Row{"", "against", "goal", "rounds", "found, median (min–max)", "reached"})
	rows := 0
	for _, g := range Goals() {
		i := slices.IndexFunc(list, func(s shown) bool { return s.Name == g.Scenario })
		if i < 0 {
			continue
		}
		for _, o := range g.outcomes(list[i].Scenario) {
			what := list[i].Title
			if o.kase != "" {
				what += ", " + o.kase
			}
			m, sign, against, reached := Metrics()[g.Metric], "≥", "–", "**no**"
			if m.Smaller {
				sign = "≤"
			}
			if g.Against != "" {
				against = g.Against
			}
			if o.reached {
				reached = "yes"
			}
			digits := 2
			if g.Bound < 0.5 {
				digits = 3 // of a fifteenth
			}
			t.AppendRow(table.Row{
				what + ": " + m.Title, against, sign + " " + number(g.Bound, digits), o.found.N,
				fmt.Sprintf("%s (%s–%s)", number(o.found.Median, digits), number(o.found.Min, digits), number(o.found.Max, digits)), reached,
			})
			rows++
		}
	}
	if rows > 0 {
		b.WriteString("## Goals\n\nRatios inside a round against a peer, or, against nobody, Lockstep's own figure.\n\n" + t.RenderMarkdown() + "\n\n")
	}
}
