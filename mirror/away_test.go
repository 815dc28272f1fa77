package mirror

import (
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/lockstep-kafka/lockstep/internal/ledger"
)

// A source that goes away is noticed, with the time and the reason, which stays the same time while it lasts.
func TestSourceAwaySince(t *testing.T) {
	src, dst := fakeCluster(t, kfake.SeedTopics(1, "t")), fakeCluster(t)
	require.NoError(t, ledger.EnsureTopic(t.Context(), kadm.NewClient(fakeClient(t, dst)), 0))
	x := startManaged(t, src, dst, "t")
	eventually(t, "mirrored", func() bool { e := x.view.Partition("t", 0); return e != nil && e.Live.Tail().Known })
	since, why := x.m.SourceAway("m")
	require.True(t, since.IsZero(), why)
	src.Close()
	eventually(t, "away", func() bool { at, _ := x.m.SourceAway("m"); return !at.IsZero() })
	since, why = x.m.SourceAway("m")
	require.NotEmpty(t, why)
	errs := []error{errNoLeader, errNoTopic, nil}
	for i, err := range errs {
		x.m.sources[0].reach.tell(err)
		at, why := x.m.SourceAway("m")
		if err == nil {
			require.True(t, at.IsZero() || at.After(since), "told again at most by a newer look")
			break
		}
		require.Equal(t, since, at, "%d: %s", i, why)
	}
	at, _ := x.m.SourceAway("another")
	require.True(t, at.IsZero())
}
