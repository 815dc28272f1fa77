package content_test

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-kafka/lockstep/internal/testkafka"
	"github.com/lockstep-kafka/lockstep/internal/testkafka/content"
	"github.com/lockstep-kafka/lockstep/internal/testkafka/oracle"
)

var kafka = testkafka.Pair{}

func TestMain(m *testing.M) { os.Exit(kafka.Main(m)) }

// Every kind of topic really holds the difficulty that it promises, seen on the raw wire.
func TestKindsHoldWhatTheyPromise(t *testing.T) {
	c := kafka.Source(t)
	checks := map[string]func(t *testing.T, batches []oracle.Batch, start int64, ru, rc []oracle.Rec){
		"values": func(t *testing.T, _ []oracle.Batch, _ int64, ru, _ []oracle.Rec) {
			require.Nil(t, ru[1].Key)
			require.Nil(t, ru[2].Value)
			require.NotNil(t, ru[4].Key)
			require.Empty(t, ru[4].Key)
			require.Nil(t, ru[8].Headers[0].Value)
			require.NotNil(t, ru[8].Headers[1].Value)
			require.Len(t, ru[9].Headers, 300)
		},
		"codecs": func(t *testing.T, b []oracle.Batch, _ int64, _, _ []oracle.Rec) {
			seen := map[oracle.Codec]int{}
			for _, x := range b {
				seen[x.Codec()]++
			}
			require.Len(t, seen, 5)
		},
		"timestamps": func(t *testing.T, _ []oracle.Batch, _ int64, ru, _ []oracle.Rec) {
			require.EqualValues(t, -1000, ru[3].Timestamp)
			lo, hi := ru[0].Timestamp, ru[0].Timestamp
			for _, r := range ru {
				lo, hi = min(lo, r.Timestamp), max(hi, r.Timestamp)
			}
			require.Less(t, lo, int64(0))
			require.Greater(t, hi, int64(9_300_000_000_000), "beyond nanoseconds in an int64")
		},
		"large": func(t *testing.T, _ []oracle.Batch, _ int64, ru, _ []oracle.Rec) {
			require.Len(t, ru[0].Value, 1<<20)
		},
		"log-append": func(t *testing.T, _ []oracle.Batch, _ int64, ru, _ []oracle.Rec) {
			require.Equal(t, oracle.LogAppendTime, ru[0].TimestampType)
		},
		"log-start": func(t *testing.T, b []oracle.Batch, start int64, ru, _ []oracle.Rec) {
			require.EqualValues(t, 17, start)
			require.EqualValues(t, 17, ru[0].Offset)
			require.Less(t, b[0].Base, start, "the log starts inside a batch")
		},
		"all-deleted": func(t *testing.T, _ []oracle.Batch, start int64, ru, _ []oracle.Rec) {
			require.EqualValues(t, 50, start)
			require.Empty(t, ru)
		},
		"transactions": func(t *testing.T, b []oracle.Batch, _ int64, ru, rc []oracle.Rec) {
			require.Greater(t, len(ru), len(rc))
			require.True(t, b[len(b)-1].Control())
			for _, r := range rc {
				require.NotContains(t, string(r.Value), "x", "aborted")
				require.NotContains(t, string(r.Value), "z", "aborted")
			}
			require.Len(t, rc, 4+2+2+2+1)
		},
		"compacted": func(t *testing.T, b []oracle.Batch, _ int64, _, _ []oracle.Rec) {
			holes, empty := content.Cleaned(b)
			require.True(t, holes && empty)
			require.Positive(t, b[0].Base, "a hole at the log's start")
		},
		"epochs": func(t *testing.T, b []oracle.Batch, _ int64, _, _ []oracle.Rec) {
			seen := map[int32]bool{}
			for _, x := range b {
				seen[x.Epoch] = true
			}
			require.Len(t, seen, 4)
		},
	}
	for _, k := range content.Kinds() {
		t.Run(k.Name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
			defer cancel()
			require.NoError(t, k.Fill(ctx, c, k.Name))
			batches, err := oracle.Batches(ctx, c.Bootstrap(), k.Name, 0)
			require.NoError(t, err)
			start, err := oracle.ListOffset(ctx, c.Bootstrap(), k.Name, 0, oracle.ReadUncommitted, oracle.Earliest)
			require.NoError(t, err)
			ru, err := oracle.Dump(ctx, c.Bootstrap(), k.Name, 0, oracle.ReadUncommitted)
			require.NoError(t, err)
			rc, err := oracle.Dump(ctx, c.Bootstrap(), k.Name, 0, oracle.ReadCommitted)
			require.NoError(t, err)
			check := checks[k.Name]
			require.NotNil(t, check, "a kind without a check")
			check(t, batches, start.Offset, ru, rc)
			if t.Failed() {
				t.Log(batches)
			}
		})
	}
}

// An open transaction holds the last stable offset back until it ends.
func TestOpenTransaction(t *testing.T) {
	c := kafka.Source(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	require.NoError(t, content.CreateTopic(ctx, c.Bootstrap(), "open", 1, nil))
	f := &content.Filler{Cluster: c, Topic: "open"}
	end, err := f.OpenTransaction(ctx, "a=1", "b=2")
	require.NoError(t, err)
	lso, err := oracle.ListOffset(ctx, c.Bootstrap(), "open", 0, oracle.ReadCommitted, oracle.Latest)
	require.NoError(t, err)
	require.Zero(t, lso.Offset)
	require.NoError(t, end(ctx, true))
	rc, err := oracle.Dump(ctx, c.Bootstrap(), "open", 0, oracle.ReadCommitted)
	require.NoError(t, err)
	require.Len(t, rc, 2)
}
