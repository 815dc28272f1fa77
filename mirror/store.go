package mirror

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/lockstep-kafka/lockstep/internal/ledger"
)

// owned is which ledger partitions this instance owns and has acquired, and
// the way to write them: the Store of all engines.
type owned struct {
	view   *ledger.View
	writer *ledger.Writer

	mu    sync.Mutex
	parts map[int32]bool
}

func newOwned(v *ledger.View, w *ledger.Writer) *owned {
	return &owned{view: v, writer: w, parts: map[int32]bool{}}
}

// take acquires a ledger partition that the group gave to us.
func (o *owned) take(ctx context.Context, n int32) error {
	if o.has(n) {
		return nil
	}
	if err := o.writer.Acquire(ctx, n); err != nil {
		return err
	}
	o.mu.Lock()
	o.parts[n] = true
	o.mu.Unlock()
	return nil
}

// drop forgets a ledger partition: nothing more is written there.
func (o *owned) drop(ctx context.Context, n int32) {
	o.mu.Lock()
	had := o.parts[n]
	delete(o.parts, n)
	o.mu.Unlock()
	if had {
		_ = o.writer.Release(ctx, n)
	}
}

func (o *owned) has(n int32) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.parts[n]
}

func (o *owned) list() []int32 {
	o.mu.Lock()
	defer o.mu.Unlock()
	out := make([]int32, 0, len(o.parts))
	for n := range o.parts {
		out = append(out, n)
	}
	return out
}

// Partition implements Store.
func (o *owned) Partition(topic string, p int32) *ledger.Partition { return o.view.Partition(topic, p) }

// Waiting implements Store.
func (o *owned) Waiting(p *ledger.Partition, all bool) []string {
	return ledger.Waiting(o.view.Instances(), p, all, time.Now())
}

// Put implements Store. A write that failed before leaves the ledger partition
// not acquired; it is acquired anew here, which also brings in a write whose
// outcome was unknown: then the answer is ErrConflict, and the caller makes
// its change from the newest record.
func (o *owned) Put(ctx context.Context, r *ledger.Record) error {
	n := ledger.PartitionOf(r.Topic, r.Partition)
	return o.write(ctx, n, func() error { return o.writer.Put(ctx, r) })
}

// checkpoint writes checkpoints of any ledger partitions that are still ours.
func (o *owned) checkpoint(ctx context.Context, cps []ledger.Checkpoint) error {
	by := map[int32][]ledger.Checkpoint{}
	for _, cp := range cps {
		n := ledger.PartitionOf(cp.Topic, cp.Partition)
		by[n] = append(by[n], cp)
	}
	var errs []error
	for n, list := range by {
		if err := o.write(ctx, n, func() error { return o.writer.PutCheckpoints(ctx, list) }); err != nil {
			errs = append(errs, fmt.Errorf("checkpoints of ledger partition %d: %w", n, err))
		}
	}
	return errors.Join(errs...)
}

func (o *owned) write(ctx context.Context, n int32, put func() error) error {
	if !o.has(n) {
		return fmt.Errorf("ledger partition %d: %w", n, ledger.ErrFenced)
	}
	err := put()
	if !errors.Is(err, ledger.ErrNotAcquired) {
		return err
	}
	if err := o.writer.Acquire(ctx, n); err != nil {
		return err
	}
	return put()
}
