package mirror

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-kafka/lockstep/epoch"
	"github.com/lockstep-kafka/lockstep/internal/kconn"
	"github.com/lockstep-kafka/lockstep/internal/ledger"
	"github.com/lockstep-kafka/lockstep/protocol"
)

// site is a cluster with a Lockstep in front: partition 0 of topic t, its
// ledger, and what clients of its proxy see.
type site struct {
	said  said // its log
	t     *testing.T
	name  string
	phys  *fakeBroker
	proxy *fakeBroker
	store *fakeStore

	tuning  Tuning
	compact bool
	unclean atomic.Bool
	cleaner Cleaner
	ledger  func() epoch.SourceRecord // instead of the source's
	idle    bool                      // not among the mirror's topics
	unready func(topic string, since time.Time) (string, bool)
	endTxns func() error
	src     *site
	eng     *Engine
	stop    func()
	stamp   int64 // of the newest client write
}

func newSite(t *testing.T, name string) *site {
	s := &site{
		t: t, name: name, phys: newFakeBroker(t), proxy: newFakeBroker(t),
		store:  &fakeStore{parts: map[partKey]*ledger.Partition{}},
		tuning: Tuning{FetchWaitMax: 20 * time.Millisecond, RetryMin: time.Millisecond, RetryMax: 5 * time.Millisecond, BumpStep: 1},
	}
	t.Cleanup(func() { s.said.tell(t, name) })
	s.proxy.id = s.phys.id
	s.phys.with("t", 0, func(*fakeLog) {})
	s.proxy.with("t", 0, func(*fakeLog) {})
	return s
}

func (s *site) part() *ledger.Partition { return s.store.Partition("t", 0) }

func (s *site) rec() *ledger.Record {
	s.t.Helper()
	require.NotNil(s.t, s.part())
	return s.part().Record
}

// end is the physical end.
func (s *site) end() (n int64) {
	s.phys.with("t", 0, func(l *fakeLog) { n = l.end() })
	return n
}

// mirrors starts an engine that mirrors src, as the owner of an existing record
// or with a first one.
func (s *site) mirrors(src *site) {
	s.t.Helper()
	s.src = src
	if s.part() == nil {
		rec := &ledger.Record{Mirror: "m", Topic: "t", State: epoch.StateLogAlignment, Desired: epoch.StateMirroring, StateEpoch: 1, Lineage: "first-" + s.name}
		if s.end() > 0 {
			rec.Lineage = "" // as source.record does
		}
		s.store.mu.Lock()
		s.store.parts[partKey{"t", 0}] = &ledger.Partition{Topic: "t", Live: &ledger.Live{}, Record: rec, Log: &rec.Log}
		s.store.mu.Unlock()
	}
	s.run()
}

// run runs an engine, as a new owner does.
func (s *site) run() {
	if s.stop != nil {
		s.stop()
	}
	out := io.Writer(&s.said)
	if testing.Verbose() {
		out = io.MultiWriter(out, os.Stderr)
	}
	src := s.src
	memory := NewMemory(64 << 20)
	eng := NewEngine(EngineOptions{
		Mirror: "m",
		Source: (&kconn.Dialer{RequestTimeout: 2 * time.Second}).Init(), Dest: (&kconn.Dialer{RequestTimeout: 2 * time.Second}).Init(),
		Store: s.store, Memory: memory, Metrics: NewMetrics(nil), Tuning: s.tuning,
		Logger:   slog.New(slog.NewTextHandler(out, &slog.HandlerOptions{Level: slog.LevelDebug})).With("site", s.name),
		Clusters: func() (string, string) { return s.name, src.name },
		Unclean:  func(string) bool { return s.unclean.Load() },
		Cleaner:  s.cleaner,
		Unready:  s.unready,
		EndTxns: func(context.Context, string, int32) error {
			if s.endTxns == nil {
				return nil
			}
			return s.endTxns()
		},
		SourceLedger: func(context.Context, string, int32) epoch.SourceRecord {
			if s.ledger != nil {
				return s.ledger()
			}
			return sourceRecord(src.part())
		},
	})
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { _ = eng.Run(ctx) })
	s.eng = eng
	s.meta()
	eng.Add(Spec{Topic: "t", Compacted: s.compact, Idle: s.idle})
	var once sync.Once
	s.stop = func() {
		once.Do(func() {
			cancel()
			wg.Wait()
			require.Zero(s.t, memory.Used(), "memory not given back")
		})
	}
	s.t.Cleanup(s.stop)
}

// meta hands over metadata, of the source's proxy once that has a record.
func (s *site) meta() {
	if s.eng == nil {
		return
	}
	if s.src != nil {
		s.eng.SetSource(s.src.endpoint().cluster())
	}
	s.eng.SetDest(s.phys.cluster())
}

// endpoint is what others reach.
func (s *site) endpoint() *fakeBroker {
	if s.part() == nil {
		return s.phys
	}
	s.show()
	return s.proxy
}

// visible is the virtual log as the proxy shows it.
func (s *site) visible() (out []protocol.Batch, chain epoch.Chain) {
	s.t.Helper()
	s.phys.mu.Lock()
	defer s.phys.mu.Unlock()
	pl := s.phys.log("t", 0)
	if s.part() == nil {
		return pl.batches, pl.chain
	}
	l := s.part().Log
	if len(l.Spans) == 0 {
		return nil, nil
	}
	chain = l.Joined(pl.chain)
	w := l.Walk(l.Spans[0].VStart, true)
	for _, raw := range pl.batches {
		b := readHeader(raw)
		if b.Stamped && b.VCount == 0 {
			n, err := protocol.VirtualCount(raw)
			require.NoError(s.t, err)
			b.VCount = n
		}
		at, v := w.Next(b)
		if v != epoch.Live || at.VEnd <= l.Start {
			continue
		}
		x := append(protocol.Batch(nil), raw...)
		if b.Stamped {
			x.Restore(at.V, at.Epoch)
		} else {
			x.SetBase(at.V, at.Epoch)
		}
		require.True(s.t, x.CheckCRC())
		require.Equal(s.t, at.Epoch, chain.At(at.V), "%s: the chain has another epoch at %d: %v", s.name, at.V, chain)
		require.LessOrEqual(s.t, at.Epoch, l.Shown(pl.epoch), "%s: epoch shown is behind", s.name)
		out = append(out, x)
	}
	return out, chain
}

// show brings the proxy up to date.
func (s *site) show() {
	bs, chain := s.visible()
	var pe int32
	s.phys.with("t", 0, func(l *fakeLog) { pe = l.epoch })
	lg := s.part().Log
	s.proxy.with("t", 0, func(l *fakeLog) {
		l.start, l.batches, l.epoch = lg.Start, bs, lg.Shown(pe)
		l.chain = chain.AdvanceStart(lg.Start)
	})
}

// dump is the virtual log in the notation of facts.md.
func (s *site) dump() string {
	s.t.Helper()
	bs, _ := s.visible()
	var out []string
	for _, b := range bs {
		if b.IsControl() {
			continue
		}
		for v := b.BaseOffset(); v < b.NextOffset(); v++ {
			out = append(out, fmt.Sprintf("%d(%d)", v, b.PartitionLeaderEpoch()))
		}
	}
	return strings.Join(out, " ")
}

// content are the records and where they end; it also tells records apart that
// stand at one offset under one epoch.
func (s *site) content() string {
	s.t.Helper()
	bs, _ := s.visible()
	var texts []string
	end := int64(0)
	for _, b := range bs {
		if !b.IsControl() {
			texts, end = append(texts, text(s.t, b)), b.NextOffset()
		}
	}
	return strings.Join(append(recordTexts(texts, 0), fmt.Sprint(end)), "\n")
}

// write is a client's batch of n records; the site must be writable.
func (s *site) write(n int) {
	s.t.Helper()
	if s.part() != nil {
		require.Equal(s.t, epoch.StateStopped, s.rec().State)
	}
	s.stamp++
	s.phys.with("t", 0, func(l *fakeLog) {
		b := rawBatch{base: l.end(), n: n, epoch: l.epoch, maxTS: int64(s.name[0])*1000 + s.stamp}.bytes()
		l.append(b)
	})
}

// elect gives the destination's partition a new leader epoch.
func (s *site) elect() {
	s.phys.with("t", 0, func(l *fakeLog) { l.epoch++ })
	s.meta()
	if s.eng != nil && s.part() != nil && s.rec().State == epoch.StateStopped {
		var e int32
		s.phys.with("t", 0, func(l *fakeLog) { e = l.epoch })
		eventually(s.t, "looked at", func() bool { return s.rec().Checked >= e || s.rec().State != epoch.StateStopped })
	}
}

// command is an operator's verb.
func (s *site) command(c ledger.Command) {
	s.t.Helper()
	s.store.mu.Lock()
	k := partKey{"t", 0}
	n := *s.store.parts[k]
	c.Topic, c.Mirror, c.Seq = "t", "m", n.Record.CommandSeq+1
	n.Command = &c
	s.store.parts[k] = &n
	s.store.mu.Unlock()
	s.eng.Poke()
}

func (s *site) want(d ledger.State) { s.t.Helper(); s.command(ledger.Command{Desired: d}) }

// is waits for a state.
func (s *site) is(st ledger.State) {
	s.t.Helper()
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(2 * time.Millisecond) {
		if s.rec().State == st {
			return
		}
	}
	s.t.Fatalf("%s: timed out waiting for %s: %s, %s", s.name, st, s.rec().State, s.rec().Error)
}

// refuses waits until a start has come to nothing, for a reason with this text.
func (s *site) refuses(text string) {
	s.t.Helper()
	eventually(s.t, "the start is refused: "+text, func() bool {
		r := s.rec()
		return r.State == epoch.StateStopped && r.Desired == epoch.StateStopped && strings.Contains(r.Error, text)
	})
}

// gated is a reading of the source's ledger that is the true one until the
// gate of a start has closed, r from then on.
func (s *site) gated(r epoch.SourceRecord) func() epoch.SourceRecord {
	return func() epoch.SourceRecord {
		if s.rec().State == epoch.StateStopped {
			return sourceRecord(s.src.part())
		}
		return r
	}
}

// shows waits until the virtual log is this, mirroring.
func (s *site) shows(want string) {
	s.t.Helper()
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(2 * time.Millisecond) {
		if s.dump() == want && s.rec().State == epoch.StateMirroring {
			return
		}
	}
	s.t.Fatalf("%s shows %q (%s %s), want %q", s.name, s.dump(), s.rec().State, s.rec().Error, want)
}

func (s *site) stopped() *ledger.Record {
	s.t.Helper()
	s.want(epoch.StateStopped)
	s.is(epoch.StateStopped)
	return s.rec()
}

// shownEpoch is the leader epoch in its proxy's metadata.
func (s *site) shownEpoch() (e int32) {
	s.phys.with("t", 0, func(l *fakeLog) { e = s.part().Log.Shown(l.epoch) })
	return e
}

// neverWas demands that no ledger write had this state.
func (s *site) neverWas(st ledger.State) {
	s.t.Helper()
	s.store.mu.Lock()
	defer s.store.mu.Unlock()
	for _, r := range s.store.puts {
		require.NotEqual(s.t, st, r.State, "%s", s.name)
	}
}

func (b *fakeBroker) hook(f func(partKey, *fakeLog, protocol.Batch) (int16, bool)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.onProduce = f
}

func (s *fakeStore) hook(f func(*ledger.Record) error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.onPut = f
}

func (s *fakeStore) setWaiting(f func(*ledger.Partition, bool) []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.waiting = f
}

// written are the records put so far.
func (s *fakeStore) written() []*ledger.Record {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]*ledger.Record(nil), s.puts...)
}

// said keeps the warnings of a log, and the newest lines of all levels for a
// test that fails.
type said struct {
	mu   sync.Mutex
	text strings.Builder
	last []string
}

const saidLast = 60

// tell prints the newest lines if the test has failed.
func (s *said) tell(t *testing.T, who string) {
	if !t.Failed() {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	t.Logf("the end of %s's log:\n%s", who, strings.Join(s.last, ""))
}

func (s *said) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if bytes.Contains(b, []byte("level=WARN")) {
		s.text.Write(b)
	}
	if s.last = append(s.last, string(b)); len(s.last) > saidLast {
		s.last = s.last[1:]
	}
	return len(b), nil
}

func (s *said) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.String()
}
