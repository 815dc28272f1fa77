package proxy

import (
	"time"

	"github.com/lockstep-kafka/lockstep/internal/ledger"
)

// partKey names a partition by topic name.
type partKey struct {
	topic     string
	partition int32
}

// connState is what the handlers keep for one client connection. Its zero
// value is ready to use; it is touched on the connection's event loop only.
type connState struct {
	sessions map[int32]*fetchSession
	// passedVersion is the view's TopicsVersion when a session-creating Fetch
	// of this connection was last passed on to the broker; hasPassed: there was
	// one. A broker's own session is continued only while the set of mirror
	// topics is the same (M3).
	passedVersion uint64
	hasPassed     bool

	cursors map[partKey]*cursor

	// shares is, by member, the view's TopicsVersion when the share session that
	// the broker keeps for it was begun.
	shares map[string]uint64
}

// shareSession says whether a broker's share session may go on: all that is in
// it was looked at when it was begun, and the set of mirror topics is the same.
func (s *connState) shareSession(member *string, epoch int32, version uint64) bool {
	m := ""
	if member != nil {
		m = *member
	}
	begun, ok := s.shares[m]
	switch {
	case epoch > sessionEpochInitial:
		return ok && begun == version
	case epoch == sessionEpochFinal:
		delete(s.shares, m)
		return true
	}
	if s.shares == nil || len(s.shares) >= maxSessionsPerConn && !ok {
		s.shares = map[string]uint64{} // those of before begin anew
	}
	s.shares[m] = version
	return true
}

// Bounds of what one connection may make Lockstep keep.
const (
	maxSessionsPerConn   = 4
	maxCursorsPerConn    = 20_000
	maxPartitionsPerSess = 100_000
)

// cursor remembers where reading a mirror partition goes on: two pairs, so that
// a client that asks again for what it was just given doesn't cost a look-up.
type cursor struct {
	next, prev mark
	spans      spanSet
	seen       int64 // highest virtual end this connection was shown, -1: none
	// ru: the broker's last stable offset was below its high watermark in a
	// mirrored span, so this partition is read READ_UNCOMMITTED (H16).
	ru bool
	// sound is when the broker behind was last asked whether the open native
	// span is whole (native.go).
	sound time.Time
	bump  int32 // of the log it was used with last
	// hole is the offset from which the client was last sent on over a hole, at
	// holeAt; -1: it has asked for another since.
	hole   int64
	holeAt time.Time
	deadPE int32 // newest physical epoch of what was passed over as dead in the open native span, -1: nothing
	// far is where a request goes on though it is astray, as one can't read more.
	far int64
	// early is when the client was last told to wait above the end, zero: it
	// stands in range.
	early time.Time
}

// earlyAgain is how often it is looked whether who waits above the end, because
// that may have been shown, is out of range after all.
const earlyAgain = time.Second

// holeAgain: a client may have dropped the batch that sends it over a hole.
const holeAgain = 5 * time.Second

// mark says: who wants v reads on at p, and the chain of batches stands there at
// chain (-1: not known, as after a look-up; the first batch then only has to
// reach down to v).
type mark struct {
	v, p, chain int64
}

// spanSet identifies the history and the span list a physical offset was found
// under. A new span may mean that the destination has lost its tail, and that the
// same virtual offset now lies lower: cursors do not outlive it. A topic that was
// made anew has the first one's numbers again.
type spanSet struct {
	lineage  string
	n        int
	vs, ps   int64
	gen      int16
	pe       int32
	occupied bool
}

func spansOf(p *ledger.Partition) spanSet {
	set := spanSet{}
	if p.Record != nil {
		set.lineage = p.Record.Lineage
	}
	l := p.Log
	if len(l.Spans) == 0 {
		return set
	}
	s := l.Spans[len(l.Spans)-1]
	return spanSet{lineage: set.lineage, n: len(l.Spans), vs: s.VStart, ps: s.PStart, gen: s.Gen, pe: s.PEpoch, occupied: true}
}

// cursor returns the partition's cursor, made when there is none, emptied when
// it was found under other spans.
func (s *connState) cursor(k partKey, p *ledger.Partition) *cursor {
	c := s.cursors[k]
	if c == nil {
		if len(s.cursors) >= maxCursorsPerConn {
			clear(s.cursors)
		}
		if s.cursors == nil {
			s.cursors = map[partKey]*cursor{}
		}
		c = &cursor{}
		c.forget()
		s.cursors[k] = c
	}
	if set := spansOf(p); c.spans != set {
		c.forget()
		c.spans = set
	}
	c.bump = p.Log.Bump
	return c
}

// find returns where to read on for virtual offset v.
func (c *cursor) find(v int64) (m mark, ok bool) {
	for _, m := range [...]mark{c.next, c.prev} {
		if m.v == v {
			return m, true
		}
	}
	return mark{}, false
}

// advance: the client that asked for m.v is read on at m.p without having been
// given anything (what lay before is hidden), or will ask for m.v next.
func (c *cursor) advance(m mark) {
	if c.next.v != m.v {
		c.prev = c.next
	}
	c.next = m
}

// forget drops what is known, not the isolation alarm.
func (c *cursor) forget() {
	c.lose()
	c.seen, c.hole, c.deadPE, c.far, c.sound, c.early = -1, -1, -1, -1, time.Time{}, time.Time{}
}

// doubt is forget, but for where the client was sent over a hole.
func (c *cursor) doubt() {
	hole, at := c.hole, c.holeAt
	c.forget()
	c.hole, c.holeAt = hole, at
}

// lose drops where to read on.
func (c *cursor) lose() { c.next, c.prev = mark{-1, -1, -1}, mark{-1, -1, -1} }
