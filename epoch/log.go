package epoch

import (
	"fmt"
	"sort"
)

// MaxSpans bounds a Log, and with it the ledger record that holds it. A
// partition that needs more is FAILED before it gets there (hazards.md,
// "Smaller ones"); DropBelow keeps ordinary ones far from it.
const MaxSpans = 10_000

// Log is the virtual log of one partition as the ledger has it: an immutable
// snapshot. Methods that change something return a new *Log.
//
// The hole of a generation's first batch counts from the span's VStart, that
// of every other batch from the chain end of the live batch before it.
type Log struct {
	Spans []Span `json:"spans"`
	Chain Chain  `json:"chain"`
	// Start is the virtual log start said by the source; what is shown is
	// max(Start, first live).
	Start int64 `json:"start"`
	// Bump makes the leader epoch shown: physical epoch + Bump.
	Bump int32 `json:"bump"`
	// MaxEpoch is the highest epoch that ever was in the chain or was shown
	// for a native span, cut ones included; it never falls (hazard F2).
	MaxEpoch int32 `json:"maxEpoch"`
	// LastGen is the generation given out last, also when its span is gone, so
	// that late writes of it meet no new span with its number.
	LastGen int16 `json:"lastGen"`
}

// Validate checks the invariants of a Log: spans rise strictly in VStart and
// PStart, physical epochs never fall, no generation serves two spans, the
// chain rises strictly, and MaxEpoch covers it. The error names the first one
// that is broken.
func (l *Log) Validate() error {
	if len(l.Spans) > MaxSpans {
		return fmt.Errorf("epoch: %d spans, more than %d: too many owner changes or cuts within the retention of this partition", len(l.Spans), MaxSpans)
	}
	for i := range l.Spans {
		if err := l.validateSpan(i); err != nil {
			return fmt.Errorf("epoch: span %d of %d: %w", i, len(l.Spans), err)
		}
	}
	for i, e := range l.Chain {
		switch {
		case e.Epoch < 0 || e.Start < 0:
			return fmt.Errorf("epoch: chain entry %d@%d is negative", e.Epoch, e.Start)
		case i > 0 && (e.Epoch <= l.Chain[i-1].Epoch || e.Start <= l.Chain[i-1].Start):
			return fmt.Errorf("epoch: chain entry %d@%d does not rise above %d@%d", e.Epoch, e.Start, l.Chain[i-1].Epoch, l.Chain[i-1].Start)
		}
	}
	switch {
	case l.Start < 0 || l.Start > MaxVirtualOffset:
		return fmt.Errorf("epoch: virtual log start %d is out of range", l.Start)
	case l.Bump < 0:
		return fmt.Errorf("epoch: bump %d is negative", l.Bump)
	case l.MaxEpoch < l.Chain.Newest():
		return fmt.Errorf("epoch: maxEpoch %d lies below the newest epoch %d of the chain", l.MaxEpoch, l.Chain.Newest())
	}
	return nil
}

func (l *Log) validateSpan(i int) error {
	s := &l.Spans[i]
	switch {
	case s.Kind != Mirrored && s.Kind != Native:
		return fmt.Errorf("unknown kind %q: written by a newer Lockstep?", s.Kind)
	case s.VStart < 0 || s.VStart > MaxVirtualOffset || s.PStart < 0:
		return fmt.Errorf("start v%d p%d is out of range", s.VStart, s.PStart)
	case s.PEpoch < 0:
		return fmt.Errorf("physical epoch %d is negative", s.PEpoch)
	case s.Kind == Mirrored && s.Gen < 0:
		return fmt.Errorf("generation %d is negative", s.Gen)
	}
	if i > 0 {
		q := &l.Spans[i-1]
		switch {
		case s.VStart <= q.VStart:
			return fmt.Errorf("virtual start %d does not rise above %d (hazard H5)", s.VStart, q.VStart)
		case s.PStart <= q.PStart:
			return fmt.Errorf("physical start %d does not rise above %d (hazard H5)", s.PStart, q.PStart)
		case s.PEpoch < q.PEpoch:
			return fmt.Errorf("physical epoch %d falls below %d: stale metadata, or the destination topic was re-created", s.PEpoch, q.PEpoch)
		}
		if s.Kind == Mirrored {
			for j := range l.Spans[:i] {
				if l.Spans[j].Kind == Mirrored && l.Spans[j].Gen == s.Gen {
					return fmt.Errorf("generation %d serves span %d too", s.Gen, j)
				}
			}
		}
	}
	switch last := i == len(l.Spans)-1; {
	case s.PEnd == -1:
	case last:
		return fmt.Errorf("physical end %d on the open span", s.PEnd)
	case s.PEnd < s.PStart || s.PEnd > l.Spans[i+1].PStart:
		return fmt.Errorf("physical end %d lies outside [%d, %d]", s.PEnd, s.PStart, l.Spans[i+1].PStart)
	}
	return nil
}

// Open is the newest span, the one that takes appends; nil for a log without
// spans.
func (l *Log) Open() *Span {
	if len(l.Spans) == 0 {
		return nil
	}
	return &l.Spans[len(l.Spans)-1]
}

// SpanAtP is the index of the span whose [ps, next ps) holds p, -1 for none.
func (l *Log) SpanAtP(p int64) int {
	lo, hi := 0, len(l.Spans)
	for lo < hi {
		if m := int(uint(lo+hi) >> 1); l.Spans[m].PStart > p {
			hi = m
		} else {
			lo = m + 1
		}
	}
	return lo - 1
}

// SpanAtV is the index of the last span with VStart <= v, -1 for none.
func (l *Log) SpanAtV(v int64) int {
	return sort.Search(len(l.Spans), func(i int) bool { return l.Spans[i].VStart > v }) - 1
}

// Shown is the leader epoch shown for physical leader epoch pe; -1 stays -1.
func (l *Log) Shown(pe int32) int32 {
	if pe < 0 {
		return -1
	}
	return pe + l.Bump
}

// vLimit is the first virtual offset that span i can no longer hold.
func (l *Log) vLimit(i int) int64 {
	if i+1 < len(l.Spans) {
		return l.Spans[i+1].VStart
	}
	return MaxVirtualOffset + 1
}

// EndOffsetFor answers OffsetForLeaderEpoch (facts.md §2) on the chain
// collapsed at the ledger's log start; position (>= virtual end) is the end
// of the newest epoch.
func (l *Log) EndOffsetFor(e int32, position int64) (int32, int64) {
	return l.Chain.endOffsetFrom(e, l.Start, position)
}

// EndOffsetFrom is EndOffsetFor with the virtual start shown, max(Start, first
// live), when the caller knows it (hazard F12).
func (l *Log) EndOffsetFrom(e int32, start, position int64) (int32, int64) {
	return l.Chain.endOffsetFrom(e, max(start, l.Start), position)
}

// endOffsetFrom is c.AdvanceStart(start).EndOffsetFor(e, end) without the
// allocation.
func (c Chain) endOffsetFrom(e int32, start, end int64) (int32, int64) {
	i := sort.Search(len(c), func(i int) bool { return c[i].Start > start })
	if i == 0 {
		return c.EndOffsetFor(e, end)
	}
	c = c[i-1:]
	if e != -1 && e < c[0].Epoch {
		return e, start
	}
	return c.EndOffsetFor(e, end)
}

// EpochAhead tells that epoch e is not known here but may be in a newer ledger
// record: asked for, it must get a retriable UNKNOWN_LEADER_EPOCH, not
// (-1, -1) (hazard H12). Epochs up to MaxEpoch were here and were cut.
func (l *Log) EpochAhead(e, shown int32) bool {
	return e > l.MaxEpoch && e > l.Chain.Newest() && e <= shown
}

// Joined is the chain of a log whose open span is native: the ledger's chain
// and, shifted to virtual offsets and epochs, the destination broker's own
// epochs from that span's start on. broker is in physical coordinates.
func (l *Log) Joined(broker Chain) Chain {
	s := l.Open()
	if s == nil || s.Kind != Native {
		return l.Chain
	}
	out := l.Chain
	if e := broker.At(s.PStart); e >= 0 {
		out = out.Assign(e+s.Bump, s.VStart)
	}
	for _, e := range broker {
		if e.Start > s.PStart {
			out = out.Assign(e.Epoch+s.Bump, e.Start-s.PStart+s.VStart)
		}
	}
	return out
}
