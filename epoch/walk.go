package epoch

// Verdict says what a physical batch is on the virtual log. Only Live ones may
// be shown.
type Verdict uint8

// The verdicts; the zero value is none of them.
const (
	Live           Verdict = iota + 1
	DeadGeneration         // stamped by another generation than the span's: a late or a cut write
	DeadEpoch              // physical epoch is not the span's, or of a native span: before it, behind its closing, or not what the chain has there
	DeadRange              // p or v lies outside of every span, or outside of its span
	Foreign                // unstamped in a mirrored span: a direct write
	Late                   // stamped in a native span
	Hidden                 // span-opening batch
	Duplicate              // lower v than the chain has reached
	Gap                    // does not chain: something before it was lost; all behind it in its generation too
	Invalid                // flags or numbers this version does not know: refuse and say why
	Below                  // live, but ends at or below the position of a reader that is not exact
)

var verdictNames = [...]string{"none", "live", "dead-generation", "dead-epoch", "dead-range", "foreign", "late", "hidden", "duplicate", "gap", "invalid", "below"}

// String is the verdict as a word for logs and metric labels.
func (v Verdict) String() string {
	if int(v) < len(verdictNames) {
		return verdictNames[v]
	}
	return "unknown"
}

// Placed is where a batch lies. Of batches that are not live, V and Epoch say
// what the stamp claims.
type Placed struct {
	Span    int   // index in Log.Spans, -1 for none
	P, PEnd int64 // physical [P, PEnd)
	V, VEnd int64 // virtual [V, VEnd); VEnd is the chain end when VCount is not known
	Epoch   int32 // leader epoch to show in the batch
}

// Classify applies every rule of DESIGN §3 but the chain, which needs the
// batches before b (see Walker). It does not allocate.
func (l *Log) Classify(b Batch) (Placed, Verdict) {
	return l.classify(l.SpanAtP(b.P), &b)
}

func (l *Log) classify(i int, b *Batch) (Placed, Verdict) {
	pl := Placed{Span: i, P: b.P, PEnd: b.P + b.Count, V: b.V, VEnd: b.V + b.Count, Epoch: b.Epoch}
	if !b.Stamped {
		pl.V, pl.VEnd, pl.Epoch = -1, -1, -1
	} else if b.Flags&FlagRenumbered != 0 {
		pl.VEnd = b.V + max(b.VCount, b.Count)
	}
	if i < 0 {
		return pl, DeadRange
	}
	s := &l.Spans[i]
	if s.Kind == Native {
		return l.classifyNative(i, s, b, pl)
	}
	switch {
	case !b.Stamped:
		return pl, Foreign
	case b.Gen != s.Gen:
		return pl, DeadGeneration
	case b.PEpoch != s.PEpoch:
		return pl, DeadEpoch
	case b.Flags&FlagHidden != 0:
		return pl, Hidden
	case b.Flags&^KnownFlags != 0, b.Count <= 0, b.Epoch < 0, b.V < 0, b.ChainEnd() > MaxVirtualOffset+1:
		return pl, Invalid
	case b.V < s.VStart || b.ChainEnd() > l.vLimit(i): // by the header alone: every reader must say the same
		return pl, DeadRange
	}
	return pl, Live
}

func (l *Log) classifyNative(i int, s *Span, b *Batch, pl Placed) (Placed, Verdict) {
	if b.Stamped {
		if b.Flags&FlagHidden != 0 {
			return pl, Hidden
		}
		return pl, Late
	}
	if b.PEpoch >= 0 && b.PEpoch < s.PEpoch || i+1 < len(l.Spans) && b.PEpoch > l.Spans[i+1].PEpoch {
		return pl, DeadEpoch
	}
	pl.V = b.P - s.PStart + s.VStart
	pl.VEnd = pl.V + b.Count
	pl.Epoch = b.PEpoch
	if b.PEpoch >= 0 {
		pl.Epoch += s.Bump
	}
	switch {
	case b.Count <= 0:
		return pl, Invalid
	case pl.VEnd > l.vLimit(i):
		return pl, DeadRange
	case i+1 < len(l.Spans) && !l.sameEpoch(pl):
		return pl, DeadEpoch
	}
	return pl, Live
}

// sameEpoch tells whether a batch of a closed native span has the epoch that
// the chain had there when the span was closed. After an unclean election to a
// replica with a tail of its own it may not: the offset was another record's.
func (l *Log) sameEpoch(pl Placed) bool {
	e := l.Chain.At(max(pl.V, l.Start))
	return e == -1 || e == pl.Epoch || pl.Epoch < 0
}

// Walker reads batches in physical order and adds the chain rule of DESIGN §1
// and §3: a batch follows its predecessor iff the predecessor's chain end +
// hole = v. It belongs to one Log snapshot, is not safe for concurrent use,
// and Next does not allocate.
type Walker struct {
	l       *Log
	span    int
	end     int64 // V()
	expect  int64 // chain end, or the reader's position while loose
	start   bool  // loose flag to begin a span with that holds the start position
	loose   bool  // no batch of this span's chain met yet
	broken  bool  // a gap was met in this span
	lenient int64
}

// Walk begins at virtual offset v. exact: v is the chain end of the last live
// batch before the first one to come (owner, recovery, a reader that goes on
// where another walk of the same span ended: ChainEnd). Not exact: v is any
// position of a reader, and the first batch shown must hold v, or reach down
// to it by its hole, or have hole 255; from there on the chain is exact. Such
// a reader must not stand above the virtual end: only an exact walk finds
// that.
func (l *Log) Walk(v int64, exact bool) *Walker {
	return &Walker{l: l, span: -2, end: v, expect: v, start: !exact}
}

// Lenient leaves the chain unchecked for batches that start below physical
// offset p: parts of a compacted topic where the cleaner may have removed
// whole batches. It returns w.
func (w *Walker) Lenient(p int64) *Walker {
	w.lenient = p
	return w
}

// V is the virtual offset behind the last live batch, the start position
// before any.
func (w *Walker) V() int64 { return w.end }

// ChainEnd is the offset from which the next batch's hole counts: V() but for
// renumbered batches and at a span's start.
func (w *Walker) ChainEnd() int64 { return w.expect }

// Broken tells that a gap was met in the span the walker is in.
func (w *Walker) Broken() bool { return w.broken }

// Next places the next batch. After a Gap every batch of that generation is a
// Gap, or what Classify says of it.
//
// A renumbered batch whose VCount is not known and whose header ends at or
// below a reader's position is Live with VEnd <= V(): only its records tell
// whether it holds the position.
func (w *Walker) Next(b Batch) (Placed, Verdict) {
	l := w.l
	i := w.span
	if i < 0 || b.P < l.Spans[i].PStart || i+1 < len(l.Spans) && b.P >= l.Spans[i+1].PStart {
		if i = l.SpanAtP(b.P); i != w.span {
			w.enter(i)
		}
	}
	pl, v := l.classify(i, &b)
	switch {
	case v != Live:
		return pl, v
	case l.Spans[i].Kind == Native:
		if pl.VEnd <= w.end {
			return pl, Below
		}
		w.end, w.expect, w.loose = pl.VEnd, pl.VEnd, false
		return pl, Live
	}
	return pl, w.chain(&b, pl.VEnd)
}

// enter begins a span. Its chain starts at VStart, unless the reader's
// position lies inside.
func (w *Walker) enter(i int) {
	w.span, w.broken, w.loose = i, false, w.start
	if i >= 0 && w.end <= w.l.Spans[i].VStart {
		w.expect, w.loose = w.l.Spans[i].VStart, true
	}
}

func (w *Walker) chain(b *Batch, vEnd int64) Verdict {
	if w.broken {
		return Gap
	}
	ends := b.ChainEnd()
	switch {
	case w.loose && ends <= w.expect:
		switch {
		case b.Flags&FlagRenumbered != 0 && b.VCount == 0:
			return Live
		case vEnd <= w.expect:
			return Below
		}
	case w.loose && (b.V <= w.expect || b.V-int64(b.Hole) <= w.expect || b.Hole == HoleMore):
	case !w.loose && b.V < w.expect:
		return Duplicate
	case !w.loose && (b.Hole < HoleMore && b.V-int64(b.Hole) == w.expect || b.Hole == HoleMore && b.V-w.expect >= int64(HoleMore)):
	case b.P < w.lenient:
	default:
		w.broken = true
		return Gap
	}
	w.loose, w.expect, w.end = false, ends, vEnd
	return Live
}
