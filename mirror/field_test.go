package mirror

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/lockstep-kafka/lockstep/epoch"
	"github.com/lockstep-kafka/lockstep/internal/ledger"
)

// DU-07: the destination holds an exact prefix of the source, as another mirroring
// tool has copied it. It can't be told from records of another origin: a copy has
// other leader epochs, so neither a reader's position nor the next alignment could
// be checked against it. It is left alone with advice; told so, the mirror copies
// anew behind it, and each record is shown once.
func TestDU07ExactPrefix(t *testing.T) {
	src, dst := fakeCluster(t, kfake.SeedTopics(1, "t", "u")), fakeCluster(t, kfake.SeedTopics(1, "t"))
	require.NoError(t, ledger.EnsureTopic(t.Context(), kadm.NewClient(fakeClient(t, dst)), 0))
	write := func(c *kfake.Cluster, values ...string) {
		t.Helper()
		cl := fakeClient(t, c)
		for _, v := range values {
			require.NoError(t, cl.ProduceSync(t.Context(), &kgo.Record{Topic: "t", Value: []byte(v), Timestamp: time.UnixMilli(1_700_000_000_000)}).FirstErr())
		}
	}
	write(src, "a", "b", "c")
	write(dst, "a", "b", "c")
	write(src, "d", "e")
	x := startManaged(t, src, dst, "t", "u")
	s := x.m.sources[0]
	refusal := func() *topicError {
		s.mu.Lock()
		defer s.mu.Unlock()
		if p := s.topics["t"]; p != nil {
			te, _ := p.err.(*topicError) //nolint:errorlint // stored as it is
			return te
		}
		return nil
	}
	eventually(t, "left alone", func() bool { te := refusal(); return te != nil && te.reason == "foreign_topic" })
	require.ErrorContains(t, refusal(), "--discard-local")
	eventually(t, "the other topic is mirrored", func() bool {
		e := x.view.Partition("u", 0)
		return e != nil && e.Record != nil && e.Record.State == epoch.StateMirroring
	})
	require.Nil(t, x.view.Partition("t", 0), "its clients notice nothing")
	end := func() int64 {
		ends, err := kadm.NewClient(fakeClient(t, dst)).ListEndOffsets(t.Context(), "t")
		require.NoError(t, err)
		o, ok := ends.Lookup("t", 0)
		require.True(t, ok)
		return o.Offset
	}
	require.EqualValues(t, 3, end(), "nothing was written")

	require.NoError(t, x.writer.PutCommands(t.Context(), ledger.Command{Mirror: "m", Topic: "t", Desired: epoch.StateMirroring, Seq: 1, DiscardLocal: true}))
	eventually(t, "mirrored", func() bool {
		e := x.view.Partition("t", 0)
		return e != nil && e.Record != nil && e.Record.State == epoch.StateMirroring && e.Live.Tail().VEnd == 5
	})
	require.Equal(t, []string{"a", "b", "c", "d", "e"}, virtual(t, dst, x.view, "t", 0))
}

// A topic is not refused for what was mirrored into it between the look at the
// ledger and the look at its ends.
func TestOwnTopicIsNotForeign(t *testing.T) {
	src, dst := fakeCluster(t, kfake.SeedTopics(1, "t")), fakeCluster(t)
	require.NoError(t, ledger.EnsureTopic(t.Context(), kadm.NewClient(fakeClient(t, dst)), 0))
	require.NoError(t, fakeClient(t, src).ProduceSync(t.Context(), &kgo.Record{Topic: "t", Value: []byte("x")}).FirstErr())
	x := startManaged(t, src, dst, "t")
	eventually(t, "mirrored", func() bool {
		e := x.view.Partition("t", 0)
		return e != nil && e.Record != nil && e.Record.State == epoch.StateMirroring && e.Live.Tail().VEnd == 1
	})
	s := x.m.sources[0]
	have, err := s.admin.destination(t.Context(), "t")
	require.NoError(t, err)
	s.mu.Lock()
	ts := *s.topics["t"]
	s.mu.Unlock()
	require.Error(t, s.takeOver(t.Context(), &ts, have, time.Now()))
	began, err := s.ownOrTaken(t.Context(), &ts, have, time.Now())
	require.NoError(t, err)
	require.True(t, began)
	require.Nil(t, ts.taken)
}

// UL-05: a destination without leader epochs can't hold a mirror: a tail that it
// has lost and grown again would look like the one that was written. Nothing is
// written there, and the text says so. (Readers' epochs never come from there: they
// are the source's, in the stamps.)
func TestUL05DestinationWithoutEpochs(t *testing.T) {
	r := newRig(t, 1)
	r.tuning.RetryAttempts = 1 << 20
	r.dst.with("t", 0, func(l *fakeLog) { l.epoch = -1 })
	r.write(0, rawBatch{base: 0, n: 2, epoch: 3})
	r.start()
	r.failedWith(0, "tells no leader epochs")
	r.dst.with("t", 0, func(l *fakeLog) {
		require.Empty(t, l.batches)
		l.epoch = 0 // its brokers were upgraded
	})
	r.meta()
	r.reached(0, 2)
	r.same(0)
	require.EqualValues(t, 3, r.view(0)[0].PartitionLeaderEpoch())
}

// F4c: the destination loses its tail into a closed native span, and somebody
// writes there past the proxy. By its place that is a record of the span; by its
// leader epoch it is not.
func TestF4cWriteIntoAClosedNativeSpan(t *testing.T) {
	a, b := examples(t)
	b.stopped()
	b.write(1)
	b.write(1)
	b.show()
	a.mirrors(b)
	a.shows("0(0) 1(1) 2(2) 3(2)")
	a.stopped()
	b.mirrors(a)
	b.want(epoch.StateMirroring)
	b.shows("0(0) 1(1) 2(2) 3(2)")
	want := b.content()
	closed := b.part().Log.Spans[len(b.part().Log.Spans)-2]
	require.Equal(t, epoch.Native, closed.Kind)
	b.stop()
	b.phys.with("t", 0, func(l *fakeLog) {
		l.truncate(closed.PStart + 1) // v2 is left
		l.epoch++
		require.Equal(t, closed.PStart+1, l.end())
		l.append(rawBatch{base: l.end(), n: 1, epoch: l.epoch, maxTS: 77}.bytes())
	})
	require.Equal(t, "0(0) 1(1) 2(2)", b.dump(), "as readers see it before anybody has looked")
	b.run()
	b.shows("0(0) 1(1) 2(2) 3(2)")
	require.Equal(t, want, b.content())
	require.NoError(t, b.part().Log.Validate())
}

// F7: what was written here before, 0(0), is shown under its own epoch, however far
// the epoch shown rises for what is mirrored behind it.
func TestF7OldNativeRecordsKeepTheirEpoch(t *testing.T) {
	a, b := newSite(t, "A"), newSite(t, "B")
	a.write(1)
	b.mirrors(a)
	b.shows("0(0)")
	b.stopped()
	b.write(1)
	b.show()
	a.mirrors(b)
	a.shows("0(0) 1(1)")
	for range 9 {
		b.elect()
	}
	b.write(1)
	b.show()
	a.meta()
	a.shows("0(0) 1(1) 2(10)")
	require.GreaterOrEqual(t, a.part().Log.Bump, int32(10), "this cluster has had no election")
	require.Equal(t, epoch.Span{Kind: epoch.Native, PEnd: a.part().Log.Spans[0].PEnd}, a.part().Log.Spans[0], "bump 0, for its life")
}

// H5: the destination loses its tail below the start of a generation that a cut has
// opened. The next one begins there too, and with it the other must go: else what
// the cut has taken would come alive again between the two.
func TestH5EndBelowAnOlderSpan(t *testing.T) {
	for _, owner := range []string{"the same", "another"} {
		t.Run(owner, func(t *testing.T) {
			a, b := newSite(t, "A"), newSite(t, "B")
			b.unclean.Store(true)
			for range 8 {
				a.write(1)
			}
			b.mirrors(a)
			b.shows(offsets(0, 8, 0))
			uncleanElection(a, 4, 2)
			a.write(1)
			a.write(1)
			b.meta()
			b.shows(offsets(0, 4, 0) + " " + offsets(4, 6, 2))
			cut := *b.part().Log.Open()
			require.EqualValues(t, 4, cut.VStart)
			require.EqualValues(t, 8, cut.PStart)
			if owner == "another" {
				b.stop()
			}
			b.phys.with("t", 0, func(l *fakeLog) { l.truncate(6); l.epoch++ })
			if owner == "another" {
				b.run()
			}
			b.meta()
			eventually(t, "another generation", func() bool { return b.part().Log.Open().Gen != cut.Gen })
			b.shows(offsets(0, 4, 0) + " " + offsets(4, 6, 2))
			require.Equal(t, a.content(), b.content())
			l := b.part().Log
			require.NoError(t, l.Validate())
			require.EqualValues(t, 6, l.Open().PStart)
			for _, s := range l.Spans {
				require.NotEqual(t, cut.Gen, s.Gen, "it is gone with the log behind it")
			}
		})
	}
}

// M25: the epochs of a log that no Lockstep has ever looked after: they can't be
// listed, but asked for one by one.
func TestM25ChainOfAnOldSource(t *testing.T) {
	a, b := newSite(t, "A"), newSite(t, "B")
	for _, n := range []int{2, 0, 3, 0, 0, 1, 0} { // batches under each leader epoch
		for range n {
			a.write(1)
		}
		a.elect()
	}
	a.phys.with("t", 0, func(l *fakeLog) { l.start = 1; l.batches = l.batches[1:]; l.chain = l.chain.AdvanceStart(1) })
	b.mirrors(a)
	want := "1(0) 2(2) 3(2) 4(2) 5(5)"
	b.shows(want)
	b.stopped()
	b.write(1)
	b.show()
	a.write(2) // 6(7) 7(7), never mirrored
	a.mirrors(b)
	a.shows(want + " 6(" + itoa(b.shownEpoch()) + ")")
	require.Equal(t, b.content(), a.content())
	a.neverWas(epoch.StateULERecovery)
	var adopted *ledger.Record
	for _, r := range a.store.written() {
		if o := r.Log.Open(); adopted == nil && o != nil {
			adopted = r
		}
	}
	require.Equal(t, epoch.Native, adopted.Log.Open().Kind)
	// 7 began with what is cut; the chain of the log that goes on has what is shared.
	require.Equal(t, epoch.Chain{{Epoch: 0, Start: 1}, {Epoch: 2, Start: 2}, {Epoch: 5, Start: 5}, {Epoch: 7, Start: 6}}, adopted.Log.Chain)
	require.Equal(t, epoch.Chain{{Epoch: 0, Start: 1}, {Epoch: 2, Start: 2}, {Epoch: 5, Start: 5}, {Epoch: b.shownEpoch(), Start: 6}}, a.part().Log.Chain)
}

// A mirror whose source.bootstrap leads to the destination itself takes no topic,
// empty ones neither, and says what to correct.
func TestSourceIsDestination(t *testing.T) {
	c := fakeCluster(t, kfake.SeedTopics(1, "t"))
	require.NoError(t, ledger.EnsureTopic(t.Context(), kadm.NewClient(fakeClient(t, c)), 0))
	x := startManaged(t, c, c, "t")
	s := x.m.sources[0]
	eventually(t, "refused", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.err != nil && strings.Contains(s.err.Error(), "correct source.bootstrap")
	})
	require.Nil(t, x.view.Partition("t", 0))
}
