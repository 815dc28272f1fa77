//go:build long

package e2e_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-kafka/lockstep/internal/e2e"
	"github.com/lockstep-kafka/lockstep/internal/testkafka/clients"
	"github.com/lockstep-kafka/lockstep/internal/testkafka/content"
)

// PX-081, PX-083 (KIP-899, KIP-1102): instances show the brokers at addresses of their own, and the one at which all
// clients are ends for good. Java and librdkafka begin anew from their bootstrap list, which names the other instance,
// with metadata.recovery.strategy=rebootstrap, which is what today's do by themselves. With "none", and before there was
// that setting, a client that was connected knows dead addresses only, until that instance is there again: what
// docs/clients.md says of it.
func TestRebootstrap(t *testing.T) {
	ctx := withTimeout(t, 6*time.Minute)
	src, dst := kafka.Source(t), destination(t, 1)
	require.NoError(t, content.CreateTopic(ctx, dst.Bootstrap(), "plain", 1, map[string]string{"retention.ms": "-1"}))
	f := e2e.PrepareFleet(t, &binary, e2e.Setup{Source: src, Destination: dst, Include: []string{"mirrored-.*"}, Limits: []string{"drain_timeout: 5s"}}, 2)
	f[0].Launch()

	const n = 20
	type reader struct {
		name string
		read func(context.Context, clients.Read) (clients.Result, error)
		set  map[string]string
		// comes: it goes on at the other instance.
		comes bool
		done  chan error
	}
	readers := []*reader{
		{name: "java", read: clients.JavaRead, comes: true},
		{name: "java-none", read: clients.JavaRead, set: map[string]string{"metadata.recovery.strategy": "none"}},
		{name: "librdkafka", read: clients.PythonRead, comes: true},
		{name: "librdkafka-none", read: clients.PythonRead, set: map[string]string{"metadata.recovery.strategy": "none"}},
	}
	for _, r := range readers {
		r.done = make(chan error, 1)
		go func() {
			got, err := r.read(ctx, clients.Read{
				Bootstrap: f.Bootstrap(), Topic: "plain", Group: r.name, Subscribe: true, Commit: true, From: "group",
				Max: n, Follow: true, Timeout: 5 * time.Minute, Set: r.set,
			})
			if err == nil && len(got.Recs) < n {
				t.Errorf("%s: %d records", r.name, len(got.Recs))
			}
			r.done <- err
		}()
	}
	adm := adminOf(t, dst)
	until(ctx, t, "all readers are members, over the only instance there is", func() bool {
		groups, err := adm.DescribeGroups(ctx)
		stable := 0
		for _, r := range readers {
			if g := groups[r.name]; err == nil && g.State == "Stable" && len(g.Members) == 1 {
				stable++
			}
		}
		return stable == len(readers)
	})
	f[1].Launch()
	f[0].Stop()
	for i := range int64(n) {
		put(ctx, t, dst.Bootstrap(), "plain", i, "x")
	}
	for _, r := range readers {
		if r.comes {
			require.NoError(t, <-r.done, r.name)
		}
	}
	for _, r := range readers {
		if !r.comes {
			require.Empty(t, r.done, "%s has found another instance: docs/clients.md says that it can't", r.name)
		}
	}
	f[0].Launch()
	for _, r := range readers {
		if !r.comes {
			require.NoError(t, <-r.done, r.name)
		}
	}
}
