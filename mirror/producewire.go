package mirror

import (
	"encoding/binary"
	"net"
	"slices"
	"strings"
)

// produceEncoder builds the body of a Produce request around record batches
// that stay where they are. Its buffers are used again by the next call.
type produceEncoder struct {
	head []byte
	cuts []int // ends in head of the pieces before each batch
	bufs net.Buffers
}

// encode lays a request out (Produce v3 to v13) for a vectored write: pieces of
// header and batches in turn. Neighbours of one topic share its entry.
func (e *produceEncoder) encode(version, acks int16, timeoutMs int32, list []sent) net.Buffers {
	flexible := version >= 9
	h := e.head[:0]
	count := func(n int) { // of an array
		if flexible {
			h = binary.AppendUvarint(h, uint64(n)+1)
		} else {
			h = binary.BigEndian.AppendUint32(h, uint32(n))
		}
	}
	if flexible {
		h = append(h, 0) // null transactional id
	} else {
		h = append(h, 0xff, 0xff)
	}
	h = binary.BigEndian.AppendUint16(h, uint16(acks))
	h = binary.BigEndian.AppendUint32(h, uint32(timeoutMs))
	sortSent(list)
	topics := 0
	for i := range list {
		if i == 0 || list[i].p.topic != list[i-1].p.topic {
			topics++
		}
	}
	count(topics)
	e.cuts = e.cuts[:0]
	for i := 0; i < len(list); {
		n := 1
		for i+n < len(list) && list[i+n].p.topic == list[i].p.topic {
			n++
		}
		name := list[i].p.topic
		switch {
		case version >= 13:
			h = append(h, list[i].at.id[:]...)
		case flexible:
			h = append(binary.AppendUvarint(h, uint64(len(name))+1), name...)
		default:
			h = append(binary.BigEndian.AppendUint16(h, uint16(len(name))), name...)
		}
		count(n)
		for range n {
			s := &list[i]
			h = binary.BigEndian.AppendUint32(h, uint32(s.p.partition))
			if flexible {
				h = binary.AppendUvarint(h, uint64(len(s.it.batch))+1)
			} else {
				h = binary.BigEndian.AppendUint32(h, uint32(len(s.it.batch)))
			}
			e.cuts = append(e.cuts, len(h))
			if flexible {
				h = append(h, 0) // partition tags
			}
			i++
		}
		if flexible {
			h = append(h, 0) // topic tags
		}
	}
	if flexible {
		h = append(h, 0) // request tags
	}
	e.head = h
	out, from := e.bufs[:0], 0
	for i, cut := range e.cuts {
		out = append(out, h[from:cut], list[i].it.batch)
		from = cut
	}
	if from < len(h) {
		out = append(out, h[from:])
	}
	e.bufs = out
	return out
}

// sortSent brings partitions of one topic together.
func sortSent(list []sent) {
	slices.SortStableFunc(list, func(a, b sent) int { return strings.Compare(a.p.topic, b.p.topic) })
}
