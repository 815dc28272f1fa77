package main

import (
	"strings"
	"testing"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"
	"github.com/stretchr/testify/require"
)

// On a terminal of whatever width no line is broken by it, and nothing that a
// table says is lost.
func TestTablesFitTheTerminal(t *testing.T) {
	header := table.Row{"mirror", "topic", "partition", "source offset", "destination offset", "state", "notes", "empty"}
	rows := []table.Row{
		{"dc1", "orders", int32(0), "168", "152", "FAILED", "connect to 127.0.0.1:10102: connection refused: nothing listens there", ""},
		{"dc1", "payments-of-the-last-year", int32(11), "-", "1234567890123", "LOG_ALIGNMENT", "", ""},
	}
	for width := 50; width < 200; width++ {
		s := renderTable(width, header, rows, 7)
		require.LessOrEqual(t, text.LongestLineLen(s), width, s)
		words := strings.Fields(strings.Map(func(r rune) rune {
			if strings.ContainsRune("│┌┬┐├┼┤└┴┘─", r) {
				return ' '
			}
			return r
		}, s))
		for _, w := range []string{"MIRROR", "DESTINATION", "OFFSET", "orders", "payments-of-the-last-year", "1234567890123", "168", "FAILED", "LOG_ALIGNMENT", "refused:", "127.0.0.1:10102:"} {
			require.Contains(t, words, w, "width %d:\n%s", width, s)
		}
	}
	require.Contains(t, renderTable(0, header, rows, 7), "│ EMPTY │", "what is not a terminal gets the table as it is")
	require.NotContains(t, renderTable(120, header, rows, 7), "EMPTY")
	require.Contains(t, renderTable(120, header, rows, 7), "│ DESTINATION")
	require.Equal(t, "A  b\n", renderTable(3, table.Row{"a", "n"}, []table.Row{{"b", ""}}))
}
