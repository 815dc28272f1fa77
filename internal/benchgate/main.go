// Command benchgate runs the micro-benchmarks of the hot paths and compares them
// with limits.txt: allocations per operation, and ratios between two benchmarks
// of the same run. Never times: those say more about the machine than about the
// code.
package main

import (
	"bufio"
	"bytes"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/perf/benchfmt"
)

//go:embed limits.txt
var limits string

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "benchgate:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, w io.Writer) error {
	rules, err := parse(strings.NewReader(limits))
	if err != nil {
		return err
	}
	args := []string{"test", "-run", "^$", "-bench", rules.pattern(), "-benchmem", "-benchtime", "2000x", "-count", "3"}
	cmd := exec.CommandContext(ctx, "go", append(args, rules.packages...)...)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("go test -bench: %w\n%s", err, out)
	}
	got, err := read(bytes.NewReader(out))
	if err != nil {
		return err
	}
	return rules.check(got, w)
}

// rule is a line of limits.txt: allocs NAME MAX, or ratio NAME OTHER MAX.
type rule struct {
	kind, name, other string
	most              float64
}

type ruleSet struct {
	packages []string
	rules    []rule
}

func parse(r io.Reader) (s ruleSet, err error) {
	in := bufio.NewScanner(r)
	for n := 1; in.Scan(); n++ {
		text, _, _ := strings.Cut(in.Text(), "#")
		f := strings.Fields(text)
		if len(f) == 0 {
			continue
		}
		x := rule{kind: f[0]}
		switch {
		case f[0] == "packages":
			s.packages = append(s.packages, f[1:]...)
			continue
		case f[0] == "allocs" && len(f) == 3:
			x.name = f[1]
		case f[0] == "ratio" && len(f) == 4:
			x.name, x.other = f[1], f[2]
		default:
			return s, fmt.Errorf("limits.txt:%d: %q is none of: packages P..., allocs NAME MAX, ratio NAME OTHER MAX", n, in.Text())
		}
		if x.most, err = strconv.ParseFloat(f[len(f)-1], 64); err != nil {
			return s, fmt.Errorf("limits.txt:%d: %w", n, err)
		}
		s.rules = append(s.rules, x)
	}
	if len(s.rules) == 0 {
		return s, errors.New("limits.txt has no limit")
	}
	return s, in.Err()
}

// pattern matches the benchmarks named, whole ones with all their parts.
func (s ruleSet) pattern() string {
	var names []string
	for _, r := range s.rules {
		for _, n := range []string{r.name, r.other} {
			if first, _, _ := strings.Cut(n, "/"); first != "" && !slices.Contains(names, first) {
				names = append(names, first)
			}
		}
	}
	return "^Benchmark(" + strings.Join(names, "|") + ")$"
}

// result is the best of a benchmark's repetitions.
type result struct{ allocs, seconds float64 }

// read takes the output of go test -bench; names are without "Benchmark" and
// the number of processors.
func read(r io.Reader) (map[string]result, error) {
	in := benchfmt.NewReader(r, "go test -bench")
	got := map[string]result{}
	for in.Scan() {
		rec, ok := in.Result().(*benchfmt.Result)
		if !ok {
			continue
		}
		name := string(rec.Name.Full())
		if i := strings.LastIndexByte(name, '-'); i > 0 {
			if _, err := strconv.Atoi(name[i+1:]); err == nil {
				name = name[:i]
			}
		}
		allocs, _ := rec.Value("allocs/op")
		sec, _ := rec.Value("sec/op")
		x := result{allocs, sec}
		if old, ok := got[name]; ok {
			x = result{min(x.allocs, old.allocs), min(x.seconds, old.seconds)}
		}
		got[name] = x
	}
	return got, in.Err()
}

// check prints each limit with what was measured; an error when one is broken,
// or its benchmark is gone.
func (s ruleSet) check(got map[string]result, w io.Writer) error {
	bad := 0
	for _, r := range s.rules {
		a, ok := got[r.name]
		b, other := got[r.other]
		if !ok || r.other != "" && !other {
			bad++
			fmt.Fprintf(w, "GONE  %s %s %s\n", r.kind, r.name, r.other)
			continue
		}
		value, what := a.allocs, fmt.Sprintf("%s: allocations", r.name)
		if r.kind == "ratio" {
			value, what = a.seconds/b.seconds, fmt.Sprintf("%s : %s", r.name, r.other)
		}
		word := "ok   "
		if value > r.most {
			word = "ABOVE"
			bad++
		}
		fmt.Fprintf(w, "%s %-70s %8.3g (limit %g)\n", word, what, value, r.most)
	}
	if bad > 0 {
		return fmt.Errorf("%d limits of internal/benchgate/limits.txt are broken", bad)
	}
	return nil
}
