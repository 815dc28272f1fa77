package ledger

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// At the first start, and while leaders move, reads fail for a moment: no news
// until it has lasted. Anything else is told at once.
func TestMovingLeadersAreNoNews(t *testing.T) {
	require.Greater(t, movingTries, 5)
	require.Equal(t, movingTries, triesUnsaid(fmt.Errorf("ledger partition 3: %w", kerr.NotLeaderForPartition)))
	require.Equal(t, movingTries, triesUnsaid(kerr.LeaderNotAvailable))
	require.Equal(t, 1, triesUnsaid(kerr.TopicAuthorizationFailed))
	require.Equal(t, 1, triesUnsaid(errors.New("connection refused")))
}

// A broker whose answers say nothing of the partitions it was asked for is asked
// again after a pause, and nothing is served meanwhile (H10).
func TestFetchLeavesPartitionsOut(t *testing.T) {
	c := newFake(t)
	c.ensure()
	ctx := c.ctx()
	v := c.view(ViewOptions{Lease: time.Second})
	c.until(ctx, v.Fresh)
	var mu sync.Mutex
	var asked []time.Time // by one broker's fetcher
	broker, on := int32(-1), true
	c.fake.ControlKey(int16(kmsg.Fetch), func(req kmsg.Request) (kmsg.Response, error, bool) {
		mu.Lock()
		defer mu.Unlock()
		c.fake.KeepControl()
		if !on {
			return nil, nil, false
		}
		if broker < 0 {
			broker = c.fake.CurrentNode()
		}
		if broker == c.fake.CurrentNode() {
			asked = append(asked, time.Now())
		}
		return req.ResponseKind(), nil, true
	})
	c.until(ctx, func() bool {
		mu.Lock()
		defer mu.Unlock()
		return len(asked) > 5
	})
	mu.Lock()
	gap := asked[5].Sub(asked[1])
	mu.Unlock()
	require.GreaterOrEqual(t, gap, 3*retryPause)
	c.until(ctx, func() bool { return !v.Fresh() })
	mu.Lock()
	on = false
	mu.Unlock()
	c.until(ctx, v.Fresh)
}
