//go:build long

package e2e_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/lockstep-kafka/lockstep/internal/e2e"
	"github.com/lockstep-kafka/lockstep/internal/testkafka/clients"
	"github.com/lockstep-kafka/lockstep/internal/testkafka/content"
)

// PX-105: two instances are restarted in turn, with a reload in between, under a Java producer (acks=all, idempotent)
// and a Java consumer group that commits all the time, both with both instances as bootstrap. They write and read a
// topic that was mirrored and is STOPPED, and one that never was a mirror's. The producer sees no error, and each record
// is in the log once, in order. The consumer misses none. It may read some twice, but only when a commit failed because
// of a rebalance, as with Kafka itself: the one broker it knows goes, so it begins anew from its bootstrap, and a topic
// that has no partitions for a moment makes it rebalance. The mirror of another topic goes on meanwhile.
func TestRollingRestart(t *testing.T) {
	ctx := withTimeout(t, 8*time.Minute)
	src, dst := kafka.Source(t), destination(t, 1)
	forever := map[string]string{"retention.ms": "-1"} // put's records are old
	require.NoError(t, content.CreateTopic(ctx, src.Bootstrap(), "rolled-stopped", 1, forever))
	require.NoError(t, content.CreateTopic(ctx, src.Bootstrap(), "rolled-mirror", 4, nil))
	require.NoError(t, content.CreateTopic(ctx, dst.Bootstrap(), "plain", 1, forever))
	put(ctx, t, src.Bootstrap(), "rolled-stopped", 0, "mirrored")
	put(ctx, t, dst.Bootstrap(), "plain", 0, "first")
	f := e2e.StartFleet(t, &binary, e2e.Setup{Source: src, Destination: dst, Include: []string{"rolled-.*"}, Limits: []string{"drain_timeout: 10s"}}, 2)
	f[0].WaitCaughtUp(ctx, "rolled-stopped", 1)
	stop(ctx, t, f[1], "rolled-stopped")
	traffic := e2e.StartTraffic(t, src, "rolled-mirror", 4)
	f.WaitSpread(ctx, "rolled-mirror", 4)

	const n = 3500
	var g errgroup.Group
	for _, topic := range []string{"rolled-stopped", "plain"} {
		g.Go(func() error {
			got, err := clients.JavaProduce(ctx, f.Bootstrap(), topic, 0, n, "pace=10", "x.delivery.timeout.ms=120000", "x.request.timeout.ms=30000")
			if err != nil {
				return err
			}
			if len(got) != n {
				return fmt.Errorf("%s: %d answers", topic, len(got))
			}
			for i, m := range got {
				if m.Error != "" || m.Offset != int64(i+1) {
					return fmt.Errorf("%s: record %d: offset %d %s %s", topic, i, m.Offset, m.Error, m.Message)
				}
			}
			return nil
		})
		g.Go(func() error {
			got, err := clients.JavaRead(ctx, clients.Read{
				Bootstrap: f.Bootstrap(), Topic: topic, Group: "rolled-" + topic, Subscribe: true, Commit: true, From: "group",
				Max: n + 1, Follow: true, Timeout: 3 * time.Minute, CommitEvery: 500 * time.Millisecond,
			})
			if err != nil {
				return err
			}
			return atLeastOnce(t, topic, got, n)
		})
	}
	done := make(chan error, 1)
	go func() { done <- g.Wait() }()
	var err error
	rounds, busy := 0, true
	for busy {
		for _, l := range f {
			began := time.Now()
			l.Stop()
			t.Logf("%s: drained and ended in %v", l.ID(), time.Since(began).Round(10*time.Millisecond))
			wait(ctx, time.Second)
			l.Launch()
			f.WaitSpread(ctx, "rolled-mirror", 4)
			wait(ctx, 2*time.Second)
		}
		rounds++
		for _, l := range f { // a reload that hands all mirrors over
			l.Reconfigure(func(s *e2e.Setup) { s.Mirror = []string{fmt.Sprintf("bump_step: %d", 1000+rounds)} })
			begun := len(l.Log())
			l.Reload()
			until(ctx, t, "the reload", func() bool { return strings.Contains(l.Log()[begun:], "the mirrors run with their new settings") })
		}
		f.WaitSpread(ctx, "rolled-mirror", 4)
		select {
		case err = <-done:
			busy = false
		default:
		}
	}
	require.NoError(t, err)
	require.GreaterOrEqual(t, rounds, 2)
	t.Logf("%d rounds", rounds)
	for _, topic := range []string{"rolled-stopped", "plain"} {
		for _, l := range f {
			got, err := clients.FranzRead(ctx, clients.Read{Bootstrap: l.Bootstrap(), Topic: topic, Expect: n + 1})
			require.NoError(t, err)
			require.Len(t, got.Recs, n+1, "%s through %s", topic, l.ID())
			for i, r := range got.Recs {
				require.EqualValues(t, i, r.Offset)
				if i > 0 {
					require.Equal(t, fmt.Sprintf("v%d", i-1), string(r.Value))
				}
			}
		}
	}
	traffic.Stop(t)
	sameEverywhere(ctx, t, f, "rolled-mirror", 4)
}

// atLeastOnce checks what a group's consumer saw of the records 0…n of a partition: no gap, no wrong value, all
// committed in the end, and not more steps back than commits that failed.
func atLeastOnce(t *testing.T, topic string, got clients.Result, n int) error {
	if got.TimedOut() {
		return fmt.Errorf("%s: the consumer waited in vain for more than %d records", topic, len(got.Recs))
	}
	failed, back, next := 0, 0, int64(0)
	for _, m := range got.Meta {
		if m.What == "commit-failed" {
			failed++
		}
	}
	for i, r := range got.Recs {
		switch {
		case r.Offset > next:
			return fmt.Errorf("%s: record %d has offset %d, after %d", topic, i, r.Offset, next-1)
		case r.Offset < next:
			back++
		}
		if r.Offset > 0 && string(r.Value) != fmt.Sprintf("v%d", r.Offset-1) {
			return fmt.Errorf("%s: read %v at offset %d", topic, r, r.Offset)
		}
		next = r.Offset + 1
	}
	t.Logf("%s: %d records read, %d of them again; %d commits failed because of a rebalance", topic, len(got.Recs), len(got.Recs)-n-1, failed)
	if next != int64(n+1) || back > failed {
		return fmt.Errorf("%s: read up to %d, of %d; %d steps back, with %d failed commits", topic, next, n+1, back, failed)
	}
	if m, ok := got.Find("committed", 0); !ok || m.Offset != int64(n+1) {
		return fmt.Errorf("%s: committed %v", topic, m)
	}
	return nil
}
