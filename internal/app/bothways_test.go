package app

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"go.uber.org/goleak"
)

// M18: two Locksteps with a mirror of everything in either direction, as a
// failback leaves them. A topic that is made on one side is mirrored by the
// other; the first one leaves it alone, empty as it is, and clients go on
// writing to it there.
func TestM18NewTopicBothWays(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	a, b := cluster(t, "A"), cluster(t, "B")
	atA := startReloadable(t, a, "")
	atB := startReloadable(t, b, fmt.Sprintf("mirrors: [{name: a, source: {bootstrap: [%q]}, topics: {include: [\".*\"]}, metadata_refresh: 200ms}]\n", atA.bootstr))
	atA.change(fmt.Sprintf("mirrors: [{name: b, source: {bootstrap: [%q]}, topics: {include: [\".*\"]}, metadata_refresh: 200ms}]\n", atB.bootstr), "the mirrors run with their new settings")

	cl, err := kgo.NewClient(kgo.SeedBrokers(atA.bootstr), kgo.MetadataMinAge(10*time.Millisecond), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	require.NoError(t, err)
	defer cl.Close()
	_, err = kadm.NewClient(cl).CreateTopic(t.Context(), 2, 1, nil, "new")
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		_, body := get(t, atA.admin+"/v1/topics?topic=new")
		return strings.Contains(body, "EXCLUDED") && strings.Contains(body, "the source mirrors it from here")
	}, 30*time.Second, 20*time.Millisecond)
	_, metrics := get(t, atA.admin+"/metrics")
	require.NotContains(t, metrics, `lockstep_topic_failed{mirror="b"`, "nothing to do for anybody")

	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	for p := range int32(2) {
		require.NoError(t, cl.ProduceSync(ctx, &kgo.Record{Topic: "new", Partition: p, Value: []byte("x")}).FirstErr())
	}
	atB.mirrored("new", 1)
	cl.Close()
	require.NoError(t, atB.stop())
	require.NoError(t, atA.stop())
	a.Close()
	b.Close()
}
