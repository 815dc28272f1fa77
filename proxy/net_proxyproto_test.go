package proxy

import (
	"bytes"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"io"
	"log/slog"
	"net"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-kafka/lockstep/internal/tlsconf/tlstest"
)

const proxyV1Header = "PROXY TCP4 192.0.2.7 198.51.100.1 56324 9092\r\n"

// proxyV2Header is a v2 header: command (0x21 PROXY, 0x20 LOCAL), family, what follows.
func proxyV2Header(command, family byte, rest ...byte) string {
	b := append([]byte(proxyV2), command, family)
	return string(append(binary.BigEndian.AppendUint16(b, uint16(len(rest))), rest...))
}

var (
	v4Addresses = []byte{192, 0, 2, 7, 198, 51, 100, 1, 0xdc, 0x04, 0x23, 0x84}
	v6Addresses = append(append(append(net.ParseIP("2001:db8::7"), net.ParseIP("2001:db8::1")...), 0xdc, 0x04), 0x23, 0x84)
	someTLV     = []byte{0x04, 0, 3, 1, 2, 3} // NOOP
)

// Headers, alone and with what follows, in one piece and byte by byte (PX-093).
func TestReadProxyHeader(t *testing.T) {
	for name, tc := range map[string]struct {
		header, src string
		bad         bool
	}{
		"v1 TCP4":              {proxyV1Header, "192.0.2.7:56324", false},
		"v1 TCP6":              {"PROXY TCP6 2001:db8::7 2001:db8::1 56324 9092\r\n", "[2001:db8::7]:56324", false},
		"v1 UNKNOWN":           {"PROXY UNKNOWN\r\n", "", false},
		"v1 UNKNOWN with more": {"PROXY UNKNOWN ffff:f:f:f:f:f:f:ffff ffff:f:f:f:f:f:f:ffff 65535 65535\r\n", "", false},
		"v2 TCP4":              {proxyV2Header(0x21, 0x11, v4Addresses...), "192.0.2.7:56324", false},
		"v2 TCP6":              {proxyV2Header(0x21, 0x21, v6Addresses...), "[2001:db8::7]:56324", false},
		"v2 with TLVs":         {proxyV2Header(0x21, 0x11, append(v4Addresses[:12:12], someTLV...)...), "192.0.2.7:56324", false},
		"v2 LOCAL":             {proxyV2Header(0x20, 0), "", false},
		"v2 LOCAL, addresses":  {proxyV2Header(0x20, 0x11, v4Addresses...), "", false},
		"v2 unspecified":       {proxyV2Header(0x21, 0), "", false},
		"v2 unix":              {proxyV2Header(0x21, 0x31, make([]byte, 216)...), "", false},
		"v1 no end":            {proxyV1 + strings.Repeat("x", 200), "", true},
		"v1 no CR":             {"PROXY TCP4 192.0.2.7 198.51.100.1 56324 9092\n", "", true},
		"v1 bad address":       {"PROXY TCP4 192.0.2.700 198.51.100.1 56324 9092\r\n", "", true},
		"v1 bad port":          {"PROXY TCP4 192.0.2.7 198.51.100.1 70000 9092\r\n", "", true},
		"v1 bad protocol":      {"PROXY UDP4 192.0.2.7 198.51.100.1 1 2\r\n", "", true},
		"v2 version 3":         {proxyV2Header(0x31, 0x11, v4Addresses...), "", true},
		"v2 command 2":         {proxyV2Header(0x22, 0x11, v4Addresses...), "", true},
		"v2 too short":         {proxyV2Header(0x21, 0x11, v4Addresses[:11]...), "", true},
		"v2 too long":          {proxyV2Header(0x21, 0x11, make([]byte, 5000)...), "", true},
	} {
		for how, wrap := range map[string]func(io.Reader) io.Reader{
			"at once": func(r io.Reader) io.Reader { return r }, "byte by byte": iotest.OneByteReader,
		} {
			t.Run(name+" "+how, func(t *testing.T) {
				for _, follows := range []string{"", "\x00\x00\x00\x08\r\nfollows"} {
					r := wrap(strings.NewReader(tc.header + follows))
					src, rest, err := readProxyHeader(r, ProxyRequired)
					if tc.bad {
						require.ErrorIs(t, err, errProxyHeader)
						continue
					}
					require.NoError(t, err)
					after, err := io.ReadAll(r)
					require.NoError(t, err)
					require.Equal(t, follows, string(rest)+string(after), "first bytes lost")
					if tc.src == "" {
						require.Nil(t, src)
					} else {
						require.Equal(t, tc.src, src.String())
					}
				}
			})
		}
	}
	t.Run("none", func(t *testing.T) {
		for _, b := range []string{"\x00\x00\x00\x20request", "\x16\x03\x01", "PROPOSAL", "\r\n\r\nx", "G"} {
			r := iotest.OneByteReader(strings.NewReader(b))
			src, rest, err := readProxyHeader(r, ProxyAllowed)
			require.NoError(t, err)
			require.Nil(t, src)
			after, _ := io.ReadAll(r)
			require.Equal(t, b, string(rest)+string(after))
			_, _, err = readProxyHeader(strings.NewReader(b), ProxyRequired)
			require.ErrorIs(t, err, errProxyHeader)
		}
	})
	t.Run("cut off", func(t *testing.T) {
		for _, whole := range []string{proxyV1Header, proxyV2Header(0x21, 0x11, v4Addresses...)} {
			for n := range len(whole) {
				_, _, err := readProxyHeader(strings.NewReader(whole[:n]), ProxyAllowed)
				require.ErrorIs(t, err, io.EOF, "%q", whole[:n])
			}
		}
	})
}

// Whatever comes: no panic, an end, a bounded buffer, and nothing lost of what
// is not a header.
func FuzzProxyHeader(f *testing.F) {
	for _, s := range []string{
		"", "PROXY", proxyV1Header, "PROXY UNKNOWN\r\n\x00", proxyV2Header(0x21, 0x11, v4Addresses...), proxyV2Header(0x20, 0), proxyV2,
		proxyV2Header(0x21, 0x31, make([]byte, 216)...), "\x00\x00\x00\x08", "\x16\x03\x01\x02\x00", proxyV2Header(0x21, 0x11, append(v4Addresses[:12:12], someTLV...)...),
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		r := bytes.NewReader(b)
		src, rest, err := readProxyHeader(r, ProxyAllowed)
		if err != nil {
			if !errors.Is(err, errProxyHeader) && !errors.Is(err, io.EOF) {
				t.Fatalf("unexpected error %v", err)
			}
			return
		}
		if cap(rest) > 2*(proxyV2Max+512) {
			t.Fatalf("%d bytes buffered", cap(rest))
		}
		after, _ := io.ReadAll(r)
		all := append(append([]byte(nil), rest...), after...)
		if !bytes.HasSuffix(b, all) {
			t.Fatal("what follows is changed")
		}
		header := b[:len(b)-len(all)]
		if len(header) == 0 {
			if src != nil {
				t.Fatal("an address without a header")
			}
			return
		}
		again, _, err := readProxyHeader(iotest.OneByteReader(bytes.NewReader(header)), ProxyRequired)
		if err != nil || (src == nil) != (again == nil) || src != nil && src.String() != again.String() {
			t.Fatalf("byte by byte it is another: %v %v %v", src, again, err)
		}
	})
}

// The client's address is that of the header: in logs, and for the limit by
// address. Header and request in one segment, byte by byte, and with TLS after
// it (PX-093).
func TestProxyProtocolListener(t *testing.T) {
	leakCheck(t)
	ca := tlstest.NewCA(t)
	var log syncBuffer
	broker := scriptedBroker(t, serveFrames(sumAnswer))
	start := func(t *testing.T, mode ProxyProtocol, withTLS bool) *Proxy {
		return testProxy(t, broker, func(o *Options) {
			o.Logger = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))
			o.Listeners[0].ProxyProtocol = mode
			o.Limits.MaxConnectionsPerIP = 1
			if withTLS {
				tlsFront(&tls.Config{Certificates: []tls.Certificate{ca.Certificate(t, "lockstep", "lockstep.test")}})(o)
			}
		})
	}
	header := func(host byte) string {
		a := append([]byte{192, 0, 2, host}, v4Addresses[4:]...)
		return proxyV2Header(0x21, 0x11, a...)
	}
	req := request(keyHeartbeat, 0, 1, nil, []byte("body"))
	p := start(t, ProxyRequired, false)
	a := dialRaw(t, p)
	a.send(append([]byte(header(21)), req...))
	_, body := a.answer()
	require.Equal(t, sumOf(req[4:]), body)
	b := dialRaw(t, p)
	for _, x := range append([]byte(header(22)), req...) {
		b.send([]byte{x})
		time.Sleep(50 * time.Microsecond)
	}
	_, body = b.answer()
	require.Equal(t, sumOf(req[4:]), body)
	require.Contains(t, log.String(), "conn=192.0.2.21:56324")
	require.Contains(t, log.String(), "conn=192.0.2.22:56324")
	second := dialRaw(t, p) // of the same client
	second.send([]byte(header(22)))
	second.ended()
	eventually(t, "limit by the header's address", func() bool { return closedFor(p, ReasonMaxConnectionsPerIP) == 1 })

	p = start(t, ProxyRequired, true)
	tcp := dialTCP(t, p.Addr().String())
	_, err := io.WriteString(tcp, header(23))
	require.NoError(t, err)
	c := overTLS(t, tcp, &tls.Config{RootCAs: ca.Pool, ServerName: "lockstep.test"})
	c.send(req)
	_, body = c.answer()
	require.Equal(t, sumOf(req[4:]), body)
	require.Contains(t, log.String(), "conn=192.0.2.23:56324")
	direct := tls.Client(dialTCP(t, p.Addr().String()), &tls.Config{RootCAs: ca.Pool, ServerName: "lockstep.test"})
	require.Error(t, direct.Handshake())
	eventually(t, "missing", func() bool { return closedFor(p, ReasonBadProxyHeader) == 1 })

	p = start(t, ProxyAllowed, true)
	c = dialTLS(t, p.Addr().String(), &tls.Config{RootCAs: ca.Pool, ServerName: "lockstep.test"})
	c.send(req)
	c.answer()

	// A header that is not expected is named, on plaintext and on TLS.
	for _, withTLS := range []bool{false, true} {
		p = start(t, ProxyOff, withTLS)
		for i, h := range []string{proxyV1Header, header(24)} {
			c := dialRaw(t, p)
			c.send([]byte(h))
			c.ended()
			require.NoError(t, c.Close()) // it counts for its address until then
			eventually(t, "counted out", func() bool { return p.sockets.Load() == 0 })
			eventually(t, "not expected", func() bool { return closedFor(p, ReasonBadProxyHeader) == i+1 })
		}
	}
}
