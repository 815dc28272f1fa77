package kconn

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"io"
	"math"
	"math/big"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lockstep-kafka/lockstep/internal/leaktest"
	"github.com/lockstep-kafka/lockstep/internal/tlsconf"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

func dial(t *testing.T, d *Dialer, addr string) (*Conn, error) {
	t.Helper()
	c, err := d.Init().Dial(t.Context(), addr)
	if err == nil {
		t.Cleanup(func() { c.Close() })
	}
	return c, err
}

func fake(t *testing.T, opts ...kfake.Opt) string {
	t.Helper()
	c, err := kfake.NewCluster(append([]kfake.Opt{kfake.NumBrokers(1), kfake.SeedTopics(1, "t")}, opts...)...)
	require.NoError(t, err)
	t.Cleanup(c.Close)
	return c.ListenAddrs()[0]
}

func metadata(t *testing.T, c *Conn) {
	t.Helper()
	v, err := c.Version(3, 0, 12)
	require.NoError(t, err)
	req := kmsg.NewPtrMetadataRequest()
	req.Version = v
	r, err := c.Request(t.Context(), req)
	require.NoError(t, err)
	require.NotEmpty(t, r.(*kmsg.MetadataResponse).Brokers)
}

func TestPlaintext(t *testing.T) {
	c, err := dial(t, &Dialer{}, fake(t))
	require.NoError(t, err)
	metadata(t, c)
	require.False(t, c.IsLockstep())
	_, err = c.Version(3, 100, 101)
	require.ErrorIs(t, err, ErrVersion)
	_, err = c.Version(9999, 0, 1)
	require.ErrorIs(t, err, ErrVersion)
	// Raw, twice, from several slices; buffers come back.
	req := kmsg.NewPtrListOffsetsRequest()
	req.Version = 1
	body := req.AppendTo(nil)
	for range 2 {
		b, err := c.RoundTripRaw(t.Context(), 2, 1, net.Buffers{body[:3], body[3:]}, 0)
		require.NoError(t, err)
		b.Retain()
		b.Release()
		require.Len(t, b.Bytes(), 4)
		b.Release()
	}
}

func TestSASL(t *testing.T) {
	addr := fake(
		t, kfake.EnableSASL(), kfake.Superuser("PLAIN", "p", "secret"),
		kfake.Superuser("SCRAM-SHA-256", "s", "secret"), kfake.Superuser("SCRAM-SHA-512", "s5", "secret"),
	)
	pl := func(pass string) sasl.Mechanism { return plain.Auth{User: "p", Pass: pass}.AsMechanism() }
	for name, m := range map[string]sasl.Mechanism{
		"plain": pl("secret"),
		"256":   scram.Auth{User: "s", Pass: "secret"}.AsSha256Mechanism(),
		"512":   scram.Auth{User: "s5", Pass: "secret"}.AsSha512Mechanism(),
	} {
		t.Run(name, func(t *testing.T) {
			c, err := dial(t, &Dialer{SASL: []sasl.Mechanism{m}}, addr)
			require.NoError(t, err)
			metadata(t, c)
		})
	}
	_, err := dial(t, &Dialer{SASL: []sasl.Mechanism{pl("wrong")}}, addr)
	require.ErrorIs(t, err, ErrCredentials)
	require.Equal(t, "credentials", Name(err))
	_, err = dial(t, &Dialer{SASL: []sasl.Mechanism{scram.Auth{User: "s", Pass: "wrong"}.AsSha256Mechanism()}}, addr)
	require.ErrorIs(t, err, ErrCredentials)
}

func selfSigned(t *testing.T) (tls.Certificate, *x509.CertPool) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	tpl := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	der, err := x509.CreateCertificate(rand.Reader, tpl, tpl, &key.PublicKey, key)
	require.NoError(t, err)
	cert, err := x509.ParseCertificate(der)
	require.NoError(t, err)
	pool := x509.NewCertPool()
	pool.AddCert(cert)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, pool
}

func trusting(pool *x509.CertPool) func(string) *tls.Config {
	return func(addr string) *tls.Config { return tlsconf.For(&tls.Config{RootCAs: pool}, addr) }
}

func TestTLS(t *testing.T) {
	cert, pool := selfSigned(t)
	addr := fake(t, kfake.TLS(&tls.Config{Certificates: []tls.Certificate{cert}}))
	c, err := dial(t, &Dialer{TLS: trusting(pool)}, addr)
	require.NoError(t, err)
	metadata(t, c)
	_, err = dial(t, &Dialer{TLS: trusting(x509.NewCertPool())}, addr)
	require.ErrorIs(t, err, ErrCertificate)
	_, err = dial(t, &Dialer{}, addr) // plaintext to TLS
	require.Contains(t, []string{"tls_mismatch", "closed"}, Name(err), "%v", err)
}

// server answers each connection by f.
func server(t *testing.T, f func(c net.Conn)) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			wg.Go(func() { defer c.Close(); f(c) })
		}
	})
	t.Cleanup(func() { ln.Close(); wg.Wait() })
	return ln.Addr().String()
}

// frame reads a request: key, version, correlation id.
func frame(c net.Conn) (key, version int16, corr []byte, ok bool) {
	var size [4]byte
	if _, err := io.ReadFull(c, size[:]); err != nil {
		return 0, 0, nil, false
	}
	b := make([]byte, binary.BigEndian.Uint32(size[:]))
	if _, err := io.ReadFull(c, b); err != nil {
		return 0, 0, nil, false
	}
	return int16(binary.BigEndian.Uint16(b)), int16(binary.BigEndian.Uint16(b[2:])), b[4:8], true
}

func reply(c net.Conn, corr, body []byte) {
	out := binary.BigEndian.AppendUint32(nil, uint32(len(body)+4))
	_, _ = c.Write(append(append(out, corr...), body...))
}

func versions(v int16, code int16) []byte {
	r := kmsg.NewPtrApiVersionsResponse()
	r.Version, r.ErrorCode = v, code
	r.ApiKeys = []kmsg.ApiVersionsResponseApiKey{{ApiKey: 3, MinVersion: 0, MaxVersion: 5}}
	r.SupportedFeatures = []kmsg.ApiVersionsResponseSupportedFeature{{Name: LockstepFeature, MinVersion: 1, MaxVersion: 1}}
	return r.AppendTo(nil)
}

func TestApiVersionsFallback(t *testing.T) {
	t.Run("answered the v0 way", func(t *testing.T) {
		addr := server(t, func(c net.Conn) {
			for {
				_, v, corr, ok := frame(c)
				switch {
				case !ok:
					return
				case v > 0:
					reply(c, corr, []byte{0, 35, 0, 0, 0, 0})
				default:
					reply(c, corr, versions(0, 0))
				}
			}
		})
		c, err := dial(t, &Dialer{}, addr)
		require.NoError(t, err)
		r, ok := c.Versions(3)
		require.True(t, ok)
		require.Equal(t, Range{0, 5}, r)
	})
	t.Run("closed on v3", func(t *testing.T) {
		addr := server(t, func(c net.Conn) {
			_, v, corr, ok := frame(c)
			if ok && v == 0 {
				reply(c, corr, versions(0, 0))
				_, _ = io.Copy(io.Discard, c)
			}
		})
		_, err := dial(t, &Dialer{}, addr)
		require.NoError(t, err)
	})
	t.Run("Lockstep", func(t *testing.T) {
		addr := server(t, func(c net.Conn) {
			_, _, corr, _ := frame(c)
			reply(c, corr, versions(3, 0))
			_, _ = io.Copy(io.Discard, c)
		})
		c, err := dial(t, &Dialer{}, addr)
		require.NoError(t, err)
		require.True(t, c.IsLockstep())
	})
}

func TestNonsense(t *testing.T) {
	for name, tc := range map[string]struct {
		answer []byte
		want   error
	}{
		"http":           {[]byte("HTTP/1.1 400 Bad Request\r\n\r\n"), ErrNonsense},
		"tls alert":      {[]byte{0x15, 3, 3, 0, 2, 2, 70, 0}, ErrTLSMismatch},
		"huge":           {[]byte{0x7f, 0, 0, 0, 0, 0, 0, 1}, ErrFrameTooLarge},
		"huge, not ours": {[]byte{0x7f, 0, 0, 0, 0, 0, 0, 9}, ErrNonsense},
		"negative":       {[]byte{0xff, 0, 0, 0, 0, 0, 0, 1}, ErrNonsense},
		"other id":       {[]byte{0, 0, 0, 6, 0, 0, 0, 99, 0, 0}, ErrNonsense},
		"garbled":        {[]byte{0, 0, 0, 9, 0, 0, 0, 1, 0, 0, 99, 99, 99}, ErrNonsense},
		"no apis":        {[]byte{0, 0, 0, 12, 0, 0, 0, 1, 0, 0, 1, 0, 0, 0, 0, 0}, ErrNonsense},
		"half frame":     {[]byte{0, 0, 0, 50, 0, 0, 0, 1, 0}, ErrClosed},
		"nothing":        {nil, ErrClosed},
	} {
		t.Run(name, func(t *testing.T) {
			addr := server(t, func(c net.Conn) {
				frame(c)
				_, _ = c.Write(tc.answer)
			})
			_, err := dial(t, &Dialer{}, addr)
			require.ErrorIs(t, err, tc.want)
		})
	}
}

func TestRefusedTimeoutCancel(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	addr := ln.Addr().String()
	ln.Close()
	_, err = dial(t, &Dialer{}, addr)
	require.ErrorIs(t, err, ErrRefused)

	var quiet atomic.Bool
	addr = server(t, func(c net.Conn) {
		for {
			_, v, corr, ok := frame(c)
			if !ok {
				return
			}
			if !quiet.Load() {
				reply(c, corr, versions(v, 0))
			}
		}
	})
	c, err := dial(t, &Dialer{RequestTimeout: 20 * time.Millisecond}, addr)
	require.NoError(t, err)
	c2, err := dial(t, &Dialer{}, addr)
	require.NoError(t, err)
	quiet.Store(true)
	_, err = c.Request(t.Context(), kmsg.NewPtrMetadataRequest())
	require.ErrorIs(t, err, ErrTimeout)
	require.NotErrorIs(t, err, ErrNotSent)
	require.True(t, c.Closed())
	_, err = c.Request(t.Context(), kmsg.NewPtrMetadataRequest())
	require.ErrorIs(t, err, ErrNotSent)

	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(10*time.Millisecond, cancel)
	_, err = c2.Request(ctx, kmsg.NewPtrMetadataRequest())
	require.ErrorIs(t, err, context.Canceled)
	require.NotErrorIs(t, err, ErrNotSent)
	_, err = (&Dialer{DialTimeout: 20 * time.Millisecond}).Init().Dial(t.Context(), addr)
	require.ErrorIs(t, err, ErrTimeout)
}

func TestMechanismNotOffered(t *testing.T) {
	addr := server(t, func(c net.Conn) {
		for {
			key, v, corr, ok := frame(c)
			switch {
			case !ok:
				return
			case key == 18:
				reply(c, corr, versions(v, 0))
			default:
				r := kmsg.NewPtrSASLHandshakeResponse()
				r.Version, r.ErrorCode, r.SupportedMechanisms = v, kerr.UnsupportedSaslMechanism.Code, []string{"GSSAPI"}
				reply(c, corr, r.AppendTo(nil))
			}
		}
	})
	_, err := dial(t, &Dialer{SASL: []sasl.Mechanism{plain.Auth{User: "u", Pass: "p"}.AsMechanism()}}, addr)
	require.ErrorIs(t, err, ErrMechanism)
	require.ErrorContains(t, err, "GSSAPI")
}

// KIP-368: a session that is about to end is renewed in place (kfake refuses
// that, brokers don't).
func TestReauthentication(t *testing.T) {
	var handshakes atomic.Int32
	var life atomic.Int64
	life.Store(60_000)
	addr := server(t, func(c net.Conn) {
		for {
			key, v, corr, ok := frame(c)
			switch {
			case !ok:
				return
			case key == 18:
				r := kmsg.NewPtrApiVersionsResponse()
				r.Version = v
				r.ApiKeys = []kmsg.ApiVersionsResponseApiKey{{ApiKey: 3, MaxVersion: 5}, {ApiKey: 36, MaxVersion: 1}}
				reply(c, corr, r.AppendTo(nil))
			case key == 17:
				handshakes.Add(1)
				reply(c, corr, []byte{0, 0, 0, 0, 0, 0})
			case key == 36:
				r := kmsg.NewPtrSASLAuthenticateResponse()
				r.Version, r.SessionLifetimeMillis = v, life.Load()
				reply(c, corr, r.AppendTo(nil))
			default:
				reply(c, corr, make([]byte, 12))
			}
		}
	})
	c, err := dial(t, &Dialer{SASL: []sasl.Mechanism{plain.Auth{User: "u", Pass: "p"}.AsMechanism()}}, addr)
	require.NoError(t, err)
	ask := func() error {
		b, err := c.RoundTripRaw(t.Context(), 3, 0, net.Buffers{{0, 0, 0, 0}}, 0)
		if err == nil {
			b.Release()
		}
		return err
	}
	require.NoError(t, ask())
	require.Equal(t, int32(1), handshakes.Load(), "not yet")
	require.WithinDuration(t, c.sessEnd.Add(-12*time.Second), c.reauthAt, time.Millisecond, "four fifths of a minute")
	c.reauthAt = time.Now()
	require.NoError(t, ask())
	require.Equal(t, int32(2), handshakes.Load())

	// Within a second brokers refuse it: a session that is shorter ends with its connection.
	life.Store(50)
	c.reauthAt = time.Now()
	require.NoError(t, ask())
	require.Equal(t, int32(3), handshakes.Load())
	require.Greater(t, time.Until(c.reauthAt), time.Second)
	c.sessEnd = time.Now()
	err = ask()
	require.ErrorIs(t, err, ErrNotSent)
	require.ErrorIs(t, err, ErrClosed)
	require.True(t, c.Closed())
	require.Equal(t, int32(3), handshakes.Load())
}

// A token without an end (brokers tell the time that is left): neither over at
// once, nor renewed at every request.
func TestSessionWithoutEnd(t *testing.T) {
	for _, ms := range []int64{40 * 365 * 24 * 3600 * 1000, 251e12, math.MaxInt64} { // from 36 years on 8 of them are too many ns
		addr := server(t, func(c net.Conn) {
			for {
				key, v, corr, ok := frame(c)
				switch {
				case !ok:
					return
				case key == 18:
					r := kmsg.NewPtrApiVersionsResponse()
					r.Version = v
					r.ApiKeys = []kmsg.ApiVersionsResponseApiKey{{ApiKey: 3, MaxVersion: 5}, {ApiKey: 36, MaxVersion: 1}}
					reply(c, corr, r.AppendTo(nil))
				case key == 36:
					r := kmsg.NewPtrSASLAuthenticateResponse()
					r.Version, r.SessionLifetimeMillis = v, ms
					reply(c, corr, r.AppendTo(nil))
				default:
					reply(c, corr, []byte{0, 0, 0, 0, 0, 0})
				}
			}
		})
		c, err := dial(t, &Dialer{SASL: []sasl.Mechanism{plain.Auth{User: "u", Pass: "p"}.AsMechanism()}}, addr)
		require.NoError(t, err)
		require.False(t, c.Closed(), ms)
		require.Greater(t, time.Until(c.reauthAt), time.Hour, ms)
	}
}

// A session that ended while nobody used the connection: it is dialled anew, without an error in between.
func TestIdleBeyondTheSession(t *testing.T) {
	c, err := dial(t, &Dialer{}, fake(t))
	require.NoError(t, err)
	require.False(t, c.Closed())
	c.sessEnd = time.Now().Add(-time.Millisecond)
	require.True(t, c.Closed())
}

func TestAlloc(t *testing.T) {
	addr := server(t, func(c net.Conn) {
		for {
			key, v, corr, ok := frame(c)
			switch {
			case !ok:
				return
			case key == 18:
				reply(c, corr, versions(v, 0))
			default:
				reply(c, corr, make([]byte, 20<<10))
			}
		}
	})
	c, err := dial(t, &Dialer{}, addr)
	require.NoError(t, err)
	var pool Pool
	held := 0
	c.Alloc = func(_ context.Context, n int) (*Buffer, error) {
		held += n
		b := pool.Get(n)
		b.OnFree(func() { held -= n })
		return b, nil
	}
	b, err := c.RoundTripRaw(t.Context(), 3, 0, nil, 0)
	require.NoError(t, err)
	require.Equal(t, 20<<10, held)
	b.Release()
	require.Zero(t, held)
	require.Panics(t, func() { b.Release() })
	c.Alloc = func(context.Context, int) (*Buffer, error) { return nil, context.Canceled }
	_, err = c.RoundTripRaw(t.Context(), 3, 0, nil, 0)
	require.ErrorIs(t, err, context.Canceled)
}

func TestPoolClasses(t *testing.T) {
	var p Pool
	for n := 1; n < 1<<28; n = n*9/8 + 1 {
		class, size := classFor(n)
		require.GreaterOrEqual(t, size, n)
		if class >= 0 && n > 1<<minShift {
			require.LessOrEqual(t, size, n+n/4+1, "n %d", n)
			again, same := classFor(size)
			require.Equal(t, class, again)
			require.Equal(t, size, same)
		}
	}
	b := p.Get(5000)
	require.GreaterOrEqual(t, b.Cap(), 5000)
	b.Release()
	huge := p.Get(1<<27 + 1)
	huge.Release()
}

// Idle large buffers are used again for answers of other sizes, and are bounded.
func TestPoolOfLargeBuffers(t *testing.T) {
	var p Pool
	a, b := p.Get(16<<20), p.Get(8<<20)
	require.Zero(t, p.idle)
	a.Release()
	b.Release()
	require.Equal(t, a.Cap()+b.Cap(), p.idle)
	require.Same(t, b, p.Get(7<<20), "the smallest that is large enough")
	require.Same(t, a, p.Get(9<<20))
	require.Zero(t, p.idle)
	a.Release()
	c := p.Get(1 << 20)
	require.NotSame(t, a, c, "16 MiB are too much for 1 MiB")
	b.Release()
	c.Release()
	var all []*Buffer
	for range 8 {
		all = append(all, p.Get(16<<20))
	}
	for _, x := range all {
		x.Release()
	}
	require.LessOrEqual(t, p.idle, largeKeep)
	require.Len(t, p.large, largeKeep/(16<<20))
	p.Get(largeKeep + 1).Release()
	require.LessOrEqual(t, p.idle, largeKeep)
}

// What is in use leaves less room for what lies idle.
func TestPoolKeepsLessBesideWhatIsUsed(t *testing.T) {
	p := Pool{Keep: 10 << 20}
	a, b := p.Get(4<<20), p.Get(4<<20)
	require.Equal(t, 8<<20, p.used)
	b.Release()
	require.Equal(t, []int{4 << 20, 4 << 20}, []int{p.used, p.idle})
	c := p.Get(1 << 20)
	require.NotSame(t, b, c)
	require.Equal(t, []int{5 << 20, 4 << 20}, []int{p.used, p.idle})
	d := p.Get(2 << 20)
	require.Same(t, b, d, "an idle one of twice the size")
	e := p.Get(12 << 20)
	require.Equal(t, []int{21 << 20, 0}, []int{p.used, p.idle}, "what is needed is given in any case")
	e.Release()
	require.Equal(t, []int{9 << 20, 0}, []int{p.used, p.idle})
	for _, x := range []*Buffer{a, c, d} {
		x.Release()
	}
	require.Equal(t, []int{0, 9 << 20}, []int{p.used, p.idle})
	f, g := p.Get(8<<20), p.Get(4<<20)
	g.Release()
	require.Equal(t, []int{8 << 20, 0}, []int{p.used, p.idle}, "4 MiB have no room beside 8")
	f.Release()
}

// An idle pool lets its large buffers go, and none that is used now and then.
func TestPoolAges(t *testing.T) {
	var p Pool
	a, b, c := p.Get(1<<20), p.Get(4<<20), p.Get(16<<20)
	for _, x := range []*Buffer{a, b, c} {
		x.Release()
	}
	p.Age()
	require.Len(t, p.large, 3, "used since")
	require.Same(t, b, p.Get(4<<20))
	p.Age()
	require.Equal(t, []int{4 << 20, 0}, []int{p.used, p.idle})
	b.Release()
	p.Age()
	require.Equal(t, []int{0, 4 << 20}, []int{p.used, p.idle})
	p.Age()
	require.Empty(t, p.large)
	require.Equal(t, []int{0, 0}, []int{p.used, p.idle})
}

func TestBufferHolds(t *testing.T) {
	var p Pool
	b := p.Get(10)
	b.Release()
	b = p.Get(100 << 10)
	defer b.Release()
	in := append(b.Empty(), 1, 2, 3)
	require.True(t, b.Holds(in))
	require.False(t, b.Holds(append(in[:len(in):len(in)], make([]byte, 200<<10)...)))
	require.False(t, b.Holds(nil))
	require.GreaterOrEqual(t, Room(100<<10), 100<<10)
	require.Equal(t, Room(100<<10), b.Cap())
}

func FuzzSkipTags(f *testing.F) {
	f.Add([]byte{0, 1})
	f.Add([]byte{1, 5, 2, 0, 0, 9})
	f.Fuzz(func(t *testing.T, b []byte) {
		rest, err := skipTags(b)
		if err == nil && len(rest) >= len(b) {
			t.Fatalf("%d of %d", len(rest), len(b))
		}
	})
}

// readOnly is a connection on which these bytes come.
type readOnly struct {
	net.Conn
	r io.Reader
}

func (c readOnly) Read(b []byte) (int, error) { return c.r.Read(b) }
func (readOnly) SetDeadline(time.Time) error  { return nil }
func (readOnly) Write(b []byte) (int, error)  { return len(b), nil }
func (readOnly) Close() error                 { return nil }

// Whatever a broker answers: an error or a body within the frame, and nothing is
// made for a size before its bytes come that is above MaxFrame.
func FuzzAnswer(f *testing.F) {
	f.Add([]byte{0, 0, 0, 6, 0, 0, 0, 1, 0, 9}, true)
	f.Add([]byte{0, 0, 0, 10, 0, 0, 0, 1, 1, 5, 2, 0, 0, 9}, true)
	f.Add([]byte{0x15, 3, 3, 0, 2, 2, 0x28, 0}, false)
	f.Add([]byte("HTTP/1.1 400 Bad Request\r\n\r\n"), false)
	f.Add([]byte{0x7f, 0xff, 0xff, 0xff, 0, 0, 0, 1}, false)
	d := (&Dialer{MaxFrame: 1 << 16}).Init()
	f.Fuzz(func(t *testing.T, answer []byte, tags bool) {
		c := &Conn{d: d, addr: "fuzz", nc: readOnly{r: bytes.NewReader(answer)}}
		key := int16(kmsg.Heartbeat)
		version := int16(0)
		if tags {
			version = 4
		}
		buf, err := c.RoundTripRaw(t.Context(), key, version, nil, 0)
		if err != nil {
			if !c.Closed() {
				t.Fatal("an error, and not closed")
			}
			return
		}
		if len(buf.Bytes()) > len(answer)-8 || !bytes.Contains(answer, buf.Bytes()) {
			t.Fatalf("%x of %x", buf.Bytes(), answer)
		}
		buf.Release()
	})
}
