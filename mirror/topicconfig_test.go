package mirror

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-kafka/lockstep/epoch"
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
	want := wantedConfigs(src, nil, configRules{minLag: time.Hour})
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
	}, wantedConfigs(src, k, configRules{minLag: time.Hour}), "a key the destination doesn't know is left out")

	f, err := NewConfigFilter([]string{"retention.*", "segment.ms"}, []string{"retention.ms"})
	require.NoError(t, err)
	src["segment.ms"], src["retention.bytes"], src["cleanup.policy"] = configEntry{"7", true}, configEntry{"9", true}, configEntry{"delete", true}
	require.Equal(t, map[string]string{
		"segment.ms": "7", "retention.bytes": "9", "cleanup.policy": "delete", "compression.type": "producer", "message.timestamp.type": "CreateTime",
		"message.timestamp.before.max.ms": "9223372036854775807", "message.timestamp.after.max.ms": "9223372036854775807",
		"message.timestamp.difference.max.ms": "9223372036854775807", "max.message.bytes": "1048588",
	}, wantedConfigs(src, nil, configRules{filter: f, minLag: time.Hour}), "the filter is for what follows, not for what a mirror needs")
	_, err = NewConfigFilter(nil, []string{"("})
	require.ErrorContains(t, err, "config expression")
}

// What failbacks carry to and fro doesn't grow without end: each side takes the
// other's value, which it has from here.
func TestMaxMessageBytesSettles(t *testing.T) {
	src := topicConfigs{"cleanup.policy": {value: "compact"}, "max.message.bytes": {value: "1048588"}}
	for range 20 {
		src["max.message.bytes"] = configEntry{wantedConfigs(src, nil, configRules{})["max.message.bytes"], true}
	}
	require.Equal(t, "67108864", src["max.message.bytes"].value)
	src["max.message.bytes"] = configEntry{"80000000", true}
	require.Equal(t, "80000000", wantedConfigs(src, nil, configRules{})["max.message.bytes"], "never below the source's")
}

// CF-03, and a config that the source sets back to its default: only what
// differs is altered, and only what Lockstep has set itself is taken away.
func TestPlanConfigs(t *testing.T) {
	have := topicConfigs{
		"same":      {"1", true},
		"other":     {"1", true},
		"default":   {"5", false}, // as wanted by inheritance
		"own":       {"x", true},  // the operator's
		"dropped":   {"3", true},  // ours, the source has none any more
		"retouched": {"9", true},  // ours once, the operator gave it another value
		"reset":     {"4", false}, // ours once, the operator took it away
	}
	p := planConfigs(have, map[string]string{"same": "1", "other": "2", "default": "5", "new": "6"},
		map[string]string{"same": "1", "dropped": "3", "retouched": "8", "reset": "2", "other": "0"})
	require.Equal(t, map[string]string{"other": "2", "new": "6"}, p.alter)
	require.Equal(t, []string{"dropped"}, p.drop)
	require.Equal(t, map[string]string{"same": "1", "other": "2", "new": "6", "dropped": "3"}, p.set)

	delete(have, "dropped")
	have["other"], have["new"] = configEntry{"2", true}, configEntry{"6", true}
	again := planConfigs(have, map[string]string{"same": "1", "other": "2", "default": "5", "new": "6"}, p.set)
	require.Empty(t, again.alter, "nothing differs, nothing is altered")
	require.Empty(t, again.drop)
	require.Equal(t, map[string]string{"same": "1", "other": "2", "new": "6"}, again.set)

	require.Empty(t, planConfigs(topicConfigs{"retention.ms": {"5", true}}, map[string]string{}, nil).drop, "nothing remembered, nothing taken away")
}

// M6: retention.bytes has room for the dead batches that are still there.
func TestM6RoomForDeadBatches(t *testing.T) {
	l := &epoch.Log{Spans: []epoch.Span{
		{Kind: epoch.Mirrored, Gen: 1, VStart: 0, PStart: 10, PEnd: 110},   // 0…9 dropped, 100 live
		{Kind: epoch.Mirrored, Gen: 2, VStart: 100, PStart: 150, PEnd: -1}, // 110…149 dead; end not known
		{Kind: epoch.Mirrored, Gen: 3, VStart: 130, PStart: 200, PEnd: -1}, // 180…199 dead
	}}
	require.EqualValues(t, 10+40+20, deadOffsets(l, 0))
	require.EqualValues(t, 40+20, deadOffsets(l, 60))
	require.EqualValues(t, 10+20, deadOffsets(l, 140))
	require.EqualValues(t, 20, deadOffsets(l, 160))
	require.EqualValues(t, 5, deadOffsets(l, 195))
	require.Zero(t, deadOffsets(l, 200))
	require.Zero(t, deadOffsets(&epoch.Log{}, 7))
	holes := &epoch.Log{Spans: []epoch.Span{{PEnd: -1}, {VStart: 500, PStart: 100}}}
	require.Zero(t, deadOffsets(holes, 0), "virtual offsets skipped are not dead ones")

	require.EqualValues(t, 1000, withDead(1000, 0, 100))
	require.EqualValues(t, 1100, withDead(1000, 1, 100), "whole segments")
	require.EqualValues(t, 1300, withDead(1000, 300, 100))
	require.EqualValues(t, 1007, withDead(1000, 7, 0))
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
