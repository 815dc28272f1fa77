package epoch

// The notation of testdata/*.txt.

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	"github.com/stretchr/testify/require"
)

func lines(s string) []string {
	var out []string
	for _, l := range strings.Split(s, "\n") {
		if l = strings.TrimSpace(l); l != "" {
			out = append(out, l)
		}
	}
	return out
}

func num(d *datadriven.TestData, key string, def int64) int64 {
	for _, a := range d.CmdArgs {
		if a.Key == key && len(a.Vals) == 1 {
			if n, err := strconv.ParseInt(a.Vals[0], 10, 64); err == nil {
				return n
			}
			panic(d.Pos + ": " + key + " is no number")
		}
	}
	return def
}

func parseLog(t *testing.T, in string) *Log {
	l := &Log{}
	for _, line := range lines(in) {
		f := strings.Fields(line)
		switch f[0] {
		case "mirrored", "native":
			s := Span{Kind: Kind(f[0]), PEnd: -1}
			for _, a := range f[1:] {
				k, v, _ := strings.Cut(a, "=")
				n, err := strconv.ParseInt(v, 10, 64)
				require.NoError(t, err, line)
				switch k {
				case "gen":
					s.Gen = int16(n)
				case "vs":
					s.VStart = n
				case "ps":
					s.PStart = n
				case "pe":
					s.PEpoch = int32(n)
				case "bump":
					s.Bump = int32(n)
				case "pend":
					s.PEnd = n
				default:
					t.Fatalf("%s: %s?", line, k)
				}
			}
			l.Spans = append(l.Spans, s)
		case "chain":
			l.Chain = parseChain(t, strings.Join(f[1:], " "))
			l.MaxEpoch = max(l.MaxEpoch, l.Chain.Newest())
		default:
			n, err := strconv.ParseInt(f[1], 10, 64)
			require.NoError(t, err, line)
			switch f[0] {
			case "start":
				l.Start = n
			case "bump":
				l.Bump = int32(n)
			case "maxepoch":
				l.MaxEpoch = int32(n)
			case "lastgen":
				l.LastGen = int16(n)
			default:
				t.Fatalf("%s?", line)
			}
		}
	}
	return l
}

func parseChain(t *testing.T, s string) Chain {
	var c Chain
	for _, f := range strings.Fields(s) {
		var e Entry
		_, err := fmt.Sscanf(f, "%d@%d", &e.Epoch, &e.Start)
		require.NoError(t, err, f)
		c = append(c, e)
	}
	return c
}

var batchFlags = map[string]uint8{"renumbered": FlagRenumbered, "open": FlagOpen, "hidden": FlagHidden, "logappend": FlagLogAppend, "transaction": FlagTransaction}

func parseBatch(t *testing.T, line string) Batch {
	f := strings.Fields(line)
	var b Batch
	_, err := fmt.Sscanf(f[0], "%d+%d", &b.P, &b.Count)
	require.NoError(t, err, line)
	for _, a := range f[1:] {
		if fl, ok := batchFlags[a]; ok {
			b.Flags |= fl
			continue
		}
		if a == "control" {
			b.Control = true
			continue
		}
		m := regexp.MustCompile(`^([a-z]+)(\d+)$`).FindStringSubmatch(a)
		require.NotNil(t, m, "%s: %s?", line, a)
		n, _ := strconv.ParseInt(m[2], 10, 64)
		switch m[1] {
		case "v":
			b.Stamped, b.V = true, n
		case "g":
			b.Gen = int16(n)
		case "e":
			b.Epoch = int32(n)
		case "pe":
			b.PEpoch = int32(n)
		case "hole":
			b.Hole = uint8(n)
		case "vcount":
			b.VCount = n
		default:
			t.Fatalf("%s: %s?", line, a)
		}
	}
	if b.Stamped && b.Flags&FlagRenumbered == 0 {
		b.VCount = b.Count
	}
	return b
}

func dumpChain(c Chain) string {
	if len(c) == 0 {
		return "empty chain"
	}
	f := make([]string, len(c))
	for i, e := range c {
		f[i] = fmt.Sprintf("%d@%d", e.Epoch, e.Start)
	}
	return strings.Join(f, " ")
}

func dumpLog(l *Log) string {
	var b strings.Builder
	for _, s := range l.Spans {
		if s.Kind == Mirrored {
			fmt.Fprintf(&b, "mirrored gen=%d vs=%d ps=%d pe=%d", s.Gen, s.VStart, s.PStart, s.PEpoch)
		} else {
			fmt.Fprintf(&b, "native vs=%d ps=%d pe=%d bump=%d", s.VStart, s.PStart, s.PEpoch, s.Bump)
		}
		if s.PEnd >= 0 {
			fmt.Fprintf(&b, " pend=%d", s.PEnd)
		}
		b.WriteByte('\n')
	}
	fmt.Fprintf(&b, "chain %s, start %d, bump %d, maxepoch %d", dumpChain(l.Chain), l.Start, l.Bump, l.MaxEpoch)
	return b.String()
}
