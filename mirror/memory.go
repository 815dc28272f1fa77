package mirror

import (
	"context"
	"slices"
	"sync"

	"github.com/lockstep-kafka/lockstep/internal/kconn"
)

// Memory bounds the source data that a process holds (limits.mirror_memory):
// the buffers of answers, as long as a batch in them is not written yet, and
// what the slow path makes of them. One is shared by all engines.
type Memory struct {
	limit int64

	mu      sync.Mutex
	used    int64
	waiting []*roomWait // first come, first served
}

// roomWait is an answer that waits for room.
type roomWait struct {
	n    int64
	done chan struct{} // closed: it has it
}

// NewMemory allows limit bytes; a single answer may be larger, and is then
// let in alone.
func NewMemory(limit int64) *Memory { return &Memory{limit: limit} }

// get is a buffer of pool for an answer of n bytes, when there is room for it.
// What counts is what it pins.
func (m *Memory) get(ctx context.Context, pool *kconn.Pool, n int) (*kconn.Buffer, error) {
	room := int64(kconn.Room(n))
	if err := m.acquire(ctx, room); err != nil {
		return nil, err
	}
	b := m.take(pool, n)
	m.add(-room)
	return b, nil
}

// take is get without waiting, for what is made of data that is let in already:
// whoever waited would hold on to that.
func (m *Memory) take(pool *kconn.Pool, n int) *kconn.Buffer {
	b := pool.Get(n)
	c := int64(b.Cap()) // an idle one may be larger
	m.add(c)
	b.OnFree(func() { m.add(-c) })
	return b
}

// acquire waits until n bytes are free.
func (m *Memory) acquire(ctx context.Context, n int64) error {
	m.mu.Lock()
	if len(m.waiting) == 0 && m.fits(n) {
		m.used += n
		m.mu.Unlock()
		return nil
	}
	w := &roomWait{n: n, done: make(chan struct{})}
	m.waiting = append(m.waiting, w)
	m.mu.Unlock()
	select {
	case <-w.done:
		return nil
	case <-ctx.Done():
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if i := slices.Index(m.waiting, w); i >= 0 {
		m.waiting = slices.Delete(m.waiting, i, i+1)
	} else {
		m.used -= n // it had just got it
	}
	m.wake()
	return context.Cause(ctx)
}

// add takes n bytes more without waiting; less than 0 gives back.
func (m *Memory) add(n int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.used += n
	m.wake()
}

// fits tells whether n bytes are free. mu is held.
func (m *Memory) fits(n int64) bool { return m.used <= 0 || m.used+n <= m.limit }

// wake lets in whom there is room for. mu is held.
func (m *Memory) wake() {
	for len(m.waiting) > 0 && m.fits(m.waiting[0].n) {
		w := m.waiting[0]
		m.waiting = slices.Delete(m.waiting, 0, 1)
		m.used += w.n
		close(w.done)
	}
}

// Used is what is held now, in bytes.
func (m *Memory) Used() int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.used
}
