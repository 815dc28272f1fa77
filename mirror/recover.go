package mirror

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"time"

	"github.com/lockstep-kafka/lockstep/epoch"
	"github.com/lockstep-kafka/lockstep/internal/kconn"
	"github.com/lockstep-kafka/lockstep/internal/ledger"
	"github.com/lockstep-kafka/lockstep/protocol"
)

// regen asks for recovery: re-read the tail, and a new generation where it is
// needed.
type regen struct {
	why        string
	force      bool  // a new generation even if nothing seems to have changed
	hasCut     bool  // cut: go on at this source offset at the latest
	cut        int64 // no live record lies at or above it, or they are of the same branch
	hasRestart bool  // restart: as from an empty log at this source offset
	restart    int64
	ule        bool // live records go: ULE_RECOVERY
	truncated  bool // the source has records at the cut: a virtual start above it comes down with it
	rebuild    *rebuild
}

func (r *regen) merge(o regen) *regen {
	if r == nil {
		return &o
	}
	m := *r
	m.force = m.force || o.force
	m.ule = m.ule || o.ule
	m.truncated = m.truncated || o.truncated
	m.rebuild = m.rebuild.merge(o.rebuild)
	if o.hasCut {
		if m.hasCut {
			m.cut = min(m.cut, o.cut)
		} else {
			m.hasCut, m.cut = true, o.cut
		}
	}
	if o.hasRestart {
		m.hasRestart, m.restart = true, o.restart
	}
	if o.why != "" {
		m.why = o.why
	}
	return &m
}

// physical is a destination partition's log as its leader told.
type physical struct {
	start, end int64 // end: the high watermark
	bound      int64 // what lies at or above it can't be of the open generation, or is unsure
}

// recover re-reads the destination's tail and takes up work there (DESIGN §3).
// A new generation is in the ledger before anything is fetched or written.
func (p *Partition) recover(ctx context.Context) error {
	p.mu.Lock()
	p.reload()
	r := p.todo.regen.merge(regen{}) // continued may add to it
	dst, rec, l := p.dst, p.rec, p.log
	m, suspect := p.memory(), p.suspect
	p.mu.Unlock()
	if err := p.reachable(rec, dst); err != nil {
		return err
	}
	cp := p.usable(rec)
	var next *epoch.Log
	var b epoch.Book
	var t tail
	lost := false
	ph, err := p.readEnds(ctx, dst, l, m, cp)
	if err != nil {
		return err
	}
	err = p.eng.dst.with(ctx, dst.addr, func(c *kconn.Conn) (err error) {
		p.missedTombstones(r, rec, cp)
		p.nowCompacted(r, rec)
		if next, t, err = p.continued(ctx, c, r, l, dst, ph, cp, m); err != nil {
			return err
		}
		b, next = p.takenOn(rec, l, next, dst)
		if rec.Shadow != nil {
			if b, lost, err = p.viewLost(ctx, c, b, dst, ph); err != nil {
				return err
			}
		}
		if r.rebuild != nil {
			b, t, err = p.beside(ctx, c, r, b, dst, ph)
		}
		return err
	})
	if err != nil {
		return err
	}
	fresh := genOf(next) != genOf(l)
	state := epoch.StateMirroring
	if r.ule || rec.State == epoch.StateULERecovery || rec.State == epoch.StateFailed && rec.Previous == epoch.StateULERecovery {
		state = epoch.StateULERecovery
	}
	if fresh || lost || rec.State != state {
		if fresh {
			p.met.generation(r.why)
			o := next.Open()
			p.slog.Info("new generation", "why", r.why, "gen", o.Gen, "v", o.VStart, "p", o.PStart, "epoch", o.PEpoch)
		}
		err := p.put(ctx, func(rec *ledger.Record) {
			cut := fresh && (r.hasCut || r.hasRestart) && rec.Shadow == nil
			restarted := fresh && r.hasRestart && rec.Shadow == nil
			setBook(rec, b)
			if cut {
				rec.CutAt = rec.StateEpoch
			}
			if p.compacted && (r.rebuild != nil || fresh && r.hasRestart) {
				rec.CopyFrom = time.Now().UTC()
			}
			if restarted {
				// An emptied log is another history: no pair of before, here or
				// at the other side, may count for it (H7).
				rec.Lineage, rec.Past, rec.Pairs = newLineage(), nil, nil
				rec.Lacks, rec.Plain = false, false // all that the source has comes
			}
			rec.State, rec.Error = state, ""
		})
		if err != nil {
			return err
		}
	}
	if fresh && (r.hasCut || r.hasRestart) {
		// What was shown above the cut is no longer the end ever shown.
		p.live.Retract()
		cp = nil
	}
	p.mu.Lock()
	if fresh && (r.hasCut || r.hasRestart) {
		p.mayShow = t.position
	}
	if fresh && r.hasRestart || r.rebuild != nil && !r.rebuild.keep {
		p.awaits = 0 // nothing live lies in front of it
	}
	if p.suspect == suspect {
		p.suspect = nil // it was read, from in front of it
	}
	if r.rebuild != nil {
		p.caught = time.Time{}
	}
	p.mu.Unlock()
	if state == epoch.StateULERecovery {
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.phase == phaseRecover {
			p.slog.Info("state", "to", state, "v", t.vEnd)
			// Without the checkpoint: the end it has shown was cut, and who stands
			// above the new one is out of range now, not early (H12).
			p.phase, p.pending = phaseAwait, &resumption{dst: dst, t: t}
			p.todo = todo{advance: -1, err: p.todo.err}
			p.live.Retract()
		}
		return nil
	}
	p.resume(dst, fresh, t, cp)
	p.kick()
	return nil
}

// takenOn is the record's rules with next in place of l, pairs lowered with it.
func (p *Partition) takenOn(rec *ledger.Record, l, next *epoch.Log, dst leader) (epoch.Book, *epoch.Log) {
	b := bookOf(rec, "")
	if genOf(next) == genOf(l) {
		return b, next
	}
	src, _ := p.leaders()
	next = p.raised(next, src.epoch, dst.epoch)
	if rec.Shadow != nil {
		return b.WithWork(next), next
	}
	return lowered(b, l, next), next
}

// reload takes in the newest ledger record: a write whose outcome was unknown
// may be there after all, the manager notes what is desired, or another owner
// has been at work. moved: the log or the state is not what this partition
// works with; if it runs, it goes into recovery, and whatever was computed
// from them must not be written. mu is held.
func (p *Partition) reload() (moved bool) {
	s := p.eng.Store.Partition(p.topic, p.partition)
	if s == nil || s.Record == nil || s.Record.StateEpoch <= p.rec.StateEpoch {
		return false
	}
	was := p.rec
	p.rec, p.log = s.Record, s.Record.Work()
	if was.State == s.Record.State && was.Lineage == s.Record.Lineage && reflect.DeepEqual(&was.Log, s.Log) && reflect.DeepEqual(was.Shadow, s.Record.Shadow) && slices.Equal(was.Pairs, s.Record.Pairs) {
		return false
	}
	p.pending = nil
	if p.phase == phaseRun || p.phase == phaseRecover {
		p.slog.Warn("the ledger's record is not the one that is worked with: the log is read again")
		p.doubt("ledger", regen{force: true})
	}
	return true
}

// resume puts the partition to work at t.
func (p *Partition) resume(dst leader, fresh bool, t tail, cp *ledger.Checkpoint) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.phase != phaseRecover {
		return
	}
	o := p.log.Open()
	p.everRan = true
	p.gen, p.tail = o.Gen, t
	p.tail.under = o.Gen
	p.recent.dropFrom(t.p)
	p.expected = max(t.p, o.PStart)
	if fresh {
		p.unsure = -1
		p.live.Forget(t.p)
	}
	p.errOp = ""
	p.produceTry, p.writeWait = 0, time.Time{}
	p.drain = false
	p.todo.regen, p.todo.ask = nil, nil
	p.walk.open = openTxns{}
	p.dropQueue()
	if t.openAt {
		p.forgetOpen()
	}
	if cp != nil {
		if last, shown := p.live.Tail(), cp.Shown(p.rec); shown > last.EverShown {
			last.EverShown = shown
			p.live.Publish(last)
		}
	}
	if p.dst.epoch != dst.epoch || p.dst.broker != dst.broker {
		// It changed again meanwhile.
		p.todo.regen = &regen{why: "leader_epoch"}
		return
	}
	p.phase = phaseRun
	p.publish()
	if p.near(p.src.epoch, p.log, dst.epoch) {
		p.todo.bump = true
	}
}

// readEnds asks the destination's leader where its log begins and ends, and up
// to where the open span's leader epoch reaches: what was appended later is
// dead, so nothing that is known about offsets above it counts (F4a).
//
// It lends a connection of the destination's pool by itself: the caller must hold
// none ([connPool.with]).
func (p *Partition) readEnds(ctx context.Context, dst leader, l *epoch.Log, m memory, cp *ledger.Checkpoint) (ph physical, err error) {
	k, ends := partKey{p.topic, p.partition}, p.eng.ends.dst
	if ph.start, err = ends.look(ctx, dst.addr, k, dst.epoch, tsEarliest); err != nil {
		return ph, err
	}
	// A new leader's high watermark may lag behind what was acknowledged: give
	// it a moment before it counts as lost.
	confirmed := int64(0)
	switch {
	case m.known:
		confirmed = m.tail.p
	case cp != nil:
		confirmed = cp.P
	}
	for try := 0; ; try++ {
		if ph.end, err = ends.look(ctx, dst.addr, k, dst.epoch, tsLatest); err != nil {
			return ph, err
		}
		if ph.end >= confirmed || try >= 4 {
			break
		}
		pause(ctx, 100*time.Millisecond<<try)
	}
	ph.bound = ph.end
	if m.unsure >= 0 {
		ph.bound = min(ph.bound, m.unsure)
	}
	o := l.Open()
	if o == nil || o.PEpoch == dst.epoch {
		return ph, nil
	}
	if dst.epoch < o.PEpoch {
		return ph, fmt.Errorf("the destination's metadata has leader epoch %d, the ledger %d: waiting for newer metadata (if it stays so the topic was re-created)", dst.epoch, o.PEpoch)
	}
	err = p.eng.dst.with(ctx, dst.addr, func(c *kconn.Conn) error {
		_, end, err := endOfEpoch(ctx, c, p.topic, p.partition, dst.epoch, o.PEpoch)
		if err == nil && end >= 0 {
			ph.bound = min(ph.bound, end)
		}
		return err
	})
	return ph, err
}

// continued finds the last live batch and makes a new generation behind it, if
// one is needed; else it returns l itself.
func (p *Partition) continued(ctx context.Context, c *kconn.Conn, r *regen, l *epoch.Log, dst leader, ph physical, cp *ledger.Checkpoint, m memory) (*epoch.Log, tail, error) {
	got, anchor, err := p.reread(ctx, c, l, dst, ph, cp, m)
	if err != nil {
		return nil, tail{}, err
	}
	if p.compacted && !m.known && !r.hasRestart {
		if err := p.givenUpBefore(ctx, c, l, dst, ph, cp, &got); err != nil {
			return nil, tail{}, err
		}
	}
	t := tail{vEnd: got.VEnd, chainEnd: got.LastChainEnd, p: max(got.LivePEnd, 0), position: got.Position, epoch: got.LastEpoch, open: got.Open, openAt: got.Open, gen: -1}
	switch got.Basis {
	case epoch.BasisLog:
		if s := &l.Spans[got.Last.Span]; s.Kind == epoch.Mirrored {
			t.gen = s.Gen
		}
	case epoch.BasisCheckpoint:
		t.gen, t.p = anchor.Gen, anchor.P
	default:
		t.p = min(l.Open().PStart, ph.end)
	}
	if p.compacted {
		p.mu.Lock()
		p.awaits = max(p.awaits, got.Dead.AheadEnd)
		p.mu.Unlock()
	}
	if p.compacted && got.Dead.Any() && !r.hasRestart {
		p.slog.Warn("on this compacted topic dead batches lie behind mirrored records, and the cleaner would keep them instead", "copies", got.Dead.SameBelow, "other", got.Dead.Foreign)
		r.force = true
		r.rebuild = r.rebuild.merge(&rebuild{keep: got.Dead.Foreign == 0 && got.Dead.LowestV >= 0, from: got.Dead.LowestV})
	}
	if r.rebuild != nil && r.rebuild.keep {
		if r.rebuild.from, err = p.roundDown(ctx, c, l, dst, ph.end, got.VEnd, r.rebuild.from); err != nil {
			return nil, t, err
		}
	}
	if !got.NewGeneration && !r.force {
		t.position = max(t.position, l.Start)
		return l, t, nil
	}
	if r.why == "" || r.why == "take-over" || r.why == "connection" {
		p.slog.Info("recovered", "basis", got.Basis, "why", got.Why, "vEnd", got.VEnd, "position", got.Position, "lost", got.Lost)
	}
	gen, err := l.NextGeneration(nil)
	if err != nil {
		return nil, t, failForGood(reasonLedger, "%w", err)
	}
	l = l.DropBelow(ph.start)
	if r.hasRestart {
		n, err := l.Restart(r.restart, ph.end, dst.epoch, gen)
		if err != nil {
			return nil, t, fail(reasonLedger, "%w", err)
		}
		return n, tail{vEnd: r.restart, chainEnd: r.restart, p: ph.end, position: r.restart, epoch: -1, gen: -1}, nil
	}
	cut := t.position
	if r.hasCut {
		if cut = min(cut, r.cut); cut < got.VEnd {
			if cut, err = p.roundDown(ctx, c, l, dst, ph.end, got.VEnd, cut); err != nil {
				return nil, t, err
			}
		}
	}
	n, err := l.Cut(cut, ph.end, dst.epoch, gen)
	if err == nil && n.Open().VStart < t.vEnd {
		n, err = l.CutLive(cut, ph.end, dst.epoch, gen)
	}
	if err != nil {
		return nil, t, fail(reasonLedger, "%w", err)
	}
	n = n.WithLiveEnd(t.p)
	vs := n.Open().VStart // not above cut; lower by H5
	if r.truncated && vs < n.Start {
		c := *n
		c.Start = vs
		n = &c
	}
	if t.vEnd > vs { // live records were cut: the last live batch is another one
		if t, err = p.lastBelow(ctx, c, n, dst, ph); err != nil {
			return nil, t, err
		}
	}
	t.epoch = n.Chain.Newest()
	// Not below the source's log start: a batch that begins below is fetched
	// at the start (F8).
	t.position = max(vs, n.Start)
	return n, t, nil
}

// lastBelow is the tail of log n, whose open generation has just been opened:
// the last batch that is live in it.
func (p *Partition) lastBelow(ctx context.Context, c *kconn.Conn, n *epoch.Log, dst leader, ph physical) (tail, error) {
	o := n.Open()
	t := tail{vEnd: o.VStart, chainEnd: o.VStart, p: min(o.PStart, ph.end), gen: -1}
	found, err := p.walkBack(ctx, c, n, dst, ph)
	if err == nil && found != nil {
		t = tail{vEnd: found.V, chainEnd: found.ChainEnd, p: found.P, open: found.Open, openAt: found.Open, gen: found.Gen}
	}
	return t, err
}

// anchor is the newest place below ph.bound known to be the end of a live
// batch: recovery reads forward from it, so that the chain is checked. It is
// what was confirmed to this owner, or the ledger's checkpoint, or else looked
// for backwards from the end, on a compacted topic from the beginning of the
// open generation, as nobody has said that all in it was looked at (H1); nil when
// there is none.
func (p *Partition) anchor(ctx context.Context, c *kconn.Conn, l *epoch.Log, dst leader, ph physical, cp *ledger.Checkpoint, m memory) (*epoch.Checkpoint, error) {
	if m.below > 0 {
		ph.bound = min(ph.bound, m.below)
	}
	fits := func(at int64) bool { return at <= ph.bound && at > ph.start }
	if m.known {
		if t := m.tail; t.gen >= 0 && fits(t.p) {
			return &epoch.Checkpoint{Gen: t.gen, V: t.vEnd, ChainEnd: t.chainEnd, P: t.p, Position: t.position, LastEpoch: t.epoch, Open: t.openAt, Under: t.under}, nil
		}
		for i := len(m.recent) - 1; i >= 0; i-- {
			if t := m.recent[i]; fits(t.p) {
				return &epoch.Checkpoint{Gen: t.gen, V: t.vEnd, ChainEnd: t.chainEnd, P: t.p, Position: t.vEnd, LastEpoch: t.epoch, Open: t.open}, nil
			}
		}
	} else if cp != nil && (fits(cp.P) || cp.P <= ph.start) {
		return &epoch.Checkpoint{Gen: cp.Gen, V: cp.V, ChainEnd: cp.ChainEnd, P: cp.P, Position: cp.Position, EndShown: cp.EndShown, LastEpoch: cp.LastEpoch, Open: cp.Open, Under: cp.Under}, nil
	}
	if o := l.Open(); p.compacted && !m.known && cp == nil && o != nil && o.Kind == epoch.Mirrored {
		ph.bound = min(ph.bound, o.PStart)
	}
	return p.walkBack(ctx, c, l, dst, ph)
}

// readTail runs epoch's recovery against the log.
func (p *Partition) readTail(ctx context.Context, c *kconn.Conn, l *epoch.Log, dst leader, in epoch.RecoverInput) (epoch.Recovered, error) {
	rec := l.Recover(in)
	var renumbered protocol.Batch // the last one that may be live
	ts := int64(-1)
	for {
		from, to, more := rec.Next()
		if !more {
			break
		}
		err := readBatches(ctx, c, dst, p.topic, p.partition, from, to, func(raw protocol.Batch) error {
			b := readHeader(raw)
			if _, v := l.Classify(b); v == epoch.Live && b.Stamped {
				ts = raw.MaxTimestamp()
				if b.VCount == 0 {
					renumbered = append(renumbered[:0], raw...)
				}
			}
			rec.Feed(b)
			return nil
		})
		if err != nil {
			return epoch.Recovered{}, err
		}
	}
	p.mu.Lock()
	p.lastTS = ts
	p.mu.Unlock()
	got := rec.Result()
	if got.NeedVCount && len(renumbered) > 0 {
		b := readHeader(renumbered)
		n, err := protocol.VirtualCount(renumbered)
		if err != nil {
			return got, fail(reasonDestination, "the destination's batch at offset %d can't be read: %w", b.P, err)
		}
		b.VCount = n
		rec.Feed(b)
		got = rec.Result()
	}
	for _, v := range []epoch.Verdict{epoch.Foreign, epoch.Gap} {
		p.met.verdict(v, got.Count[v])
	}
	return got, nil
}

// walkBack looks at ever longer stretches before ph.bound until one holds a
// batch that is live by its header. The chain can't be checked backwards; a
// recovery that reads from there checks what follows.
func (p *Partition) walkBack(ctx context.Context, c *kconn.Conn, l *epoch.Log, dst leader, ph physical) (*epoch.Checkpoint, error) {
	var found *epoch.Checkpoint
	hi := ph.bound
	for step := int64(1); hi > ph.start && found == nil; step *= 4 {
		lo := max(ph.start, hi-step)
		first := lo
		err := readBatches(ctx, c, dst, p.topic, p.partition, lo, hi, func(raw protocol.Batch) error {
			b := readHeader(raw)
			first = min(first, b.P)
			if pl, v := l.Classify(b); v == epoch.Live && b.Stamped {
				// The true end of a renumbered batch is read again by readTail,
				// unless this says it is known: so it must not be too high.
				found = &epoch.Checkpoint{Gen: b.Gen, V: pl.VEnd, ChainEnd: b.ChainEnd(), P: b.PEnd(), Position: pl.VEnd, LastEpoch: b.Epoch, Open: b.Flags&epoch.FlagOpen != 0}
				if b.VCount == 0 {
					n, err := protocol.VirtualCount(raw)
					if err != nil {
						return fail(reasonDestination, "the destination's batch at offset %d can't be read: %w", b.P, err)
					}
					found.V, found.Position = b.V+n, b.V+n
				}
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
		hi = first
	}
	return found, nil
}
