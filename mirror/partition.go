package mirror

import (
	"context"
	"log/slog"
	"math"
	"sync"
	"time"

	"github.com/lockstep-kafka/lockstep/epoch"
	"github.com/lockstep-kafka/lockstep/internal/kconn"
	"github.com/lockstep-kafka/lockstep/internal/ledger"
	"github.com/lockstep-kafka/lockstep/protocol"
)

// phase is what a partition does right now; the ledger's state is coarser.
type phase uint8

const (
	phaseIdle    phase = iota // the ledger's state mirrors nothing (PAUSED, STOPPED …)
	phaseRecover              // the tail has to be read before anything is fetched or written
	phaseRun                  // fetches and writes
	phaseFailed               // waits for its next try, or for the operator
	phaseClosed               // quiescing, removed or fenced
)

// item is an entry of a partition's queue: a batch to be written, or (batch
// nil) a stretch of source offsets that only moves the position.
type item struct {
	batch   protocol.Batch // stamped when ready
	buf     *kconn.Buffer  // holds batch; nil when the batch has memory of its own
	release func()         // gives back what the slow path took
	ready   bool           // stamped, or nothing to stamp
	base    int64          // source offset it begins at
	vEnd    int64          // its own end
	next    int64          // vEnd, or the end of what is skipped behind it
	count   int64
	epoch   int32
	open    bool // a source transaction is open at its end
	maxTS   int64
	size    int
	dropped bool // no longer in the queue: the slow path's result isn't wanted
}

func (it *item) free() {
	if it.buf != nil {
		it.buf.Release()
		it.buf = nil
	}
	if it.release != nil {
		it.release()
		it.release = nil
	}
}

// tail is the end of what is confirmed on the destination.
type tail struct {
	vEnd     int64 // end of the last live batch, the open span's virtual start before any
	chainEnd int64 // from where the next batch's hole counts
	p        int64 // physical end of the last live batch
	position int64 // first source offset not yet mirrored
	epoch    int32 // of the last source batch seen, skipped ones included; -1: none
	open     bool  // the last live batch was inside a source transaction
	gen      int16 // of the last live batch, -1: none
	at       int64 // unix ms of its answer
}

// recents are some of the tails confirmed within the last seconds: where to
// read on from if the destination turns out to have lost the newest ones.
type recents struct{ l []tail }

const (
	recentMax   = 64
	recentEvery = 250 // ms
)

func (r *recents) add(t tail) {
	if n := len(r.l); n > 0 && t.at-r.l[n-1].at < recentEvery && t.at >= r.l[n-1].at {
		return
	}
	if len(r.l) == recentMax {
		copy(r.l, r.l[1:])
		r.l = r.l[:recentMax-1]
	}
	r.l = append(r.l, t)
}

// dropFrom forgets what lies behind physical offset p.
func (r *recents) dropFrom(p int64) {
	for len(r.l) > 0 && r.l[len(r.l)-1].p > p {
		r.l = r.l[:len(r.l)-1]
	}
}

func (r *recents) list() []tail { return append([]tail(nil), r.l...) }

// todo is what a partition's own goroutine has to do, all that is set.
type todo struct {
	regen   *regen   // re-read the tail; first of all
	assign  bool     // the head of the queue has an epoch the chain lacks
	bump    bool     // the source's leader epoch comes near the one shown
	advance int64    // the source's log start, when it moved above ours; -1
	ask     *ask     // ask the source about our end
	inspect *stretch // look at what somebody wrote into a compacted topic
	err     error    // go FAILED
}

// Partition is one mirrored partition. See the package's comment for who may
// do what.
type Partition struct {
	eng       *Engine
	topic     string
	partition int32
	compacted bool
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

	everRan  bool // tail is what was confirmed to us
	tail     tail
	recent   recents
	expected int64 // physical base offset that the next produce should get
	unsure   int64 // physical base expected for the first produce with an unknown outcome, -1: none

	walk     walkState // where the queue ends
	queue    []*item
	queued   int    // bytes in queue
	inflight *item  // being produced
	sentAt   int64  // expected when inflight was sent
	token    uint64 // changes when the queue's end is set anew
	// drain: the source said something about our end that may cut it; ask again
	// only when nothing is queued or in flight.
	drain      bool
	asked      int32     // Fetch below v12: source leader epoch for which the end was checked
	sourceWait time.Time // no fetch before
	sourceTry  int       // failed fetches in a row
	advanced   time.Time // when the source's log start was last taken over
	goneSince  time.Time // the source's metadata lacks the topic; zero: it does not
	produceTry int       // refused produces in a row
	writeWait  time.Time // no produce before
	setOpen    bool      // walk.open.until waits for a first high watermark

	stats  stats
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
	progressed             bool  // something was appended since the partition left FAILED
}

func newPartition(e *Engine, s Spec) *Partition {
	p := &Partition{
		eng: e, topic: s.Topic, partition: s.Partition, compacted: s.Compacted,
		slog: e.Logger.With("mirror", e.Mirror, "topic", s.Topic, "partition", s.Partition),
		met:  e.Metrics.partition(e.Mirror, s.Topic),
		wake: make(wakeChan, 1), stop: func() {},
		src: leader{broker: -1, epoch: -1}, dst: leader{broker: -1, epoch: -1},
		unsure: -1, asked: -1, todo: todo{advance: -1},
		stats: stats{sourceStart: -1, sourceEnd: -1, caughtUp: time.Now()},
		saved: ledger.Checkpoint{Position: -1},
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
		if mirrored := p.mirroredID(); !l.id.IsZero() && !mirrored.IsZero() && l.id != mirrored {
			p.setTodoErr(failForGood(reasonRecreated, "the source topic was deleted and created again (id %s, mirrored was %s): stop the mirror to keep what it has, or delete the destination topic and mirror anew", l.id, mirrored))
		}
	case p.goneSince.IsZero():
		p.goneSince = time.Now()
	case time.Since(p.goneSince) >= p.eng.Tuning.GoneAfter:
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
	if p.phase == phaseRun && l.epoch > p.log.Shown(p.dst.epoch)-bumpMargin {
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

// bumpMargin: the epoch shown is raised when the source's comes within it.
const bumpMargin = 3

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
	if p.phase == phaseRun && l.broker >= 0 && (again || l.epoch != p.log.Open().PEpoch) {
		p.doubt("leader_epoch", regen{})
	}
	p.wake.wake()
}

// doubt empties the queue and sends the partition into recovery. What is in
// flight counts as unknown. mu is held.
func (p *Partition) doubt(why string, r regen) {
	if p.phase != phaseRun && p.phase != phaseRecover {
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

// dropQueue forgets what is queued; the next fetch asks at the confirmed
// position. mu is held.
func (p *Partition) dropQueue() {
	for _, it := range p.queue {
		it.dropped = true
		it.free()
	}
	clear(p.queue)
	p.queue, p.queued = p.queue[:0], 0
	p.token++
	if it := p.inflight; it == nil {
		p.walk.position, p.walk.epoch, p.walk.chainEnd = p.tail.position, p.tail.epoch, p.tail.chainEnd
		p.walk.floor = max(p.tail.vEnd, p.vStart())
	} else {
		p.walk.position, p.walk.epoch, p.walk.chainEnd, p.walk.floor = it.next, it.epoch, it.base+it.count, it.vEnd
	}
	// Transactions seen to begin in what was dropped are seen again.
	if len(p.walk.open.pids) > 0 {
		clear(p.walk.open.pids)
		p.forgetOpen()
	}
}

// forgetOpen: nothing is known about transactions begun before the walk's
// position, so every batch counts as inside one until the position has passed
// what is the high watermark at the next fetch: by then all that were begun
// below the last stable offset of that moment have ended.
func (p *Partition) forgetOpen() {
	p.walk.open.until, p.setOpen = math.MaxInt64, true
}

func (p *Partition) vStart() int64 {
	if p.log == nil || p.log.Open() == nil {
		return 0
	}
	return p.log.Open().VStart
}

// kick lets fetchers and writers look at the partition again.
func (p *Partition) kick() {
	src, dst := p.leaders()
	p.eng.kickFetcher(src.broker)
	p.eng.kickWriter(p, dst.broker)
}

// enqueue takes what a fetch brought. mu is held; buf is retained for each
// batch.
func (p *Partition) enqueue(c chunk, buf *kconn.Buffer) error {
	it := &item{base: c.base, vEnd: c.next, next: c.next, count: c.count, epoch: c.epoch, maxTS: c.maxTS, ready: true}
	if c.batch == nil {
		// Only the position moves: joined to what is before it, if of one epoch.
		if n := len(p.queue); n > 0 && p.queue[n-1].epoch == c.epoch {
			p.queue[n-1].next = c.next
			return nil
		}
		p.queue = append(p.queue, it)
		return nil
	}
	c.stamp.Gen = p.gen
	it.batch, it.size = c.batch, c.batch.Size()
	it.open = c.stamp.Flags&epoch.FlagOpen != 0
	if c.slow {
		it.ready = false
	} else if err := c.batch.WriteStamp(c.stamp); err != nil {
		return err
	}
	buf.Retain()
	it.buf = buf
	p.queue = append(p.queue, it)
	p.queued += it.size
	if c.slow {
		p.met.slow.Inc()
		p.eng.slow.submit(slowJob{p: p, it: it, batch: c.batch, stamp: c.stamp, buf: buf})
	}
	return nil
}

// advance lets the position pass what needs no write, as far as it can. mu is
// held.
func (p *Partition) advance() {
	moved := false
	for len(p.queue) > 0 && p.inflight == nil && p.queue[0].batch == nil {
		it := p.queue[0]
		if !p.knownEpoch(it) {
			break
		}
		p.tail.position, p.tail.epoch = it.next, it.epoch
		p.pop()
		moved = true
	}
	if moved {
		p.publish()
	}
	if len(p.queue) == 0 && p.inflight == nil && p.drain {
		p.drain = false
	}
}

func (p *Partition) pop() {
	p.queued -= p.queue[0].size
	p.queue[0] = nil
	p.queue = p.queue[1:]
}

// knownEpoch says whether the ledger's chain has the item's epoch as the newest
// one; if not, the partition's goroutine is told to add it.
func (p *Partition) knownEpoch(it *item) bool {
	if p.log.Chain.Newest() == it.epoch {
		return true
	}
	if !p.todo.assign {
		p.todo.assign = true
		p.wake.wake()
	}
	return false
}

// take gives the writer for broker the next batch, if there is one that may be
// sent now. mu is not held.
func (p *Partition) take(broker int32, room int, now time.Time) (*item, leader, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.phase != phaseRun || p.inflight != nil || p.dst.broker != broker || now.Before(p.writeWait) {
		return nil, leader{}, false
	}
	p.advance()
	if len(p.queue) == 0 {
		return nil, leader{}, false
	}
	it := p.queue[0]
	if !it.ready || it.size > room || !p.knownEpoch(it) {
		return nil, leader{}, false
	}
	p.pop()
	p.inflight, p.sentAt = it, p.expected
	return it, p.dst, true
}

// publish shows the tail. mu is held.
func (p *Partition) publish() {
	t := p.live.Tail()
	v := max(p.tail.vEnd, min(p.log.Start, p.tail.position))
	p.live.Publish(ledger.Tail{
		VEnd: v, Position: max(p.tail.position, v), PEnd: p.tail.p,
		PEpoch: p.log.Open().PEpoch, EverShown: max(t.EverShown, v),
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
	if p.phase != phaseRun && (!final || p.phase != phaseClosed || !clean) {
		return cp, false
	}
	cp = ledger.Checkpoint{
		Topic: p.topic, Partition: p.partition, Lineage: p.rec.Lineage, Gen: p.tail.gen,
		V: p.tail.vEnd, ChainEnd: p.tail.chainEnd, P: p.tail.p,
		Position: p.tail.position, LastEpoch: p.tail.epoch,
		EndShown: p.live.Tail().EverShown, Open: p.tail.open,
		Released: final && clean,
	}
	if cp == p.saved {
		return cp, false
	}
	p.saved = cp
	cp.At = time.Now()
	return cp, true
}

// settled tells quiesce that nothing is in flight any more. mu is held.
func (p *Partition) settled() {
	if p.idle != nil && p.inflight == nil {
		close(p.idle)
		p.idle = nil
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
	if was != phaseRun {
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
	if p.rec != nil {
		s.State = p.rec.State
	}
	if s.Failed {
		s.State = epoch.StateFailed
	}
	return s
}
