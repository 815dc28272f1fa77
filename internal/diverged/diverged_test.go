package diverged

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/epoch"
	"github.com/lockstep-kafka/lockstep/protocol"
)

// phys is a physical log under construction.
type phys struct {
	t     *testing.T
	p     int64
	batch []protocol.Batch
}

func (x *phys) add(pe int32, attrs int16, pid int64, stamp *protocol.Stamp, key []byte, values ...string) {
	x.t.Helper()
	rb := kmsg.NewRecordBatch()
	rb.Magic, rb.PartitionLeaderEpoch, rb.Attributes = 2, pe, attrs
	rb.ProducerID, rb.ProducerEpoch, rb.FirstSequence = pid, -1, -1
	rb.FirstTimestamp, rb.MaxTimestamp = 1000+x.p, 1000+x.p
	rb.NumRecords, rb.LastOffsetDelta = int32(len(values)), int32(len(values)-1)
	for i, v := range values {
		rec := kmsg.NewRecord()
		rec.OffsetDelta, rec.Key, rec.Value = int32(i), key, []byte(v)
		rec.Headers = []kmsg.Header{{Key: "h", Value: []byte{0xff}}}
		rec.Length = int32(len(rec.AppendTo(nil)) - 1)
		rb.Records = rec.AppendTo(rb.Records)
	}
	rb.Length = int32(49 + len(rb.Records))
	b := protocol.Batch(rb.AppendTo(nil))
	binary.BigEndian.PutUint32(b[17:], crc32.Checksum(b[21:], crc32.MakeTable(crc32.Castagnoli)))
	if stamp != nil {
		require.NoError(x.t, b.WriteStamp(*stamp))
	}
	binary.BigEndian.PutUint64(b, uint64(x.p))
	binary.BigEndian.PutUint32(b[12:], uint32(pe))
	x.batch = append(x.batch, b)
	x.p += int64(len(values))
}

func (x *phys) mirrored(pe int32, v int64, gen int16, e int32, values ...string) {
	x.add(pe, 0, -1, &protocol.Stamp{V: v, Gen: gen, Epoch: e}, []byte("k"), values...)
}

func (x *phys) native(pe int32, values ...string) { x.add(pe, 0, -1, nil, nil, values...) }

func (x *phys) opening(pe int32, o epoch.Opening) {
	o.V = 1
	val, err := json.Marshal(o)
	require.NoError(x.t, err)
	x.add(pe, 0, -1, &protocol.Stamp{V: o.LMO, Gen: o.Gen, Epoch: max(o.LME, 0), Flags: epoch.FlagHidden}, []byte(o.Key()), string(val))
}

func (x *phys) txn(pe int32, pid int64, commit bool, values ...string) {
	x.add(pe, 1<<4, pid, nil, []byte("t"), values...)
	kind := byte(0)
	if commit {
		kind = 1
	}
	x.add(pe, 1<<4|1<<5, pid, nil, []byte{0, 0, 0, kind}, "\x00\x00\x00\x00\x00\x00")
}

// list scans and gives "offset(epoch) value origin".
func (x *phys) list(l *epoch.Log) (recs []string, ranges []Range, unknown int) {
	x.t.Helper()
	require.NoError(x.t, l.Validate())
	s := NewScan(l, false)
	for _, b := range x.batch {
		s.Take(b)
	}
	f, err := s.End()
	require.NoError(x.t, err)
	var pts []point
	met := seen{}
	for _, d := range f.dead {
		for _, b := range x.batch {
			if b.BaseOffset() != d.P {
				continue
			}
			require.NoError(x.t, f.records(d, b, met, func(r Record) error {
				require.Equal(x.t, []Header{{Key: []byte("h"), Value: []byte{0xff}}}, r.Headers)
				recs = append(recs, fmt.Sprintf("%d(%d) %s %s", r.Offset, r.Epoch, r.Value, r.Origin))
				pts = append(pts, point{v: r.Offset, time: r.Timestamp, epoch: r.Epoch, origin: r.Origin})
				return nil
			}))
		}
	}
	return recs, rangesOf(pts), f.Unknown
}

// An unclean election of the source: the cut batches are found once, with the
// offsets and epochs they had; copies that a retry left are not.
func TestCutOfMirrored(t *testing.T) {
	x := &phys{t: t}
	x.mirrored(0, 0, 1, 0, "a0", "a1", "a2")
	x.mirrored(0, 3, 1, 0, "b3", "b4") // cut
	x.mirrored(0, 3, 1, 0, "b3", "b4") // a late copy of the same
	x.mirrored(0, 2, 2, 0, "a2")       // gen 2 begins at 2
	x.mirrored(0, 3, 2, 2, "c3")
	x.mirrored(0, 4, 1, 0, "b4") // and once more, late
	recs, ranges, unknown := x.list(&epoch.Log{
		Spans: []epoch.Span{{Kind: epoch.Mirrored, Gen: 1, PEnd: -1}, {Kind: epoch.Mirrored, Gen: 2, VStart: 2, PStart: 7, PEnd: -1}},
		Chain: epoch.Chain{{Epoch: 0, Start: 0}, {Epoch: 2, Start: 3}}, MaxEpoch: 2, LastGen: 2,
	})
	require.Equal(t, []string{"3(0) b3 mirrored", "4(0) b4 mirrored"}, recs)
	require.Equal(t, []Range{{First: 3, Last: 4, Epoch: 0, Origin: Mirrored, Records: 2, MinTime: 1003, MaxTime: 1003}}, ranges)
	require.Zero(t, unknown)
}

// Failback: a native span cut at its end, still in the ledger.
func TestCutOfNativeTail(t *testing.T) {
	x := &phys{t: t}
	x.mirrored(0, 0, 1, 0, "a0", "a1")
	x.opening(0, epoch.Opening{LMO: 2, LME: 0, Bump: 10, Gen: 1})
	x.native(0, "n2")
	x.native(1, "n3")
	x.txn(1, 7, true, "n4")
	x.txn(1, 8, false, "aborted")
	x.mirrored(1, 3, 2, 20, "s3")
	recs, _, unknown := x.list(&epoch.Log{
		Spans: []epoch.Span{
			{Kind: epoch.Mirrored, Gen: 1, PEnd: -1},
			{Kind: epoch.Native, VStart: 2, PStart: 3, Bump: 10, PEnd: -1},
			{Kind: epoch.Mirrored, Gen: 2, VStart: 3, PStart: 9, PEpoch: 1, PEnd: -1},
		},
		Chain: epoch.Chain{{Epoch: 0, Start: 0}, {Epoch: 10, Start: 2}, {Epoch: 20, Start: 3}}, MaxEpoch: 20, Bump: 10, LastGen: 2,
	})
	require.Equal(t, []string{"3(11) n3 native", "4(11) n4 native"}, recs)
	require.Zero(t, unknown)
}

// Failback into what was the source: its own log is a native span from the
// start, of older epochs than the ledger's newest.
func TestCutOfFormerSource(t *testing.T) {
	x := &phys{t: t}
	x.native(0, "a0")
	x.native(1, "a1")
	x.native(1, "lost2")
	x.mirrored(1, 2, 1, 2, "b2")
	x.mirrored(1, 3, 1, 3, "b3")
	recs, _, unknown := x.list(&epoch.Log{
		Spans: []epoch.Span{{Kind: epoch.Native, PEnd: -1}, {Kind: epoch.Mirrored, Gen: 1, VStart: 2, PStart: 3, PEpoch: 1, PEnd: -1}},
		Chain: epoch.Chain{{Epoch: 0, Start: 0}, {Epoch: 1, Start: 1}, {Epoch: 2, Start: 2}, {Epoch: 3, Start: 3}}, MaxEpoch: 3, LastGen: 1,
	})
	require.Equal(t, []string{"2(1) lost2 native"}, recs)
	require.Zero(t, unknown)
}

// Failback: a native span cut as a whole is not in the ledger any more; its
// span-opening batch says what its offsets and epochs were.
func TestCutOfWholeNative(t *testing.T) {
	x := &phys{t: t}
	x.mirrored(0, 0, 1, 0, "a0", "a1")
	x.opening(0, epoch.Opening{LMO: 2, LME: 0, Bump: 10, Gen: 1}) // a stop that died before its ledger write
	x.opening(0, epoch.Opening{LMO: 2, LME: 0, Bump: 10, Gen: 1})
	x.native(0, "n2")
	x.mirrored(0, 1, 1, 0, "late") // of the old owner
	x.native(3, "n4")              // its offset counts the late one
	x.mirrored(3, 2, 2, 20, "s2")
	x.native(3, "direct") // past the proxy
	recs, _, unknown := x.list(&epoch.Log{
		Spans: []epoch.Span{{Kind: epoch.Mirrored, Gen: 1, PEnd: -1}, {Kind: epoch.Mirrored, Gen: 2, VStart: 2, PStart: 7, PEpoch: 3, PEnd: -1}},
		Chain: epoch.Chain{{Epoch: 0, Start: 0}, {Epoch: 20, Start: 2}}, MaxEpoch: 20, Bump: 11, LastGen: 2,
	})
	require.Equal(t, []string{"2(10) n2 native", "4(13) n4 native"}, recs)
	require.Equal(t, 1, unknown)
}

// After retention has taken the log's beginning the chain can't be followed
// from the span's start: that is no divergence.
func TestStartInside(t *testing.T) {
	x := &phys{t: t, p: 50}
	x.mirrored(0, 50, 1, 0, "a50", "a51")
	x.mirrored(0, 52, 1, 0, "a52")
	recs, _, _ := x.list(&epoch.Log{
		Spans: []epoch.Span{{Kind: epoch.Mirrored, Gen: 1, PEnd: -1}}, Chain: epoch.Chain{{Epoch: 0, Start: 0}}, LastGen: 1, Start: 50,
	})
	require.Empty(t, recs)
}

func TestNewer(t *testing.T) {
	require.True(t, newer(2, 1))
	require.False(t, newer(1, 1))
	require.False(t, newer(1, 2))
	require.True(t, newer(3, epoch.MaxGeneration))
	require.False(t, newer(epoch.MaxGeneration, 3))
}
