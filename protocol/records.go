package protocol

import "fmt"

// RecordView is one record of a batch. Its slices alias the batch or a buffer
// that is reused after the callback returns: copy what must survive.
type RecordView struct {
	Attributes     int8
	TimestampDelta int64  // ms, to Batch.BaseTimestamp; see Batch.Timestamp
	OffsetDelta    int32  // to Batch.BaseOffset
	Key            []byte // nil: null
	Value          []byte // nil: null
	NumHeaders     int
	Headers        []byte // the encoded headers behind their count; see EachHeader

	keyValue []byte // key and value with their lengths, as they stand
}

// Timestamp is the record's time in ms, as a consumer gets it: the batch's
// append time, or base timestamp + delta (also when the base is a delete
// horizon). int64 all the way: times may be negative and beyond the year 9999.
func (b Batch) Timestamp(r RecordView) int64 {
	if b.LogAppendTime() {
		return b.MaxTimestamp()
	}
	return b.BaseTimestamp() + r.TimestampDelta
}

// EachHeader calls f for each header in order until f returns false. A nil
// value is null.
func (r RecordView) EachHeader(f func(key, value []byte) bool) error {
	in := recReader{b: r.Headers}
	for range r.NumHeaders {
		key, value := in.header()
		if in.bad {
			return fmt.Errorf("%w: header does not fit", ErrCorruptBatch)
		}
		if !f(key, value) {
			return nil
		}
	}
	return nil
}

// eachRecord walks n records in data, the uncompressed records part of a batch,
// checking all that a reader relies on: sizes, rising offset deltas up to
// last, nothing left over (DefaultRecord.readFrom, DefaultRecordBatch).
func eachRecord(data []byte, n, last int32, f func(r *RecordView) error) error {
	in := recReader{b: data}
	if n < 0 || int64(n)*minRecordSize > int64(len(data)) {
		return fmt.Errorf("%w: %d records in %d bytes", ErrCorruptBatch, n, len(data))
	}
	var r RecordView
	previous := int32(-1)
	for i := range n {
		size := in.varint()
		if in.bad || size < 0 || int(size) > len(in.b) {
			return fmt.Errorf("%w: record %d of %d does not fit", ErrCorruptBatch, i, n)
		}
		if err := r.parse(in.take(int(size))); err != nil {
			return fmt.Errorf("record %d of %d: %w", i, n, err)
		}
		if r.OffsetDelta <= previous || r.OffsetDelta > last {
			return fmt.Errorf("%w: record %d of %d has offset delta %d after %d, last is %d",
				ErrCorruptBatch, i, n, r.OffsetDelta, previous, last)
		}
		previous = r.OffsetDelta
		if err := f(&r); err != nil {
			return err
		}
	}
	if len(in.b) != 0 {
		return fmt.Errorf("%w: %d bytes behind the last record", ErrCorruptBatch, len(in.b))
	}
	return nil
}

// minRecordSize: size, attributes, both deltas, key and value length, header count.
const minRecordSize = 7

func (r *RecordView) parse(body []byte) error {
	in := recReader{b: body}
	r.Attributes = int8(in.byte())
	r.TimestampDelta = in.varlong()
	r.OffsetDelta = in.varint()
	rest := in.b
	r.Key = in.bytes()
	r.Value = in.bytes()
	r.keyValue = rest[:len(rest)-len(in.b)]
	r.NumHeaders = int(in.varint())
	r.Headers = in.b
	if in.bad || r.NumHeaders < 0 || r.NumHeaders > len(in.b) { // a header has 2 bytes at least
		return fmt.Errorf("%w: fields do not fit", ErrCorruptBatch)
	}
	for range r.NumHeaders {
		if in.header(); in.bad {
			return fmt.Errorf("%w: header does not fit", ErrCorruptBatch)
		}
	}
	if len(in.b) != 0 {
		return fmt.Errorf("%w: %d bytes behind the headers", ErrCorruptBatch, len(in.b))
	}
	return nil
}

// recReader reads Kafka's record encoding; after an error bad is set and every
// read returns zero.
type recReader struct {
	b   []byte
	bad bool
}

func (r *recReader) fail() {
	r.bad = true
	r.b = nil
}

func (r *recReader) byte() byte {
	if len(r.b) == 0 {
		r.fail()
		return 0
	}
	c := r.b[0]
	r.b = r.b[1:]
	return c
}

func (r *recReader) take(n int) []byte {
	if n < 0 || n > len(r.b) {
		r.fail()
		return nil
	}
	s := r.b[:n:n]
	r.b = r.b[n:]
	return s
}

// uvarint of at most limit bytes (ByteUtils.readUnsignedVarlong).
func (r *recReader) uvarint(limit int) uint64 {
	var v uint64
	for i := range min(limit, len(r.b)) {
		c := r.b[i]
		v |= uint64(c&0x7f) << (7 * i)
		if c < 0x80 {
			r.b = r.b[i+1:]
			return v
		}
	}
	r.fail()
	return 0
}

func (r *recReader) varint() int32 {
	u := uint32(r.uvarint(5))
	return int32(u>>1) ^ -int32(u&1)
}

func (r *recReader) varlong() int64 {
	u := r.uvarint(10)
	return int64(u>>1) ^ -int64(u&1)
}

// bytes with a length before them; -1 is null. Below that the file is corrupt.
func (r *recReader) bytes() []byte {
	n := r.varint()
	if n == -1 {
		return nil
	}
	return r.take(int(n))
}

func (r *recReader) header() (key, value []byte) {
	key = r.take(int(r.varint()))
	return key, r.bytes()
}

func varintSize(v int64) int {
	n := 1
	for u := uint64(v<<1 ^ v>>63); u >= 0x80; u >>= 7 {
		n++
	}
	return n
}
