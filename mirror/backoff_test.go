package mirror

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/lockstep-kafka/lockstep/epoch"
	"github.com/lockstep-kafka/lockstep/internal/kconn"
	"github.com/lockstep-kafka/lockstep/internal/ledger"
)

// tried is when a partition's own goroutine asked the destination, and with which error it came back.
type tried struct {
	at  time.Time
	err error
}

// triesOf runs a partition under a fake clock whose destination answers with what fail says for so long.
func triesOf(t *testing.T, long time.Duration, fail func(since time.Duration) error) (all []tried) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		began := time.Now()
		dial := func(context.Context, string, string) (net.Conn, error) {
			err := fail(time.Since(began))
			mu.Lock()
			defer mu.Unlock()
			all = append(all, tried{time.Now(), err})
			return nil, err
		}
		none := func(context.Context, string, string) (net.Conn, error) { return nil, errors.New("not here") }
		rec := &ledger.Record{Mirror: "m", Topic: "t", State: epoch.StateMirroring, StateEpoch: 1, Lineage: "l", Log: epoch.Log{
			Spans: []epoch.Span{{Kind: epoch.Mirrored, Gen: 0, PEnd: -1}}, MaxEpoch: -1,
		}}
		e := NewEngine(EngineOptions{
			Mirror: "m", Source: (&kconn.Dialer{DialFunc: none}).Init(), Dest: (&kconn.Dialer{DialFunc: dial}).Init(),
			Store:  &fakeStore{parts: map[partKey]*ledger.Partition{{"t", 0}: {Topic: "t", Live: &ledger.Live{}, Record: rec, Log: &rec.Log}}},
			Memory: NewMemory(1 << 20), Metrics: NewMetrics(nil), Logger: slog.New(slog.DiscardHandler),
		})
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { _ = e.Run(ctx) })
		e.SetSource(&Cluster{})
		e.SetDest(&Cluster{Brokers: map[int32]string{1: "broker:1"}, Topics: map[string]*TopicMeta{"t": {Partitions: []PartitionMeta{{Leader: 1}}}}})
		e.Add(Spec{Topic: "t"})
		time.Sleep(long)
		cancel()
		wg.Wait()
	})
	return all
}

// A partition that was kept from its destination for minutes waits long between its tries. When the outage ends and
// something else is in the way for a moment, it starts anew with short waits (LA-07).
func TestBackoffStartsAnewWithTheCause(t *testing.T) {
	const outage = 2 * time.Minute
	refused := &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}
	all := triesOf(t, outage+20*time.Second, func(since time.Duration) error {
		if since < outage {
			return refused
		}
		return kerr.OffsetNotAvailable
	})
	first := 0
	for i, x := range all {
		if !errors.Is(x.err, refused) {
			first = i
			break
		}
	}
	require.Greater(t, first, 10)
	gap := func(i int) time.Duration { return all[i].at.Sub(all[i-1].at) }
	require.GreaterOrEqual(t, gap(first-1), tryMax*4/5, "a long outage")
	require.Less(t, len(all), 60, "the waits do grow")
	// Tries, of which the pool of connections lets some through only.
	require.Less(t, all[first+1].at.Sub(all[first].at), 500*time.Millisecond)
	require.Less(t, all[first+3].at.Sub(all[first].at), 2*time.Second)
	require.GreaterOrEqual(t, gap(len(all)-1), tryMax*4/5)
}

// Causes that take turns don't keep each other's waits short.
func TestBackoffOfTwoCauses(t *testing.T) {
	n := 0
	all := triesOf(t, 5*time.Minute, func(time.Duration) error {
		if n++; n%2 == 0 {
			return kerr.OffsetNotAvailable
		}
		return kerr.UnknownLeaderEpoch
	})
	require.Less(t, len(all), 100)
	require.GreaterOrEqual(t, all[len(all)-1].at.Sub(all[len(all)-2].at), tryMax*4/5)
}
