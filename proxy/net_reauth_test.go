package proxy

import (
	"context"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/sasl/oauth"

	"github.com/lockstep-kafka/lockstep/protocol"
)

// reauthBroker wants SaslHandshake v1 and SaslAuthenticate first, then again
// whenever the session is over, and as Kafka does takes nothing between the two.
func reauthBroker(t *testing.T, lifetime int, auths *atomic.Int64) func(c *net.TCPConn) {
	return func(c *net.TCPConn) {
		var shaken bool
		left := 0
		serveFrames(func(h protocol.RequestHeader, f []byte) []byte {
			switch {
			case h.Key == protocol.KeySaslHandshake && h.Version == 1:
				if shaken {
					t.Error("a handshake within a handshake")
				}
				shaken = true
				resp := kmsg.NewPtrSASLHandshakeResponse()
				resp.SupportedMechanisms = []string{"GSSAPI"}
				return resp.AppendTo(nil)
			case h.Key == protocol.KeySaslAuthenticate && shaken:
				req := kmsg.NewPtrSASLAuthenticateRequest()
				if err := protocol.DecodeBody(h.Version, f[h.HeaderLen:], req); err != nil || string(req.SASLAuthBytes) != string(gssInitial(0x100)) {
					t.Errorf("%x, %v", req.SASLAuthBytes, err)
				}
				shaken, left = false, lifetime
				auths.Add(1)
				resp := req.ResponseKind().(*kmsg.SASLAuthenticateResponse)
				resp.SASLAuthBytes, resp.SessionLifetimeMillis = gssInitial(0x200), int64(lifetime)
				body := resp.AppendTo(nil)
				if resp.IsFlexible() {
					return append([]byte{0}, body...)
				}
				return body
			}
			if left == 0 || shaken {
				t.Errorf("key %d while the client has to authenticate", h.Key)
				c.Close()
				return nil
			}
			left--
			return sumAnswer(h, f)
		})(c)
	}
}

// PX-069: a session lasts as long as the rest of the client's token where that is
// less than the broker's connections.max.reauth.ms. The client hears the broker's
// figure, and authenticates anew in time on the connection that it has.
func TestSessionAsLongAsTheToken(t *testing.T) {
	leakCheck(t)
	const reauth, token = int64(time.Hour / time.Millisecond), int64(1200)
	var auths, closed atomic.Int64
	p := testProxy(t, scriptedBroker(t, func(c *net.TCPConn) {
		defer closed.Add(1)
		serveFrames(func(h protocol.RequestHeader, f []byte) []byte {
			var resp kmsg.Response
			switch h.Key {
			case protocol.KeyApiVersions:
				r := kmsg.NewPtrApiVersionsResponse()
				for _, k := range []int16{protocol.KeyMetadata, protocol.KeyApiVersions, protocol.KeySaslHandshake, protocol.KeySaslAuthenticate} {
					r.ApiKeys = append(r.ApiKeys, kmsg.ApiVersionsResponseApiKey{ApiKey: k, MaxVersion: 1})
				}
				resp = r
			case protocol.KeySaslHandshake:
				r := kmsg.NewPtrSASLHandshakeResponse()
				r.SupportedMechanisms = []string{"OAUTHBEARER"}
				resp = r
			case protocol.KeySaslAuthenticate:
				auths.Add(1)
				r := kmsg.NewPtrSASLAuthenticateResponse()
				r.SessionLifetimeMillis = min(reauth, token)
				resp = r
			default:
				r := kmsg.NewPtrMetadataResponse()
				r.Brokers = append(r.Brokers, kmsg.MetadataResponseBroker{NodeID: 0, Host: "127.0.0.1", Port: 1})
				resp = r
			}
			resp.SetVersion(h.Version)
			return resp.AppendTo(nil)
		})(c)
	}), nil)
	ctx, cancel := context.WithTimeout(t.Context(), testPatience)
	defer cancel()
	cl, err := kgo.NewClient(kgo.SeedBrokers(p.Addr().String()), kgo.SASL(oauth.Auth{Token: "t"}.AsMechanism()), kgo.MetadataMinAge(10*time.Millisecond))
	require.NoError(t, err)
	seed := cl.SeedBrokers()[0]
	req := kmsg.NewPtrMetadataRequest()
	req.Topics = []kmsg.MetadataRequestTopic{}
	for auths.Load() < 4 {
		_, err := seed.Request(ctx, req)
		require.NoError(t, err)
		time.Sleep(5 * time.Millisecond)
	}
	require.Zero(t, closed.Load(), "a session was cut off")
	cl.Close()
	eventually(t, "closed", func() bool { return p.open.Load() == 0 })
}

// PX-061, PX-067 (KIP-368): a client authenticates anew on its live connection,
// again and again, any mechanism's bytes passing untouched, while the handshake
// waits behind requests that Lockstep answers itself and that ask the broker
// several times: none of these questions gets between handshake and token.
func TestReauthentication(t *testing.T) {
	leakCheck(t)
	const lifetime = 3 + 2 + 1
	var auths atomic.Int64
	p := testProxy(t, scriptedBroker(t, reauthBroker(t, lifetime, &auths)), func(o *Options) {
		o.handler = &stubHandler{key: protocol.KeyListOffsets, do: func(x exchange) {
			rounds := 0
			var ask func()
			ask = func() {
				x.AskFrame(keyHeartbeat, 0, nil, func(_ []byte, err error) {
					if rounds++; err == nil && rounds < 3 {
						x.After(time.Millisecond, ask)
						return
					}
					x.Reply([][]byte{[]byte("three")})
				})
			}
			ask()
		}}
	})
	for _, version := range []int16{0, 1, 2} { // of SaslAuthenticate
		c := dialRaw(t, p)
		auth := kmsg.NewPtrSASLAuthenticateRequest()
		auth.SetVersion(version)
		auth.SASLAuthBytes = gssInitial(0x100)
		const rounds = 20
		var all []byte
		for i := range int32(rounds) {
			all = append(all, saslHandshake(1, i*10, "GSSAPI")...)
			all = append(all, request(protocol.KeySaslAuthenticate, version, i*10+1, []byte("c"), auth.AppendTo(nil))...)
			all = append(all, request(keyHeartbeat, 0, i*10+2, nil, []byte("a"))...)
			all = append(all, request(protocol.KeyListOffsets, 1, i*10+3, nil, []byte("b"))...) // three at the broker
			all = append(all, request(keyHeartbeat, 0, i*10+4, nil, []byte("c"))...)
			all = append(all, request(protocol.KeyProduce, 3, i*10+5, nil, []byte{0xff, 0xff, 0, 0})...) // no answer
		}
		go func() { _, _ = c.Write(all) }()
		for i := range int32(rounds) {
			corr, _ := c.answer()
			require.Equal(t, i*10, corr)
			corr, body := c.answer()
			require.Equal(t, i*10+1, corr)
			if version == 2 {
				body = body[1:]
			}
			resp := auth.ResponseKind().(*kmsg.SASLAuthenticateResponse)
			require.NoError(t, protocol.DecodeBody(version, body, resp))
			require.Equal(t, gssInitial(0x200), resp.SASLAuthBytes)
			for j := int32(2); j <= 4; j++ {
				corr, body := c.answer()
				require.Equal(t, i*10+j, corr)
				require.Equal(t, j == 3, string(body) == "three")
			}
		}
		require.NoError(t, c.CloseWrite())
		require.Empty(t, c.ended())
	}
	require.EqualValues(t, 3*20, auths.Load())
	eventually(t, "closed", func() bool { return closedFor(p, ReasonClientEOF) == 3 })
}
