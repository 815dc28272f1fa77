package protocol

import (
	"encoding/binary"
	"fmt"
	"math"
)

// Merging (DESIGN §5): many small batches cost a broker, and everybody who
// reads them, as much as large ones each. Neighbours can be written as one: the
// records stay what they are, byte for byte but for the two deltas that count
// from the batch's header. Where one batch ended and the next began is lost.

// MergesWith tells whether next can be joined to the batch b by Merge, from the
// headers alone: it begins where b ends, with the same codec, and neither is
// one that a broker won't take as it is or whose base timestamp is a delete
// horizon.
func (b Batch) MergesWith(next Batch) bool {
	return b.NextOffset() == next.BaseOffset() && b.Codec() == next.Codec() && b.mergeable() && next.mergeable()
}

func (b Batch) mergeable() bool { return b.producible() == nil && !b.HasDeleteHorizon() }

// Merge makes one batch of neighbours, each of which MergesWith the one before:
// base offset, base timestamp, codec, leader epoch and producer fields of the
// first, the transactional bit cleared, new CRC. The result shares nothing with
// them.
//
// Errors: ErrCRC (checked first: a bad batch never gets a good CRC),
// ErrCorruptBatch, ErrCodec, ErrTooLarge.
func (r *Recoder) Merge(list []Batch) (Batch, error) {
	if len(list) == 0 {
		return nil, ErrEmptyBatch
	}
	first := list[0]
	size, plain := 0, first.Codec() == CodecNone
	for i, b := range list {
		if i > 0 && !list[i-1].MergesWith(b) || !b.mergeable() {
			return nil, fmt.Errorf("%w: the batch at offset %d can't be joined to the one at %d", ErrCorruptBatch, b.BaseOffset(), first.BaseOffset())
		}
		if !b.CheckCRC() {
			return nil, fmt.Errorf("%w: at offset %d", ErrCRC, b.BaseOffset())
		}
		size += b.Size()
	}
	if size > math.MaxInt32/2 {
		return nil, fmt.Errorf("%w: %d bytes", ErrTooLarge, size)
	}
	var dst []byte
	if plain {
		// Each record's deltas grow by a few bytes at most.
		dst = r.begin(first, size+size/32+BatchHeaderSize)
	} else {
		dst = r.records[:0]
	}
	offset, latest := int32(0), first.MaxTimestamp()
	for _, b := range list {
		data := []byte(b[BatchHeaderSize:])
		if !plain {
			out, err := r.codecs.decompress(r.plain[:0], b.Codec(), data)
			if err != nil {
				return nil, err
			}
			if data = out; cap(out) <= keepScratch {
				r.plain = out
			}
		}
		var err error
		if dst, err = appendShifted(dst, data, b.NumRecords(), b.BaseTimestamp()-first.BaseTimestamp(), offset); err != nil {
			return nil, fmt.Errorf("batch at offset %d: %w", b.BaseOffset(), err)
		}
		if len(dst) > r.codecs.maxOut {
			return nil, fmt.Errorf("%w: the joined batches have more than %d bytes of records", ErrTooLarge, r.codecs.maxOut)
		}
		offset += b.NumRecords()
		latest = max(latest, b.MaxTimestamp())
	}
	out := Batch(dst)
	if plain {
		out.putInt32(offLength, int32(len(dst)-sizePrefix))
	} else {
		r.records = dst
		var err error
		if out, err = r.close(first); err != nil {
			return nil, err
		}
	}
	out.joined(offset, latest)
	return out, nil
}

// joined fills in the header of a batch of n records joined from others, which
// begins as the first of them.
func (b Batch) joined(n int32, latest int64) {
	b.setAttributes(b.Attributes() &^ attrTransactional)
	b.putInt32(offLastOffsetDelta, n-1)
	b.putInt32(offNumRecords, n)
	b.putInt64(offMaxTimestamp, latest)
	b.renewCRC()
}

// JoinsWith tells whether next can be joined to the batch b by MergeSparse, from
// the headers alone: it lies behind b, whatever is missing between and in them,
// with the same codec, and neither is a control batch, empty, of LogAppendTime or
// one whose base timestamp is a delete horizon.
func (b Batch) JoinsWith(next Batch) bool {
	return b.NextOffset() <= next.BaseOffset() && b.Codec() == next.Codec() && b.sparse() && next.sparse()
}

func (b Batch) sparse() bool {
	return !b.IsControl() && b.NumRecords() > 0 && !b.LogAppendTime() && !b.HasDeleteHorizon()
}

// MergeSparse makes one renumbered batch, as Densify does, of batches each of
// which JoinsWith the one before: records numbered 0, 1, 2 …, with their offset
// deltas from the first batch's base in the header of Densify, as if the source
// had had them in one batch, that ends where the last one does. Otherwise as Merge.
func (r *Recoder) MergeSparse(list []Batch) (Batch, error) {
	if len(list) == 0 {
		return nil, ErrEmptyBatch
	}
	first := list[0]
	span := list[len(list)-1].NextOffset() - first.BaseOffset()
	if span > math.MaxInt32 {
		return nil, fmt.Errorf("%w: %d offsets in one batch", ErrTooLarge, span)
	}
	latest, count := first.MaxTimestamp(), int32(0)
	var value [2 * binary.MaxVarintLen32]byte
	records := r.records[:0]
	for i, b := range list {
		if i > 0 && !list[i-1].JoinsWith(b) || !b.sparse() {
			return nil, fmt.Errorf("%w: the batch at offset %d can't be joined to the one at %d", ErrCorruptBatch, b.BaseOffset(), first.BaseOffset())
		}
		if !b.CheckCRC() {
			return nil, fmt.Errorf("%w: at offset %d", ErrCRC, b.BaseOffset())
		}
		later, further := b.BaseTimestamp()-first.BaseTimestamp(), int32(b.BaseOffset()-first.BaseOffset())
		r.records = records
		err := r.each(b, func(rec *RecordView) error {
			own := binary.AppendUvarint(value[:0], uint64(further+rec.OffsetDelta))
			own = binary.AppendUvarint(own, uint64(span-1))
			rec.TimestampDelta += later
			rec.OffsetDelta = count
			count++
			r.appendRecord(rec, rec.Headers, own)
			return nil
		})
		if err != nil {
			return nil, fmt.Errorf("batch at offset %d: %w", b.BaseOffset(), err)
		}
		if records = r.records; len(records) > r.codecs.maxOut {
			return nil, fmt.Errorf("%w: the joined batches have more than %d bytes of records", ErrTooLarge, r.codecs.maxOut)
		}
		latest = max(latest, b.MaxTimestamp())
	}
	out, err := r.close(first)
	if err != nil {
		return nil, err
	}
	out.joined(count, latest)
	return out, nil
}

// appendShifted appends the n records in data, whose offset deltas are 0, 1, 2
// …, with the deltas raised: of time by ms, of offsets by offset.
func appendShifted(dst, data []byte, n int32, ms int64, offset int32) ([]byte, error) {
	in := recReader{b: data}
	for i := range n {
		size := in.varint()
		if in.bad || size < minRecordSize-1 || int(size) > len(in.b) {
			return nil, fmt.Errorf("%w: record %d of %d does not fit", ErrCorruptBatch, i, n)
		}
		body := recReader{b: in.take(int(size))}
		attributes := body.byte()
		delta := body.varlong() + ms
		if at := body.varint(); body.bad || at != i {
			return nil, fmt.Errorf("%w: record %d of %d has offset delta %d", ErrCorruptBatch, i, n, at)
		}
		dst = binary.AppendVarint(dst, int64(1+varintSize(delta)+varintSize(int64(offset+i))+len(body.b)))
		dst = append(dst, attributes)
		dst = binary.AppendVarint(dst, delta)
		dst = binary.AppendVarint(dst, int64(offset+i))
		dst = append(dst, body.b...)
	}
	if len(in.b) != 0 {
		return nil, fmt.Errorf("%w: %d bytes behind the last record", ErrCorruptBatch, len(in.b))
	}
	return dst, nil
}
