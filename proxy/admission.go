package proxy

import (
	"net"
	"net/netip"
	"sync"
)

// admission counts client connections by address; the limit over all of them is
// p.open's.
type admission struct {
	mu   sync.Mutex
	from map[netip.Addr]int
}

// admit counts a client connection in; false: it is above the limit of all, and
// is to be counted out by sessionClosed.
func (p *Proxy) admit() (limit int, ok bool) {
	limit = p.limits().MaxConnections
	return limit, p.open.Add(1) <= int64(limit)
}

// admitIP counts a client connection to its address, which must be known by
// then; false: it is above that limit, and is to be counted out.
func (p *Proxy) admitIP(ip netip.Addr) (limit int, ok bool) {
	if !ip.IsValid() {
		return 0, true
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	n := p.from[ip] + 1
	p.from[ip] = n
	limit = p.limits().MaxConnectionsPerIP
	return limit, limit <= 0 || n <= limit
}

// sessionClosed counts the end of a client connection; ip is the zero Addr if
// it was not counted to one.
func (p *Proxy) sessionClosed(ip netip.Addr, reason CloseReason) {
	if ip.IsValid() {
		p.mu.Lock()
		if n := p.from[ip]; n > 1 {
			p.from[ip] = n - 1
		} else {
			delete(p.from, ip)
		}
		p.mu.Unlock()
	}
	p.open.Add(-1)
	p.m.closed[reason].Inc()
	select {
	case p.engine.gone <- struct{}{}: // for drain
	default:
	}
}

// ipOf is the address that a connection's limit is counted by; the zero Addr
// for what is no TCP address.
func ipOf(a net.Addr) netip.Addr {
	if t, ok := a.(*net.TCPAddr); ok {
		return t.AddrPort().Addr().Unmap()
	}
	return netip.Addr{}
}
