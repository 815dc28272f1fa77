package app

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/lockstep-kafka/lockstep/internal/config"
)

// logBuffer takes the log of a process.
type logBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logBuffer) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(b)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// reloadable is a process that follows a configuration file.
type reloadable struct {
	t              *testing.T
	path, head     string
	admin, bootstr string
	log            logBuffer
	hup            chan os.Signal
	stop           func() error
}

func startReloadable(t *testing.T, dst *kfake.Cluster, rest string) *reloadable {
	t.Helper()
	p := ports(t, 6)
	r := &reloadable{
		t: t, path: filepath.Join(t.TempDir(), "lockstep.yaml"), hup: make(chan os.Signal, 1),
		admin: fmt.Sprintf("http://127.0.0.1:%d", p+1), bootstr: fmt.Sprintf("127.0.0.1:%d", p),
	}
	r.head = fmt.Sprintf(`
listeners: [{address: "127.0.0.1:%d", broker_ports: "%d-%d"}]
destination: {bootstrap: [%q]}
admin: {address: "127.0.0.1:%d"}
`, p, p+2, p+5, dst.ListenAddrs()[0], p+1)
	r.write(r.head + rest)
	c, err := config.Load(r.path)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	ready, done := make(chan struct{}), make(chan error, 1)
	go func() {
		done <- Run(ctx, c, Options{LogTo: &r.log, Ready: ready, Reload: &Reload{Path: r.path, Now: r.hup, lookEvery: 20 * time.Millisecond}})
	}()
	r.stop = sync.OnceValue(func() error { cancel(); return <-done })
	t.Cleanup(func() { require.NoError(t, r.stop()) })
	select {
	case <-ready:
	case <-time.After(30 * time.Second):
		t.Fatal("not ready\n" + r.log.String())
	}
	return r
}

func (r *reloadable) write(s string) {
	require.NoError(r.t, os.WriteFile(r.path+".new", []byte(s), 0o600))
	require.NoError(r.t, os.Rename(r.path+".new", r.path))
}

// change writes a new file and returns what the log says until it says what.
func (r *reloadable) change(rest, what string) string {
	r.t.Helper()
	return r.changeTo(r.head+rest, what)
}

func (r *reloadable) changeTo(file, what string) string {
	r.t.Helper()
	from := len(r.log.String())
	r.write(file)
	require.Eventually(r.t, func() bool { return strings.Contains(r.log.String()[from:], what) }, time.Minute, 5*time.Millisecond, "%s", what)
	return r.log.String()[from:]
}

// mirrored waits until a partition has come to an offset.
func (r *reloadable) mirrored(topic string, position int) {
	r.t.Helper()
	want := []string{fmt.Sprintf(`"topic": %q`, topic), fmt.Sprintf(`"position": %d`, position), `"mirrored_by_this_instance": true`}
	require.Eventually(r.t, func() bool {
		_, body := get(r.t, r.admin+"/v1/status")
		for _, row := range strings.Split(body, `"mirror": `) {
			ok := true
			for _, w := range want {
				ok = ok && strings.Contains(row, w)
			}
			if ok {
				return true
			}
		}
		return false
	}, time.Minute, 50*time.Millisecond, "%s at %d\n%s", topic, position, r.log.String())
}

func produce(t *testing.T, c *kfake.Cluster, topic string, n int) {
	t.Helper()
	cl, err := kgo.NewClient(kgo.SeedBrokers(c.ListenAddrs()...))
	require.NoError(t, err)
	defer cl.Close()
	_, err = kadm.NewClient(cl).CreateTopic(t.Context(), 1, 1, nil, topic)
	if err != nil && !strings.Contains(err.Error(), "TOPIC_ALREADY_EXISTS") {
		require.NoError(t, err)
	}
	for range n {
		require.NoError(t, cl.ProduceSync(t.Context(), &kgo.Record{Topic: topic, Value: []byte("x")}).FirstErr())
	}
}

func mirrorLine(name string, src string, more string) string {
	return fmt.Sprintf("  - {name: %s, source: {bootstrap: [%q]}, topics: {include: [\"%s-.*\"]}, metadata_refresh: 200ms%s}\n", name, src, name, more)
}

// A changed file is taken while everything runs: sources that move (FO-11), new
// mirrors, limits, beside a mirror whose source is dead (PX-101). What can't be
// taken is named exactly, and a broken file changes nothing.
func TestReload(t *testing.T) {
	one, two, dst := cluster(t, "S1"), cluster(t, "S2"), cluster(t, "D")
	produce(t, one, "a-1", 3)
	produce(t, two, "b-1", 4)
	const dead = "127.0.0.1:1"
	r := startReloadable(t, dst, "mirrors:\n"+mirrorLine("a", dead, "")+mirrorLine("z", dead, ""))

	// The source has moved.
	r.change("mirrors:\n"+mirrorLine("a", one.ListenAddrs()[0], "")+mirrorLine("z", dead, ""), `changed=[mirrors[a].source.bootstrap]`)
	r.mirrored("a-1", 3)

	// A mirror more, a limit, a level; a bad source beside it stops nobody.
	all := "mirrors:\n" + mirrorLine("a", one.ListenAddrs()[0], "") + mirrorLine("z", dead, "") + mirrorLine("b", two.ListenAddrs()[0], "")
	said := r.change(all+"limits: {max_connections: 77}\n", "configuration reloaded")
	require.Contains(t, said, `changed="[limits.max_connections mirrors[b]]"`)
	require.NotContains(t, said, "restart")
	r.mirrored("b-1", 4)
	produce(t, one, "a-1", 2)
	r.mirrored("a-1", 5)

	// Mistakes: everything stays.
	said = r.change(all+"limits: {max_connections: 0}\n", "not taken")
	require.Contains(t, said, "limits.max_connections")
	require.Contains(t, said, "line ")
	said = r.change(all+"  - {name: c, source: {bootstrap: [\"x:1\"], tls: {enabled: true, ca_file: /nowhere}}, topics: {include: [x]}}\n", "nothing of the changed configuration is taken")
	require.Contains(t, said, "/nowhere")
	produce(t, two, "b-1", 1)
	r.mirrored("b-1", 5)

	// Keys that need a restart are named, and only these; the rest is taken.
	said = r.changeTo(strings.Replace(r.head, "admin: {", "instance: {id: other}\nadmin: {token_file: "+r.path+", ", 1)+all+"log: {level: debug}\n", "configuration reloaded")
	require.Contains(t, said, `keys="[admin.token_file instance.id]"`)
	require.Contains(t, said, "log.level")

	// Which topics: what is excluded is not followed any more, what is new is.
	produce(t, one, "other", 2)
	r.change("mirrors:\n"+strings.Replace(mirrorLine("a", one.ListenAddrs()[0], ""), `"a-.*"`, `"a-.*", "other"`, 1), "mirrors[a].topics.include")
	r.mirrored("other", 2)

	// One that is selected no more is told from those that are mirrored.
	r.change("mirrors:\n"+mirrorLine("a", one.ListenAddrs()[0], ""), "mirrors[a].topics.include")
	shows := func(path string, words ...string) func() bool {
		return func() bool {
			_, body := get(t, r.admin+path)
			return !slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(body, w) })
		}
	}
	require.Eventually(t, shows("/v1/mirrors", `"UNSELECTED": 1`, `"MIRRORING": 1`), time.Minute, 50*time.Millisecond)
	require.Eventually(t, shows("/v1/partitions?topic=other", `"unselected": true`, `"lag": -1`, `"state": "MIRRORING"`), time.Minute, 50*time.Millisecond)
	require.NoError(t, r.stop())
}

// MM-03: reloads leave no goroutine, file or connection behind.
func TestReloadsLeakNothing(t *testing.T) { reloads(t, 25) }

func reloads(t *testing.T, n int) {
	src, dst := cluster(t, "S"), cluster(t, "D")
	produce(t, src, "a-1", 1)
	line := func(i int) string {
		return "mirrors:\n" + mirrorLine("a", src.ListenAddrs()[0], fmt.Sprintf(", fetch_wait_max: %dms", 100+i))
	}
	r := startReloadable(t, dst, line(0))
	count := func() (goroutines, files int) {
		d, err := os.ReadDir("/proc/self/fd")
		require.NoError(t, err)
		return runtime.NumGoroutine(), len(d)
	}
	const settle = 5
	var g0, f0 int
	for i := 1; i <= n; i++ {
		from := len(r.log.String())
		r.write(r.head + line(i%2))
		r.hup <- syscall.SIGHUP
		require.Eventually(t, func() bool { return strings.Contains(r.log.String()[from:], "run with their new settings") }, 2*time.Minute, 2*time.Millisecond)
		if i == settle {
			// All of it runs: a record goes through, and nothing new comes up any more.
			produce(t, src, "a-1", 1)
			r.mirrored("a-1", 2)
			for same := 0; same < 20; {
				g, f := count()
				if same++; g > g0 || f > f0 {
					g0, f0, same = max(g0, g), max(f0, f), 0
				}
				time.Sleep(20 * time.Millisecond)
			}
		}
	}
	produce(t, src, "a-1", 1)
	r.mirrored("a-1", 3)
	require.Eventually(t, func() bool {
		g, f := count()
		return g <= g0+20 && f <= f0+10
	}, 2*time.Minute, 50*time.Millisecond, "%d goroutines and %d files were there after %d reloads", g0, f0, settle)
	require.NoError(t, r.stop())
}

// Files that change faster than mirrors hand over: the newest settings run in
// the end, and what has ended is never run again.
func TestQuickReloads(t *testing.T) {
	src, dst := cluster(t, "S"), cluster(t, "D")
	produce(t, src, "a-1", 1)
	line := func(i int) string {
		return "mirrors:\n" + mirrorLine("a", src.ListenAddrs()[0], fmt.Sprintf(", fetch_wait_max: %dms", 100+i))
	}
	r := startReloadable(t, dst, line(0))
	r.mirrored("a-1", 1)
	for round := range 5 {
		for i := range 4 { // while the first of them is being handed over to
			from := len(r.log.String())
			r.write(r.head + line(10*round+i+1))
			r.hup <- syscall.SIGHUP
			require.Eventually(t, func() bool { return strings.Contains(r.log.String()[from:], "configuration reloaded") }, time.Minute, time.Millisecond)
		}
		produce(t, src, "a-1", 1)
		r.mirrored("a-1", 2+round)
	}
	require.NoError(t, r.stop())
}

// Instances that differ while a change is rolled out are not told of; what has
// been so for a while is, once, and again when it was right in between.
func TestDifferencesAreToldLate(t *testing.T) {
	var d differences
	at := time.Unix(0, 0)
	differ := map[string]map[string][]string{"dc1": {"i2": {"acks"}}}
	require.Empty(t, d.note(differ, at))
	require.Empty(t, d.note(differ, at.Add(differTolerance-1)))
	require.Empty(t, d.note(nil, at.Add(differTolerance)), "rolled out")
	require.Empty(t, d.note(differ, at.Add(differTolerance)))
	told := d.note(map[string]map[string][]string{"dc1": {"i2": {"acks", "bump_step"}, "i3": {"acks"}}}, at.Add(2*differTolerance))
	require.Len(t, told, 1)
	require.Equal(t, differs{difference{"dc1", "i2"}, []string{"acks", "bump_step"}, at.Add(differTolerance), true}, *told[0])
	require.Empty(t, d.note(differ, at.Add(3*differTolerance)), "once")
}

// A change that can't be taken is not followed by the word that it was.
func TestNothingReloaded(t *testing.T) {
	dst := cluster(t, "D")
	r := startReloadable(t, dst, "")
	r.changeTo(strings.Replace(r.head, "admin: {", "instance: {id: other}\nadmin: {", 1), "restart for them")
	r.change("limits: {max_connections: 77}\n", "configuration reloaded")
	require.Equal(t, 1, strings.Count(r.log.String(), "configuration reloaded"))
	require.NoError(t, r.stop())
}
