package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-kafka/lockstep/bench/lab"
	"github.com/lockstep-kafka/lockstep/bench/peer"
	"github.com/lockstep-kafka/lockstep/bench/scenario"
)

func TestParse(t *testing.T) {
	env := func(kv map[string]string) func(string) string { return func(k string) string { return kv[k] } }
	s, only, err := parse(nil, env(nil))
	require.NoError(t, err)
	require.False(t, only)
	require.Equal(t, scenario.Core, s.mode)
	require.Equal(t, 20*time.Minute, s.budget)
	require.InDelta(t, 1, s.scale, 0)

	s, _, err = parse([]string{"-only", "wan"}, env(map[string]string{
		"BENCH": "quick", "BENCH_SCALE": "0.1", "PROFILE": "1", "BENCH_PROXY_ADDR": "kroxylicious=127.0.0.1:9,127.0.0.1:10", "BENCH_PROXY_UPSTREAM": "127.0.0.1:11",
	}))
	require.NoError(t, err)
	require.Equal(t, 4*time.Minute, s.budget)
	require.True(t, s.profile)
	require.True(t, s.only.MatchString("wan"))
	require.Equal(t, []scenario.Other{{Name: "kroxylicious", Addr: "127.0.0.1:9"}, {Name: "127.0.0.1:10", Addr: "127.0.0.1:10"}}, s.others)
}

func TestParseSaysWhatIsWrong(t *testing.T) {
	for want, kv := range map[string][2]string{
		`mode "long"`: {"BENCH", "long"}, `scale "0"`: {"BENCH_SCALE", "0"}, `rounds "-1"`: {"BENCH_ROUNDS", "-1"}, "only:": {"BENCH_ONLY", "("},
		`acks "one"`: {"BENCH_ACKS", "one"}, `proxy "x"`: {"BENCH_PROXY_ADDR", "x"}, "set BENCH_PROXY_UPSTREAM": {"BENCH_PROXY_ADDR", "a=127.0.0.1:1"},
	} {
		_, _, err := parse(nil, func(k string) string {
			if k == kv[0] {
				return kv[1]
			}
			return ""
		})
		require.ErrorContains(t, err, want)
	}
}

// What goes wrong for one peer is said by name and leaves the others alone.
func TestErrorsOfOnePeer(t *testing.T) {
	cause := fmt.Errorf("budget: %w", errBudget)
	for name, c := range map[string]struct {
		err    error
		cancel error
		note   string
		failed int
		ends   bool
	}{
		"missing": {err: fmt.Errorf("HAProxy: %w: apt-get install haproxy", peer.ErrMissing), note: "HAProxy: not installed: apt-get install haproxy"},
		"failed":  {err: errors.New("boom"), note: "peer: failed: boom", failed: 1},
		"no time": {err: errors.New("x"), cancel: cause, note: "peer: the time for all was used up"},
		"stopped": {err: errors.New("x"), cancel: context.Canceled, ends: true},
	} {
		t.Run(name, func(t *testing.T) {
			u := &suite{broken: func() error { return nil }}
			s := &scenario.Scenario{}
			ctx, cancel := context.WithCancelCause(t.Context())
			if c.cancel != nil {
				cancel(c.cancel)
			}
			defer cancel(nil)
			err := u.went(ctx, s, "peer", c.err)
			require.Equal(t, c.ends, err != nil)
			require.Len(t, u.failed, c.failed)
			if c.note != "" {
				require.Equal(t, []string{c.note}, s.LeftOut)
			}
		})
	}
	u := &suite{broken: func() error { return errors.New("a broker died\n--- last lines") }}
	require.ErrorContains(t, u.went(t.Context(), &scenario.Scenario{}, "peer", errors.New("x")), "last lines")
}

// A round's time is reckoned without the peers that only take part in it when
// time is left.
func TestNextRound(t *testing.T) {
	s := &scenario.Scenario{Runs: []scenario.Run{{Peer: "a"}, {Peer: "b"}, {Peer: "slow", Sure: 1}, {Peer: "b"}}}
	spent := map[string]time.Duration{"a": time.Second, "b": 2 * time.Second, "slow": time.Minute}
	require.Equal(t, 63*time.Second, nextRound(s, 0, spent))
	require.Equal(t, 3*time.Second, nextRound(s, 1, spent))
}

// docs/benchmarks.md is what the results say, and nobody edits it by hand.
func TestPageIsOfTheResults(t *testing.T) {
	docs := t.TempDir()
	require.NoError(t, writeDocs(settings{results: "results", docs: docs}))
	for _, name := range []string{"benchmarks.md", "benchmarks"} {
		want, err := os.Stat(filepath.Join(docs, name))
		require.NoError(t, err)
		if want.IsDir() {
			made, err := os.ReadDir(filepath.Join(docs, name))
			require.NoError(t, err)
			have, err := os.ReadDir(filepath.Join("..", "docs", name))
			require.NoError(t, err)
			require.Len(t, have, len(made))
			for i := range made {
				require.Equal(t, made[i].Name(), have[i].Name())
			}
			continue
		}
		made, err := os.ReadFile(filepath.Join(docs, name))
		require.NoError(t, err)
		have, err := os.ReadFile(filepath.Join("..", "docs", name))
		require.NoError(t, err)
		require.Equal(t, string(made), string(have), "run make bench-docs")
	}
}

// Another build of Lockstep takes part beside this tree's, and the page stays.
func TestBuildsAndPeers(t *testing.T) {
	s, _, err := parse([]string{"-against", "old=/x/lockstep", "-peers", "^Lockstep"}, func(string) string { return "" })
	require.NoError(t, err)
	require.Contains(t, resultFile(s, s.mode), "core-part.json")
	l := &lab.Lab{Scale: 1, Dir: "/dir"}
	for _, sc := range scenario.All(l, scenario.Options{Mode: scenario.Core, Builds: s.builds, Peers: s.peers}) {
		if sc.Name == "catchup" {
			require.Len(t, sc.Runs, 2)
			require.Equal(t, "Lockstep old", sc.Runs[1].Peer)
		}
	}
	_, _, err = parse([]string{"-against", "/x/lockstep"}, func(string) string { return "" })
	require.ErrorContains(t, err, "name=path")
}
