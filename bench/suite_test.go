package main

import (
	"context"
	"encoding/json"
	"errors"
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

// dying runs a scenario whose first peer finds something, and in whose second
// turn a broker dies.
func dying(t *testing.T, u *suite, kill func(), runs func(first scenario.Run, die func(context.Context)) []scenario.Run) (*scenario.Scenario, error) {
	t.Helper()
	u.s.budget, u.began, u.result = time.Hour, time.Now(), &report.Run{}
	first := scenario.Run{Peer: "first", Do: func(context.Context, int) ([]report.Sample, error) { return found(), nil }}
	s := &scenario.Scenario{Rounds: 1, Runs: runs(first, func(ctx context.Context) {
		kill()
		<-ctx.Done() // as who waits for records that don't come
	})}
	s.Title = "Title"
	return s, u.watched(t.Context(), func(ctx context.Context) error { return u.scenario(ctx, s, 0) })
}

func found() []report.Sample { return []report.Sample{{Values: map[string]float64{"mb_s": 1}}} }

// A broker that dies in the middle ends the run at once, also a peer's wait
// that knows nothing of it, with the broker's last log lines. What was found
// until then stays.
func TestBrokerDiesInTheMiddle(t *testing.T) {
	c := testkafka.Start(t, testkafka.Options{Name: "source"})
	l := &lab.Lab{Source: c, Dest: c}
	s, err := dying(t, &suite{broken: l.Broken, ended: l.Ended()}, func() {
		if err := c.Kill(1); err != nil {
			t.Error(err)
		}
	}, func(first scenario.Run, die func(context.Context)) []scenario.Run {
		return []scenario.Run{first, {Peer: "waiting", Do: func(ctx context.Context, _ int) ([]report.Sample, error) {
			die(ctx)
			return nil, context.Cause(ctx)
		}}, first}
	})
	require.ErrorContains(t, err, "Title, waiting: a broker died; without it nothing can be measured")
	require.ErrorContains(t, err, "source node 1, last log lines:")
	require.Len(t, s.Samples, 1)
	require.Equal(t, []string{"waiting: a broker died"}, s.LeftOut)
}

// So does one that dies when nobody asks it for anything.
func TestBrokerDiesBetweenTurns(t *testing.T) {
	for last, left := range map[bool][]string{false: {"first: a broker died"}, true: nil} {
		ended := make(chan struct{})
		u := &suite{ended: []<-chan struct{}{ended}, broken: func() error {
			select {
			case <-ended:
				return errors.New("last log lines")
			default:
				return nil
			}
		}}
		s, err := dying(t, u, func() { close(ended) }, func(first scenario.Run, die func(context.Context)) []scenario.Run {
			runs := []scenario.Run{first, {Peer: "done", Do: func(ctx context.Context, _ int) ([]report.Sample, error) {
				die(ctx)
				return found(), nil
			}}, first}
			if last {
				runs = runs[:2]
			}
			return runs
		})
		require.ErrorContains(t, err, "last log lines")
		require.Len(t, s.Samples, 2)
		require.Equal(t, left, s.LeftOut)
	}
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
	dir, where, remove, err := room(settings{mode: scenario.Quick, scale: 1e-9})
	require.NoError(t, err)
	require.DirExists(t, dir)
	require.NotEmpty(t, where)
	remove()
	require.NoDirExists(t, dir)
	root := t.TempDir()
	t.Setenv(testkafka.LogRootEnv, root)
	dir, where, remove, err = room(settings{mode: scenario.Quick, scale: 1e-9})
	require.NoError(t, err)
	require.Equal(t, root, filepath.Dir(dir))
	require.Contains(t, where, root)
	remove()
	_, _, _, err = room(settings{mode: scenario.Quick, scale: 1e9})
	require.ErrorContains(t, err, "let LOCKSTEP_LOG_ROOT name another folder")
	left, err := filepath.Glob(filepath.Join(root, "*"))
	require.NoError(t, err)
	require.Empty(t, left)
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
