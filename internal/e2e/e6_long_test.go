//go:build long

package e2e_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-kafka/lockstep/internal/e2e"
	"github.com/lockstep-kafka/lockstep/internal/testkafka/content"
	"github.com/lockstep-kafka/lockstep/internal/testkafka/oracle"
)

// TestE6SupportSwitchedOn is facts.md E6 on real clusters (epoch 1 for the example's 5). A replica of A keeps a tail
// 2…5(1) through an alignment with support off, while both clusters have B's 2…5(1); support is switched on, then the
// replica is elected. Offsets up to 5 may be of either branch; everything behind them is equal after the next alignment.
func TestE6SupportSwitchedOn(t *testing.T) {
	ctx := withTimeout(t, 6*time.Minute)
	a := e2e.NewSide(t, &binary, "a", uleSource(ctx, t))
	b := e2e.NewSide(t, &binary, "b", destination(t, 1))
	putAll(ctx, t, a.Cluster, 0, "a", 2)
	a.Up()
	b.Mirrors("a", a.Bootstrap(), []string{uleTopic}, "bump_step: 1")
	b.Up()
	b.WaitState(ctx, uleTopic, 1, "MIRRORING")
	b.Same(ctx, b.Bootstrap(), a.Bootstrap(), uleTopic, 0)

	// Failover to B, which writes 2…5(1).
	p := stop(ctx, t, b.Lockstep, uleTopic)
	require.Equal(t, []int64{0, 2}, []int64{int64(p.LME), p.LMO})
	for i := range int64(4) {
		put(ctx, t, b.Bootstrap(), uleTopic, 2+i, fmt.Sprintf("b%d", 2+i))
	}
	const branchB = "0(0) a0, 1(0) a1, 2(1) b2, 3(1) b3, 4(1) b4, 5(1) b5"
	require.Equal(t, branchB, log(ctx, t, b.Bootstrap(), uleTopic))

	// A's broker 2, alone, writes others under the same epoch, and is lost: nobody has seen them.
	a.Stop()
	only := func(id int32) {
		t.Helper()
		require.NoError(t, content.WaitLeader(ctx, a.Cluster.Bootstrap(), uleTopic, 0, func(p oracle.Partition) bool {
			return p.Leader == id && len(p.ISR) == 1
		}))
	}
	require.NoError(t, a.Cluster.Kill(1))
	only(2)
	putAll(ctx, t, a.Cluster, 2, "x", 4)
	require.Equal(t, "0(0) a0, 1(0) a1, 2(1) x2, 3(1) x3, 4(1) x4, 5(1) x5", log(ctx, t, a.Cluster.Bootstrap(), uleTopic))
	unclean(ctx, t, a.Cluster, 2, 1)

	// With support off A mirrors B; the loss is no cut.
	a.Mirrors("b", b.Bootstrap(), []string{uleTopic}, "bump_step: 1")
	a.Launch()
	a.WaitState(ctx, uleTopic, 1, "MIRRORING")
	a.Same(ctx, a.Bootstrap(), b.Bootstrap(), uleTopic, 0)
	require.Equal(t, branchB, log(ctx, t, a.Bootstrap(), uleTopic))
	require.NotContains(t, a.Log(), "ULE_RECOVERY")

	// Support on, without a restart, and the stale tail leads.
	process := a.Process()
	a.Verb(ctx, nil, "set", "--mirror", "b", "--topic", uleTopic, "--unclean-leader-election", "true")
	only(1)
	unclean(ctx, t, a.Cluster, 1, 2)
	require.NoError(t, a.Cluster.StartBroker(ctx, 1))
	require.Contains(t, log(ctx, t, a.Cluster.Bootstrap(), uleTopic), "1(0) a1, 2(1) x2, 3(1) x3, 4(1) x4, 5(1) x5", "the tail is in A's log")
	put(ctx, t, b.Bootstrap(), uleTopic, 6, "b6")
	read := func(l *e2e.Lockstep, want int64) []oracle.Rec {
		t.Helper()
		until(ctx, t, fmt.Sprintf("%s at %d", uleTopic, want), func() bool {
			end, err := oracle.LiveEnd(ctx, l.Bootstrap(), uleTopic, 0)
			return err == nil && end == want
		})
		recs, err := oracle.Dump(ctx, l.Bootstrap(), uleTopic, 0, oracle.ReadCommitted)
		require.NoError(t, err)
		require.Len(t, recs, int(want))
		t.Log(log(ctx, t, l.Bootstrap(), uleTopic))
		return recs
	}
	// guaranteed is E6, and no more.
	guaranteed := func(here, source []oracle.Rec) {
		t.Helper()
		require.Empty(t, oracle.Diff(source[:2], here[:2]), "what both had before")
		for i := int64(2); i < 6; i++ {
			for _, r := range []oracle.Rec{here[i], source[i]} {
				require.Equal(t, i, r.Offset)
				require.EqualValues(t, 1, r.LeaderEpoch)
				require.Contains(t, []string{fmt.Sprintf("b%d", i), fmt.Sprintf("x%d", i)}, string(r.Value), "of one branch or the other")
			}
		}
		require.Empty(t, oracle.Diff(source[6:], here[6:]), "all that follows")
	}
	guaranteed(read(a.Lockstep, 7), read(b.Lockstep, 7))
	a.WaitState(ctx, uleTopic, 1, "MIRRORING")
	require.Same(t, process, a.Process())
	require.True(t, process.Alive())

	// Failback: the next truncation by last mirrored epoch.
	p = stop(ctx, t, a.Lockstep, uleTopic)
	require.Equal(t, []int64{1, 7}, []int64{int64(p.LME), p.LMO})
	put(ctx, t, a.Bootstrap(), uleTopic, 7, "a7")
	put(ctx, t, b.Bootstrap(), uleTopic, 7, "lost7")
	b.Verb(ctx, nil, "set", "--mirror", "a", "--topic", uleTopic, "--unclean-leader-election", "true")
	start(ctx, t, b.Lockstep, uleTopic)
	put(ctx, t, a.Bootstrap(), uleTopic, 8, "a8")
	there, here := read(a.Lockstep, 9), read(b.Lockstep, 9)
	guaranteed(here, there)
	require.Equal(t, []string{"b6", "a7", "a8"}, []string{string(here[6].Value), string(here[7].Value), string(here[8].Value)})
	require.NotContains(t, b.Log(), "ULE_RECOVERY", "the alignment cut lost7, not the fetch")
}
