package e2e

import (
	"context"
	"encoding/json"
	"time"
)

// GroupStatus is a row of describe --groups.
type GroupStatus struct {
	Mirror            string    `json:"mirror"`
	Group             string    `json:"group"`
	Topic             string    `json:"topic"`
	Partition         int32     `json:"partition"`
	SourceOffset      int64     `json:"source_offset"`
	DestinationOffset int64     `json:"destination_offset"`
	Epoch             int32     `json:"epoch"`
	Lag               int64     `json:"lag"`
	State             string    `json:"state"`
	Error             string    `json:"error"`
	Since             time.Time `json:"since"`
	AgeSeconds        float64   `json:"age_seconds"`
}

// Groups asks the admin API for group offsets of a topic, by group; of several partitions the last one counts.
func (l *Lockstep) Groups(ctx context.Context, topic string) map[string]GroupStatus {
	l.t.Helper()
	code, body, err := l.Get(ctx, "/v1/groups?topic="+topic)
	if err != nil || code != 200 {
		return nil
	}
	var got struct {
		Groups []GroupStatus `json:"groups"`
	}
	if err := json.Unmarshal([]byte(body), &got); err != nil {
		l.t.Fatal(err)
	}
	out := map[string]GroupStatus{}
	for _, g := range got.Groups {
		out[g.Group] = g
	}
	return out
}

// WaitGroup waits until a group's offset here is in a state, at an offset (-1: none).
func (l *Lockstep) WaitGroup(ctx context.Context, topic, group, state string, at int64) GroupStatus {
	l.t.Helper()
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		g := l.Groups(ctx, topic)[group]
		if g.State == state && g.DestinationOffset == at {
			return g
		}
		select {
		case <-ctx.Done():
			l.t.Fatalf("group %s is not %s at %d: %+v\n%s", group, state, at, g, l.LogTail(40))
		case <-time.After(100 * time.Millisecond):
		}
	}
}
