package epoch

// Epoch fencing: the epoch shown here is never below the source's at an append
// (DLE >= SLE, DESIGN §8), so that no consumer that comes with a source epoch
// waits for metadata to reach it (facts.md §4).
const (
	// FenceMargin: an epoch this close below the one shown raises it already.
	FenceMargin int32 = 3
	// FenceHeadroom is how far above the source's epoch the one shown is raised.
	FenceHeadroom int32 = 10
	// BumpStep is by how much a stop raises the epoch shown: more than a lost
	// source's elections will reach (hazard M1).
	BumpStep int32 = 1000
)

// Fence is what a source epoch means for the epoch shown.
type Fence uint8

// The verdicts; the zero value is none of them.
const (
	FenceNone  Fence = iota + 1
	FenceLater       // append, and raise the epoch shown in the background
	FenceFirst       // EPOCH_FENCING: nothing is appended before the raise is in the ledger
)

// FenceFor compares e, the epoch of a batch to append or the source's leader
// epoch in its metadata (periodic: a FenceFirst is then no hurry as long as
// nothing is appended), with the epoch shown under physical leader epoch pe.
func (l *Log) FenceFor(e, pe int32) Fence {
	shown := l.Shown(pe)
	switch {
	case e > shown:
		return FenceFirst
	case e > shown-FenceMargin:
		return FenceLater
	}
	return FenceNone
}

// Raised is l with the epoch shown raised to e + headroom (FenceHeadroom but in
// tests), l itself when FenceFor says FenceNone. It never lowers it. A ledger
// write, no election.
func (l *Log) Raised(e, pe, headroom int32) *Log {
	bump := max(l.Bump, e+headroom-pe)
	if l.FenceFor(e, pe) == FenceNone || bump == l.Bump {
		return l
	}
	n := *l
	n.Bump = bump
	return &n
}
