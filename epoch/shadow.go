package epoch

import (
	"errors"
	"fmt"
)

// Shadow is a log that is built beside the one shown (hazards H1, H15). On a
// compacted topic a cut must not be followed by appends to what is left: the
// dead records would lie behind live ones with the same keys, and the cleaner
// keeps the later. So everything is written once more, behind everything dead,
// while readers go on seeing the old log up to the cut; when the new one has
// got there it takes the old one's place, in one ledger write.
//
// The log shown is frozen meanwhile: its open span is the empty generation that
// the cut opened, and takes nothing, so that all that is appended is dead in it.
type Shadow struct {
	Log Log `json:"log"`
	// Target is the position from which on it may replace the log shown: where
	// that was cut, or how far it reached before the destination lost some.
	Target int64 `json:"target"`
	// Local: it is copied from the log shown, not from the source, which may be
	// gone (STOPPING).
	Local bool `json:"local,omitempty"`
	// Anew: it is copied from the source's log start. It brings back older values
	// of keys, which the cleaner here took for newer ones that were cut since.
	Anew bool `json:"anew,omitempty"`
}

// ShadowStart is where a shadow begins.
type ShadowStart struct {
	From   int64 // virtual offset of its first record: the source's log start, or a batch's base
	Keep   bool  // what the log shown has below From stays live (H1: only copies lie behind)
	Local  bool
	Target int64
	PEnd   int64 // physical end of the log
	PEpoch int32
	Gen    int16 // another one than the cut's (Book.NextGeneration)
}

// Beside begins a shadow next to b.Log, which was cut just now (its open span is
// mirrored and empty); it goes into the same ledger write. A shadow that was
// there before is given up: what it wrote is dead.
func (b Book) Beside(s ShadowStart) (Book, error) {
	if o := b.Log.Open(); o == nil || o.Kind != Mirrored {
		return b, errors.New("epoch: no shadow beside a log that is not cut")
	}
	begin := b.Work().Cut
	if !s.Keep {
		begin = b.Work().Restart
	}
	n, err := begin(s.From, s.PEnd, s.PEpoch, s.Gen)
	if err != nil {
		return b, err
	}
	if s.Local {
		n = n.AdvanceStart(b.Log.Start)
	}
	anew := !s.Local && (!s.Keep || b.Shadow != nil && b.Shadow.Anew)
	b.Shadow = &Shadow{Log: *n, Target: s.Target, Local: s.Local, Anew: anew}
	b.Lacks = b.Lacks || s.Local
	b = b.WithWork(n)
	return b, b.ValidateShadow()
}

// Work is the log that is written to: the shadow, when there is one.
func (b Book) Work() *Log {
	if b.Shadow != nil {
		return &b.Shadow.Log
	}
	return b.Log
}

// WithWork is b with a changed Work. What counts for a partition and not for
// one of its logs, the epoch shown and the numbers given out, is always the same
// in both; the virtual start rises in both.
func (b Book) WithWork(l *Log) Book {
	if b.Shadow == nil {
		b.Log = l
		return b
	}
	s, view := *b.Shadow, *b.Log
	s.Log = *l
	s.Log.Bump, s.Log.MaxEpoch = max(l.Bump, view.Bump), max(l.MaxEpoch, view.MaxEpoch)
	if o := view.Open(); o != nil {
		view = *view.AdvanceStart(min(l.Start, o.VStart))
	}
	view.Bump, view.MaxEpoch, view.LastGen = s.Log.Bump, s.Log.MaxEpoch, s.Log.LastGen
	b.Log, b.Shadow = &view, &s
	return b
}

// NextGeneration is a generation that neither log has; not names one more.
func (b Book) NextGeneration(not int16) (int16, error) {
	taken := func(g int16) bool {
		if g == not {
			return true
		}
		return b.Log.HasGeneration(g)
	}
	return b.Work().NextGeneration(taken)
}

// ViewLost is b after the destination lost records of the log shown while a
// shadow is built: it ends at c.T now, and the shadow's target stays, so that the
// end shown does not fall for good.
func (b Book) ViewLost(c CutTo) (Book, error) {
	n, err := b.Log.Cut(c.T, c.PEnd, c.PEpoch, c.Gen)
	if err != nil {
		return b, err
	}
	// What comes back with the switch is the source's of now: as after any loss.
	t := n.Open().VStart
	b.Pairs = LowerPairs(b.Pairs, b.Log.Chain, t, len(n.Chain) == 0)
	b.Self.Before = lowerPast(b.Self.Before, t)
	b.Log = n
	if b.Shadow != nil {
		w := b.Shadow.Log
		w.LastGen = c.Gen
		b = b.WithWork(&w)
	}
	return b, b.ValidateShadow()
}

// Due tells whether the shadow may have got as far as it must, at its
// position: the source is asked (Truncation, about the log shown) whether that
// still is of its branch, and if so and position is below Target, it has not. A
// source that has lost more meanwhile may end below Target for good, so that is
// asked too when its end is reached (sourceEnd -1: not known).
func (s *Shadow) Due(position, sourceEnd int64) bool {
	return s != nil && !s.Local && (position >= s.Target || sourceEnd >= 0 && position >= sourceEnd)
}

// WantsAnew tells that the shadow must not take its place with a cut to t, but be
// begun again at the source's log start: it shares the front with the log shown,
// where the cleaner may have taken values for later ones that go with the cut.
func (b Book) WantsAnew(t int64) bool {
	return b.Shadow != nil && !b.Shadow.Anew && t < b.Log.Open().VStart
}

// Switch makes the shadow the log shown. What is shown below t is the shadow's
// branch (the source has been asked, see Truncation), so the chain below it
// stays, with epochs of which compaction has left no record, and positions there
// stay valid. t below the end of the log shown is a cut, and lowers the pairs.
// The epoch shown rises, so that readers look again.
func (b Book) Switch(t int64) (Book, error) {
	if b.Shadow == nil {
		return b, errors.New("epoch: there is no shadow")
	}
	if b.WantsAnew(t) {
		return b, errors.New("epoch: a shadow with what was kept can't take its place with a cut")
	}
	view, n := b.Log, b.Shadow.Log
	end := view.Open().VStart
	t = min(t, end)
	chain := view.Chain.Truncate(t)
	for _, e := range n.Chain {
		switch {
		case e.Start >= t:
			chain = chain.Assign(e.Epoch, e.Start)
		case e.Epoch > chain.Newest():
			chain = chain.Assign(e.Epoch, t)
		}
	}
	n.Chain = chain.AdvanceStart(n.Start)
	n.Bump = max(n.Bump, view.Bump) + 1
	n.MaxEpoch = max(n.MaxEpoch, view.MaxEpoch, n.Chain.Newest())
	if err := n.Validate(); err != nil {
		return b, err
	}
	if t < end {
		b.Pairs = LowerPairs(b.Pairs, view.Chain, t, len(view.Chain.Truncate(t)) == 0)
		b.Self.Before = lowerPast(b.Self.Before, t)
	}
	b.Lacks = b.Lacks && !b.Shadow.Anew
	if first := n.Spans[0]; first.Kind == Mirrored && !view.HasGeneration(first.Gen) { // all of it was written anew
		b.Plain = false
	}
	b.Log, b.Shadow = &n, nil
	return b, nil
}

// ValidateShadow checks what must hold between a shadow and the log shown.
func (b Book) ValidateShadow() error { return b.Shadow.Validate(b.Log) }

// Validate checks s, which may be nil, beside the log shown.
func (s *Shadow) Validate(view *Log) error {
	if s == nil {
		return nil
	}
	if err := s.Log.Validate(); err != nil {
		return fmt.Errorf("shadow: %w", err)
	}
	o, w := view.Open(), s.Log.Open()
	switch {
	case o == nil || o.Kind != Mirrored || w == nil || w.Kind != Mirrored:
		return errors.New("epoch: a shadow stands beside a log whose open span is mirrored, and is so itself")
	case s.Target < o.VStart:
		return fmt.Errorf("epoch: shadow's target %d lies below the end %d of the log shown", s.Target, o.VStart)
	case s.Log.Bump != view.Bump || s.Log.MaxEpoch != view.MaxEpoch || s.Log.LastGen != view.LastGen:
		return errors.New("epoch: shadow and log shown differ in bump, maxEpoch or generation given out last")
	}
	for i := range s.Log.Spans {
		q := &s.Log.Spans[i]
		if q.Kind == Mirrored && q.PStart >= o.PStart && view.HasGeneration(q.Gen) {
			return fmt.Errorf("epoch: generation %d serves the shadow and the log shown", q.Gen)
		}
	}
	return nil
}

// HasGeneration tells whether one of the spans is of generation g.
func (l *Log) HasGeneration(g int16) bool {
	for i := range l.Spans {
		if l.Spans[i].Kind == Mirrored && l.Spans[i].Gen == g {
			return true
		}
	}
	return false
}
