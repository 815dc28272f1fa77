package mirror

import (
	"github.com/lockstep-kafka/lockstep/epoch"
)

// groupCut is a cut of a partition's log, and the cycle that found it. One that
// is known from the ledger alone says up to where the log had reached.
type groupCut struct {
	at    int64
	upTo  int64 // -1: not known
	cycle int32
}

// cutsKept bounds what is remembered of a partition's cuts; older ones become
// one, at the lowest offset of them.
const cutsKept = 16

// groupPart is a partition over the cycles: its bounds, looked up once in each,
// and where its log was cut between them.
type groupPart struct {
	partKey
	id     int32 // the order of a group's entries
	gone   bool  // not this instance's any more
	bounds groupBounds
	reason GroupReason // why it has no bounds now; 0: it has
	cycle  int32       // of bounds and reason
	seen   *epoch.Log  // of the newest look that had bounds
	end    int64       // and its position
	cuts   []groupCut
}

// look takes in a partition's bounds.
func (p *groupPart) look(b groupBounds, why GroupReason, cycle int32) {
	p.reason, p.cycle = why, cycle
	if why != 0 {
		return
	}
	p.bounds = b
	at, upTo := cutSince(p.seen, b.log, p.end, b.anew), int64(-1)
	if p.seen == nil {
		at, upTo = nativeCutOf(b.log)
	}
	if at >= 0 {
		p.cuts = append(p.cuts, groupCut{at, upTo, cycle})
		if len(p.cuts) > cutsKept {
			p.cuts[1].at, p.cuts[1].upTo = min(p.cuts[0].at, p.cuts[1].at), -1
			p.cuts = p.cuts[1:]
		}
	}
	p.seen, p.end = b.log, b.position
}

// cut is the lowest cut that a group has not been looked at since, -1: none.
func (p *groupPart) cut(looked int32, dst groupOffset) int64 {
	cut := int64(-1)
	for _, c := range p.cuts {
		if c.cycle > looked && (cut < 0 || c.at < cut) && (c.upTo < 0 || dst.offset <= c.upTo) {
			cut = c.at
		}
	}
	return cut
}

// groupBounds are the partition's bounds for group offsets as they are known
// right now, to its owner; or why there are none.
func (p *Partition) groupBounds() (groupBounds, GroupReason) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.rec == nil || p.log == nil || p.log.Open() == nil {
		return groupBounds{}, GroupNotReady
	}
	switch p.rec.State {
	case epoch.StateStopped, epoch.StateStopping:
		return groupBounds{}, GroupStopped
	}
	resting := p.everRan && (p.phase == phaseFailed || p.phase == phaseIdle && p.rec.State == epoch.StatePaused)
	if p.phase != phaseRun && !resting || p.log.Open().Kind != epoch.Mirrored {
		return groupBounds{}, GroupNotReady
	}
	if p.shadowing() { // what is shown is what counts, and stays up to the switch (H15)
		if !p.prepared() {
			return groupBounds{}, GroupNotReady
		}
		l := &p.rec.Log
		v := max(p.shown.VEnd, min(l.Start, p.shown.Position))
		return groupBounds{log: l, start: l.Start, end: v, position: max(p.shown.Position, v), verified: -1, anew: p.anew}, 0
	}
	v := max(p.tail.vEnd, min(p.log.Start, p.tail.position))
	return groupBounds{
		log: p.log, start: p.log.Start, end: v, position: max(p.tail.position, v), verified: p.stats.verified, anew: p.anew,
	}, 0
}

// finalBounds are those of a partition that is about to be STOPPED with this
// log.
func finalBounds(l *epoch.Log) groupBounds {
	end := max(l.Open().VStart, l.Start)
	return groupBounds{log: l, start: l.Start, end: end, position: end, verified: -1, exact: true}
}

// cutNow tells whether this cycle found a cut.
func (p *groupPart) cutNow() bool {
	return len(p.cuts) > 0 && p.cuts[len(p.cuts)-1].cycle == p.cycle
}
