package mirror

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"

	"github.com/lockstep-kafka/lockstep/internal/kconn"
	"github.com/lockstep-kafka/lockstep/protocol"
)

// waits is how many answers wait for room.
func (m *Memory) waits() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.waiting)
}

func TestMemoryBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := NewMemory(1000)
		require.NoError(t, m.acquire(t.Context(), 5000)) // larger than all: let in alone
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		require.ErrorIs(t, m.acquire(ctx, 1), context.DeadlineExceeded)
		m.add(-5000)
		require.Zero(t, m.Used())

		require.NoError(t, m.acquire(t.Context(), 600))
		var got []int
		wait := func(n int64) {
			go func() {
				if m.acquire(t.Context(), n) == nil {
					got = append(got, int(n))
				}
			}()
			synctest.Wait()
		}
		wait(500)
		wait(100)
		require.Empty(t, got, "first come, first served: the small one waits behind the large one")
		m.add(300)
		require.Equal(t, int64(900), m.Used(), "what is made of what is there waits for nobody")
		m.add(-350)
		synctest.Wait()
		require.Empty(t, got)
		m.add(-50)
		synctest.Wait()
		require.Equal(t, []int{500}, got)
		m.add(-100)
		synctest.Wait()
		require.Equal(t, []int{500, 100}, got)
		require.Equal(t, int64(1000), m.Used())

		// Who gives up lets those behind it go on.
		ctx, cancel = context.WithCancel(t.Context())
		left := make(chan error, 1)
		go func() { left <- m.acquire(ctx, 900) }()
		synctest.Wait()
		m.add(-10)
		wait(10)
		require.Len(t, got, 2)
		cancel()
		require.ErrorIs(t, <-left, context.Canceled)
		synctest.Wait()
		require.Equal(t, []int{500, 100, 10}, got)
		require.Zero(t, m.waits())
	})
}

// A buffer counts with what it pins, also when it is an idle one that is larger.
func TestMemoryCountsWhatIsPinned(t *testing.T) {
	m, pool := NewMemory(64<<20), &kconn.Pool{}
	b, err := m.get(t.Context(), pool, 190<<10)
	require.NoError(t, err)
	require.Equal(t, int64(b.Cap()), m.Used())
	b.Retain()
	b.Release()
	require.Equal(t, int64(b.Cap()), m.Used())
	b.Release()
	require.Zero(t, m.Used())
	c := m.take(pool, 100<<10)
	require.Same(t, b, c)
	require.Equal(t, int64(c.Cap()), m.Used())
	c.Release()
	require.Zero(t, m.Used())
}

// Many partitions with small batches, a destination that stands still: what is
// fetched, and what is made of it, stays within the limit and what was let in
// last, whatever the queues of so many partitions might hold.
func TestMemoryOfManyPartitions(t *testing.T) {
	const parts, batches = 60, 40
	r := newRig(t, parts)
	r.memory, r.tuning.KeepBatches = 256<<10, false
	const first = 1000 // so that all batches are of one size
	size := rawBatch{base: first, n: 60}.bytes().Size()
	r.src.answerMax = batches / 2 * size // they are all joined: no batch keeps an answer
	var all int64
	for p := range int32(parts) {
		r.write(p, rawBatch{base: first, n: 60})
	}
	r.start()
	for p := range int32(parts) { // a destination that stands still lets none begin
		r.reached(p, first+60)
	}
	hold, held := make(chan struct{}), make(chan struct{}, parts*batches)
	r.dst.with("t", 0, func(*fakeLog) {
		r.dst.onProduce = func(partKey, *fakeLog, protocol.Batch) (int16, bool) {
			held <- struct{}{}
			<-hold
			return 0, false
		}
	})
	for p := range int32(parts) {
		r.src.with("t", p, func(l *fakeLog) {
			for i := int64(1); i < batches; i++ {
				l.append(rawBatch{base: first + 60*i, n: 60}.bytes())
				all += int64(size)
			}
		})
	}
	require.Greater(t, all, 8*r.memory)
	let := sync.OnceFunc(func() { close(hold) })
	defer let()
	<-held
	var queued int64
	eventually(t, "standstill", func() bool {
		queued = 0
		ready := r.eng.Memory.waits() > 0
		for p := range int32(parts) {
			x := r.eng.Partition("t", p)
			x.mu.Lock()
			queued += int64(x.queued)
			for _, it := range x.queue {
				ready = ready && it.ready
			}
			x.mu.Unlock()
		}
		return ready
	})
	used := r.eng.Memory.Used()
	require.LessOrEqual(t, used, 3*r.memory, "what is made of what was let in comes on top")
	require.LessOrEqual(t, queued, used, "nothing is queued that doesn't count")
	let()
	for p := range int32(parts) {
		r.reached(p, first+60*batches)
		r.same(p)
	}
	require.NotZero(t, testutil.ToFloat64(r.met.merged.WithLabelValues("m", "t")))
}
