package mirror

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-kafka/lockstep/epoch"
	"github.com/lockstep-kafka/lockstep/internal/kconn"
	"github.com/lockstep-kafka/lockstep/internal/leaktest"
	"github.com/lockstep-kafka/lockstep/internal/ledger"
	"github.com/lockstep-kafka/lockstep/protocol"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// fakeStore is a ledger in memory.
type fakeStore struct {
	mu      sync.Mutex
	parts   map[partKey]*ledger.Partition
	puts    []*ledger.Record
	err     error                        // next Put fails with it
	onPut   func(r *ledger.Record) error // before it is taken in
	waiting func(p *ledger.Partition, all bool) []string
	offset  int64 // of the newest record
}

func (s *fakeStore) Partition(topic string, p int32) *ledger.Partition {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.parts[partKey{topic, p}]
}

func (s *fakeStore) Waiting(p *ledger.Partition, all bool) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.waiting == nil {
		return nil
	}
	return s.waiting(p, all)
}

func (s *fakeStore) Put(_ context.Context, r *ledger.Record) error {
	s.mu.Lock()
	onPut := s.onPut
	s.mu.Unlock()
	var unknown error
	if onPut != nil {
		if err := onPut(r); errors.Is(err, ledger.ErrUnknownOutcome) {
			unknown = err // it lands
		} else if err != nil {
			return err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		err := s.err
		s.err = nil
		return err
	}
	k := partKey{r.Topic, r.Partition}
	old := s.parts[k]
	if r.StateEpoch != old.Record.StateEpoch+1 {
		return ledger.ErrConflict
	}
	if err := r.Log.Validate(); err != nil {
		return err
	}
	c := *r
	s.puts = append(s.puts, &c)
	s.offset++
	s.parts[k] = &ledger.Partition{Topic: r.Topic, Partition: r.Partition, Record: &c, Log: &c.Log, Checkpoint: old.Checkpoint, Command: old.Command, RecordOffset: s.offset, Live: old.Live}
	return unknown
}

func (s *fakeStore) checkpoint(cp ledger.Checkpoint) {
	s.mu.Lock()
	defer s.mu.Unlock()
	k := partKey{cp.Topic, cp.Partition}
	n := *s.parts[k]
	n.Checkpoint = &cp
	s.parts[k] = &n
}

// rig is a mirror of topic "t", and those added, between two fake brokers.
type rig struct {
	said     said
	t        *testing.T
	src, dst *fakeBroker
	store    *fakeStore
	tuning   Tuning
	specs    []Spec
	met      *Metrics
	fenced   chan string
	maxFrame int32 // of the source's answers
	memory   int64
	// sourceLedger is EngineOptions.SourceLedger; nil: the source has none.
	sourceLedger func(ctx context.Context, topic string, partition int32) epoch.SourceRecord

	eng  *Engine
	stop func()
}

func newRig(t *testing.T, parts int32) *rig {
	t.Helper()
	r := &rig{
		t: t, src: newFakeBroker(t), dst: newFakeBroker(t), fenced: make(chan string, 10), met: NewMetrics(nil),
		store:  &fakeStore{parts: map[partKey]*ledger.Partition{}},
		memory: 64 << 20,
		tuning: Tuning{FetchWaitMax: 50 * time.Millisecond, RetryMin: time.Millisecond, RetryMax: 5 * time.Millisecond, KeepBatches: true},
	}
	r.topic("t", parts)
	t.Cleanup(func() { r.said.tell(t, "the mirror") })
	return r
}

// topic adds a topic to the mirror.
func (r *rig) topic(name string, parts int32) {
	for p := range parts {
		k := partKey{name, p}
		r.specs = append(r.specs, Spec{Topic: name, Partition: p})
		r.store.parts[k] = &ledger.Partition{
			Topic: name, Partition: p, Live: &ledger.Live{},
			Record: &ledger.Record{Mirror: "m", Topic: name, Partition: p, State: epoch.StateLogAlignment, StateEpoch: 1, Lineage: "l", Log: epoch.Log{}},
		}
		r.store.parts[k].Log = &r.store.parts[k].Record.Log
		r.src.with(name, p, func(*fakeLog) {})
		r.dst.with(name, p, func(*fakeLog) {})
	}
}

// start runs an engine, as a new owner does.
func (r *rig) start() {
	out := io.Writer(&r.said)
	if testing.Verbose() {
		out = io.MultiWriter(out, os.Stderr)
	}
	memory := NewMemory(r.memory)
	r.eng = NewEngine(EngineOptions{
		Mirror: "m",
		Source: (&kconn.Dialer{RequestTimeout: 5 * time.Second, MaxFrame: r.maxFrame}).Init(), Dest: (&kconn.Dialer{RequestTimeout: 5 * time.Second}).Init(),
		Store: r.store, Memory: memory, Metrics: r.met, Tuning: r.tuning,
		Logger:       slog.New(slog.NewTextHandler(out, &slog.HandlerOptions{Level: slog.LevelDebug})),
		Fenced:       func(topic string, _ int32) { r.fenced <- topic },
		SourceLedger: r.sourceLedger,
	})
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { _ = r.eng.Run(ctx) })
	r.meta()
	for _, s := range r.specs {
		r.eng.Add(s)
	}
	eng := r.eng
	var once sync.Once
	r.stop = func() {
		once.Do(func() {
			cancel()
			wg.Wait()
			require.Zero(r.t, memory.Used(), "memory not given back")
			_ = eng
		})
	}
	r.t.Cleanup(r.stop)
}

// meta hands the brokers' metadata to the engine.
func (r *rig) meta() {
	r.eng.SetSource(r.src.cluster())
	r.eng.SetDest(r.dst.cluster())
}

func (r *rig) write(p int32, bs ...rawBatch) {
	r.src.with("t", p, func(l *fakeLog) {
		for _, b := range bs {
			l.append(b.bytes())
			l.epoch = max(l.epoch, b.epoch)
		}
	})
	if r.eng != nil {
		r.meta()
	}
}

// patience bounds the wait for what has to come in the end: long, as -race on one
// thread of a busy machine may stand still for seconds.
const patience = time.Minute

func eventually(t *testing.T, what string, f func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(2 * time.Millisecond) {
		if f() {
			return
		}
	}
	t.Fatalf("timed out: %s", what)
}

// reached waits for a position.
func (r *rig) reached(p int32, pos int64) {
	r.t.Helper()
	eventually(r.t, "position", func() bool {
		x := r.eng.Partition("t", p)
		return x != nil && x.Status().Position >= pos && !x.Status().Failed && x.running()
	})
}

func (p *Partition) running() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.phase == phaseRun
}

// failedWith waits for FAILED with a text in its error.
func (r *rig) failedWith(p int32, text string) string {
	r.t.Helper()
	eventually(r.t, "FAILED", func() bool { return r.eng.Partition("t", p).Status().Failed })
	s := r.eng.Partition("t", p).Status()
	require.Contains(r.t, s.Error, text)
	return s.Error
}

// view is the virtual log as a reader sees it: restored batches.
func (r *rig) view(p int32) []protocol.Batch {
	r.t.Helper()
	l := r.store.Partition("t", p).Log
	require.NotEmpty(r.t, l.Spans)
	w := l.Walk(l.Spans[0].VStart, true)
	r.dst.mu.Lock()
	defer r.dst.mu.Unlock()
	var out []protocol.Batch
	for _, raw := range r.dst.log("t", p).batches {
		b := readHeader(raw)
		if b.Stamped && b.VCount == 0 {
			n, err := protocol.VirtualCount(raw)
			require.NoError(r.t, err)
			b.VCount = n
		}
		pl, v := w.Next(b)
		if v != epoch.Live || pl.VEnd <= l.Start {
			continue // below the start the chain no longer speaks of them
		}
		x := append(protocol.Batch(nil), raw...)
		if b.Flags&epoch.FlagRenumbered != 0 {
			var err error
			x, err = protocol.Undensify(x, pl.V, pl.Epoch, b.Flags&epoch.FlagLogAppend != 0)
			require.NoError(r.t, err)
		} else if b.Flags&epoch.FlagLogAppend != 0 {
			x.RestoreLogAppend(pl.V, pl.Epoch)
		} else {
			x.Restore(pl.V, pl.Epoch)
		}
		require.True(r.t, x.CheckCRC())
		require.Equal(r.t, pl.Epoch, l.Chain.At(max(pl.V, l.Chain[0].Start)), "the chain has the epoch of every batch")
		require.LessOrEqual(r.t, pl.Epoch, l.Shown(raw.PartitionLeaderEpoch()), "epoch shown is behind")
		out = append(out, x)
	}
	return out
}

// same demands that the virtual log equals what a read_committed reader of the
// source gets, batch by batch.
func (r *rig) same(p int32) {
	r.t.Helper()
	var want []string
	r.src.mu.Lock()
	l := r.src.log("t", p)
	start := l.start
	var all []byte
	for _, b := range l.batches {
		all = append(all, b...)
	}
	var gone abortedList // those that ended below the start are no longer listed
	for i, a := range l.aborted {
		if len(l.abortedEnd) == 0 || l.abortedEnd[i] >= l.start {
			gone = append(gone, a)
		}
	}
	walkRecords(&walkState{epoch: -1}, -1, all, gone, func(c chunk) {
		if c.batch != nil {
			want = append(want, text(r.t, c.batch))
		}
	})
	r.src.mu.Unlock()
	var got []string
	for _, b := range r.view(p) {
		if b.NextOffset() > start { // retention there does not remove it here
			got = append(got, text(r.t, b))
		}
	}
	if !r.tuning.KeepBatches { // where a batch ends is not kept
		want, got = recordTexts(want, start), recordTexts(got, start)
	}
	require.Equal(r.t, want, got)
}

// recordTexts takes the texts of batches apart, from offset start on.
func recordTexts(batches []string, start int64) (out []string) {
	for _, b := range batches {
		words := strings.Fields(b)
		for _, w := range words[1 : len(words)-1] {
			offset, _, _ := strings.Cut(w, ":")
			if n, err := strconv.ParseInt(offset, 10, 64); err != nil || n >= start {
				out = append(out, words[0]+w)
			}
		}
	}
	return out
}

// text is all that a reader sees of a batch.
func text(t *testing.T, b protocol.Batch) string {
	s := itoa(b.PartitionLeaderEpoch()) + "@"
	require.NoError(t, protocol.Records(b, func(rv protocol.RecordView) bool {
		s += " " + itoa(int32(b.BaseOffset())+rv.OffsetDelta) + ":" + string(rv.Key) + "=" + string(rv.Value) + "," + itoa(int32(b.Timestamp(rv)))
		return true
	}))
	return s + " ..." + itoa(int32(b.NextOffset()))
}

var errLedgerDown = errors.New("ledger down")
