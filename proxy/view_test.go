package proxy

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-kafka/lockstep/epoch"
	"github.com/lockstep-kafka/lockstep/internal/ledger"
)

// H15: while a log is built beside the one shown, its owner's checkpoints speak
// of that, and all that lies behind the one shown is not looked at.
func TestH15ReadersSeeWhatIsShown(t *testing.T) {
	log := epoch.Log{
		Spans: []epoch.Span{
			{Kind: epoch.Mirrored, Gen: 1, PEnd: -1},
			{Kind: epoch.Mirrored, Gen: 2, VStart: 50, PStart: 80, PEnd: -1},
		},
		LastGen: 3,
	}
	r := &ledger.Record{Lineage: "l", Log: log, StateEpoch: 9, Shadow: &epoch.Shadow{
		Log: epoch.Log{Spans: []epoch.Span{{Kind: epoch.Mirrored, Gen: 3, PStart: 80, PEnd: -1}}, LastGen: 3}, Target: 50,
	}}
	require.NoError(t, r.Shadow.Validate(&r.Log))
	p := &ledger.Partition{Record: r, Log: &r.Log, Live: &ledger.Live{}}
	require.Equal(t, int64(80), frozen(p, 1000))
	require.Equal(t, int64(50), everShown(p))
	p.Checkpoint = &ledger.Checkpoint{Lineage: "l", Gen: 3, V: 30, ChainEnd: 30, P: 110, Position: 30, EndShown: 50, StateEpoch: 9}
	require.False(t, endBelow(p, 1000).ok, "that is the shadow's end")
	p.Checkpoint = &ledger.Checkpoint{Lineage: "l", Gen: 1, V: 40, ChainEnd: 40, P: 40, Position: 40, EndShown: 60, StateEpoch: 7}
	require.Equal(t, int64(60), endBelow(p, 1000).shown)
	r.CutAt = 8
	require.Equal(t, int64(40), endBelow(p, 1000).shown, "what was shown before the cut is gone")
	r.Shadow = nil
	require.Equal(t, int64(1000), frozen(p, 1000))
}
