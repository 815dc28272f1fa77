//go:build long

package e2e_test

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/internal/e2e"
	"github.com/lockstep-kafka/lockstep/internal/testkafka/content"
	"github.com/lockstep-kafka/lockstep/internal/testkafka/oracle"
)

// waitsFor waits until the topic is in a state that waits for an instance, and says so in `lockstep status` and
// `lockstep instances`.
func waitsFor(ctx context.Context, t *testing.T, l *e2e.Lockstep, topic, state, instance string) {
	t.Helper()
	waiting := func() bool {
		ps := l.Describe(ctx, topic)
		return len(ps) == 1 && ps[0].State == state && len(ps[0].WaitingFor) == 1 && ps[0].WaitingFor[0] == instance
	}
	until(ctx, t, state+" that waits for "+instance, waiting)
	out, code := l.CLI(ctx, "status")
	require.Zero(t, code)
	require.Contains(t, out, "waits for instance "+instance)
	var got struct {
		Instances []struct {
			ID      string   `json:"id"`
			Awaited []string `json:"awaited"`
		} `json:"instances"`
	}
	l.Verb(ctx, &got, "instances")
	for _, i := range got.Instances {
		if i.ID == instance {
			require.NotEmpty(t, i.Awaited)
			return
		}
	}
	t.Fatalf("%s is not in %+v", instance, got)
}

// All replicas: an unclean election's cut, and a start, are over only when every known instance has taken them in. One
// that is frozen is waited for beyond its lease, by name. When it comes back late it shows nothing of what was cut, and
// takes no write: not for requests that were in its sockets all the time, nor for a long poll that it had begun. The same
// holds for an instance that serves clients only, without a mirror of its own.
func TestAllReplicas(t *testing.T) {
	t.Run("mirrors", func(t *testing.T) { allReplicas(t, false) })
	t.Run("serves only", func(t *testing.T) { allReplicas(t, true) })
}

func allReplicas(t *testing.T, serveOnly bool) {
	ctx := withTimeout(t, 10*time.Minute)
	src, dst := uleSource(ctx, t), destination(t, 1)
	putAll(ctx, t, src, 0, "a", 5)
	f := e2e.PrepareFleet(t, &binary, e2e.Setup{Source: src, Destination: dst, Include: []string{uleTopic}, Mirror: []string{"unclean_leader_election: true"}}, 2)
	a, b := f[0], f[1]
	b.Reconfigure(func(s *e2e.Setup) { s.ServeOnly = serveOnly })
	for _, l := range f {
		l.Launch()
	}
	beforeLoss(ctx, t, src)
	for _, l := range f {
		l.WaitCaughtUp(ctx, uleTopic, 1)
		require.Len(t, l.CompareRaw(ctx, uleTopic, 0), 10)
	}

	// ULE_RECOVERY.
	dial := func() *oracle.Conn {
		c, _, err := oracle.DialLeader(ctx, b.Bootstrap(), uleTopic, 0)
		require.NoError(t, err)
		t.Cleanup(c.Close)
		return c
	}
	polling, later := dial(), dial()
	answers := make(chan []string, 2)
	ask := func(c *oracle.Conn, offset int64) {
		resp, err := longPoll(ctx, c, uleTopic, offset, 20*time.Second)
		answers <- shown(t, resp, err)
	}
	go ask(polling, 10)
	wait(ctx, time.Second)
	b.Pause()
	go ask(later, 5)
	lose(ctx, t, src)
	waitsFor(ctx, t, a, uleTopic, "ULE_RECOVERY", b.ID())
	wait(ctx, 45*time.Second) // its lease, and the time of a request
	waitsFor(ctx, t, a, uleTopic, "ULE_RECOVERY", b.ID())
	b.Continue()
	seen := append(<-answers, <-answers...)
	again := dial()
	for range 200 { // and what it says from then on
		resp, err := longPoll(ctx, again, uleTopic, 5, 100*time.Millisecond)
		seen = append(seen, shown(t, resp, err)...)
		if err != nil {
			again = dial()
		}
		if len(seen) > 0 && strings.HasPrefix(seen[len(seen)-1], "c") {
			break
		}
		wait(ctx, 20*time.Millisecond)
	}
	for _, v := range seen {
		require.False(t, strings.HasPrefix(v, "b"), "%s was cut; answers: %v", v, seen)
	}
	require.Contains(t, seen, "c5")
	a.WaitState(ctx, uleTopic, 1, "MIRRORING")
	for _, l := range f {
		l.WaitCaughtUp(ctx, uleTopic, 1)
		require.Len(t, l.CompareRaw(ctx, uleTopic, 0), 8)
	}

	// LOG_ALIGNMENT.
	stop(ctx, t, a, uleTopic)
	put(ctx, t, b.Bootstrap(), uleTopic, 8, "local8")
	late := dial()
	b.Pause()
	written := make(chan error, 1)
	go func() { written <- produceOn(ctx, late, uleTopic, "late9") }()
	_, code := a.CLI(ctx, "start", "--topic", uleTopic, "--timeout", "2s")
	require.NotZero(t, code)
	waitsFor(ctx, t, a, uleTopic, "LOG_ALIGNMENT", b.ID())
	wait(ctx, 45*time.Second)
	waitsFor(ctx, t, a, uleTopic, "LOG_ALIGNMENT", b.ID())
	b.Continue()
	require.Error(t, <-written)
	a.WaitState(ctx, uleTopic, 1, "MIRRORING")
	for _, l := range f {
		l.WaitCaughtUp(ctx, uleTopic, 1)
		require.Len(t, l.CompareRaw(ctx, uleTopic, 0), 8)
	}
	physical, err := oracle.Dump(ctx, dst.Bootstrap(), uleTopic, 0, oracle.ReadUncommitted)
	require.NoError(t, err)
	for _, r := range physical {
		require.NotEqual(t, "late9", string(r.Value))
	}
	put(ctx, t, src.Bootstrap(), uleTopic, 8, "on")
	for _, l := range f {
		l.WaitCaughtUp(ctx, uleTopic, 1)
	}
}

// shown are the values in an answer. A lost connection and a retriable error are fine, other errors only where the
// client is told that its log was cut.
func shown(t *testing.T, resp *kmsg.FetchResponse, err error) []string {
	t.Helper()
	if err != nil {
		t.Logf("no answer: %v", err)
		return nil
	}
	if err := kerr.ErrorForCode(resp.ErrorCode); err != nil {
		t.Logf("answer: %v", err)
		return nil
	}
	p := resp.Topics[0].Partitions[0]
	if err := kerr.ErrorForCode(p.ErrorCode); err != nil {
		t.Logf("answer: %v", err)
		if !kerr.IsRetriable(err) && !errors.Is(err, kerr.OffsetOutOfRange) {
			t.Errorf("answer: %v", err)
		}
		return nil
	}
	batches, err := oracle.ParseBatches(p.RecordBatches)
	if err != nil {
		t.Error(err)
	}
	var out []string
	for _, b := range batches {
		recs, err := b.Recs(0)
		if err != nil {
			t.Error(err)
		}
		for _, r := range recs {
			out = append(out, string(r.Value))
		}
	}
	t.Logf("answer: high watermark %d, %v", p.HighWatermark, out)
	return out
}

func produceOn(ctx context.Context, c *oracle.Conn, topic, value string) error {
	r := kmsg.NewPtrProduceRequest()
	r.Acks, r.TimeoutMillis = -1, 10000
	rt := kmsg.NewProduceRequestTopic()
	rt.Topic = topic
	rp := kmsg.NewProduceRequestTopicPartition()
	rp.Records = content.Batch(1_700_000_000_000, "k", value)
	rt.Partitions = append(rt.Partitions, rp)
	r.Topics = append(r.Topics, rt)
	resp, err := c.Do(ctx, r, 9)
	if err != nil {
		return err
	}
	return kerr.ErrorForCode(resp.(*kmsg.ProduceResponse).Topics[0].Partitions[0].ErrorCode)
}

// Two Locksteps with other settings for one mirror: the second one says so, with the keys, and the first one shows it.
func TestInstancesConfiguredDifferently(t *testing.T) {
	ctx := withTimeout(t, 4*time.Minute)
	src, dst := kafka.Source(t), destination(t, 1)
	f := e2e.PrepareFleet(t, &binary, e2e.Setup{Source: src, Destination: dst, Include: []string{"differ-.*"}}, 2)
	a, b := f[0], f[1]
	a.Launch()
	b.Reconfigure(func(s *e2e.Setup) { s.Acks, s.Mirror = "leader", []string{"bump_step: 7"} })
	b.Launch()
	until(ctx, t, "what the second says", func() bool {
		for line := range strings.Lines(b.Log()) {
			if strings.Contains(line, "level=WARN") && strings.Contains(line, "acks") && strings.Contains(line, "bump_step") && strings.Contains(line, a.ID()) {
				t.Log(line)
				return true
			}
		}
		return false
	})
	var got struct {
		Mirrors []struct {
			Name      string              `json:"name"`
			Otherwise map[string][]string `json:"configured_differently"`
		} `json:"mirrors"`
	}
	out, code := a.CLI(ctx, "list", "--json")
	require.Zero(t, code)
	require.NoError(t, json.Unmarshal([]byte(out), &got))
	require.Len(t, got.Mirrors, 1)
	require.Equal(t, map[string][]string{b.ID(): {"acks", "bump_step"}}, got.Mirrors[0].Otherwise)
	// Set right and restarted, nothing is said any more.
	b.Reconfigure(func(s *e2e.Setup) { s.Acks, s.Mirror = "", nil })
	b.Stop()
	b.Launch()
	until(ctx, t, "agreement", func() bool {
		out, _ := a.CLI(ctx, "list", "--json")
		return !strings.Contains(out, "configured_differently")
	})
	require.NotContains(t, a.Log(), "level=ERROR")
	require.NotContains(t, a.Log(), "another instance has other settings")
}
