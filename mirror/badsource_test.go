package mirror

import (
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// A source batch above limits.max_frame_bytes fails its partition, by name; the
// others of its broker go on.
func TestFrameTooLarge(t *testing.T) {
	r := newRig(t, 5)
	r.maxFrame = 8 << 10
	for p := range int32(5) {
		r.write(p, rawBatch{base: 0, n: 2})
	}
	r.start()
	for p := range int32(5) {
		r.reached(p, 2)
	}
	r.write(3, rawBatch{base: 2, n: 2000})
	text := r.failedWith(3, "limits.max_frame_bytes")
	require.Contains(t, text, "offset 2 is too large")
	require.Contains(t, text, "allowed are 8192")
	for i := range int64(5) {
		for _, p := range []int32{0, 1, 2, 4} {
			r.write(p, rawBatch{base: 2 + i, n: 1})
			r.reached(p, 3+i)
		}
	}
	for _, p := range []int32{0, 1, 2, 4} {
		require.Empty(t, r.eng.Partition("t", p).Status().Error)
		r.same(p)
	}
}

// Ordinary answers stay below limits.max_frame_bytes, also where that is less
// than fetch_max_bytes.
func TestFrameLimitBelowFetchSize(t *testing.T) {
	r := newRig(t, 4)
	r.maxFrame = 8 << 10
	r.src.mu.Lock()
	r.src.onFetch = func(q *kmsg.FetchRequest) {
		if q.MaxBytes > 7<<10 || q.Topics[0].Partitions[0].PartitionMaxBytes > 7<<10 {
			t.Errorf("asks for %d bytes", q.MaxBytes)
		}
	}
	r.src.mu.Unlock()
	r.write(0, rawBatch{base: 0, n: 2})
	r.start()
	r.reached(0, 2)
}

// Partitions that break their source broker's connection whenever they are
// asked for are found; the others go on, and they too once it is over.
func TestIsolatesBreakingPartitions(t *testing.T) {
	const parts = 20
	bad := map[int32]bool{3: true, 17: true}
	r := newRig(t, parts)
	for p := range int32(parts) {
		r.write(p, rawBatch{base: 0, n: 2})
	}
	var mu sync.Mutex
	on, both := true, 0
	alone := map[int32]bool{} // bad ones asked alone since one was last asked with others
	r.src.mu.Lock()
	r.src.breakFetch = func(q *kmsg.FetchRequest) bool {
		mu.Lock()
		defer mu.Unlock()
		n, all := 0, 0
		for _, tp := range q.Topics {
			for _, p := range tp.Partitions {
				all++
				if bad[p.Partition] {
					n++
					alone[p.Partition] = true
				}
			}
		}
		if n > 0 && all > 1 {
			both++
			clear(alone)
		}
		return on && n > 0
	}
	r.src.mu.Unlock()
	r.start()
	for p := range int32(parts) {
		if !bad[p] {
			r.reached(p, 2)
		}
	}
	var was int
	require.Eventually(t, func() bool {
		mu.Lock()
		defer mu.Unlock()
		was = both
		return len(alone) == len(bad)
	}, 20*time.Second, time.Millisecond, "found")
	for i := range int64(10) {
		r.write(0, rawBatch{base: 2 + i, n: 1})
		r.reached(0, 3+i)
	}
	mu.Lock()
	after := both
	on = false
	mu.Unlock()
	require.Equal(t, was, after, "the bad ones are asked alone")
	require.LessOrEqual(t, was, 2+2*6, "found by halves")
	for p := range int32(parts) {
		r.reached(p, 2)
		r.same(p)
	}
}

// fetchesOf notes when the source is asked for a partition.
func (r *rig) fetchesOf(p int32) (times func() []time.Time) {
	var mu sync.Mutex
	var all []time.Time
	r.src.mu.Lock()
	defer r.src.mu.Unlock()
	var last *kmsg.FetchRequest
	r.src.onFetch = func(q *kmsg.FetchRequest) {
		for _, tp := range q.Topics {
			for _, x := range tp.Partitions {
				if x.Partition == p && q != last { // once, though a long poll looks again
					last = q
					mu.Lock()
					all = append(all, time.Now())
					mu.Unlock()
				}
			}
		}
	}
	return func() []time.Time {
		mu.Lock()
		defer mu.Unlock()
		return append([]time.Time(nil), all...)
	}
}

// A source broker whose answers say nothing of a partition isn't asked for it
// without a pause, and status says what is wrong. The others go on, and so does
// it in the end.
func TestSourceLeavesAPartitionOut(t *testing.T) {
	r := newRig(t, 2)
	r.write(0, rawBatch{base: 0, n: 2})
	r.write(1, rawBatch{base: 0, n: 2})
	asked := r.fetchesOf(1)
	r.src.mu.Lock()
	r.src.leaveOut = map[int32]bool{1: true}
	r.src.mu.Unlock()
	began := time.Now() // not when the first one arrived, which may be late
	r.start()
	r.reached(0, 2)
	eventually(t, "tries", func() bool { return len(asked()) > 3 })
	// In front of the first wait one may be asked for that could have been left out for want of room.
	require.GreaterOrEqual(t, time.Since(began), (tryMin+2*tryMin)*4/5)
	require.Contains(t, r.eng.Partition("t", 1).Status().Error, "leaves the partition out")
	r.write(0, rawBatch{base: 2, n: 1})
	r.reached(0, 3)
	r.src.mu.Lock()
	r.src.leaveOut = nil
	r.src.mu.Unlock()
	r.reached(1, 2)
	require.Empty(t, r.eng.Partition("t", 1).Status().Error)
	r.same(1)
}

// A source broker that answers at once though there is nothing isn't asked
// without a pause.
func TestSourceDoesNotWait(t *testing.T) {
	r := newRig(t, 1)
	r.write(0, rawBatch{base: 0, n: 2})
	asked := r.fetchesOf(0)
	r.src.mu.Lock()
	r.src.hurry = true
	r.src.mu.Unlock()
	r.start()
	r.reached(0, 2)
	began := time.Now()
	n := len(asked())
	eventually(t, "tries", func() bool { return len(asked()) > n+hasty+5 })
	require.GreaterOrEqual(t, time.Since(began), 3*r.tuning.FetchWaitMax/2)
	r.write(0, rawBatch{base: 2, n: 1})
	r.reached(0, 3)
}

// One garbled answer is asked for again.
func TestOneGarbledAnswer(t *testing.T) {
	r := newRig(t, 1)
	r.write(0, rawBatch{base: 0, n: 2}, rawBatch{base: 2, n: 2})
	n := 0
	garbled := []func(b []byte) []byte{
		func([]byte) []byte { return make([]byte, 200) },                                       // magic 0, offset 0
		func(b []byte) []byte { b = append([]byte(nil), b...); b[16] = 1; b[3] = 9; return b }, // magic 1 elsewhere
		func(b []byte) []byte { return b[:70] },
	}
	r.src.mu.Lock()
	r.src.garble = func(_ int32, b []byte) []byte {
		if n++; n <= len(garbled) && len(b) > 0 {
			return garbled[n-1](b)
		}
		return b
	}
	r.src.mu.Unlock()
	r.start()
	r.reached(0, 4)
	r.same(0)
	require.Zero(t, r.store.Partition("t", 0).Record.Retries)
	for _, x := range r.store.written() {
		require.Empty(t, x.Error)
	}
}

// The same garbage again and again is the log's: FAILED for good.
func TestGarbageStays(t *testing.T) {
	for name, magic := range map[string]byte{"format v0 or v1": 1, "magic 9": 9} {
		r := newRig(t, 1)
		r.write(0, rawBatch{base: 0, n: 2})
		r.src.mu.Lock()
		asked := 0
		r.src.garble = func(_ int32, b []byte) []byte {
			asked++
			b = append([]byte(nil), b...)
			b[16] = magic
			return b
		}
		r.src.mu.Unlock()
		r.start()
		text := r.failedWith(0, name)
		require.False(t, strings.Contains(text, "answer 1 of"), text)
		eventually(t, "for good", func() bool { return r.store.Partition("t", 0).Record.Retries == -1 })
		r.src.mu.Lock()
		require.Equal(t, badAnswers, asked)
		r.src.mu.Unlock()
		r.stop()
	}
}
