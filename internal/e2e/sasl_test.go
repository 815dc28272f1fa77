package e2e_test

import (
	"context"
	"crypto/tls"
	"encoding/base64"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/oauth"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"

	"github.com/lockstep-kafka/lockstep/internal/e2e"
	"github.com/lockstep-kafka/lockstep/internal/testkafka"
	"github.com/lockstep-kafka/lockstep/internal/testkafka/clients"
	"github.com/lockstep-kafka/lockstep/internal/tlsconf/tlstest"
)

// What must be found nowhere.
const (
	lockstepPassword = "c4nary-scram"
	lockstepSecret   = "c4nary-oauth"
	clientPassword   = "c4nary-client"
)

// session is how long the brokers' SASL sessions last: a few of them in each test. A client that gets no CPU for a fifth
// of it loses its connection.
const session = 5 * time.Second

// secured is two clusters whose listeners SASL demand TLS and SASL, sessions end after session, and Lockstep between
// them: by OAUTHBEARER (client credentials) at the source, by SCRAM at the destination, which has an authorizer. The
// clusters' own listeners are plaintext, for the test, which may do everything.
type secured struct {
	t        *testing.T
	ca       *tlstest.CA
	dir      string
	src, dst *testkafka.Cluster
	srcAdm   *kadm.Client
	dstAdm   *kadm.Client
	dstAddr  string // of the destination's SASL listener
	l        *e2e.Lockstep
	addr     string // of Lockstep
	tokens   atomic.Int64
}

// saslKafka is a broker with a listener SASL_SSL. Broker logs say when it ends a session that was not renewed.
func saslKafka(t *testing.T, ca *tlstest.CA, dir, name string, props map[string]string) (c *testkafka.Cluster, addr string) {
	t.Helper()
	ports, err := testkafka.ReservePorts(1)
	require.NoError(t, err)
	t.Cleanup(ports.Release)
	addr = ports.Addr(0)
	cert, key := ca.Issue(t, name, "127.0.0.1")
	store := filepath.Join(dir, name+".pem")
	tlstest.Write(t, store, append(key, cert...))
	const common = "org.apache.kafka.common.security."
	o := testkafka.Options{
		Name: name, Listeners: []testkafka.Listener{{Name: "SECURE", Protocol: "SASL_SSL", Listen: addr, Advertised: addr}},
		JVMArgs: []string{"-Dorg.slf4j.simpleLogger.log.kafka.network=debug"},
		Props: map[string]string{
			"listener.name.secure.ssl.keystore.type": "PEM", "listener.name.secure.ssl.keystore.location": store,
			"listener.name.secure.sasl.enabled.mechanisms":                 "PLAIN,SCRAM-SHA-512,OAUTHBEARER",
			"listener.name.secure.plain.sasl.jaas.config":                  common + `plain.PlainLoginModule required user_app="` + clientPassword + `" user_other="` + clientPassword + `" user_nobody="` + clientPassword + `" user_describer="` + clientPassword + `" user_reader="` + clientPassword + `";`,
			"listener.name.secure.scram-sha-512.sasl.jaas.config":          common + "scram.ScramLoginModule required;",
			"listener.name.secure.oauthbearer.sasl.jaas.config":            common + `oauthbearer.OAuthBearerLoginModule required unsecuredLoginStringClaim_sub="broker";`,
			"listener.name.secure.plain.connections.max.reauth.ms":         fmt.Sprint(session.Milliseconds()),
			"listener.name.secure.scram-sha-512.connections.max.reauth.ms": fmt.Sprint(session.Milliseconds()),
			"listener.name.secure.oauthbearer.connections.max.reauth.ms":   fmt.Sprint(session.Milliseconds()),
		},
	}
	for k, v := range props {
		o.Props[k] = v
	}
	return testkafka.Start(t, o), addr
}

// jws is an unsecured token, which Kafka takes in tests (RFC 7515, alg none).
func jws(sub string, life time.Duration) string {
	enc := base64.RawURLEncoding.EncodeToString
	now := time.Now()
	return enc([]byte(`{"alg":"none"}`)) + "." + enc(fmt.Appendf(nil, `{"sub":%q,"iat":%d,"exp":%d}`, sub, now.Unix(), now.Add(life).Unix())) + "."
}

func adminOf(t *testing.T, c *testkafka.Cluster) *kadm.Client {
	t.Helper()
	cl, err := kgo.NewClient(kgo.SeedBrokers(c.Bootstrap()))
	require.NoError(t, err)
	t.Cleanup(cl.Close)
	return kadm.NewClient(cl)
}

func startSecured(ctx context.Context, t *testing.T, topics ...string) *secured {
	t.Helper()
	s := &secured{t: t, ca: tlstest.NewCA(t), dir: t.TempDir()}
	var srcAddr string
	s.src, srcAddr = saslKafka(t, s.ca, s.dir, "source", nil)
	s.dst, s.dstAddr = saslKafka(t, s.ca, s.dir, "destination", map[string]string{
		"authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
		"super.users":           "User:ANONYMOUS;User:lockstep",
	})
	s.srcAdm, s.dstAdm = adminOf(t, s.src), adminOf(t, s.dst)
	for _, x := range []struct{ user, password string }{{"lockstep", lockstepPassword}, {"app", clientPassword}} {
		made, err := s.dstAdm.AlterUserSCRAMs(ctx, nil, []kadm.UpsertSCRAM{{User: x.user, Mechanism: kadm.ScramSha512, Iterations: 4096, Password: x.password}})
		require.NoError(t, err)
		require.NoError(t, made.Error())
	}
	producer, err := kgo.NewClient(kgo.SeedBrokers(s.src.Bootstrap()))
	require.NoError(t, err)
	defer producer.Close()
	for _, topic := range topics {
		_, err := s.srcAdm.CreateTopic(ctx, 1, 1, nil, topic)
		require.NoError(t, err)
		for i := range 10 {
			require.NoError(t, producer.ProduceSync(ctx, &kgo.Record{Topic: topic, Value: fmt.Append(nil, i)}).FirstErr())
		}
	}
	idp := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, pass, _ := r.BasicAuth(); pass != lockstepSecret {
			http.Error(w, "no", http.StatusUnauthorized)
			return
		}
		s.tokens.Add(1)
		w.Header().Set("Content-Type", "application/json")
		_, _ = fmt.Fprintf(w, `{"access_token": %q, "token_type": "Bearer", "expires_in": 10}`, jws("lockstep", 10*time.Second))
	}))
	t.Cleanup(idp.Close)

	tlstest.Write(t, filepath.Join(s.dir, "ca.pem"), s.ca.PEM)
	s.ca.Files(t, s.dir, "server", "lockstep", "127.0.0.1")
	tlstest.Write(t, filepath.Join(s.dir, "password"), []byte(lockstepPassword+"\n"))
	tlstest.Write(t, filepath.Join(s.dir, "secret"), []byte(lockstepSecret+"\n"))
	s.l = e2e.Start(t, &binary, e2e.Setup{Source: s.src, Destination: s.dst, Config: func(bootstrap string) string {
		s.addr = bootstrap
		_, port, err := net.SplitHostPort(bootstrap)
		require.NoError(t, err)
		var n int
		_, err = fmt.Sscan(port, &n)
		require.NoError(t, err)
		return strings.ReplaceAll(fmt.Sprintf(`listeners:
  - address: %s
    broker_ports: %d-%d
    tls: {enabled: true, cert_file: DIR/server.crt, key_file: DIR/server.key}
destination:
  bootstrap: [%s]
  tls: {enabled: true, ca_file: DIR/ca.pem}
  sasl: {mechanism: SCRAM-SHA-512, username: lockstep, password_file: DIR/password}
mirrors:
  - name: dc1
    source:
      bootstrap: [%s]
      tls: {enabled: true, ca_file: DIR/ca.pem}
      sasl:
        mechanism: OAUTHBEARER
        oauth: {token_url: %q, client_id: lockstep, client_secret_file: DIR/secret}
    topics: {include: ["%s"]}
    metadata_refresh: 1s
    retry_backoff_max: 2s
`, bootstrap, n+2, n+15, s.dstAddr, srcAddr, idp.URL, strings.Join(topics, `", "`)), "DIR", s.dir)
	}})
	for _, topic := range topics {
		s.l.WaitState(ctx, topic, 1, "MIRRORING")
		s.waitEnd(ctx, topic, 10)
	}
	return s
}

// waitEnd waits until the destination has n records of a topic.
func (s *secured) waitEnd(ctx context.Context, topic string, n int64) {
	s.t.Helper()
	waitEndOf(ctx, s.t, s.dstAdm, s.l, topic, n)
}

func waitEndOf(ctx context.Context, t *testing.T, adm *kadm.Client, l *e2e.Lockstep, topic string, n int64) {
	t.Helper()
	for {
		ends, err := adm.ListEndOffsets(ctx, topic)
		if err == nil {
			if o, ok := ends.Lookup(topic, 0); ok && o.Offset >= n {
				return
			}
		}
		select {
		case <-ctx.Done():
			t.Fatalf("%s doesn't get to %d (%v)\n%s", topic, n, err, l.LogTail(40))
		case <-time.After(100 * time.Millisecond):
		}
	}
}

func (s *secured) allow(ctx context.Context, acl *kadm.ACLBuilder) {
	s.t.Helper()
	made, err := s.dstAdm.CreateACLs(ctx, acl.AllowHosts("*").ResourcePatternType(kadm.ACLPatternLiteral))
	require.NoError(s.t, err)
	for _, m := range made {
		require.NoError(s.t, m.Err)
	}
}

func (s *secured) tls() *tls.Config { return &tls.Config{RootCAs: s.ca.Pool} }

// disconnects counts what a client loses.
type disconnects struct{ n atomic.Int64 }

func (d *disconnects) OnBrokerDisconnect(kgo.BrokerMetadata, net.Conn) { d.n.Add(1) }

// mechanisms are app's.
func appMechanisms() []sasl.Mechanism {
	return []sasl.Mechanism{
		plain.Auth{User: "app", Pass: clientPassword}.AsMechanism(),
		scram.Auth{User: "app", Pass: clientPassword}.AsSha512Mechanism(),
		oauth.Oauth(func(context.Context) (oauth.Auth, error) { return oauth.Auth{Token: jws("app", time.Minute)}, nil }),
	}
}

// sessionsEnded counts the connections that a broker has cut for a session that was not renewed.
func sessionsEnded(c *testkafka.Cluster) int {
	return strings.Count(c.Logs(1), "Disconnecting expired channel")
}

// SASL on both sides over TLS: Lockstep's own connections and clients' (PX-061), each for some sessions without a lost
// connection; nothing of a secret is to be found anywhere.
func TestSASLOverTLS(t *testing.T) {
	ctx := withTimeout(t, 2*time.Minute)
	s := startSecured(ctx, t, "moving", "stopped")
	s.allow(ctx, kadm.NewACLs().Topics("moving", "stopped").Groups("g-0", "g-1", "g-2", "g-rd", "g-java").
		Allow("User:app").Operations(kadm.OpRead, kadm.OpWrite, kadm.OpDescribe))
	s.l.Verb(ctx, nil, "stop", "--topic", "stopped", "--timeout", "60s")

	began := time.Now()
	var lost disconnects
	type user struct {
		*kgo.Client
		read int
	}
	var users []*user
	for i, m := range appMechanisms() {
		cl, err := kgo.NewClient(kgo.SeedBrokers(s.addr), kgo.SASL(m), kgo.DialTLSConfig(s.tls()), kgo.WithHooks(&lost),
			kgo.DefaultProduceTopic("stopped"), kgo.ConsumeTopics("moving", "stopped"), kgo.ConsumerGroup(fmt.Sprint("g-", i)))
		require.NoError(t, err)
		defer cl.Close()
		users = append(users, &user{Client: cl})
	}
	written := 20
	producer, err := kgo.NewClient(kgo.SeedBrokers(s.src.Bootstrap()), kgo.DefaultProduceTopic("moving"))
	require.NoError(t, err)
	defer producer.Close()
	for time.Since(began) < 2*session+session/2 {
		require.NoError(t, producer.ProduceSync(ctx, kgo.StringRecord("new")).FirstErr())
		written++
		for _, u := range users {
			require.NoError(t, u.ProduceSync(ctx, kgo.StringRecord("here")).FirstErr())
			written++
		}
		for _, u := range users {
			for u.read < written {
				fs := u.PollFetches(ctx)
				require.NoError(t, fs.Err())
				u.read += fs.NumRecords()
			}
		}
		time.Sleep(50 * time.Millisecond)
	}
	require.Zero(t, lost.n.Load(), "clients' connections were lost")

	s.otherClients(ctx)
	s.authorisation(ctx)
	require.Zero(t, sessionsEnded(s.dst), "destination")
	require.Zero(t, sessionsEnded(s.src), "source")
	require.Greater(t, s.tokens.Load(), int64(1))
	s.noSecrets(ctx)
}

// otherClients: librdkafka by OAUTHBEARER and Java by SCRAM.
func (s *secured) otherClients(ctx context.Context) {
	s.t.Helper()
	common := map[string]string{"security.protocol": "SASL_SSL"}
	rd := map[string]string{
		"ssl.ca.location": filepath.Join(s.dir, "ca.pem"), "sasl.mechanism": "OAUTHBEARER",
		"enable.sasl.oauthbearer.unsecure.jwt": "true", "sasl.oauthbearer.config": "principal=app",
	}
	java := map[string]string{
		"ssl.truststore.type": "PEM", "ssl.truststore.location": filepath.Join(s.dir, "ca.pem"), "sasl.mechanism": "SCRAM-SHA-512",
		"sasl.jaas.config": `org.apache.kafka.common.security.scram.ScramLoginModule required username="app" password="` + clientPassword + `";`,
	}
	for _, x := range []struct {
		name, group string
		read        func(context.Context, clients.Read) (clients.Result, error)
		set         map[string]string
	}{{"librdkafka", "g-rd", clients.PythonRead, rd}, {"java", "g-java", clients.JavaRead, java}} {
		for k, v := range common {
			x.set[k] = v
		}
		got, err := x.read(ctx, clients.Read{Bootstrap: s.addr, Topic: "moving", Group: x.group, Subscribe: true, Commit: true, Set: x.set, Max: 10})
		require.NoError(s.t, err, x.name)
		require.Len(s.t, got.Recs, 10, x.name)
	}
}

// noSecrets looks for secrets in all that Lockstep says.
func (s *secured) noSecrets(ctx context.Context) {
	s.t.Helper()
	all := map[string]string{"log": s.l.Log()}
	for _, path := range []string{"/metrics", "/v1/status", "/v1/partitions", "/v1/mirrors", "/v1/acls?mirror=dc1", "/v1/topics", "/v1/groups", "/v1/instances", "/debug/pprof/", "/readyz"} {
		_, body, err := s.l.Get(ctx, path)
		require.NoError(s.t, err)
		all[path] = body
	}
	for _, args := range [][]string{{"describe"}, {"describe", "--json"}, {"describe", "--groups"}, {"list", "--json"}, {"status"}, {"check"}} {
		out, _ := s.l.CLI(ctx, args...)
		all[strings.Join(args, " ")] = out
	}
	for where, text := range all {
		require.NotEmpty(s.t, text, where)
		require.NotContains(s.t, text, "c4nary", where)
		require.NotContains(s.t, text, jws("", 0)[:20], where) // what each token begins with
	}
}
