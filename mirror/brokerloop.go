package mirror

import (
	"context"
	"sync"
)

// brokerLoop is what fetchers and writers have in common: a goroutine for one
// broker, the partitions it serves now, and its end.
type brokerLoop struct {
	eng    *Engine
	broker int32
	addr   string
	wake   wakeChan

	mu      sync.Mutex
	parts   []*Partition
	retired bool
	cancel  context.CancelFunc
}

func (l *brokerLoop) init(e *Engine, broker int32, addr string) {
	l.eng, l.broker, l.addr, l.wake = e, broker, addr, make(wakeChan, 1)
}

func (l *brokerLoop) setParts(ps []*Partition) {
	l.mu.Lock()
	l.parts = ps
	l.mu.Unlock()
	l.wake.wake()
}

func (l *brokerLoop) address() string { return l.addr }

func (l *brokerLoop) partitions() []*Partition {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.parts
}

// begin gives the goroutine its context, which retire ends too.
func (l *brokerLoop) begin(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cancel = cancel
	if l.retired {
		cancel()
	}
	return ctx, cancel
}

// retire ends the loop; its goroutine is waited for by Engine.Run.
func (l *brokerLoop) retire() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.retired, l.parts = true, nil
	if l.cancel != nil {
		l.cancel()
	}
}
