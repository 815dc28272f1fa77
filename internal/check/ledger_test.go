package check

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/lockstep-kafka/lockstep/epoch"
	"github.com/lockstep-kafka/lockstep/internal/ledger"
)

// A topic that the ledger has under another mirror's name: most often the
// mirror was renamed. serve would refuse it, so check says so.
func TestRenamedMirror(t *testing.T) {
	src, dst := cluster(t, "S"), cluster(t, "D")
	create(t, src, "orders", 1)
	create(t, dst, "orders", 0)
	opts := []kgo.Opt{kgo.SeedBrokers(dst.ListenAddrs()...)}
	cl, err := kgo.NewClient(opts...)
	require.NoError(t, err)
	defer cl.Close()
	require.NoError(t, ledger.EnsureTopic(t.Context(), kadm.NewClient(cl), 0))
	v := ledger.NewView(ledger.ViewOptions{Client: opts})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- v.Run(ctx) }()
	require.NoError(t, v.WaitReady(ctx))
	w, err := ledger.NewWriter(ledger.WriterOptions{Client: opts, View: v})
	require.NoError(t, err)
	defer w.Close()
	n := ledger.PartitionOf("orders", 0)
	require.NoError(t, w.Acquire(ctx, n))
	require.NoError(t, w.Put(ctx, &ledger.Record{
		Mirror: "old", Topic: "orders", State: epoch.StateLogAlignment, Desired: epoch.StateMirroring, StateEpoch: 1, Lineage: "l",
	}))
	cancel()
	require.NoError(t, <-done)

	find(t, Run(t.Context(), parse(t, src, dst, "19100-19149")), Fail, "dc1", "ledger", `[orders] belong to mirror "old" in the ledger: was this mirror renamed?`)
}
