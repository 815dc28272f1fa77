package foreign

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/lockstep-kafka/lockstep/internal/testkafka"
)

// Suite is a public test suite of a client library, built from the library's source as the Go module cache has it.
type Suite struct {
	binary, dir string
}

// FranzSuite builds franz-go's own tests, in the version that golang/go.mod pins. dir is for its files.
func FranzSuite(ctx context.Context, dir string) (*Suite, error) {
	from, err := moduleDir()
	if err != nil {
		return nil, err
	}
	if err := testkafka.Run(ctx, from, "go", "mod", "download", "github.com/twmb/franz-go"); err != nil {
		return nil, err
	}
	list := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", "github.com/twmb/franz-go")
	list.Dir = from
	out, err := list.Output()
	if err != nil {
		return nil, fmt.Errorf("foreign: franz-go's folder: %w", err)
	}
	// The module cache is read-only, and a module there is nobody's main module.
	src := filepath.Join(dir, "franz-go")
	if err := os.CopyFS(src, os.DirFS(strings.TrimSpace(string(out)))); err != nil {
		return nil, fmt.Errorf("foreign: copy franz-go: %w", err)
	}
	s := &Suite{binary: filepath.Join(dir, "kgo.test"), dir: filepath.Join(src, "pkg", "kgo")}
	return s, testkafka.Run(ctx, src, "go", "test", "-mod=mod", "-c", "-o", s.binary, "./pkg/kgo")
}

// Outcomes are PASS, FAIL or SKIP for each test of a run.
type Outcomes map[string]string

// Count is how many tests had an outcome.
func (o Outcomes) Count(what string) int { return len(o.Names(what)) }

// Names are the tests that had an outcome.
func (o Outcomes) Names(what string) []string {
	var out []string
	for _, name := range slices.Sorted(maps.Keys(o)) {
		if o[name] == what {
			out = append(out, name)
		}
	}
	return out
}

// Worse are the tests that did not pass here although they passed there.
func (o Outcomes) Worse(there Outcomes) []string {
	var out []string
	for _, name := range slices.Sorted(maps.Keys(there)) {
		if there[name] == "PASS" && o[name] != "PASS" {
			out = append(out, name)
		}
	}
	return out
}

var outcomeRE = regexp.MustCompile(`^--- (PASS|FAIL|SKIP): (\S+) `)

// Run runs the tests whose names match. What they print goes to log. A test that was running when the process ended has
// failed.
func (s *Suite) Run(ctx context.Context, seeds, match string, timeout time.Duration, log io.Writer, env ...string) (Outcomes, error) {
	cmd := exec.CommandContext(ctx, s.binary, "-test.v", "-test.run", match, "-test.timeout", timeout.String())
	cmd.Dir, cmd.WaitDelay, cmd.SysProcAttr = s.dir, 5*time.Second, testkafka.ChildAttr()
	cmd.Env = append(os.Environ(), append([]string{"KGO_SEEDS=" + seeds, "KGO_LOG_LEVEL=none"}, env...)...)
	r, w := io.Pipe()
	cmd.Stdout, cmd.Stderr = w, w
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("foreign: %w", err)
	}
	ended := make(chan error, 1)
	go func() { err := cmd.Wait(); _ = w.Close(); ended <- err }()
	out := Outcomes{}
	in := bufio.NewScanner(r)
	in.Buffer(nil, 16<<20)
	for in.Scan() {
		_, _ = fmt.Fprintln(log, in.Text())
		if name, ok := strings.CutPrefix(in.Text(), "=== RUN   "); ok && !strings.Contains(name, "/") {
			out[name] = "FAIL"
		}
		if m := outcomeRE.FindStringSubmatch(in.Text()); m != nil {
			out[m[2]] = m[1]
		}
	}
	_ = r.Close() // should a line be too long, the process must not wait for us
	err := <-ended
	var exit *exec.ExitError
	if errors.As(err, &exit) { // some test failed: that is in the outcomes
		err = nil
	}
	return out, errors.Join(err, in.Err())
}
