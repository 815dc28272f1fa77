// Command bench measures Lockstep beside what people would use instead, on
// real brokers, in interleaved rounds with the same brokers and data. The
// ratios inside a round are what counts.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/lockstep-kafka/lockstep/bench/report"
	"github.com/lockstep-kafka/lockstep/bench/scenario"
)

type settings struct {
	mode     scenario.Mode
	scale    float64
	rounds   int
	only     *regexp.Regexp
	budget   time.Duration
	profile  bool
	acks     string
	results  string
	docs     string
	upstream string
	others   []scenario.Other
	builds   []scenario.Other
	peers    *regexp.Regexp
	broken   bool // the run ended before its end
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second signal ends the bench at once
	if err := run(ctx, os.Args[1:], os.Getenv); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, env func(string) string) error {
	s, onlyDocs, err := parse(args, env)
	if err != nil {
		return err
	}
	if onlyDocs {
		return writeDocs(s)
	}
	if s.only.String() != "" || s.peers.String() != "" || len(s.builds) > 0 {
		s.docs = "" // a part doesn't replace what is known of the rest
	}
	return measureAll(ctx, s)
}

// parse reads flags; their defaults come from the environment, as make gives
// it.
func parse(args []string, env func(string) string) (s settings, onlyDocs bool, err error) {
	or := func(key, otherwise string) string {
		if v := env(key); v != "" {
			return v
		}
		return otherwise
	}
	f := flag.NewFlagSet("bench", flag.ContinueOnError)
	mode := f.String("mode", or("BENCH", "core"), "how much: quick, core, full, growth, or proxy (BENCH)")
	scale := f.String("scale", or("BENCH_SCALE", "1"), "factor for amounts of data and counts; below 1 only to try the bench itself (BENCH_SCALE)")
	rounds := f.String("rounds", or("BENCH_ROUNDS", "0"), "rounds of each scenario; 0: its own number (BENCH_ROUNDS)")
	only := f.String("only", or("BENCH_ONLY", ""), "regular expression: only scenarios whose name has it (BENCH_ONLY)")
	peers := f.String("peers", or("BENCH_PEERS", ""), "regular expression: only peers whose name has it (BENCH_PEERS)")
	builds := f.String("against", or("BENCH_AGAINST", ""), "other builds of Lockstep to compare with, name=path,… (BENCH_AGAINST)")
	others := f.String("proxies", or("BENCH_PROXY_ADDR", ""), "further proxies to compare with, name=host:port,…; they must lead to -upstream (BENCH_PROXY_ADDR)")
	f.StringVar(&s.upstream, "upstream", or("BENCH_PROXY_UPSTREAM", ""), "host:port where the destination broker also listens, for those proxies (BENCH_PROXY_UPSTREAM)")
	f.StringVar(&s.acks, "acks", or("BENCH_ACKS", "all"), "how Lockstep writes: all or leader (BENCH_ACKS)")
	f.BoolVar(&s.profile, "profile", or("PROFILE", "0") != "0", "CPU profiles of Lockstep and flame graphs, beside the results (PROFILE=1)")
	f.StringVar(&s.results, "results", filepath.Join("bench", "results"), "folder for results")
	f.StringVar(&s.docs, "docs", "", "folder in which benchmarks.md and its charts are written from the results; empty: not")
	f.BoolVar(&onlyDocs, "only-docs", false, "measure nothing, write -docs")
	f.DurationVar(&s.budget, "budget", 0, "time for all; 0: quick 4 minutes, core 20, others none")
	if err := f.Parse(args); err != nil {
		return s, false, err
	}
	s.mode = scenario.Mode(*mode)
	switch s.mode {
	case scenario.Quick:
		s.budget = orTime(s.budget, 4*time.Minute)
	case scenario.Core:
		s.budget = orTime(s.budget, 20*time.Minute)
	case scenario.Full, scenario.Proxy, scenario.Growth:
		s.budget = orTime(s.budget, 24*time.Hour)
	default:
		return s, false, fmt.Errorf("mode %q: want quick, core, full, growth or proxy", *mode)
	}
	if s.scale, err = strconv.ParseFloat(*scale, 64); err != nil || s.scale <= 0 {
		return s, false, fmt.Errorf("scale %q: want a number above 0", *scale)
	}
	if s.rounds, err = strconv.Atoi(*rounds); err != nil || s.rounds < 0 {
		return s, false, fmt.Errorf("rounds %q: want a whole number", *rounds)
	}
	if s.only, err = regexp.Compile(*only); err != nil {
		return s, false, fmt.Errorf("only: %w", err)
	}
	if s.peers, err = regexp.Compile(*peers); err != nil {
		return s, false, fmt.Errorf("peers: %w", err)
	}
	if s.builds, err = parseBuilds(*builds); err != nil {
		return s, false, err
	}
	if s.acks != "all" && s.acks != "leader" {
		return s, false, fmt.Errorf("acks %q: want all or leader", s.acks)
	}
	if s.others, err = parseOthers(*others); err != nil {
		return s, false, err
	}
	if len(s.others) > 0 && s.upstream == "" {
		return s, false, errors.New("proxies are given, but not where they lead: set BENCH_PROXY_UPSTREAM to a free host:port, " +
			"and let each proxy's upstream (bootstrap) be that address; the bench's broker will listen there")
	}
	return s, onlyDocs, nil
}

func orTime(d, otherwise time.Duration) time.Duration {
	if d > 0 {
		return d
	}
	return otherwise
}

func parseBuilds(list string) (out []scenario.Other, err error) {
	for _, item := range strings.FieldsFunc(list, func(r rune) bool { return r == ',' }) {
		name, path, ok := strings.Cut(item, "=")
		if !ok || name == "" {
			return nil, fmt.Errorf("build %q: want name=path of a built lockstep", item)
		}
		if path, err = filepath.Abs(path); err != nil {
			return nil, fmt.Errorf("build %q: %w", item, err)
		}
		out = append(out, scenario.Other{Name: name, Addr: path})
	}
	return out, nil
}

func parseOthers(list string) (out []scenario.Other, err error) {
	for _, item := range strings.FieldsFunc(list, func(r rune) bool { return r == ',' || r == ' ' }) {
		name, addr, ok := strings.Cut(item, "=")
		if !ok {
			name, addr = item, item
		}
		if !strings.Contains(addr, ":") || name == "" {
			return nil, fmt.Errorf("proxy %q: want name=host:port", item)
		}
		out = append(out, scenario.Other{Name: name, Addr: addr})
	}
	return out, nil
}

// writeDocs makes the page from the results of all modes that are there; those
// of a quick run only when there is nothing better.
func writeDocs(s settings) error {
	if s.docs == "" {
		s.docs = "docs"
	}
	var runs []*report.Run
	for _, mode := range []scenario.Mode{scenario.Full, scenario.Core, scenario.Proxy, scenario.Growth, scenario.Quick} {
		if mode == scenario.Quick && len(runs) > 0 {
			continue
		}
		r, err := report.Load(resultFile(s, mode))
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		runs = append(runs, r)
	}
	return report.Page(s.docs, runs)
}

func resultFile(s settings, mode scenario.Mode) string {
	if s.broken || s.only != nil && s.only.String() != "" || s.peers != nil && s.peers.String() != "" || len(s.builds) > 0 {
		return filepath.Join(s.results, string(mode)+"-part.json")
	}
	return filepath.Join(s.results, string(mode)+".json")
}
