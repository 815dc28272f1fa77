package mirror

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/epoch"
	"github.com/lockstep-kafka/lockstep/protocol"
)

// chunk is one source batch as the mirror has to deal with it.
type chunk struct {
	batch protocol.Batch // as the source sent it; nil: only the position moves
	base  int64          // source offsets [base, next)
	next  int64
	count int64 // offsets it takes on the destination (dense)
	epoch int32
	stamp protocol.Stamp // all but the generation
	slow  bool           // holes inside or LogAppendTime: Densify first
	open  bool           // skipped ones: a source transaction is open at next
	maxTS int64          // ms
}

// walkState is where a partition's copy stands: all that [walkRecords] needs
// to know, and what it leaves behind for the next answer.
type walkState struct {
	position int64 // next source offset wanted
	// floor: a batch whose base lies below the position is appended whole if
	// its base is not below floor (the open span's virtual start and the end
	// of what is mirrored or queued).
	floor    int64
	chainEnd int64 // from where the next hole counts
	epoch    int32 // of the last batch seen, -1: none
	open     openTxns
}

// stopKind says why a walk ended before the end of the records.
type stopKind uint8

const (
	stopNone        stopKind = iota
	stopRebase               // the batch at stop.base must be appended whole: cut to its base first (F8, M9)
	stopNewerEpoch           // a batch of a later leader epoch than was asked with (UL-03): ask again
	stopEpochFell            // leader epochs fall: not a Kafka log
	stopBareMirror           // stamped (H18)
	stopOldFormat            // magic 0 or 1
	stopCorrupt              // not a batch
	stopOffsetRange          // beyond what a stamp can hold
)

type walkStop struct {
	kind stopKind
	base int64
	err  error
}

// walkRecords goes over the records of one partition's READ_COMMITTED answer,
// headers only. known is the leader epoch the request was sent with (-1: no
// check). It drops what a read_committed consumer drops (Kafka's
// CompletedFetch): aborted batches by the answer's list, control batches; and
// empty ones. emit gets the rest in order; the skipped ones are emitted as
// chunks without a batch, neighbours of one epoch joined. Nothing is changed
// in records.
func walkRecords(st *walkState, known int32, records []byte, aborted []kmsg.FetchResponseTopicPartitionAbortedTransaction, emit func(chunk)) walkStop {
	ab, answer := protocol.NewAbortedTxns(aborted), len(records)
	var skip chunk // pending, base < 0: none
	skip.base = -1
	flush := func() {
		if skip.base >= 0 {
			skip.open = st.open.any(skip.next)
			emit(skip)
			skip.base = -1
		}
	}
	for {
		b, rest, err := protocol.NextBatch(records)
		if err != nil {
			flush()
			switch {
			case errors.Is(err, io.EOF), errors.Is(err, protocol.ErrPartialBatch) && len(records) < answer:
				return walkStop{}
			case errors.Is(err, protocol.ErrPartialBatch): // brokers send the first one whole (KIP-74)
				err = fmt.Errorf("%w, first in an answer of %d bytes", err, answer)
			case errors.Is(err, protocol.ErrMagic) && isOldMessage(records, st.position):
				return walkStop{kind: stopOldFormat, base: st.position, err: err}
			}
			return walkStop{kind: stopCorrupt, base: st.position, err: err}
		}
		records = rest
		base, next, e := b.BaseOffset(), b.NextOffset(), b.PartitionLeaderEpoch()
		if e < 0 {
			e = max(st.epoch, 0) // written before brokers knew leader epochs
		}
		stop := walkStop{base: base}
		switch {
		case next <= st.position:
			ab.Pass(b)
			continue
		case known >= 0 && e > known:
			stop.kind = stopNewerEpoch
		case b.ProducerID() < -1:
			stop.kind, stop.err = stopBareMirror, ErrBareMirror
		case e < st.epoch:
			stop.kind = stopEpochFell
			stop.err = fmt.Errorf("batch at offset %d has leader epoch %d, the one before it %d", base, e, st.epoch)
		case base < 0 || next > epoch.MaxVirtualOffset:
			stop.kind = stopOffsetRange
			stop.err = fmt.Errorf("batch at offset %d is beyond the %d that a stamp can hold", base, epoch.MaxVirtualOffset)
		}
		if stop.kind != stopNone {
			flush()
			return stop
		}
		if drop := ab.Pass(b); drop || b.IsControl() || b.NumRecords() == 0 {
			if b.IsControl() {
				st.open.ended(b.ProducerID())
			}
			from := max(base, st.position)
			if skip.base >= 0 && skip.epoch != e {
				flush()
			}
			if skip.base < 0 {
				skip = chunk{base: from, epoch: e}
			}
			skip.next = next
			st.position, st.epoch = next, e
			continue
		}
		if base < st.position && base < st.floor {
			flush()
			return walkStop{kind: stopRebase, base: base}
		}
		flush()
		c := chunk{
			batch: b, base: base, next: next, epoch: e, maxTS: b.MaxTimestamp(),
			count: int64(b.LastOffsetDelta()) + 1,
			stamp: protocol.Stamp{V: base, Epoch: e, Hole: hole(base - st.chainEnd)},
		}
		if b.HasHoles() {
			c.count, c.slow = int64(b.NumRecords()), true
			c.stamp.Flags |= epoch.FlagRenumbered
		}
		if b.LogAppendTime() {
			c.slow = true
			c.stamp.Flags |= epoch.FlagLogAppend
		}
		if b.IsTransactional() {
			st.open.begun(b.ProducerID())
		}
		if st.open.any(next) {
			c.stamp.Flags |= epoch.FlagOpen
		}
		st.position, st.floor, st.epoch = next, next, e
		st.chainEnd = base + c.count
		emit(c)
	}
}

// isOldMessage tells a message of format v0 or v1 that may stand at a position
// from bytes that happen to have their magic. A compressed one has the offset of
// its last message.
func isOldMessage(b []byte, position int64) bool {
	base := int64(binary.BigEndian.Uint64(b))
	return b[16] <= 1 && base >= position && base-position <= math.MaxInt32
}

// hole is a stamp's hole field for n skipped offsets.
func hole(n int64) uint8 {
	if n >= int64(epoch.HoleMore) {
		return epoch.HoleMore
	}
	return uint8(max(n, 0))
}

// openTxns tells whether a source transaction was begun and not ended at an
// offset (stamp flag open, hazard M11). After a restart nothing is known about
// transactions begun before: until says up to where one may still be open.
type openTxns struct {
	pids  map[int64]struct{}
	until int64 // what ends below may be inside a transaction not seen to begin
}

func (o *openTxns) begun(pid int64) {
	if o.pids == nil {
		o.pids = map[int64]struct{}{}
	}
	o.pids[pid] = struct{}{}
}

func (o *openTxns) ended(pid int64) { delete(o.pids, pid) }

func (o *openTxns) any(next int64) bool { return len(o.pids) > 0 || next < o.until }
