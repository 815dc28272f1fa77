package mirror

import (
	"context"
	"errors"
	"fmt"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/epoch"
	"github.com/lockstep-kafka/lockstep/internal/kconn"
	"github.com/lockstep-kafka/lockstep/internal/ledger"
	"github.com/lockstep-kafka/lockstep/protocol"
)

// A compacted topic is only STOPPED with a clean tail (H1): no dead record may
// stay behind a live one for the cleaner to keep instead. The source may be
// gone by then, so what is shown is copied behind what is dead, with its offsets
// and epochs: a shadow that is fed from the log itself.

// stopRebuild begins it: one ledger write, still STOPPING.
func (p *Partition) stopRebuild(ctx context.Context, st *epoch.Stop, step epoch.StopStep, rec *ledger.Record, dst leader) error {
	read := st.Read
	st.Read = nil
	self, _ := p.eng.Clusters()
	b := bookOf(rec, self)
	err := p.eng.dst.with(ctx, dst.addr, func(c *kconn.Conn) error {
		ph, err := p.nativeEnds(ctx, c, dst)
		if err != nil {
			return err
		}
		if ph.end != read.PEnd {
			return errMoved
		}
		from := step.From
		if step.Keep {
			if from, err = p.roundDown(ctx, c, b.Log, dst, ph.end, read.Recovered.VEnd, from); err != nil {
				return err
			}
		}
		if b.Shadow == nil {
			gen, err := b.NextGeneration(-1)
			if err == nil {
				b, err = b.Cut(epoch.CutTo{T: step.T, VEnd: read.Recovered.VEnd, PEnd: ph.end, PEpoch: dst.epoch, Gen: gen})
			}
			if err != nil {
				return fail(reasonLedger, "%w", err)
			}
		}
		p.slog.Warn("not stopped yet", "why", step.Why)
		b, _, err = p.besideAt(ctx, c, b, epoch.ShadowStart{
			From: from, Keep: step.Keep, Local: true, Target: b.Log.Open().VStart, PEnd: ph.end, PEpoch: dst.epoch,
		}, dst, ph)
		p.slog.Warn("values of keys that the cleaner took for what is dead now may be missing until the mirror is started again")
		return err
	})
	if err != nil {
		return err
	}
	return p.put(ctx, func(r *ledger.Record) { setBook(r, b) })
}

// stopCopy copies what is shown until all of it is there, then shows the copy.
// Whoever comes after a crash goes on where the copy ends, in a new generation.
func (p *Partition) stopCopy(ctx context.Context, st *epoch.Stop, dst leader) error {
	if err := p.holdCleaner(ctx); err != nil {
		return err
	}
	p.waitFor(ctx, []string{"the copy of a compacted topic whose end was not clean"}, 0)
	self, _ := p.eng.Clusters()
	var done *epoch.Recovered
	var end int64
	err := p.eng.dst.long(ctx, dst.addr, func(c *kconn.Conn) (err error) {
		p.mu.Lock()
		rec := p.rec // with the generation of the connection before, whose last write may still land
		p.mu.Unlock()
		x := &localCopy{p: p, c: c, dst: dst}
		if x.rec, err = p.copyOn(ctx, c, rec, dst, x); err != nil {
			return err
		}
		done, err = x.run(ctx)
		end = x.at
		return err
	})
	if err != nil {
		return err
	}
	p.mu.Lock()
	rec := p.rec
	p.mu.Unlock()
	b, err := bookOf(rec, self).Switch(rec.Log.Open().VStart)
	if err != nil {
		return fail(reasonLedger, "%w", err)
	}
	if err := p.put(ctx, func(r *ledger.Record) { setBook(r, b) }); err != nil {
		return err
	}
	p.mu.Lock()
	p.everRan, p.unsure, p.awaits = false, -1, 0
	p.anew = writtenAnew{done: true, gen: b.Log.Open().Gen, at: rec.Log.Open().VStart}
	p.waiting = nil
	p.live.Forget(0)
	p.mu.Unlock()
	// Read now, with what no record says: how far the source was mirrored.
	st.Read = &epoch.StopReading{PEpoch: dst.epoch, PEnd: end, Recovered: *done}
	p.slog.Info("the copy is shown now", "v", done.Position, "p", end)
	return nil
}

// copyOn opens a new generation at the end of the copy, as a write of whoever
// was here before may still land. Had one landed behind a record that it is a
// copy of, all is begun anew behind it: nothing else would take the place of
// what is dead there.
func (p *Partition) copyOn(ctx context.Context, c *kconn.Conn, rec *ledger.Record, dst leader, x *localCopy) (*ledger.Record, error) {
	b := bookOf(rec, "")
	work := b.Work()
	ph, err := p.readEnds(ctx, dst, work, memory{unsure: -1}, nil)
	if err != nil {
		return nil, err
	}
	got, _, err := p.reread(ctx, c, work, dst, ph, nil, memory{unsure: -1})
	if err != nil {
		return nil, err
	}
	own := ownSpan(b)
	clean, shared, err := p.copyClean(ctx, c, b, own, dst, ph)
	if err != nil {
		return nil, err
	}
	gen, err := b.NextGeneration(-1)
	switch {
	case err != nil:
	case clean:
		var n *epoch.Log
		if n, err = work.Cut(got.Position, ph.end, dst.epoch, gen); err == nil {
			b = b.WithWork(n)
		}
	default:
		p.slog.Warn("the copy is begun anew: a write of somebody else landed behind it", "from", own.VStart)
		s := epoch.ShadowStart{From: own.VStart, Keep: true, Local: true, Target: b.Shadow.Target, PEnd: ph.end, PEpoch: dst.epoch, Gen: gen}
		if !shared || own == work.Spans[0] {
			s.From, s.Keep = b.Log.Spans[0].VStart, false
		}
		b, err = b.Beside(s)
	}
	if err != nil {
		return nil, fail(reasonLedger, "%w", err)
	}
	b, _, err = p.viewLost(ctx, c, b, dst, ph)
	if err != nil {
		return nil, err
	}
	if err := p.put(ctx, func(r *ledger.Record) { setBook(r, b) }); err != nil {
		return nil, err
	}
	v := b.Work().Open().VStart
	x.at = ph.end
	x.st = walkState{position: v, floor: v, chainEnd: v, epoch: -1}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.rec, nil
}

// ownSpan is the shadow's first span that the log shown does not have.
func ownSpan(b epoch.Book) epoch.Span {
	w := b.Work()
	for _, s := range w.Spans {
		if s.Kind == epoch.Mirrored && !b.Log.HasGeneration(s.Gen) {
			return s
		}
	}
	return *w.Open()
}

// copyClean reads the copy from own on. Not clean: something dead lies behind a
// record in it, or in front of it, that is not copied once more (H1). shared:
// at most behind the copy's own records, not those in front that it shares with
// the log shown.
func (p *Partition) copyClean(ctx context.Context, c *kconn.Conn, b epoch.Book, own epoch.Span, dst leader, ph physical) (clean, shared bool, err error) {
	w := b.Work().Walk(own.VStart, true)
	clean, shared = true, true
	err = readBatches(ctx, c, dst, p.topic, p.partition, own.PStart, ph.end, func(raw protocol.Batch) error {
		x := readHeader(raw)
		if err := countV(raw, &x); err != nil {
			return err
		}
		// What lies above the end of what is shown is not copied: a late write of
		// what would have been mirrored next, had there been no stop.
		same := x.Stamped && b.Log.Chain.At(x.V) == x.Epoch && x.V+max(x.Count, x.VCount, 1) <= b.Shadow.Target
		switch _, v := w.Next(x); {
		case v == epoch.Live || v == epoch.Hidden || x.Control || x.P < own.PStart:
		case same && x.V >= w.V(): // its copy comes behind it
		default:
			clean = false
			shared = shared && same && x.V >= own.VStart
		}
		return nil
	})
	return clean, shared, err
}

// localCopy copies the live batches of a log behind it.
type localCopy struct {
	p   *Partition
	c   *kconn.Conn
	dst leader
	rec *ledger.Record
	at  int64 // physical end
	st  walkState

	out  epoch.Recovered // of the copy so far
	open map[int64]bool  // bases of batches that leave a source transaction open
	todo []chunk
}

// run copies all that is shown and not there yet. The result is what a
// re-reading of the copy would find, but for its position: that of the log shown.
func (x *localCopy) run(ctx context.Context) (*epoch.Recovered, error) {
	view, work := &x.rec.Log, &x.rec.Shadow.Log
	end := view.Open()
	x.out = epoch.Recovered{Basis: epoch.BasisLog, VEnd: x.st.position, ClosedV: -1}
	rec := protocol.NewRecoder(protocol.DefaultMaxOut)
	for from := x.from(view); from < end.PStart; {
		records, aborted, err := readStable(ctx, x.c, x.dst, x.p.topic, x.p.partition, from)
		if err != nil {
			return nil, err
		}
		next, err := x.take(records, aborted, view, from, end.PStart)
		if err != nil {
			return nil, err
		}
		if next == from {
			return nil, fmt.Errorf("the destination has no more at offset %d of what is to be copied up to %d: is a client's transaction open?", from, end.PStart)
		}
		from = next
		for _, ch := range x.todo {
			if err := x.append(ctx, ch, work.Open().Gen, rec); err != nil {
				return nil, err
			}
		}
	}
	if now, err := listOffset(ctx, x.c, x.p.topic, x.p.partition, x.dst.epoch, tsLatest); err != nil || now != x.at {
		return nil, errors.Join(err, fmt.Errorf("the destination's log ends at offset %d, the copy at %d: looking again", now, x.at))
	}
	x.out.Position = max(x.out.VEnd, end.VStart)
	x.out.Open = x.out.Open && x.out.Position == x.out.VEnd
	x.out.LastEpoch = view.Chain.Newest()
	return &x.out, nil
}

// from is where to read on in the log shown: some physical offset in front of
// what is not copied yet.
func (x *localCopy) from(view *epoch.Log) int64 {
	i := max(view.SpanAtV(x.st.position), 0)
	s := &view.Spans[i]
	if s.Kind == epoch.Native {
		return s.PStart + max(x.st.position-s.VStart, 0)
	}
	return s.PStart
}

// take sorts out one answer; what is to be copied is in todo.
func (x *localCopy) take(records []byte, aborted []kmsg.FetchResponseTopicPartitionAbortedTransaction, view *epoch.Log, from, to int64) (next int64, err error) {
	next = from
	x.todo, x.open = x.todo[:0], map[int64]bool{}
	var source []byte // as the source would send them
	for rest := records; len(rest) > 0 && next < to; {
		var raw protocol.Batch
		if raw, rest, err = protocol.NextBatch(rest); err != nil {
			break // the partial batch behind the last whole one
		}
		if raw.NextOffset() <= next {
			continue
		}
		next = raw.NextOffset()
		b := readHeader(raw)
		pl, verdict := view.Classify(b)
		if verdict != epoch.Live || raw.BaseOffset() >= to {
			continue
		}
		switch c := append(protocol.Batch(nil), raw...); {
		case !b.Stamped:
			c.SetBase(pl.V, pl.Epoch)
			source = append(source, c...)
		case b.Flags&epoch.FlagRenumbered != 0:
			if c, err = protocol.Undensify(c, pl.V, pl.Epoch, b.Flags&epoch.FlagLogAppend != 0); err != nil {
				return next, fail(reasonDestination, "the destination's batch at offset %d can't be read: %w", b.P, err)
			}
			source = append(source, c...)
		default:
			if b.Flags&epoch.FlagLogAppend != 0 {
				c.RestoreLogAppend(pl.V, pl.Epoch)
			} else {
				c.Restore(pl.V, pl.Epoch)
			}
			source = append(source, c...)
		}
		x.open[pl.V] = b.Flags&epoch.FlagOpen != 0
	}
	if len(source) == 0 {
		return next, nil
	}
	var mapped []kmsg.FetchResponseTopicPartitionAbortedTransaction
	for _, a := range aborted {
		if i := view.SpanAtP(a.FirstOffset); i >= 0 && view.Spans[i].Kind == epoch.Native {
			a.FirstOffset += view.Spans[i].VStart - view.Spans[i].PStart
			mapped = append(mapped, a)
		}
	}
	stop := walkRecords(&x.st, -1, source, mapped, func(c chunk) {
		if c.batch != nil {
			x.todo = append(x.todo, c)
		}
	})
	if stop.kind != stopNone {
		return next, fail(reasonDestination, "the destination's own records at offset %d can't be copied: %w", stop.base, errors.Join(stop.err, errors.New("they don't follow one another")))
	}
	return next, nil
}

func (x *localCopy) append(ctx context.Context, c chunk, gen int16, rec *protocol.Recoder) error {
	raw := append(protocol.Batch(nil), c.batch...)
	var err error
	if c.slow {
		if raw, err = rec.Densify(raw, raw.LogAppendTime()); err != nil {
			return fail(reasonDestination, "the destination's batch at virtual offset %d can't be re-encoded: %w", c.base, err)
		}
	}
	c.stamp.Gen = gen
	c.stamp.Flags &^= epoch.FlagOpen
	if x.open[c.base] {
		c.stamp.Flags |= epoch.FlagOpen
	}
	if err := raw.WriteStamp(c.stamp); err != nil {
		return fail(reasonDestination, "the destination's batch at virtual offset %d can't be stamped: %w", c.base, err)
	}
	base, err := produceOne(ctx, x.c, x.dst, x.p.topic, x.p.partition, raw, x.p.eng.Tuning.ProduceTimeout)
	if err != nil {
		return err
	}
	if base != x.at {
		return fmt.Errorf("the copy was appended at offset %d, not %d: somebody else writes, or the destination lost its end", base, x.at)
	}
	x.at = base + c.count
	x.out.VEnd, x.out.LivePEnd = c.next, x.at
	x.out.Open = x.open[c.base]
	if !x.out.Open {
		x.out.ClosedV = c.next
	}
	if t := c.maxTS; t >= 0 {
		x.p.mu.Lock()
		x.p.lastTS = t
		x.p.mu.Unlock()
	}
	return nil
}

// readStable is one READ_COMMITTED read of a destination partition.
func readStable(ctx context.Context, c *kconn.Conn, l leader, topic string, p int32, from int64) ([]byte, []kmsg.FetchResponseTopicPartitionAbortedTransaction, error) {
	a, err := fetchOnce(ctx, c, l, topic, p, from, 1<<20, 1)
	if err != nil {
		return nil, nil, err
	}
	return a.RecordBatches, a.AbortedTransactions, nil
}
