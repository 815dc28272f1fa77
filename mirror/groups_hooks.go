package mirror

import (
	"context"

	"github.com/lockstep-kafka/lockstep/epoch"
	"github.com/lockstep-kafka/lockstep/internal/ledger"
)

// groupSyncOf makes the sync of a source's groups; nil: it is off.
func (m *Manager) groupSyncOf(s *source) error {
	if s.o.Groups == nil {
		return nil
	}
	g, err := newGroupSync(*s.o.Groups, s.o.Source.Client, m.opts.Destination.Client, s.log, m.groups.of(s.o.Name))
	if err != nil {
		return err
	}
	g.source = s.cluster
	g.look = func() map[partKey]groupLook {
		out := map[partKey]groupLook{}
		for _, p := range s.engine.all() {
			if m.owned.has(ledger.PartitionOf(p.topic, p.partition)) {
				b, why := p.groupBounds()
				out[partKey{p.topic, p.partition}] = groupLook{b, why}
			}
		}
		return out
	}
	// A commit that is late must do no harm: what is not ours any more, or not
	// mirrored any more, isn't written.
	g.mine = func(k partKey, last bool) bool {
		p := s.engine.Partition(k.topic, k.partition)
		if p == nil || !m.owned.has(ledger.PartitionOf(k.topic, k.partition)) {
			return false
		}
		if last {
			return p.Status().State == epoch.StateStopping
		}
		_, why := p.groupBounds()
		return why == 0
	}
	g.places = engineLogs{s}
	s.groups = g
	m.groups.add(s.o.Name, g)
	return nil
}

// lastGroups syncs the groups' offsets once more before the partition is STOPPED
// with l. It says whether to go on: after a sync the log is looked at again, as
// that may have taken a while. What can't be done in time is let be.
func (p *Partition) lastGroups(ctx context.Context, st *epoch.Stop, l *epoch.Log) bool {
	if p.eng.LastGroups == nil || p.groupsDone == st || l.Open() == nil {
		return true
	}
	p.groupsDone = st
	if err := p.eng.LastGroups(ctx, partKey{p.topic, p.partition}, finalBounds(l)); err != nil && ctx.Err() == nil {
		p.slog.Warn("group offsets are not synced up to the stop: what the last sync left stands", "err", err)
	}
	return false
}
