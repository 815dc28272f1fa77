package proxy

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-kafka/lockstep/internal/tlsconf/tlstest"
)

// A peer that asks for new keys (TLS 1.3) is answered at once, on its own
// connection, though nothing else is to be sent. crypto/tls can't ask, so the
// record is made by hand.
func TestTLSKeyUpdateIsAnswered(t *testing.T) {
	leakCheck(t)
	ca := tlstest.NewCA(t)
	p := testProxy(t, scriptedBroker(t, serveFrames(sumAnswer)), func(o *Options) {
		o.Limits.HandshakeTimeout = time.Hour // an end would send it, too
		tlsFront(&tls.Config{
			Certificates: []tls.Certificate{ca.Certificate(t, "lockstep", "lockstep.test")}, SessionTicketsDisabled: true,
		})(o)
	})
	var keys bytes.Buffer
	raw := dialTCP(t, p.Addr().String())
	c := overTLS(t, raw, &tls.Config{RootCAs: ca.Pool, ServerName: "lockstep.test", MinVersion: tls.VersionTLS13, KeyLogWriter: &keys})
	_, line, _ := strings.Cut(keys.String(), "CLIENT_TRAFFIC_SECRET_0 ")
	secret, err := hex.DecodeString(strings.Fields(line)[1])
	require.NoError(t, err)
	if c.ConnectionState().CipherSuite != tls.TLS_AES_128_GCM_SHA256 {
		t.Logf("made for %s only", tls.CipherSuiteName(tls.TLS_AES_128_GCM_SHA256)) // Go prefers it where there is AES in hardware
		return
	}
	expand := func(label string, n int) []byte {
		b, err := hkdf.Expand(sha256.New, secret, "\x00"+string(rune(n))+string(rune(len(label)))+label+"\x00", n)
		require.NoError(t, err)
		return b
	}
	block, err := aes.NewCipher(expand("tls13 key", 16))
	require.NoError(t, err)
	aead, err := cipher.NewGCM(block)
	require.NoError(t, err)
	keyUpdate := []byte{24, 0, 0, 1, 1, 22} // asks for one of the other side; 22: a handshake message
	head := []byte{23, 3, 3, 0, byte(len(keyUpdate) + aead.Overhead())}
	_, err = raw.Write(aead.Seal(head, expand("tls13 iv", 12), keyUpdate, head)) // the first record: its number is 0
	require.NoError(t, err)
	answer := make([]byte, len(head)+len(keyUpdate)+aead.Overhead())
	_, err = io.ReadFull(raw, answer)
	require.NoError(t, err)
	require.Equal(t, head, answer[:5])
}
