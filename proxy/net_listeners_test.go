package proxy

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/lockstep-kafka/lockstep/internal/tlsconf/tlstest"
)

// Names of brokers: exactly those that are shown lead to a broker.
func TestSNINames(t *testing.T) {
	n, err := newBrokerNames(SNI{BootstrapHost: "Kafka.example", BrokerHost: "b%d.Kafka.example"})
	require.NoError(t, err)
	for name, want := range map[string]int32{
		"kafka.example": bootstrap, "KAFKA.example": bootstrap, "b0.kafka.example": 0, "B17.kafka.EXAMPLE": 17,
		"b2147483647.kafka.example": 1<<31 - 1,
	} {
		id, ok := n.brokerID(name)
		require.True(t, ok, name)
		require.Equal(t, want, id, name)
	}
	for _, name := range []string{
		"", "example", "b.kafka.example", "b-1.kafka.example", "b+1.kafka.example", "b01.kafka.example", "b1.kafka.example.",
		"b2147483648.kafka.example", "b99999999999999999999.kafka.example", "b1x.kafka.example", "xb1.kafka.example", "b1.b1.kafka.example",
	} {
		_, ok := n.brokerID(name)
		require.False(t, ok, name)
	}
	for _, bad := range []SNI{
		{"boot", "broker", 0}, {"boot", "b%d-%d", 0}, {"boot", "b%s", 0}, {"", "b%d", 0}, {"b7", "b%d", 0},
	} {
		_, err := newBrokerNames(bad)
		require.Error(t, err, bad)
	}
}

func TestSNINeedsTLS(t *testing.T) {
	leakCheck(t)
	opts := testOptions("")
	opts.Listeners[0] = Listener{Address: "127.0.0.1:0", SNI: &SNI{BootstrapHost: "boot.test", BrokerHost: "b%d.test"}}
	_, err := New(opts)
	require.ErrorContains(t, err, "sni needs tls")
}

// A client with franz-go over two listeners at once, brokers by name on one and
// by port with other numbers outside on the other. The client's dialer knows no
// address but those that the proxy shows.
func TestTwoListeners(t *testing.T) {
	leakCheck(t)
	cluster, err := kfake.NewCluster(kfake.NumBrokers(3), kfake.SeedTopics(6, "t"))
	require.NoError(t, err)
	defer cluster.Close()
	ca := tlstest.NewCA(t)
	server := &tls.Config{Certificates: []tls.Certificate{ca.Certificate(t, "lockstep", "kafka.test", "*.kafka.test")}}
	first := freePorts(t, 3)
	var log syncBuffer
	p := testProxy(t, "", func(o *Options) {
		o.Dial = nil
		o.Bootstrap = cluster.ListenAddrs()
		o.Logger = slog.New(slog.NewTextHandler(&log, nil))
		o.Listeners = []Listener{
			{
				Address: "127.0.0.1:0", TLS: func() *tls.Config { return server },
				SNI: &SNI{BootstrapHost: "kafka.test", BrokerHost: "b%d.kafka.test", AdvertisedPort: 443},
			},
			{Address: "127.0.0.1:0", AdvertisedHost: "outside.test", FirstPort: first, LastPort: first + 2, AdvertisedFirstPort: 30000},
		}
	})
	ctx, cancel := context.WithTimeout(context.Background(), testPatience)
	defer cancel()
	byName := p.fronts[0].lns[0].Addr().String()
	plain := p.fronts[1].lns[0].Addr().String()
	var dialled atomic.Int64
	dialTLS := func(ctx context.Context, _, addr string) (net.Conn, error) {
		host, port, err := net.SplitHostPort(addr)
		if err != nil || port != "443" || !strings.HasSuffix(host, "kafka.test") {
			return nil, fmt.Errorf("dials %s", addr)
		}
		dialled.Add(1)
		return (&tls.Dialer{Config: &tls.Config{RootCAs: ca.Pool, ServerName: host}}).DialContext(ctx, "tcp", byName)
	}
	dialPlain := func(ctx context.Context, _, addr string) (net.Conn, error) {
		to := plain
		for id := range 3 {
			if addr == fmt.Sprintf("outside.test:%d", 30000+id) {
				to = fmt.Sprintf("127.0.0.1:%d", first+id)
			}
		}
		if to == plain && addr != "outside.test:1" {
			return nil, fmt.Errorf("dials %s", addr)
		}
		return (&net.Dialer{}).DialContext(ctx, "tcp", to)
	}
	one, err := kgo.NewClient(kgo.SeedBrokers("kafka.test:443"), kgo.Dialer(dialTLS), kgo.DefaultProduceTopic("t"))
	require.NoError(t, err)
	defer one.Close()
	const n = 2000
	for i := range n {
		one.Produce(ctx, kgo.KeySliceRecord(fmt.Appendf(nil, "%d", i), make([]byte, 300)), func(_ *kgo.Record, err error) {
			if err != nil {
				t.Error(err)
			}
		})
	}
	require.NoError(t, one.Flush(ctx))
	require.GreaterOrEqual(t, dialled.Load(), int64(4)) // bootstrap and each broker
	two, err := kgo.NewClient(kgo.SeedBrokers("outside.test:1"), kgo.Dialer(dialPlain), kgo.ConsumeTopics("t"))
	require.NoError(t, err)
	defer two.Close()
	for got := 0; got < n; {
		fs := two.PollFetches(ctx)
		require.NoError(t, fs.Err())
		got += fs.NumRecords()
	}
	meta, err := kadm.NewClient(one).BrokerMetadata(ctx)
	require.NoError(t, err)
	for _, b := range meta.Brokers {
		require.Equal(t, fmt.Sprintf("b%d.kafka.test:443", b.NodeID), fmt.Sprintf("%s:%d", b.Host, b.Port))
	}
	// PX-033: the map is in the log.
	require.Contains(t, log.String(), "0=b0.kafka.test:443")
	require.Contains(t, log.String(), "2=outside.test:30002")

	// A broker that comes is reachable at once, and shown in the log.
	id, _, err := cluster.AddNode(7, 0)
	require.NoError(t, err)
	p.topology.poke()
	c := overTLS(t, dialTCP(t, byName), &tls.Config{RootCAs: ca.Pool, ServerName: fmt.Sprintf("b%d.kafka.test", id)})
	c.send(request(18, 0, 9, nil, nil))
	corr, _ := c.answer()
	require.EqualValues(t, 9, corr)
	eventually(t, "log", func() bool { return strings.Contains(log.String(), "7=b7.kafka.test:443") })
}

// A client that dials a broker's port before the proxy knows any broker is
// served as soon as it does.
func TestBrokerPortBeforeTopology(t *testing.T) {
	leakCheck(t)
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1))
	require.NoError(t, err)
	defer cluster.Close()
	var up atomic.Bool
	first := freePorts(t, 1)
	p := testProxy(t, "", func(o *Options) {
		o.Dial = nil
		o.Bootstrap = cluster.ListenAddrs()
		o.Listeners[0].FirstPort, o.Listeners[0].LastPort = first, first
		o.ClientOptions = []kgo.Opt{kgo.Dialer(func(ctx context.Context, network, addr string) (net.Conn, error) {
			if !up.Load() {
				return nil, net.ErrClosed
			}
			return (&net.Dialer{}).DialContext(ctx, network, addr)
		})}
	})
	c := dialTCP(t, fmt.Sprintf("127.0.0.1:%d", first))
	_, err = c.Write(request(18, 0, 9, nil, nil))
	require.NoError(t, err)
	eventually(t, "it waits", func() bool { return p.open.Load() == 1 })
	require.Error(t, p.Ready())
	up.Store(true)
	f, err := readFrame(c)
	require.NoError(t, err)
	require.EqualValues(t, 9, binary.BigEndian.Uint32(f))
}

// What no TLS handshake comes of is closed with the right reason, and nobody
// else notices.
func TestTLSRefusals(t *testing.T) {
	leakCheck(t)
	ca, other := tlstest.NewCA(t), tlstest.NewCA(t)
	server := &tls.Config{
		Certificates: []tls.Certificate{ca.Certificate(t, "lockstep", "lockstep.test", "b1.lockstep.test")},
		ClientAuth:   tls.RequireAndVerifyClientCert, ClientCAs: ca.Pool, MinVersion: tls.VersionTLS12,
	}
	p := testProxy(t, scriptedBroker(t, serveFrames(sumAnswer)), func(o *Options) {
		tlsFront(server)(o)
		o.Listeners[0].FirstPort, o.Listeners[0].LastPort = 0, 0
		o.Listeners[0].SNI = &SNI{BootstrapHost: "lockstep.test", BrokerHost: "b%d.lockstep.test"}
	})
	good := func() *tls.Config {
		return &tls.Config{RootCAs: ca.Pool, ServerName: "lockstep.test", Certificates: []tls.Certificate{ca.Certificate(t, "client")}}
	}
	witness := dialTLS(t, p.Addr().String(), good())
	witness.send(request(keyHeartbeat, 0, 1, nil, nil))
	witness.answer()
	hello := func(change func(*tls.Config)) func(t *testing.T, c net.Conn) {
		return func(t *testing.T, c net.Conn) {
			cfg := good()
			change(cfg)
			tc := tls.Client(c, cfg)
			err := tc.Handshake()
			if err == nil { // TLS 1.3: a refused certificate is told after it
				_, err = tc.Read(make([]byte, 1))
			}
			require.Error(t, err)
			t.Log(err)
		}
	}
	unnamed := func(name string, version uint16) func(t *testing.T, c net.Conn) {
		return func(t *testing.T, c net.Conn) {
			cfg := good()
			cfg.ServerName, cfg.InsecureSkipVerify, cfg.MaxVersion = name, true, version
			err := tls.Client(c, cfg).Handshake()
			require.ErrorContains(t, err, "unrecognized name", "the alert that says so") // RFC 6066
		}
	}
	raw := func(b string) func(t *testing.T, c net.Conn) {
		return func(t *testing.T, c net.Conn) {
			_, err := c.Write([]byte(b))
			require.NoError(t, err)
			(&rawClient{TCPConn: c.(*net.TCPConn), t: t, r: nil}).closed()
		}
	}
	for _, tc := range []struct {
		name   string
		run    func(t *testing.T, c net.Conn)
		reason CloseReason
	}{
		{"no client certificate", hello(func(c *tls.Config) { c.Certificates = nil }), ReasonTLSHandshake},
		{"certificate of another CA", hello(func(c *tls.Config) {
			// GetClientCertificate: else Go sends none that the server wouldn't take
			cert := other.Certificate(t, "client")
			c.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &cert, nil }
		}), ReasonTLSHandshake},
		{"TLS 1.1", hello(func(c *tls.Config) { c.MinVersion, c.MaxVersion = tls.VersionTLS10, tls.VersionTLS11 }), ReasonTLSHandshake},
		{"client doesn't trust us", hello(func(c *tls.Config) { c.RootCAs = x509.NewCertPool() }), ReasonTLSHandshake},
		{"no SNI", unnamed("", 0), ReasonUnknownSNI},
		{"unknown SNI", unnamed("x.lockstep.test", 0), ReasonUnknownSNI},
		{"unknown SNI, TLS 1.2", unnamed("x.lockstep.test", tls.VersionTLS12), ReasonUnknownSNI},
		{"plaintext Kafka", raw(string(request(18, 3, 1, []byte("c"), nil))), ReasonLooksLikePlaintext},
		{"HTTP", raw("GET / HTTP/1.1\r\n\r\n"), ReasonLooksLikeHTTP},
		{"garbage in a record", raw("\x16\x03\x01\x00\x05abcde"), ReasonTLSHandshake},
		{"oversized record", raw("\x16\x03\x01\xff\xffabcde"), ReasonTLSHandshake},
		{"half a hello", raw("\x16\x03\x01\x02\x00\x01"), ReasonHandshakeTimeout},
		{"nothing", raw(""), ReasonHandshakeTimeout},
		{"gone", func(_ *testing.T, c net.Conn) { c.Close() }, ReasonClientEOF},
		{"gone in the hello", func(t *testing.T, c net.Conn) {
			_, err := c.Write([]byte("\x16\x03\x01\x02\x00\x01"))
			require.NoError(t, err)
			c.Close()
		}, ReasonClientEOF},
	} {
		t.Run(tc.name, func(t *testing.T) {
			before := closedFor(p, tc.reason)
			var lim Limits
			if tc.reason == ReasonHandshakeTimeout {
				lim.HandshakeTimeout = time.Millisecond
			}
			p.SetLimits(lim)
			tc.run(t, dialTCP(t, p.Addr().String()))
			eventually(t, "reason "+tc.reason.String(), func() bool { return closedFor(p, tc.reason) == before+1 })
		})
	}
	witness.send(request(keyHeartbeat, 0, 2, nil, nil))
	corr, _ := witness.answer()
	require.EqualValues(t, 2, corr)
}

// closed waits for the end of the connection, whatever comes before it.
func (c *rawClient) closed() {
	b := make([]byte, 1024)
	for {
		if _, err := c.Read(b); err != nil {
			require.NotErrorIs(c.t, err, context.DeadlineExceeded)
			return
		}
	}
}

// After the handshake: records that can't be decrypted, or an alert, end the
// connection; bytes on other connections of the loop are not touched.
func TestTLSGarbageAfterHandshake(t *testing.T) {
	leakCheck(t)
	ca := tlstest.NewCA(t)
	p := testProxy(t, scriptedBroker(t, serveFrames(sumAnswer)), func(o *Options) {
		tlsFront(&tls.Config{Certificates: []tls.Certificate{ca.Certificate(t, "lockstep", "lockstep.test")}})(o)
		o.Loops = 1
	})
	good := dialTLS(t, p.Addr().String(), &tls.Config{RootCAs: ca.Pool, ServerName: "lockstep.test"})
	for i, garbage := range []string{
		"\x17\x03\x03\x00\x30" + strings.Repeat("x", 0x30), "\x17\x03\x03\xff\xff", "GET / HTTP/1.1\r\n\r\n", "\x00\x00\x00\x10\x00",
		"\x15\x03\x03\x00\x02\x02\x00", "\x16\x03\x03\x00\x04\x00\x00\x00\x00",
	} {
		for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
			tcp := dialTCP(t, p.Addr().String())
			c := overTLS(t, tcp, &tls.Config{RootCAs: ca.Pool, ServerName: "lockstep.test", MaxVersion: version})
			c.send(request(keyHeartbeat, 0, 1, nil, nil))
			c.answer()
			_, err := tcp.Write([]byte(garbage))
			require.NoError(t, err)
			(&rawClient{TCPConn: tcp.(*net.TCPConn), t: t}).closed()
		}
		good.send(request(keyHeartbeat, 0, int32(i), nil, nil))
		corr, _ := good.answer()
		require.EqualValues(t, i, corr)
	}
	eventually(t, "closed", func() bool { return closedFor(p, ReasonClientEOF) == 12 })
}

// PX-091: connections that are no clients yet don't hold up the end.
func TestDrainWhileArriving(t *testing.T) {
	leakCheck(t)
	ca := tlstest.NewCA(t)
	opts := testOptions(scriptedBroker(t, serveFrames(sumAnswer)))
	tlsFront(&tls.Config{Certificates: []tls.Certificate{ca.Certificate(t, "lockstep", "lockstep.test")}})(&opts)
	opts.Listeners[0].ProxyProtocol = ProxyRequired
	opts.Limits.HandshakeTimeout = time.Hour
	opts.Limits.DrainTimeout = time.Hour
	p, err := New(opts)
	require.NoError(t, err)
	stop := runProxy(t, p)
	starts := []string{"", "PROXY TCP4", proxyV2, proxyV1Header, proxyV1Header + "\x16\x03\x01\x02\x00\x01"}
	for _, s := range starts {
		_, err := dialTCP(t, p.Addr().String()).Write([]byte(s))
		require.NoError(t, err)
	}
	eventually(t, "all have come", func() bool { return p.open.Load() == int64(len(starts)) })
	stop()
	require.Equal(t, len(starts), closedFor(p, ReasonDraining))
}

// The certificate for brokers is the listener's: clients of another listener
// come without one.
func TestBrokerCertificateByListener(t *testing.T) {
	leakCheck(t)
	ca := tlstest.NewCA(t)
	raw := scriptedBroker(t, func(c *net.TCPConn) {
		tc := tls.Server(c, &tls.Config{
			Certificates: []tls.Certificate{ca.Certificate(t, "broker", "broker.test")},
			ClientAuth:   tls.RequestClientCert, ClientCAs: ca.Pool,
		})
		for {
			f, err := readFrame(tc)
			if err != nil {
				return
			}
			who := "nobody"
			if certs := tc.ConnectionState().PeerCertificates; len(certs) > 0 {
				who = certs[0].Subject.CommonName
			}
			if _, err := tc.Write(answerFrame(int32(binary.BigEndian.Uint32(f[4:])), []byte(who))); err != nil {
				return
			}
		}
	})
	bare := &tls.Config{RootCAs: ca.Pool, ServerName: "broker.test"}
	with := bare.Clone()
	with.Certificates = []tls.Certificate{ca.Certificate(t, "apps")}
	p := testProxy(t, raw, func(o *Options) {
		o.TLS = fixedTLS(bare)
		o.Listeners = append(o.Listeners, Listener{Address: "127.0.0.1:0", BrokerTLS: fixedTLS(with)})
	})
	for i, want := range []string{"nobody", "apps"} {
		c := dialTCP(t, p.fronts[i].lns[0].Addr().String())
		_, err := c.Write(request(keyHeartbeat, 0, 1, nil, nil))
		require.NoError(t, err)
		f, err := readFrame(c)
		require.NoError(t, err)
		require.Equal(t, want, string(f[4:]))
	}
}
