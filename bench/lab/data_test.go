package lab

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/lockstep-kafka/lockstep/protocol"
)

func TestGeneratedBatchesAreGood(t *testing.T) {
	for name, s := range map[string]Shape{
		"plain": {Record: 100, Min: 1, Max: 10},
		"lz4":   {Record: 1024, Min: 50, Max: 50, LZ4: true},
		"keyed": {Record: 64, Min: 5, Max: 5, Keys: 3},
	} {
		t.Run(name, func(t *testing.T) {
			g := newGenerator(s, 1)
			for range 2 * variants {
				b := g.next()
				require.True(t, b.records >= s.Min && b.records <= s.Max)
				got, rest, err := protocol.NextBatch(b.data)
				require.NoError(t, err)
				require.Empty(t, rest)
				require.True(t, got.CheckCRC())
				require.EqualValues(t, b.records, got.NumRecords())
				require.EqualValues(t, -1, got.ProducerID())
				recs, _ := kgo.DefaultDecompressor().Decompress(got[protocol.BatchHeaderSize:], kgo.CompressionCodecType(got.Codec()))
				require.NotEmpty(t, recs)
				if s.LZ4 {
					ratio := float64(b.records*s.Record) / float64(len(b.data))
					require.True(t, ratio > 1.5 && ratio < 6, "compresses like real data, not by %.1f", ratio)
				}
			}
		})
	}
}

// Batches lie across the borders of the read buffer, in several files.
func TestEachBatch(t *testing.T) {
	dir := t.TempDir()
	g := newGenerator(Shape{Record: 300, Min: 1, Max: 9}, 2)
	want := map[int32]int{}
	for p, name := range []string{"t-0", "t-1"} {
		require.NoError(t, os.Mkdir(filepath.Join(dir, name), 0o755))
		for _, file := range []string{"00.log", "09.log"} {
			var all []byte
			for range 100 {
				b := g.next()
				all = append(all, b.data...)
				want[int32(p)] += b.records
			}
			require.NoError(t, os.WriteFile(filepath.Join(dir, name, file), append(all, 1, 2, 3), 0o600))
		}
	}
	files, err := SegmentFilesIn(dir, "t")
	require.NoError(t, err)
	require.Len(t, files, 4)
	got := map[int32]int{}
	for _, f := range files {
		require.NoError(t, eachIn(f.Path, make([]byte, 1000), func(b protocol.Batch) error {
			got[f.Partition] += int(b.NumRecords())
			return nil
		}))
	}
	require.Equal(t, want, got)
	_, err = SegmentFilesIn(dir, "none")
	require.Error(t, err)
}
