//go:build long

package e2e_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/lockstep-kafka/lockstep/internal/e2e"
	"github.com/lockstep-kafka/lockstep/internal/testkafka/clients"
	"github.com/lockstep-kafka/lockstep/internal/testkafka/oracle"
)

const (
	lifeTopic      = "life"
	lifePartitions = 2
)

// writers write through a proxy until stopped: an idempotent producer and a transactional one that aborts now and
// then. What they were told is there is remembered.
type writers struct {
	cancel context.CancelFunc
	wg     sync.WaitGroup
	mu     sync.Mutex
	acked  map[string]string // "partition/offset" -> value, of the idempotent one
	err    error
}

func write(ctx context.Context, t *testing.T, bootstrap, name string) *writers {
	t.Helper()
	wctx, cancel := context.WithCancel(ctx)
	w := &writers{cancel: cancel, acked: map[string]string{}}
	common := []kgo.Opt{
		kgo.SeedBrokers(bootstrap), kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.ProducerLinger(5 * time.Millisecond),
		kgo.MetadataMinAge(100 * time.Millisecond), kgo.RecordDeliveryTimeout(60 * time.Second),
	}
	plain, err := kgo.NewClient(common...)
	require.NoError(t, err)
	txn, err := kgo.NewClient(append(common, kgo.TransactionalID("life-"+name), kgo.TransactionTimeout(30*time.Second))...)
	require.NoError(t, err)
	w.wg.Go(func() { w.fail(w.plain(wctx, plain, name)); plain.Close() })
	w.wg.Go(func() { w.fail(w.transactions(wctx, txn, name)); txn.Close() })
	t.Cleanup(func() { cancel(); w.wg.Wait() })
	return w
}

func (w *writers) fail(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.err = errors.Join(w.err, err)
}

func (w *writers) plain(ctx context.Context, cl *kgo.Client, name string) error {
	for i := 0; ctx.Err() == nil; i++ {
		var rs []*kgo.Record
		for p := range int32(lifePartitions) {
			rs = append(rs, &kgo.Record{Topic: lifeTopic, Partition: p, Key: []byte("plain"), Value: fmt.Appendf(nil, "%s %d", name, i)})
		}
		for _, r := range cl.ProduceSync(context.WithoutCancel(ctx), rs...) {
			if r.Err != nil {
				return fmt.Errorf("%s: record %d: %w", name, i, r.Err)
			}
			w.mu.Lock()
			w.acked[fmt.Sprintf("%d/%d", r.Record.Partition, r.Record.Offset)] = string(r.Record.Value)
			w.mu.Unlock()
		}
		wait(ctx, 10*time.Millisecond)
	}
	return nil
}

func (w *writers) transactions(ctx context.Context, cl *kgo.Client, name string) error {
	for i := 0; ctx.Err() == nil; i++ {
		if err := cl.BeginTransaction(); err != nil {
			return err
		}
		how := kgo.TryCommit
		if i%3 == 0 {
			how = kgo.TryAbort
		}
		live := context.WithoutCancel(ctx)
		for p := range int32(lifePartitions) {
			r := &kgo.Record{Topic: lifeTopic, Partition: p, Key: []byte("txn"), Value: fmt.Appendf(nil, "%s txn %d commit=%v", name, i, how)}
			if err := cl.ProduceSync(live, r).FirstErr(); err != nil {
				return fmt.Errorf("%s: transaction %d: %w", name, i, err)
			}
		}
		if err := cl.EndTransaction(live, how); err != nil {
			return fmt.Errorf("%s: end of transaction %d: %w", name, i, err)
		}
		wait(ctx, 50*time.Millisecond)
	}
	return nil
}

func (w *writers) stop(t *testing.T) map[string]string {
	t.Helper()
	w.cancel()
	w.wg.Wait()
	require.NoError(t, w.err)
	return w.acked
}

// group is a Java consumer group that reads through proxies, one after the other, and commits.
type group struct {
	t    *testing.T
	seen map[string]string // "partition/offset" -> value
	next map[int32]int64
}

// read goes on from the group's commits for some seconds; every offset is read once, and in order.
func (g *group) read(ctx context.Context, bootstrap string) {
	g.t.Helper()
	res, err := clients.JavaRead(ctx, clients.Read{
		Bootstrap: bootstrap, Topic: lifeTopic, Partitions: lifePartitions, Isolation: oracle.ReadCommitted,
		From: "group", Group: "life-group", Subscribe: true, Commit: true, Reset: "earliest", Timeout: 60 * time.Second,
	})
	require.NoError(g.t, err)
	for p := range int32(lifePartitions) {
		for _, r := range res.Of(p) {
			require.GreaterOrEqual(g.t, r.Offset, g.next[p], "partition %d: an offset twice", p)
			g.next[p] = r.Offset + 1
			g.seen[fmt.Sprintf("%d/%d", p, r.Offset)] = string(r.Value)
		}
	}
}

// move copies the group's commits, leader epochs included, as they are: offsets mean the same on both sides.
func (g *group) move(ctx context.Context, from, to string) {
	g.t.Helper()
	var adm []*kadm.Client
	for _, addr := range []string{from, to} {
		cl, err := kgo.NewClient(kgo.SeedBrokers(addr), kgo.MetadataMinAge(100*time.Millisecond))
		require.NoError(g.t, err)
		defer cl.Close()
		adm = append(adm, kadm.NewClient(cl))
	}
	have, err := adm[0].FetchOffsets(ctx, "life-group")
	require.NoError(g.t, err)
	require.NoError(g.t, have.Error())
	require.Len(g.t, have.Offsets()[lifeTopic], lifePartitions)
	require.Eventually(g.t, func() bool { // the coordinator's topic may have to be made
		done, err := adm[1].CommitOffsets(ctx, "life-group", have.Offsets())
		return err == nil && done.Error() == nil
	}, 30*time.Second, 200*time.Millisecond)
}

func shownEpochs(ctx context.Context, t *testing.T, bootstrap string) []int32 {
	t.Helper()
	var out []int32
	for p := range int32(lifePartitions) {
		q, err := oracle.Lookup(ctx, bootstrap, lifeTopic, p)
		require.NoError(t, err)
		out = append(out, q.Epoch)
	}
	return out
}

// TestFailbackUnderTraffic: two full rounds A→B→A with producers and a consumer group that go on, and records that
// the other side never saw.
func TestFailbackUnderTraffic(t *testing.T) {
	ctx := withTimeout(t, 15*time.Minute)
	a, b := sides(t)
	cl, err := kgo.NewClient(kgo.SeedBrokers(a.Cluster.Seeds()...))
	require.NoError(t, err)
	_, err = kadm.NewClient(cl).CreateTopic(ctx, lifePartitions, 2, nil, lifeTopic)
	require.NoError(t, err)
	cl.Close()
	a.Up()
	b.Mirrors("a", a.Bootstrap(), []string{lifeTopic}, "replication_factor: 2")
	b.Up()
	g := &group{t: t, seen: map[string]string{}, next: map[int32]int64{}}
	active, standby := a, b
	w := write(ctx, t, active.Bootstrap(), "0")
	standby.WaitState(ctx, lifeTopic, lifePartitions, "MIRRORING")
	for round := 1; round <= 4; round++ {
		t.Logf("round %d: %s is active", round, active.Bootstrap())
		wait(ctx, 3*time.Second)
		g.read(ctx, standby.Bootstrap())
		before := shownEpochs(ctx, t, standby.Bootstrap())

		// Failover, with writers at work on the old side.
		var stopped struct {
			Partitions []e2e.PartitionStatus `json:"partitions"`
		}
		standby.Verb(ctx, &stopped, "stop", "--topic", lifeTopic, "--timeout", "90s")
		lmo := map[int32]int64{}
		for _, p := range stopped.Partitions {
			lmo[p.Partition] = p.Left.Offset
		}
		wait(ctx, 500*time.Millisecond)
		acked := w.stop(t)
		after := shownEpochs(ctx, t, standby.Bootstrap())
		for p := range before {
			require.Greater(t, after[p], before[p], "epochs grow at every stop")
		}
		w = write(ctx, t, standby.Bootstrap(), fmt.Sprint(round))
		wait(ctx, 2*time.Second)
		g.read(ctx, standby.Bootstrap())

		// Failback: the old side mirrors the new one, and loses exactly what was not shared.
		if round == 1 {
			active.Mirrors("b", standby.Bootstrap(), []string{lifeTopic}, "replication_factor: 2")
			active.Stop()
			active.Launch()
		} else {
			active.Verb(ctx, nil, "start", "--topic", lifeTopic, "--timeout", "120s")
		}
		active.WaitState(ctx, lifeTopic, lifePartitions, "MIRRORING")
		require.NotContains(t, active.Log(), "to=ULE_RECOVERY")
		quiet := w.stop(t)
		for p := range int32(lifePartitions) {
			recs := active.Same(ctx, active.Bootstrap(), standby.Bootstrap(), lifeTopic, p)
			for _, r := range recs {
				at := fmt.Sprintf("%d/%d", p, r.Offset)
				if v, ok := quiet[at]; ok {
					require.Equal(t, v, string(r.Value))
					delete(quiet, at)
				}
				if v, ok := acked[at]; ok && r.Offset < lmo[p] {
					require.Equal(t, v, string(r.Value))
				}
				if v, ok := g.seen[at]; ok {
					require.Equal(t, v, string(r.Value), "what the group read at %s", at)
				}
			}
		}
		require.Empty(t, quiet, "acknowledged after the failover")
		lost := 0
		for at := range acked {
			var p int32
			var off int64
			_, err := fmt.Sscanf(at, "%d/%d", &p, &off)
			require.NoError(t, err)
			if off >= lmo[p] {
				lost++
			}
		}
		text, code := active.CLI(ctx, "diverged", "list", "--topic", lifeTopic, "--json")
		require.Zero(t, code)
		t.Logf("round %d: %d acknowledged records were not shared\n%s", round, lost, text)
		if lost > 0 {
			require.Contains(t, text, `"first_offset"`)
		}
		g.move(ctx, standby.Bootstrap(), active.Bootstrap())
		w = write(ctx, t, standby.Bootstrap(), fmt.Sprintf("%d again", round))
		active, standby = standby, active
	}
	w.stop(t)
}
