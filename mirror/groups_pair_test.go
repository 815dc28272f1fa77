package mirror

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/lockstep-kafka/lockstep/internal/ledger"
)

// Two instances: each offset of a group is carried over by exactly one of them, the owner of its partition. One that
// is cut off and comes back late writes nothing of what is not its own any more (M20), and what it had synced goes on.
func TestGroupsOfTwoInstances(t *testing.T) {
	const parts = 6
	src, dst := fakeCluster(t, kfake.SeedTopics(parts, "t")), fakeCluster(t)
	require.NoError(t, ledger.EnsureTopic(t.Context(), kadm.NewClient(fakeClient(t, dst)), 0))
	cl := fakeClient(t, src, kgo.DefaultProduceTopic("t"))
	for p := range int32(parts) {
		for i := range 20 {
			require.NoError(t, cl.ProduceSync(t.Context(), &kgo.Record{Partition: p, Value: fmt.Append(nil, i)}).FirstErr())
		}
	}
	there, here := kadm.NewClient(fakeClient(t, src)), kadm.NewClient(fakeClient(t, dst))
	commit := func(at int64) {
		var os kadm.Offsets
		for p := range int32(parts) {
			os.AddOffset("t", p, at, 0)
		}
		resp, err := there.CommitOffsets(t.Context(), "g", os)
		require.NoError(t, err)
		require.NoError(t, resp.Error())
	}
	arrived := func(at int64) func() bool {
		return func() bool {
			os, err := here.FetchOffsets(t.Context(), "g")
			if err != nil {
				return false
			}
			for p := range int32(parts) {
				if o, ok := os.Lookup("t", p); !ok || o.At != at {
					return false
				}
			}
			return true
		}
	}
	filter, err := NewTopicFilter([]string{".*"}, nil)
	require.NoError(t, err)
	groups := func(o *MirrorOptions) { o.Groups = &GroupOptions{Filter: filter, Interval: 100 * time.Millisecond} }
	everything := func(string, string, string) bool { return true }
	commit(3)
	a := startManagedWith(t, src, dst, groups, "t")
	eventually(t, "the first one syncs", arrived(3))
	b := startManagedWith(t, src, dst, groups, "t")
	eventually(t, "shared", func() bool {
		return len(a.m.Groups(everything)) > 0 && len(b.m.Groups(everything)) > 0 &&
			len(a.m.Groups(everything))+len(b.m.Groups(everything)) == parts
	})
	commit(4)
	eventually(t, "both sync", arrived(4))
	a.valve.set(true)
	eventually(t, "the second one takes over", func() bool { return len(b.m.owned.list()) == ledger.Partitions })
	commit(5)
	eventually(t, "the second one syncs all", arrived(5))
	a.valve.set(false)
	eventually(t, "shared again", func() bool { return len(a.m.owned.list()) > 0 && len(b.m.owned.list()) > 0 })
	require.True(t, arrived(5)(), "nothing was taken back")
	commit(6)
	eventually(t, "both sync again", arrived(6))
	a.end()
	b.end()
}
