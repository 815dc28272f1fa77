package mirror

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// takes are the ledger partitions that are being acquired, each on a goroutine of
// its own: brokers that hang hold up one, and not the others or what the group
// says meanwhile.
type takes struct {
	take func(ctx context.Context, n int32) error
	// mayTake: it is not being handed over to another instance.
	mayTake func(n int32) bool
	log     *slog.Logger
	ended   wakeChan // one was acquired

	wg  sync.WaitGroup
	mu  sync.Mutex
	now map[int32]*taking
}

type taking struct {
	cancel context.CancelFunc
	over   chan struct{} // closed when nothing is sent any more
}

func newTakes(o *owned, mayTake func(n int32) bool, log *slog.Logger) *takes {
	return &takes{take: o.take, mayTake: mayTake, log: log, ended: make(wakeChan, 1), now: map[int32]*taking{}}
}

// takeAgain is the pause between tries.
const takeAgain = time.Second

// begin acquires n, however long that takes, unless it is at it.
func (t *takes) begin(ctx context.Context, n int32) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.now[n] != nil || !t.mayTake(n) {
		return
	}
	ctx, cancel := context.WithCancel(ctx)
	x := &taking{cancel: cancel, over: make(chan struct{})}
	t.now[n] = x
	t.wg.Go(func() {
		defer cancel()
		for {
			err := t.take(ctx, n)
			if err == nil || ctx.Err() != nil {
				break
			}
			t.log.Warn("ledger partition not acquired yet", "ledger_partition", n, "err", err)
			pause(ctx, takeAgain)
		}
		t.mu.Lock()
		delete(t.now, n)
		t.mu.Unlock()
		close(x.over)
		if ctx.Err() == nil {
			t.ended.wake()
		}
	})
}

// end gives up those that gone names, and returns when they are: who acquires late
// fences whose it is by then.
func (t *takes) end(gone func(n int32) bool) {
	t.mu.Lock()
	var all []*taking
	for n, x := range t.now {
		if gone(n) {
			x.cancel()
			all = append(all, x)
		}
	}
	t.mu.Unlock()
	for _, x := range all {
		<-x.over
	}
}

// running is how many are being acquired.
func (t *takes) running() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.now)
}

// close gives up all.
func (t *takes) close() {
	t.end(func(int32) bool { return true })
	t.wg.Wait()
}
