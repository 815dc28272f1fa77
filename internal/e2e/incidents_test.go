package e2e_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-kafka/lockstep/internal/e2e"
	"github.com/lockstep-kafka/lockstep/internal/testkafka"
	"github.com/lockstep-kafka/lockstep/internal/testkafka/content"
	"github.com/lockstep-kafka/lockstep/internal/testkafka/oracle"
)

const (
	incidentTopic      = "incident"
	incidentPartitions = 3
)

// stage is a running mirror with live traffic on its source.
type stage struct {
	*testing.T
	ctx      context.Context
	l        *e2e.Lockstep
	src, dst *testkafka.Cluster
}

// goOn lets traffic and mirror run for a while, so that an incident hits them in full swing. Nothing is asserted
// about the time.
func (s *stage) goOn(d time.Duration) {
	select {
	case <-s.ctx.Done():
	case <-time.After(d):
	}
}

func (s *stage) ok(err error) {
	s.Helper()
	require.NoError(s, err)
}

// restart ends broker 1 of a cluster, by SIGKILL or SIGTERM, and brings it back.
func (s *stage) restart(c *testkafka.Cluster, kill bool) {
	s.Helper()
	if kill {
		s.ok(c.Kill(1))
	} else {
		s.ok(c.Stop(1))
	}
	s.goOn(time.Second)
	s.ok(c.StartBroker(s.ctx, 1))
}

// incident may happen to a mirror and must change nothing in what its readers see.
type incident struct {
	name                 string
	source, destinations int  // brokers; 0 means 1
	early                bool // it happens while Lockstep still begins
	happen               func(s *stage)
}

func incidents() []incident {
	return []incident{
		{name: "lockstep killed", happen: func(s *stage) {
			for range 3 {
				s.l.Restart()
				s.goOn(700 * time.Millisecond)
			}
		}},
		{name: "lockstep stopped", happen: func(s *stage) {
			s.l.Stop()
			s.goOn(500 * time.Millisecond)
			s.l.Launch()
		}},
		{name: "source broker killed", happen: func(s *stage) { s.restart(s.src, true) }},
		{name: "destination broker killed early", early: true, happen: func(s *stage) { s.goOn(1500 * time.Millisecond); s.restart(s.dst, true) }},
		{name: "destination broker killed", happen: func(s *stage) { s.restart(s.dst, true) }},
		{name: "destination broker and lockstep restarted", happen: func(s *stage) {
			s.ok(s.dst.Stop(1))
			s.l.Kill9()
			s.ok(s.dst.StartBroker(s.ctx, 1))
			s.l.Launch()
		}},
		{name: "leaders move on both sides", source: 2, destinations: 2, happen: func(s *stage) {
			for range 2 {
				s.ok(content.BumpEpoch(s.ctx, s.src, incidentTopic))
				s.ok(content.BumpEpoch(s.ctx, s.dst, incidentTopic))
				s.goOn(500 * time.Millisecond)
			}
		}},
		{name: "lockstep frozen longer than its session", happen: func(s *stage) {
			s.l.Pause()
			s.goOn(9 * time.Second)
			s.l.Continue()
		}},
	}
}

// TestIncidents: with traffic all the while, after every incident the virtual log equals the source: nothing lost,
// doubled, reordered or shifted.
func TestIncidents(t *testing.T) {
	for _, in := range incidents() {
		t.Run(in.name, func(t *testing.T) { runIncident(t, in, "all") })
	}
}

func runIncident(t *testing.T, in incident, acks string) {
	t.Helper()
	ctx := withTimeout(t, 5*time.Minute)
	src := testkafka.Start(t, testkafka.Options{Name: "source", Brokers: in.source})
	dst := destination(t, in.destinations)
	require.NoError(t, content.CreateTopic(ctx, src.Bootstrap(), incidentTopic, incidentPartitions, nil))
	l := e2e.Start(t, &binary, e2e.Setup{Source: src, Destination: dst, Include: []string{incidentTopic}, Acks: acks})
	traffic := e2e.StartTraffic(t, src, incidentTopic, incidentPartitions)
	s := &stage{T: t, ctx: ctx, l: l, src: src, dst: dst}
	if !in.early {
		l.WaitMirroring(ctx, incidentTopic, incidentPartitions)
		s.goOn(500 * time.Millisecond)
	}
	in.happen(s)
	s.goOn(1500 * time.Millisecond)
	n := traffic.Stop(t)
	l.WaitCaughtUp(ctx, incidentTopic, incidentPartitions)
	shown := 0
	for p := range int32(incidentPartitions) {
		shown += len(l.CompareRaw(ctx, incidentTopic, p))
	}
	t.Logf("%d records acknowledged, %d shown (aborted ones are not)", n, shown)
	require.Positive(t, shown)

	// And once more by a Lockstep that knows nothing but what it finds in the destination.
	l.Restart()
	l.WaitCaughtUp(ctx, incidentTopic, incidentPartitions)
	for p := range int32(incidentPartitions) {
		l.CompareRaw(ctx, incidentTopic, p)
	}
}

// A source that is gone takes nothing away from the readers, and mirroring goes on when it is back.
func TestSourceGone(t *testing.T) {
	ctx := withTimeout(t, 4*time.Minute)
	src, dst := testkafka.Start(t, testkafka.Options{Name: "source"}), destination(t, 1)
	k, err := content.Get("codecs")
	require.NoError(t, err)
	require.NoError(t, k.Fill(ctx, src, "gone"))
	l := e2e.Start(t, &binary, e2e.Setup{Source: src, Destination: dst, Include: []string{"gone"}})
	l.WaitCaughtUp(ctx, "gone", 1)
	want := l.CompareRaw(ctx, "gone", 0)
	require.NoError(t, src.Kill(1))
	l.Restart() // also a Lockstep that never reached the source serves what is there
	got, err := oracle.Dump(ctx, l.Bootstrap(), "gone", 0, oracle.ReadCommitted)
	require.NoError(t, err)
	require.Empty(t, oracle.Diff(want, got))
	require.NoError(t, src.StartBroker(ctx, 1))
	_, err = content.Produce(ctx, src.Bootstrap(), "gone", 0, content.Batch(1_700_000_000_000, "k", "after"))
	require.NoError(t, err)
	l.WaitCaughtUp(ctx, "gone", 1)
	l.CompareRaw(ctx, "gone", 0)
}
