package ledger

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-kafka/lockstep/epoch"
)

// What the owner published is of no use once the ledger has a newer generation
// (after a cut, or another owner's), or is ahead of the snapshot.
func TestTailIsOfTheOpenGeneration(t *testing.T) {
	first, err := (&epoch.Log{}).Restart(0, 0, 0, 1)
	require.NoError(t, err)
	next, err := first.CutLive(3, 9, 0, 2)
	require.NoError(t, err)
	stopped, err := first.OpenNative(5, 10, 0, 1)
	require.NoError(t, err)
	p := &Partition{Log: first}
	require.False(t, p.Tail().Known, "not this instance's")
	p.Live = newLive()
	require.False(t, p.Tail().Known)
	p.Live.Publish(Tail{VEnd: 5, Gen: 1, Newest: -1})
	require.EqualValues(t, 5, p.Tail().VEnd)
	for _, l := range []*epoch.Log{next, stopped, {}, nil} {
		require.False(t, (&Partition{Log: l, Live: p.Live}).Tail().Known)
	}
	// It ends behind records of an epoch that the snapshot lacks.
	p.Live.Publish(Tail{VEnd: 5, Gen: 1, Newest: 4})
	require.False(t, p.Tail().Known)
	require.True(t, (&Partition{Log: first.WithEpoch(4, 3), Live: p.Live}).Tail().Known)
	require.True(t, (&Partition{Log: first.WithEpoch(4, 3).WithEpoch(6, 5), Live: p.Live}).Tail().Known, "the epoch comes first, then its records")
}
