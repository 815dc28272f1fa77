package mirror

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/epoch"
	"github.com/lockstep-kafka/lockstep/internal/ledger"
)

// The whole of it between two clusters: what is added, held back, given at a
// failover without the source, and taken away; a lost right stops nothing else
// and is over when it is back.
func TestACLsFollow(t *testing.T) {
	src, dst := fakeCluster(t, kfake.SeedTopics(1, "t")), fakeCluster(t)
	from, to := fakeClient(t, src), fakeClient(t, dst)
	require.NoError(t, ledger.EnsureTopic(t.Context(), kadm.NewClient(to), 0))
	own := topicRule("t", "own", "READ")
	require.NoError(t, createACLs(t.Context(), to, []ledger.ACL{own}))
	read, write, group := topicRule("t", "a", "READ"), topicRule("t", "a", "WRITE"), acl("GROUP", "g", "LITERAL", "a", "READ", "ALLOW")
	require.NoError(t, createACLs(t.Context(), from, []ledger.ACL{read, write, group, topicRule("other", "a", "READ")}))
	opts := func(o *MirrorOptions) {
		o.Refresh = 50 * time.Millisecond
		var err error
		o.ACLs, err = NewACLOptions([]string{"topic:.*", "group:.*"}, nil, nil)
		require.NoError(t, err)
		o.ACLs.Enabled = true
	}
	x := startManagedWith(t, src, dst, opts, "t")
	here := func(want ...ledger.ACL) func() bool {
		return func() bool {
			got, _, err := listACLs(t.Context(), to)
			require.NoError(t, err)
			if len(got) != len(want) {
				return false
			}
			for _, w := range want {
				found := false
				for _, g := range got {
					found = found || g == w
				}
				if !found {
					return false
				}
			}
			return true
		}
	}
	eventually(t, "reading is given, writing held back", here(own, read, group))
	eventually(t, "mirroring", func() bool { return x.state("t", 0) == epoch.StateMirroring })
	d, err := x.m.ACLDiff(t.Context(), "m")
	require.NoError(t, err)
	require.Equal(t, []ledger.ACL{write}, d.Held)
	require.Empty(t, d.Create)
	require.Equal(t, 2, d.InStep)
	_, err = x.m.ACLDiff(t.Context(), "x")
	require.ErrorIs(t, err, ErrNoMirror)

	// The right to list is lost, and comes back.
	refused := make(chan struct{}, 100)
	lost := true
	src.ControlKey(int16(kmsg.DescribeACLs), func(q kmsg.Request) (kmsg.Response, error, bool) {
		src.KeepControl()
		if !lost {
			return nil, nil, false
		}
		refused <- struct{}{}
		lost = len(refused) < 2
		r := q.ResponseKind().(*kmsg.DescribeACLsResponse)
		r.ErrorCode = kerr.ClusterAuthorizationFailed.Code
		r.SetVersion(q.GetVersion())
		return r, nil, true
	})
	require.NoError(t, deleteACLs(t.Context(), from, []ledger.ACL{group}))
	more := topicRule("t", "b", "READ")
	require.NoError(t, createACLs(t.Context(), from, []ledger.ACL{more}))
	eventually(t, "in step again", here(own, read, more))
	require.NotEmpty(t, refused)
	require.NoError(t, fakeClient(t, src).ProduceSync(t.Context(), &kgo.Record{Topic: "t", Value: []byte("x")}).FirstErr())
	eventually(t, "mirrored all the same", func() bool { return x.view.Partition("t", 0).Live.Tail().VEnd == 1 })

	// Failover without the source: what was held back is in the ledger.
	src.Close()
	require.NoError(t, x.writer.PutCommands(t.Context(), ledger.Command{Mirror: "m", Topic: "t", Desired: epoch.StateStopped, Seq: 1, By: "stop"}))
	eventually(t, "writers may write", here(own, read, more, write))
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	d, err = x.m.ACLDiff(ctx, "m")
	if err == nil {
		require.NotEmpty(t, d.SourceError)
	}
}

// A dry run changes nothing and says all.
func TestACLsDryRun(t *testing.T) {
	src, dst := fakeCluster(t, kfake.SeedTopics(1, "t")), fakeCluster(t)
	from, to := fakeClient(t, src), fakeClient(t, dst)
	require.NoError(t, ledger.EnsureTopic(t.Context(), kadm.NewClient(to), 0))
	rule := topicRule("t", "a", "READ")
	require.NoError(t, createACLs(t.Context(), from, []ledger.ACL{rule}))
	x := startManagedWith(t, src, dst, func(o *MirrorOptions) {
		o.Refresh = 50 * time.Millisecond
		var err error
		o.ACLs, err = NewACLOptions([]string{"topic:.*"}, nil, nil)
		require.NoError(t, err)
		o.ACLs.Enabled, o.ACLs.DryRun = true, true
	}, "t")
	eventually(t, "mirroring", func() bool { return x.state("t", 0) == epoch.StateMirroring })
	d, err := x.m.ACLDiff(t.Context(), "m")
	require.NoError(t, err)
	require.Equal(t, []ledger.ACL{rule}, d.Create)
	got, _, err := listACLs(t.Context(), to)
	require.NoError(t, err)
	require.Empty(t, got)
	mem, err := x.view.ACLs("m")
	require.NoError(t, err)
	require.Empty(t, mem)
}
