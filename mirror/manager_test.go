package mirror

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/lockstep-kafka/lockstep/epoch"
	"github.com/lockstep-kafka/lockstep/internal/kconn"
	"github.com/lockstep-kafka/lockstep/internal/ledger"
)

// A stop is what one needs when the source is dead: it works with a process
// that was started since, and for a mirror that is not configured any more.
func TestStopWithoutSource(t *testing.T) {
	for name, configured := range map[string]bool{"configured": true, "not configured any more": false} {
		t.Run(name, func(t *testing.T) {
			src, err := kfake.NewCluster(kfake.ClusterID("S"), kfake.NumBrokers(1), kfake.SeedTopics(2, "t"))
			require.NoError(t, err)
			defer src.Close()
			dst, err := kfake.NewCluster(kfake.ClusterID("D"), kfake.NumBrokers(1))
			require.NoError(t, err)
			defer dst.Close()
			from := []kgo.Opt{kgo.SeedBrokers(src.ListenAddrs()...), kgo.MetadataMinAge(10 * time.Millisecond)}
			to := []kgo.Opt{kgo.SeedBrokers(dst.ListenAddrs()...), kgo.MetadataMinAge(10 * time.Millisecond)}
			cl, err := kgo.NewClient(append(from, kgo.DefaultProduceTopic("t"))...)
			require.NoError(t, err)
			for range 10 {
				require.NoError(t, cl.ProduceSync(t.Context(), kgo.StringRecord("x")).FirstErr())
			}
			cl.Close()
			adm, err := kgo.NewClient(to...)
			require.NoError(t, err)
			defer adm.Close()
			require.NoError(t, ledger.EnsureTopic(t.Context(), kadm.NewClient(adm), 0))

			var view *ledger.View
			var writer *ledger.Writer
			process := func(mirrors ...MirrorOptions) (end func()) {
				ctx, cancel := context.WithCancel(t.Context())
				view = ledger.NewView(ledger.ViewOptions{Client: to, Logger: slog.New(slog.DiscardHandler), FetchWait: 50 * time.Millisecond})
				writer, err = ledger.NewWriter(ledger.WriterOptions{Client: to, View: view, Logger: slog.New(slog.DiscardHandler)})
				require.NoError(t, err)
				m, err := New(Options{
					Mirrors: mirrors, Destination: Access{Client: to, Dialer: (&kconn.Dialer{}).Init()}, View: view, Writer: writer,
					MemoryLimit: 1 << 20, SessionTimeout: 6 * time.Second, Logger: slog.New(slog.DiscardHandler),
				})
				require.NoError(t, err)
				viewCtx, endView := context.WithCancel(context.Background())
				ended, seen := make(chan error, 1), make(chan error, 1)
				go func() { seen <- view.Run(viewCtx) }()
				go func() { ended <- m.Run(ctx) }()
				return func() {
					cancel()
					require.NoError(t, <-ended)
					endView()
					require.NoError(t, <-seen)
					writer.Close()
				}
			}
			filter, err := NewTopicFilter([]string{"t"}, nil)
			require.NoError(t, err)
			mirror := MirrorOptions{
				Name: "m", Source: Access{Client: from, Dialer: (&kconn.Dialer{}).Init()}, Filter: filter, Refresh: time.Second,
				Tuning: Tuning{RetryMin: 50 * time.Millisecond, RetryMax: time.Second, RetryAttempts: 20, BumpStep: 1},
			}
			in := func(st ledger.State) func() bool {
				return func() bool {
					for p := range int32(2) {
						if x := view.Partition("t", p); x == nil || x.Record == nil || x.Record.State != st {
							return false
						}
					}
					return true
				}
			}
			end := process(mirror)
			eventually(t, "mirroring", in(epoch.StateMirroring))
			eventually(t, "all of it", func() bool {
				var n int64
				for p := range int32(2) {
					n += view.Partition("t", p).Live.Tail().VEnd
				}
				return n == 10
			})
			end()
			src.Close()
			if configured {
				end = process(mirror)
			} else {
				end = process()
			}
			require.NoError(t, view.WaitReady(t.Context()))
			for p := range int32(2) {
				require.NoError(t, writer.PutCommands(t.Context(), ledger.Command{Mirror: "m", Topic: "t", Partition: p, Desired: epoch.StateStopped, Seq: 1}))
			}
			eventually(t, "stopped", in(epoch.StateStopped))
			var n int64
			for p := range int32(2) {
				r := view.Partition("t", p).Record
				require.Equal(t, epoch.Native, r.Log.Open().Kind)
				n += max(r.Pairs[0].LMO, 0)
			}
			require.Equal(t, int64(10), n)
			end()
		})
	}
}

// The newest rule that matches counts; one for all topics replaces the rest.
func TestSetUnclean(t *testing.T) {
	m := &Manager{opts: Options{View: ledger.NewView(ledger.ViewOptions{})}}
	s := &source{o: MirrorOptions{Name: "m"}, m: m}
	m.sources = []*source{s}
	require.False(t, s.unclean("a"))
	require.NoError(t, m.SetUnclean("m", "a.*", true))
	require.True(t, s.unclean("a1"))
	require.False(t, s.unclean("b"))
	require.NoError(t, m.SetUnclean("m", "a1", false))
	require.False(t, s.unclean("a1"))
	require.True(t, s.unclean("a2"))
	require.NoError(t, m.SetUnclean("m", "", true))
	require.True(t, s.unclean("a1"))
	require.ErrorContains(t, m.SetUnclean("x", "", true), `no mirror "x"`)
	require.ErrorContains(t, m.SetUnclean("m", "(", true), "topic expression")
}
