package ledger

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
)

// Writes of one ledger partition that come while a transaction of it is under
// way go together in the next one (group commit): a transaction costs four
// round trips and three flushes, whatever is in it. Each write is checked
// against the view when its transaction begins: the turn is held from then
// until the view has read all of it back. What becomes of the transaction holds
// for every write in it.

// groupBytes bounds a transaction, so that it fits into one batch of a topic
// with Kafka's own max.message.bytes; a larger write goes alone.
const groupBytes = 512 << 10

var errClosed = errors.New("the ledger's writer is closed")

// write is what one caller wants to have written: all of it or nothing.
type write struct {
	ctx     context.Context
	entries []entry
	check   func() error // with the turn held, nil: nothing to check; its error is this write's alone

	done chan struct{} // closed when err is set
	err  error
}

func (x *write) size() (n int) {
	for i := range x.entries {
		n += x.entries[i].size()
	}
	return n
}

func (x *write) settle(err error) {
	x.err = err
	close(x.done)
}

// commits are the writes of one ledger partition that wait for a transaction.
type commits struct {
	mu      sync.Mutex
	waiting []*write
	running bool // a goroutine takes them
}

// next takes the writes of the next transaction, in the order they came. Of two
// with a key in common the later one stays: it is checked against what the view
// shows of the first. Nothing waits: the goroutine that asks has to end.
func (c *commits) next() (group []*write) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var (
		left []*write
		size int
		full bool
		seen = map[string]bool{}
	)
	for _, x := range c.waiting {
		fits := len(group) == 0 || size+x.size() <= groupBytes
		full = full || !fits // nobody overtakes the one that has no room
		if full || slices.ContainsFunc(x.entries, func(e entry) bool { return seen[e.key] }) {
			left = append(left, x)
		} else {
			group = append(group, x)
			size += x.size()
		}
		for _, e := range x.entries {
			seen[e.key] = true
		}
	}
	c.waiting = left
	c.running = len(group) > 0
	return group
}

// drop takes back a write that no transaction has taken.
func (c *commits) drop(x *write) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	i := slices.Index(c.waiting, x)
	if i >= 0 {
		c.waiting = slices.Delete(c.waiting, i, i+1)
	}
	return i >= 0
}

// submit writes entries in one transaction, with what else waits for ledger
// partition n, and returns when the view shows them. When ctx ends before that
// transaction begins, nothing is written; later, the outcome is unknown.
func (w *Writer) submit(ctx context.Context, n int32, check func() error, es ...entry) error {
	x := &write{ctx: ctx, entries: es, check: check, done: make(chan struct{})}
	if err := w.enqueue(n, x); err != nil {
		return err
	}
	return w.settled(n, x)
}

// settled waits for a write that was handed over, as submit says.
func (w *Writer) settled(n int32, x *write) error {
	ctx := x.ctx
	select {
	case <-x.done:
		return x.err
	case <-ctx.Done():
	}
	if w.parts[n].commits.drop(x) {
		return fmt.Errorf("ledger partition %d: waiting for a write before: %w", n, context.Cause(ctx))
	}
	select {
	case <-x.done:
		return x.err
	default:
		return fmt.Errorf("ledger partition %d: %w", n, errors.Join(ErrUnknownOutcome, context.Cause(ctx)))
	}
}

// enqueue hands writes over, which go together as far as there is room.
func (w *Writer) enqueue(n int32, xs ...*write) error {
	c := &w.parts[n].commits
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.running {
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.life.Err() != nil {
			return fmt.Errorf("ledger partition %d: %w", n, errClosed)
		}
		c.running = true
		w.working.Go(func() { w.work(n) })
	}
	c.waiting = append(c.waiting, xs...)
	return nil
}

// work commits what waits for ledger partition n until nothing does.
func (w *Writer) work(n int32) {
	p := &w.parts[n]
	for {
		_, err := w.lock(w.life, n)
		group := p.commits.next()
		if err != nil {
			for _, x := range group {
				x.settle(fmt.Errorf("ledger partition %d: %w", n, errClosed))
			}
		} else {
			w.commitGroup(n, p, group)
			p.unlock()
		}
		if len(group) == 0 {
			return
		}
	}
}

// commitGroup writes a group in one transaction; the turn on n is held.
func (w *Writer) commitGroup(n int32, p *producer, group []*write) {
	var es []entry
	var in []*write
	for _, x := range group {
		switch err := context.Cause(x.ctx); {
		case err != nil:
			x.settle(fmt.Errorf("ledger partition %d: waiting for a write before: %w", n, err))
			continue
		case !p.acquired:
			x.settle(p.refused(n))
			continue
		case x.check != nil:
			if err := x.check(); err != nil {
				x.settle(err)
				continue
			}
		}
		in, es = append(in, x), append(es, x.entries...)
	}
	if len(in) == 0 {
		return
	}
	ctx, stop := together(w.life, in)
	err := w.transact(ctx, n, p, es)
	stop()
	for _, x := range in {
		x.settle(err)
	}
}

// together is a context that ends with life, or when the callers of all writes
// have gone: one that goes leaves the others alone.
func together(life context.Context, in []*write) (_ context.Context, stop func()) {
	ctx, cancel := context.WithCancelCause(life)
	var here atomic.Int32
	here.Store(int32(len(in)))
	stops := make([]func() bool, len(in))
	for i, x := range in {
		stops[i] = context.AfterFunc(x.ctx, func() {
			if here.Add(-1) == 0 {
				cancel(context.Cause(x.ctx))
			}
		})
	}
	return ctx, func() {
		for _, s := range stops {
			s()
		}
		cancel(nil)
	}
}
