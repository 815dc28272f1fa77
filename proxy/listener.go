package proxy

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"strconv"
	"sync"
	"time"
)

// Listener is a bootstrap address and the addresses of the brokers behind it:
// a port for each, or a name for each (SNI).
type Listener struct {
	Address        string // host:port for bootstrap
	AdvertisedHost string // what clients are told; "": the host of Address

	FirstPort, LastPort int // broker id n is at FirstPort+n
	AdvertisedFirstPort int // and clients are told this port + n; 0: FirstPort

	SNI           *SNI               // brokers by name; needs TLS, and no ports
	TLS           func() *tls.Config // settings for the next client; nil: plaintext
	ProxyProtocol ProxyProtocol

	// BrokerTLS is TLS of these clients' connections to brokers, instead of
	// Options.TLS.
	BrokerTLS func(addr string) *tls.Config
}

// frontend is a Listener at work. A broker's address depends on its id alone,
// so it is the same over restarts and on every instance.
type frontend struct {
	Listener
	names   *brokerNames // nil: a port for each broker
	port    int          // where the first one listens
	lns     []boundListener
	refused sync.Map // broker ids without a port that were logged
	p       *Proxy
}

type boundListener struct {
	net.Listener
	brokerID int32
}

// A broker without a port is shown at a name that says so and that nobody can
// have (RFC 6761): clients fail on it, and none is sent past the proxy. Each has
// a name of its own, as librdkafka thrashes when two share an address (PX-035).
const (
	noPort     = 1
	noPortHost = "broker-%d-has-no-port-in-lockstep.invalid"
)

// bind opens all ports at once: a port that is taken is an error at the start,
// and a client that comes before the broker is known can wait for it.
func (p *Proxy) bind(ctx context.Context, cfg Listener) (_ *frontend, err error) {
	host, _, err := net.SplitHostPort(cfg.Address)
	if err != nil {
		return nil, fmt.Errorf("listener address %q: %w", cfg.Address, err)
	}
	f := &frontend{Listener: cfg, p: p}
	if f.SNI != nil {
		if f.TLS == nil || f.LastPort > 0 {
			return nil, fmt.Errorf("listener %s: sni needs tls, and no broker ports", cfg.Address)
		}
		if f.names, err = newBrokerNames(*f.SNI); err != nil {
			return nil, fmt.Errorf("listener %s: %w", cfg.Address, err)
		}
		f.AdvertisedHost = f.SNI.BootstrapHost
	}
	if f.AdvertisedHost == "" {
		f.AdvertisedHost = host
	}
	if f.AdvertisedFirstPort == 0 {
		f.AdvertisedFirstPort = f.FirstPort
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
	if err := listen(cfg.Address, bootstrap); err != nil {
		return nil, err
	}
	if a, ok := f.lns[0].Addr().(*net.TCPAddr); ok {
		f.port = a.Port
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
	if f.names != nil {
		port := f.SNI.AdvertisedPort
		if port == 0 {
			port = f.port
		}
		return f.names.host(nodeID), int32(port), true
	}
	if int64(f.FirstPort)+int64(nodeID) > int64(f.LastPort) {
		if _, logged := f.refused.LoadOrStore(nodeID, true); !logged {
			f.p.log.Error("a broker has no port: clients can't reach it; widen broker_ports",
				"listener", f.Address, "broker", nodeID, "first", f.FirstPort, "last", f.LastPort)
		}
		return fmt.Sprintf(noPortHost, nodeID), noPort, true
	}
	return f.AdvertisedHost, int32(f.AdvertisedFirstPort) + nodeID, true
}

// logStart says where the listener is, and by what rule brokers are shown.
func (f *frontend) logStart() {
	attrs := []any{"listener", f.Address, "address", f.lns[0].Addr().String(), "tls", f.TLS != nil}
	if f.names != nil {
		_, port, _ := f.advertise(0, "", 0)
		attrs = append(attrs, "bootstrap_host", f.SNI.BootstrapHost, "broker_host", f.SNI.BrokerHost, "advertised_port", port)
	} else {
		attrs = append(attrs, "broker_ports", fmt.Sprintf("%d-%d", f.FirstPort, f.LastPort),
			"advertised_host", f.AdvertisedHost, "advertised_first_port", f.AdvertisedFirstPort)
	}
	f.p.log.Info("listening for clients", attrs...)
}

// logMap says where clients find the brokers.
func (f *frontend) logMap(ids []int32) {
	shown := make([]string, len(ids))
	for i, id := range ids {
		host, port, _ := f.advertise(id, "", 0)
		shown[i] = strconv.Itoa(int(id)) + "=" + net.JoinHostPort(host, strconv.Itoa(int(port)))
	}
	f.p.log.Info("brokers as clients see them", "listener", f.Address, "brokers", shown)
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
