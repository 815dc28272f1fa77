package ledger

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"
)

// RequestTimeout is how long a client's write that an instance has forwarded
// may still land after the instance stopped serving.
const RequestTimeout = 30 * time.Second

// Waiting are the ids of the instances that have not taken in the partition's
// newest record, or still have client writes from before on their way. An
// instance whose lease and [RequestTimeout] are over is not waited for, unless
// all is set: with support for unclean elections every registered one is.
func Waiting(instances []*Instance, p *Partition, all bool, now time.Time) []string {
	n := PartitionOf(p.Topic, p.Partition)
	var ids []string
	for _, i := range instances {
		if len(i.Applied) == Partitions && i.Applied[n] > p.RecordOffset {
			continue
		}
		if all || now.Before(latest(i.Lease, i.ServesUntil).Add(RequestTimeout)) {
			ids = append(ids, i.ID)
		}
	}
	return ids
}

func latest(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// RegistrarOptions of a [Registrar]. ID, View and Writer are required.
type RegistrarOptions struct {
	ID, Version, Address string
	Mirrors              map[string]map[string]string // [Instance.Mirrors]
	View                 *View
	Writer               *Writer
	// Drain returns when every client write that was forwarded before the call
	// is answered, or its connection closed. nil: there are none.
	Drain  func(context.Context) error
	Lease  time.Duration // default: the view's
	Logger *slog.Logger
}

// Registrar keeps this instance's record in the ledger: its lease, and how far
// it has taken the ledger in.
type Registrar struct {
	o       RegistrarOptions
	self    Instance
	mirrors atomic.Pointer[map[string]map[string]string]
}

// SetMirrors changes what the next renewals say of the mirrors' settings.
func (r *Registrar) SetMirrors(m map[string]map[string]string) { r.mirrors.Store(&m) }

// NewRegistrar writes nothing yet.
func NewRegistrar(o RegistrarOptions) *Registrar {
	o.Logger = cmp.Or(o.Logger, slog.Default())
	o.Lease = cmp.Or(o.Lease, o.View.opts.Lease)
	if o.Drain == nil {
		o.Drain = func(context.Context) error { return nil }
	}
	return &Registrar{o: o, self: Instance{ID: o.ID, Version: o.Version, Address: o.Address, Mirrors: o.Mirrors, Started: time.Now().UTC()}}
}

// Run registers the instance when the view is ready, renews its lease, and
// acknowledges records that others wait for. When ctx ends it deregisters:
// nothing may be served from the view any more then.
func (r *Registrar) Run(ctx context.Context) error {
	if err := r.o.View.WaitReady(ctx); err != nil {
		return nil
	}
	defer r.deregister(ctx)
	every := r.o.Lease / 3
	for ctx.Err() == nil {
		wait, least := every, minRenew
		changed := r.o.View.Changed() // before positions are looked at
		if err := r.renew(ctx); err != nil && ctx.Err() == nil {
			r.o.Logger.Warn("this instance's record in the ledger is not renewed: mirror topics are refused when its lease ends", "instance", r.o.ID, "err", err)
			wait, least = min(every, time.Second), 200*time.Millisecond
		}
		if sleep(ctx, least) {
			r.sleep(ctx, wait, changed)
		}
	}
	return nil
}

// minRenew bounds how often the record is written.
const minRenew = 20 * time.Millisecond

// sleep waits for d, or until a record that others wait for is new.
func (r *Registrar) sleep(ctx context.Context, d time.Duration, changed <-chan struct{}) {
	t := time.NewTimer(d)
	defer t.Stop()
	for {
		if r.due() {
			return
		}
		select {
		case <-changed:
			changed = r.o.View.Changed()
		case <-t.C:
			return
		case <-ctx.Done():
			return
		}
	}
}

// due tells whether a record that is waited for was taken in and is not
// acknowledged.
func (r *Registrar) due() bool {
	if len(r.self.Applied) == 0 {
		return false
	}
	v := r.o.View
	v.mu.Lock()
	defer v.mu.Unlock()
	for n := range v.parts {
		if r.self.Applied[n] <= v.parts[n].awaited {
			return true
		}
	}
	return false
}

// renew writes the record with a new lease. What it acknowledges was taken in
// before the drain began.
func (r *Registrar) renew(ctx context.Context) error {
	v := r.o.View
	applied := make([]int64, Partitions)
	v.mu.Lock()
	for n := range applied {
		if st := &v.parts[n]; st.loading == nil {
			applied[n] = st.position
		}
	}
	v.mu.Unlock()
	next := r.self
	if m := r.mirrors.Load(); m != nil {
		next.Mirrors = *m
	}
	dctx, cancel := context.WithTimeout(ctx, r.o.Lease/3)
	err := r.o.Drain(dctx)
	cancel()
	if err != nil {
		// The lease is renewed all the same; the acknowledgement comes later.
		r.o.Logger.Warn("client writes forwarded before are not answered yet", "instance", r.o.ID, "err", err)
	} else {
		next.Applied = applied
	}
	now := time.Now().UTC()
	next.Lease, next.ServesUntil = now.Add(r.o.Lease), now.Add(r.o.Lease)
	wctx, cancel := context.WithTimeout(ctx, r.o.Lease/2)
	defer cancel()
	if err := r.o.Writer.PutInstance(wctx, &next); err != nil {
		return fmt.Errorf("instance %s: %w", r.o.ID, err)
	}
	r.self = next
	// Monotonic: a clock that is set does not stretch it.
	v.ServeUntil(now.Add(r.o.Lease))
	return nil
}

func (r *Registrar) deregister(ctx context.Context) {
	r.o.View.ServeUntil(time.Now())
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
	defer cancel()
	if err := r.o.Writer.DeleteInstance(ctx, r.o.ID); err != nil {
		r.o.Logger.Warn("this instance's record is left in the ledger: its lease is waited for", "instance", r.o.ID, "err", err)
	}
}
