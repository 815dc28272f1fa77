//go:build long

package e2e_test

import (
	"bytes"
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/internal/e2e"
	"github.com/lockstep-kafka/lockstep/internal/testkafka"
	"github.com/lockstep-kafka/lockstep/internal/testkafka/content"
	"github.com/lockstep-kafka/lockstep/internal/testkafka/oracle"
)

// shareAt is where a share group starts to read partition 0 of a topic, as a cluster's brokers have it; -1: it has no
// offset.
func shareAt(ctx context.Context, t *testing.T, c *testkafka.Cluster, group, topic string) int64 {
	t.Helper()
	g := kmsg.NewDescribeShareGroupOffsetsRequestGroup()
	g.GroupID = group
	req := kmsg.NewPtrDescribeShareGroupOffsetsRequest()
	req.Groups = append(req.Groups, g)
	r, err := req.RequestWith(ctx, groupClient(t, c.Bootstrap()))
	require.NoError(t, err)
	for _, g := range r.Groups {
		require.NoError(t, kerr.ErrorForCode(g.ErrorCode))
		for _, x := range g.Topics {
			for _, p := range x.Partitions {
				if x.Topic == topic && p.Partition == 0 {
					return p.StartOffset
				}
			}
		}
	}
	return -1
}

// setShare sets where a share group starts to read partition 0 of a topic.
func setShare(ctx context.Context, t *testing.T, c *testkafka.Cluster, group, topic string, offset int64) {
	t.Helper()
	p := kmsg.NewAlterShareGroupOffsetsRequestTopicPartition()
	p.StartOffset = offset
	x := kmsg.NewAlterShareGroupOffsetsRequestTopic()
	x.Topic, x.Partitions = topic, append(x.Partitions, p)
	req := kmsg.NewPtrAlterShareGroupOffsetsRequest()
	req.GroupID, req.Topics = group, append(req.Topics, x)
	cl := groupClient(t, c.Bootstrap())
	until(ctx, t, "the start offset of "+group, func() bool { // the first ones wait for the brokers to make their own topic
		r, err := req.RequestWith(ctx, cl)
		if err != nil || r.ErrorCode != 0 || len(r.Topics) != 1 || len(r.Topics[0].Partitions) != 1 {
			return false
		}
		return r.Topics[0].Partitions[0].ErrorCode == 0
	})
}

// Share groups: where they start follows the source, and a group reads on at the destination's brokers with the very
// record that was next. The topic begins at an offset above 0, so that here and there are different places.
func TestShareGroupsFollow(t *testing.T) {
	src, dst := kafka.Source(t), destination(t, 1)
	ctx := withTimeout(t, 3*time.Minute)
	const topic = "dealt"
	k, err := content.Get("log-start")
	require.NoError(t, err)
	require.NoError(t, k.Fill(ctx, src, topic))
	l := e2e.Start(t, &binary, e2e.Setup{
		Source: src, Destination: dst, Include: []string{topic},
		Mirror: []string{"groups:", "  interval: 1s", "  exclude: [dealt-not]"},
	})
	l.WaitCaughtUp(ctx, topic, 1)
	all := l.CompareRaw(ctx, topic, 0)
	next := func(i int) int64 { return all[i].Offset }
	end := all[len(all)-1].Offset + 1
	own, err := oracle.Dump(ctx, dst.Bootstrap(), topic, 0, oracle.ReadUncommitted)
	require.NoError(t, err)
	here := func(i int) int64 { // where the brokers there have it
		for _, r := range own {
			if bytes.Equal(r.Key, all[i].Key) && bytes.Equal(r.Value, all[i].Value) && r.Timestamp == all[i].Timestamp {
				return r.Offset
			}
		}
		t.Fatalf("record %d isn't on the destination", i)
		return -1
	}
	hereEnd := own[len(own)-1].Offset + 1
	require.NotEqual(t, next(0), here(0))

	setShare(ctx, t, src, "dealt-plain", topic, next(9))
	setShare(ctx, t, src, "dealt-low", topic, 0)
	setShare(ctx, t, src, "dealt-end", topic, end)
	setShare(ctx, t, src, "dealt-not", topic, next(3))
	l.WaitGroup(ctx, topic, "dealt-plain", "synced", next(9))
	l.WaitGroup(ctx, topic, "dealt-low", "synced", next(0)) // clamped to the log's start
	l.WaitGroup(ctx, topic, "dealt-end", "synced", end)
	require.Equal(t, here(9), shareAt(ctx, t, dst, "dealt-plain", topic), "the destination's own offset")
	require.Equal(t, here(0), shareAt(ctx, t, dst, "dealt-low", topic))
	require.Equal(t, hereEnd, shareAt(ctx, t, dst, "dealt-end", topic))
	require.EqualValues(t, -1, shareAt(ctx, t, dst, "dealt-not", topic), "excluded")

	// Moved on here: never rewound. It follows again when the source has passed it.
	setShare(ctx, t, dst, "dealt-low", topic, here(5))
	setShare(ctx, t, src, "dealt-low", topic, next(3))
	l.WaitGroup(ctx, topic, "dealt-low", "moved_here", next(5))
	require.Equal(t, here(5), shareAt(ctx, t, dst, "dealt-low", topic))
	setShare(ctx, t, src, "dealt-low", topic, next(7))
	l.WaitGroup(ctx, topic, "dealt-low", "synced", next(7))

	// One that has members here is left alone.
	member := groupClient(t, dst.Bootstrap())
	hb := kmsg.NewPtrShareGroupHeartbeatRequest()
	hb.GroupID, hb.MemberID, hb.SubscribedTopicNames = "dealt-end", "AAAAAAAAAAAAAAAAAAAAAA", []string{"another"}
	beat, err := hb.RequestWith(ctx, member)
	require.NoError(t, err)
	require.NoError(t, kerr.ErrorForCode(beat.ErrorCode))
	setShare(ctx, t, src, "dealt-end", topic, next(11))
	until(ctx, t, "the active group is named", func() bool {
		hb.MemberEpoch = beat.MemberEpoch // it stays a member
		if b, err := hb.RequestWith(ctx, member); err == nil && b.ErrorCode == 0 {
			beat = b
		}
		return l.Groups(ctx, topic)["dealt-end"].State == "active_here"
	})
	require.Equal(t, hereEnd, shareAt(ctx, t, dst, "dealt-end", topic))

	// A group of this name that is of another kind here: the broker's words.
	commitOffset(ctx, t, dst.Bootstrap(), "dealt-other", topic, 1, -1)
	setShare(ctx, t, src, "dealt-other", topic, next(2))
	until(ctx, t, "the other kind is named", func() bool { return l.Groups(ctx, topic)["dealt-other"].State == "refused" })
	require.Contains(t, l.Groups(ctx, topic)["dealt-other"].Error, "not a share group")

	// The last sync of a stop takes along what came just before it.
	setShare(ctx, t, src, "dealt-plain", topic, next(10))
	stop(ctx, t, l, topic)
	require.Equal(t, here(10), shareAt(ctx, t, dst, "dealt-plain", topic))
	reader := groupClient(t, dst.Bootstrap(), kgo.ShareGroup("dealt-plain"), kgo.ConsumeTopics(topic))
	var got []*kgo.Record
	until(ctx, t, "records for the share group", func() bool {
		fs := reader.PollFetches(ctx)
		require.NoError(t, fs.Err0())
		got = append(got, fs.Records()...)
		return len(got) > 0
	})
	require.Equal(t, here(10), got[0].Offset)
	require.Equal(t, all[10].Value, got[0].Value)
}
