package app

import (
	"github.com/lockstep-kafka/lockstep/internal/config"
	"github.com/lockstep-kafka/lockstep/internal/control"
	"github.com/lockstep-kafka/lockstep/mirror"
)

// groupOptions are a mirror's settings for consumer groups, nil when it leaves
// them alone.
func groupOptions(m *config.Mirror) (*mirror.GroupOptions, error) {
	if !m.Groups.Enabled {
		return nil, nil //nolint:nilnil // nil is off
	}
	f, err := mirror.NewTopicFilter(m.Groups.Include, m.Groups.Exclude)
	if err != nil {
		return nil, err
	}
	return &mirror.GroupOptions{Filter: f, Interval: m.Groups.Interval.Std()}, nil
}

// groups are what this instance knows of group offsets.
func (a *app) groups(keep func(mirror, group, topic string) bool) []control.Group {
	m := a.mirrors.manager()
	if m == nil {
		return nil
	}
	rows := m.Groups(keep)
	out := make([]control.Group, len(rows))
	for i, r := range rows {
		out[i] = control.Group{
			Mirror: r.Mirror, Group: r.Group, Topic: r.Topic, Partition: r.Partition,
			SourceOffset: r.SourceOffset, DestinationOffset: r.DestinationOffset, Epoch: r.DestinationEpoch, Lag: r.Lag,
			State: r.Reason.String(), Error: r.Error, Since: r.Since, Synced: r.Synced,
		}
	}
	return out
}
