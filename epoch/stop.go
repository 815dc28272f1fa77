package epoch

import (
	"fmt"
	"math"
	"slices"
)

// Repair says that a STOPPED log lost its tail below its native span: writes
// from P on, the first under physical epoch PEpoch, need a native span of their
// own (hazards H4, F5).
type Repair struct {
	P      int64
	PEpoch int32
	// Partial: P is only where the chain that was given begins, and epochs above
	// pe may reach further down. Ask again with the chain from the log start.
	Partial bool
}

// NativeLost finds that loss. By Kafka's epochs two logs that have the same
// epoch at one offset are the same up to it, so the span is whole iff the log
// still has, at ps-1, the epoch pe of the span-opening batch, or (a span that
// Repair opened) epoch pe begins at ps. Looking at the log end alone would be
// taken in by a replica that was out of sync for long and has a tail of its own
// there. The new span starts at the first physical offset of a leader epoch
// above pe, so that writes which landed before the look are in it.
//
// nil: nothing is lost, or retention has taken the place. broker is the leader's
// own epoch chain from ps-1 at least, its present epoch included even if it has
// no batch yet (ChainWalk.Leads), pEnd its log end. An owner looks whenever the
// physical leader epoch has changed, and until then Produce and Fetch get
// retriable errors.
func (l *Log) NativeLost(broker Chain, pEnd int64) *Repair {
	s := l.Open()
	if s == nil || s.Kind != Native {
		return nil
	}
	seen := len(broker) > 0 && broker[0].Start < max(s.PStart, 1)
	same := broker.At(s.PStart-1) == s.PEpoch || s.PStart == 0 && s.PEpoch == 0 || slices.Contains(broker, Entry{Epoch: s.PEpoch, Start: s.PStart})
	if pEnd >= s.PStart && (!seen || same) {
		return nil
	}
	for i, e := range broker {
		if e.Epoch > s.PEpoch {
			return &Repair{P: e.Start, PEpoch: e.Epoch, Partial: i == 0 && e.Start > 0}
		}
	}
	return &Repair{P: pEnd, PEpoch: s.PEpoch}
}

// NativeEnd is the virtual end of a log whose open span is native and of which
// NativeLost finds nothing lost; pEnd is its physical end. The span's own start
// is where the log has been at least, whatever retention took below it. Markers
// of transactions at its end count, as they do for Kafka's own end.
func (l *Log) NativeEnd(pEnd int64) int64 {
	s := l.Open()
	return s.VStart + max(pEnd-s.PStart, 0)
}

// Repair opens the native span that r asks for, in one ledger write; vEnd is
// the end of the last live batch below r.P, from a Recovery with PEnd = r.P.
// Pairs stay: phase two finds the loss by epoch, and it is an unclean election
// of this cluster (H4). Nothing was lost that a wider span would keep, so the
// epoch rises by 1, or as far as it must.
func (b Book) Repair(r Repair, vEnd int64) (Book, error) {
	n, err := b.Log.OpenNative(max(vEnd, b.Log.Start), r.P, r.PEpoch, 1)
	if err != nil {
		return b, err
	}
	b.Log = n
	return b, nil
}

// Opening is what the span-opening batch says (hazard H3): enough to find the
// native span again should the ledger be lost. It is a hidden, stamped, keyed
// record.
type Opening struct {
	V       int    `json:"v"` // format, 1
	LMO     int64  `json:"lmo"`
	LME     int32  `json:"lme"`
	Bump    int32  `json:"bump"`
	Chain   Chain  `json:"chain"`
	Start   int64  `json:"start"`
	Gen     int16  `json:"gen"` // the last one given out
	Cluster string `json:"cluster"`
	TopicID string `json:"topicId"`
	Lineage string `json:"lineage"`
}

// Key is the record's key: one per stop, so that the cleaner keeps it.
func (o Opening) Key() string { return fmt.Sprintf("lockstep.span.%d", o.Gen) }

// Log is the log as far as an opening batch tells it: the native span from
// pEnd, the batch's physical end, on, under its physical epoch pe. What was
// mirrored before is not known any more, but for its chain.
func (o Opening) Log(pEnd int64, pe int32) *Log {
	return &Log{
		Spans: []Span{{Kind: Native, VStart: o.LMO, PStart: pEnd, PEpoch: pe, Bump: o.Bump, PEnd: -1}},
		Chain: o.Chain.Assign(pe+o.Bump, o.LMO), Start: o.Start, Bump: o.Bump, MaxEpoch: pe + o.Bump, LastGen: o.Gen,
	}
}

// StopAction is what to do next in STOPPING.
type StopAction uint8

// The actions; the zero value is none of them.
const (
	StopQuiesce  StopAction = iota + 1 // remove the fetcher, wait for writes in flight or give them up
	StopRead                           // look at the leader epoch and read the log again under it: Stop.Read
	StopClosed                         // read further back for a batch without the open flag: Recovered.ClosedV (M11)
	StopRebuild                        // compacted, and dead batches lie behind live ones: begin a local shadow at From (H1): Book.Cut and Book.Beside in one write
	StopCopy                           // copy what is shown into the local shadow, then Book.Switch
	StopOpen                           // append the span-opening batch Opening, read it back: Stop.Opened
	StopWaitTxns                       // a transaction is open below the span: end it, look again (H9)
	StopWrite                          // write Book: pair, bump, chain, native span and STOPPED at once
)

// StopStep is a decision.
type StopStep struct {
	Do      StopAction
	Why     string
	Again   bool // StopRead: what was known is of an older leader epoch (F6)
	Opening Opening
	From    int64 // StopRebuild: all live from here on is copied; what is below stays if Keep
	Keep    bool
	T       int64 // StopRebuild: where the log shown ends
	Book    Book
	Pair    Pair // StopWrite: the pair stored, or left alone
}

// StopReading is the log as read again under a known leader epoch.
type StopReading struct {
	PEpoch    int32
	PEnd      int64
	Broker    Chain // the leader's epochs, physical; for an open native span
	Recovered Recovered
}

// StopOpened is the span-opening batch as read back: where it ends, and the
// physical epoch that the broker wrote into it.
type StopOpened struct {
	PEnd   int64
	PEpoch int32
}

// Stop is STOPPING up to STOPPED (DESIGN §8). Like Alignment it is filled in by
// the caller and holds nothing that must last: pair, bump, chain, native span
// and state are one ledger write at the very end, so there is no stored step
// that could be wrong (F6, F10); a new owner begins with an empty Stop and the
// only trace of the old one is a second hidden batch.
type Stop struct {
	Book     Book
	BumpStep int32

	Quiet     bool
	Leader    int32 // the destination's leader epoch, looked at after everything else
	Read      *StopReading
	Opened    *StopOpened
	Unstable  bool // the log's LSO lies below the span's start
	Compacted bool
}

// Next decides.
func (s *Stop) Next() StopStep {
	switch {
	case !s.Quiet:
		return StopStep{Do: StopQuiesce}
	case s.Book.Log.Open() == nil:
		return s.unchanged(Adopt(nil, s.Book.Log.Start))
	case s.Book.BeforeCut() && s.Book.Log.Open().Bump == s.Book.Log.Bump:
		return s.unchanged(s.Book.Log)
	case s.Book.Shadow != nil && s.Book.Shadow.Local:
		return StopStep{Do: StopCopy}
	case s.Read == nil:
		return StopStep{Do: StopRead}
	case s.Read.PEpoch != s.Leader:
		return StopStep{Do: StopRead, Again: true}
	}
	lmo, step, ok := s.lmo()
	if !ok {
		return step
	}
	l := s.Book.Log
	if s.Book.BeforeCut() {
		l = l.Join(s.Read.Broker)
	}
	lme := l.Chain.Truncate(lmo).Newest()
	if s.Opened == nil {
		bump := nativeBump(l, s.Read.PEpoch, s.BumpStep)
		return StopStep{Do: StopOpen, Opening: Opening{
			V: 1, LMO: lmo, LME: lme, Bump: bump, Chain: l.Chain.Truncate(lmo), Start: l.Start, Gen: l.LastGen,
			Cluster: s.Book.Self.Cluster, TopicID: s.Book.Self.TopicID, Lineage: s.Book.Self.Lineage,
		}}
	}
	switch {
	case s.Opened.PEpoch != s.Read.PEpoch || s.Opened.PEpoch != s.Leader || s.Opened.PEnd <= s.Read.PEnd:
		return StopStep{Do: StopRead, Again: true}
	case s.Unstable:
		return StopStep{Do: StopWaitTxns}
	}
	return s.write(l, lmo, lme)
}

// lmo is the last mirrored offset: the position of the re-read log, rounded
// down to the last batch that leaves no source transaction open (M11), and not
// below the log start: a generation that was opened at the base of the batch
// that holds the start (F8) lies below it while it is empty.
func (s *Stop) lmo() (int64, StopStep, bool) {
	r := &s.Read.Recovered
	switch {
	case s.Book.Shadow != nil: // the source may be gone: of what it was to be built from nothing is left but the log shown
		return 0, s.rebuild(false, max(r.Position, s.Book.Log.Open().VStart), "it was being mirrored anew"), false
	case s.Compacted && s.Book.Unlooked():
		return 0, s.rebuild(false, max(r.Position, s.Book.Log.Open().VStart), "the topic was not always compacted, and dead records may lie behind live ones"), false
	case s.Compacted && (r.Dead.Any() || r.Dead.SameAhead > 0):
		// What lies ahead of the end will get no live copy any more, and may stand
		// for any older record.
		return 0, s.rebuild(r.Dead.Foreign+r.Dead.SameAhead == 0 && r.Dead.LowestV >= 0, max(r.Position, s.Book.Log.Open().VStart), "dead batches lie behind live ones"), false
	case !r.Open:
		return max(r.Position, s.Book.Log.Start), StopStep{}, true
	case r.ClosedV < 0:
		return 0, StopStep{Do: StopClosed, Why: "a source transaction is open at the end"}, false
	case s.Compacted && r.ClosedV < r.VEnd:
		// What is left out would lie behind live records.
		return 0, s.rebuild(false, max(r.ClosedV, s.Book.Log.Start), "half a source transaction is left out"), false
	}
	return max(r.ClosedV, s.Book.Log.Start), StopStep{}, true
}

// rebuild has the log shown copied behind everything dead, from the lowest copy
// on or all of it: the source is not needed, and offsets and epochs stay.
func (s *Stop) rebuild(keep bool, t int64, why string) StopStep {
	l := s.Book.Log
	step := StopStep{Do: StopRebuild, Why: why, Keep: keep, T: t, From: l.Spans[0].VStart}
	if keep {
		step.From = s.Read.Recovered.Dead.LowestV
	}
	return step
}

// unchanged: stopped before phase one's cut, the native log goes on and the
// pairs prove what they did before (F1).
func (s *Stop) unchanged(l *Log) StopStep {
	b := s.Book
	b.Log, b.State = l, StateStopped
	return StopStep{Do: StopWrite, Book: b, Pair: ValidPair(b.Pairs, s.Book.Source)}
}

func (s *Stop) write(l *Log, lmo int64, lme int32) StopStep {
	b := s.Book
	before := b.BeforeCut()
	n, err := l.OpenNative(lmo, s.Opened.PEnd, s.Opened.PEpoch, s.BumpStep)
	if err != nil {
		// An invariant of spans: what was read is not of this log any more.
		return StopStep{Do: StopRead, Again: true, Why: err.Error()}
	}
	t := n.Open().VStart
	b.Pairs = LowerPairs(b.Pairs, l.Chain, t, false)
	pair := ValidPair(b.Pairs, s.Book.Source)
	if !before {
		pair = Pair{Cluster: s.Book.Source.Cluster, TopicID: s.Book.Source.TopicID, Lineage: s.Book.Source.Lineage, LME: min(lme, l.Chain.Truncate(t).Newest()), LMO: t}
		if pair.None() {
			pair.LMO = -1
		}
		b.Pairs = SetPair(b.Pairs, pair)
	}
	b.Log, b.State = n, StateStopped
	return StopStep{Do: StopWrite, Book: b, Pair: pair}
}

// nativeBump is the bump of a native span opened under pe: step above the
// epoch shown now, and above every epoch there ever was (F2, M1).
func nativeBump(l *Log, pe, step int32) int32 {
	least := max(l.MaxEpoch, l.Chain.Newest()) + 1 - pe
	return min(max(l.Bump+step, least), math.MaxInt32-pe)
}
