package proxy

import (
	"context"
	"net"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
)

// PX-105: two instances are restarted in turn, again and again, under a producer
// (acks=all, idempotent) and a consumer group that know both: no error, nothing
// lost, nothing twice in the log.
func TestRollingRestart(t *testing.T) {
	leakCheck(t)
	cluster, err := kfake.NewCluster(kfake.NumBrokers(3), kfake.SeedTopics(6, "t"))
	require.NoError(t, err)
	defer cluster.Close()
	first := freePorts(t, 12)
	addr := func(i int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(first+6*i)) }
	start := func(i int) (stop func()) {
		opts := testOptions("")
		opts.Dial = nil
		opts.Bootstrap = cluster.ListenAddrs()
		opts.Listeners = []Listener{{Address: addr(i), FirstPort: first + 6*i + 1, LastPort: first + 6*i + 5}}
		opts.Limits.DrainTimeout = 10 * time.Second
		p, err := New(opts)
		require.NoError(t, err)
		stop = runProxy(t, p)
		eventually(t, "ready", func() bool { return p.Ready() == nil })
		return stop
	}
	stops := []func(){start(0), start(1)}
	ctx, cancel := context.WithTimeout(context.Background(), 2*testPatience)
	defer cancel()
	client := func(opts ...kgo.Opt) *kgo.Client {
		cl, err := kgo.NewClient(append(opts, kgo.SeedBrokers(addr(0), addr(1)), kgo.MetadataMinAge(50*time.Millisecond))...)
		require.NoError(t, err)
		return cl
	}
	producer := client(kgo.DefaultProduceTopic("t"))
	defer producer.Close()
	var made atomic.Int64
	rolled := make(chan struct{})
	produced := make(chan error, 1)
	go func() {
		for {
			select {
			case <-rolled:
				produced <- nil
				return
			default:
			}
			key := []byte(strconv.FormatInt(made.Load(), 10))
			if err := producer.ProduceSync(ctx, &kgo.Record{Key: key}).FirstErr(); err != nil {
				produced <- err
				return
			}
			made.Add(1)
		}
	}()
	consumer := client(kgo.ConsumeTopics("t"), kgo.ConsumerGroup("g"), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	defer consumer.Close()
	type at struct {
		partition int32
		offset    int64
	}
	seen := map[string]map[at]int{} // where each record is, and how often it came
	poll := func(within time.Duration) {
		short, end := context.WithTimeout(ctx, within)
		defer end()
		consumer.PollFetches(short).EachRecord(func(r *kgo.Record) {
			if seen[string(r.Key)] == nil {
				seen[string(r.Key)] = map[at]int{}
			}
			seen[string(r.Key)][at{r.Partition, r.Offset}]++
		})
	}
	for range 2 {
		for i := range stops {
			before := made.Load()
			stops[i]()
			stops[i] = start(i)
			for made.Load() < before+50 && ctx.Err() == nil {
				poll(100 * time.Millisecond)
			}
		}
	}
	close(rolled)
	require.NoError(t, <-produced)
	for len(seen) < int(made.Load()) && ctx.Err() == nil {
		poll(time.Second)
	}
	require.Len(t, seen, int(made.Load()), "lost")
	again := 0 // a group reads again what it has not committed, when it has lost its coordinator
	for k, places := range seen {
		require.Len(t, places, 1, "record %s is there twice", k)
		for _, n := range places {
			again += n - 1
		}
	}
	t.Logf("%d records, %d of them read again", len(seen), again)
}

// PX-105: two instances that show the brokers at one address, of a load balancer
// (or a name that stands for both): a client that has no way back to a bootstrap
// address goes on when its instance ends for good.
func TestOneAddressOfTwoInstances(t *testing.T) {
	leakCheck(t)
	cluster, err := kfake.NewCluster(kfake.NumBrokers(3), kfake.SeedTopics(6, "t"))
	require.NoError(t, err)
	defer cluster.Close()
	const brokers = 3
	first := freePorts(t, 3*brokers)
	addr := func(i int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(first+i)) }
	start := func(i int) (p *Proxy, stop func()) {
		opts := testOptions("")
		opts.Dial = nil
		opts.Bootstrap = cluster.ListenAddrs()
		opts.Listeners = []Listener{{Address: "127.0.0.1:0", FirstPort: first + i*brokers, LastPort: first + (i+1)*brokers - 1, AdvertisedFirstPort: first}}
		opts.Limits.DrainTimeout = 10 * time.Second
		p, err := New(opts)
		require.NoError(t, err)
		stop = runProxy(t, p)
		eventually(t, "ready", func() bool { return p.Ready() == nil })
		return p, stop
	}
	for i := range brokers {
		newBalancer(t, addr(i), addr(brokers+i), addr(2*brokers+i))
	}
	p, stop := start(1)
	ctx, cancel := context.WithTimeout(t.Context(), 2*testPatience)
	defer cancel()
	cl, err := kgo.NewClient(kgo.SeedBrokers(p.Addr().String()), kgo.DefaultProduceTopic("t"), kgo.RecordPartitioner(kgo.RoundRobinPartitioner()))
	require.NoError(t, err)
	defer cl.Close()
	produce := func() {
		for range 30 {
			require.NoError(t, cl.ProduceSync(ctx, kgo.StringRecord("x")).FirstErr())
		}
	}
	produce()
	start(2)
	stop()
	produce()
}

// PX-103: a broker that closes an idle connection has the client's side closed
// at once, so that the client notices it as without a proxy. A broker that takes
// the connection and says nothing is the client's to give up: nothing is left
// when it does.
func TestBrokerClosesIdle(t *testing.T) {
	leakCheck(t)
	idle := make(chan struct{})
	p := testProxy(t, scriptedBroker(t, func(c *net.TCPConn) {
		f, err := readFrame(c)
		if err != nil {
			return
		}
		if f[7] == 99 {
			_, _ = readFrame(c) // says nothing, until the proxy closes
			return
		}
		_, _ = c.Write(answerFrame(1, sumOf(f)))
		<-idle
	}), nil)
	c := dialRaw(t, p)
	c.send(request(keyHeartbeat, 0, 1, nil, nil))
	c.answer()
	close(idle)
	require.Empty(t, c.ended())
	require.NoError(t, c.Close())
	eventually(t, "reason", func() bool { return closedFor(p, ReasonBrokerEOF) == 1 })
	silent := dialRaw(t, p)
	silent.send(request(keyHeartbeat, 0, 99, nil, nil))
	eventually(t, "connected", func() bool { return p.engine.connections() >= 2 })
	require.NoError(t, silent.SetLinger(0))
	require.NoError(t, silent.Close())
	eventually(t, "nothing is left", func() bool { return p.open.Load() == 0 && p.engine.connections() == 0 })
}

// PX-107: many short connections leave nothing behind, in the metrics neither.
func TestShortConnections(t *testing.T) {
	leakCheck(t)
	reg := prometheus.NewRegistry()
	p := testProxy(t, scriptedBroker(t, serveFrames(sumAnswer)), func(o *Options) { o.Registerer = reg })
	series := func() (n int) {
		all, err := reg.Gather()
		require.NoError(t, err)
		for _, f := range all {
			n += len(f.Metric)
		}
		return n
	}
	run := func(n int) {
		for i := range n {
			c, err := net.Dial("tcp", p.Addr().String())
			require.NoError(t, err)
			if i%2 == 0 {
				_, err = c.Write(request(keyHeartbeat, 0, 1, nil, nil))
				require.NoError(t, err)
				_, err = readFrame(c)
				require.NoError(t, err)
			}
			require.NoError(t, c.Close())
		}
		eventually(t, "all are gone", func() bool { return p.open.Load() == 0 && p.engine.connections() == 0 })
	}
	run(10)
	before, files := series(), openFiles(t)
	run(2000)
	require.Equal(t, before, series())
	require.LessOrEqual(t, openFiles(t), files+5)
	eventually(t, "counted out", func() bool { // a moment after the socket is closed
		p.mu.Lock()
		defer p.mu.Unlock()
		return len(p.from) == 0
	})
}
