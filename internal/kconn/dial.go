package kconn

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/sasl"
)

// LockstepFeature is the feature key that only Lockstep's proxy adds to
// ApiVersions (hazard H18).
const LockstepFeature = "lockstep.proxy"

// Dialer holds how to reach the brokers of one cluster. Its fields must not be
// changed after the first Dial.
type Dialer struct {
	// TLS settings for the next connection to addr; nil: plaintext.
	TLS  func(addr string) *tls.Config
	SASL []sasl.Mechanism // the first that the broker offers is used; empty: none

	ClientID        string
	SoftwareName    string // for the broker's metrics (KIP-511)
	SoftwareVersion string

	DialTimeout    time.Duration // TCP, TLS, versions and SASL together; 10 s
	RequestTimeout time.Duration // 30 s
	SocketBuffer   int           // SO_RCVBUF and SO_SNDBUF in bytes; 0: the system's choice
	MaxFrame       int32         // largest response accepted, in bytes; 100 MiB
	Pool           *Pool         // where responses go; shared if wanted

	// DialFunc replaces net.Dialer.DialContext in tests.
	DialFunc func(ctx context.Context, network, addr string) (net.Conn, error)
}

// Init fills in defaults; Dial must not be called before it.
func (d *Dialer) Init() *Dialer {
	if d.DialTimeout <= 0 {
		d.DialTimeout = 10 * time.Second
	}
	if d.RequestTimeout <= 0 {
		d.RequestTimeout = 30 * time.Second
	}
	if d.MaxFrame <= 0 {
		d.MaxFrame = 100 << 20
	}
	if d.Pool == nil {
		d.Pool = &Pool{}
	}
	if d.ClientID == "" {
		d.ClientID = "lockstep"
	}
	if d.SoftwareName == "" {
		d.SoftwareName = "lockstep"
	}
	if d.SoftwareVersion == "" {
		d.SoftwareVersion = "dev"
	}
	if d.DialFunc == nil {
		d.DialFunc = (&net.Dialer{}).DialContext
	}
	return d
}

// Dial connects, learns the broker's versions and authenticates. Errors wrap
// one of this package's sentinels where the cause is known.
func (d *Dialer) Dial(ctx context.Context, addr string) (*Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, d.DialTimeout)
	defer cancel()
	c, err := d.open(ctx, addr)
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", addr, err)
	}
	v := int16(3)
	err = c.apiVersions(ctx, v)
	if errors.Is(err, ErrClosed) && ctx.Err() == nil {
		// Some brokers close the connection on a version they don't know.
		if c, err = d.open(ctx, addr); err == nil {
			if err = c.apiVersions(ctx, 0); errors.Is(err, ErrClosed) && d.TLS == nil {
				err = fmt.Errorf("%w (a port that wants TLS does this too)", err)
			}
		}
	}
	if err == nil {
		err = c.authenticate(ctx)
	}
	if err != nil {
		if c != nil {
			c.Close()
		}
		return nil, fmt.Errorf("connect to %s: %w", addr, err)
	}
	return c, nil
}

func (d *Dialer) open(ctx context.Context, addr string) (*Conn, error) {
	nc, err := d.DialFunc(ctx, "tcp", addr)
	if err != nil {
		return nil, classify(err)
	}
	if t, ok := nc.(*net.TCPConn); ok {
		_ = t.SetNoDelay(true)
		if d.SocketBuffer > 0 {
			_ = t.SetReadBuffer(d.SocketBuffer)
			_ = t.SetWriteBuffer(d.SocketBuffer)
		}
	}
	if d.TLS != nil {
		tc := tls.Client(nc, d.TLS(addr))
		if err := tc.HandshakeContext(ctx); err != nil {
			nc.Close()
			if errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) {
				return nil, fmt.Errorf("%w: closed during the TLS handshake, as a plaintext port does: %w", ErrTLSMismatch, err)
			}
			return nil, classify(err)
		}
		nc = tc
	}
	return &Conn{d: d, addr: addr, nc: nc}, nil
}

// apiVersions asks at version v; a broker that doesn't know it answers the v0
// way with UNSUPPORTED_VERSION, and is then asked at version 0.
func (c *Conn) apiVersions(ctx context.Context, v int16) error {
	req := kmsg.NewPtrApiVersionsRequest()
	req.Version = v
	req.ClientSoftwareName, req.ClientSoftwareVersion = c.d.SoftwareName, c.d.SoftwareVersion
	buf, err := c.roundTrip(ctx, req.Key(), v, net.Buffers{req.AppendTo(nil)}, 0)
	if err != nil {
		return err
	}
	defer buf.Release()
	body := append([]byte(nil), buf.Bytes()...)
	if v > 0 && len(body) >= 2 && body[0] == 0 && body[1] == byte(kerr.UnsupportedVersion.Code) {
		return c.apiVersions(ctx, 0)
	}
	resp := kmsg.NewPtrApiVersionsResponse()
	resp.Version = v
	if err := resp.ReadFrom(body); err != nil {
		c.Close()
		return fmt.Errorf("%w: ApiVersions from %s: %w", ErrNonsense, c.addr, err)
	}
	if err := kerr.ErrorForCode(resp.ErrorCode); err != nil {
		c.Close()
		return fmt.Errorf("ApiVersions from %s: %w", c.addr, err)
	}
	if len(resp.ApiKeys) == 0 {
		c.Close()
		return fmt.Errorf("%w: ApiVersions from %s names no API", ErrNonsense, c.addr)
	}
	c.versions = make(map[int16]Range, len(resp.ApiKeys))
	for _, k := range resp.ApiKeys {
		c.versions[k.ApiKey] = Range{k.MinVersion, k.MaxVersion}
	}
	for _, f := range resp.SupportedFeatures {
		if c.features == nil {
			c.features = map[string]Range{}
		}
		c.features[f.Name] = Range{f.MinVersion, f.MaxVersion}
	}
	return nil
}

// Failer is a sasl.Session that wants to know of a login that failed, and whether
// the broker has refused it.
type Failer interface {
	Failed(err error, refused bool)
}

// authenticate runs the SASL exchange (SaslHandshake v1, SaslAuthenticate).
func (c *Conn) authenticate(ctx context.Context) error {
	if len(c.d.SASL) == 0 {
		return nil
	}
	began := time.Now()
	c.reauthAt, c.sessEnd = time.Time{}, time.Time{}
	mech := c.d.SASL[0]
	for i := 0; ; {
		hs := kmsg.NewPtrSASLHandshakeRequest()
		hs.Version, hs.Mechanism = 1, mech.Name()
		r, err := c.request(ctx, hs)
		if err != nil {
			return fmt.Errorf("SASL handshake (is the port a SASL listener?): %w", err)
		}
		resp := r.(*kmsg.SASLHandshakeResponse)
		if resp.ErrorCode == 0 {
			break
		}
		if resp.ErrorCode != kerr.UnsupportedSaslMechanism.Code {
			return fmt.Errorf("SASL handshake: %w", kerr.ErrorForCode(resp.ErrorCode))
		}
		if i++; i >= len(c.d.SASL) {
			return fmt.Errorf("%w: %s; the broker offers %v", ErrMechanism, mech.Name(), resp.SupportedMechanisms)
		}
		mech = c.d.SASL[i]
	}
	session, msg, err := mech.Authenticate(ctx, c.addr)
	if err != nil {
		return fmt.Errorf("%w: %s: %w", ErrCredentials, mech.Name(), err)
	}
	err = c.tokens(ctx, began, mech.Name(), session, msg)
	if f, ok := session.(Failer); ok && err != nil {
		f.Failed(err, errors.Is(err, ErrCredentials))
	}
	return err
}

// tokens sends the tokens of a session to the broker.
func (c *Conn) tokens(ctx context.Context, began time.Time, mechanism string, session sasl.Session, msg []byte) error {
	version, err := c.Version(int16(kmsg.SASLAuthenticate), 0, 2)
	if err != nil {
		return err
	}
	for done := false; !done || msg != nil; {
		req := kmsg.NewPtrSASLAuthenticateRequest()
		req.Version, req.SASLAuthBytes = version, msg
		r, err := c.request(ctx, req)
		if err != nil {
			if errors.Is(err, ErrClosed) {
				return fmt.Errorf("%w: %s: closed while authenticating: %w", ErrCredentials, mechanism, err)
			}
			return err
		}
		resp := r.(*kmsg.SASLAuthenticateResponse)
		if resp.ErrorCode != 0 {
			text := kerr.ErrorForCode(resp.ErrorCode).Error()
			if resp.ErrorMessage != nil {
				text = *resp.ErrorMessage
			}
			return fmt.Errorf("%w: %s: %s; check the credentials under sasl", ErrCredentials, mechanism, text)
		}
		if ms := resp.SessionLifetimeMillis; ms > 0 {
			// KIP-368: renewed in place well before the broker cuts us off.
			life := time.Duration(min(ms, longestSession.Milliseconds())) * time.Millisecond
			c.sessEnd = began.Add(life)
			if c.reauthAt = began.Add(life * 8 / 10); c.reauthAt.Before(time.Now().Add(minReauth)) {
				c.reauthAt = time.Now().Add(minReauth)
			}
		}
		if done {
			break
		}
		if done, msg, err = session.Challenge(resp.SASLAuthBytes); err != nil {
			return fmt.Errorf("%w: %s: %w", ErrCredentials, mechanism, err)
		}
	}
	return nil
}

// longestSession bounds what is believed of a session's end: it may be that of a
// token without one, in the year 9999, which no Duration holds.
const longestSession = 30 * 24 * time.Hour

// minReauth is the least time between two authentications: brokers take what
// comes within a second of the last one for an error (ILLEGAL_SASL_STATE).
const minReauth = 1100 * time.Millisecond

// reauthenticate renews a SASL session that is about to end.
func (c *Conn) reauthenticate(ctx context.Context) error {
	if c.reauthAt.IsZero() || time.Now().Before(c.reauthAt) && time.Now().Before(c.sessEnd) {
		return nil
	}
	if c.Closed() {
		return fmt.Errorf("%w: %w: the SASL session with %s has ended", ErrNotSent, ErrClosed, c.addr)
	}
	if err := c.authenticate(ctx); err != nil {
		c.Close()
		return fmt.Errorf("%w: re-authentication to %s: %w", ErrNotSent, c.addr, err)
	}
	return nil
}
