package app

import (
	"time"

	"github.com/lockstep-kafka/lockstep/internal/ledger"
)

// partitionStatus is a row of /v1/status.
type partitionStatus struct {
	Mirror       string       `json:"mirror"`
	Topic        string       `json:"topic"`
	Partition    int32        `json:"partition"`
	State        ledger.State `json:"state"`
	Error        string       `json:"error,omitempty"`
	SourceStart  int64        `json:"source_start"`
	SourceEnd    int64        `json:"source_end"`
	Position     int64        `json:"position"`
	Lag          int64        `json:"lag"`
	LeaderEpoch  int32        `json:"source_leader_epoch"`
	Generation   int16        `json:"generation"`
	Bump         int32        `json:"bump"`
	MineToMirror bool         `json:"mirrored_by_this_instance"`
}

// status is what /v1/status answers.
func (a *app) status() any {
	parts := a.view.All()
	rows := make([]partitionStatus, 0, len(parts))
	for _, p := range parts {
		r := partitionStatus{Topic: p.Topic, Partition: p.Partition, SourceStart: -1, SourceEnd: -1, Position: -1, LeaderEpoch: -1, Generation: -1}
		if p.Err != nil {
			r.Error = p.Err.Error()
		}
		if p.Record != nil {
			r.Mirror, r.State, r.Bump = p.Record.Mirror, p.Record.State, p.Record.Log.Bump
			if r.Error == "" {
				r.Error = p.Record.Error
			}
			if n := len(p.Record.Log.Spans); n > 0 {
				r.Generation = p.Record.Log.Spans[n-1].Gen
			}
		}
		if p.Checkpoint != nil {
			r.Position = p.Checkpoint.Position
		}
		if t := p.Live.Tail(); t.Known {
			r.MineToMirror, r.Position = true, t.Position
		}
		if s, ok := p.Live.Status(); ok {
			r.SourceStart, r.SourceEnd, r.LeaderEpoch = s.SourceStart, s.SourceEnd, s.SourceEpoch
			if s.SourceEnd >= 0 && r.Position >= 0 {
				r.Lag = max(s.SourceEnd-r.Position, 0)
			}
			if r.Error == "" {
				r.Error = s.Error
			}
		}
		rows = append(rows, r)
	}
	topics, left := a.topics()
	return map[string]any{
		"topics":          topics, // not mirrored, and why
		"topics_left_out": left,
		"ledger_read_at":  a.view.FreshAt().UTC().Format(time.RFC3339Nano),
		"partitions":      rows,
		"broken_entries":  len(a.view.Broken()),
		"instance":        a.id,
		"instances":       a.control.Instances(),
	}
}
