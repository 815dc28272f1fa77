package mirror

import (
	"math"
	"time"

	"github.com/lockstep-kafka/lockstep/epoch"
	"github.com/lockstep-kafka/lockstep/internal/kconn"
	"github.com/lockstep-kafka/lockstep/protocol"
)

// item is an entry of a partition's queue: a batch to be written, or (batch
// nil) a stretch of source offsets that only moves the position.
type item struct {
	batch   protocol.Batch // stamped when ready
	buf     *kconn.Buffer  // holds batch
	ready   bool           // stamped, or nothing to stamp
	base    int64          // source offset it begins at
	vEnd    int64          // its own end
	next    int64          // vEnd, or the end of what is skipped behind it
	count   int64
	epoch   int32
	open    bool // a source transaction is open at vEnd
	openAt  bool // the same at next: markers lie behind the batch
	maxTS   int64
	size    int
	dropped bool  // no longer in the queue: the slow path's result isn't wanted
	err     error // the slow path's: it fails the partition when all in front of it is written
	alone   bool  // fills a request by itself
	merged  int   // source batches that are in it; 0: it is one
}

func (it *item) free() {
	if it.buf != nil {
		it.buf.Release()
		it.buf = nil
	}
}

// tail is the end of what is confirmed on the destination.
type tail struct {
	vEnd     int64 // end of the last live batch, the open span's virtual start before any
	chainEnd int64 // its chain end; the next batch's hole counts from it in the same generation
	p        int64 // physical end of the last live batch
	position int64 // first source offset not yet mirrored
	epoch    int32 // of the last source batch seen, skipped ones included; -1: none
	open     bool  // a source transaction is open at vEnd
	openAt   bool  // the same at position
	gen      int16 // of the last live batch, -1: none
	under    int16 // the generation that is open
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

// dropQueue forgets what is queued; the next fetch asks at the confirmed
// position. mu is held.
func (p *Partition) dropQueue() {
	for _, it := range p.queue {
		it.dropped = true
		it.free()
	}
	clear(p.queue)
	p.queue, p.queued, p.todo.told = p.queue[:0], 0, nil
	p.token++
	if it := p.inflight; it == nil {
		p.walk.position, p.walk.epoch, p.walk.chainEnd = p.tail.position, p.tail.epoch, p.tail.chainEnd
		if p.tail.gen != p.gen { // of this generation there is no live batch yet
			p.walk.chainEnd = p.vStart()
		}
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
// position, so every batch counts as inside one until the position has reached
// what is the end at the next fetch. The last stable offset of that moment is not
// below the position (else it would be a question), so they all have ended, with
// markers below that end.
func (p *Partition) forgetOpen() {
	p.walk.open.until, p.setOpen = math.MaxInt64, true
}

func (p *Partition) vStart() int64 {
	if p.log == nil || p.log.Open() == nil {
		return 0
	}
	return p.log.Open().VStart
}

// enqueue takes what a fetch brought. mu is held; buf is retained for each
// batch.
func (p *Partition) enqueue(c chunk, buf *kconn.Buffer) error {
	it := &item{base: c.base, vEnd: c.next, next: c.next, count: c.count, epoch: c.epoch, maxTS: c.maxTS, ready: true}
	if c.batch == nil {
		// Only the position moves: joined to what is before it, if of one epoch.
		if n := len(p.queue); n > 0 && p.queue[n-1].epoch == c.epoch {
			p.queue[n-1].next, p.queue[n-1].openAt = c.next, c.open
			return nil
		}
		it.openAt = c.open
		p.queue = append(p.queue, it)
		return nil
	}
	c.stamp.Gen, c.stamp.Hole = p.gen, p.gathered.hole(c.base, c.count)
	it.batch, it.size = c.batch, c.batch.Size()
	it.open = c.stamp.Flags&epoch.FlagOpen != 0
	it.openAt = it.open
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

// advance lets the position pass what needs no write, as far as it can: never
// past a batch that was given up. mu is held.
func (p *Partition) advance() {
	moved := false
	for p.todo.err == nil && len(p.queue) > 0 && p.inflight == nil && p.queue[0].batch == nil {
		it := p.queue[0]
		if !p.knownEpoch(it) {
			break
		}
		p.tail.position, p.tail.epoch, p.tail.openAt = it.next, it.epoch, it.openAt
		p.pop()
		moved = true
	}
	if moved {
		p.publish()
		if p.switchDue() {
			p.wake.wake()
		}
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

// knownEpoch says whether the ledger's chain has the epoch of the queue's head
// as the newest one; if not, the partition's goroutine is woken to add it, once
// for each head: after a failed write of the ledger it rests.
func (p *Partition) knownEpoch(head *item) bool {
	if p.log.Chain.Newest() == head.epoch {
		p.todo.told = nil // else it would hold the batch's memory for as long as nothing else is told
		return true
	}
	if p.todo.told != head {
		p.todo.told = head
		p.wake.wake()
	}
	return false
}

// assignDue tells whether the queue's head waits for its epoch to be in the
// ledger's chain. It is looked at anew each time: a note of it would outlive
// the head, or an epoch that has come meanwhile. mu is held.
func (p *Partition) assignDue() bool {
	return p.inflight == nil && len(p.queue) > 0 && p.queue[0].epoch != p.log.Chain.Newest()
}

// take gives the writer for broker the next batch, if there is one that may be
// sent now: none once the partition is to fail, as what failed may be a batch
// in front of it. mu is not held.
func (p *Partition) take(broker int32, room int, now time.Time) (*item, leader, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.phase != phaseRun || p.todo.err != nil || p.inflight != nil || p.switches || p.suspect != nil || p.dst.broker != broker || now.Before(p.writeWait) || p.switchDue() {
		return nil, leader{}, false
	}
	p.advance()
	if len(p.queue) == 0 {
		return nil, leader{}, false
	}
	it := p.queue[0]
	if it.err != nil {
		p.setTodoErr(it.err)
		return nil, leader{}, false
	}
	it.alone = p.cutOff.times > 0 && p.cutOff.base == it.base
	if it.alone && room < roomForOne {
		return nil, leader{}, false // first of a request, or not in it
	}
	if !it.ready || it.size > room || !p.knownEpoch(it) {
		return nil, leader{}, false
	}
	p.pop()
	if p.mayShow >= 0 && it.vEnd > p.mayShow {
		p.mayHaveShown(p.epochsEnd(it))
	}
	p.inflight, p.sentAt = it, p.expected
	return it, p.dst, true
}

// epochsEnd is where the batches of it's epoch end that are queued behind it:
// told once for all of them. mu is held.
func (p *Partition) epochsEnd(it *item) int64 {
	end := it.vEnd
	for _, next := range p.queue {
		if next.epoch != it.epoch {
			break
		}
		if next.batch != nil {
			end = next.vEnd
		}
	}
	return end
}
