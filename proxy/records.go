package proxy

import (
	"github.com/lockstep-kafka/lockstep/epoch"
	"github.com/lockstep-kafka/lockstep/protocol"
)

// epochBatch is a batch's header as package epoch wants it.
type epochBatch = epoch.Batch

// findRecord finds the first record of a live batch, at virtual offset least or
// above, that want accepts, given its offset delta as it lies here and its
// timestamp (ms). It returns the record's virtual offset and timestamp, (-1, -1)
// for none. It decompresses: for workers only.
func findRecord(b protocol.Batch, h hit, least int64, want func(delta, timestamp int64) bool) (v, timestamp int64, err error) {
	offset, err := virtualOffsets(b, h)
	if err != nil {
		return -1, -1, err
	}
	v, timestamp = -1, -1
	n := 0 // place of the record among those of the batch
	err = protocol.NewRecoder(protocol.DefaultMaxOut).Records(b, func(r protocol.RecordView) bool {
		at, t := offset(n, r), b.Timestamp(r)
		n++
		if at < least || !want(int64(r.OffsetDelta), t) {
			return true
		}
		v, timestamp = at, t
		return false
	})
	return v, timestamp, err
}

// virtualOffsets says where the n-th record of a live batch, which lies here as
// r, is in the virtual log. The true offset of a renumbered record stands in
// the record.
func virtualOffsets(b protocol.Batch, h hit) (func(n int, r protocol.RecordView) int64, error) {
	if h.head.Flags&epoch.FlagRenumbered == 0 {
		return func(_ int, r protocol.RecordView) int64 { return h.at.V + int64(r.OffsetDelta) }, nil
	}
	rec := protocol.NewRecoder(protocol.DefaultMaxOut)
	whole, err := rec.Undensify(b, h.at.V, h.at.Epoch, h.head.Flags&epoch.FlagLogAppend != 0)
	if err != nil {
		return nil, err
	}
	var at []int64
	err = protocol.NewRecoder(protocol.DefaultMaxOut).Records(whole, func(r protocol.RecordView) bool {
		at = append(at, whole.BaseOffset()+int64(r.OffsetDelta))
		return true
	})
	return func(n int, _ protocol.RecordView) int64 {
		if n >= len(at) {
			return -1
		}
		return at[n]
	}, err
}
