//go:build long

package e2e_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
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

// quickRetention makes brokers look for expired segments often.
var quickRetention = map[string]string{"log.retention.check.interval.ms": "500", "log.initial.task.delay.ms": "100"}

// cleaned are configs of topics whose cleaner runs all the time. Segments roll by the records' timestamps, which are
// the same on both sides.
func cleaned(policy string, more ...string) map[string]string {
	out := map[string]string{
		"cleanup.policy": policy, "segment.ms": "500", "min.cleanable.dirty.ratio": "0.0001", "min.compaction.lag.ms": "0", "retention.ms": "-1",
	}
	for i := 0; i < len(more); i += 2 {
		out[more[i]] = more[i+1]
	}
	return out
}

// Compacted topics, also with delete, while both sides' cleaners run: holes inside batches and between them, emptied
// batches, tombstones. When both have passed, every client reads through the proxy exactly what the source has.
func TestBothCleaners(t *testing.T) {
	testkafka.Require(t, "python3")
	ctx := withTimeout(t, 9*time.Minute)
	src := testkafka.Start(t, testkafka.Options{Name: "source", Props: quickRetention})
	dst := testkafka.Start(t, testkafka.Options{Name: "destination", Props: quickRetention})
	now := time.Now().UnixMilli()
	hour := int64(3600_000)
	kinds := []struct {
		topic   string
		configs map[string]string
		old     int // batches that expire
	}{
		{"cleaned-compact", cleaned("compact"), 0},
		{"cleaned-delete", cleaned("compact,delete", "retention.ms", "36000000"), 6},
	}
	for _, k := range kinds {
		require.NoError(t, content.CreateTopic(ctx, src.Bootstrap(), k.topic, 1, k.configs))
	}
	l := e2e.Start(t, &binary, e2e.Setup{Source: src, Destination: dst, Include: []string{"cleaned-.*"}, Mirror: []string{"min_compaction_lag: 1s"}})
	for _, k := range kinds {
		write := func(codec oracle.Codec, ts int64, kvs ...string) {
			_, err := content.Produce(ctx, src.Bootstrap(), k.topic, 0, content.BatchOf(codec, ts, 0, kvs...))
			require.NoError(t, err)
		}
		ts := now - 100*hour // old ones, which expire where there is retention
		for i := range k.old {
			ts += 1000
			write(oracle.None, ts, fmt.Sprintf("old%d=x", i), fmt.Sprintf("gone%d=y", i))
		}
		if k.old > 0 { // before the cleaner merges them into a segment with young records, which then keeps them
			until(ctx, t, "the old records have expired", func() bool {
				b, err := oracle.Batches(ctx, src.Bootstrap(), k.topic, 0)
				return err == nil && len(b) == 0
			})
		}
		ts = now - hour
		for round := range 30 {
			ts += 1000
			var kvs []string
			for j := range 6 {
				v := fmt.Sprintf("%d.%d", round, j)
				if (round+j)%7 == 0 {
					v = "null"
				}
				kvs = append(kvs, fmt.Sprintf("k%d=%s", (round*j)%17, v))
			}
			write(oracle.Codec(round%5), ts, append(kvs, fmt.Sprintf("u%d=stays", round))...)
		}
		for i := range 3 { // keys that come once, so that all others lie in inactive segments
			ts += 1000
			write(oracle.None, ts, fmt.Sprintf("end%d=x", i))
		}
	}
	for _, k := range kinds {
		t.Run(k.topic, func(t *testing.T) {
			l := l.For(t)
			l.WaitCaughtUp(ctx, k.topic, 1)
			var want, got []oracle.Rec
			until(ctx, t, "both cleaners have passed", func() bool {
				var err, err2 error
				want, err = oracle.Dump(ctx, src.Bootstrap(), k.topic, 0, oracle.ReadCommitted)
				got, err2 = oracle.Dump(ctx, l.Bootstrap(), k.topic, 0, oracle.ReadCommitted)
				if err != nil || err2 != nil || len(want) == 0 || strings.HasPrefix(string(want[0].Key), "old") {
					return false
				}
				keys := map[string]bool{}
				for _, r := range want {
					if keys[string(r.Key)] {
						return false
					}
					keys[string(r.Key)] = true
				}
				return oracle.Diff(want, got) == ""
			})
			batches, err := oracle.Batches(ctx, src.Bootstrap(), k.topic, 0)
			require.NoError(t, err)
			holes, _ := content.Cleaned(batches)
			require.True(t, holes)
			physical, err := oracle.Batches(ctx, dst.Bootstrap(), k.topic, 0)
			require.NoError(t, err)
			n := int32(0)
			for _, b := range physical {
				n += b.Count
			}
			require.Less(t, int(n), 33*7, "the destination's cleaner has run")
			t.Logf("%d records left of %d, %d physical", len(want), 30*7+3+2*k.old, n)
			l.CompareAll(ctx, k.topic)
		})
	}
	l.Restart()
	for _, k := range kinds {
		l.WaitCaughtUp(ctx, k.topic, 1)
		l.CompareRaw(ctx, k.topic, 0)
	}
}

// A topic whose records have all expired keeps its position over a restart; retention that removes what was not
// mirrored yet is counted, and mirroring goes on behind it (LO-01).
func TestRetentionAndPosition(t *testing.T) {
	ctx := withTimeout(t, 6*time.Minute)
	src := testkafka.Start(t, testkafka.Options{Name: "source", Props: quickRetention})
	dst := testkafka.Start(t, testkafka.Options{Name: "destination", Props: quickRetention})
	require.NoError(t, content.CreateTopic(ctx, src.Bootstrap(), "expire", 1, map[string]string{"retention.ms": "-1", "segment.ms": "1000"}))
	require.NoError(t, content.CreateTopic(ctx, src.Bootstrap(), "gap", 1, nil))
	l := e2e.Start(t, &binary, e2e.Setup{Source: src, Destination: dst, Include: []string{"expire", "gap"}})
	put := func(topic string, n int) {
		for i := range n {
			_, err := content.Produce(ctx, src.Bootstrap(), topic, 0, content.BatchOf(oracle.None, time.Now().UnixMilli(), 0, fmt.Sprintf("k=%d", i), "k=x"))
			require.NoError(t, err)
		}
	}
	put("expire", 10)
	put("gap", 10)
	l.WaitCaughtUp(ctx, "expire", 1)
	l.WaitCaughtUp(ctx, "gap", 1)
	require.NoError(t, content.SetConfig(ctx, src.Bootstrap(), "expire", "retention.ms", "3000"))
	for _, c := range []*testkafka.Cluster{src, dst} {
		until(ctx, t, "all records have expired", func() bool {
			b, err := oracle.Batches(ctx, c.Bootstrap(), "expire", 0)
			return err == nil && len(b) == 0
		})
	}
	l.Restart()
	l.WaitCaughtUp(ctx, "expire", 1)
	end, err := oracle.ListOffset(ctx, l.Bootstrap(), "expire", 0, oracle.ReadCommitted, oracle.Latest)
	require.NoError(t, err)
	require.EqualValues(t, 20, end.Offset)
	require.NoError(t, content.SetConfig(ctx, src.Bootstrap(), "expire", "retention.ms", "-1"))
	put("expire", 3)
	l.WaitCaughtUp(ctx, "expire", 1)
	require.EqualValues(t, 20, l.CompareRaw(ctx, "expire", 0)[0].Offset)

	l.Kill9()
	put("gap", 20)
	require.NoError(t, content.DeleteRecords(ctx, src.Bootstrap(), "gap", 0, 31)) // into a batch
	l.Launch()
	l.WaitCaughtUp(ctx, "gap", 1)
	require.EqualValues(t, 31, l.CompareRaw(ctx, "gap", 0)[0].Offset)
	_, metrics, err := l.Get(ctx, "/metrics")
	require.NoError(t, err)
	require.Contains(t, metrics, `lockstep_mirror_gaps_total{mirror="dc1",topic="gap"} 1`)
	require.Regexp(t, `lockstep_mirror_gap_offsets_total\{mirror="dc1",topic="gap"\} 1[01]\b`, metrics)
}

// SO-07: a log that begins at 5,000,000,000 begins there here too, at once and without filler.
func TestSO07LogStartFarUp(t *testing.T) {
	const far = int64(5_000_000_000)
	ctx := withTimeout(t, 4*time.Minute)
	src, dst := testkafka.Start(t, testkafka.Options{Name: "source"}), destination(t, 1)
	require.NoError(t, content.CreateTopic(ctx, src.Bootstrap(), "far", 1, nil))
	require.NoError(t, src.Stop(1))
	dir := filepath.Join(src.LogDir(1), "far-0")
	for _, ext := range []string{"log", "index", "timeindex"} {
		if err := os.Remove(filepath.Join(dir, "00000000000000000000."+ext)); err != nil {
			require.ErrorIs(t, err, os.ErrNotExist)
		}
	}
	require.NoError(t, os.WriteFile(filepath.Join(dir, fmt.Sprintf("%020d.log", far)), nil, 0o644))
	require.NoError(t, src.StartBroker(ctx, 1))
	for i := range 3 {
		base, err := content.Produce(ctx, src.Bootstrap(), "far", 0, content.Batch(time.Now().UnixMilli(), "k", fmt.Sprint(i)))
		require.NoError(t, err)
		require.Equal(t, far+int64(i), base)
	}
	l := e2e.Start(t, &binary, e2e.Setup{Source: src, Destination: dst, Include: []string{"far"}})
	l.WaitCaughtUp(ctx, "far", 1)
	want := l.CompareAll(ctx, "far")
	require.Equal(t, far, want[0].Offset)
	first, err := oracle.ListOffset(ctx, l.Bootstrap(), "far", 0, oracle.ReadCommitted, oracle.Earliest)
	require.NoError(t, err)
	require.Equal(t, far, first.Offset)
	physical, err := oracle.Batches(ctx, dst.Bootstrap(), "far", 0)
	require.NoError(t, err)
	require.Zero(t, physical[0].Base)
	require.EqualValues(t, 3, physical[len(physical)-1].Next(), "three records, no filler")
}

// What a schema registry keeps in its topic: a single compacted partition, read from its beginning, in which the ids
// stand. Every client reads the same bytes at the same offsets here, so a registry here has the same ids.
func TestSchemaRegistryTopic(t *testing.T) {
	testkafka.Require(t, "python3")
	ctx := withTimeout(t, 4*time.Minute)
	src, dst := kafka.Source(t), destination(t, 1)
	require.NoError(t, content.CreateTopic(ctx, src.Bootstrap(), "_schemas", 1, cleaned("compact")))
	put := func(ts int64, key, value any) {
		k, err := json.Marshal(key)
		require.NoError(t, err)
		var v []byte
		if value != nil {
			v, err = json.Marshal(value)
			require.NoError(t, err)
		}
		_, err = content.Produce(ctx, src.Bootstrap(), "_schemas", 0, content.BatchOfBytes(oracle.None, ts, k, v))
		require.NoError(t, err)
	}
	type key struct {
		Keytype string `json:"keytype"`
		Subject string `json:"subject,omitempty"`
		Version int    `json:"version,omitempty"`
		Magic   int    `json:"magic"`
	}
	type value struct {
		Subject string `json:"subject"`
		Version int    `json:"version"`
		ID      int    `json:"id"`
		Schema  string `json:"schema"`
		Deleted bool   `json:"deleted"`
	}
	ts, id := time.Now().UnixMilli()-3600_000, 0
	for v := 1; v <= 5; v++ {
		for s := range 8 {
			ts += 1000
			id++
			subject := fmt.Sprintf("topic%d-value", s)
			put(ts, key{"SCHEMA", subject, v, 1}, value{subject, v, id, fmt.Sprintf(`{"type":"record","name":"r%d"}`, id), false})
			switch {
			case s == 2: // soft deleted
				put(ts, key{"SCHEMA", subject, v, 1}, value{subject, v, id, fmt.Sprintf(`{"type":"record","name":"r%d"}`, id), true})
			case s == 3 && v < 3: // and for good
				put(ts, key{"SCHEMA", subject, v, 1}, nil)
			}
			put(ts, key{Keytype: "NOOP"}, nil)
		}
		put(ts, key{Keytype: "CONFIG"}, map[string]string{"compatibilityLevel": []string{"BACKWARD", "NONE"}[v%2]})
	}
	// read is what a registry does at its start: everything from the beginning, the later value of a key counts.
	read := func(recs []oracle.Rec) map[string]string {
		store := map[string]string{}
		for _, r := range recs {
			if r.Value == nil {
				delete(store, string(r.Key))
				continue
			}
			store[string(r.Key)] = string(r.Value)
		}
		return store
	}
	until(ctx, t, "the source's cleaner", func() bool {
		b, err := oracle.Batches(ctx, src.Bootstrap(), "_schemas", 0)
		return err == nil && len(b) < 80
	})
	require.NoError(t, content.SetConfig(ctx, src.Bootstrap(), "_schemas", "min.compaction.lag.ms", "604800000"))
	l := e2e.Start(t, &binary, e2e.Setup{Source: src, Destination: dst, Include: []string{"_schemas"}})
	l.WaitCaughtUp(ctx, "_schemas", 1)
	want := l.CompareAll(ctx, "_schemas")
	store := read(want)
	for _, r := range clients.Readers() {
		got, err := r.Read(ctx, clients.Read{Bootstrap: l.Bootstrap(), Topic: "_schemas", Isolation: oracle.ReadCommitted, Expect: len(want)})
		require.NoError(t, err)
		require.Equal(t, store, read(got.Recs), r.Name)
	}
	ids := map[int]bool{}
	for k, v := range store {
		var x value
		if strings.Contains(k, "SCHEMA") {
			require.NoError(t, json.Unmarshal([]byte(v), &x))
			require.False(t, ids[x.ID], "id %d twice", x.ID)
			ids[x.ID] = true
		}
	}
	require.Len(t, ids, 38)

	// After a failover the registry here goes on: its next id is one above.
	l.Verb(ctx, nil, "stop", "--topic", "_schemas", "--timeout", "1m")
	_, err := content.Produce(ctx, l.Bootstrap(), "_schemas", 0, content.BatchOfBytes(oracle.None, ts, []byte(`{"keytype":"NOOP","magic":0}`), nil))
	require.NoError(t, err)
	got, err := oracle.Dump(ctx, l.Bootstrap(), "_schemas", 0, oracle.ReadCommitted)
	require.NoError(t, err)
	require.Empty(t, oracle.Diff(want, got[:len(want)]))
	require.Equal(t, want[len(want)-1].Offset+1, got[len(want)].Offset)
	require.Equal(t, store, read(got))
}

// HU-01: a record of 20 MB, on a topic that is allowed 32.
func TestHU01HugeRecord(t *testing.T) {
	testkafka.Require(t, "python3")
	ctx := withTimeout(t, 5*time.Minute)
	src := testkafka.Start(t, testkafka.Options{Name: "source", Heap: "500m"})
	dst := testkafka.Start(t, testkafka.Options{Name: "destination", Heap: "500m"})
	require.NoError(t, content.CreateTopic(ctx, src.Bootstrap(), "huge", 1, map[string]string{"max.message.bytes": "33554432"}))
	value := make([]byte, 20_000_000)
	for i := range value {
		value[i] = byte(i * 2654435761 >> 13)
	}
	for i, v := range [][]byte{[]byte("small"), value, []byte("behind")} {
		_, err := content.Produce(ctx, src.Bootstrap(), "huge", 0, content.BatchOfBytes(oracle.None, time.Now().UnixMilli(), []byte{byte(i)}, v))
		require.NoError(t, err)
	}
	l := e2e.Start(t, &binary, e2e.Setup{Source: src, Destination: dst, Include: []string{"huge"}})
	l.WaitCaughtUp(ctx, "huge", 1)
	want := l.CompareRaw(ctx, "huge", 0)
	require.Len(t, want, 3)
	for _, r := range clients.Readers() {
		l.CompareClient(ctx, r, clients.Read{Topic: "huge", Isolation: oracle.ReadCommitted}, want)
	}
}

// A topic of 2,000 partitions: created, filled, read through the proxy, and over a restart.
func TestTwoThousandPartitions(t *testing.T) {
	const parts = 2000
	ctx := withTimeout(t, 15*time.Minute)
	opts := testkafka.Options{Name: "source", Heap: "700m"}
	src := testkafka.Start(t, opts)
	opts.Name = "destination"
	dst := testkafka.Start(t, opts)
	from := admin(t, src)
	_, err := from.CreateTopic(ctx, parts, 1, map[string]*string{"segment.index.bytes": kadm.StringPtr("4096")}, "wide")
	require.NoError(t, err)
	cl, err := kgo.NewClient(kgo.SeedBrokers(src.Seeds()...), kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.DefaultProduceTopic("wide"))
	require.NoError(t, err)
	defer cl.Close()
	fill := func(round int) {
		var recs []*kgo.Record
		for p := range int32(parts) {
			for i := range 1 + int(p)%3 {
				recs = append(recs, &kgo.Record{Partition: p, Key: fmt.Appendf(nil, "%d", p), Value: fmt.Appendf(nil, "%d-%d-%d", round, p, i)})
			}
		}
		require.NoError(t, cl.ProduceSync(ctx, recs...).FirstErr())
	}
	fill(0)
	began := time.Now()
	l := e2e.Start(t, &binary, e2e.Setup{Source: src, Destination: dst, Include: []string{"wide"}})
	same := func() bool {
		there, err := from.ListEndOffsets(ctx, "wide")
		require.NoError(t, err)
		pcl, err := kgo.NewClient(kgo.SeedBrokers(l.Bootstrap()))
		require.NoError(t, err)
		defer pcl.Close()
		here, err := kadm.NewClient(pcl).ListEndOffsets(ctx, "wide")
		if err != nil || here.Error() != nil {
			return false
		}
		ok := true
		there.Each(func(o kadm.ListedOffset) {
			h, found := here.Lookup("wide", o.Partition)
			ok = ok && found && h.Offset == o.Offset
		})
		return ok
	}
	until(ctx, t, "all 2,000 partitions mirrored", same)
	t.Logf("%d partitions mirrored after %.1fs", parts, time.Since(began).Seconds())
	fill(1)
	until(ctx, t, "the second round", same)
	l.Restart()
	fill(2)
	began = time.Now()
	until(ctx, t, "the third round, after kill -9", same)
	t.Logf("caught up %.1fs after kill -9", time.Since(began).Seconds())

	read := func(bootstrap string) map[string]string {
		out := map[string]string{}
		rctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
		defer cancel()
		c, err := kgo.NewClient(kgo.SeedBrokers(bootstrap), kgo.ConsumeTopics("wide"), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
		require.NoError(t, err)
		defer c.Close()
		for len(out) < 3*(parts+parts-1) && rctx.Err() == nil {
			c.PollFetches(rctx).EachRecord(func(r *kgo.Record) {
				at := fmt.Sprintf("%d@%d", r.Partition, r.Offset)
				require.NotContains(t, out, at)
				out[at] = string(r.Value)
			})
		}
		return out
	}
	require.Equal(t, read(src.Bootstrap()), read(l.Bootstrap()))
}
