package verify

import (
	"context"
	"encoding/binary"
	"hash/crc32"
	"hash/maphash"
	"io"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-kafka/lockstep/protocol"
)

// one is a record of a fake log.
type one struct {
	offset     int64
	key, value string // "null": null
}

// batchOf is a batch of records of one epoch, with holes where offsets jump.
func batchOf(epoch int32, rs ...one) protocol.Batch {
	var body []byte
	for _, r := range rs {
		b := []byte{0}
		b = binary.AppendVarint(b, 0)
		b = binary.AppendVarint(b, r.offset-rs[0].offset)
		for _, s := range []string{r.key, r.value} {
			if s == "null" {
				b = binary.AppendVarint(b, -1)
				continue
			}
			b = binary.AppendVarint(b, int64(len(s)))
			b = append(b, s...)
		}
		b = binary.AppendVarint(b, 0)
		body = binary.AppendVarint(body, int64(len(b)))
		body = append(body, b...)
	}
	b := make([]byte, protocol.BatchHeaderSize, protocol.BatchHeaderSize+len(body))
	b = append(b, body...)
	be := binary.BigEndian
	be.PutUint64(b, uint64(rs[0].offset))
	be.PutUint32(b[8:], uint32(len(b)-12))
	be.PutUint32(b[12:], uint32(epoch))
	b[16] = 2
	be.PutUint32(b[23:], uint32(rs[len(rs)-1].offset-rs[0].offset))
	for i := 43; i < 57; i++ {
		b[i] = 0xff
	}
	be.PutUint32(b[57:], uint32(len(rs)))
	be.PutUint32(b[17:], crc32.Checksum(b[21:], crc32.MakeTable(crc32.Castagnoli)))
	out, _, err := protocol.NextBatch(b)
	if err != nil {
		panic(err)
	}
	return out
}

// log is a stream of given batches; moved is where its start jumps to once.
type log struct {
	batches []protocol.Batch
	moved   int64
	from    int64
}

func (l *log) next(context.Context) (protocol.Batch, error) {
	if l.moved > 0 {
		m := l.moved
		l.moved = 0
		return nil, &movedError{m}
	}
	for len(l.batches) > 0 {
		b := l.batches[0]
		l.batches = l.batches[1:]
		if b.NextOffset() > l.from {
			return append(protocol.Batch(nil), b...), nil
		}
	}
	return nil, io.EOF
}

func (l *log) skip(o int64) { l.from = max(l.from, o) }
func (l *log) close()       {}

const endless = 1 << 40

func compareLogs(t *testing.T, src, dst *log, keys *keyTable) (*comparison, *Difference) {
	t.Helper()
	c := &comparison{src: newWalker(src, 0, endless), dst: newWalker(dst, 0, endless), keys: keys}
	d, err := c.run(t.Context())
	require.NoError(t, err)
	return c, d
}

func logOf(bs ...protocol.Batch) *log { return &log{batches: bs} }

// Differences that real brokers don't take: scripted.
func TestScriptedDifferences(t *testing.T) {
	a, b, c := one{0, "a", "1"}, one{1, "b", "2"}, one{2, "c", "3"}
	flipped := append(protocol.Batch(nil), batchOf(1, a, b)...)
	flipped[len(flipped)-2] ^= 1 // its CRC is wrong now
	for _, x := range []struct {
		name     string
		src, dst *log
		kind     Kind
		offset   int64
	}{
		{"a flipped byte under the old CRC", logOf(batchOf(1, a, b)), logOf(flipped), KindCRC, 0},
		{"a flipped byte on the source", logOf(flipped), logOf(batchOf(1, a, b)), KindCRC, 0},
		{"missing in the middle", logOf(batchOf(1, a, b, c)), logOf(batchOf(1, a, c)), KindMissing, 1},
		{"missing at the start", logOf(batchOf(1, a), batchOf(1, b)), logOf(batchOf(1, b)), KindMissing, 0},
		{"missing at the end", logOf(batchOf(1, a), batchOf(1, b)), logOf(batchOf(1, a)), KindMissing, 1},
		{"everything missing", logOf(batchOf(1, a)), logOf(), KindMissing, 0},
		{"shifted by one", logOf(batchOf(1, a), batchOf(1, one{2, "b", "2"})), logOf(batchOf(1, a), batchOf(1, b)), KindExtra, 1},
		{"one too many at the end", logOf(batchOf(1, a)), logOf(batchOf(1, a), batchOf(1, b)), KindExtra, 1},
		{"epoch of the second batch", logOf(batchOf(1, a), batchOf(2, b)), logOf(batchOf(1, a), batchOf(1, b)), KindEpoch, 1},
		{"epoch in a joined batch", logOf(batchOf(1, a), batchOf(2, b)), logOf(batchOf(1, a, b)), KindEpoch, 1},
		{"value in a joined batch", logOf(batchOf(1, a), batchOf(1, b)), logOf(batchOf(1, a, one{1, "b", "X"})), KindValue, 1},
		{"duplicate behind", logOf(batchOf(1, a)), logOf(batchOf(1, a), batchOf(1, a)), KindExtra, 0},
	} {
		t.Run(x.name, func(t *testing.T) {
			_, d := compareLogs(t, x.src, x.dst, nil)
			require.NotNil(t, d)
			require.Equal(t, x.kind, d.Kind, d)
			require.Equal(t, x.offset, d.Offset, d)
			require.NotEmpty(t, d.String())
		})
	}
}

func TestScriptedEqual(t *testing.T) {
	a, b, c := one{0, "a", "1"}, one{1, "b", "2"}, one{5, "c", "3"}
	for _, x := range []struct {
		name             string
		src, dst         *log
		records          int64
		byBatch, byRecod int64
	}{
		{"as they are", logOf(batchOf(1, a, b), batchOf(2, c)), logOf(batchOf(1, a, b), batchOf(2, c)), 3, 2, 0},
		{"joined", logOf(batchOf(1, a), batchOf(1, b), batchOf(1, c)), logOf(batchOf(1, a, b, c)), 3, 0, 1},
		{"joined, then the same", logOf(batchOf(1, a), batchOf(1, b), batchOf(1, c)), logOf(batchOf(1, a, b), batchOf(1, c)), 3, 1, 1},
		{"no leader epoch", logOf(batchOf(-1, a)), logOf(batchOf(0, a)), 1, 1, 0},
		{"start moved", logOf(batchOf(1, a), batchOf(1, b), batchOf(1, c)), &log{batches: []protocol.Batch{batchOf(1, c)}, moved: 3}, 1, 1, 0},
	} {
		t.Run(x.name, func(t *testing.T) {
			got, d := compareLogs(t, x.src, x.dst, nil)
			require.Nil(t, d)
			require.Equal(t, []int64{x.records, x.byBatch, x.byRecod}, []int64{got.records, got.byBatch, got.byRecord})
		})
	}
}

// What a cleaner may have taken on one side, and what must be looked up.
func TestCompactedKeys(t *testing.T) {
	for _, x := range []struct {
		name     string
		src, dst *log
		waiting  []waitingKey
		oneSided int64
	}{
		{"superseded on both", logOf(batchOf(1, one{0, "k", "1"}), batchOf(1, one{1, "k", "2"})), logOf(batchOf(1, one{1, "k", "2"})), nil, 1},
		{"superseded in a thinned batch", logOf(batchOf(1, one{0, "k", "1"}, one{1, "k", "2"})), logOf(batchOf(1, one{1, "k", "2"})), nil, 1},
		{
			"newest missing", logOf(batchOf(1, one{0, "k", "1"}), batchOf(1, one{1, "k", "2"})), logOf(batchOf(1, one{0, "k", "1"})),
			[]waitingKey{{offset: 1, side: onSource}},
			1,
		},
		{"tombstone aged out", logOf(), logOf(batchOf(1, one{3, "k", "null"})), []waitingKey{{offset: 3, side: onDestination, tombstone: true}}, 1},
		{
			"both lack the other's", logOf(batchOf(1, one{0, "k", "1"})), logOf(batchOf(1, one{1, "k", "2"})),
			[]waitingKey{{offset: 1, side: onDestination}},
			2,
		},
		{"without key", logOf(batchOf(1, one{0, "null", "1"})), logOf(), nil, 1},
	} {
		t.Run(x.name, func(t *testing.T) {
			keys := newKeyTable(maphash.MakeSeed(), 10, 0, 1)
			_, d := compareLogs(t, x.src, x.dst, keys)
			require.Nil(t, d)
			var got []waitingKey
			for _, w := range keys.keys {
				got = append(got, w)
			}
			require.Equal(t, x.waiting, got)
			require.Equal(t, x.oneSided, keys.count)
		})
	}
	keys := newKeyTable(maphash.MakeSeed(), 1, 0, 1)
	c := &comparison{src: newWalker(logOf(batchOf(1, one{0, "a", "1"}, one{1, "b", "1"})), 0, endless), dst: newWalker(logOf(), 0, endless), keys: keys}
	_, err := c.run(t.Context())
	require.ErrorIs(t, err, errTooManyKeys)
}
