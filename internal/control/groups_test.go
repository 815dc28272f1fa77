package control

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestGroupsSelection(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	rows := []Group{
		{Mirror: "a", Group: "g1", Topic: "t", Synced: now.Add(-3 * time.Second)},
		{Mirror: "a", Group: "g2", Topic: "u"},
		{Mirror: "b", Group: "g1", Topic: "t"},
		{Mirror: "a", Group: "shared", Partition: -1},
	}
	s := New(Options{Now: func() time.Time { return now }, Groups: func(keep func(mirror, group, topic string) bool) (out []Group) {
		for _, r := range rows {
			if keep(r.Mirror, r.Group, r.Topic) {
				out = append(out, r)
			}
		}
		return out
	}})
	names := func(sel GroupSelection) (out []string) {
		got, err := s.Groups(sel)
		require.NoError(t, err)
		for _, g := range got {
			out = append(out, g.Mirror+" "+g.Group+" "+g.Topic)
		}
		return out
	}
	require.Equal(t, []string{"a g1 t", "a g2 u", "b g1 t", "a shared "}, names(GroupSelection{}))
	require.Equal(t, []string{"a g1 t", "b g1 t"}, names(GroupSelection{Selection: Selection{Topics: []string{"t"}}}))
	require.Equal(t, []string{"b g1 t"}, names(GroupSelection{Selection: Selection{Mirror: "b"}}))
	require.Equal(t, []string{"a g2 u", "a shared "}, names(GroupSelection{Groups: []string{"g2", "shared"}}))
	require.Equal(t, []string{"a g1 t", "a g2 u", "b g1 t"}, names(GroupSelection{GroupRegex: "g."}))
	got, err := s.Groups(GroupSelection{Selection: Selection{Mirror: "a"}})
	require.NoError(t, err)
	require.InDelta(t, 3, got[0].AgeSeconds, 0.01)
	require.InDelta(t, -1, got[1].AgeSeconds, 0.01, "never in step")
	got, err = s.Groups(GroupSelection{Groups: []string{"none"}})
	require.NoError(t, err)
	require.NotNil(t, got, "an empty list in JSON, not null")
	for _, bad := range []GroupSelection{{GroupRegex: "("}, {Groups: []string{"g"}, GroupRegex: "g"}, {Selection: Selection{Topics: []string{"t"}, Regex: "t"}}} {
		_, err := s.Groups(bad)
		var ce *Error
		require.ErrorAs(t, err, &ce)
		require.Equal(t, BadRequest, ce.Kind)
	}
}
