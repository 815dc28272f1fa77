package docs_test

import (
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/lockstep-kafka/lockstep/internal/config"
	"github.com/lockstep-kafka/lockstep/internal/kconn"
	"github.com/lockstep-kafka/lockstep/internal/ledger"
	"github.com/lockstep-kafka/lockstep/mirror"
	"github.com/lockstep-kafka/lockstep/proxy"
)

// rows are the table rows of a page's section (all of it for ""), by the words
// in the first column's backticks; the other columns as they are.
func rows(t *testing.T, name, section string) map[string][]string {
	t.Helper()
	text := page(t, name)
	if section != "" {
		_, part, ok := strings.Cut(text, "\n## "+section+"\n")
		require.True(t, ok, "%s has no section %q", name, section)
		text, _, _ = strings.Cut(part, "\n## ")
	}
	out := map[string][]string{}
	for line := range strings.Lines(text) {
		if !strings.HasPrefix(line, "| `") {
			continue
		}
		cols := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		for i := range cols {
			cols[i] = strings.TrimSpace(cols[i])
		}
		for _, m := range fileRE.FindAllStringSubmatch(cols[0], -1) {
			require.NotContains(t, out, m[1], "%s: two rows for %s", name, m[1])
			out[m[1]] = cols[1:]
		}
	}
	require.NotEmpty(t, out)
	return out
}

// words are all that a pattern's first group matches in the Go files (no tests)
// of a folder.
func words(t *testing.T, folder, pattern string) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(root, folder, "*.go"))
	require.NoError(t, err)
	set := map[string]bool{}
	for _, f := range files {
		if strings.HasSuffix(f, "_test.go") {
			continue
		}
		b, err := os.ReadFile(f)
		require.NoError(t, err)
		for _, m := range regexp.MustCompile(pattern).FindAllStringSubmatch(string(b), -1) {
			set[m[1]] = true
		}
	}
	require.NotEmpty(t, set)
	return slices.Sorted(maps.Keys(set))
}

func keys(m map[string][]string) []string { return slices.Sorted(maps.Keys(m)) }

// Each reason for which a partition, a topic or a connection ends has its line
// in the runbooks.
func TestReasons(t *testing.T) {
	require.Equal(t, words(t, "mirror", `(?m)^\treason\w+\s*= "(\w+)"`), keys(rows(t, "docs/operations.md", "A partition is FAILED")))

	topics := append(words(t, "mirror", `topicFailed\("(\w+)"`), "bare_mirror", "sync")
	slices.Sort(topics)
	require.Equal(t, topics, keys(rows(t, "docs/operations.md", "A topic can't be mirrored")))

	var closed []string
	for r := proxy.CloseReason(0); r == 0 || r.String() != "internal" || closed[len(closed)-1] != "internal"; r++ {
		closed = append(closed, r.String())
	}
	slices.Sort(closed)
	require.Equal(t, closed, keys(rows(t, "docs/operations.md", "Why a client was disconnected")))
}

// The words that labels can take stand in docs/metrics.md.
func TestLabelWords(t *testing.T) {
	list := rows(t, "docs/metrics.md", "Mirror")
	for _, w := range words(t, "mirror", `(?:why: |doubt\()"([\w-]+)"`) {
		require.Contains(t, list["lockstep_mirror_generations_total"][2], w)
	}
	for _, w := range words(t, "internal/kconn", `\{Err\w+, "(\w+)"\}`) {
		require.Contains(t, list["lockstep_mirror_connect_errors_total"][2], w)
	}
}

// What deploy/ starts is what there is, and where Prometheus looks is where it
// is by default.
func TestDeploy(t *testing.T) {
	const verb = "serve --config /etc/lockstep/lockstep.yaml"
	unit := page(t, "deploy/lockstep.service")
	require.Contains(t, unit, "ExecStart=/usr/local/bin/lockstep "+verb+"\n")
	require.Contains(t, page(t, "deploy/Dockerfile"), `CMD ["`+strings.ReplaceAll(verb, " ", `", "`)+`"]`)
	stop := regexp.MustCompile(`(?m)^TimeoutStopSec=(\d+)$`).FindStringSubmatch(unit)
	require.NotNil(t, stop)
	seconds, err := strconv.Atoi(stop[1])
	require.NoError(t, err)
	def := config.Default()
	require.Greater(t, float64(seconds), def.Limits.DrainTimeout.Std().Seconds())
	var prom struct {
		ScrapeConfigs []struct {
			StaticConfigs []struct {
				Targets []string `yaml:"targets"`
			} `yaml:"static_configs"`
		} `yaml:"scrape_configs"`
	}
	require.NoError(t, yaml.Unmarshal([]byte(page(t, "deploy/prometheus.yml")), &prom))
	require.Equal(t, []string{def.Admin.Address}, prom.ScrapeConfigs[0].StaticConfigs[0].Targets)
}

// catcher is a Registerer that keeps what is registered.
type catcher struct{ collectors []prometheus.Collector }

func (c *catcher) Register(x prometheus.Collector) error {
	c.collectors = append(c.collectors, x)
	return nil
}

func (c *catcher) MustRegister(xs ...prometheus.Collector) {
	c.collectors = append(c.collectors, xs...)
}
func (c *catcher) Unregister(prometheus.Collector) bool { return false }

var descRE = regexp.MustCompile(`fqName: "([^"]+)".*variableLabels: \{([^}]*)\}`)

// docs/metrics.md lists what the real components register: names, types and
// labels.
func TestMetricsList(t *testing.T) {
	reg := &catcher{}
	log := slog.New(slog.DiscardHandler)
	opts := []kgo.Opt{kgo.SeedBrokers("127.0.0.1:1")}
	dialer := (&kconn.Dialer{}).Init()
	view := ledger.NewView(ledger.ViewOptions{Client: opts, Logger: log})
	writer, err := ledger.NewWriter(ledger.WriterOptions{Client: opts, View: view, Logger: log})
	require.NoError(t, err)
	defer writer.Close()
	m, err := mirror.New(mirror.Options{
		Destination: mirror.Access{Client: opts, Dialer: dialer}, View: view, Writer: writer,
		MemoryLimit: 1 << 20, Logger: log, Registerer: reg,
	})
	require.NoError(t, err)
	defer m.Close()
	p, err := proxy.New(proxy.Options{
		Listeners: []proxy.Listener{{Address: "127.0.0.1:0"}}, Bootstrap: []string{"127.0.0.1:1"}, View: view, Logger: log, Registerer: reg,
	})
	require.NoError(t, err)
	defer p.Close()

	type metric struct{ kind, labels string }
	have := map[string]metric{}
	for _, c := range reg.collectors {
		kind := ""
		switch c.(type) {
		case *prometheus.GaugeVec, prometheus.Gauge:
			kind = "gauge"
		case *prometheus.HistogramVec:
			kind = "histogram"
		case *prometheus.CounterVec, prometheus.Counter: // a Gauge is one too
			kind = "counter"
		case prometheus.GaugeFunc: // and a Counter is that
			kind = "gauge"
		}
		ch := make(chan *prometheus.Desc, 100)
		c.Describe(ch)
		close(ch)
		for d := range ch {
			f := descRE.FindStringSubmatch(d.String())
			require.NotNil(t, f, d.String())
			k := kind
			if k == "" { // a collector of our own: by the convention for names
				k = map[bool]string{true: "counter", false: "gauge"}[strings.HasSuffix(f[1], "_total")]
			}
			have[f[1]] = metric{k, strings.ReplaceAll(f[2], ",", ", ")}
		}
	}
	said := map[string]metric{}
	for name, cols := range rows(t, "docs/metrics.md", "") {
		require.Len(t, cols, 3, name)
		said[name] = metric{cols[0], cols[1]}
	}
	require.Equal(t, have, said)
}
