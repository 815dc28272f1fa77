package mirror

import (
	"context"
	"time"

	"github.com/lockstep-kafka/lockstep/epoch"
	"github.com/lockstep-kafka/lockstep/internal/kconn"
	"github.com/lockstep-kafka/lockstep/internal/ledger"
	"github.com/lockstep-kafka/lockstep/protocol"
)

// A compacted topic that is mirrored once more beside what is shown (H1, H15):
// epoch.Shadow. The partition's own log, p.log, is the shadow then; everything
// that is done to a log is done to it in the same way. What is here is what
// else it takes: to begin, to hold the cleaner back, to go on showing the other
// log, and to switch.

// rebuild asks for a shadow.
type rebuild struct {
	keep bool  // only from an offset on: a copy of live records lies behind them
	from int64 // keep: that offset
}

// merge: the one that copies more.
func (r *rebuild) merge(o *rebuild) *rebuild {
	switch {
	case r == nil:
		return o
	case o == nil || !r.keep:
		return r
	case !o.keep:
		return o
	}
	return &rebuild{keep: true, from: min(r.from, o.from)}
}

// beside makes a shadow part of what recovery is about to write: next is the
// log that was just cut, or, when there is a shadow already, that one's own
// continuation, which is given up with it.
func (p *Partition) beside(ctx context.Context, c *kconn.Conn, r *regen, b epoch.Book, dst leader, ph physical) (epoch.Book, tail, error) {
	s := epoch.ShadowStart{From: r.rebuild.from, Keep: r.rebuild.keep, Target: b.Log.Open().VStart, PEnd: ph.end, PEpoch: dst.epoch}
	if b.Shadow != nil {
		s.Target = max(s.Target, b.Shadow.Target)
	}
	if !s.Keep {
		src, _ := p.leaders()
		err := p.eng.src.with(ctx, src.addr, func(c *kconn.Conn) (err error) {
			s.From, err = listOffset(ctx, c, p.topic, p.partition, src.epoch, tsEarliest)
			return err
		})
		if err != nil {
			return b, tail{}, err
		}
	}
	return p.besideAt(ctx, c, b, s, dst, ph)
}

func (p *Partition) besideAt(ctx context.Context, c *kconn.Conn, b epoch.Book, s epoch.ShadowStart, dst leader, ph physical) (_ epoch.Book, t tail, err error) {
	if s.Gen, err = b.NextGeneration(-1); err != nil {
		return b, t, failForGood(reasonLedger, "%w", err)
	}
	if b, err = b.Beside(s); err != nil {
		return b, t, fail(reasonLedger, "%w", err)
	}
	o := b.Work().Open()
	t = tail{vEnd: o.VStart, chainEnd: o.VStart, p: ph.end, position: o.VStart, epoch: -1, gen: -1}
	if s.Keep {
		if t, err = p.lastBelow(ctx, c, b.Work(), dst, ph); err != nil {
			return b, t, err
		}
		t.position, t.epoch = max(o.VStart, b.Work().Start), b.Work().Chain.Newest()
	}
	p.met.generation("shadow")
	p.slog.Warn("the compacted topic is written once more, behind what is dead; what is shown stays until then",
		"from", o.VStart, "until", s.Target, "local", s.Local, "gen", o.Gen, "p", o.PStart)
	return b, t, nil
}

// viewLost looks whether the destination has lost records of the log shown
// while its shadow was built, and cuts it there.
func (p *Partition) viewLost(ctx context.Context, c *kconn.Conn, b epoch.Book, dst leader, ph physical) (epoch.Book, bool, error) {
	l := b.Log
	o := l.Open()
	v := physical{start: ph.start, end: ph.end, bound: ph.end}
	if o.PEpoch != dst.epoch {
		_, end, err := endOfEpoch(ctx, c, p.topic, p.partition, dst.epoch, o.PEpoch)
		if err != nil {
			return b, false, err
		}
		if end >= 0 {
			v.bound = min(v.bound, end)
		}
	}
	if v.bound >= o.PStart {
		return b, false, nil
	}
	v.end = v.bound
	got, _, err := p.reread(ctx, c, l, dst, v, nil, memory{unsure: -1})
	if err != nil {
		return b, false, err
	}
	gen, err := b.NextGeneration(-1)
	if err == nil {
		b, err = b.ViewLost(epoch.CutTo{T: min(got.Position, o.VStart), PEnd: ph.end, PEpoch: dst.epoch, Gen: gen})
	}
	if err != nil {
		return b, false, fail(reasonLedger, "%w", err)
	}
	p.slog.Warn("the destination lost records that are shown while the topic is written once more", "from", b.Log.Open().VStart, "was", o.VStart)
	return b, true, nil
}

// shadowing tells whether a shadow is built. mu is held.
func (p *Partition) shadowing() bool { return p.rec != nil && p.rec.Shadow != nil }

// prepared tells whether prepare has been here since the log shown was cut last. mu is held.
func (p *Partition) prepared() bool {
	o := p.rec.Log.Open()
	return p.shown.Known && p.shown.Gen == o.Gen && p.shown.Position == o.VStart
}

// prepare holds the cleaner back and finds out what to go on showing, before
// anything is fetched for a shadow.
func (p *Partition) prepare(ctx context.Context) error {
	if err := p.holdCleaner(ctx); err != nil {
		return err
	}
	p.mu.Lock()
	rec, dst := p.rec, p.dst
	p.mu.Unlock()
	t, err := p.viewTail(ctx, rec, dst)
	if err != nil {
		return err
	}
	p.mu.Lock()
	if p.rec == rec {
		p.shown = t
		p.publish()
	}
	p.mu.Unlock()
	p.kick()
	return nil
}

// viewTail is the end of the log that is shown beside a shadow.
func (p *Partition) viewTail(ctx context.Context, rec *ledger.Record, dst leader) (ledger.Tail, error) {
	l := &rec.Log
	o := l.Open()
	t := ledger.Tail{Known: true, VEnd: o.VStart, Position: o.VStart, PEnd: o.PStart, PEpoch: o.PEpoch, EverShown: rec.Shadow.Target, Gen: o.Gen, Newest: l.Chain.Newest()}
	if n := len(l.Spans); n > 1 && l.Spans[n-2].Kind == epoch.Native {
		return t, nil
	}
	err := p.eng.dst.with(ctx, dst.addr, func(c *kconn.Conn) error {
		start, err := listOffset(ctx, c, p.topic, p.partition, dst.epoch, tsEarliest)
		if err != nil {
			return err
		}
		found, err := p.walkBack(ctx, c, l, dst, physical{start: start, end: o.PStart, bound: o.PStart})
		if err == nil && found != nil {
			t.VEnd = min(found.V, o.VStart)
		}
		return err
	})
	return t, err
}

// switchDue tells whether the shadow may take its place. mu is held.
func (p *Partition) switchDue() bool {
	return p.shadowing() && p.prepared() && p.rec.Shadow.Due(p.tail.position, p.stats.sourceEnd) &&
		(p.tail.position >= p.rec.Shadow.Target || time.Since(p.compared) >= time.Second)
}

// switchOver makes the shadow what is shown. Nothing is in flight. The source
// is asked whether it still has all that is shown: below, the chain stays.
func (p *Partition) switchOver(ctx context.Context) error {
	p.mu.Lock()
	rec, src, shown := p.rec, p.src, p.shown
	due := p.phase == phaseRun && p.switchDue()
	p.mu.Unlock()
	if !due { // any more: the destination changed its leader
		return nil
	}
	self, _ := p.eng.Clusters()
	b := bookOf(rec, self)
	end := b.Log.Open().VStart
	start := max(b.Log.Start, b.Log.Spans[0].VStart)
	x := &epoch.Truncation{
		Chain: b.Log.Chain.AdvanceStart(b.Log.Start), Position: end, VEnd: shown.VEnd, RereadEnd: end, Start: start,
		Support: p.eng.Unclean(p.topic), Compacted: true,
	}
	x.Ask()
	var step epoch.TruncStep
	err := p.eng.src.with(ctx, src.addr, func(c *kconn.Conn) (err error) {
		step, err = p.truncation(ctx, c, x, src)
		return err
	})
	if err != nil {
		return err
	}
	t := end
	switch step.Do {
	case epoch.TruncFail:
		return p.truncated(step)
	case epoch.TruncGoOn:
		p.mu.Lock()
		p.compared = time.Now()
		early := p.tail.position < rec.Shadow.Target
		p.mu.Unlock()
		if early {
			p.kick()
			return nil
		}
	case epoch.TruncRestart:
		t = min(step.T, end)
	default:
		t = min(step.T, end)
	}
	if b.WantsAnew(t) {
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.rec == rec && p.phase == phaseRun {
			p.slog.Warn("the source lost records that are shown here: the compacted topic is mirrored anew", "from", t, "was", end)
			p.doubt("source_cut", regen{force: true, rebuild: &rebuild{}})
		}
		return nil
	}
	live := step.Do == epoch.TruncULE || step.Do == epoch.TruncShadow
	if b, err = b.Switch(t); err != nil {
		return fail(reasonLedger, "%w", err)
	}
	p.mu.Lock()
	if p.phase != phaseRun || p.inflight != nil {
		// The destination changed its leader meanwhile, or the source has more now
		// and something is under way.
		p.mu.Unlock()
		return nil
	}
	p.switches = true
	if live {
		p.live.Retract()
		b.State = epoch.StateULERecovery
	}
	p.mu.Unlock()
	defer p.switched()
	err = p.put(ctx, func(r *ledger.Record) {
		setBook(r, b)
		if t < end {
			r.CutAt = r.StateEpoch
		}
	})
	if err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.slog.Info("what was written once more is shown now", "v", p.tail.vEnd, "was", end, "cut", t, "gen", b.Log.Open().Gen)
	p.live.Forget(0)
	p.anew = writtenAnew{done: true, gen: b.Log.Open().Gen, at: t}
	if t < end {
		p.mayShow = p.tail.position
	}
	if p.phase != phaseRun { // the tail is read anew first, and the state is in the ledger
		return nil
	}
	if live {
		p.pending = &resumption{dst: p.dst, t: p.tail}
		p.dropQueue()
		p.become(phaseAwait)
		p.wake.wake()
		return nil
	}
	p.publish()
	p.advance()
	p.wake.wake()
	return nil
}

// switched lets writers go on.
func (p *Partition) switched() {
	p.mu.Lock()
	p.switches = false
	p.mu.Unlock()
	p.kick()
}

// missedTombstones asks for a shadow when the mirror was away from a compacted
// source's end for longer than that keeps tombstones: what they deleted there
// would live on here (M26). A log that never was at the end is still its first
// copy, which can only be reported (lateCopy).
func (p *Partition) missedTombstones(r *regen, rec *ledger.Record, cp *ledger.Checkpoint) {
	p.mu.Lock()
	last := p.caught
	if cp != nil && cp.CaughtUp.After(last) {
		last = cp.CaughtUp
	}
	p.caughtOnce = last
	p.mu.Unlock()
	if last.IsZero() || rec.Shadow != nil || r.hasRestart || r.rebuild != nil && !r.rebuild.keep {
		return
	}
	if away := time.Since(last); epoch.TombstonesMissed(p.compacted, away.Milliseconds(), p.keepTombs.Milliseconds()) {
		p.slog.Warn("the mirror was away for longer than the source keeps tombstones: the compacted topic is mirrored anew", "away", away, "delete.retention.ms", p.keepTombs.Milliseconds())
		r.force, r.rebuild = true, &rebuild{}
	}
}

// nowCompacted asks for a shadow when the topic has become a compacted one and
// what was cut or given up before lies behind live records (M17, H1).
func (p *Partition) nowCompacted(r *regen, rec *ledger.Record) {
	if p.compacted && bookOf(rec, "").Unlooked() && !r.hasRestart {
		p.slog.Warn("the topic is compacted now, and dead records may lie behind live ones: it is mirrored anew")
		r.force, r.rebuild = true, &rebuild{}
	}
}

// lateCopy reports a copy of a compacted topic that is at the source's end for
// the first time, later than the source keeps tombstones: of a record that was
// copied early on, the tombstone may have come and gone meanwhile (M26). mu is
// held.
func (p *Partition) lateCopy() {
	began := p.rec.CopyFrom
	if !p.compacted || began.IsZero() || p.caught.After(began) || p.caughtOnce.After(began) {
		return
	}
	if took := time.Since(began); epoch.TombstonesMissed(true, took.Milliseconds(), p.keepTombs.Milliseconds()) {
		p.met.lateCopies.Inc()
		p.slog.Warn("the compacted topic was copied for longer than the source keeps tombstones: records that were deleted there meanwhile may be left here; raise delete.retention.ms of the source's topic and start the copy again", "took", took, "delete.retention.ms", p.keepTombs.Milliseconds())
	}
}

// givenUpBefore is givenUp for a new owner. What lies in front of a checkpoint the
// one before had seen, and its copies had come, but for those in a shadow; that
// itself is the copy of what lies in front of it.
func (p *Partition) givenUpBefore(ctx context.Context, c *kconn.Conn, l *epoch.Log, dst leader, ph physical, cp *ledger.Checkpoint, r *epoch.Recovered) error {
	p.mu.Lock()
	from := int64(0)
	switch {
	case p.shadowing():
		from = ownSpan(bookOf(p.rec, "")).PStart
	case cp != nil:
		from = cp.P
	}
	p.mu.Unlock()
	return p.givenUp(ctx, c, l, dst, ph, from, r)
}

// stretch is a physical range that somebody else wrote, in front of a batch of
// ours that begins at virtual offset v.
type stretch struct{ from, to, v int64 }

// inspect looks at what was written into a compacted topic (H1).
func (p *Partition) inspect(ctx context.Context) error {
	p.mu.Lock()
	s, dst, chain := p.suspect, p.dst, p.log.Chain
	p.mu.Unlock()
	var dead *rebuild
	awaits := int64(0)
	err := p.eng.dst.with(ctx, dst.addr, func(c *kconn.Conn) error {
		return readBatches(ctx, c, dst, p.topic, p.partition, s.from, s.to, func(raw protocol.Batch) error {
			b := readHeader(raw)
			if err := countV(raw, &b); err != nil {
				return err
			}
			d := deadBehind(chain, b, s.from, s.v)
			if dead = dead.merge(d); d == nil && b.P >= s.from && b.Stamped && !b.Control && b.Flags&epoch.FlagHidden == 0 {
				awaits = max(awaits, b.V+max(b.Count, b.VCount, 1))
			}
			return nil
		})
	})
	if err != nil {
		return err
	}
	defer p.kick() // nothing was taken meanwhile
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.suspect == s {
		p.awaits = max(p.awaits, awaits)
		if dead == nil {
			p.suspect = nil
		} else { // it stays until the ledger knows: a stop may come first, and has to find it too
			p.slog.Warn("on this compacted topic something was written behind mirrored records, and the cleaner would keep it instead", "from", s.from, "to", s.to)
			p.doubt("dead_behind", regen{force: true, rebuild: dead})
		}
	}
	return nil
}

// deadBehind is what a batch at or behind physical offset p of a compacted topic
// asks for that won't be followed by live copies of its records, which are
// mirrored from v on (H1: the cleaner keeps the later copy); nil: nothing.
func deadBehind(chain epoch.Chain, b epoch.Batch, p, v int64) *rebuild {
	same := b.Stamped && chain.At(b.V) == b.Epoch
	if b.P < p || b.Control || b.Stamped && b.Flags&epoch.FlagHidden != 0 || same && b.V >= v {
		return nil
	}
	return &rebuild{keep: same, from: b.V}
}
