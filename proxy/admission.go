package proxy

import (
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
)

// admission counts clients' sockets, in all and by address. A session may end
// long before its socket: what is left for a slow client is still sent. So
// p.open, which counts sessions, is not what can be limited.
type admission struct {
	sockets atomic.Int64

	mu   sync.Mutex
	from map[netip.Addr]int
}

// admit counts a client connection in; false: it is above the limit of all, and
// is to be counted out as any other, by countOut and sessionClosed.
func (p *Proxy) admit() (limit int, ok bool) {
	p.open.Add(1)
	limit = p.limits().MaxConnections
	return limit, p.sockets.Add(1) <= int64(limit)
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

// countOut counts a socket out when it is closed; ip is the zero Addr if it was
// not counted to one.
func (p *Proxy) countOut(ip netip.Addr) {
	p.sockets.Add(-1)
	if !ip.IsValid() {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if n := p.from[ip]; n > 1 {
		p.from[ip] = n - 1
	} else {
		delete(p.from, ip)
	}
}

// sessionClosed counts the end of a client connection, also of one that never
// became a session.
func (p *Proxy) sessionClosed(reason CloseReason) {
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
