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
