package peer

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-kafka/lockstep/bench/lab"
)

func TestMM2Properties(t *testing.T) {
	o := MM2Options{Topic: "a", N: 7}
	require.Equal(t, "s7.a", o.Remote())
	plain := mm2Properties("h:1", "h:2", o)
	require.Contains(t, plain, "s7->d7.topics = a\n")
	require.NotContains(t, plain, "tasks.max", "defaults stay")
	o.Tuned, o.LZ4 = true, true
	tuned := mm2Properties("h:1", "h:2", o)
	require.True(t, strings.HasPrefix(tuned, plain))
	require.Contains(t, tuned, "d7.producer.compression.type = lz4\n")
}

func TestHAProxyConfig(t *testing.T) {
	text := haproxyConfig(lab.Relayed{Outer: "127.0.0.1:1", Inner: "127.0.0.1:2"})
	require.Contains(t, text, "bind 127.0.0.1:1\n")
	require.Contains(t, text, "server one 127.0.0.1:2\n")
}

func TestShares(t *testing.T) {
	require.Equal(t, 25, shares("# HELP lockstep_ledger_partitions_owned x\nlockstep_ledger_partitions_owned 25\n"))
	require.Zero(t, shares(""))
}
