package mirror

import (
	"slices"

	"github.com/lockstep-kafka/lockstep/epoch"
)

// GroupReason says what became of a group's offset of a partition, or of a
// whole group: word in the log, metric label, and in describe.
type GroupReason uint8

// The reasons; all but GroupSynced mean that nothing is committed.
const (
	GroupSynced       GroupReason = iota + 1
	GroupActive                   // it has members on the destination
	GroupMoved                    // its commit here is ahead of the source's, and not by us
	GroupStopped                  // the partition is STOPPED or on the way there: clients write here
	GroupNotReady                 // the partition's end is not known now: being aligned, or recovering
	GroupEpochUnknown             // the commit's leader epoch has not been mirrored yet
	GroupEndBehind                // the end known here lies below what was committed, and nothing was cut
	GroupNull                     // the source has an offset of -1, or none any more
	GroupGarbled                  // the source's offset or epoch can't be one
	GroupDenied                   // no right to describe the group or topic on the source
	GroupDeniedHere               // no right to read or commit the group on the destination
	GroupNoAnswer                 // the source's coordinator can't be asked
	GroupNoAnswerHere             // the destination's
	GroupRefused                  // the destination refuses the commit; the error says why
	GroupShare                    // a share group whose offsets one side doesn't tell, or doesn't let be set
	groupReasonEnd
)

var groupReasonWords = [groupReasonEnd]string{
	"", "synced", "active_here", "moved_here", "stopped", "not_mirroring", "epoch_unknown", "end_behind", "no_offset", "garbled_offset",
	"denied_source", "denied_destination", "no_coordinator_source", "no_coordinator_destination", "refused", "share_group",
}

func (r GroupReason) String() string { return groupReasonWords[r] }

// groupOffset is a committed offset; offset -1: there is none, epoch -1: it
// carries none.
type groupOffset struct {
	offset int64
	epoch  int32
}

var noOffset = groupOffset{-1, -1}

// groupBounds are what a cycle knows of a partition: looked up once, used for
// all groups.
type groupBounds struct {
	log      *epoch.Log
	start    int64 // virtual log start
	end      int64 // virtual end: of the last live batch
	position int64 // first source offset not mirrored, >= end
	verified int32 // a leader epoch of the source under which position was found on its branch; -1: none
	exact    bool  // end is final, re-read for STOPPED
	anew     writtenAnew
}

// writtenAnew is the newest switch to a log that was written anew (H15): what was
// shown below at stayed, and gen was its open generation then.
type writtenAnew struct {
	done bool
	gen  int16
	at   int64
}

// nativeCutOf finds where the newest closed native span was cut below its end,
// and up to where it had reached: known from the ledger alone, as virtual and
// physical offsets differ by a constant there. -1: it wasn't cut.
func nativeCutOf(l *epoch.Log) (cut, upTo int64) {
	for i := len(l.Spans) - 2; i >= 0; i-- {
		if s, next := &l.Spans[i], &l.Spans[i+1]; s.Kind == epoch.Native {
			if n := next.PStart - s.PStart; n > next.VStart-s.VStart {
				return next.VStart, s.VStart + n
			}
			return -1, -1
		}
	}
	return -1, -1
}

// cutSince is the lowest offset at which the log was cut below end, where it
// ended at the time of old; -1: it wasn't. The spans of a log that was written
// anew are no cuts.
func cutSince(old, now *epoch.Log, end int64, anew writtenAnew) int64 {
	cut := int64(-1)
	if old == nil || old == now {
		return cut
	}
	for i := len(now.Spans) - 1; i >= 0; i-- {
		s := &now.Spans[i]
		if slices.ContainsFunc(old.Spans, func(o epoch.Span) bool { return o.Kind == s.Kind && o.Gen == s.Gen && o.PStart == s.PStart }) {
			break
		}
		if anew.done && s.Kind == epoch.Mirrored && s.Gen == anew.gen {
			if anew.at < end && (cut < 0 || anew.at < cut) {
				cut = anew.at
			}
			break
		}
		if s.VStart < end {
			cut = s.VStart
		}
	}
	return cut
}

// valid holds a commit to the virtual log by its own epoch, as a consumer that
// starts from it would (H13). ok is false while the epoch is not known here.
func (b *groupBounds) valid(c groupOffset) (_ groupOffset, ok bool) {
	if c.epoch < 0 {
		return c, true
	}
	e, end := b.log.EndOffsetFrom(c.epoch, b.start, b.position)
	if e >= 0 {
		return groupOffset{min(c.offset, end), e}, true
	}
	if c.epoch <= b.verified && c.offset <= b.position {
		// An epoch in which the source has no record below our position, and the
		// position was found on the branch of a later one: the commit's end of
		// epoch lies at or above the position.
		return groupOffset{c.offset, b.log.Chain.At(c.offset - 1)}, true
	}
	return c, false
}

// clamp brings a valid commit into the range that is here.
func (b *groupBounds) clamp(c groupOffset) groupOffset {
	off := max(b.start, min(b.end, c.offset))
	e := c.epoch
	if off != c.offset || e < 0 {
		e = b.log.Chain.At(max(off-1, b.start)) // of what was read last, as consumers commit it
	}
	return groupOffset{off, e}
}

// above tells whether a commit found here stands on records that were cut: cut
// is the lowest cut since the group was looked at, -1: none.
func (b *groupBounds) above(c groupOffset, cut int64) bool {
	if b.exact && c.offset > b.end {
		return true
	}
	if c.epoch < 0 {
		return cut >= 0 && c.offset > cut
	}
	if cut >= 0 && c.offset > cut && c.epoch <= b.log.Chain.At(cut-1) {
		return true // what comes at the cut is of a later epoch, also if none has come yet
	}
	// One in the newest epoch and above the end known may be valid: either the
	// end lags, or the next epoch to come will tell.
	e, end := b.log.EndOffsetFrom(c.epoch, b.start, b.position)
	return e >= 0 && c.offset > end && c.epoch != b.log.Chain.Newest() ||
		e < 0 && c.epoch <= b.log.MaxEpoch // it was here, and is not in the chain any more
}

// groupDecision is what to do about one group's offset of one partition.
type groupDecision struct {
	commit bool
	to     groupOffset
	reason GroupReason
}

// synced is what this process has committed, or found in step, the last time:
// the source's commit then, and what stands on the destination for it.
type syncedOffset struct{ src, dst groupOffset }

// decideGroup decides about one group's offset of one partition (DESIGN §10):
// the source's commit src, the destination's dst, what was synced before (nil:
// not known), the partition's bounds, and the lowest cut since the group was
// looked at (-1: none). It never moves a commit back but above a cut, or when
// the source's own commit went back and the destination's is ours.
func decideGroup(src, dst groupOffset, last *syncedOffset, b *groupBounds, cut int64) groupDecision {
	switch {
	case src.offset == -1:
		if dst.offset >= 0 && b.above(dst, cut) {
			return groupDecision{commit: true, to: b.cutDown(dst, cut), reason: GroupSynced}
		}
		return groupDecision{reason: GroupNull}
	case src.offset < 0 || src.offset > epoch.MaxVirtualOffset || src.epoch < -1:
		return groupDecision{reason: GroupGarbled}
	}
	v, ok := b.valid(src)
	if !ok {
		return groupDecision{reason: GroupEpochUnknown}
	}
	to := b.clamp(v)
	limited := to.offset < src.offset && to.offset >= b.end // by the end, not by the branch
	commit := groupDecision{commit: true, to: to, reason: GroupSynced}
	switch {
	case dst == to:
		return groupDecision{to: to, reason: GroupSynced}
	case dst.offset <= to.offset, b.above(dst, cut):
		return commit
	case last == nil || dst != last.dst:
		return groupDecision{reason: GroupMoved}
	case src.offset < last.src.offset && !limited:
		return commit
	}
	return groupDecision{reason: GroupEndBehind}
}

// cutDown is where a commit above a cut goes when the source has none: to the
// cut (H13).
func (b *groupBounds) cutDown(c groupOffset, cut int64) groupOffset {
	v, ok := b.valid(c)
	if !ok || c.epoch < 0 {
		v.epoch = -1
	}
	if cut >= 0 {
		v.offset = min(v.offset, cut)
	}
	return b.clamp(v)
}
