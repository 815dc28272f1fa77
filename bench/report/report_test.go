package report

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/pprof/profile"
	"github.com/stretchr/testify/require"
)

func sample(round int, peer string, mbs, cpu float64) Sample {
	return Sample{Round: round, Peer: peer, Load: 1.5, Values: map[string]float64{"mb_s": mbs, "cpu_s_gb": cpu}}
}

func scenario() *Scenario {
	return &Scenario{
		Name: "x", Title: "X", About: "About it.", Metrics: []string{"mb_s", "cpu_s_gb", "rss_mb"}, Ratios: []string{"mb_s", "cpu_s_gb"}, Chart: "mb_s",
		Limits: []string{"bare relay"},
		Samples: []Sample{
			sample(1, "kgo copier", 100, 2), sample(1, Subject, 150, 1), sample(1, "bare relay", 900, 0.5),
			sample(2, Subject, 180, 1.2), sample(2, "kgo copier", 200, 2), sample(2, "bare relay", 900, 0.5),
			sample(3, "kgo copier", 300, 2), // the subject failed in this round
		},
	}
}

func TestSpread(t *testing.T) {
	require.Equal(t, Spread{}, SpreadOf(nil))
	require.Equal(t, Spread{1, 2, 9, 3}, SpreadOf([]float64{9, 1, 2}))
	require.Equal(t, Spread{1, 2.5, 9, 4}, SpreadOf([]float64{9, 1, 2, 3}))
}

// A ratio compares what happened in the same round, never a median with a
// median.
func TestRatiosInsideARound(t *testing.T) {
	rs := scenario().RatiosOf()
	require.Len(t, rs, 4)
	require.Equal(t, "kgo copier", rs[0].Peer)
	require.Equal(t, Spread{0.9, 1.2, 1.5, 2}, rs[0].Spread)
	require.False(t, rs[0].Loses())
	require.InDelta(t, 0.55, rs[1].Median, 1e-9)
	require.True(t, rs[2].Limit)
	require.False(t, rs[2].Loses(), "a limit is no rival")
	rs[2].Limit = false
	require.True(t, rs[2].Loses())
}

func TestLosesByDirection(t *testing.T) {
	cases := []struct {
		metric   string
		min, max float64
		loses    bool
		mostly   bool
	}{
		{"mb_s", 0.5, 0.9, true, false},
		{"mb_s", 0.5, 1.01, false, true},
		{"mb_s", 0.96, 0.97, false, false},
		{"cpu_s_gb", 1.1, 2, true, false},
		{"cpu_s_gb", 0.9, 2, false, true},
		{"cpu_s_gb", 0.5, 1.5, false, false},
	}
	for _, c := range cases {
		r := Ratio{Metric: c.metric, Spread: Spread{Min: c.min, Median: (c.min + c.max) / 2, Max: c.max}}
		require.Equal(t, c.loses, r.Loses(), "%v", c)
		require.Equal(t, c.mostly, r.MostlyLoses(), "%v", c)
		r.Limit = true
		require.False(t, r.Loses() || r.MostlyLoses(), "a limit is no rival")
	}
}

func TestSuperlinearIsNamed(t *testing.T) {
	s := &Scenario{Axis: "partitions", Metrics: []string{"seconds", "mb_s"}}
	for _, p := range [][2]float64{{10, 1}, {100, 5}, {1000, 500}} {
		s.Samples = append(s.Samples, Sample{Round: 1, Peer: Subject, X: p[0], Values: map[string]float64{"seconds": p[1], "mb_s": p[1]}})
	}
	g := s.Superlinear()
	require.Len(t, g, 1, "throughput that rises is no harm, and 10 to 100 is below linear")
	require.InDelta(t, 2, g[0].Exponent, 1e-9)
	require.Contains(t, s.growthLine(g[0]), "partitions 100 to 1000 (exponent 2.0)")
}

// Ten milliseconds that became eighty are noise, as is a point whose rounds
// differ by as much.
func TestSuperlinearBeyondNoise(t *testing.T) {
	at := func(points ...[2]float64) []Growth {
		s := &Scenario{Axis: "connections", Metrics: []string{"seconds"}}
		for _, p := range points {
			s.Samples = append(s.Samples, Sample{Peer: Subject, X: p[0], Values: map[string]float64{"seconds": p[1]}})
		}
		return s.Superlinear()
	}
	require.Empty(t, at([2]float64{10, 0.01}, [2]float64{100, 0.08}, [2]float64{1000, 0.25}))
	require.Empty(t, at([2]float64{10, 1}, [2]float64{100, 13}), "an exponent of 1.11")
	require.Len(t, at([2]float64{10, 1}, [2]float64{100, 16}), 1)
	require.Len(t, at([2]float64{10, 0.01}, [2]float64{100, 0.4}), 1, "the rise counts, not where it began")
	require.Empty(t, at([2]float64{10, 1}, [2]float64{10, 3}, [2]float64{10, 1}, [2]float64{100, 16}), "up to 16 from 3 is less than tenfold")
}

// What lasted a moment only is named, and compared with nothing.
func TestTooShort(t *testing.T) {
	s := scenario()
	for i, v := range [][2]float64{{0.1, 0.5}, {2, 0.04}, {2, 0.5}, {2, 0.5}, {2, 0.5}, {2, 0.5}, {2, 0.5}} {
		s.Samples[i].Values[MeasuredSeconds], s.Samples[i].Values[MeasuredCPU] = v[0], v[1]
	}
	rs := s.RatiosOf()
	require.Equal(t, 1, rs[0].N, "MB/s against the copier: its first round was short")
	require.Equal(t, 1, rs[1].N, "CPU: the subject's first round had four ticks")
	require.Equal(t, 2, rs[2].N, "MB/s of the subject's first round stays")
	var b bytes.Buffer
	s.Text(&b)
	require.Contains(t, b.String(), "Too short to mean much")
	require.Contains(t, b.String(), "kgo copier in round 1 (0.10 s); Lockstep in round 1 (0.04 CPU s)")
	require.NotContains(t, b.String(), "round 2 (")
	require.Empty(t, scenario().shortLine())
}

// Time that a hypervisor gave to others has a column, when it was any.
func TestStolenTime(t *testing.T) {
	s := scenario()
	s.Samples[0].Stolen = 0.4
	require.NotContains(t, s.table(true).RenderMarkdown(), "stolen")
	s.Samples[0].Stolen = 12
	require.Contains(t, s.table(true).RenderMarkdown(), "| load before | CPUs stolen, % |")
	require.Contains(t, s.table(true).RenderMarkdown(), "| 0 / 0 / 12 |")
	r := results()
	r.InUse, r.Scenarios = new(float64), []*Scenario{s}
	text, err := page([]*Run{r}, func(*Scenario) (string, error) { return "", nil })
	require.NoError(t, err)
	require.Contains(t, text, "at most 12.0 % stolen by other virtual machines")
}

func TestNumber(t *testing.T) {
	for v, want := range map[float64]string{0: "0", 5.44: "5.4", 54.4: "54", 1234567.8: "1,234,568", -1234: "-1,234", 123: "123"} {
		require.Equal(t, want, number(v, 0))
	}
	require.Equal(t, "1,234.50", number(1234.5, 2))
}

func TestTextNamesWhatIsLeftOut(t *testing.T) {
	s := scenario()
	s.LeftOut = []string{"HAProxy: not installed: apt-get install haproxy"}
	var b bytes.Buffer
	s.Text(&b)
	require.Contains(t, b.String(), "left out: HAProxy: not installed")
	require.Contains(t, b.String(), "100 / 200 / 300")
	require.Contains(t, b.String(), "load before")
	require.NotContains(t, b.String(), "peak RSS", "nobody measured it")
}

func results() *Run {
	r := &Run{Mode: "core", Started: time.Unix(1e9, 0), Scale: 0.5, LoadStart: 3, Versions: map[string]string{"Kafka": "4.3.1"}, Scenarios: []*Scenario{scenario()}}
	r.Machine.CPUs = 2
	return r
}

func TestSaveAndLoad(t *testing.T) {
	path := filepath.Join(t.TempDir(), "sub", "core.json")
	r := results()
	require.NoError(t, r.Save(path))
	back, err := Load(path)
	require.NoError(t, err)
	require.True(t, r.Started.Equal(back.Started))
	back.Started = r.Started
	require.Equal(t, r, back)
	require.NoError(t, os.WriteFile(path, []byte("{"), 0o600))
	_, err = Load(path)
	require.ErrorContains(t, err, path)
}

func TestPage(t *testing.T) {
	docs := filepath.Join(t.TempDir(), "docs")
	older := results()
	older.Mode, older.Started = "full", time.Unix(1e8, 0)
	require.NoError(t, Page(docs, []*Run{results(), older}))
	b, err := os.ReadFile(filepath.Join(docs, "benchmarks.md"))
	require.NoError(t, err)
	text := string(b)
	require.Contains(t, text, "load average 3.0 on 2 CPUs")
	require.Contains(t, text, "scaled by 0.5")
	require.Contains(t, text, "| X: MB/s | kgo copier | 2 | **1.20** (0.90–1.50) | above 1 |")
	require.Contains(t, text, "![X](benchmarks/x.svg)")
	require.Contains(t, text, "- Nothing in these runs.")
	require.NotContains(t, text, `Run "full"`, "a newer run has the same scenario")
	svg(t, filepath.Join(docs, "benchmarks", "x.svg"), "kgo copier")
	require.Error(t, Page(docs, nil))

	empty := results()
	empty.Started = time.Unix(2e9, 0)
	empty.Scenarios[0].Samples, empty.Scenarios[0].LeftOut = nil, []string{"no time"}
	require.NotEmpty(t, newest([]*Run{results(), empty})[0].Samples, "nothing doesn't replace something")

	far, near := results(), results()
	near.Started = time.Unix(2e9, 0)
	far.Scenarios[0].Samples[0].X, near.Scenarios[0].Samples[0].X = 5000, 1000
	require.Same(t, far, newest([]*Run{near, far})[0].run, "of growth the one that goes furthest")
	near.LoadStart = 0.5
	require.NotEmpty(t, far.Busy())
	require.Same(t, near, newest([]*Run{near, far})[0].run, "but no busy one in place of a quiet one")
	far.Started, near.Started = near.Started, far.Started
	require.Same(t, near, newest([]*Run{near, far})[0].run)
}

// svg checks that a file is well-formed and shows a word.
func svg(t *testing.T, path, word string) {
	t.Helper()
	b, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Contains(t, string(b), word)
	for d := xml.NewDecoder(bytes.NewReader(b)); ; {
		if _, err := d.Token(); err != nil {
			require.True(t, errors.Is(err, io.EOF), "%s: %v", path, err)
			return
		}
	}
}

func TestGrowthChart(t *testing.T) {
	s := &Scenario{Name: "g", Title: "G", Axis: "partitions", Chart: "seconds", Metrics: []string{"seconds"}}
	for _, x := range []float64{1, 10, 1000} {
		s.Samples = append(s.Samples, Sample{Round: 1, Peer: Subject, X: x, Values: map[string]float64{"seconds": x}})
	}
	dir := t.TempDir()
	name, err := s.Draw(dir)
	require.NoError(t, err)
	svg(t, filepath.Join(dir, name), "partitions")
	for _, only := range []float64{1, 0} { // one point, and one that has no logarithm
		s.Samples = []Sample{{Round: 1, Peer: Subject, X: only, Values: map[string]float64{"seconds": 0}}}
		_, err = s.Draw(dir)
		require.NoError(t, err)
	}
	name, err = (&Scenario{Chart: "mb_s"}).Draw(dir)
	require.NoError(t, err)
	require.Empty(t, name, "nothing measured")
}

func TestFlame(t *testing.T) {
	fn := func(id uint64, name string) *profile.Location {
		return &profile.Location{ID: id, Line: []profile.Line{{Function: &profile.Function{ID: id, Name: name}}}}
	}
	main, read, write := fn(1, "main.main"), fn(2, "x/y.(*T).read<int>"), fn(3, "write")
	p := &profile.Profile{
		SampleType: []*profile.ValueType{{Type: "samples", Unit: "count"}, {Type: "cpu", Unit: "nanoseconds"}},
		Location:   []*profile.Location{main, read, write},
		Function:   []*profile.Function{main.Line[0].Function, read.Line[0].Function, write.Line[0].Function},
		Sample: []*profile.Sample{
			{Location: []*profile.Location{read, main}, Value: []int64{1, 30}},
			{Location: []*profile.Location{write, main}, Value: []int64{1, 60}},
			{Location: []*profile.Location{write, read, main}, Value: []int64{1, 10}},
		},
	}
	root := foldStacks(p)
	require.EqualValues(t, 100, root.value)
	require.EqualValues(t, 40, root.kids["main.main"].kids["x/y.(*T).read<int>"].value)
	dir := t.TempDir()
	f, err := os.Create(filepath.Join(dir, "p"))
	require.NoError(t, err)
	require.NoError(t, p.Write(f))
	require.NoError(t, f.Close())
	require.NoError(t, Flame(filepath.Join(dir, "p"), filepath.Join(dir, "p.svg")))
	svg(t, filepath.Join(dir, "p.svg"), "read&lt;int&gt;: 40.0%")
	svg(t, filepath.Join(dir, "p.svg"), ">y.(*T).read&lt;int&gt; 40%</text>")
	svg(t, filepath.Join(dir, "p.svg"), "p: 0.00 s of CPU time")
	require.Error(t, Flame(filepath.Join(dir, "none"), filepath.Join(dir, "p.svg")))
}

func TestGoals(t *testing.T) {
	s := scenario() // MB/s 0.9 to 1.5 times the copier's, CPU 0.5 and 0.6
	require.True(t, Goal{"x", "", "mb_s", "kgo copier", 1}.outcomes(s)[0].reached, "by the median")
	require.False(t, Goal{"x", "", "mb_s", "kgo copier", 1.3}.outcomes(s)[0].reached)
	require.True(t, Goal{"x", "", "cpu_s_gb", "kgo copier", 0.56}.outcomes(s)[0].reached)
	require.False(t, Goal{"x", "", "cpu_s_gb", "kgo copier", 0.5}.outcomes(s)[0].reached)
	require.True(t, Goal{"x", "", "mb_s", "", 150}.outcomes(s)[0].reached)
	require.False(t, Goal{"x", "", "mb_s", "", 160}.outcomes(s)[0].reached, "in every round")
	require.Empty(t, Goal{"x", "", "mb_s", "nobody", 1}.outcomes(s))
	require.Empty(t, Goal{"x", "other", "mb_s", "", 1}.outcomes(s))
	all := Metrics()
	for _, g := range Goals() {
		require.Contains(t, all, g.Metric)
	}
}

// A run that began on a loaded machine says so at the top of its page, and the
// load stands next to each figure.
func TestPageSaysThatTheMachineWasBusy(t *testing.T) {
	at := func(load, inUse float64) string {
		s := scenario()
		s.Samples[0].Load = 37.5
		r := &Run{Mode: "core", Started: time.Unix(1e9, 0), Scale: 1, LoadStart: load, InUse: &inUse, Scenarios: []*Scenario{s}}
		r.Machine.CPUs = 2
		text, err := page([]*Run{r}, func(*Scenario) (string, error) { return "", nil })
		require.NoError(t, err)
		require.Contains(t, text, "load before")
		require.Contains(t, text, "37.5")
		return text
	}
	require.NotContains(t, at(3, 2), "the machine was busy", "what had ended before")
	require.Contains(t, at(0.4, 60), "the machine was busy before the run began (60 % of the CPUs in use by others, load average 0.4)")
	require.NotContains(t, at(0.6, 2), "the machine was busy", "what go build left in the load average")
	require.Contains(t, at(0.6, 2), "CPUs: 2.0 % in use by others before the start")
}

// A chart shows who has a value, marks limits, and has a line of linear growth
// to compare with.
func TestChartsMarkLimits(t *testing.T) {
	dir := t.TempDir()
	s := scenario()
	s.Samples = append(s.Samples, Sample{Round: 1, Peer: "silent", Values: map[string]float64{"cpu_s_gb": 1}})
	name, err := s.Draw(dir)
	require.NoError(t, err)
	svg(t, filepath.Join(dir, name), "bare relay (limit)")
	b, err := os.ReadFile(filepath.Join(dir, name))
	require.NoError(t, err)
	require.NotContains(t, string(b), "silent")

	g := &Scenario{Name: "g", Title: "G", Axis: "groups", Chart: "seconds", Metrics: []string{"seconds", "mb_s"}}
	for _, x := range []float64{10, 100} {
		g.Samples = append(g.Samples, Sample{Peer: Subject, X: x, Values: map[string]float64{"seconds": 0.12, "mb_s": x}})
	}
	name, err = g.Draw(dir)
	require.NoError(t, err)
	svg(t, filepath.Join(dir, name), "linear growth")
	svg(t, filepath.Join(dir, name), ">0.05<")
	g.Chart = "mb_s"
	_, err = g.Draw(dir)
	require.NoError(t, err)
	b, err = os.ReadFile(filepath.Join(dir, name))
	require.NoError(t, err)
	require.NotContains(t, string(b), "linear growth", "more is better")
}

func TestLogTicks(t *testing.T) {
	var labels []string
	for _, k := range logTicks(0.09, 2.2) {
		if k.Label != "" {
			labels = append(labels, k.Label)
		}
	}
	require.Equal(t, []string{"0.1", "0.2", "0.5", "1", "2"}, labels)
	require.Len(t, logTicks(1, 9.5), 9)
	for _, k := range logTicks(1, 5000) {
		require.NotEqual(t, "2", k.Label, "many decades: a label each")
	}
}

// A scenario without a sample has no table.
func TestTextWithoutSamples(t *testing.T) {
	var b strings.Builder
	(&Scenario{Title: "Catch-up", LeftOut: []string{"mm2: no Java"}}).Text(&b)
	require.Equal(t, "\n== Catch-up ==\nnothing was measured\nleft out: mm2: no Java\n", b.String())
}
