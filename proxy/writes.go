package proxy

import (
	"context"
	"fmt"
	"slices"
	"sync"
)

// writes counts the client writes to mirror topics that are under way: from
// before the ledger view was asked whether they are allowed until the broker's
// answer, or the end of the connection. Leaving STOPPED waits for them (DESIGN
// §4, H10). Safe for concurrent use; its zero value is ready.
type writes struct {
	mu    sync.Mutex
	gates []*gate // the last one takes what begins now, the others are closed
}

// gate holds the writes that began between two drains.
type gate struct {
	open   int
	closed bool
	empty  chan struct{} // closed when it is closed and the last one has ended
}

// begin must be called before the view is looked at: then a write either is
// seen by a drain, or sees what the drain's caller has seen.
func (w *writes) begin() (end func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	g := w.last()
	g.open++
	var once sync.Once
	return func() {
		once.Do(func() {
			w.mu.Lock()
			defer w.mu.Unlock()
			g.open--
			w.settle(g)
		})
	}
}

func (w *writes) last() *gate {
	if len(w.gates) == 0 {
		w.gates = []*gate{{empty: make(chan struct{})}}
	}
	return w.gates[len(w.gates)-1]
}

// settle lets go of a closed gate that nothing is left in; w.mu is held.
func (w *writes) settle(g *gate) {
	if g.closed && g.open == 0 {
		close(g.empty)
		w.gates = slices.DeleteFunc(w.gates, func(o *gate) bool { return o == g })
	}
}

// drain waits until every write that began before the call has ended.
func (w *writes) drain(ctx context.Context) error {
	w.mu.Lock()
	g := w.last()
	g.closed = true
	w.gates = append(w.gates, &gate{empty: make(chan struct{})})
	w.settle(g)
	wait := slices.Clone(w.gates[:len(w.gates)-1])
	w.mu.Unlock()
	for _, g := range wait {
		select {
		case <-g.empty:
		case <-ctx.Done():
			return fmt.Errorf("client writes to mirror topics are not answered yet: %w", context.Cause(ctx))
		}
	}
	return nil
}

// Drain returns when every client Produce, and other write, to a mirror topic
// that was passed on before the call is answered or its connection is closed.
// Writes that come later are judged by the ledger as the caller has seen it: so
// take a state in, call Drain, then acknowledge. It may be called at any time,
// several times at once; its only error is that of ctx.
func (p *Proxy) Drain(ctx context.Context) error {
	if p.handlers == nil {
		return nil
	}
	return p.handlers.writes.drain(ctx)
}
