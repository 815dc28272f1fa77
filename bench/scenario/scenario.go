// Package scenario holds the questions that the bench asks, each in a file.
package scenario

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/lockstep-kafka/lockstep/bench/lab"
	"github.com/lockstep-kafka/lockstep/bench/report"
)

// Mode is how much is measured.
type Mode string

// Modes.
const (
	Quick Mode = "quick" // at most 4 minutes
	Core  Mode = "core"  // at most 20
	Full  Mode = "full"  // hours
	Proxy Mode = "proxy" // the proxy alone, beside other proxies
	// Growth is how time and memory go with size: 5 minutes on 2 cores.
	Growth Mode = "growth"
)

// Scenario is a question that is answered in rounds.
type Scenario struct {
	report.Scenario
	Rounds  int
	Prepare func(ctx context.Context) error // once, before the first round; may be nil
	Runs    []Run
	Derive  func(round []report.Sample) // adds what follows from the samples of a round; may be nil
	Finish  func()                      // once, behind the last; may be nil
}

// Run is one peer's turn in a round. Several samples: one for each case.
type Run struct {
	Peer  string
	Sure  int  // rounds behind so many only when time is left; 0: all are sure
	Warms bool // takes part in a round before the first, -1, which doesn't count: the brokers' compilers find out what to do
	Do    func(ctx context.Context, round int) ([]report.Sample, error)
}

// Spare says that a round of this peer is only for when time is left.
func (r Run) Spare(round int) bool { return r.Sure > 0 && round >= r.Sure }

// Spared notes that there was no time for it.
func (s *Scenario) Spared(r Run, round int) {
	s.LeftOut = append(s.LeftOut, fmt.Sprintf("%s: %s, for want of time", r.Peer, Rounds(round, round+1)))
}

// Rounds names the rounds from one on up to another.
func Rounds(from, to int) string {
	if to == from+1 {
		return fmt.Sprintf("round %d", to)
	}
	return fmt.Sprintf("rounds %d to %d", from+1, to)
}

// FirstRound is -1 for a scenario that is to be warmed up, else 0.
func (s *Scenario) FirstRound() int {
	if slices.ContainsFunc(s.Runs, func(r Run) bool { return r.Warms }) {
		return -1
	}
	return 0
}

// Order is who takes part in a round, and in which order: each round another
// begins, and every second one goes backwards.
func (s *Scenario) Order(round int) []Run {
	if round < 0 {
		return slices.DeleteFunc(slices.Clone(s.Runs), func(r Run) bool { return !r.Warms })
	}
	runs := slices.Clone(s.Runs)
	if len(runs) == 0 {
		return nil
	}
	first := round % len(runs)
	if round%2 == 1 {
		runs = append(runs[first+1:], s.Runs[:first+1]...)
		slices.Reverse(runs)
		return runs
	}
	return append(runs[first:], s.Runs[:first]...)
}

// Options of a run that scenarios look at.
type Options struct {
	Mode   Mode
	Rounds int            // 0: each scenario's own
	Others []Other        // Kafka-aware proxies that somebody else runs
	Builds []Other        // other builds of Lockstep to compare with; Addr is the program's path
	Peers  *regexp.Regexp // only these; nil: all
}

// Other is such a proxy.
type Other struct{ Name, Addr string }

// All are the scenarios of a mode, in the order in which they run.
func All(l *lab.Lab, o Options) []*Scenario {
	var out []*Scenario
	switch o.Mode {
	case Proxy:
		out = []*Scenario{proxyScenario(l, o)}
	case Growth:
		out = growth(l, o)
	case Quick:
		out = []*Scenario{catchUp(l, o, ordinary()), latency(l, o), consume(l, o), wan(l, o)}
	case Core:
		out = []*Scenario{
			catchUp(l, o, ordinary()), catchUp(l, o, lz4()), latency(l, o), consume(l, o), wan(l, o), catchUp(l, o, small()), catchUp(l, o, large()),
			catchUp(l, o, holes()), catchUp(l, o, many()), interruption(l, o), stopMany(l, o),
		}
		out = append(out, growth(l, o)...)
	case Full:
		for _, k := range []kind{ordinary(), lz4(), small(), smallLZ4(), large(), holes(), many()} {
			out = append(out, catchUp(l, o, k))
		}
		out = append(out, latency(l, o), consume(l, o), proxyScenario(l, o), wan(l, o), interruption(l, o), stopMany(l, o))
		out = append(out, growth(l, o)...)
	}
	for _, s := range out {
		if o.Rounds > 0 {
			s.Rounds = o.Rounds
		}
		s.addBuilds(l, o.Builds)
		if o.Peers != nil {
			s.Runs = slices.DeleteFunc(s.Runs, func(r Run) bool { return !o.Peers.MatchString(r.Peer) })
		}
	}
	return out
}

// addBuilds lets other builds of Lockstep take part where each turn starts an
// instance of its own.
func (s *Scenario) addBuilds(l *lab.Lab, builds []Other) {
	if s.Name != "latency" && s.Name != "wan" && s.Name != "stop" && !strings.HasPrefix(s.Name, "catchup") {
		return
	}
	at := slices.IndexFunc(s.Runs, func(r Run) bool { return r.Peer == report.Subject })
	if at < 0 {
		return
	}
	for _, b := range builds {
		r := s.Runs[at]
		do := r.Do
		r.Peer = report.Subject + " " + b.Name
		r.Do = func(ctx context.Context, round int) ([]report.Sample, error) {
			l.Build = b.Addr
			defer func() { l.Build = "" }()
			return do(ctx, round)
		}
		s.Runs = append(s.Runs, r)
	}
}

// one is the usual result: a single sample.
func one(values map[string]float64, err error) ([]report.Sample, error) {
	if err != nil {
		return nil, err
	}
	return []report.Sample{{Values: values}}, nil
}

// clear brings both clusters back to as they were, but for topics of the
// source that are still needed.
func clear(ctx context.Context, l *lab.Lab, keep ...string) error {
	if err := lab.Clear(ctx, l.Dest); err != nil {
		return err
	}
	return lab.Clear(ctx, l.Source, keep...)
}

func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return strconv.Itoa(n) + " " + what + "s"
}

// keepSource in place of topics to keep: nothing of the source is touched.
const keepSource = "*"

const tidyTime = 30 * time.Second

// tidy is clear behind a peer, also when the time is over. What can't be
// cleared is found by the next one's preparation.
func tidy(ctx context.Context, l *lab.Lab, keep ...string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), tidyTime)
	defer cancel()
	if len(keep) == 1 && keep[0] == keepSource {
		_ = lab.Clear(ctx, l.Dest)
		return
	}
	_ = clear(ctx, l, keep...)
}
