package mirror

import (
	"context"

	"github.com/lockstep-kafka/lockstep/epoch"
	"github.com/lockstep-kafka/lockstep/internal/kconn"
)

// ask is what a source said about the end of our log, to be looked into when
// nothing is queued or in flight.
type ask struct {
	kind  askKind
	epoch int32 // askDiverging
	end   int64 // askDiverging, askStable
}

type askKind uint8

const (
	askDiverging askKind = iota + 1 // Fetch said DIVERGING (epoch, end)
	askRange                        // OFFSET_OUT_OF_RANGE
	askStable                       // the last stable offset fell below our position (H17)
	askEpoch                        // Fetch below v12: does the source have our last epoch to our end?
)

// askSource decides, by facts.md §3, what a source's answer means for what we
// have.
func (p *Partition) askSource(ctx context.Context) error {
	p.mu.Lock()
	a, t, l, src := p.todo.ask, p.tail, p.log, p.src
	p.mu.Unlock()
	chain := l.Chain.AdvanceStart(l.Start)
	cut, again := t.position, false
	switch a.kind {
	case askDiverging:
		cut, again = chain.TruncateTo(a.epoch, a.end, t.position)
	case askStable:
		cut = a.end
	case askRange, askEpoch:
		err := p.eng.src.with(ctx, src.addr, func(c *kconn.Conn) error {
			start, err := listOffset(ctx, c, p.topic, p.partition, src.epoch, tsEarliest)
			if err != nil {
				return err
			}
			end, err := listOffset(ctx, c, p.topic, p.partition, src.epoch, tsLatest)
			if err != nil {
				return err
			}
			act, at := epoch.OutOfRange(t.position, start, end)
			if act == epoch.RangeRestart {
				p.gap(t.position, start)
				cut = at
				return nil
			}
			if t.epoch < 0 {
				if a.kind == askRange {
					cut = at
				}
				return nil
			}
			e, eEnd, err := endOfEpoch(ctx, c, p.topic, p.partition, src.epoch, t.epoch)
			if err != nil {
				return err
			}
			if e == t.epoch && eEnd >= t.position {
				return nil
			}
			cut, again = chain.TruncateTo(e, eEnd, t.position)
			return nil
		})
		if err != nil {
			return err
		}
	}
	if cut > t.position {
		return p.regenerate(a, regen{why: "source_retention", force: true, hasRestart: true, restart: cut})
	}
	switch {
	case cut < 0 && t.vEnd > max(l.Start, l.Spans[0].VStart):
		return failForGood(reasonTruncation, "the source does not know leader epoch %d, the last one mirrored, up to offset %d: it lost its log, or the topic was created again. Compare the two topics; mirror.unclean.leader.election.enable lets a mirror follow a source that lost records", t.epoch, t.position)
	case cut < 0:
		// Nothing of it is shown here: begin at what the source has.
		return p.restartAtSource(ctx, a)
	case cut < t.vEnd:
		return failForGood(reasonTruncation, "the source lost records that are mirrored already: it ends at offset %d where this log has %d more (an unclean leader election on the source). Set mirror.unclean.leader.election.enable to let the mirror cut them off", cut, t.vEnd-cut)
	case cut < t.position || len(l.Chain.Truncate(cut)) < len(l.Chain):
		// No live record goes: not an unclean election (compacted epochs).
		p.slog.Info("cut without a live record", "to", cut, "position", t.position, "again", again)
		return p.regenerate(a, regen{why: "source_cut", force: true, hasCut: true, cut: cut})
	}
	p.answered(a)
	return nil
}

// restartAtSource begins anew at the source's log start.
func (p *Partition) restartAtSource(ctx context.Context, a *ask) error {
	src, _ := p.leaders()
	return p.eng.src.with(ctx, src.addr, func(c *kconn.Conn) error {
		start, err := listOffset(ctx, c, p.topic, p.partition, src.epoch, tsEarliest)
		if err != nil {
			return err
		}
		return p.regenerate(a, regen{why: "source_unknown", force: true, hasRestart: true, restart: start})
	})
}

// regenerate sends the partition into recovery, unless the question is no
// longer of today.
func (p *Partition) regenerate(a *ask, r regen) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.todo.ask == a {
		p.doubt(r.why, r)
	}
	return nil
}

// answered goes on where the partition is.
func (p *Partition) answered(a *ask) {
	p.mu.Lock()
	if p.todo.ask == a {
		p.todo.ask = nil
		if a.kind == askEpoch {
			p.asked = p.src.epoch
		} else {
			p.holdFetch()
		}
	}
	p.mu.Unlock()
	p.kick()
}

// gap counts and reports source offsets that retention removed before they were
// mirrored.
func (p *Partition) gap(from, to int64) {
	p.met.gaps.Inc()
	p.met.gapOffsets.Add(float64(to - from))
	p.slog.Warn("the source removed records before they were mirrored: raise its retention or the mirror's throughput", "from", from, "to", to, "offsets", to-from)
}
