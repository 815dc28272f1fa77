package ledger

import (
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-kafka/lockstep/epoch"
)

func TestLive(t *testing.T) {
	l := newLive()
	require.False(t, l.Tail().Known)
	_, ok := l.Status()
	require.False(t, ok)
	l.Publish(Tail{VEnd: 5, Position: 6})
	require.Equal(t, Tail{Known: true, VEnd: 5, Position: 6}, l.Tail())
	l.Retract()
	require.False(t, l.Tail().Known)

	log := &epoch.Log{Spans: []epoch.Span{{Kind: epoch.Mirrored, PEnd: -1}}}
	l.Sample(10, 7)
	p, from, span := l.Seek(log, 12)
	require.Equal(t, []int64{7, 10, 0}, []int64{p, from, int64(span)})
	l.Times(func(x *epoch.TimeIndex) { x.Add(7, 1000) })
	l.Forget(7)
	p, from, _ = l.Seek(log, 12)
	require.Equal(t, []int64{0, 12}, []int64{p, from})
	l.Times(func(x *epoch.TimeIndex) { require.EqualValues(t, -1, x.End()) })

	var wg sync.WaitGroup // for the race detector
	for i := range int64(4) {
		wg.Go(func() {
			for j := range int64(100) {
				l.Sample(i*100+j, i*100+j)
				l.Publish(Tail{VEnd: j})
				l.SetStatus(Status{Position: j})
				_, _, _ = l.Seek(log, j)
				_ = l.Tail()
				_, _ = l.Status()
				l.Index(func(x *epoch.Index) { _ = x.Len() })
			}
		})
	}
	wg.Wait()
}
