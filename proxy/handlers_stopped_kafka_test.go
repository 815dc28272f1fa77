package proxy

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/internal/testkafka"
	"github.com/lockstep-kafka/lockstep/internal/testkafka/clients"
	"github.com/lockstep-kafka/lockstep/internal/testkafka/oracle"
)

// Producers of all kinds write to a STOPPED partition, on real Kafka.
func TestStoppedOverKafka(t *testing.T) {
	testkafka.Require(t, "python3")
	c := testkafka.Start(t, testkafka.Options{})
	writeStoppedWithFranz(t, c.Seeds(), func(ctx context.Context, addr string, kept []int64, lmo int64) (more []int64) {
		for _, produce := range []func(context.Context, string, string, int32, int, ...string) ([]clients.Meta, error){clients.JavaProduce, clients.PythonProduce} {
			lines, err := produce(ctx, addr, "m", 0, 4)
			require.NoError(t, err)
			require.Len(t, lines, 4)
			for _, l := range lines {
				require.Empty(t, l.Error)
				more = append(more, l.Offset)
			}
		}
		want := append(slices.Clone(kept), more...)
		for _, r := range clients.Readers() {
			res, err := r.Read(ctx, clients.Read{
				Bootstrap: addr, Topic: "m", Isolation: oracle.ReadCommitted, From: fmt.Sprint("offset:", lmo), Expect: len(want),
			})
			require.NoError(t, err, r.Name)
			var got []int64
			for _, rec := range res.Of(0) {
				got = append(got, rec.Offset)
			}
			require.Equal(t, want, got, r.Name)
		}
		return more
	})
}

func TestStoppedOverKfake(t *testing.T) {
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1))
	require.NoError(t, err)
	t.Cleanup(cluster.Close)
	writeStoppedWithFranz(t, cluster.ListenAddrs(), nil)
}

// writeStoppedWithFranz: offsets that producers are told are those that readers
// see, right behind what was mirrored; transactions begin, commit, abort and
// carry consumed offsets; nothing that was cut comes back.
func writeStoppedWithFranz(t *testing.T, seeds []string, others func(ctx context.Context, addr string, kept []int64, lmo int64) []int64) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*testPatience)
	defer cancel()
	direct, err := kgo.NewClient(kgo.SeedBrokers(seeds...))
	require.NoError(t, err)
	adm := kadm.NewClient(direct)
	_, err = adm.CreateTopics(ctx, 1, 1, map[string]*string{"retention.ms": kadm.StringPtr("-1")}, "m", "other")
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		m, err := adm.Metadata(ctx, "m", "other")
		return err == nil && len(m.Topics["m"].Partitions) > 0 && m.Topics["m"].Partitions[0].Leader >= 0 && m.Topics["other"].Partitions[0].Leader >= 0
	}, 30*time.Second, 50*time.Millisecond)
	direct.Close()

	p, h := mirrorOver(t, seeds, func(h *history) {
		for i := range 10 {
			h.ts = time.Now().UnixMilli()
			h.append(1+i%4, int64(i%3))
			if i == 6 {
				h.src++
				h.cut(h.bases()[3])
				h.foreign(2)
			}
		}
		h.stop(1, 50)
	})
	lmo := h.log.Open().VStart
	shown := h.part.epoch + h.log.Bump

	client := func(opts ...kgo.Opt) *kgo.Client {
		cl, err := kgo.NewClient(append(opts, kgo.SeedBrokers(p.Addr().String()), kgo.FetchMaxWait(100*time.Millisecond),
			kgo.DefaultProduceTopic("m"), kgo.RecordPartitioner(kgo.ManualPartitioner()))...)
		require.NoError(t, err)
		return cl
	}
	type seen struct {
		offset int64
		value  string
	}
	var all, kept []seen
	wrote := func(keep bool, recs ...*kgo.Record) {
		for _, r := range recs {
			all = append(all, seen{r.Offset, string(r.Value)})
			if keep {
				kept = append(kept, seen{r.Offset, string(r.Value)})
			}
		}
	}
	value := func(s string, i int) *kgo.Record { return kgo.StringRecord(fmt.Sprint(s, i)) }

	// Idempotent, without idempotence, acks=1 and acks=0.
	for name, opts := range map[string][]kgo.Opt{
		"idempotent": nil,
		"plain":      {kgo.DisableIdempotentWrite()},
		"leader":     {kgo.DisableIdempotentWrite(), kgo.RequiredAcks(kgo.LeaderAck())},
	} {
		cl := client(opts...)
		for i := range 5 {
			res := cl.ProduceSync(ctx, value(name, i), value(name, 100+i))
			require.NoError(t, res.FirstErr(), name)
			for _, r := range res {
				wrote(true, r.Record)
			}
		}
		cl.Close()
	}
	require.Equal(t, lmo, all[0].offset, "the first local record is at LMO")
	for i := 1; i < len(all); i++ {
		require.Equal(t, all[i-1].offset+1, all[i].offset)
	}
	silent := client(kgo.DisableIdempotentWrite(), kgo.RequiredAcks(kgo.NoAck()))
	require.NoError(t, silent.ProduceSync(ctx, kgo.StringRecord("acks0")).FirstErr())
	next := all[len(all)-1].offset + 1
	all, kept = append(all, seen{next, "acks0"}), append(kept, seen{next, "acks0"})
	silent.Close()

	// Transactions: read from m, write to m, commit offsets with it; every second
	// one is aborted.
	eos, err := kgo.NewGroupTransactSession(
		kgo.SeedBrokers(p.Addr().String()), kgo.TransactionalID("eos"), kgo.ConsumerGroup("g"), kgo.ConsumeTopics("m"),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.ConsumeResetOffset(kgo.NewOffset().At(lmo)),
		kgo.FetchMaxWait(100*time.Millisecond), kgo.DefaultProduceTopic("m"), kgo.RecordPartitioner(kgo.ManualPartitioner()),
	)
	require.NoError(t, err)
	for i := range 4 {
		fs := eos.PollRecords(ctx, 3)
		require.NoError(t, fs.Err())
		require.NoError(t, eos.Begin())
		var recs []*kgo.Record
		for j := range 2 {
			res := eos.ProduceSync(ctx, value(fmt.Sprint("txn", i, "-"), j))
			require.NoError(t, res.FirstErr())
			recs = append(recs, res[0].Record)
		}
		commit := i%2 == 0
		ok, err := eos.End(ctx, kgo.TransactionEndTry(commit))
		require.NoError(t, err)
		wrote(commit && ok, recs...)
		if commit {
			require.True(t, ok)
		}
	}
	eos.Close()

	for _, level := range []struct {
		iso  kgo.IsolationLevel
		want []seen
	}{{kgo.ReadUncommitted(), all}, {kgo.ReadCommitted(), kept}} {
		cl := client(kgo.FetchIsolationLevel(level.iso), kgo.FetchMaxPartitionBytes(300), kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{
			"m": {0: kgo.NewOffset().At(0)},
		}))
		var got []seen
		mirrored := 0
		for len(got) < len(level.want) {
			fs := cl.PollFetches(ctx)
			require.NoError(t, fs.Err())
			fs.EachRecord(func(r *kgo.Record) {
				if r.Offset < lmo {
					mirrored++
					return
				}
				require.Equal(t, shown, r.LeaderEpoch)
				got = append(got, seen{r.Offset, string(r.Value)})
			})
		}
		cl.Close()
		require.Equal(t, level.want, got)
		require.Equal(t, len(h.live), mirrored)
	}

	last := all[len(all)-1].offset
	if others != nil {
		var offsets []int64
		for _, k := range kept {
			offsets = append(offsets, k.offset)
		}
		more := others(ctx, p.Addr().String(), offsets, lmo)
		require.Greater(t, more[0], last)
		last = more[len(more)-1]
	}
	cl := client()
	defer cl.Close()
	adm = kadm.NewClient(cl)
	offset := func(list func(context.Context, ...string) (kadm.ListedOffsets, error)) int64 {
		o, err := list(ctx, "m")
		require.NoError(t, err)
		got, _ := o.Lookup("m", 0)
		require.NoError(t, got.Err)
		return got.Offset
	}
	end := offset(adm.ListEndOffsets)
	require.GreaterOrEqual(t, end, last+1)
	require.Equal(t, end, offset(adm.ListCommittedOffsets))
	committed, err := adm.FetchOffsetsForTopics(ctx, "g", "m")
	require.NoError(t, err)
	g, _ := committed.Lookup("m", 0)
	require.Greater(t, g.At, lmo)
	require.LessOrEqual(t, g.At, end)

	// OffsetForLeaderEpoch of the epoch shown is the end; above it, nothing.
	req := kmsg.NewPtrOffsetForLeaderEpochRequest()
	part := kmsg.NewOffsetForLeaderEpochRequestTopicPartition()
	part.LeaderEpoch, part.CurrentLeaderEpoch = shown, shown
	req.Topics = []kmsg.OffsetForLeaderEpochRequestTopic{{Topic: "m", Partitions: []kmsg.OffsetForLeaderEpochRequestTopicPartition{part}}}
	r, err := req.RequestWith(ctx, cl)
	require.NoError(t, err)
	a := r.Topics[0].Partitions[0]
	require.Zero(t, a.ErrorCode)
	require.Equal(t, end, a.EndOffset)
	require.Equal(t, shown, a.LeaderEpoch)

	// Deleting up to a native offset moves the start there.
	del, err := adm.DeleteRecords(ctx, kadm.Offsets{"m": {0: {Topic: "m", Partition: 0, At: lmo + 3}}})
	require.NoError(t, err)
	d, _ := del.Lookup("m", 0)
	require.NoError(t, d.Err)
	require.Equal(t, lmo+3, d.LowWatermark)
	require.Equal(t, lmo+3, offset(adm.ListStartOffsets))
}
