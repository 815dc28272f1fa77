//go:build long

package e2e_test

import (
	"regexp"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-kafka/lockstep/internal/e2e"
	"github.com/lockstep-kafka/lockstep/internal/testkafka"
	"github.com/lockstep-kafka/lockstep/internal/testkafka/clients"
)

var requestsRE = regexp.MustCompile(`msg="connection closed".* requests=(\d+)`)

// After many elections on the source, offsets committed with the newest epochs are here, too, and after a failover a Java
// consumer starts at once: the leader epoch that it is shown is not behind its commit's, so it does not ask for metadata
// again and again (OT-23, PX-075 in the large).
func TestGroupEpochsAfterManyElections(t *testing.T) {
	ctx := withTimeout(t, 5*time.Minute)
	src, dst := testkafka.Start(t, testkafka.Options{Name: "source", Brokers: 2, Props: steady}), destination(t, 1)
	const topic, elections = "elections", 12
	replicated(ctx, t, src, topic)
	l := e2e.Start(t, &binary, e2e.Setup{
		Source: src, Destination: dst, Include: []string{topic}, Mirror: []string{"groups:", "  interval: 1s"},
	})
	for i := range int64(elections) {
		put(ctx, t, src.Bootstrap(), topic, i, "x")
		elect(ctx, t, src, topic)
	}
	put(ctx, t, src.Bootstrap(), topic, elections, "x")
	l.WaitCaughtUp(ctx, topic, 1)
	all := l.CompareRaw(ctx, topic, 0)
	last := all[elections].LeaderEpoch
	require.EqualValues(t, elections, last)
	// One in the middle, one at the end with the newest epoch; the leader's own epoch is above all records'.
	elect(ctx, t, src, topic)
	for group, at := range map[string]struct {
		offset int64
		epoch  int32
	}{"middle": {5, all[4].LeaderEpoch}, "end": {elections + 1, last}} {
		commitOffset(ctx, t, src.Bootstrap(), group, topic, at.offset, at.epoch)
		l.WaitGroup(ctx, topic, group, "synced", at.offset)
	}
	stop(ctx, t, l, topic)
	for i := range int64(3) {
		put(ctx, t, l.Bootstrap(), topic, elections+1+i, "local")
	}
	for group, first := range map[string]int64{"middle": 5, "end": elections + 1} {
		_, epoch := committedOffset(ctx, t, l.Bootstrap(), group, topic)
		logged := len(l.Log())
		want := int(elections + 4 - first)
		res, err := clients.JavaRead(ctx, clients.Read{
			Bootstrap: l.Bootstrap(), Topic: topic, From: "group", Group: group, Subscribe: true, Reset: "none", Max: want, Expect: want, Timeout: 2 * time.Minute, Set: map[string]string{"fetch.max.wait.ms": "5000"},
		})
		require.NoError(t, err, group)
		require.Len(t, res.Recs, want, "%s, committed with epoch %d", group, epoch)
		require.Equal(t, first, res.Recs[0].Offset)
		n := 0
		require.Eventually(t, func() bool { // its connections have ended
			n = 0
			for _, m := range requestsRE.FindAllStringSubmatch(l.Log()[logged:], -1) {
				x, err := strconv.Atoi(m[1])
				require.NoError(t, err)
				n += x
			}
			return n > 0
		}, 10*time.Second, 100*time.Millisecond)
		t.Logf("%s: committed with epoch %d, %d requests", group, epoch, n)
		require.Less(t, n, 300, "a consumer that asks for metadata again and again")
	}
}
