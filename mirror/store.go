package mirror

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/lockstep-kafka/lockstep/internal/ledger"
)

// owned is which ledger partitions this instance owns and has acquired, and
// the way to write them: the Store of all engines.
type owned struct {
	view   *ledger.View
	writer *ledger.Writer
	// healthy is Owner.Healthy: what is ours is ours only while it says so.
	healthy func() bool
	// fenced is told of each fence, after the ledger partition has been dropped.
	fenced func(n int32)

	mu    sync.Mutex
	parts map[int32]bool
	lost  map[int32]bool // not ours any more, what is theirs may still run here
}

func newOwned(v *ledger.View, w *ledger.Writer) *owned {
	return &owned{
		view: v, writer: w, healthy: func() bool { return true }, fenced: func(int32) {},
		parts: map[int32]bool{}, lost: map[int32]bool{},
	}
}

// take acquires a ledger partition that the group gave to us.
func (o *owned) take(ctx context.Context, n int32) error {
	if o.has(n) {
		return nil
	}
	for _, f := range []func() error{o.confirmed, func() error { return o.writer.Acquire(ctx, n) }, o.confirmed} {
		if err := f(); err != nil {
			return fmt.Errorf("ledger partition %d: %w", n, err)
		}
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.lost[n] {
		return fmt.Errorf("ledger partition %d: what ran here has not stopped yet: %w", n, ledger.ErrNotAcquired)
	}
	o.parts[n] = true
	return nil
}

func (o *owned) confirmed() error {
	if !o.healthy() {
		return fmt.Errorf("the group has not confirmed this instance lately: %w", ledger.ErrFenced)
	}
	return nil
}

// fence forgets a ledger partition that another instance writes now. It comes
// back only by take, once the group has confirmed that it is ours after all.
func (o *owned) fence(n int32) {
	o.mu.Lock()
	had := o.parts[n]
	delete(o.parts, n)
	o.lost[n] = o.lost[n] || had
	o.mu.Unlock()
	if had {
		o.fenced(n)
	}
}

// left are the ledger partitions that are not among owns, or were fenced, while
// what is theirs may still run here. It has to stop before they are taken again,
// as it goes by what it has in memory.
func (o *owned) left(owns []int32) map[int32]bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	l := maps.Clone(o.lost)
	for n := range o.parts {
		if !slices.Contains(owns, n) {
			l[n] = true
		}
	}
	return l
}

// forget drops ledger partitions, all at once: nothing more is written there.
// They can't be taken again before stopped.
func (o *owned) forget(lps map[int32]bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for n := range lps {
		delete(o.parts, n)
		o.lost[n] = true
	}
}

// stopped says that nothing of the ledger partitions runs here any more.
func (o *owned) stopped(lps map[int32]bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for n := range lps {
		if !o.parts[n] {
			delete(o.lost, n)
		}
	}
}

// has tells whether a ledger partition may be written: acquired, not fenced
// since, and the group has confirmed this instance lately.
func (o *owned) has(n int32) bool {
	if !o.healthy() {
		return false
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.parts[n]
}

// mine is has for all ledger partitions, as it is now.
func (o *owned) mine() (m [ledger.Partitions]bool) {
	if !o.healthy() {
		return m
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	for n := range o.parts {
		m[n] = true
	}
	return m
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

// Put implements Store. A write of ours that failed leaves the ledger partition
// not acquired; it is renewed here, which also brings in a write whose outcome
// was unknown: then the answer is ErrConflict, and the caller makes its change
// from the newest record.
func (o *owned) Put(ctx context.Context, r *ledger.Record) error {
	n := ledger.PartitionOf(r.Topic, r.Partition)
	return o.write(ctx, n, func() error { return o.writer.Put(ctx, r) })
}

// PutAll is Put for many records, which go together.
func (o *owned) PutAll(ctx context.Context, rs []*ledger.Record) []error {
	errs := make([]error, len(rs))
	var mine []*ledger.Record
	var at []int
	for i, r := range rs {
		if n := ledger.PartitionOf(r.Topic, r.Partition); !o.has(n) {
			errs[i] = fmt.Errorf("ledger partition %d: %w", n, ledger.ErrFenced)
			continue
		}
		mine, at = append(mine, r), append(at, i)
	}
	for j, err := range o.writer.PutAll(ctx, mine) {
		switch {
		case errors.Is(err, ledger.ErrFenced):
			o.fence(ledger.PartitionOf(mine[j].Topic, mine[j].Partition))
		case errors.Is(err, ledger.ErrNotAcquired):
			err = o.Put(ctx, mine[j])
		}
		errs[at[j]] = err
	}
	return errs
}

// checkpoint writes checkpoints of any ledger partitions that are still ours.
func (o *owned) checkpoint(ctx context.Context, cps []ledger.Checkpoint) error {
	by := map[int32][]ledger.Checkpoint{}
	for _, cp := range cps {
		n := ledger.PartitionOf(cp.Topic, cp.Partition)
		by[n] = append(by[n], cp)
	}
	var wg sync.WaitGroup
	var mu sync.Mutex
	var errs []error
	for n, list := range by {
		wg.Go(func() {
			if err := o.write(ctx, n, func() error { return o.writer.PutCheckpoints(ctx, list) }); err != nil {
				mu.Lock()
				defer mu.Unlock()
				errs = append(errs, fmt.Errorf("checkpoints of ledger partition %d: %w", n, err))
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

func (o *owned) write(ctx context.Context, n int32, put func() error) error {
	if !o.has(n) {
		return fmt.Errorf("ledger partition %d: %w", n, ledger.ErrFenced)
	}
	err := put()
	if errors.Is(err, ledger.ErrNotAcquired) && !errors.Is(err, ledger.ErrFenced) {
		if err = o.writer.Renew(ctx, n); err == nil {
			err = put()
		}
	}
	if errors.Is(err, ledger.ErrFenced) {
		o.fence(n)
	}
	return err
}
