package mirror

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/netip"
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
	"github.com/lockstep-kafka/lockstep/internal/kconn"
	"github.com/lockstep-kafka/lockstep/internal/ledger"
	"github.com/lockstep-kafka/lockstep/protocol"
)

// managed is one instance between kfake clusters, with a valve in front of all
// its connections.
type managed struct {
	view   *ledger.View
	writer *ledger.Writer
	m      *Manager
	valve  ownerValve
	end    func()
}

const pairSession = 2 * time.Second

func startManaged(t *testing.T, src, dst *kfake.Cluster, topics ...string) *managed {
	t.Helper()
	return startManagedWith(t, src, dst, func(*MirrorOptions) {}, topics...)
}

func startManagedWith(t *testing.T, src, dst *kfake.Cluster, change func(*MirrorOptions), topics ...string) *managed {
	t.Helper()
	x := &managed{}
	opts := func(c *kfake.Cluster) []kgo.Opt {
		return []kgo.Opt{kgo.SeedBrokers(c.ListenAddrs()...), kgo.MetadataMinAge(10 * time.Millisecond), kgo.Dialer(x.valve.dial)}
	}
	dialer := func() *kconn.Dialer { return (&kconn.Dialer{DialFunc: x.valve.dial}).Init() }
	log := slog.New(slog.DiscardHandler)
	var err error
	x.view = ledger.NewView(ledger.ViewOptions{Client: opts(dst), Logger: log, FetchWait: 50 * time.Millisecond})
	x.writer, err = ledger.NewWriter(ledger.WriterOptions{Client: opts(dst), View: x.view, Logger: log})
	require.NoError(t, err)
	filter, err := NewTopicFilter(topics, nil)
	require.NoError(t, err)
	mo := MirrorOptions{
		Name: "m", Source: Access{Client: opts(src), Dialer: dialer()}, Filter: filter, Refresh: time.Second,
		Tuning: Tuning{RetryMin: 50 * time.Millisecond, RetryMax: time.Second, BumpStep: 1, FetchWaitMax: 50 * time.Millisecond},
	}
	change(&mo)
	x.m, err = New(Options{
		Destination: Access{Client: opts(dst), Dialer: dialer()}, View: x.view, Writer: x.writer,
		MemoryLimit: 1 << 20, SessionTimeout: pairSession, Logger: log,
		Mirrors: []MirrorOptions{mo},
	})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	viewCtx, endView := context.WithCancel(context.Background())
	ended, seen := make(chan error, 1), make(chan error, 1)
	go func() { seen <- x.view.Run(viewCtx) }()
	go func() { ended <- x.m.Run(ctx) }()
	done := false
	x.end = func() {
		if done {
			return
		}
		done = true
		cancel()
		<-ended //nolint:errcheck // cancelled
		endView()
		<-seen //nolint:errcheck // cancelled
		x.writer.Close()
	}
	t.Cleanup(x.end)
	return x
}

func fakeCluster(t *testing.T, o ...kfake.Opt) *kfake.Cluster {
	t.Helper()
	own := kfake.ClusterID(fmt.Sprintf("cluster-%d", rand.Int64())) // two of one id are one cluster
	c, err := kfake.NewCluster(append([]kfake.Opt{own, kfake.NumBrokers(1), kfake.BrokerConfigs(map[string]string{
		"group.min.session.timeout.ms": "1000", "group.initial.rebalance.delay.ms": "0",
	})}, o...)...)
	require.NoError(t, err)
	t.Cleanup(c.Close)
	return c
}

func fakeClient(t *testing.T, c *kfake.Cluster, o ...kgo.Opt) *kgo.Client {
	t.Helper()
	cl, err := kgo.NewClient(append(o, kgo.SeedBrokers(c.ListenAddrs()...), kgo.MetadataMinAge(10*time.Millisecond), kgo.RecordPartitioner(kgo.ManualPartitioner()))...)
	require.NoError(t, err)
	t.Cleanup(cl.Close)
	return cl
}

// virtual are the values that a reader of a mirrored partition sees.
func virtual(t *testing.T, c *kfake.Cluster, v *ledger.View, topic string, p int32) (values []string) {
	t.Helper()
	meta, err := cluster(t.Context(), fakeClient(t, c), []string{topic})
	require.NoError(t, err)
	l := meta.leader(topic, p)
	conn, err := (&kconn.Dialer{}).Init().Dial(t.Context(), l.addr)
	require.NoError(t, err)
	defer conn.Close()
	lg := v.Partition(topic, p).Log
	require.NotEmpty(t, lg.Spans)
	w := lg.Walk(lg.Spans[0].VStart, true)
	end, err := listOffset(t.Context(), conn, topic, p, -1, tsLatest)
	require.NoError(t, err)
	require.NoError(t, readBatches(t.Context(), conn, l, topic, p, 0, end, func(b protocol.Batch) error {
		pl, verdict := w.Next(readHeader(b))
		if verdict != epoch.Live {
			return nil
		}
		require.EqualValues(t, len(values), pl.V, "one record after the other")
		return protocol.Records(b, func(r protocol.RecordView) bool {
			values = append(values, string(r.Value))
			return true
		})
	}))
	return values
}

// M20: an instance that was cut off for longer than its session comes back with
// all it had in memory. Nothing that its successor wrote is overwritten.
func TestM20PausedInstanceComesBack(t *testing.T) {
	const parts = 4
	src, dst := fakeCluster(t, kfake.SeedTopics(parts, "t")), fakeCluster(t)
	require.NoError(t, ledger.EnsureTopic(t.Context(), kadm.NewClient(fakeClient(t, dst)), 0))
	cl := fakeClient(t, src, kgo.DefaultProduceTopic("t"))
	var want [parts][]string
	n := 0
	write := func() {
		for p := range int32(parts) {
			n++
			want[p] = append(want[p], fmt.Sprint(n))
			require.NoError(t, cl.ProduceSync(t.Context(), &kgo.Record{Partition: p, Value: fmt.Append(nil, n)}).FirstErr())
		}
	}
	caughtUp := func(x *managed) func() bool {
		return func() bool {
			for p := range int32(parts) {
				e := x.view.Partition("t", p)
				if e == nil || e.Record == nil || e.Live.Tail().VEnd != int64(len(want[p])) {
					return false
				}
			}
			return true
		}
	}
	write()
	a := startManaged(t, src, dst, "t")
	eventually(t, "first one mirrors", caughtUp(a))
	b := startManaged(t, src, dst, "t")
	eventually(t, "shared", func() bool { return len(b.m.owned.list()) > 0 && len(a.m.owned.list()) > 0 })
	for range 2 {
		write()
		a.valve.set(true)
		eventually(t, "the second one takes over", func() bool { return len(b.m.owned.list()) == ledger.Partitions })
		write()
		eventually(t, "the second one mirrors", caughtUp(b))
		a.valve.set(false)
		write()
		eventually(t, "shared again", func() bool { return len(a.m.owned.list()) > 0 && len(b.m.owned.list()) > 0 })
		write()
		eventually(t, "all of it", func() bool {
			for p := range int32(parts) {
				if len(virtual(t, dst, b.view, "t", p)) != len(want[p]) {
					time.Sleep(50 * time.Millisecond)
					return false
				}
			}
			return true
		})
	}
	a.end()
	b.end()
	for p := range int32(parts) {
		require.Equal(t, want[p], virtual(t, dst, b.view, "t", p))
	}
	// Each record follows from the one before it.
	reader := fakeClient(t, dst, kgo.ConsumeTopics(ledger.Topic), kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.KeepControlRecords())
	ends, err := kadm.NewClient(fakeClient(t, dst)).ListEndOffsets(t.Context(), ledger.Topic)
	require.NoError(t, err)
	left := map[int32]int64{} // partitions not read to their end
	ends.Each(func(o kadm.ListedOffset) {
		if o.Offset > 0 {
			left[o.Partition] = o.Offset
		}
	})
	last := map[string]*ledger.Record{}
	for len(left) > 0 {
		fs := reader.PollFetches(t.Context())
		require.NoError(t, fs.Err0())
		fs.EachRecord(func(kr *kgo.Record) {
			if kr.Offset+1 >= left[kr.Partition] {
				delete(left, kr.Partition)
			}
			if kr.Attrs.IsControl() {
				return
			}
			v, err := ledger.Decode(kr.Key, kr.Value)
			require.NoError(t, err)
			r, ok := v.(*ledger.Record)
			if !ok {
				return
			}
			if was := last[r.Key()]; was != nil {
				require.Equal(t, was.StateEpoch+1, r.StateEpoch, r.Key())
				require.GreaterOrEqual(t, r.Log.LastGen, was.Log.LastGen, r.Key())
				require.GreaterOrEqual(t, r.Log.Bump, was.Log.Bump, r.Key())
			}
			last[r.Key()] = r
		})
	}
	require.Len(t, last, parts)
}

// H18: a source with a ledger whose endpoint is no Lockstep is a mirror read
// past its proxy. Topics that it mirrors are refused before anything is made of
// them, its others are mirrored.
func TestH18SourceWithLedger(t *testing.T) {
	t.Run("there before", func(t *testing.T) { testSourceWithLedger(t, false) })
	// The question for a ledger may be answered before there is one, and that for
	// the topics after.
	t.Run("made while the source is asked", func(t *testing.T) { testSourceWithLedger(t, true) })
}

func testSourceWithLedger(t *testing.T, made bool) {
	src, dst := fakeCluster(t, kfake.SeedTopics(1, "t", "own")), fakeCluster(t)
	require.NoError(t, ledger.EnsureTopic(t.Context(), kadm.NewClient(fakeClient(t, dst)), 0))
	require.NoError(t, ledger.EnsureTopic(t.Context(), kadm.NewClient(fakeClient(t, src)), 0))
	up := startManaged(t, dst, src) // only its ledger is of interest
	require.NoError(t, up.view.WaitReady(t.Context()))
	require.NoError(t, up.writer.Acquire(t.Context(), ledger.PartitionOf("t", 0)))
	require.NoError(t, up.writer.Put(t.Context(), firstRecord(t)))
	up.end()
	cl := fakeClient(t, src)
	for _, topic := range []string{"t", "own"} {
		require.NoError(t, cl.ProduceSync(t.Context(), &kgo.Record{Topic: topic, Value: []byte("x")}).FirstErr())
	}
	if made {
		var once atomic.Bool
		src.ControlKey(int16(kmsg.Metadata), func(q kmsg.Request) (kmsg.Response, error, bool) {
			src.KeepControl()
			if !namesLedger(q) || once.Swap(true) {
				return nil, nil, false
			}
			resp := q.ResponseKind().(*kmsg.MetadataResponse)
			resp.SetVersion(q.GetVersion())
			addr := netip.MustParseAddrPort(src.ListenAddrs()[0])
			b := kmsg.NewMetadataResponseBroker()
			b.NodeID, b.Host, b.Port = 0, addr.Addr().String(), int32(addr.Port())
			rt := kmsg.NewMetadataResponseTopic()
			rt.Topic, rt.ErrorCode = kmsg.StringPtr(ledger.Topic), kerr.UnknownTopicOrPartition.Code
			resp.Brokers, resp.Topics = append(resp.Brokers, b), append(resp.Topics, rt)
			return resp, nil, true
		})
	}
	x := startManaged(t, src, dst, "t", "own")
	s := x.m.sources[0]
	topicErr := func(topic string) error {
		s.mu.Lock()
		defer s.mu.Unlock()
		if t := s.topics[topic]; t != nil {
			return t.err
		}
		return nil
	}
	eventually(t, "refused", func() bool { err := topicErr("t"); return err != nil && !errors.Is(err, errPending) })
	eventually(t, "the other one mirrored", func() bool {
		e := x.view.Partition("own", 0)
		return e != nil && e.Live.Tail().VEnd == 1
	})
	var te *topicError
	require.ErrorAs(t, topicErr("t"), &te)
	require.Equal(t, reasonBareMirror, te.reason)
	require.ErrorContains(t, te, "source.bootstrap")
	require.Nil(t, x.view.Partition("t", 0))
	ts, err := kadm.NewClient(fakeClient(t, dst)).ListTopics(t.Context(), "t")
	require.NoError(t, err)
	require.False(t, ts.Has("t") && ts["t"].Err == nil, "no topic is made of it")
}

// What a topic as a whole is refused for is said in one word that stays.
func TestTopicErrorWords(t *testing.T) {
	for word, tc := range map[string]struct {
		prepare func(t *testing.T, src, dst *kfake.Cluster)
		says    string
	}{
		"foreign_topic": {func(t *testing.T, _, dst *kfake.Cluster) {
			_, err := kadm.NewClient(fakeClient(t, dst)).CreateTopic(t.Context(), 1, 1, nil, "t")
			require.NoError(t, err)
			require.NoError(t, fakeClient(t, dst).ProduceSync(t.Context(), &kgo.Record{Topic: "t", Value: []byte("x")}).FirstErr())
		}, "topic t"},
		"partition_count": {func(t *testing.T, _, dst *kfake.Cluster) {
			_, err := kadm.NewClient(fakeClient(t, dst)).CreateTopic(t.Context(), 3, 1, nil, "t")
			require.NoError(t, err)
		}, "partitions"},
		"create_topic": {func(_ *testing.T, _, dst *kfake.Cluster) {
			refuse(dst, kmsg.CreateTopics, func(q kmsg.Request) kmsg.Response {
				resp := q.ResponseKind().(*kmsg.CreateTopicsResponse)
				for _, t := range q.(*kmsg.CreateTopicsRequest).Topics {
					rt := kmsg.NewCreateTopicsResponseTopic()
					rt.Topic, rt.ErrorCode = t.Topic, kerr.PolicyViolation.Code
					resp.Topics = append(resp.Topics, rt)
				}
				return resp
			})
		}, "refuses topic t"},
		"describe_configs": {func(_ *testing.T, src, _ *kfake.Cluster) {
			refuse(src, kmsg.DescribeConfigs, func(q kmsg.Request) kmsg.Response {
				resp := q.ResponseKind().(*kmsg.DescribeConfigsResponse)
				for _, r := range q.(*kmsg.DescribeConfigsRequest).Resources {
					rr := kmsg.NewDescribeConfigsResponseResource()
					rr.ResourceType, rr.ResourceName = r.ResourceType, r.ResourceName
					if r.ResourceName == "t" {
						rr.ErrorCode = kerr.TopicAuthorizationFailed.Code
					}
					resp.Resources = append(resp.Resources, rr)
				}
				return resp
			})
		}, "DescribeConfigs"},
	} {
		t.Run(word, func(t *testing.T) {
			src, dst := fakeCluster(t, kfake.SeedTopics(1, "t", "u", "v", "w")), fakeCluster(t)
			require.NoError(t, ledger.EnsureTopic(t.Context(), kadm.NewClient(fakeClient(t, dst)), 0))
			tc.prepare(t, src, dst)
			x := startManaged(t, src, dst, "t", "u", "v", "w")
			s := x.m.sources[0]
			var te *topicError
			eventually(t, "refused", func() bool {
				s.mu.Lock()
				defer s.mu.Unlock()
				p := s.topics["t"]
				if p == nil || p.err == nil || errors.Is(p.err, errPending) {
					return false
				}
				require.ErrorAs(t, p.err, &te)
				return true
			})
			require.Equal(t, word, te.reason)
			require.ErrorContains(t, te, tc.says)
			if word != "create_topic" { // which refuses all
				eventually(t, "the others are mirrored", func() bool {
					for _, o := range []string{"u", "v", "w"} {
						if e := x.view.Partition(o, 0); e == nil || e.Record == nil || e.Record.State != epoch.StateMirroring {
							return false
						}
					}
					return true
				})
			}
		})
	}
}

// refuse answers all requests of a key.
func refuse(c *kfake.Cluster, key kmsg.Key, answer func(kmsg.Request) kmsg.Response) {
	c.ControlKey(int16(key), func(q kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		r := answer(q)
		r.SetVersion(q.GetVersion())
		return r, nil, true
	})
}
