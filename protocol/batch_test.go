package protocol

import (
	"bytes"
	"encoding/hex"
	"hash/crc32"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"pgregory.net/rapid"
)

// testBatch is a batch taken apart by kmsg and kgo, or to be built by them: an
// encoding independent of this package's.
type testBatch struct {
	head    kmsg.RecordBatch // Records, Length, CRC, NumRecords unused
	records []kmsg.Record    // Length and TimestampDelta unused
}

var kgoCodecs = map[Codec]kgo.CompressionCodec{
	CodecGzip: kgo.GzipCompression(), CodecSnappy: kgo.SnappyCompression(),
	CodecLZ4: kgo.Lz4Compression(), CodecZstd: kgo.ZstdCompression(),
}

var allCodecs = []Codec{CodecNone, CodecGzip, CodecSnappy, CodecLZ4, CodecZstd}

type testingT interface {
	require.TestingT
	Helper()
}

func (tb testBatch) build(t testingT) Batch {
	t.Helper()
	var payload []byte
	for _, r := range tb.records {
		r.Length, r.TimestampDelta = 0, 0
		r.Length = int32(len(r.AppendTo(nil)) - 1)
		payload = r.AppendTo(payload)
	}
	if codec := Codec(tb.head.Attributes & attrCodec); codec != CodecNone {
		c, err := kgo.DefaultCompressor(kgoCodecs[codec])
		require.NoError(t, err)
		out, used := c.Compress(new(bytes.Buffer), payload)
		require.EqualValues(t, codec, used)
		payload = bytes.Clone(out)
	}
	h := tb.head
	h.Magic = 2
	h.NumRecords = int32(len(tb.records))
	h.Records = payload
	h.Length = int32(BatchHeaderSize - sizePrefix + len(payload))
	b := Batch(h.AppendTo(nil))
	b.putCRC(crc32.Checksum(b[21:], crc32.MakeTable(crc32.Castagnoli)))
	return b
}

// takeApart fails on a wrong CRC too.
func takeApart(t testingT, b Batch) testBatch {
	t.Helper()
	require.True(t, b.CheckCRC(), "CRC")
	var tb testBatch
	require.NoError(t, tb.head.ReadFrom(b))
	payload := tb.head.Records
	if c := b.Codec(); c != CodecNone {
		var err error
		payload, err = kgo.DefaultDecompressor().Decompress(payload, kgo.CompressionCodecType(c))
		require.NoError(t, err)
	}
	for len(payload) > 0 {
		in := recReader{b: payload}
		n := int(in.varint())
		n += len(payload) - len(in.b)
		var r kmsg.Record
		require.NoError(t, r.ReadFrom(payload[:n]))
		r.Length, r.TimestampDelta = 0, 0
		if len(r.Headers) == 0 {
			r.Headers = nil
		}
		tb.records = append(tb.records, r)
		payload = payload[n:]
	}
	require.EqualValues(t, tb.head.NumRecords, len(tb.records))
	tb.head.Records, tb.head.Length, tb.head.CRC, tb.head.NumRecords = nil, 0, 0, 0
	return tb
}

// javaBatches are built by Java's MemoryRecordsBuilder (Kafka 4.3.1, see
// testdata/JavaBatches.java) with each codec: base offset 100, leader epoch 5; records k1, (null key, null
// value, headers h and lockstep.delta) and (empty value, header with empty key
// and null value); "holes": offsets 101, 104, 105 of 100…109.
func javaBatches(t require.TestingT) map[string]Batch {
	out := readBatches(t, "testdata/java_batches.txt")
	require.Len(t, out, 35)
	return out
}

func readBatches(t require.TestingT, file string) map[string]Batch {
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	out := map[string]Batch{}
	for line := range strings.Lines(string(text)) {
		name, digits, _ := strings.Cut(strings.TrimSpace(line), " ")
		b, err := hex.DecodeString(digits)
		require.NoError(t, err)
		out[name] = Batch(b)
	}
	return out
}

func TestAccessors(t *testing.T) {
	all := javaBatches(t)
	for name, b := range all {
		got, rest, err := NextBatch(b)
		require.NoError(t, err, name)
		require.Empty(t, rest)
		require.Equal(t, b, got)
		require.True(t, b.CheckCRC(), name)
	}
	b := all["zstd-txn"]
	require.EqualValues(t, 100, b.BaseOffset())
	require.Equal(t, len(b), b.Size())
	require.EqualValues(t, 5, b.PartitionLeaderEpoch())
	require.EqualValues(t, 2, b.Magic())
	require.EqualValues(t, attrTransactional|4, b.Attributes())
	require.Equal(t, CodecZstd, b.Codec())
	require.EqualValues(t, 2, b.LastOffsetDelta())
	require.EqualValues(t, 1700000000000, b.BaseTimestamp())
	require.EqualValues(t, 300000000000000, b.MaxTimestamp())
	require.EqualValues(t, 4000, b.ProducerID())
	require.EqualValues(t, 7, b.ProducerEpoch())
	require.EqualValues(t, 11, b.BaseSequence())
	require.EqualValues(t, 3, b.NumRecords())
	require.EqualValues(t, 103, b.NextOffset())
	require.True(t, b.IsTransactional())
	require.False(t, b.IsControl() || b.LogAppendTime() || b.HasDeleteHorizon() || b.HasHoles())
	b = all["lz4-horizon-logappend-holes"]
	require.True(t, b.HasDeleteHorizon() && b.LogAppendTime() && b.HasHoles())
	require.EqualValues(t, 1900000000000, b.BaseTimestamp())
	require.EqualValues(t, 110, b.NextOffset())
}

func TestNextBatch(t *testing.T) {
	all := javaBatches(t)
	a, b := all["none-dense"], all["gzip-holes"]
	both := append(bytes.Clone(a), b...)

	first, rest, err := NextBatch(both)
	require.NoError(t, err)
	require.Equal(t, a, first)
	require.Equal(t, len(first), cap(first), "an append must not reach the next batch")
	second, rest, err := NextBatch(rest)
	require.NoError(t, err)
	require.Equal(t, b, second)
	_, _, err = NextBatch(rest)
	require.ErrorIs(t, err, io.EOF)

	for n := 1; n < len(a); n++ { // a Fetch answer may end anywhere
		_, _, err := NextBatch(a[:n])
		require.ErrorIs(t, err, ErrPartialBatch, "%d bytes", n)
	}
	for name, c := range map[string]struct {
		change func(Batch)
		want   error
	}{
		"magic 0":          {func(b Batch) { b[16] = 0 }, ErrMagic},
		"magic 1":          {func(b Batch) { b[16] = 1 }, ErrMagic},
		"magic 3":          {func(b Batch) { b[16] = 3 }, ErrMagic},
		"length too small": {func(b Batch) { b.putInt32(8, 48) }, ErrCorruptBatch},
		"length 0":         {func(b Batch) { b.putInt32(8, 0) }, ErrCorruptBatch},
		"length negative":  {func(b Batch) { b.putInt32(8, -1) }, ErrCorruptBatch},
		"length too large": {func(b Batch) { b.putInt32(8, 1<<31-1) }, ErrPartialBatch},
		"base negative":    {func(b Batch) { b.putInt64(0, -1) }, ErrCorruptBatch},
		"base overflow":    {func(b Batch) { b.putInt64(0, 1<<63-2) }, ErrCorruptBatch},
		"last negative":    {func(b Batch) { b.putInt32(23, -1) }, ErrCorruptBatch},
		"count negative":   {func(b Batch) { b.putInt32(57, -1) }, ErrCorruptBatch},
		"count above last": {func(b Batch) { b.putInt32(57, 4) }, ErrCorruptBatch},
	} {
		bad := Batch(bytes.Clone(a))
		c.change(bad)
		_, _, err := NextBatch(bad)
		require.ErrorIs(t, err, c.want, name)
	}
}

// blob is n bytes of noise with a v2 header's sizes and counts: enough for
// everything that looks at headers only.
func blob(t *rapid.T, n int) Batch {
	b := make(Batch, n)
	x := rapid.Uint64().Draw(t, "seed") | 1
	for i := range b {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
		b[i] = byte(x)
	}
	b.putInt64(offBaseOffset, rapid.Int64Range(0, stampMaxV).Draw(t, "base"))
	b.putInt32(offLength, int32(n-sizePrefix))
	b[offMagic] = 2
	count := rapid.Int32Range(1, 100000).Draw(t, "count")
	b.putInt32(offNumRecords, count)
	b.putInt32(offLastOffsetDelta, count-1)
	b.setAttributes(rapid.SampledFrom([]int16{0, 1, 2, 3, 4}).Draw(t, "codec") |
		rapid.SampledFrom([]int16{0, attrTransactional, attrDeleteHorizon, attrTransactional | attrDeleteHorizon}).Draw(t, "bits"))
	b.renewCRC()
	return b
}

// batchSize draws from 61 B to 2 MiB, every order of magnitude alike.
func batchSize() *rapid.Generator[int] {
	return rapid.Custom(func(t *rapid.T) int {
		k := rapid.IntRange(6, 21).Draw(t, "log2 size")
		return max(BatchHeaderSize, rapid.IntRange(1<<k/2, 1<<k).Draw(t, "size"))
	})
}

func anyStamp() *rapid.Generator[Stamp] {
	return rapid.Custom(func(t *rapid.T) Stamp {
		return Stamp{
			V:     rapid.Int64Range(0, stampMaxV).Draw(t, "v"),
			Hole:  rapid.Uint8().Draw(t, "hole"),
			Flags: rapid.Uint8Range(0, stampMaxFlags).Draw(t, "flags"),
			Gen:   rapid.Int16Range(0, 1<<15-1).Draw(t, "gen"),
			Epoch: rapid.Int32Range(0, 1<<31-1).Draw(t, "epoch"),
		}
	})
}

func testRecord(delta int32, value []byte) kmsg.Record {
	return kmsg.Record{OffsetDelta: delta, TimestampDelta64: int64(delta), Key: []byte("key"), Value: value}
}
