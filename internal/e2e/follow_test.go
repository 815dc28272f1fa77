package e2e_test

import (
	"context"
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/lockstep-kafka/lockstep/internal/e2e"
	"github.com/lockstep-kafka/lockstep/internal/testkafka"
	"github.com/lockstep-kafka/lockstep/internal/testkafka/clients"
	"github.com/lockstep-kafka/lockstep/internal/testkafka/content"
	"github.com/lockstep-kafka/lockstep/internal/testkafka/oracle"
)

func admin(t *testing.T, c *testkafka.Cluster) *kadm.Client {
	t.Helper()
	cl, err := kgo.NewClient(kgo.SeedBrokers(c.Seeds()...), kgo.MetadataMinAge(50*time.Millisecond))
	require.NoError(t, err)
	t.Cleanup(cl.Close)
	return kadm.NewClient(cl)
}

// until waits for a condition of another process.
func until(ctx context.Context, t *testing.T, what string, ok func() bool) {
	t.Helper()
	for !ok() {
		select {
		case <-ctx.Done():
			t.Fatalf("%s did not come about", what)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// slow is what Lockstep says when something took too long.
var slow = regexp.MustCompile(`time(d )?out|deadline exceeded|not done within|took longer`)

// Topics follow the source while it runs, into a destination whose brokers are stricter and smaller by default: old
// and future timestamps (TS-03), large records (HU-01, DU-05), a small batch that is large (HU-05), partitions that are
// added under load (PA-01), configs, a log start that moves into a batch and stays there over a change of leaders here
// (SO-01, SO-03), names that are left out (LP-03); and a healthy mirror warns of nothing (CF-07).
func TestTopicsFollowTheSource(t *testing.T) {
	testkafka.Require(t, "python3")
	src := kafka.Source(t)
	dst := testkafka.Start(t, testkafka.Options{Name: "destination", Props: map[string]string{
		"log.message.timestamp.after.max.ms": "3600000", "log.message.timestamp.before.max.ms": "3600000", "message.max.bytes": "100000",
	}})
	ctx := withTimeout(t, 5*time.Minute)
	for name, kind := range map[string]string{"follow-times": "timestamps", "follow-large": "large", "follow-trim": "log-start"} {
		k, err := content.Get(kind)
		require.NoError(t, err)
		require.NoError(t, k.Fill(ctx, src, name))
	}
	require.NoError(t, content.CreateTopic(ctx, src.Bootstrap(), "follow-grow", 3, nil))
	require.NoError(t, content.CreateTopic(ctx, src.Bootstrap(), "follow-zeros", 1, nil))
	require.NoError(t, content.CreateTopic(ctx, src.Bootstrap(), "__follow", 1, nil))
	zeros := content.BatchOfBytes(oracle.Zstd, time.Now().UnixMilli(), []byte("k"), make([]byte, 40<<20))
	require.Less(t, len(zeros), 50_000)
	_, err := content.Produce(ctx, src.Bootstrap(), "follow-zeros", 0, zeros)
	require.NoError(t, err)

	l := e2e.Start(t, &binary, e2e.Setup{Source: src, Destination: dst, Include: []string{"follow-.*", "__follow"}})
	begun := len(l.Log()) // a ledger topic that was just made is not readable at once
	for _, name := range []string{"follow-times", "follow-large", "follow-trim", "follow-zeros"} {
		l.WaitCaughtUp(ctx, name, 1)
		l.CompareRaw(ctx, name, 0)
	}

	// Left out, and why.
	var shown struct {
		Topics []struct{ Topic, State, Text string } `json:"topics"`
	}
	l.Verb(ctx, &shown, "describe", "--topic", "__follow")
	require.Len(t, shown.Topics, 1)
	require.Equal(t, "EXCLUDED", shown.Topics[0].State)
	require.Contains(t, shown.Topics[0].Text, `"__.*" of topics.exclude`)
	_, body, err := l.Get(ctx, "/v1/status")
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal([]byte(body), &shown))
	require.Len(t, shown.Topics, 1)

	// Partitions and configs.
	traffic := e2e.StartTraffic(t, src, "follow-grow", 3)
	l.WaitMirroring(ctx, "follow-grow", 3)
	from, to := admin(t, src), admin(t, dst)
	rs, err := from.UpdatePartitions(ctx, 6, "follow-grow")
	require.NoError(t, err)
	require.NoError(t, rs.Error())
	for p := range int32(6) {
		require.NoError(t, content.WaitLeader(ctx, src.Bootstrap(), "follow-grow", p, func(q oracle.Partition) bool { return q.Addr != "" }))
		_, err := content.Produce(ctx, src.Bootstrap(), "follow-grow", p, content.Batch(time.Now().UnixMilli(), "k", fmt.Sprint(p)))
		require.NoError(t, err)
	}
	require.NoError(t, content.SetConfig(ctx, src.Bootstrap(), "follow-grow", "retention.ms", "86400001"))
	config := func(key string) (value string, own bool) {
		cs, err := to.DescribeTopicConfigs(ctx, "follow-grow")
		require.NoError(t, err)
		for _, c := range cs[0].Configs {
			if c.Key == key {
				return c.MaybeValue(), c.Source.String() == "DYNAMIC_TOPIC_CONFIG"
			}
		}
		return "", false
	}
	until(ctx, t, "the new value of a config", func() bool { v, _ := config("retention.ms"); return v == "86400001" })
	_, err = from.AlterTopicConfigs(ctx, []kadm.AlterConfig{{Op: kadm.DeleteConfig, Name: "retention.ms"}}, "follow-grow")
	require.NoError(t, err)
	until(ctx, t, "a config set back", func() bool { _, own := config("retention.ms"); return !own })
	traffic.Stop(t)
	l.WaitCaughtUp(ctx, "follow-grow", 6)
	for p := range int32(6) {
		l.CompareRaw(ctx, "follow-grow", p)
	}

	// Nothing so far was worth a warning.
	for line := range strings.Lines(l.Log()[begun:]) {
		if slow.MatchString(line) { // that is not health, but the machine's
			t.Log(line)
			continue
		}
		require.False(t, strings.Contains(line, "level=WARN") || strings.Contains(line, "level=ERROR"), line)
	}

	// The log start, into the middle of the batch 30…34.
	start := func() int64 {
		o, err := oracle.ListOffset(ctx, l.Bootstrap(), "follow-trim", 0, oracle.ReadCommitted, oracle.Earliest)
		require.NoError(t, err)
		return o.Offset
	}
	require.EqualValues(t, 17, start())
	require.NoError(t, content.DeleteRecords(ctx, src.Bootstrap(), "follow-trim", 0, 33))
	until(ctx, t, "the new log start", func() bool { return start() == 33 })
	require.NoError(t, content.BumpEpoch(ctx, dst, "follow-trim"))
	l.WaitCaughtUp(ctx, "follow-trim", 1)
	require.EqualValues(t, 33, start())
	want := l.CompareRaw(ctx, "follow-trim", 0)
	require.EqualValues(t, 33, want[0].Offset)
	for _, r := range clients.Readers() {
		l.CompareClient(ctx, r, clients.Read{Topic: "follow-trim", Isolation: oracle.ReadCommitted}, want)
	}
}
