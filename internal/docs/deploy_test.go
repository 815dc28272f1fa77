package docs_test

import (
	"encoding/json"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
	"github.com/stretchr/testify/require"
)

var (
	metricRE   = regexp.MustCompile(`\b((?:lockstep|process)_[a-z0-9_]+)(?:\{([^}]*)\})?`)
	selectorRE = regexp.MustCompile(`(\w+)(?:=~|!~|!=|=)"([^"]*)"`)
	groupingRE = regexp.MustCompile(`\b(?:by|on) \(([^)]*)\)`)
	seriesRE   = regexp.MustCompile(`\b(?:lockstep_\w+|up\b)(\{job="lockstep")?`)
	templateRE = regexp.MustCompile(`\{\{\s*(?:\$labels\.)?(\w+)\s*\}\}`)
)

// query is what a test can say of a PromQL expression without a parser.
type query struct {
	metrics []string
	labels  []string // what its result can carry
}

// look checks the metrics and labels of an expression against docs/metrics.md,
// which another test checks against what is registered.
func look(t *testing.T, list map[string][]string, expr string) (q query) {
	t.Helper()
	all := []string{"job", "instance"}
	for _, m := range metricRE.FindAllStringSubmatch(expr, -1) {
		labels := []string{"job", "instance"}
		if !strings.HasPrefix(m[1], "process_") { // a process's own: client_golang's
			name := m[1]
			row, ok := list[name]
			if base, bucket := strings.CutSuffix(name, "_bucket"); !ok && bucket {
				row, ok = list[base]
				require.Equal(t, "histogram", row[0], expr)
				labels = append(labels, "le")
			}
			require.True(t, ok, "no metric %s: %s", name, expr)
			if row[1] != "" {
				labels = append(labels, strings.Split(row[1], ", ")...)
			}
			if strings.Contains(expr, "rate("+name) || strings.Contains(expr, "increase("+name) {
				require.NotEqual(t, "gauge", row[0], expr)
			}
			for _, s := range selectorRE.FindAllStringSubmatch(m[2], -1) {
				require.Contains(t, labels, s[1], expr)
				if !slices.Contains([]string{"job", "instance", "mirror"}, s[1]) { // words of ours
					words := row[2] + " " + strings.Join(keys(rows(t, "docs/operations.md", "Why a client was disconnected")), " ")
					require.Regexp(t, `\b`+s[2]+`\b`, words, expr)
				}
			}
		}
		q.metrics, all = append(q.metrics, m[1]), append(all, labels...)
	}
	q.labels = all
	for _, g := range groupingRE.FindAllStringSubmatch(expr, -1) {
		by := strings.Split(g[1], ", ")
		for _, l := range by {
			require.Contains(t, all, l, expr)
		}
		q.labels = slices.DeleteFunc(slices.Clone(q.labels), func(l string) bool { return !slices.Contains(by, l) })
	}
	return q
}

// carries checks the labels that a text around a query names.
func (q query) carries(t *testing.T, text string) {
	t.Helper()
	for _, m := range templateRE.FindAllStringSubmatch(text, -1) {
		require.Contains(t, q.labels, m[1], text)
	}
}

// The alerts are of metrics and labels that there are, are listed in the
// operations page with their severity, and lead to a section that exists.
func TestDeployAlerts(t *testing.T) {
	var file struct {
		Groups []struct {
			Name  string
			Rules []struct {
				Alert, Expr, For    string
				Labels, Annotations map[string]string
			}
		}
	}
	require.NoError(t, yaml.UnmarshalWithOptions([]byte(page(t, "deploy/alerts.yml")), &file, yaml.Strict()))
	require.Len(t, file.Groups, 1)
	const operations = "docs/operations.md"
	list, told := rows(t, "docs/metrics.md", ""), rows(t, operations, "What to watch")
	prose, _ := split(t, operations, page(t, operations))
	have := map[string]bool{}
	for _, r := range file.Groups[0].Rules {
		have[r.Alert] = true
		q := look(t, list, r.Expr)
		for _, m := range seriesRE.FindAllStringSubmatch(r.Expr, -1) {
			require.Equal(t, `{job="lockstep"`, m[1], r.Expr)
		}
		for _, text := range []string{r.Annotations["summary"], r.Annotations["description"]} {
			require.NotEmpty(t, text, r.Alert)
			q.carries(t, text)
		}
		row := told[r.Alert]
		require.Len(t, row, 3, "%s is not in the table", r.Alert)
		require.Equal(t, row[0], r.Labels["severity"], r.Alert)
		url, ok := strings.CutPrefix(r.Annotations["runbook_url"], "https://github.com/lockstep-kafka/lockstep/blob/main/"+operations)
		require.True(t, ok, r.Alert)
		require.Contains(t, row[2], "("+url+")", r.Alert)
		require.True(t, anchors(prose)[strings.TrimPrefix(url, "#")], "%s: no section %s", r.Alert, url)
	}
	require.Len(t, have, len(told), "a row without an alert")
}

// So are the dashboard's queries; no panel lies on another.
func TestDeployDashboard(t *testing.T) {
	var d struct {
		Templating struct {
			List []struct{ Name, Definition string }
		}
		Panels []struct {
			ID      int
			Title   string
			GridPos struct{ X, Y, W, H int }
			Targets []struct{ Expr, LegendFormat string }
		}
	}
	require.NoError(t, json.Unmarshal([]byte(page(t, "deploy/grafana.json")), &d))
	list := rows(t, "docs/metrics.md", "")
	taken, ids := map[[2]int]string{}, map[int]bool{}
	for _, p := range d.Panels {
		require.False(t, ids[p.ID], p.Title)
		ids[p.ID] = true
		g := p.GridPos
		require.LessOrEqual(t, g.X+g.W, 24, p.Title)
		for x := g.X; x < g.X+g.W; x++ {
			for y := g.Y; y < g.Y+g.H; y++ {
				require.Empty(t, taken[[2]int{x, y}], p.Title)
				taken[[2]int{x, y}] = p.Title
			}
		}
		for _, q := range p.Targets {
			found := look(t, list, q.Expr)
			found.carries(t, q.LegendFormat)
			require.NotEmpty(t, len(found.metrics)+strings.Count(q.Expr, "up{"), q.Expr)
		}
	}
	for _, v := range d.Templating.List {
		if v.Definition == "" {
			continue
		}
		in, ok := strings.CutPrefix(v.Definition, "label_values(")
		require.True(t, ok)
		at := strings.LastIndex(in, ", ")
		require.Contains(t, look(t, list, in[:at]).labels, strings.TrimSuffix(in[at+2:], ")"))
	}
}
