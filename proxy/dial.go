package proxy

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"slices"
	"time"
)

// dialTimeout is for one address; HandshakeTimeout bounds all tries of a client.
const dialTimeout = 3 * time.Second

// dialBroker connects to the broker that a client's port stands for: -1 is any
// that can be reached (every bootstrap address is tried, then every broker
// known), else just that one, wherever it is by now. ctx bounds it; a broker that
// is down is told much sooner, by one look at the cluster.
func (p *Proxy) dialBroker(ctx context.Context, f *frontend, id int32) (netConn, error) {
	var errs error
	try := func(addr string) netConn {
		c, err := p.dialAddr(ctx, f, addr)
		if err != nil {
			p.m.dialFailures.Inc()
			errs = errors.Join(errs, err)
		}
		return c
	}
	if id < 0 {
		n := len(p.bootstrap)
		first := int(p.nextSeed.Add(1)) % n
		for i := range n {
			if c := try(p.bootstrap[(first+i)%n]); c != nil {
				return c, nil
			}
		}
		for _, addr := range p.topology.addresses() {
			if slices.Contains(p.bootstrap, addr) {
				continue
			}
			if c := try(addr); c != nil {
				return c, nil
			}
		}
		return nil, fmt.Errorf("no broker of the destination could be reached: %w", errs)
	}
	addr, err := p.topology.address(ctx, id)
	if err != nil {
		return nil, err
	}
	for {
		if c := try(addr); c != nil {
			return c, nil
		}
		// It may have moved. If not, the client hears of it now, as without a
		// proxy, and has other brokers to go to meanwhile.
		look, end := context.WithTimeout(ctx, p.topology.gap)
		p.topology.nextLook(look)
		end()
		moved, ok := p.topology.known(id)
		if !ok || moved == addr {
			return nil, fmt.Errorf("broker %d could not be reached: %w", id, errs)
		}
		addr, errs = moved, nil
	}
}

func (p *Proxy) dialAddr(ctx context.Context, f *frontend, addr string) (netConn, error) {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	c, err := p.dial(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	settings := p.tls
	if f.BrokerTLS != nil {
		settings = f.BrokerTLS
	}
	if settings == nil {
		sc, err := adopt(c, addr)
		if err != nil {
			return nil, err
		}
		return sc, nil
	}
	pipe := &tlsPipe{Conn: c}
	tc := tls.Client(pipe, settings(addr))
	if err := tc.HandshakeContext(ctx); err != nil {
		c.Close() // can't be used
		return nil, fmt.Errorf("TLS to %s: %w", addr, err)
	}
	up, err := newTLSConn(tc, pipe, addr)
	if err != nil {
		return nil, err
	}
	return up, nil
}
