package oracle_test

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"testing"

	"github.com/klauspost/compress/s2"
	"github.com/stretchr/testify/require"

	"github.com/lockstep-kafka/lockstep/internal/testkafka/oracle"
)

// A batch as Java's producer writes it: one record, key "k", null value, header "h"=null.
const javaBatch = "0000000000000007" + "0000003d" + "00000003" + "02" + "00000000" + "0000" + "00000000" +
	"0000018bcfe56800" + "0000018bcfe56800" + "ffffffffffffffff" + "ffff" + "ffffffff" + "00000001" +
	"14" + "00" + "00" + "00" + "02" + "6b" + "01" + "02" + "02" + "68" + "01"

func batchBytes(t *testing.T) []byte {
	t.Helper()
	b, err := hex.DecodeString(javaBatch)
	require.NoError(t, err)
	binary.BigEndian.PutUint32(b[8:], uint32(len(b)-12))
	binary.BigEndian.PutUint32(b[17:], crc(b[21:]))
	return b
}

// crc is CRC-32C bit by bit, as slow and as plain as can be.
func crc(b []byte) uint32 {
	c := ^uint32(0)
	for _, x := range b {
		c ^= uint32(x)
		for range 8 {
			c = c>>1 ^ 0x82f63b78&-(c&1)
		}
	}
	return ^c
}

func TestParseBatches(t *testing.T) {
	b := batchBytes(t)
	partial := append(bytes.Clone(b), b[:40]...)
	got, err := oracle.ParseBatches(partial)
	require.NoError(t, err)
	require.Len(t, got, 1, "the partial batch at the end is left out")
	recs, err := got[0].Recs(2)
	require.NoError(t, err)
	require.Empty(t, oracle.Diff([]oracle.Rec{{
		Partition: 2, Offset: 7, LeaderEpoch: 3, Timestamp: 1_700_000_000_000, TimestampType: oracle.CreateTime,
		Key: []byte("k"), Headers: []oracle.Header{{Key: "h"}},
	}}, recs))

	b[len(b)-1] ^= 1
	_, err = oracle.ParseBatches(b)
	require.ErrorContains(t, err, "CRC")
}

func TestCodecsRoundTrip(t *testing.T) {
	in := bytes.Repeat([]byte("abcdefgh"), 10_000)
	for c := oracle.None; c <= oracle.Zstd; c++ {
		packed, err := oracle.Compress(c, in)
		require.NoError(t, err)
		out, err := oracle.Decompress(c, packed)
		require.NoError(t, err)
		require.Equal(t, in, out, "codec %d", c)
	}
	// Java's framing of snappy.
	framed := append([]byte{0x82, 'S', 'N', 'A', 'P', 'P', 'Y', 0, 0, 0, 0, 1, 0, 0, 0, 1}, frame(in[:30_000])...)
	out, err := oracle.Decompress(oracle.Snappy, append(framed, frame(in[30_000:])...))
	require.NoError(t, err)
	require.Equal(t, in, out)
}

func frame(b []byte) []byte {
	p := s2.EncodeSnappy(nil, b)
	return append(binary.BigEndian.AppendUint32(nil, uint32(len(p))), p...)
}

// The lines of the clients tell null from empty, and so does the comparison.
func TestNullIsNotEmpty(t *testing.T) {
	null := oracle.Rec{TimestampType: oracle.CreateTime, Headers: []oracle.Header{{Key: "a"}}}
	empty := oracle.Rec{TimestampType: oracle.CreateTime, Key: []byte{}, Value: []byte{}, Headers: []oracle.Header{{Key: "a", Value: []byte{}}}}
	require.False(t, null.Equal(empty))
	require.NotEmpty(t, oracle.Diff([]oracle.Rec{null}, []oracle.Rec{empty}))
	for _, r := range []oracle.Rec{null, empty} {
		line, err := json.Marshal(r)
		require.NoError(t, err)
		back, err := oracle.ParseLine(line)
		require.NoError(t, err)
		require.True(t, r.Equal(back), "%s", line)
	}
	require.Contains(t, oracle.Diff([]oracle.Rec{null, empty}, []oracle.Rec{null}), "missing")
	require.Contains(t, oracle.Diff([]oracle.Rec{null}, []oracle.Rec{null, empty}), "beyond the end")
}
