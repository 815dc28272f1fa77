package verify

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/lockstep-kafka/lockstep/protocol"
)

// stream is a partition of one side, batch by batch.
type stream interface {
	// next is the next batch that holds records a consumer would be shown, with
	// the producer's part of the header taken off; io.EOF at the end.
	next(ctx context.Context) (protocol.Batch, error)
	// skip goes on at an offset, further on.
	skip(offset int64)
	close()
}

// movedError: the log's start is now behind the position (retention, or
// records deleted).
type movedError struct{ start int64 }

func (e *movedError) Error() string { return fmt.Sprintf("the log begins at %d now", e.start) }

// walker goes over one side's records in [from, to), by batch where that will
// do.
type walker struct {
	in       stream
	from, to int64
	rc       *protocol.Recoder
	epoch    int32 // of the last batch

	batch   protocol.Batch // nil: ask for the next one
	end     bool
	decoded bool
	recs    []rec // of batch, in [from, to)
	at      int   // the next of them
}

func newWalker(in stream, from, to int64) *walker {
	return &walker{in: in, from: from, to: to, rc: protocol.NewRecoder(protocol.DefaultMaxOut), epoch: -1}
}

// fill makes batch the one with the next record; nil: there is none. A batch
// that is cut by the bounds is decoded at once.
func (w *walker) fill(ctx context.Context) error {
	for w.batch == nil && !w.end {
		b, err := w.in.next(ctx)
		switch {
		case errors.Is(err, io.EOF):
			w.end = true
			return nil
		case err != nil:
			return err
		case b.BaseOffset() >= w.to:
			w.end = true
			return nil
		case b.NextOffset() <= w.from:
			continue
		}
		if e := b.PartitionLeaderEpoch(); e >= 0 {
			w.epoch = e
		} else { // written before brokers knew leader epochs
			w.epoch = max(w.epoch, 0)
		}
		w.batch, w.decoded, w.at = b, false, 0
		if b.BaseOffset() < w.from || b.NextOffset() > w.to {
			if err := w.decode(); err != nil {
				return err
			}
			if len(w.recs) == 0 {
				w.batch = nil
			}
		}
	}
	return nil
}

// corruptError is a batch that can't be taken apart.
type corruptError struct {
	base int64
	err  error
}

func (e *corruptError) Error() string { return fmt.Sprintf("batch at offset %d: %v", e.base, e.err) }
func (e *corruptError) Unwrap() error { return e.err }

func (w *walker) decode() error {
	if w.decoded {
		return nil
	}
	b := w.batch
	if !b.CheckCRC() {
		return &corruptError{b.BaseOffset(), protocol.ErrCRC}
	}
	w.recs = w.recs[:0]
	err := w.rc.Records(b, func(v protocol.RecordView) bool {
		o := b.BaseOffset() + int64(v.OffsetDelta)
		if o >= w.from && o < w.to {
			w.recs = append(w.recs, rec{offset: o, epoch: w.epoch, time: b.Timestamp(v), logAppend: b.LogAppendTime(), view: v})
		}
		return true
	})
	if err != nil {
		return &corruptError{b.BaseOffset(), err}
	}
	w.decoded = true
	return nil
}

// whole tells whether nothing of the batch has been taken.
func (w *walker) whole() bool { return w.batch != nil && !w.decoded }

// record is the next one; nil at the end.
func (w *walker) record(ctx context.Context) (*rec, error) {
	for {
		if err := w.fill(ctx); err != nil || w.batch == nil {
			return nil, err
		}
		if err := w.decode(); err != nil {
			return nil, err
		}
		if w.at < len(w.recs) {
			return &w.recs[w.at], nil
		}
		w.batch = nil
	}
}

// drop goes past the whole batch.
func (w *walker) drop() { w.batch = nil }

// pop goes past the next record.
func (w *walker) pop() {
	if w.at++; w.at == len(w.recs) {
		w.batch = nil
	}
}

// skip leaves out what lies below an offset.
func (w *walker) skip(offset int64) {
	if offset <= w.from {
		return
	}
	w.from = offset
	if w.batch == nil {
		w.in.skip(offset)
		return
	}
	if w.batch.NextOffset() <= offset {
		w.batch = nil
		w.in.skip(offset)
		return
	}
	if !w.decoded {
		if w.batch.BaseOffset() < offset {
			// fill would have decoded it: the same way now.
			if err := w.decode(); err != nil {
				return // the next use of the batch meets it again
			}
		}
		return
	}
	for w.at < len(w.recs) && w.recs[w.at].offset < offset {
		w.at++
	}
	if w.at == len(w.recs) {
		w.batch = nil
	}
}
