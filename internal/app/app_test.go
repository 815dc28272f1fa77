package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"go.uber.org/goleak"

	"github.com/lockstep-kafka/lockstep/internal/config"
	"github.com/lockstep-kafka/lockstep/internal/leaktest"
)

// ports are n free ones in a row, as far as can be told.
func ports(t *testing.T, n int) int {
	t.Helper()
	for range 200 {
		p := 10_000 + rand.IntN(9_900) // below those that the kernel gives to connections, and other packages' tests take
		var lns []net.Listener
		var err error
		for i := 0; i < n && err == nil; i++ {
			var ln net.Listener
			if ln, err = net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", p+i)); err == nil {
				lns = append(lns, ln)
			}
		}
		for _, ln := range lns {
			require.NoError(t, ln.Close())
		}
		if err == nil {
			return p
		}
	}
	t.Fatal("no free ports in a row")
	return 0
}

type running struct {
	bootstrap, admin string
	ready            chan struct{}
	stop             func() error
}

func start(t *testing.T, src, dst *kfake.Cluster) *running {
	t.Helper()
	p := ports(t, 6)
	c, err := config.Parse(fmt.Appendf(nil, `
listeners: [{address: "127.0.0.1:%d", broker_ports: "%d-%d"}]
destination: {bootstrap: [%q]}
mirrors: [{name: m, source: {bootstrap: [%q]}, topics: {include: [".*"]}, metadata_refresh: 1s}]
admin: {address: "127.0.0.1:%d"}
limits: {drain_timeout: 100ms}
log: {level: error}
`, p, p+2, p+5, dst.ListenAddrs()[0], src.ListenAddrs()[0], p+1))
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	r := &running{bootstrap: fmt.Sprintf("127.0.0.1:%d", p), admin: fmt.Sprintf("http://127.0.0.1:%d", p+1), ready: make(chan struct{})}
	done := make(chan error, 1)
	go func() { done <- Run(ctx, c, Options{LogTo: os.Stderr, Ready: r.ready}) }()
	r.stop = sync.OnceValue(func() error { cancel(); return <-done })
	t.Cleanup(func() { require.NoError(t, r.stop()) })
	require.Eventually(t, func() bool {
		c, err := net.Dial("tcp", r.admin[len("http://"):])
		if err == nil {
			err = c.Close()
		}
		return err == nil
	}, time.Minute, 10*time.Millisecond)
	return r
}

func cluster(t *testing.T, id string) *kfake.Cluster {
	t.Helper()
	c, err := kfake.NewCluster(kfake.ClusterID(id))
	require.NoError(t, err)
	t.Cleanup(c.Close)
	return c
}

// H10: before the ledger has been read to its end nobody knows what is a
// mirror, so no client gets an answer; then everybody does.
func TestNothingPassesBeforeTheLedgerIsRead(t *testing.T) {
	defer leaktest.None(t, goleak.IgnoreCurrent())
	src, dst := cluster(t, "S"), cluster(t, "D")
	release := make(chan struct{})
	dst.ControlKey(int16(kmsg.Fetch), func(kmsg.Request) (kmsg.Response, error, bool) {
		dst.KeepControl()
		select {
		case <-release:
			return nil, nil, false
		default:
			return nil, errors.New("not now"), true
		}
	})
	r := start(t, src, dst)
	cl, err := kgo.NewClient(kgo.SeedBrokers(r.bootstrap))
	require.NoError(t, err)
	defer cl.Close()
	short, cancel := context.WithTimeout(t.Context(), 1500*time.Millisecond)
	defer cancel()
	require.Error(t, cl.Ping(short), "a client was answered before the ledger was read")
	code, body := get(t, r.admin+"/readyz")
	require.Equal(t, http.StatusServiceUnavailable, code)
	require.NotEmpty(t, body)
	code, _ = get(t, r.admin+"/livez")
	require.Equal(t, http.StatusOK, code)

	close(release)
	long, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	require.NoError(t, cl.Ping(long))
	select {
	case <-r.ready:
	case <-long.Done():
		t.Fatal("not ready")
	}
	cl.Close()
	require.NoError(t, r.stop())
	src.Close()
	dst.Close()
}

// What is written to the source is read through the proxy at its own offsets,
// and /v1/status and /metrics speak of it.
func TestMirrorStatusAndMetrics(t *testing.T) {
	src, dst := cluster(t, "S"), cluster(t, "D")
	w, err := kgo.NewClient(kgo.SeedBrokers(src.ListenAddrs()...))
	require.NoError(t, err)
	defer w.Close()
	_, err = kadm.NewClient(w).CreateTopic(t.Context(), 1, 1, nil, "orders")
	require.NoError(t, err)
	for i := range 10 {
		require.NoError(t, w.ProduceSync(t.Context(), &kgo.Record{Topic: "orders", Value: fmt.Append(nil, i)}).FirstErr())
	}
	require.NoError(t, src.DeleteRecords("orders", 0, 4))
	r := start(t, src, dst)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	rd, err := kgo.NewClient(kgo.SeedBrokers(r.bootstrap), kgo.ConsumeTopics("orders"), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.MetadataMinAge(50*time.Millisecond))
	require.NoError(t, err)
	defer rd.Close()
	var got []string
	for len(got) < 6 {
		fs := rd.PollFetches(ctx)
		require.NoError(t, ctx.Err())
		fs.EachRecord(func(x *kgo.Record) { got = append(got, fmt.Sprintf("%d:%s", x.Offset, x.Value)) })
	}
	require.Equal(t, []string{"4:4", "5:5", "6:6", "7:7", "8:8", "9:9"}, got)
	require.Eventually(t, func() bool {
		_, body := get(t, r.admin+"/v1/status")
		return strings.Contains(body, `"state": "MIRRORING"`) && strings.Contains(body, `"position": 10`) && strings.Contains(body, `"lag": 0`)
	}, time.Minute, 50*time.Millisecond)
	_, body := get(t, r.admin+"/metrics")
	require.Contains(t, body, "lockstep_ledger_partitions_owned 50")
	require.Contains(t, body, "lockstep_open_connections")
}

func get(t *testing.T, url string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	require.NoError(t, err)
	tr := &http.Transport{DisableKeepAlives: true}
	resp, err := (&http.Client{Transport: tr}).Do(req)
	require.NoError(t, err)
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	return resp.StatusCode, string(b)
}
