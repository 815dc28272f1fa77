package mirror

import (
	"context"
	"strconv"

	"github.com/lockstep-kafka/lockstep/epoch"
)

// Dead batches count for the broker's retention.bytes like live ones, so a
// mirror topic gets room for them on top of the source's value, while they are
// there (hazard M6).

// deadOffsets is how many physical offsets from start on are dead, as far as
// the spans tell: what lies between the live end of one and the beginning of the
// next, and in front of the first.
func deadOffsets(l *epoch.Log, start int64) int64 {
	var dead int64
	for i, s := range l.Spans {
		from := start
		if i > 0 {
			prev := l.Spans[i-1]
			from = prev.PEnd
			if from < prev.PStart { // not known: live ones are at most as many as virtual offsets
				from = prev.PStart + s.VStart - prev.VStart
			}
			from = max(from, start)
		}
		dead += max(0, s.PStart-from)
	}
	return dead
}

// withDead is retention.bytes with room for dead bytes in front, in whole
// segments, as retention removes nothing less.
func withDead(retention, dead, segment int64) int64 {
	segment = max(segment, 1)
	return retention + (dead+segment-1)/segment*segment
}

// roomForDead raises the wanted retention.bytes of a topic while one of its
// partitions holds dead batches. How large they are is reckoned from the mean
// size of what is mirrored; until that is known a larger value stays.
func (s *source) roomForDead(ctx context.Context, topic string, partitions int, src, have topicConfigs, want map[string]string) error {
	keep := number(want["retention.bytes"])
	if keep <= 0 {
		return nil
	}
	var logs []*epoch.Log
	found := false
	var bytes, offsets int64
	for p := range int32(partitions) {
		e := s.m.opts.View.Partition(topic, p)
		if e == nil || e.Log == nil {
			logs = append(logs, &epoch.Log{})
			continue
		}
		logs = append(logs, e.Log)
		found = found || deadOffsets(e.Log, 0) > 0
		if x := s.engine.Partition(topic, p); x != nil {
			b, n := x.mean()
			bytes, offsets = bytes+b, offsets+n
		}
	}
	switch {
	case !found:
		return nil
	case offsets == 0:
		if n := number(have["retention.bytes"].value); n > keep {
			want["retention.bytes"] = strconv.FormatInt(n, 10)
		}
		return nil
	}
	starts, err := s.admin.dst.ListStartOffsets(ctx, topic)
	if err != nil {
		return topicFailed("authorization", "list start offsets of topic %s on the destination: %w", topic, err)
	}
	var most int64
	for p, l := range logs {
		if at, ok := starts.Lookup(topic, int32(p)); ok && at.Err == nil {
			most = max(most, deadOffsets(l, at.Offset))
		}
	}
	dead := int64(float64(most) * float64(bytes) / float64(offsets))
	want["retention.bytes"] = strconv.FormatInt(withDead(keep, dead, number(src["segment.bytes"].value)), 10)
	return nil
}

// mean is what was appended here so far: bytes, and offsets.
func (p *Partition) mean() (bytes, offsets int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.stats.bytes, p.stats.records
}
