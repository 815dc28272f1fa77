package app

import (
	"errors"
	"fmt"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/lockstep-kafka/lockstep/internal/client"
	"github.com/lockstep-kafka/lockstep/internal/config"
	"github.com/lockstep-kafka/lockstep/proxy"
)

// follow has a cluster's TLS files watched.
func (a *app) follow(s client.Security) {
	if s.TLS != nil {
		a.tls = append(a.tls, s.TLS)
	}
}

func newProxy(c *config.Config, a *app, opts []kgo.Opt, own client.Security) (*proxy.Proxy, error) {
	// Clients' connections never carry Lockstep's own certificate: a broker that
	// takes it for a principal would give every client Lockstep's rights.
	bare, err := client.NewSecurity("destination, for clients", c.Destination.TLS.WithCertificate(config.BrokerCertificate{}), config.SASL{})
	if err != nil {
		return nil, err
	}
	a.follow(bare)
	var listeners []proxy.Listener
	for i := range c.Listeners {
		l, err := newListener(c, a, &c.Listeners[i], own)
		if err != nil {
			return nil, fmt.Errorf("listener %s: %w", c.Listeners[i].Address, err)
		}
		listeners = append(listeners, l)
	}
	return proxy.New(proxy.Options{
		Listeners: listeners, Bootstrap: c.Destination.Bootstrap, TLS: bare.TLSFor(), ClientOptions: opts,
		View: a.view, FetchUpstreamMaxBytes: int32(c.Limits.FetchUpstreamMaxBytes),
		Limits: proxyLimits(&c.Limits),
		Logger: a.log, Registerer: a.reg,
	})
}

var errOwnCertificate = errors.New("broker_certificate has the subject of Lockstep's own certificate (destination.tls): its clients would have Lockstep's rights; give them one of another subject")

func newListener(c *config.Config, a *app, l *config.Listener, own client.Security) (proxy.Listener, error) {
	out := proxy.Listener{
		Address: l.Address, AdvertisedHost: l.AdvertisedHost, FirstPort: l.BrokerPorts.First, LastPort: l.BrokerPorts.Last,
		AdvertisedFirstPort: l.AdvertisedPorts.First,
		ProxyProtocol: map[config.ProxyProtocol]proxy.ProxyProtocol{
			config.ProxyAllowed: proxy.ProxyAllowed, config.ProxyRequired: proxy.ProxyRequired,
		}[l.ProxyProtocol],
	}
	if l.SNI != (config.SNI{}) {
		out.SNI = &proxy.SNI{BootstrapHost: l.SNI.BootstrapHost, BrokerHost: l.SNI.BrokerHost, AdvertisedPort: l.SNI.AdvertisedPort}
	}
	server, err := l.TLS.Server("listener " + l.Address)
	if err != nil {
		return out, err
	}
	if server != nil {
		out.TLS = server.Config
		a.tls = append(a.tls, server)
	}
	if l.BrokerCertificate == (config.BrokerCertificate{}) {
		return out, nil
	}
	broker, err := client.NewSecurity("destination, for clients of "+l.Address, c.Destination.TLS.WithCertificate(l.BrokerCertificate), config.SASL{})
	if err != nil {
		return out, err
	}
	if own.TLS != nil && own.TLS.SameSubject(broker.TLS) {
		return out, errOwnCertificate
	}
	if l.TLS.ClientAuth != config.ClientAuthRequired {
		a.log.Warn("whoever can connect to this listener is, to the brokers, the subject of broker_certificate, unless it authenticates with SASL: set tls.client_auth to required, or let only those connect who may be it",
			"listener", l.Address, "subject", broker.TLS.Subject())
	}
	out.BrokerTLS = broker.TLSFor()
	a.follow(broker)
	return out, nil
}
