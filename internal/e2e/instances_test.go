package e2e_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-kafka/lockstep/internal/e2e"
	"github.com/lockstep-kafka/lockstep/internal/testkafka"
	"github.com/lockstep-kafka/lockstep/internal/testkafka/clients"
	"github.com/lockstep-kafka/lockstep/internal/testkafka/content"
	"github.com/lockstep-kafka/lockstep/internal/testkafka/oracle"
)

// sameEverywhere compares every partition through every instance with the source.
func sameEverywhere(ctx context.Context, t *testing.T, f e2e.Fleet, topic string, partitions int32) (shown int) {
	t.Helper()
	for _, l := range f {
		l.WaitCaughtUp(ctx, topic, partitions)
		shown = 0
		for p := range partitions {
			shown += len(l.CompareRaw(ctx, topic, p))
		}
	}
	require.Positive(t, shown)
	return shown
}

// Two instances share a mirror. One is killed, and later one is frozen and comes back: the other takes over each time,
// the one that comes back does no harm and gets its share again, and what is shown is the source, at any of them. The
// times are measured in the long tests; here the session is short.
func TestTwoInstances(t *testing.T) {
	const topic, partitions = "shared", 8
	ctx := withTimeout(t, 3*time.Minute)
	src := kafka.Source(t)
	dst := testkafka.Start(t, testkafka.Options{Name: "destination", Props: map[string]string{"group.min.session.timeout.ms": "1000"}})
	require.NoError(t, content.CreateTopic(ctx, src.Bootstrap(), topic, partitions, nil))
	traffic := e2e.StartTraffic(t, src, topic, partitions)
	f := e2e.StartFleet(t, &binary, e2e.Setup{Source: src, Destination: dst, Include: []string{topic}, SessionTimeout: "3s"}, 2)
	a, b := f[0], f[1]
	t.Logf("spread after %v", f.WaitSpread(ctx, topic, partitions))
	endsA, endsB := a.WatchEnds(topic), b.WatchEnds(topic)
	endsB.Moved(ctx, time.Now())

	killed := time.Now()
	a.Kill9()
	t.Logf("killed: taken over after %v", endsB.Moved(ctx, killed))
	a.Launch()
	t.Logf("started: spread again after %v", f.WaitSpread(ctx, topic, partitions))

	frozen := time.Now()
	b.Pause()
	t.Logf("frozen: taken over after %v", endsA.Moved(ctx, frozen))
	b.Continue()
	t.Logf("revived: spread again after %v", f.WaitSpread(ctx, topic, partitions))

	n := traffic.Stop(t)
	t.Logf("%d records acknowledged, %d shown", n, sameEverywhere(ctx, t, f, topic, partitions))
	for _, l := range f {
		want := l.CompareRaw(ctx, topic, 0)
		l.CompareClient(ctx, clients.Readers()[2], clients.Read{Topic: topic, Isolation: oracle.ReadUncommitted}, want)
	}
}
