package main

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"
	"golang.org/x/term"
)

const (
	wideMost  = 60 // a column that is wrapped
	wideLeast = 24 // the same on a narrow terminal; below, rows are printed as blocks
)

// printTable prints rows; a column whose number (from 1) is in wide is wrapped.
// On a terminal it is made to fit: first with wrapped headings and without empty
// columns, and where that is not enough as a block of lines for each row.
func printTable(w io.Writer, header table.Row, rows []table.Row, wide ...int) error {
	_, err := fmt.Fprintln(w, renderTable(terminalWidth(w), header, rows, wide...))
	return err
}

// terminalWidth is 0 for what is not a terminal.
func terminalWidth(w io.Writer) int {
	if f, ok := w.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		if n, _, err := term.GetSize(int(f.Fd())); err == nil {
			return n
		}
	}
	return 0
}

func renderTable(width int, header table.Row, rows []table.Row, wide ...int) string {
	widths := make([]int, len(header))
	for _, i := range wide {
		widths[i-1] = wideMost
	}
	s := drawTable(header, rows, widths)
	if width == 0 || text.LongestLineLen(s) <= width {
		return s
	}
	var keep, wideHere []int
	for i := range header {
		if slices.ContainsFunc(rows, func(r table.Row) bool { return fmt.Sprint(r[i]) != "" }) {
			keep = append(keep, i)
			if slices.Contains(wide, i+1) {
				wideHere = append(wideHere, len(keep)-1)
			}
		}
	}
	header, rows = columns(header, keep), columnsOf(rows, keep)
	left := width - 3*len(keep) - 1
	widths = make([]int, len(keep))
	for i := range keep {
		for _, word := range strings.Fields(fmt.Sprint(header[i])) {
			widths[i] = max(widths[i], text.StringWidth(word))
		}
		if slices.Contains(wideHere, i) {
			continue
		}
		for _, r := range rows {
			widths[i] = max(widths[i], text.StringWidth(fmt.Sprint(r[i])))
		}
		left -= widths[i]
	}
	for n, i := range wideHere {
		each := left / (len(wideHere) - n)
		longest := 0
		for _, r := range rows {
			longest = max(longest, text.StringWidth(fmt.Sprint(r[i])))
		}
		widths[i] = max(widths[i], min(longest, each))
		left -= widths[i]
		if widths[i] < min(longest, wideLeast) {
			left = -1
		}
	}
	if left < 0 {
		return drawBlocks(width, header, rows)
	}
	return drawTable(header, rows, widths)
}

func columns(r table.Row, keep []int) table.Row {
	out := make(table.Row, 0, len(keep))
	for _, i := range keep {
		out = append(out, r[i])
	}
	return out
}

func columnsOf(rows []table.Row, keep []int) []table.Row {
	out := make([]table.Row, 0, len(rows))
	for _, r := range rows {
		out = append(out, columns(r, keep))
	}
	return out
}

// drawTable draws a table; a column is at most as wide as widths says, 0 for
// no bound.
func drawTable(header table.Row, rows []table.Row, widths []int) string {
	t := table.NewWriter()
	t.SetStyle(table.StyleLight)
	t.AppendHeader(header)
	var cols []table.ColumnConfig
	for i, n := range widths {
		if n > 0 {
			cols = append(cols, table.ColumnConfig{Number: i + 1, WidthMax: n, WidthMaxEnforcer: text.WrapSoft})
		}
	}
	t.SetColumnConfigs(cols)
	t.AppendRows(rows)
	return t.Render()
}

// drawBlocks draws each row as lines of a heading and a value.
func drawBlocks(width int, header table.Row, rows []table.Row) string {
	key := 0
	for _, h := range header {
		key = max(key, text.StringWidth(fmt.Sprint(h)))
	}
	var blocks []string
	for _, r := range rows {
		var b strings.Builder
		for i, v := range r {
			s := fmt.Sprint(v)
			if s == "" {
				continue
			}
			lines := strings.Split(text.WrapSoft(s, max(width-key-2, wideLeast)), "\n")
			for n, l := range lines {
				h := ""
				if n == 0 {
					h = strings.ToUpper(fmt.Sprint(header[i]))
				}
				fmt.Fprintf(&b, "%s\n", strings.TrimRight(text.Pad(h, key+2, ' ')+l, " "))
			}
		}
		blocks = append(blocks, b.String())
	}
	return strings.Join(blocks, "\n")
}
