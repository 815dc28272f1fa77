// Package report keeps the figures of a run and shows them: as JSON, as tables
// on a terminal, and as a page with charts.
package report

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/lockstep-kafka/lockstep/bench/measure"
)

// Subject is the peer that the others are compared with.
const Subject = "Lockstep"

// Run is one run of the bench: what a result file holds.
type Run struct {
	Mode      string            `json:"mode"`
	Started   time.Time         `json:"started"`
	Seconds   float64           `json:"seconds"`
	Machine   measure.Machine   `json:"machine"`
	LoadStart float64           `json:"load_start"`                 // of the last minute, before anything was started
	InUse     *float64          `json:"in_use_start_pct,omitempty"` // of the CPUs by others, then; nil: not measured
	Scale     float64           `json:"scale"`                      // of amounts of data; 1: as described
	Versions  map[string]string `json:"versions"`
	Settings  map[string]string `json:"settings"`
	LeftOut   []string          `json:"left_out,omitempty"` // what was not measured, and why
	Scenarios []*Scenario       `json:"scenarios"`
}

// Scenario is one question and the figures that answer it.
type Scenario struct {
	Name    string   `json:"name"`
	Title   string   `json:"title"`
	About   string   `json:"about"`
	Metrics []string `json:"metrics"`          // columns
	Ratios  []string `json:"ratios,omitempty"` // metrics whose ratio inside a round counts
	Limits  []string `json:"limits,omitempty"` // peers that show what is possible at all, and are no rivals
	Axis    string   `json:"axis,omitempty"`   // what X is, for scenarios that show growth
	Chart   string   `json:"chart,omitempty"`  // metric to draw; empty: none
	Samples []Sample `json:"samples"`
	LeftOut []string `json:"left_out,omitempty"`
}

// Sample is what one peer showed in one round.
type Sample struct {
	Round  int                `json:"round"`
	Peer   string             `json:"peer"`
	Case   string             `json:"case,omitempty"`
	X      float64            `json:"x,omitempty"`
	Load   float64            `json:"load"`                 // average of the minute before it began
	Stolen float64            `json:"stolen_pct,omitempty"` // of the CPUs by other virtual machines, meanwhile
	Values map[string]float64 `json:"values"`
}

// Metric says how a value is shown.
type Metric struct {
	Title   string
	Digits  int
	Smaller bool // is better
}

// Metrics are all values that scenarios measure.
func Metrics() map[string]Metric {
	return map[string]Metric{
		"mb_s":               {"MB/s", 0, false},
		"cpu_s_gb":           {"CPU s per GB", 2, true},
		"source_cpu_s_gb":    {"source broker, CPU s per GB", 2, true},
		"dest_cpu_s_gb":      {"destination broker, CPU s per GB", 2, true},
		"rss_mb":             {"peak RSS, MB", 0, true},
		"startup_s":          {"until the first record, s", 1, true},
		"startup_cpu_s":      {"CPU time until then, s", 1, true},
		"p50_ms":             {"p50, ms", 2, true},
		"p99_ms":             {"p99, ms", 2, true},
		"p999_ms":            {"p99.9, ms", 2, true},
		"max_ms":             {"max, ms", 1, true},
		"due_p50_ms":         {"due to arrival, p50, ms", 2, true},
		"due_p99_ms":         {"due to arrival, p99, ms", 2, true},
		"cpu_pct":            {"CPU, % of one core", 0, true},
		"produce_mb_s":       {"produce, MB/s", 0, false},
		"produce_cpu_s_gb":   {"produce, CPU s per GB", 2, true},
		"consume_mb_s":       {"consume, MB/s", 0, false},
		"consume_cpu_s_gb":   {"consume, CPU s per GB", 2, true},
		"ack_p50_ms":         {"due to ack, p50, ms", 2, true},
		"ack_p99_ms":         {"due to ack, p99, ms", 2, true},
		"added_p50_ms":       {"added, p50, ms", 2, true},
		"added_p99_ms":       {"added, p99, ms", 2, true},
		"through_p50_ms":     {"due to consumed, p50, ms", 2, true},
		"through_p99_ms":     {"due to consumed, p99, ms", 2, true},
		"idle_rss_mb":        {"RSS with idle connections, MB", 0, true},
		"idle_kb_connection": {"KB for each of them", 1, true},
		"seconds":            {"time, s", 2, true},
		"cpu_s":              {"CPU time, s", 2, true},
		"stop_s":             {"stop, s", 2, true},
		"start_s":            {"start, s", 2, true},
	}
}

// Load reads a result file.
func Load(path string) (*Run, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("result: %w", err)
	}
	var r Run
	if err := json.Unmarshal(b, &r); err != nil {
		return nil, fmt.Errorf("result %s: %w", path, err)
	}
	return &r, nil
}

// Save writes a result file.
func (r *Run) Save(path string) error {
	b, err := json.MarshalIndent(r, "", " ")
	if err != nil {
		return fmt.Errorf("result: %w", err)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("result: %w", err)
	}
	if err := os.WriteFile(path, append(b, '\n'), 0o644); err != nil {
		return fmt.Errorf("result: %w", err)
	}
	return nil
}

// row names a line of a scenario's table.
type row struct{ peer, kase string }

// rows are the lines in the order in which they first came, the subject first
// in each case.
func (s *Scenario) rows() (out []row) {
	var cases []string
	for _, x := range s.Samples {
		if !slices.Contains(cases, x.Case) {
			cases = append(cases, x.Case)
		}
	}
	for _, c := range cases {
		var peers []string
		for _, x := range s.Samples {
			if x.Case == c && !slices.Contains(peers, x.Peer) {
				peers = append(peers, x.Peer)
			}
		}
		slices.SortStableFunc(peers, func(a, b string) int {
			switch {
			case a == Subject && b != Subject:
				return -1
			case b == Subject && a != Subject:
				return 1
			}
			return 0
		})
		for _, p := range peers {
			out = append(out, row{p, c})
		}
	}
	return out
}

// values are a metric's in all rounds; nil where it was not measured.
func (s *Scenario) values(r row, metric string) (v []float64) {
	for _, x := range s.Samples {
		if x.Peer == r.peer && x.Case == r.kase {
			if n, ok := x.Values[metric]; ok {
				v = append(v, n)
			}
		}
	}
	return v
}
