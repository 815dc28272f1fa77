package mirror

import (
	"fmt"
	"net"
	"slices"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/epoch"
	"github.com/lockstep-kafka/lockstep/internal/ledger"
)

// LP-03: what is left out has a reason; what only looks internal is mirrored.
func TestTopicFilterReasons(t *testing.T) {
	f, err := NewTopicFilter([]string{".*", "__group_state", `__share\.state`}, []string{"__c.*", "x"})
	require.NoError(t, err)
	for name, want := range map[string]struct {
		internal, ok bool
		why          string
	}{
		"orders.internal":    {false, true, ""},
		"orders-internal":    {false, true, ""},
		"x":                  {false, false, `"x" of topics.exclude`},
		"xx":                 {false, true, ""},
		"__consumer_offsets": {true, false, `"__c.*" of topics.exclude`},
		"__transaction_log":  {true, false, "name it exactly"},
		"__group_state":      {true, true, ""},
		"__share.state":      {true, true, ""},
		"__share_state":      {true, false, "name it exactly"},
		ledger.Topic:         {false, false, "Lockstep itself"},
	} {
		ok, why := f.Select(name, want.internal)
		require.Equal(t, want.ok, ok, name)
		require.Contains(t, why, want.why, name)
		require.Equal(t, want.ok, why == "", name)
	}
	f, err = NewTopicFilter([]string{"orders"}, []string{"__.*"})
	require.NoError(t, err)
	ok, why := f.Select("__consumer_offsets", true)
	require.False(t, ok)
	require.Empty(t, why, "nobody asked for it")
	require.False(t, f.Match("orders2"))
	_, err = NewTopicFilter(nil, []string{"("})
	require.ErrorContains(t, err, "topic expression")
}

func (x *managed) state(topic string, p int32) ledger.State {
	if e := x.view.Partition(topic, p); e != nil && e.Record != nil {
		return e.Record.State
	}
	return ""
}

// PA-03: the one topic that the destination refuses is named with the broker's
// words, and the others are created and mirrored.
func TestPA03OneTopicRefused(t *testing.T) {
	const n = 12
	var topics []string
	for i := range n {
		topics = append(topics, fmt.Sprintf("t%02d", i))
	}
	src, dst := fakeCluster(t, kfake.SeedTopics(2, topics...)), fakeCluster(t)
	require.NoError(t, ledger.EnsureTopic(t.Context(), kadm.NewClient(fakeClient(t, dst)), 0))
	dst.ControlKey(int16(kmsg.CreateTopics), func(q kmsg.Request) (kmsg.Response, error, bool) {
		dst.KeepControl()
		req := q.(*kmsg.CreateTopicsRequest)
		if len(req.Topics) != 1 || req.Topics[0].Topic != "t07" {
			return nil, nil, false
		}
		resp := req.ResponseKind().(*kmsg.CreateTopicsResponse)
		rt := kmsg.NewCreateTopicsResponseTopic()
		rt.Topic, rt.ErrorCode, rt.ErrorMessage = "t07", kerr.PolicyViolation.Code, kmsg.StringPtr("no topics called t07 here")
		resp.Topics = append(resp.Topics, rt)
		resp.SetVersion(req.GetVersion())
		return resp, nil, true
	})
	x := startManaged(t, src, dst, "t.*")
	eventually(t, "the others are mirrored", func() bool {
		return !slices.ContainsFunc(topics, func(name string) bool {
			return name != "t07" && (x.state(name, 0) != epoch.StateMirroring || x.state(name, 1) != epoch.StateMirroring)
		})
	})
	var rows []TopicStatus
	eventually(t, "the refused one is named", func() bool { rows, _ = x.m.Topics(); return len(rows) == 1 })
	require.Equal(t, TopicStatus{Mirror: "m", Topic: "t07", State: TopicFailed, Reason: "create_topic", Text: rows[0].Text}, rows[0])
	require.Contains(t, rows[0].Text, "no topics called t07 here")
	ts, err := kadm.NewClient(fakeClient(t, dst)).ListTopics(t.Context(), topics...)
	require.NoError(t, err)
	for _, name := range topics {
		require.Equal(t, name == "t07", ts[name].Err != nil, name)
	}
}

// What the destination refuses of a topic that is mirrored already, configs or more partitions, is named with the
// broker's words; what is mirrored goes on, other topics too, and all is well when the destination takes it.
func TestPA03RefusedLater(t *testing.T) {
	src, dst := fakeCluster(t, kfake.SeedTopics(1, "t", "u")), fakeCluster(t)
	require.NoError(t, ledger.EnsureTopic(t.Context(), kadm.NewClient(fakeClient(t, dst)), 0))
	there := kadm.NewClient(fakeClient(t, src))
	cl := fakeClient(t, src)
	x := startManaged(t, src, dst, "t", "u")
	mirrored := func(topic string, p int32, n int64) {
		t.Helper()
		eventually(t, fmt.Sprintf("%s-%d up to %d", topic, p, n), func() bool {
			e := x.view.Partition(topic, p)
			return e != nil && e.Live.Tail().VEnd == n
		})
	}
	write := func(topic string) {
		t.Helper()
		require.NoError(t, cl.ProduceSync(t.Context(), &kgo.Record{Topic: topic, Value: []byte("x")}).FirstErr())
	}
	write("t")
	write("u")
	mirrored("t", 0, 1)
	mirrored("u", 0, 1)

	var refuse atomic.Bool
	refuse.Store(true)
	dst.ControlKey(int16(kmsg.IncrementalAlterConfigs), func(q kmsg.Request) (kmsg.Response, error, bool) {
		dst.KeepControl()
		req := q.(*kmsg.IncrementalAlterConfigsRequest)
		if !refuse.Load() || len(req.Resources) != 1 || req.Resources[0].ResourceName != "t" {
			return nil, nil, false
		}
		resp := req.ResponseKind().(*kmsg.IncrementalAlterConfigsResponse)
		rr := kmsg.NewIncrementalAlterConfigsResponseResource()
		rr.ResourceType, rr.ResourceName = req.Resources[0].ResourceType, "t"
		rr.ErrorCode, rr.ErrorMessage = kerr.PolicyViolation.Code, kmsg.StringPtr("retention is a day here")
		resp.Resources = append(resp.Resources, rr)
		return resp, nil, true
	})
	dst.ControlKey(int16(kmsg.CreatePartitions), func(q kmsg.Request) (kmsg.Response, error, bool) {
		dst.KeepControl()
		req := q.(*kmsg.CreatePartitionsRequest)
		if !refuse.Load() {
			return nil, nil, false
		}
		resp := req.ResponseKind().(*kmsg.CreatePartitionsResponse)
		rt := kmsg.NewCreatePartitionsResponseTopic()
		rt.Topic, rt.ErrorCode, rt.ErrorMessage = "t", kerr.InvalidPartitions.Code, kmsg.StringPtr("one is enough here")
		resp.Topics = append(resp.Topics, rt)
		return resp, nil, true
	})
	named := func(reason, words string) {
		t.Helper()
		var rows []TopicStatus
		eventually(t, reason, func() bool {
			rows, _ = x.m.Topics()
			return len(rows) == 1 && rows[0].Topic == "t" && rows[0].State == TopicFailed && rows[0].Reason == reason
		})
		require.Contains(t, rows[0].Text, words)
	}
	day := "86400000"
	_, err := there.AlterTopicConfigs(t.Context(), []kadm.AlterConfig{{Op: kadm.SetConfig, Name: "retention.ms", Value: &day}}, "t")
	require.NoError(t, err)
	named("alter_configs", "retention is a day here")
	write("t")
	write("u")
	mirrored("t", 0, 2)
	mirrored("u", 0, 2)
	_, err = there.UpdatePartitions(t.Context(), 2, "t")
	require.NoError(t, err)
	named("create_partitions", "one is enough here")
	refuse.Store(false)
	eventually(t, "well again", func() bool { rows, _ := x.m.Topics(); return len(rows) == 0 })
	eventually(t, "the new partition", func() bool { return x.state("t", 1) == epoch.StateMirroring })
	x.end()
}

// A topic that topics.exclude matches from a restart on is stopped like by an
// operator, and stays so when it is included again; one that is only not
// included any more keeps its state, and is listed.
func TestExcludedIsStopped(t *testing.T) {
	src, dst := fakeCluster(t, kfake.SeedTopics(2, "t", "u", "w")), fakeCluster(t)
	require.NoError(t, ledger.EnsureTopic(t.Context(), kadm.NewClient(fakeClient(t, dst)), 0))
	cl := fakeClient(t, src)
	write := func() {
		for _, topic := range []string{"t", "u", "w"} {
			require.NoError(t, cl.ProduceSync(t.Context(), &kgo.Record{Topic: topic, Value: []byte("x")}).FirstErr())
		}
	}
	write()
	x := startManaged(t, src, dst, "t", "u", "w")
	all := func(x *managed, st ledger.State, topics ...string) func() bool {
		return func() bool {
			for _, name := range topics {
				if x.state(name, 0) != st || x.state(name, 1) != st {
					return false
				}
			}
			return true
		}
	}
	eventually(t, "mirrored", all(x, epoch.StateMirroring, "t", "u", "w"))
	x.end()

	x = startManagedWith(t, src, dst, func(o *MirrorOptions) {
		var err error
		o.Filter, err = NewTopicFilter([]string{"t", "u"}, []string{"t"})
		require.NoError(t, err)
	})
	eventually(t, "stopped", all(x, epoch.StateStopped, "t"))
	require.Equal(t, "stop by topics.exclude", x.view.Partition("t", 0).Command.By)
	require.Equal(t, epoch.Native, x.view.Partition("t", 0).Log.Open().Kind)
	var rows []TopicStatus
	eventually(t, "listed", func() bool { rows, _ = x.m.Topics(); return len(rows) == 2 })
	require.Equal(t, []string{"w", TopicUnselected, "t", TopicExcluded}, []string{rows[0].Topic, rows[0].State, rows[1].Topic, rows[1].State})
	require.True(t, all(x, epoch.StateMirroring, "u", "w")())
	require.True(t, x.m.Unselected(x.view.Partition("w", 0).Record))
	for _, topic := range []string{"u", "t"} { // mirrored, STOPPED
		require.False(t, x.m.Unselected(x.view.Partition(topic, 0).Record), topic)
	}
	x.end()

	x = startManaged(t, src, dst, "t", "u", "w")
	write()
	eventually(t, "the others go on", func() bool {
		u, w := x.view.Partition("u", 0), x.view.Partition("w", 0)
		return u != nil && w != nil && u.Live.Tail().VEnd == 2 && w.Live.Tail().VEnd == 2
	})
	require.True(t, all(x, epoch.StateStopped, "t")(), "only an operator starts it again")
}

// Configs on their way: in CreateTopics itself (CF-01), then what changes; what
// the source sets back goes, what the operator has set here stays (CF-03).
func TestConfigsFollow(t *testing.T) {
	src, dst := fakeCluster(t, kfake.SeedTopics(1, "t")), fakeCluster(t)
	from, to := kadm.NewClient(fakeClient(t, src)), kadm.NewClient(fakeClient(t, dst))
	require.NoError(t, ledger.EnsureTopic(t.Context(), to, 0))
	alter := func(adm *kadm.Client, op kadm.IncrementalOp, key, value string) {
		rs, err := adm.AlterTopicConfigs(t.Context(), []kadm.AlterConfig{{Op: op, Name: key, Value: &value}}, "t")
		require.NoError(t, err)
		_, err = rs.On("t", nil)
		require.NoError(t, err)
	}
	set := func(key string) (value string, own bool) {
		cs, err := configs(t.Context(), to, "t")
		require.NoError(t, err)
		return cs["t"][key].value, cs["t"][key].dynamic
	}
	alter(from, kadm.SetConfig, "retention.ms", "111000")
	alter(from, kadm.SetConfig, "cleanup.policy", "compact")
	alter(from, kadm.SetConfig, "segment.bytes", "2000000")
	created := make(chan map[string]string, 8)
	dst.ControlKey(int16(kmsg.CreateTopics), func(q kmsg.Request) (kmsg.Response, error, bool) {
		dst.KeepControl()
		for _, rt := range q.(*kmsg.CreateTopicsRequest).Topics {
			cs := map[string]string{}
			for _, c := range rt.Configs {
				cs[c.Name] = *c.Value
			}
			created <- cs
		}
		return nil, nil, false
	})
	x := startManagedWith(t, src, dst, func(o *MirrorOptions) {
		o.Refresh = 50 * time.Millisecond
		var err error
		o.Configs, err = NewConfigFilter([]string{".*"}, []string{"segment.*"})
		require.NoError(t, err)
	}, "t")
	cs := <-created
	require.Equal(t, "111000", cs["retention.ms"])
	require.Equal(t, "compact", cs["cleanup.policy"])
	require.Equal(t, "producer", cs["compression.type"])
	require.NotContains(t, cs, "segment.bytes")

	eventually(t, "mirrored", func() bool { return x.state("t", 0) == epoch.StateMirroring })
	alter(to, kadm.SetConfig, "min.insync.replicas", "1")
	alter(to, kadm.SetConfig, "segment.ms", "70000")
	alter(from, kadm.SetConfig, "retention.ms", "222000")
	alter(from, kadm.SetConfig, "delete.retention.ms", "333000")
	eventually(t, "changes follow", func() bool {
		a, _ := set("retention.ms")
		b, _ := set("delete.retention.ms")
		return a == "222000" && b == "333000"
	})
	alter(to, kadm.SetConfig, "delete.retention.ms", "444000")
	eventually(t, "the source's value again", func() bool { v, _ := set("delete.retention.ms"); return v == "333000" })

	alter(from, kadm.DeleteConfig, "retention.ms", "")
	eventually(t, "set back", func() bool { _, own := set("retention.ms"); return !own })
	eventually(t, "and forgotten", func() bool { _, ok := x.view.TopicConfigs("t")["retention.ms"]; return !ok })
	alter(to, kadm.SetConfig, "retention.ms", "222000") // the operator's now
	var syncs atomic.Int64
	src.ControlKey(int16(kmsg.DescribeConfigs), func(kmsg.Request) (kmsg.Response, error, bool) {
		src.KeepControl()
		syncs.Add(1)
		return nil, nil, false
	})
	eventually(t, "syncs", func() bool { return syncs.Load() > 3 })
	for key, want := range map[string]string{"retention.ms": "222000", "min.insync.replicas": "1", "segment.ms": "70000", "delete.retention.ms": "333000"} {
		v, own := set(key)
		require.Equal(t, want, v, key)
		require.True(t, own, key)
	}
}

// AU-03: a topic that may not be described any more is named, what was known of
// it counts on, and the metadata of the others is taken in; it isn't taken for
// deleted, and is mirrored on when the right is back.
func TestDescribeLostOnOneTopic(t *testing.T) {
	src, dst := fakeCluster(t, kfake.SeedTopics(1, "t", "u")), fakeCluster(t)
	require.NoError(t, ledger.EnsureTopic(t.Context(), kadm.NewClient(fakeClient(t, dst)), 0))
	cl := fakeClient(t, src)
	write := func() {
		for _, topic := range []string{"t", "u"} {
			require.NoError(t, cl.ProduceSync(t.Context(), &kgo.Record{Topic: topic, Value: []byte("x")}).FirstErr())
		}
	}
	write()
	x := startManagedWith(t, src, dst, func(o *MirrorOptions) { o.Refresh = 50 * time.Millisecond }, "t", "u")
	end := func(n int64) func() bool {
		return func() bool {
			for _, topic := range []string{"t", "u"} {
				if e := x.view.Partition(topic, 0); e == nil || e.Record == nil || e.Live.Tail().VEnd != n {
					return false
				}
			}
			return true
		}
	}
	eventually(t, "mirrored", end(1))
	write() // before the producer's metadata is refused too

	id, err := kadm.NewClient(cl).BrokerMetadata(t.Context())
	require.NoError(t, err)
	var lost atomic.Bool
	lost.Store(true)
	src.ControlKey(int16(kmsg.Metadata), func(q kmsg.Request) (kmsg.Response, error, bool) {
		src.KeepControl()
		req := q.(*kmsg.MetadataRequest)
		if !lost.Load() || len(req.Topics) == 0 && req.Topics != nil {
			return nil, nil, false
		}
		resp := req.ResponseKind().(*kmsg.MetadataResponse)
		resp.ClusterID = &id.Cluster
		b := kmsg.NewMetadataResponseBroker()
		host, port, _ := net.SplitHostPort(src.ListenAddrs()[0])
		n, _ := strconv.Atoi(port)
		b.Host, b.Port = host, int32(n)
		resp.Brokers = append(resp.Brokers, b)
		add := func(topic string, code int16) {
			rt := kmsg.NewMetadataResponseTopic()
			rt.Topic, rt.ErrorCode = kmsg.StringPtr(topic), code
			if info := src.TopicInfo(topic); code == 0 && info != nil {
				rt.TopicID = info.TopicID
				p := kmsg.NewMetadataResponseTopicPartition()
				p.Replicas, p.ISR = []int32{0}, []int32{0}
				rt.Partitions = append(rt.Partitions, p)
			}
			resp.Topics = append(resp.Topics, rt)
		}
		if req.Topics == nil {
			add("u", 0) // brokers leave out what may not be described
		}
		for _, rt := range req.Topics {
			code := int16(0)
			switch *rt.Topic {
			case "t":
				code = kerr.TopicAuthorizationFailed.Code
			case "u":
			default:
				code = kerr.UnknownTopicOrPartition.Code
			}
			add(*rt.Topic, code)
		}
		resp.SetVersion(req.GetVersion())
		return resp, nil, true
	})
	eventually(t, "named", func() bool {
		rows, _ := x.m.Topics()
		return len(rows) == 1 && rows[0].Topic == "t" && rows[0].Reason == "authorization"
	})
	var syncs atomic.Int64
	src.ControlKey(int16(kmsg.DescribeConfigs), func(kmsg.Request) (kmsg.Response, error, bool) {
		src.KeepControl()
		syncs.Add(1)
		return nil, nil, false
	})
	eventually(t, "several syncs", func() bool { return syncs.Load() > 3 })
	eventually(t, "both go on", end(2))
	require.Equal(t, epoch.StateMirroring, x.state("t", 0))
	c, err := metadata(t.Context(), x.m.sources[0].client, []string{"t", "u"})
	require.NoError(t, err)
	require.False(t, c.sure("t"))
	require.True(t, c.sure("u"))
	require.NotNil(t, c.Topics["u"])
	require.ErrorContains(t, c.firstUnsure(), "topic t", "who needs all of it")

	lost.Store(false)
	eventually(t, "over", func() bool { rows, _ := x.m.Topics(); return len(rows) == 0 })
	write()
	eventually(t, "all of it", end(3))
}
