package proxy

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"

	"github.com/pires/go-proxyproto"
)

// ProxyProtocol says whether connections to a listener begin with a header of
// the PROXY protocol (v1 or v2), in which a load balancer tells the client's
// address.
type ProxyProtocol uint8

// The settings.
const (
	ProxyOff      ProxyProtocol = iota
	ProxyAllowed                // with or without
	ProxyRequired               // without: closed
)

var errProxyHeader = errors.New("bad PROXY protocol header")

const (
	proxyV1     = "PROXY "
	proxyV2     = "\r\n\r\n\x00\r\nQUIT\n"
	proxyV1Max  = 107     // bytes of a v1 header, the end of line included
	proxyV2Head = 16      // signature, command, family, length
	proxyV2Max  = 4 << 10 // what may follow; addresses take 216 at most, the rest is TLVs
)

// proxyHeaderLen is the length of the PROXY header at the start of b, 0 when b
// doesn't begin with one. more: that can't be told yet.
func proxyHeaderLen(b []byte) (n int, more bool, err error) {
	begins := func(sig string) bool {
		k := min(len(b), len(sig))
		return string(b[:k]) == sig[:k]
	}
	switch {
	case begins(proxyV1):
		line := b[:min(len(b), proxyV1Max)]
		if i := bytes.IndexByte(line, '\n'); i >= 0 {
			return i + 1, false, nil
		}
		if len(line) == proxyV1Max {
			return 0, false, fmt.Errorf("%w: its line has no end within %d bytes", errProxyHeader, proxyV1Max)
		}
		return 0, true, nil
	case begins(proxyV2):
		if len(b) < proxyV2Head {
			return 0, true, nil
		}
		n = int(binary.BigEndian.Uint16(b[proxyV2Head-2:]))
		if n > proxyV2Max {
			return 0, false, fmt.Errorf("%w: %d bytes, at most %d are taken", errProxyHeader, n, proxyV2Max)
		}
		n += proxyV2Head
		return n, len(b) < n, nil
	}
	return 0, false, nil
}

// parseProxyHeader gets a whole header. nil: it tells no TCP address (the load
// balancer's own health check, or a family without one).
func parseProxyHeader(b []byte) (net.Addr, error) {
	if len(b) >= proxyV2Head && strings.HasPrefix(string(b), proxyV2) && b[12] == 0x21 && b[13] == 0 {
		return nil, nil // PROXY, unspecified family: left to the receiver, and go-proxyproto refuses it
	}
	h, err := proxyproto.Read(bufio.NewReader(bytes.NewReader(b)))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errProxyHeader, err)
	}
	if src, ok := h.SourceAddr.(*net.TCPAddr); ok && !h.Command.IsLocal() {
		return src, nil
	}
	return nil, nil
}

// readProxyHeader reads a connection's header, which may come in pieces, or in
// one with what follows. src is nil when it tells none; rest is what was read
// behind it.
func readProxyHeader(r io.Reader, mode ProxyProtocol) (src net.Addr, rest []byte, err error) {
	b := make([]byte, 0, 512)
	for {
		n, more, err := proxyHeaderLen(b)
		switch {
		case err != nil:
			return nil, nil, err
		case more:
			if len(b) == cap(b) {
				b = append(b, 0)[:len(b)]
			}
			k, err := r.Read(b[len(b):cap(b)])
			if b = b[:len(b)+k]; err != nil && k == 0 {
				return nil, nil, err
			}
		case n == 0 && mode == ProxyRequired:
			return nil, nil, fmt.Errorf("%w: there is none, and this listener requires one (proxy_protocol)", errProxyHeader)
		case n == 0:
			return nil, b, nil
		default:
			src, err = parseProxyHeader(b[:n])
			return src, b[n:], err
		}
	}
}
