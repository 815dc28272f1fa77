package mirror

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// A new topic's partitions begin together: a leader that metadata names may not have come to some of them. It is asked
// again for those only, until it serves them all; one that can't be asked, or refuses for another reason, holds nobody
// up, and nobody waits for longer than the context.
func TestNewTopicIsServed(t *testing.T) {
	c, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(4, "t"))
	require.NoError(t, err)
	defer c.Close()
	cl := fakeClient(t, c)
	a := &topicAdmin{dst: kadm.NewClient(cl), to: cl}
	codes := map[int32]int16{1: kerr.NotLeaderForPartition.Code, 2: kerr.UnknownTopicOrPartition.Code, 3: kerr.TopicAuthorizationFailed.Code}
	var asked [][]int32
	enough := 3
	var stop func()
	c.ControlKey(int16(kmsg.ListOffsets), func(kreq kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		req := kreq.(*kmsg.ListOffsetsRequest)
		resp := req.ResponseKind().(*kmsg.ListOffsetsResponse)
		rt := kmsg.NewListOffsetsResponseTopic()
		rt.Topic = req.Topics[0].Topic
		var ps []int32
		for _, p := range req.Topics[0].Partitions {
			rp := kmsg.NewListOffsetsResponseTopicPartition()
			rp.Partition, rp.ErrorCode = p.Partition, codes[p.Partition]
			rt.Partitions = append(rt.Partitions, rp)
			ps = append(ps, p.Partition)
		}
		resp.Topics = append(resp.Topics, rt)
		if asked = append(asked, ps); len(asked) == enough {
			stop()
		}
		return resp, nil, true
	})
	detail := func() *kadm.TopicDetail {
		d, err := a.destination(t.Context(), "t")
		require.NoError(t, err)
		return d
	}()

	stop = func() { delete(codes, 1); delete(codes, 2) }
	a.served(t.Context(), detail)
	require.Len(t, asked, 4)
	require.ElementsMatch(t, []int32{0, 1, 2, 3}, asked[0])
	for _, ps := range asked[1:] {
		require.ElementsMatch(t, []int32{1, 2}, ps)
	}

	// Whoever waits can be stopped.
	asked, codes[1] = nil, kerr.LeaderNotAvailable.Code
	ctx, cancel := context.WithCancel(t.Context())
	stop = cancel
	a.served(ctx, detail)
	require.GreaterOrEqual(t, len(asked), enough)
	require.Error(t, ctx.Err())

	// A leader that is no broker is not waited for.
	asked = nil
	require.Empty(t, a.unserved(t.Context(), "t", 99, []int32{0, 1}))
	require.Empty(t, asked)
}
