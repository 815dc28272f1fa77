package epoch

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/lockstep-kafka/lockstep/internal/histories"
)

// M8: whatever the sparseness, no batch before the answer reaches ts, one at
// or behind it does, and the maximum is exact, also after a cut.
func TestTimeIndexAgainstScan(t *testing.T) {
	type batch struct{ p, ts int64 }
	histories.Check(t, func(t *rapid.T) {
		x := NewTimeIndex(rapid.IntRange(2, 6).Draw(t, "limit"))
		var all []batch
		add := func(from int64, n int) {
			p := from
			for range n {
				b := batch{p, rapid.Int64Range(-5, 50).Draw(t, "ts")}
				require.True(t, x.Add(b.p, b.ts))
				all = append(all, b)
				p += rapid.Int64Range(1, 3).Draw(t, "by")
			}
		}
		check := func() {
			maxTs, maxP := int64(-100), int64(-1)
			for _, b := range all {
				if b.ts > maxTs {
					maxTs, maxP = b.ts, b.p
				}
			}
			ts, p, ok := x.Max()
			require.Equal(t, len(all) > 0, ok)
			if ok {
				require.Equal(t, batch{maxP, maxTs}, batch{p, ts})
			}
			for want := int64(-6); want <= 51; want++ {
				from, ok := x.FirstAtOrAbove(want)
				require.Equal(t, want <= maxTs && len(all) > 0, ok)
				found := false
				for _, b := range all {
					if ok && b.p < from {
						require.Less(t, b.ts, want)
					} else if b.ts >= want {
						found = true
					}
				}
				require.Equal(t, ok, found)
			}
		}
		add(0, rapid.IntRange(0, 40).Draw(t, "n"))
		check()
		from := x.DropFrom(rapid.Int64Range(0, 80).Draw(t, "cut"))
		var kept []batch
		for _, b := range all {
			if b.p < from {
				kept = append(kept, b)
			}
		}
		all = kept
		check()
		add(max(from, x.End()+1), rapid.IntRange(0, 20).Draw(t, "more"))
		check()
	})
}

// The index stays sorted in both coordinates and within its bound whatever is
// added, and answers at or below what was asked.
func TestIndexStaysSorted(t *testing.T) {
	histories.Check(t, func(t *rapid.T) {
		limit := rapid.IntRange(2, 10).Draw(t, "limit")
		x := NewIndex(limit)
		for range rapid.IntRange(0, 100).Draw(t, "n") {
			x.Add(rapid.Int64Range(0, 200).Draw(t, "v"), rapid.Int64Range(0, 200).Draw(t, "p"))
			require.LessOrEqual(t, x.Len(), limit)
			for i := 1; i < len(x.s); i++ {
				require.Less(t, x.s[i-1].V, x.s[i].V)
				require.Less(t, x.s[i-1].P, x.s[i].P)
			}
			v := rapid.Int64Range(0, 200).Draw(t, "ask")
			if s, ok := x.Floor(v); ok {
				require.LessOrEqual(t, s.V, v)
			}
			if s, ok := x.FloorP(v); ok {
				require.LessOrEqual(t, s.P, v)
			}
		}
	})
}

func drawChain(t *rapid.T) Chain {
	var c Chain
	for range rapid.IntRange(0, 12).Draw(t, "assigns") {
		c = c.Assign(rapid.Int32Range(0, 12).Draw(t, "e"), rapid.Int64Range(0, 30).Draw(t, "s"))
	}
	return c
}

// F12: the collapsed look-up without allocation is the collapse and the
// look-up; and assigning keeps a chain valid.
func TestEndOffsetFromIsCollapse(t *testing.T) {
	histories.Check(t, func(t *rapid.T) {
		l := &Log{Chain: drawChain(t), MaxEpoch: 12}
		require.NoError(t, l.Validate())
		start := rapid.Int64Range(0, 32).Draw(t, "start")
		end := start + rapid.Int64Range(0, 32).Draw(t, "len")
		for e := int32(-1); e < 14; e++ {
			we, wend := l.Chain.AdvanceStart(start).EndOffsetFor(e, end)
			ge, gend := l.EndOffsetFrom(e, start, end)
			require.Equal(t, Entry{we, wend}, Entry{ge, gend}, "epoch %d of %v from %d", e, l.Chain, start)
		}
	})
}

// facts.md §3: asking and cutting ends after finitely many rounds, at a common
// prefix of both chains.
func TestTruncationEnds(t *testing.T) {
	histories.Check(t, func(t *rapid.T) {
		rising := func(label string) (c Chain) {
			e, s := rapid.Int32Range(0, 3).Draw(t, label), int64(0)
			for range rapid.IntRange(1, 8).Draw(t, label) {
				c = c.Assign(e, s)
				e += rapid.Int32Range(1, 3).Draw(t, label)
				s += rapid.Int64Range(1, 4).Draw(t, label)
			}
			return c
		}
		src, own := rising("src"), rising("own")
		srcEnd := src[len(src)-1].Start + rapid.Int64Range(0, 9).Draw(t, "src")
		at := own[len(own)-1].Start + rapid.Int64Range(0, 9).Draw(t, "own")
		for round := 0; ; round++ {
			require.Less(t, round, 20)
			own = own.Truncate(at)
			last := own.Newest()
			if last < 0 {
				break
			}
			e, end := src.EndOffsetFor(last, srcEnd)
			if end >= 0 && e == last && end >= at {
				break // the fetch goes on here
			}
			to, _ := own.TruncateTo(e, end, at)
			if to < 0 {
				break // our epoch is above all of the source's: the caller asks why
			}
			require.LessOrEqual(t, to, at)
			if to == at && e == last {
				break
			}
			own, at = own.Truncate(to), to
		}
	})
}

func TestLogIsJSON(t *testing.T) {
	l := &Log{
		Spans: []Span{
			{Kind: Native, PEnd: 7, Bump: 4},
			{Kind: Mirrored, Gen: 3, VStart: 5, PStart: 9, PEpoch: 2, PEnd: -1},
		},
		Chain: Chain{{0, 0}, {7, 5}}, Start: 2, Bump: 11, MaxEpoch: 9, LastGen: 3,
	}
	require.NoError(t, l.Validate())
	b, err := json.Marshal(l)
	require.NoError(t, err)
	require.JSONEq(t, `{"spans":[{"kind":"native","gen":0,"vs":0,"ps":0,"pe":0,"bump":4,"pend":7},
		{"kind":"mirrored","gen":3,"vs":5,"ps":9,"pe":2,"pend":-1}],
		"chain":[{"e":0,"s":0},{"e":7,"s":5}],"start":2,"bump":11,"maxEpoch":9,"lastGen":3}`, string(b))
	var back Log
	require.NoError(t, json.Unmarshal(b, &back))
	require.Equal(t, *l, back)
}

func TestWordsForLogs(t *testing.T) {
	for v := Live; v <= Below; v++ {
		require.NotEqual(t, "unknown", v.String())
	}
	require.Equal(t, "unknown", Verdict(99).String())
	require.Equal(t, "dead-epoch", DeadEpoch.String())
	for a := FetchRead; a <= FetchNotAvailable; a++ {
		require.NotEqual(t, "unknown", a.String())
		require.Equal(t, a == FetchOutOfRange || a == FetchDiverging, a.Destructive())
	}
	require.Equal(t, "unknown", FetchAnswer(99).String())
	require.Equal(t, "below", Below.String())
	require.Equal(t, "not-available", FetchNotAvailable.String())
	require.True(t, StateStopped.Writable())
	require.False(t, StateMirroring.Writable())
	require.True(t, StateFailed.Active())
	require.False(t, StateStopped.Active())
}
