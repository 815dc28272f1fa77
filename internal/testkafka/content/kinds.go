package content

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"strings"

	"github.com/lockstep-kafka/lockstep/internal/testkafka/oracle"
)

func seeds(bootstrap string) []string { return strings.Split(bootstrap, ",") }

const baseTime = int64(1_700_000_000_000)

// fillValues: null, empty and odd keys, values and headers.
func fillValues(ctx context.Context, f *Filler) error {
	h := func(kv ...oracle.Header) []oracle.Header { return kv }
	return f.each(
		ctx, oracle.None,
		[]record{
			{ts: baseTime, key: []byte("k"), value: []byte("v")},
			{ts: baseTime + 1, key: nil, value: []byte("null key")},
			{ts: baseTime + 2, key: []byte("null value"), value: nil},
			{ts: baseTime + 3, key: nil, value: nil},
			{ts: baseTime + 4, key: []byte{}, value: []byte{}},
			{ts: baseTime + 5, key: []byte{0, 0xff, 0x80, '\n'}, value: []byte{0xfe, 0}},
		},
		[]record{
			{ts: baseTime + 6, key: []byte("h1"), value: []byte("v"), headers: h(oracle.Header{Key: "a", Value: []byte("1")})},
			{ts: baseTime + 7, key: []byte("dup"), value: []byte("v"), headers: h(
				oracle.Header{Key: "a", Value: []byte("1")}, oracle.Header{Key: "b", Value: []byte("x")}, oracle.Header{Key: "a", Value: []byte("2")},
			)},
			{ts: baseTime + 8, key: nil, value: nil, headers: h(
				oracle.Header{Key: "null", Value: nil}, oracle.Header{Key: "empty", Value: []byte{}}, oracle.Header{Key: "", Value: []byte("empty key")},
				oracle.Header{Key: "ключ", Value: []byte{0, 1, 0xff}},
			)},
		},
		[]record{{ts: baseTime + 9, key: []byte("many"), value: []byte("v"), headers: manyHeaders(300)}},
		[]record{{ts: baseTime + 10, key: bytes.Repeat([]byte("key"), 3000), value: []byte("long key")}},
	)
}

func manyHeaders(n int) []oracle.Header {
	var out []oracle.Header
	for i := range n {
		out = append(out, oracle.Header{Key: fmt.Sprintf("h%d", i), Value: []byte(strings.Repeat("x", i%5))})
	}
	return out
}

// fillCodecs: all five, in batches of one and of many records, and a batch that hardly compresses.
func fillCodecs(ctx context.Context, f *Filler) error {
	ts := baseTime
	for _, c := range []oracle.Codec{oracle.None, oracle.Gzip, oracle.Snappy, oracle.LZ4, oracle.Zstd} {
		for _, n := range []int{1, 50, 700} {
			var recs []record
			for i := range n {
				ts += 7
				recs = append(recs, rec(ts, fmt.Sprintf("key-%d", i), fmt.Sprintf("codec %d record %d of %d %s", c, i, n, strings.Repeat("abc", i%30))))
			}
			if err := f.write(ctx, c, recs...); err != nil {
				return err
			}
		}
		if err := f.write(ctx, c, record{ts: ts, key: nil, value: noise(5000)}, record{ts: ts, key: noise(300), value: nil}); err != nil {
			return err
		}
	}
	return nil
}

// noise is incompressible, and the same in every run.
func noise(n int) []byte {
	r := rand.NewChaCha8([32]byte{1, byte(n)})
	b := make([]byte, n)
	_, _ = r.Read(b)
	return b
}

// fillTimestamps: small, negative and far-future ones, far apart inside a batch and falling over batches. The last
// one lies beyond what nanoseconds in an int64 can hold (year 2262).
func fillTimestamps(ctx context.Context, f *Filler) error {
	const year = 365 * 24 * 3600 * 1000
	one := func(ts ...int64) []record {
		var out []record
		for _, t := range ts {
			out = append(out, rec(t, fmt.Sprint(t), "v"))
		}
		return out
	}
	if err := f.each(
		ctx, oracle.None,
		one(0, 1, 2), one(-1000, -2, 5), one(baseTime, 1, baseTime+50*year, 3), one(baseTime),
		one(9_000*year, 1000), one(baseTime+1), one(300_000*year), one(baseTime+2, baseTime-40*year),
	); err != nil {
		return err
	}
	return f.each(ctx, oracle.Zstd, one(baseTime+3, 8_500*year, -7), one(baseTime+4))
}

// fillLarge: records of 1 MiB and more, which neighbours of a few bytes surround.
func fillLarge(ctx context.Context, f *Filler) error {
	ts := baseTime
	for i, n := range []int{1 << 20, 10, 1 << 20, 3 << 20, 1} {
		ts += int64(i)
		if err := f.each(ctx, oracle.None, []record{{ts: ts, key: []byte("big"), value: noise(n)}}); err != nil {
			return err
		}
	}
	return f.each(
		ctx, oracle.Zstd,
		[]record{{ts: ts, key: []byte("zeros"), value: make([]byte, 2<<20)}, rec(ts, "a", "small one behind it")},
		[]record{{ts: ts, key: []byte("noise"), value: noise(1 << 20)}},
	)
}

// fillLogAppend: the broker's time for every record of a batch.
func fillLogAppend(ctx context.Context, f *Filler) error {
	for i, c := range []oracle.Codec{oracle.None, oracle.Gzip, oracle.Snappy, oracle.LZ4, oracle.Zstd, oracle.None} {
		var recs []record
		for j := range 4 {
			recs = append(recs, rec(baseTime+int64(j)*1000, fmt.Sprint(i), fmt.Sprintf("v%d", j)))
		}
		if err := f.write(ctx, c, recs...); err != nil {
			return err
		}
	}
	return nil
}

// tenBatches writes batches of five records.
func tenBatches(ctx context.Context, f *Filler) error {
	for i := range int64(10) {
		var recs []record
		for j := range int64(5) {
			recs = append(recs, rec(baseTime+i*100+j, fmt.Sprintf("k%d", j), fmt.Sprintf("v%d", i*5+j)))
		}
		if err := f.write(ctx, oracle.Codec(i%5), recs...); err != nil {
			return err
		}
	}
	return nil
}

// fillLogStart: 10 batches of 5 records; the log starts at 17, inside the batch 15…19.
func fillLogStart(ctx context.Context, f *Filler) error {
	if err := tenBatches(ctx, f); err != nil {
		return err
	}
	return DeleteRecords(ctx, f.Cluster.Bootstrap(), f.Topic, 0, 17)
}

// fillAllDeleted: start = end = 50.
func fillAllDeleted(ctx context.Context, f *Filler) error {
	if err := tenBatches(ctx, f); err != nil {
		return err
	}
	return DeleteRecords(ctx, f.Cluster.Bootstrap(), f.Topic, 0, -1)
}

// fillEpochs: four leader epochs with records and one without between them.
func fillEpochs(ctx context.Context, f *Filler) error {
	for i, n := range []int{3, 1, 0, 4, 2} {
		if i > 0 {
			if err := BumpEpoch(ctx, f.Cluster, f.Topic); err != nil {
				return err
			}
		}
		for j := range n {
			ts := baseTime + int64(100*i+j)
			if err := f.each(ctx, oracle.Codec(j%5), []record{rec(ts, "a", fmt.Sprintf("%d.%d", i, j)), rec(ts, "b", fmt.Sprintf("%d.%d", i, j))}); err != nil {
				return err
			}
		}
	}
	return nil
}
