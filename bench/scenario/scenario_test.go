package scenario

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-kafka/lockstep/bench/lab"
	"github.com/lockstep-kafka/lockstep/bench/measure"
	"github.com/lockstep-kafka/lockstep/bench/report"
)

// Nobody is always first, and nobody always runs behind the same neighbour.
func TestOrderTurns(t *testing.T) {
	s := &Scenario{Runs: []Run{{Peer: "a", Warms: true}, {Peer: "b", Warms: true}, {Peer: "c", Sure: 1}}}
	names := func(round int) (out string) {
		for _, r := range s.Order(round) {
			out += r.Peer
		}
		return out
	}
	require.Equal(t, []string{"abc", "bac", "cab", "acb"}, []string{names(0), names(1), names(2), names(3)})
	require.Equal(t, -1, s.FirstRound())
	require.Equal(t, "ab", names(-1), "the warm-up")
	require.Len(t, s.Runs, 3)
	require.Empty(t, (&Scenario{}).Order(5))
	require.Zero(t, (&Scenario{Runs: []Run{{Peer: "a"}}}).FirstRound())
}

// What is only run when time is left is named when it wasn't.
func TestSpareRounds(t *testing.T) {
	r := Run{Peer: "slow", Sure: 1}
	require.False(t, r.Spare(0))
	require.True(t, r.Spare(1))
	require.False(t, Run{}.Spare(9))
	s := &Scenario{}
	s.Spared(r, 1)
	require.Equal(t, []string{"slow: round 2, for want of time"}, s.LeftOut)
	require.Equal(t, "rounds 2 to 3", Rounds(1, 3))
}

// Every scenario of every mode says what it shows, with columns that exist.
func TestScenariosAreComplete(t *testing.T) {
	all := report.Metrics()
	for _, mode := range []Mode{Quick, Core, Full, Proxy, Growth} {
		seen := map[string]bool{}
		list := All(&lab.Lab{Scale: 1}, Options{Mode: mode})
		require.NotEmpty(t, list)
		for _, s := range list {
			require.False(t, seen[s.Name], "%s: two scenarios called %s", mode, s.Name)
			seen[s.Name] = true
			require.NotEmpty(t, s.Title)
			require.NotEmpty(t, s.About)
			require.NotEmpty(t, s.Runs)
			require.Positive(t, s.Rounds, s.Name)
			for _, m := range append(append([]string{}, s.Metrics...), s.Ratios...) {
				require.Contains(t, all, m, s.Name)
			}
			if s.Chart != "" {
				require.Contains(t, s.Metrics, s.Chart, s.Name)
			}
		}
	}
	require.Equal(t, 7, All(&lab.Lab{Scale: 1}, Options{Mode: Core, Rounds: 7})[0].Rounds)
}

// What was there at the first look doesn't count, neither does CPU time until
// then.
func TestFiguresCountFromTheFirstRecords(t *testing.T) {
	began := time.Unix(1000, 0)
	c := &copying{began: began, data: lab.Data{Shape: lab.Shape{Record: 1000}}}
	u := func(cpu time.Duration) measure.Usage { return measure.Usage{CPU: cpu, Peak: 50e6} }
	first := reading{at: began.Add(20 * time.Second), records: 1_000_000, proc: u(10 * time.Second), source: u(time.Second), broker: u(time.Second)}
	last := reading{at: began.Add(30 * time.Second), records: 3_000_000, proc: u(14 * time.Second), source: u(2 * time.Second), broker: u(5 * time.Second)}
	require.Equal(t, map[string]float64{
		"mb_s": 200, "cpu_s_gb": 2, "source_cpu_s_gb": 0.5, "dest_cpu_s_gb": 2, "rss_mb": 50, "startup_s": 20, "startup_cpu_s": 10,
		report.MeasuredSeconds: 10, report.MeasuredCPU: 4,
	}, c.figures(first, last))
	all := c.figures(reading{}, last)
	require.InDelta(t, 100, all["mb_s"], 0, "all came at once: from the start")
	c.whole = true
	require.InDelta(t, 30, c.figures(first, last)["seconds"], 0)
}

func TestAddedLatency(t *testing.T) {
	round := []report.Sample{
		{Peer: report.Subject, Values: map[string]float64{"through_p50_ms": 3, "through_p99_ms": 9}},
		{Peer: "direct", Values: map[string]float64{"through_p50_ms": 2, "through_p99_ms": 10}},
		{Peer: "failed", Values: map[string]float64{}},
	}
	added(round)
	require.InDelta(t, 1, round[0].Values["added_p50_ms"], 1e-9)
	require.InDelta(t, -1, round[0].Values["added_p99_ms"], 1e-9)
	require.Len(t, round[1].Values, 2)
	require.Empty(t, round[2].Values)
}

// A goal whose scenario, metric or peer is called otherwise would never be
// looked at.
func TestGoalsNameWhatIsMeasured(t *testing.T) {
	by := map[string]*Scenario{}
	for _, s := range All(&lab.Lab{Scale: 1}, Options{Mode: Full}) {
		by[s.Name] = s
	}
	for _, g := range report.Goals() {
		s := by[g.Scenario]
		require.NotNil(t, s, g)
		require.Contains(t, s.Metrics, g.Metric)
		if g.Against == "" {
			continue
		}
		require.Contains(t, s.Ratios, g.Metric)
		require.True(t, slices.ContainsFunc(s.Runs, func(r Run) bool { return r.Peer == g.Against }), g)
	}
}
