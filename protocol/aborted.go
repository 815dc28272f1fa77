package protocol

import (
	"encoding/binary"
	"slices"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// AbortedTxns is a read_committed consumer's view of one Fetch answer's list of
// aborted transactions (Kafka's CompletedFetch).
type AbortedTxns struct {
	list []kmsg.FetchResponseTopicPartitionAbortedTransaction // by first offset
	now  map[int64]struct{}                                   // producer ids whose aborted transaction goes on here
}

// NewAbortedTxns takes an answer's list, which it sorts.
func NewAbortedTxns(list []kmsg.FetchResponseTopicPartitionAbortedTransaction) *AbortedTxns {
	a := &AbortedTxns{list: list}
	if len(list) > 0 {
		a.now = make(map[int64]struct{}, len(list))
		slices.SortStableFunc(list, func(x, y kmsg.FetchResponseTopicPartitionAbortedTransaction) int {
			return int(min(max(x.FirstOffset-y.FirstOffset, -1), 1))
		})
	}
	return a
}

// Pass takes the next batch of the answer in and says whether its records are
// aborted ones. Control batches are none: the caller drops them by themselves.
func (a *AbortedTxns) Pass(b Batch) bool {
	if len(a.list) == 0 && len(a.now) == 0 || b.ProducerID() < 0 {
		return false
	}
	last := b.NextOffset() - 1
	for len(a.list) > 0 && a.list[0].FirstOffset <= last {
		a.now[a.list[0].ProducerID] = struct{}{}
		a.list = a.list[1:]
	}
	if b.IsControl() {
		if isAbortMarker(b) {
			delete(a.now, b.ProducerID())
		}
		return false
	}
	if !b.IsTransactional() {
		return false
	}
	_, is := a.now[b.ProducerID()]
	return is
}

// isAbortMarker reads a control batch's first record's key: version, type 0.
// The cleaner leaves control batches without records behind; they are none.
func isAbortMarker(b Batch) bool {
	abort := false
	_ = Records(b, func(r RecordView) bool {
		abort = len(r.Key) >= 4 && binary.BigEndian.Uint16(r.Key[2:]) == 0
		return false
	})
	return abort
}
