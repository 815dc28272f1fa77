package protocol

import (
	"bytes"
	"encoding/hex"
	"hash/crc32"
	"math"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/lockstep-kafka/lockstep/internal/histories"
)

// The stamp is written to disk on the destination: its layout can't change.
func TestStampGolden(t *testing.T) {
	for _, c := range []struct {
		s    Stamp
		want string // producerId, producerEpoch, baseSequence
	}{
		{Stamp{}, "fffffffffffffffe" + "0000" + "00000000"},
		{Stamp{V: 98, Gen: 3, Epoch: 7}, "ffffffffffffff9c" + "0003" + "00000007"},
		{Stamp{V: 1, Hole: 1, Flags: 1}, "fbfbfffffffffffd" + "0000" + "00000000"},
		{Stamp{V: stampMaxV, Hole: 255, Flags: 30, Gen: math.MaxInt16, Epoch: math.MaxInt32}, "83ffffffffffffff" + "7fff" + "7fffffff"},
	} {
		b := Batch(bytes.Clone(javaBatches(t)["none-dense"]))
		require.NoError(t, b.WriteStamp(c.s))
		require.Equal(t, c.want, hex.EncodeToString(b[43:57]))
		require.True(t, b.CheckCRC())
		got, ok := b.ReadStamp()
		require.True(t, ok)
		require.Equal(t, c.s, got)
		require.EqualValues(t, 0, b.BaseOffset())
		require.EqualValues(t, 5, b.PartitionLeaderEpoch())
	}
}

func TestReadStampOfOthers(t *testing.T) {
	b := Batch(bytes.Clone(javaBatches(t)["none-dense"]))
	for _, id := range []int64{-1, 0, 4000, math.MaxInt64} {
		b.putProducer(id, 0, 0)
		_, ok := b.ReadStamp()
		require.False(t, ok, id)
	}
	b.putProducer(math.MinInt64, -1, -1) // a client may write anything (M14): no panic, fields as they are
	s, ok := b.ReadStamp()
	require.True(t, ok)
	require.Equal(t, Stamp{V: stampMaxV - 1, Hole: 255, Flags: 31, Gen: -1, Epoch: -1}, s)
}

func TestWriteStampRefuses(t *testing.T) {
	all := javaBatches(t)
	dense := all["none-dense"]
	try := func(b Batch, s Stamp) error {
		b = bytes.Clone(b)
		before := bytes.Clone(b)
		err := b.WriteStamp(s)
		require.Equal(t, before, []byte(b), "an error leaves the batch alone")
		return err
	}
	for _, s := range []Stamp{{V: -1}, {V: 1 << 50}, {Flags: 31}, {Gen: -1}, {Epoch: -1}} {
		require.ErrorIs(t, try(dense, s), ErrStamp)
	}
	with := func(change func(Batch)) Batch {
		b := Batch(bytes.Clone(dense))
		change(b)
		return b
	}
	require.ErrorIs(t, try(with(func(b Batch) { b.setAttributes(attrControl) }), Stamp{}), ErrControlBatch)
	require.ErrorIs(t, try(with(func(b Batch) { b.putInt32(offNumRecords, 0) }), Stamp{}), ErrEmptyBatch)
	require.ErrorIs(t, try(all["none-holes"], Stamp{}), ErrHoles)
	require.ErrorIs(t, try(all["none-logappend"], Stamp{}), ErrLogAppendTime)
}

func TestStampRestoreRoundTrip(t *testing.T) {
	histories.Check(t, func(t *rapid.T) {
		b := blob(t, batchSize().Draw(t, "n"))
		s := anyStamp().Draw(t, "stamp")
		if rapid.Bool().Draw(t, "idempotent") {
			b.putProducer(rapid.Int64Range(0, math.MaxInt64).Draw(t, "pid"), 1, 2)
		} else {
			b.putProducer(-1, -1, -1)
		}
		b.renewCRC()

		// What a client of the source sees, but for the producer and its transaction.
		want := Batch(bytes.Clone(b))
		want.setAttributes(b.Attributes() &^ attrTransactional)
		want.putProducer(-1, -1, -1)
		want.SetBase(s.V, s.Epoch)
		want.renewCRC()
		if b.ProducerID() == -1 && !b.IsTransactional() {
			source := Batch(bytes.Clone(b))
			source.SetBase(s.V, s.Epoch)
			require.Equal(t, source, want)
		}

		require.NoError(t, b.WriteStamp(s))
		require.True(t, b.CheckCRC(), "stamped")
		got, ok := b.ReadStamp()
		require.True(t, ok)
		require.Equal(t, s, got)
		require.False(t, b.IsTransactional())

		b.SetBase(rapid.Int64Range(0, 1<<40).Draw(t, "p"), rapid.Int32Range(0, 100).Draw(t, "pe")) // the broker's
		b.Restore(got.V, got.Epoch)
		require.True(t, bytes.Equal(want, b), "restored")
		_, ok = b.ReadStamp()
		require.False(t, ok)
	})
}

// A corrupt batch of the source must reach the consumer corrupt: both steps
// leave the difference between field and true CRC as it was.
func TestWrongCRCStaysEquallyWrong(t *testing.T) {
	histories.Check(t, func(t *rapid.T) {
		b := blob(t, batchSize().Draw(t, "n"))
		wrong := rapid.Uint32Range(1, math.MaxUint32).Draw(t, "error")
		b.putCRC(b.CRC() ^ wrong)
		off := func() uint32 { return b.CRC() ^ crc32.Checksum(b[21:], crcTable) }
		require.NoError(t, b.WriteStamp(anyStamp().Draw(t, "stamp")))
		require.Equal(t, wrong, off())
		if rapid.Bool().Draw(t, "log append") {
			b.RestoreLogAppend(1, 2)
		} else {
			b.Restore(1, 2)
		}
		require.Equal(t, wrong, off())
	})
}

func TestCRCUpdateEqualsFullPass(t *testing.T) {
	histories.Check(t, func(t *rapid.T) {
		b := blob(t, batchSize().Draw(t, "n"))
		from := rapid.IntRange(0, len(b)).Draw(t, "from")
		to := rapid.IntRange(from, min(len(b), from+100)).Draw(t, "to")
		crc := crc32.Checksum(b, crcTable)
		before := crc32.Checksum(b[from:to], crcTable)
		for i := from; i < to; i++ {
			b[i] ^= byte(i*31 + 7)
		}
		after := crc32.Checksum(b[from:to], crcTable)
		require.Equal(t, crc32.Checksum(b, crcTable), CRCUpdate(crc, before, after, len(b)-to))
	})
}

// Lengths beyond what a test can hold in memory: moving by m and by n is
// moving by m+n.
func TestCRCShiftAddsUp(t *testing.T) {
	histories.Check(t, func(t *rapid.T) {
		crc := rapid.Uint32().Draw(t, "crc")
		m, n := rapid.Uint64Range(0, 1<<32-1).Draw(t, "m"), rapid.Uint64Range(0, 1<<32-1).Draw(t, "n")
		require.Equal(t, crcShift(crc, m+n), crcShift(crcShift(crc, m), n))
	})
}

func TestHotPathAllocatesNothing(t *testing.T) {
	b := Batch(bytes.Clone(javaBatches(t)["zstd-dense"]))
	ok := true
	n := testing.AllocsPerRun(100, func() {
		cut, _, err := NextBatch(b)
		ok = ok && err == nil && cut.WriteStamp(Stamp{V: 100, Gen: 1, Epoch: 5}) == nil
		s, has := cut.ReadStamp()
		cut.Restore(s.V, s.Epoch)
		cut.SetBase(s.V, s.Epoch)
		ok = ok && has && cut.CheckCRC()
	})
	require.True(t, ok)
	require.Zero(t, n)
}
