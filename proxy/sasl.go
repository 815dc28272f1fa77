package proxy

import (
	"encoding/binary"
	"fmt"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/protocol"
)

// rawSASL is the authentication of a client that asked for it with SaslHandshake
// v0: what follows are bare tokens, a size and opaque bytes, in both directions,
// until the mechanism is through; then requests again, and nothing on the wire
// marks the border. Where it lies follows from the mechanism (RFC 4616, 5802,
// 7628, 4752) and from strict turns: no frame of the client is begun before the
// last one is answered.
//
// An answer with addresses must never pass as a token. So a mechanism whose end
// isn't known is refused; what reads as the head of a reviewed request is one, as
// no token does; and a client that is through for us and not for the broker, or
// the other way round, is cut off: an answer without the right correlation id is
// a protocol error, a token in place of a request an unknown API.
//
// SaslHandshake v1 needs none of this: its tokens have headers.
type rawSASL struct {
	mechanism string
	accepted  bool // the broker has said yes to the handshake
	tokens    int  // of the client that are still to come; GSSAPI: at most
	refused   bool // OAUTHBEARER: the broker said why it refuses, the client confirms with one byte
}

const (
	saslBearer = "OAUTHBEARER"
	saslKerb   = "GSSAPI"
)

// rawTokens says how many tokens a client sends, each answered by one; 0: nobody
// knows. OAUTHBEARER has a second one if the first is refused; GSSAPI ends with
// its only wrapped token.
func rawTokens(mechanism string) int {
	switch mechanism {
	case "PLAIN", saslBearer, "AWS_MSK_IAM":
		return 1
	case "SCRAM-SHA-256", "SCRAM-SHA-512":
		return 2
	case saslKerb:
		return 100
	}
	return 0
}

// rawHandshake looks into a SaslHandshake v0 request before it is passed on.
func (s *session) rawHandshake(frame []byte, hdr protocol.RequestHeader) error {
	req := kmsg.NewPtrSASLHandshakeRequest()
	if err := protocol.DecodeBody(hdr.Version, frame[hdr.HeaderLen:], req); err != nil {
		return fmt.Errorf("%w: %w", protocol.ErrHeader, err)
	}
	n := rawTokens(req.Mechanism)
	if n == 0 {
		return fmt.Errorf("%w: SaslHandshake version 0 with mechanism %.40q: use version 1 (SaslAuthenticate), which takes any mechanism", errUnknownAPI, req.Mechanism)
	}
	s.sasl = &rawSASL{mechanism: req.Mechanism, tokens: n}
	return nil
}

// handshakeAnswered: raw tokens follow unless the broker refuses.
func (s *session) handshakeAnswered(body []byte) error {
	resp := kmsg.NewPtrSASLHandshakeResponse()
	if err := protocol.DecodeBody(0, body, resp); err != nil {
		return err
	}
	if resp.ErrorCode != 0 {
		s.sasl = nil
		return nil
	}
	s.sasl.accepted = true
	return nil
}

// inspectToken reads the start of a frame (with its size) of a client that
// authenticates. token false: it is a request.
func (s *session) inspectToken(b []byte) (need int, h requestHead, token bool, err error) {
	size, ok, err := protocol.ReadFrameSize(b, 0, s.p.limits().MaxFrameBytes)
	if err != nil {
		return 0, h, true, err
	}
	if !ok {
		return protocol.FrameSizeLen, h, true, nil
	}
	h = requestHead{size: size, verdict: reqToken}
	look := 4 // key and version
	if s.sasl.mechanism == saslKerb {
		look = gssLook
	}
	if want := protocol.FrameSizeLen + min(size, look); len(b) < want {
		return want, h, true, nil
	}
	frame := b[protocol.FrameSizeLen:min(len(b), protocol.FrameSizeLen+size)]
	switch {
	case size >= minRequest && readsAsRequest(frame), s.sasl.refused && size != 1:
		return 0, h, false, nil
	case s.sasl.mechanism == saslKerb:
		kind := gssKind(frame)
		h.noAnswer = kind == gssWrapped
		return 0, h, kind != gssNone, nil
	}
	return 0, h, true, nil
}

// readsAsRequest: printable characters, or 0 and some, never do.
func readsAsRequest(frame []byte) bool {
	api, ok := protocol.LookupAPI(int16(binary.BigEndian.Uint16(frame)))
	version := int16(binary.BigEndian.Uint16(frame[2:]))
	return ok && api.Advertised() && version >= api.Min && version <= api.Max
}

// tokenBegun: the frame that inspectToken has looked at is about to be passed on.
func (s *session) tokenBegun(h requestHead) {
	if h.noAnswer {
		// Kafka answers GSSAPI's last token with nothing, other brokers with an
		// empty one.
		s.sasl, s.emptyToken = nil, true
		return
	}
	s.sasl.tokens--
	s.fifo.push(awaited{key: protocol.KeySaslHandshake, kind: respToken})
}

// tokenAnswered gets the size of the broker's token.
func (s *session) tokenAnswered(size int) {
	switch {
	case s.sasl.mechanism == saslBearer && size > 0 && !s.sasl.refused:
		s.sasl.refused, s.sasl.tokens = true, 1
	case s.sasl.tokens == 0:
		s.sasl = nil
	}
}

// awaitsSASL: the answer to the handshake or to a token must be here before
// anything else of the client is looked at.
func (s *session) awaitsSASL() bool { return s.sasl != nil && (!s.sasl.accepted || s.fifo.len() > 0) }

// gssLook is how much of a token gssKind looks at: a DER length and an object id
// of the usual sizes.
const gssLook = 2 + 4 + 2 + 16 + 2

type gss uint8

const (
	gssNone    gss = iota // no token: a request, then
	gssContext            // of the security context, or empty
	gssWrapped            // the client's choice of a security layer: the last one
)

// gssKind tells GSSAPI tokens of Kerberos (RFC 4121, RFC 1964) from one another
// and from requests, whose first two bytes are a small key.
func gssKind(b []byte) gss {
	if len(b) == 0 {
		return gssContext
	}
	if len(b) >= 2 && b[0] == 5 && b[1] == 4 {
		return gssWrapped
	}
	if b[0] != 0x60 {
		return gssNone
	}
	// 0x60, DER length, object id, then what it is.
	at := 2
	if len(b) > 1 && b[1] > 0x80 {
		at += int(b[1] & 0x7f)
	}
	if at+2 <= len(b) && b[at] == 6 {
		at += 2 + int(b[at+1])
		if at+2 <= len(b) && binary.BigEndian.Uint16(b[at:]) == 0x0201 {
			return gssWrapped
		}
	}
	return gssContext
}
