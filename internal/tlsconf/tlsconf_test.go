package tlsconf_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-kafka/lockstep/internal/leaktest"
	"github.com/lockstep-kafka/lockstep/internal/tlsconf"
	"github.com/lockstep-kafka/lockstep/internal/tlsconf/tlstest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// handshake connects the two; it returns both sides' view, or an error of either.
func handshake(t *testing.T, server, client *tls.Config) (s, c tls.ConnectionState, err error) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer ln.Close()
	b, err := net.Dial("tcp", ln.Addr().String())
	require.NoError(t, err)
	a, err := ln.Accept()
	require.NoError(t, err)
	defer a.Close()
	defer b.Close()
	sc, cc := tls.Server(a, server), tls.Client(b, client)
	done := make(chan error, 1)
	go func() {
		err := sc.Handshake()
		if err == nil {
			_, err = sc.Write([]byte{1}) // TLS 1.3: the client learns of a refusal after its handshake
		}
		if err != nil {
			a.Close()
		}
		done <- err
	}()
	if err = cc.Handshake(); err == nil {
		_, err = cc.Read(make([]byte, 1))
	} else {
		b.Close()
	}
	if sErr := <-done; sErr != nil {
		err = sErr
	}
	return sc.ConnectionState(), cc.ConnectionState(), err
}

// Everything that the files say is made anew when they change, on both sides;
// what can't be loaded leaves all as it was, and is told once.
func TestReload(t *testing.T) {
	dir := t.TempDir()
	ca, next := tlstest.NewCA(t), tlstest.NewCA(t)
	caFile := filepath.Join(dir, "ca.pem")
	tlstest.Write(t, caFile, ca.PEM)
	cert, key := ca.Files(t, dir, "server", "first", "a.test")
	clientCert, clientKey := ca.Files(t, dir, "client", "client one")
	server, err := tlsconf.NewServer("listener", tlsconf.ServerOptions{
		Common: tlsconf.Common{CAFile: caFile, CertFile: cert, KeyFile: key}, ClientAuth: tlsconf.RequireClientCert,
	})
	require.NoError(t, err)
	client, err := tlsconf.NewClient("destination", tlsconf.ClientOptions{Common: tlsconf.Common{CAFile: caFile, CertFile: clientCert, KeyFile: clientKey}})
	require.NoError(t, err)
	names := func() (serverName, clientName string) {
		s, c, err := handshake(t, server.Config(), client.Config("a.test:9092"))
		require.NoError(t, err)
		return c.PeerCertificates[0].Subject.CommonName, s.PeerCertificates[0].Subject.CommonName
	}
	reload := func(r tlsconf.Reloader, want bool) {
		t.Helper()
		changed, err := r.Reload()
		require.NoError(t, err)
		require.Equal(t, want, changed)
	}
	s, c := names()
	require.Equal(t, "first", s)
	require.Equal(t, "client one", c)
	reload(server, false)

	ca.Files(t, dir, "server", "second", "a.test")
	ca.Files(t, dir, "client", "client two")
	reload(server, true)
	reload(client, true)
	s, c = names()
	require.Equal(t, "second", s)
	require.Equal(t, "client two", c)

	// Half of a replacement (certificate without its key) is waited for; what
	// stays wrong is told once.
	tlstest.Write(t, key, []byte("no key"))
	reload(server, false)
	_, err = server.Reload()
	require.ErrorContains(t, err, key)
	reload(server, false)
	s, _ = names()
	require.Equal(t, "second", s)
	require.NoError(t, os.Remove(key))
	reload(server, false)
	_, err = server.Reload()
	require.ErrorContains(t, err, "no such file")
	s, _ = names()
	require.Equal(t, "second", s)

	// Another authority: who was let in before isn't any more.
	next.Files(t, dir, "server", "third", "a.test")
	tlstest.Write(t, caFile, next.PEM)
	reload(server, true)
	reload(client, true)
	_, _, err = handshake(t, server.Config(), client.Config("a.test:9092"))
	require.Error(t, err)
	next.Files(t, dir, "client", "client three")
	reload(client, true)
	s, c = names()
	require.Equal(t, "third", s)
	require.Equal(t, "client three", c)
}

// A session ticket of before a reload doesn't let anybody in after it.
func TestTicketsEndWithAReload(t *testing.T) {
	dir := t.TempDir()
	ca, next := tlstest.NewCA(t), tlstest.NewCA(t)
	caFile := filepath.Join(dir, "ca.pem")
	tlstest.Write(t, caFile, ca.PEM)
	cert, key := ca.Files(t, dir, "server", "server", "a.test")
	server, err := tlsconf.NewServer("listener", tlsconf.ServerOptions{
		Common: tlsconf.Common{CAFile: caFile, CertFile: cert, KeyFile: key}, ClientAuth: tlsconf.RequireClientCert,
	})
	require.NoError(t, err)
	client := &tls.Config{
		RootCAs: ca.Pool, ServerName: "a.test", Certificates: []tls.Certificate{ca.Certificate(t, "client")},
		ClientSessionCache: tls.NewLRUClientSessionCache(4),
	}
	_, _, err = handshake(t, server.Config(), client)
	require.NoError(t, err)
	s, _, err := handshake(t, server.Config(), client)
	require.NoError(t, err)
	require.True(t, s.DidResume, "the test needs resumption")
	tlstest.Write(t, caFile, next.PEM)
	_, err = server.Reload()
	require.NoError(t, err)
	_, _, err = handshake(t, server.Config(), client)
	require.Error(t, err)
}

func TestVersionsAndSuites(t *testing.T) {
	dir := t.TempDir()
	ca := tlstest.NewCA(t)
	cert, key := ca.Files(t, dir, "server", "server", "a.test")
	suite, err := tlsconf.CipherSuite("TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384")
	require.NoError(t, err)
	files := tlsconf.Common{CertFile: cert, KeyFile: key}
	make := func(change func(*tlsconf.Common)) *tls.Config {
		c := files
		change(&c)
		s, err := tlsconf.NewServer("listener", tlsconf.ServerOptions{Common: c})
		require.NoError(t, err)
		return s.Config()
	}
	client := func(most uint16) *tls.Config {
		return &tls.Config{RootCAs: ca.Pool, ServerName: "a.test", MinVersion: tls.VersionTLS10, MaxVersion: most}
	}
	for _, tc := range []struct {
		server *tls.Config
		most   uint16
		ok     bool
	}{
		{make(func(*tlsconf.Common) {}), tls.VersionTLS11, false},
		{make(func(*tlsconf.Common) {}), tls.VersionTLS12, true},
		{make(func(c *tlsconf.Common) { c.MinVersion = tls.VersionTLS13 }), tls.VersionTLS12, false},
		{make(func(c *tlsconf.Common) { c.MinVersion = tls.VersionTLS13 }), tls.VersionTLS13, true},
	} {
		_, _, err := handshake(t, tc.server, client(tc.most))
		require.Equal(t, tc.ok, err == nil, "%v", err)
	}
	s, _, err := handshake(t, make(func(c *tlsconf.Common) { c.CipherSuites = []uint16{suite} }), client(tls.VersionTLS12))
	require.NoError(t, err)
	require.Equal(t, suite, s.CipherSuite)
	for _, bad := range []string{"TLS_AES_128_GCM_SHA256", "TLS_RSA_WITH_RC4_128_SHA", "ECDHE-RSA-AES128-GCM-SHA256", ""} {
		_, err := tlsconf.CipherSuite(bad)
		require.Error(t, err, bad)
	}
}

func TestFirstLoadMustSucceed(t *testing.T) {
	dir := t.TempDir()
	ca := tlstest.NewCA(t)
	cert, key := ca.Files(t, dir, "server", "server", "a.test")
	_, otherKey := ca.Files(t, dir, "other", "other")
	empty := filepath.Join(dir, "empty")
	tlstest.Write(t, empty, nil)
	for _, o := range []tlsconf.ServerOptions{
		{},
		{Common: tlsconf.Common{CertFile: cert, KeyFile: otherKey}},
		{Common: tlsconf.Common{CertFile: "nowhere", KeyFile: key}},
		{Common: tlsconf.Common{CertFile: cert, KeyFile: key, CAFile: empty}},
		{Common: tlsconf.Common{CertFile: cert, KeyFile: key}, ClientAuth: tlsconf.OptionalClientCert},
	} {
		_, err := tlsconf.NewServer("listener", o)
		require.ErrorContains(t, err, "TLS of listener", o)
	}
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(b)
}

func (l *lockedBuffer) has(s string) func() bool {
	return func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		return bytes.Contains(l.b.Bytes(), []byte(s))
	}
}

func TestWatch(t *testing.T) {
	dir := t.TempDir()
	ca := tlstest.NewCA(t)
	cert, key := ca.Files(t, dir, "server", "server", "a.test")
	s, err := tlsconf.NewServer("listener one", tlsconf.ServerOptions{Common: tlsconf.Common{CertFile: cert, KeyFile: key}})
	require.NoError(t, err)
	was := s.Config()
	var log lockedBuffer
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		tlsconf.Watch(ctx, time.Millisecond, slog.New(slog.NewTextHandler(&log, nil)), s)
	}()
	tlstest.Write(t, cert, []byte("nothing"))
	require.Eventually(t, log.has("can't be loaded"), time.Minute, time.Millisecond)
	require.Same(t, was, s.Config())
	ca.Files(t, dir, "server", "server", "a.test")
	require.Eventually(t, log.has("TLS files reloaded"), time.Minute, time.Millisecond)
	require.NotSame(t, was, s.Config())
	cancel()
	<-done
}
