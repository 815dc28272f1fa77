package protocol

import (
	"bytes"
	"encoding/binary"
	"runtime"
	"strings"
	"testing"

	"github.com/klauspost/compress/snappy"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"
)

// samples: nothing, one byte, text, noise-like and large, around block limits.
func samples() [][]byte {
	out := [][]byte{{7}, []byte(strings.Repeat("lockstep ", 50))}
	for _, n := range []int{xerialBlock - 1, xerialBlock, xerialBlock + 1, 64 << 10, 1<<20 + 3} {
		b := make([]byte, n)
		for i := range b {
			b[i] = byte(i * i >> 7)
		}
		out = append(out, b)
	}
	return out
}

// Both ways against franz-go's codecs, which other clients are tested against.
func TestCodecsAgreeWithFranz(t *testing.T) {
	c := codecs{maxOut: 1<<20 + 3}
	for _, codec := range allCodecs[1:] {
		theirs, err := kgo.DefaultCompressor(kgoCodecs[codec])
		require.NoError(t, err)
		for _, plain := range samples() {
			packed, err := c.compress([]byte("head"), codec, plain)
			require.NoError(t, err)
			require.Equal(t, "head", string(packed[:4]))
			got, err := kgo.DefaultDecompressor().Decompress(packed[4:], kgo.CompressionCodecType(codec))
			require.NoError(t, err, "%v, %d bytes", codec, len(plain))
			require.True(t, bytes.Equal(plain, got), "%v, %d bytes", codec, len(plain))

			packed, _ = theirs.Compress(new(bytes.Buffer), plain)
			got, err = c.decompress([]byte("head"), codec, packed)
			require.NoError(t, err, "%v, %d bytes", codec, len(plain))
			require.True(t, bytes.Equal(plain, got[4:]), "%v, %d bytes", codec, len(plain))
		}
	}
}

func TestSnappyFramings(t *testing.T) {
	c := codecs{maxOut: 1 << 22}
	plain := samples()[6]
	packed, err := c.compress(nil, CodecSnappy, plain)
	require.NoError(t, err)
	require.Equal(t, xerialHeader, packed[:16])
	joined := append(bytes.Clone(packed), packed...) // two streams, as SnappyInputStream takes them
	got, err := c.decompress(nil, CodecSnappy, joined)
	require.NoError(t, err)
	require.True(t, bytes.Equal(append(bytes.Clone(plain), plain...), got))
	raw, err := c.decompress(nil, CodecSnappy, snappy.Encode(nil, plain))
	require.NoError(t, err)
	require.True(t, bytes.Equal(plain, raw))

	for name, bad := range map[string][]byte{
		"empty":            {},
		"header cut":       xerialHeader[:12],
		"length cut":       append(bytes.Clone(xerialHeader), 0, 0),
		"block cut":        packed[:len(packed)-1],
		"block length":     append(bytes.Clone(xerialHeader), 0xff, 0xff, 0xff, 0xff, 1),
		"lies of its size": append(binary.AppendUvarint(nil, 1<<20), 0, 1),
	} {
		_, err := c.decompress(nil, CodecSnappy, bad)
		require.ErrorIs(t, err, ErrCorruptBatch, name)
	}
}

// A bomb costs no more memory than the limit's few multiples, and says what it is.
func TestDecompressionBombs(t *testing.T) {
	const limit = 1 << 20
	zeros := make([]byte, 64<<20)
	for _, codec := range allCodecs[1:] {
		var c codecs
		packed, err := c.compress(nil, codec, zeros)
		require.NoError(t, err)
		bombs := [][]byte{packed}
		if codec == CodecSnappy {
			bombs = append(bombs, snappy.Encode(nil, zeros))
		}
		for _, bomb := range bombs {
			c = codecs{maxOut: limit}
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			_, err = c.decompress(nil, codec, bomb)
			runtime.ReadMemStats(&after)
			require.ErrorIs(t, err, ErrTooLarge, codec)
			require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(24<<20), codec)
			_, err = (&codecs{maxOut: 1 << 30}).decompress(nil, codec, bomb[:len(bomb)/2])
			require.ErrorIs(t, err, ErrCorruptBatch, codec)
		}
	}
	b := make(Batch, BatchHeaderSize)
	var c codecs
	b, err := c.compress(b, CodecZstd, zeros)
	require.NoError(t, err)
	b.putInt32(offLength, int32(len(b)-sizePrefix))
	b[offMagic] = 2
	b.setAttributes(int16(CodecZstd))
	b.putInt32(offNumRecords, 1)
	b.putInt32(offLastOffsetDelta, 5)
	b.renewCRC()
	_, err = Densify(b, false, limit)
	require.ErrorIs(t, err, ErrTooLarge)
	_, err = Densify(b, false, 1<<29)
	require.ErrorIs(t, err, ErrCorruptBatch) // a record of size 0
}
