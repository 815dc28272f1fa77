package control

import (
	"fmt"
	"regexp"
	"time"
)

// Group is a consumer group's offset of one partition, as the instance that
// mirrors the partition knows it. Numbers that are not known are -1. Partition
// is -1, and Topic empty, for a group of which nothing more is known.
type Group struct {
	Mirror            string    `json:"mirror"`
	Group             string    `json:"group"`
	Topic             string    `json:"topic,omitempty"`
	Partition         int32     `json:"partition"`
	SourceOffset      int64     `json:"source_offset"`
	DestinationOffset int64     `json:"destination_offset"`
	Epoch             int32     `json:"epoch"` // committed with the destination's offset
	Lag               int64     `json:"lag"`   // offsets that the group has before it on the destination
	State             string    `json:"state"` // synced, or why not
	Error             string    `json:"error,omitempty"`
	Since             time.Time `json:"since"`           // since when State
	Synced            time.Time `json:"synced,omitzero"` // when it was in step last
	AgeSeconds        float64   `json:"age_seconds"`     // since then; -1: never
}

// GroupSelection says which groups are meant, of which topics.
type GroupSelection struct {
	Selection
	Groups     []string
	GroupRegex string
}

// Groups describes group offsets of the partitions that this instance mirrors,
// sorted by mirror, group, topic and partition.
func (s *Service) Groups(sel GroupSelection) ([]Group, error) {
	match, err := sel.matcher(false)
	if err != nil {
		return nil, err
	}
	if len(sel.Groups) > 0 && sel.GroupRegex != "" {
		return nil, &Error{Kind: BadRequest, Text: "groups are selected in more than one way", Remedy: "give --group (repeated) or --group-regex"}
	}
	names := map[string]bool{}
	for _, g := range sel.Groups {
		names[g] = true
	}
	re, err := regexp.Compile(`\A(?:` + sel.GroupRegex + `)\z`)
	if err != nil {
		return nil, &Error{Kind: BadRequest, Text: fmt.Sprintf("group expression %q: %v", sel.GroupRegex, err), Remedy: "write an RE2 expression for whole group names"}
	}
	all := len(sel.Topics) == 0 && sel.Regex == ""
	rows := s.o.Groups(func(mirror, group, topic string) bool {
		switch {
		case sel.Mirror != "" && mirror != sel.Mirror, len(names) > 0 && !names[group], sel.GroupRegex != "" && !re.MatchString(group):
			return false
		case topic == "":
			return all
		}
		return match(topic)
	})
	now := s.o.Now()
	for i := range rows {
		if rows[i].AgeSeconds = -1; !rows[i].Synced.IsZero() {
			rows[i].AgeSeconds = max(now.Sub(rows[i].Synced).Seconds(), 0)
		}
	}
	if rows == nil {
		rows = []Group{}
	}
	return rows, nil
}
