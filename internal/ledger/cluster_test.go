package ledger

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/lockstep-kafka/lockstep/epoch"
	"github.com/lockstep-kafka/lockstep/internal/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// cluster is what the tests of this package talk to: the one named by
// LOCKSTEP_TEST_BOOTSTRAP (a real one, that nobody else uses), else kfake.
type cluster struct {
	t    *testing.T
	seed []string
	fake *kfake.Cluster // nil on a real cluster
	adm  *kadm.Client
}

// newCluster has no ledger topic.
func newCluster(t *testing.T) *cluster { return clusterAt(t, os.Getenv("LOCKSTEP_TEST_BOOTSTRAP")) }

// newFake is for the tests that need kfake's control functions.
func newFake(t *testing.T) *cluster { return clusterAt(t, "") }

func clusterAt(t *testing.T, bootstrap string) *cluster {
	c := &cluster{t: t}
	if bootstrap != "" {
		c.seed = strings.Split(bootstrap, ",")
	} else {
		fake, err := kfake.NewCluster(kfake.NumBrokers(3))
		require.NoError(t, err)
		t.Cleanup(fake.Close)
		c.fake, c.seed = fake, fake.ListenAddrs()
	}
	cl, err := kgo.NewClient(c.opts()...)
	require.NoError(t, err)
	t.Cleanup(cl.Close)
	c.adm = kadm.NewClient(cl)
	c.deleteTopic()
	return c
}

func (c *cluster) opts() []kgo.Opt { return []kgo.Opt{kgo.SeedBrokers(c.seed...)} }

// ctx bounds a test.
func (c *cluster) ctx() context.Context {
	ctx, cancel := context.WithTimeout(c.t.Context(), time.Minute)
	c.t.Cleanup(cancel)
	return ctx
}

func (c *cluster) deleteTopic() {
	ctx := c.ctx()
	_, err := c.adm.DeleteTopic(ctx, Topic)
	if !errors.Is(err, kerr.UnknownTopicOrPartition) {
		require.NoError(c.t, err)
	}
	c.until(ctx, func() bool {
		md, err := c.adm.Metadata(kadm.WithAuthorizedOps(ctx), Topic)
		return err == nil && errors.Is(md.Topics[Topic].Err, kerr.UnknownTopicOrPartition)
	})
}

func (c *cluster) ensure() {
	require.NoError(c.t, EnsureTopic(c.ctx(), c.adm, 0))
}

func (c *cluster) until(ctx context.Context, ok func() bool) {
	c.t.Helper()
	for !ok() {
		if !sleep(ctx, 20*time.Millisecond) {
			require.FailNow(c.t, "did not come about in time")
		}
	}
}

// view runs a view until the test ends.
func (c *cluster) view(o ViewOptions) *View {
	if o.Client == nil {
		o.Client = c.opts()
	}
	o.FetchWait = 100 * time.Millisecond
	o.Logger = slog.New(slog.DiscardHandler)
	v := NewView(o)
	ctx, cancel := context.WithCancel(c.t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := v.Run(ctx); err != nil {
			c.t.Errorf("view: %v", err)
		}
	})
	c.t.Cleanup(func() { cancel(); wg.Wait() })
	return v
}

func (c *cluster) writer(v *View) *Writer {
	w, err := NewWriter(WriterOptions{Client: c.opts(), View: v})
	require.NoError(c.t, err)
	c.t.Cleanup(w.Close)
	return w
}

// put writes a raw entry as some other program would.
func (c *cluster) put(partition int32, key string, value []byte) int64 {
	cl, err := kgo.NewClient(append(c.opts(), kgo.RecordPartitioner(kgo.ManualPartitioner()))...)
	require.NoError(c.t, err)
	defer cl.Close()
	r, err := cl.ProduceSync(c.ctx(), &kgo.Record{Topic: Topic, Partition: partition, Key: []byte(key), Value: value}).First()
	require.NoError(c.t, err)
	return r.Offset
}

// newRecord is the first record of a mirror partition.
func newRecord(p int32) *Record {
	return &Record{
		Mirror: "m", Topic: "orders", Partition: p, State: epoch.StateMirroring, StateEpoch: 1,
		Log:     epoch.Log{Spans: []epoch.Span{{Kind: epoch.Mirrored, Gen: 1, PEnd: -1}}, LastGen: 1},
		Lineage: "l", TopicID: ID{7},
	}
}

// valve is a dialer whose connections can be cut.
type valve struct {
	mu    sync.Mutex
	shut  bool
	conns []net.Conn
}

func (d *valve) dial(ctx context.Context, network, host string) (net.Conn, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.shut {
		return nil, errors.New("valve is shut")
	}
	var nd net.Dialer
	c, err := nd.DialContext(ctx, network, host)
	if err == nil {
		d.conns = append(d.conns, c)
	}
	return c, err
}

func (d *valve) set(shut bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.shut = shut
	if shut {
		for _, c := range d.conns {
			_ = c.Close()
		}
		d.conns = nil
	}
}
