package e2e_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kmsg"

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
	secondSignal(ctx, t, a, topic)
}

// secondSignal: with a client that waits for a minute, SIGTERM drains; a second one ends the process at once. Nothing
// tells from outside when the client's request is under way: on a slow machine it takes another try.
func secondSignal(ctx context.Context, t *testing.T, l *e2e.Lockstep, topic string) {
	t.Helper()
	for _, delay := range []time.Duration{500 * time.Millisecond, 3 * time.Second, 10 * time.Second} {
		if secondSignalOnce(ctx, t, l, topic, delay) {
			return
		}
		t.Logf("the request was not under way after %v", delay)
		l.Launch()
	}
	t.Fatal("it doesn't drain for a client that waits")
}

func secondSignalOnce(ctx context.Context, t *testing.T, l *e2e.Lockstep, topic string, delay time.Duration) bool {
	t.Helper()
	c, _, err := oracle.DialLeader(ctx, l.Bootstrap(), topic, 0)
	require.NoError(t, err)
	defer c.Close()
	end, err := oracle.ListOffset(ctx, l.Bootstrap(), topic, 0, oracle.ReadCommitted, oracle.Latest)
	require.NoError(t, err)
	asked := make(chan struct{})
	go func() {
		defer close(asked)
		_, _ = longPoll(ctx, c, topic, end.Offset, time.Minute)
	}()
	wait(ctx, delay) // so that the request is under way
	begun := len(l.Log())
	l.Terminate()
	until(ctx, t, "the drain", func() bool { return strings.Contains(l.Log()[begun:], "draining") || !l.Process().Alive() })
	wait(ctx, time.Second)
	if !l.Process().Alive() {
		<-asked
		require.NoError(t, l.Process().Err(), "it ended in order")
		return false
	}
	l.Terminate()
	<-l.Process().Done()
	<-asked
	if l.Process().Err() == nil { // it was about to end in order, or takes no notice: then it does so each time
		return false
	}
	require.ErrorContains(t, l.Process().Err(), "signal: terminated")
	return true
}

// longPoll is a Fetch from an offset that waits for so long.
func longPoll(ctx context.Context, c *oracle.Conn, topic string, offset int64, wait time.Duration) (*kmsg.FetchResponse, error) {
	r := kmsg.NewPtrFetchRequest()
	r.ReplicaID, r.MaxWaitMillis, r.MinBytes, r.MaxBytes, r.SessionEpoch = -1, int32(wait/time.Millisecond), 1, 1<<20, -1
	rt := kmsg.NewFetchRequestTopic()
	rt.Topic = topic
	rp := kmsg.NewFetchRequestTopicPartition()
	rp.FetchOffset, rp.PartitionMaxBytes, rp.CurrentLeaderEpoch, rp.LastFetchedEpoch = offset, 1<<20, -1, -1
	rt.Partitions = append(rt.Partitions, rp)
	r.Topics = append(r.Topics, rt)
	resp, err := c.Do(ctx, r, 12)
	if err != nil {
		return nil, err
	}
	return resp.(*kmsg.FetchResponse), nil
}
