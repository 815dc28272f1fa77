package mirror

import (
	"errors"
	"log/slog"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/epoch"
	"github.com/lockstep-kafka/lockstep/internal/kconn"
	"github.com/lockstep-kafka/lockstep/internal/ledger"
)

// running is a partition in MIRRORING whose own goroutine is the test: what it
// does between two steps of others has no room for chance.
func running(t *testing.T) *Partition {
	d := (&kconn.Dialer{}).Init()
	rec := &ledger.Record{Mirror: "m", Topic: "t", State: epoch.StateMirroring, StateEpoch: 1, Lineage: "l", Log: epoch.Log{
		Spans: []epoch.Span{{Kind: epoch.Mirrored, Gen: 1, PEnd: -1}}, Chain: epoch.Chain{{Epoch: 0, Start: 0}}, Bump: 10, LastGen: 1,
	}}
	store := &fakeStore{parts: map[partKey]*ledger.Partition{{"t", 0}: {Topic: "t", Live: &ledger.Live{}, Record: rec, Log: &rec.Log}}}
	e := NewEngine(EngineOptions{
		Mirror: "m", Source: d, Dest: d, Store: store, Memory: NewMemory(1 << 20), Metrics: NewMetrics(nil),
		Logger: slog.New(slog.DiscardHandler),
	})
	p := newPartition(e, Spec{Topic: "t"})
	require.True(t, p.begin())
	p.src, p.dst = leader{broker: 1, known: true}, leader{broker: 1, known: true}
	p.phase = phaseRecover
	p.resume(p.dst, true, tail{gen: -1, epoch: -1}, nil)
	require.Equal(t, phaseRun, p.phase)
	p.mu.Lock()
	p.todo.bump = false
	p.mu.Unlock()
	woken(p)
	return p
}

func woken(p *Partition) bool {
	select {
	case <-p.wake:
		return true
	default:
		return false
	}
}

// A writer that looks for a batch while its epoch is on the way into the ledger
// must not make the partition deaf for the next epoch: it stood still until
// something else woke it.
func TestNextEpochIsAskedFor(t *testing.T) {
	p := running(t)
	one := &item{batch: rawBatch{n: 1}.bytes(), ready: true, vEnd: 1, next: 1, count: 1, epoch: 1, size: 1}
	two := &item{batch: rawBatch{n: 1}.bytes(), ready: true, base: 1, vEnd: 2, next: 2, count: 1, epoch: 2, size: 1}
	p.queue, p.queued = []*item{one, two}, 2
	take := func() bool { _, _, ok := p.take(1, roomForOne, time.Now()); return ok }

	require.False(t, take())
	require.True(t, woken(p))
	require.NotNil(t, p.nextJob())
	require.False(t, take())      // while the ledger's answer is awaited
	p.log = p.log.WithEpoch(1, 0) // it is there
	require.True(t, take())       // by a writer that is quicker than the goroutine
	require.Nil(t, p.todo.told, "it holds memory that is no longer counted")
	woken(p)                          // whatever it was woken for:
	require.Nil(t, p.nextJob())       // there is nothing to do while a batch is under way
	require.Equal(t, one, p.inflight) // and it sleeps
	p.mu.Lock()                       // the answer
	p.inflight = nil                  //
	p.confirm(one, 0)                 //
	p.mu.Unlock()                     //
	require.True(t, woken(p), "nobody adds the next epoch")
	require.NotNil(t, p.nextJob())

	// Not woken again for the same head: after a write that failed it rests.
	require.False(t, take())
	require.False(t, woken(p))
	// A head that comes anew is another one.
	p.mu.Lock()
	p.dropQueue()
	again := *two
	again.dropped = false
	p.queue, p.queued = []*item{&again}, 1
	p.mu.Unlock()
	require.False(t, take())
	require.True(t, woken(p))
}

// The destination may change its leader between the moment that a question to
// the source is taken up and the moment that it is asked.
func TestQuestionOvertakenByALeader(t *testing.T) {
	p := running(t)
	p.mu.Lock()
	p.question(&ask{kind: askRange})
	p.mu.Unlock()
	job := p.nextJob()
	require.NotNil(t, job)
	p.setDest(leader{broker: 2, epoch: 1, known: true})
	require.NoError(t, job(t.Context()))
	require.Equal(t, phaseRecover, p.phase)
}

// A destination that answers for one partition twice and for another not at all:
// the latter would count as in flight for ever.
func TestEachProduceIsAnsweredOnce(t *testing.T) {
	var list []sent
	var resp kmsg.ProduceResponse
	rt := kmsg.ProduceResponseTopic{Topic: "t"}
	for i := range int32(2) {
		p := running(t)
		p.partition = i
		it := &item{batch: rawBatch{n: 1}.bytes(), ready: true, vEnd: 1, next: 1, count: 1}
		p.inflight = it
		list = append(list, sent{p: p, it: it, at: p.dst})
		rt.Partitions = append(rt.Partitions, kmsg.ProduceResponseTopicPartition{Partition: 0})
	}
	resp.Topics = append(resp.Topics, rt)
	_, left := answers(list, 9, &resp)
	require.Equal(t, 1, left)
	require.Nil(t, list[0].p.inflight)
	require.Equal(t, int64(1), list[0].p.tail.position)
	require.NotNil(t, list[1].p.inflight) // the connection counts as broken: nothing is known of it
}

// A permanent failure that the ledger could not be told of: what only memory
// knows nobody sees, and `recover` has nothing to recover.
func TestFailedIsToldInTheEnd(t *testing.T) {
	p := running(t)
	store := p.eng.Store.(*fakeStore)
	p.mu.Lock()
	p.setTodoErr(failForGood(reasonTruncation, "records are gone"))
	p.mu.Unlock()
	store.err = errors.New("the ledger is away")
	require.NoError(t, p.nextJob()(t.Context()))
	require.Equal(t, phaseFailed, p.phase)
	require.Same(t, &p.rec.Log, p.log) // no shadow
	store.err = errors.New("the ledger is away still")
	job := p.nextJob()
	require.NotNil(t, job)
	require.Error(t, job(t.Context()))
	require.NoError(t, p.nextJob()(t.Context()))
	rec := store.Partition("t", 0).Record
	require.Equal(t, []any{epoch.StateFailed, epoch.StateMirroring, "records are gone", -1}, []any{rec.State, rec.Previous, rec.Error, rec.Retries})
	require.Nil(t, p.nextJob())

	snap := *store.Partition("t", 0)
	snap.Command = &ledger.Command{Mirror: "m", Topic: "t", Seq: 1, Recover: true}
	store.parts[partKey{"t", 0}] = &snap
	require.NoError(t, p.nextJob()(t.Context()))
	require.Equal(t, phaseRecover, p.phase)
}

// A partition that is handed over does not begin anything any more, whatever its
// goroutine has just written: its last checkpoint says that nothing is in flight
// (M20).
func TestClosedStaysClosed(t *testing.T) {
	p := running(t)
	store := p.eng.Store.(*fakeStore)
	command := func(seq int64, to ledger.State) {
		snap := *store.Partition("t", 0)
		snap.Command = &ledger.Command{Mirror: "m", Topic: "t", Seq: seq, Desired: to}
		store.parts[partKey{"t", 0}] = &snap
	}
	command(1, epoch.StatePaused)
	for p.phase != phaseIdle {
		require.NoError(t, p.nextJob()(t.Context()))
	}
	command(2, epoch.StateMirroring)
	job := p.nextJob()
	store.onPut = func(*ledger.Record) error {
		require.True(t, p.quiesce(t.Context()), "nothing is in flight")
		return nil
	}
	require.NoError(t, job(t.Context()))
	require.Equal(t, epoch.StateMirroring, store.Partition("t", 0).Record.State)
	require.Equal(t, phaseClosed, p.phase)
	require.Nil(t, p.nextJob())
}

// What the ledger shows is everybody's: a partition that gives up here must not
// change it.
func TestLedgersRecordIsNotChanged(t *testing.T) {
	p := running(t)
	rec := p.rec.Next()
	rec.State, rec.Previous, rec.Retries = epoch.StateFailed, epoch.StateMirroring, 1
	p.eng.Store.(*fakeStore).parts[partKey{"t", 0}] = &ledger.Partition{Topic: "t", Live: &ledger.Live{}, Record: rec, Log: &rec.Log}
	idle := newPartition(p.eng, Spec{Topic: "t", Idle: true})
	require.True(t, idle.begin())
	idle.retryAt = time.Now()
	for job := idle.nextJob(); job != nil; job = idle.nextJob() {
		require.NoError(t, job(t.Context()))
	}
	require.Equal(t, 1, rec.Retries)
}

// An entry of the ledger that says MIRRORING without a log is not used: it would
// end the process of each owner in turn.
func TestEntryWithoutALog(t *testing.T) {
	for _, st := range []ledger.State{epoch.StateMirroring, epoch.StateULERecovery, epoch.StatePaused, epoch.StateFailed} {
		p := running(t)
		rec := &ledger.Record{Mirror: "m", Topic: "t", State: st, Previous: epoch.StateMirroring, StateEpoch: 1}
		p.eng.Store.(*fakeStore).parts[partKey{"t", 0}] = &ledger.Partition{Topic: "t", Live: &ledger.Live{}, Record: rec, Log: &rec.Log}
		n := newPartition(p.eng, Spec{Topic: "t"})
		require.False(t, n.begin(), st)
		require.True(t, n.Status().Failed)
		require.Contains(t, n.Status().Error, "has no log")
		n.setSource(leader{known: true, broker: 1, epoch: 1}, true)
		n.setDest(leader{known: true, broker: 1, epoch: 1})
		n.poke()
		n.shutdown()
	}
}

// H1: what is queued while a look at a foreign write is under way goes on at
// once, and not when the writer looks by itself.
func TestInspectWakesTheWriter(t *testing.T) {
	p := running(t)
	b := newFakeBroker(t)
	b.with("t", 0, func(l *fakeLog) { l.append(rawBatch{n: 1, txn: true, control: true}.bytes()) })
	p.dst.addr = b.ln.Addr().String()
	p.suspect = &stretch{0, 1, 0}
	p.queue = []*item{{batch: rawBatch{n: 1}.bytes(), ready: true, vEnd: 1, next: 1, count: 1, size: 1}}
	w := newWriter(p.eng, 1, p.dst.addr) // doesn't run
	p.eng.writers[laneKey{1, 0}] = w
	defer p.eng.dst.close()
	_, _, ok := p.take(1, roomForOne, time.Now())
	require.False(t, ok)
	require.NoError(t, p.nextJob()(t.Context()))
	require.Len(t, w.wake, 1)
	_, _, ok = p.take(1, roomForOne, time.Now())
	require.True(t, ok)
}

// H1: that the cleaner is kept off is looked after while the source is silent,
// too.
func TestHoldIsLookedAfterWithoutTheSource(t *testing.T) {
	p := running(t)
	p.poke()
	require.False(t, woken(p))
	p.rec = p.rec.Next()
	p.rec.Shadow = &epoch.Shadow{}
	require.True(t, p.shadowing())
	p.poke()
	require.True(t, woken(p))
	p.heldAt = time.Now()
	p.poke()
	require.False(t, woken(p))
}

// Metadata that names a partition twice, or with a number that is none, must not
// move the others to the wrong leader.
func TestNonsenseMetadata(t *testing.T) {
	part := func(p, leader int32) kmsg.MetadataResponseTopicPartition {
		return kmsg.MetadataResponseTopicPartition{Partition: p, Leader: leader, LeaderEpoch: leader}
	}
	m := topicMeta(&kmsg.MetadataResponseTopic{Partitions: []kmsg.MetadataResponseTopicPartition{
		part(2, 12), part(-1, 9), part(0, 10), part(0, 10), part(1, 11), part(math.MaxInt32, 9),
	}})
	require.Equal(t, []PartitionMeta{{10, 10}, {11, 11}, {12, 12}}, m.Partitions)
}

// A checkpoint that could not be written comes again, also if its partition never
// moves again: when retention has emptied the log it is all that tells the
// position (M22).
func TestCheckpointComesAgain(t *testing.T) {
	p := running(t)
	p.eng.parts[partKey{"t", 0}] = p
	m := &Manager{log: slog.New(slog.DiscardHandler), owned: newOwned(nil, nil)} // owns nothing: no write is possible
	m.checkpoint(t.Context(), &source{engine: p.eng})
	m.saves.wg.Wait()
	require.Len(t, p.eng.Checkpoints(), 1)
	require.Empty(t, p.eng.Checkpoints())
}

// H12: after an unclean election was cut off, nothing above the cut counts as shown, before something that was sent may
// have been: not what the source has there, of an epoch that is not in the chain yet. For OffsetForLeaderEpoch would
// give it to the epoch before, and readers that stood above the cut would go on behind it.
func TestH12NothingIsShownBeforeItIsSent(t *testing.T) {
	p := running(t)
	p.mayShow, p.unmerged = 0, true // cut to 0
	a := kmsg.NewFetchResponseTopicPartition()
	a.HighWatermark, a.LastStableOffset, a.LogStartOffset = 5, 5, 0
	for _, b := range []rawBatch{{base: 0, n: 2, epoch: 2}, {base: 2, n: 1, epoch: 2}, {base: 3, n: 2, epoch: 4}} {
		a.RecordBatches = append(a.RecordBatches, b.bytes()...)
	}
	buf := (&kconn.Pool{}).Get(len(a.RecordBatches))
	require.False(t, p.took(p.token, fetchSpec{offset: 0, current: 4}, &a, buf))
	shown := func() int64 { return p.live.Tail().EverShown }
	take := func() *item {
		it, _, _ := p.take(1, roomForOne, time.Now())
		return it
	}
	require.Nil(t, take())
	require.Zero(t, shown(), "epoch 2 is not in the chain")
	p.log = p.log.WithEpoch(2, 0)
	it := take()
	require.NotNil(t, it)
	require.EqualValues(t, 3, shown(), "it may be read from now on, and what follows of its epoch")
	p.inflight = nil
	p.mu.Lock()
	p.confirm(it, 0)
	p.mu.Unlock()
	require.EqualValues(t, 3, shown())
	p.mu.Lock()
	p.dropQueue()
	p.mu.Unlock()
	it.free()
}
