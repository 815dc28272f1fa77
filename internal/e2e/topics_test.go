package e2e_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockstep-kafka/lockstep/internal/e2e"
	"github.com/lockstep-kafka/lockstep/internal/testkafka"
	"github.com/lockstep-kafka/lockstep/internal/testkafka/clients"
	"github.com/lockstep-kafka/lockstep/internal/testkafka/content"
	"github.com/lockstep-kafka/lockstep/internal/testkafka/oracle"
	"github.com/lockstep-kafka/lockstep/internal/verify"
)

// Every kind of hard topic, read through the proxy by every client in both isolation levels, equals what a
// read_committed reader of the source gets.
func TestEveryKindOfTopic(t *testing.T) {
	testkafka.Require(t, "python3")
	src, dst := kafka.Source(t), destination(t, 1)
	ctx := withTimeout(t, 8*time.Minute)
	for _, k := range content.Kinds() {
		require.NoError(t, k.Fill(ctx, src, "kinds-"+k.Name))
	}
	l := e2e.Start(t, &binary, e2e.Setup{Source: src, Destination: dst, Include: []string{"kinds-.*"}})
	for _, k := range content.Kinds() {
		t.Run(k.Name, func(t *testing.T) {
			ctx := withTimeout(t, 3*time.Minute)
			l := l.For(t)
			l.WaitCaughtUp(ctx, "kinds-"+k.Name, 1)
			l.CompareAll(ctx, "kinds-"+k.Name)
		})
	}
	t.Run("verify", func(t *testing.T) {
		var topics []string
		for _, k := range content.Kinds() {
			topics = append(topics, "kinds-"+k.Name)
		}
		r := l.For(t).Verify(ctx, topics...)
		require.Equal(t, verify.Equal, r.Outcome)
	})
}

// Records that come while the mirror runs, with leader changes of the source between them.
func TestNewRecordsAndEpochs(t *testing.T) {
	testkafka.Require(t, "python3")
	src, dst := kafka.Source(t), destination(t, 1)
	ctx := withTimeout(t, 4*time.Minute)
	k, err := content.Get("epochs")
	require.NoError(t, err)
	l := e2e.Start(t, &binary, e2e.Setup{Source: src, Destination: dst, Include: []string{"live-.*"}})
	require.NoError(t, k.Fill(ctx, src, "live-epochs"))
	l.WaitCaughtUp(ctx, "live-epochs", 1)
	want := l.CompareAll(ctx, "live-epochs")

	// The leader epoch shown is never behind the records': consumers would ask for metadata for ever.
	meta, err := oracle.Lookup(ctx, l.Bootstrap(), "live-epochs", 0)
	require.NoError(t, err)
	require.GreaterOrEqual(t, meta.Epoch, want[len(want)-1].LeaderEpoch)

	// OffsetForLeaderEpoch from the virtual chain, as the rules say and as the source answers it.
	chain := chainOf(want)
	end := want[len(want)-1].Offset + 1
	for e := int32(0); e <= chain[len(chain)-1].epoch; e++ {
		gotE, gotO, err := oracle.EndOffsetFor(ctx, l.Bootstrap(), "live-epochs", 0, e)
		require.NoError(t, err)
		wantE, wantO := endOffsetFor(chain, e, end)
		require.Equal(t, [2]int64{int64(wantE), wantO}, [2]int64{int64(gotE), gotO}, "epoch %d of %v", e, chain)
	}

	// A position validated with an old epoch: Java finds the same truncation through the proxy as at the source.
	for _, x := range []struct {
		offset int64
		epoch  int32
	}{
		{chain[1].start + 1, chain[0].epoch}, // beyond that epoch's end: truncated
		{chain[1].start, chain[0].epoch},     // just at its end: fine
		{chain[2].start + 1, chain[2].epoch}, // in its own epoch: fine
	} {
		read := clients.Read{Topic: "live-epochs", From: fmt.Sprintf("offset:%d", x.offset), Epoch: &x.epoch, Reset: "none", Isolation: oracle.ReadCommitted}
		read.Bootstrap = src.Bootstrap()
		direct, err := clients.JavaRead(ctx, read)
		require.NoError(t, err)
		read.Bootstrap = l.Bootstrap()
		proxied, err := clients.JavaRead(ctx, read)
		require.NoError(t, err)
		wantM, wantCut := direct.Find("truncation", 0)
		gotM, gotCut := proxied.Find("truncation", 0)
		require.Equal(t, wantCut, gotCut, "offset %d epoch %d", x.offset, x.epoch)
		require.Equal(t, wantM, gotM, "offset %d epoch %d", x.offset, x.epoch)
		require.Empty(t, oracle.Diff(direct.Recs, proxied.Recs))
	}
}

type epochStart struct {
	epoch int32
	start int64
}

func chainOf(recs []oracle.Rec) []epochStart {
	var out []epochStart
	for _, r := range recs {
		if len(out) == 0 || out[len(out)-1].epoch != r.LeaderEpoch {
			out = append(out, epochStart{r.LeaderEpoch, r.Offset})
		}
	}
	return out
}

// endOffsetFor is facts §2 for an epoch ≥ 0 that is not above the newest.
func endOffsetFor(chain []epochStart, e int32, end int64) (int32, int64) {
	at := -1
	for i, c := range chain {
		if c.epoch <= e {
			at = i
		}
	}
	switch {
	case at < 0:
		return e, chain[0].start
	case at == len(chain)-1:
		return e, end
	default:
		return chain[at].epoch, chain[at+1].start
	}
}

// From the middle of a batch, from a timestamp, in a group that commits and resumes; and the lag tool agrees.
func TestPositionsAndGroups(t *testing.T) {
	testkafka.Require(t, "python3")
	src, dst := kafka.Source(t), destination(t, 1)
	ctx := withTimeout(t, 5*time.Minute)
	const topic = "positions"
	k, err := content.Get("log-start")
	require.NoError(t, err)
	require.NoError(t, k.Fill(ctx, src, topic))
	l := e2e.Start(t, &binary, e2e.Setup{Source: src, Destination: dst, Include: []string{topic}})
	l.WaitCaughtUp(ctx, topic, 1)
	all := l.CompareRaw(ctx, topic, 0)
	from := func(offset int64) []oracle.Rec { return all[offset-all[0].Offset:] }
	for _, iso := range []oracle.Isolation{oracle.ReadUncommitted, oracle.ReadCommitted} {
		for _, r := range clients.Readers() {
			read := clients.Read{Topic: topic, Isolation: iso}
			for _, o := range []int64{17, 20, 33, 49} {
				mid := read
				mid.From = fmt.Sprintf("offset:%d", o)
				l.CompareClient(ctx, r, mid, from(o))
			}
			at := read
			at.From = fmt.Sprintf("timestamp:%d", from(27)[0].Timestamp)
			l.CompareClient(ctx, r, at, from(27))

			group := read
			group.Group, group.Subscribe, group.Commit, group.Max, group.From = fmt.Sprintf("g-%s-%d", r.Name, iso), true, true, 9, "group"
			got := l.CompareClient(ctx, r, group, all[:9])
			m, ok := got.Find("committed", 0)
			require.True(t, ok, r.Name)
			require.EqualValues(t, all[8].Offset+1, m.Offset, r.Name)
			require.Equal(t, all[8].LeaderEpoch, m.LeaderEpoch, r.Name)

			out, err := clients.JavaTool(ctx, "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
				"--bootstrap-server", l.Bootstrap(), "--describe", "--group", group.Group)
			require.NoError(t, err)
			current, end, lag := lagColumns(t, out, topic)
			require.Equal(t, []string{fmt.Sprint(all[8].Offset + 1), "50", fmt.Sprint(len(all) - 9)}, []string{current, end, lag}, out)

			group.Max = 0
			l.CompareClient(ctx, r, group, all[9:])
		}
	}
}

func lagColumns(t *testing.T, out, topic string) (current, end, lag string) {
	t.Helper()
	for _, line := range strings.Split(out, "\n") {
		f := strings.Fields(line)
		if len(f) > 5 && f[1] == topic {
			return f[3], f[4], f[5]
		}
	}
	t.Fatalf("no line for %s in %s", topic, out)
	return "", "", ""
}

// All kinds of ListOffsets, by Java's Admin, at both isolation levels: the first *shown* record of a time, the
// largest timestamp shown, virtual start and end.
func TestListOffsets(t *testing.T) {
	src, dst := kafka.Source(t), destination(t, 1)
	ctx := withTimeout(t, 4*time.Minute)
	kinds := []string{"timestamps", "transactions", "log-start", "log-append", "all-deleted"}
	for _, name := range kinds {
		k, err := content.Get(name)
		require.NoError(t, err)
		require.NoError(t, k.Fill(ctx, src, "offsets-"+name))
	}
	l := e2e.Start(t, &binary, e2e.Setup{Source: src, Destination: dst, Include: []string{"offsets-.*"}})
	for _, name := range kinds {
		topic := "offsets-" + name
		l.WaitCaughtUp(ctx, topic, 1)
		recs := l.SourceRecs(ctx, topic, 0)
		start, err := oracle.ListOffset(ctx, src.Bootstrap(), topic, 0, oracle.ReadCommitted, oracle.Earliest)
		require.NoError(t, err)
		end, err := oracle.LiveEnd(ctx, src.Bootstrap(), topic, 0)
		require.NoError(t, err)
		want := map[string]oracle.Rec{"earliest": {Offset: start.Offset}, "latest": {Offset: end}, "earliest-local": {Offset: start.Offset}}
		times := []int64{0, 1, 1_700_000_000_000, 1_700_000_000_205, 9_000_000_000_000_000_000}
		for _, ts := range times {
			want[fmt.Sprint(ts)] = firstAt(recs, ts)
		}
		want["max-timestamp"] = largest(recs)
		if name != "transactions" && name != "all-deleted" {
			// What is wanted is what Kafka itself answers, where no aborted or deleted record is in play.
			direct, err := clients.JavaOffsets(ctx, src.Bootstrap(), topic, 1, times...)
			require.NoError(t, err)
			for _, m := range direct {
				if w, ok := want[m.Spec]; ok {
					require.Equal(t, w.Offset, m.Offset, "the source itself: %s %s %s", topic, m.Spec, m.Isolation)
				}
			}
		}
		got, err := clients.JavaOffsets(ctx, l.Bootstrap(), topic, 1, times...)
		require.NoError(t, err)
		for _, m := range got {
			w, ok := want[m.Spec]
			if !ok {
				continue // tiered storage isn't on
			}
			assert.Empty(t, m.Error, "%s %s %s: %s", topic, m.Spec, m.Isolation, m.Message)
			assert.Equal(t, w.Offset, m.Offset, "%s %s %s", topic, m.Spec, m.Isolation)
			if m.Spec != "earliest" && m.Spec != "latest" && m.Spec != "earliest-local" && w.Offset >= 0 {
				assert.Equal(t, w.Timestamp, m.Timestamp, "%s %s %s", topic, m.Spec, m.Isolation)
				assert.Equal(t, w.LeaderEpoch, m.LeaderEpoch, "%s %s %s", topic, m.Spec, m.Isolation)
			}
		}
	}
}

func firstAt(recs []oracle.Rec, ts int64) oracle.Rec {
	for _, r := range recs {
		if r.Timestamp >= ts {
			return r
		}
	}
	return oracle.Rec{Offset: -1, Timestamp: -1, LeaderEpoch: -1}
}

func largest(recs []oracle.Rec) oracle.Rec {
	out := oracle.Rec{Offset: -1, Timestamp: -1, LeaderEpoch: -1}
	for _, r := range recs {
		if out.Offset < 0 || r.Timestamp > out.Timestamp {
			out = r
		}
	}
	return out
}
