package main

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-kafka/lockstep/bench/lab"
	"github.com/lockstep-kafka/lockstep/bench/report"
	"github.com/lockstep-kafka/lockstep/bench/scenario"
	"github.com/lockstep-kafka/lockstep/internal/testkafka"
)

// A broker that dies in the middle ends the run at once, also a peer's wait
// that knows nothing of it, with the broker's last log lines. What was found
// until then stays.
func TestBrokerDiesInTheMiddle(t *testing.T) {
	c := testkafka.Start(t, testkafka.Options{Name: "source"})
	l := &lab.Lab{Source: c, Dest: c}
	u := &suite{s: settings{budget: time.Hour}, lab: l, began: time.Now(), result: &report.Run{}, broken: l.Broken}
	s := &scenario.Scenario{Rounds: 2, Runs: []scenario.Run{{Peer: "first", Do: func(context.Context, int) ([]report.Sample, error) {
		return []report.Sample{{Values: map[string]float64{"mb_s": 1}}}, nil
	}}, {Peer: "second", Do: func(ctx context.Context, _ int) ([]report.Sample, error) {
		if err := c.Kill(1); err != nil {
			return nil, err
		}
		<-ctx.Done() // as who waits for records that don't come
		return nil, context.Cause(ctx)
	}}}}
	s.Title = "Title"
	err := u.watched(t.Context(), func(ctx context.Context) error { return u.scenario(ctx, s, 0) })
	require.ErrorContains(t, err, "Title, second: a broker died")
	require.ErrorContains(t, err, "source node 1, last log lines:")
	require.ErrorIs(t, err, errBroker)
	require.Len(t, s.Samples, 1)
	require.Equal(t, []string{"second: a broker died"}, s.LeftOut)
}

// Two benches would measure one another.
func TestOneBenchAtATime(t *testing.T) {
	release, err := alone(t.Context())
	if err != nil {
		require.ErrorContains(t, err, "another bench runs on this machine")
		return // one does
	}
	_, err = alone(t.Context())
	require.ErrorContains(t, err, "another bench runs on this machine")
	release()
}

// Room for the brokers' logs is looked for before anything is started.
func TestRoom(t *testing.T) {
	require.NoError(t, room(settings{mode: scenario.Quick, scale: 1e-9}))
	err := room(settings{mode: scenario.Quick, scale: 1e9})
	require.ErrorContains(t, err, "let TMPDIR name another one")
}

// What a run that was ended has found doesn't replace an earlier run's results.
func TestResultsOfABrokenRun(t *testing.T) {
	dir := t.TempDir()
	whole := settings{mode: scenario.Core, results: dir, only: regexp.MustCompile(""), peers: regexp.MustCompile("")}
	require.Equal(t, filepath.Join(dir, "core.json"), resultFile(whole, whole.mode))
	u := &suite{s: whole, result: &report.Run{Mode: "core"}}
	u.s.broken = true
	require.NoError(t, u.finish(""))
	b, err := os.ReadFile(filepath.Join(dir, "core-part.json"))
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(b, &report.Run{}))
	require.NoFileExists(t, filepath.Join(dir, "core.json"))
}

// A round that is only for when time is left isn't run, and named, when there
// is none; the others are.
func TestSpareRoundsTakeTimeThatIsLeft(t *testing.T) {
	for budget, want := range map[time.Duration]int{time.Hour: 3, time.Nanosecond: 1} {
		count := map[string]int{}
		do := func(name string) scenario.Run {
			return scenario.Run{Peer: name, Do: func(context.Context, int) ([]report.Sample, error) {
				count[name]++
				return []report.Sample{{Values: map[string]float64{}}}, nil
			}}
		}
		slow, warm := do("slow"), do("warm")
		slow.Sure, warm.Warms = 1, true
		s := &scenario.Scenario{Rounds: 3, Runs: []scenario.Run{slow, warm}}
		u := &suite{s: settings{budget: budget}, began: time.Now(), broken: func() error { return nil }}
		require.NoError(t, u.scenario(t.Context(), s, 2))
		require.Equal(t, want, count["slow"])
		require.Equal(t, want+1, count["warm"], "and the warm-up")
		require.Len(t, s.Samples, 2*want, "which doesn't count")
		require.Equal(t, want == 1, len(s.LeftOut) > 0)
	}
}
