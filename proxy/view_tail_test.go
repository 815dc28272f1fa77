package proxy

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-kafka/lockstep/epoch"
	"github.com/lockstep-kafka/lockstep/internal/ledger"
)

// The tail of an owner on this instance that does not know yet that it was
// taken over, and its log cut, is no end for readers: the checkpoint is.
func TestTailOfAnOlderGeneration(t *testing.T) {
	first, err := (&epoch.Log{}).Restart(0, 0, 0, 1)
	require.NoError(t, err)
	next, err := first.CutLive(3, 9, 0, 2)
	require.NoError(t, err)
	p := &ledger.Partition{
		Log: first, Live: &ledger.Live{}, Record: &ledger.Record{Lineage: "l"},
		Checkpoint: &ledger.Checkpoint{Lineage: "l", Gen: 1, V: 3, P: 3, Position: 3},
	}
	p.Live.Publish(ledger.Tail{VEnd: 7, Position: 8, PEnd: 7, EverShown: 8, Gen: 1, Newest: -1})
	require.Equal(t, knownEnd{v: 7, p: 7, position: 8, shown: 8, ok: true}, endBelow(p, 100))
	p.Log = next
	require.Equal(t, knownEnd{v: 3, p: 3, position: 3, shown: 3, ok: true}, endBelow(p, 100))
}
