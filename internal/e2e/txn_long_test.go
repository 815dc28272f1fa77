//go:build long

package e2e_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/lockstep-kafka/lockstep/internal/e2e"
	"github.com/lockstep-kafka/lockstep/internal/testkafka/content"
	"github.com/lockstep-kafka/lockstep/internal/testkafka/oracle"
	"github.com/lockstep-kafka/lockstep/internal/verify"
)

// TX-05: a transaction of 100,000 records comes at once when it is committed, behind one that was aborted; the
// position of a group that committed inside of it, and at its end, is carried over exactly.
func TestLargeTransaction(t *testing.T) {
	src, dst := kafka.Source(t), destination(t, 1)
	ctx := withTimeout(t, 5*time.Minute)
	const topic, n = "txn-large", 100_000
	require.NoError(t, content.CreateTopic(ctx, src.Bootstrap(), topic, 1, nil))
	l := e2e.Start(t, &binary, e2e.Setup{
		Source: src, Destination: dst, Include: []string{topic}, Mirror: []string{"groups:", "  interval: 1s"},
	})
	cl := manual(t, src.Bootstrap(), kgo.TransactionalID("large"), kgo.MaxBufferedRecords(n))
	for i, end := range []kgo.TransactionEndTry{kgo.TryAbort, kgo.TryCommit} {
		require.NoError(t, cl.BeginTransaction())
		rs := make([]*kgo.Record, n)
		for j := range rs {
			rs[j] = &kgo.Record{Topic: topic, Value: fmt.Appendf(nil, "transaction %d record %d", i, j)}
		}
		require.NoError(t, cl.ProduceSync(ctx, rs...).FirstErr())
		require.NoError(t, cl.EndTransaction(ctx, end))
	}
	require.NoError(t, content.WaitDecided(ctx, src.Bootstrap(), topic, 0))
	first := int64(n + 1) // behind the aborted ones and their marker
	waitEnd(ctx, t, l, topic, 0, first+n)
	epoch := lastEpoch(ctx, t, src.Bootstrap(), topic)
	for group, at := range map[string]int64{"middle": first + n/2, "end": first + n, "behind": first + n + 1} {
		commitOffset(ctx, t, src.Bootstrap(), group, topic, at, epoch)
		l.WaitGroup(ctx, topic, group, "synced", min(at, first+n))
	}
	r := l.Verify(ctx, topic)
	require.Equal(t, verify.Equal, r.Outcome)
	require.EqualValues(t, n, r.Records)
	for _, iso := range []oracle.Isolation{oracle.ReadCommitted, oracle.ReadUncommitted} {
		require.Len(t, values(ctx, t, l.Bootstrap(), topic, iso), n)
	}
}

func lastEpoch(ctx context.Context, t *testing.T, bootstrap, topic string) int32 {
	t.Helper()
	m, err := oracle.Lookup(ctx, bootstrap, topic, 0)
	require.NoError(t, err)
	return m.Epoch
}

// manual is a client that writes each call as one batch.
func manual(t *testing.T, bootstrap string, opts ...kgo.Opt) *kgo.Client {
	t.Helper()
	return groupClient(t, bootstrap, append(opts, kgo.RecordPartitioner(kgo.ManualPartitioner()))...)
}

func values(ctx context.Context, t *testing.T, bootstrap, topic string, iso oracle.Isolation) []string {
	t.Helper()
	recs, err := oracle.Dump(ctx, bootstrap, topic, 0, iso)
	require.NoError(t, err)
	var out []string
	for _, r := range recs {
		out = append(out, string(r.Value))
	}
	return out
}

// waitEnd waits until a partition ends at an offset for both kinds of readers.
func waitEnd(ctx context.Context, t *testing.T, l *e2e.Lockstep, topic string, partition int32, want int64) {
	t.Helper()
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	var got [2]int64
	for {
		var errs error
		for i, iso := range []oracle.Isolation{oracle.ReadUncommitted, oracle.ReadCommitted} {
			o, err := oracle.ListOffset(ctx, l.Bootstrap(), topic, partition, iso, oracle.Latest)
			got[i], errs = o.Offset, errors.Join(errs, err)
		}
		if errs == nil && got == [2]int64{want, want} {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("%s-%d ends at %v, want %d (%v)\n%s", topic, partition, got, want, errs, l.LogTail(30))
		case <-time.After(100 * time.Millisecond):
		}
	}
}
