package control

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"go.uber.org/goleak"

	"github.com/lockstep-kafka/lockstep/epoch"
	"github.com/lockstep-kafka/lockstep/internal/leaktest"
	"github.com/lockstep-kafka/lockstep/internal/ledger"
)

// stand is a ledger on an embedded cluster, with a service and a scripted
// owner: what the owner does to each command is a function.
type stand struct {
	t      *testing.T
	view   *ledger.View
	writer *ledger.Writer
	svc    *Service
	owner  func(r *ledger.Record, c *ledger.Command) // changes the record; nil: it is away
}

func newStand(t *testing.T) *stand {
	t.Helper()
	before := goleak.IgnoreCurrent()
	t.Cleanup(func() { leaktest.None(t, before) })
	c, err := kfake.NewCluster(kfake.NumBrokers(1))
	require.NoError(t, err)
	opts := []kgo.Opt{kgo.SeedBrokers(c.ListenAddrs()...), kgo.MetadataMinAge(50 * time.Millisecond)}
	cl, err := kgo.NewClient(opts...)
	require.NoError(t, err)
	require.NoError(t, ledger.EnsureTopic(t.Context(), kadm.NewClient(cl), 1))
	cl.Close()
	s := &stand{t: t, view: ledger.NewView(ledger.ViewOptions{Client: opts, FetchWait: 50 * time.Millisecond})}
	s.writer, err = ledger.NewWriter(ledger.WriterOptions{Client: opts, View: s.view})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 2)
	go func() { done <- s.view.Run(ctx) }()
	go func() { s.play(ctx); done <- nil }()
	t.Cleanup(func() { cancel(); _, _ = <-done, <-done; s.writer.Close(); c.Close() })
	require.NoError(t, s.view.WaitReady(t.Context()))
	s.svc = New(Options{
		View: s.view, Writer: s.writer, ID: "me",
		Mirrors:          []Mirror{{Name: "dc1", Source: "a:1", Fingerprint: map[string]string{"acks": "1", "bump_step": "2"}}},
		UncleanElections: func(m, topic string) bool { return s.view.MirrorSettings(m).Unclean(topic, false) },
	})
	return s
}

// play takes commands in, as the owner of a partition does.
func (s *stand) play(ctx context.Context) {
	for ctx.Err() == nil {
		changed := s.view.Changed()
		for _, p := range s.view.All() {
			if p.Command == nil || p.Record == nil || p.Command.Seq <= p.Record.CommandSeq || s.owner == nil {
				continue
			}
			r := p.Record.Next()
			r.CommandSeq = p.Command.Seq
			if p.Command.Desired != "" {
				r.Desired = p.Command.Desired
			}
			s.owner(r, p.Command)
			_ = s.writer.Put(ctx, r)
		}
		select {
		case <-changed:
		case <-ctx.Done():
		}
	}
}

func (s *stand) partition(topic string, p int32, state ledger.State, more ...func(*ledger.Record)) {
	s.t.Helper()
	require.NoError(s.t, s.writer.Acquire(s.t.Context(), ledger.PartitionOf(topic, p)))
	r := &ledger.Record{
		Mirror: "dc1", Topic: topic, Partition: p, State: state, Desired: epoch.StateMirroring, StateEpoch: 1, Lineage: "l",
		SourceCluster: "S", Log: epoch.Log{MaxEpoch: -1, Spans: []epoch.Span{{Kind: epoch.Mirrored, Gen: 3, VStart: 5, PEpoch: 1, PEnd: -1}}},
	}
	for _, f := range more {
		f(r)
	}
	require.NoError(s.t, s.writer.Put(s.t.Context(), r))
}

func (s *stand) do(r Request) (*Result, error) {
	s.t.Helper()
	if r.Mirror == "" && len(r.Topics) == 0 && r.Regex == "" {
		r.All = true
	}
	r.WaitMillis, r.By = 5000, "tester"
	return s.svc.Command(s.t.Context(), r)
}

func (s *stand) seq(topic string, p int32) int64 {
	if c := s.view.Partition(topic, p).Command; c != nil {
		return c.Seq
	}
	return 0
}

func kind(t *testing.T, err error) ErrorKind {
	t.Helper()
	var e *Error
	require.ErrorAs(t, err, &e)
	require.NotEmpty(t, e.Remedy, "an error says what to do")
	return e.Kind
}

func obey(r *ledger.Record, c *ledger.Command) {
	if c.Desired != "" {
		r.State = c.Desired
	}
	if c.Recover && r.State == epoch.StateFailed {
		r.State, r.Error, r.Retries = r.Previous, "", 0
	}
}

// stop, start, pause, resume: the command reaches the owner, the answer waits
// for the state, and the same verb again is done without another command.
func TestVerbsReachTheOwner(t *testing.T) {
	s := newStand(t)
	s.owner = obey
	s.partition("orders", 0, epoch.StateMirroring)
	s.partition("orders", 1, epoch.StateMirroring)
	for _, x := range []struct {
		verb Verb
		goal ledger.State
	}{{Pause, epoch.StatePaused}, {Resume, epoch.StateMirroring}, {Stop, epoch.StateStopped}, {Start, epoch.StateMirroring}} {
		res, err := s.do(Request{Verb: x.verb})
		require.NoError(t, err, x.verb)
		require.True(t, res.Done, "%s: %+v", x.verb, res)
		require.Len(t, res.Partitions, 2)
		for _, o := range res.Partitions {
			require.Equal(t, x.goal, o.State)
			require.Equal(t, OutcomeDone, o.Outcome)
		}
		before := s.seq("orders", 0)
		res, err = s.do(Request{Verb: x.verb})
		require.NoError(t, err, "%s again", x.verb)
		require.True(t, res.Done)
		require.Equal(t, before, s.seq("orders", 0), "%s again writes nothing", x.verb)
	}
	require.Equal(t, "start tester", s.view.Partition("orders", 0).Command.By)
}

// While nobody owns the partition the command waits in the ledger; the same
// verb again waits for the same goal, and is done when an owner has come.
func TestResumable(t *testing.T) {
	s := newStand(t)
	s.partition("orders", 0, epoch.StateMirroring)
	res, err := s.svc.Command(t.Context(), Request{Verb: Stop, Selection: Selection{Topics: []string{"orders"}}, WaitMillis: 200})
	require.NoError(t, err)
	require.False(t, res.Done)
	require.False(t, res.Failed)
	require.Equal(t, OutcomeWaiting, res.Partitions[0].Outcome)
	require.Equal(t, "stop", res.Partitions[0].Pending)
	first := s.seq("orders", 0)
	res, err = s.svc.Command(t.Context(), Request{Verb: Stop, Selection: Selection{Topics: []string{"orders"}}, Poll: true})
	require.NoError(t, err)
	require.False(t, res.Done)
	require.Equal(t, first, s.seq("orders", 0))

	go func() { // an owner comes
		p := s.view.Partition("orders", 0)
		r := p.Record.Next()
		r.State, r.Desired, r.CommandSeq = epoch.StateStopping, epoch.StateStopped, first
		_ = s.writer.Put(context.Background(), r)
		r = r.Next()
		r.State, r.Left = epoch.StateStopped, &ledger.Left{Offset: 7, Epoch: 2, Timestamp: 99, SourceEnd: 11}
		_ = s.writer.Put(context.Background(), r)
	}()
	res, err = s.do(Request{Verb: Stop})
	require.NoError(t, err)
	require.True(t, res.Done, "%+v", res)
	require.Equal(t, first, s.seq("orders", 0))
	require.Equal(t, int64(7), res.Partitions[0].Left.Offset)
	require.Equal(t, int64(11), res.Partitions[0].Left.SourceEnd)
}

// facts §1: start needs STOPPED or UNKNOWN, pause MIRRORING, resume PAUSED,
// delete all STOPPED (TD-05); the refusal lists what is in the way, and nothing
// is written for the others.
func TestRefusals(t *testing.T) {
	s := newStand(t)
	s.owner = obey
	s.partition("a", 0, epoch.StateMirroring)
	s.partition("b", 0, epoch.StateStopped)
	s.partition("c", 0, epoch.StatePaused)
	for _, x := range []struct {
		verb Verb
		bad  []string
	}{
		{Start, []string{"a-0 MIRRORING", "c-0 PAUSED"}},
		{Pause, []string{"b-0 STOPPED"}},
		{Resume, []string{"a-0 MIRRORING", "b-0 STOPPED"}},
	} {
		_, err := s.do(Request{Verb: x.verb})
		require.Equal(t, Refused, kind(t, err), x.verb)
		var e *Error
		require.True(t, errors.As(err, &e))
		require.Equal(t, x.bad, e.Partitions, x.verb)
	}
	_, err := s.do(Request{Verb: Delete, Selection: Selection{Mirror: "dc1"}})
	require.Equal(t, Refused, kind(t, err))
	var with *Error
	require.True(t, errors.As(err, &with))
	require.Equal(t, []string{"a-0 MIRRORING", "c-0 PAUSED"}, with.Partitions, "TD-05")
	for _, topic := range []string{"a", "b", "c"} {
		require.Nil(t, s.view.Partition(topic, 0).Command)
	}
	for _, r := range []Request{
		{Verb: "explode", Selection: Selection{All: true}},
		{Verb: Stop},
		{Verb: Stop, Selection: Selection{All: true, Regex: "x"}},
		{Verb: Stop, Selection: Selection{Regex: "("}},
		{Verb: Stop, Selection: Selection{All: true}, DiscardLocal: true},
		{Verb: Delete, Selection: Selection{All: true}},
		{Verb: Delete, Selection: Selection{Mirror: "dc1", Topics: []string{"a"}}},
	} {
		_, err := s.svc.Command(t.Context(), r)
		require.Equal(t, BadRequest, kind(t, err), "%+v", r)
	}
	for _, r := range []Request{
		{Verb: Stop, Selection: Selection{Topics: []string{"nowhere"}}},
		{Verb: Stop, Selection: Selection{Regex: "no.*"}},
		{Verb: Stop, Selection: Selection{Mirror: "dc9", All: true}},
	} {
		_, err := s.svc.Command(t.Context(), r)
		require.Equal(t, NotFound, kind(t, err), "%+v", r)
	}
}

// A FAILED partition fails the verb with its text; recover brings it back and
// leaves others alone; a stop takes it along.
func TestFailedAndRecover(t *testing.T) {
	s := newStand(t)
	s.partition("a", 0, epoch.StateFailed, func(r *ledger.Record) {
		r.Previous, r.Error = epoch.StateMirroring, "truncation: switch unclean_leader_election on"
	})
	s.partition("b", 0, epoch.StateMirroring)
	s.owner = obey
	res, err := s.do(Request{Verb: Recover})
	require.NoError(t, err)
	require.True(t, res.Done, "%+v", res)
	require.Equal(t, epoch.StateMirroring, s.view.Partition("a", 0).Record.State)
	require.Nil(t, s.view.Partition("b", 0).Command)

	s.owner = func(r *ledger.Record, _ *ledger.Command) {
		r.Previous, r.State, r.Error = epoch.StateStopping, epoch.StateFailed, "compaction_order: no"
	}
	res, err = s.do(Request{Verb: Stop, Selection: Selection{Topics: []string{"a"}}})
	require.NoError(t, err)
	require.True(t, res.Failed)
	require.Equal(t, "compaction_order: no", res.Partitions[0].Text)
	s.owner = obey
	res, err = s.do(Request{Verb: Stop, Selection: Selection{Topics: []string{"a"}}})
	require.NoError(t, err)
	require.True(t, res.Done, "a stop again is another try: %+v", res)
}

// Delete keeps the partition records; a start takes the deletion back.
func TestDeleteKeepsRecords(t *testing.T) {
	s := newStand(t)
	s.owner = obey
	s.partition("a", 0, epoch.StateStopped, func(r *ledger.Record) { r.Pairs = []ledger.Pair{{Cluster: "S", Lineage: "x", LME: 1, LMO: 2}} })
	res, err := s.do(Request{Verb: Delete, Selection: Selection{Mirror: "dc1"}})
	require.NoError(t, err)
	require.True(t, res.Done)
	require.True(t, s.view.MirrorSettings("dc1").Deleted)
	require.Len(t, s.view.Partition("a", 0).Record.Pairs, 1)
	ms, err := s.svc.Mirrors(t.Context())
	require.NoError(t, err)
	require.True(t, ms[0].Deleted)
	_, err = s.do(Request{Verb: Start})
	require.NoError(t, err)
	require.False(t, s.view.MirrorSettings("dc1").Deleted)
}

func TestDescribe(t *testing.T) {
	s := newStand(t)
	now := time.Now()
	s.partition("orders", 0, epoch.StateMirroring, func(r *ledger.Record) {
		r.Log.Bump, r.Log.Chain, r.Log.MaxEpoch = 4, epoch.Chain{{Epoch: 3, Start: 5}}, 9
		r.Pairs = []ledger.Pair{{Cluster: "X", Lineage: "x", LME: 7, LMO: 8}, {Cluster: "S", Lineage: "x", LME: 1, LMO: 2}}
	})
	s.partition("orders", 1, epoch.StateLogAlignment)
	s.partition("zoo", 0, epoch.StateFailed, func(r *ledger.Record) { r.Error, r.Retries = "why", 3 })
	require.NoError(t, s.writer.PutInstance(t.Context(), &ledger.Instance{ID: "other", Started: now, Lease: now.Add(time.Minute), Mirrors: map[string]map[string]string{"dc1": {"acks": "1", "bump_step": "3"}}}))
	require.Eventually(t, func() bool { return len(s.view.Instances()) == 1 }, time.Minute, 10*time.Millisecond)
	live := s.view.Partition("orders", 0).Live
	live.Publish(ledger.Tail{VEnd: 20, Position: 21, PEpoch: 1})
	live.SetStatus(ledger.Status{SourceEnd: 30, SourceEpoch: 3})

	ps, err := s.svc.Partitions(t.Context(), Selection{Regex: "ord.*"})
	require.NoError(t, err)
	require.Len(t, ps, 2)
	p := ps[0]
	require.Equal(t, "me", p.Instance)
	require.Equal(t, []int64{30, 21, 9, 2}, []int64{p.SourceOffset, p.DestinationOffset, p.Lag, p.LMO})
	require.Equal(t, []int32{1, 3, 1, 5}, []int32{p.LME, p.SourceEpoch, p.DestinationEpoch, p.ShownEpoch})
	require.Equal(t, int16(3), p.Generation)
	require.Equal(t, []string{"other"}, ps[1].WaitingFor)
	require.Equal(t, int64(-1), ps[1].Lag)

	ms, err := s.svc.Mirrors(t.Context())
	require.NoError(t, err)
	require.Equal(t, map[ledger.State]int{epoch.StateMirroring: 1, epoch.StateLogAlignment: 1, epoch.StateFailed: 1}, ms[0].States)
	require.Equal(t, map[string][]string{"other": {"bump_step"}}, ms[0].ConfiguredDifferently)
	require.Equal(t, "other", s.svc.Instances()[0].ID)
}

// What the newest start cut is known to every instance, and told while the
// partition mirrors since then.
func TestDescribeCut(t *testing.T) {
	s := newStand(t)
	for i, state := range []epoch.State{epoch.StateMirroring, epoch.StateStopped, epoch.StateLogAlignment} {
		s.partition("orders", int32(i), state, func(r *ledger.Record) { r.Cut = &ledger.Cut{From: 12, End: 20} })
	}
	ps, err := s.svc.Partitions(t.Context(), Selection{Topics: []string{"orders"}})
	require.NoError(t, err)
	require.Equal(t, &ledger.Cut{From: 12, End: 20}, ps[0].Cut, "without a number from its owner")
	require.Empty(t, ps[0].Instance)
	require.Nil(t, ps[1].Cut)
	require.Nil(t, ps[2].Cut)
}

// A start that has not cut yet, and failed: the log here still ends where local
// writes do, as clients see it, not where mirroring had stopped before them.
func TestDescribeLocalEnd(t *testing.T) {
	s := newStand(t)
	for i, state := range []ledger.State{epoch.StateStopped, epoch.StateLogAlignment, epoch.StateFailed} {
		s.partition("orders", int32(i), state, func(r *ledger.Record) {
			r.Log.Spans = []epoch.Span{{Kind: epoch.Mirrored, Gen: 3, VStart: 5, PEpoch: 1, PEnd: 40}, {Kind: epoch.Native, VStart: 20, PStart: 40, PEpoch: 1, PEnd: -1}}
		})
		live := s.view.Partition("orders", int32(i)).Live
		live.Publish(ledger.Tail{VEnd: 20, Position: 20, PEpoch: 1})
		live.SetStatus(ledger.Status{SourceEnd: 30, SourceEpoch: 3})
	}
	s.svc.o.Ends = func(context.Context, []string) map[string]map[int32]int64 {
		return map[string]map[int32]int64{"orders": {0: 47, 1: 47, 2: 47}}
	}
	ps, err := s.svc.Partitions(t.Context(), Selection{Topics: []string{"orders"}})
	require.NoError(t, err)
	for _, p := range ps {
		require.Equal(t, []int64{27, -1}, []int64{p.DestinationOffset, p.Lag}, "%s", p.State)
	}
}

func TestSettings(t *testing.T) {
	s := newStand(t)
	s.partition("orders", 0, epoch.StateMirroring)
	set := func(v string, topics ...string) *Settings {
		t.Helper()
		got, err := s.svc.Set(t.Context(), SettingsRequest{Mirror: "dc1", Topics: topics, UncleanLeaderElection: v})
		require.NoError(t, err)
		return got
	}
	require.True(t, set("true").UncleanLeaderElection)
	require.Equal(t, map[string]bool{"orders": false}, set("false", "orders").Topics)
	require.False(t, s.svc.o.UncleanElections("dc1", "orders"))
	require.True(t, s.svc.o.UncleanElections("dc1", "others"))
	require.Empty(t, set("config", "orders").Topics)
	require.False(t, set("config").UncleanLeaderElection)
	_, err := s.svc.Set(t.Context(), SettingsRequest{Mirror: "dc1", UncleanLeaderElection: "perhaps"})
	require.Equal(t, BadRequest, kind(t, err))
	_, err = s.svc.Set(t.Context(), SettingsRequest{Mirror: "dc9", UncleanLeaderElection: "true"})
	require.Equal(t, NotFound, kind(t, err))
	require.Contains(t, fmt.Sprint(err), "lockstep list")
}

// start --discard-local of a topic that is on the destination and in no ledger
// entry yet (facts E1): the commands wait for the mirror that will take it.
func TestStartOfAnUnknownTopic(t *testing.T) {
	s := newStand(t)
	_, err := s.do(Request{Verb: Start, Selection: Selection{Mirror: "dc1", Topics: []string{"junk"}}, DiscardLocal: true})
	require.Equal(t, NotFound, kind(t, err))
	s.svc.o.PartitionCount = func(_ context.Context, topic string) (int32, error) {
		if topic == "junk" {
			return 2, nil
		}
		return 0, nil
	}
	r := Request{Verb: Start, Selection: Selection{Mirror: "dc1", Topics: []string{"junk"}}, DiscardLocal: true, WaitMillis: 300}
	res, err := s.svc.Command(t.Context(), r)
	require.NoError(t, err)
	require.False(t, res.Done)
	require.Len(t, res.Partitions, 2)
	require.Equal(t, OutcomeWaiting, res.Partitions[1].Outcome)
	require.Equal(t, epoch.StateUnknown, res.Partitions[1].State)
	require.Eventually(t, func() bool { return s.view.Command("junk", 1) != nil }, time.Minute, 10*time.Millisecond)
	c := s.view.Command("junk", 1)
	require.True(t, c.DiscardLocal)
	require.Equal(t, "dc1", c.Mirror)
	_, err = s.svc.Command(t.Context(), r)
	require.NoError(t, err)
	require.Equal(t, c.Seq, s.view.Command("junk", 1).Seq, "again waits for the same command")
	s.partition("junk", 0, epoch.StateMirroring, func(r *ledger.Record) { r.CommandSeq = c.Seq })
	s.partition("junk", 1, epoch.StateMirroring, func(r *ledger.Record) { r.CommandSeq = c.Seq })
	res, err = s.svc.Command(t.Context(), r)
	require.NoError(t, err)
	require.True(t, res.Done, "%+v", res)
	_, err = s.do(Request{Verb: Start, Selection: Selection{Mirror: "dc1", Topics: []string{"nowhere"}}})
	require.Equal(t, NotFound, kind(t, err))
}

// An instance that is gone for good is forgotten, and nothing waits for it any
// more; one that may still serve is not (H10).
func TestForget(t *testing.T) {
	s := newStand(t)
	now := time.Now()
	s.partition("orders", 0, epoch.StateLogAlignment)
	s.partition("orders", 1, epoch.StateULERecovery)
	s.partition("zoo", 0, epoch.StateMirroring)
	for id, lease := range map[string]time.Time{"gone": now.Add(-time.Minute), "late": now.Add(-ledger.RequestTimeout / 2), "here": now.Add(time.Minute)} {
		require.NoError(t, s.writer.PutInstance(t.Context(), &ledger.Instance{ID: id, Started: now, Lease: lease, ServesUntil: lease}))
	}
	require.Eventually(t, func() bool { return len(s.svc.Instances()) == 3 }, time.Minute, 10*time.Millisecond)
	awaited := map[string]int{}
	for _, i := range s.svc.Instances() {
		awaited[i.ID] = i.AwaitedCount
		require.Equal(t, int64(-1), i.Behind)
	}
	require.Equal(t, 2, awaited["here"])
	require.Equal(t, 2, awaited["late"])
	for _, id := range []string{"here", "late"} {
		_, err := s.svc.Forget(t.Context(), ForgetRequest{Instance: id})
		require.Equal(t, Refused, kind(t, err), id)
	}
	_, err := s.svc.Forget(t.Context(), ForgetRequest{Instance: "nobody"})
	require.Equal(t, NotFound, kind(t, err))
	_, err = s.svc.Forget(t.Context(), ForgetRequest{})
	require.Equal(t, BadRequest, kind(t, err))
	got, err := s.svc.Forget(t.Context(), ForgetRequest{Instance: "gone"})
	require.NoError(t, err)
	require.Equal(t, "gone", got.ID)
	require.Eventually(t, func() bool { return len(s.svc.Instances()) == 2 }, time.Minute, 10*time.Millisecond)
}

// A start that the owner refuses, or holds until the source can be asked, says why; the partition stays STOPPED, and the
// next start is a new try.
func TestStartRefusedOrHeld(t *testing.T) {
	stopped := func(r *ledger.Record) { r.Desired = epoch.StateStopped }
	t.Run("held", func(t *testing.T) {
		s := newStand(t)
		s.partition("a", 0, epoch.StateStopped, stopped)
		s.view.Partition("a", 0).Live.SetStatus(ledger.Status{Error: "the start waits: source away"})
		res, err := s.svc.Command(t.Context(), Request{Verb: Start, Selection: Selection{Topics: []string{"a"}}, WaitMillis: 10})
		require.NoError(t, err)
		require.False(t, res.Done)
		require.False(t, res.Failed)
		require.Equal(t, OutcomeWaiting, res.Partitions[0].Outcome)
		require.Equal(t, "the start waits: source away", res.Partitions[0].Text)
		require.Equal(t, res.Partitions[0].Text, res.Partitions[0].Error, "describe says it too")
	})
	t.Run("refused", func(t *testing.T) {
		s := newStand(t)
		tries := 0
		s.owner = func(r *ledger.Record, _ *ledger.Command) {
			if tries++; tries == 1 {
				r.Desired, r.Error = epoch.StateStopped, "use the proxy"
			} else {
				r.State, r.Error = epoch.StateMirroring, ""
			}
		}
		s.partition("b", 0, epoch.StateStopped, stopped)
		start := Request{Verb: Start, Selection: Selection{Topics: []string{"b"}}}
		res, err := s.do(start)
		require.NoError(t, err)
		require.True(t, res.Failed, "%+v", res)
		require.Equal(t, "use the proxy", res.Partitions[0].Text)
		require.Equal(t, epoch.StateStopped, res.Partitions[0].State)
		require.Equal(t, "use the proxy", res.Partitions[0].Refused)
		require.Empty(t, res.Partitions[0].Error, "nothing is wrong with it")
		res, err = s.do(start)
		require.NoError(t, err)
		require.True(t, res.Done, "%+v", res)
	})
}

// A source that doesn't answer is said once, of its mirror.
func TestSourceAway(t *testing.T) {
	s := newStand(t)
	since, why := time.Unix(7, 0).UTC(), "reach the source: refused"
	s.svc.o.SourceAway = func(mirror string) (time.Time, string) {
		require.Equal(t, "dc1", mirror)
		return since, why
	}
	ms, err := s.svc.Mirrors(t.Context())
	require.NoError(t, err)
	require.Equal(t, since, *ms[0].SourceAway)
	require.Equal(t, why, ms[0].SourceError)
	since, why = time.Time{}, ""
	ms, err = s.svc.Mirrors(t.Context())
	require.NoError(t, err)
	require.Nil(t, ms[0].SourceAway)
}
