package protocol

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// FrameSizeLen is the length of the size in front of every Kafka frame.
const FrameSizeLen = 4

// Errors of ReadFrameSize.
var (
	// ErrFrameTooLarge: the size is above the limit. Raise limits.max_frame_bytes if the client is right.
	ErrFrameTooLarge = errors.New("frame is larger than the limit")
	// ErrFrameNegative: the size is negative; no Kafka client sends that.
	ErrFrameNegative = errors.New("frame size is negative")
	// ErrFrameTiny: the size can't hold a request header (8 bytes) or response header (4 bytes).
	ErrFrameTiny = errors.New("frame is too small for its header")
	// ErrLooksLikeTLS: the bytes are a TLS record, the listener is plaintext.
	ErrLooksLikeTLS = errors.New("looks like TLS on a plaintext listener: set security.protocol to PLAINTEXT, or use a TLS listener")
	// ErrLooksLikeProxy: the bytes are a header of the PROXY protocol.
	ErrLooksLikeProxy = errors.New("looks like a PROXY protocol header, which this listener doesn't expect: set its proxy_protocol, or turn it off at the load balancer")
	// ErrLooksLikeHTTP: the bytes are an HTTP request or answer.
	ErrLooksLikeHTTP = errors.New("looks like HTTP on a Kafka listener: check host and port")
)

// ReadFrameSize reads the 4-byte size at the start of b. ok is false while b
// has fewer than 4 bytes. size doesn't count the 4 bytes themselves. minSize is
// 8 for requests and 4 for responses. A size outside [minSize, limit] is an
// error, and says so when the bytes look like TLS or HTTP (those read as sizes
// far above any limit).
func ReadFrameSize(b []byte, minSize, limit int) (size int, ok bool, err error) {
	if len(b) < FrameSizeLen {
		return 0, false, nil
	}
	n := int32(binary.BigEndian.Uint32(b))
	if n >= 0 && int64(n) >= int64(minSize) && int64(n) <= int64(limit) {
		return int(n), true, nil
	}
	switch {
	case LooksLikeTLS(b):
		return 0, false, ErrLooksLikeTLS
	case LooksLikeHTTP(b):
		return 0, false, ErrLooksLikeHTTP
	case string(b[:FrameSizeLen]) == "PROX", string(b[:FrameSizeLen]) == "\r\n\r\n":
		return 0, false, ErrLooksLikeProxy
	case n < 0:
		return 0, false, fmt.Errorf("%w: %d", ErrFrameNegative, n)
	case int64(n) > int64(limit):
		return 0, false, fmt.Errorf("%w: %d bytes, limit %d", ErrFrameTooLarge, n, limit)
	}
	return 0, false, fmt.Errorf("%w: %d bytes", ErrFrameTiny, n)
}

// LooksLikeTLS: b starts like a TLS alert (0x15) or handshake (0x16) record of
// any version from SSL 3.0 to TLS 1.3 (major version 3).
func LooksLikeTLS(b []byte) bool {
	return len(b) >= 3 && (b[0] == 0x15 || b[0] == 0x16) && b[1] == 0x03 && b[2] <= 0x04
}

// LooksLikeHTTP: b starts with an HTTP method or "HTTP".
func LooksLikeHTTP(b []byte) bool {
	if len(b) < FrameSizeLen {
		return false
	}
	switch string(b[:FrameSizeLen]) {
	case "GET ", "POST", "HTTP", "PUT ", "HEAD", "DELE", "OPTI", "PATC", "CONN", "TRAC", "PRI ":
		return true
	}
	return false
}

// AppendFrameSize appends the 4-byte size.
func AppendFrameSize(dst []byte, size int) []byte { return appendI32(dst, int32(size)) }
