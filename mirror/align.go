package mirror

import (
	"context"
	"strings"

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
	if a == nil { // the destination changed its leader since the job was taken (setDest): recovery comes first
		return nil
	}
	start := max(l.Start, l.Spans[0].VStart)
	x := &epoch.Truncation{
		Chain: l.Chain.AdvanceStart(l.Start), Position: t.position, VEnd: t.vEnd, RereadEnd: t.position, Start: start,
		Support: p.eng.Unclean(p.topic), Compacted: p.compacted,
	}
	switch a.kind {
	case askDiverging:
		x.Diverging(a.epoch, a.end)
	case askStable:
		x.Unstable()
	case askRange:
		x.OutOfRange()
	case askEpoch:
		x.Ask()
	}
	var step epoch.TruncStep
	err := p.eng.src.with(ctx, src.addr, func(c *kconn.Conn) (err error) {
		step, err = p.truncation(ctx, c, x, src)
		return err
	})
	if err != nil {
		return err
	}
	return p.truncate(ctx, a, step, t, src.epoch)
}

// truncation asks the source what x wants to know.
func (p *Partition) truncation(ctx context.Context, c *kconn.Conn, x *epoch.Truncation, src leader) (epoch.TruncStep, error) {
	for {
		step := x.Next()
		switch step.Do {
		case epoch.TruncAskEnd:
			e, end, err := endOfEpoch(ctx, c, p.topic, p.partition, src.epoch, step.Epoch)
			if err != nil {
				return step, err
			}
			x.Diverging(e, end)
		case epoch.TruncAskLSO:
			lso, err := stableOffset(ctx, c, p.topic, p.partition, src.epoch)
			if err != nil {
				return step, err
			}
			x.Stable(lso)
		case epoch.TruncAskEnds:
			start, err := listOffset(ctx, c, p.topic, p.partition, src.epoch, tsEarliest)
			if err != nil {
				return step, err
			}
			end, err := listOffset(ctx, c, p.topic, p.partition, src.epoch, tsLatest)
			if err != nil {
				return step, err
			}
			x.Ranged(start, end)
		default:
			return step, nil
		}
	}
}

// truncate does what was decided; under is the source's leader epoch that was asked.
func (p *Partition) truncate(ctx context.Context, a *ask, step epoch.TruncStep, t tail, under int32) error {
	switch step.Do {
	case epoch.TruncGoOn:
		p.answered(a, under)
		return nil
	case epoch.TruncCut:
		// No live record goes: not an unclean election (compacted epochs).
		p.slog.Info("cut without a live record", "to", step.T, "position", t.position)
		return p.regenerate(a, regen{why: "source_cut", force: true, truncated: true, hasCut: true, cut: step.T})
	case epoch.TruncULE:
		p.slog.Warn("the source lost records that are mirrored already (an unclean leader election there): they are cut off here too", "from", step.T, "end", t.vEnd)
		return p.regenerate(a, regen{why: "unclean_election", force: true, ule: true, truncated: true, hasCut: true, cut: step.T})
	case epoch.TruncShadow:
		p.slog.Warn("the source lost records that are mirrored already (an unclean leader election there): they are cut off here too, and the compacted topic is mirrored anew", "from", step.T, "end", t.vEnd)
		if p.shadowing() {
			return p.restartAtSource(ctx, a, regen{why: "unclean_election", force: true}) // the shadow; what is shown is compared when it switches
		}
		return p.regenerate(a, regen{why: "unclean_election", force: true, ule: true, truncated: true, hasCut: true, cut: step.T, rebuild: &rebuild{}})
	case epoch.TruncRestart:
		if step.T <= t.position { // the source knows nothing of what we have seen
			return p.restartAtSource(ctx, a, regen{why: "source_unknown", force: true})
		}
		p.gap(t.position, step.T)
		return p.regenerate(a, regen{why: "source_retention", force: true, hasRestart: true, restart: step.T})
	case epoch.TruncFail:
		return p.truncated(step)
	}
	return fail(reasonLedger, "the source's answer can't be judged: step %d, %s", step.Do, step.Why)
}

// truncated is the failure when what the source lost is not cut here, with what
// to do about it.
func (p *Partition) truncated(step epoch.TruncStep) error {
	if !strings.Contains(step.Why, epoch.SettingULE) {
		return failForGood(reasonTruncation, "%s", step.Why)
	}
	return failForGood(reasonTruncation, "%s: `lockstep set --mirror %s --unclean-leader-election true`, then `lockstep recover`", step.Why, p.eng.Mirror)
}

// restartAtSource begins anew at the source's log start.
func (p *Partition) restartAtSource(ctx context.Context, a *ask, r regen) error {
	src, _ := p.leaders()
	return p.eng.src.with(ctx, src.addr, func(c *kconn.Conn) error {
		start, err := listOffset(ctx, c, p.topic, p.partition, src.epoch, tsEarliest)
		if err != nil {
			return err
		}
		r.hasRestart, r.restart = true, start
		return p.regenerate(a, r)
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

// answered goes on where the partition is. A leader that has come since the
// question is asked for itself.
func (p *Partition) answered(a *ask, under int32) {
	p.mu.Lock()
	if p.todo.ask == a {
		p.todo.ask = nil
		if a.kind == askEpoch {
			p.asked = under
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
