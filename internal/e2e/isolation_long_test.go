//go:build long

package e2e_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/lockstep-kafka/lockstep/internal/e2e"
	"github.com/lockstep-kafka/lockstep/internal/testkafka"
	"github.com/lockstep-kafka/lockstep/internal/testkafka/content"
	"github.com/lockstep-kafka/lockstep/internal/testkafka/oracle"
)

// One of 300 partitions has a record that the destination doesn't take: it is FAILED with the setting's name, the others
// go on, and it comes back when Lockstep has set the source's setting again (DU-05, ME-07).
func TestOneFailingPartitionOfHundreds(t *testing.T) {
	ctx := withTimeout(t, 4*time.Minute)
	src, dst := kafka.Source(t), destination(t, 1)
	const topic, partitions, bad = "isolated", 300, 123
	require.NoError(t, content.CreateTopic(ctx, src.Bootstrap(), topic, partitions, nil))
	cl := groupClient(t, src.Bootstrap(), kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.ProducerBatchCompression(kgo.NoCompression()))
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
	// reach waits until all partitions but the bad one are MIRRORING at an offset, and that one is in a state.
	reach := func(offset int64, state, text string) {
		t.Helper()
		require.Eventually(t, func() bool {
			n := 0
			for _, p := range l.Describe(ctx, topic) {
				if p.Partition == bad && p.State == state && strings.Contains(p.Error, text) || p.Partition != bad && p.State == "MIRRORING" && p.DestinationOffset == offset {
					n++
				}
			}
			return n == partitions
		}, 2*time.Minute, 100*time.Millisecond)
	}
	reach(1, "MIRRORING", "")
	// The source's setting is set again once a second: in between, the record is refused.
	tries := 0
	for failed := false; !failed; {
		tries++
		require.NoError(t, content.SetConfig(ctx, dst.Bootstrap(), topic, "max.message.bytes", "10000"))
		write(50_000, bad)
		for range 20 {
			wait(ctx, 100*time.Millisecond)
			if p := l.Describe(ctx, topic)[bad]; p.State == "FAILED" || p.DestinationOffset == int64(tries)+1 {
				failed = p.State == "FAILED" && strings.Contains(p.Error, "max.message.bytes")
				break
			}
		}
		require.Less(t, tries, 20)
	}
	// The others went on; it comes back by itself with the setting.
	write(10, all...)
	reach(2, "MIRRORING", "")
	l.WaitState(ctx, topic, partitions, "MIRRORING")
	for _, p := range []int32{0, bad, partitions - 1} {
		want := 2
		if p == bad {
			want = 2 + tries
		}
		require.Eventually(t, func() bool {
			end, err := oracle.ListOffset(ctx, l.Bootstrap(), topic, p, oracle.ReadUncommitted, oracle.Latest)
			return err == nil && end.Offset == int64(want)
		}, time.Minute, 100*time.Millisecond)
		require.Len(t, l.CompareRaw(ctx, topic, p), want)
	}
}

// RO-01: a partition moves to a broker that joined the source while it was mirrored.
func TestRO01NewSourceBroker(t *testing.T) {
	const topic = "moved-away"
	ctx := withTimeout(t, 4*time.Minute)
	src, dst := testkafka.Start(t, testkafka.Options{Name: "source", Brokers: 2}), destination(t, 1)
	require.NoError(t, src.Stop(2))
	cl := groupClient(t, src.Bootstrap())
	adm := kadm.NewClient(cl)
	until(ctx, t, "the topic on the first broker", func() bool {
		_, err := adm.CreateTopic(ctx, 1, 1, nil, topic)
		return err == nil || errors.Is(err, kerr.TopicAlreadyExists)
	})
	require.NoError(t, content.WaitLeader(ctx, src.Bootstrap(), topic, 0, func(p oracle.Partition) bool { return p.Leader == 1 }))
	write := func(value string) {
		_, err := content.Produce(ctx, src.Bootstrap(), topic, 0, content.Batch(time.Now().UnixMilli(), "k", value))
		require.NoError(t, err)
	}
	write("before")
	l := e2e.Start(t, &binary, e2e.Setup{Source: src, SourceBootstrap: src.Seeds()[0], Destination: dst, Include: []string{topic}})
	l.WaitCaughtUp(ctx, topic, 1)
	require.NoError(t, src.StartBroker(ctx, 2))
	var req kadm.AlterPartitionAssignmentsReq
	req.Assign(topic, 0, []int32{2})
	until(ctx, t, "the reassignment", func() bool {
		resp, err := adm.AlterPartitionAssignments(ctx, req)
		return err == nil && resp.Error() == nil
	})
	require.NoError(t, content.WaitLeader(ctx, src.Bootstrap(), topic, 0, func(p oracle.Partition) bool { return p.Leader == 2 }))
	write("after")
	l.WaitCaughtUp(ctx, topic, 1)
	require.Len(t, l.CompareRaw(ctx, topic, 0), 2)
}
