package mirror

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/epoch"
)

// shifted is a destination whose log has every record 100 offsets further on.
type shifted struct{ err error }

func (s *shifted) physical(_ context.Context, _ partKey, _ *epoch.Log, v int64) (int64, error) {
	return v + 100, s.err
}

func (s *shifted) virtual(_ context.Context, _ partKey, _ *epoch.Log, p int64) (int64, error) {
	return p - 100, s.err
}

func alterShareAt(t *testing.T, cl requester, group, topic string, offset int64) {
	t.Helper()
	p := kmsg.NewAlterShareGroupOffsetsRequestTopicPartition()
	p.StartOffset = offset
	x := kmsg.NewAlterShareGroupOffsetsRequestTopic()
	x.Topic, x.Partitions = topic, append(x.Partitions, p)
	req := kmsg.NewPtrAlterShareGroupOffsetsRequest()
	req.GroupID, req.Topics = group, append(req.Topics, x)
	r, err := req.RequestWith(t.Context(), cl)
	require.NoError(t, err)
	require.NoError(t, kerr.ErrorForCode(r.ErrorCode))
	require.NoError(t, kerr.ErrorForCode(r.Topics[0].Partitions[0].ErrorCode))
}

type requester interface {
	Request(context.Context, kmsg.Request) (kmsg.Response, error)
}

// Where share groups start follows, as the destination's own log has it: clamped, never moved back when the group has
// moved on here, and with no request when nothing changed. What can't be looked up, or the broker refuses, is named.
func TestGroupShareSync(t *testing.T) {
	r := newGroupRig(t, 1, "t")
	log := &shifted{}
	r.s.places = log
	r.bounds("t", 0, func(b *groupBounds) { b.start = 10 })
	src, dst := fakeClient(t, r.src), fakeClient(t, r.dst)
	here := func(group string) int64 {
		t.Helper()
		g := kmsg.NewDescribeShareGroupOffsetsRequestGroup()
		g.GroupID = group
		req := kmsg.NewPtrDescribeShareGroupOffsetsRequest()
		req.Groups = append(req.Groups, g)
		a, err := req.RequestWith(t.Context(), dst)
		require.NoError(t, err)
		for _, x := range a.Groups[0].Topics {
			return x.Partitions[0].StartOffset
		}
		return -1
	}
	for group, at := range map[string]int64{"s": 50, "low": 3, "high": 5000, "not-this": 7} {
		alterShareAt(t, src, group, "t", at)
	}
	r.cycle()
	require.EqualValues(t, 150, here("s"))
	require.EqualValues(t, 110, here("low"))
	require.EqualValues(t, 1100, here("high"))
	require.EqualValues(t, -1, here("not-this"), "excluded")
	st := r.state("s", "t", 0)
	require.Equal(t, GroupSynced, st.Reason)
	require.EqualValues(t, 50, st.SourceOffset)
	require.EqualValues(t, 50, st.DestinationOffset, "the source's offset for both")
	require.EqualValues(t, 950, st.Lag)

	alters := &r.requests[1][kmsg.AlterShareGroupOffsets]
	n := alters.Load()
	r.cycle()
	require.Equal(t, n, alters.Load(), "nothing changed")

	alterShareAt(t, dst, "s", "t", 180) // it went on here
	alterShareAt(t, src, "s", "t", 60)
	r.cycle()
	require.Equal(t, GroupMoved, r.state("s", "t", 0).Reason)
	require.EqualValues(t, 180, here("s"))
	alterShareAt(t, src, "s", "t", 90) // the source passes it
	r.cycle()
	require.Equal(t, GroupSynced, r.state("s", "t", 0).Reason)
	require.EqualValues(t, 190, here("s"))
	alterShareAt(t, src, "s", "t", 70) // the source's own goes back
	r.cycle()
	require.EqualValues(t, 170, here("s"))

	log.err = errors.New("no leader")
	alterShareAt(t, src, "s", "t", 75)
	r.cycle()
	require.Equal(t, GroupNotReady, r.state("s", "t", 0).Reason)
	require.Contains(t, r.state("s", "t", 0).Error, "no leader")
	log.err = nil
	r.clock = r.clock.Add(time.Minute)
	r.cycle()
	require.Equal(t, GroupSynced, r.state("s", "t", 0).Reason)
	require.EqualValues(t, 175, here("s"))

	// A group of that name that is of another kind here, the other way round too.
	r.commit(r.b, "other", "t", 0, 1, -1)
	alterShareAt(t, src, "other", "t", 20)
	alterShareAt(t, dst, "another", "t", 120)
	r.commit(r.a, "another", "t", 0, 20, -1)
	r.cycle()
	for _, g := range []string{"other", "another"} {
		require.Equal(t, GroupRefused, r.state(g, "t", 0).Reason, g)
		require.NotEmpty(t, r.state(g, "t", 0).Error, g)
	}
}
