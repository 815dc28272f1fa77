package epoch

// Checkpoint is what the ledger's checkpoint says, as far as recovery needs.
// Every lowering of the position must open a span (Cut), also one that removes
// no live record: that is how recovery tells an older checkpoint's Position
// from a valid one.
type Checkpoint struct {
	Gen       int16
	V         int64 // virtual end of the last live batch confirmed below the high watermark
	ChainEnd  int64 // its chain end
	P         int64 // its physical end
	Position  int64 // first source offset not yet mirrored, skipped ones counted
	EndShown  int64 // highest end ever shown since the last cut
	LastEpoch int32 // epoch of the last source batch seen, skipped ones included
	Open      bool  // a source transaction is open at Position
	// Under is the generation that was open when Position was known, which may be
	// one without a live batch yet; 0: Gen.
	Under int16
}

// RecoverInput is what an owner knows before it reads the log again.
type RecoverInput struct {
	PStart int64 // physical log start
	PEnd   int64 // physical log end as far as it can be read: the high watermark
	// LeaderEpoch is the destination's leader epoch now.
	LeaderEpoch int32
	// Unsure: the outcome of a produce is unknown; UnsureBase is the physical
	// offset that was expected for the first such one. What lies there or
	// behind does not count (hazard H2).
	Unsure     bool
	UnsureBase int64
	// MayLand: a produce of this or of an older owner may still land. False
	// only after a clean hand-over with nothing in flight.
	MayLand bool
	// CleanedBelow: the cleaner may have removed batches below this physical
	// offset, so the chain cannot be checked there; 0 for topics that are not
	// compacted.
	CleanedBelow int64
	// Checkpoint is nil when there is none of this lineage.
	Checkpoint *Checkpoint
}

// Basis says what the recovered position rests on.
type Basis string

// The bases.
const (
	BasisNone       Basis = "none"       // no spans: nothing was ever mirrored
	BasisLog        Basis = "log"        // the last live batch of any span
	BasisCheckpoint Basis = "checkpoint" // no live batch left, retention took them: the checkpoint
	BasisSpan       Basis = "span"       // no live batch left: a span's start
)

// DeadBehind counts the dead batches that lie physically behind a live one,
// which the cleaner of a compacted topic would keep instead (hazard H1). The
// repair: SameBelow → shadow generation from LowestV; Foreign → mirror anew;
// SameAhead alone → go on, the live copies will lie behind them. Control and
// hidden batches don't count. Only what recovery had to read is counted, and
// branches are told apart by the chain alone: after a cut of live records a
// compacted topic is mirrored anew whatever stands here (H15).
type DeadBehind struct {
	SameAhead int   // same branch, at or above the live end there
	SameBelow int   // same branch, copy of live records
	Foreign   int   // unstamped, not understood, of another branch or of an epoch the chain doesn't have
	LowestV   int64 // lowest v among SameBelow, -1 for none
	AheadEnd  int64 // where SameAhead ends: the live copies of all are there when the live end is; 0 for none
}

// Any tells whether a compacted topic needs a repair.
func (d DeadBehind) Any() bool { return d.SameBelow+d.Foreign > 0 }

// Left counts a dead batch that is followed by the live records of [from, to):
// one of the same branch that lies in there has its live copy behind it.
func (d *DeadBehind) Left(b Batch, c Chain, from, to int64) {
	top := b.V + max(b.Count, b.VCount, 1) - 1
	switch {
	case b.Control || b.Stamped && b.Flags&FlagHidden != 0:
	case !b.Stamped || b.Flags&^KnownFlags != 0 || c.At(b.V) != b.Epoch || c.At(top) != b.Epoch:
		d.Foreign++
	case b.V < from:
		d.SameBelow++
		if d.LowestV < 0 || b.V < d.LowestV {
			d.LowestV = b.V
		}
	case top >= to:
		d.SameAhead++
		d.AheadEnd = max(d.AheadEnd, top+1)
	}
}

// Recovered is the outcome. The owner goes on at Position; with NewGeneration
// it first writes Cut(Position, PEnd, …), whose span may begin lower still.
type Recovered struct {
	Basis    Basis
	Last     Placed // last live batch when Basis is BasisLog
	VEnd     int64  // virtual end
	Position int64  // >= VEnd
	ChainEnd int64  // where the next batch's hole counts from while the generation stays
	// LastChainEnd is the last live batch's own, for the next checkpoint (Gen, P,
	// ChainEnd speak of one batch). It is ChainEnd unless the open generation has
	// no batch yet.
	LastChainEnd int64
	LivePEnd     int64 // where live batches end physically, -1 when none is left
	// LastEpoch is for the next fetch: the chain's newest below Position, -1
	// from an empty log.
	LastEpoch int32
	Open      bool  // a source transaction is open at Position (M11)
	ClosedV   int64 // virtual end of the last live batch met without the open flag, -1 for none met
	// NeedVCount: Last is renumbered and its VCount was not given, so VEnd and
	// Position are too low. Read its records, Feed it again with VCount, then
	// call Result again.
	NeedVCount bool
	// NewGeneration tells that the open generation must not be written to any
	// more, and Why.
	NewGeneration bool
	Why           string
	Gap           bool // a batch that does not chain was met
	// Lost: the destination lost a tail: what was confirmed or opened lies at
	// or above the physical end, or behind batches that are gone.
	Lost  bool
	Dead  DeadBehind
	Count [int(Below) + 1]int // batches read, by verdict
}

// Recovery finds the last live batch of any span by reading the log again: the
// newest span first, then older ones, each forward so that the chain can be
// checked, from the checkpoint where the log bears it out, else from the
// span's start. Use: while Next says so, read [from, to) and Feed each batch
// in physical order (a first one that begins before from too); then Result.
type Recovery struct {
	l    *Log
	in   RecoverInput
	end  int64 // of what may count: PEnd, UnsureBase
	span int   // span being read
	from int64 // where the read in progress begins
	w    *Walker

	anchored bool // reading from the checkpoint
	verified bool // the checkpoint's batch was met
	distrust bool // the checkpoint is not borne out
	headless bool // the span's beginning is gone: the first batch begins the chain

	found bool
	last  Batch // the last live one
	out   Recovered
}

// Recover plans a recovery of l as it is in the ledger.
func (l *Log) Recover(in RecoverInput) *Recovery {
	r := &Recovery{l: l, in: in, end: in.PEnd, span: len(l.Spans)}
	r.out = Recovered{Basis: BasisNone, LivePEnd: -1, ClosedV: -1, LastEpoch: -1, Dead: DeadBehind{LowestV: -1}}
	if in.Unsure {
		r.end = min(r.end, in.UnsureBase)
	}
	return r
}

// limit is where reading ends: in a compacted log what does not count may lie
// behind a live record of its key, and must be known.
func (r *Recovery) limit() int64 {
	if r.in.CleanedBelow > 0 {
		return r.in.PEnd
	}
	return r.end
}

// cpSpan is the span that the checkpoint can belong to, -1 for none.
func (r *Recovery) cpSpan() int {
	cp := r.in.Checkpoint
	if cp == nil {
		return -1
	}
	for i := range r.l.Spans {
		s := &r.l.Spans[i]
		if s.Kind != Mirrored || s.Gen != cp.Gen {
			continue
		}
		if cp.P <= s.PStart || i+1 < len(r.l.Spans) && cp.P > r.l.Spans[i+1].PStart || cp.ChainEnd <= s.VStart || cp.V > r.l.vLimit(i) {
			return -1
		}
		return i
	}
	return -1
}

// cpLimit is what the checkpoint's position can't be above: a cut made since.
func (r *Recovery) cpLimit(cpSpan int) int64 {
	for i := len(r.l.Spans) - 1; i > cpSpan; i-- {
		if s := &r.l.Spans[i]; s.Kind == Mirrored && s.Gen == r.in.Checkpoint.Under && s.VStart <= r.in.Checkpoint.Position {
			return r.l.vLimit(i)
		}
	}
	return r.l.vLimit(cpSpan)
}

// Next is the next physical range to read, forward; false: call Result.
func (r *Recovery) Next() (from, to int64, ok bool) {
	if r.w != nil && r.anchored && !r.verified {
		// The batch that the checkpoint names is not there as it says.
		r.distrust = true
		r.span++
	}
	r.w = nil
	if r.found {
		return 0, 0, false
	}
	for r.span--; r.span >= 0; r.span-- {
		s := &r.l.Spans[r.span]
		to = r.limit()
		if r.span+1 < len(r.l.Spans) {
			to = min(to, r.l.Spans[r.span+1].PStart)
			if s.PEnd >= 0 {
				to = min(to, s.PEnd)
			}
		}
		from = max(s.PStart, r.in.PStart)
		r.headless = r.in.PStart > s.PStart
		r.anchored, r.verified = false, false
		v := s.VStart
		if cp := r.in.Checkpoint; !r.distrust && r.cpSpan() == r.span && cp.P <= min(to, r.end) && cp.P > r.in.PStart {
			r.anchored, from = true, cp.P-1
		}
		if from >= to {
			continue
		}
		r.from = from
		r.w = r.l.Walk(v, true).Lenient(r.in.CleanedBelow)
		return from, to, true
	}
	return 0, 0, false
}

// Feed takes the next batch of the range. Batches outside of it are ignored.
func (r *Recovery) Feed(b Batch) {
	if r.w == nil {
		if r.found && b.P == r.last.P && b.Gen == r.last.Gen && b.VCount > 0 {
			r.live(b)
		}
		return
	}
	if b.P >= r.limit() || b.PEnd() <= r.from || r.l.SpanAtP(b.P) != r.span {
		return
	}
	if b.P >= r.end {
		r.dead(b, r.w.V())
		return
	}
	if r.anchored && !r.verified {
		cp := r.in.Checkpoint
		_, v := r.l.Classify(b)
		if b.PEnd() != cp.P || v != Live || b.ChainEnd() != cp.ChainEnd {
			r.distrust = true
			return
		}
		if r.distrust {
			return
		}
		r.verified = true
		r.w = r.l.Walk(b.V, false).Lenient(r.in.CleanedBelow)
	} else if r.headless && !r.found && r.l.Spans[r.span].Kind == Mirrored {
		if _, v := r.l.Classify(b); v == Live {
			r.w = r.l.Walk(b.V, false).Lenient(r.in.CleanedBelow)
		}
	}
	end := r.w.V()
	_, v := r.w.Next(b)
	r.out.Count[v]++
	switch v {
	case Live:
		r.live(b)
	case Gap:
		r.out.Gap = true
		r.dead(b, end)
	case Hidden, Below:
	default:
		r.dead(b, end)
	}
}

func (r *Recovery) live(b Batch) {
	pl, _ := r.l.Classify(b)
	if b.VCount == 0 && b.Flags&FlagRenumbered == 0 {
		b.VCount = b.Count
	}
	r.found, r.last = true, b
	r.out.Last = pl
	if b.Flags&FlagOpen == 0 {
		r.out.ClosedV = pl.VEnd
	}
}

// dead counts b for hazard H1; end is the live end in front of it.
func (r *Recovery) dead(b Batch, end int64) {
	if b.Control || b.Flags&FlagHidden != 0 || r.span == 0 && !r.found {
		return // no live record lies in front of it
	}
	d := &r.out.Dead
	c := r.l.Chain
	top := b.V + max(b.Count, 1) - 1
	same := b.Stamped && b.Flags&^KnownFlags == 0 && c.At(b.V) == b.Epoch && c.At(top) == b.Epoch
	switch {
	case !same:
		d.Foreign++
	case b.V < end:
		d.SameBelow++
		if d.LowestV < 0 || b.V < d.LowestV {
			d.LowestV = b.V
		}
	default:
		d.SameAhead++
		d.AheadEnd = max(d.AheadEnd, top+1, b.V+b.VCount)
	}
}

// Result decides, once Next has said that there is nothing more to read.
func (r *Recovery) Result() Recovered {
	o := r.out
	cp, cpSpan := r.in.Checkpoint, r.cpSpan()
	switch {
	case len(r.l.Spans) == 0:
		return r.verdict(o)
	case r.found:
		o.Basis = BasisLog
		o.VEnd, o.Position, o.LivePEnd, o.ChainEnd = o.Last.VEnd, o.Last.VEnd, o.Last.PEnd, r.last.ChainEnd()
		o.Open = r.last.Flags&FlagOpen != 0
		o.NeedVCount = r.last.Flags&FlagRenumbered != 0 && r.last.VCount == 0
		if cp != nil && cpSpan == o.Last.Span && !r.distrust && cp.P == o.Last.PEnd && cp.ChainEnd == o.ChainEnd {
			o.NeedVCount = false
			o.VEnd = max(o.VEnd, cp.V)
			o.Position = max(o.VEnd, min(cp.Position, r.cpLimit(cpSpan)))
			if o.Position == cp.Position {
				o.Open = cp.Open
			}
		}
	default:
		r.withoutLive(&o, cp, cpSpan)
	}
	o.LastChainEnd = o.ChainEnd
	if open := len(r.l.Spans) - 1; o.Basis == BasisSpan || o.Basis == BasisLog && o.Last.Span != open || o.Basis == BasisCheckpoint && cpSpan != open {
		o.ChainEnd = r.l.Spans[open].VStart // the open generation has no batch yet
	}
	if r.l.Open().Kind == Native {
		o.ChainEnd = o.VEnd
	}
	if o.Basis == BasisSpan || o.Basis == BasisLog && r.l.Spans[o.Last.Span].Kind == Native {
		o.LastChainEnd = o.VEnd
	}
	o.LastEpoch = r.l.Chain.Truncate(o.Position).Newest()
	return r.verdict(o)
}

// withoutLive: no live batch is left. A span's start or the checkpoint counts
// only if its p is below the physical log start (retention), never if it lies
// at or above the log end (loss): hazards F9, M22.
func (r *Recovery) withoutLive(o *Recovered, cp *Checkpoint, cpSpan int) {
	o.Basis = BasisSpan
	o.Position = r.l.Spans[0].VStart
	for i := range r.l.Spans {
		s := &r.l.Spans[i]
		if s.PStart > r.in.PStart {
			break
		}
		v := s.VStart
		if s.Kind == Native {
			v = min(v+r.in.PStart-s.PStart, r.l.vLimit(i))
		}
		o.Position = max(o.Position, v)
	}
	o.VEnd = o.Position
	if cpSpan >= 0 && cp.P <= r.in.PStart && cp.P <= r.in.PEnd && cp.V >= o.VEnd {
		o.Basis = BasisCheckpoint
		o.VEnd, o.ChainEnd, o.Position = cp.V, cp.ChainEnd, max(cp.V, min(cp.Position, r.cpLimit(cpSpan)))
		o.Open = cp.Open && o.Position == cp.Position
	}
}

func (r *Recovery) verdict(o Recovered) Recovered {
	s := r.l.Open()
	cp := r.in.Checkpoint
	// A checkpoint's batch that is not there was lost, unless the cleaner may
	// have taken it.
	o.Lost = s != nil && r.in.PEnd < s.PStart || cp != nil && (cp.P > r.in.PEnd || r.distrust && cp.P > r.in.CleanedBelow)
	switch {
	case s == nil:
		o.Why = "nothing was ever mirrored"
	case s.Kind != Mirrored:
		o.Why = "the open span is native"
	case r.in.LeaderEpoch != s.PEpoch:
		o.Why = "the destination's leader epoch changed"
	case o.Lost:
		o.Why = "the destination lost its tail"
	case s.VStart > o.Position:
		o.Why = "the open generation begins above the last live batch"
	case o.Gap:
		o.Why = "a batch was lost in front of one that landed"
	case r.in.Unsure:
		o.Why = "the outcome of a produce is unknown"
	case r.in.MayLand:
		o.Why = "a produce of an older owner may still land"
	}
	o.NewGeneration = o.Why != ""
	return o
}
