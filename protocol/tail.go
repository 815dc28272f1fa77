package protocol

import (
	"errors"
	"fmt"
)

// ErrTailTooLong: what follows the topics of an answer is longer than any real
// list of node endpoints.
var ErrTailTooLong = errors.New("tail of the answer is longer than 1 MiB")

const maxTail = 1 << 20

// TailRewriter rewrites the broker addresses of a Fetch or ShareFetch answer
// while it streams by: such an answer may be 50 MB, and its node endpoints (KIP-951)
// are the last thing in it. Only lengths are read on the way; the bytes up to
// the endpoints pass as they are, in whatever chunks they come, and just the
// tail (one byte, when no partition has moved) is held back.
//
// As the frame's size has long been sent when the tail comes, the tail keeps
// its length: it is filled up with a tagged field that no reader knows and each
// skips. New addresses that need more room than the old ones take it from the
// racks first; then endpoints are left out, from the last one on. Clients treat
// them as a hint only: without it they refresh their metadata.
type TailRewriter struct {
	skim   skimmer
	f      AddressFunc
	tagged bool
	inTail bool
	left   int // bytes of the body not fed yet
	tail   []byte
}

// NewTailRewriter: bodyLen is the length of the body without response header.
// ok is false when the key and version have no addresses at the end of their
// answer: then everything may pass.
func NewTailRewriter(key, version int16, bodyLen int, f AddressFunc) (t *TailRewriter, ok bool) {
	shape, tagged := endpointShape(key, version)
	if shape == nil {
		return nil, false
	}
	t = &TailRewriter{f: f, tagged: tagged, left: bodyLen}
	t.skim.start(shape)
	return t, true
}

// Feed takes the next chunk of the body, in order, never more than is left of
// it. Send chunk[:pass] as it is. tail is nil until the whole body was fed, then
// send it behind; pass and tail together are as long as the body. An error means
// that the answer can't be read: nothing after chunk[:pass] may be sent, the
// connection must be closed.
func (t *TailRewriter) Feed(chunk []byte) (pass int, tail []byte, err error) {
	if len(chunk) > t.left {
		return 0, nil, fmt.Errorf("fed %d bytes, the body has %d left: %w", len(chunk), t.left, ErrTrailing)
	}
	t.left -= len(chunk)
	if !t.inTail {
		if pass, t.inTail, err = t.skim.feed(chunk); err != nil {
			return 0, nil, err
		}
		if t.skim.skip > uint64(t.left) || !t.inTail && t.left == 0 {
			return 0, nil, ErrShort
		}
		if !t.inTail {
			return pass, nil, nil
		}
		if left := len(chunk) - pass + t.left; left > maxTail {
			return 0, nil, fmt.Errorf("%w: %d bytes", ErrTailTooLong, left)
		}
	}
	t.tail = append(t.tail, chunk[pass:]...)
	if t.left > 0 {
		return pass, nil, nil
	}
	tail, err = fitTail(t.tail, t.tagged, t.f)
	return pass, tail, err
}

// fitTail maps the endpoints in b and returns as many bytes as b has.
func fitTail(b []byte, tagged bool, f AddressFunc) ([]byte, error) {
	t, err := parseTail(b, tagged)
	if err != nil {
		return nil, err
	}
	if !t.mapWith(f) {
		return b, nil
	}
	for racks := true; ; {
		if out, ok := t.padTo(len(b)); ok {
			return out, nil
		}
		switch {
		case racks:
			racks = false
			for i := range t.endpoints {
				t.endpoints[i].rack = nil
			}
		case len(t.endpoints) > 0:
			t.endpoints = t.endpoints[:len(t.endpoints)-1]
		default:
			// Can't be: an endpoint takes at least 11 bytes, more than any filler needs.
			return nil, fmt.Errorf("no room for a tail of %d bytes: %w", len(b), ErrShort)
		}
	}
}

// padTo encodes t in exactly want bytes; false when it is too long, or one byte
// short: no tagged field is that small.
func (t tail) padTo(want int) ([]byte, bool) {
	out := t.appendTo(make([]byte, 0, want))
	if len(out) == want {
		return out, true
	}
	// Two filler tags of different width close the gaps that the width of the
	// length leaves; numbers rise, as the protocol wants.
	narrow := max(t.last+1, 100)
	for _, tag := range []uint32{narrow, 1 << (7 * uvarintLen(narrow))} {
		if tag <= t.last {
			continue // above every number there is
		}
		pad := t
		n := want - len(out) - uvarintLen(tag)
		if t.fields()+1 == 1<<7 {
			n-- // the count of fields gets a second byte
		}
		n -= uvarintLen(uint32(max(n-1, 0)))
		if n < 0 {
			continue
		}
		pad.after = Tags{Count: t.after.Count + 1, Raw: append([]byte(nil), t.after.Raw...)}
		pad.after.Raw = appendUvarint(pad.after.Raw, tag)
		pad.after.Raw = appendUvarint(pad.after.Raw, uint32(n))
		pad.after.Raw = append(pad.after.Raw, make([]byte, n)...)
		if p := pad.appendTo(make([]byte, 0, want)); len(p) == want {
			return p, true
		}
	}
	return nil, false
}

func (t tail) fields() int {
	n := t.before.Count + t.after.Count
	if t.tagged && t.found {
		n++
	}
	return n
}
