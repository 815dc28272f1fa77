package mirror

import (
	"math"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/protocol"
)

// Faults that users of other tools have met (docs/cases.md).

// LA-11: a partition with much to catch up, whose data fills the answers, leaves room for one with little. LA-09: no
// rack is sent, so no broker refers to a follower that may stop: the leader is read, always.
func TestLA11LargePartitionsLeaveRoom(t *testing.T) {
	const large = 200
	r := newRig(t, 2)
	r.tuning.FetchPartitionMaxBytes = 4 << 20 // its queue is never full
	r.write(0, rawBatch{base: 0, n: 1})
	r.write(1, rawBatch{base: 0, n: 1})
	racks := map[string]bool{}
	r.src.mu.Lock()
	r.src.answerMax = 4 << 10 // the first in the request gets it all
	r.src.onFetch = func(q *kmsg.FetchRequest) { racks[q.Rack] = true }
	r.src.mu.Unlock()
	r.start()
	r.reached(0, 1) // both are at work: from here on it is up to the fetcher
	r.reached(1, 1)
	first, before := 0, -1
	r.dst.hook(func(k partKey, _ *fakeLog, _ protocol.Batch) (int16, bool) {
		switch {
		case k.partition == 0:
			first++
		case before < 0:
			before = first
		}
		return 0, false
	})
	r.src.with("t", 0, func(l *fakeLog) {
		for i := range int64(large) {
			l.append(rawBatch{base: 1 + i*300, n: 300}.bytes()) // some KiB
		}
		r.src.log("t", 1).append(rawBatch{base: 1, n: 1}.bytes())
	})
	r.meta()
	r.reached(0, 1+large*300)
	r.reached(1, 2)
	r.same(0)
	r.same(1)
	r.stop()
	r.src.mu.Lock()
	defer r.src.mu.Unlock()
	r.dst.mu.Lock()
	defer r.dst.mu.Unlock()
	require.Less(t, before, large/10, "batches of the large one before the small one's")
	require.Equal(t, map[string]bool{"": true}, racks)
}

// gathered are the values of a metric, by topic and partition, or by broker.
func gathered(t *testing.T, reg *prometheus.Registry, name string) map[string]*dto.Metric {
	t.Helper()
	fs, err := reg.Gather()
	require.NoError(t, err)
	out := map[string]*dto.Metric{}
	for _, f := range fs {
		if f.GetName() != name {
			continue
		}
		for _, m := range f.GetMetric() {
			k := ""
			for _, l := range m.GetLabel() {
				if l.GetName() != "mirror" {
					k += l.GetValue() + " "
				}
			}
			out[k] = m
		}
	}
	return out
}

// ME-03: the lag of a topic that nobody writes to is 0, as a number, from the first moment on, and its series stay when
// the source goes away.
func TestME03IdleTopic(t *testing.T) {
	reg := prometheus.NewRegistry()
	r := newRig(t, 2)
	r.met = NewMetrics(reg)
	r.write(0, rawBatch{base: 0, n: 3}) // the other one is empty
	r.start()
	r.reached(0, 3)
	eventually(t, "the empty one runs", func() bool { return r.eng.Partition("t", 1).running() })
	idle := func() bool {
		for _, name := range []string{"lockstep_mirror_lag_records", "lockstep_mirror_lag_bytes", "lockstep_mirror_lag_seconds", "lockstep_mirror_partition_failed"} {
			got := gathered(t, reg, name)
			require.Len(t, got, 2, name)
			for k, m := range got {
				v := m.GetGauge().GetValue()
				require.False(t, math.IsNaN(v) || math.IsInf(v, 0) || v < 0, "%s of %s: %v", name, k, v)
				if v != 0 {
					return false
				}
			}
		}
		return true
	}
	eventually(t, "all is 0", idle)
	r.src.mu.Lock()
	r.src.breakFetch = func(*kmsg.FetchRequest) bool { return true }
	r.src.mu.Unlock()
	r.src.dropConns()
	for end := time.Now().Add(100 * time.Millisecond); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		idle() // all there, and numbers
	}
	require.Len(t, gathered(t, reg, "lockstep_mirror_lag_records"), 2)
	r.stop()
}

// LA-05: when lag grows, the metrics name the broker that is slow.
func TestLA05SlowBrokerIsNamed(t *testing.T) {
	const slow = 50 * time.Millisecond
	reg := prometheus.NewRegistry()
	r := newRig(t, 1)
	r.met = NewMetrics(reg)
	r.write(0, rawBatch{base: 0, n: 3})
	r.dst.onProduce = func(partKey, *fakeLog, protocol.Batch) (int16, bool) {
		time.Sleep(slow)
		return 0, false
	}
	r.start()
	r.reached(0, 3)
	r.stop()
	got := gathered(t, reg, "lockstep_mirror_produce_seconds")
	require.Contains(t, got, "1 ")
	h := got["1 "].GetHistogram()
	require.Positive(t, h.GetSampleCount())
	require.GreaterOrEqual(t, h.GetSampleSum(), slow.Seconds())
}
