package epoch

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func benchLog(spans int) (*Log, []Batch) {
	l := &Log{}
	for i := range spans {
		l.Spans = append(l.Spans, Span{Kind: Mirrored, Gen: int16(i), VStart: int64(i) * 1000, PStart: int64(i) * 1100, PEnd: -1})
	}
	bs := make([]Batch, 100)
	for i := range bs {
		o := int64(i) * 10
		bs[i] = Batch{P: l.Open().PStart + o, Count: 10, VCount: 10, Stamped: true, V: l.Open().VStart + o, Gen: l.Open().Gen}
	}
	return l, bs
}

func BenchmarkClassify(b *testing.B) {
	l, bs := benchLog(100)
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		if _, v := l.Classify(bs[i%len(bs)]); v != Live {
			b.Fatal(v)
		}
		i++
	}
}

func BenchmarkWalkerNext(b *testing.B) {
	l, bs := benchLog(100)
	w := l.Walk(l.Open().VStart, true)
	fresh := *w
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		if i%len(bs) == 0 {
			*w = fresh
		}
		if _, v := w.Next(bs[i%len(bs)]); v != Live {
			b.Fatal(v)
		}
		i++
	}
}

func BenchmarkCheckFetch(b *testing.B) {
	l, _ := benchLog(100)
	for i := range 100 {
		l.Chain = append(l.Chain, Entry{int32(i), int64(i) * 1000})
	}
	c := FetchCheck{Offset: 95_000, CurrentLeaderEpoch: 99, LastFetchedEpoch: 94, LeaderEpoch: 99, Start: 5000, VirtualEnd: 100_000, Position: 100_000, EverShown: 100_000}
	b.ReportAllocs()
	for b.Loop() {
		if a, _ := l.CheckFetch(c); a != FetchRead {
			b.Fatal(a)
		}
	}
}

// The hot path of every batch served and every fetch must not allocate.
func TestHotPathDoesNotAllocate(t *testing.T) {
	l, bs := benchLog(100)
	l.Chain = Chain{{0, 0}, {3, 500}}
	w := l.Walk(0, true)
	require.Zero(t, testing.AllocsPerRun(100, func() {
		for i := range bs {
			w.Next(bs[i])
			l.Classify(bs[i])
		}
		l.CheckFetch(FetchCheck{Offset: 600, LastFetchedEpoch: 0, Start: 10, VirtualEnd: 1000, Position: 1000})
		l.EndOffsetFor(0, 1000)
		l.SeekV(nil, 600)
	}))
}
