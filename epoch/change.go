package epoch

import "fmt"

// clone copies l with a span list of its own, room for one more.
func (l *Log) clone(spans int) *Log {
	n := *l
	n.Spans = make([]Span, spans, spans+1)
	copy(n.Spans, l.Spans)
	return &n
}

// Cut opens mirrored generation gen at virtual offset t (rounded down to a
// batch by the caller) and physical offset pEnd, the log's end, under the
// destination's leader epoch pe. Nothing is deleted: what lay at t and above
// is dead from the ledger write on.
//
// Spans that start at or behind pEnd (the destination lost its tail) or at or
// above t are removed, and the new span's VStart is not above theirs (hazard
// H5): the caller goes on mirroring at the result's Open().VStart, which may
// lie below t. The chain is cut to it; MaxEpoch, Start and Bump stay. Use
// CutLive when live records were cut.
//
// An error names the invariant that the change would break; l stays valid.
func (l *Log) Cut(t, pEnd int64, pe int32, gen int16) (*Log, error) {
	return l.open(t, pEnd, Span{Kind: Mirrored, Gen: gen, PEpoch: pe})
}

// CutLive is Cut when anything live is cut: the leader epoch shown rises in
// the same ledger write (hazard M2), so that consumers validate their
// positions.
func (l *Log) CutLive(t, pEnd int64, pe int32, gen int16) (*Log, error) {
	n, err := l.Cut(t, pEnd, pe, gen)
	if err != nil {
		return nil, err
	}
	n.Bump++
	return n, nil
}

// OpenNative opens a native span at virtual offset t (LMO) and physical offset
// pEnd, the end of its span-opening batch, and raises Bump by at least step
// and so that the epoch shown is above MaxEpoch (hazards F2, M1). The bump is
// frozen in the span.
func (l *Log) OpenNative(t, pEnd int64, pe, step int32) (*Log, error) {
	if step < 0 {
		return nil, fmt.Errorf("epoch: bump step %d is negative", step)
	}
	bump := nativeBump(l, pe, step)
	n, err := l.open(t, pEnd, Span{Kind: Native, PEpoch: pe, Bump: bump})
	if err != nil {
		return nil, err
	}
	n.Bump = bump
	return n.WithEpoch(pe+bump, n.Open().VStart), nil
}

func (l *Log) open(t, pEnd int64, s Span) (*Log, error) {
	if t < 0 || pEnd < 0 {
		return nil, fmt.Errorf("epoch: a span cannot start at v%d p%d", t, pEnd)
	}
	keep := 0
	for ; keep < len(l.Spans) && l.Spans[keep].PStart < pEnd; keep++ {
	}
	if keep < len(l.Spans) {
		t = min(t, l.Spans[keep].VStart)
	}
	for keep > 0 && l.Spans[keep-1].VStart >= t {
		keep--
	}
	if s.Kind == Mirrored {
		if s.Gen < 0 {
			return nil, fmt.Errorf("epoch: generation %d is negative", s.Gen)
		}
		for i := range l.Spans {
			if l.Spans[i].Kind == Mirrored && l.Spans[i].Gen == s.Gen {
				return nil, fmt.Errorf("epoch: generation %d is taken by span %d: late writes of it would become live", s.Gen, i)
			}
		}
	}
	if o := l.Open(); o != nil && s.PEpoch < o.PEpoch {
		return nil, fmt.Errorf("epoch: new span under physical epoch %d, newest span has %d: stale metadata, or the destination topic was re-created", s.PEpoch, o.PEpoch)
	}
	n := l.clone(keep)
	if keep > 0 && n.Spans[keep-1].PEnd > pEnd {
		n.Spans[keep-1].PEnd = pEnd
	}
	s.VStart, s.PStart, s.PEnd = t, pEnd, -1
	n.Spans = append(n.Spans, s)
	n.MaxEpoch = max(l.MaxEpoch, l.Chain.Newest())
	n.Chain = l.Chain.Truncate(t)
	if s.Kind == Mirrored {
		n.LastGen = s.Gen
	}
	if err := n.Validate(); err != nil {
		return nil, err
	}
	return n, nil
}

// Restart begins as from an empty log, at the source's log start: for the
// first mirroring of a partition and after a jump to a source start that lies
// above the position (hazard F12). All spans and the chain go, so the next
// fetch sends no last epoch; the epoch shown rises when there was a log
// before.
func (l *Log) Restart(start, pEnd int64, pe int32, gen int16) (*Log, error) {
	// One Cut below everything checks generation and physical epoch.
	n, err := l.Cut(0, pEnd, pe, gen)
	if err != nil {
		return nil, err
	}
	n.Spans = []Span{{Kind: Mirrored, Gen: gen, VStart: start, PStart: pEnd, PEpoch: pe, PEnd: -1}}
	n.Chain, n.Start = nil, start
	if len(l.Spans) > 0 {
		n.Bump++
	}
	if err := n.Validate(); err != nil {
		return nil, err
	}
	return n, nil
}

// WithLiveEnd notes where the live batches of the newest closed span end
// physically (hazard M7), for a Cut that has just closed it. It is clamped to
// that span's range; without a closed span it is a no-op.
func (l *Log) WithLiveEnd(p int64) *Log {
	i := len(l.Spans) - 2
	if i < 0 {
		return l
	}
	n := l.clone(len(l.Spans))
	n.Spans[i].PEnd = min(max(p, n.Spans[i].PStart), n.Spans[i+1].PStart)
	return n
}

// WithEpoch feeds the chain with the leader epoch e of a source batch that
// starts at start; skipped control batches feed it too. It returns l itself
// when nothing changes: only then does the batch need no ledger write.
//
// What the chain knew from start on goes first: after a take-over at a lower
// position batches are fed again, and Assign alone would take an older epoch
// for a new branch and drop the entries below it.
func (l *Log) WithEpoch(e int32, start int64) *Log {
	c := l.Chain.Truncate(start).Assign(e, start)
	if len(c) == len(l.Chain) && (len(c) == 0 || c[len(c)-1] == l.Chain[len(c)-1]) && e <= l.MaxEpoch {
		return l
	}
	n := *l
	n.Chain = c
	n.MaxEpoch = max(l.MaxEpoch, l.Chain.Newest(), e)
	return &n
}

// AdvanceStart moves the virtual log start to n; the chain collapses at it.
// The start never moves back.
func (l *Log) AdvanceStart(n int64) *Log {
	if n <= l.Start {
		return l
	}
	c := *l
	c.Start = n
	c.Chain = l.Chain.AdvanceStart(n)
	return &c
}

// DropBelow drops the spans that lie wholly below the physical log start; the
// newest one always stays.
func (l *Log) DropBelow(pStart int64) *Log {
	i := 0
	for i+1 < len(l.Spans) && l.Spans[i+1].PStart <= pStart {
		i++
	}
	if i == 0 {
		return l
	}
	n := *l
	n.Spans = append([]Span(nil), l.Spans[i:]...)
	return &n
}

// NextGeneration is a generation number for the next Cut: the one behind the
// last, wrapping at MaxGeneration, that no span has and that used (batches
// with it may be left in the log, or may still land; nil: none) does not
// report. An error says that none is free.
func (l *Log) NextGeneration(used func(int16) bool) (int16, error) {
	taken := make(map[int16]bool, len(l.Spans))
	last := l.LastGen
	for i := range l.Spans {
		if l.Spans[i].Kind == Mirrored {
			taken[l.Spans[i].Gen] = true
			if l.LastGen == 0 {
				last = max(last, l.Spans[i].Gen)
			}
		}
	}
	for range int(MaxGeneration) + 1 {
		if last == MaxGeneration {
			last = -1
		}
		last++
		if !taken[last] && (used == nil || !used(last)) {
			return last, nil
		}
	}
	return 0, fmt.Errorf("epoch: all %d generations still have batches in the log: wait for retention, or mirror the partition anew", int(MaxGeneration)+1)
}
