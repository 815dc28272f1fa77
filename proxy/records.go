package proxy

import (
	"github.com/lockstep-kafka/lockstep/epoch"
	"github.com/lockstep-kafka/lockstep/protocol"
)

// epochBatch is a batch's header as package epoch wants it.
type epochBatch = epoch.Batch

// findRecord finds the first record of a live batch that want accepts, given
// its offset delta as it lies here and its timestamp (ms). It returns the
// record's virtual offset and timestamp, (-1, -1) for none. It decompresses:
// for workers only.
func findRecord(b protocol.Batch, h hit, want func(delta, timestamp int64) bool) (v, timestamp int64, err error) {
	rec := protocol.NewRecoder(protocol.DefaultMaxOut)
	v, timestamp = -1, -1
	nth, n := -1, 0 // place of the record among those of the batch
	err = rec.Records(b, func(r protocol.RecordView) bool {
		if t := b.Timestamp(r); want(int64(r.OffsetDelta), t) {
			v, timestamp, nth = h.at.V+int64(r.OffsetDelta), t, n
			return false
		}
		n++
		return true
	})
	if err != nil || nth < 0 || h.head.Flags&epoch.FlagRenumbered == 0 {
		return v, timestamp, err
	}
	// The true offset of a renumbered record stands in the record.
	whole, err := rec.Undensify(b, h.at.V, h.at.Epoch, h.head.Flags&epoch.FlagLogAppend != 0)
	if err != nil {
		return -1, -1, err
	}
	n = 0
	err = protocol.NewRecoder(protocol.DefaultMaxOut).Records(whole, func(r protocol.RecordView) bool {
		if n == nth {
			v = whole.BaseOffset() + int64(r.OffsetDelta)
			return false
		}
		n++
		return true
	})
	return v, timestamp, err
}
