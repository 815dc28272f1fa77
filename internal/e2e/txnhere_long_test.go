//go:build long

package e2e_test

import (
	"context"
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

// H9, TX-09: transactions that are open on the destination, one that its coordinator knows and a hanging one, hold up
// neither a stop (somebody wrote past Lockstep) nor a failover and a failback (they were written by clients here): each
// gets an abort marker where it is in the way, readers of both kinds get on, and the logs are exact afterwards.
// TX-07: where the source's log ends in a marker, readers get to the end that a stop leaves.
func TestH9TransactionsOnTheDestination(t *testing.T) {
	ctx := withTimeout(t, 6*time.Minute)
	a := e2e.NewSide(t, &binary, "a", testkafka.Start(t, testkafka.Options{Name: "a"}))
	b := e2e.NewSide(t, &binary, "b", testkafka.Start(t, testkafka.Options{Name: "b"}))
	const topic = "txn-here"
	require.NoError(t, content.CreateTopic(ctx, a.Cluster.Bootstrap(), topic, 1, nil))
	a.Up()
	b.Mirrors("a", a.Bootstrap(), []string{topic})
	commit(ctx, t, manual(t, a.Bootstrap(), kgo.TransactionalID("app-a")), topic, "a0", "a1")
	require.NoError(t, content.WaitDecided(ctx, a.Bootstrap(), topic, 0))
	b.Up()
	b.WaitState(ctx, topic, 1, "MIRRORING")
	waitEnd(ctx, t, b.Lockstep, topic, 0, 2)

	// Past Lockstep, into the mirrored span.
	direct := openTxn(ctx, t, b.Cluster.Bootstrap(), topic, "direct")
	_, _, _, err := content.HangTransaction(ctx, b.Cluster.Bootstrap(), topic, 0, "direct-hanging")
	require.NoError(t, err)
	require.Equal(t, 2, openTxns(ctx, t, b.Cluster, topic))
	commit(ctx, t, manual(t, a.Bootstrap(), kgo.TransactionalID("app-a")), topic, "a2") // offset 3, marker 4
	waitEnd(ctx, t, b.Lockstep, topic, 0, 4)
	want := []string{"a0", "a1", "a2"}
	require.Equal(t, want, values(ctx, t, b.Bootstrap(), topic, oracle.ReadCommitted))
	require.NoError(t, content.WaitDecided(ctx, a.Bootstrap(), topic, 0))
	b.WaitPosition(ctx, topic, 0, 5)
	markers := aborts(ctx, t, b.Cluster, topic)
	p := stop(ctx, t, b.Lockstep, topic)
	require.EqualValues(t, 5, p.LMO, "behind the marker")
	require.Zero(t, openTxns(ctx, t, b.Cluster, topic))
	require.Equal(t, markers+2, aborts(ctx, t, b.Cluster, topic))
	require.Error(t, direct.EndTransaction(ctx, kgo.TryCommit), "it was fenced")
	require.Equal(t, want, values(ctx, t, b.Bootstrap(), topic, oracle.ReadCommitted))

	// TX-07: each kind of client reads up to what it takes for the end: its position or the high watermark.
	recs, err := oracle.Dump(ctx, a.Cluster.Bootstrap(), topic, 0, oracle.ReadCommitted)
	require.NoError(t, err)
	for _, iso := range []oracle.Isolation{oracle.ReadUncommitted, oracle.ReadCommitted} {
		for _, r := range clients.Readers() {
			b.CompareClient(ctx, r, clients.Read{Topic: topic, Isolation: iso}, recs)
		}
	}

	// Clients here: one transaction committed, one open, one hanging, a record behind.
	commit(ctx, t, manual(t, b.Bootstrap(), kgo.TransactionalID("app-b")), topic, "b0")
	want = append(want, "b0")
	require.NoError(t, content.WaitDecided(ctx, b.Bootstrap(), topic, 0))
	stable := end(ctx, t, b.Bootstrap(), topic)
	native := openTxn(ctx, t, b.Bootstrap(), topic, "native")
	_, _, _, err = content.HangTransaction(ctx, b.Bootstrap(), topic, 0, "native-hanging")
	require.NoError(t, err)
	require.NoError(t, manual(t, b.Bootstrap()).ProduceSync(ctx, &kgo.Record{Topic: topic, Value: []byte("behind")}).FirstErr())
	require.Equal(t, want, values(ctx, t, b.Bootstrap(), topic, oracle.ReadCommitted))

	// A takes over what is decided, and is failed over to: nobody waits for those transactions.
	a.Mirrors("b", b.Bootstrap(), []string{topic})
	a.Stop()
	a.Launch()
	a.WaitState(ctx, topic, 1, "MIRRORING")
	a.WaitPosition(ctx, topic, 0, stable)
	require.Len(t, waitHeld(ctx, t, a.Lockstep, topic, 0).Transactions, 2)
	require.Equal(t, want, values(ctx, t, a.Bootstrap(), topic, oracle.ReadUncommitted))
	p = stop(ctx, t, a.Lockstep, topic)
	require.Equal(t, stable, p.LMO)
	commit(ctx, t, manual(t, a.Bootstrap(), kgo.TransactionalID("app-a")), topic, "a3")
	want = append(want, "a3")

	// Back: B cuts what A never had, and ends what was open in it.
	require.Equal(t, 2, openTxns(ctx, t, b.Cluster, topic))
	start(ctx, t, b.Lockstep, topic)
	require.Zero(t, openTxns(ctx, t, b.Cluster, topic))
	require.Error(t, native.EndTransaction(ctx, kgo.TryCommit), "it was fenced")
	require.NoError(t, manual(t, a.Bootstrap()).ProduceSync(ctx, &kgo.Record{Topic: topic, Value: []byte("a4")}).FirstErr())
	want = append(want, "a4")
	b.Same(ctx, b.Bootstrap(), a.Bootstrap(), topic, 0)
	require.Equal(t, want, values(ctx, t, b.Bootstrap(), topic, oracle.ReadCommitted))
	require.Equal(t, want, values(ctx, t, b.Bootstrap(), topic, oracle.ReadUncommitted))

	// Once more: readers of the native span behind the dead transactions get on.
	b.WaitPosition(ctx, topic, 0, end(ctx, t, a.Bootstrap(), topic))
	p = stop(ctx, t, b.Lockstep, topic)
	require.Equal(t, end(ctx, t, a.Bootstrap(), topic), p.LMO)
	commit(ctx, t, manual(t, b.Bootstrap(), kgo.TransactionalID("app-b")), topic, "b1")
	want = append(want, "b1")
	require.NoError(t, content.WaitDecided(ctx, b.Bootstrap(), topic, 0))
	require.Equal(t, want, values(ctx, t, b.Bootstrap(), topic, oracle.ReadCommitted))
}

// openTxn writes a record in a transaction that stays open.
func openTxn(ctx context.Context, t *testing.T, bootstrap, topic, id string) *kgo.Client {
	t.Helper()
	cl := manual(t, bootstrap, kgo.TransactionalID(id))
	require.NoError(t, cl.BeginTransaction())
	require.NoError(t, cl.ProduceSync(ctx, &kgo.Record{Topic: topic, Value: []byte(id)}).FirstErr())
	return cl
}

// openTxns are the transactions that a cluster's log holds open.
func openTxns(ctx context.Context, t *testing.T, c *testkafka.Cluster, topic string) (n int) {
	t.Helper()
	cl, err := kgo.NewClient(kgo.SeedBrokers(c.Seeds()...))
	require.NoError(t, err)
	defer cl.Close()
	set := kadm.TopicsSet{}
	set.Add(topic, 0)
	described, err := kadm.NewClient(cl).DescribeProducers(ctx, set)
	require.NoError(t, err)
	for _, d := range described {
		for _, p := range d.Partitions {
			require.NoError(t, p.Err)
			for _, x := range p.ActiveProducers {
				if x.CurrentTxnStartOffset >= 0 {
					n++
				}
			}
		}
	}
	return n
}

// aborts are the abort markers in a cluster's log.
func aborts(ctx context.Context, t *testing.T, c *testkafka.Cluster, topic string) (n int) {
	t.Helper()
	batches, err := oracle.Batches(ctx, c.Bootstrap(), topic, 0)
	require.NoError(t, err)
	for _, x := range batches {
		if x.Control() {
			abort, err := x.AbortMarker()
			require.NoError(t, err)
			if abort {
				n++
			}
		}
	}
	return n
}
