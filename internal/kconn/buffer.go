package kconn

import (
	"math/bits"
	"slices"
	"sync"
	"sync/atomic"
)

// Buffer is a pooled piece of memory that holds one response. It is reference
// counted: the holder of the last reference gives it back to its pool with
// Release. The memory may be changed in place by whoever holds a reference to
// that part of it.
type Buffer struct {
	pool  *Pool
	class int
	mem   []byte
	body  []byte
	refs  atomic.Int32
	free  func()
	old   bool // lay idle at the last Pool.Age already; Pool.mu is held
}

// Bytes is the response after its header. It must not be used after the last
// Release.
func (b *Buffer) Bytes() []byte { return b.body }

// Empty is the buffer's memory with nothing in it, to append to, for who got it
// from a Pool itself.
func (b *Buffer) Empty() []byte { return b.mem[:0] }

// Holds tells whether b begins where the buffer's memory does.
func (b *Buffer) Holds(p []byte) bool { return len(p) > 0 && &p[0] == &b.mem[0] }

// Cap is the memory the buffer pins, in bytes.
func (b *Buffer) Cap() int { return cap(b.mem) }

// Retain adds a reference.
func (b *Buffer) Retain() { b.refs.Add(1) }

// OnFree sets what is called when the last reference is gone and the memory may
// be handed out again. To be set by the only holder.
func (b *Buffer) OnFree(f func()) { b.free = f }

// Release drops a reference; the last one returns the memory to its pool.
func (b *Buffer) Release() {
	switch n := b.refs.Add(-1); {
	case n > 0:
		return
	case n < 0:
		panic("kconn: Buffer released more often than retained")
	}
	f := b.free
	b.body, b.free = nil, nil
	b.pool.put(b)
	if f != nil { // who waits for its room may get it at once
		f()
	}
}

// Size classes: four steps for each doubling (at most a quarter is wasted),
// from 4 KiB up to 128 MiB. Larger ones are not pooled.
const (
	minShift   = 12
	maxShift   = 27
	classCount = (maxShift-minShift)*4 + 1
)

// Buffers of at least largeBuffer bytes lie idle in one list: by class in
// sync.Pools, each class would keep its own, and the collector, which counts
// them as live, lets twice as much pile up. Idle ones are kept only while they
// and those in use have at most largeKeep bytes together.
const (
	largeBuffer = 64 << 10
	largeKeep   = 32 << 20
)

// Pool hands out Buffers by size. The zero value is ready. Small idle ones go
// with the garbage collector.
type Pool struct {
	// Keep is instead of largeKeep when it is above 0. To be set before use.
	Keep    int
	classes [classCount]sync.Pool

	mu    sync.Mutex
	large []*Buffer // idle, newest last
	idle  int       // bytes in large
	used  int       // bytes of large ones in use
}

// Room is what a new Buffer for n bytes pins.
func Room(n int) int {
	_, size := classFor(n)
	return size
}

func classFor(n int) (class, size int) {
	if n <= 1<<minShift {
		return 0, 1 << minShift
	}
	top := bits.Len(uint(n-1)) - 1 // n lies in (1<<top, 1<<(top+1)]
	step := 1 << (top - 2)
	k := (n - 1<<top + step - 1) / step // 1..4
	c := (top-minShift)*4 + k
	if c >= classCount {
		return -1, n
	}
	return c, 1<<top + k*step
}

// Get returns a Buffer of at least n bytes with one reference.
func (p *Pool) Get(n int) *Buffer {
	class, size := classFor(n)
	b := p.idleFor(class, size)
	if b == nil {
		b = &Buffer{pool: p, class: class, mem: make([]byte, size)}
	}
	b.refs.Store(1)
	return b
}

// idleFor finds an idle buffer: of the class, or, of the large ones, the
// smallest that is large enough and at most twice as large.
func (p *Pool) idleFor(class, size int) *Buffer {
	if size < largeBuffer {
		b, _ := p.classes[class].Get().(*Buffer)
		return b
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	best := -1
	for i, b := range p.large {
		if c := len(b.mem); c >= size && c <= 2*size && (best < 0 || c <= len(p.large[best].mem)) {
			best = i
		}
	}
	if best < 0 {
		p.used += size
		p.trim()
		return nil
	}
	b := p.large[best]
	p.large = slices.Delete(p.large, best, best+1)
	p.idle -= len(b.mem)
	p.used += len(b.mem)
	return b
}

func (p *Pool) put(b *Buffer) {
	size := len(b.mem)
	if size < largeBuffer {
		p.classes[b.class].Put(b)
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	b.old = false
	p.large = append(p.large, b)
	p.idle += size
	p.used -= size
	p.trim()
}

// Age lets those large idle buffers go that nobody has used since the call
// before. To be called every few seconds: a pool whose user has fallen idle
// holds nothing then.
func (p *Pool) Age() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.large = slices.DeleteFunc(p.large, func(b *Buffer) bool {
		if b.old {
			p.idle -= len(b.mem)
		}
		return b.old
	})
	for _, b := range p.large {
		b.old = true
	}
}

// trim lets the oldest idle buffers go, as far as there are too many. mu is
// held.
func (p *Pool) trim() {
	keep := p.Keep
	if keep <= 0 {
		keep = largeKeep
	}
	drop := 0
	for ; drop < len(p.large) && p.used+p.idle > keep; drop++ {
		p.idle -= len(p.large[drop].mem)
	}
	p.large = slices.Delete(p.large, 0, drop)
}
