package proxy

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"sync"
	"time"
)

// Listener is a bootstrap address and the ports of the brokers behind it.
type Listener struct {
	Address             string // host:port for bootstrap
	AdvertisedHost      string // what clients are told; "": the host of Address
	FirstPort, LastPort int    // broker id n is at FirstPort+n
}

// frontend is a Listener at work: one port for bootstrap, one per broker id.
// A broker's address depends on its id alone, so it is the same over restarts
// and on every instance.
type frontend struct {
	Listener
	bindHost string
	lns      []boundListener
	refused  sync.Map // broker ids without a port that were logged
	p        *Proxy
}

type boundListener struct {
	net.Listener
	brokerID int32
}

// noPort is advertised for a broker without a port: nothing listens there, so
// clients fail on it, and none is sent past the proxy.
const noPort = 1

// bind opens all ports at once: a port that is taken is an error at the start,
// and a client that comes before the broker is known can wait for it.
func (p *Proxy) bind(ctx context.Context, cfg Listener) (_ *frontend, err error) {
	host, _, err := net.SplitHostPort(cfg.Address)
	if err != nil {
		return nil, fmt.Errorf("listener address %q: %w", cfg.Address, err)
	}
	f := &frontend{Listener: cfg, bindHost: host, p: p}
	if f.AdvertisedHost == "" {
		f.AdvertisedHost = host
	}
	if ip := net.ParseIP(f.AdvertisedHost); f.AdvertisedHost == "" || ip != nil && ip.IsUnspecified() {
		return nil, fmt.Errorf("listener %s: advertised host %q can't be dialled by clients: set advertised_host", cfg.Address, f.AdvertisedHost)
	}
	defer func() {
		if err != nil {
			f.close()
		}
	}()
	listen := func(addr string, brokerID int32) error {
		ln, err := (&net.ListenConfig{}).Listen(ctx, "tcp", addr)
		if err != nil {
			return fmt.Errorf("listen for clients (is the port taken?): %w", err)
		}
		f.lns = append(f.lns, boundListener{ln, brokerID})
		return nil
	}
	if err := listen(cfg.Address, -1); err != nil {
		return nil, err
	}
	for port := cfg.FirstPort; port <= cfg.LastPort && port > 0; port++ {
		if err := listen(net.JoinHostPort(host, strconv.Itoa(port)), int32(port-cfg.FirstPort)); err != nil {
			return nil, err
		}
	}
	return f, nil
}

func (f *frontend) close() {
	for _, ln := range f.lns {
		if err := ln.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
			f.p.log.Warn("closing a listener failed", "address", ln.Addr(), "err", err)
		}
	}
}

// advertise is the AddressFunc of this listener's clients.
func (f *frontend) advertise(nodeID int32, _ string, _ int32) (string, int32, bool) {
	port := int64(f.FirstPort) + int64(nodeID)
	if port > int64(f.LastPort) {
		if _, logged := f.refused.LoadOrStore(nodeID, true); !logged {
			f.p.log.Error("a broker has no port: clients can't reach it; widen broker_ports",
				"broker", nodeID, "first", f.FirstPort, "last", f.LastPort)
		}
		port = noPort
	}
	return f.AdvertisedHost, int32(port), true
}

// serve accepts until the listener is closed.
func (f *frontend) serve(ctx context.Context, ln boundListener) {
	for {
		c, err := ln.Accept()
		if err == nil {
			f.p.accept(ctx, c, f, ln.brokerID)
			continue
		}
		if errors.Is(err, net.ErrClosed) {
			return
		}
		// Out of files, most likely: others must end first.
		f.p.log.Warn("accepting a client failed", "address", ln.Addr(), "err", err)
		select {
		case <-ctx.Done():
			return
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// accept hands a client to the loop with the fewest connections.
func (p *Proxy) accept(ctx context.Context, c net.Conn, f *frontend, brokerID int32) {
	name, ip := c.RemoteAddr().String(), ipOf(c.RemoteAddr())
	if over, limit, ok := p.admit(ip); !ok {
		p.sessionClosed(ip, over)
		level, skipped := p.logged[over].level(over, time.Now())
		p.log.Log(ctx, level, "client refused: raise limits."+over.String()+", or find out who connects so often", "conn", name,
			"reason", over.String(), "limit", limit, "more_like_it", skipped)
		c.Close() // refused anyway
		return
	}
	sc, err := adopt(c, name)
	if err != nil {
		p.sessionClosed(ip, ReasonInternal)
		p.log.Error("client refused", "conn", name, "reason", ReasonInternal.String(), "err", err)
		return
	}
	sc.ip = ip
	l := p.engine.next()
	if !l.post(func() { p.newSession(l, sc, f, brokerID) }) {
		p.sessionClosed(ip, ReasonDraining)
		sc.discard()
	}
}
