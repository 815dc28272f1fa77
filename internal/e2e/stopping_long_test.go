//go:build long

package e2e_test

import (
	"context"
	"encoding/json"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/internal/e2e"
	"github.com/lockstep-kafka/lockstep/internal/ledger"
	"github.com/lockstep-kafka/lockstep/internal/testkafka"
	"github.com/lockstep-kafka/lockstep/internal/testkafka/content"
	"github.com/lockstep-kafka/lockstep/internal/testkafka/oracle"
)

// stopKinds are kinds of topics whose STOPPING differs.
var stopKinds = map[string]map[string]string{
	"delete":  {"retention.ms": "-1"},
	"compact": {"cleanup.policy": "compact"},
	"append":  {"message.timestamp.type": "LogAppendTime", "retention.ms": "-1"},
}

// counted says whether a request changes or asks what a STOPPING is made of; the ledger's fetches and the heartbeats come
// at any time.
func counted(key int16) bool {
	switch kmsg.Key(key) {
	case kmsg.Produce, kmsg.ListOffsets, kmsg.OffsetForLeaderEpoch, kmsg.InitProducerID, kmsg.AddPartitionsToTxn, kmsg.EndTxn, kmsg.IncrementalAlterConfigs:
		return true
	default:
		return false
	}
}

// TestKilledWhileStopping: kill -9 at each request of a STOPPING to the destination, before the broker has it and after
// (its answer lost); `stop` again makes an end of it, with the exact pair (F6, F10).
func TestKilledWhileStopping(t *testing.T) {
	ctx := withTimeout(t, 9*time.Minute)
	src := testkafka.Start(t, testkafka.Options{Name: "source"})
	dst, relay, addr := relayed(t, "destination")
	const most, records = 12, 6
	name := func(n int, kind string) string { return fmt.Sprintf("stopped-%d-%s", n, kind) }
	for n := range most {
		for kind, conf := range stopKinds {
			require.NoError(t, content.CreateTopic(ctx, src.Bootstrap(), name(n, kind), 1, conf))
			for i := range int64(records) {
				_, err := content.Produce(ctx, src.Bootstrap(), name(n, kind), 0, content.Batch(1_700_000_000_000+i, fmt.Sprint("k", i), "v"))
				require.NoError(t, err)
			}
		}
	}
	l := e2e.Start(t, &binary, e2e.Setup{Source: src, Destination: dst, DestinationBootstrap: addr, Include: []string{"stopped-.*"}})
	for n := range most {
		for kind := range stopKinds {
			l.WaitCaughtUp(ctx, name(n, kind), 1)
		}
	}
	kills := 0
	for n := range most {
		var seen atomic.Int64
		reached := make(chan struct{})
		relay.OnRequest(func(key int16, _ []byte) bool {
			if !counted(key) {
				return true
			}
			at := seen.Add(1) - 1
			if at == int64(n) {
				close(reached)
			}
			// The last one gets through every other time; what follows it is of a process that is as good as dead.
			return at < int64(n) || at == int64(n) && n%2 == 1
		})
		done := make(chan struct{})
		cctx, cancel := context.WithCancel(ctx)
		go func() {
			defer close(done)
			l.CLI(cctx, "stop", "--regex", fmt.Sprintf("stopped-%d-.*", n), "--timeout", "60s")
		}()
		select {
		case <-reached:
			kills++
			l.Kill9()
			relay.OnRequest(nil)
			cancel()
			<-done
			l.Launch()
		case <-done:
			relay.OnRequest(nil)
			cancel()
		}
		var got struct {
			Partitions []e2e.PartitionStatus `json:"partitions"`
		}
		l.Verb(ctx, &got, "stop", "--regex", fmt.Sprintf("stopped-%d-.*", n), "--timeout", "60s")
		require.Len(t, got.Partitions, len(stopKinds))
		for _, p := range got.Partitions {
			require.Equal(t, "STOPPED", p.State, "%d %s", n, p.Topic)
			require.Equal(t, []int64{0, records}, []int64{int64(p.LME), p.LMO}, "%d %s", n, p.Topic)
			require.EqualValues(t, records, p.Left.Offset)
			l.CompareRaw(ctx, p.Topic, 0)
			put(ctx, t, l.Bootstrap(), p.Topic, records, "local")
		}
	}
	require.Greater(t, kills, most/2, "most were killed in the middle")
}

// TestStopWithoutSourceAndBroker: the source is dead and the destination, RF 3, has one broker less. The stop works, and
// says for each partition what was left behind.
func TestStopWithoutSourceAndBroker(t *testing.T) {
	ctx := withTimeout(t, 5*time.Minute)
	src, dst := testkafka.Start(t, testkafka.Options{Name: "source"}), destination(t, 3)
	const topic = "left"
	require.NoError(t, content.CreateTopic(ctx, src.Bootstrap(), topic, 3, map[string]string{"retention.ms": "-1"}))
	for p := range int32(3) {
		for i := range int64(p) + 2 {
			_, err := content.Produce(ctx, src.Bootstrap(), topic, p, content.Batch(1_700_000_000_000+i, "k", "v"))
			require.NoError(t, err)
		}
	}
	l := e2e.Start(t, &binary, e2e.Setup{Source: src, Destination: dst, Include: []string{topic}, Mirror: []string{"replication_factor: 3"}})
	l.WaitCaughtUp(ctx, topic, 3)
	// Partition 0 goes on on the source while it is paused: neither its records nor its new end are known here.
	l.Verb(ctx, nil, "pause", "--topic", topic)
	_, err := content.Produce(ctx, src.Bootstrap(), topic, 0, content.Batch(1_700_000_000_009, "k", "lost"))
	require.NoError(t, err)
	var want [][]oracle.Rec
	for p := range int32(3) {
		want = append(want, l.SourceRecs(ctx, topic, p))
	}
	want[0] = want[0][:2]
	for p := range int32(3) { // its checkpoint says what was known of the source's end: the next owner has nothing else
		until(ctx, t, "a checkpoint", func() bool {
			recs, err := oracle.Dump(ctx, dst.Bootstrap(), ledger.Topic, ledger.PartitionOf(topic, p), oracle.ReadCommitted)
			require.NoError(t, err)
			for _, r := range recs {
				if string(r.Key) != ledger.CheckpointKey(topic, p) {
					continue
				}
				v, err := ledger.Decode(r.Key, r.Value)
				require.NoError(t, err)
				if c, ok := v.(*ledger.Checkpoint); ok && c.Position == int64(p)+2 && c.SourceEnd >= c.Position {
					return true
				}
			}
			return false
		})
	}
	require.NoError(t, src.Kill(1))
	require.NoError(t, dst.Kill(3))
	l.Restart()
	began := time.Now()
	out, code := l.CLI(ctx, "stop", "--topic", topic, "--timeout", "90s", "--json")
	require.Zero(t, code)
	t.Logf("MEASURED FO-05: a stop without the source and one broker less took %.1fs", time.Since(began).Seconds())
	var got struct {
		Partitions []e2e.PartitionStatus `json:"partitions"`
	}
	require.NoError(t, json.Unmarshal([]byte(out), &got))
	require.Len(t, got.Partitions, 3)
	for _, p := range got.Partitions {
		require.Equal(t, "STOPPED", p.State)
		require.EqualValues(t, p.Partition+2, p.LMO)
		require.EqualValues(t, p.LMO, p.Left.Offset)
		require.EqualValues(t, 0, p.Left.Epoch)
		require.EqualValues(t, 1_700_000_000_000+p.LMO-1, p.Left.Timestamp)
		require.GreaterOrEqual(t, p.Left.SourceEnd, p.LMO)
		recs, err := oracle.Dump(ctx, l.Bootstrap(), topic, p.Partition, oracle.ReadCommitted)
		require.NoError(t, err)
		require.Empty(t, oracle.Diff(want[p.Partition], recs))
	}
	text, code := l.CLI(ctx, "stop", "--topic", topic)
	require.Zero(t, code)
	for p := range 3 {
		require.Regexp(t, fmt.Sprintf(`left\s+│\s+%d\s+│ STOPPED`, p), text)
	}
	put(ctx, t, l.Bootstrap(), topic, 2, "local")
}
