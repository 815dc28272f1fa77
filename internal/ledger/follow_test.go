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

// What is there is read without a wait for more, also when it is nothing, as at
// the first start; a broker that has nothing to say is not asked in a tight loop.
func TestFirstReadDoesNotWait(t *testing.T) {
	for name, stuck := range map[string]bool{"an empty ledger": false, "a broker that gets on with nothing": true} {
		t.Run(name, func(t *testing.T) {
			c := newFake(t)
			c.ensure()
			ctx := c.ctx()
			var mu sync.Mutex
			waits := map[int32][]int32{} // by broker
			c.fake.ControlKey(int16(kmsg.Fetch), func(q kmsg.Request) (kmsg.Response, error, bool) {
				c.fake.KeepControl()
				req := q.(*kmsg.FetchRequest)
				mu.Lock()
				defer mu.Unlock()
				n := c.fake.CurrentNode()
				waits[n] = append(waits[n], req.MaxWaitMillis)
				if !stuck {
					return nil, nil, false
				}
				resp := req.ResponseKind().(*kmsg.FetchResponse)
				rt := kmsg.NewFetchResponseTopic()
				rt.Topic = Topic
				for _, p := range req.Topics[0].Partitions {
					rp := kmsg.NewFetchResponseTopicPartition()
					rp.Partition, rp.HighWatermark, rp.LastStableOffset = p.Partition, 5, 5
					rt.Partitions = append(rt.Partitions, rp)
				}
				resp.Topics = append(resp.Topics, rt)
				return resp, nil, true
			})
			v := c.view(ViewOptions{})
			c.until(ctx, func() bool {
				mu.Lock()
				defer mu.Unlock()
				for _, w := range waits {
					if len(w) > 2 {
						return true
					}
				}
				return false
			})
			if !stuck {
				c.until(ctx, v.Fresh)
			}
			mu.Lock()
			defer mu.Unlock()
			for _, w := range waits {
				for i, ms := range w {
					require.Equal(t, i == 0, ms == 0, "%v", w)
				}
			}
		})
	}
}
