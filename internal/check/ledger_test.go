package check

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/epoch"
	"github.com/lockstep-kafka/lockstep/internal/kconn"
	"github.com/lockstep-kafka/lockstep/internal/ledger"
)

// A topic that the ledger has under another mirror's name: most often the
// mirror was renamed. serve would refuse it, so check says so.
func TestRenamedMirror(t *testing.T) {
	src, dst := cluster(t, "S"), cluster(t, "D")
	create(t, src, "orders", 1)
	create(t, dst, "orders", 0)
	putRecord(t, dst, &ledger.Record{
		Mirror: "old", Topic: "orders", State: epoch.StateLogAlignment, Desired: epoch.StateMirroring, StateEpoch: 1, Lineage: "l",
	})
	find(t, Run(t.Context(), parse(t, src, dst, "19100-19149")), Fail, "dc1", "ledger", `[orders] belong to mirror "old" in the ledger: was this mirror renamed?`)
}

// Failback: the topic here holds records, and the source's ledger says that it
// has mirrored them from here. They are taken over, so check is not to call
// them foreign: its remedy for those is to delete them.
func TestFailback(t *testing.T) {
	src, dst := cluster(t, "S"), cluster(t, "D")
	create(t, src, "orders", 3)
	create(t, dst, "orders", 5)
	rec := &ledger.Record{
		Mirror: "there", Topic: "orders", TopicID: topicID(t, src), State: epoch.StateStopped, Desired: epoch.StateStopped, StateEpoch: 1, Lineage: "l",
		Pairs: []ledger.Pair{{Cluster: "D", TopicID: topicID(t, dst), LME: 0, LMO: 3}},
	}
	putRecord(t, src, rec)
	find(t, Run(t.Context(), parse(t, src, dst, "19100-19149")), Fail, "dc1", "destination topics", "[orders] were mirrored by the source from here, and it is read without its Lockstep")

	asLockstep(t, src)
	fs := Run(t.Context(), parse(t, src, dst, "19100-19149"))
	require.False(t, Failed(fs), "%v", fs)
	find(t, fs, Warn, "dc1", "destination topics", "[orders] were mirrored by the source from here: they are taken over when the mirror starts, with what both sides share; cut then: 2 offsets that only this side has")

	rec.TopicID[0]++ // what the ledger speaks of is not the topic of today
	rec.StateEpoch++
	putRecord(t, src, rec)
	find(t, Run(t.Context(), parse(t, src, dst, "19100-19149")), Fail, "dc1", "destination topics", "[orders] hold records of another origin")
}

// asLockstep lets a cluster say that it is a Lockstep.
func asLockstep(t *testing.T, c *kfake.Cluster) {
	cl, err := kgo.NewClient(kgo.SeedBrokers(c.ListenAddrs()...))
	require.NoError(t, err)
	defer cl.Close()
	ask := kmsg.NewPtrApiVersionsRequest()
	ask.ClientSoftwareName, ask.ClientSoftwareVersion = "test", "test"
	own, err := ask.RequestWith(t.Context(), cl)
	require.NoError(t, err)
	f := kmsg.NewApiVersionsResponseSupportedFeature()
	f.Name, f.MinVersion, f.MaxVersion = kconn.LockstepFeature, 1, 1
	own.SupportedFeatures = append(own.SupportedFeatures, f)
	c.ControlKey(int16(kmsg.ApiVersions), func(req kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		resp := *own
		resp.Version = req.GetVersion()
		return &resp, nil, true
	})
}

func topicID(t *testing.T, c *kfake.Cluster) ledger.ID {
	cl, err := kgo.NewClient(kgo.SeedBrokers(c.ListenAddrs()...))
	require.NoError(t, err)
	defer cl.Close()
	ts, err := kadm.NewClient(cl).ListTopics(t.Context(), "orders")
	require.NoError(t, err)
	return ledger.ID(ts["orders"].ID)
}

// putRecord writes a record into a cluster's ledger.
func putRecord(t *testing.T, c *kfake.Cluster, r *ledger.Record) {
	opts := []kgo.Opt{kgo.SeedBrokers(c.ListenAddrs()...)}
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
	require.NoError(t, w.Acquire(ctx, ledger.PartitionOf(r.Topic, r.Partition)))
	require.NoError(t, w.Put(ctx, r))
	cancel()
	require.NoError(t, <-done)
}
