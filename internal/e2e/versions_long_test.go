//go:build long

package e2e_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-kafka/lockstep/internal/e2e"
	"github.com/lockstep-kafka/lockstep/internal/testkafka"
	"github.com/lockstep-kafka/lockstep/internal/testkafka/content"
	"github.com/lockstep-kafka/lockstep/internal/testkafka/oracle"
)

// relayed is a cluster of one broker behind a relay.
func relayed(t *testing.T, name string) (*testkafka.Cluster, *e2e.Relay, string) {
	t.Helper()
	ports, err := testkafka.ReservePorts(2)
	require.NoError(t, err)
	t.Cleanup(ports.Release)
	c := testkafka.Start(t, testkafka.Options{Name: name, Listeners: []testkafka.Listener{{Name: "RELAY", Listen: ports.Addr(0), Advertised: ports.Addr(1)}}})
	return c, e2e.StartRelay(t, ports.Addr(1), ports.Addr(0)), ports.Addr(1)
}

// saved copies partition 0 of topics as they are now; the result puts them back, with the broker killed and started: a
// source that has lost what came after, as by an unclean election.
func saved(ctx context.Context, t *testing.T, c *testkafka.Cluster, topics ...string) (restore func()) {
	t.Helper()
	dir := t.TempDir()
	require.NoError(t, c.Stop(1))
	for _, topic := range topics {
		require.NoError(t, os.CopyFS(filepath.Join(dir, topic), os.DirFS(filepath.Join(c.LogDir(1), topic+"-0"))))
	}
	require.NoError(t, c.StartBroker(ctx, 1))
	return func() {
		t.Helper()
		require.NoError(t, c.Kill(1))
		for _, topic := range topics {
			at := filepath.Join(c.LogDir(1), topic+"-0")
			require.NoError(t, os.RemoveAll(at))
			require.NoError(t, os.CopyFS(at, os.DirFS(filepath.Join(dir, topic))))
		}
		require.NoError(t, c.StartBroker(ctx, 1))
	}
}

// TestSourceChangesItsVersion: a source that speaks Fetch v11, then v16, then v11 again. How truncations are noticed
// changes by itself, with the same results, also for a partition that was empty when it was fetched first.
func TestSourceChangesItsVersion(t *testing.T) {
	ctx := withTimeout(t, 6*time.Minute)
	src, relay, addr := relayed(t, "source")
	relay.MaxFetch(11)
	dst := destination(t, 1)
	const topic, empty = "versions", "versions-empty"
	for _, x := range []string{topic, empty} {
		require.NoError(t, content.CreateTopic(ctx, src.Bootstrap(), x, 1, map[string]string{"retention.ms": "-1"}))
	}
	for i := range int64(5) {
		put(ctx, t, src.Bootstrap(), topic, i, "a")
	}
	l := e2e.Start(t, &binary, e2e.Setup{
		Source: src, SourceBootstrap: addr, Destination: dst, Include: []string{"versions.*"}, Mirror: []string{"unclean_leader_election: true"},
	})
	same := func(want int, topics ...string) {
		t.Helper()
		for _, x := range topics {
			// Until a cut the proxy's end may be above the source's.
			require.Eventually(t, func() bool {
				end, err := oracle.ListOffset(ctx, l.Bootstrap(), x, 0, oracle.ReadUncommitted, oracle.Latest)
				ps := l.Describe(ctx, x)
				return err == nil && end.Offset == int64(want) && len(ps) == 1 && ps[0].State == "MIRRORING"
			}, time.Minute, 50*time.Millisecond, "%s at %d", x, want)
			require.Len(t, l.CompareRaw(ctx, x, 0), want)
		}
	}
	same(5, topic)
	restore := saved(ctx, t, src, topic)
	put(ctx, t, src.Bootstrap(), topic, 5, "b")
	put(ctx, t, src.Bootstrap(), topic, 6, "b")
	same(7, topic)
	restore()
	put(ctx, t, src.Bootstrap(), topic, 5, "c")
	same(6, topic)
	for v := range relay.Fetches() {
		require.EqualValues(t, 11, v)
	}

	relay.MaxFetch(16)
	put(ctx, t, src.Bootstrap(), topic, 6, "d")
	for i := range int64(7) {
		put(ctx, t, src.Bootstrap(), empty, i, "first")
	}
	same(7, topic, empty)
	restore = saved(ctx, t, src, topic, empty)
	for _, x := range []string{topic, empty} {
		put(ctx, t, src.Bootstrap(), x, 7, "e")
		put(ctx, t, src.Bootstrap(), x, 8, "e")
	}
	same(9, topic, empty)
	restore()
	for _, x := range []string{topic, empty} {
		put(ctx, t, src.Bootstrap(), x, 7, "f")
	}
	same(8, topic, empty)
	for v := range relay.Fetches() {
		require.EqualValues(t, 16, v)
	}

	relay.MaxFetch(11)
	restore = saved(ctx, t, src, topic, empty)
	for _, x := range []string{topic, empty} {
		put(ctx, t, src.Bootstrap(), x, 8, "g")
		put(ctx, t, src.Bootstrap(), x, 9, "g")
	}
	same(10, topic, empty)
	restore()
	for _, x := range []string{topic, empty} {
		put(ctx, t, src.Bootstrap(), x, 8, "h")
	}
	same(9, topic, empty)
	for v := range relay.Fetches() {
		require.EqualValues(t, 11, v)
	}
	for _, x := range []string{topic, empty} {
		stop(ctx, t, l, x)
	}
}
