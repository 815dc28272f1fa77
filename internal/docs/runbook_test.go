package docs_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/lockstep-kafka/lockstep/internal/app"
	"github.com/lockstep-kafka/lockstep/internal/config"
	"github.com/lockstep-kafka/lockstep/internal/ledger"
)

// TestStartATopicAnew follows the runbook of that name: a mirror topic that was
// deleted on the destination is refused, then mirrored again with the same
// offsets once its ledger entries are gone.
func TestStartATopicAnew(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	source, dest := cluster(t, "source"), cluster(t, "destination")
	src, dst := client(t, source.ListenAddrs()...), client(t, dest.ListenAddrs()...)
	_, err := kadm.NewClient(dst).DeleteTopic(ctx, "orders") // a mirror makes it itself
	require.NoError(t, err)
	for i := range 40 {
		r := &kgo.Record{Topic: "orders", Partition: int32(i % 2), Value: fmt.Append(nil, i)}
		require.NoError(t, src.ProduceSync(ctx, r).FirstErr())
	}
	_, err = kadm.NewClient(src).DeleteRecords(ctx, kadm.Offsets{"orders": {0: {Topic: "orders", At: 5}, 1: {Topic: "orders", Partition: 1, At: 5}}})
	require.NoError(t, err)

	ports := freePorts(t, 4)
	c := config.Default()
	c.Listeners = []config.Listener{{
		Address: net.JoinHostPort("127.0.0.1", fmt.Sprint(ports)), AdvertisedHost: "127.0.0.1",
		BrokerPorts: config.PortRange{First: ports + 1, Last: ports + 3},
	}}
	c.Destination.Bootstrap = dest.ListenAddrs()
	m := config.DefaultMirror()
	m.Name, m.Source.Bootstrap, m.Topics.Include = "dc1", source.ListenAddrs(), []string{"orders"}
	m.MetadataRefresh = config.Duration(200 * time.Millisecond)
	c.Mirrors = []config.Mirror{m}
	c.Admin.Address = ""
	c.Limits.DrainTimeout = config.Duration(100 * time.Millisecond)

	run := func(log io.Writer, while func()) {
		life, end := context.WithCancel(ctx)
		defer end()
		ready, done := make(chan struct{}), make(chan error, 1)
		go func() { done <- app.Run(life, &c, app.Options{LogTo: log, Ready: ready}) }()
		select {
		case <-ready:
			while()
			end()
			require.NoError(t, <-done)
		case err := <-done:
			t.Fatal(err)
		}
	}
	var before []string
	run(io.Discard, func() { before = readAll(ctx, t, c.Listeners[0].Address, 30) })

	_, err = kadm.NewClient(dst).DeleteTopic(ctx, "orders")
	require.NoError(t, err)
	seen := &watcher{want: "destination_topic_deleted", found: make(chan struct{})}
	run(seen, func() {
		select {
		case <-seen.found:
		case <-ctx.Done():
			t.Fatal("the deleted topic was not noticed")
		}
	})

	// The keys in the runbook's example are those of topic orders, two partitions.
	_, text, ok := strings.Cut(page(t, "docs/operations.md"), "printf '%s:NULL\\n' ")
	require.True(t, ok)
	text, _, ok = strings.Cut(text, " |")
	require.True(t, ok)
	require.Equal(t, []string{ledger.RecordKey("orders", 0), ledger.RecordKey("orders", 1)}, strings.Fields(text))
	tool, err := kgo.NewClient(kgo.SeedBrokers(dest.ListenAddrs()...)) // with Kafka's default partitioner
	require.NoError(t, err)
	defer tool.Close()
	for _, key := range strings.Fields(text) {
		require.NoError(t, tool.ProduceSync(ctx, &kgo.Record{Topic: ledger.Topic, Key: []byte(key)}).FirstErr())
	}
	run(io.Discard, func() { require.Equal(t, before, readAll(ctx, t, c.Listeners[0].Address, 30)) })
}

func client(t *testing.T, seeds ...string) *kgo.Client {
	t.Helper()
	cl, err := kgo.NewClient(kgo.SeedBrokers(seeds...), kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.MetadataMinAge(50*time.Millisecond))
	require.NoError(t, err)
	t.Cleanup(cl.Close)
	return cl
}

// readAll reads n records of topic orders: partition, offset and value of each,
// by partition.
func readAll(ctx context.Context, t *testing.T, addr string, n int) []string {
	t.Helper()
	// A new client while there is no topic: it would look for one only now and then.
	for {
		adm := client(t, addr)
		ts, err := kadm.NewClient(adm).ListTopics(ctx, "orders")
		if err == nil && ts.Error() == nil {
			break
		}
		require.NoError(t, ctx.Err(), errors.Join(err, ts.Error()))
		time.Sleep(50 * time.Millisecond)
	}
	cl, err := kgo.NewClient(kgo.SeedBrokers(addr), kgo.ConsumeTopics("orders"), kgo.MetadataMinAge(50*time.Millisecond))
	require.NoError(t, err)
	defer cl.Close()
	by := map[int32][]string{}
	for got := 0; got < n; {
		fs := cl.PollFetches(ctx)
		require.NoError(t, ctx.Err(), "read %d of %d records", got, n)
		fs.EachRecord(func(r *kgo.Record) {
			by[r.Partition] = append(by[r.Partition], fmt.Sprintf("%d/%d %s", r.Partition, r.Offset, r.Value))
			got++
		})
	}
	return append(by[0], by[1]...)
}

// watcher is a log that tells when something stands in it.
type watcher struct {
	want  string
	found chan struct{}
	done  bool
}

var wordRE = regexp.MustCompile(`reason=(\w+)`)

// Write gets one line a call, one call at a time (slog).
func (w *watcher) Write(b []byte) (int, error) {
	if m := wordRE.FindSubmatch(b); m != nil && string(m[1]) == w.want && !w.done {
		w.done = true
		close(w.found)
	}
	return len(b), nil
}
