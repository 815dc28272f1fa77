package e2e_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/internal/e2e"
	"github.com/lockstep-kafka/lockstep/internal/testkafka"
	"github.com/lockstep-kafka/lockstep/internal/testkafka/clients"
	"github.com/lockstep-kafka/lockstep/internal/testkafka/content"
	"github.com/lockstep-kafka/lockstep/internal/testkafka/oracle"
)

const uleTopic = "ule"

// uleSource is a source of three brokers with a topic on brokers 1 and 2 that allows unclean elections.
func uleSource(ctx context.Context, t *testing.T) *testkafka.Cluster {
	t.Helper()
	c := testkafka.Start(t, testkafka.Options{Name: "source", Brokers: 3})
	uncleanTopic(ctx, t, c)
	return c
}

func uncleanTopic(ctx context.Context, t *testing.T, c *testkafka.Cluster) {
	t.Helper()
	cl, err := kgo.NewClient(kgo.SeedBrokers(c.Seeds()...))
	require.NoError(t, err)
	defer cl.Close()
	req := kmsg.NewPtrCreateTopicsRequest()
	top := kmsg.NewCreateTopicsRequestTopic()
	top.Topic, top.NumPartitions, top.ReplicationFactor = uleTopic, -1, -1
	as := kmsg.NewCreateTopicsRequestTopicReplicaAssignment()
	as.Partition, as.Replicas = 0, []int32{1, 2}
	top.ReplicaAssignment = append(top.ReplicaAssignment, as)
	for k, v := range map[string]string{"unclean.leader.election.enable": "true", "min.insync.replicas": "1", "retention.ms": "-1"} {
		cfg := kmsg.NewCreateTopicsRequestTopicConfig()
		cfg.Name, cfg.Value = k, kmsg.StringPtr(v)
		top.Configs = append(top.Configs, cfg)
	}
	req.Topics = append(req.Topics, top)
	until(ctx, t, "the topic", func() bool {
		resp, err := req.RequestWith(ctx, cl)
		require.NoError(t, err)
		err = kerr.ErrorForCode(resp.Topics[0].ErrorCode)
		if errors.Is(err, kerr.InvalidReplicaAssignment) { // to the controller a broker that stood still is down for a moment
			return false
		}
		require.NoError(t, err)
		return true
	})
	require.NoError(t, content.WaitLeader(ctx, c.Bootstrap(), uleTopic, 0, func(p oracle.Partition) bool { return p.Leader == 1 && len(p.ISR) == 2 }))
}

func putAll(ctx context.Context, t *testing.T, c *testkafka.Cluster, from int64, kind string, n int64) {
	t.Helper()
	for i := range n {
		put(ctx, t, c.Bootstrap(), uleTopic, from+i, fmt.Sprintf("%s%d", kind, from+i))
	}
}

// lose makes broker 2 the leader by an unclean election, without b5…b9, and writes c5…c7 there (the recipe of
// shared/kafka's ule-scenario). Call it in two steps: between them the mirror sees b5…b9.
func beforeLoss(ctx context.Context, t *testing.T, c *testkafka.Cluster) {
	t.Helper()
	require.NoError(t, c.Kill(2))
	put(ctx, t, c.Bootstrap(), uleTopic, 5, "b5")
	require.NoError(t, content.WaitLeader(ctx, c.Bootstrap(), uleTopic, 0, func(p oracle.Partition) bool { return p.Leader == 1 && len(p.ISR) == 1 }))
	putAll(ctx, t, c, 6, "b", 4)
}

func lose(ctx context.Context, t *testing.T, c *testkafka.Cluster) {
	t.Helper()
	unclean(ctx, t, c, 1, 2)
	putAll(ctx, t, c, 5, "c", 3)
	require.NoError(t, c.StartBroker(ctx, 1))
}

// unclean makes a broker that is down the leader, in place of the only one in sync, which dies.
func unclean(ctx context.Context, t *testing.T, c *testkafka.Cluster, leader, next int) {
	t.Helper()
	require.NoError(t, c.Kill(leader))
	wait(ctx, 3500*time.Millisecond) // the leader's session ends: then two leader epochs more, always
	require.NoError(t, c.StartBroker(ctx, next))
	require.NoError(t, content.WaitLeader(ctx, c.Bootstrap(), uleTopic, 0, func(p oracle.Partition) bool { return p.Leader == int32(next) }))
}

func wait(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// TestUncleanElection: with support on the destination cuts to the common prefix, passes through ULE_RECOVERY and
// equals the new source log; readers that stood beyond the cut are told, and go on.
func TestUncleanElection(t *testing.T) {
	ctx := withTimeout(t, 8*time.Minute)
	src, dst := uleSource(ctx, t), destination(t, 1)
	putAll(ctx, t, src, 0, "a", 5)
	l := e2e.Start(t, &binary, e2e.Setup{Source: src, Destination: dst, Include: []string{uleTopic}, Mirror: []string{"unclean_leader_election: true"}})
	beforeLoss(ctx, t, src)
	l.WaitCaughtUp(ctx, uleTopic, 1)
	old := l.CompareRaw(ctx, uleTopic, 0)
	require.Len(t, old, 10)

	// Readers that are at the end now, and stay.
	type followed struct {
		name string
		res  clients.Result
		err  error
	}
	var wg sync.WaitGroup
	got := make(chan followed, 3)
	atEnd := make(chan string, 3)
	for _, r := range clients.Readers() {
		wg.Go(func() {
			var once sync.Once
			here := func() { once.Do(func() { atEnd <- r.Name }) }
			defer here()
			each := func(rec oracle.Rec) bool {
				if string(rec.Value) == "b9" {
					here()
				}
				return string(rec.Value) == "c7" // the last one of all
			}
			res, err := r.Read(ctx, clients.Read{Bootstrap: l.Bootstrap(), Topic: uleTopic, Follow: true, Reset: "earliest", Timeout: 4 * time.Minute, Each: each})
			got <- followed{r.Name, res, err}
		})
	}
	for range 3 {
		select {
		case name := <-atEnd:
			t.Logf("%s is at the end", name)
		case <-ctx.Done():
			t.Fatal("the readers don't get to the end")
		}
	}
	lose(ctx, t, src)
	l.WaitCut(ctx, uleTopic, 1)
	now := l.CompareRaw(ctx, uleTopic, 0)
	require.Len(t, now, 8)
	require.Contains(t, l.Log(), "ULE_RECOVERY")
	l.WaitState(ctx, uleTopic, 1, "MIRRORING")

	// Positions beyond the cut, validated with their epochs: everybody is told.
	epoch := old[9].LeaderEpoch
	for _, r := range clients.Readers() {
		res, err := r.Read(ctx, clients.Read{Bootstrap: l.Bootstrap(), Topic: uleTopic, From: "offset:10", Epoch: &epoch, Reset: "none", Timeout: time.Minute, Expect: 3})
		require.NoError(t, err, r.Name)
		_, told := res.Find("truncation", 0)
		_, outOfRange := res.Find("out-of-range", 0)
		require.True(t, told || outOfRange, "%s at offset 10 of a log that was cut to 5 and ends at 8: %+v", r.Name, res)
	}
	wg.Wait()
	close(got)
	for f := range got {
		require.NoError(t, f.err, f.name)
		last := map[int64]oracle.Rec{}
		for _, rec := range f.res.Recs {
			last[rec.Offset] = rec
		}
		require.GreaterOrEqual(t, len(f.res.Recs), 13, "%s read %d records before and after the cut", f.name, len(f.res.Recs))
		for _, want := range now {
			require.Equal(t, string(want.Value), string(last[want.Offset].Value), "%s at offset %d, last seen", f.name, want.Offset)
		}
	}
	text, code := l.CLI(ctx, "diverged", "list", "--topic", uleTopic, "--json")
	require.Zero(t, code)
	require.Contains(t, text, `"first_offset": 5`)
	require.Contains(t, text, `"last_offset": 9`)
	require.Contains(t, text, `"records": 5`)
}

// TestUncleanElectionOff: without support the partition is FAILED for good, the text names the setting, what was
// mirrored stays readable; the switch is thrown while running, by a verb, and recover goes on.
func TestUncleanElectionOff(t *testing.T) {
	ctx := withTimeout(t, 6*time.Minute)
	src, dst := uleSource(ctx, t), destination(t, 1)
	putAll(ctx, t, src, 0, "a", 5)
	l := e2e.Start(t, &binary, e2e.Setup{Source: src, Destination: dst, Include: []string{uleTopic}})
	beforeLoss(ctx, t, src)
	l.WaitCaughtUp(ctx, uleTopic, 1)
	old := l.CompareRaw(ctx, uleTopic, 0)
	lose(ctx, t, src)
	p := l.WaitState(ctx, uleTopic, 1, "FAILED")[0]
	require.Contains(t, p.Error, "unclean.leader.election.enable=true")
	wait(ctx, 3*time.Second)
	l.WaitState(ctx, uleTopic, 1, "FAILED")
	require.NotContains(t, l.Log(), "ULE_RECOVERY", "not tried again by itself")
	have, err := oracle.Dump(ctx, l.Bootstrap(), uleTopic, 0, oracle.ReadCommitted)
	require.NoError(t, err)
	require.Empty(t, oracle.Diff(old, have), "what is mirrored stays readable")
	l.Restart()
	l.WaitState(ctx, uleTopic, 1, "FAILED")

	l.Verb(ctx, nil, "set", "--mirror", "dc1", "--topic", uleTopic, "--unclean-leader-election", "true")
	l.Verb(ctx, nil, "recover", "--topic", uleTopic)
	l.WaitCut(ctx, uleTopic, 1)
	require.Len(t, l.CompareRaw(ctx, uleTopic, 0), 8)
	l.WaitState(ctx, uleTopic, 1, "MIRRORING")
}
