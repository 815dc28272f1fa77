package protocol

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math"
)

// The slow path: batches that a broker won't take as they are (DESIGN §6), and
// everything else that has to look at records. For a worker pool, never an
// event loop.
//
// Holes. A compacted source's batch may have fewer records than offsets; a
// broker refuses it. Densify numbers the records 0, 1, 2 … and appends to each a
// header, key DeltaHeader, value two unsigned varints (base 128, low bits
// first): the record's offset delta in the source batch, and that batch's
// lastOffsetDelta. The second stands in every record and not just in the last
// one, as the destination's cleaner may remove any of them; it never changes a
// header. The stamp's flag "renumbered" tells that the last header of each
// record is ours; an application's own header of that name stays where it is.
//
// LogAppendTime. The true time of each record is the batch's maxTimestamp, the
// deltas hold what the producer thought. The header alone can't carry it
// through a CreateTime topic: with attribute bit 3 cleared Kafka's LogValidator
// walks the records (compressed ones too) and writes the largest record time
// into maxTimestamp; with bit 3 left on, 4.3.1 clears it and keeps maxTimestamp,
// but older brokers refuse that, and a cleaner that rewrites the batch loses it
// all the same. So each record gets the append time as its own; then time
// index, retention and readers of the bare destination see it as well. Where the
// deltas say so already only the header changes. The way back is the attribute
// bit (RestoreLogAppend): clients then take maxTimestamp for every record. What
// the producer thought is lost; no client of the source could see it.
//
// Delete horizon. With attribute bit 6 the base timestamp is the horizon and
// deltas are relative to that (DefaultRecordBatch), so both keep it.

// DeltaHeader is the key of the header that Densify appends to records.
const DeltaHeader = "lockstep.delta"

// DefaultMaxOut is what the functions without a limit of their own allow one
// batch to decompress to, in bytes.
const DefaultMaxOut = 128 << 20

// Densify makes of a batch with holes or of timestamp type LogAppendTime one
// that WriteStamp takes: same records and codec, new CRC. logAppend is what the
// stamp's flag log-append-time will say and must be b.LogAppendTime();
// renumbered must be set iff b.HasHoles(). A batch that needs neither is
// returned as it is, else the result shares nothing with b.
//
// Errors: ErrCRC (checked first: a bad batch never gets a good CRC),
// ErrControlBatch, ErrEmptyBatch (skip both), ErrCorruptBatch, ErrCodec,
// ErrTooLarge (more than maxOut bytes; memory used is a small multiple of that).
func Densify(b Batch, logAppend bool, maxOut int) (Batch, error) {
	return NewRecoder(maxOut).Densify(b, logAppend)
}

// Undensify returns a renumbered batch as the source had it, at v and with
// leader epoch, producer fields -1; logAppend: the stamp's flag. The result
// shares nothing with b. Errors as of Densify; ErrCorruptBatch too when a
// record lacks its header.
func Undensify(b Batch, v int64, epoch int32, logAppend bool) (Batch, error) {
	return NewRecoder(DefaultMaxOut).Undensify(b, v, epoch, logAppend)
}

// VirtualCount is the number of offsets that a renumbered batch took on the
// source: its lastOffsetDelta there + 1. Errors as of Undensify.
func VirtualCount(b Batch) (int64, error) { return NewRecoder(DefaultMaxOut).VirtualCount(b) }

// Records calls f for each record until f returns false. The view dies with the
// callback. Errors: ErrCorruptBatch, ErrCodec, ErrTooLarge; the CRC is not
// checked.
func Records(b Batch, f func(RecordView) bool) error {
	return NewRecoder(DefaultMaxOut).Records(b, f)
}

// Recoder is the slow path with its buffers and (de)compressors kept from batch
// to batch: one per worker, not for concurrent use. Its methods are the
// functions of the same names.
type Recoder struct {
	// Alloc, when set, gives the memory for a result: an empty slice with a
	// capacity of n. It is asked at most once for each; a result that turns out
	// larger lies elsewhere.
	Alloc func(n int) []byte

	codecs  codecs
	plain   []byte // records as decompressed
	records []byte // records as built
}

// NewRecoder makes a Recoder that lets one batch decompress to maxOut bytes.
func NewRecoder(maxOut int) *Recoder { return &Recoder{codecs: codecs{maxOut: maxOut}} }

// Densify: see the function of this name.
func (r *Recoder) Densify(b Batch, logAppend bool) (Batch, error) {
	holes := b.HasHoles()
	switch {
	case b.IsControl():
		return nil, ErrControlBatch
	case b.NumRecords() == 0:
		return nil, ErrEmptyBatch
	case logAppend != b.LogAppendTime():
		return nil, fmt.Errorf("%w: %v, but it is to be stamped %v", ErrLogAppendTime, b.LogAppendTime(), logAppend)
	case !b.CheckCRC():
		return nil, ErrCRC
	case !holes && !logAppend:
		return b, nil
	}

	base := b.BaseTimestamp()
	if logAppend && !b.HasDeleteHorizon() {
		base = b.MaxTimestamp()
	}
	appended := b.MaxTimestamp() - base // every record's delta when logAppend
	last := b.LastOffsetDelta()
	count := int32(0)
	changed := holes
	var value [2 * binary.MaxVarintLen32]byte
	err := r.rebuild(b, func(rec *RecordView) error {
		if logAppend && rec.TimestampDelta != appended {
			rec.TimestampDelta, changed = appended, true
		}
		var own []byte
		if holes {
			own = binary.AppendUvarint(value[:0], uint64(rec.OffsetDelta))
			own = binary.AppendUvarint(own, uint64(last))
			rec.OffsetDelta = count
		}
		count++
		r.appendRecord(rec, rec.Headers, own)
		return nil
	})
	if err != nil {
		return nil, err
	}

	var out Batch
	if changed {
		if out, err = r.close(b); err != nil {
			return nil, err
		}
	} else {
		out = append(r.begin(b, len(b)), b[BatchHeaderSize:]...)
	}
	out.putInt32(offLastOffsetDelta, count-1)
	out.putInt64(offBaseTimestamp, base)
	out.setAttributes(b.Attributes() &^ attrLogAppendTime)
	out.renewCRC()
	return out, nil
}

// Undensify: see the function of this name.
func (r *Recoder) Undensify(b Batch, v int64, epoch int32, logAppend bool) (Batch, error) {
	switch {
	case b.NumRecords() == 0:
		return nil, ErrEmptyBatch
	case !b.CheckCRC():
		return nil, ErrCRC
	}
	previous, last := int32(-1), int32(-1)
	err := r.rebuild(b, func(rec *RecordView) error {
		headers, delta, l, err := rec.cutDelta()
		if err != nil {
			return err
		}
		if delta <= previous || (last >= 0 && l != last) {
			return fmt.Errorf("%w: %s: (%d, %d) after (%d, %d)", ErrCorruptBatch, DeltaHeader, delta, l, previous, last)
		}
		previous, last = delta, l
		rec.OffsetDelta = delta
		rec.NumHeaders--
		r.appendRecord(rec, headers, nil)
		return nil
	})
	if err != nil {
		return nil, err
	}
	out, err := r.close(b)
	if err != nil {
		return nil, err
	}
	out.putInt32(offLastOffsetDelta, last)
	if logAppend {
		out.setAttributes(out.Attributes() | attrLogAppendTime)
	}
	out.putProducer(-1, -1, -1)
	out.SetBase(v, epoch)
	out.renewCRC()
	return out, nil
}

// VirtualCount: see the function of this name.
func (r *Recoder) VirtualCount(b Batch) (int64, error) {
	switch {
	case b.NumRecords() == 0:
		return 0, ErrEmptyBatch
	case !b.CheckCRC():
		return 0, ErrCRC
	}
	count := int64(0)
	err := r.each(b, func(rec *RecordView) error {
		_, _, last, err := rec.cutDelta()
		if err != nil {
			return err
		}
		count = int64(last) + 1
		return errStop // one record tells
	})
	return count, err
}

// Records: see the function of this name.
func (r *Recoder) Records(b Batch, f func(RecordView) bool) error {
	return r.each(b, func(rec *RecordView) error {
		if f(*rec) {
			return nil
		}
		return errStop
	})
}

// errStop ends each early and without an error.
var errStop = errors.New("stop")

// each decompresses b's records and walks them.
func (r *Recoder) each(b Batch, f func(*RecordView) error) error {
	data := []byte(b[BatchHeaderSize:])
	if codec := b.Codec(); codec != CodecNone {
		plain, err := r.codecs.decompress(r.plain[:0], codec, data)
		if err != nil {
			return err
		}
		if data = plain; cap(plain) <= keepScratch {
			r.plain = plain
		}
	}
	if err := eachRecord(data, b.NumRecords(), b.LastOffsetDelta(), f); !errors.Is(err, errStop) {
		return err
	}
	return nil
}

// rebuild is each for an f that builds new records with appendRecord; close
// then makes a batch of them.
func (r *Recoder) rebuild(b Batch, f func(*RecordView) error) error {
	r.records = r.records[:0]
	return r.each(b, f)
}

// appendRecord adds rec, with the encoded headers given and, unless own is nil,
// one more: DeltaHeader with that value.
func (r *Recoder) appendRecord(rec *RecordView, headers, own []byte) {
	numHeaders := int64(rec.NumHeaders)
	size := 1 + varintSize(rec.TimestampDelta) + varintSize(int64(rec.OffsetDelta)) + len(rec.keyValue) + len(headers)
	if own != nil {
		numHeaders++
		size += 1 + len(DeltaHeader) + 1 + len(own) // both lengths are below 64
	}
	size += varintSize(numHeaders)

	dst := binary.AppendVarint(r.records, int64(size))
	dst = append(dst, byte(rec.Attributes))
	dst = binary.AppendVarint(dst, rec.TimestampDelta)
	dst = binary.AppendVarint(dst, int64(rec.OffsetDelta))
	dst = append(dst, rec.keyValue...)
	dst = binary.AppendVarint(dst, numHeaders)
	dst = append(dst, headers...)
	if own != nil {
		dst = binary.AppendVarint(dst, int64(len(DeltaHeader)))
		dst = append(dst, DeltaHeader...)
		dst = binary.AppendVarint(dst, int64(len(own)))
		dst = append(dst, own...)
	}
	r.records = dst
}

// close makes a batch of b's header and the records built, compressed as b is.
// The caller sets the fields that differ, then renewCRC.
func (r *Recoder) close(b Batch) (Batch, error) {
	records := r.records
	if cap(records) > keepScratch {
		r.records = nil
	}
	dst := r.begin(b, BatchHeaderSize+len(records)/b.shrink()+64)
	dst, err := r.codecs.compress(dst, b.Codec(), records)
	if err != nil {
		return nil, err
	}
	if len(dst) > math.MaxInt32 {
		return nil, fmt.Errorf("%w: %d bytes", ErrTooLarge, len(dst))
	}
	out := Batch(dst)
	out.putInt32(offLength, int32(len(dst)-sizePrefix))
	return out, nil
}

// begin is memory for a result of n bytes, with b's header in it.
func (r *Recoder) begin(b Batch, n int) []byte {
	if r.Alloc == nil {
		return append(make([]byte, 0, n), b[:BatchHeaderSize]...)
	}
	return append(r.Alloc(n), b[:BatchHeaderSize]...)
}

// shrink guesses how far compression takes the records down.
func (b Batch) shrink() int {
	if b.Codec() == CodecNone {
		return 1
	}
	return 2
}

// renewCRC computes the CRC anew: only after the CRC of what the batch was made
// from has been found right.
func (b Batch) renewCRC() { b.putCRC(crc32.Checksum(b[offAttributes:], crcTable)) }

// cutDelta takes the record's last header, which must be ours, off its headers
// and reads it.
func (r *RecordView) cutDelta() (headers []byte, delta, last int32, err error) {
	in := recReader{b: r.Headers}
	var key, value []byte
	for range r.NumHeaders {
		headers = r.Headers[:len(r.Headers)-len(in.b)]
		key, value = in.header()
	}
	if string(key) != DeltaHeader {
		return nil, 0, 0, fmt.Errorf("%w: the last header of a renumbered record is %q, not %q", ErrCorruptBatch, key, DeltaHeader)
	}
	in = recReader{b: value}
	d, l := in.uvarint(binary.MaxVarintLen32), in.uvarint(binary.MaxVarintLen32)
	if in.bad || len(in.b) != 0 || d > l || l > math.MaxInt32 {
		return nil, 0, 0, fmt.Errorf("%w: %s: %x", ErrCorruptBatch, DeltaHeader, value)
	}
	return headers, int32(d), int32(l), nil
}
