//go:build long

package testkafka_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-kafka/lockstep/internal/testkafka"
	"github.com/lockstep-kafka/lockstep/internal/testkafka/oracle"
)

// An old cluster, and its upgrade in place.
func TestZooKeeperUpgrade(t *testing.T) {
	ctx := t.Context()
	c := testkafka.Start(t, testkafka.Options{Version: "2.1.1"})
	require.NoError(t, c.Upgrade(ctx, 1, "2.8.2"))
	ids, err := oracle.BrokerIDs(ctx, c.Addr(1))
	require.NoError(t, err)
	require.Contains(t, ids, int32(1))
	require.Error(t, c.Upgrade(ctx, 1, testkafka.DefaultVersion))
}
