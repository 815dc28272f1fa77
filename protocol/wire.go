package protocol

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// Errors of the message parsers. They wrap details with %w; a frame that gives
// one of them can't be read on: the caller closes the connection and says so.
var (
	// ErrShort: the frame ends before the field it promises.
	ErrShort = errors.New("message is shorter than its fields say")
	// ErrCount: an array says it has more elements than bytes are left for.
	ErrCount = errors.New("array count is larger than the bytes left allow")
	// ErrVarint: an unsigned varint longer than 5 bytes or above 2^32-1.
	ErrVarint = errors.New("varint is too long")
	// ErrTrailing: bytes are left after the last field.
	ErrTrailing = errors.New("bytes are left after the last field")
	// ErrNull: a field that can't be null is null.
	ErrNull = errors.New("null in a field that can't be null")
)

// wireReader walks one message body. The first error sticks; reads after it
// give zero values, so callers check once at the end.
type wireReader struct {
	b    []byte
	off  int
	flex bool // compact lengths and tagged fields (KIP-482)
	err  error
}

func (r *wireReader) fail(err error) {
	if r.err == nil {
		r.err = fmt.Errorf("at byte %d of %d: %w", r.off, len(r.b), err)
		r.off = len(r.b)
	}
}

func (r *wireReader) left() int { return len(r.b) - r.off }

// span returns the next n bytes, aliasing the body, capacity cut to n.
func (r *wireReader) span(n int) []byte {
	if n < 0 || n > r.left() {
		r.fail(ErrShort)
		return nil
	}
	s := r.b[r.off : r.off+n : r.off+n]
	r.off += n
	return s
}

func (r *wireReader) i8() int8 {
	if s := r.span(1); s != nil {
		return int8(s[0])
	}
	return 0
}

func (r *wireReader) i16() int16 {
	if s := r.span(2); s != nil {
		return int16(binary.BigEndian.Uint16(s))
	}
	return 0
}

func (r *wireReader) i32() int32 {
	if s := r.span(4); s != nil {
		return int32(binary.BigEndian.Uint32(s))
	}
	return 0
}

func (r *wireReader) i64() int64 {
	if s := r.span(8); s != nil {
		return int64(binary.BigEndian.Uint64(s))
	}
	return 0
}

func (r *wireReader) uuid() (id [16]byte) {
	copy(id[:], r.span(16))
	return id
}

// uvarint reads an unsigned varint of at most 5 bytes, longer forms of a small
// number included (as Kafka's ByteUtils does).
func (r *wireReader) uvarint() uint32 {
	var v uint64
	for i := range 5 {
		s := r.span(1)
		if s == nil {
			return 0
		}
		v |= uint64(s[0]&0x7f) << (7 * i)
		if s[0] < 0x80 {
			if v > 1<<32-1 {
				break
			}
			return uint32(v)
		}
	}
	r.fail(ErrVarint)
	return 0
}

// lengthed reads a length in the given form and the bytes behind it; nil, true for null.
func (r *wireReader) lengthed(n int64) (b []byte, null bool) {
	if n == -1 {
		return nil, true
	}
	if n < 0 || n > int64(r.left()) {
		r.fail(ErrShort)
		return nil, false
	}
	return r.span(int(n)), false
}

// nullableString aliases the body; ok is false for null.
func (r *wireReader) nullableString() (s []byte, ok bool) {
	var n int64
	if r.flex {
		n = int64(r.uvarint()) - 1
	} else {
		n = int64(r.i16())
	}
	if r.err != nil {
		return nil, false
	}
	s, null := r.lengthed(n)
	return s, !null && r.err == nil
}

// str aliases the body; null is an error.
func (r *wireReader) str() []byte {
	s, ok := r.nullableString()
	if !ok {
		r.fail(ErrNull)
	}
	return s
}

// nullableBytes aliases the body; ok is false for null.
func (r *wireReader) nullableBytes() (s []byte, ok bool) {
	var n int64
	if r.flex {
		n = int64(r.uvarint()) - 1
	} else {
		n = int64(r.i32())
	}
	if r.err != nil {
		return nil, false
	}
	s, null := r.lengthed(n)
	return s, !null && r.err == nil
}

// arrayLen reads an array's count; null counts as 0, ok false. minElem is the
// least number of bytes an element takes: a count the bytes left can't hold is
// an error before anything is allocated for it.
func (r *wireReader) arrayLen(minElem int) (n int, ok bool) {
	var c int64
	if r.flex {
		c = int64(r.uvarint()) - 1
	} else {
		c = int64(r.i32())
	}
	switch {
	case r.err != nil:
		return 0, false
	case c == -1:
		return 0, false
	case c < 0 || c*int64(minElem) > int64(r.left()):
		r.fail(ErrCount)
		return 0, false
	}
	return int(c), true
}

// tag reads one tagged field: number, content (aliasing) and the raw field.
func (r *wireReader) tag() (tag uint32, data, raw []byte) {
	start := r.off
	tag = r.uvarint()
	n := r.uvarint()
	if int64(n) > int64(r.left()) {
		r.fail(ErrShort)
		return 0, nil, nil
	}
	data = r.span(int(n))
	if r.err != nil {
		return 0, nil, nil
	}
	return tag, data, r.b[start:r.off:r.off]
}

// tagCount reads the number of tagged fields; 0 where there are none by version.
func (r *wireReader) tagCount() int {
	if !r.flex {
		return 0
	}
	n := r.uvarint()
	if int64(n)*2 > int64(r.left()) {
		r.fail(ErrCount)
		return 0
	}
	return int(n)
}

// tags reads a whole section without looking into it.
func (r *wireReader) tags() Tags {
	var t Tags
	n := r.tagCount()
	start := r.off
	for range n {
		r.tag()
	}
	if n > 0 && r.err == nil {
		t = Tags{Count: n, Raw: r.b[start:r.off:r.off]}
	}
	return t
}

func (r *wireReader) done() error {
	if r.err == nil && r.left() > 0 {
		r.fail(ErrTrailing)
	}
	return r.err
}

// Tags is a section of tagged fields (KIP-482) as it stood on the wire, in
// order, without its count; fields that a struct knows by name are left out of
// it. Raw aliases the message it was read from. The zero value is "none".
type Tags struct {
	Count int
	Raw   []byte
}

// Get returns the content of one field, aliasing Raw.
func (t Tags) Get(tag uint32) ([]byte, bool) {
	r := wireReader{b: t.Raw}
	for range t.Count {
		k, data, _ := r.tag()
		if r.err != nil {
			break
		}
		if k == tag {
			return data, true
		}
	}
	return nil, false
}

// add appends one raw field. The first one aliases; Raw's capacity ends with
// it, so that a second one copies and never writes into the message.
func (t *Tags) add(raw []byte) {
	t.Count++
	if t.Raw == nil {
		t.Raw = raw
		return
	}
	t.Raw = append(t.Raw, raw...)
}

// appendTo writes the section behind known fields: the caller wrote the count.
func (t Tags) appendTo(dst []byte) []byte {
	dst = appendUvarint(dst, uint32(t.Count))
	return append(dst, t.Raw...)
}

func (t Tags) wireLen() int { return uvarintLen(uint32(t.Count)) + len(t.Raw) }

func appendUvarint(dst []byte, v uint32) []byte {
	for v >= 0x80 {
		dst = append(dst, byte(v)|0x80)
		v >>= 7
	}
	return append(dst, byte(v))
}

func uvarintLen(v uint32) int {
	n := 1
	for v >= 0x80 {
		v >>= 7
		n++
	}
	return n
}

func appendI16(dst []byte, v int16) []byte { return binary.BigEndian.AppendUint16(dst, uint16(v)) }
func appendI32(dst []byte, v int32) []byte { return binary.BigEndian.AppendUint32(dst, uint32(v)) }
func appendI64(dst []byte, v int64) []byte { return binary.BigEndian.AppendUint64(dst, uint64(v)) }

func appendStr[S ~string | ~[]byte](dst []byte, s S, flex bool) []byte {
	if flex {
		dst = appendUvarint(dst, uint32(len(s))+1)
	} else {
		dst = appendI16(dst, int16(len(s)))
	}
	return append(dst, s...)
}

func appendNullStr(dst []byte, flex bool) []byte {
	if flex {
		return append(dst, 0)
	}
	return appendI16(dst, -1)
}

func appendCount(dst []byte, n int, flex bool) []byte {
	if flex {
		return appendUvarint(dst, uint32(n)+1)
	}
	return appendI32(dst, int32(n))
}

// appendNullCount writes a null array (also: null bytes).
func appendNullCount(dst []byte, flex bool) []byte {
	if flex {
		return append(dst, 0)
	}
	return appendI32(dst, -1)
}

// grow lengthens s by one element and keeps what an earlier use left in it, so
// that inner slices are used again.
func grow[T any](s []T) ([]T, *T) {
	if len(s) < cap(s) {
		s = s[:len(s)+1]
	} else {
		var zero T
		s = append(s, zero)
	}
	return s, &s[len(s)-1]
}

// keepString returns old when it equals b (no allocation), else a copy of b.
func keepString(old string, b []byte) string {
	if old == string(b) {
		return old
	}
	return string(b)
}

// Parts is a message body in pieces for a vectored write: small pieces lie in
// one buffer of its own, payloads alias what the caller gave. Not safe for
// concurrent use; Reset makes it fit for the next message, capacity kept.
type Parts struct {
	meta []byte
	cuts []partsCut
	bufs [][]byte
	size int
}

type partsCut struct {
	at      int // length of meta where the payload goes in
	payload []byte
}

// Reset empties p and lets go of the payloads.
func (p *Parts) Reset() {
	p.meta = p.meta[:0]
	clear(p.cuts)
	p.cuts = p.cuts[:0]
	clear(p.bufs)
	p.bufs = p.bufs[:0]
	p.size = 0
}

func (p *Parts) payload(b []byte) {
	if len(b) > 0 {
		p.cuts = append(p.cuts, partsCut{len(p.meta), b})
		p.size += len(b)
	}
}

// Size is the number of bytes of all pieces.
func (p *Parts) Size() int { return len(p.meta) + p.size }

// Bufs returns the pieces in order. They are valid until Reset or the next encode.
func (p *Parts) Bufs() [][]byte {
	p.bufs = p.bufs[:0]
	last := 0
	for _, c := range p.cuts {
		if c.at > last {
			p.bufs = append(p.bufs, p.meta[last:c.at:c.at])
			last = c.at
		}
		p.bufs = append(p.bufs, c.payload)
	}
	if last < len(p.meta) {
		p.bufs = append(p.bufs, p.meta[last:len(p.meta):len(p.meta)])
	}
	return p.bufs
}

// Append copies all pieces into one slice (tests, small messages).
func (p *Parts) Append(dst []byte) []byte {
	for _, b := range p.Bufs() {
		dst = append(dst, b...)
	}
	return dst
}
