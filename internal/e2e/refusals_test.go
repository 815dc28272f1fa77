package e2e_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-kafka/lockstep/internal/e2e"
	"github.com/lockstep-kafka/lockstep/internal/testkafka"
	"github.com/lockstep-kafka/lockstep/internal/testkafka/clients"
	"github.com/lockstep-kafka/lockstep/internal/testkafka/content"
	"github.com/lockstep-kafka/lockstep/internal/testkafka/oracle"
)

// While mirroring, Produce and DeleteRecords on a mirror topic are refused at once, with a message that names mirror
// and state; every other topic passes untouched.
func TestWritesRefusedOnMirrorTopics(t *testing.T) {
	testkafka.Require(t, "python3")
	src, dst := kafka.Source(t), destination(t, 1)
	ctx := withTimeout(t, 3*time.Minute)
	k, err := content.Get("values")
	require.NoError(t, err)
	require.NoError(t, k.Fill(ctx, src, "refused"))
	l := e2e.Start(t, &binary, e2e.Setup{Source: src, Destination: dst, Include: []string{"refused"}})
	l.WaitCaughtUp(ctx, "refused", 1)

	java, err := clients.JavaProduce(ctx, l.Bootstrap(), "refused", 0, 1)
	require.NoError(t, err)
	require.Equal(t, "PolicyViolationException", java[0].Error)
	require.Contains(t, java[0].Message, "dc1")
	require.Contains(t, java[0].Message, "MIRRORING")
	py, err := clients.PythonProduce(ctx, l.Bootstrap(), "refused", 0, 1)
	require.NoError(t, err)
	require.Equal(t, "POLICY_VIOLATION", py[0].Error)
	del, err := clients.Java(ctx, "delete-records", "bootstrap="+l.Bootstrap(), "topic=refused", "to=3")
	require.NoError(t, err)
	require.Equal(t, "PolicyViolationException", del.Meta[0].Error)
	l.CompareRaw(ctx, "refused", 0)

	// Not a mirror topic: created, written, cut and read through the proxy as without it.
	require.NoError(t, content.CreateTopic(ctx, l.Bootstrap(), "plain", 1, nil))
	java, err = clients.JavaProduce(ctx, l.Bootstrap(), "plain", 0, 3)
	require.NoError(t, err)
	require.EqualValues(t, 2, java[2].Offset)
	py, err = clients.PythonProduce(ctx, l.Bootstrap(), "plain", 0, 2)
	require.NoError(t, err)
	require.EqualValues(t, 4, py[1].Offset)
	del, err = clients.Java(ctx, "delete-records", "bootstrap="+l.Bootstrap(), "topic=plain", "to=1")
	require.NoError(t, err)
	require.EqualValues(t, 1, del.Meta[0].Offset)
	want, err := oracle.Dump(ctx, dst.Bootstrap(), "plain", 0, oracle.ReadCommitted)
	require.NoError(t, err)
	require.Len(t, want, 4)
	for _, r := range clients.Readers() {
		l.CompareClient(ctx, r, clients.Read{Topic: "plain", Isolation: oracle.ReadCommitted}, want)
	}
}

// Who writes to the destination directly, past the proxy, is hidden from the proxy's clients.
func TestForeignWritesAreHidden(t *testing.T) {
	src, dst := kafka.Source(t), destination(t, 1)
	ctx := withTimeout(t, 3*time.Minute)
	k, err := content.Get("codecs")
	require.NoError(t, err)
	require.NoError(t, k.Fill(ctx, src, "foreign"))
	l := e2e.Start(t, &binary, e2e.Setup{Source: src, Destination: dst, Include: []string{"foreign"}})
	l.WaitCaughtUp(ctx, "foreign", 1)
	for range 3 {
		_, err := clients.JavaProduce(ctx, dst.Bootstrap(), "foreign", 0, 4, "value=foreign")
		require.NoError(t, err)
		_, err = clients.JavaProduce(ctx, src.Bootstrap(), "foreign", 0, 4, "value=mirrored")
		require.NoError(t, err)
		l.WaitCaughtUp(ctx, "foreign", 1)
		l.CompareRaw(ctx, "foreign", 0)
	}
	l.Restart()
	l.WaitCaughtUp(ctx, "foreign", 1)
	l.CompareRaw(ctx, "foreign", 0)
}

// An open transaction on the source: nothing of it and nothing behind it is shown until it is decided.
func TestOpenTransaction(t *testing.T) {
	src, dst := kafka.Source(t), destination(t, 1)
	ctx := withTimeout(t, 3*time.Minute)
	require.NoError(t, content.CreateTopic(ctx, src.Bootstrap(), "open-txn", 1, nil))
	l := e2e.Start(t, &binary, e2e.Setup{Source: src, Destination: dst, Include: []string{"open-txn"}})
	f := &content.Filler{Cluster: src, Topic: "open-txn"}
	for _, commit := range []bool{true, false, true} {
		_, err := clients.JavaProduce(ctx, src.Bootstrap(), "open-txn", 0, 2, "value=before")
		require.NoError(t, err)
		end, err := f.OpenTransaction(ctx, "a=in", "b=in")
		require.NoError(t, err)
		_, err = clients.JavaProduce(ctx, src.Bootstrap(), "open-txn", 0, 2, "value=behind")
		require.NoError(t, err)
		l.WaitCaughtUp(ctx, "open-txn", 1)
		l.CompareRaw(ctx, "open-txn", 0)
		require.NoError(t, end(ctx, commit))
		l.WaitCaughtUp(ctx, "open-txn", 1)
		l.CompareRaw(ctx, "open-txn", 0)
	}
}
