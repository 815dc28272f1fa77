package mirror

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/lockstep-kafka/lockstep/epoch"
	"github.com/lockstep-kafka/lockstep/internal/ledger"
)

// A topic that is on the destination before the mirror has a record of it.

// takeOver decides whether such a topic may be mirrored into: it is empty, or
// every partition that holds records shares them with the source by a pair
// (failback into what was the source), or start was told to drop them. Anything
// else is left alone, and its clients notice nothing: above all a topic, empty
// or not, that the source mirrors from here, or may do so for all that its
// ledger tells, read after since.
func (s *source) takeOver(ctx context.Context, t *topicSync, have *kadm.TopicDetail, since time.Time) error {
	name := t.source.Topic
	self, source := s.clusters()
	if self == "" {
		return errPending // asked for at this moment
	}
	dropped, there := map[int32]bool{}, map[int32]epoch.SourceRecord{}
	for p := range int32(len(t.source.Partitions)) {
		if c := s.m.opts.View.Command(name, p); c != nil && c.Mirror == s.o.Name && c.DiscardLocal {
			dropped[p] = true
			continue
		}
		r := s.sourceRecordSince(ctx, name, p, since)
		switch r.Reading {
		case epoch.Absent, epoch.Present:
		default:
			return topicFailed(reasonSourceLedger, "topic %s exists here, and the source's ledger can't tell whether it may be mirrored into: %s", name, r.Err)
		}
		if epoch.CheckLoop(self, true, source, r) != epoch.LoopNone {
			return topicFailed(reasonLoop, "the source mirrors it from here, directly or over other clusters: it is an ordinary topic here")
		}
		there[p] = r
	}
	if n, m := len(t.source.Partitions), len(have.Partitions); m > n {
		return partitionCount(name, m, n)
	}
	full, records, err := s.admin.holding(ctx, name)
	if err != nil || len(full) == 0 {
		return err
	}
	t.taken = map[int32]bool{}
	us := epoch.Identity{Cluster: self, TopicID: idText(ledger.ID(have.ID))}
	for p := range full {
		if !dropped[p] && epoch.ValidPair(there[p].PairsNow(idText(ledger.ID(t.source.ID))), us).None() {
			return topicFailed("foreign_topic", "topic %s exists on the destination with %d offsets of another origin and is left alone: rename or delete it there, exclude it from the mirror, or start it with --discard-local", name, records)
		}
		t.taken[p] = true
	}
	return nil
}

// elsewhere tells of a topic that is left alone as the source mirrors it from
// here: nobody has to do anything about it.
func elsewhere(err error) bool {
	var te *topicError
	return errors.As(err, &te) && te.reason == reasonLoop
}

// ownOrTaken is takeOver, but for a topic whose mirroring begins meanwhile: what
// it is found to hold then is what was mirrored. began tells.
func (s *source) ownOrTaken(ctx context.Context, t *topicSync, have *kadm.TopicDetail, since time.Time) (began bool, err error) {
	if err = s.takeOver(ctx, t, have, since); err != nil && s.begun(t.source.Topic) {
		t.taken = nil
		return true, nil
	}
	return false, err
}

// holding are the partitions of a destination topic that hold records, and how
// many offsets that is in all.
func (a *topicAdmin) holding(ctx context.Context, topic string) (full map[int32]bool, n int64, err error) {
	start, err := a.dst.ListStartOffsets(ctx, topic)
	if err == nil {
		err = start.Error()
	}
	if err != nil {
		return nil, 0, fmt.Errorf("list start offsets of topic %s on the destination: %w", topic, err)
	}
	end, err := a.dst.ListEndOffsets(ctx, topic)
	if err == nil {
		err = end.Error()
	}
	if err != nil {
		return nil, 0, fmt.Errorf("list end offsets of topic %s on the destination: %w", topic, err)
	}
	full = map[int32]bool{}
	end.Each(func(e kadm.ListedOffset) {
		if s, ok := start.Lookup(topic, e.Partition); ok && e.Offset > s.Offset {
			n += e.Offset - s.Offset
			full[e.Partition] = true
		}
	})
	return full, n, nil
}

// rested tells whether all partitions of a topic are STOPPED, or about to
// align: such a topic is not made to fit the source.
func (s *source) rested(topic string) (stopped bool) {
	for p := int32(0); ; p++ {
		e := s.m.opts.View.Partition(topic, p)
		if e == nil {
			return p > 0
		}
		if e.Record == nil || e.Record.State != epoch.StateStopped {
			return false
		}
	}
}

// bound tells whether a record still binds the topic to the source and the
// mirror it names: not while it is STOPPED, nor before phase one's cut of a new
// start.
func bound(e *ledger.Partition) bool {
	return e != nil && e.Record != nil && e.Record.State.Active() && !(epoch.Book{Log: &e.Record.Log}).BeforeCut()
}

// destinationOnly is a topic's destination as it is.
func (a *topicAdmin) destinationOnly(ctx context.Context, have *kadm.TopicDetail) (*destTopic, error) {
	cs, err := configs(ctx, a.dst, have.Topic)
	if err != nil {
		return nil, topicFailed("describe_configs", "%w", err)
	}
	return &destTopic{id: have.ID, partitions: have.Partitions, compacted: compacted(cs[have.Topic])}, nil
}

func partitionCount(topic string, here, there int) error {
	return topicFailed("partition_count", "topic %s has %d partitions on the destination but %d on the source: partitions can't be taken away; delete the destination's topic, or add partitions on the source", topic, here, there)
}
