package mirror

import (
	"context"
	"log/slog"
	"net"
	"slices"
	"sync"
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
)

// unready is a Manager with one mirror of "t" whose ledger is never read, and
// nobody runs it.
func unready(t *testing.T, src, dst *kfake.Cluster, o ...kgo.Opt) *Manager {
	t.Helper()
	opts := func(c *kfake.Cluster, o ...kgo.Opt) []kgo.Opt {
		return append(o, kgo.SeedBrokers(c.ListenAddrs()...), kgo.MetadataMinAge(10*time.Millisecond))
	}
	view := ledger.NewView(ledger.ViewOptions{Client: opts(dst), Logger: slog.New(slog.DiscardHandler)})
	writer, err := ledger.NewWriter(ledger.WriterOptions{Client: opts(dst), View: view, Logger: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	t.Cleanup(writer.Close)
	filter, err := NewTopicFilter([]string{"t"}, nil)
	require.NoError(t, err)
	m, err := New(Options{
		Mirrors:     []MirrorOptions{{Name: "m", Source: Access{Client: opts(src, o...), Dialer: (&kconn.Dialer{}).Init()}, Filter: filter, Refresh: time.Hour}},
		Destination: Access{Client: opts(dst), Dialer: (&kconn.Dialer{}).Init()}, View: view, Writer: writer,
		MemoryLimit: 1 << 20, SessionTimeout: time.Minute, Logger: slog.New(slog.DiscardHandler),
	})
	require.NoError(t, err)
	return m
}

// namesLedger tells whether a request asks for the ledger's topic by its name.
func namesLedger(q kmsg.Request) bool {
	return slices.ContainsFunc(q.(*kmsg.MetadataRequest).Topics, func(rt kmsg.MetadataRequestTopic) bool {
		return rt.Topic != nil && *rt.Topic == ledger.Topic
	})
}

// together holds answers to Metadata back until two questions are on their way.
type together struct {
	n    atomic.Int32
	sent chan struct{}
	end  <-chan struct{}
}

func (h *together) OnBrokerWrite(_ kgo.BrokerMetadata, key int16, _ int, _, _ time.Duration, _ error) {
	if key == int16(kmsg.Metadata) && h.n.Add(1) == 2 {
		close(h.sent)
	}
}

func (h *together) OnBrokerRead(_ kgo.BrokerMetadata, key int16, _ int, _, _ time.Duration, _ error) {
	if key == int16(kmsg.Metadata) {
		select {
		case <-h.sent:
		case <-h.end:
		}
	}
}

// The source is asked for its topics and for a ledger at the same time, before
// our own ledger is read, and the destination is not asked for anything: nothing
// is written before the clusters are known to be two.
func TestLookAheadAsksTogether(t *testing.T) {
	src, dst := fakeCluster(t, kfake.SeedTopics(1, "t")), fakeCluster(t)
	var asked atomic.Int32 // of the destination
	dst.Control(func(kmsg.Request) (kmsg.Response, error, bool) {
		dst.KeepControl()
		asked.Add(1)
		return nil, nil, false
	})
	together := &together{sent: make(chan struct{})}
	m := unready(t, src, dst, kgo.WithHooks(together))
	defer m.Close()
	together.end = m.life.Done()
	m.LookAhead()
	r := <-m.sources[0].ahead
	require.NoError(t, r.err)
	require.Contains(t, r.found, "t")
	require.NotNil(t, r.configs["t"])
	require.NotEmpty(t, r.cluster)
	require.Empty(t, r.bare)
	require.GreaterOrEqual(t, r.meta.leader("t", 0).broker, int32(0), "who leads is known")
	require.Zero(t, asked.Load())
	// Connections to who leads lie ready, for a look-up and for the first fetch.
	pool, addr := m.sources[0].engine.src, r.meta.leader("t", 0).addr
	eventually(t, "connections made ahead", func() bool {
		pool.mu.Lock()
		defer pool.mu.Unlock()
		return len(pool.idle[addr]) == 1 && pool.spare[addr].c != nil
	})
	f := newFetcher(m.sources[0].engine, 0, addr)
	pool.mu.Lock()
	ahead := pool.spare[addr].c
	pool.mu.Unlock()
	c, err := f.dial(t.Context())
	require.NoError(t, err)
	require.Same(t, ahead, c)
	require.NotNil(t, c.Alloc, "its answers count against the memory")
	c.Close()
	other, err := f.dial(t.Context())
	require.NoError(t, err)
	require.NotSame(t, c, other, "there was one")
	other.Close()
}

// An instance that waits for its ledger partitions does not ask the source again
// and again, nor once more when they are there.
func TestLookServesUntilOwned(t *testing.T) {
	src, dst := fakeCluster(t, kfake.SeedTopics(1, "t")), fakeCluster(t)
	require.NoError(t, ledger.EnsureTopic(t.Context(), kadm.NewClient(fakeClient(t, dst)), 0))
	var mu sync.Mutex
	var looks []time.Time
	src.ControlKey(int16(kmsg.DescribeConfigs), func(kmsg.Request) (kmsg.Response, error, bool) {
		src.KeepControl()
		mu.Lock()
		defer mu.Unlock()
		looks = append(looks, time.Now())
		return nil, nil, false
	})
	var joined atomic.Bool
	dst.ControlKey(int16(kmsg.JoinGroup), func(q kmsg.Request) (kmsg.Response, error, bool) {
		dst.KeepControl()
		if joined.Load() {
			return nil, nil, false
		}
		resp := q.ResponseKind().(*kmsg.JoinGroupResponse)
		resp.ErrorCode = kerr.CoordinatorLoadInProgress.Code
		return resp, nil, true
	})
	var before, most int
	created := make(chan struct{})
	var once sync.Once
	dst.ControlKey(int16(kmsg.CreateTopics), func(kmsg.Request) (kmsg.Response, error, bool) {
		dst.KeepControl()
		once.Do(func() {
			mu.Lock()
			defer mu.Unlock()
			before, most = len(looks), 1+int(time.Since(looks[0])/lookGood)
			close(created)
		})
		return nil, nil, false
	})
	x := startManagedWith(t, src, dst, func(o *MirrorOptions) { o.Refresh = time.Hour }, "t")
	eventually(t, "the topic waits for its ledger partition", x.m.sources[0].pending)
	joined.Store(true)
	select {
	case <-created:
	case <-time.After(time.Minute):
		require.Fail(t, "no topic is made")
	}
	require.LessOrEqual(t, before, most)
	eventually(t, "mirrored", func() bool { return x.state("t", 0) == epoch.StateMirroring })
}

// The start of the source's log is asked for while its ledger is read, and not
// once more for the cut.
func TestAlignmentAsksTogether(t *testing.T) {
	r := newRig(t, 1)
	r.write(0, rawBatch{base: 0, n: 3})
	var times atomic.Int32
	asked := make(chan struct{})
	r.src.onList = func(q *kmsg.ListOffsetsRequest) error {
		if q.Topics[0].Partitions[0].Timestamp == tsEarliest && times.Add(1) == 1 {
			close(asked)
		}
		return nil
	}
	r.sourceLedger = func(ctx context.Context, _ string, _ int32) epoch.SourceRecord {
		select {
		case <-asked:
		case <-ctx.Done():
		}
		return epoch.SourceRecord{Reading: epoch.Absent}
	}
	r.start()
	r.reached(0, 3)
	require.Equal(t, int32(1), times.Load())
}

// H7: a Lockstep in front of the source may replace its log between the answer
// where that starts and the one what its ledger says: the cut must not begin
// where another log did.
func TestH7StartOfAnotherLog(t *testing.T) {
	r := newRig(t, 1)
	r.write(0, rawBatch{base: 0, n: 3}, rawBatch{base: 3, n: 2})
	r.src.with("t", 0, func(l *fakeLog) { l.batches, l.start = l.batches[1:], 3 })
	var listed, on sync.Once
	early, goOn := make(chan struct{}), make(chan struct{})
	further := func() { on.Do(func() { close(goOn) }) }
	var times atomic.Int32
	r.src.listed = func(q *kmsg.ListOffsetsRequest) {
		if q.Topics[0].Partitions[0].Timestamp != tsEarliest {
			return
		}
		listed.Do(func() { close(early) })
		if times.Add(1) > 1 {
			further() // asked again
		}
	}
	r.store.onPut = func(rec *ledger.Record) error {
		if rec.Log.Open() != nil {
			further() // cut
		}
		return nil
	}
	var replace sync.Once
	r.sourceLedger = func(context.Context, string, int32) epoch.SourceRecord {
		replace.Do(func() {
			<-early
			r.src.with("t", 0, func(l *fakeLog) {
				l.batches, l.chain, l.start, l.epoch = nil, nil, 0, 1
				l.append(rawBatch{base: 0, n: 3, epoch: 1}.bytes())
				l.append(rawBatch{base: 3, n: 2, epoch: 1}.bytes())
			})
		})
		return epoch.SourceRecord{Reading: epoch.Present, State: epoch.StateStopped, Lineage: "new"}
	}
	r.start()
	<-goOn
	r.meta() // only now is the new leader epoch known
	r.reached(0, 5)
	r.same(0)
}

// Facts §7: only two looks in a row without a topic mean that it is gone, not two
// syncs that go by the same look.
func TestGoneAfterTwoLooks(t *testing.T) {
	src, dst := fakeCluster(t), fakeCluster(t)
	require.NoError(t, ledger.EnsureTopic(t.Context(), kadm.NewClient(fakeClient(t, dst)), 0))
	m := unready(t, src, dst)
	defer m.Close()
	s := m.sources[0]
	s.topics = map[string]*topicSync{"t": {source: kadm.TopicDetail{Topic: "t"}}}
	look := func() *sourceLook {
		l, err := s.look(t.Context())
		require.NoError(t, err)
		return l
	}
	l := look()
	for range 3 {
		require.NoError(t, s.sync(t.Context(), l))
		require.Contains(t, s.topics, "t")
	}
	require.NoError(t, s.sync(t.Context(), look()))
	require.NotContains(t, s.topics, "t")
}

// A source broker that is not there any more, and whose address answers nothing,
// holds up no look at the endpoint.
func TestLookGivesUpBrokerThatIsGone(t *testing.T) {
	c := fakeCluster(t)
	dialled := make(chan struct{})
	d := &kconn.Dialer{DialTimeout: time.Hour, DialFunc: func(ctx context.Context, network, addr string) (net.Conn, error) {
		if addr == "gone:1" {
			close(dialled)
			<-ctx.Done()
			return nil, ctx.Err()
		}
		return (&net.Dialer{}).DialContext(ctx, network, addr)
	}}
	s := &source{o: MirrorOptions{Source: Access{Dialer: d.Init()}}, client: fakeClient(t, c)}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	e, err := s.endpoint(ctx, []string{"gone:1"})
	require.NoError(t, err)
	<-dialled
	require.ElementsMatch(t, c.ListenAddrs(), e.addrs)
}

// What a look found of leaders and topic ids is not begun with when it is older
// than what the poller would have: a topic that was made anew since would be FAILED
// for it, for good.
func TestOldLookIsNoMetadata(t *testing.T) {
	src, dst := fakeCluster(t), fakeCluster(t)
	require.NoError(t, ledger.EnsureTopic(t.Context(), kadm.NewClient(fakeClient(t, dst)), 0))
	m := unready(t, src, dst)
	defer m.Close()
	s := m.sources[0]
	l, err := s.look(t.Context())
	require.NoError(t, err)
	l.began = time.Now().Add(-metadataEvery)
	require.NoError(t, s.sync(t.Context(), l))
	require.Nil(t, s.engine.source)
	l.began = time.Now().Add(time.Hour) // however long this takes
	require.NoError(t, s.sync(t.Context(), l))
	require.Same(t, l.meta, s.engine.source)
}
