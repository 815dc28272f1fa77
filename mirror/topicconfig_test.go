package mirror

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func known(keys ...string) topicConfigs {
	out := topicConfigs{}
	for _, k := range keys {
		out[k] = configEntry{}
	}
	return out
}

func TestWantedConfigs(t *testing.T) {
	src := topicConfigs{
		"cleanup.policy":                 {value: "compact"},
		"retention.ms":                   {value: "1000", dynamic: true},
		"segment.ms":                     {value: "5"}, // inherited: stays the destination's own
		"min.insync.replicas":            {value: "2", dynamic: true},
		"unclean.leader.election.enable": {value: "true", dynamic: true},
		"message.timestamp.type":         {value: "LogAppendTime", dynamic: true},
		"max.message.bytes":              {value: "1048588"},
		"min.compaction.lag.ms":          {value: "0"},
		"max.compaction.lag.ms":          {value: "5000", dynamic: true},
		"remote.storage.enable":          {value: "true", dynamic: true},
	}
	want := wantedConfigs(src, nil, time.Hour)
	require.Equal(t, map[string]string{
		"cleanup.policy":                      "compact",
		"retention.ms":                        "1000",
		"compression.type":                    "producer",
		"message.timestamp.type":              "CreateTime",
		"message.timestamp.before.max.ms":     "9223372036854775807",
		"message.timestamp.after.max.ms":      "9223372036854775807",
		"message.timestamp.difference.max.ms": "9223372036854775807",
		"max.message.bytes":                   "3145752",
		"min.compaction.lag.ms":               "3600000",
		"max.compaction.lag.ms":               "3600000",
	}, want, "H1: the floor of the compaction lag; what is never synced is not")

	k := known("cleanup.policy", "compression.type", "message.timestamp.type", "max.message.bytes", "min.compaction.lag.ms")
	require.Equal(t, map[string]string{
		"cleanup.policy": "compact", "compression.type": "producer", "message.timestamp.type": "CreateTime",
		"max.message.bytes": "3145752", "min.compaction.lag.ms": "3600000",
	}, wantedConfigs(src, k, time.Hour), "a key the destination doesn't know is left out")

	require.Equal(t, map[string]string{"b": "2"}, differing(topicConfigs{"a": {value: "1"}, "b": {value: "1"}, "own": {value: "x"}}, map[string]string{"a": "1", "b": "2"}))
}

func TestTopicFilter(t *testing.T) {
	f, err := NewTopicFilter([]string{"orders.*|pay", "x"}, []string{"__.*", "orders-secret"})
	require.NoError(t, err)
	for topic, want := range map[string]bool{"orders": true, "orders-1": true, "orders-secret": false, "pay": true, "payments": false, "x": true, "xx": false, "my-orders": false, "__x": false} {
		require.Equal(t, want, f.Match(topic), topic)
	}
	_, err = NewTopicFilter([]string{"("}, nil)
	require.Error(t, err)
}
