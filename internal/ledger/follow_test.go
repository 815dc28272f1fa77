package ledger

import (
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
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
