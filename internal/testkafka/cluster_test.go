package testkafka_test

import (
	"net"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-kafka/lockstep/internal/testkafka"
	"github.com/lockstep-kafka/lockstep/internal/testkafka/oracle"
)

// Two brokers and a controller: every way to hurt a broker and to bring it back.
func TestClusterLifecycle(t *testing.T) {
	c := testkafka.Start(t, testkafka.Options{Brokers: 2})
	ctx := t.Context()
	require.Len(t, c.Seeds(), 2)

	require.NoError(t, c.Kill(2))
	require.False(t, c.Alive(2))
	_, err := net.DialTimeout("tcp", c.Addr(2), time.Second)
	require.Error(t, err, "a killed broker listens")
	require.Error(t, c.Kill(2), "a dead broker can't be killed again")
	require.NoError(t, c.StartBroker(ctx, 2))

	require.NoError(t, c.Pause(1))
	ids, err := oracle.BrokerIDs(ctx, c.Addr(2))
	require.NoError(t, err)
	require.Contains(t, ids, int32(2))
	require.NoError(t, c.Continue(1))

	require.NoError(t, c.Stop(1))
	require.NoError(t, c.Heal(ctx))
	ids, err = oracle.BrokerIDs(ctx, c.Addr(1))
	require.NoError(t, err)
	require.Contains(t, ids, int32(1))
	require.Error(t, c.StartBroker(ctx, 1), "it runs")
	require.Error(t, c.Kill(7), "there is no such node")
}

// Port blocks never overlap and lie below the ephemeral range.
func TestReservePorts(t *testing.T) {
	seen := map[int]bool{}
	for range 5 {
		p, err := testkafka.ReservePorts(3)
		require.NoError(t, err)
		defer p.Release()
		require.False(t, seen[p.First], "given out twice")
		seen[p.First] = true
		require.Less(t, p.First+16, 32768)
		require.True(t, strings.HasPrefix(p.Addr(1), "127.0.0.1:"))
	}
	_, err := testkafka.ReservePorts(17)
	require.Error(t, err)
}
