package e2e_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-kafka/lockstep/internal/e2e"
	"github.com/lockstep-kafka/lockstep/internal/testkafka"
	"github.com/lockstep-kafka/lockstep/internal/testkafka/content"
)

// The oldest source: Fetch v10, no topic ids, OffsetFetch v5, ZooKeeper.
func TestOldSource(t *testing.T) {
	ctx := withTimeout(t, 4*time.Minute)
	src, dst := testkafka.Start(t, testkafka.Options{Name: "source", Version: "2.1.1"}), destination(t, 1)
	fromOldSource(ctx, t, src, dst, "codecs", "transactions", "compacted")
}

// fromOldSource mirrors kinds of topics, compares them, syncs a group's offsets, and fails over.
func fromOldSource(ctx context.Context, t *testing.T, src, dst *testkafka.Cluster, kinds ...string) {
	t.Helper()
	for _, name := range kinds {
		k, err := content.Get(name)
		require.NoError(t, err)
		require.NoError(t, k.Fill(ctx, src, "old-"+name))
	}
	commitOffset(ctx, t, src.Bootstrap(), "old-group", "old-codecs", 3, 0)
	l := e2e.Start(t, &binary, e2e.Setup{
		Source: src, Destination: dst, Include: []string{"old-.*"}, Mirror: []string{"groups:", "  interval: 1s"},
	})
	for _, name := range kinds {
		l.WaitCaughtUp(ctx, "old-"+name, 1)
		recs := l.CompareRaw(ctx, "old-"+name, 0)
		require.True(t, len(recs) > 0 || name == "all-deleted", name)
	}
	l.WaitGroup(ctx, "old-codecs", "old-group", "synced", 3)
	_, epoch := committedOffset(ctx, t, dst.Bootstrap(), "old-group", "old-codecs")
	require.EqualValues(t, 0, epoch, "OffsetFetch v5 has it")
	commitOffset(ctx, t, src.Bootstrap(), "old-group", "old-codecs", 4, 0)
	for _, name := range kinds {
		recs := l.CompareRaw(ctx, "old-"+name, 0)
		l.WaitPosition(ctx, "old-"+name, 0, end(ctx, t, src.Bootstrap(), "old-"+name))
		p := stop(ctx, t, l, "old-"+name)
		require.NotNil(t, p.Left, name)
		require.Equal(t, p.Left.SourceEnd, p.Left.Offset, name)
		if name == "all-deleted" { // no record, no pair
			require.Equal(t, []int64{-1, -1}, []int64{int64(p.LME), p.LMO})
		} else {
			require.Equal(t, p.Left.Offset, p.LMO, name)
		}
		if name != "compacted" && name != "transactions" && len(recs) > 0 { // those end with what is no record
			require.Equal(t, recs[len(recs)-1].Offset+1, p.LMO, name)
			require.Equal(t, recs[len(recs)-1].LeaderEpoch, p.LME, name)
		}
		if name == "transactions" { // TX-07: it ends with a marker, and who reads up to the end gets there
			l.CompareRaw(ctx, "old-"+name, 0)
		}
		put(ctx, t, l.Bootstrap(), "old-"+name, p.Left.Offset, "local")
	}
	lastSynced(ctx, t, l, dst, "old-group", "old-codecs", 4)
}
