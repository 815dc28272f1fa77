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

// admit counts a client connection in, or says which limit it exceeds; what was
// counted is counted out by sessionClosed in either case.
func (p *Proxy) admit(ip netip.Addr) (over CloseReason, limit int, ok bool) {
	open := p.open.Add(1)
	p.admission.mu.Lock()
	n := p.admission.from[ip] + 1
	p.admission.from[ip] = n
	p.admission.mu.Unlock()
	lim := p.limits()
	switch {
	case open > int64(lim.MaxConnections):
		return ReasonMaxConnections, lim.MaxConnections, false
	case lim.MaxConnectionsPerIP > 0 && n > lim.MaxConnectionsPerIP:
		return ReasonMaxConnectionsPerIP, lim.MaxConnectionsPerIP, false
	}
	return 0, 0, true
}

// sessionClosed counts the end of a client connection.
func (p *Proxy) sessionClosed(ip netip.Addr, reason CloseReason) {
	p.admission.mu.Lock()
	if n := p.admission.from[ip]; n > 1 {
		p.admission.from[ip] = n - 1
	} else {
		delete(p.admission.from, ip)
	}
	p.admission.mu.Unlock()
	p.open.Add(-1)
	p.m.closed[reason].Inc()
}

// ipOf is the address that a connection's limit is counted by; the zero Addr
// for what is no TCP address.
func ipOf(a net.Addr) netip.Addr {
	if t, ok := a.(*net.TCPAddr); ok {
		return t.AddrPort().Addr().Unmap()
	}
	return netip.Addr{}
}
