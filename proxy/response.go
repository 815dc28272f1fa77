package proxy

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/lockstep-kafka/lockstep/protocol"
)

// responseParser is where the broker's stream stands.
type responseParser struct {
	head  [tailHead]byte // size, correlation id, count of header tags: until enough of it is there
	headN int
	left  int // bytes still to come of an answer that streams
	tail  *protocol.TailRewriter
	frame []byte // the answer being buffered, without its size
	size  int    // how long it will be; 0: none is being buffered
	stash []byte // what was read of an answer that waits for room
}

func (r *responseParser) release(l *loop) {
	l.holdFrame(-len(r.frame), r.size)
	l.hold(-len(r.stash))
	l.putFrame(r.frame)
	*r = responseParser{}
}

// tailHead is how much is looked at of an answer that streams but for its tail.
const tailHead = 9

// answerKind says how the answer of a request that is passed on is treated.
func (p *Proxy) answerKind(key, version int16) respKind {
	switch key {
	case protocol.KeyFetch, protocol.KeyShareFetch:
		if _, ok := protocol.NewTailRewriter(key, version, 0, nil); ok {
			return respTail
		}
	case protocol.KeyApiVersions, protocol.KeyMetadata, protocol.KeyFindCoordinator, protocol.KeyDescribeCluster,
		protocol.KeyDescribeTopicPartitions, protocol.KeyShareAcknowledge, protocol.KeyDescribeProducers, protocol.KeyDescribeShareOffsets:
		return respRewrite
	case protocol.KeySaslHandshake:
		if version == 0 { // bare tokens follow, unless it is refused
			return respRewrite
		}
	case protocol.KeyProduce:
		if version >= 10 { // node endpoints, leader epochs
			return respRewrite
		}
	}
	return respStream
}

// consumeAnswers takes all of b. Consecutive answers that stream go out in one
// write.
func (s *session) consumeAnswers(b []byte) {
	r := &s.resp
	i, run := 0, 0 // b[run:i] is to be passed on
	for i < len(b) && !s.closed {
		switch {
		case r.tail != nil:
			n := min(r.left, len(b)-i)
			pass, tail, err := r.tail.Feed(b[i : i+n])
			if err != nil {
				s.deliver(b[run : i+pass])
				s.close(ReasonProtocolError, fmt.Errorf("answer to key %d can't be read: %w", s.fifo.head().key, err))
				return
			}
			r.left -= n
			if pass < n || tail != nil {
				s.deliver(b[run : i+pass])
				s.deliver(tail)
				run = i + n
			}
			i += n
			if r.left == 0 {
				r.tail = nil
				s.fifo.pop()
			}
			continue
		case r.left > 0:
			n := min(r.left, len(b)-i)
			i += n
			if r.left -= n; r.left == 0 {
				s.fifo.pop()
			}
			continue
		case r.size > 0:
			n := min(r.size-len(r.frame), len(b)-i)
			r.frame = s.l.appendFrame(r.frame, b[i:i+n], r.size)
			i += n
			run = i
			s.bufferedAll()
			continue
		}
		if s.emptyToken {
			n := copy(r.head[r.headN:protocol.FrameSizeLen], b[i:])
			if r.headN == 0 {
				s.deliver(b[run:i])
			}
			r.headN += n
			i += n
			run = i
			if r.headN < protocol.FrameSizeLen {
				continue
			}
			s.emptyToken = false
			if binary.BigEndian.Uint32(r.head[:]) == 0 {
				s.deliver(r.head[:protocol.FrameSizeLen])
				r.headN = 0
			}
			continue // else it is the start of an answer
		}
		if s.fifo.len() == 0 {
			s.deliver(b[run:i])
			s.close(ReasonProtocolError, fmt.Errorf("the broker sent %d bytes that answer no request", len(b)-i))
			return
		}
		a := s.fifo.head()
		if a.key == protocol.KeyFetch && a.kind != respAsk && r.headN < tailHead && a.topics != s.p.topicsVersion() {
			a.kind = respRewrite
		}
		need := 8
		switch a.kind {
		case respTail: // always flexible: the count of header tags, too
			need = tailHead
		case respToken:
			need = protocol.FrameSizeLen
		}
		head := b[i:]
		if r.headN > 0 || len(head) < need {
			if r.headN == 0 {
				s.deliver(b[run:i])
			}
			n := copy(r.head[r.headN:need], head)
			r.headN += n
			i += n
			run = i
			if r.headN < need {
				continue
			}
			head = r.head[:need]
		}
		size := int32(binary.BigEndian.Uint32(head))
		if err := checkAnswer(a, size, head); err != nil {
			s.deliver(b[run:i])
			s.close(ReasonProtocolError, err)
			return
		}
		kind := a.kind
		if kind == respTail && head[8] != 0 {
			kind = respRewrite // header tags, which no broker sends yet: take the slow way
		}
		if kind != respStream && kind != respTail && kind != respToken && int(size) > s.p.limits().MaxFrameBytes {
			s.deliver(b[run:i])
			s.close(ReasonFrameTooLarge, fmt.Errorf("answer to key %d has %d bytes, limit %d (limits.max_frame_bytes)", a.key, size, s.p.limits().MaxFrameBytes))
			return
		}
		switch kind {
		case respStream, respTail, respToken:
			if kind == respToken {
				s.tokenAnswered(int(size))
			}
			r.left = protocol.FrameSizeLen + int(size)
			if r.headN > 0 {
				s.deliver(r.head[:need])
				r.left -= need
				r.headN = 0
			} else if kind == respTail {
				i += need // passes as it is
				r.left -= need
			}
			if kind == respTail {
				if r.left == 0 {
					s.close(ReasonProtocolError, fmt.Errorf("empty answer to key %d", a.key))
					return
				}
				r.tail, _ = protocol.NewTailRewriter(a.key, a.version, r.left, s.front.advertise)
			} else if r.left == 0 { // the head was all of it
				s.fifo.pop()
			}
		default:
			if !s.claimFrame(&s.answers, int(size), s.unstash) {
				s.deliver(b[run:i])
				s.stashAnswers(b[i:])
				return
			}
			r.size = int(size)
			r.frame = s.l.getFrame(r.size) // it has its room already: a broker is believed, and nothing is moved later
			if r.headN > 0 {
				r.frame = s.l.appendFrame(r.frame, r.head[protocol.FrameSizeLen:need], r.size)
				r.headN = 0
			} else {
				s.deliver(b[run:i])
				i += protocol.FrameSizeLen
			}
			run = i
			s.bufferedAll() // the head may have been all of it
		}
	}
	s.deliver(b[run:i])
}

// directMin is from how many missing bytes on an answer is read right into its
// frame; directMax is what one read takes, so that the loop's other connections
// get their turn.
const (
	directMin = 16 << 10
	directMax = 1 << 20
)

// target (frameFiller): the rest of an answer that is buffered.
func (s *session) target(c conn) []byte {
	r := &s.resp
	if c != s.upstream || s.closed || r.size-len(r.frame) < directMin || cap(r.frame) < r.size || s.answers.claim != nil || len(r.stash) > 0 {
		return nil
	}
	return r.frame[len(r.frame):min(r.size, len(r.frame)+directMax)]
}

func (s *session) filled(_ conn, n int) {
	s.enter()
	defer s.leave()
	s.active = time.Now()
	r := &s.resp
	s.l.holdFrame(n, r.size)
	r.frame = r.frame[:len(r.frame)+n]
	s.bufferedAll()
	s.updateReading()
}

// bufferedAll takes an answer that is whole.
func (s *session) bufferedAll() {
	r := &s.resp
	if len(r.frame) == r.size {
		frame := r.frame
		r.frame, r.size = nil, 0
		s.answerComplete(s.fifo.pop(), frame)
	}
}

// stashAnswers keeps what was read and can't be taken yet.
func (s *session) stashAnswers(b []byte) {
	s.resp.stash = append(s.resp.stash, b...)
	s.l.hold(len(b))
}

func (s *session) unstash() {
	b := s.resp.stash
	s.resp.stash = nil
	s.consumeAnswers(b)
	s.l.hold(-len(b))
	if s.brokerEOF && s.answers.claim == nil {
		s.close(ReasonBrokerEOF, s.brokerErr)
	}
}

func (s *session) deliver(b []byte) {
	if len(b) > 0 && !s.closed {
		s.client.write(b)
	}
}

// checkAnswer: the answer must be the one to the oldest open request.
func checkAnswer(a *awaited, size int32, head []byte) error {
	least := int32(4)
	if a.kind == respTail {
		least = 5
	}
	if a.kind == respToken && size >= 0 && size <= math.MaxInt32-protocol.FrameSizeLen {
		return nil
	}
	if size < least || size > math.MaxInt32-protocol.FrameSizeLen {
		return fmt.Errorf("answer to key %d with a size of %d", a.key, size)
	}
	if corr := int32(binary.BigEndian.Uint32(head[4:])); corr != a.corr {
		return fmt.Errorf("answer with correlation id %d, next is %d (key %d)", corr, a.corr, a.key)
	}
	return nil
}

// answerComplete gets a whole answer that was buffered.
func (s *session) answerComplete(a awaited, frame []byte) {
	_, n, err := protocol.ParseResponseHeader(a.key, a.version, frame)
	if a.kind == respAsk {
		a.x.answered(a, frame, n, err)
		return
	}
	defer func() {
		s.l.holdFrame(-len(frame), len(frame))
		s.l.putFrame(frame)
	}()
	body := frame[min(n, len(frame)):]
	if err == nil {
		body, err = s.rewrite(a.key, a.version, body)
	}
	if errors.Is(err, errTopicsMoved) {
		s.close(ReasonViewStale, err)
		return
	}
	if err != nil {
		s.close(ReasonProtocolError, fmt.Errorf("answer to key %d version %d can't be rewritten: %w", a.key, a.version, err))
		return
	}
	size := protocol.AppendFrameSize(s.small[:0], n+len(body))
	s.iov = [3][]byte{size, frame[:n], body}
	s.client.writev(s.iov[:])
	clear(s.iov[:])
}

// rewrite changes an answer that is passed on to what the client may see.
func (s *session) rewrite(key, version int16, body []byte) ([]byte, error) {
	if key == protocol.KeyApiVersions {
		return s.rewriteApiVersions(version, body)
	}
	if key == protocol.KeySaslHandshake {
		return body, s.handshakeAnswered(body)
	}
	body, err := protocol.RewriteAddresses(key, version, body, s.front.advertise)
	if err != nil {
		return nil, err
	}
	return s.p.handler.response(key, version, body)
}
