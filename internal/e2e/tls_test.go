package e2e_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/lockstep-kafka/lockstep/internal/e2e"
	"github.com/lockstep-kafka/lockstep/internal/testkafka"
	"github.com/lockstep-kafka/lockstep/internal/tlsconf/tlstest"
)

// secureKafka is a broker with an authorizer whose listener SECURE demands client certificates; principals are
// their subjects. Its other listener is plaintext, for the test itself.
func secureKafka(t *testing.T, ca *tlstest.CA, dir string) (c *testkafka.Cluster, secure string) {
	t.Helper()
	ports, err := testkafka.ReservePorts(1)
	require.NoError(t, err)
	t.Cleanup(ports.Release)
	secure = ports.Addr(0)
	cert, key := ca.Issue(t, "broker", "127.0.0.1")
	store, trust := filepath.Join(dir, "broker.pem"), filepath.Join(dir, "ca.pem")
	tlstest.Write(t, store, append(key, cert...))
	tlstest.Write(t, trust, ca.PEM)
	c = testkafka.Start(t, testkafka.Options{
		Name: "secure", Listeners: []testkafka.Listener{{Name: "SECURE", Protocol: "SSL", Listen: secure, Advertised: secure}},
		Props: map[string]string{
			"listener.name.secure.ssl.client.auth":       "required",
			"listener.name.secure.ssl.keystore.type":     "PEM",
			"listener.name.secure.ssl.keystore.location": store, "listener.name.secure.ssl.truststore.type": "PEM",
			"listener.name.secure.ssl.truststore.location": trust,
			"authorizer.class.name":                        "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
			"super.users":                                  "User:ANONYMOUS;User:CN=lockstep",
		},
	})
	return c, secure
}

// TLS on both sides, brokers by name, client certificates on both sides; the listener's certificate is replaced
// while a consumer reads, and no connection breaks. The clients are, to the broker, who the listener's
// broker_certificate says, and have none of Lockstep's rights.
func TestSecureListener(t *testing.T) {
	dir := t.TempDir()
	ca, clientCA := tlstest.NewCA(t), tlstest.NewCA(t)
	cluster, secure := secureKafka(t, ca, dir)
	ctx := withTimeout(t, 2*time.Minute)
	admin, err := kgo.NewClient(kgo.SeedBrokers(cluster.Bootstrap()))
	require.NoError(t, err)
	defer admin.Close()
	adm := kadm.NewClient(admin)
	_, err = adm.CreateTopic(ctx, 3, 1, nil, "t")
	require.NoError(t, err)
	acl := kadm.NewACLs().Topics("t").Groups("g", "java").ResourcePatternType(kadm.ACLPatternLiteral).
		Allow("User:CN=apps").AllowHosts("*").Operations(kadm.OpRead, kadm.OpWrite, kadm.OpDescribe)
	made, err := adm.CreateACLs(ctx, acl)
	require.NoError(t, err)
	for _, m := range made {
		require.NoError(t, m.Err)
	}

	tlstest.Write(t, filepath.Join(dir, "clients-ca.pem"), clientCA.PEM)
	ca.Files(t, dir, "own", "lockstep")
	ca.Files(t, dir, "apps", "apps")
	ca.Files(t, dir, "server", "first", "kafka.test", "*.kafka.test")
	var address string
	l := e2e.Start(t, &binary, e2e.Setup{Config: func(bootstrap string) string {
		address = bootstrap
		return strings.ReplaceAll(fmt.Sprintf(`listeners:
  - address: %s
    sni: {bootstrap_host: kafka.test, broker_host: "b%%d.kafka.test"}
    tls: {enabled: true, cert_file: DIR/server.crt, key_file: DIR/server.key, client_ca_file: DIR/clients-ca.pem, client_auth: required}
    broker_certificate: {cert_file: DIR/apps.crt, key_file: DIR/apps.key}
destination:
  bootstrap: [%s]
  tls: {enabled: true, ca_file: DIR/ca.pem, cert_file: DIR/own.crt, key_file: DIR/own.key, min_version: 1.3}
`, bootstrap, secure), "DIR", dir)
	}})
	_, port, err := net.SplitHostPort(address)
	require.NoError(t, err)

	me := clientCA.Certificate(t, "someone")
	var dials atomic.Int64
	var server atomic.Pointer[x509.Certificate]
	dial := func(ctx context.Context, _, addr string) (net.Conn, error) {
		host, p, err := net.SplitHostPort(addr)
		if err != nil || p != port || !strings.HasSuffix(host, "kafka.test") {
			return nil, fmt.Errorf("a client was told to go to %s", addr)
		}
		dials.Add(1)
		c, err := (&tls.Dialer{Config: &tls.Config{RootCAs: ca.Pool, ServerName: host, Certificates: []tls.Certificate{me}}}).DialContext(ctx, "tcp", address)
		if err == nil {
			server.Store(c.(*tls.Conn).ConnectionState().PeerCertificates[0])
		}
		return c, err
	}
	franz := func(opts ...kgo.Opt) *kgo.Client {
		cl, err := kgo.NewClient(append(opts, kgo.SeedBrokers("kafka.test:"+port), kgo.Dialer(dial), kgo.DefaultProduceTopic("t"))...)
		require.NoError(t, err)
		t.Cleanup(cl.Close)
		return cl
	}
	producer := franz(kgo.DisableIdempotentWrite(), kgo.RequiredAcks(kgo.AllISRAcks()))
	produced := 0
	produce := func(n int) {
		for range n {
			require.NoError(t, producer.ProduceSync(ctx, kgo.StringRecord(fmt.Sprint(produced))).FirstErr())
			produced++
		}
	}
	consumer := franz(kgo.ConsumeTopics("t"), kgo.ConsumerGroup("g"))
	consumed := 0
	consume := func() {
		for consumed < produced {
			fs := consumer.PollFetches(ctx)
			require.NoError(t, fs.Err())
			consumed += fs.NumRecords()
		}
	}
	produce(50)
	consume()
	require.Equal(t, "first", server.Load().Subject.CommonName)

	// The certificate is replaced: new connections get the new one, those that are open go on.
	was := dials.Load()
	ca.Files(t, dir, "server", "second", "kafka.test", "*.kafka.test")
	for {
		produce(5)
		consume()
		require.Equal(t, was, dials.Load(), "a client had to connect again")
		c, err := dial(ctx, "", "kafka.test:"+port)
		require.NoError(t, err)
		require.NoError(t, c.Close())
		was++
		if server.Load().Subject.CommonName == "second" {
			break
		}
		time.Sleep(200 * time.Millisecond)
	}
	produce(20)
	consume()
	require.Equal(t, was, dials.Load())
	require.NoError(t, consumer.CommitUncommittedOffsets(ctx))

	// Not one right of Lockstep's own.
	_, err = kadm.NewClient(producer).ListStartOffsets(ctx, "__mirror_state")
	if err == nil {
		listed, lerr := kadm.NewClient(producer).ListTopics(ctx)
		require.NoError(t, lerr)
		require.False(t, listed.Has("__mirror_state"))
	}
	err = producer.ProduceSync(ctx, &kgo.Record{Topic: "__mirror_state", Value: []byte("x")}).FirstErr()
	require.ErrorIs(t, err, kerr.TopicAuthorizationFailed)

	// Kafka's own console consumer, by the same names.
	require.Equal(t, produced, javaConsumes(ctx, t, ca, clientCA, dir, "kafka.test:"+port, produced))

	// Without a client certificate nobody gets in.
	c, err := tls.Dial("tcp", address, &tls.Config{RootCAs: ca.Pool, ServerName: "kafka.test"})
	if err == nil { // TLS 1.3 tells it after the handshake
		_, err = c.Read(make([]byte, 1))
		_ = c.Close()
	}
	require.Error(t, err)
	require.Eventually(t, func() bool { return strings.Contains(l.Log(), "reason=tls_handshake") }, 10*time.Second, 20*time.Millisecond)
	require.NotContains(t, l.Log(), "PRIVATE KEY")
}

// javaConsumes is how many records Kafka's console consumer reads of t, of n that it is to read.
func javaConsumes(ctx context.Context, t *testing.T, ca, clientCA *tlstest.CA, dir, bootstrap string, n int) int {
	t.Helper()
	cert, key := clientCA.Issue(t, "java")
	tlstest.Write(t, filepath.Join(dir, "java.pem"), append(key, cert...))
	tlstest.Write(t, filepath.Join(dir, "java-ca.pem"), ca.PEM)
	props, hosts := filepath.Join(dir, "java.properties"), filepath.Join(dir, "hosts")
	tlstest.Write(t, props, []byte(strings.ReplaceAll(`security.protocol=SSL
ssl.keystore.type=PEM
ssl.keystore.location=DIR/java.pem
ssl.truststore.type=PEM
ssl.truststore.location=DIR/java-ca.pem
`, "DIR", dir)))
	tlstest.Write(t, hosts, []byte("127.0.0.1 kafka.test\n127.0.0.1 b1.kafka.test\n"))
	args, err := testkafka.Java(ctx, testkafka.DefaultVersion, t.TempDir())
	require.NoError(t, err)
	args = append(args, "-Djdk.net.hosts.file="+hosts, "org.apache.kafka.tools.consumer.ConsoleConsumer", "--bootstrap-server", bootstrap,
		"--topic", "t", "--group", "java", "--from-beginning", "--max-messages", fmt.Sprint(n), "--timeout-ms", "60000", "--command-config", props)
	cmd := exec.CommandContext(ctx, "java", args...)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	require.NoError(t, err)
	return strings.Count(string(out), "\n")
}
