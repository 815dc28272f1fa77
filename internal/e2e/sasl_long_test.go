//go:build long

package e2e_test

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/lockstep-kafka/lockstep/internal/e2e"
	"github.com/lockstep-kafka/lockstep/internal/testkafka/clients"
	"github.com/lockstep-kafka/lockstep/internal/tlsconf/tlstest"
)

// Each mechanism of Lockstep's own connections, on both sides, on brokers with sessions of 5 s: for 25 s records arrive
// and no broker cuts a session off. The token file is renewed every 3 s with tokens of 9 s, which is only good enough if
// it is read again at each login (AU-01).
func TestOwnMechanismsRenew(t *testing.T) {
	ctx := withTimeout(t, 8*time.Minute)
	ca, dir := tlstest.NewCA(t), t.TempDir()
	short := map[string]string{}
	for _, m := range []string{"plain", "scram-sha-512", "oauthbearer"} {
		short["listener.name.secure."+m+".connections.max.reauth.ms"] = "5000"
	}
	src, srcAddr := saslKafka(t, ca, dir, "source", short)
	dst, dstAddr := saslKafka(t, ca, dir, "destination", short)
	for _, adm := range []*kadm.Client{adminOf(t, src), adminOf(t, dst)} {
		made, err := adm.AlterUserSCRAMs(ctx, nil, []kadm.UpsertSCRAM{{User: "app", Mechanism: kadm.ScramSha512, Iterations: 4096, Password: clientPassword}})
		require.NoError(t, err)
		require.NoError(t, made.Error())
	}
	tlstest.Write(t, filepath.Join(dir, "ca.pem"), ca.PEM)
	tlstest.Write(t, filepath.Join(dir, "password"), []byte(clientPassword))
	token := func() { tlstest.Write(t, filepath.Join(dir, "token"), []byte(jws("app", 9*time.Second)+"\n")) }
	token()
	idp := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = fmt.Fprintf(w, `{"access_token": %q, "token_type": "Bearer", "expires_in": 9}`, jws("app", 9*time.Second))
	}))
	defer idp.Close()

	for i, x := range []struct{ name, sasl string }{
		{"PLAIN", "{mechanism: PLAIN, username: app, password_file: DIR/password}"},
		{"SCRAM-SHA-512", "{mechanism: SCRAM-SHA-512, username: app, password_file: DIR/password}"},
		{"OAUTHBEARER by file", "{mechanism: OAUTHBEARER, oauth: {token_file: DIR/token}}"},
		{"OAUTHBEARER by client credentials", "{mechanism: OAUTHBEARER, oauth: {token_url: \"" + idp.URL + "\", client_id: x, client_secret_file: DIR/password}}"},
	} {
		t.Run(x.name, func(t *testing.T) {
			topic := fmt.Sprint("topic-", i)
			_, err := adminOf(t, src).CreateTopic(ctx, 1, 1, nil, topic)
			require.NoError(t, err)
			endedBefore := sessionsEnded(src) + sessionsEnded(dst)
			token()
			l := e2e.Start(t, &binary, e2e.Setup{Source: src, Destination: dst, Config: func(bootstrap string) string {
				return strings.ReplaceAll(fmt.Sprintf(`listeners: [{address: %q, broker_ports: %s}]
destination: {bootstrap: [%q], tls: {enabled: true, ca_file: DIR/ca.pem}, sasl: %s}
mirrors:
  - name: dc1
    source: {bootstrap: [%q], tls: {enabled: true, ca_file: DIR/ca.pem}, sasl: %s}
    topics: {include: [%q]}
    metadata_refresh: 1s
    groups: {interval: 2s}
`, bootstrap, brokerPorts(t, bootstrap), dstAddr, x.sasl, srcAddr, x.sasl, topic), "DIR", dir)
			}})
			renewing, stop := context.WithCancel(ctx)
			var wg sync.WaitGroup
			defer wg.Wait()
			defer stop()
			wg.Go(func() {
				for renewing.Err() == nil {
					select {
					case <-renewing.Done():
					case <-time.After(3 * time.Second):
						token()
					}
				}
			})
			l.WaitState(ctx, topic, 1, "MIRRORING")
			producer, err := kgo.NewClient(kgo.SeedBrokers(src.Bootstrap()), kgo.DefaultProduceTopic(topic))
			require.NoError(t, err)
			defer producer.Close()
			adm, n := adminOf(t, dst), int64(0)
			for end := time.Now().Add(25 * time.Second); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
				require.NoError(t, producer.ProduceSync(ctx, kgo.StringRecord("x")).FirstErr())
				n++
				waitEndOf(ctx, t, adm, l, topic, n)
			}
			require.Zero(t, sessionsEnded(src)+sessionsEnded(dst)-endedBefore)
			require.NotContains(t, l.Log(), "cause=credentials")
			require.NotContains(t, l.Log(), "SASL")
			l.Stop()
		})
	}
}

// brokerPorts are those behind a bootstrap address of e2e.
func brokerPorts(t *testing.T, bootstrap string) string {
	t.Helper()
	_, port, err := net.SplitHostPort(bootstrap)
	require.NoError(t, err)
	var n int
	_, err = fmt.Sscan(port, &n)
	require.NoError(t, err)
	return fmt.Sprintf("%d-%d", n+2, n+15)
}

// Each client with each mechanism through a TLS listener.
func TestClientsBySASL(t *testing.T) {
	ctx := withTimeout(t, 4*time.Minute)
	s := startSecured(ctx, t, "moving")
	acl := kadm.NewACLs().Topics("moving").Allow("User:app").Operations(kadm.OpRead, kadm.OpDescribe)
	s.allow(ctx, acl)
	s.allow(ctx, kadm.NewACLs().Groups("*").Allow("User:app").Operations(kadm.OpRead))
	jaas := "org.apache.kafka.common.security."
	rdCA, javaCA := filepath.Join(s.dir, "ca.pem"), filepath.Join(s.dir, "ca.pem")
	for _, x := range []struct {
		mechanism string
		java, rd  map[string]string
	}{
		{
			"PLAIN",
			map[string]string{"sasl.jaas.config": jaas + `plain.PlainLoginModule required username="app" password="` + clientPassword + `";`},
			map[string]string{"sasl.username": "app", "sasl.password": clientPassword},
		},
		{
			"SCRAM-SHA-512",
			map[string]string{"sasl.jaas.config": jaas + `scram.ScramLoginModule required username="app" password="` + clientPassword + `";`},
			map[string]string{"sasl.username": "app", "sasl.password": clientPassword},
		},
		{
			"OAUTHBEARER",
			map[string]string{"sasl.jaas.config": jaas + `oauthbearer.OAuthBearerLoginModule required unsecuredLoginStringClaim_sub="app";`},
			map[string]string{"enable.sasl.oauthbearer.unsecure.jwt": "true", "sasl.oauthbearer.config": "principal=app"},
		},
	} {
		for _, c := range []struct {
			name string
			read func(context.Context, clients.Read) (clients.Result, error)
			set  map[string]string
		}{{"java", clients.JavaRead, x.java}, {"librdkafka", clients.PythonRead, x.rd}} {
			t.Run(c.name+" "+x.mechanism, func(t *testing.T) {
				c.set["security.protocol"], c.set["sasl.mechanism"] = "SASL_SSL", x.mechanism
				if c.name == "java" {
					c.set["ssl.truststore.type"], c.set["ssl.truststore.location"] = "PEM", javaCA
				} else {
					c.set["ssl.ca.location"] = rdCA
				}
				// Beyond its end, for some sessions.
				got, err := c.read(ctx, clients.Read{
					Bootstrap: s.addr, Topic: "moving", Group: c.name + x.mechanism, Subscribe: true, Commit: true, Set: c.set,
					Follow: true, Timeout: 4 * session,
				})
				require.NoError(t, err)
				require.Len(t, got.Recs, 10)
			})
		}
	}
	require.Zero(t, sessionsEnded(s.dst))
	s.noSecrets(ctx)
}
