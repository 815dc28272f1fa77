package proxy

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/binary"
	"fmt"
	"io"
	"math/big"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/protocol"
)

// The node endpoints at the end of a Fetch answer are the proxy's, whatever the
// size of the answer and wherever it is cut; everything else is as it was.
func TestFetchEndpoints(t *testing.T) {
	leakCheck(t)
	first := freePorts(t, 5)
	resp := kmsg.NewPtrFetchResponse()
	resp.SetVersion(16)
	resp.Topics = []kmsg.FetchResponseTopic{{TopicID: [16]byte{1}, Partitions: []kmsg.FetchResponseTopicPartition{{Partition: 1}}}}
	resp.Brokers = []kmsg.FetchResponseBroker{{NodeID: 2, Host: "internal-address.example.org", Port: 9092}}
	bodyOf := func(n int32) []byte {
		resp.Topics[0].Partitions[0].RecordBatches = make([]byte, n)
		pattern(resp.Topics[0].Partitions[0].RecordBatches, 0)
		return append([]byte{0}, resp.AppendTo(nil)...) // header tags
	}
	p := testProxy(t, scriptedBroker(t, func(c *net.TCPConn) {
		for {
			f, err := readFrame(c)
			if err != nil {
				return
			}
			corr := int32(binary.BigEndian.Uint32(f[4:]))
			out := answerFrame(corr, bodyOf(corr*corr*50))
			for cut := int(corr)%7 + 1; len(out) > 0; cut = 1 + cut*3%5000 {
				n := min(cut, len(out))
				if _, err := c.Write(out[:n]); err != nil {
					return
				}
				out = out[n:]
			}
		}
	}), func(o *Options) { o.Listeners[0].FirstPort, o.Listeners[0].LastPort = first, first+4 })
	c := dialRaw(t, p)
	for corr := range int32(80) {
		req := kmsg.NewPtrFetchRequest()
		req.SetVersion(16)
		c.send(request(protocol.KeyFetch, 16, corr, nil, req.AppendTo(nil)))
	}
	for corr := range int32(80) {
		got, body := c.answer()
		require.Equal(t, corr, got)
		read := kmsg.NewPtrFetchResponse()
		read.SetVersion(16)
		require.NoError(t, read.ReadFrom(body[1:]))
		require.Len(t, read.Brokers, 1)
		require.Equal(t, "127.0.0.1", read.Brokers[0].Host)
		require.EqualValues(t, first+2, read.Brokers[0].Port)
		want := make([]byte, corr*corr*50)
		pattern(want, 0)
		require.Equal(t, want, read.Topics[0].Partitions[0].RecordBatches)
	}
}

// A broker behind TLS, with the same back-pressure.
func TestTLSBroker(t *testing.T) {
	leakCheck(t)
	cert, pool := selfSigned(t)
	raw := scriptedBroker(t, func(c *net.TCPConn) {
		tc := tls.Server(c, &tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS12})
		body := make([]byte, 1<<20)
		pattern(body, 0)
		for {
			f, err := readFrame(tc)
			if err != nil {
				return
			}
			if _, err := tc.Write(answerFrame(int32(binary.BigEndian.Uint32(f[4:])), body)); err != nil {
				return
			}
		}
	})
	p := testProxy(t, raw, func(o *Options) {
		o.TLS = fixedTLS(&tls.Config{RootCAs: pool, ServerName: "broker.test", MinVersion: tls.VersionTLS12})
	})
	c := dialRaw(t, p)
	const n = 40
	for corr := range int32(n) {
		c.send(request(keyHeartbeat, 0, corr, nil, make([]byte, 1000)))
	}
	eventually(t, "the mark is reached", func() bool {
		now, _ := p.engine.held()
		return now > int64(p.limits().ClientOutboundMax)
	})
	for range n {
		_, err := io.CopyN(io.Discard, c.r, 8)
		require.NoError(t, err)
		checkPattern(t, c.r, 1<<20)
	}
	_, peak := p.engine.held()
	require.LessOrEqual(t, peak, bound(p))
	require.NoError(t, c.Close())
	eventually(t, "closed", func() bool { return closedFor(p, ReasonClientEOF) == 1 })

	p = testProxy(t, raw, func(o *Options) {
		o.TLS = fixedTLS(&tls.Config{ServerName: "broker.test", MinVersion: tls.VersionTLS12}) // doesn't trust it
	})
	c = dialRaw(t, p)
	c.send(request(keyHeartbeat, 0, 1, nil, nil))
	require.Empty(t, c.ended())
	eventually(t, "refused", func() bool { return closedFor(p, ReasonConnectFailed) == 1 })
}

func fixedTLS(cfg *tls.Config) func(string) *tls.Config {
	return func(string) *tls.Config { return cfg }
}

func selfSigned(t *testing.T) (tls.Certificate, *x509.CertPool) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "broker.test"}, DNSNames: []string{"broker.test"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, &key.PublicKey, key)
	require.NoError(t, err)
	leaf, err := x509.ParseCertificate(der)
	require.NoError(t, err)
	pool := x509.NewCertPool()
	pool.AddCert(leaf)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, pool
}

// Start-up refuses what could only fail later.
func TestNewRefuses(t *testing.T) {
	leakCheck(t)
	taken, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer taken.Close()
	for name, l := range map[string]Listener{
		"advertises 0.0.0.0": {Address: "0.0.0.0:0"},
		"port taken":         {Address: taken.Addr().String()},
		"no port":            {Address: "127.0.0.1"},
	} {
		opts := testOptions("")
		opts.Listeners = []Listener{l}
		_, err := New(opts)
		require.Error(t, err, name)
	}
	opts := testOptions("")
	opts.Bootstrap = nil
	_, err = New(opts)
	require.Error(t, err)
	p, err := New(testOptions(""))
	require.NoError(t, err)
	p.Close() // not run
}

// Nothing that isn't reachable is advertised: a broker id without a port is
// never shown under its own address.
func TestAdvertise(t *testing.T) {
	f := &frontend{Listener: Listener{AdvertisedHost: "h", FirstPort: 100, LastPort: 102, AdvertisedFirstPort: 500}, p: &Proxy{log: testOptions("").Logger}}
	for id, want := range map[int32]string{
		0: "h:500", 2: "h:502",
		// PX-035: never two on one address.
		3: "broker-3-has-no-port-in-lockstep.invalid:1", 1<<31 - 1: "broker-2147483647-has-no-port-in-lockstep.invalid:1",
	} {
		host, port, ok := f.advertise(id, "internal", 9092)
		require.True(t, ok)
		require.Equal(t, want, fmt.Sprintf("%s:%d", host, port))
	}
}
