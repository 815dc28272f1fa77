package protocol

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"math"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kmsg"
	"pgregory.net/rapid"

	"github.com/lockstep-kafka/lockstep/internal/histories"
)

// asShown is what a client sees of a source batch: no producer, no transaction;
// under LogAppendTime only maxTimestamp counts, so deltas and base are blanked.
func asShown(tb testBatch) testBatch {
	tb.head.ProducerID, tb.head.ProducerEpoch, tb.head.FirstSequence = -1, -1, -1
	tb.head.Attributes &^= attrTransactional
	if tb.head.Attributes&attrLogAppendTime != 0 {
		tb.records = append([]kmsg.Record(nil), tb.records...)
		for i := range tb.records {
			tb.records[i].TimestampDelta64 = 0
		}
		tb.head.FirstTimestamp = 0
	}
	return tb
}

// mirrored takes b the whole way: made producible, stamped, appended by a
// broker at p, restored as its stamp says.
func mirrored(t testingT, b Batch, p int64) (onDestination, shown Batch) {
	t.Helper()
	source := bytes.Clone(b)
	d, err := Densify(b, b.LogAppendTime(), DefaultMaxOut)
	require.NoError(t, err)
	require.Equal(t, source, []byte(b), "the source batch is left alone")
	s := Stamp{V: b.BaseOffset(), Epoch: b.PartitionLeaderEpoch(), Gen: 1}
	require.NoError(t, d.WriteStamp(s))
	require.True(t, d.CheckCRC())
	require.EqualValues(t, d.NumRecords(), d.LastOffsetDelta()+1)
	d.SetBase(p, 77)
	onDestination = bytes.Clone(d)

	got, ok := d.ReadStamp()
	require.True(t, ok)
	switch {
	case b.HasHoles():
		n, err := VirtualCount(d)
		require.NoError(t, err)
		require.Equal(t, b.NextOffset()-b.BaseOffset(), n)
		shown, err = Undensify(d, got.V, got.Epoch, b.LogAppendTime())
		require.NoError(t, err)
		require.Equal(t, onDestination, d)
	case b.LogAppendTime():
		shown = d
		shown.RestoreLogAppend(got.V, got.Epoch)
	default:
		shown = d
		shown.Restore(got.V, got.Epoch)
	}
	return onDestination, shown
}

func TestMirroredJavaBatches(t *testing.T) {
	var dump []byte // as the broker gets them; for testdata/JavaBatches.java
	for name, b := range javaBatches(t) {
		t.Run(name, func(t *testing.T) {
			onDestination, shown := mirrored(t, b, 5000)
			sent := Batch(bytes.Clone(onDestination))
			sent.SetBase(0, -1)
			dump = fmt.Appendf(dump, "%s %x\n", name, []byte(sent))
			require.Equal(t, asShown(takeApart(t, b)), asShown(takeApart(t, shown)))
			d := takeApart(t, onDestination)
			require.Zero(t, d.head.Attributes&(attrLogAppendTime|attrTransactional))
			require.Equal(t, b.Codec(), onDestination.Codec())
			for i, r := range d.records {
				require.EqualValues(t, i, r.OffsetDelta)
				if b.LogAppendTime() { // the time index and readers of the bare destination
					require.EqualValues(t, 1800000000123, d.head.FirstTimestamp+r.TimestampDelta64)
				}
			}
			require.Equal(t, b.MaxTimestamp(), onDestination.MaxTimestamp())
			require.Equal(t, b.HasDeleteHorizon(), onDestination.HasDeleteHorizon())
			if b.HasDeleteHorizon() {
				require.EqualValues(t, 1900000000000, onDestination.BaseTimestamp())
			}
			switch {
			case b.Codec() == CodecNone && !b.LogAppendTime() && !b.IsTransactional():
				require.Equal(t, b, shown, "byte for byte")
			case !b.HasHoles() && !b.LogAppendTime():
				require.Equal(t, b[BatchHeaderSize:], shown[BatchHeaderSize:], "payload untouched")
			}
		})
	}
	if file := os.Getenv("LOCKSTEP_DUMP"); file != "" {
		require.NoError(t, os.WriteFile(file, dump, 0o600))
	}
}

// Written to disk on the destination: the encoding can't change. Laid out by
// hand from the source batch none-holes.
func TestDensifyGolden(t *testing.T) {
	header := func(delta string) string { // "lockstep.delta", (delta, 9)
		return "1c" + hex.EncodeToString([]byte("lockstep.delta")) + "04" + delta + "09"
	}
	want := strings.Join([]string{
		"0000000000000064", "000000c3", "00000005", "02", "crc_here", "0000", "00000002",
		"0000018bcfe56800", "000110d9316ec000", "ffffffffffffffff", "ffff", "ffffffff", "00000003",
		"6e", "00", "00", "00", "046b31", "3a" + hex.EncodeToString([]byte("value one value one value one")), "02", header("01"),
		"6a", "00", "f59fabfef962", "02", "01", "01", "06", "026802781c6c6f636b737465702e64656c74610875736572", header("04"),
		"46", "00", "80e0ca98acd38701", "04", "046b33", "00", "04", "0001", header("05"),
	}, "")
	d, err := Densify(javaBatches(t)["none-holes"], false, 1<<20)
	require.NoError(t, err)
	got := hex.EncodeToString(d[:17]) + "crc_here" + hex.EncodeToString(d[21:])
	require.Equal(t, want, got)
	require.True(t, d.CheckCRC())
}

// M9: records 2 and 5 of the source batch 2…6. The copy's end is 6 after a
// restart too, so that the same batch is not fetched and appended again.
func TestM9RenumberedBatchKeepsItsEnd(t *testing.T) {
	for _, codec := range allCodecs {
		b := testBatch{
			head:    kmsg.RecordBatch{FirstOffset: 2, LastOffsetDelta: 4, Attributes: int16(codec), ProducerID: -1, ProducerEpoch: -1, FirstSequence: -1},
			records: []kmsg.Record{{OffsetDelta: 0, Key: []byte("a")}, {OffsetDelta: 3, Key: []byte("b")}},
		}.build(t)
		onDestination, shown := mirrored(t, b, 2)
		require.EqualValues(t, 4, onDestination.NextOffset())
		require.EqualValues(t, 7, shown.NextOffset())

		// And after the destination's cleaner took the last record.
		tb := takeApart(t, onDestination)
		tb.records = tb.records[:1]
		cleaned := tb.build(t)
		require.True(t, cleaned.HasHoles())
		n, err := VirtualCount(cleaned)
		require.NoError(t, err)
		require.EqualValues(t, 5, n)
		shown, err = Undensify(cleaned, 2, 0, false)
		require.NoError(t, err)
		require.EqualValues(t, 7, shown.NextOffset())
		require.EqualValues(t, 1, shown.NumRecords())
	}
}

// Kafka's own cleaner took the last record (5002) of each mirrored batch and set
// a delete horizon (testdata/JavaBatches.java): stamp, times and end are the same.
func TestRestoreAfterTheCleaner(t *testing.T) {
	cleaned := readBatches(t, "testdata/java_cleaned.txt")
	require.Len(t, cleaned, 35)
	for name, b := range cleaned {
		source := javaBatches(t)[name]
		require.EqualValues(t, 5000, b.BaseOffset(), name)
		require.EqualValues(t, 2, b.NumRecords(), name)
		require.True(t, b.HasDeleteHorizon(), name)
		s, ok := b.ReadStamp()
		require.True(t, ok, name)
		require.Equal(t, Stamp{V: 100, Epoch: 5, Gen: 1}, s)
		shown := b
		switch {
		case source.HasHoles():
			n, err := VirtualCount(b)
			require.NoError(t, err, name)
			require.EqualValues(t, 10, n, name)
			shown, err = Undensify(b, s.V, s.Epoch, source.LogAppendTime())
			require.NoError(t, err, name)
		case source.LogAppendTime():
			shown.RestoreLogAppend(s.V, s.Epoch)
		default:
			shown.Restore(s.V, s.Epoch)
		}
		require.True(t, shown.CheckCRC(), name)
		require.Equal(t, source.NextOffset(), shown.NextOffset(), name)
		require.Equal(t, offsetsAndTimes(t, source)[:2], offsetsAndTimes(t, shown), name)
	}
}

func offsetsAndTimes(t *testing.T, b Batch) (out [][2]int64) {
	require.NoError(t, Records(b, func(r RecordView) bool {
		out = append(out, [2]int64{b.BaseOffset() + int64(r.OffsetDelta), b.Timestamp(r)})
		return true
	}))
	return out
}

// It may take the first record as well, and set a delete horizon: base
// timestamp and deltas change, times don't.
func TestUndensifyWithoutTheFirstRecord(t *testing.T) {
	b := javaBatches(t)["snappy-holes"]
	onDestination, _ := mirrored(t, b, 5000)
	tb := takeApart(t, onDestination)
	tb.records = tb.records[1:]
	const horizon = 1_950_000_000_000
	for i := range tb.records {
		tb.records[i].TimestampDelta64 += tb.head.FirstTimestamp - horizon
	}
	tb.head.FirstTimestamp = horizon
	tb.head.Attributes |= attrDeleteHorizon
	shown, err := Undensify(tb.build(t), 100, 5, false)
	require.NoError(t, err)
	require.Equal(t, [][2]int64{{104, 5}, {105, 300000000000000}}, offsetsAndTimes(t, shown))
	require.EqualValues(t, 110, shown.NextOffset())
	require.True(t, shown.HasDeleteHorizon())
}

// An append time that every delta already says needs no re-encoding.
func TestLogAppendHeaderOnly(t *testing.T) {
	tb := testBatch{
		head:    kmsg.RecordBatch{Magic: 2, FirstOffset: 9, Attributes: attrLogAppendTime | int16(CodecZstd), FirstTimestamp: 1000, MaxTimestamp: 2000},
		records: []kmsg.Record{{Key: []byte("k"), Value: []byte("v")}},
	}
	b := tb.build(t)
	onDestination, shown := mirrored(t, b, 50)
	require.Equal(t, b[BatchHeaderSize:], onDestination[BatchHeaderSize:])
	require.EqualValues(t, 2000, onDestination.BaseTimestamp())
	require.Equal(t, asShown(tb), asShown(takeApart(t, shown)))
}

func anyTimestamp() *rapid.Generator[int64] {
	return rapid.OneOf(rapid.Int64Range(-2000, 2000), rapid.Int64Range(1_600_000_000_000, 1_900_000_000_000), rapid.Int64())
}

func anyBytes(limit int) *rapid.Generator[[]byte] {
	return rapid.OneOf(rapid.Just([]byte(nil)), rapid.Just([]byte{}), rapid.SliceOfN(rapid.Byte(), 1, limit))
}

func anyBatch() *rapid.Generator[testBatch] {
	return rapid.Custom(func(t *rapid.T) testBatch {
		bits := int16(rapid.SampledFrom(allCodecs).Draw(t, "codec"))
		for _, bit := range []int16{attrLogAppendTime, attrTransactional, attrDeleteHorizon} {
			if rapid.Bool().Draw(t, "bit") {
				bits |= bit
			}
		}
		tb := testBatch{head: kmsg.RecordBatch{
			Magic:                2,
			FirstOffset:          rapid.Int64Range(0, 1<<50-1).Draw(t, "base"),
			PartitionLeaderEpoch: rapid.Int32Range(0, math.MaxInt32).Draw(t, "epoch"),
			Attributes:           bits,
			FirstTimestamp:       anyTimestamp().Draw(t, "first"),
			MaxTimestamp:         anyTimestamp().Draw(t, "max"),
			ProducerID:           rapid.Int64Range(-1, 100).Draw(t, "pid"),
		}}
		next := int32(0)
		gap := rapid.SampledFrom([]int32{0, 1, 1000, 100_000_000}).Draw(t, "gap")
		for range rapid.IntRange(1, 12).Draw(t, "n") {
			next += rapid.Int32Range(0, gap).Draw(t, "hole")
			r := kmsg.Record{
				Attributes:       rapid.Int8().Draw(t, "attributes"),
				TimestampDelta64: anyTimestamp().Draw(t, "delta"),
				OffsetDelta:      next,
				Key:              anyBytes(20).Draw(t, "key"),
				Value:            anyBytes(300).Draw(t, "value"),
			}
			for range rapid.IntRange(0, 3).Draw(t, "headers") {
				key := rapid.SampledFrom([]string{"", "a", DeltaHeader, "ключ"}).Draw(t, "header")
				r.Headers = append(r.Headers, kmsg.Header{Key: key, Value: anyBytes(10).Draw(t, "header value")})
			}
			tb.records = append(tb.records, r)
			next++
		}
		tb.head.LastOffsetDelta = next - 1 + rapid.Int32Range(0, gap).Draw(t, "tail")
		return tb
	})
}

func TestDensifyRoundTrip(t *testing.T) {
	histories.Check(t, func(t *rapid.T) {
		tb := anyBatch().Draw(t, "batch")
		b := tb.build(t)
		_, shown := mirrored(t, b, 3)
		require.Equal(t, asShown(takeApart(t, b)), asShown(takeApart(t, shown)))
	})
}

func TestRecords(t *testing.T) {
	histories.Check(t, func(t *rapid.T) {
		tb := anyBatch().Draw(t, "batch")
		b := tb.build(t)
		want := takeApart(t, b).records
		stop := rapid.IntRange(1, len(want)).Draw(t, "stop")
		var got []kmsg.Record
		err := Records(b, func(v RecordView) bool {
			r := kmsg.Record{
				Attributes: v.Attributes, TimestampDelta64: v.TimestampDelta, OffsetDelta: v.OffsetDelta,
				Key: bytes.Clone(v.Key), Value: bytes.Clone(v.Value),
			}
			err := v.EachHeader(func(key, value []byte) bool {
				r.Headers = append(r.Headers, kmsg.Header{Key: string(key), Value: bytes.Clone(value)})
				return true
			})
			if err != nil {
				return false
			}
			at := b.BaseTimestamp() + v.TimestampDelta
			if b.LogAppendTime() {
				at = b.MaxTimestamp()
			}
			if b.Timestamp(v) != at {
				return false
			}
			got = append(got, r)
			return len(got) < stop
		})
		require.NoError(t, err)
		require.Equal(t, want[:stop], got)
	})
}

func TestSlowPathRefuses(t *testing.T) {
	all := javaBatches(t)
	changed := func(b Batch, f func(Batch)) Batch {
		b = bytes.Clone(b)
		f(b)
		b.renewCRC()
		return b
	}
	holes, dense := all["zstd-holes"], all["zstd-dense"]
	onDestination, _ := mirrored(t, holes, 5000)
	wrong := func(b Batch) Batch { b = bytes.Clone(b); b[len(b)-1] ^= 1; return b }
	empty := func(b Batch) { b.putInt32(offNumRecords, 0) }
	r := NewRecoder(1 << 20)

	same, err := r.Densify(dense, false)
	require.NoError(t, err)
	require.Same(t, &dense[0], &same[0], "nothing to do")

	for name, c := range map[string]struct {
		b         Batch
		logAppend bool
		want      error
	}{
		"wrong CRC":                {wrong(holes), false, ErrCRC},
		"wrong CRC, no work":       {wrong(dense), false, ErrCRC},
		"control":                  {changed(holes, func(b Batch) { b.setAttributes(attrControl) }), false, ErrControlBatch},
		"empty":                    {changed(holes, empty), false, ErrEmptyBatch},
		"log append not announced": {all["zstd-logappend"], false, ErrLogAppendTime},
		"log append made up":       {holes, true, ErrLogAppendTime},
		"unknown codec":            {changed(holes, func(b Batch) { b.setAttributes(5) }), false, ErrCodec},
		"wrong codec":              {changed(holes, func(b Batch) { b.setAttributes(1) }), false, ErrCorruptBatch},
		"not compressed":           {changed(holes, func(b Batch) { b.setAttributes(0) }), false, ErrCorruptBatch},
		"fewer records than said":  {changed(holes, func(b Batch) { b.putInt32(offNumRecords, 4) }), false, ErrCorruptBatch},
		"more records than said":   {changed(holes, func(b Batch) { b.putInt32(offNumRecords, 2) }), false, ErrCorruptBatch},
		"delta above last":         {changed(holes, func(b Batch) { b.putInt32(offLastOffsetDelta, 4) }), false, ErrCorruptBatch},
	} {
		_, err := r.Densify(c.b, c.logAppend)
		require.ErrorIs(t, err, c.want, name)
	}
	_, err = r.Undensify(wrong(onDestination), 1, 1, false)
	require.ErrorIs(t, err, ErrCRC)
	_, err = r.Undensify(changed(onDestination, empty), 1, 1, false)
	require.ErrorIs(t, err, ErrEmptyBatch)
	_, err = r.Undensify(dense, 1, 1, false) // no headers of ours
	require.ErrorIs(t, err, ErrCorruptBatch)
	_, err = r.VirtualCount(wrong(onDestination))
	require.ErrorIs(t, err, ErrCRC)
	_, err = r.VirtualCount(dense)
	require.ErrorIs(t, err, ErrCorruptBatch)

	// Headers of ours that contradict each other.
	for _, values := range [][2][]byte{
		{{1, 9}, {4, 8}},
		{{4, 9}, {4, 9}},
		{{4, 9}, {1, 9}},
		{{1, 9}, {10, 9}},
		{{1, 9}, {}},
		{{1, 9}, {4}},
		{{1, 9}, {4, 9, 0}},
		{{1, 9}, append([]byte{4}, binary.AppendUvarint(nil, 1<<31)...)},
	} {
		tb := testBatch{head: kmsg.RecordBatch{LastOffsetDelta: 1}}
		for i, value := range values {
			tb.records = append(tb.records, kmsg.Record{OffsetDelta: int32(i), Headers: []kmsg.Header{{Key: DeltaHeader, Value: value}}})
		}
		_, err = r.Undensify(tb.build(t), 1, 1, false)
		require.ErrorIs(t, err, ErrCorruptBatch, "%v", values)
	}
}

// One worker's Recoder keeps nothing of one batch that shows in the next, also
// after errors.
func TestRecoderReuse(t *testing.T) {
	r := NewRecoder(1 << 20)
	for range 3 {
		for name, b := range javaBatches(t) {
			if b.HasHoles() {
				want, err := Densify(b, b.LogAppendTime(), 1<<20)
				require.NoError(t, err)
				got, err := r.Densify(b, b.LogAppendTime())
				require.NoError(t, err)
				require.Equal(t, want, got, name)
			}
			broken := Batch(bytes.Clone(b[:len(b)-5]))
			broken.putInt32(offLength, int32(len(broken)-sizePrefix))
			broken.renewCRC()
			_, err := r.Densify(broken, b.LogAppendTime())
			if b.HasHoles() || b.LogAppendTime() {
				require.ErrorIs(t, err, ErrCorruptBatch, name)
			}
		}
	}
}
