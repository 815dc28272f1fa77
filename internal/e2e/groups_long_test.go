//go:build long

package e2e_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"golang.org/x/sync/errgroup"

	"github.com/lockstep-kafka/lockstep/internal/e2e"
	"github.com/lockstep-kafka/lockstep/internal/testkafka"
	"github.com/lockstep-kafka/lockstep/internal/testkafka/clients"
	"github.com/lockstep-kafka/lockstep/internal/testkafka/content"
)

// OT-01: kill -9 in the middle of copying, five times; a group's offset here is never above the end here.
func TestGroupsWhileCopying(t *testing.T) {
	src, dst := kafka.Source(t), destination(t, 1)
	ctx := withTimeout(t, 5*time.Minute)
	const topic, records, at = "copying", 1000, 500
	require.NoError(t, content.CreateTopic(ctx, src.Bootstrap(), topic, 1, map[string]string{"retention.ms": "-1"}))
	for i := range int64(records) {
		_, err := content.Produce(ctx, src.Bootstrap(), topic, 0, content.Batch(1_700_000_000_000+i, "k", "v"))
		require.NoError(t, err)
	}
	commitOffset(ctx, t, src.Bootstrap(), "copying-g", topic, at, 0)
	l := e2e.Start(t, &binary, e2e.Setup{
		Source: src, Destination: dst, Include: []string{topic},
		Mirror: []string{"groups: {interval: 1s}", "fetch_partition_max_bytes: 100", "fetch_max_bytes: 100"},
	})
	check := func() int64 {
		here, _ := committedOffset(ctx, t, dst.Bootstrap(), "copying-g", topic)
		end, err := kadm.NewClient(groupClient(t, l.Bootstrap())).ListEndOffsets(ctx, topic)
		require.NoError(t, err)
		o, ok := end.Lookup(topic, 0)
		if !ok || o.Err != nil {
			return 0 // not there yet
		}
		require.LessOrEqual(t, here, o.Offset)
		require.LessOrEqual(t, here, int64(at))
		t.Logf("group at %d, end at %d", here, o.Offset)
		return o.Offset
	}
	for i := range int64(5) {
		for check() < 150*(i+1) {
			time.Sleep(20 * time.Millisecond)
		}
		l.Restart()
		check()
	}
	l.WaitGroup(ctx, topic, "copying-g", "synced", at)
	check()
}

// OT-19: 4,000 groups with two partitions each, all exact; then a failover takes what changed last along.
func TestFourThousandGroups(t *testing.T) {
	src, dst := kafka.Source(t), destination(t, 1)
	ctx := withTimeout(t, 10*time.Minute)
	const topic, groups = "many-groups", 4000
	require.NoError(t, content.CreateTopic(ctx, src.Bootstrap(), topic, 2, map[string]string{"retention.ms": "-1"}))
	for i := range int64(200) {
		_, err := content.Produce(ctx, src.Bootstrap(), topic, int32(i%2), content.Batch(1_700_000_000_000+i, "k", "v"))
		require.NoError(t, err)
	}
	adm := kadm.NewClient(groupClient(t, src.Bootstrap()))
	name := func(i int) string { return fmt.Sprintf("many-%04d", i) }
	commit := func(i, more int) {
		var os kadm.Offsets
		for p := range int32(2) {
			os.AddOffset(topic, p, int64((i+more+int(p)*7)%101), 0)
		}
		resp, err := adm.CommitOffsets(ctx, name(i), os)
		require.NoError(t, err)
		require.NoError(t, resp.Error())
	}
	all := func(more int) {
		var g errgroup.Group
		g.SetLimit(16)
		for i := range groups {
			g.Go(func() error { commit(i, more); return nil })
		}
		require.NoError(t, g.Wait())
	}
	all(0)
	l := e2e.Start(t, &binary, e2e.Setup{Source: src, Destination: dst, Include: []string{topic}, Mirror: []string{"groups: {interval: 1s, include: [\"many-.*\"]}"}})
	l.WaitCaughtUp(ctx, topic, 2)
	began := time.Now()
	exact := func(more int) bool {
		here, err := fetchAll(ctx, kadm.NewClient(groupClient(t, dst.Bootstrap())), groups, name)
		if err != nil {
			return false
		}
		for i := range groups {
			for p := range int32(2) {
				if o, ok := here[name(i)].Fetched.Lookup(topic, p); !ok || o.At != int64((i+more+int(p)*7)%101) || o.LeaderEpoch != 0 {
					return false
				}
			}
		}
		return true
	}
	require.Eventually(t, func() bool { return exact(0) }, 2*time.Minute, time.Second)
	t.Logf("%d groups were exact after %.1fs", groups, time.Since(began).Seconds())
	until(ctx, t, "all of them in status", func() bool {
		all := l.Groups(ctx, topic)
		for _, g := range all {
			if g.State != "synced" {
				return false
			}
		}
		return len(all) == groups
	})
	all(1)
	began = time.Now()
	l.Verb(ctx, nil, "stop", "--topic", topic, "--timeout", "60s")
	t.Logf("stop, with the last sync, took %.1fs", time.Since(began).Seconds())
	require.True(t, exact(1), "after the stop")
}

func fetchAll(ctx context.Context, adm *kadm.Client, n int, name func(int) string) (kadm.FetchOffsetsResponses, error) {
	var names []string
	for i := range n {
		names = append(names, name(i))
	}
	got := adm.FetchManyOffsets(ctx, names...)
	return got, got.Error()
}

// What real brokers do with a commit of nobody's member to a KIP-848 group with members, and OT-17: the source's only
// broker is away for a while.
func TestGroupsAndBrokers(t *testing.T) {
	src := testkafka.Start(t, testkafka.Options{Name: "source"})
	dst := destination(t, 1)
	ctx := withTimeout(t, 5*time.Minute)
	const topic = "brokers"
	k, err := content.Get("log-start")
	require.NoError(t, err)
	require.NoError(t, k.Fill(ctx, src, topic))
	commitOffset(ctx, t, src.Bootstrap(), "b", topic, 30, -1)
	commitOffset(ctx, t, src.Bootstrap(), "b848", topic, 30, -1)
	l := e2e.Start(t, &binary, e2e.Setup{Source: src, Destination: dst, Include: []string{topic}, Mirror: []string{"groups: {interval: 1s}"}})
	l.WaitGroup(ctx, topic, "b", "synced", 30)
	l.WaitGroup(ctx, topic, "b848", "synced", 30)
	followed, end := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_, _ = clients.JavaRead(followed, clients.Read{
			Bootstrap: l.Bootstrap(), Topic: topic, From: "group", Group: "b848", Subscribe: true, Follow: true, Timeout: 2 * time.Minute,
			Set: map[string]string{"group.protocol": "consumer"},
		})
	}()
	l.WaitGroup(ctx, topic, "b848", "active_here", 30)
	var nobodys kadm.Offsets
	nobodys.AddOffset(topic, 0, 31, -1)
	resp, err := kadm.NewClient(groupClient(t, dst.Bootstrap())).CommitOffsets(ctx, "b848", nobodys)
	require.NoError(t, err)
	require.Error(t, resp.Error())
	t.Logf("a commit of nobody's member to a KIP-848 group with members: %v", resp.Error())
	end()
	<-ended

	require.NoError(t, src.Kill(1))
	time.Sleep(5 * time.Second)
	require.NoError(t, src.StartBroker(ctx, 1))
	commitOffset(ctx, t, src.Bootstrap(), "b", topic, 31, -1)
	l.WaitGroup(ctx, topic, "b", "synced", 31)
}
