package protocol

import "fmt"

// skimmer steps over a flexible message body that comes in chunks, without
// keeping or decoding it: it reads counts and lengths only. It ends where its
// shape ends, which for Fetch and Share answers is right before the brokers'
// addresses. State is a few words whatever the size of the message.
type skimmer struct {
	stack []skimLevel
	skip  uint64 // bytes still to step over
	v     uint64 // varint being read
	shift uint
}

type skimLevel struct {
	fields []skimField
	i      int
	left   uint64 // elements left, this one included
}

type skimKind uint8

const (
	skimFixed  skimKind = iota // n bytes
	skimBytes                  // compact (nullable) string or bytes
	skimArray                  // compact (nullable) array of elem
	skimTags                   // tagged fields
	skimVarint                 // a number
	skimSized                  // length, then as many bytes (content of a tagged field)
)

type skimField struct {
	kind skimKind
	n    uint64
	elem []skimField
}

func fixed(n uint64) skimField             { return skimField{kind: skimFixed, n: n} }
func array(elem ...skimField) skimField    { return skimField{kind: skimArray, elem: elem} }
func sequence(fs ...skimField) []skimField { return fs }

// Shapes are read-only. Numbers are the sums of fixed fields that follow each other.
var (
	aBytes   = skimField{kind: skimBytes}
	someTags = skimField{kind: skimTags, elem: sequence(skimField{kind: skimVarint}, skimField{kind: skimSized})}

	// Produce answers v10 to v12 and v13 up to the tagged fields.
	shapeProduceName = sequence(array(aBytes, array(producePartitionShape...), someTags), fixed(4))
	shapeProduceID   = sequence(array(fixed(16), array(producePartitionShape...), someTags), fixed(4))

	// partition, error, base offset, log append time, log start; record errors; message.
	producePartitionShape = sequence(fixed(4+2+8+8+8), array(fixed(4), aBytes, someTags), aBytes, someTags)

	// Fetch answers v16 and up, up to the tagged fields: throttle, error, session; topics.
	shapeFetch = sequence(fixed(4+2+4), array(fixed(16), array(
		fixed(4+2+8+8+8),            // partition, error, high watermark, last stable offset, log start
		array(fixed(8+8), someTags), // aborted transactions
		fixed(4),                    // preferred read replica
		aBytes,                      // records
		someTags,
	), someTags))

	shareLeader = fixed(4 + 4)

	// ShareFetch answers up to the endpoints; v1 adds the lock timeout.
	shapeShareFetch0 = sequence(fixed(4+2), aBytes, shareFetchTopics)
	shapeShareFetch1 = sequence(fixed(4+2), aBytes, fixed(4), shareFetchTopics)
	shareFetchTopics = array(fixed(16), array(
		fixed(4+2), aBytes, fixed(2), aBytes, // partition, error, message; acknowledge error, message
		shareLeader, someTags,
		aBytes,                        // records
		array(fixed(8+8+2), someTags), // acquired
		someTags,
	), someTags)

	// ShareAcknowledge answers up to the endpoints; v2 adds the lock timeout.
	shapeShareAck0 = sequence(fixed(4+2), aBytes, shareAckTopics)
	shapeShareAck2 = sequence(fixed(4+2), aBytes, fixed(4), shareAckTopics)
	shareAckTopics = array(fixed(16), array(fixed(4+2), aBytes, shareLeader, someTags, someTags), someTags)
)

// endpointShape gives the shape in front of the node endpoints of an answer,
// and whether these are tag 0 of the top-level section (else a plain array
// before it). nil: the answer has none at its end.
func endpointShape(key, version int16) (shape []skimField, tagged bool) {
	switch {
	case key == KeyProduce && version >= 13:
		return shapeProduceID, true
	case key == KeyProduce && version >= 10:
		return shapeProduceName, true
	case key == KeyFetch && version >= 16:
		return shapeFetch, true
	case key == KeyShareFetch && version == 0:
		return shapeShareFetch0, false
	case key == KeyShareFetch:
		return shapeShareFetch1, false
	case key == KeyShareAcknowledge && version <= 1:
		return shapeShareAck0, false
	case key == KeyShareAcknowledge:
		return shapeShareAck2, false
	}
	return nil, false
}

func (s *skimmer) start(shape []skimField) {
	s.stack = append(s.stack[:0], skimLevel{fields: shape, left: 1})
	s.skip, s.v, s.shift = 0, 0, 0
}

// feed consumes b up to the end of the shape. done: n bytes of b belong to it,
// the rest comes after. Not done: all of b was consumed.
func (s *skimmer) feed(b []byte) (n int, done bool, err error) {
	for {
		if s.skip > 0 {
			take := min(s.skip, uint64(len(b)-n))
			n += int(take)
			if s.skip -= take; s.skip > 0 {
				return n, false, nil
			}
		}
		if len(s.stack) == 0 {
			return n, true, nil
		}
		top := &s.stack[len(s.stack)-1]
		if top.i == len(top.fields) {
			top.i = 0
			if top.left--; top.left == 0 {
				s.stack = s.stack[:len(s.stack)-1]
			}
			continue
		}
		f := &top.fields[top.i]
		if f.kind == skimFixed {
			s.skip = f.n
			top.i++
			continue
		}
		if n == len(b) {
			return n, false, nil
		}
		s.v |= uint64(b[n]&0x7f) << s.shift
		more := b[n] >= 0x80
		n++
		if s.shift += 7; more {
			if s.shift >= 35 {
				return n, false, fmt.Errorf("%w", ErrVarint)
			}
			continue
		}
		v := s.v
		s.v, s.shift = 0, 0
		if v > 1<<32-1 {
			return n, false, fmt.Errorf("%w", ErrVarint)
		}
		top.i++
		switch f.kind {
		case skimBytes:
			if v > 0 {
				s.skip = v - 1
			}
		case skimSized:
			s.skip = v
		case skimArray:
			if v > 1 {
				s.stack = append(s.stack, skimLevel{fields: f.elem, left: v - 1})
			}
		case skimTags:
			if v > 0 {
				s.stack = append(s.stack, skimLevel{fields: f.elem, left: v})
			}
		}
	}
}
