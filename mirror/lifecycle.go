package mirror

import (
	"context"
	"time"

	"github.com/lockstep-kafka/lockstep/epoch"
	"github.com/lockstep-kafka/lockstep/internal/ledger"
)

// The life of a partition (facts.md §1): its state is in the ledger, written
// before it is acted on, so that a new owner repeats the state's action.

// enter takes up the action of the record's state. mu is held.
func (p *Partition) enter(why string) {
	if p.phase == phaseClosed {
		return // what was written is the next owner's to act on
	}
	p.al, p.st, p.pending, p.waiting, p.stepping = nil, nil, nil, nil, ""
	p.retryAt, p.stopSince = time.Time{}, time.Time{}
	ask := p.todo.err
	p.todo = todo{advance: -1}
	if p.rec.Mirror != p.eng.Mirror && p.eng.Mirror != "" {
		p.phase = phaseIdle // another mirror's now
		return
	}
	st := p.rec.State
	switch st {
	case epoch.StateStopped, epoch.StateStopping, epoch.StateFailed, epoch.StatePausing, epoch.StatePaused:
	default:
		if p.idleOnly {
			p.phase = phaseIdle
			return
		}
		p.todo.err = ask
	}
	switch st {
	case epoch.StateLogAlignment:
		p.phase = phaseAlign
	case epoch.StateEpochFencing, epoch.StateULERecovery, epoch.StateMirroring:
		p.phase = phaseRecover
		p.todo.regen = &regen{why: why}
	case epoch.StatePausing:
		p.phase = phasePause
	case epoch.StateStopping:
		p.phase = phaseStop
	case epoch.StateStopped:
		p.phase = phaseWatch
		p.everRan, p.unsure, p.suspect, p.awaits = false, -1, nil, 0
		p.live.Retract()
	case epoch.StateFailed:
		p.phase = phaseFailed
		p.errOp = p.rec.Error
	default:
		p.phase = phaseIdle
	}
	p.report()
	p.wake.wake()
}

// nextState is where a state leads when desired is wanted; ok is false when it is
// there, or can't go there now.
func nextState(state, desired ledger.State) (to ledger.State, ok bool) {
	switch desired {
	case epoch.StateStopped:
		to = epoch.StateStopping
		ok = state != epoch.StateStopping && state != epoch.StateStopped
	case epoch.StatePaused:
		to = epoch.StatePausing
		ok = state == epoch.StateMirroring
	case epoch.StateMirroring:
		switch state {
		case epoch.StateStopped:
			to, ok = epoch.StateLogAlignment, true
		case epoch.StatePaused:
			to, ok = epoch.StateMirroring, true
		}
	}
	return to, ok && epoch.Allowed(state, to)
}

// begunState tells whether a record is in a state that only a log with a first
// generation comes to.
func begunState(r *ledger.Record) bool {
	st := r.State
	if st == epoch.StateFailed {
		st = r.Previous
	}
	switch st {
	case epoch.StateMirroring, epoch.StateEpochFencing, epoch.StateULERecovery, epoch.StatePausing, epoch.StatePaused:
		return true
	}
	return false
}

// accepts tells whether a command makes sense in a state; facts.md §1: pause
// needs MIRRORING.
func accepts(state, desired ledger.State) bool {
	switch desired {
	case epoch.StatePaused:
		return state == epoch.StateMirroring || state == epoch.StateEpochFencing || state == epoch.StatePausing || state == epoch.StatePaused
	case "", epoch.StateMirroring, epoch.StateStopped:
		return true
	}
	return false
}

// command is the newest one that was not taken in yet. mu is held.
func (p *Partition) command() *ledger.Command {
	s := p.eng.Store.Partition(p.topic, p.partition)
	if s == nil || s.Err != nil || s.Command == nil || p.rec == nil || s.Command.Seq <= p.rec.CommandSeq {
		return nil
	}
	return s.Command
}

// stepDue tells whether the desired state asks for a transition. mu is held.
func (p *Partition) stepDue() bool {
	if p.stepping != "" && p.stepping != p.rec.State {
		return true
	}
	if p.phase == phasePause || p.phase == phaseStop || p.rec.Mirror != p.eng.Mirror && p.eng.Mirror != "" {
		return false
	}
	_, ok := nextState(p.rec.State, p.rec.Desired)
	return ok
}

// obey acts on the newest command and on what is desired, in one ledger write.
func (p *Partition) obey(ctx context.Context) error {
	p.mu.Lock()
	if p.stepping == "" {
		p.stepping = p.rec.State
	}
	was := p.stepping // what the phase stands for: a write of before may have landed after all
	p.reload()
	cmd := p.command()
	leaves, due := p.leaves(cmd), p.watchDue()
	p.mu.Unlock()
	refused := ""
	if leaves {
		if due {
			return p.watch(ctx) // clients may wait for it, however long the start does
		}
		var err error
		if refused, err = p.rehearse(ctx, cmd != nil && cmd.DiscardLocal); err != nil {
			return err
		}
	}
	took := true
	err := p.put(ctx, func(r *ledger.Record) {
		if refused != "" {
			refuseStart(r, cmd, refused)
			return
		}
		if cmd != nil {
			took = accepts(r.State, cmd.Desired)
			note(r, cmd, took)
		}
		to, ok := nextState(r.State, r.Desired)
		if !ok {
			return
		}
		r.State, r.Error, r.Retries = to, "", 0
		if to == epoch.StateLogAlignment {
			r.DiscardLocal = cmd != nil && cmd.DiscardLocal
			r.Left = nil
		}
	})
	if err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.rec.State
	p.rehearsed = time.Time{}
	if now == epoch.StateStopped {
		p.errOp = "" // why a start was held
		p.report()
	}
	switch {
	case refused != "":
		p.slog.Warn("start refused: the topic stays STOPPED and writable", "err", refused)
	case !took:
		p.slog.Warn("command skipped: it does not fit the state", "state", was, "command", cmd.Desired, "by", cmd.By)
	case now != was:
		p.slog.Info("state", "from", was, "to", now, "desired", p.rec.Desired)
	}
	p.stepping = ""
	if now == was {
		return nil
	}
	if now == epoch.StateStopping || now == epoch.StatePausing {
		p.dropQueue() // what is in flight is waited for
	}
	p.errOp = ""
	p.enter("resume")
	return nil
}

// note notes a command in the record.
func note(r *ledger.Record, cmd *ledger.Command, fits bool) {
	r.CommandSeq = cmd.Seq
	if !fits {
		return
	}
	if r.State == epoch.StateStopped {
		r.Error = "" // of a start that was refused
	}
	again := cmd.Recover
	if cmd.DiscardLocal && r.State == epoch.StateFailed && r.Previous == epoch.StateLogAlignment {
		r.DiscardLocal, again = true, true // the start that failed for want of it goes on
	}
	if again && r.State == epoch.StateFailed && epoch.AllowedBack(r.State, r.Previous, r.Previous) && r.Previous.Valid() {
		r.State, r.Error, r.Retries = r.Previous, "", 0
	}
	if cmd.Desired != "" {
		r.Desired = cmd.Desired
	}
	if cmd.Desired == epoch.StateMirroring && r.State == epoch.StateStopped {
		r.Mirror = cmd.Mirror
	}
}

// quiet waits until nothing is in flight; after limit what is left counts as
// unknown. It says whether to go on.
func (p *Partition) quiet(ctx context.Context, limit time.Duration) bool {
	p.mu.Lock()
	if p.stopSince.IsZero() {
		p.stopSince = time.Now()
	}
	busy := p.inflight != nil
	if busy && time.Since(p.stopSince) >= limit {
		p.slog.Warn("a write in flight is given up; should it land it is dead")
		p.markUnsure(p.sentAt)
		p.inflight = nil
		p.settled()
		busy = false
	}
	p.mu.Unlock()
	if busy {
		p.rest(ctx, 20*time.Millisecond)
	}
	return !busy
}

// quietTime is how long a stop waits for a write in flight.
const quietTime = 5 * time.Second

// pausing waits for what is in flight, then PAUSED.
func (p *Partition) pausing(ctx context.Context) error {
	if !p.quiet(ctx, quietTime) {
		return nil
	}
	if err := p.put(ctx, func(r *ledger.Record) { r.State = epoch.StatePaused }); err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.slog.Info("state", "from", epoch.StatePausing, "to", epoch.StatePaused)
	p.enter("")
	return nil
}

// waitUnsaid: every instance, this one too, takes a moment to take a record in,
// which is no news. (Status shows it at once.)
const waitUnsaid = 2 * time.Second

// waitFor notes who or what is waited for, and lets some time pass. It says
// whether there is nothing to wait for.
func (p *Partition) waitFor(ctx context.Context, ids []string, d time.Duration) bool {
	p.mu.Lock()
	now := time.Now()
	switch {
	case len(ids) == 0:
		p.waitsSince = time.Time{}
	case p.waitsSince.IsZero():
		p.waitsSince, p.waitTold = now, false
	case !p.waitTold && now.Sub(p.waitsSince) >= waitUnsaid:
		p.slog.Info("waiting", "state", p.rec.State, "for", ids)
		p.waitTold = true
	}
	p.waiting = ids
	// As long again as was waited, so that a moment's wait is not made longer.
	d = min(d, max(now.Sub(p.waitsSince), leastWait))
	p.mu.Unlock()
	if len(ids) > 0 {
		p.rest(ctx, d)
	}
	return len(ids) == 0
}

// instances are those that have not taken in the newest record.
func (p *Partition) instances() []string {
	s := p.eng.Store.Partition(p.topic, p.partition)
	if s == nil {
		return nil
	}
	return p.eng.Store.Waiting(s, p.eng.Unclean(p.topic))
}

const (
	awaitPause = 50 * time.Millisecond
	leastWait  = 5 * time.Millisecond
)

// await ends ULE_RECOVERY when every instance has taken in the new generation
// (DESIGN §7.5).
func (p *Partition) await(ctx context.Context) error {
	if !p.waitFor(ctx, p.instances(), awaitPause) {
		return nil
	}
	return p.mirroring(ctx)
}

// resumption is where to go on once the state says MIRRORING.
type resumption struct {
	dst leader
	t   tail
	cp  *ledger.Checkpoint
}

// mirroring writes MIRRORING and goes on: where the cut was made if it was
// made here, else by a recovery.
func (p *Partition) mirroring(ctx context.Context) error {
	err := p.put(ctx, func(r *ledger.Record) { r.State, r.Error = epoch.StateMirroring, "" })
	if err != nil {
		return err
	}
	p.goOn()
	return nil
}

// goOn takes up work once the ledger says MIRRORING.
func (p *Partition) goOn() {
	p.mu.Lock()
	next := p.pending
	p.enter("take-over")
	p.mu.Unlock()
	if next != nil {
		p.resume(next.dst, true, next.t, next.cp)
		p.kick()
	}
}
