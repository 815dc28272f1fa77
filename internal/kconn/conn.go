// Package kconn speaks to one Kafka broker over one TCP or TLS connection:
// strictly one request at a time, no goroutine of its own, responses in pooled
// buffers, and requests written from several slices without being copied.
package kconn

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// Range is a span of API versions, both ends included.
type Range struct{ Min, Max int16 }

// allocFrom is the size from which Conn.Alloc is asked.
const allocFrom = 8 << 10

// Conn is a ready connection: versions known, authenticated. It is used by one
// goroutine at a time, but Close, which any may call. After an error from
// Request or RoundTripRaw other than ErrNotSent the connection is closed.
type Conn struct {
	d        *Dialer
	addr     string
	nc       net.Conn
	corr     int32
	versions map[int16]Range
	features map[string]Range
	reauthAt time.Time // the SASL session is renewed from here on; zero: it has no end
	sessEnd  time.Time // and is over from here on
	closed   atomic.Bool
	rtt      time.Duration // 0: nothing answered yet
	head     []byte        // request header, reused

	// Alloc, when set, gives the Buffer for a response larger than allocFrom
	// bytes, n of them, and may wait. To be set before use.
	Alloc func(ctx context.Context, n int) (*Buffer, error)

	in [8]byte
}

// Addr is the address that was dialled.
func (c *Conn) Addr() string { return c.addr }

// Features are the broker's supported features (ApiVersions v3+), nil when it
// names none.
func (c *Conn) Features() map[string]Range { return c.features }

// IsLockstep says whether the other side is a Lockstep proxy.
func (c *Conn) IsLockstep() bool { _, ok := c.features[LockstepFeature]; return ok }

// Versions is what the broker speaks of API key.
func (c *Conn) Versions(key int16) (Range, bool) { r, ok := c.versions[key]; return r, ok }

// Version is the highest version of API key in [lo, hi] that the broker
// speaks.
func (c *Conn) Version(key, lo, hi int16) (int16, error) {
	r, ok := c.versions[key]
	if !ok {
		return 0, fmt.Errorf("%w: broker %s does not have the %s API", ErrVersion, c.addr, kmsg.NameForKey(key))
	}
	v := min(r.Max, hi)
	if v < lo || v < r.Min {
		return 0, fmt.Errorf("%w: %s: broker %s has versions %d-%d, needed is one of %d-%d", ErrVersion, kmsg.NameForKey(key), c.addr, r.Min, r.Max, lo, hi)
	}
	return v, nil
}

// RTT is the shortest time in which a request on this connection was answered:
// the network's round trip, with what the broker took for its quickest answer.
func (c *Conn) RTT() time.Duration { return c.rtt }

// Close closes the connection.
func (c *Conn) Close() error {
	if c.closed.Swap(true) {
		return nil
	}
	return c.nc.Close()
}

// Closed says whether the connection can't be used any more. One whose SASL
// session has ended while nobody used it is closed by this: brokers cut it off at
// the next request, whatever that is.
func (c *Conn) Closed() bool {
	if !c.closed.Load() && !c.sessEnd.IsZero() && time.Now().After(c.sessEnd) {
		c.Close()
	}
	return c.closed.Load()
}

// Request sends req at the version that is set in it and decodes the answer,
// which owns its memory. The wait is bounded by ctx and the dialer's request
// timeout.
func (c *Conn) Request(ctx context.Context, req kmsg.Request) (kmsg.Response, error) {
	if err := c.reauthenticate(ctx); err != nil {
		return nil, err
	}
	return c.request(ctx, req)
}

func (c *Conn) request(ctx context.Context, req kmsg.Request) (kmsg.Response, error) {
	buf, err := c.roundTrip(ctx, req.Key(), req.GetVersion(), net.Buffers{req.AppendTo(nil)}, 0)
	if err != nil {
		return nil, err
	}
	defer buf.Release()
	resp := req.ResponseKind()
	resp.SetVersion(req.GetVersion())
	if err := resp.ReadFrom(append([]byte(nil), buf.Bytes()...)); err != nil {
		c.Close()
		return nil, fmt.Errorf("%w: %s v%d from %s: %w", ErrNonsense, kmsg.NameForKey(req.Key()), req.GetVersion(), c.addr, err)
	}
	return resp, nil
}

// RoundTripRaw sends a request whose body (all after the request header) is in
// body, written as it is without a copy (TLS makes one), and reads the answer
// into a Buffer with one reference. wait is added to the request timeout: how
// long the broker may hold the request on purpose.
func (c *Conn) RoundTripRaw(ctx context.Context, key, version int16, body net.Buffers, wait time.Duration) (*Buffer, error) {
	if err := c.reauthenticate(ctx); err != nil {
		return nil, err
	}
	return c.roundTrip(ctx, key, version, body, wait)
}

func (c *Conn) roundTrip(ctx context.Context, key, version int16, body net.Buffers, wait time.Duration) (*Buffer, error) {
	flexible := false
	if r := kmsg.RequestForKey(key); r != nil {
		r.SetVersion(version)
		flexible = r.IsFlexible()
	}
	buf, sent, err := c.exchange(ctx, key, version, flexible, body, wait)
	if err == nil {
		return buf, nil
	}
	c.Close()
	if cause := context.Cause(ctx); cause != nil {
		err = errors.Join(cause, err)
	}
	err = fmt.Errorf("%s to %s: %w", kmsg.NameForKey(key), c.addr, classify(err))
	if !sent {
		err = errors.Join(ErrNotSent, err)
	}
	return nil, err
}

func (c *Conn) exchange(ctx context.Context, key, version int16, flexible bool, body net.Buffers, wait time.Duration) (_ *Buffer, sent bool, _ error) {
	if c.Closed() {
		return nil, false, net.ErrClosed
	}
	if err := ctx.Err(); err != nil {
		return nil, false, err
	}
	deadline := time.Now().Add(c.d.RequestTimeout + wait)
	if d, ok := ctx.Deadline(); ok && d.Before(deadline) {
		deadline = d
	}
	if err := c.nc.SetDeadline(deadline); err != nil {
		return nil, false, err
	}
	stop := context.AfterFunc(ctx, func() { _ = c.nc.SetDeadline(time.Unix(1, 0)) })
	defer stop()

	c.corr++
	size := 0
	for _, b := range body {
		size += len(b)
	}
	h := append(c.head[:0], 0, 0, 0, 0)
	h = binary.BigEndian.AppendUint16(h, uint16(key))
	h = binary.BigEndian.AppendUint16(h, uint16(version))
	h = binary.BigEndian.AppendUint32(h, uint32(c.corr))
	h = binary.BigEndian.AppendUint16(h, uint16(len(c.d.ClientID)))
	h = append(h, c.d.ClientID...)
	if flexible {
		h = append(h, 0)
	}
	binary.BigEndian.PutUint32(h, uint32(len(h)-4+size))
	c.head = h
	out := make(net.Buffers, 0, len(body)+1)
	out = append(append(out, h), body...)
	if n, err := out.WriteTo(c.nc); err != nil {
		return nil, n > 0, err
	}
	sentAt := time.Now()
	// ApiVersions answers have header v0 whatever their version.
	buf, err := c.read(ctx, flexible && key != int16(kmsg.ApiVersions), sentAt)
	return buf, true, err
}

// read reads one response frame.
func (c *Conn) read(ctx context.Context, headerTags bool, sentAt time.Time) (*Buffer, error) {
	if _, err := io.ReadFull(c.nc, c.in[:]); err != nil {
		return nil, err
	}
	if d := time.Since(sentAt); c.rtt == 0 || d < c.rtt {
		c.rtt = d
	}
	size := int32(binary.BigEndian.Uint32(c.in[:]))
	switch {
	case c.in[0] == 0x15 && c.in[1] == 3:
		return nil, fmt.Errorf("%w: the broker's port wants TLS, switch tls on", ErrTLSMismatch)
	case string(c.in[:4]) == "HTTP":
		return nil, fmt.Errorf("%w: it is HTTP", ErrNonsense)
	case size < 4:
		return nil, fmt.Errorf("%w: frame of %d bytes", ErrNonsense, size)
	}
	if corr := int32(binary.BigEndian.Uint32(c.in[4:])); corr != c.corr {
		return nil, fmt.Errorf("%w: frame of %d bytes with correlation id %d, expected %d", ErrNonsense, size, corr, c.corr)
	}
	if size > c.d.MaxFrame {
		return nil, fmt.Errorf("%w: it has %d bytes, allowed are %d", ErrFrameTooLarge, size, c.d.MaxFrame)
	}
	b, err := c.alloc(ctx, int(size)-4)
	if err != nil {
		return nil, err
	}
	b.body = b.mem[:size-4]
	if _, err := io.ReadFull(c.nc, b.body); err != nil {
		b.Release()
		return nil, err
	}
	if headerTags {
		rest, err := skipTags(b.body)
		if err != nil {
			b.Release()
			return nil, err
		}
		b.body = rest
	}
	return b, nil
}

// alloc is the Buffer for a response of n bytes.
func (c *Conn) alloc(ctx context.Context, n int) (*Buffer, error) {
	if c.Alloc == nil || n <= allocFrom {
		return c.d.Pool.Get(n), nil
	}
	b, err := c.Alloc(ctx, n)
	if err != nil {
		return nil, err
	}
	// The wait was ours, not the broker's.
	err = c.nc.SetDeadline(time.Now().Add(c.d.RequestTimeout))
	if err == nil {
		err = ctx.Err() // its own deadline may just have been overwritten
	}
	if err != nil {
		b.Release()
		return nil, err
	}
	return b, nil
}

func skipTags(b []byte) ([]byte, error) {
	n, w := binary.Uvarint(b)
	for ; w > 0; n-- {
		b = b[w:]
		if n == 0 {
			return b, nil
		}
		_, k := binary.Uvarint(b)
		if k <= 0 {
			break
		}
		l, m := binary.Uvarint(b[k:])
		if m <= 0 || l > uint64(len(b)-k-m) {
			break
		}
		w = k + m + int(l)
	}
	return nil, fmt.Errorf("%w: garbled response header", ErrNonsense)
}
