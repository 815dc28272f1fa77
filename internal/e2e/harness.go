// Package e2e tests the built binary from outside: real brokers on both sides, the YAML configuration, real clients.
package e2e

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/lockstep-kafka/lockstep/internal/testkafka"
)

// patience bounds waits for what must happen, however much else the machine has to do.
const patience = 4 * time.Minute

// Binary builds cmd/lockstep once per test binary.
type Binary struct {
	once   sync.Once
	dir    string
	remove func()
	err    error
}

// Path is the binary's path.
func (b *Binary) Path(t testing.TB) string {
	t.Helper()
	b.once.Do(func() {
		if b.dir, b.remove, b.err = testkafka.Scratch("lockstep-e2e"); b.err != nil { // it outlives the test
			return
		}
		args := []string{"build", "-o", filepath.Join(b.dir, "lockstep")}
		if raceDetector {
			args = append(args, "-race")
		}
		args = append(args, "github.com/lockstep-kafka/lockstep/cmd/lockstep")
		b.err = testkafka.Run(context.Background(), ".", "go", args...)
	})
	if b.err != nil {
		t.Fatalf("build lockstep: %v", b.err)
	}
	return filepath.Join(b.dir, "lockstep")
}

// Remove deletes the binary; for TestMain.
func (b *Binary) Remove() {
	if b.remove != nil {
		b.remove()
	}
}

// Setup is what one Lockstep runs with.
type Setup struct {
	Source, Destination *testkafka.Cluster
	// SourceBootstrap and DestinationBootstrap, if given, are where Lockstep reaches them: through a Relay.
	SourceBootstrap, DestinationBootstrap string
	// Include are the topic expressions of the one mirror, "dc1".
	Include []string
	// Acks is "all" (also when empty) or "leader".
	Acks string
	// ServeOnly: no mirror is configured, the instance serves clients only.
	ServeOnly bool
	// Mirror are further lines of the mirror's block, without indentation.
	Mirror []string
	// Config, if given, is the whole configuration but for admin, instance and log; it gets the address for bootstrap.
	Config func(bootstrap string) string
	// Instance is the instance's id, "e2e" when empty; several Locksteps in front of one destination need several.
	Instance string
	// SessionTimeout of the group that shares the partitions, "6s" when empty.
	SessionTimeout string
	// Limits are further lines of the limits block, without indentation.
	Limits []string
}

// Lockstep is a running `lockstep serve`.
type Lockstep struct {
	t     testing.TB
	setup Setup
	bin   string
	ports *testkafka.Ports
	conf  string
	log   string
	proc  *testkafka.Process
}

// Start writes a configuration, starts Lockstep and waits until it is ready. It is stopped with the test; a crash, a
// panic or a data race in it fails the test.
func Start(t testing.TB, b *Binary, s Setup) *Lockstep {
	t.Helper()
	l := Prepare(t, b, s)
	l.Launch()
	return l
}

// Prepare is Start without the start.
func Prepare(t testing.TB, b *Binary, s Setup) *Lockstep {
	t.Helper()
	if s.Instance == "" {
		s.Instance = "e2e"
	}
	if s.SessionTimeout == "" {
		s.SessionTimeout = "6s"
	}
	ports, err := testkafka.ReservePorts(16)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(ports.Release)
	dir := t.TempDir()
	l := &Lockstep{
		t: t, setup: s, bin: b.Path(t), ports: ports,
		conf: filepath.Join(dir, "lockstep.yaml"), log: filepath.Join(dir, s.Instance+".log"),
	}
	l.Reconfigure(func(*Setup) {})
	t.Cleanup(l.finish)
	return l
}

// Reconfigure writes another configuration file; it takes effect with the next Launch or Reload.
func (l *Lockstep) Reconfigure(change func(*Setup)) {
	l.t.Helper()
	change(&l.setup)
	if err := os.WriteFile(l.conf, []byte(l.config()), 0o644); err != nil {
		l.t.Fatal(err)
	}
}

// Reload sends SIGHUP.
func (l *Lockstep) Reload() { l.signal(syscall.SIGHUP) }

// Terminate sends SIGTERM and does not wait.
func (l *Lockstep) Terminate() { l.signal(syscall.SIGTERM) }

// Process is the running process.
func (l *Lockstep) Process() *testkafka.Process { return l.proc }

// ID is the instance's id.
func (l *Lockstep) ID() string { return l.setup.Instance }

// For is the same Lockstep with its failures told to a subtest.
func (l *Lockstep) For(t testing.TB) *Lockstep {
	c := *l
	c.t = t
	return &c
}

// config: bootstrap on the block's first port, admin on the second, broker id n on the (3+n)-th.
func (l *Lockstep) config() string {
	var b strings.Builder
	p := func(format string, a ...any) { fmt.Fprintf(&b, format+"\n", a...) }
	if l.setup.Config != nil {
		b.WriteString(l.setup.Config(l.Bootstrap()))
		p("admin:\n  address: %s\ninstance:\n  id: e2e\nlog:\n  level: debug", l.ports.Addr(1))
		return b.String()
	}
	p("listeners:\n  - address: %s\n    broker_ports: %d-%d", l.Bootstrap(), l.ports.First+2, l.ports.First+15)
	p("destination:\n  bootstrap: [%s]", cmp.Or(l.setup.DestinationBootstrap, l.setup.Destination.Bootstrap()))
	if !l.setup.ServeOnly {
		l.mirrorConfig(p)
	}
	p("admin:\n  address: %s", l.ports.Addr(1))
	// Static membership: a restart after kill -9 takes its partitions back at once.
	p("instance:\n  id: %s\n  session_timeout: %s", l.setup.Instance, l.setup.SessionTimeout)
	if len(l.setup.Limits) > 0 {
		p("limits:\n  %s", strings.Join(l.setup.Limits, "\n  "))
	}
	p("log:\n  level: debug")
	return b.String()
}

func (l *Lockstep) mirrorConfig(p func(string, ...any)) {
	p("mirrors:\n  - name: dc1\n    source:\n      bootstrap: [%s]", cmp.Or(l.setup.SourceBootstrap, l.setup.Source.Bootstrap()))
	p("    topics:\n      include: [\"%s\"]", strings.Join(l.setup.Include, `", "`))
	if l.setup.Acks != "" {
		p("    acks: %s", l.setup.Acks)
	}
	p("    metadata_refresh: 1s\n    retry_backoff_max: 2s\n    retry_attempts: 1000")
	for _, m := range l.setup.Mirror {
		p("    %s", m)
	}
}

// Bootstrap is the proxy's address.
func (l *Lockstep) Bootstrap() string { return l.ports.Addr(0) }

// Admin is the base URL of the admin address.
func (l *Lockstep) Admin() string { return "http://" + l.ports.Addr(1) }

// BrokerAddr is where the proxy shows a broker.
func (l *Lockstep) BrokerAddr(id int) string { return l.ports.Addr(2 + id) }

// Launch starts the process and waits for /readyz.
func (l *Lockstep) Launch() {
	l.t.Helper()
	cmd := exec.Command(l.bin, "serve", "--config", l.conf)
	cmd.Env = append(os.Environ(), "GORACE=halt_on_error=1")
	p, err := testkafka.StartProcess(cmd, l.log)
	if err != nil {
		l.t.Fatal(err)
	}
	l.proc = p
	l.WaitReady()
}

// WaitReady waits until /readyz answers 200.
func (l *Lockstep) WaitReady() {
	l.t.Helper()
	ctx, cancel := context.WithTimeout(l.t.Context(), patience)
	defer cancel()
	var last string
	for {
		code, body, err := l.Get(ctx, "/readyz")
		switch {
		case err != nil:
			last = err.Error()
		case code == http.StatusOK:
			return
		default:
			last = fmt.Sprintf("%d %s", code, body)
		}
		select {
		case <-l.proc.Done():
			l.t.Fatalf("lockstep ended: %v\n%s", l.proc.Err(), l.LogTail(40))
		case <-ctx.Done():
			l.t.Fatalf("lockstep isn't ready: %s\n%s", last, l.LogTail(40))
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// Get asks the admin address.
func (l *Lockstep) Get(ctx context.Context, path string) (code int, body string, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, l.Admin()+path, nil)
	if err != nil {
		return 0, "", err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, "", err
	}
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(b), err
}

// Kill9 ends Lockstep at once.
func (l *Lockstep) Kill9() {
	l.t.Helper()
	if !l.proc.Alive() {
		l.t.Fatalf("lockstep had ended by itself: %v\n%s", l.proc.Err(), l.LogTail(40))
	}
	if err := l.proc.Kill(); err != nil {
		l.t.Fatal(err)
	}
}

// Stop ends Lockstep by SIGTERM; it has to drain and to exit with 0.
func (l *Lockstep) Stop() {
	l.t.Helper()
	if !l.proc.Alive() {
		l.t.Fatalf("lockstep had ended by itself: %v\n%s", l.proc.Err(), l.LogTail(40))
	}
	if err := l.proc.Stop(patience); err != nil {
		l.t.Fatalf("%v\n%s", err, l.LogTail(40))
	}
	if err := l.proc.Err(); err != nil {
		l.t.Fatalf("lockstep ended with %v on SIGTERM\n%s", err, l.LogTail(40))
	}
}

// Restart is Kill9 and Launch.
func (l *Lockstep) Restart() {
	l.t.Helper()
	l.Kill9()
	l.Launch()
}

// Pause stops the process as it is; Continue lets it go on.
func (l *Lockstep) Pause() { l.signal(syscall.SIGSTOP) }

// Continue lets a paused Lockstep go on.
func (l *Lockstep) Continue() { l.signal(syscall.SIGCONT) }

func (l *Lockstep) signal(s syscall.Signal) {
	l.t.Helper()
	if err := l.proc.Signal(s); err != nil {
		l.t.Fatal(err)
	}
}

// Log is everything that all runs of this Lockstep wrote.
func (l *Lockstep) Log() string {
	b, err := os.ReadFile(l.log)
	if err != nil {
		return err.Error()
	}
	return string(b)
}

// LogTail is the end of the log.
func (l *Lockstep) LogTail(lines int) string {
	s := strings.Split(strings.TrimSpace(l.Log()), "\n")
	return "--- lockstep's last log lines:\n" + strings.Join(s[max(0, len(s)-lines):], "\n")
}

// finish stops what still runs and looks for what must never be in the log.
func (l *Lockstep) finish() {
	if l.proc != nil && l.proc.Alive() {
		_ = l.proc.Signal(syscall.SIGCONT)
		if err := l.proc.Stop(patience); err != nil {
			l.t.Errorf("lockstep: %v", err)
		} else if err := l.proc.Err(); err != nil {
			l.t.Errorf("lockstep ended with %v on SIGTERM", err)
		}
	}
	log := l.Log()
	for _, bad := range []string{"DATA RACE", "\npanic: ", "fatal error: "} {
		if i := strings.Index(log, bad); i >= 0 {
			l.t.Errorf("lockstep's log has %q:\n%s", bad, log[i:min(len(log), i+4000)])
		}
	}
	if l.t.Failed() || os.Getenv("LOCKSTEP_KEEP_LOGS") != "" {
		l.t.Log(l.LogTail(60))
		if keep := os.Getenv("LOCKSTEP_KEEP_LOGS"); keep != "" {
			name := strings.ReplaceAll(l.t.Name(), "/", "_") + "-" + filepath.Base(l.log)
			_ = os.WriteFile(filepath.Join(keep, name), []byte(log), 0o644)
		}
	}
}
