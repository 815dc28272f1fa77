package kconn

import (
	"math/bits"
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
}

// Bytes is the response after its header. It must not be used after the last
// Release.
func (b *Buffer) Bytes() []byte { return b.body }

// Cap is the memory the buffer pins, in bytes.
func (b *Buffer) Cap() int { return cap(b.mem) }

// Retain adds a reference.
func (b *Buffer) Retain() { b.refs.Add(1) }

// OnFree sets what is called when the last reference goes, before the memory
// is handed out again. To be set by the only holder.
func (b *Buffer) OnFree(f func()) { b.free = f }

// Release drops a reference; the last one returns the memory to its pool.
func (b *Buffer) Release() {
	switch n := b.refs.Add(-1); {
	case n > 0:
		return
	case n < 0:
		panic("kconn: Buffer released more often than retained")
	}
	if f := b.free; f != nil {
		b.free = nil
		f()
	}
	b.body = nil
	b.pool.put(b)
}

// Size classes: four steps for each doubling (at most a quarter is wasted),
// from 4 KiB up to 128 MiB. Larger ones are not pooled.
const (
	minShift   = 12
	maxShift   = 27
	classCount = (maxShift-minShift)*4 + 1
)

// Pool hands out Buffers by size class. The zero value is ready; memory that
// lies idle goes with the garbage collector.
type Pool struct{ classes [classCount]sync.Pool }

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
	if class >= 0 {
		if b, _ := p.classes[class].Get().(*Buffer); b != nil {
			b.refs.Store(1)
			return b
		}
	}
	b := &Buffer{pool: p, class: class, mem: make([]byte, size)}
	b.refs.Store(1)
	return b
}

func (p *Pool) put(b *Buffer) {
	if b.class >= 0 {
		p.classes[b.class].Put(b)
	}
}
