package e2e_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/lockstep-kafka/lockstep/internal/e2e"
	"github.com/lockstep-kafka/lockstep/internal/testkafka"
	"github.com/lockstep-kafka/lockstep/internal/testkafka/content"
	"github.com/lockstep-kafka/lockstep/internal/testkafka/oracle"
)

const exampleTopic = "example"

// elect moves the leader of a topic's partition 0 from one replica to the other: exactly one leader epoch more.
func elect(ctx context.Context, t *testing.T, c *testkafka.Cluster, topic string) {
	t.Helper()
	cl, err := kgo.NewClient(kgo.SeedBrokers(c.Seeds()...), kgo.MetadataMinAge(50*time.Millisecond))
	require.NoError(t, err)
	defer cl.Close()
	adm := kadm.NewClient(cl)
	was, err := oracle.Lookup(ctx, c.Bootstrap(), topic, 0)
	require.NoError(t, err)
	other := was.Leader%int32(c.Brokers()) + 1
	var req kadm.AlterPartitionAssignmentsReq
	req.Assign(topic, 0, []int32{other, was.Leader})
	resp, err := adm.AlterPartitionAssignments(ctx, req)
	require.NoError(t, err)
	require.NoError(t, resp.Error())
	set := kadm.TopicsSet{}
	set.Add(topic, 0)
	require.Eventually(t, func() bool {
		_, err := adm.ElectLeaders(ctx, kadm.ElectPreferredReplica, set)
		if err != nil {
			return false
		}
		now, err := oracle.Lookup(ctx, c.Bootstrap(), topic, 0)
		return err == nil && now.Leader == other
	}, 30*time.Second, 100*time.Millisecond)
	now, err := oracle.Lookup(ctx, c.Bootstrap(), topic, 0)
	require.NoError(t, err)
	require.Equal(t, was.Epoch+1, now.Epoch, "an election of the preferred replica is one leader epoch")
}

// replicated creates a topic with a replica on both brokers. The records' timestamps are of 2023: no retention.
func replicated(ctx context.Context, t *testing.T, c *testkafka.Cluster, topic string) {
	t.Helper()
	cl, err := kgo.NewClient(kgo.SeedBrokers(c.Seeds()...))
	require.NoError(t, err)
	defer cl.Close()
	_, err = kadm.NewClient(cl).CreateTopic(ctx, 1, 2, map[string]*string{"retention.ms": kadm.StringPtr("-1")}, topic)
	require.NoError(t, err)
	require.NoError(t, content.WaitLeader(ctx, c.Bootstrap(), topic, 0, func(p oracle.Partition) bool { return p.Addr != "" }))
}

// put writes a record at an address and checks the offset it gets.
func put(ctx context.Context, t *testing.T, bootstrap, topic string, want int64, value string) {
	t.Helper()
	wctx, cancel := context.WithTimeout(ctx, 60*time.Second)
	defer cancel()
	var err error
	for {
		var base int64
		if base, err = content.Produce(wctx, bootstrap, topic, 0, content.Batch(1_700_000_000_000+want, "k", value)); err == nil {
			require.Equal(t, want, base, "offset of %s", value)
			return
		}
		select {
		case <-wctx.Done():
			t.Fatalf("write %s at %s: %v", value, bootstrap, err)
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// log is a partition's records as "offset(epoch) value".
func log(ctx context.Context, t *testing.T, bootstrap, topic string) string {
	t.Helper()
	recs, err := oracle.Dump(ctx, bootstrap, topic, 0, oracle.ReadCommitted)
	require.NoError(t, err)
	out := make([]string, len(recs))
	for i, r := range recs {
		out[i] = fmt.Sprintf("%d(%d) %s", r.Offset, r.LeaderEpoch, r.Value)
	}
	return strings.Join(out, ", ")
}

// steady is for brokers that nobody kills: one that is slow for some seconds is not taken for dead, which would cost a
// leader epoch that exact numbers don't have.
var steady = map[string]string{"broker.session.timeout.ms": "30000", "replica.lag.time.max.ms": "30000"}

// sides are two clusters of two brokers with a Lockstep in front of each.
func sides(t *testing.T) (a, b *e2e.Side) {
	t.Helper()
	ca := testkafka.Start(t, testkafka.Options{Name: "a", Brokers: 2, Props: steady})
	cb := testkafka.Start(t, testkafka.Options{Name: "b", Brokers: 2, Props: steady})
	return e2e.NewSide(t, &binary, "a", ca), e2e.NewSide(t, &binary, "b", cb)
}

// end is the high watermark at an address.
func end(ctx context.Context, t *testing.T, bootstrap, topic string) int64 {
	t.Helper()
	o, err := oracle.ListOffset(ctx, bootstrap, topic, 0, oracle.ReadUncommitted, oracle.Latest)
	require.NoError(t, err)
	return o.Offset
}

func stop(ctx context.Context, t *testing.T, l *e2e.Lockstep, topic string) e2e.PartitionStatus {
	t.Helper()
	var got struct {
		Partitions []e2e.PartitionStatus `json:"partitions"`
	}
	l.Verb(ctx, &got, "stop", "--topic", topic, "--timeout", "60s")
	require.Len(t, got.Partitions, 1)
	require.Equal(t, "STOPPED", got.Partitions[0].State)
	return got.Partitions[0]
}

func start(ctx context.Context, t *testing.T, l *e2e.Lockstep, topic string) {
	t.Helper()
	l.Verb(ctx, nil, "start", "--topic", topic, "--timeout", "90s")
	l.WaitState(ctx, topic, 1, "MIRRORING")
}

// TestFailback is facts.md E2 and E3 with their exact numbers, on real clusters.
func TestFailback(t *testing.T) {
	ctx := withTimeout(t, 6*time.Minute)
	a, b := sides(t)
	replicated(ctx, t, a.Cluster, exampleTopic)
	a.Up()
	b.Mirrors("a", a.Bootstrap(), []string{exampleTopic}, "bump_step: 1", "replication_factor: 2")
	put(ctx, t, a.Bootstrap(), exampleTopic, 0, "a0")
	elect(ctx, t, a.Cluster, exampleTopic)
	put(ctx, t, a.Bootstrap(), exampleTopic, 1, "a1")
	b.Up()
	b.WaitState(ctx, exampleTopic, 1, "MIRRORING")
	b.Same(ctx, b.Bootstrap(), a.Bootstrap(), exampleTopic, 0)
	require.Equal(t, "0(0) a0, 1(1) a1", log(ctx, t, b.Bootstrap(), exampleTopic))

	// E2: failover to B, which writes 2(2) 3(3); A has 2(1), which was never mirrored.
	p := stop(ctx, t, b.Lockstep, exampleTopic)
	require.Equal(t, []int64{1, 2}, []int64{int64(p.LME), p.LMO})
	require.EqualValues(t, 2, p.Left.Offset)
	require.EqualValues(t, 1, p.Left.Epoch)
	require.EqualValues(t, 2, p.Left.SourceEnd)
	put(ctx, t, b.Bootstrap(), exampleTopic, 2, "b2")
	elect(ctx, t, b.Cluster, exampleTopic)
	put(ctx, t, b.Bootstrap(), exampleTopic, 3, "b3")
	require.Equal(t, "0(0) a0, 1(1) a1, 2(2) b2, 3(3) b3", log(ctx, t, b.Bootstrap(), exampleTopic))
	put(ctx, t, a.Cluster.Bootstrap(), exampleTopic, 2, "lost2")
	a.Mirrors("b", b.Bootstrap(), []string{exampleTopic}, "bump_step: 1", "replication_factor: 2")
	a.Stop()
	a.Launch()
	a.WaitState(ctx, exampleTopic, 1, "MIRRORING")
	a.Same(ctx, a.Bootstrap(), b.Bootstrap(), exampleTopic, 0)
	require.Equal(t, "0(0) a0, 1(1) a1, 2(2) b2, 3(3) b3", log(ctx, t, a.Bootstrap(), exampleTopic))
	require.NotContains(t, a.Log(), "ULE_RECOVERY")
	require.Equal(t, []string{"2(1) lost2"}, exported(ctx, t, a.Lockstep))

	// E3: failover to A, which writes 4(4); B wrote 4(3) that A never saw.
	p = stop(ctx, t, a.Lockstep, exampleTopic)
	require.Equal(t, []int64{3, 4}, []int64{int64(p.LME), p.LMO})
	put(ctx, t, a.Bootstrap(), exampleTopic, 4, "a4")
	put(ctx, t, b.Bootstrap(), exampleTopic, 4, "lost4")
	require.Equal(t, "0(0) a0, 1(1) a1, 2(2) b2, 3(3) b3, 4(4) a4", log(ctx, t, a.Bootstrap(), exampleTopic))
	start(ctx, t, b.Lockstep, exampleTopic)
	b.Same(ctx, b.Bootstrap(), a.Bootstrap(), exampleTopic, 0)
	require.Equal(t, "0(0) a0, 1(1) a1, 2(2) b2, 3(3) b3, 4(4) a4", log(ctx, t, b.Bootstrap(), exampleTopic))
	require.NotContains(t, b.Log(), "ULE_RECOVERY")
	require.Equal(t, []string{"4(3) lost4"}, exported(ctx, t, b.Lockstep))
}

// TestFailbackLMO is facts.md E4: the last mirrored epoch alone would not be enough.
func TestFailbackLMO(t *testing.T) {
	ctx := withTimeout(t, 5*time.Minute)
	a, b := sides(t)
	replicated(ctx, t, a.Cluster, exampleTopic)
	a.Up()
	b.Mirrors("a", a.Bootstrap(), []string{exampleTopic}, "bump_step: 10", "replication_factor: 2")
	put(ctx, t, a.Bootstrap(), exampleTopic, 0, "a0")
	put(ctx, t, a.Bootstrap(), exampleTopic, 1, "a1")
	b.Up()
	b.WaitState(ctx, exampleTopic, 1, "MIRRORING")
	b.Same(ctx, b.Bootstrap(), a.Bootstrap(), exampleTopic, 0)
	p := stop(ctx, t, b.Lockstep, exampleTopic)
	require.Equal(t, []int64{0, 2}, []int64{int64(p.LME), p.LMO})
	put(ctx, t, a.Cluster.Bootstrap(), exampleTopic, 2, "lost2")
	put(ctx, t, b.Bootstrap(), exampleTopic, 2, "b2")
	require.Regexp(t, `^0\(0\) a0, 1\(0\) a1, 2\(\d+\) b2$`, log(ctx, t, b.Bootstrap(), exampleTopic))
	a.Mirrors("b", b.Bootstrap(), []string{exampleTopic}, "bump_step: 10", "replication_factor: 2")
	a.Stop()
	a.Launch()
	a.WaitState(ctx, exampleTopic, 1, "MIRRORING")
	a.Same(ctx, a.Bootstrap(), b.Bootstrap(), exampleTopic, 0)
	require.NotContains(t, a.Log(), "ULE_RECOVERY", "phase one cut it, not the fetch")
	require.Equal(t, []string{"2(0) lost2"}, exported(ctx, t, a.Lockstep))
}

// exported is what `lockstep diverged export` gives for the example topic, as "offset(epoch) value".
func exported(ctx context.Context, t *testing.T, l *e2e.Lockstep) []string {
	t.Helper()
	text, code := l.CLI(ctx, "diverged", "export", "--topic", exampleTopic)
	require.Zero(t, code)
	var out []string
	for line := range strings.Lines(text) {
		var r struct {
			Offset    int64  `json:"offset"`
			Epoch     int32  `json:"epoch"`
			Timestamp int64  `json:"timestamp"`
			Value     []byte `json:"value"`
		}
		require.NoError(t, json.Unmarshal([]byte(line), &r))
		require.Equal(t, 1_700_000_000_000+r.Offset, r.Timestamp)
		out = append(out, fmt.Sprintf("%d(%d) %s", r.Offset, r.Epoch, r.Value))
	}
	return out
}
