package epoch

import "errors"

// Book is the part of a partition's ledger record that the rules change
// together. A changed Book goes to the ledger in one write.
type Book struct {
	State    State
	Previous State // before FAILED
	Log      *Log
	Shadow   *Shadow  // nil but on a compacted topic that is built anew (H15)
	Self     Identity // Cluster, TopicID: of the destination's own topic
	// Lacks: a stop made the end of a compacted log clean with what is here, so
	// values of keys may be missing that the cleaner took for something dead, or
	// that a shadow was to bring back, and the source still has. They come with the
	// next copy from its log start.
	Lacks bool
	// Plain: the topic was not always compacted since this log was begun, or
	// written anew as a whole, so that nobody looked what lies behind live records;
	// or nobody knows.
	Plain bool
	// Source is the log that is mirrored, as it was when it was aligned with:
	// set by the alignment's cut, and what STOPPING makes the pair out.
	Source Identity
	Pairs  []Pair
}

// BeforeCut tells that phase one's cut of the present mirroring is not made
// yet: STOPPED leaves a native span open, UNKNOWN none at all, and the cut
// opens a mirrored one. So the log itself says it, and no stored step can
// contradict it (F1, F10).
func (b Book) BeforeCut() bool {
	s := b.Log.Open()
	return s == nil || s.Kind == Native
}

// Unlooked tells that dead records may lie behind live ones, of a topic that is
// compacted now (M17, H1).
func (b Book) Unlooked() bool { return b.Plain && b.Shadow == nil && len(b.Log.Spans) > 1 }

// To is b in another state. An error when facts.md §1 does not allow it.
func (b Book) To(s State) (Book, error) {
	if !AllowedBack(b.State, b.Previous, s) {
		return b, errors.New("epoch: a partition that is " + string(b.State) + " cannot become " + string(s))
	}
	if s == StateFailed && b.State != StateFailed {
		b.Previous = b.State
	}
	b.State = s
	return b, nil
}

// Adopt is the log of a topic that was never mirrored: everything is native,
// v = p, epochs as they are. broker is its leader's epoch chain as far as it
// is known (see ChainWalk), start its log start.
func Adopt(broker Chain, start int64) *Log {
	return &Log{
		Spans: []Span{{Kind: Native, PEnd: -1}},
		Chain: broker, Start: start, MaxEpoch: max(broker.Newest(), 0),
	}
}

// Join is l with the destination's own epochs of the open native span in its
// chain and in MaxEpoch, as every change that closes the span needs it.
func (l *Log) Join(broker Chain) *Log {
	n := *l
	n.Chain = l.Joined(broker).AdvanceStart(l.Start)
	n.MaxEpoch = max(l.MaxEpoch, l.Chain.Newest(), n.Chain.Newest())
	return &n
}

// CutTo is one cut, all of it read from the log again just now, never from
// memory (F4d).
type CutTo struct {
	T      int64 // rounded down to a batch; the end of the log for a mere new generation
	VEnd   int64 // end of the last live batch: above T, live records go
	PEnd   int64 // physical end of the log
	PEpoch int32 // the destination's leader epoch
	Gen    int16 // from NextGeneration
	// MoveStart: a cut below the virtual start takes it along, as the source has
	// records there (a truncation; not F8's cut to the base of a batch).
	MoveStart bool
}

// Cut opens a new generation at c.T: chain, pairs, and with live records the
// epoch shown (M2), in one write. b.Log must be joined when its open span is
// native.
func (b Book) Cut(c CutTo) (Book, error) {
	cut := b.Log.Cut
	if c.T < c.VEnd {
		cut = b.Log.CutLive
	}
	n, err := cut(c.T, c.PEnd, c.PEpoch, c.Gen)
	if err != nil {
		return b, err
	}
	t := n.Open().VStart // not above c.T (H5)
	if t < c.VEnd && c.T >= c.VEnd {
		n.Bump++
	}
	if c.MoveStart {
		n.Start = min(n.Start, t)
	}
	b.Pairs = LowerPairs(b.Pairs, b.Log.Chain, t, len(n.Chain) == 0)
	b.Self.Before = lowerPast(b.Self.Before, t)
	b.Log = n
	return b, nil
}

// Empty drops the log and begins at the source's log start: a new lineage, and
// no pair proves anything any more.
func (b Book) Empty(start int64, c CutTo, lineage string) (Book, error) {
	n, err := b.Log.Restart(start, c.PEnd, c.PEpoch, c.Gen)
	if err != nil {
		return b, err
	}
	b.Pairs = LowerPairs(b.Pairs, nil, 0, true)
	b.Self.Lineage, b.Self.Before = lineage, nil
	b.Log, b.Lacks, b.Plain = n, false, false
	return b, nil
}

// Instance is one Lockstep that serves the destination, as far as waiting for
// it goes.
type Instance struct {
	ID    string
	Taken int64 // the partition's state epoch it has acknowledged, drained (H10)
	// LeaseOver: its serving lease and the request timeout are over, so it
	// neither serves nor has a client's write on its way.
	LeaseOver bool
}

// Awaited lists the instances that have not taken state epoch need in. An
// instance whose lease is over is not waited for, unless known is set: LOG_ALIGNMENT
// and ULE_RECOVERY under support for unclean elections end only when every
// registered one has the new generation.
func Awaited(all []Instance, need int64, known bool) []string {
	var ids []string
	for _, i := range all {
		if i.Taken < need && (known || !i.LeaseOver) {
			ids = append(ids, i.ID)
		}
	}
	return ids
}

// ChainWalk finds the epoch chain of a log that can't be listed (hazard M25):
// read the batch at Read() and feed its epoch, ask OffsetForLeaderEpoch for
// that and feed the answer, until Done.
type ChainWalk struct {
	at, end int64
	c       Chain
	done    bool
}

// NewChainWalk begins at the log start; end is the log end.
func NewChainWalk(start, end int64) *ChainWalk {
	return &ChainWalk{at: start, end: end, done: start >= end}
}

// Read is where to read the next batch.
func (w *ChainWalk) Read() int64 { return w.at }

// Batch takes the epoch of the first batch at or behind Read (-1: there is none)
// and returns the one to ask for. It begins where the one before ends, also
// when the cleaner has left a hole there.
func (w *ChainWalk) Batch(epoch int32) int32 {
	if epoch < 0 {
		w.done = true
		return -1
	}
	if epoch != w.c.Newest() {
		w.c = w.c.Assign(epoch, w.at)
	}
	return epoch
}

// Answer takes OffsetForLeaderEpoch's end for that epoch.
func (w *ChainWalk) Answer(end int64) {
	if end <= w.at || end >= w.end {
		w.done = true
		return
	}
	w.at = end
}

// Leads adds the leader's present epoch, which begins at the log end as long as
// it has no batch. Call it when Done.
func (w *ChainWalk) Leads(epoch int32) {
	if epoch > w.c.Newest() {
		w.c = w.c.Assign(epoch, w.end)
	}
}

// Done tells that Chain is complete.
func (w *ChainWalk) Done() bool { return w.done }

// Chain is what was found.
func (w *ChainWalk) Chain() Chain { return w.c }
