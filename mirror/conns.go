package mirror

import (
	"context"
	"sync"
	"time"

	"github.com/lockstep-kafka/lockstep/internal/kconn"
)

// lookupConns is how many look-ups go to one broker at once, and how many
// connections are kept for them: when thousands of partitions start together
// they take turns.
const lookupConns = 16

// connPool lends connections for look-ups and re-reads by partitions'
// goroutines, apart from those of fetchers and writers. A broker that can't be
// reached is not dialled again for a moment, whoever asks.
type connPool struct {
	d *kconn.Dialer

	mu     sync.Mutex
	closed bool
	lent   map[string]chan struct{} // a token for each connection in use
	idle   map[string][]*kconn.Conn
	down   map[string]downUntil
	spare  map[string]spareConn // made ahead, for who fetches first
}

type spareConn struct {
	c  *kconn.Conn
	at time.Time
}

type downUntil struct {
	at  time.Time
	err error
}

// downFor is how long a failed dial counts.
const downFor = 200 * time.Millisecond

func newConnPool(d *kconn.Dialer) *connPool {
	return &connPool{d: d, lent: map[string]chan struct{}{}, idle: map[string][]*kconn.Conn{}, down: map[string]downUntil{}, spare: map[string]spareConn{}}
}

// turn waits until a connection to addr may be lent, which done gives back.
func (p *connPool) turn(ctx context.Context, addr string) (done func(), err error) {
	p.mu.Lock()
	lent := p.lent[addr]
	if lent == nil {
		lent = make(chan struct{}, lookupConns)
		p.lent[addr] = lent
	}
	p.mu.Unlock()
	select {
	case lent <- struct{}{}:
		return func() { <-lent }, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
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

// warm makes connections to addr ahead: one for look-ups, and one for whoever
// fetches from it first.
func (p *connPool) warm(ctx context.Context, addr string) {
	var both sync.WaitGroup
	both.Go(func() {
		if done, err := p.turn(ctx, addr); err == nil {
			defer done()
			if c, err := p.get(ctx, addr); err == nil { // else whoever wants one finds out
				p.put(c)
			}
		}
	})
	if c, err := p.d.Dial(ctx, addr); err == nil {
		p.mu.Lock()
		if _, there := p.spare[addr]; !there && !p.closed {
			p.spare[addr], c = spareConn{c, time.Now()}, nil
		}
		p.mu.Unlock()
		if c != nil {
			c.Close()
		}
	}
	both.Wait()
}

// spareFor is how long a connection made ahead is of use: brokers close those
// that lie idle.
const spareFor = 30 * time.Second

// takeSpare is a connection to addr made ahead, nil if there is none.
func (p *connPool) takeSpare(addr string) *kconn.Conn {
	p.mu.Lock()
	s, ok := p.spare[addr]
	delete(p.spare, addr)
	p.mu.Unlock()
	switch {
	case !ok:
		return nil
	case s.c.Closed() || time.Since(s.at) > spareFor:
		s.c.Close()
		return nil
	}
	return s.c
}

func (p *connPool) put(c *kconn.Conn) {
	if c == nil || c.Closed() {
		return
	}
	p.mu.Lock()
	if !p.closed && len(p.idle[c.Addr()]) < lookupConns {
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
	for _, s := range p.spare {
		s.c.Close()
	}
	clear(p.spare)
}

// with lends a connection to f, which is a pure look-up: one that had lain idle
// may have been closed by the broker meanwhile, then f runs once more on another.
// f must not lend another one of the same pool: it might wait for itself.
func (p *connPool) with(ctx context.Context, addr string, f func(c *kconn.Conn) error) error {
	done, err := p.turn(ctx, addr)
	if err != nil {
		return err
	}
	defer done()
	return p.long(ctx, addr, f)
}

// long is with for what takes long, so that nobody waits for it.
func (p *connPool) long(ctx context.Context, addr string, f func(c *kconn.Conn) error) error {
	for try := 0; ; try++ {
		c, err := p.get(ctx, addr)
		if err != nil {
			return err
		}
		err = f(c)
		broken := c.Closed()
		p.put(c)
		if err == nil || !broken || try >= lookupConns || ctx.Err() != nil {
			return err
		}
	}
}
