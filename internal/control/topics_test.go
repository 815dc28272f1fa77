package control

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-kafka/lockstep/epoch"
	"github.com/lockstep-kafka/lockstep/internal/ledger"
)

// What isn't mirrored is listed with the reason, and a verb on it says so.
func TestTopicsNotMirrored(t *testing.T) {
	s := newStand(t)
	s.partition("orders", 0, epoch.StateMirroring)
	s.svc.o.Topics = func() ([]Topic, int) {
		return []Topic{
			{Mirror: "dc1", Topic: "bad", State: "FAILED", Reason: "create_topic", Text: "the broker's words"},
			{Mirror: "dc2", Topic: "bad", State: "FAILED", Reason: "two_mirrors", Text: "of dc1"},
			{Mirror: "dc1", Topic: "__x", State: "EXCLUDED", Text: "excluded: it matches \"__.*\" of topics.exclude"},
		}, 4
	}
	rows, left, err := s.svc.Topics(Selection{Mirror: "dc1"})
	require.NoError(t, err)
	require.Equal(t, 4, left)
	require.Len(t, rows, 2)
	rows, _, err = s.svc.Topics(Selection{Topics: []string{"__x"}})
	require.NoError(t, err)
	require.Equal(t, "EXCLUDED", rows[0].State)
	_, _, err = s.svc.Topics(Selection{Regex: "("})
	require.Equal(t, BadRequest, kind(t, err))

	_, err = s.do(Request{Verb: Start, Selection: Selection{Mirror: "dc1", Topics: []string{"bad"}}})
	require.Equal(t, NotFound, kind(t, err))
	require.ErrorContains(t, err, "the broker's words")
	_, err = s.svc.Partitions(t.Context(), Selection{Topics: []string{"__x"}})
	require.ErrorContains(t, err, "EXCLUDED")
}

// A partition of a topic that is selected no more is not counted as MIRRORING,
// and what this instance knew of its source before says nothing now.
func TestUnselected(t *testing.T) {
	s := newStand(t)
	for _, topic := range []string{"orders", "gone"} {
		s.partition(topic, 0, epoch.StateMirroring)
		live := s.view.Partition(topic, 0).Live
		live.Publish(ledger.Tail{Known: true, Position: 7, VEnd: 7})
		live.SetStatus(ledger.Status{SourceEnd: 7})
	}
	s.svc.o.Unselected = func(r *ledger.Record) bool { return r.Topic == "gone" }
	ms, err := s.svc.Mirrors(t.Context())
	require.NoError(t, err)
	require.Equal(t, map[ledger.State]int{epoch.StateMirroring: 1, "UNSELECTED": 1}, ms[0].States)
	ps, err := s.svc.Partitions(t.Context(), Selection{})
	require.NoError(t, err)
	require.Equal(t, []bool{true, false}, []bool{ps[0].Unselected, ps[1].Unselected})
	require.Equal(t, []int64{-1, 0}, []int64{ps[0].Lag, ps[1].Lag})
	require.Equal(t, []string{"", "me"}, []string{ps[0].Instance, ps[1].Instance})
}
