package epoch

import (
	"slices"
)

// ---- MIRRORING on the model

// resume takes the position from the log.
func (s *side) resume() {
	r := s.recovered(s.k.hw())
	if r.NewGeneration {
		s.newGen(MaxVirtualOffset)
		return
	}
	o := s.own
	o.ready, o.pos, o.chainEnd, o.last = true, r.Position, r.ChainEnd, r.LastEpoch
}

// newGen opens a generation at t at most, never above what the log holds.
func (s *side) newGen(t int64) { s.cutTo(t, false) }

func (s *side) cutTo(t int64, moveStart bool) {
	r := s.recovered(s.k.hw())
	t = s.round(min(t, r.Position))
	b, err := s.book.Cut(CutTo{T: t, VEnd: r.VEnd, PEnd: s.k.leader().end(), PEpoch: s.k.pe, Gen: s.gen(), MoveStart: moveStart})
	s.w.no(err)
	s.put(b, "generation %d at v%d p%d under %d, chain %v, pairs %v", b.Log.Open().Gen, b.Log.Open().VStart, b.Log.Open().PStart, s.k.pe, b.Log.Chain, b.Pairs)
	s.zombies = append(s.zombies, s.own.inflight...)
	*s.own = owner{ready: true, pos: b.Log.Open().VStart, last: b.Log.Chain.Newest()}
	s.own.chainEnd = s.own.pos
}

// mirror does one thing: settles a doubt, delivers nothing, fetches one batch.
func (s *side) mirror() bool {
	if s.own == nil || s.book.State != StateMirroring && s.book.State != StateULERecovery && s.book.State != StateEpochFencing {
		return false
	}
	o, src := s.own, s.source()
	switch {
	case !o.ready || o.doubt || s.k.pe != s.book.Log.Open().PEpoch:
		if len(o.inflight) > 0 || o.doubt || s.k.pe != s.book.Log.Open().PEpoch {
			s.newGen(MaxVirtualOffset)
		} else {
			s.resume()
		}
	case s.book.State != StateMirroring: // all instances have it
		b, err := s.book.To(StateMirroring)
		s.w.no(err)
		s.put(b, "MIRRORING")
	case o.tr != nil:
		s.truncation(src)
	case src.book.State != StateStopped && src.book.State != StateUnknown && src.book.State != StateFailed && !src.book.BeforeCut():
		return false // it mirrors, too: loops are the alignment's business
	case src.book.State == StateStopping:
		return false
	default:
		return s.fetch(src)
	}
	return true
}

func (s *side) truncation(src *side) {
	o := s.own
	d := o.tr.Next()
	switch d.Do {
	case TruncAskEnd:
		e, end := src.log().joinedEnd(src, d.Epoch)
		o.tr.Diverging(e, end)
	case TruncAskEnds:
		o.tr.Ranged(src.vStart(), src.position())
	case TruncAskLSO:
		o.tr.Stable(src.position())
	case TruncGoOn:
		o.tr = nil
	case TruncCut:
		s.cutTo(d.T, true)
	case TruncULE:
		s.w.ule++
		s.w.that(src.k.losses > s.baseLoss || s.ownLost, "%s: phase two cuts live records to %d (end %d) without a loss on %s", s.name, d.T, s.vEnd(), src.name)
		b, err := s.book.To(StateULERecovery)
		s.w.no(err)
		s.put(b, "ULE_RECOVERY, cut to %d", d.T)
		s.cutTo(d.T, true)
	case TruncRestart:
		b, err := s.book.Empty(d.T, CutTo{PEnd: s.k.leader().end(), PEpoch: s.k.pe, Gen: s.gen()}, s.lineage())
		s.w.no(err)
		s.put(b, "restart at %d", d.T)
		s.zombies = append(s.zombies, o.inflight...)
		*o = owner{ready: true, pos: d.T, chainEnd: d.T, last: -1}
	case TruncFail:
		o.tr = nil
		s.fail(d.Why, false)
	default:
		s.w.that(false, "truncation: %d?", d.Do)
	}
}

func (l *Log) joinedEnd(src *side, e int32) (int32, int64) {
	n := *l
	n.Chain = src.chain()
	return n.EndOffsetFrom(e, src.vStart(), src.position())
}

func (s *side) fetch(src *side) bool {
	o := s.own
	if len(o.inflight) >= 2 {
		return false
	}
	src.settle()
	n := *src.log()
	n.Chain = src.chain()
	end, pos := src.vEnd(), src.position()
	a, e := n.CheckFetch(FetchCheck{
		Offset: o.pos, CurrentLeaderEpoch: -1, LastFetchedEpoch: o.last, LeaderEpoch: src.lead(),
		Start: src.vStart(), VirtualEnd: end, Position: pos, EverShown: pos,
	})
	x := &Truncation{
		Chain: s.book.Log.Chain.AdvanceStart(s.book.Log.Start), Position: o.pos, Support: s.support, Start: s.vStart(),
		VEnd: s.vEnd(), RereadEnd: s.recovered(s.k.hw()).Position,
	}
	if len(o.inflight) > 0 && a != FetchRead && a != FetchEmpty {
		return false // settle what is in flight first
	}
	switch a {
	case FetchDiverging:
		s.w.logf("%s: DIVERGING (%d, %d) at %d, last %d", s.name, e.Epoch, e.Start, o.pos, o.last)
		x.Diverging(e.Epoch, e.Start)
		o.tr = x
		return true
	case FetchOutOfRange:
		s.w.logf("%s: OUT_OF_RANGE at %d, last %d; source [%d, %d)", s.name, o.pos, o.last, src.vStart(), pos)
		x.OutOfRange()
		o.tr = x
		return true
	case FetchRead, FetchEmpty:
	default:
		s.w.that(false, "%s: fetch at %d, last %d: %s (shown %d, chain %v, start %d, end %d, position %d)", s.name, o.pos, o.last, a, src.lead(), n.Chain, src.vStart(), end, pos)
	}
	s.valid = true
	s.suspect = false
	s.baseLoss = src.k.losses
	i := slices.IndexFunc(src.live(), func(b lrec) bool { return b.VEnd > o.pos })
	if i < 0 {
		return false
	}
	b := src.live()[i]
	if b.kind == 'd' && b.V < o.pos {
		// F8. The batch itself is appended in the same breath: a fetch at its
		// base would be out of range.
		if s.newGen(b.V); o.pos != b.V {
			return true
		}
	}
	hole := b.V - o.chainEnd
	if b.kind == 'd' && hole >= 255 && len(o.inflight) > 0 {
		return false
	}
	l := s.book.Log
	switch l.FenceFor(b.Epoch, s.k.pe) {
	case FenceFirst:
		nb, err := s.book.To(StateEpochFencing)
		s.w.no(err)
		nb.Log = l.Raised(b.Epoch, s.k.pe, s.headroom)
		s.put(nb, "EPOCH_FENCING, shown %d", nb.Log.Shown(s.k.pe))
		return true
	case FenceLater:
		l = l.Raised(b.Epoch, s.k.pe, s.headroom)
	}
	if n := l.WithEpoch(b.Epoch, b.V); n != s.book.Log {
		nb := s.book
		nb.Log = n
		s.put(nb, "epoch %d@%d", b.Epoch, b.V)
	}
	o.pos, o.last = b.VEnd, b.Epoch
	if b.kind != 'd' {
		s.w.logf("%s: skips %c v%d..%d(%d)", s.name, b.kind, b.V, b.VEnd, b.Epoch)
		return true
	}
	o.chainEnd = o.pos
	o.inflight = append(o.inflight, kbatch{Batch: Batch{
		Count: b.VEnd - b.V, Stamped: true, V: b.V, VCount: b.VEnd - b.V, Hole: uint8(min(hole, 255)), Gen: s.book.Log.Open().Gen, Epoch: b.Epoch,
	}, ids: b.ids, kind: 'd'})
	s.w.logf("%s: sends v%d..%d(%d) gen %d %v", s.name, b.V, b.VEnd, b.Epoch, s.book.Log.Open().Gen, b.ids)
	return true
}

// deliver is the fate of the oldest write in flight.
func (s *side) deliver(fate string) bool {
	o := s.own
	if o == nil || len(o.inflight) == 0 {
		return false
	}
	b := o.inflight[0]
	o.inflight = o.inflight[1:]
	s.w.logf("%s: v%d %s", s.name, b.V, fate)
	switch fate {
	case "refused":
		o.doubt = true
	case "timed out":
		o.doubt = true
		s.zombies = append(s.zombies, b)
	case "unconfirmed":
		s.k.append(b)
		o.doubt = true
	case "answer lost":
		s.k.append(b)
		s.k.sync()
		o.doubt = true
	default:
		want := s.k.leader().end()
		if p := s.k.append(b); p.P < want {
			o.doubt = true
		}
		s.k.sync()
	}
	return true
}

func (s *side) zombie(i int) bool {
	if len(s.zombies) == 0 {
		return false
	}
	i %= len(s.zombies)
	b := s.zombies[i]
	s.zombies = slices.Delete(s.zombies, i, i+1)
	s.k.append(b)
	s.k.sync()
	s.w.logf("%s: late write lands: v%d gen %d under %d", s.name, b.V, b.Gen, s.k.pe)
	return true
}
