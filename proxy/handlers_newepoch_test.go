package proxy

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-kafka/lockstep/internal/ledger"
)

// movingView lets the owner go on as soon as a snapshot of the partition was
// taken for the k-th time.
type movingView struct {
	*fakeView
	left int
	on   func()
}

func (v *movingView) Partition(t string, p int32) *ledger.Partition {
	now := v.fakeView.Partition(t, p)
	if v.left--; v.left == 0 {
		v.on()
	}
	return now
}

// H12: an answer is made of the ledger's chain and of the end of the log. An epoch may come into the one and its records
// onto the other at any moment in between; they never count for the epoch before. After an unclean election whoever
// asked in that moment was sent over them: to 8 here, where epoch 3 ends at 5 (e2e TestUncleanElection, seldom).
func TestEpochThatComesWhileOneIsAskedFor(t *testing.T) {
	moved := 0
	for k := 1; k <= 12; k++ {
		for _, owner := range []bool{true, false} {
			setup := func() (*bench, *history, *movingView) {
				b := newBench(t)
				h := newHistory(t, b.sim.part("m", 0))
				h.append(5, 0)
				view := &movingView{fakeView: b.view}
				b.h.view = view
				publish := func() {
					lp := b.mirror("m", 0, h.log)
					if owner {
						lp.Live.Publish(ledger.Tail{VEnd: h.vend, Position: h.vend, PEnd: h.pend, EverShown: h.vend, Sure: true, Gen: h.gen(), Newest: h.src})
					} else if lp.Checkpoint == nil {
						lp.Checkpoint = h.checkpoint()
					}
				}
				publish()
				view.left, view.on = k, func() {
					moved++
					h.src = 7
					h.append(3, 0)
					publish()
				}
				return b, h, view
			}
			t.Run(fmt.Sprintf("snapshot %d, owner %v", k, owner), func(t *testing.T) {
				b, _, _ := setup()
				if a := epochEnd(b, 4, 3, -1); a.ErrorCode != retryLater {
					require.Zero(t, a.ErrorCode)
					require.EqualValues(t, 3, a.LeaderEpoch)
					require.EqualValues(t, 5, a.EndOffset)
				}
				b, _, _ = setup()
				if a := offsetsOf(b, 7, -1); a.ErrorCode != retryLater {
					require.Zero(t, a.ErrorCode)
					require.Equal(t, map[int64]int32{5: 3, 8: 7}[a.Offset], a.LeaderEpoch, "at offset %d", a.Offset)
				}
			})
		}
	}
	require.Greater(t, moved, 8, "the owner did go on in the middle of answers")
}
