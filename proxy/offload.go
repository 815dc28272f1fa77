package proxy

import (
	"sync"
	"sync/atomic"
	"time"
)

// workers run what would hold up an event loop: decompression for look-ups by
// time and for batches that were renumbered (DESIGN §6). At most size at once;
// the rest waits its turn in order of arrival.
type workers struct {
	mu      sync.Mutex
	size    int
	running int
	queue   []func()
	wg      sync.WaitGroup
}

func newWorkers(size int) *workers { return &workers{size: max(size, 1)} }

// do runs job on a worker.
func (w *workers) do(job func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.queue = append(w.queue, job)
	if w.running < w.size {
		w.running++
		w.wg.Go(w.drain)
	}
}

func (w *workers) drain() {
	for {
		w.mu.Lock()
		if len(w.queue) == 0 {
			w.queue = nil
			w.running--
			w.mu.Unlock()
			return
		}
		job := w.queue[0]
		w.queue = w.queue[1:]
		w.mu.Unlock()
		job()
	}
}

// wait returns when no job is left.
func (w *workers) wait() { w.wg.Wait() }

// poster is implemented by exchanges that can be woken from another goroutine:
// f runs on the exchange's event loop, or never when the exchange has ended.
type poster interface {
	Post(f func())
}

// offloadPoll is how often the loop looks for a worker's result when the
// exchange can't be woken.
const offloadPoll = time.Millisecond

// offload runs work on a worker and then done on the exchange's loop. work must
// touch nothing of the exchange but buffers that nobody else does.
func (w *workers) offload(x exchange, work, done func()) {
	if p, ok := x.(poster); ok {
		w.do(func() {
			work()
			p.Post(done)
		})
		return
	}
	var ready atomic.Bool
	w.do(func() {
		work()
		ready.Store(true)
	})
	var look func()
	look = func() {
		if ready.Load() {
			done()
			return
		}
		x.After(offloadPoll, look)
	}
	x.After(offloadPoll, look)
}
