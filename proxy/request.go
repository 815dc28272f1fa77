package proxy

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/lockstep-kafka/lockstep/protocol"
)

// minRequest is the least length of a request: key, version, correlation id.
const minRequest = 8

// requestParser is where the client's stream stands.
type requestParser struct {
	carry []byte // the start of a frame, with its size, until what is needed of its header is there
	left  int    // bytes still to pass of a frame that streams
	frame []byte // the frame being buffered, without its size
	size  int    // how long it will be; 0: none is being buffered
	head  requestHead
}

func (r *requestParser) midFrame() bool { return r.left > 0 || r.size > 0 || len(r.carry) > 0 }

func (r *requestParser) release(l *loop) {
	l.hold(-len(r.carry))
	l.holdFrame(-len(r.frame), r.size)
	l.putFrame(r.frame)
	*r = requestParser{}
}

// requestHead is what decides how a request is treated.
type requestHead struct {
	size         int // of the frame without its size field
	key, version int16
	corr         int32
	noAnswer     bool // Produce, acks=0; only known when it streams
	verdict      verdict
}

type verdict uint8

const (
	reqStream verdict = iota
	reqBuffer         // a handler wants to see it
	reqLocal          // ApiVersions of a version we don't know: answered here
	reqSASL           // SaslHandshake v0: looked into, passed on
	reqToken          // a bare SASL token
)

// consume takes client bytes until the end of b or until blocked at the start
// of a frame; it returns how many it took. Consecutive frames that stream go
// out in one write.
func (s *session) consume(b []byte) int {
	r := &s.req
	i, run := 0, 0 // b[run:i] is to be passed on
	again := false // what was missing in carry is there: it may be all of the frame
	for (i < len(b) || again) && !s.closed {
		again = false
		switch {
		case r.left > 0:
			n := min(r.left, len(b)-i)
			i += n
			r.left -= n
			continue
		case r.size > 0:
			n := min(r.size-len(r.frame), len(b)-i)
			r.frame = s.l.appendFrame(r.frame, b[i:i+n], r.size)
			i += n
			run = i
			if len(r.frame) == r.size {
				frame := r.frame
				r.frame, r.size = nil, 0
				s.frameComplete(r.head, frame)
			}
			continue
		}
		// The start of a frame.
		if len(r.carry) == 0 && s.blocked() {
			break
		}
		start := b[i:]
		if len(r.carry) > 0 {
			start = r.carry
		}
		need, head, err := s.inspect(start)
		if err != nil {
			s.passOn(b[run:i])
			s.rejectRequest(err)
			return i
		}
		if need > 0 { // need more of the header: keep its start aside
			if len(r.carry) == 0 {
				s.passOn(b[run:i])
			}
			n := min(need-len(r.carry), len(b)-i)
			r.carry = append(r.carry, b[i:i+n]...)
			s.l.hold(n)
			i += n
			run = i
			again = len(r.carry) == need
			continue
		}
		if head.verdict == reqBuffer && !s.claimFrame(&s.asked, head.size, func() {}) {
			s.passOn(b[run:i])
			return i
		}
		if head.verdict != reqBuffer {
			s.asked.paid = 0 // the room is not needed: the topic is no mirror's any more
		}
		s.requests++
		total := protocol.FrameSizeLen + head.size
		if head.verdict == reqStream || head.verdict == reqToken {
			if head.verdict == reqToken {
				s.tokenBegun(head)
			} else {
				s.awaitAnswer(head)
			}
			r.left = total
			if n := len(r.carry); n > 0 {
				s.passOn(r.carry)
				s.l.hold(-n)
				r.carry = r.carry[:0]
				r.left -= n
				run = i
			}
			continue
		}
		if len(r.carry) == 0 {
			s.passOn(b[run:i])
			i += protocol.FrameSizeLen
		} else {
			r.frame = s.l.appendFrame(nil, r.carry[protocol.FrameSizeLen:], head.size)
			s.l.hold(-len(r.carry))
			r.carry = r.carry[:0]
		}
		run = i
		r.size, r.head = head.size, head
		if len(r.frame) == r.size { // the carry was all of it
			frame := r.frame
			r.frame, r.size = nil, 0
			s.frameComplete(head, frame)
		}
	}
	s.passOn(b[run:i])
	return i
}

func (s *session) passOn(b []byte) {
	if len(b) > 0 && !s.closed {
		s.upstream.write(b)
	}
}

// awaitAnswer puts the request into the fifo, unless it has no answer.
func (s *session) awaitAnswer(h requestHead) {
	if !h.noAnswer {
		a := awaited{key: h.key, version: h.version, corr: h.corr, kind: s.p.answerKind(h.key, h.version)}
		if h.key == protocol.KeyFetch {
			a.topics = s.p.topicsVersion()
		}
		s.fifo.push(a)
	}
}

// errUnknownAPI: a request that ApiVersions didn't offer.
var errUnknownAPI = errors.New("request was not offered in ApiVersions")

// maxSmall is the largest SaslHandshake v0 (a client id and a mechanism), and the
// largest ApiVersions that is answered here: both are buffered without a claim.
const maxSmall = freeFrameBytes - 1

// inspect reads the start of a frame (with its size). need > 0: more bytes are
// needed, so many from the frame's start.
func (s *session) inspect(b []byte) (need int, h requestHead, err error) {
	if s.sasl != nil {
		if need, h, token, err := s.inspectToken(b); token {
			return need, h, err
		}
	}
	size, ok, err := protocol.ReadFrameSize(b, minRequest, s.p.limits().MaxFrameBytes)
	if err != nil {
		return 0, h, err
	}
	if !ok {
		return protocol.FrameSizeLen, h, nil
	}
	if len(b) < protocol.FrameSizeLen+minRequest {
		return protocol.FrameSizeLen + minRequest, h, nil
	}
	frame := b[protocol.FrameSizeLen:min(len(b), protocol.FrameSizeLen+size)]
	h = requestHead{
		size:    size,
		key:     int16(binary.BigEndian.Uint16(frame)),
		version: int16(binary.BigEndian.Uint16(frame[2:])),
		corr:    int32(binary.BigEndian.Uint32(frame[4:])),
	}
	api, ok := protocol.LookupAPI(h.key)
	switch {
	case !ok || !api.Advertised():
		return 0, h, fmt.Errorf("%w: key %d", errUnknownAPI, h.key)
	case h.key == protocol.KeyApiVersions && h.version > api.Max:
		if size > maxSmall {
			return 0, h, fmt.Errorf("%w: ApiVersions with %d bytes", protocol.ErrFrameTooLarge, size)
		}
		h.verdict = reqLocal
		return 0, h, nil
	case h.version < api.Min || h.version > api.Max:
		return 0, h, fmt.Errorf("%w: %s version %d, offered are %d to %d", errUnknownAPI, api.Name, h.version, api.Min, api.Max)
	}
	if h.key == protocol.KeySaslHandshake && h.version == 0 {
		if size > maxSmall {
			return 0, h, fmt.Errorf("%w: SaslHandshake with %d bytes", protocol.ErrFrameTooLarge, size)
		}
		h.verdict = reqSASL
		return 0, h, nil
	}
	if s.p.handler.takes(protocol.RequestHeader{Key: h.key, Version: h.version, CorrelationID: h.corr}) {
		h.verdict = reqBuffer
		if most := api.MaxHandled(s.p.limits().MaxFrameBytes); size > most {
			return 0, h, fmt.Errorf("%w: %s with %d bytes, at most %d are looked into for mirror topics", protocol.ErrFrameTooLarge, api.Name, size, most)
		}
		return 0, h, nil
	}
	if h.key == protocol.KeyProduce {
		acks, n, err := produceAcks(frame, size, api.Flexible(h.version), h.version)
		if err != nil {
			return 0, h, err
		}
		if n > 0 {
			// Ask for more than is missing now: header fields that come one by one
			// must not cost a pass over all of them each.
			return protocol.FrameSizeLen + min(size, max(n, 2*len(frame))), h, nil
		}
		h.noAnswer = acks == 0
	}
	return 0, h, nil
}

func (s *session) rejectRequest(err error) {
	if errors.Is(err, errUnknownAPI) {
		s.close(ReasonUnknownAPI, err)
		return
	}
	s.badFrame(err)
}

// frameComplete gets a whole request that was buffered.
func (s *session) frameComplete(h requestHead, frame []byte) {
	hdr, err := protocol.ParseRequestHeader(frame)
	if err != nil && h.verdict != reqLocal {
		s.l.holdFrame(-len(frame), len(frame))
		s.l.putFrame(frame)
		s.badFrame(err)
		return
	}
	if h.verdict == reqSASL {
		if err := s.rawHandshake(frame, hdr); err != nil {
			s.l.holdFrame(-len(frame), len(frame))
			s.l.putFrame(frame)
			s.rejectRequest(err)
			return
		}
		(&xchg{s: s, hdr: hdr, frame: frame}).Forward()
		return
	}
	x := &xchg{s: s, hdr: hdr, frame: frame, local: h.verdict == reqLocal}
	if peek, ok := s.p.handler.(framePeeker); ok && !x.local && !peek.concerns(hdr, frame) {
		x.Forward()
		return
	}
	s.waiting = x
}

// maxAcksOffset bounds what is buffered to find acks: a client id and a
// transactional id of at most 32 KiB each stand before it, and tagged fields.
const maxAcksOffset = 128 << 10

// produceAcks finds acks in the first bytes of a Produce request: behind client
// id (nullable), tagged fields (flexible versions) and transactional id
// (nullable, from v3). need > 0: b must have that many bytes. size is the length
// of the whole frame.
func produceAcks(b []byte, size int, flexible bool, version int16) (acks int16, need int, err error) {
	bad := func(what string) (int16, int, error) {
		return 0, 0, fmt.Errorf("%w, version %d: %s", errBadProduce, version, what)
	}
	at := minRequest
	// has says whether n more bytes are there, and sets need if not.
	has := func(n int) bool {
		if at+n > len(b) {
			need = at + n
			return false
		}
		return true
	}
	short := func() (int16, int, error) {
		if need > size || need > maxAcksOffset {
			return bad("header longer than the frame")
		}
		return 0, need, nil
	}
	// String length: at stands behind it, n is -1 for null.
	shortLen := func() (n int, ok bool) {
		if !has(2) {
			return 0, false
		}
		n = int(int16(binary.BigEndian.Uint16(b[at:])))
		at += 2
		return n, true
	}
	uvarint := func() (v uint64, ok bool) {
		for shift := 0; shift < 35; shift += 7 {
			if !has(1) {
				return 0, false
			}
			c := b[at]
			at++
			v |= uint64(c&0x7f) << shift
			if c < 0x80 {
				return v, true
			}
		}
		return maxAcksOffset, true // too long: found out by the caller's bound
	}

	n, ok := shortLen()
	if !ok {
		return short()
	}
	if n < -1 {
		return bad("negative length of the client id")
	}
	at += max(n, 0)
	if flexible {
		tags, ok := uvarint()
		for ; ok && tags > 0 && at < maxAcksOffset; tags-- {
			if _, ok = uvarint(); !ok {
				break
			}
			var l uint64
			if l, ok = uvarint(); ok {
				at += int(min(l, maxAcksOffset))
			}
		}
		if !ok {
			return short()
		}
	}
	if version >= 3 {
		if flexible {
			l, ok := uvarint()
			if !ok {
				return short()
			}
			at += int(min(max(l, 1)-1, maxAcksOffset))
		} else {
			n, ok := shortLen()
			if !ok {
				return short()
			}
			if n < -1 {
				return bad("negative length of the transactional id")
			}
			at += max(n, 0)
		}
	}
	if !has(2) {
		return short()
	}
	return int16(binary.BigEndian.Uint16(b[at:])), 0, nil
}

var errBadProduce = errors.New("a Produce request can't be read")
