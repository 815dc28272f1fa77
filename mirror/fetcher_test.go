package mirror

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestFetchesGrowWithTheRoundTrip(t *testing.T) {
	const own, all = 1 << 20, 16 << 20
	for _, c := range []struct {
		n    int
		rtt  time.Duration
		want int32
	}{
		{1, 0, own},
		{1, 3 * time.Millisecond, own},
		{1, 20 * time.Millisecond, 5 << 20},
		{1, 100 * time.Millisecond, all}, // what 50 MB/s on one partition need is 5 MB
		{1, time.Hour, all},
		{4, 100 * time.Millisecond, 4 << 20},
		{16, 100 * time.Millisecond, own},
		{1000, 100 * time.Millisecond, own}, // the answer is cut at its own limit
	} {
		require.Equal(t, c.want, stretched(own, all, c.n, c.rtt), "%d partitions, %v", c.n, c.rtt)
	}
	require.EqualValues(t, 100, stretched(own, 100, 1, time.Second), "never more than an answer has")
}

// A source broker a long way off is read over several connections; partitions
// that change theirs lose and double nothing.
func TestFarSourcesGetMoreConnections(t *testing.T) {
	r := newRig(t, 6)
	write := func(base int64) {
		for p := range int32(6) {
			for i := range int64(20) {
				r.write(p, rawBatch{base: base + i, n: 1})
			}
		}
	}
	lanes := func() int {
		r.eng.mu.Lock()
		defer r.eng.mu.Unlock()
		return len(r.eng.fetchers)
	}
	write(0)
	r.start()
	for p := range int32(6) {
		r.reached(p, 20)
	}
	require.Equal(t, 1, lanes())
	for i := range int64(6) {
		r.eng.distance(1, i%2 == 0)
		write(20 + 20*i)
	}
	r.eng.distance(1, true)
	require.Equal(t, 6, lanes(), "none without a partition")
	for p := range int32(6) {
		r.reached(p, 140)
		r.same(p)
	}
	r.eng.distance(1, false)
	require.Equal(t, 1, lanes())
	write(140)
	for p := range int32(6) {
		r.reached(p, 160)
		r.same(p)
	}
}

// While partitions join, a fetch without data is not held for long: it would keep out those that come meanwhile. Each
// arrival makes the waits short anew, and nothing else does.
func TestFetchesWaitLittleForNewcomers(t *testing.T) {
	const most = 500 * time.Millisecond
	var c newcomers
	got := func(n int) time.Duration { return c.wait(n, most) }
	require.Equal(t, busyWait, got(1))
	require.Equal(t, 2*busyWait, got(1))
	require.Equal(t, busyWait, got(500), "499 have joined")
	for w := 2 * busyWait; w < most; w *= 2 {
		require.Equal(t, w, got(500))
	}
	require.Equal(t, most, got(500))
	require.Equal(t, most, got(499), "one that leaves")
	require.Equal(t, busyWait, c.wait(500, busyWait), "never above what others ask for")
	require.Equal(t, busyWait, c.wait(499, busyWait))
	require.Equal(t, 2*busyWait, got(498))
}
