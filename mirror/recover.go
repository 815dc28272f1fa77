package mirror

import (
	"context"
	"errors"
	"fmt"
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
}

func (r *regen) merge(o regen) *regen {
	if r == nil {
		return &o
	}
	m := *r
	m.force = m.force || o.force
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
	bound      int64 // batches at or above it aren't ours to believe in
}

// recover re-reads the destination's tail and takes up work there (DESIGN §3).
// A new generation is in the ledger before anything is fetched or written.
func (p *Partition) recover(ctx context.Context) error {
	p.mu.Lock()
	p.reload()
	r := p.todo.regen
	if r == nil {
		r = &regen{}
	}
	src, dst, rec, l := p.src, p.dst, p.rec, p.log
	m := memory{known: p.everRan, tail: p.tail, unsure: p.unsure}
	p.mu.Unlock()
	if dst.broker < 0 {
		return errors.New("the destination partition has no leader")
	}
	if !dst.id.IsZero() && !rec.TopicID.IsZero() && dst.id != rec.TopicID {
		return failForGood(reasonRecreated, "the destination topic was deleted and created again (id %s, mirrored into was %s): delete the mirror's partitions and mirror anew", dst.id, rec.TopicID)
	}
	cp := p.usable(rec)
	var next *epoch.Log
	var t tail
	err := p.eng.dst.with(ctx, dst.addr, func(c *kconn.Conn) error {
		ph, err := p.readEnds(ctx, c, dst, l, m)
		if err != nil {
			return err
		}
		if len(l.Spans) == 0 {
			next, t, err = p.first(ctx, rec, l, src, dst, ph)
			return err
		}
		next, t, err = p.continued(ctx, c, r, l, dst, ph, cp, m)
		return err
	})
	if err != nil {
		return err
	}
	fresh := genOf(next) != genOf(l)
	if fresh || rec.State != epoch.StateMirroring {
		if fresh {
			next = p.raised(next, src.epoch, dst.epoch)
			p.met.generation(r.why)
			o := next.Open()
			p.slog.Info("new generation", "why", r.why, "gen", o.Gen, "v", o.VStart, "p", o.PStart, "epoch", o.PEpoch)
		}
		err := p.put(ctx, func(rec *ledger.Record) {
			rec.Log, rec.State, rec.Error = *next, epoch.StateMirroring, ""
		})
		if err != nil {
			return err
		}
	}
	p.resume(dst, fresh, t, cp)
	p.kick()
	return nil
}

// memory is what the owner knows from before, not from the ledger.
type memory struct {
	known  bool // tail is what was confirmed to it
	tail   tail
	unsure int64
}

// reload takes in the newest ledger record: a write whose outcome was unknown
// may be there after all. mu is held.
func (p *Partition) reload() {
	if s := p.eng.Store.Partition(p.topic, p.partition); s != nil && s.Record != nil && s.Record.StateEpoch > p.rec.StateEpoch {
		p.rec, p.log = s.Record, s.Log
	}
}

// usable is the checkpoint, if it speaks of this log.
func (p *Partition) usable(rec *ledger.Record) *ledger.Checkpoint {
	s := p.eng.Store.Partition(p.topic, p.partition)
	if s == nil || s.Checkpoint == nil || s.Checkpoint.Lineage != rec.Lineage {
		return nil
	}
	return s.Checkpoint
}

func genOf(l *epoch.Log) int16 {
	if l == nil || l.Open() == nil {
		return -1
	}
	return l.Open().Gen
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
	if t.p <= o.PStart || t.vEnd <= o.VStart {
		// No live batch in the open span: holes count from its start.
		p.tail.chainEnd = o.VStart
	}
	p.expected = max(t.p, o.PStart)
	if fresh {
		p.unsure = -1
		p.forgetSamples(o.PStart)
	}
	p.errOp = ""
	p.produceTry, p.writeWait = 0, time.Time{}
	p.drain = false
	p.todo.regen, p.todo.ask, p.todo.assign = nil, nil, false
	p.walk.open = openTxns{}
	p.dropQueue()
	if t.open {
		p.forgetOpen()
	}
	if cp != nil {
		if last := p.live.Tail(); cp.EndShown > last.EverShown {
			last.EverShown = cp.EndShown
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
	if p.src.epoch > p.log.Shown(dst.epoch)-bumpMargin {
		p.todo.bump = true
	}
}

// readEnds asks the destination's leader where its log begins and ends, and up
// to where the open span's leader epoch reaches: what was appended later is
// dead, so nothing that is known about offsets above it counts (F4a).
func (p *Partition) readEnds(ctx context.Context, c *kconn.Conn, dst leader, l *epoch.Log, m memory) (ph physical, err error) {
	if ph.start, err = listOffset(ctx, c, p.topic, p.partition, dst.epoch, tsEarliest); err != nil {
		return ph, err
	}
	// A new leader's high watermark may lag behind what was acknowledged: give
	// it a moment before it counts as lost.
	for try := 0; ; try++ {
		if ph.end, err = listOffset(ctx, c, p.topic, p.partition, dst.epoch, tsLatest); err != nil {
			return ph, err
		}
		if !m.known || ph.end >= m.tail.p || try >= 4 {
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
	_, end, err := endOfEpoch(ctx, c, p.topic, p.partition, dst.epoch, o.PEpoch)
	if err != nil {
		return ph, err
	}
	if end >= 0 {
		ph.bound = min(ph.bound, end)
	}
	return ph, nil
}

// first makes the first generation of a partition that was never mirrored.
func (p *Partition) first(ctx context.Context, rec *ledger.Record, l *epoch.Log, src, dst leader, ph physical) (*epoch.Log, tail, error) {
	if ph.end > ph.start && !rec.DiscardLocal {
		return nil, tail{}, failForGood(reasonForeign, "the destination topic already holds records of another origin (offsets %d to %d): mirror into a topic of another name, delete it, or start the mirror with --discard-local to hide them", ph.start, ph.end)
	}
	var start int64
	err := p.eng.src.with(ctx, src.addr, func(c *kconn.Conn) (err error) {
		start, err = listOffset(ctx, c, p.topic, p.partition, src.epoch, tsEarliest)
		return err
	})
	if err != nil {
		return nil, tail{}, err
	}
	gen, err := l.NextGeneration(nil)
	if err != nil {
		return nil, tail{}, failForGood(reasonLedger, "%w", err)
	}
	n, err := l.Restart(start, ph.end, dst.epoch, gen)
	if err != nil {
		return nil, tail{}, fail(reasonLedger, "%w", err)
	}
	return n, tail{vEnd: start, chainEnd: start, p: ph.end, position: start, epoch: -1}, nil
}

// continued finds the last live batch and makes a new generation behind it, if
// one is needed; else it returns l itself.
func (p *Partition) continued(ctx context.Context, c *kconn.Conn, r *regen, l *epoch.Log, dst leader, ph physical, cp *ledger.Checkpoint, m memory) (*epoch.Log, tail, error) {
	t, found, err := p.lastLive(ctx, c, l, dst, ph, cp, m)
	if err != nil {
		return nil, t, err
	}
	if !found {
		t = p.emptied(l, ph, cp)
	}
	// The position may lie above the virtual end: skipped batches. Who
	// remembers it must speak of the very same end (F9, M22).
	t.position = t.vEnd
	inMem := m.known && m.tail.vEnd == t.vEnd && m.tail.p == t.p
	inCP := cp != nil && cp.V == t.vEnd && cp.P == t.p
	switch {
	case inMem:
		t.position, t.open = max(t.position, m.tail.position), t.open || m.tail.open
	case inCP:
		t.position, t.open = max(t.position, cp.Position), t.open || cp.Open
	}
	o := l.Open()
	if o.PEpoch == dst.epoch && !r.force && m.unsure < 0 && ph.bound == ph.end {
		released := !m.known && inCP && cp.Released && cp.Gen == o.Gen && ph.end == max(t.p, o.PStart)
		if inMem || released {
			t.epoch = l.Chain.Newest()
			return l, t, nil
		}
	}
	if p.compacted {
		if err := p.tailOrder(ctx, c, dst, ph, t); err != nil {
			return nil, t, err
		}
	}
	old := l
	l = l.DropBelow(ph.start)
	gen, err := old.NextGeneration(nil)
	if err != nil {
		return nil, t, failForGood(reasonLedger, "%w", err)
	}
	if r.hasRestart {
		n, err := l.Restart(r.restart, ph.end, dst.epoch, gen)
		if err != nil {
			return nil, t, fail(reasonLedger, "%w", err)
		}
		return n, tail{vEnd: r.restart, chainEnd: r.restart, p: ph.end, position: r.restart, epoch: -1}, nil
	}
	cut := t.position
	if r.hasCut {
		cut = min(cut, r.cut)
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
	t.vEnd, t.chainEnd, t.epoch = min(t.vEnd, vs), vs, n.Chain.Newest()
	// Not below the source's log start: a batch that begins below is fetched
	// at the start (F8).
	t.position = max(vs, n.Start)
	return n, t, nil
}

// emptied is the tail of a log without any live batch: retention took them, so
// the checkpoint or an empty span counts if its physical place is at or below
// the log start, never if it is lost (F9, H12, M22).
func (p *Partition) emptied(l *epoch.Log, ph physical, cp *ledger.Checkpoint) tail {
	t := tail{vEnd: l.Spans[0].VStart, p: ph.start, epoch: -1}
	for i := len(l.Spans) - 1; i >= 0; i-- {
		if s := &l.Spans[i]; s.PStart <= ph.start || i == 0 {
			t.vEnd, t.p = s.VStart, min(s.PStart, ph.end)
			break
		}
	}
	if cp != nil && cp.P <= ph.start && cp.V > t.vEnd {
		t.vEnd, t.p, t.chainEnd, t.epoch = cp.V, cp.P, cp.ChainEnd, cp.LastEpoch
		return t
	}
	t.chainEnd = t.vEnd
	t.epoch = l.Chain.Truncate(t.vEnd).Newest()
	return t
}

// lastLive finds the last live batch below ph.bound: forward with the chain
// rule from a known one, else backwards.
func (p *Partition) lastLive(ctx context.Context, c *kconn.Conn, l *epoch.Log, dst leader, ph physical, cp *ledger.Checkpoint, m memory) (tail, bool, error) {
	from := tail{p: -1}
	switch {
	case m.known && m.tail.p <= ph.bound && m.tail.p >= ph.start:
		from = m.tail
	case !m.known && cp != nil && cp.P <= ph.bound && cp.P >= ph.start && cp.P > 0 && cp.Gen == genOf(l):
		from = tail{vEnd: cp.V, chainEnd: cp.ChainEnd, p: cp.P, epoch: cp.LastEpoch, open: cp.Open}
	}
	if from.p >= 0 && from.vEnd > l.Open().VStart && from.p > l.Open().PStart {
		return p.walkForward(ctx, c, l, dst, ph, from)
	}
	return p.walkBack(ctx, c, l, dst, ph)
}

// walkForward reads on from the batch that ends at from.
func (p *Partition) walkForward(ctx context.Context, c *kconn.Conn, l *epoch.Log, dst leader, ph physical, from tail) (tail, bool, error) {
	t := from
	w := l.Walk(from.chainEnd, true)
	_, err := readBatches(ctx, c, dst, p.topic, p.partition, from.p, ph.bound, func(raw protocol.Batch) error {
		b, err := readHeader(raw, true)
		if err != nil {
			return err
		}
		if b.P < from.p {
			return nil
		}
		pl, v := w.Next(b)
		p.met.verdict(v)
		if v == epoch.Live {
			t = tail{vEnd: pl.VEnd, chainEnd: b.ChainEnd(), p: b.PEnd(), epoch: b.Epoch, open: b.Flags&epoch.FlagOpen != 0}
		}
		return nil
	})
	return t, true, err
}

// walkBack looks at ever longer stretches before the end until one holds a live
// batch. The chain can't be checked backwards; it needs no check as long as one
// batch is in flight for a partition (H2).
func (p *Partition) walkBack(ctx context.Context, c *kconn.Conn, l *epoch.Log, dst leader, ph physical) (t tail, found bool, err error) {
	hi := ph.bound
	for step := int64(1); hi > ph.start && !found; step *= 4 {
		lo := max(ph.start, hi-step)
		first := lo
		_, err = readBatches(ctx, c, dst, p.topic, p.partition, lo, hi, func(raw protocol.Batch) error {
			b, err := readHeader(raw, false)
			if err != nil {
				return err
			}
			first = min(first, b.P)
			if _, v := l.Classify(b); v != epoch.Live {
				return nil
			}
			if b.Flags&epoch.FlagRenumbered != 0 {
				if b, err = readHeader(raw, true); err != nil {
					return err
				}
			}
			pl, v := l.Classify(b)
			if v == epoch.Live {
				found = true
				t = tail{vEnd: pl.VEnd, chainEnd: b.ChainEnd(), p: b.PEnd(), epoch: b.Epoch, open: b.Flags&epoch.FlagOpen != 0}
			}
			return nil
		})
		if err != nil {
			return t, false, err
		}
		hi = first
	}
	return t, found, nil
}

// tailOrder keeps hazard H1's rule on a compacted topic: no dead batch may stay
// behind a live one it shares keys with, or the cleaner removes the live one.
// What will be mirrored again behind it does no harm.
func (p *Partition) tailOrder(ctx context.Context, c *kconn.Conn, dst leader, ph physical, t tail) error {
	_, err := readBatches(ctx, c, dst, p.topic, p.partition, t.p, ph.end, func(raw protocol.Batch) error {
		b, err := readHeader(raw, false)
		if err != nil {
			return err
		}
		return deadBehind(b, t.p, t.vEnd)
	})
	return err
}

// stretch is a physical range that somebody else wrote, in front of a batch of
// ours that begins at virtual offset v.
type stretch struct{ from, to, v int64 }

// inspect looks at what was written into a compacted topic (H1).
func (p *Partition) inspect(ctx context.Context) error {
	p.mu.Lock()
	s, dst := p.todo.inspect, p.dst
	p.mu.Unlock()
	err := p.eng.dst.with(ctx, dst.addr, func(c *kconn.Conn) error {
		_, err := readBatches(ctx, c, dst, p.topic, p.partition, s.from, s.to, func(raw protocol.Batch) error {
			b, err := readHeader(raw, false)
			if err != nil {
				return err
			}
			return deadBehind(b, s.from, s.v)
		})
		return err
	})
	if err != nil {
		return err
	}
	p.mu.Lock()
	if p.todo.inspect == s {
		p.todo.inspect = nil
	}
	p.mu.Unlock()
	return nil
}

// deadBehind is the failure for a batch at or behind physical offset p of a
// compacted topic that won't be followed by live copies of its records, which
// are mirrored from v on.
func deadBehind(b epoch.Batch, p, v int64) error {
	if b.P < p || b.Stamped && b.V >= v || b.Flags&epoch.FlagHidden != 0 && b.Stamped {
		return nil
	}
	what := "an unstamped batch (a direct write)"
	if b.Stamped {
		what = fmt.Sprintf("a late copy of offset %d", b.V)
	}
	return failForGood(reasonCompaction, "on this compacted topic %s lies at physical offset %d behind mirrored records: the cleaner would keep it and remove theirs. Delete the destination topic and mirror it anew", what, b.P)
}

// readHeader is what the rules need of a physical batch. count: the true
// virtual length of a renumbered one, which stands in its records.
func readHeader(raw protocol.Batch, count bool) (epoch.Batch, error) {
	b := epoch.Batch{P: raw.BaseOffset(), Count: int64(raw.LastOffsetDelta()) + 1, PEpoch: raw.PartitionLeaderEpoch()}
	s, ok := raw.ReadStamp()
	if !ok {
		return b, nil
	}
	b.Stamped, b.V, b.Hole, b.Flags, b.Gen, b.Epoch, b.VCount = true, s.V, s.Hole, s.Flags, s.Gen, s.Epoch, b.Count
	if s.Flags&epoch.FlagRenumbered != 0 {
		b.VCount = 0
		if count {
			n, err := protocol.VirtualCount(raw)
			if err != nil {
				return b, fail(reasonDestination, "the destination's batch at offset %d can't be read: %w", b.P, err)
			}
			b.VCount = n
		}
	}
	return b, nil
}
