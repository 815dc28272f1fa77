package oracle

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

// Timestamp types as clients name them.
const (
	CreateTime    = "CreateTime"
	LogAppendTime = "LogAppendTime"
)

// Rec is a record as a reader of one partition sees it; the JSON form is what every black-box client prints, one
// a line. A null key, value or header value is nil (null), an empty one is not.
type Rec struct {
	Partition     int32    `json:"partition"`
	Offset        int64    `json:"offset"`
	LeaderEpoch   int32    `json:"leaderEpoch"` // -1: the client doesn't tell
	Timestamp     int64    `json:"timestamp"`   // ms
	TimestampType string   `json:"timestampType"`
	Key           []byte   `json:"key"`
	Value         []byte   `json:"value"`
	Headers       []Header `json:"headers"`
}

// Header is a record header. Kafka allows no null header key.
type Header struct {
	Key   string `json:"k"`
	Value []byte `json:"v"`
}

// String is a short form for messages: long keys and values are cut.
func (r Rec) String() string {
	var h []string
	for _, x := range r.Headers {
		h = append(h, fmt.Sprintf("%q=%s", x.Key, short(x.Value)))
	}
	return fmt.Sprintf("(%d@%d e%d ts=%d/%s %s=%s [%s])", r.Partition, r.Offset, r.LeaderEpoch, r.Timestamp, r.TimestampType,
		short(r.Key), short(r.Value), strings.Join(h, " "))
}

func short(b []byte) string {
	switch {
	case b == nil:
		return "null"
	case len(b) > 40:
		return fmt.Sprintf("%q…(%d bytes)", b[:20], len(b))
	default:
		return fmt.Sprintf("%q", b)
	}
}

// ParseLine reads one line of a client's output.
func ParseLine(line []byte) (Rec, error) {
	var r Rec
	if err := json.Unmarshal(line, &r); err != nil {
		return r, fmt.Errorf("oracle: record line %q: %w", line[:min(len(line), 200)], err)
	}
	return r, nil
}

// Equal compares everything, null and empty told apart.
func (r Rec) Equal(o Rec) bool {
	return r.Partition == o.Partition && r.Offset == o.Offset && r.LeaderEpoch == o.LeaderEpoch && r.Timestamp == o.Timestamp &&
		r.TimestampType == o.TimestampType && same(r.Key, o.Key) && same(r.Value, o.Value) &&
		slices.EqualFunc(r.Headers, o.Headers, func(a, b Header) bool { return a.Key == b.Key && same(a.Value, b.Value) })
}

func same(a, b []byte) bool { return (a == nil) == (b == nil) && bytes.Equal(a, b) }

// Diff says how got differs from want: "" when equal, else the counts and the first differences.
func Diff(want, got []Rec) string {
	const most = 5
	var out []string
	for i := range max(len(want), len(got)) {
		switch {
		case i >= len(want):
			out = append(out, fmt.Sprintf("#%d: got %v beyond the end", i, got[i]))
		case i >= len(got):
			out = append(out, fmt.Sprintf("#%d: %v is missing", i, want[i]))
		case !want[i].Equal(got[i]):
			out = append(out, fmt.Sprintf("#%d:\n  want %v\n  got  %v", i, want[i], got[i]))
		}
		if len(out) == most {
			break
		}
	}
	if len(out) == 0 {
		return ""
	}
	return fmt.Sprintf("want %d records, got %d\n%s", len(want), len(got), strings.Join(out, "\n"))
}
