//go:build long

package e2e_test

import (
	"context"
	be "encoding/binary"
	"fmt"
	"hash/crc32"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/lockstep-kafka/lockstep/internal/e2e"
	"github.com/lockstep-kafka/lockstep/internal/testkafka/content"
	"github.com/lockstep-kafka/lockstep/internal/testkafka/oracle"
	"github.com/lockstep-kafka/lockstep/internal/verify"
)

// Transactions on the source, and over a failover. One pair of clusters for all:
//   - TX-03: an open and a hanging transaction hold only their own partition, and describe and status name them;
//   - committed, aborted and interleaved data reads the same at both isolation levels;
//   - TX-01: producer ids that the destination hands out are those that the source had: nothing is taken for a duplicate;
//   - M24: a client that brings its producer id along is not safe, as docs/limits.md says;
//   - TX-11: a transactional producer goes on through the proxy after the failover, exactly once, though its own
//     transaction was open on the source; nobody is blocked by that.
func TestTransactionsOverFailover(t *testing.T) {
	src, dst := kafka.Source(t), destination(t, 1)
	ctx := withTimeout(t, 3*time.Minute)
	const held, mixed, moved, ids = "txn-held", "txn-mixed", "txn-moved", "txn-ids"
	for topic, partitions := range map[string]int32{held: 3, moved: 1, ids: 1} {
		require.NoError(t, content.CreateTopic(ctx, src.Bootstrap(), topic, partitions, nil))
	}
	k, err := content.Get("transactions")
	require.NoError(t, err)
	require.NoError(t, k.Fill(ctx, src, mixed))
	writeIdempotent(ctx, t, src.Bootstrap(), ids, "s", 20)

	l := e2e.Start(t, &binary, e2e.Setup{Source: src, Destination: dst, Include: []string{"txn-.*"}})
	l.WaitCaughtUp(ctx, mixed, 1)
	l.CompareRaw(ctx, mixed, 0)

	// TX-03
	write := manual(t, src.Bootstrap())
	for p := range int32(3) {
		require.NoError(t, write.ProduceSync(ctx, &kgo.Record{Topic: held, Partition: p, Value: []byte("before")}).FirstErr())
	}
	open := manual(t, src.Bootstrap(), kgo.TransactionalID("open"))
	require.NoError(t, open.BeginTransaction())
	require.NoError(t, open.ProduceSync(ctx, &kgo.Record{Topic: held, Partition: 0, Value: []byte("open")}).FirstErr())
	openID, _, err := open.ProducerID(ctx)
	require.NoError(t, err)
	hangID, hangAt, endHanging, err := content.HangTransaction(ctx, src.Bootstrap(), held, 1, "hanging")
	require.NoError(t, err)
	for p := range int32(3) {
		require.NoError(t, write.ProduceSync(ctx, &kgo.Record{Topic: held, Partition: p, Value: []byte("behind")}).FirstErr())
	}
	waitEnd(ctx, t, l, held, 2, 2) // goes on
	h := waitHeld(ctx, t, l, held, 0)
	require.EqualValues(t, 1, h.Offset)
	require.EqualValues(t, 3, h.HighWatermark)
	require.Len(t, h.Transactions, 1)
	require.Equal(t, [2]int64{openID, 1}, [2]int64{h.Transactions[0].ProducerID, h.Transactions[0].FirstOffset})
	require.Equal(t, "open", h.Transactions[0].TransactionalID)
	require.False(t, h.Transactions[0].Hanging)
	require.WithinDuration(t, time.Now(), h.Transactions[0].Started, time.Minute)
	h = waitHeld(ctx, t, l, held, 1)
	require.Len(t, h.Transactions, 1)
	require.Equal(t, [2]int64{hangID, hangAt}, [2]int64{h.Transactions[0].ProducerID, h.Transactions[0].FirstOffset})
	require.True(t, h.Transactions[0].Hanging)
	out, code := l.CLI(ctx, "status", "--json")
	require.Zero(t, code)
	require.Contains(t, out, fmt.Sprintf(`"producer_id": %d`, hangID))
	out, code = l.CLI(ctx, "describe", "--topic", held)
	require.Zero(t, code)
	require.Contains(t, out, "hanging")
	waitEnd(ctx, t, l, held, 0, 1) // and still held
	require.NoError(t, open.EndTransaction(ctx, kgo.TryCommit))
	require.NoError(t, endHanging(ctx))
	waitEnd(ctx, t, l, held, 0, 3)
	waitEnd(ctx, t, l, held, 1, 3)
	for p := range int32(3) {
		l.CompareRaw(ctx, held, p)
	}

	// TX-11: what was committed before the failover is here; what was open on the source is not, and is written again.
	app := manual(t, src.Bootstrap(), kgo.TransactionalID("app"))
	commit(ctx, t, app, moved, "a1", "a2")
	require.NoError(t, app.BeginTransaction())
	require.NoError(t, app.ProduceSync(ctx, &kgo.Record{Topic: moved, Value: []byte("a3, open")}).FirstErr())
	waitEnd(ctx, t, l, moved, 0, 2)
	require.Equal(t, verify.Equal, l.Verify(ctx, held, mixed, ids).Outcome)

	early := manual(t, l.Bootstrap(), kgo.TransactionalID("early"))
	require.NoError(t, early.BeginTransaction())
	err = early.ProduceSync(ctx, &kgo.Record{Topic: moved, Value: []byte("too early")}).FirstErr()
	require.ErrorIs(t, err, kerr.PolicyViolation)
	require.NoError(t, early.EndTransaction(ctx, kgo.TryAbort))

	l.Verb(ctx, nil, "stop", "--all")
	waitEnd(ctx, t, l, moved, 0, 3)                               // behind the marker of the commit; nobody is blocked: LSO and end are the same
	again := manual(t, l.Bootstrap(), kgo.TransactionalID("app")) // the application, restarted here
	commit(ctx, t, again, moved, "a3", "a4")
	commit(ctx, t, early, moved, "e1") // and the one that was refused
	require.NoError(t, content.WaitDecided(ctx, l.Bootstrap(), moved, 0))
	want := []string{"a1", "a2", "a3", "a4", "e1"}
	require.Equal(t, want, values(ctx, t, l.Bootstrap(), moved, oracle.ReadCommitted))
	require.NoError(t, again.BeginTransaction())
	require.NoError(t, again.ProduceSync(ctx, &kgo.Record{Topic: moved, Value: []byte("aborted")}).FirstErr())
	require.NoError(t, again.EndTransaction(ctx, kgo.TryAbort))
	require.NoError(t, content.WaitDecided(ctx, l.Bootstrap(), moved, 0))
	require.Equal(t, want, values(ctx, t, l.Bootstrap(), moved, oracle.ReadCommitted))

	// TX-01
	acked := writeIdempotent(ctx, t, l.Bootstrap(), ids, "d", 20)
	got := values(ctx, t, l.Bootstrap(), ids, oracle.ReadUncommitted)
	for i := range 20 {
		require.Contains(t, got, fmt.Sprintf("s%d", i))
		require.Contains(t, acked, fmt.Sprintf("d%d", i))
	}
	for v, at := range acked {
		require.Equal(t, v, got[at], "offset %d", at)
	}
	require.Len(t, got, 40)
	require.NoError(t, app.EndTransaction(ctx, kgo.TryAbort))

	// M24: a live client that moves here with the producer id that the source gave it, as by DNS, meets another one's. With
	// a sequence that one has used its record is taken for that one's, and is not written; else it is refused. A restarted
	// client has an id of this cluster, as above.
	other := manual(t, l.Bootstrap())
	r := &kgo.Record{Topic: ids, Value: []byte("other")}
	require.NoError(t, other.ProduceSync(ctx, r).FirstErr())
	id, _, err := other.ProducerID(ctx)
	require.NoError(t, err)
	moved24 := func(sequence int32) (int64, error) {
		b := content.Batch(time.Now().UnixMilli(), "k", "moved")
		be.BigEndian.PutUint64(b[43:], uint64(id))
		be.BigEndian.PutUint16(b[51:], uint16(r.ProducerEpoch))
		be.BigEndian.PutUint32(b[53:], uint32(sequence))
		be.BigEndian.PutUint32(b[17:], crc32.Checksum(b[21:], crc32.MakeTable(crc32.Castagnoli)))
		return content.Produce(ctx, l.Bootstrap(), ids, 0, b)
	}
	at, err := moved24(0)
	require.NoError(t, err)
	require.Equal(t, r.Offset, at)
	_, err = moved24(40)
	require.ErrorIs(t, err, kerr.OutOfOrderSequenceNumber)
	got = values(ctx, t, l.Bootstrap(), ids, oracle.ReadUncommitted)
	require.Equal(t, "other", got[len(got)-1])
	require.NotContains(t, got, "moved", "docs/limits.md")
}

// commit writes values in one transaction. One may still be ending.
func commit(ctx context.Context, t *testing.T, cl *kgo.Client, topic string, values ...string) {
	t.Helper()
	require.NoError(t, cl.BeginTransaction())
	for _, v := range values {
		require.NoError(t, cl.ProduceSync(ctx, &kgo.Record{Topic: topic, Value: []byte(v)}).FirstErr())
	}
	require.NoError(t, cl.EndTransaction(ctx, kgo.TryCommit))
}

// writeIdempotent writes a record by each of n new idempotent producers, and gives their offsets.
func writeIdempotent(ctx context.Context, t *testing.T, bootstrap, topic, prefix string, n int) map[string]int64 {
	t.Helper()
	acked := map[string]int64{}
	for i := range n {
		cl := manual(t, bootstrap)
		r := &kgo.Record{Topic: topic, Value: fmt.Appendf(nil, "%s%d", prefix, i)}
		require.NoError(t, cl.ProduceSync(ctx, r).FirstErr())
		acked[string(r.Value)] = r.Offset
		cl.Close()
	}
	return acked
}

// waitHeld waits until it is known who holds a partition back.
func waitHeld(ctx context.Context, t *testing.T, l *e2e.Lockstep, topic string, partition int32) *e2e.Held {
	t.Helper()
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	for {
		all := l.Describe(ctx, topic)
		if i := slices.IndexFunc(all, func(p e2e.PartitionStatus) bool { return p.Partition == partition }); i >= 0 {
			if h := all[i].Held; h != nil && len(h.Transactions) > 0 {
				return h
			}
		}
		select {
		case <-ctx.Done():
			t.Fatalf("nobody is said to hold %s-%d back: %+v\n%s", topic, partition, all, l.LogTail(30))
		case <-time.After(100 * time.Millisecond):
		}
	}
}
