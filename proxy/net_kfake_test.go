package proxy

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
)

// kfakeProxy is a proxy in front of an in-process cluster of three.
func kfakeProxy(t *testing.T) (*Proxy, *kfake.Cluster) {
	t.Helper()
	cluster, err := kfake.NewCluster(kfake.NumBrokers(3), kfake.SeedTopics(6, "t"))
	require.NoError(t, err)
	t.Cleanup(cluster.Close)
	first := freePorts(t, 5)
	p := testProxy(t, "", func(o *Options) {
		o.Dial = nil
		o.Bootstrap = cluster.ListenAddrs()
		o.Listeners[0].FirstPort, o.Listeners[0].LastPort = first, first+4
	})
	return p, cluster
}

// kgo through the proxy: idempotent production, a group that commits, and a
// client that never dials anything but the proxy.
func TestKfakeProduceConsume(t *testing.T) {
	leakCheck(t)
	p, cluster := kfakeProxy(t)
	brokers := strings.Join(cluster.ListenAddrs(), " ")
	var past atomic.Int64
	dial := func(ctx context.Context, network, addr string) (net.Conn, error) {
		if strings.Contains(brokers, addr) {
			past.Add(1)
		}
		return (&net.Dialer{}).DialContext(ctx, network, addr)
	}
	client := func(opts ...kgo.Opt) *kgo.Client {
		cl, err := kgo.NewClient(append(opts, kgo.SeedBrokers(p.Addr().String()), kgo.Dialer(dial))...)
		require.NoError(t, err)
		return cl
	}
	ctx, cancel := context.WithTimeout(context.Background(), testPatience)
	defer cancel()
	producer := client(kgo.DefaultProduceTopic("t"), kgo.ProducerBatchCompression(kgo.NoCompression()))
	defer producer.Close()
	const n = 20_000
	value := strings.Repeat("v", 500)
	for i := range n {
		producer.Produce(ctx, &kgo.Record{Key: []byte(strconv.Itoa(i)), Value: []byte(value)}, func(_ *kgo.Record, err error) {
			if err != nil {
				t.Error(err)
			}
		})
	}
	require.NoError(t, producer.Flush(ctx))
	require.NoError(t, producer.ProduceSync(ctx, &kgo.Record{Key: []byte("big"), Value: make([]byte, 900_000)}).FirstErr())

	for round := range 2 {
		consumer := client(kgo.ConsumeTopics("t"), kgo.ConsumerGroup("g"+strconv.Itoa(round)), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
		seen := map[string]bool{}
		for len(seen) < n+1 {
			fs := consumer.PollFetches(ctx)
			require.NoError(t, fs.Err())
			fs.EachRecord(func(r *kgo.Record) {
				require.False(t, seen[string(r.Key)], "twice: %s", r.Key)
				seen[string(r.Key)] = true
			})
		}
		require.NoError(t, consumer.CommitUncommittedOffsets(ctx))
		consumer.Close()
	}
	adm := kadm.NewClient(producer)
	lag, err := adm.Lag(ctx, "g0")
	require.NoError(t, err)
	require.NoError(t, lag.Error())
	require.Zero(t, lag["g0"].Lag.Total())
	meta, err := adm.BrokerMetadata(ctx)
	require.NoError(t, err)
	for _, b := range meta.Brokers {
		require.Equal(t, "127.0.0.1", b.Host)
		require.EqualValues(t, p.fronts[0].FirstPort+int(b.NodeID), b.Port)
	}
	require.Zero(t, past.Load(), "the client went past the proxy")
	require.NoError(t, p.Ready())
}

// acks=0 through the proxy, followed by something with an answer.
func TestKfakeAcks0(t *testing.T) {
	leakCheck(t)
	p, _ := kfakeProxy(t)
	ctx, cancel := context.WithTimeout(context.Background(), testPatience)
	defer cancel()
	cl, err := kgo.NewClient(kgo.SeedBrokers(p.Addr().String()), kgo.RequiredAcks(kgo.NoAck()), kgo.DisableIdempotentWrite(), kgo.DefaultProduceTopic("t"))
	require.NoError(t, err)
	defer cl.Close()
	for i := range 500 {
		require.NoError(t, cl.ProduceSync(ctx, kgo.StringRecord(strconv.Itoa(i))).FirstErr())
	}
	eventually(t, "all are there", func() bool {
		ends, err := kadm.NewClient(cl).ListEndOffsets(ctx, "t")
		total := int64(0)
		ends.Each(func(o kadm.ListedOffset) { total += o.Offset })
		return err == nil && total == 500
	})
}

// A broker whose address changes is found again under its old port (PX-031),
// and a new broker under its own (PX-099).
func TestKfakeBrokersMove(t *testing.T) {
	leakCheck(t)
	p, cluster := kfakeProxy(t)
	ctx, cancel := context.WithTimeout(context.Background(), testPatience)
	defer cancel()
	ask := func(id int) error {
		cl, err := kgo.NewClient(kgo.SeedBrokers(fmt.Sprintf("127.0.0.1:%d", p.fronts[0].FirstPort+id)))
		if err != nil {
			return err
		}
		defer cl.Close()
		_, err = kadm.NewClient(cl).BrokerMetadata(ctx)
		return err
	}
	require.NoError(t, ask(2))
	require.NoError(t, cluster.RemoveNode(2))
	_, _, err := cluster.AddNode(2, 0)
	require.NoError(t, err)
	require.NoError(t, ask(2))
	_, _, err = cluster.AddNode(4, 0)
	require.NoError(t, err)
	require.NoError(t, ask(4))
}

// A broker that is down: its clients hear of it at once, whether the cluster
// still lists it or not, and not when limits.handshake_timeout is over. One that
// has moved, or come back, since the last look is found by the client that asks
// for it.
func TestBrokerDown(t *testing.T) {
	leakCheck(t)
	cluster, err := kfake.NewCluster(kfake.NumBrokers(3))
	require.NoError(t, err)
	defer cluster.Close()
	first := freePorts(t, 5)
	var refused atomic.Pointer[string] // an address
	start := func(t *testing.T, gap time.Duration) *Proxy {
		opts := testOptions("")
		opts.Dial = func(ctx context.Context, network, addr string) (net.Conn, error) {
			if down := refused.Load(); down != nil && *down == addr {
				return nil, syscall.ECONNREFUSED
			}
			return (&net.Dialer{}).DialContext(ctx, network, addr)
		}
		opts.Bootstrap = cluster.ListenAddrs()[:1]
		opts.Listeners[0].FirstPort, opts.Listeners[0].LastPort = first, first+2
		opts.Limits.HandshakeTimeout = time.Hour
		opts.Refresh = time.Hour
		p, err := New(opts)
		require.NoError(t, err)
		if gap > 0 {
			p.topology.gap = gap
		}
		runProxy(t, p)
		eventually(t, "ready", func() bool { return p.Ready() == nil })
		return p
	}
	ask := func(t *testing.T) *rawClient {
		tcp := dialTCP(t, fmt.Sprintf("127.0.0.1:%d", first+2)).(*net.TCPConn)
		c := &rawClient{tcp, t, bufio.NewReader(tcp)}
		c.send(request(18, 0, 9, nil, nil))
		return c
	}
	t.Run("told at once", func(t *testing.T) {
		p := start(t, 0)
		down, _ := p.topology.known(2)
		refused.Store(&down)
		require.Empty(t, ask(t).ended())
		eventually(t, "reason", func() bool { return closedFor(p, ReasonConnectFailed) == 1 })
		require.NoError(t, cluster.RemoveNode(2))
		p.topology.poke()
		eventually(t, "no longer listed", func() bool { _, ok := p.topology.known(2); return !ok })
		require.Empty(t, ask(t).ended())
		eventually(t, "reason", func() bool { return closedFor(p, ReasonConnectFailed) == 2 })
	})
	t.Run("back since the last look, then moved", func(t *testing.T) {
		p := start(t, testPatience)
		for i := range 2 {
			was, _ := p.topology.known(2)
			refused.Store(&was)
			_, _, err := cluster.AddNode(2, first+3+i)
			require.NoError(t, err)
			corr, _ := ask(t).answer()
			require.EqualValues(t, 9, corr)
			require.NoError(t, cluster.RemoveNode(2))
		}
		require.Zero(t, closedFor(p, ReasonConnectFailed))
	})
}
