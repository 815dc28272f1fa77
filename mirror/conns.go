package mirror

import (
	"context"
	"sync"
	"time"

	"github.com/lockstep-kafka/lockstep/internal/kconn"
)

// idleConns is how many unused connections to one broker are kept for look-ups.
const idleConns = 2

// connPool lends connections for look-ups and re-reads by partitions'
// goroutines, apart from those of fetchers and writers. A broker that can't be
// reached is not dialled again for a moment, whoever asks.
type connPool struct {
	d *kconn.Dialer

	mu     sync.Mutex
	closed bool
	idle   map[string][]*kconn.Conn
	down   map[string]downUntil
}

type downUntil struct {
	at  time.Time
	err error
}

// downFor is how long a failed dial counts.
const downFor = 200 * time.Millisecond

func newConnPool(d *kconn.Dialer) *connPool {
	return &connPool{d: d, idle: map[string][]*kconn.Conn{}, down: map[string]downUntil{}}
}

func (p *connPool) get(ctx context.Context, addr string) (*kconn.Conn, error) {
	p.mu.Lock()
	if l := p.idle[addr]; len(l) > 0 {
		c := l[len(l)-1]
		p.idle[addr] = l[:len(l)-1]
		p.mu.Unlock()
		return c, nil
	}
	if d, ok := p.down[addr]; ok {
		if time.Now().Before(d.at) {
			p.mu.Unlock()
			return nil, d.err
		}
		delete(p.down, addr)
	}
	p.mu.Unlock()
	c, err := p.d.Dial(ctx, addr)
	if err != nil && ctx.Err() == nil {
		p.mu.Lock()
		p.down[addr] = downUntil{time.Now().Add(downFor), err}
		p.mu.Unlock()
	}
	return c, err
}

func (p *connPool) put(c *kconn.Conn) {
	if c == nil || c.Closed() {
		return
	}
	p.mu.Lock()
	if !p.closed && len(p.idle[c.Addr()]) < idleConns {
		p.idle[c.Addr()] = append(p.idle[c.Addr()], c)
		c = nil
	}
	p.mu.Unlock()
	if c != nil {
		c.Close()
	}
}

func (p *connPool) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	for _, l := range p.idle {
		for _, c := range l {
			c.Close()
		}
	}
	clear(p.idle)
}

// with lends a connection to f. One that had lain idle may have been closed by
// the broker meanwhile: f then runs once more on a fresh one, so it must be a
// pure look-up.
func (p *connPool) with(ctx context.Context, addr string, f func(c *kconn.Conn) error) error {
	for try := 0; ; try++ {
		c, err := p.get(ctx, addr)
		if err != nil {
			return err
		}
		err = f(c)
		broken := c.Closed()
		p.put(c)
		if err == nil || !broken || try >= idleConns || ctx.Err() != nil {
			return err
		}
	}
}
