package mirror

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/epoch"
	"github.com/lockstep-kafka/lockstep/internal/kconn"
	"github.com/lockstep-kafka/lockstep/internal/ledger"
)

// stayedOpen demands that no ledger write since n closed the topic to clients.
func (s *site) stayedOpen(n int) {
	s.t.Helper()
	for _, r := range s.store.written()[n:] {
		require.Equal(s.t, epoch.StateStopped, r.State)
	}
}

// H18 at a start: the source is a mirror itself and reached past its proxy. The
// start is refused while the topic is still open to its writers, and goes on
// with the proxy's address.
func TestH18StartAtBareBrokers(t *testing.T) {
	a, b := examples(t)
	b.stopped()
	b.write(2)
	n := len(b.store.written())
	before := b.content()
	b.ledger = func() epoch.SourceRecord {
		return epoch.SourceRecord{Reading: epoch.Unreadable, Err: ErrBareMirror.Error(), Bare: true}
	}
	b.run()
	b.want(epoch.StateMirroring)
	b.refuses("set source.bootstrap to the addresses of that proxy")
	b.stayedOpen(n)
	b.write(1)
	require.Contains(t, b.content(), before[:len(before)-2])
	b.want(epoch.StateStopped)
	eventually(t, "the reason is forgotten with the next verb", func() bool { return b.rec().Error == "" })
	b.ledger = nil
	b.run()
	b.want(epoch.StateMirroring)
	b.shows("0(0) 1(1)")
	require.Equal(t, a.content(), b.content())
}

// A start while the source can't be asked waits: the topic stays open, a loss on the destination is still found (H4), a
// stop takes the start back, and when the source is there again it goes on by itself.
func TestStartWaitsForTheSource(t *testing.T) {
	a, b := examples(t)
	b.stopped()
	b.write(2)
	n := len(b.store.written())
	var asked atomic.Int64
	var there atomic.Bool
	b.ledger = func() epoch.SourceRecord {
		if there.Load() {
			return sourceRecord(a.part())
		}
		asked.Add(1)
		return epoch.SourceRecord{Reading: epoch.Unreadable, Err: "reach the source: connection refused"}
	}
	b.run()
	b.want(epoch.StateMirroring)
	eventually(t, "asked again", func() bool { return asked.Load() > 2 })
	eventually(t, "says why", func() bool { st, _ := b.part().Live.Status(); return st.Error != "" })
	b.stayedOpen(n)
	b.elect() // waits until it was looked at
	b.stayedOpen(n)
	b.want(epoch.StateStopped)
	eventually(t, "taken in", func() bool { return b.rec().CommandSeq == b.part().Command.Seq })
	eventually(t, "says nothing more", func() bool { st, _ := b.part().Live.Status(); return st.Error == "" })
	b.stayedOpen(n)
	b.want(epoch.StateMirroring)
	there.Store(true)
	b.shows("0(0) 1(1)")
}

// A partition that is not among the mirror's topics, as the source is away, the topic excluded or refused: it is not
// closed to writes for a start that nobody would carry out.
func TestStartOfWhatIsNotMirrored(t *testing.T) {
	_, b := examples(t)
	b.stopped()
	n := len(b.store.written())
	var sure atomic.Bool
	b.unready = func(string, time.Time) (string, bool) { return "the source has no such topic", sure.Load() }
	b.idle = true
	b.run()
	b.want(epoch.StateMirroring)
	eventually(t, "held", func() bool { st, _ := b.part().Live.Status(); return st.Error != "" })
	b.stayedOpen(n)
	sure.Store(true)
	b.refuses("no such topic")
	b.stayedOpen(n)
	b.command(ledger.Command{Desired: epoch.StateMirroring, DiscardLocal: true})
	b.refuses("no such topic")
	b.stayedOpen(n)
}

// H18, the whole way: a mirror that was stopped is started while its source is a mirror by now and reached at its brokers.
// Nothing of that is in the ledger but the refusal.
func TestH18StartWhenTheSourceBecameAMirror(t *testing.T) {
	src, dst := fakeCluster(t, kfake.SeedTopics(1, "t")), fakeCluster(t)
	for _, c := range []*kfake.Cluster{src, dst} {
		require.NoError(t, ledger.EnsureTopic(t.Context(), kadm.NewClient(fakeClient(t, c)), 0))
	}
	require.NoError(t, fakeClient(t, src).ProduceSync(t.Context(), &kgo.Record{Topic: "t", Value: []byte("x")}).FirstErr())
	x := startManaged(t, src, dst, "t")
	is := func(st ledger.State) {
		t.Helper()
		eventually(t, string(st), func() bool {
			e := x.view.Partition("t", 0)
			return e != nil && e.Record != nil && e.Record.State == st
		})
	}
	command := func(d ledger.State, seq int64) {
		require.NoError(t, x.writer.PutCommands(t.Context(), ledger.Command{Mirror: "m", Topic: "t", Desired: d, Seq: seq, By: "test"}))
	}
	eventually(t, "mirrored", func() bool { e := x.view.Partition("t", 0); return e != nil && e.Live.Tail().VEnd == 1 })
	command(epoch.StateStopped, 1)
	is(epoch.StateStopped)
	x.end()
	up := startManaged(t, dst, src)
	require.NoError(t, up.view.WaitReady(t.Context()))
	require.NoError(t, up.writer.Acquire(t.Context(), ledger.PartitionOf("t", 0)))
	require.NoError(t, up.writer.Put(t.Context(), firstRecord(t)))
	up.end()

	x = startManaged(t, src, dst, "t")
	is(epoch.StateStopped)
	was := x.view.Partition("t", 0).Record.StateEpoch
	command(epoch.StateMirroring, 2)
	eventually(t, "refused", func() bool {
		r := x.view.Partition("t", 0).Record
		return r.State == epoch.StateStopped && strings.Contains(r.Error, "source.bootstrap")
	})
	r := x.view.Partition("t", 0).Record
	require.Equal(t, epoch.StateStopped, r.Desired)
	require.LessOrEqual(t, r.StateEpoch, was+2, "the refusal, and at most a look under a new leader")
}

// What kept from looking at a topic is no reason to refuse its start: only what was found there is.
func TestStartIsHeldWhenItsTopicCantBeLookedAt(t *testing.T) {
	began := time.Now()
	for _, c := range []struct {
		err  error
		sure bool
	}{
		{errPending, false},
		{nil, false},
		{fmt.Errorf("look up topic t on the destination: %w", context.DeadlineExceeded), false},
		{fmt.Errorf("look up topic t on the destination: %w", kerr.NotController), false},
		{topicFailed("source_topic", "topic t can't be used on the source: %w", kerr.LeaderNotAvailable), false},
		{topicFailed("source_topic", "topic t can't be used on the source: %w", kerr.TopicAuthorizationFailed), true},
		{topicFailed(reasonBareMirror, "topic t: %w", ErrBareMirror), true},
	} {
		s := &source{wake: make(wakeChan, 1), resync: make(wakeChan, 1), topics: map[string]*topicSync{"t": {err: c.err}}, synced: began.Add(1)}
		why, sure := s.unready("t", began)
		require.Equal(t, c.sure, sure, "%v", c.err)
		if c.err != nil && !errors.Is(c.err, errPending) {
			require.Equal(t, c.err.Error(), why)
		}
	}
}

// A ledger of the source that can't be read (no right, a partition without a
// leader) is one partition's to wait for: who waits for its turn can be stopped,
// or neither a sync of topics nor a hand-over would ever end.
func TestSourceLedgerHoldsNobodyUp(t *testing.T) {
	c := fakeCluster(t, kfake.SeedTopics(ledger.Partitions, ledger.Topic))
	asked := make(chan struct{}, 1)
	c.ControlKey(int16(kmsg.Fetch), func(kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		select {
		case asked <- struct{}{}:
		default:
		}
		return nil, errors.New("closed"), true
	})
	cl := fakeClient(t, c)
	s := &source{
		o:   MirrorOptions{Source: Access{Client: []kgo.Opt{kgo.SeedBrokers(c.ListenAddrs()...)}, Dialer: (&kconn.Dialer{}).Init()}},
		log: slog.New(slog.DiscardHandler), client: cl, admin: &topicAdmin{src: kadm.NewClient(cl)},
		led: sourceLedger{turn: make(chan struct{}, 1)},
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan epoch.SourceRecord)
	go func() { ended <- s.sourceRecord(ctx, "t", 0) }()
	<-asked
	other, stop := context.WithCancel(t.Context())
	stop()
	require.Equal(t, epoch.Unreadable, s.sourceRecord(other, "t", 1).Reading)
	s.setLife(other) // whoever needs its fields does not wait either
	cancel()
	require.Equal(t, epoch.Unreadable, (<-ended).Reading)
}
