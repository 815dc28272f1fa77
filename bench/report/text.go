package report

import (
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/jedib0t/go-pretty/v6/table"
)

// Text writes a scenario's tables for a terminal.
func (s *Scenario) Text(w io.Writer) {
	fmt.Fprintf(w, "\n== %s ==\n", s.Title)
	if len(s.Samples) > 0 {
		fmt.Fprintln(w, s.table(false).Render())
	} else {
		fmt.Fprintln(w, "nothing was measured")
	}
	if t := s.ratioTable(); t != nil {
		fmt.Fprintf(w, "Lockstep : peer, inside each round\n%s\n", t.Render())
	}
	for _, g := range s.Superlinear() {
		fmt.Fprintln(w, s.growthLine(g))
	}
	if l := s.shortLine(); l != "" {
		fmt.Fprintln(w, l)
	}
	for _, l := range s.LeftOut {
		fmt.Fprintln(w, "left out:", l)
	}
}

func (s *Scenario) growthLine(g Growth) string {
	return fmt.Sprintf("Faster than linear: %s from %s to %s at %s %s to %s (exponent %.1f).",
		Metrics()[g.Metric].Title, number(g.From.Y, 2), number(g.To.Y, 2), s.Axis, strconv.FormatFloat(g.From.X, 'g', -1, 64), strconv.FormatFloat(g.To.X, 'g', -1, 64), g.Exponent)
}

// table has a line for each peer and case: min, median and max over rounds.
func (s *Scenario) table(markdown bool) table.Writer {
	t := newTable(markdown)
	cases, stolen := false, false // a column for what stands in it only
	for _, x := range s.Samples {
		cases, stolen = cases || x.Case != "", stolen || x.Stolen >= 1
	}
	head := table.Row{}
	if cases {
		head = append(head, "case")
	}
	head = append(head, "peer", "rounds")
	var shown []string
	for _, m := range s.Metrics {
		if s.measured(m) {
			shown = append(shown, m)
			head = append(head, Metrics()[m].Title)
		}
	}
	t.AppendHeader(head)
	for _, r := range s.rows() {
		line := table.Row{}
		if cases {
			line = append(line, r.kase)
		}
		rounds := 0
		var v, taken []float64
		for _, x := range s.Samples {
			if x.Peer == r.peer && x.Case == r.kase {
				rounds++
				v, taken = append(v, x.Load), append(taken, x.Stolen)
			}
		}
		line = append(line, r.peer, rounds)
		for _, m := range shown {
			line = append(line, spreadText(SpreadOf(s.values(r, m)), Metrics()[m].Digits))
		}
		line = append(line, spreadText(SpreadOf(v), 1))
		if stolen {
			line = append(line, spreadText(SpreadOf(taken), 0))
		}
		t.AppendRow(line)
	}
	t.ResetHeaders()
	head = append(head, "load before")
	if stolen {
		head = append(head, "CPUs stolen, %")
	}
	t.AppendHeader(head)
	return t
}

func (s *Scenario) measured(metric string) bool {
	for _, x := range s.Samples {
		if _, ok := x.Values[metric]; ok {
			return true
		}
	}
	return false
}

// ratioTable is nil when there is nothing to compare.
func (s *Scenario) ratioTable() table.Writer {
	ratios := s.RatiosOf()
	if len(ratios) == 0 {
		return nil
	}
	t := newTable(false)
	t.AppendHeader(table.Row{"", "Lockstep against", "rounds", "min", "median", "max", "better is", ""})
	for _, r := range ratios {
		m := Metrics()[r.Metric]
		what, better, loses := m.Title, "above 1", ""
		if r.Case != "" {
			what = r.Case + ": " + what
		}
		if m.Smaller {
			better = "below 1"
		}
		switch {
		case r.Limit:
			loses = "a limit"
		case r.Loses():
			loses = "loses"
		case r.MostlyLoses():
			loses = "loses in the median"
		}
		t.AppendRow(table.Row{what, r.Peer, r.N, number(r.Min, 2), number(r.Median, 2), number(r.Max, 2), better, loses})
	}
	return t
}

func newTable(markdown bool) table.Writer {
	t := table.NewWriter()
	if !markdown {
		t.SetStyle(table.StyleLight)
		t.Style().Format.Header = 0
	}
	return t
}

func spreadText(s Spread, digits int) string {
	switch s.N {
	case 0:
		return "–"
	case 1:
		return number(s.Median, digits)
	}
	return number(s.Min, digits) + " / " + number(s.Median, digits) + " / " + number(s.Max, digits)
}

// number keeps at least two significant digits of small values, groups the
// thousands of large ones.
func number(v float64, digits int) string {
	if v != 0 && v > -10 && v < 10 && digits == 0 {
		digits = 1
	}
	s := strconv.FormatFloat(v, 'f', digits, 64)
	whole, frac, _ := strings.Cut(s, ".")
	sign := ""
	if strings.HasPrefix(whole, "-") {
		sign, whole = "-", whole[1:]
	}
	for i := len(whole) - 3; i > 0; i -= 3 {
		whole = whole[:i] + "," + whole[i:]
	}
	if frac != "" {
		frac = "." + frac
	}
	return sign + whole + frac
}
