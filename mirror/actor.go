package mirror

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/lockstep-kafka/lockstep/epoch"
	"github.com/lockstep-kafka/lockstep/internal/ledger"
)

// Waits after a try that failed without making the partition FAILED: the other
// side can't be reached, or has no leader.
const (
	tryMin = 100 * time.Millisecond
	tryMax = 5 * time.Second
)

// backoff is lo doubled n times, at most hi, with jitter of a fifth.
func backoff(n int, lo, hi time.Duration) time.Duration {
	d := hi
	if n < 30 {
		d = min(hi, lo<<n)
	}
	return d - time.Duration(rand.Int64N(int64(d)/5+1))
}

// tries counts tries that failed since the last one that did not, each cause on
// its own: what has just begun to fail, when an outage ends for instance, is
// tried again soon, and two causes that take turns are not tried without end.
type tries map[string]int

// failed counts one more try with this cause, and says how many there were.
func (t tries) failed(cause string) int {
	n := t[cause]
	t[cause]++
	return n
}

// setTodoErr makes the partition fail. mu is held.
func (p *Partition) setTodoErr(err error) {
	switch p.phase {
	case phaseClosed, phaseFailed, phaseWatch, phaseIdle:
		return
	}
	p.todo.err = err
	p.wake.wake()
}

// run is the partition's own goroutine.
func (p *Partition) run(ctx context.Context) {
	if !p.begin() {
		return
	}
	for failed := (tries{}); ctx.Err() == nil; {
		job := p.nextJob()
		if job == nil {
			select {
			case <-p.wake:
			case <-ctx.Done():
			}
			continue
		}
		err := job(ctx)
		switch {
		case err == nil:
			clear(failed)
		case canceled(ctx):
			return
		case errors.Is(err, ledger.ErrFenced):
			p.slog.Info("another instance owns the partition now")
			p.mu.Lock()
			p.phase = phaseClosed
			p.dropQueue()
			p.live.Retract()
			p.mu.Unlock()
			p.eng.Fenced(p.topic, p.partition)
			return
		default:
			p.note(err)
			var f *failure
			if errors.Is(err, kerr.TopicAuthorizationFailed) || errors.Is(err, kerr.ClusterAuthorizationFailed) {
				err = &failure{reason: reasonAuth, err: fmt.Errorf("the user of Lockstep lacks a right (source: READ and DESCRIBE on the topic; destination: READ, WRITE and DESCRIBE): %w", err)}
			}
			if errors.As(err, &f) {
				p.mu.Lock()
				failing := false
				if p.todo.err == nil { // else something else comes before it again and again: a command
					p.setTodoErr(f)
					failing = p.todo.err != nil
				}
				p.mu.Unlock()
				if failing {
					continue
				}
				// STOPPED never becomes FAILED.
			}
			try := failed.failed(errorCode(err))
			d := backoff(try, tryMin, tryMax)
			level := slog.LevelDebug
			if try%10 == 5 { // not at once: a topic that was just created has no leader here yet
				level = slog.LevelWarn
			}
			p.slog.Log(ctx, level, "will try again", "err", err, "cause", errorCode(err), "in", d)
			p.eng.RefreshSource()
			p.eng.RefreshDest()
			p.rest(ctx, d)
		}
	}
}

// rest waits for d, for a change of metadata (a new leader is no reason to wait
// on), or the end of ctx.
func (p *Partition) rest(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-p.wake:
	case <-ctx.Done():
	}
}

// begin reads what the ledger says and decides where to begin.
func (p *Partition) begin() bool {
	snap := p.eng.Store.Partition(p.topic, p.partition)
	if snap == nil {
		p.slog.Error("the ledger has no record of the partition")
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.live = snap.Live
	err := snap.Err
	if err == nil && snap.Record.Log.Open() == nil && begunState(snap.Record) {
		err = fmt.Errorf("the ledger's entry %s says %s, and has no log", snap.Record.Key(), snap.Record.State)
	}
	if err != nil {
		// Nothing may be assumed and nothing written; a repaired ledger is
		// taken in at the next start.
		p.phase = phaseFailed
		p.errOp = err.Error()
		p.report()
		p.slog.Error("the ledger's entry can't be used", "err", err)
		return false
	}
	p.rec, p.log = snap.Record, snap.Record.Work()
	p.enter("take-over")
	return true
}

// nextJob takes the most urgent thing to do; nil: nothing.
func (p *Partition) nextJob() func(context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.phase == phaseClosed:
		return nil
	case p.superseded():
		return func(context.Context) error { return p.supersededBy() }
	case p.command() != nil || p.stepDue():
		return p.obey
	case p.todo.err != nil && p.phase != phaseFailed:
		return p.failed
	}
	switch p.phase {
	case phaseFailed:
		switch {
		case p.rec.Retries >= 0 && p.rec.Retries < p.eng.Tuning.RetryAttempts:
			return p.retry
		case p.rec.State != epoch.StateFailed:
			return p.tellFailed
		}
		return nil
	case phaseRecover:
		return p.recover
	case phaseAlign:
		return p.align
	case phaseAwait:
		return p.await
	case phasePause:
		return p.pausing
	case phaseStop:
		return p.stopping
	case phaseWatch:
		if p.watchDue() {
			return p.watch
		}
		if p.releasable() {
			return p.releaseCleaner
		}
		return nil
	case phaseRun:
		return p.runJob()
	}
	return nil
}

// runJob takes what a partition has to do besides fetching and writing. mu is
// held.
func (p *Partition) runJob() func(context.Context) error {
	switch {
	case p.suspect != nil:
		return p.inspect
	case p.rec.State == epoch.StateEpochFencing: // the raise is in the ledger, the write behind it failed
		return func(ctx context.Context) error {
			return p.put(ctx, func(r *ledger.Record) { r.State = epoch.StateMirroring })
		}
	case p.shadowing() && !p.prepared():
		return p.prepare
	case p.holdDue():
		return p.holdCleaner
	case p.switchDue() && p.inflight == nil:
		return p.switchOver
	case p.todo.ask != nil && len(p.queue) == 0 && p.inflight == nil:
		return p.askSource
	case p.assignDue():
		return p.assign
	case p.todo.bump:
		return p.raise
	case p.todo.advance >= 0:
		return p.advanceStart
	case p.releasable():
		return p.releaseCleaner
	}
	return nil
}

// errMoved says that the ledger has a newer record than the one that a change
// was computed from: nothing was written, compute it again.
var errMoved = errors.New("the ledger has a newer record of the partition")

// put writes the ledger record with changes and takes it in. If the ledger has
// a newer one with another log or state, nothing is written (errMoved): the
// caller's change was computed from the old one.
func (p *Partition) put(ctx context.Context, change func(*ledger.Record)) error {
	p.mu.Lock()
	if p.foreign() {
		p.mu.Unlock()
		return p.supersededBy()
	}
	moved := p.reload()
	base := p.rec
	p.mu.Unlock()
	if moved {
		return errMoved
	}
	next := base.Next()
	change(next)
	next.Plain = next.Plain || !p.compacted
	if !next.State.Valid() {
		return fmt.Errorf("ledger: state %q is none: a fault of Lockstep's, nothing is written", next.State)
	}
	p.mu.Lock()
	p.trying(next)
	p.mu.Unlock()
	if err := p.eng.Store.Put(ctx, next); err != nil {
		return fmt.Errorf("ledger: %w", err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.rec, p.log, p.tries = next, next.Work(), nil
	return nil
}

// putAnyway is put for a change that rests on no log and no state.
func (p *Partition) putAnyway(ctx context.Context, change func(*ledger.Record)) error {
	p.mu.Lock()
	if !p.foreign() {
		p.reload()
	}
	p.mu.Unlock()
	return p.put(ctx, change)
}

// assign adds the queue head's epoch to the chain, before anything of it is
// appended, and with it the bump that keeps the epoch shown at or above it.
func (p *Partition) assign(ctx context.Context) error {
	p.mu.Lock()
	if p.phase != phaseRun || !p.assignDue() {
		p.mu.Unlock()
		return nil
	}
	if p.compacted && p.tail.vEnd < p.awaits {
		// What lies dead ahead is of an epoch that the source has lost since, also
		// where it has no record now (a transaction's marker).
		p.slog.Warn("on this compacted topic dead batches lie behind mirrored records that the source has lost since, and the cleaner would keep them instead", "from", p.tail.vEnd, "to", p.awaits)
		p.doubt("dead_behind", regen{force: true, rebuild: &rebuild{}})
		p.mu.Unlock()
		return nil
	}
	it, l, sle := p.queue[0], p.log, max(p.src.epoch, p.queue[0].epoch)
	pe := max(p.dst.epoch, l.Open().PEpoch)
	p.mu.Unlock()
	l = l.WithEpoch(it.epoch, it.base)
	state := epoch.StateMirroring
	if it.epoch > l.Shown(pe) {
		// Nothing of it is appended before the raise is in the ledger.
		p.slog.Info("state", "to", epoch.StateEpochFencing, "epoch", it.epoch, "shown", l.Shown(pe))
		state = epoch.StateEpochFencing
	}
	l = p.raised(l, sle, pe)
	err := p.put(ctx, func(r *ledger.Record) { setWork(r, l); r.State = state })
	if err == nil && state != epoch.StateMirroring {
		err = p.put(ctx, func(r *ledger.Record) { r.State = epoch.StateMirroring })
	}
	if err != nil {
		return err
	}
	p.mu.Lock()
	p.advance()
	p.mu.Unlock()
	p.kick()
	return nil
}

// raised is l with a bump such that the epoch shown stays above the source's
// leader epoch sle.
func (p *Partition) raised(l *epoch.Log, sle, pe int32) *epoch.Log {
	if !p.near(sle, l, pe) {
		return l
	}
	n := *l
	n.Bump = max(l.Bump, sle+p.eng.Tuning.FencingStep-pe)
	return &n
}

// raise does the same for a source epoch that no batch has yet.
func (p *Partition) raise(ctx context.Context) error {
	p.mu.Lock()
	l, sle, pe := p.log, p.src.epoch, max(p.dst.epoch, p.log.Open().PEpoch)
	p.todo.bump = false
	p.mu.Unlock()
	n := p.raised(l, sle, pe)
	if n == l {
		return nil
	}
	err := p.put(ctx, func(r *ledger.Record) { setWork(r, n) })
	if err != nil {
		p.mu.Lock()
		p.todo.bump = true
		p.mu.Unlock()
	}
	return err
}

// advanceStart takes the source's log start into the ledger (retention and
// DeleteRecords there move the virtual start here).
func (p *Partition) advanceStart(ctx context.Context) error {
	p.mu.Lock()
	l, to := p.log, min(p.todo.advance, p.tail.position)
	p.todo.advance = -1
	p.mu.Unlock()
	n := l.AdvanceStart(to)
	if n == l {
		return nil
	}
	err := p.put(ctx, func(r *ledger.Record) { setWork(r, n) })
	if err != nil {
		p.mu.Lock()
		p.todo.advance = max(p.todo.advance, to)
		p.mu.Unlock()
	}
	return err
}

// failed makes the partition FAILED, in the ledger too.
func (p *Partition) failed(ctx context.Context) error {
	p.mu.Lock()
	err := p.todo.err
	var f *failure
	if !errors.As(err, &f) {
		f = &failure{reason: reasonSource, err: err}
	}
	if p.inflight != nil {
		p.markUnsure(p.sentAt)
		p.inflight = nil
	}
	p.dropQueue()
	p.settled()
	p.become(phaseFailed)
	p.al, p.st, p.pending, p.waiting, p.retryAt = nil, nil, nil, nil, time.Time{}
	p.errOp = f.Error()
	p.report()
	p.todo = todo{advance: -1}
	retries := p.rec.Retries + 1
	if p.produced() {
		retries = 1
	}
	switch {
	case f.permanent:
		retries = -1
	case f.outside():
		// It recovers by itself when the right is given or the broker is back,
		// however long that takes: never out of tries, but soon at the longest wait.
		p.outside = min(p.outside+1, 30)
		retries = min(retries, p.eng.Tuning.RetryAttempts-1)
	default:
		p.outside = 0
	}
	prev := p.rec.State
	if prev == epoch.StateFailed {
		prev = p.rec.Previous
	}
	p.mu.Unlock()
	p.met.failures(f.reason)
	p.slog.Error("FAILED", "reason", f.reason, "err", f.err, "retries", retries)
	err = p.putAnyway(ctx, func(r *ledger.Record) {
		r.State, r.Previous, r.Error, r.Retries = epoch.StateFailed, prev, f.Error(), retries
	})
	if err != nil && !errors.Is(err, ledger.ErrFenced) && ctx.Err() == nil {
		// It is failed in memory, and the next owner finds out by itself.
		p.slog.Warn("FAILED could not be written to the ledger", "err", err)
		p.mu.Lock()
		p.rec = p.rec.Next()
		p.rec.StateEpoch--
		p.rec.Retries = retries
		p.log = p.rec.Work()
		p.mu.Unlock()
		return nil
	}
	return err
}

// tellFailed writes FAILED when that could not be done at once and nothing is
// tried again by itself: nobody would see it, and `recover` would find nothing to
// recover.
func (p *Partition) tellFailed(ctx context.Context) error {
	p.mu.Lock()
	text, retries := p.errOp, p.rec.Retries
	p.mu.Unlock()
	return p.putAnyway(ctx, func(r *ledger.Record) {
		if r.State != epoch.StateFailed {
			r.State, r.Previous = epoch.StateFailed, r.State
		}
		r.Error, r.Retries = text, retries
	})
}

// become changes what the partition does; one that is closed stays so, whatever
// its goroutine was about to do. mu is held.
func (p *Partition) become(ph phase) {
	if p.phase != phaseClosed {
		p.phase = ph
	}
}

// produced: something was appended since the partition last left FAILED. mu is
// held.
func (p *Partition) produced() bool {
	was := p.stats.progressed
	if p.stats.progressed = false; was {
		p.outside = 0
	}
	return was
}

// retry waits for the next try of a FAILED partition and takes it back to where
// it was (F13).
func (p *Partition) retry(ctx context.Context) error {
	p.mu.Lock()
	n := max(p.rec.Retries, p.outside, 1)
	prev, written := p.rec.Previous, p.rec.State == epoch.StateFailed
	if !written { // the ledger could not be told, and still has the state before
		prev = p.rec.State
	}
	if p.retryAt.IsZero() {
		p.retryAt = time.Now().Add(backoff(n-1, p.eng.Tuning.RetryMin, p.eng.Tuning.RetryMax))
	}
	wait := time.Until(p.retryAt)
	p.mu.Unlock()
	if wait > 0 { // a command ends it
		p.rest(ctx, wait)
		return ctx.Err()
	}
	switch prev {
	case epoch.StateEpochFencing, epoch.StateULERecovery, epoch.StateMirroring:
		// The ledger says so again with the write that recover makes.
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.idleOnly {
			r := *p.rec // the ledger's is shared
			r.Retries = -1
			p.rec, p.log = &r, r.Work()
			return nil
		}
		p.retryAt = time.Time{}
		p.become(phaseRecover)
		p.todo = todo{advance: -1, regen: &regen{why: "retry"}}
		return nil
	}
	if written {
		if err := p.put(ctx, func(r *ledger.Record) { r.State = r.Previous }); err != nil {
			return err
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.enter("retry")
	return nil
}

// note remembers an error for describe and metrics.
func (p *Partition) note(err error) {
	p.mu.Lock()
	if p.phase != phaseFailed { // why it is FAILED says more
		p.errOp = err.Error()
	}
	p.report()
	p.mu.Unlock()
}
