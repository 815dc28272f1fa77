package measure

import (
	"net"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestParseUsage(t *testing.T) {
	stat := "77 (a (b) c) S 1 77 77 0 -1 4194560 100 0 0 0 150 50 7 8 20 0 9 0 12345 1000 200 0"
	status := "Name:\tx\nVmPeak:\t  9999 kB\nVmHWM:\t   2048 kB\nVmRSS:\t   1024 kB\n"
	u, err := parseUsage([]byte(stat), []byte(status))
	require.NoError(t, err)
	require.Equal(t, Usage{CPU: 2 * time.Second, RSS: 1 << 20, Peak: 2 << 20}, u)

	_, err = parseUsage([]byte("77 (x) S 1 2"), nil)
	require.Error(t, err)
	_, err = parseUsage([]byte("77 (x) S 1 77 77 0 -1 4194560 100 0 0 0 x 50"), nil)
	require.Error(t, err)
}

// The kernel's own counters: work that this process does shows in them.
func TestProcessCountsWork(t *testing.T) {
	before, err := Process(os.Getpid())
	require.NoError(t, err)
	require.Positive(t, before.Peak)
	require.GreaterOrEqual(t, before.Peak, before.RSS)
	var after Usage
	require.Eventually(t, func() bool {
		n := 0
		for i := range 10_000_000 {
			n ^= i
		}
		_ = n
		after, err = Process(os.Getpid())
		return err == nil && after.CPU >= before.CPU+50*time.Millisecond
	}, 30*time.Second, time.Millisecond)
}

func TestListenerPid(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { _ = l.Close() }()
	pid, err := ListenerPid(l.Addr().(*net.TCPAddr).Port)
	require.NoError(t, err)
	require.Equal(t, os.Getpid(), pid)
	require.Equal(t, []string{"321"}, listeners("  sl  local_address rem_address   st\n"+
		"   0: 0100007F:2382 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 321 1 x\n"+
		"   1: 0100007F:2382 0100007F:1111 01 00000000:00000000 00:00000000 00000000     0        0 322 1 x\n", 0x2382))
}

func TestLoad(t *testing.T) {
	require.InDelta(t, 0.42, parseLoad("0.42 0.10 0.05 1/234 999\n"), 0)
	require.InDelta(t, -1, parseLoad("nonsense"), 0)
}

func TestLatencyQuantiles(t *testing.T) {
	l := NewLatency()
	for i := 1; i <= 1000; i++ {
		l.Record(time.Duration(i) * time.Millisecond)
	}
	l.Record(-time.Second) // a consumer that is faster than the ack
	l.Record(time.Hour)
	require.EqualValues(t, 1002, l.Count())
	require.InEpsilon(t, 500, l.Quantile(0.5), 0.01)
	require.InEpsilon(t, 990, l.Quantile(0.99), 0.01)
	require.InEpsilon(t, 600_000, l.Max(), 0.01)
}

// Pinned texts of /proc/stat: guest time is in user already, idle and iowait
// are nobody's, steal is a column of its own.
func TestCPUs(t *testing.T) {
	a, err := parseCPUs("cpu  1000 50 300 8000 400 10 40 200 30 5\ncpu0 500 25 150 4000 200 5 20 100 15 2\nintr 1\n")
	require.NoError(t, err)
	require.Equal(t, CPUTimes{Used: 1400, Stolen: 200, All: 10_000}, a)
	b, err := parseCPUs("cpu  1060 50 320 8290 410 12 48 210 90 5\n")
	require.NoError(t, err)
	used, stolen := Share(a, b)
	require.InDelta(t, 22.5, used, 1e-9, "90 of 400 ticks")
	require.InDelta(t, 2.5, stolen, 1e-9)
	used, stolen = Share(a, a)
	require.Zero(t, used+stolen)

	old, err := parseCPUs("cpu  1 2 3 4 5 6 7\n")
	require.NoError(t, err, "kernels without steal")
	require.Equal(t, CPUTimes{Used: 19, All: 28}, old)
	for _, bad := range []string{"", "cpu0 1 2 3 4 5 6 7 8", "cpu  1 2 x 4 5 6 7 8", "cpu 1 2"} {
		_, err = parseCPUs(bad)
		require.Error(t, err, bad)
	}
	now, err := CPUs()
	require.NoError(t, err)
	require.Positive(t, now.All)
}
