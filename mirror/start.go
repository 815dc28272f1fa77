package mirror

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/lockstep-kafka/lockstep/epoch"
	"github.com/lockstep-kafka/lockstep/internal/kconn"
	"github.com/lockstep-kafka/lockstep/internal/ledger"
)

// align takes one step of LOG_ALIGNMENT (DESIGN §7). What must last is in the
// ledger; the rest is found out again by whoever comes next.
func (p *Partition) align(ctx context.Context) error {
	p.mu.Lock()
	p.reload()
	rec, src, dst := p.rec, p.src, p.dst
	if p.al != nil && p.al.Local != nil && p.al.Local.PEpoch != dst.epoch {
		p.al = nil // read under another leader
	}
	if p.al == nil {
		p.al = &epoch.Alignment{Compacted: p.compacted, Away: -1, AwaySource: -1, KeepTombs: p.keepTombs.Milliseconds()}
	}
	al, early := p.al, p.early
	p.early = nil // only the step that follows may use it
	p.mu.Unlock()
	if err := p.reachable(rec, dst); err != nil {
		return err
	}
	self, source := p.eng.Clusters()
	if self == "" || source == "" || !src.known {
		return errNotKnown
	}
	al.Book, al.Cluster, al.TopicID, al.Discard = bookOf(rec, self), source, idText(src.id), rec.DiscardLocal
	al.Book.Self.TopicID = idText(dst.id)
	step := al.Next()
	switch step.Do {
	case epoch.AlignGate:
		al.GateClosed = p.waitFor(ctx, p.instances(), awaitPause)
		return nil
	case epoch.AlignReadLocal:
		return p.alignLocal(ctx, al, rec, dst)
	case epoch.AlignRepair:
		al.Local = nil
		return p.repair(ctx, rec, dst, step.Repair)
	case epoch.AlignReadPair:
		p.askAhead(ctx, al, src)
		p.away(al, rec)
		return ctx.Err()
	case epoch.AlignRound:
		return p.alignRound(ctx, al, rec, dst, step.T)
	case epoch.AlignWait:
		al.Record = nil
		p.waitFor(ctx, []string{step.Why}, 10*awaitPause)
		return nil
	case epoch.AlignCut:
		return p.alignCut(ctx, al, step, src, dst, early)
	case epoch.AlignEndTxns:
		p.waitFor(ctx, []string{"open transactions in the destination's log"}, awaitPause)
		al.Local = nil
		if err := p.eng.EndTxns(ctx, p.topic, p.partition); err != nil {
			return fmt.Errorf("end open transactions: %w", err)
		}
		return nil
	case epoch.AlignInstances:
		al.Taken = p.waitFor(ctx, p.instances(), awaitPause)
		return nil
	case epoch.AlignMirror:
		return p.mirroring(ctx)
	case epoch.AlignFail:
		return p.alignFailed(al, step)
	}
	return fail(reasonLedger, "LOG_ALIGNMENT can't go on: step %d, %s", step.Do, step.Why)
}

// sourceStart is where the source's log starts, as its leader said.
type sourceStart struct {
	from leader
	at   int64
	err  error
}

var errNotAsked = errors.New("the source's leader was not asked")

// of is the start as src has it.
func (s *sourceStart) of(src leader) (int64, error) {
	if s == nil || s.from != src {
		return 0, errNotAsked
	}
	return s.at, s.err
}

// askAhead reads what the source's ledger has of the partition, and asks the
// source's leader beside for the start of its log, which the cut wants that most
// often comes next. It counts only for a log that no Lockstep makes: one that does
// may have replaced it between the two answers (H7).
func (p *Partition) askAhead(ctx context.Context, al *epoch.Alignment, src leader) {
	early := &sourceStart{from: src, err: errNotAsked}
	var asking sync.WaitGroup
	if src.broker >= 0 {
		asking.Go(func() {
			early.at, early.err = p.eng.ends.src.look(ctx, src.addr, partKey{p.topic, p.partition}, src.epoch, tsEarliest)
		})
	}
	r := p.eng.SourceLedger(ctx, p.topic, p.partition)
	asking.Wait()
	al.Record = &r
	if r.Reading != epoch.Absent {
		return
	}
	p.mu.Lock()
	p.early = early
	p.mu.Unlock()
}

// away finds out how long this log has not been compared with the source's end
// (M26), by our own checkpoint and by when the source stopped mirroring us.
func (p *Partition) away(al *epoch.Alignment, rec *ledger.Record) {
	if cp := p.usable(rec); cp != nil && !cp.CaughtUp.IsZero() {
		al.Away = max(time.Since(cp.CaughtUp).Milliseconds(), 0)
	}
	if at := al.Record.StoppedAt; at > 0 {
		al.AwaySource = max(time.Since(time.UnixMilli(at)).Milliseconds(), 0)
	}
}

func (p *Partition) alignFailed(al *epoch.Alignment, step epoch.AlignStep) error {
	switch {
	case step.Retry:
		return fail(reasonSourceLedger, "%s", step.Why)
	case al.Record != nil && al.Record.Reading == epoch.Garbled:
		return failForGood(reasonSourceLedger, "%s", step.Why)
	case al.Record != nil && al.Record.Reading == epoch.Present && al.Record.State.Active():
		return failForGood(reasonLoop, "%s", step.Why)
	}
	return failForGood(reasonForeign, "%s", step.Why)
}

// alignLocal reads the destination's own log, with the gate closed.
func (p *Partition) alignLocal(ctx context.Context, al *epoch.Alignment, rec *ledger.Record, dst leader) error {
	if rec.Log.Open() == nil {
		switch end, err := p.eng.ends.dst.look(ctx, dst.addr, partKey{p.topic, p.partition}, dst.epoch, tsLatest); {
		case err != nil:
			return err
		case end == 0: // nothing has ever been written
			al.Local = &epoch.LocalLog{PEpoch: dst.epoch}
			return nil
		}
	}
	var local *epoch.LocalLog
	var adopt *epoch.Log
	l := &rec.Log
	ph, err := p.readEnds(ctx, dst, l, memory{unsure: -1}, nil)
	if err != nil {
		return err
	}
	adopts := l.Open() == nil && ph.end > 0 // a topic that was here before: all of it is native
	stable := int64(-1)
	if !adopts {
		if stable, err = p.eng.ends.dst.stable(ctx, dst.addr, partKey{p.topic, p.partition}, dst.epoch); err != nil {
			return err
		}
	}
	err = p.eng.dst.with(ctx, dst.addr, func(c *kconn.Conn) error {
		if adopts {
			chain, err := p.brokerChain(ctx, c, dst, 0, ph)
			if err != nil {
				return err
			}
			adopt = epoch.Adopt(chain, ph.start)
			return nil
		}
		var err error
		local, err = p.localLog(ctx, c, l, dst, ph, stable)
		return err
	})
	if err != nil {
		return err
	}
	if adopt != nil {
		p.slog.Info("the topic held records before it was mirrored: taken over as they are")
		return p.put(ctx, func(r *ledger.Record) { r.Log, r.TopicID = *adopt, dst.id })
	}
	al.Local = local
	return nil
}

func (p *Partition) localLog(ctx context.Context, c *kconn.Conn, l *epoch.Log, dst leader, ph physical, stable int64) (_ *epoch.LocalLog, err error) {
	out := &epoch.LocalLog{PEnd: ph.end, PEpoch: dst.epoch}
	o := l.Open()
	out.LSOBehind = stable < ph.end
	if o == nil {
		return out, nil
	}
	out.VStart = max(l.Start, l.Spans[0].VStart)
	if o.Kind != epoch.Native {
		return out, nil // the cut is made
	}
	if s := l.Spans[0]; s.Kind == epoch.Native && ph.start > s.PStart {
		out.VStart = max(out.VStart, s.VStart+ph.start-s.PStart)
	}
	if out.Broker, err = p.nativeChain(ctx, c, o, dst, ph); err != nil {
		return nil, err
	}
	out.VEnd = l.NativeEnd(ph.end)
	out.LSO, out.LiveNative = out.VEnd, liveNative(l, ph)
	if out.LSOBehind {
		out.LSO, err = p.virtualAt(ctx, c, l, dst, ph, stable)
	}
	return out, err
}

// liveNative tells whether a native span still holds records.
func liveNative(l *epoch.Log, ph physical) bool {
	for i := range l.Spans {
		s := &l.Spans[i]
		if s.Kind != epoch.Native {
			continue
		}
		to, room := ph.end, ph.end
		if i+1 < len(l.Spans) {
			to = l.Spans[i+1].PStart
			room = s.PStart + l.Spans[i+1].VStart - s.VStart
		}
		if min(to, room, ph.end) > max(s.PStart, ph.start) {
			return true
		}
	}
	return false
}

// virtualAt is the virtual offset of the first live record at or behind
// physical offset at; of a renumbered batch, its base.
func (p *Partition) virtualAt(ctx context.Context, c *kconn.Conn, l *epoch.Log, dst leader, ph physical, at int64) (int64, error) {
	i := l.SpanAtP(at)
	if i < 0 {
		return l.Spans[0].VStart, nil
	}
	s := &l.Spans[i]
	limit, to := l.NativeEnd(ph.end), ph.end
	if i+1 < len(l.Spans) {
		limit, to = l.Spans[i+1].VStart, l.Spans[i+1].PStart
	}
	if s.Kind == epoch.Native {
		return min(s.VStart+at-s.PStart, limit), nil
	}
	v := limit
	err := readBatches(ctx, c, dst, p.topic, p.partition, at, to, func(raw protocolBatch) error {
		b := readHeader(raw)
		pl, verdict := l.Classify(b)
		if verdict != epoch.Live {
			return nil
		}
		v = pl.V
		if b.Flags&epoch.FlagRenumbered == 0 {
			v += max(at-pl.P, 0)
		}
		return errFound
	})
	return v, notFound(err)
}

// alignRound finds the live batch that holds t inside; the cut is at its base.
func (p *Partition) alignRound(ctx context.Context, al *epoch.Alignment, rec *ledger.Record, dst leader, t int64) error {
	return p.eng.dst.with(ctx, dst.addr, func(c *kconn.Conn) error {
		r, err := p.roundDown(ctx, c, &rec.Log, dst, al.Local.PEnd, al.Local.VEnd, t)
		if err == nil {
			al.Rounded = &r
		}
		return err
	})
}

// roundDown is the base of the live batch that holds virtual offset t inside, t
// itself when none does. pEnd and vEnd are the log's ends.
func (p *Partition) roundDown(ctx context.Context, c *kconn.Conn, l *epoch.Log, dst leader, pEnd, vEnd, t int64) (int64, error) {
	i := l.SpanAtV(t)
	if i < 0 || t == l.Spans[i].VStart || t >= vEnd {
		return t, nil
	}
	s := &l.Spans[i]
	hi := pEnd
	if i+1 < len(l.Spans) {
		hi = l.Spans[i+1].PStart
	}
	lo := s.PStart
	if s.Kind == epoch.Native {
		lo = s.PStart + t - s.VStart
		hi = min(lo+1, hi)
	} else {
		var err error
		if lo, err = p.bisect(ctx, c, l, dst, lo, hi, t); err != nil {
			return 0, err
		}
	}
	r := t
	err := readBatches(ctx, c, dst, p.topic, p.partition, lo, hi, func(raw protocolBatch) error {
		b := readHeader(raw)
		pl, v := l.Classify(b)
		if v != epoch.Live || pl.Span != i {
			return nil
		}
		if err := countV(raw, &b); err != nil {
			return err
		}
		if pl, _ = l.Classify(b); pl.V < t && t < pl.VEnd {
			r = pl.V
		}
		if pl.VEnd <= t {
			return nil
		}
		return errFound
	})
	return r, notFound(err)
}

// bisect finds a physical offset in [lo, hi) of a mirrored span at or in front
// of the live batch that holds virtual offset t.
func (p *Partition) bisect(ctx context.Context, c *kconn.Conn, l *epoch.Log, dst leader, lo, hi, t int64) (int64, error) {
	for hi-lo > 1000 {
		mid := lo + (hi-lo)/2
		v, at := int64(-1), mid
		err := readBatches(ctx, c, dst, p.topic, p.partition, mid, hi, func(raw protocolBatch) error {
			if pl, verdict := l.Classify(readHeader(raw)); verdict == epoch.Live {
				v, at = pl.V, pl.P
				return errFound
			}
			return nil
		})
		if err := notFound(err); err != nil {
			return 0, err
		}
		if v < 0 || v > t {
			hi = mid
		} else {
			lo = max(at, lo+1)
		}
	}
	return lo, nil
}

// alignCut is phase one's cut, one ledger write. The state stays LOG_ALIGNMENT
// until the instances have taken it in, if there was anything to cut.
func (p *Partition) alignCut(ctx context.Context, al *epoch.Alignment, step epoch.AlignStep, src, dst leader, early *sourceStart) error {
	if src.broker < 0 {
		return errors.New("the source partition has no leader")
	}
	k := partKey{p.topic, p.partition}
	start, err := early.of(src)
	if err != nil {
		start, err = p.eng.ends.src.look(ctx, src.addr, k, src.epoch, tsEarliest)
	}
	if err != nil {
		return err
	}
	end, err := p.eng.ends.dst.look(ctx, dst.addr, k, dst.epoch, tsLatest)
	if err != nil {
		return err
	}
	if end != al.Local.PEnd {
		p.mu.Lock()
		p.al = &epoch.Alignment{GateClosed: true, Compacted: al.Compacted, Away: al.Away, AwaySource: al.AwaySource, KeepTombs: al.KeepTombs}
		p.mu.Unlock()
		return nil // something was appended meanwhile
	}
	gen, err := al.Book.Log.NextGeneration(nil)
	if err != nil {
		return failForGood(reasonLedger, "%w", err)
	}
	anew := step.Empty
	b, err := al.Cut(step, start, gen, newLineage())
	if first := al.Book.Log.Open() == nil; err == nil && first {
		b.Log, err = al.Book.Log.Restart(start, end, dst.epoch, gen)
		b.Self = al.Book.Self
	}
	if err != nil {
		return fail(reasonLedger, "%w", err)
	}
	if !anew {
		b.Log = b.Log.AdvanceStart(min(start, b.Log.Open().VStart))
	}
	b.Log = p.raised(b.Log, src.epoch, dst.epoch)
	// Of a log in which nothing was ever written no instance has shown anything
	// that the cut could take away: nobody is waited for.
	b.State = epoch.StateLogAlignment
	untouched := al.Book.Log.Open() == nil && end == 0 && !step.Shadow
	if untouched {
		b.State = epoch.StateMirroring
	}
	o := b.Log.Open()
	t := tail{vEnd: min(al.Local.VEnd, o.VStart), chainEnd: o.VStart, p: o.PStart, position: max(o.VStart, b.Log.Start), epoch: b.Log.Chain.Newest(), gen: -1}
	if anew {
		t.vEnd = o.VStart
	}
	if step.Shadow {
		s := epoch.ShadowStart{From: start, Target: o.VStart, PEnd: end, PEpoch: dst.epoch}
		if b, t, err = p.besideAt(ctx, nil, b, s, dst, physical{end: end}); err != nil {
			return err
		}
	}
	why := "alignment"
	if anew {
		why = "alignment_anew"
	}
	cut := ledger.Cut{From: al.Local.VEnd, End: al.Local.VEnd}
	if step.Live {
		cut.From = o.VStart
		if anew {
			cut.From = al.Local.VStart
		}
	}
	p.met.generation(why)
	said := []any{
		"with", al.Cluster, "pair", step.Pair, "pair_of", step.Holder, "v", o.VStart, "p", o.PStart, "gen", o.Gen,
		"end", al.Local.VEnd, "live", step.Live, "anew", anew, "beside", step.Shadow,
	}
	if step.Why != "" {
		said = append(said, "why", step.Why)
	}
	p.slog.Info("aligned", said...)
	err = p.put(ctx, func(r *ledger.Record) {
		setBook(r, b)
		r.TopicID = dst.id
		r.SourceCluster, r.SourceTopicID = al.Cluster, src.id
		r.SourceLineage, r.SourcePast = b.Source.Lineage, b.Source.Before
		r.Path = al.Record.PathOf(al.Cluster)
		r.Error, r.Checked, r.Cut, r.CutAt = "", 0, &cut, r.StateEpoch
		if p.compacted && (anew || step.Shadow) {
			r.CopyFrom = time.Now().UTC()
		}
	})
	if err != nil {
		return err
	}
	if step.Live {
		p.slog.Warn("records here that the source does not have are cut: lockstep diverged lists and exports them", "from", cut.From, "end", cut.End)
	}
	p.mu.Lock()
	p.unsure, p.mayShow, p.caught = -1, t.position, time.Time{}
	p.live.Forget(0)
	p.pending = &resumption{dst: dst, t: t}
	p.mu.Unlock()
	if untouched {
		p.goOn()
	}
	return nil
}
