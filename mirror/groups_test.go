package mirror

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/epoch"
)

// groupRig is a group sync between two kfake clusters, with bounds by hand.
type groupRig struct {
	t        *testing.T
	src, dst *kfake.Cluster
	s        *groupSync
	a, b     *kadm.Client // of the source, of the destination
	looks    map[partKey]groupLook
	looked   int
	requests [2][128]atomic.Int64 // by side and key
	clock    time.Time
}

func newGroupRig(t *testing.T, partitions int32, topics ...string) *groupRig {
	t.Helper()
	r := &groupRig{t: t, looks: map[partKey]groupLook{}, clock: time.Unix(1_800_000_000, 0)}
	var opts [2][]kgo.Opt
	for i := range 2 {
		c, err := kfake.NewCluster(kfake.NumBrokers(2), kfake.SeedTopics(partitions, topics...))
		require.NoError(t, err)
		t.Cleanup(c.Close)
		c.Control(func(req kmsg.Request) (kmsg.Response, error, bool) {
			c.KeepControl()
			r.requests[i][req.Key()].Add(1)
			return nil, nil, false
		})
		opts[i] = []kgo.Opt{kgo.SeedBrokers(c.ListenAddrs()...), kgo.MetadataMinAge(10 * time.Millisecond)}
		adm := kadm.NewClient(fakeClient(t, c))
		if i == 0 {
			r.src, r.a = c, adm
		} else {
			r.dst, r.b = c, adm
		}
	}
	l := groupLog(t, epoch.Entry{Epoch: 0, Start: 0})
	for _, topic := range topics {
		for p := range partitions {
			b := at(l, 1000)
			r.looks[partKey{topic, p}] = groupLook{bounds: *b}
		}
	}
	filter, err := NewTopicFilter([]string{".*"}, []string{"not-.*"})
	require.NoError(t, err)
	r.s, err = newGroupSync(GroupOptions{Filter: filter, Interval: time.Second}, opts[0], opts[1], slog.New(slog.DiscardHandler), newGroupsMetrics(nil).of("m"))
	require.NoError(t, err)
	t.Cleanup(r.s.close)
	r.s.now = func() time.Time { return r.clock }
	r.s.source = func() string { return "" }
	r.s.look = func() map[partKey]groupLook {
		r.s.mu.Lock() // a leaf: the real one takes locks of partitions and owners
		defer r.s.mu.Unlock()
		r.looked += len(r.looks)
		return r.looks
	}
	r.s.mine = func(partKey, bool) bool { return true }
	return r
}

func (r *groupRig) commit(adm *kadm.Client, group, topic string, p int32, offset int64, e int32) {
	r.t.Helper()
	var os kadm.Offsets
	os.AddOffset(topic, p, offset, e)
	resp, err := adm.CommitOffsets(r.t.Context(), group, os)
	require.NoError(r.t, err)
	require.NoError(r.t, resp.Error())
}

func (r *groupRig) cycle() {
	r.t.Helper()
	ready, err := r.s.cycle(r.t.Context(), nil, nil)
	require.NoError(r.t, err)
	require.True(r.t, ready)
}

// state is a group's offset as describe has it.
func (r *groupRig) state(group, topic string, p int32) GroupStatus {
	for _, x := range r.s.status("m", func(_, g, _ string) bool { return g == group }) {
		if x.Topic == topic && x.Partition == p || x.Partition < 0 {
			return x
		}
	}
	return GroupStatus{}
}

func (r *groupRig) here(group, topic string, p int32) (int64, int32) {
	r.t.Helper()
	os, err := r.b.FetchOffsets(r.t.Context(), group)
	if errors.Is(err, kerr.GroupIDNotFound) {
		return -1, -1
	}
	require.NoError(r.t, err)
	o, ok := os.Lookup(topic, p)
	if !ok {
		return -1, -1
	}
	return o.At, o.LeaderEpoch
}

func (r *groupRig) bounds(topic string, p int32, f func(*groupBounds)) {
	k := partKey{topic, p}
	l := r.looks[k]
	f(&l.bounds)
	r.looks[k] = l
}

func TestGroupSync(t *testing.T) {
	r := newGroupRig(t, 2, "t", "u")
	r.commit(r.a, "g", "t", 0, 500, 0)
	r.commit(r.a, "g", "t", 1, 2000, 0) // OT-01: the mirror has only 1000 yet
	r.commit(r.a, "zero", "t", 0, 0, -1)
	r.commit(r.a, "not-me", "t", 0, 5, 0)
	r.commit(r.a, "ahead", "t", 0, 5, 0)
	r.commit(r.b, "ahead", "t", 0, 7, 0)
	r.cycle()
	at, e := r.here("g", "t", 0)
	require.Equal(t, []int64{500, 0}, []int64{at, int64(e)})
	at, _ = r.here("g", "t", 1)
	require.EqualValues(t, 1000, at, "OT-01: not above the end")
	at, _ = r.here("zero", "t", 0)
	require.Zero(t, at, "OT-03")
	at, _ = r.here("not-me", "t", 0)
	require.EqualValues(t, -1, at)
	at, _ = r.here("ahead", "t", 0)
	require.EqualValues(t, 7, at)
	require.Equal(t, GroupMoved, r.state("ahead", "t", 0).Reason)
	st := r.state("g", "t", 0)
	require.Equal(t, GroupSynced, st.Reason)
	require.EqualValues(t, 500, st.Lag)
	require.Equal(t, r.clock, st.Synced)

	// OT-05, OT-07, OT-09, OT-15: whatever moves by one follows by one, in a restarted process too.
	commits := r.requests[1][kmsg.OffsetCommit].Load()
	r.cycle()
	require.Equal(t, commits, r.requests[1][kmsg.OffsetCommit].Load(), "nothing changed: nothing is committed")
	r.commit(r.a, "g", "t", 0, 501, 0)
	r.bounds("t", 1, func(b *groupBounds) { b.end, b.position = 1500, 1500 })
	r.cycle()
	at, _ = r.here("g", "t", 0)
	require.EqualValues(t, 501, at)
	at, _ = r.here("g", "t", 1)
	require.EqualValues(t, 1500, at)
	require.Equal(t, commits+1, r.requests[1][kmsg.OffsetCommit].Load(), "one request for a group that changed")
	r.s.groups, r.s.topics, r.s.cycles = map[string]*group{}, map[string][]*groupPart{}, 0
	r.cycle()
	require.Equal(t, commits+1, r.requests[1][kmsg.OffsetCommit].Load(), "compared with the destination after a restart")

	// M23: the source's commit goes back, and ours with it.
	r.commit(r.a, "g", "t", 0, 100, 0)
	r.cycle()
	at, _ = r.here("g", "t", 0)
	require.EqualValues(t, 100, at)
	// OT-25: the log start moves above it.
	r.bounds("t", 0, func(b *groupBounds) {
		l := *b.log
		l.Start = 600
		b.log, b.start = &l, 600
	})
	r.commit(r.a, "g", "t", 1, 1500, 0)
	r.commit(r.a, "g", "t", 0, 101, 0)
	r.cycle()
	at, _ = r.here("g", "t", 0)
	require.EqualValues(t, 600, at)
	require.EqualValues(t, 400, r.state("g", "t", 0).Lag)
	// STOPPED partitions are left alone, the others go on.
	r.looks[partKey{"t", 0}] = groupLook{why: GroupStopped}
	r.commit(r.a, "g", "t", 0, 700, 0)
	r.commit(r.a, "g", "t", 1, 1501, 0)
	r.bounds("t", 1, func(b *groupBounds) { b.end, b.position = 1600, 1600 })
	r.cycle()
	at, _ = r.here("g", "t", 0)
	require.EqualValues(t, 600, at)
	require.Equal(t, GroupStopped, r.state("g", "t", 0).Reason)
	at, _ = r.here("g", "t", 1)
	require.EqualValues(t, 1501, at)
	// Its commit here expired, or was deleted: it comes back.
	_, err := r.b.DeleteGroup(t.Context(), "zero")
	require.NoError(t, err)
	r.clock = r.clock.Add(groupRecheck + time.Second)
	r.looks[partKey{"t", 0}] = groupLook{bounds: *atStart(t)}
	r.cycle()
	at, _ = r.here("zero", "t", 0)
	require.Zero(t, at)
	// And a commit that gets old is renewed, before the destination drops it.
	commits = r.requests[1][kmsg.OffsetCommit].Load()
	r.clock = r.clock.Add(groupRewrite + time.Second)
	r.cycle()
	require.Greater(t, r.requests[1][kmsg.OffsetCommit].Load(), commits)
	// Deleted on the source: what is here stays, and nothing is said of it any more.
	_, err = r.a.DeleteGroup(t.Context(), "zero")
	require.NoError(t, err)
	r.cycle()
	at, _ = r.here("zero", "t", 0)
	require.Zero(t, at)
	require.Zero(t, r.state("zero", "t", 0))
}

func atStart(t *testing.T) *groupBounds {
	return at(groupLog(t, epoch.Entry{Epoch: 0, Start: 0}), 1000)
}

// GR-05: a group with members on the destination is left alone, and followed again when they have left.
func TestGroupActiveHere(t *testing.T) {
	r := newGroupRig(t, 1, "t")
	r.commit(r.a, "g", "t", 0, 500, 0)
	member := fakeClient(t, r.dst, kgo.ConsumerGroup("g"), kgo.ConsumeTopics("t"), kgo.DisableAutoCommit())
	eventually(t, "a member", func() bool {
		member.PollFetches(expired(t))
		gs, err := r.b.DescribeGroups(t.Context(), "g")
		return err == nil && gs["g"].State == "Stable"
	})
	r.cycle()
	at, _ := r.here("g", "t", 0)
	require.EqualValues(t, -1, at)
	require.Equal(t, GroupActive, r.state("g", "t", 0).Reason)
	member.Close()
	eventually(t, "no member", func() bool {
		gs, err := r.b.DescribeGroups(t.Context(), "g")
		return err == nil && len(gs["g"].Members) == 0
	})
	r.cycle()
	at, _ = r.here("g", "t", 0)
	require.EqualValues(t, 500, at)
}

func expired(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	t.Cleanup(cancel)
	return ctx
}

// A group that can't be read or written stops no other (OT-11, OT-13, OT-17, "Bad input").
func TestGroupBadOnes(t *testing.T) {
	r := newGroupRig(t, 1, "t")
	for i := range 20 {
		r.commit(r.a, fmt.Sprint("g", i), "t", 0, int64(100+i), 0)
	}
	bad := map[string]func(*kmsg.OffsetFetchResponseGroup){
		"g1": func(g *kmsg.OffsetFetchResponseGroup) { g.Topics[0].Partitions[0].Offset = -1 },
		"g2": func(g *kmsg.OffsetFetchResponseGroup) { g.Topics[0].Partitions[0].Offset = -77 },
		"g3": func(g *kmsg.OffsetFetchResponseGroup) { g.Topics[0].Partitions[0].Offset = 1 << 62 },
		"g4": func(g *kmsg.OffsetFetchResponseGroup) { g.Topics[0].Partitions[0].LeaderEpoch = -5 },
		"g5": func(g *kmsg.OffsetFetchResponseGroup) {
			g.Topics, g.ErrorCode = nil, kerr.GroupAuthorizationFailed.Code
		},
		"g6": func(g *kmsg.OffsetFetchResponseGroup) {
			g.Topics, g.ErrorCode = nil, kerr.CoordinatorLoadInProgress.Code
		},
		"g7":  func(g *kmsg.OffsetFetchResponseGroup) { g.Topics[0].Topic = "elsewhere" },
		"g8":  func(g *kmsg.OffsetFetchResponseGroup) { g.Topics[0].Partitions[0].Partition = -3 },
		"g9":  func(g *kmsg.OffsetFetchResponseGroup) { g.Topics[0].Partitions[0].LeaderEpoch = 9 },
		"g10": func(g *kmsg.OffsetFetchResponseGroup) { g.Topics[0].Partitions[0].Partition = 1 << 30 },
	}
	r.corrupt(bad)
	refused := map[string]int16{"g11": kerr.GroupAuthorizationFailed.Code, "g12": kerr.RebalanceInProgress.Code, "g13": kerr.NotCoordinator.Code, "g14": kerr.OffsetMetadataTooLarge.Code}
	r.refuse(refused)
	r.cycle()
	for g, want := range map[string]GroupReason{
		"g1": GroupNull, "g2": GroupGarbled, "g3": GroupGarbled, "g4": GroupGarbled, "g5": GroupDenied, "g6": GroupNoAnswer, "g9": GroupEpochUnknown,
		"g11": GroupDeniedHere, "g12": GroupActive, "g13": GroupNoAnswerHere, "g14": GroupRefused,
	} {
		st := r.state(g, "t", 0)
		require.Equal(t, want.String(), st.Reason.String(), g)
		require.Equal(t, r.clock, st.Since, g)
		at, _ := r.here(g, "t", 0)
		require.EqualValues(t, -1, at, g)
	}
	for _, i := range []int{0, 15, 16, 17, 18, 19} {
		at, _ := r.here(fmt.Sprint("g", i), "t", 0)
		require.EqualValues(t, 100+i, at)
	}
	require.NotEmpty(t, r.state("g14", "t", 0).Error)
	clear(bad)
	clear(refused)
	r.cycle()
	for i := range 20 {
		at, _ := r.here(fmt.Sprint("g", i), "t", 0)
		require.EqualValues(t, 100+i, at, i)
	}
	// What was in step stays as it is while a group can't be read.
	bad["g5"] = func(g *kmsg.OffsetFetchResponseGroup) {
		g.Topics, g.ErrorCode = nil, kerr.GroupAuthorizationFailed.Code
	}
	r.cycle()
	at, _ := r.here("g5", "t", 0)
	require.EqualValues(t, 105, at)
	st := r.state("g5", "t", 0)
	require.Equal(t, GroupDenied, st.Reason)
	require.Equal(t, r.clock, st.Synced)
}

// corrupt changes what the source answers for some groups.
func (r *groupRig) corrupt(bad map[string]func(*kmsg.OffsetFetchResponseGroup)) {
	in := fakeClient(r.t, r.src, kgo.ClientID("inner"))
	r.src.ControlKey(int16(kmsg.OffsetFetch), func(kreq kmsg.Request) (kmsg.Response, error, bool) {
		r.src.KeepControl()
		req := kreq.(*kmsg.OffsetFetchRequest)
		if len(req.Groups) < 2 {
			return nil, nil, false // the test's own
		}
		resp := req.ResponseKind().(*kmsg.OffsetFetchResponse)
		resp.Version = req.Version
		for _, g := range req.Groups {
			one := kmsg.NewPtrOffsetFetchRequest()
			one.Groups = []kmsg.OffsetFetchRequestGroup{g}
			var a *kmsg.OffsetFetchResponse
			var err error
			r.src.SleepControl(func() { a, err = one.RequestWith(r.t.Context(), in) })
			if err != nil {
				return nil, err, true
			}
			out := a.Groups[0]
			if f := bad[g.Group]; f != nil {
				f(&out)
			}
			resp.Groups = append(resp.Groups, out)
		}
		return resp, nil, true
	})
}

// refuse makes the destination refuse the commits of some groups.
func (r *groupRig) refuse(codes map[string]int16) {
	r.dst.ControlKey(int16(kmsg.OffsetCommit), func(kreq kmsg.Request) (kmsg.Response, error, bool) {
		r.dst.KeepControl()
		req := kreq.(*kmsg.OffsetCommitRequest)
		code, ok := codes[req.Group]
		if !ok {
			return nil, nil, false
		}
		resp := req.ResponseKind().(*kmsg.OffsetCommitResponse)
		for _, t := range req.Topics {
			rt := kmsg.OffsetCommitResponseTopic{Topic: t.Topic}
			for _, p := range t.Partitions {
				rt.Partitions = append(rt.Partitions, kmsg.OffsetCommitResponseTopicPartition{Partition: p.Partition, ErrorCode: code})
			}
			resp.Topics = append(resp.Topics, rt)
		}
		return resp, nil, true
	})
}

// The last sync before STOPPED: with the newest commits, or those remembered when the source is dead (in a bounded
// time), and never above the final end.
func TestGroupLastSync(t *testing.T) {
	r := newGroupRig(t, 2, "t")
	r.commit(r.a, "g", "t", 0, 1200, 0)
	r.commit(r.a, "g", "t", 1, 300, 0)
	r.cycle()
	at0, _ := r.here("g", "t", 0)
	require.EqualValues(t, 1000, at0)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- r.s.run(ctx) }()
	defer func() { cancel(); require.NoError(t, <-ended) }()
	final := func(end int64) groupBounds {
		l, err := groupLog(t, epoch.Entry{Epoch: 0, Start: 0}).OpenNative(end, end+1, 0, 1000)
		require.NoError(t, err)
		return finalBounds(l)
	}
	r.commit(r.a, "g", "t", 1, 400, 0)
	r.commit(r.a, "late", "t", 1, 7, 0)
	require.NoError(t, r.s.last(ctx, partKey{"t", 1}, final(900)))
	at1, _ := r.here("g", "t", 1)
	require.EqualValues(t, 400, at1)
	at1, _ = r.here("late", "t", 1)
	require.EqualValues(t, 7, at1)
	// A commit above the final end comes down to it; the source is gone by now.
	r.src.Close()
	began := time.Now()
	require.NoError(t, r.s.last(ctx, partKey{"t", 0}, final(1100)))
	require.Less(t, time.Since(began), groupLastLimit)
	at0, e := r.here("g", "t", 0)
	require.EqualValues(t, 1100, at0, "the source's last known commit, up to the final end")
	require.Zero(t, e)
}

// testManyGroups: groups with 100 offsets each: one look-up of bounds for each partition and cycle, batched reads, one commit
// for each group that changed (GR-01, GR-03, OT-19).
func testManyGroups(t *testing.T, groups int) {
	const partitions = int32(100)
	r := newGroupRig(t, partitions, "t")
	var os kadm.Offsets
	for p := range partitions {
		os.AddOffset("t", p, int64(p), 0)
	}
	name := func(i int) string { return fmt.Sprintf("group-%05d", i) }
	for i := range groups {
		_, err := r.a.CommitOffsets(t.Context(), name(i), os)
		require.NoError(t, err)
	}
	count := func(f func()) (lookups int, reads, commits int64, cpu time.Duration) {
		was, cpu0 := r.looked, cpuTime()
		reads0 := r.requests[0][kmsg.OffsetFetch].Load() + r.requests[1][kmsg.OffsetFetch].Load()
		commits0 := r.requests[1][kmsg.OffsetCommit].Load()
		f()
		return r.looked - was, r.requests[0][kmsg.OffsetFetch].Load() + r.requests[1][kmsg.OffsetFetch].Load() - reads0,
			r.requests[1][kmsg.OffsetCommit].Load() - commits0, cpuTime() - cpu0
	}
	lookups, reads, commits, cpu := count(r.cycle)
	t.Logf("first cycle: %d look-ups of bounds, %d reads, %d commits, CPU %v (kfake's included)", lookups, reads, commits, cpu)
	require.EqualValues(t, partitions, lookups)
	require.EqualValues(t, groups, commits)
	require.LessOrEqual(t, reads, int64(2*(groups/groupsAFetch)+2*2*(groups/groupsAtOnce+1)))

	lookups, reads, commits, cpu = count(r.cycle)
	t.Logf("nothing changed: %d look-ups of bounds, %d reads, %d commits, CPU %v", lookups, reads, commits, cpu)
	require.EqualValues(t, partitions, lookups)
	require.Zero(t, commits)
	require.LessOrEqual(t, reads, int64(groups/groupsAFetch+2))

	const changed = 37
	for i := range changed {
		r.commit(r.a, name(i*13), "t", int32(i), 500, 0)
	}
	lookups, reads, commits, cpu = count(r.cycle)
	t.Logf("%d changed: %d look-ups of bounds, %d reads, %d commits, CPU %v", changed, lookups, reads, commits, cpu)
	require.EqualValues(t, partitions, lookups)
	require.EqualValues(t, changed, commits)
	by, synced, _ := r.s.reasons()
	require.Equal(t, groups, synced)
	require.Equal(t, groups*int(partitions), by[GroupSynced])
	at, _ := r.here(name(13), "t", 1)
	require.EqualValues(t, 500, at)
	at, _ = r.here(name(groups-1), "t", 99)
	require.EqualValues(t, 99, at)
}

func TestManyGroups(t *testing.T) { testManyGroups(t, 500) }

func cpuTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// A process that was away knows nothing of what was set back meanwhile. On the source: whether the offset here is an old
// one of its own or where the group is, can't be told, so it stays, and follows from where the source passes it. Here: it
// is brought up to the source's again, as after any commit there.
func TestGroupSetBackWhileAway(t *testing.T) {
	r := newGroupRig(t, 1, "t")
	for _, g := range []string{"source", "here"} {
		r.commit(r.a, g, "t", 0, 100, 0)
	}
	r.cycle()
	r.s.groups, r.s.topics, r.s.cycles = map[string]*group{}, map[string][]*groupPart{}, 0 // another process
	r.commit(r.a, "source", "t", 0, 40, 0)
	r.commit(r.b, "here", "t", 0, 40, 0)
	stands := func(group string, want int64) {
		t.Helper()
		at, _ := r.here(group, "t", 0)
		require.Equal(t, want, at)
	}
	r.cycle()
	require.Equal(t, GroupMoved, r.state("source", "t", 0).Reason)
	stands("source", 100)
	require.Equal(t, GroupSynced, r.state("here", "t", 0).Reason)
	stands("here", 100)
	r.commit(r.a, "source", "t", 0, 99, 0)
	r.cycle()
	require.Equal(t, GroupMoved, r.state("source", "t", 0).Reason)
	stands("source", 100)
	r.commit(r.a, "source", "t", 0, 101, 0)
	r.cycle()
	require.Equal(t, GroupSynced, r.state("source", "t", 0).Reason)
	stands("source", 101)
	r.commit(r.a, "source", "t", 0, 50, 0) // now it was there
	r.cycle()
	stands("source", 50)
}

// Share groups of a source that doesn't tell where they start are named, and not taken for consumer groups.
func TestGroupShareNamed(t *testing.T) {
	r := newGroupRig(t, 1, "t")
	r.commit(r.a, "g", "t", 0, 5, 0)
	in := fakeClient(t, r.src, kgo.ClientID("inner"))
	r.src.ControlKey(int16(kmsg.ListGroups), func(kreq kmsg.Request) (kmsg.Response, error, bool) {
		r.src.KeepControl()
		if len(kreq.(*kmsg.ListGroupsRequest).TypesFilter) > 0 {
			return nil, nil, false // our own question
		}
		all := kmsg.NewPtrListGroupsRequest()
		all.TypesFilter = []string{"classic", "consumer"}
		var a *kmsg.ListGroupsResponse
		var err error
		r.src.SleepControl(func() { a, err = all.RequestWith(t.Context(), in) })
		if err != nil {
			return nil, err, true
		}
		a.Version = kreq.GetVersion()
		a.Groups = append(a.Groups, kmsg.ListGroupsResponseGroup{Group: "shared", ProtocolType: "share", GroupState: "Empty", GroupType: "share"})
		return a, nil, true
	})
	r.src.ControlKey(int16(kmsg.ApiVersions), func(kreq kmsg.Request) (kmsg.Response, error, bool) { // older than Kafka 4.1
		r.src.KeepControl()
		a := kmsg.NewPtrApiVersionsResponse()
		a.Version = min(kreq.GetVersion(), 3)
		for k, most := range map[kmsg.Key]int16{kmsg.Metadata: 12, kmsg.ListGroups: 5, kmsg.FindCoordinator: 4, kmsg.OffsetFetch: 8, kmsg.ApiVersions: 3} {
			v := kmsg.NewApiVersionsResponseApiKey()
			v.ApiKey, v.MaxVersion = int16(k), most
			a.ApiKeys = append(a.ApiKeys, v)
		}
		return a, nil, true
	})
	r.cycle()
	require.Contains(t, r.state("shared", "", -1).Error, "AlterShareGroupOffsets")
	require.Equal(t, GroupShare, r.state("shared", "", -1).Reason)
	require.Equal(t, "share_group", r.state("shared", "", -1).Reason.String())
	require.Equal(t, GroupSynced, r.state("g", "t", 0).Reason)
}

// hookCtx calls f when its Done is asked for the nth time.
type hookCtx struct {
	context.Context
	n *atomic.Int32
	f func()
}

func (c hookCtx) Done() <-chan struct{} {
	if c.n.Add(-1) == 0 {
		c.f()
	}
	return c.Context.Done()
}

// A stop may come between the moment at which a cycle finds that none waits and
// the moment from which it could be interrupted: the cycle is put off, not the
// last one that ever begins.
func TestGroupCyclesGoOnAfterAStop(t *testing.T) {
	r := newGroupRig(t, 1, "t")
	looked := make(chan struct{}, 1)
	r.s.look = func() map[partKey]groupLook {
		select {
		case looked <- struct{}{}:
		default:
		}
		return r.looks
	}
	r.s.o.Interval = time.Millisecond
	k := partKey{"t", 0}
	x := &lastSync{k, r.looks[k].bounds, make(chan error, 1)}
	inner, cancel := context.WithCancel(t.Context())
	var n atomic.Int32
	n.Store(2) // the first is the select's that the timer ends
	ctx := hookCtx{inner, &n, func() {
		r.s.mu.Lock()
		defer r.s.mu.Unlock()
		r.s.waiting = append(r.s.waiting, x)
		r.s.wake.wake()
	}}
	ended := make(chan error, 1)
	go func() { ended <- r.s.run(ctx) }()
	require.NoError(t, <-x.done)
	select {
	case <-looked:
	case <-time.After(20 * time.Second):
		t.Error("no cycle after the stop")
	}
	cancel()
	require.NoError(t, <-ended)
}
