package clients_test

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-kafka/lockstep/internal/testkafka"
	"github.com/lockstep-kafka/lockstep/internal/testkafka/clients"
	"github.com/lockstep-kafka/lockstep/internal/testkafka/content"
	"github.com/lockstep-kafka/lockstep/internal/testkafka/oracle"
)

var kafka = testkafka.Pair{}

func TestMain(m *testing.M) { os.Exit(kafka.Main(m)) }

// On a plain Kafka the raw-wire oracle and the three clients agree about every kind of topic, in both isolation
// levels. What they don't agree on here would be no fault of Lockstep.
func TestOracleAndClientsAgree(t *testing.T) {
	testkafka.Require(t, "python3")
	c := kafka.Source(t)
	for _, k := range content.Kinds() {
		t.Run(k.Name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
			defer cancel()
			require.NoError(t, k.Fill(ctx, c, k.Name))
			for _, iso := range []oracle.Isolation{oracle.ReadUncommitted, oracle.ReadCommitted} {
				want, err := oracle.Dump(ctx, c.Bootstrap(), k.Name, 0, iso)
				require.NoError(t, err)
				for _, r := range clients.Readers() {
					got, err := r.Read(ctx, clients.Read{Bootstrap: c.Bootstrap(), Topic: k.Name, Isolation: iso, Expect: len(want)})
					require.NoError(t, err, "%s %v", r.Name, iso)
					require.Empty(t, oracle.Diff(r.Shown(want), got.Recs), "%s %v", r.Name, iso)
					require.False(t, got.TimedOut(), "%s %v: gave up before the end", r.Name, iso)
				}
			}
		})
	}
}

// From the middle of a batch, from a timestamp, and in a group that commits and resumes.
func TestPositions(t *testing.T) {
	testkafka.Require(t, "python3")
	c := kafka.Source(t)
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	k, err := content.Get("log-start")
	require.NoError(t, err)
	require.NoError(t, k.Fill(ctx, c, "positions"))
	all, err := oracle.Dump(ctx, c.Bootstrap(), "positions", 0, oracle.ReadCommitted)
	require.NoError(t, err)
	from := func(offset int64) []oracle.Rec { return all[offset-all[0].Offset:] }
	for _, r := range clients.Readers() {
		read := clients.Read{Bootstrap: c.Bootstrap(), Topic: "positions", Isolation: oracle.ReadCommitted}

		mid := read
		mid.From, mid.Expect = "offset:33", len(from(33))
		got, err := r.Read(ctx, mid)
		require.NoError(t, err, r.Name)
		require.Empty(t, oracle.Diff(from(33), got.Recs), r.Name)

		at := read
		at.From, at.Expect = fmt.Sprintf("timestamp:%d", from(27)[0].Timestamp), len(from(27))
		got, err = r.Read(ctx, at)
		require.NoError(t, err, r.Name)
		require.Empty(t, oracle.Diff(from(27), got.Recs), r.Name)

		group := read
		group.Group, group.Subscribe, group.Commit, group.Max, group.From = "g-"+r.Name, true, true, 9, "group"
		got, err = r.Read(ctx, group)
		require.NoError(t, err, r.Name)
		require.Empty(t, oracle.Diff(all[:9], got.Recs), r.Name)
		m, ok := got.Find("committed", 0)
		require.True(t, ok, r.Name)
		require.EqualValues(t, all[8].Offset+1, m.Offset, r.Name)
		require.Equal(t, all[8].LeaderEpoch, m.LeaderEpoch, r.Name)
		group.Max, group.Expect = 0, len(all)-9
		got, err = r.Read(ctx, group)
		require.NoError(t, err, r.Name)
		require.Empty(t, oracle.Diff(all[9:], got.Recs), r.Name)
	}
}

// Java's Admin answers every kind of offset; both producers write; a refused write is reported with its error.
func TestOffsetsAndProducers(t *testing.T) {
	testkafka.Require(t, "python3")
	c := kafka.Source(t)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	require.NoError(t, content.CreateTopic(ctx, c.Bootstrap(), "produced", 1, map[string]string{"max.message.bytes": "1000"}))
	java, err := clients.JavaProduce(ctx, c.Bootstrap(), "produced", 0, 3)
	require.NoError(t, err)
	require.Len(t, java, 3)
	require.EqualValues(t, 2, java[2].Offset)
	py, err := clients.PythonProduce(ctx, c.Bootstrap(), "produced", 0, 2)
	require.NoError(t, err)
	require.Len(t, py, 2)
	require.EqualValues(t, 4, py[1].Offset)
	long := "value=" + string(make2000())
	java, err = clients.JavaProduce(ctx, c.Bootstrap(), "produced", 0, 1, long)
	require.NoError(t, err)
	require.Equal(t, "RecordTooLargeException", java[0].Error)
	py, err = clients.PythonProduce(ctx, c.Bootstrap(), "produced", 0, 1, long)
	require.NoError(t, err)
	require.Equal(t, "MSG_SIZE_TOO_LARGE", py[0].Error)

	offsets, err := clients.JavaOffsets(ctx, c.Bootstrap(), "produced", 1, 0, 99_999_999_999_999)
	require.NoError(t, err)
	require.Len(t, offsets, 2*8)
	bySpec := map[string]clients.Meta{}
	for _, o := range offsets {
		bySpec[o.Spec] = o
	}
	require.EqualValues(t, 5, bySpec["latest"].Offset)
	require.EqualValues(t, 0, bySpec["0"].Offset)
	require.EqualValues(t, -1, bySpec["99999999999999"].Offset)
}

func make2000() []byte {
	b := make([]byte, 2000)
	for i := range b {
		b[i] = 'x'
	}
	return b
}
