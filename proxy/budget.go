package proxy

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// budget is the bound on what the client side of the process holds
// (limits.proxy_memory). It has two halves.
//
// The first is for bytes that pass. There the mark above which a slow peer's
// other side is not read any more falls with what is left: a fourth of it, so
// that ten slow readers have 4 MiB each, a thousand 260 KiB each, and something
// is always left for the next one. Nobody waits for anybody: a connection with
// nothing in its way may always read a little (floorBytes).
//
// The second is for frames that have to be whole: requests and answers of
// handled exchanges, answers that are rewritten, and what is left of them for a
// slow client. Their size is known when they begin, so the room is asked for then
// (claim), in the order of asking; while it is waited for, that socket isn't
// read. Whoever holds something already is let through, since it can't give
// back what it has before it gets the rest. Small frames don't ask. A connection
// that has held its room for long without an exchange that runs, while others
// wait for it, is closed: ReasonMemory.
type budget struct {
	limit    func() int64
	passing  func() int64 // bytes held that are not in whole frames
	patience time.Duration

	granted atomic.Int64
	rest    atomic.Int64 // of granted, what has become bytes that pass
	waiting atomic.Int32

	mu    sync.Mutex // a leaf; guards queue, and granted against claims
	queue []*claim
}

const (
	floorBytes     = 16 << 10 // what may wait for one peer, however little is left
	freeFrameBytes = 64 << 10 // frames below need no claim
	memoryPatience = 10 * time.Second
)

// claim waits for room; ready runs when it is there, called on any goroutine.
type claim struct {
	n     int64
	ready func()
}

func newBudget(e *engine, limit func() int64) *budget {
	return &budget{limit: limit, patience: memoryPatience, passing: e.passing}
}

// left is what is free of the first half.
func (b *budget) left() int64 {
	limit, granted := b.limit(), b.granted.Load()
	return min(limit/2, limit-granted) - max(0, b.passing()-b.rest.Load())
}

// mark is how much may wait for one slow peer, most at best.
func (b *budget) mark(most int) int {
	return max(min(most, int(b.left()/4)), min(most, floorBytes))
}

// readSize is what one read takes at most.
func (b *budget) readSize() int {
	if b.waiting.Load() > 0 || b.left() < b.limit()/8 {
		return floorBytes
	}
	return readBufferBytes
}

// ration is how large an answer should be that is asked for now.
func (b *budget) ration(most int32) int32 {
	free := (b.limit()/2 - b.granted.Load()) / 8
	return int32(min(int64(most), max(free, 4*freeFrameBytes)))
}

// take gets n bytes at once, or puts a claim into the queue. One claim can
// always be met, whatever its size.
func (b *budget) take(n int64, ready func()) *claim {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.waiting.Add(1) // before granted is looked at: giveBack does both the other way round
	if len(b.queue) == 0 && b.fits(n) {
		b.granted.Add(n)
		b.waiting.Add(-1)
		return nil
	}
	c := &claim{n, ready}
	b.queue = append(b.queue, c)
	return c
}

func (b *budget) fits(n int64) bool {
	g := b.granted.Load()
	return g == 0 || g+n <= b.limit()/2
}

// force gets n bytes, whatever is left.
func (b *budget) force(n int64) { b.granted.Add(n) }

// giveBack lets those go on that are next.
func (b *budget) giveBack(n int64) {
	b.granted.Add(-n)
	if b.waiting.Load() == 0 {
		return
	}
	b.mu.Lock()
	var next []*claim
	for len(b.queue) > 0 && b.fits(b.queue[0].n) {
		c := b.queue[0]
		b.queue = b.queue[1:]
		b.waiting.Add(-1)
		b.granted.Add(c.n)
		next = append(next, c)
	}
	b.mu.Unlock()
	for _, c := range next {
		c.ready()
	}
}

// cancel ends a claim; false: it has been met already, and its room has to be
// given back.
func (b *budget) cancel(c *claim) bool {
	b.mu.Lock()
	i := slices.Index(b.queue, c)
	if i >= 0 {
		b.queue = slices.Delete(b.queue, i, i+1)
		b.waiting.Add(-1)
	}
	b.mu.Unlock()
	if i == 0 {
		b.giveBack(0) // the one behind it may fit
	}
	return i >= 0
}

// first is the claim that is met next; nil: none waits.
func (b *budget) first() *claim {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.queue) == 0 {
		return nil
	}
	return b.queue[0]
}

// holding is the room that a session has, and what it waits for.
type holding struct {
	room  int64
	rest  int64 // of room: waits for the client, or the broker
	since time.Time
	claim *claim // one frame at a time is claimed
	paid  int    // size of the frame that the newest room is for; 0: it has begun
}

// frameCost is what a frame of size bytes can take: itself, and once more as
// what waits for a slow peer, or while its buffer grows.
func frameCost(size int) int64 { return 2 * int64(size) }

// claimFrame says whether a frame may be buffered now; if not, resume runs on
// the loop when it may, and claimFrame then says so.
func (s *session) claimFrame(h *holding, size int, resume func()) bool {
	b, n := s.p.budget, frameCost(size)
	switch {
	case size < freeFrameBytes:
		return true
	case h.claim != nil:
		return false
	case h.paid == size:
		h.paid = 0
		return true
	case s.asked.room+s.answers.room > 0:
		b.force(n)
		s.gotRoom(h, n)
		return true
	}
	var c *claim
	c = b.take(n, func() {
		granted := s.l.post(func() {
			if s.closed || h.claim != c {
				return // given back by release
			}
			s.enter()
			defer s.leave()
			h.claim, h.paid = nil, size
			s.gotRoom(h, n)
			resume()
		})
		_ = granted // a loop that has ended closes all its sessions anyway
	})
	if c == nil {
		s.gotRoom(h, n)
		return true
	}
	h.claim = c
	s.l.afterFunc(b.patience, func() { s.starving(h, c) })
	return false
}

func (s *session) gotRoom(h *holding, n int64) {
	h.room += n
	h.since = time.Now()
}

// starving looks whether a claim is still not met: then those that hold their
// room for too long are closed.
func (s *session) starving(h *holding, c *claim) {
	if s.closed || h.claim != c {
		return
	}
	b := s.p.budget
	if b.first() == c {
		for _, l := range s.p.engine.loops {
			l.post(func() { s.p.relieve(l, c.n) })
		}
	}
	s.l.afterFunc(b.patience/8, func() { s.starving(h, c) })
}

// relieve closes connections of a loop that hold room for too long, the oldest
// first, until need is free.
func (p *Proxy) relieve(l *loop, need int64) {
	var old []*session
	for s := range l.sessions {
		if s.asked.room+s.answers.room > 0 && s.x == nil && s.waiting == nil && time.Since(s.heldSince()) >= p.budget.patience {
			old = append(old, s)
		}
	}
	slices.SortFunc(old, func(a, b *session) int { return a.heldSince().Compare(b.heldSince()) })
	for _, s := range old {
		if need <= 0 || p.budget.waiting.Load() == 0 {
			return
		}
		need -= s.asked.room + s.answers.room
		s.close(ReasonMemory, errMemory)
	}
}

func (s *session) heldSince() time.Time {
	if s.asked.since.After(s.answers.since) {
		return s.asked.since
	}
	return s.answers.since
}

// trim gives back the room of what has gone out; it is called whenever
// something has moved, and before another exchange starts: a client with always
// one more request under way would else keep the room of all that it has ever
// sent. An exchange keeps what it has until it ends.
func (s *session) trim() {
	room := s.asked.room + s.answers.room
	if room == 0 || s.x != nil || s.waiting != nil {
		return
	}
	need := roomOf(s.req.size) + roomOf(s.resp.size) + roomOf(s.asked.paid) + roomOf(s.answers.paid)
	rest := int64(s.client.buffered())
	if s.upstream != nil {
		rest += int64(s.upstream.buffered())
	}
	if rest < freeFrameBytes {
		rest = 0
	}
	need = min(need, room)
	rest = min(rest, room-need)
	s.p.budget.rest.Add(rest - s.answers.rest)
	s.asked.room, s.answers.room, s.answers.rest = 0, need+rest, rest
	if left := room - need - rest; left > 0 {
		s.p.budget.giveBack(left)
	}
}

// roomOf is what was claimed for a frame of size bytes.
func roomOf(size int) int64 {
	if size < freeFrameBytes {
		return 0
	}
	return frameCost(size)
}

// dropRoom gives n bytes back before the exchange that holds them ends.
func (s *session) dropRoom(n int64) {
	n = min(n, s.answers.room-s.answers.rest)
	s.answers.room -= n
	s.p.budget.giveBack(n)
}

// endClaims gives everything back when the session ends: what the client's
// socket still has to take stays counted until that is gone.
func (s *session) endClaims() {
	room, rest := s.asked.room+s.answers.room, s.answers.rest
	for _, h := range []*holding{&s.asked, &s.answers} {
		if h.claim != nil && !s.p.budget.cancel(h.claim) {
			room += h.claim.n
		}
		*h = holding{}
	}
	if room > 0 {
		s.client.atEnd(func() {
			s.p.budget.rest.Add(-rest)
			s.p.budget.giveBack(room)
		})
	}
}
