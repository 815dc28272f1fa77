package proxy

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/epoch"
)

// steadyView is always fresh.
type steadyView struct{ *fakeView }

func (steadyView) FreshAt() time.Time { return time.Now() }

// mirrorOver puts a history into topic m of a cluster, and a proxy in front.
func mirrorOver(t *testing.T, seeds []string, fill func(h *history)) (p *Proxy, h *history) {
	t.Helper()
	direct, err := kgo.NewClient(kgo.SeedBrokers(seeds...))
	require.NoError(t, err)
	defer direct.Close()
	ctx, cancel := context.WithTimeout(context.Background(), testPatience)
	defer cancel()
	meta, err := kmsg.NewPtrMetadataRequest().RequestWith(ctx, direct)
	require.NoError(t, err)
	b := newBench(t)
	for _, topic := range meta.Topics {
		if *topic.Topic == "m" {
			h = newHistoryAt(t, b.sim.part("m", 0), topic.Partitions[0].LeaderEpoch)
			b.view.ids[topic.TopicID] = "m"
		}
	}
	fill(h)
	for _, batch := range h.part.batches {
		base := batch.BaseOffset()
		sent := slices.Clone(batch)
		sent.SetBase(0, -1)
		q := kmsg.NewPtrProduceRequest()
		q.Acks, q.TimeoutMillis = -1, 5000
		topic := kmsg.NewProduceRequestTopic()
		topic.Topic = "m"
		for id, name := range b.view.ids {
			if name == "m" {
				topic.TopicID = id
			}
		}
		topic.Partitions = []kmsg.ProduceRequestTopicPartition{{Records: sent}}
		q.Topics = append(q.Topics, topic)
		r, err := q.RequestWith(ctx, direct)
		require.NoError(t, err)
		require.NoError(t, kerr.ErrorForCode(r.Topics[0].Partitions[0].ErrorCode))
		require.Equal(t, base, r.Topics[0].Partitions[0].BaseOffset)
	}
	lp := b.mirror("m", 0, h.log)
	for id := range b.view.ids {
		lp.Record.TopicID = id
	}
	if h.native {
		lp.Record.State = epoch.StateStopped
	}
	handler := newHandlers(handlerOptions{View: steadyView{b.view}})
	first := freePorts(t, 3)
	p = testProxy(t, "", func(o *Options) {
		o.Dial = nil
		o.Bootstrap = seeds
		o.Listeners[0].FirstPort, o.Listeners[0].LastPort = first, first+2
		o.handler = handler
	})
	t.Cleanup(handler.wait)
	return p, h
}

func TestMirrorOverKfake(t *testing.T) {
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(1, "m", "other"))
	require.NoError(t, err)
	t.Cleanup(cluster.Close)
	readMirrorWithFranz(t, cluster.ListenAddrs())
}

// franz-go through the whole proxy: it reads exactly what is live, with the
// source's offsets and epochs, in both isolation levels and from anywhere; its
// lag tools agree; it is told at once that it may not write.
func readMirrorWithFranz(t *testing.T, seeds []string) {
	t.Helper()
	p, h := mirrorOver(t, seeds, func(h *history) {
		for i := range 40 {
			h.ts = int64(1000 + 10*i)
			h.append(1+i%4, int64(i%3))
			switch {
			case i%7 == 3:
				h.foreign(3)
			case i%11 == 5:
				h.appendHoles(1, 6, 1, 4)
			case i%13 == 7:
				h.src++
				h.takeOver()
			case i == 30:
				h.src++
				h.cut(h.bases()[len(h.bases())-4])
			}
		}
	})
	ctx, cancel := context.WithTimeout(context.Background(), testPatience)
	defer cancel()
	client := func(opts ...kgo.Opt) *kgo.Client {
		cl, err := kgo.NewClient(append(opts, kgo.SeedBrokers(p.Addr().String()), kgo.FetchMaxWait(100*time.Millisecond))...)
		require.NoError(t, err)
		return cl
	}
	end := h.end()
	for _, level := range []kgo.IsolationLevel{kgo.ReadUncommitted(), kgo.ReadCommitted()} {
		for _, from := range []int64{0, h.live[len(h.live)/2].v, h.live[len(h.live)-1].v} {
			var want, got []liveRecord
			for _, r := range h.live {
				if r.v >= from {
					want = append(want, liveRecord{v: r.v, epoch: r.epoch, ts: r.ts, value: r.value})
				}
			}
			cl := client(kgo.FetchIsolationLevel(level), kgo.FetchMaxPartitionBytes(300), kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{
				"m": {0: kgo.NewOffset().At(from)},
			}))
			for len(got) < len(want) {
				fs := cl.PollFetches(ctx)
				require.NoError(t, fs.Err())
				fs.EachRecord(func(r *kgo.Record) {
					got = append(got, liveRecord{v: r.Offset, epoch: r.LeaderEpoch, ts: r.Timestamp.UnixMilli(), value: string(r.Value)})
				})
			}
			cl.Close()
			require.Equal(t, want, got)
		}
	}
	cl := client(kgo.DefaultProduceTopic("m"))
	defer cl.Close()
	adm := kadm.NewClient(cl)
	for _, list := range []func(context.Context, ...string) (kadm.ListedOffsets, error){adm.ListEndOffsets, adm.ListCommittedOffsets} {
		o, err := list(ctx, "m")
		require.NoError(t, err)
		got, _ := o.Lookup("m", 0)
		require.NoError(t, got.Err)
		require.Equal(t, end, got.Offset)
	}
	meta, err := adm.Metadata(ctx, "m")
	require.NoError(t, err)
	require.Equal(t, h.part.epoch+h.log.Bump, meta.Topics["m"].Partitions[0].LeaderEpoch)
	err = cl.ProduceSync(ctx, kgo.StringRecord("x")).FirstErr()
	require.ErrorIs(t, err, kerr.PolicyViolation)
	err = cl.ProduceSync(ctx, &kgo.Record{Topic: "other", Value: []byte("y")}).FirstErr()
	require.NoError(t, err)
	del, err := adm.DeleteRecords(ctx, kadm.Offsets{"m": {0: {Topic: "m", Partition: 0, At: 3}}})
	require.NoError(t, err)
	d, _ := del.Lookup("m", 0)
	require.ErrorIs(t, d.Err, kerr.PolicyViolation)
	s, err := adm.ListStartOffsets(ctx, "m")
	require.NoError(t, err)
	got, _ := s.Lookup("m", 0)
	require.EqualValues(t, 0, got.Offset)
}
