//go:build long

package e2e_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/internal/e2e"
	"github.com/lockstep-kafka/lockstep/internal/testkafka"
	"github.com/lockstep-kafka/lockstep/internal/testkafka/content"
	"github.com/lockstep-kafka/lockstep/internal/testkafka/oracle"
)

var oldVersions = []string{"2.1.1", "2.8.2"}

// Every kind of hard topic from old sources. Not "epochs": with ZooKeeper the restart of the only broker is no new leader
// epoch; TestOldSourceUncleanElection has several.
func TestOldSourceEveryKind(t *testing.T) {
	for _, v := range oldVersions {
		t.Run(v, func(t *testing.T) {
			ctx := withTimeout(t, 8*time.Minute)
			src, dst := testkafka.Start(t, testkafka.Options{Name: "source", Version: v}), destination(t, 1)
			var kinds []string
			for _, k := range content.Kinds() {
				if k.Name != "epochs" {
					kinds = append(kinds, k.Name)
				}
			}
			fromOldSource(ctx, t, src, dst, kinds...)
		})
	}
}

// An unclean election on an old source: with support off FAILED, with it on cut to the common prefix. 2.1.1 is asked by
// OffsetForLeaderEpoch, 2.8.2 says it in its Fetch answers.
func TestOldSourceUncleanElection(t *testing.T) {
	for _, v := range oldVersions {
		t.Run(v, func(t *testing.T) {
			ctx := withTimeout(t, 8*time.Minute)
			src, dst := testkafka.Start(t, testkafka.Options{Name: "source", Brokers: 3, Version: v}), destination(t, 1)
			uncleanTopic(ctx, t, src)
			putAll(ctx, t, src, 0, "a", 5)
			l := e2e.Start(t, &binary, e2e.Setup{Source: src, Destination: dst, Include: []string{uleTopic}})
			beforeLoss(ctx, t, src)
			l.WaitCaughtUp(ctx, uleTopic, 1)
			require.Len(t, l.CompareRaw(ctx, uleTopic, 0), 10)
			lose(ctx, t, src)
			p := l.WaitState(ctx, uleTopic, 1, "FAILED")[0]
			require.Contains(t, p.Error, "unclean.leader.election.enable=true")
			l.Verb(ctx, nil, "set", "--mirror", "dc1", "--topic", uleTopic, "--unclean-leader-election", "true")
			l.Verb(ctx, nil, "recover", "--topic", uleTopic)
			l.WaitCut(ctx, uleTopic, 1)
			l.WaitState(ctx, uleTopic, 1, "MIRRORING")
			require.Len(t, l.CompareRaw(ctx, uleTopic, 0), 8)
			require.Contains(t, l.Log(), "ULE_RECOVERY")

			// Clean elections: the other replica leads in turn, and nothing is cut.
			require.NoError(t, content.WaitLeader(ctx, src.Bootstrap(), uleTopic, 0, func(p oracle.Partition) bool { return len(p.ISR) == 2 }))
			for i := range int64(2) {
				was, err := oracle.Lookup(ctx, src.Bootstrap(), uleTopic, 0)
				require.NoError(t, err)
				require.NoError(t, src.Stop(int(was.Leader)))
				require.NoError(t, content.WaitLeader(ctx, src.Addr(3), uleTopic, 0, func(p oracle.Partition) bool { return p.Leader == 3-was.Leader }))
				require.NoError(t, src.StartBroker(ctx, int(was.Leader)))
				require.NoError(t, content.WaitLeader(ctx, src.Bootstrap(), uleTopic, 0, func(p oracle.Partition) bool { return len(p.ISR) == 2 }))
				put(ctx, t, src.Bootstrap(), uleTopic, 8+i, "d")
			}
			l.WaitCaughtUp(ctx, uleTopic, 1)
			require.Len(t, l.CompareRaw(ctx, uleTopic, 0), 10)
			require.Equal(t, 1, strings.Count(l.Log(), "they are cut off here too"))
			left := stop(ctx, t, l, uleTopic)
			require.EqualValues(t, 10, left.LMO)
		})
	}
}

// A source is upgraded in place, broker by broker, and back, while it is written to: the way in which truncations are
// noticed changes by itself.
func TestOldSourceUpgraded(t *testing.T) {
	ctx := withTimeout(t, 8*time.Minute)
	src := testkafka.Start(t, testkafka.Options{
		Name: "source", Brokers: 3, Version: "2.1.1",
		Props: map[string]string{"inter.broker.protocol.version": "2.1", "log.message.format.version": "2.1"},
	})
	dst := destination(t, 1)
	uncleanTopic(ctx, t, src)
	require.NoError(t, content.CreateTopic(ctx, src.Bootstrap(), incidentTopic, incidentPartitions, nil))
	l := e2e.Start(t, &binary, e2e.Setup{
		Source: src, Destination: dst, Include: []string{uleTopic, incidentTopic}, Mirror: []string{"unclean_leader_election: true"},
	})
	traffic := e2e.StartTraffic(t, src, incidentTopic, incidentPartitions)
	l.WaitMirroring(ctx, incidentTopic, incidentPartitions)
	fetch := func(id int) int16 {
		c, err := oracle.Dial(ctx, src.Addr(id))
		require.NoError(t, err)
		defer c.Close()
		resp, err := c.Do(ctx, kmsg.NewPtrApiVersionsRequest(), 2)
		require.NoError(t, err)
		for _, k := range resp.(*kmsg.ApiVersionsResponse).ApiKeys {
			if k.ApiKey == int16(kmsg.Fetch) {
				return k.MaxVersion
			}
		}
		return -1
	}
	for _, to := range []struct {
		version string
		fetch   int16
	}{{"2.8.2", 12}, {"2.1.1", 10}, {"2.8.2", 12}} {
		for id := 1; id <= 3; id++ {
			require.NoError(t, src.Upgrade(ctx, id, to.version))
			require.Equal(t, to.fetch, fetch(id))
		}
	}
	require.NoError(t, content.WaitLeader(ctx, src.Bootstrap(), uleTopic, 0, func(p oracle.Partition) bool { return len(p.ISR) == 2 }))
	traffic.Stop(t)
	l.WaitCaughtUp(ctx, incidentTopic, incidentPartitions)
	for p := range int32(incidentPartitions) {
		l.CompareRaw(ctx, incidentTopic, p)
	}
	require.NotContains(t, l.Log(), "they are cut off here too", "no election was unclean")
}
