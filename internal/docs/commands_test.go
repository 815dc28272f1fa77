package docs_test

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/lockstep-kafka/lockstep/internal/config"
	"github.com/lockstep-kafka/lockstep/internal/ledger"
)

// TestCommands runs every command in the sh blocks of README.md and docs/: with
// the binary that the Makefile builds, and a configuration whose clusters are
// embedded ones. What would take long, or would run the tests in the tests, is
// run by make's dry run: then target and recipe exist.
func TestCommands(t *testing.T) {
	w := newWorkshop(t)
	defer w.end()
	seen := map[string]bool{}
	all := pages(t)
	for _, name := range slices.Sorted(maps.Keys(all)) {
		_, blocks := split(t, name, all[name])
		for _, b := range blocks {
			if b.lang != "sh" {
				continue
			}
			for line := range strings.Lines(b.text) {
				line = strings.TrimSpace(line)
				if line == "" || strings.HasPrefix(line, "#") || seen[line] {
					continue
				}
				seen[line] = true
				t.Run(line, func(t *testing.T) { w.run(t, line) })
			}
		}
	}
	require.NotEmpty(t, seen)
}

// Commands in running text, in backticks, name targets and verbs that exist.
func TestInlineCommands(t *testing.T) {
	makefile := page(t, "Makefile")
	var verbs []string // docs/cli.md is held to the code by a test of its own
	for _, m := range regexp.MustCompile("(?m)^## lockstep ([a-z]+)").FindAllStringSubmatch(page(t, "docs/cli.md"), -1) {
		verbs = append(verbs, m[1])
	}
	for name, text := range pages(t) {
		prose, _ := split(t, name, text)
		for _, m := range regexp.MustCompile("`(?:DEMO_SECONDS=\\d+ )?make ([a-z-]+)`").FindAllStringSubmatch(prose, -1) {
			require.Regexp(t, `(?m)^`+m[1]+`:`, makefile, "%s: make %s", name, m[1])
		}
		for _, m := range regexp.MustCompile("`lockstep ([a-z]+)[^`]*`").FindAllStringSubmatch(prose, -1) {
			require.Contains(t, verbs, m[1], "%s: lockstep %s", name, m[1])
		}
	}
}

// workshop is where commands run: a directory with lockstep.yaml.
type workshop struct {
	dir, bin string
	dest     []string // brokers
	admin    string
	stop     func() // ends the Lockstep that verbs ask; nil: none runs
}

func newWorkshop(t *testing.T) *workshop {
	w := &workshop{dir: t.TempDir()}
	w.bin = filepath.Join(w.dir, "lockstep")
	// The recipe of `make build`, with another place for the result.
	recipe := w.output(t, exec.CommandContext(t.Context(), "make", "--no-print-directory", "-n", "-C", root, "build"))
	require.Contains(t, recipe, "-o bin/lockstep")
	build := exec.CommandContext(t.Context(), "sh", "-c", strings.Replace(recipe, "-o bin/lockstep", "-o "+w.bin, 1))
	build.Dir = root
	w.output(t, build)

	source, dest := cluster(t, "source"), cluster(t, "destination")
	w.dest = dest.ListenAddrs()
	ports := freePorts(t, 5) // bootstrap, three brokers, admin
	w.admin = fmt.Sprintf("127.0.0.1:%d", ports+4)
	example := page(t, "deploy/lockstep.yaml")
	for from, to := range map[string]string{
		"127.0.0.1:19092": fmt.Sprintf("127.0.0.1:%d", ports), "19100-19149": fmt.Sprintf("%d-%d", ports+1, ports+3),
		"127.0.0.1:9092": dest.ListenAddrs()[0], "127.0.0.1:9192": source.ListenAddrs()[0], "127.0.0.1:9644": w.admin,
	} {
		require.Contains(t, example, from)
		example = strings.Replace(example, from, to, 1)
	}
	path := filepath.Join(w.dir, "lockstep.yaml")
	require.NoError(t, os.WriteFile(path, []byte(example), 0o600))
	_, err := config.Load(path)
	require.NoError(t, err)
	return w
}

func cluster(t *testing.T, id string) *kfake.Cluster {
	t.Helper()
	c, err := kfake.NewCluster(kfake.NumBrokers(3), kfake.ClusterID(id), kfake.SeedTopics(2, "orders"))
	require.NoError(t, err)
	t.Cleanup(c.Close)
	return c
}

// freePorts finds n ports in a row that are free now, below the range from which
// the system gives out its own.
func freePorts(t *testing.T, n int) int {
	t.Helper()
	for first := 20000 + os.Getpid()%10000; first < 32000; first += n {
		free := true
		for p := first; p < first+n && free; p++ {
			ln, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(p)))
			if free = err == nil; free {
				require.NoError(t, ln.Close())
			}
		}
		if free {
			return first
		}
	}
	t.Fatal("no free ports")
	return 0
}

// env is the environment without what a make around this test left there.
func env(add ...string) []string {
	var out []string
	for _, e := range os.Environ() {
		if !strings.HasPrefix(e, "MAKE") && !strings.HasPrefix(e, "MFLAGS=") && !strings.HasPrefix(e, "DEMO_SECONDS=") && !strings.HasPrefix(e, "TAGS=") {
			out = append(out, e)
		}
	}
	return append(out, add...)
}

func (w *workshop) output(t *testing.T, cmd *exec.Cmd) string {
	t.Helper()
	if cmd.Env == nil {
		cmd.Env = env()
	}
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s\n%s", cmd, out)
	return string(out)
}

// asking are the verbs that ask a running Lockstep.
var asking = []string{"list", "describe", "status", "set", "start", "stop", "pause", "resume", "recover", "delete", "verify", "instances", "forget", "acls"}

// begin starts a Lockstep for them, once, and waits until it mirrors.
func (w *workshop) begin(t *testing.T) {
	if w.stop != nil {
		return
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.Command(w.bin, "serve", "--config", "lockstep.yaml")
	cmd.Dir, cmd.Env = w.dir, env()
	log, err := os.Create(filepath.Join(w.dir, "log"))
	require.NoError(t, err)
	cmd.Stdout, cmd.Stderr = log, log
	require.NoError(t, cmd.Start())
	w.stop = func() { _ = cmd.Process.Signal(syscall.SIGTERM); _ = cmd.Wait(); _ = log.Close() }
	for {
		_, body := get(ctx, "http://"+w.admin+"/v1/partitions?topic=orders")
		if strings.Count(body, `"state": "MIRRORING"`) == 2 {
			return
		}
		if ctx.Err() != nil {
			b, _ := os.ReadFile(log.Name())
			t.Fatalf("not mirroring: %s\n%s", body, b)
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// leave registers an instance that is gone.
func (w *workshop) leave(t *testing.T, id string) {
	cl, err := kgo.NewClient(kgo.SeedBrokers(w.dest...), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	require.NoError(t, err)
	defer cl.Close()
	gone := &ledger.Instance{ID: id, Started: time.Unix(1, 0), Lease: time.Unix(2, 0)}
	value, err := gone.Encode()
	require.NoError(t, err)
	key := ledger.InstanceKey(id)
	require.NoError(t, cl.ProduceSync(t.Context(), &kgo.Record{
		Topic: ledger.Topic, Partition: ledger.PartitionFor(key, ledger.Partitions), Key: []byte(key), Value: value,
	}).FirstErr())
	require.Eventually(t, func() bool {
		_, body := get(t.Context(), "http://"+w.admin+"/v1/instances")
		return strings.Contains(body, strconv.Quote(id))
	}, 20*time.Second, 50*time.Millisecond)
}

func (w *workshop) end() {
	if w.stop != nil {
		w.stop()
		w.stop = nil
	}
}

var commandRE = regexp.MustCompile(`^(?:DEMO_SECONDS=\d+ )?(make|lockstep)((?: [\w./=-]+)+)$`)

func (w *workshop) run(t *testing.T, line string) {
	m := commandRE.FindStringSubmatch(line)
	require.NotNil(t, m, "commands in sh blocks are `make TARGET` or `lockstep VERB FLAGS`; others belong into a text block")
	args := strings.Fields(m[2])
	if m[1] == "lockstep" {
		if args[0] == "serve" && !slices.Contains(args, "--help") {
			w.serve(t, args)
			return
		}
		if slices.Contains(asking, args[0]) && !slices.Contains(args, "--help") {
			w.begin(t)
		}
		if args[0] == "forget" && len(args) == 2 {
			w.leave(t, args[1])
		}
		cmd := exec.CommandContext(t.Context(), w.bin, args...)
		cmd.Dir = w.dir
		require.NotEmpty(t, w.output(t, cmd))
		return
	}
	require.Len(t, args, 1)
	dry := w.output(t, exec.CommandContext(t.Context(), "make", "--no-print-directory", "-n", "-C", root, args[0]))
	switch args[0] {
	case "help":
		w.output(t, exec.CommandContext(t.Context(), "make", "--no-print-directory", "-C", root, "help"))
	case "demo":
		require.Contains(t, dry, "-o bin/lockstep ./cmd/lockstep\n")
		require.True(t, strings.HasSuffix(dry, "exec bin/lockstep demo\n"), dry)
		cmd := exec.CommandContext(t.Context(), w.bin, "demo", "--port", strconv.Itoa(freePorts(t, 16)+1))
		cmd.Env = env("DEMO_SECONDS=2")
		require.Contains(t, w.output(t, cmd), "Equal: offset, leader epoch, timestamp, key, value and headers of every record.")
	}
}

// serve runs Lockstep until it is ready, looks at its HTTP endpoints, and ends
// it in order.
func (w *workshop) serve(t *testing.T, args []string) {
	w.end()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, w.bin, args...)
	cmd.Dir, cmd.Env = w.dir, env()
	log, err := os.Create(filepath.Join(w.dir, "log"))
	require.NoError(t, err)
	defer log.Close()
	cmd.Stdout, cmd.Stderr = log, log
	require.NoError(t, cmd.Start())
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	for {
		code, body := get(ctx, "http://"+w.admin+"/readyz")
		if code == http.StatusOK {
			break
		}
		select {
		case err := <-ended:
			b, _ := os.ReadFile(log.Name())
			t.Fatalf("ended before it was ready: %v\n%s", err, b)
		case <-ctx.Done():
			b, _ := os.ReadFile(log.Name())
			t.Fatalf("not ready: %d %s\n%s", code, body, b)
		case <-time.After(50 * time.Millisecond):
		}
	}
	for path, want := range map[string]string{"/livez": "ok", "/metrics": "lockstep_ledger_partitions_owned", "/v1/status": "partitions"} {
		code, body := get(ctx, "http://"+w.admin+path)
		require.Equal(t, http.StatusOK, code, path)
		require.Contains(t, body, want, path)
	}
	require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
	require.NoError(t, <-ended)
}

func get(ctx context.Context, url string) (int, string) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return 0, err.Error()
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, err.Error()
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, err.Error()
	}
	return resp.StatusCode, string(b)
}
