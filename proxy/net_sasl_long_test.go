//go:build long

package proxy

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/oauth"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"

	"github.com/lockstep-kafka/lockstep/internal/e2e/foreign"
	"github.com/lockstep-kafka/lockstep/internal/testkafka"
	"github.com/lockstep-kafka/lockstep/protocol"
)

// saslListener restarts the only broker of c with a SASL listener beside its own.
func saslListener(t *testing.T, c *testkafka.Cluster, extra ...string) (addr string) {
	t.Helper()
	addr = fmt.Sprintf("127.0.0.1:%d", freePorts(t, 1))
	file := c.PropsFile(1)
	b, err := os.ReadFile(file)
	require.NoError(t, err)
	lines := strings.Split(strings.TrimSpace(string(b)), "\n")
	for i, line := range lines {
		if key, _, _ := strings.Cut(line, "="); key == "listeners" || key == "advertised.listeners" {
			lines[i] += ",SASL://" + addr
		}
	}
	lines = append(lines, "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SASL:SASL_PLAINTEXT",
		"sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-256,OAUTHBEARER",
		`listener.name.sasl.plain.sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required user_p="secret";`,
		`listener.name.sasl.oauthbearer.sasl.jaas.config=org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required unsecuredLoginStringClaim_sub="broker";`,
		"listener.name.sasl.oauthbearer.connections.max.reauth.ms=3600000",
		"listener.name.sasl.scram-sha-256.sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required;")
	lines = append(lines, extra...)
	require.NoError(t, os.WriteFile(file, []byte(strings.Join(lines, "\n")+"\n"), 0o600))
	require.NoError(t, c.Stop(1))
	require.NoError(t, c.StartBroker(t.Context(), 1))
	return addr
}

// disconnects counts what a client loses.
type disconnects struct{ n atomic.Int64 }

func (d *disconnects) OnBrokerDisconnect(kgo.BrokerMetadata, net.Conn) { d.n.Add(1) }

// Real Kafka with sessions of three seconds: bare tokens of SaslHandshake v0 get a
// client in, and the broker cuts it off afterwards (PX-065); a client that can
// authenticate anew goes on for several sessions without losing a connection
// (PX-061), also where a session is as short as its token, whatever the broker is
// set to (PX-069).
func TestSASLOverKafka(t *testing.T) {
	c := testkafka.Start(t, testkafka.Options{})
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	admin, err := kgo.NewClient(kgo.SeedBrokers(c.Bootstrap()))
	require.NoError(t, err)
	defer admin.Close()
	_, err = kadm.NewClient(admin).CreateTopic(ctx, 1, 1, nil, "t")
	require.NoError(t, err)
	_, err = kadm.NewClient(admin).AlterUserSCRAMs(ctx, nil, []kadm.UpsertSCRAM{{User: "s", Mechanism: kadm.ScramSha256, Iterations: 4096, Password: "secret"}})
	require.NoError(t, err)
	addr := saslListener(t, c, "connections.max.reauth.ms=3000")
	first := freePorts(t, 3)
	p := testProxy(t, addr, func(o *Options) {
		o.Bootstrap = c.Seeds() // Lockstep's own eyes; clients are all connected to addr
		o.Listeners[0].FirstPort, o.Listeners[0].LastPort = first, first+2
	})

	for _, m := range []sasl.Mechanism{
		plain.Auth{User: "p", Pass: "secret"}.AsMechanism(), scram.Auth{User: "s", Pass: "secret"}.AsSha256Mechanism(),
	} {
		before := closedFor(p, ReasonBrokerEOF)
		raw := dialRaw(t, p)
		raw.send(saslHandshake(0, 1, m.Name()))
		_, body := raw.answer()
		require.NoError(t, protocol.DecodeBody(0, body, kmsg.NewPtrSASLHandshakeResponse()))
		require.Equal(t, []byte{0, 0}, body[:2])
		session, token, err := m.Authenticate(ctx, addr)
		require.NoError(t, err)
		for done := false; !done; {
			raw.send(sized(token))
			answer, err := readFrame(raw.r)
			require.NoError(t, err, m.Name())
			done, token, err = session.Challenge(answer)
			require.NoError(t, err)
		}
		raw.send(request(protocol.KeyMetadata, 1, 2, nil, metadataBody))
		corr, body := raw.answer()
		require.EqualValues(t, 2, corr)
		meta := kmsg.NewPtrMetadataResponse()
		require.NoError(t, protocol.DecodeBody(1, body, meta))
		require.EqualValues(t, first+1, meta.Brokers[0].Port, "a request again, and its answer rewritten")
		for err == nil {
			time.Sleep(100 * time.Millisecond)
			if _, err = raw.Write(request(protocol.KeyMetadata, 1, 3, nil, metadataBody)); err == nil {
				_, err = readFrame(raw.r)
			}
		}
		var ne net.Error
		require.False(t, errors.As(err, &ne) && ne.Timeout(), "the session never ended")
		eventually(t, "reason", func() bool { return closedFor(p, ReasonBrokerEOF) == before+1 })
	}

	var tokens atomic.Int64
	bearer := oauth.Oauth(func(context.Context) (oauth.Auth, error) {
		tokens.Add(1)
		enc, now := base64.RawURLEncoding.EncodeToString, time.Now().Unix()
		return oauth.Auth{Token: enc([]byte(`{"alg":"none"}`)) + "." + enc(fmt.Appendf(nil, `{"sub":"o","iat":%d,"exp":%d}`, now, now+5)) + "."}, nil
	})
	for _, m := range []sasl.Mechanism{
		plain.Auth{User: "p", Pass: "secret"}.AsMechanism(), scram.Auth{User: "s", Pass: "secret"}.AsSha256Mechanism(), bearer,
	} {
		var lost disconnects
		cl, err := kgo.NewClient(kgo.SeedBrokers(p.Addr().String()), kgo.SASL(m), kgo.WithHooks(&lost), kgo.DefaultProduceTopic("t"))
		require.NoError(t, err)
		for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
			require.NoError(t, cl.ProduceSync(ctx, kgo.StringRecord("x")).FirstErr())
		}
		require.Zero(t, lost.n.Load(), m.Name())
		cl.Close()
	}
	require.Greater(t, tokens.Load(), int64(2))

	// PX-063: kafkajs renews its sessions, too, over one connection.
	t.Run("kafkajs", func(t *testing.T) {
		testkafka.Require(t, foreign.Node.Tools()...)
		require.NoError(t, foreign.Node.Install(ctx))
		cut := closedFor(p, ReasonBrokerEOF)
		lines, err := foreign.Run(ctx, foreign.Node, foreign.Job{Bootstrap: p.Addr().String(), Prefix: "js", Client: "kafkajs", Cases: []foreign.Case{foreign.Reauth}, SASL: "p:secret"})
		require.NoError(t, err)
		require.Len(t, lines, 1)
		require.True(t, lines[0].Done, lines[0].Error)
		require.Equal(t, cut, closedFor(p, ReasonBrokerEOF), "the broker has cut a session off")
	})
}
