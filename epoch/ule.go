package epoch

import "fmt"

// SettingULE is the setting that lets a mirror follow a source through an
// unclean leader election.
const SettingULE = "mirror.unclean.leader.election.enable"

// TruncAction is what to do when the source's log seems not to hold ours.
type TruncAction uint8

// The actions; the zero value is none of them.
const (
	TruncGoOn    TruncAction = iota + 1 // nothing is lost: fetch at the position
	TruncAskEnd                         // ask the source's OffsetForLeaderEpoch for Epoch: Epoched
	TruncAskLSO                         // ask its ListOffsets(latest, read_committed) until it answers: Stable
	TruncAskEnds                        // ask its log start and end: Ranged
	TruncCut                            // new generation at T, MoveStart: no live record goes, so go on, no ULE_RECOVERY
	TruncULE                            // cut to T, MoveStart, ULE_RECOVERY, MIRRORING when all instances have it
	TruncShadow                         // the same on a compacted topic: mirror anew as a shadow generation (H15)
	TruncRestart                        // retention passed us: Restart at T, count and report the gap
	TruncFail                           // FAILED, not retryable
)

// TruncStep is a decision.
type TruncStep struct {
	Do    TruncAction
	T     int64
	Epoch int32
	Why   string
}

// Truncation decides, while MIRRORING, what a source's answer means for what we
// have (facts.md §3, hazard H17): begin with one of Diverging, Ranged and
// Stable, then follow Next. It does no harm by itself: the caller must drop it
// when the partition is no longer at Position under the leader epoch asked
// with.
type Truncation struct {
	Chain    Chain // ours, collapsed at the virtual start
	Position int64
	// VEnd is the end of the last live batch; RereadEnd the position as just
	// read from the log, which may lie below memory's (F4d).
	VEnd, RereadEnd int64
	Start           int64 // virtual log start shown
	Support         bool  // SettingULE
	Compacted       bool

	t       int64 // the cut so far
	begun   bool
	restart int64
	ask     int32 // epoch to ask the source for, -1 none
	lost    bool  // the source knows nothing of our epoch
	anew    bool  // and nothing of it is shown here
	ends    bool  // the source's log start and end are wanted
	stable  bool  // its LSO is known
	low     bool  // a Fetch answer's LSO was below our position
}

func (x *Truncation) begin() {
	if !x.begun {
		x.begun, x.t, x.ask, x.restart = true, x.Position, -1, -1
	}
}

// Diverging takes Fetch's DivergingEpoch, or OffsetForLeaderEpoch's answer for
// the epoch asked: (-1, -1) when the source has no such epoch. Several rounds
// may follow, each with the newest epoch that the cut so far leaves (the case
// "flip": the end answered equals our own and still means a cut).
func (x *Truncation) Diverging(epoch int32, end int64) {
	x.begin()
	x.ask = -1
	c := x.Chain.Truncate(x.t)
	if end >= 0 && epoch >= 0 && epoch == c.Newest() && end >= x.t {
		return // it has all of that epoch
	}
	t, again := c.TruncateTo(epoch, end, x.t)
	if t < 0 {
		x.lost, x.anew = true, x.VEnd <= x.Start
		x.ends = x.anew
		return
	}
	x.t = min(t, x.t)
	if e := x.Chain.Truncate(x.t).Newest(); again && e >= 0 {
		x.ask = e
	}
}

// Ask begins with the question itself, for sources below Fetch v12: before the
// first fetch and at each new source leader epoch. An empty log has nothing to
// ask.
func (x *Truncation) Ask() {
	x.begin()
	x.ask = x.Chain.Truncate(x.Position).Newest()
}

// OutOfRange takes Fetch's OFFSET_OUT_OF_RANGE, which carries no bounds.
func (x *Truncation) OutOfRange() {
	x.begin()
	x.ends = true
}

// Ranged takes the source's log start and end.
func (x *Truncation) Ranged(start, end int64) {
	x.begin()
	x.ends = false
	switch a, at := OutOfRange(x.Position, start, end); {
	case x.anew:
		x.restart = start
	case a == RangeRestart:
		x.restart = at
	case x.Chain.Newest() >= 0:
		x.ask = x.Chain.Truncate(x.Position).Newest() // the end alone does not tell which branch it is
		if a == RangeCut || x.ask < 0 {
			x.t = min(x.t, at)
		}
	default:
		x.t = min(x.t, at)
	}
}

// Unstable takes a last stable offset below our position, as a Fetch answer
// carries it. A new leader's lags with its high watermark, so this decides
// nothing yet.
func (x *Truncation) Unstable() {
	x.begin()
	x.low = true
}

// Stable takes the source's last stable offset from ListOffsets, read_committed,
// under its present leader epoch: a broker (2.2 and up, KIP-207) answers that
// only when the high watermark has reached the epoch's start, so every
// transaction decided before is decided in it. Below our position it un-decided
// some (H17).
func (x *Truncation) Stable(lso int64) {
	x.begin()
	x.stable = true
	x.t = min(x.t, lso)
}

// Next decides.
func (x *Truncation) Next() TruncStep {
	x.begin()
	switch {
	case x.ends:
		return TruncStep{Do: TruncAskEnds}
	case x.anew:
		return TruncStep{Do: TruncRestart, T: x.restart, Why: "the source does not know the epoch seen last, and nothing of it is shown here"}
	case x.restart >= 0:
		return TruncStep{Do: TruncRestart, T: x.restart, Why: fmt.Sprintf("the source removed offsets %d to %d before they were mirrored", x.Position, x.restart)}
	case x.lost:
		return TruncStep{Do: TruncFail, Why: "the source does not know the leader epoch that was mirrored last: its topic was made anew, or its metadata were put back. Compare the two topics"}
	case x.ask >= 0:
		return TruncStep{Do: TruncAskEnd, Epoch: x.ask}
	case !x.stable && (x.low || x.t < x.Position):
		return TruncStep{Do: TruncAskLSO}
	}
	t := min(x.t, x.RereadEnd)
	switch {
	case t >= x.Position:
		return TruncStep{Do: TruncGoOn}
	case x.t >= x.VEnd, x.VEnd <= x.Start: // what is missing here below it the destination lost itself
		return TruncStep{Do: TruncCut, T: t}
	case !x.Support:
		return TruncStep{Do: TruncFail, T: t, Why: fmt.Sprintf("the source lost records that are mirrored already, from offset %d on (an unclean leader election there, or one here before the mirror was started): set %s=true to let the mirror cut them off", x.t, SettingULE)}
	case x.Compacted:
		return TruncStep{Do: TruncShadow, T: t}
	}
	return TruncStep{Do: TruncULE, T: t}
}
