package protocol

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// Errors of ParseRequestHeader. With either of the first two the header that
// comes back is filled as far as it can be known.
var (
	// ErrUnknownAPI: the key is not in the table; the header's end can't be known.
	ErrUnknownAPI = errors.New("unknown api key")
	// ErrUnknownVersion: a version outside the reviewed range; see API.
	ErrUnknownVersion = errors.New("api version is outside the reviewed range")
	// ErrHeader: the header can't be read.
	ErrHeader = errors.New("bad header")
)

// RequestHeader is Kafka's request header v0 to v2.
type RequestHeader struct {
	Key           int16
	Version       int16
	CorrelationID int32
	ClientID      []byte // aliases the frame; nil: null
	HeaderLen     int    // bytes of the frame before the body
}

// Name is the API's name, or "key 123".
func (h RequestHeader) Name() string {
	if a, ok := LookupAPI(h.Key); ok {
		return a.Name
	}
	return fmt.Sprintf("key %d", h.Key)
}

// ParseRequestHeader reads the header of frame (without its 4-byte size).
//
// An unknown key gives ErrUnknownAPI (Key, Version and CorrelationID are set,
// HeaderLen 0). A version above the reviewed one gives ErrUnknownVersion with a
// full header, read as the newest version's: for ApiVersions that is what Kafka
// does, too (KIP-511), and the answer is UnsupportedApiVersionsBody.
func ParseRequestHeader(frame []byte) (RequestHeader, error) {
	var h RequestHeader
	if len(frame) < 8 {
		return h, fmt.Errorf("%w: %d bytes, a request header has at least 8", ErrHeader, len(frame))
	}
	h.Key = int16(binary.BigEndian.Uint16(frame))
	h.Version = int16(binary.BigEndian.Uint16(frame[2:]))
	h.CorrelationID = int32(binary.BigEndian.Uint32(frame[4:]))
	a, ok := LookupAPI(h.Key)
	if !ok {
		return h, fmt.Errorf("%w %d", ErrUnknownAPI, h.Key)
	}
	if h.Version < 0 {
		return h, fmt.Errorf("%w: negative version %d of %s", ErrHeader, h.Version, a.Name)
	}
	r := wireReader{b: frame, off: 8}
	if a.RequestHeaderVersion(h.Version) >= 1 {
		// The client id keeps the old length form even in header v2.
		if id, ok := r.nullableString(); ok {
			h.ClientID = id
		}
	}
	if a.RequestHeaderVersion(h.Version) >= 2 {
		r.flex = true
		r.tags()
	}
	if r.err != nil {
		return h, fmt.Errorf("%w of %s v%d: %w", ErrHeader, a.Name, h.Version, r.err)
	}
	h.HeaderLen = r.off
	if h.Version > a.Max {
		return h, fmt.Errorf("%w: %s v%d, known up to v%d", ErrUnknownVersion, a.Name, h.Version, a.Max)
	}
	return h, nil
}

// AppendRequestHeader appends the header of a request of our own. clientID nil
// is null. key must be in the table.
func AppendRequestHeader(dst []byte, key, version int16, correlationID int32, clientID []byte) []byte {
	dst = appendI16(dst, key)
	dst = appendI16(dst, version)
	dst = appendI32(dst, correlationID)
	a, _ := LookupAPI(key)
	hv := a.RequestHeaderVersion(version)
	if hv >= 1 {
		if clientID == nil {
			dst = appendNullStr(dst, false)
		} else {
			dst = appendStr(dst, clientID, false)
		}
	}
	if hv >= 2 {
		dst = append(dst, 0)
	}
	return dst
}

// AppendResponseHeader appends correlation id and, where the version has them,
// an empty section of tagged fields. ApiVersions never has one: its reader
// doesn't know yet what the broker speaks (KIP-511).
func AppendResponseHeader(dst []byte, key, version int16, correlationID int32) []byte {
	dst = appendI32(dst, correlationID)
	if a, _ := LookupAPI(key); a.ResponseHeaderVersion(version) >= 1 {
		dst = append(dst, 0)
	}
	return dst
}

// ParseResponseHeader reads the header of a response frame (without its size)
// to a request of the given key and version. headerLen counts tagged fields.
func ParseResponseHeader(key, version int16, frame []byte) (correlationID int32, headerLen int, err error) {
	a, ok := LookupAPI(key)
	if !ok {
		return 0, 0, fmt.Errorf("%w %d", ErrUnknownAPI, key)
	}
	r := wireReader{b: frame}
	correlationID = r.i32()
	if a.ResponseHeaderVersion(version) >= 1 {
		r.flex = true
		r.tags()
	}
	if r.err != nil {
		return 0, 0, fmt.Errorf("%w of %s v%d's answer: %w", ErrHeader, a.Name, version, r.err)
	}
	return correlationID, r.off, nil
}
