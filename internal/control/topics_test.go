package control

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-kafka/lockstep/epoch"
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
