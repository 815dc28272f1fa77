package testkafka_test

import (
	"net"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-kafka/lockstep/internal/testkafka"
)

// A broker that can't start ends the start at once, with what it said last; so does one that dies later, to whoever asks.
func TestBrokerThatFails(t *testing.T) {
	testkafka.Require(t)
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { _ = taken.Close() }()
	for name, c := range map[string]struct {
		opts testkafka.Options
		says string
	}{
		"bad setting": {testkafka.Options{Props: map[string]string{"log.retention.ms": "soon"}}, "Invalid value soon for configuration log.retention.ms"},
		"port in use": {testkafka.Options{Listeners: []testkafka.Listener{
			{Name: "OTHER", Listen: taken.Addr().String(), Advertised: taken.Addr().String()},
		}}, "Address already in use"},
	} {
		t.Run(name, func(t *testing.T) {
			c.opts.Name = "broken"
			cluster, err := testkafka.Up(t.Context(), t.TempDir(), c.opts)
			if err == nil { // its first listener answered before it came to the other one
				defer cluster.Close()
				<-cluster.Done(1)
				tail := cluster.LogTail(100)
				require.Contains(t, tail, "broken node 1, last log lines:")
				require.Contains(t, tail, c.says)
				return
			}
			require.ErrorContains(t, err, "cluster broken: node 1 died at its start: exit status 1")
			require.ErrorContains(t, err, "broken node 1, last log lines:")
			require.ErrorContains(t, err, c.says)
		})
	}
	t.Run("later", func(t *testing.T) {
		c := testkafka.Start(t, testkafka.Options{Name: "mortal"})
		select {
		case <-c.Done(1):
			t.Fatal("it runs")
		default:
		}
		require.NoError(t, c.Kill(1))
		<-c.Done(1)
		require.False(t, c.Alive(1))
		require.Contains(t, c.LogTail(20), "mortal node 1, last log lines:")
	})
}
