package protocol

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kmsg"
	"pgregory.net/rapid"

	"github.com/lockstep-kafka/lockstep/internal/histories"
)

// neighbours are batches that follow each other without a gap.
func neighbours() *rapid.Generator[[]Batch] {
	return rapid.Custom(func(t *rapid.T) []Batch {
		codec := rapid.SampledFrom(allCodecs).Draw(t, "codec")
		offset := rapid.Int64Range(0, 1<<40).Draw(t, "offset")
		var list []Batch
		for range rapid.IntRange(1, 6).Draw(t, "batches") {
			tb := anyBatch().Draw(t, "batch")
			tb.head.Attributes = int16(codec) | rapid.SampledFrom([]int16{0, attrTransactional}).Draw(t, "transactional")
			for i := range tb.records {
				tb.records[i].OffsetDelta = int32(i)
			}
			tb.head.LastOffsetDelta = int32(len(tb.records) - 1)
			tb.head.FirstOffset = offset
			offset += int64(len(tb.records))
			list = append(list, tb.build(t))
		}
		return list
	})
}

// What a client sees of merged batches is what it sees of them one by one.
func TestMergeKeepsRecords(t *testing.T) {
	r := NewRecoder(DefaultMaxOut)
	histories.Check(t, func(t *rapid.T) {
		list := neighbours().Draw(t, "list")
		var before [][]byte
		var want []kmsg.Record
		latest := list[0].MaxTimestamp()
		for _, b := range list {
			before = append(before, bytes.Clone(b))
			latest = max(latest, b.MaxTimestamp())
			for _, rec := range takeApart(t, b).records {
				rec.TimestampDelta64 += b.BaseTimestamp()
				rec.OffsetDelta += int32(b.BaseOffset() - list[0].BaseOffset())
				want = append(want, rec)
			}
		}
		got, err := r.Merge(list)
		require.NoError(t, err)
		for i, b := range list {
			require.Equal(t, before[i], []byte(b), "the source's batches are left alone")
		}
		out, rest, err := NextBatch(got)
		require.NoError(t, err)
		require.Empty(t, rest)
		tb := takeApart(t, out)
		for i := range tb.records {
			tb.records[i].TimestampDelta64 += out.BaseTimestamp()
		}
		require.Equal(t, want, tb.records)
		require.Equal(t, latest, out.MaxTimestamp())
		require.Equal(t, list[0].BaseOffset(), out.BaseOffset())
		require.Equal(t, list[len(list)-1].NextOffset(), out.NextOffset())
		require.Equal(t, list[0].Codec(), out.Codec())
		require.Equal(t, list[0].PartitionLeaderEpoch(), out.PartitionLeaderEpoch())
		require.False(t, out.IsTransactional())
		require.NoError(t, out.WriteStamp(Stamp{V: list[0].BaseOffset(), Epoch: 3, Gen: 1}), "a broker takes it")
		require.True(t, out.CheckCRC())
	})
}

// strangers are batches with holes in and between them.
func strangers() *rapid.Generator[[]Batch] {
	return rapid.Custom(func(t *rapid.T) []Batch {
		codec := rapid.SampledFrom(allCodecs).Draw(t, "codec")
		offset := rapid.Int64Range(0, 1<<40).Draw(t, "offset")
		var list []Batch
		for range rapid.IntRange(1, 6).Draw(t, "batches") {
			tb := anyBatch().Draw(t, "batch")
			tb.head.Attributes = int16(codec) | rapid.SampledFrom([]int16{0, attrTransactional}).Draw(t, "transactional")
			next := int32(0)
			for i := range tb.records {
				next += rapid.Int32Range(0, 1000).Draw(t, "hole")
				tb.records[i].OffsetDelta = next
				next++
			}
			tb.head.LastOffsetDelta = next - 1 + rapid.Int32Range(0, 1000).Draw(t, "hole at the end")
			offset += rapid.Int64Range(0, 1000).Draw(t, "hole in front")
			tb.head.FirstOffset = offset
			offset += int64(tb.head.LastOffsetDelta) + 1
			list = append(list, tb.build(t))
		}
		return list
	})
}

// M9: what a client sees of batches with holes that were merged is what it sees
// of them one by one; the end of the last one isn't lost.
func TestMergeSparseKeepsRecords(t *testing.T) {
	r := NewRecoder(DefaultMaxOut)
	histories.Check(t, func(t *rapid.T) {
		list := strangers().Draw(t, "list")
		base := list[0].BaseOffset()
		var before [][]byte
		var want []kmsg.Record
		latest := list[0].MaxTimestamp()
		for _, b := range list {
			before = append(before, bytes.Clone(b))
			latest = max(latest, b.MaxTimestamp())
			for _, rec := range takeApart(t, b).records {
				rec.TimestampDelta64 += b.BaseTimestamp()
				rec.OffsetDelta += int32(b.BaseOffset() - base)
				want = append(want, rec)
			}
		}
		got, err := r.MergeSparse(list)
		require.NoError(t, err)
		for i, b := range list {
			require.Equal(t, before[i], []byte(b), "the source's batches are left alone")
		}
		require.False(t, got.HasHoles())
		require.False(t, got.IsTransactional())
		require.NoError(t, got.WriteStamp(Stamp{V: base, Epoch: 3, Gen: 1, Flags: 1}), "a broker takes it")
		require.True(t, got.CheckCRC())
		count, err := r.VirtualCount(got)
		require.NoError(t, err)
		require.Equal(t, list[len(list)-1].NextOffset()-base, count)
		out, err := r.Undensify(got, base, 3, false)
		require.NoError(t, err)
		tb := takeApart(t, out)
		for i := range tb.records {
			tb.records[i].TimestampDelta64 += out.BaseTimestamp()
		}
		require.Equal(t, want, tb.records)
		require.Equal(t, latest, out.MaxTimestamp())
		require.Equal(t, base, out.BaseOffset())
		require.Equal(t, list[len(list)-1].NextOffset(), out.NextOffset())
		require.Equal(t, list[0].Codec(), out.Codec())
		if len(list) == 1 && list[0].HasHoles() {
			one, err := r.Densify(list[0], false)
			require.NoError(t, err)
			one.setAttributes(one.Attributes() &^ attrTransactional)
			one.putProducer(-1, -1, -1)
			got.putProducer(-1, -1, -1)
			require.Equal(t, []byte(one[offAttributes:]), []byte(got[offAttributes:]), "one alone is what Densify makes of it")
		}
	})
}

func TestMergeSparseRefuses(t *testing.T) {
	build := func(base int64, attributes int16, change func(*testBatch)) Batch {
		tb := testBatch{records: []kmsg.Record{testRecord(0, []byte("a")), testRecord(3, []byte("b"))}}
		tb.head.FirstOffset, tb.head.LastOffsetDelta, tb.head.Attributes = base, 5, attributes
		if change != nil {
			change(&tb)
		}
		return tb.build(t)
	}
	r := NewRecoder(DefaultMaxOut)
	first := build(10, 0, nil)
	for name, next := range map[string]Batch{
		"they overlap":       build(15, 0, nil),
		"another codec":      build(16, int16(CodecLZ4), nil),
		"control batch":      build(16, attrControl, nil),
		"LogAppendTime":      build(16, attrLogAppendTime, nil),
		"delete horizon":     build(16, attrDeleteHorizon, nil),
		"emptied by cleaner": build(16, 0, func(tb *testBatch) { tb.records = nil }),
	} {
		require.False(t, first.JoinsWith(next), name)
		_, err := r.MergeSparse([]Batch{first, next})
		require.ErrorIs(t, err, ErrCorruptBatch, name)
	}
	next := build(20, 0, nil)
	require.True(t, first.JoinsWith(next))
	bad := bytes.Clone(next)
	bad[len(bad)-3] ^= 1
	_, err := r.MergeSparse([]Batch{first, bad})
	require.ErrorIs(t, err, ErrCRC, "a bad batch never gets a good CRC")
	_, err = r.MergeSparse([]Batch{first, build(16, 0, func(tb *testBatch) { tb.records[1].OffsetDelta = 6 })})
	require.ErrorIs(t, err, ErrCorruptBatch, "a record behind its batch's end")
	_, err = r.MergeSparse([]Batch{first, build(1<<32, 0, nil)})
	require.ErrorIs(t, err, ErrTooLarge)
	_, err = NewRecoder(100).MergeSparse([]Batch{first, build(16, 0, func(tb *testBatch) { tb.records[0].Value = make([]byte, 200) })})
	require.ErrorIs(t, err, ErrTooLarge)
	_, err = r.MergeSparse(nil)
	require.ErrorIs(t, err, ErrEmptyBatch)
}

func TestMergeRefuses(t *testing.T) {
	build := func(base int64, attributes int16, change func(*testBatch)) Batch {
		tb := testBatch{records: []kmsg.Record{testRecord(0, []byte("a")), testRecord(1, []byte("b"))}}
		tb.head.FirstOffset, tb.head.LastOffsetDelta, tb.head.Attributes = base, 1, attributes
		if change != nil {
			change(&tb)
		}
		return tb.build(t)
	}
	first := build(10, 0, nil)
	for name, next := range map[string]Batch{
		"a gap between":      build(13, 0, nil),
		"another codec":      build(12, int16(CodecLZ4), nil),
		"control batch":      build(12, attrControl, nil),
		"LogAppendTime":      build(12, attrLogAppendTime, nil),
		"delete horizon":     build(12, attrDeleteHorizon, nil),
		"holes inside":       build(12, 0, func(tb *testBatch) { tb.head.LastOffsetDelta = 5 }),
		"emptied by cleaner": build(12, 0, func(tb *testBatch) { tb.records = nil }),
	} {
		require.False(t, first.MergesWith(next), name)
		_, err := NewRecoder(DefaultMaxOut).Merge([]Batch{first, next})
		require.ErrorIs(t, err, ErrCorruptBatch, name)
	}
	next := build(12, 0, nil)
	require.True(t, first.MergesWith(next))
	next[len(next)-3] ^= 1
	_, err := NewRecoder(DefaultMaxOut).Merge([]Batch{first, next})
	require.ErrorIs(t, err, ErrCRC, "a bad batch never gets a good CRC")
	odd := build(12, 0, func(tb *testBatch) { tb.records[1].OffsetDelta = 0 })
	_, err = NewRecoder(DefaultMaxOut).Merge([]Batch{first, odd})
	require.ErrorIs(t, err, ErrCorruptBatch, "offset deltas that are not 0, 1, 2 …")
	_, err = NewRecoder(100).Merge([]Batch{first, build(12, 0, func(tb *testBatch) { tb.records[0].Value = make([]byte, 200) })})
	require.ErrorIs(t, err, ErrTooLarge)
	_, err = NewRecoder(DefaultMaxOut).Merge(nil)
	require.ErrorIs(t, err, ErrEmptyBatch)
}

// Records that are cut or garbled behind a right CRC.
func FuzzMerge(f *testing.F) {
	tb := testBatch{records: []kmsg.Record{testRecord(0, []byte("a")), testRecord(1, nil)}}
	tb.head.LastOffsetDelta = 1
	f.Add([]byte(tb.build(f)))
	f.Fuzz(func(t *testing.T, in []byte) {
		b, _, err := NextBatch(in)
		if err != nil {
			return
		}
		b = bytes.Clone(b)
		b.renewCRC()
		next := bytes.Clone(b)
		Batch(next).SetBase(b.NextOffset(), 0)
		if sparse, err := NewRecoder(1 << 20).MergeSparse([]Batch{b, next}); err == nil {
			if n, err := VirtualCount(sparse); err != nil || n != Batch(next).NextOffset()-b.BaseOffset() {
				t.Fatalf("merged to %d offsets: %v", n, err)
			}
		}
		out, err := NewRecoder(1 << 20).Merge([]Batch{b, next})
		if err != nil {
			return
		}
		if _, rest, err := NextBatch(out); err != nil || len(rest) != 0 || !out.CheckCRC() {
			t.Fatalf("merged to something else than a batch: %v, %d bytes left", err, len(rest))
		}
	})
}

// Per MiB of small batches: what it costs to write them as one.
func BenchmarkMerge(b *testing.B) {
	for _, codec := range []Codec{CodecNone, CodecLZ4, CodecZstd} {
		for _, records := range []int{1, 10} {
			b.Run(fmt.Sprintf("%v/%d", codec, records), func(b *testing.B) {
				var list []Batch
				size, offset := 0, int64(0)
				for size < 256<<10 {
					tb := testBatch{}
					tb.head.Attributes = int16(codec)
					for i := range records {
						value := bytes.Repeat([]byte(fmt.Sprintf("value %d of a topic; ", (offset+int64(i))*7919)), 40)
						tb.records = append(tb.records, testRecord(int32(i), value))
						size += len(value)
					}
					tb.head.FirstOffset, tb.head.LastOffsetDelta = offset, int32(records-1)
					offset += int64(records)
					list = append(list, tb.build(b))
				}
				r := NewRecoder(DefaultMaxOut)
				b.ReportAllocs()
				b.SetBytes(int64(size))
				for b.Loop() {
					if _, err := r.Merge(list); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}
