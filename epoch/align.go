package epoch

import "fmt"

// LocalLog is the destination's own log as an aligning owner has read it
// again, to the end, with the gate closed. Offsets are virtual unless said.
type LocalLog struct {
	PEnd   int64 // physical end
	PEpoch int32 // leader epoch it was read under
	Broker Chain // the leader's epochs, physical; only those of an open native span matter
	VStart int64 // virtual start shown
	VEnd   int64 // end of the last live batch
	// LSO is the log's last stable offset, VEnd when no transaction is open. In
	// front of the open native span: the first live batch behind it.
	LSO        int64
	LSOBehind  bool // a transaction is open, wherever it lies
	LiveNative bool // live native records are in it
	// EpochEnd answers AlignAskEpoch, when Broker is not known (M25).
	EpochEnd *Entry
	NoChain  bool // Broker is not known
}

// AlignAction is what to do next in LOG_ALIGNMENT.
type AlignAction uint8

// The actions; the zero value is none of them.
const (
	AlignGate      AlignAction = iota + 1 // wait until every instance refuses client writes and has drained (H10)
	AlignReadLocal                        // read the own log again: Alignment.Local
	AlignRepair                           // the native span's beginning is lost: Book.Repair to the ledger (H4), then read again
	AlignReadPair                         // read the source's ledger: Alignment.Record
	AlignAskEpoch                         // ask the own leader's OffsetForLeaderEpoch for Epoch: LocalLog.EpochEnd
	AlignRound                            // find the live batch that holds T inside: Alignment.Rounded = its base, T when none does
	AlignWait                             // nothing to do but to look again later: Why
	AlignCut                              // phase one: Book.Cut to T, or Book.Empty when Empty, in one ledger write
	AlignEndTxns                          // end the open transactions, then read the own log again (H9)
	AlignInstances                        // wait until the instances have the new generation (DESIGN §7.5)
	AlignMirror                           // go to MIRRORING: phase two is the ordinary fetch
	AlignFail                             // FAILED with Why
)

// AlignStep is a decision.
type AlignStep struct {
	Do    AlignAction
	Why   string
	Retry bool // AlignFail: retryable

	T      int64 // AlignRound, AlignCut
	Empty  bool  // AlignCut: drop the log, begin at the source's log start
	Live   bool  // AlignCut: live records go
	Shadow bool  // AlignCut: compacted, so with Book.Beside in the same write: all is mirrored once more (H15)
	Pair   Pair  // AlignCut: what it rests on
	Holder PairHolder
	Epoch  int32 // AlignAskEpoch
	Repair Repair
}

// Alignment is LOG_ALIGNMENT up to MIRRORING (DESIGN §7): the caller fills in
// what it knows and asks Next. It holds nothing that the next owner would
// miss: what must last is in Book, and Book changes only by ledger writes. So
// a crash between any two steps begins again with an empty Alignment.
type Alignment struct {
	Book    Book
	Cluster string // the source's cluster id
	TopicID string // and topic id, as its metadata say now
	Discard bool   // start was given --discard-local

	GateClosed bool          // every instance acknowledged LOG_ALIGNMENT, or its lease is over
	Local      *LocalLog     // nil: not read
	Record     *SourceRecord // nil: not read, since LOG_ALIGNMENT was written
	Rounded    *int64        // base of the local batch that holds T, or T
	Taken      bool          // every awaited instance has the generation

	Compacted bool  // cleanup.policy contains compact
	Away      int64 // since our last fetch that reached the source's end, in the unit of KeepTombs; -1 unknown
	// AwaySource is the time since the source stopped mirroring us; -1 unknown.
	AwaySource int64
	KeepTombs  int64 // the source's delete.retention.ms
}

// Next decides. The order is DESIGN §7's, with one change: open local
// transactions are ended after the cut. T <= v(local LSO) has to outlive a crash,
// and only the cut's ledger write does; an abort before it would move the LSO
// and T with it. Markers that land behind the cut only raise p.
func (a *Alignment) Next() AlignStep {
	if !a.GateClosed {
		return AlignStep{Do: AlignGate}
	}
	if a.Local == nil {
		return AlignStep{Do: AlignReadLocal}
	}
	if !a.Book.BeforeCut() {
		return a.afterCut()
	}
	if r := a.Book.Log.NativeLost(a.Local.Broker, a.Local.PEnd); r != nil {
		return AlignStep{Do: AlignRepair, Repair: *r, Why: "the log lost its tail below the native span"}
	}
	if a.Record == nil {
		return AlignStep{Do: AlignReadPair}
	}
	if s, bad := a.source(); bad {
		return s
	}
	return a.phaseOne()
}

// Rehearse tells beforehand, while clients still write, whether a start can
// succeed, so that one that can't doesn't take the topic from them:
// AlignReadPair, AlignReadLocal (only LiveNative counts), AlignWait, AlignFail,
// or AlignGate when nothing speaks against it. It takes nothing from Next,
// which asks everything again behind the gate.
func (a *Alignment) Rehearse() AlignStep {
	if a.Record == nil {
		return AlignStep{Do: AlignReadPair}
	}
	if s, bad := a.source(); bad {
		s.Retry = s.Retry && !a.Record.Bare // it stays so until somebody changes an address
		return s
	}
	if pair, _ := a.pair(); pair.None() && !a.Discard {
		switch {
		case a.Local == nil:
			return AlignStep{Do: AlignReadLocal}
		case a.Local.LiveNative:
			return a.foreign("")
		}
	}
	return AlignStep{Do: AlignGate}
}

// source judges what was read of the source; bad: it is not to be mirrored, or
// not yet.
func (a *Alignment) source() (s AlignStep, bad bool) {
	switch r := a.Record; r.Reading {
	case Absent, Present:
	case Garbled:
		return AlignStep{Do: AlignFail, Why: "the source's ledger is not understood: " + r.Err}, true
	default:
		why := "the source's ledger cannot be read: " + r.Err
		if r.Bare {
			why = r.Err
		}
		return AlignStep{Do: AlignFail, Retry: true, Why: why}, true
	}
	switch CheckLoop(a.Book.Self.Cluster, true, a.Cluster, *a.Record) {
	case LoopFail:
		return AlignStep{Do: AlignFail, Why: "mirror loop: the source " + a.Cluster + " mirrors this topic from here, directly or over other clusters. Stop one of the two"}, true
	case LoopWait:
		return AlignStep{Do: AlignWait, Why: "the source is " + string(a.Record.State) + " itself"}, true
	}
	return s, false
}

// pair is what phase one's cut rests on.
func (a *Alignment) pair() (Pair, PairHolder) {
	return ChoosePair(a.Record.PairsNow(a.TopicID), a.Book.Self, a.Book.Pairs, a.Record.Identity(a.Cluster, a.TopicID))
}

func (a *Alignment) foreign(keep string) AlignStep {
	return AlignStep{Do: AlignFail, Why: fmt.Sprintf("this topic holds records of its own, and nothing says that they are the source's: lockstep start --discard-local drops them (diverged export lists them then)%s (source %s)", keep, a.Cluster)}
}

func (a *Alignment) phaseOne() AlignStep {
	pair, holder := a.pair()
	empty := AlignStep{Do: AlignCut, Empty: true, Live: a.Local.VEnd > a.Local.VStart, Pair: pair, Holder: holder}
	if pair.None() {
		if a.Local.LiveNative && !a.Discard {
			return a.foreign("; lockstep stop keeps them")
		}
		return empty
	}
	l := a.Book.Log
	var t int64
	switch {
	case !a.Local.NoChain:
		t = l.Join(a.Local.Broker).AdvanceStart(a.Local.VStart).PhaseOne(pair, a.Local.VEnd)
	case a.Local.EpochEnd == nil:
		return AlignStep{Do: AlignAskEpoch, Epoch: pair.LME}
	default:
		t = PhaseOneAnswer(pair, *a.Local.EpochEnd, a.Local.VEnd)
	}
	t = min(t, a.Local.LSO)
	if a.Rounded == nil {
		return AlignStep{Do: AlignRound, T: t}
	}
	t = min(t, *a.Rounded)
	if t <= a.Local.VStart {
		return empty
	}
	s := AlignStep{Do: AlignCut, T: t, Live: t < a.Local.VEnd, Pair: pair, Holder: holder}
	s.Shadow = s.Live && a.Compacted
	away := a.Away
	if holder == HeldBySource {
		away = a.AwaySource // until then it had all from us
	}
	if TombstonesMissed(a.Compacted, away, a.KeepTombs) {
		s.Shadow, s.Why = true, "away longer than delete.retention.ms of the source: its tombstones may be gone"
	}
	switch {
	case a.Compacted && a.Book.Lacks:
		s.Shadow, s.Why = true, "stopped with what was here: values of keys may be missing that the source has"
	case a.Compacted && a.Book.Unlooked():
		s.Shadow, s.Why = true, "the topic was not always compacted: dead records may lie behind live ones"
	}
	return s
}

func (a *Alignment) afterCut() AlignStep {
	switch {
	case a.Local.LSOBehind:
		return AlignStep{Do: AlignEndTxns}
	case !a.Taken:
		return AlignStep{Do: AlignInstances}
	}
	return AlignStep{Do: AlignMirror}
}

// Cut is the book after AlignCut's step s, to be written at once. sourceStart is
// the source's virtual log start, gen from NextGeneration, lineage a new random
// id (M18's ring and a third cluster make every alignment a new lineage; pairs
// that name the old one count up to the cut).
func (a *Alignment) Cut(s AlignStep, sourceStart int64, gen int16, lineage string) (Book, error) {
	b := a.Book
	b.Source = a.Record.Identity(a.Cluster, a.TopicID)
	if b.Log.Open() == nil {
		b.Log = Adopt(a.Local.Broker, a.Local.VStart)
	}
	b.Log = b.Log.Join(a.Local.Broker)
	c := CutTo{T: s.T, VEnd: a.Local.VEnd, PEnd: a.Local.PEnd, PEpoch: a.Local.PEpoch, Gen: gen}
	if s.Empty {
		return b.Empty(sourceStart, c, lineage)
	}
	b, err := b.Cut(c)
	if err != nil {
		return a.Book, err
	}
	b.Self = b.Self.Renew(lineage, b.Log.Open().VStart)
	return b, nil
}

// PhaseOne is phase one's cut of l (joined): keep records with epoch <= LME and
// offset < LMO, cut the rest; the smaller cut wins (facts.md E3, E4). end is
// the end of the last live batch.
func (l *Log) PhaseOne(p Pair, end int64) int64 {
	e, at := l.EndOffsetFor(p.LME, max(end, p.LMO))
	return PhaseOneAnswer(p, Entry{Epoch: e, Start: at}, end)
}

// PhaseOneAnswer is PhaseOne with the answer of the own leader to
// OffsetForLeaderEpoch(LME): the local end of that epoch, (-1, -1) when no
// local epoch is above it (M25).
func PhaseOneAnswer(p Pair, answer Entry, end int64) int64 {
	t := min(p.LMO, end)
	if answer.Epoch >= 0 {
		t = min(t, answer.Start)
	}
	return t
}

// TombstonesMissed tells that a mirror of a compacted topic was away from the
// source's end so long that tombstones may have been written and cleaned
// meanwhile: what they removed would live on here (hazard M26). away is -1
// when not known, which is as long as can be.
func TombstonesMissed(compacted bool, away, keeps int64) bool {
	return compacted && (away < 0 || away > keeps)
}
