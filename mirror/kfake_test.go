package mirror

import (
	"context"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/lockstep-kafka/lockstep/epoch"
	"github.com/lockstep-kafka/lockstep/internal/kconn"
	"github.com/lockstep-kafka/lockstep/internal/ledger"
)

// TestKfakePlumbing runs an engine between two clusters of three brokers with
// real clients' batches: routing by leaders, topic ids, compression.
func TestKfakePlumbing(t *testing.T) {
	const parts = 6
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var clients []*kgo.Client
	var clusters []*kfake.Cluster
	for range 2 {
		c, err := kfake.NewCluster(kfake.NumBrokers(3), kfake.SeedTopics(parts, "t"))
		require.NoError(t, err)
		defer c.Close()
		cl, err := kgo.NewClient(kgo.SeedBrokers(c.ListenAddrs()...), kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.MetadataMinAge(10*time.Millisecond), kgo.DefaultProduceTopic("t"), kgo.ProducerBatchCompression(kgo.ZstdCompression()))
		require.NoError(t, err)
		defer cl.Close()
		clusters, clients = append(clusters, c), append(clients, cl)
	}
	store := &fakeStore{parts: map[partKey]*ledger.Partition{}}
	eng := NewEngine(EngineOptions{
		Mirror: "m", Source: (&kconn.Dialer{}).Init(), Dest: (&kconn.Dialer{}).Init(), Store: store,
		Memory: NewMemory(1 << 20), Metrics: NewMetrics(nil), Logger: slog.New(slog.DiscardHandler),
		Tuning: Tuning{Lanes: 2, KeepBatches: true},
	})
	done := make(chan error, 1)
	go func() { done <- eng.Run(ctx) }()
	meta := func() {
		s, err := cluster(ctx, clients[0], []string{"t"})
		require.NoError(t, err)
		d, err := cluster(ctx, clients[1], []string{"t"})
		require.NoError(t, err)
		eng.SetSource(s)
		eng.SetDest(d)
	}
	meta()
	for p := range int32(parts) {
		rec := &ledger.Record{Mirror: "m", Topic: "t", Partition: p, State: epoch.StateLogAlignment, StateEpoch: 1, Lineage: "l"}
		store.parts[partKey{"t", p}] = &ledger.Partition{Topic: "t", Partition: p, Live: &ledger.Live{}, Record: rec, Log: &rec.Log}
	}
	for p := range int32(parts) {
		eng.Add(Spec{Topic: "t", Partition: p})
	}
	n := int64(0)
	for round := range 3 {
		for i := range 50 {
			for p := range int32(parts) {
				require.NoError(t, clients[0].ProduceSync(ctx, &kgo.Record{Partition: p, Key: []byte("k"), Value: fmt.Appendf(nil, "%d-%d", round, i)}).FirstErr())
			}
		}
		n += 50
		for p := range int32(parts) {
			eventually(t, "caught up", func() bool {
				x := eng.Partition("t", p)
				s := x.Status()
				if s.Position != n {
					meta() // leaders moved; kadm caches for a moment
				}
				return s.Position == n && x.running() || s.Failed
			})
			require.Empty(t, eng.Partition("t", p).Status().Error)
			require.Equal(t, n, store.Partition("t", p).Live.Tail().VEnd)
		}
		// Leaders move on both sides.
		for p := range int32(parts) {
			require.NoError(t, clusters[round%2].MoveTopicPartition("t", p, (p+int32(round))%3))
		}
		meta()
	}
	cancel()
	require.NoError(t, <-done)
}

// cluster is metadata with an error for a topic that the cluster can't answer for
// now.
func cluster(ctx context.Context, cl *kgo.Client, topics []string) (*Cluster, error) {
	c, err := metadata(ctx, cl, topics)
	if err == nil {
		err = c.firstUnsure()
	}
	return c, err
}
