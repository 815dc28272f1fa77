package e2e_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/lockstep-kafka/lockstep/internal/e2e"
	"github.com/lockstep-kafka/lockstep/internal/testkafka/content"
)

// One of 300 partitions has a record that the destination doesn't take: it is FAILED with the setting's name, the others
// go on, and recover brings it back (DU-05, ME-07).
func TestOneFailingPartitionOfHundreds(t *testing.T) {
	ctx := withTimeout(t, 4*time.Minute)
	src, dst := kafka.Source(t), destination(t, 1)
	const topic, partitions, bad = "isolated", 300, 123
	require.NoError(t, content.CreateTopic(ctx, src.Bootstrap(), topic, partitions, nil))
	cl := groupClient(t, src.Bootstrap(), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	write := func(size int, ps ...int32) {
		t.Helper()
		var rs []*kgo.Record
		for _, p := range ps {
			rs = append(rs, &kgo.Record{Topic: topic, Partition: p, Value: make([]byte, size)})
		}
		require.NoError(t, cl.ProduceSync(ctx, rs...).FirstErr())
	}
	all := make([]int32, partitions)
	for p := range all {
		all[p] = int32(p)
	}
	write(10, all...)
	l := e2e.Start(t, &binary, e2e.Setup{Source: src, Destination: dst, Include: []string{topic}})
	l.WaitState(ctx, topic, partitions, "MIRRORING")
	l.WaitCaughtUp(ctx, topic, partitions)
	require.NoError(t, content.SetConfig(ctx, dst.Bootstrap(), topic, "max.message.bytes", "10000"))
	cl = groupClient(t, src.Bootstrap(), kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.ProducerBatchCompression(kgo.NoCompression()))
	write(50_000, bad)
	l.WaitState(ctx, topic, 1, "FAILED")
	write(10, all...)
	require.Eventually(t, func() bool {
		n := 0
		for _, p := range l.Describe(ctx, topic) {
			if p.Partition == bad {
				require.Equal(t, "FAILED", p.State)
				require.Contains(t, p.Error, "max.message.bytes")
			} else if p.State == "MIRRORING" && p.DestinationOffset == 2 {
				n++
			}
		}
		return n == partitions-1
	}, time.Minute, 100*time.Millisecond)
	require.NoError(t, content.SetConfig(ctx, dst.Bootstrap(), topic, "max.message.bytes", "1048588"))
	l.Verb(ctx, nil, "recover", "--topic", topic)
	l.WaitState(ctx, topic, partitions, "MIRRORING")
	l.WaitCaughtUp(ctx, topic, partitions)
	require.Len(t, l.CompareRaw(ctx, topic, bad), 3)
}
