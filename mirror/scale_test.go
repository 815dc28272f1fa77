package mirror

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/lockstep-kafka/lockstep/epoch"
	"github.com/lockstep-kafka/lockstep/internal/kconn"
	"github.com/lockstep-kafka/lockstep/internal/ledger"
)

// looked is a source whose n partitions (100 in a topic) are in a ledger, all
// ours, and in an engine that doesn't run; nothing is connected.
func looked(tb testing.TB, n int) *source {
	tb.Helper()
	quiet := slog.New(slog.DiscardHandler)
	c, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(ledger.Partitions, ledger.Topic), kfake.WithLogger(kfake.BasicLogger(io.Discard, kfake.LogLevelNone)))
	require.NoError(tb, err)
	tb.Cleanup(c.Close)
	cl, err := kgo.NewClient(kgo.SeedBrokers(c.ListenAddrs()...), kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.MaxBufferedRecords(n+1))
	require.NoError(tb, err)
	defer cl.Close()
	s := &source{o: MirrorOptions{Name: "m"}, log: quiet, topics: map[string]*topicSync{}, wake: make(wakeChan, 1)}
	for i := range n {
		r := &ledger.Record{
			Mirror: "m", Topic: fmt.Sprintf("orders-%06d", i/100), Partition: int32(i % 100), State: epoch.StateMirroring, Desired: epoch.StateMirroring, StateEpoch: 1,
			TopicID: ledger.ID{byte(i / 100), byte(i / 100 >> 8), 1}, Lineage: "l", SourceCluster: "s",
		}
		value, err := r.Encode()
		require.NoError(tb, err)
		cl.Produce(context.Background(), &kgo.Record{Topic: ledger.Topic, Partition: ledger.PartitionOf(r.Topic, r.Partition), Key: []byte(r.Key()), Value: value}, nil)
		t := s.topics[r.Topic]
		if t == nil {
			t = &topicSync{source: kadm.TopicDetail{Topic: r.Topic, Partitions: kadm.PartitionDetails{}}, dest: &destTopic{}}
			s.topics[r.Topic] = t
		}
		t.source.Partitions[r.Partition] = kadm.PartitionDetail{}
	}
	require.NoError(tb, cl.Flush(context.Background()))
	v, err := ledger.ReadOnce(context.Background(), ledger.ViewOptions{Client: []kgo.Opt{kgo.SeedBrokers(c.ListenAddrs()...)}, Logger: quiet})
	require.NoError(tb, err)
	o := newOwned(v, nil)
	for n := range int32(ledger.Partitions) {
		o.parts[n] = true
	}
	s.m = &Manager{opts: Options{View: v}, log: quiet, owned: o}
	d := (&kconn.Dialer{}).Init()
	s.engine = NewEngine(EngineOptions{Mirror: "m", Source: d, Dest: d, Store: o, Memory: NewMemory(1 << 20), Metrics: NewMetrics(nil), Logger: quiet})
	s.m.keeper = NewEngine(EngineOptions{Source: d, Dest: d, Store: o, Memory: NewMemory(1 << 20), Metrics: NewMetrics(nil), Logger: quiet})
	s.m.sources = []*source{s}
	for _, e := range v.All() {
		p := newPartition(s.engine, Spec{Topic: e.Topic, Partition: e.Partition})
		p.begin()
		s.engine.parts[partKey{e.Topic, e.Partition}] = p
	}
	require.Len(tb, s.engine.parts, n)
	return s
}

// A look at everything, as every few seconds.
func BenchmarkLook(b *testing.B) {
	for _, n := range []int{500, 5_000, 50_000} {
		b.Run("partitions="+strconv.Itoa(n), func(b *testing.B) {
			s := looked(b, n)
			began := cpuTime()
			for b.Loop() {
				s.engine.Poke()
				s.m.keep(context.Background())
				require.False(b, s.stale())
			}
			b.ReportMetric(float64(cpuTime()-began)/float64(b.N)/float64(n), "cpu-ns/partition")
		})
	}
}

// What runs and what the ledger has of it are compared partition by partition.
func TestLooksFindWhatDoesNotFit(t *testing.T) {
	s := looked(t, 250)
	k := partKey{"orders-000001", 7}
	e := s.m.opts.View.Partition(k.topic, k.partition)
	mine := s.m.owned.mine()
	check := func(fits bool) {
		t.Helper()
		require.Equal(t, !fits, s.stale())
		require.Equal(t, !fits, s.misfit(k, e, s.engine.Partition(k.topic, k.partition), mine))
		want, ok := s.wanted()[k]
		p := s.engine.Partition(k.topic, k.partition)
		require.Equal(t, fits, ok == (p != nil) && (p == nil || want.fits(p)))
	}
	check(true)
	p := s.engine.parts[k]
	delete(s.engine.parts, k) // not started
	check(false)
	s.engine.parts[k] = p
	check(true)
	gone := s.topics[k.topic] // the source doesn't have it any more: it rests
	delete(s.topics, k.topic)
	require.Len(t, s.wanted(), 250)
	check(false)
	s.topics[k.topic] = gone
	s.bare = map[string]bool{k.topic: true}
	check(false)
	s.bare = nil
	s.m.owned.mu.Lock()
	delete(s.m.owned.parts, e.Home) // another instance's now
	s.m.owned.mu.Unlock()
	mine = s.m.owned.mine()
	check(false)
	delete(s.engine.parts, k)
	require.False(t, s.misfit(k, e, nil, mine))
}
