package mirror

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/lockstep-kafka/lockstep/epoch"
	"github.com/lockstep-kafka/lockstep/internal/ledger"
)

// phase is what a partition does right now; the ledger's state is coarser.
type phase uint8

const (
	phaseIdle    phase = iota // nothing to do: PAUSED, or the topic is not among the mirror's now
	phaseRecover              // the tail has to be read before anything is fetched or written
	phaseRun                  // fetches and writes
	phaseFailed               // waits for its next try, or for the operator
	phaseAlign                // LOG_ALIGNMENT
	phaseAwait                // ULE_RECOVERY: the cut is made, instances are waited for
	phasePause                // PAUSING
	phaseStop                 // STOPPING
	phaseWatch                // STOPPED
	phaseClosed               // quiescing, removed or fenced
)

// todo is what a partition's own goroutine has to do, all that is set.
type todo struct {
	regen   *regen // re-read the tail; first of all
	told    *item  // the queue's head for whose epoch the partition's goroutine was woken (knownEpoch)
	bump    bool   // the source's leader epoch comes near the one shown
	advance int64  // the source's log start, when it moved above ours; -1
	ask     *ask   // ask the source about our end
	err     error  // go FAILED
}

// Partition is one mirrored partition. See the package's comment for who may
// do what.
type Partition struct {
	eng       *Engine
	topic     string
	partition int32
	compacted bool
	keepTombs time.Duration // the source's delete.retention.ms
	idleOnly  bool          // not among the mirror's topics: it is stopped and watched, not mirrored
	slog      *slog.Logger
	met       partMetrics
	stop      func() // ends run and waits for it
	wake      wakeChan

	mu    sync.Mutex
	phase phase
	todo  todo
	src   leader
	dst   leader
	log   *epoch.Log // as the ledger has it
	gen   int16      // of the open span
	live  *ledger.Live
	rec   *ledger.Record
	tries []*ledger.Record // writes since rec, of unknown outcome or refused
	// stepping is the state that phase stands for while a transition is not made:
	// rec may be ahead of it, when a write of unknown outcome has landed.
	stepping ledger.State

	al      *epoch.Alignment // LOG_ALIGNMENT in progress
	early   *sourceStart     // asked for in its step before this one; nil: not
	st      *epoch.Stop      // STOPPING in progress
	pending *resumption      // where to go on when the instances have the new generation
	waiting []string         // ids or things waited for, for status
	// since when, and whether that is in the log
	waitsSince time.Time
	waitTold   bool
	retryAt    time.Time // of FAILED; zero: not set
	stopSince  time.Time
	rehearsed  time.Time // when a start was first looked at that is held; zero: none is
	// groupsDone is the STOPPING in whose course group offsets were synced last.
	groupsDone *epoch.Stop
	shown      ledger.Tail // what is shown beside a shadow; of another generation than the log's: not known yet
	heldAt     time.Time   // when the cleaner was found held back
	compared   time.Time   // when the source was asked about what is shown beside a shadow
	anew       writtenAnew // when a shadow took its place last
	caught     time.Time   // when the position last was at the source's end; zero: never in this log (M26)
	caughtOnce time.Time   // the same, by the ledger when this owner began
	lastTS     int64       // largest timestamp of the last live batch, ms; -1: not known

	everRan  bool // tail is what was confirmed to us
	tail     tail
	recent   recents
	expected int64 // physical base offset that the next produce should get
	unsure   int64 // physical base expected for the first produce with an unknown outcome, -1: none
	mayShow  int64 // nothing above it was ever shown (mayHaveShown); -1: not known, a new owner has to ask the source
	// suspect is what somebody else wrote into a compacted topic and nobody has
	// looked at yet: nothing is written, and no checkpoint made, behind it.
	suspect *stretch
	// awaits is up to where live copies have to come of what lies dead in a
	// compacted topic's log (H1), all of the chain's newest epoch: no checkpoint is
	// made behind it before, and a stop makes a copy. When a later epoch begins
	// below it they won't come.
	awaits int64

	walk     walkState // where the queue ends
	queue    []*item
	queued   int    // bytes in queue
	inflight *item  // being produced
	sentAt   int64  // expected when inflight was sent
	switches bool   // nothing new is sent while the shadow takes its place
	token    uint64 // changes when the queue's end is set anew
	// drain: the source said something about our end that may cut it; ask again
	// only when nothing is queued or in flight.
	drain      bool
	asked      int32     // Fetch below v12: source leader epoch for which the end was checked
	sourceWait time.Time // no fetch before
	sourceTry  int       // failed fetches in a row
	badTries   int       // answers in a row that could not be mirrored, all for badText
	badText    string
	outside    int       // failures in a row for reasons outside of the data (failure.outside)
	advanced   time.Time // when the source's log start was last taken over
	goneSince  time.Time // the source's metadata lacks the topic; zero: it does not
	produceTry int       // refused produces in a row
	cutOff     cutOff    // a large batch with which connections broke
	writeWait  time.Time // no produce before
	setOpen    bool      // walk.open.until waits for a first high watermark
	gathered   mergeRun  // empty but while an answer is taken in
	unmerged   bool      // merging went wrong here

	stats  stats
	held   heldBack          // by a transaction open on the source
	saved  ledger.Checkpoint // last handed out
	idle   chan struct{}     // closed when nothing is in flight, while quiescing
	closed bool              // shutdown was called
	errOp  string            // last error, for status
}

// stats are numbers for lag and describe.
type stats struct {
	sourceStart, sourceEnd int64 // end: last stable offset; -1 unknown
	caughtUp               time.Time
	lastFetch, lastAppend  time.Time
	bytes, records         int64 // appended, for the mean record size
	verified               int32 // leader epoch under which the source took our end for its own, -1: none
	progressed             bool  // something was appended since the partition left FAILED
}

func newPartition(e *Engine, s Spec) *Partition {
	p := &Partition{
		eng: e, topic: s.Topic, partition: s.Partition, compacted: s.Compacted, keepTombs: s.KeepsTombs, idleOnly: s.Idle, lastTS: -1,
		slog: e.Logger.With("mirror", e.Mirror, "topic", s.Topic, "partition", s.Partition),
		met:  e.Metrics.partition(e.Mirror, s.Topic),
		wake: make(wakeChan, 1), stop: func() {},
		src: leader{broker: -1, epoch: -1}, dst: leader{broker: -1, epoch: -1},
		unsure: -1, mayShow: -1, asked: -1, todo: todo{advance: -1},
		stats: stats{sourceStart: -1, sourceEnd: -1, verified: -1, caughtUp: time.Now()},
		saved: ledger.Checkpoint{Position: -1}, held: heldBack{offset: -1},
	}
	if p.keepTombs <= 0 {
		p.keepTombs = 24 * time.Hour // Kafka's default
	}
	e.Metrics.add(p)
	return p
}

// leaders are where the partition is led on both sides.
func (p *Partition) leaders() (src, dst leader) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.src, p.dst
}

// setSource takes in metadata of the source; known: there was any.
func (p *Partition) setSource(l leader, known bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !known {
		return
	}
	if l.known && p.src.known && l.id == p.src.id && l.epoch < p.src.epoch {
		return // a broker that lags
	}
	switch {
	case l.known:
		p.goneSince = time.Time{}
		if mirrored := p.mirroredID(); p.copying() && !l.id.IsZero() && !mirrored.IsZero() && l.id != mirrored {
			p.setTodoErr(failForGood(reasonRecreated, "the source topic was deleted and created again (id %s, mirrored was %s): stop the mirror to keep what it has, or delete the destination topic and mirror anew", l.id, mirrored))
		}
	case p.goneSince.IsZero():
		p.goneSince = time.Now()
	case time.Since(p.goneSince) >= p.eng.Tuning.GoneAfter && p.copying():
		p.setTodoErr(failForGood(reasonDeleted, "the source topic is gone from the source cluster: stop the mirror to keep what it has"))
	}
	if l == p.src {
		return
	}
	if l.broker != p.src.broker || l.epoch != p.src.epoch {
		p.token++ // an answer of the old leader doesn't count
		p.sourceWait, p.sourceTry = time.Time{}, 0
	}
	p.src = l
	if p.phase == phaseRun && p.near(l.epoch, p.log, p.dst.epoch) {
		p.todo.bump = true
	}
	p.wake.wake()
}

// mirroredID is the source topic's id as it was when mirroring began, zero if
// not known. mu is held.
func (p *Partition) mirroredID() ledger.ID {
	if p.rec != nil && !p.rec.SourceTopicID.IsZero() {
		return p.rec.SourceTopicID
	}
	return p.src.id
}

// copying tells whether the source matters to what is done now. mu is held.
func (p *Partition) copying() bool {
	return p.phase == phaseRun || p.phase == phaseRecover || p.phase == phaseAwait
}

// near tells whether the source's leader epoch comes so close to the one shown
// that that is raised.
func (p *Partition) near(sle int32, l *epoch.Log, pe int32) bool {
	return sle > l.Shown(pe)-p.eng.Tuning.fencingMargin
}

// setDest takes in metadata of the destination.
func (p *Partition) setDest(l leader) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if l.known && p.dst.known && l.id == p.dst.id && l.epoch < p.dst.epoch {
		return
	}
	if l == p.dst {
		return
	}
	again := p.dst.known && l.known && l.id != p.dst.id
	p.dst = l
	switch {
	case p.phase != phaseRun:
	case l.broker < 0: // what is queued must not hold memory until there is one
		p.doubt("no_leader", regen{})
	case again || l.epoch != p.log.Open().PEpoch:
		p.doubt("leader_epoch", regen{})
	}
	p.wake.wake()
}

// doubt empties the queue and sends the partition into recovery. What is in
// flight counts as unknown. mu is held.
func (p *Partition) doubt(why string, r regen) {
	if p.phase != phaseRun && p.phase != phaseRecover {
		p.wake.wake()
		return
	}
	if p.inflight != nil {
		p.markUnsure(p.sentAt)
		p.inflight = nil
	}
	p.dropQueue()
	if r.why == "" {
		r.why = why
	}
	p.phase = phaseRecover
	p.todo = todo{regen: p.todo.regen.merge(r), advance: -1, err: p.todo.err}
	p.settled()
	p.wake.wake()
}

func (p *Partition) markUnsure(at int64) {
	if p.unsure < 0 || at < p.unsure {
		p.unsure = at
	}
}

// poke lets the partition look at the ledger again.
func (p *Partition) poke() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.rec != nil && (p.command() != nil || p.superseded() || p.holdDue()) {
		p.wake.wake()
	}
}

// kick lets fetchers and writers look at the partition again.
func (p *Partition) kick() {
	src, dst := p.leaders()
	p.eng.kickFetcher(src.broker)
	p.eng.kickWriter(p, dst.broker)
}

// publish shows the tail. mu is held.
func (p *Partition) publish() {
	t := p.live.Tail()
	if p.shadowing() {
		if p.prepared() {
			s := p.shown
			s.EverShown = max(s.EverShown, t.EverShown)
			p.live.Publish(s)
		}
		return
	}
	v := max(p.tail.vEnd, min(p.log.Start, p.tail.position))
	p.live.Publish(ledger.Tail{
		VEnd: v, Position: max(p.tail.position, v), PEnd: p.tail.p,
		PEpoch: p.log.Open().PEpoch, EverShown: max(t.EverShown, v, p.tail.position, p.mayShow), Sure: p.mayShow >= 0, Gen: p.log.Open().Gen, Newest: p.log.Chain.Newest(),
	})
	if p.tail.position >= p.stats.sourceEnd {
		p.stats.caughtUp = time.Now()
	}
}

// report shows the numbers that describe wants. mu is held.
func (p *Partition) report() {
	if p.live == nil {
		return
	}
	p.live.SetStatus(ledger.Status{
		SourceStart: p.stats.sourceStart, SourceEnd: p.stats.sourceEnd, SourceEpoch: p.src.epoch, Position: p.tail.position,
		LastFetch: p.stats.lastFetch, LastAppend: p.stats.lastAppend, Error: p.errOp,
		Held: p.heldStatus(),
	})
}

// checkpoint is the newest one; ok is false when it was handed out before, or
// there is none yet. final: the partition has stopped; clean: nothing was in
// flight then.
func (p *Partition) checkpoint(final, clean bool) (cp ledger.Checkpoint, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.rec == nil || p.log == nil || p.log.Open() == nil || p.live == nil {
		return cp, false
	}
	paused := p.phase == phaseIdle && p.everRan && p.rec.State == epoch.StatePaused
	if p.phase != phaseRun && !paused && (!final || p.phase != phaseClosed || !clean) || p.suspect != nil || p.awaits > p.tail.position && !p.shadowing() {
		return cp, false
	}
	cp = ledger.Checkpoint{
		Topic: p.topic, Partition: p.partition, Lineage: p.rec.Lineage, Gen: p.tail.gen, Under: p.tail.under,
		V: p.tail.vEnd, ChainEnd: p.tail.chainEnd, P: p.tail.p,
		Position: p.tail.position, LastEpoch: p.tail.epoch,
		EndShown: p.live.Tail().EverShown, SourceEnd: p.stats.sourceEnd, Open: p.tail.openAt,
		Released: final && clean, StateEpoch: p.rec.StateEpoch,
	}
	if p.shadowing() {
		cp.EndShown = max(cp.EndShown, p.rec.Shadow.Target)
	}
	if p.mayShow < 0 {
		cp.SourceEnd = -1 // it said more than its end: nobody knows what was shown
	}
	// On a compacted topic the time counts even if nothing else is new (M26).
	if p.compacted && (p.caught.IsZero() || p.caught.Sub(p.saved.CaughtUp) < p.keepTombs/24 && !p.saved.CaughtUp.IsZero()) {
		cp.CaughtUp = p.saved.CaughtUp
	} else if p.compacted {
		cp.CaughtUp = p.caught
	}
	if cp == p.saved {
		return cp, false
	}
	if p.compacted {
		cp.CaughtUp = p.caught
	}
	p.saved = cp
	cp.At = time.Now()
	return cp, true
}

// settled tells whoever waits for it that nothing is in flight any more. mu is
// held.
func (p *Partition) settled() {
	if p.inflight != nil {
		return
	}
	if p.idle != nil {
		close(p.idle)
		p.idle = nil
	}
	switch {
	case p.phase == phaseStop || p.phase == phasePause:
		p.wake.wake()
	case p.phase == phaseRun && (p.todo.ask != nil || p.suspect != nil || p.switchDue()):
		p.wake.wake()
	}
}

// quiesce stops fetching and writing and waits for what is in flight. It says
// whether the partition stopped cleanly: the next owner then needs no new
// generation.
func (p *Partition) quiesce(ctx context.Context) bool {
	p.mu.Lock()
	was := p.phase
	p.phase = phaseClosed
	p.dropQueue()
	var idle chan struct{}
	if p.inflight != nil {
		idle = make(chan struct{})
		p.idle = idle
	}
	p.mu.Unlock()
	if was != phaseRun && (was != phaseIdle || !p.everRan) {
		return false
	}
	if idle != nil {
		select {
		case <-idle:
		case <-ctx.Done():
			return false
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.unsure < 0
}

// shutdown forgets everything; the partition is not used again.
func (p *Partition) shutdown() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return
	}
	p.closed = true
	p.phase = phaseClosed
	p.inflight = nil
	p.dropQueue()
	p.settled()
	if p.live != nil {
		p.live.Retract()
	}
	p.eng.Metrics.remove(p)
}

// Status is what describe says about a partition.
type Status struct {
	State       ledger.State
	Failed      bool
	Error       string // of the last thing that went wrong, "" after a success
	Position    int64  // first source offset not yet mirrored
	VirtualEnd  int64
	SourceStart int64 // -1: not known
	SourceEnd   int64 // last stable offset; -1: not known
	SourceEpoch int32
	DestEpoch   int32
	LastFetch   time.Time
	LastAppend  time.Time
	// Waiting: ids of instances, or things, that LOG_ALIGNMENT, ULE_RECOVERY or
	// STOPPING wait for.
	Waiting []string
	Left    *ledger.Left // what the newest stop left behind
}

// Status is a snapshot for describe.
func (p *Partition) Status() Status {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := Status{
		State: epoch.StateUnknown, Failed: p.phase == phaseFailed, Error: p.errOp,
		Position: p.tail.position, VirtualEnd: p.tail.vEnd,
		SourceStart: p.stats.sourceStart, SourceEnd: p.stats.sourceEnd,
		SourceEpoch: p.src.epoch, DestEpoch: p.dst.epoch,
		LastFetch: p.stats.lastFetch, LastAppend: p.stats.lastAppend,
	}
	s.Waiting = p.waiting
	if p.rec != nil {
		s.State, s.Left = p.rec.State, p.rec.Left
	}
	if s.Failed {
		s.State = epoch.StateFailed
	}
	return s
}
