//go:build long

package e2e_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/lockstep-kafka/lockstep/internal/testkafka/content"
)

// cleanerRatio is the destination topic's min.cleanable.dirty.ratio.
func cleanerRatio(ctx context.Context, t *testing.T, seeds []string, topic string) string {
	t.Helper()
	cl, err := kgo.NewClient(kgo.SeedBrokers(seeds...))
	require.NoError(t, err)
	defer cl.Close()
	rs, err := kadm.NewClient(cl).DescribeTopicConfigs(ctx, topic)
	require.NoError(t, err)
	for _, c := range rs[0].Configs {
		if c.Key == "min.cleanable.dirty.ratio" {
			return c.MaybeValue()
		}
	}
	return ""
}

// putKeyed writes a record whose key is its value and checks the offset it gets.
func putKeyed(ctx context.Context, t *testing.T, bootstrap, topic string, want int64, value string) {
	t.Helper()
	require.Eventually(t, func() bool {
		base, err := content.Produce(ctx, bootstrap, topic, 0, content.Batch(1_700_000_000_000+want, value, value))
		if err == nil {
			require.Equal(t, want, base, "offset of %s", value)
		}
		return err == nil
	}, time.Minute, 200*time.Millisecond)
}

// H15 and H1 on real clusters: a failback that cuts records of a compacted topic writes it once more beside what is
// shown, with the cleaner kept off until it takes over; a direct write is written over at a stop whose source is gone.
func TestCompactedFailback(t *testing.T) {
	ctx := withTimeout(t, 5*time.Minute)
	a, b := sides(t)
	cl, err := kgo.NewClient(kgo.SeedBrokers(a.Cluster.Seeds()...))
	require.NoError(t, err)
	defer cl.Close()
	_, err = kadm.NewClient(cl).CreateTopic(ctx, 1, 2, map[string]*string{"cleanup.policy": kadm.StringPtr("compact")}, exampleTopic)
	require.NoError(t, err)
	a.Up()
	b.Mirrors("a", a.Bootstrap(), []string{exampleTopic}, "bump_step: 10", "replication_factor: 2")
	putKeyed(ctx, t, a.Bootstrap(), exampleTopic, 0, "a0")
	putKeyed(ctx, t, a.Bootstrap(), exampleTopic, 1, "a1")
	b.Up()
	b.WaitState(ctx, exampleTopic, 1, "MIRRORING")
	b.Same(ctx, b.Bootstrap(), a.Bootstrap(), exampleTopic, 0)
	stop(ctx, t, b.Lockstep, exampleTopic)
	putKeyed(ctx, t, a.Cluster.Bootstrap(), exampleTopic, 2, "lost2")
	putKeyed(ctx, t, b.Bootstrap(), exampleTopic, 2, "b2")
	a.Mirrors("b", b.Bootstrap(), []string{exampleTopic}, "bump_step: 10", "replication_factor: 2")
	a.Stop()
	a.Launch()
	a.WaitState(ctx, exampleTopic, 1, "MIRRORING")
	a.Same(ctx, a.Bootstrap(), b.Bootstrap(), exampleTopic, 0)
	require.Regexp(t, `^0\(0\) a0, 1\(0\) a1, 2\(\d+\) b2$`, log(ctx, t, a.Bootstrap(), exampleTopic))
	require.Contains(t, a.Log(), "written once more")
	until(ctx, t, "the switch, in the log", func() bool { return strings.Contains(a.Log(), "is shown now") })
	require.Eventually(t, func() bool { return cleanerRatio(ctx, t, a.Cluster.Seeds(), exampleTopic) == "0.5" }, time.Minute, 200*time.Millisecond, "the cleaner may run again")

	// TD-03: something was written past the proxy, and the source is gone.
	base, err := content.Produce(ctx, a.Cluster.Bootstrap(), exampleTopic, 0, content.Batch(1_700_000_000_000, "a0", "past the proxy"))
	require.NoError(t, err)
	require.Greater(t, base, int64(5), "physical: all of it is there twice")
	b.Stop()
	before := log(ctx, t, a.Bootstrap(), exampleTopic)
	p := stop(ctx, t, a.Lockstep, exampleTopic)
	require.EqualValues(t, 3, p.LMO)
	require.Equal(t, before, log(ctx, t, a.Bootstrap(), exampleTopic))
	require.Contains(t, a.Log(), "the copy is shown now")
	require.Eventually(t, func() bool { return cleanerRatio(ctx, t, a.Cluster.Seeds(), exampleTopic) == "0.5" }, time.Minute, 200*time.Millisecond, "the cleaner may run again after the stop")
	putKeyed(ctx, t, a.Bootstrap(), exampleTopic, 3, "a3")
}
