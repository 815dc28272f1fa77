package proxy

import (
	"time"

	"github.com/lockstep-kafka/lockstep/epoch"
	"github.com/lockstep-kafka/lockstep/internal/ledger"
	"github.com/lockstep-kafka/lockstep/protocol"
)

// ledgerView is what the handlers need of ledger.View: lock-free reads of the
// newest snapshot.
type ledgerView interface {
	Fresh() bool
	FreshAt() time.Time
	TopicsVersion() uint64
	Any() bool
	Topic(topic string) bool
	TopicByID(id [16]byte) (string, bool)
	Partition(topic string, partition int32) *ledger.Partition
	All() []*ledger.Partition
}

// usable says whether anything can be answered from a partition's snapshot:
// there is one, it can be read, and its log has been begun.
func usable(p *ledger.Partition) bool {
	return p != nil && p.Err == nil && p.Log != nil && len(p.Log.Spans) > 0
}

// checkpointOf is the partition's checkpoint if it speaks of the log as it is
// now: same lineage, and not of a generation that a later cut has shortened.
func checkpointOf(p *ledger.Partition) *ledger.Checkpoint {
	cp := p.Checkpoint
	if cp == nil || p.Record == nil || cp.Lineage != p.Record.Lineage {
		return nil
	}
	last := p.Log.Open()
	if !p.Log.HasGeneration(cp.Gen) && (cp.Gen >= 0 || p.Record.Shadow != nil) {
		return nil // of the log that is built beside it, or long gone
	}
	of := cp.Gen
	if of < 0 {
		of = cp.Under
	}
	if limit, ok := cutAt(p.Log, of); ok && cp.V > limit || !ok && cp.V > last.VStart {
		return nil
	}
	return cp
}

// positionOf is the checkpoint's position, but not above a cut made since.
func positionOf(l *epoch.Log, cp *ledger.Checkpoint) int64 {
	under := cp.Under
	if under == 0 {
		under = cp.Gen
	}
	if limit, ok := cutAt(l, under); ok {
		return max(min(cp.Position, limit), cp.V)
	}
	return cp.V // a generation that began no higher took the other's place
}

// cutAt is where the log was cut after generation g: what was known of it then
// says nothing of what lies there now.
func cutAt(l *epoch.Log, g int16) (v int64, ok bool) {
	for i := range l.Spans {
		switch s := &l.Spans[i]; {
		case s.Kind != epoch.Mirrored || s.Gen != g:
		case i+1 < len(l.Spans):
			return l.Spans[i+1].VStart, true
		default:
			return maxOffset, true
		}
	}
	return -1, false
}

// knownEnd is a virtual end with the physical end of the batch it belongs to.
type knownEnd struct {
	v, p     int64
	position int64
	shown    int64
	ok       bool
}

// endBelow is the newest virtual end that this instance knows without asking,
// of those that lie below the broker's high watermark hw (H14): the owner's
// tail when the owner is this instance and the tail is of the log as the view
// has it, else the checkpoint.
func endBelow(p *ledger.Partition, hw int64) knownEnd {
	if t := p.Tail(); t.Known && t.PEnd <= hw {
		return knownEnd{v: t.VEnd, p: t.PEnd, position: max(t.Position, t.VEnd), shown: max(t.EverShown, t.VEnd), ok: true}
	}
	if cp := checkpointOf(p); cp != nil && cp.P <= hw {
		return knownEnd{v: cp.V, p: cp.P, position: positionOf(p.Log, cp), shown: max(cp.Shown(p.Record), cp.V), ok: true}
	}
	return knownEnd{}
}

// confirmed is the physical offset below which the owner has ruled on what is
// live: a hole there is the cleaner's work, not a lost batch (DESIGN §1).
func confirmed(p *ledger.Partition) int64 {
	last := p.Log.Open()
	return max(endBelow(p, maxOffset).p, last.PStart)
}

// frozen is hw, or where the log that is shown ends physically while another one
// is built behind it (H15): nothing of that is live.
func frozen(p *ledger.Partition, hw int64) int64 {
	if p != nil && p.Record != nil && p.Record.Shadow != nil {
		return min(hw, p.Log.Open().PStart)
	}
	return hw
}

// everShown is an offset above which nothing was ever shown of a log whose open
// span is mirrored, -1: nothing above its end was; maxOffset: not known here.
//
// A batch is shown as soon as it is there. When its answer is lost, a generation
// begins in front of it, and who has read it stands above the end until its
// records have come again. So whatever the owner had may have been shown, and
// only the source's end, asked for after that generation began, says what that
// can be at most.
func everShown(p *ledger.Partition) int64 {
	if p.Record == nil {
		return -1
	}
	if p.Record.Shadow != nil {
		return p.Record.Shadow.Target
	}
	t, cp := p.Tail(), p.Checkpoint
	switch {
	case t.Known && t.Sure:
		return t.EverShown
	case t.Known:
		return maxOffset
	case cp == nil:
		return maxOffset
	case cp.StateEpoch < p.Record.CutAt:
		return -1
	case cp.Lineage != p.Record.Lineage || cp.SourceEnd < 0 || cp.Under != p.Log.Open().Gen:
		return maxOffset
	}
	return cp.EndShown
}

const maxOffset = int64(1)<<62 - 1

// headerOf is what the rules of package epoch need of a physical batch.
func headerOf(b protocol.Batch) epoch.Batch {
	count := int64(b.LastOffsetDelta()) + 1
	e := epoch.Batch{P: b.BaseOffset(), Count: count, PEpoch: b.PartitionLeaderEpoch(), VCount: count, Control: b.IsControl()}
	if s, ok := b.ReadStamp(); ok {
		e.Stamped, e.V, e.Hole, e.Flags, e.Gen, e.Epoch = true, s.V, s.Hole, s.Flags, s.Gen, s.Epoch
		if s.Flags&epoch.FlagRenumbered != 0 {
			e.VCount = 0 // stands in the records only
		}
	}
	return e
}

// place classifies a batch, and holds back what the view can't know yet: a
// batch of an epoch that the ledger has and this instance has not read.
func place(l *epoch.Log, b epoch.Batch) (at epoch.Placed, live, ahead bool) {
	at, verdict := l.Classify(b)
	if verdict != epoch.Live {
		return at, false, false
	}
	if l.Spans[at.Span].Kind == epoch.Mirrored && at.Epoch > l.Chain.Newest() {
		return at, false, true
	}
	return at, true, false
}

// jump moves a physical offset over the dead end of a closed span, to the start
// of the next one (M7).
func jump(l *epoch.Log, p int64) int64 {
	for i := l.SpanAtP(p); i >= 0 && i+1 < len(l.Spans); i++ {
		s := l.Spans[i]
		if s.PEnd < 0 || p < s.PEnd {
			break
		}
		p = l.Spans[i+1].PStart
	}
	if len(l.Spans) > 0 && p < l.Spans[0].PStart {
		p = l.Spans[0].PStart
	}
	return p
}
