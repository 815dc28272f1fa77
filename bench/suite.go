package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	"github.com/lockstep-kafka/lockstep/bench/lab"
	"github.com/lockstep-kafka/lockstep/bench/measure"
	"github.com/lockstep-kafka/lockstep/bench/peer"
	"github.com/lockstep-kafka/lockstep/bench/report"
	"github.com/lockstep-kafka/lockstep/bench/scenario"
	"github.com/lockstep-kafka/lockstep/internal/testkafka"
)

// suite is one run through the scenarios.
type suite struct {
	s      settings
	lab    *lab.Lab
	result *report.Run
	began  time.Time
	failed []string
	broken func() error      // says whether a broker has died
	ended  []<-chan struct{} // closed when one has
}

// measureAll runs the scenarios and writes what they found, also when it has to
// end early.
func measureAll(ctx context.Context, s settings) error {
	release, err := alone(ctx)
	if err != nil {
		return err
	}
	defer release()
	logs, where, remove, err := room(s)
	if err != nil {
		return err
	}
	defer remove()
	u := &suite{s: s, began: time.Now()}
	u.result = &report.Run{
		Mode: string(s.mode), Started: u.began.UTC().Truncate(time.Second), Machine: measure.ThisMachine(), LoadStart: measure.Load(), Scale: s.scale,
		Versions: versions(ctx), Settings: map[string]string{
			"Lockstep":                 "default configuration, acks=" + s.acks,
			"Brokers":                  "one each, heap and collector as Kafka's scripts set them (1 GiB, G1), replication factor 1, default configuration but for two network and three I/O threads",
			"Brokers' logs":            where,
			"kgo copier":               "franz-go's defaults; tuned: fetches of 32 MiB (4 MiB for a partition), batches of 1 MB, linger 5 ms, acks=1, not idempotent",
			"MirrorMaker 2":            "heap 2 GiB, defaults but for replication factors of 1; tuned: " + peer.MM2Settings,
			"Bare relay":               "reads a socket into a buffer of 256 KiB and writes it to another; the bytes are the topic's, from the source broker's files",
			"Direct produce":           "the topic's batches, from the source broker's files, over two connections",
			"Time until first records": "is told apart and doesn't count; neither does the CPU time in it",
		},
	}
	if u.result.InUse, err = inUse(ctx, report.HighLoad(u.result.LoadStart, u.result.Machine.CPUs)); err != nil {
		return err
	}
	m := u.result.Machine
	fmt.Printf("%d × %s, load average %.2f, %.0f %% of the CPUs in use by others, mode %s, at most %v; brokers' logs in %s\n",
		m.CPUs, m.Processor, u.result.LoadStart, *u.result.InUse, s.mode, s.budget, where)
	if why := u.result.Busy(); why != "" {
		fmt.Printf("THE MACHINE IS BUSY (%s): these figures will say little. Load averages stand next to them.\n", why)
	}
	if _, err := peer.HAProxyPath(); err != nil {
		u.leaveOut(err.Error())
	}
	if len(s.others) == 0 && s.mode == scenario.Proxy {
		u.leaveOut("other Kafka-aware proxies: none were given in BENCH_PROXY_ADDR")
	}
	profiles := ""
	if s.profile {
		profiles = filepath.Join(s.results, string(s.mode)+"-profiles")
		_ = os.RemoveAll(profiles)
		if err := os.MkdirAll(profiles, 0o755); err != nil {
			return err
		}
		if abs, err := filepath.Abs(profiles); err == nil {
			profiles = abs
		}
	}
	ctx, cancel := context.WithTimeoutCause(ctx, u.usable(), errBudget)
	defer cancel()
	u.lab, err = lab.Open(ctx, lab.Options{Acks: s.acks, Scale: s.scale, ProfileDir: profiles, LogRoot: logs, Upstream: s.upstream, Logf: func(format string, args ...any) {
		fmt.Printf("  "+format+"\n", args...)
	}})
	if err != nil {
		return err
	}
	defer u.lab.Close()
	u.broken, u.ended = u.lab.Broken, u.lab.Ended()
	stopped := u.watched(ctx, u.scenarios)
	u.result.Seconds = time.Since(u.began).Round(time.Second).Seconds()
	if stopped != nil { // what there is stands beside an earlier run's results, not in their place
		u.s.broken, u.s.docs = true, ""
	}
	if err := errors.Join(stopped, u.finish(profiles)); err != nil {
		return err
	}
	if len(u.failed) > 0 {
		return fmt.Errorf("failed: %s", strings.Join(u.failed, "; "))
	}
	return nil
}

// watched runs something; the death of a broker ends what waits for it.
func (u *suite) watched(ctx context.Context, do func(context.Context) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	var watching sync.WaitGroup
	defer watching.Wait()
	defer cancel(nil)
	for _, ended := range u.ended {
		watching.Go(func() {
			select {
			case <-ended:
				cancel(errBroker)
			case <-ctx.Done():
			}
		})
	}
	if err := do(ctx); err != nil {
		return err
	}
	return u.broken() // after the last turn
}

var (
	errBudget = errors.New("the time for all was used up")
	errBroker = errors.New("a broker died")
)

func (u *suite) leaveOut(what string) {
	fmt.Println("left out:", what)
	u.result.LeftOut = append(u.result.LeftOut, what)
}

// scenarios ends early only when a broker is gone or the time is.
func (u *suite) scenarios(ctx context.Context) error {
	var list []*scenario.Scenario
	for _, s := range scenario.All(u.lab, scenario.Options{Mode: u.s.mode, Rounds: u.s.rounds, Others: u.s.others, Builds: u.s.builds, Peers: u.s.peers}) {
		if u.s.only.MatchString(s.Name) {
			list = append(list, s)
		}
	}
	if len(list) == 0 {
		return fmt.Errorf("no scenario of mode %s is called like %q", u.s.mode, u.s.only)
	}
	for i, s := range list {
		u.result.Scenarios = append(u.result.Scenarios, &s.Scenario)
		if ctx.Err() != nil {
			if !errors.Is(context.Cause(ctx), errBudget) {
				return u.went(ctx, s, "before it began", context.Cause(ctx))
			}
			s.LeftOut = append(s.LeftOut, errBudget.Error())
			continue
		}
		began := time.Now()
		if err := u.scenario(ctx, s, len(list)-i-1); err != nil {
			return err
		}
		s.Text(os.Stdout)
		fmt.Printf("(%v; %v of %v used)\n", time.Since(began).Round(time.Second), time.Since(u.began).Round(time.Second), u.s.budget)
	}
	return nil
}

// The scenarios behind one must have their first round too: so much of the
// budget is kept for each of them, and more before what is only run when time is
// left. (First rounds took 24 s on average behind "latency", with logs on a disk;
// at one 36th, 33 s, a run of 20 minutes left rounds out and ended after 14.)
const (
	keepForEach  = 48
	keepForSpare = 28
)

func (u *suite) left(rest, share int) time.Duration {
	return u.usable() - time.Since(u.began) - time.Duration(rest)*u.s.budget/time.Duration(share)
}

// scenario runs one; rest is how many come behind it.
func (u *suite) scenario(ctx context.Context, s *scenario.Scenario, rest int) error {
	fmt.Printf("\n-- %s\n", s.Title)
	defer func() {
		if s.Finish != nil {
			s.Finish()
		}
	}()
	if s.Prepare != nil {
		if err := s.Prepare(ctx); err != nil {
			return u.went(ctx, s, "its preparation", err)
		}
	}
	gone, spent := map[string]bool{}, map[string]time.Duration{}
	for round := s.FirstRound(); round < s.Rounds; round++ {
		turn := map[string]time.Duration{}
		for _, r := range s.Order(round) {
			if gone[r.Peer] {
				continue
			}
			if ctx.Err() != nil {
				gone[r.Peer] = true
				if err := u.went(ctx, s, r.Peer, context.Cause(ctx)); err != nil {
					return err
				}
				continue
			}
			if r.Spare(round) && nextRound(s, round, spent)+spent[r.Peer] > u.left(rest, keepForSpare) {
				s.Spared(r, round)
				continue
			}
			began := time.Now()
			samples, err := u.turn(ctx, s, r, round)
			turn[r.Peer] += time.Since(began)
			spent[r.Peer] = turn[r.Peer]
			if round >= 0 {
				s.Samples = append(s.Samples, samples...)
			}
			if err == nil {
				continue
			}
			gone[r.Peer] = true
			if err := u.went(ctx, s, r.Peer, err); err != nil {
				return err
			}
		}
		if s.Derive != nil {
			s.Derive(ofRound(s.Samples, round+1))
		}
		if next := round + 1; 0 < next && next < s.Rounds && nextRound(s, next, spent) > u.left(rest, keepForEach) {
			s.LeftOut = append(s.LeftOut, fmt.Sprintf("%s, for want of time", scenario.Rounds(next, s.Rounds)))
			return nil
		}
	}
	return nil
}

// turn is one peer's in one round; round -1 is to warm the brokers.
func (u *suite) turn(ctx context.Context, s *scenario.Scenario, r scenario.Run, round int) ([]report.Sample, error) {
	load := measure.Load()
	before, err := measure.CPUs()
	if err != nil {
		return nil, err
	}
	samples, failed := r.Do(ctx, round)
	after, err := measure.CPUs()
	if err != nil {
		return nil, err
	}
	_, stolen := measure.Share(before, after)
	for i := range samples {
		x := &samples[i]
		x.Round, x.Peer, x.Load, x.Stolen = round+1, r.Peer, load, stolen
		if round < 0 {
			fmt.Printf("   warm-up  %-22s %s\n", x.Peer, line(s, *x))
		} else {
			fmt.Printf("   round %d  %-22s %s\n", x.Round, x.Peer, line(s, *x))
		}
	}
	return samples, failed
}

// ofRound are the samples of the newest round, which are last.
func ofRound(all []report.Sample, round int) []report.Sample {
	for i := range all {
		if all[i].Round == round {
			return all[i:]
		}
	}
	return nil
}

// nextRound is how long a round will take, by what its peers took before; what
// is only run when time is left doesn't count.
func nextRound(s *scenario.Scenario, round int, spent map[string]time.Duration) (d time.Duration) {
	counted := map[string]bool{}
	for _, r := range s.Order(round) {
		if !counted[r.Peer] && !r.Spare(round) {
			counted[r.Peer] = true
			d += spent[r.Peer]
		}
	}
	return d
}

// usable is the time for measuring: some is kept for compiling before, and for
// the report behind it.
func (u *suite) usable() time.Duration { return u.s.budget * 92 / 100 }

// went sorts out an error: a peer that isn't there or failed is left out by
// name; without a broker nothing goes on.
func (u *suite) went(ctx context.Context, s *scenario.Scenario, who string, err error) error {
	broken := u.broken()
	switch {
	case broken != nil:
		s.LeftOut = append(s.LeftOut, who+": "+errBroker.Error())
		return fmt.Errorf("%s, %s: %w; without it nothing can be measured\n%w", s.Title, who, err, broken)
	case errors.Is(context.Cause(ctx), errBudget):
		s.LeftOut = append(s.LeftOut, who+": "+errBudget.Error())
	case ctx.Err() != nil:
		s.LeftOut = append(s.LeftOut, who+": interrupted")
		return fmt.Errorf("interrupted in %q, %s", s.Title, who)
	case errors.Is(err, peer.ErrMissing):
		s.LeftOut = append(s.LeftOut, err.Error())
	default:
		fmt.Printf("   FAILED %s: %v\n", who, err)
		s.LeftOut = append(s.LeftOut, who+": failed: "+err.Error())
		u.failed = append(u.failed, s.Title+", "+who)
	}
	return nil
}

func line(s *scenario.Scenario, x report.Sample) string {
	var b strings.Builder
	if x.Case != "" {
		fmt.Fprintf(&b, "%s  ", x.Case)
	}
	all := report.Metrics()
	for _, m := range s.Metrics {
		if v, ok := x.Values[m]; ok {
			fmt.Fprintf(&b, "%s %.*f  ", all[m].Title, max(all[m].Digits, 1), v)
		}
	}
	fmt.Fprintf(&b, "(load %.1f", x.Load)
	if x.Stolen >= 1 {
		fmt.Fprintf(&b, ", %.0f %% of the CPUs stolen", x.Stolen)
	}
	b.WriteString(")")
	if short := x.Short(); short != "" {
		fmt.Fprintf(&b, "  TOO SHORT: %s", short)
	}
	return b.String()
}

// finish writes results, flame graphs, and the page if wanted.
func (u *suite) finish(profiles string) error {
	path := resultFile(u.s, u.s.mode)
	if err := u.result.Save(path); err != nil {
		return err
	}
	fmt.Printf("\nresults: %s\n", path)
	if profiles != "" {
		list, err := filepath.Glob(filepath.Join(profiles, "*.pprof"))
		if err != nil {
			return err
		}
		for _, p := range list {
			if err := report.Flame(p, strings.TrimSuffix(p, ".pprof")+".svg"); err != nil {
				fmt.Println(err)
			}
		}
		fmt.Printf("profiles and flame graphs: %s\n", filepath.Join(u.s.results, string(u.s.mode)+"-profiles"))
	}
	if u.s.docs == "" {
		return nil
	}
	return writeDocs(u.s)
}

// versions says what is compared with what.
func versions(ctx context.Context) map[string]string {
	v := map[string]string{"Kafka and MirrorMaker 2": testkafka.DefaultVersion}
	if out, err := exec.CommandContext(ctx, "git", "describe", "--tags", "--always", "--dirty").Output(); err == nil {
		v["Lockstep"] = "commit " + strings.TrimSpace(string(out))
	}
	if h := peer.HAProxyVersion(ctx); h != "" {
		v["HAProxy"] = h
	}
	if out, err := exec.CommandContext(ctx, "java", "-XX:-UsePerfData", "-version").CombinedOutput(); err == nil {
		first, _, _ := strings.Cut(string(out), "\n")
		v["Java"] = strings.TrimSpace(first)
	}
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, m := range info.Deps {
			if m.Path == "github.com/twmb/franz-go" {
				v["franz-go"] = m.Version
			}
		}
	}
	return v
}
