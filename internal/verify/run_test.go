package verify

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/lockstep-kafka/lockstep/internal/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// pair is two clusters; what a mirror would make equal, the tests write twice.
type pair struct {
	t        *testing.T
	src, dst *kfake.Cluster
}

func newPair(t *testing.T) *pair {
	t.Helper()
	p := &pair{t: t}
	for _, x := range []struct {
		c  **kfake.Cluster
		id string
	}{{&p.src, "S"}, {&p.dst, "D"}} {
		c, err := kfake.NewCluster(kfake.ClusterID(x.id), kfake.NumBrokers(2))
		require.NoError(t, err)
		t.Cleanup(c.Close)
		*x.c = c
	}
	return p
}

func opts(c *kfake.Cluster) []kgo.Opt {
	return []kgo.Opt{kgo.SeedBrokers(c.ListenAddrs()...), kgo.MetadataMinAge(10 * time.Millisecond)}
}

func (p *pair) topic(name string, partitions int32, configs map[string]*string) {
	p.t.Helper()
	for _, c := range []*kfake.Cluster{p.src, p.dst} {
		p.create(c, name, partitions, configs)
	}
}

func (p *pair) create(c *kfake.Cluster, name string, partitions int32, configs map[string]*string) {
	p.t.Helper()
	cl, err := kgo.NewClient(opts(c)...)
	require.NoError(p.t, err)
	defer cl.Close()
	_, err = kadm.NewClient(cl).CreateTopic(p.t.Context(), partitions, 1, configs, name)
	require.NoError(p.t, err)
}

// write writes each record as a batch of its own; more of them in one call of
// batch are one.
func (p *pair) write(c *kfake.Cluster, rs ...*kgo.Record) {
	p.t.Helper()
	for _, r := range rs {
		p.batch(c, r)
	}
}

func (p *pair) batch(c *kfake.Cluster, rs ...*kgo.Record) {
	p.t.Helper()
	cl, err := kgo.NewClient(append(opts(c), kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.ProducerLinger(20*time.Millisecond))...)
	require.NoError(p.t, err)
	defer cl.Close()
	copies := make([]*kgo.Record, len(rs))
	for i, r := range rs {
		x := *r
		copies[i] = &x
	}
	require.NoError(p.t, cl.ProduceSync(p.t.Context(), copies...).FirstErr())
}

func record(topic string, partition int32, n int) *kgo.Record {
	return &kgo.Record{
		Topic: topic, Partition: partition, Key: fmt.Appendf(nil, "k%d", n), Value: fmt.Appendf(nil, "value %d", n),
		Timestamp: time.UnixMilli(1_700_000_000_000 + int64(n)), Headers: []kgo.RecordHeader{{Key: "h", Value: []byte{byte(n)}}},
	}
}

func (p *pair) both(rs ...*kgo.Record) {
	p.t.Helper()
	p.write(p.src, rs...)
	p.write(p.dst, rs...)
}

func (p *pair) run(o Options) Report {
	p.t.Helper()
	o.Source, o.Destination = opts(p.src), opts(p.dst)
	r, err := Run(p.t.Context(), o)
	require.NoError(p.t, err)
	return r
}

func TestEqual(t *testing.T) {
	p := newPair(t)
	p.topic("a", 3, nil)
	p.topic("b", 1, nil)
	for i := range 30 {
		p.both(record("a", int32(i%3), i))
	}
	p.write(p.src, record("a", 0, 99)) // not mirrored yet
	var told Progress
	r := p.run(Options{Progress: func(p Progress) { told = p }, Rate: 1 << 20, Parallel: 2})
	require.Equal(t, Equal, r.Outcome, "%+v", r)
	require.EqualValues(t, 30, r.Records)
	require.Len(t, r.Partitions, 4)
	require.Equal(t, Progress{Done: 30, Total: 30, Bytes: r.Bytes}, told)
	require.Equal(t, []string{"the source has 1 more offsets: not compared"}, r.Partitions[0].Notes)
	require.Equal(t, 1, r.Partitions[0].Epochs)
	require.Zero(t, r.Partitions[0].ByRecord)

	r = p.run(Options{CaughtUp: true})
	require.Equal(t, Different, r.Outcome)
	require.Equal(t, KindMissing, r.Partitions[0].Difference.Kind)
	require.EqualValues(t, 10, r.Partitions[0].Difference.Offset)
}

// Small batches that the mirror joined are compared by records.
func TestMergedBatches(t *testing.T) {
	p := newPair(t)
	p.topic("a", 1, nil)
	var rs []*kgo.Record
	for i := range 5 {
		rs = append(rs, record("a", 0, i))
	}
	p.write(p.src, rs...)
	p.batch(p.dst, rs...)
	r := p.run(Options{})
	require.Equal(t, Equal, r.Outcome, "%+v", r)
	require.EqualValues(t, 5, r.Records)
	require.EqualValues(t, 1, r.Partitions[0].ByRecord)
}

// Every kind of difference between two topics of ten records is found, at its
// offset.
func TestDifferences(t *testing.T) {
	p := newPair(t)
	for _, x := range []struct {
		name   string
		kind   Kind
		offset int64
		change func(rs []*kgo.Record) []*kgo.Record // of the destination
	}{
		{"byte flipped", KindValue, 4, func(rs []*kgo.Record) []*kgo.Record { rs[4].Value[3] ^= 1; return rs }},
		{"key", KindKey, 4, func(rs []*kgo.Record) []*kgo.Record { rs[4].Key = nil; return rs }},
		{"empty instead of null", KindValue, 0, func(rs []*kgo.Record) []*kgo.Record { rs[0].Value = []byte{}; return rs }},
		{"header", KindHeaders, 9, func(rs []*kgo.Record) []*kgo.Record { rs[9].Headers[0].Value = nil; return rs }},
		{"timestamp", KindTimestamp, 3, func(rs []*kgo.Record) []*kgo.Record {
			rs[3].Timestamp = rs[3].Timestamp.Add(time.Millisecond)
			return rs
		}},
		{"offsets shifted", KindTimestamp, 5, func(rs []*kgo.Record) []*kgo.Record { return append(rs[:5], rs[6:]...) }},
		{"one more at the end", KindExtra, 10, func(rs []*kgo.Record) []*kgo.Record { return append(rs, record("x", 0, 10)) }},
	} {
		t.Run(x.name, func(t *testing.T) {
			p := &pair{t: t, src: p.src, dst: p.dst}
			topic := filepath.Base(t.Name())
			p.topic(topic, 1, nil)
			rs := func() (out []*kgo.Record) {
				for i := range 10 {
					out = append(out, record(topic, 0, i))
				}
				if x.name == "empty instead of null" {
					out[0].Value = nil
				}
				return out
			}
			p.batch(p.src, rs()[:6]...)
			p.batch(p.src, rs()[6:]...)
			changed := x.change(rs())
			for _, r := range changed {
				r.Topic = topic
			}
			p.batch(p.dst, changed[:6]...)
			p.batch(p.dst, changed[6:]...)
			r := p.run(Options{Topics: []string{topic}})
			require.Equal(t, Different, r.Outcome, "%+v", r)
			d := r.Partitions[0].Difference
			require.Equal(t, x.kind, d.Kind, "%+v", d)
			require.Equal(t, x.offset, d.Offset, "%+v", d)
			t.Log(d)
		})
	}
}

// UL: a leader epoch of another number, and an epoch chain that doesn't fit.
func TestEpochDiffers(t *testing.T) {
	p := newPair(t)
	p.topic("a", 1, nil)
	p.both(record("a", 0, 0))
	require.NoError(t, p.dst.MoveTopicPartition("a", 0, 0))
	require.NoError(t, p.dst.MoveTopicPartition("a", 0, 1))
	p.both(record("a", 0, 1))
	r := p.run(Options{})
	require.Equal(t, Different, r.Outcome, "%+v", r)
	require.Equal(t, KindEpoch, r.Partitions[0].Difference.Kind)
	require.EqualValues(t, 1, r.Partitions[0].Difference.Offset)
}

func TestTopicsAndPartitions(t *testing.T) {
	p := newPair(t)
	p.create(p.src, "gone", 1, nil)
	p.create(p.src, "fewer", 3, nil)
	p.create(p.dst, "fewer", 2, nil)
	r := p.run(Options{})
	require.Equal(t, Different, r.Outcome)
	kinds := map[string]Kind{}
	for _, x := range r.Partitions {
		if x.Difference != nil {
			kinds[fmt.Sprintf("%s/%d", x.Topic, x.Partition)] = x.Difference.Kind
		}
	}
	require.Equal(t, map[string]Kind{"gone/-1": KindTopic, "fewer/2": KindPartition}, kinds)
	_, err := Run(t.Context(), Options{Source: opts(p.src), Destination: opts(p.dst), Topics: []string{"none"}})
	require.ErrorContains(t, err, "topic none on the source")
}

// A run that goes on from an earlier one reads only what came since; a log that
// was begun anew is compared from the start.
func TestResume(t *testing.T) {
	p := newPair(t)
	p.topic("a", 1, nil)
	file := filepath.Join(t.TempDir(), "state")
	for i := range 10 {
		p.both(record("a", 0, i))
	}
	r := p.run(Options{Resume: file})
	require.Equal(t, Equal, r.Outcome, "%+v", r)
	require.EqualValues(t, 10, r.Records)

	p.both(record("a", 0, 10), record("a", 0, 11))
	r = p.run(Options{Resume: file})
	require.Equal(t, Equal, r.Outcome, "%+v", r)
	require.EqualValues(t, 2, r.Records)
	require.True(t, r.Partitions[0].Resumed)
	require.EqualValues(t, 10, r.Partitions[0].From)

	// A difference is found again, as what lies behind it isn't done.
	bad := record("a", 0, 12)
	p.write(p.src, bad)
	bad.Value = []byte("other")
	p.write(p.dst, bad)
	for range 2 {
		r = p.run(Options{Resume: file})
		require.Equal(t, Different, r.Outcome)
		require.EqualValues(t, 12, r.Partitions[0].Difference.Offset)
	}

	require.NoError(t, os.WriteFile(file, []byte("x"), 0o600))
	_, err := Run(t.Context(), Options{Source: opts(p.src), Destination: opts(p.dst), Resume: file})
	require.ErrorContains(t, err, "is not one of lockstep verify")
	_, err = Run(t.Context(), Options{Source: opts(p.src), Destination: opts(p.dst), Resume: filepath.Join(file, "none")})
	require.ErrorContains(t, err, "resume file")
}

// Deleted records: the destination still has some, or has no longer some.
func TestStart(t *testing.T) {
	p := newPair(t)
	p.topic("a", 1, nil)
	for i := range 10 {
		p.both(record("a", 0, i))
	}
	cut := func(c *kfake.Cluster, to int64) { p.deleteRecords(c, "a", to) }
	cut(p.src, 3)
	r := p.run(Options{})
	require.Equal(t, Equal, r.Outcome, "%+v", r)
	require.EqualValues(t, 7, r.Records)
	require.Equal(t, []string{"the destination still shows offsets 0 to 2, which the source has deleted"}, r.Partitions[0].Notes)
	cut(p.dst, 5)
	r = p.run(Options{})
	require.Equal(t, Equal, r.Outcome, "%+v", r)
	require.Equal(t, []string{"the destination's retention has deleted offsets 3 to 4, which the source still has"}, r.Partitions[0].Notes)

	forever := "-1"
	cl, err := kgo.NewClient(opts(p.dst)...)
	require.NoError(t, err)
	defer cl.Close()
	_, err = kadm.NewClient(cl).AlterTopicConfigs(t.Context(), []kadm.AlterConfig{{Name: "retention.ms", Value: &forever}}, "a")
	require.NoError(t, err)
	r = p.run(Options{})
	require.Equal(t, Different, r.Outcome, "%+v", r)
	require.Equal(t, KindStart, r.Partitions[0].Difference.Kind)
	require.EqualValues(t, 3, r.Partitions[0].Difference.Offset)
}

// Compacted topics of which one side has less: played with DeleteRecords, as
// kfake has no cleaner.
func TestCompacted(t *testing.T) {
	p := newPair(t)
	compact := "compact"
	rec := func(topic, key, value string) *kgo.Record {
		r := &kgo.Record{Topic: topic, Key: []byte(key), Value: []byte(value), Timestamp: time.UnixMilli(1_700_000_000_000)}
		if value == "null" {
			r.Value = nil
		}
		return r
	}
	for _, x := range []struct {
		name     string
		src, dst [][2]string // key, value
		from     int64       // the source's start
	}{
		{"ahead", [][2]string{{"k", "1"}, {"k", "2"}, {"x", "1"}, {"k", "3"}}, [][2]string{{"k", "1"}, {"k", "2"}, {"x", "1"}}, 0},
		{"superseded-later", [][2]string{{"k", "1"}, {"x", "1"}, {"k", "2"}}, [][2]string{{"k", "1"}, {"x", "1"}}, 1},
		{"lagging", [][2]string{{"a", "1"}, {"k", "1"}}, [][2]string{{"a", "1"}}, 0},
	} {
		t.Run(x.name, func(t *testing.T) {
			p := &pair{t: t, src: p.src, dst: p.dst}
			p.topic(x.name, 1, map[string]*string{"cleanup.policy": &compact})
			for _, kv := range x.src {
				p.write(p.src, rec(x.name, kv[0], kv[1]))
			}
			for _, kv := range x.dst {
				p.write(p.dst, rec(x.name, kv[0], kv[1]))
			}
			if x.from > 0 {
				p.deleteRecords(p.src, x.name, x.from)
			}
			r := p.run(Options{Topics: []string{x.name}, MaxKeys: 1})
			require.Equal(t, Equal, r.Outcome, "%+v", r)
			require.True(t, r.Partitions[0].Compacted)
		})
	}
	// More keys than fit into memory at a time.
	t.Run("missing", func(t *testing.T) {
		p := &pair{t: t, src: p.src, dst: p.dst}
		p.topic("missing", 1, map[string]*string{"cleanup.policy": &compact})
		for _, k := range []string{"a", "b", "c", "a"} {
			p.write(p.src, rec("missing", k, "1"))
			p.write(p.dst, rec("missing", k, "1"))
		}
		p.deleteRecords(p.dst, "missing", 2) // a@0 is superseded, b@1 is not
		for _, keys := range []int{1, 10} {
			r := p.run(Options{Topics: []string{"missing"}, MaxKeys: keys})
			require.Equal(t, Different, r.Outcome, "%+v", r)
			d := r.Partitions[0].Difference
			require.Equal(t, KindStale, d.Kind)
			require.EqualValues(t, 1, d.Offset)
			require.NotNil(t, d.Source)
		}
	})
}

func (p *pair) deleteRecords(c *kfake.Cluster, topic string, to int64) {
	p.t.Helper()
	cl, err := kgo.NewClient(opts(c)...)
	require.NoError(p.t, err)
	defer cl.Close()
	var os kadm.Offsets
	os.AddOffset(topic, 0, to, -1)
	_, err = kadm.NewClient(cl).DeleteRecords(p.t.Context(), os)
	require.NoError(p.t, err)
}
