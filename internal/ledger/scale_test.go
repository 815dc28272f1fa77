package ledger

import (
	"fmt"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-kafka/lockstep/epoch"
)

// entries are the records of n partitions in topics of some partitions each.
func entries(n, perTopic int) (out []change) {
	for i := range n {
		topic := fmt.Sprintf("orders-%06d", i/perTopic)
		r := &Record{
			Mirror: "m", Topic: topic, Partition: int32(i % perTopic), State: epoch.StateMirroring, StateEpoch: 1,
			TopicID: ID{byte(i / perTopic), byte(i / perTopic >> 8), byte(i / perTopic >> 16), 1},
		}
		out = append(out, change{key: Key{Kind: KindRecord, Topic: topic, Partition: r.Partition}, val: r, offset: int64(i)})
	}
	return out
}

func filled(n, perTopic int) *View {
	v := NewView(ViewOptions{})
	v.mu.Lock()
	defer v.mu.Unlock()
	v.apply(entries(n, perTopic))
	return v
}

var scales = []int{500, 5_000, 50_000}

// One record after another, as when partitions start: the cost of each must not
// grow with what is there.
func BenchmarkViewGrows(b *testing.B) {
	for _, perTopic := range []int{1, 100, 5_000} {
		for _, n := range scales {
			b.Run(fmt.Sprintf("partitions=%d/topic=%d", n, perTopic), func(b *testing.B) {
				es := entries(n, perTopic)
				began := cpuTime()
				for b.Loop() {
					v := NewView(ViewOptions{})
					for i := range es {
						v.apply(es[i : i+1])
					}
				}
				b.ReportMetric(float64(cpuTime()-began)/float64(b.N)/float64(n), "cpu-ns/partition")
			})
		}
	}
}

// A change of one record, with a Feed that follows.
func BenchmarkViewChange(b *testing.B) {
	for _, n := range scales {
		b.Run("partitions="+strconv.Itoa(n), func(b *testing.B) {
			v := filled(n, 100)
			f := v.Feed()
			defer f.Close()
			r := v.Partition("orders-000000", 0).Record
			for b.Loop() {
				r = r.Next()
				v.apply([]change{{key: Key{Kind: KindRecord, Topic: r.Topic, Partition: r.Partition}, val: r}})
				f.Take(func(string, int32, *Partition) {})
			}
		})
	}
}

// A look at all of it.
func BenchmarkViewEach(b *testing.B) {
	for _, n := range scales {
		b.Run("partitions="+strconv.Itoa(n), func(b *testing.B) {
			v := filled(n, 100)
			k := 0
			began := cpuTime()
			for b.Loop() {
				v.Each(func(p *Partition) { k += int(p.Home) })
			}
			b.ReportMetric(float64(cpuTime()-began)/float64(b.N)/float64(n), "cpu-ns/partition")
		})
	}
}

// What is shown does not depend on how it came.
func TestIndexFollowsEntries(t *testing.T) {
	v := NewView(ViewOptions{})
	feed := v.Feed()
	defer feed.Close()
	es := entries(70, 7)
	tell := func(cs ...change) {
		v.mu.Lock()
		defer v.mu.Unlock()
		v.apply(cs)
	}
	taken := func() map[string]bool {
		out := map[string]bool{}
		feed.Take(func(topic string, p int32, at *Partition) { out[RecordKey(topic, p)] = at != nil })
		return out
	}
	require.False(t, v.Any())
	for i := len(es) - 1; i >= 0; i-- { // partition 6 of a topic first
		before := v.TopicsVersion()
		tell(es[i])
		require.Equal(t, i%7 == 6, v.TopicsVersion() > before, "once for a topic and its id")
	}
	require.True(t, v.Any())
	require.Len(t, v.Topics(), 10)
	require.Len(t, v.All(), 70)
	require.Len(t, taken(), 70)
	for i := range es {
		r := es[i].val.(*Record)
		p := v.Partition(r.Topic, r.Partition)
		require.Same(t, r, p.Record)
		require.Equal(t, PartitionOf(r.Topic, r.Partition), p.Home)
		name, ok := v.TopicByID(r.TopicID)
		require.True(t, ok)
		require.Equal(t, r.Topic, name)
	}
	require.Nil(t, v.Partition("orders-000000", 7))
	require.Nil(t, v.Partition("orders-000000", 1<<20))
	require.Nil(t, v.Partition("other", 0))
	n := 0
	v.EachOf("orders-000003", func(p *Partition) {
		require.Equal(t, int32(n), p.Partition)
		n++
	})
	require.Equal(t, 7, n)

	// A checkpoint alone is no news for a feed.
	cp := &Checkpoint{Topic: "orders-000000"}
	tell(change{key: Key{Kind: KindCheckpoint, Topic: "orders-000000"}, val: cp})
	require.Empty(t, taken())
	tell(change{key: Key{Kind: KindCommand, Topic: "orders-000000"}, val: &Command{Topic: "orders-000000", Seq: 1}})
	require.Equal(t, map[string]bool{"orders-000000/0": true}, taken())

	// A topic goes with its last partition, and so does its id.
	for i := range 7 {
		require.True(t, v.Topic("orders-000000"))
		tell(change{key: es[i].key})
	}
	require.False(t, v.Topic("orders-000000"))
	require.Len(t, v.Topics(), 9)
	_, ok := v.TopicByID(es[0].val.(*Record).TopicID)
	require.False(t, ok)
	require.Equal(t, false, taken()["orders-000000/3"])
	// Another id.
	r := es[7].val.(*Record).Next()
	r.TopicID = ID{200, 1}
	tell(change{key: es[7].key, val: r})
	name, ok := v.TopicByID(ID{200, 1})
	require.True(t, ok)
	require.Equal(t, r.Topic, name)
}

// cpuTime is what the process has used so far: on a busy machine the clock says
// nothing.
func cpuTime() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
