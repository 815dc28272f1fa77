package mirror

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sort"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/lockstep-kafka/lockstep/epoch"
	"github.com/lockstep-kafka/lockstep/internal/kconn"
	"github.com/lockstep-kafka/lockstep/internal/ledger"
)

// Store is what an engine needs of the ledger ([ledger.View] and
// [ledger.Writer] together).
type Store interface {
	// Partition is the newest snapshot as read back, nil when there is none.
	Partition(topic string, p int32) *ledger.Partition
	// Put writes r, whose StateEpoch is that of the record it replaces plus
	// one ([ledger.Record.Next]), and returns when it has been read back.
	// ledger.ErrFenced: another instance owns the partition now.
	Put(ctx context.Context, r *ledger.Record) error
	// Waiting are the ids of the instances that have not taken in the newest
	// record of p ([ledger.Waiting]).
	Waiting(p *ledger.Partition, all bool) []string
}

// Tuning are a mirror's settings; zero values are replaced by the defaults
// named here.
type Tuning struct {
	Acks                   int16         // -1 (all, also for 0) or 1 (leader)
	FetchMaxBytes          int32         // 16 MiB
	FetchPartitionMaxBytes int32         // 1 MiB
	FetchWaitMax           time.Duration // 500 ms
	ProduceMaxBytes        int           // of one request; 8 MiB
	ProduceTimeout         time.Duration // 30 s
	Lanes                  int           // connections to each destination broker; 1
	SlowWorkers            int           // 2
	RetryMin, RetryMax     time.Duration // of FAILED; 100 ms, 300 s
	RetryAttempts          int           // 20
	GoneAfter              time.Duration // how long metadata must lack a source topic to call it deleted; 30 s
	FencingStep            int32         // how far a bump goes above the source's leader epoch; 10
	// BumpStep is how far a stop raises the leader epoch shown; 1000. 1 is for
	// tests with exact numbers: then there is no headroom while mirroring either.
	BumpStep int32
	// KeepBatches: small neighbours are not written as one batch.
	KeepBatches bool

	fencingMargin int32 // a source epoch this close below the one shown raises it
}

func (t *Tuning) defaults() {
	if t.Acks == 0 {
		t.Acks = -1
	}
	def(&t.FetchMaxBytes, 16<<20)
	def(&t.FetchPartitionMaxBytes, 1<<20)
	def(&t.FetchWaitMax, 500*time.Millisecond)
	def(&t.ProduceMaxBytes, 8<<20)
	def(&t.ProduceTimeout, 30*time.Second)
	def(&t.Lanes, 1)
	def(&t.SlowWorkers, 2)
	def(&t.RetryMin, 100*time.Millisecond)
	def(&t.RetryMax, 300*time.Second)
	def(&t.RetryAttempts, 20)
	def(&t.GoneAfter, 30*time.Second)
	t.fencingMargin = epoch.FenceMargin
	if t.BumpStep == 1 && t.FencingStep == 0 {
		t.fencingMargin = 0
	} else {
		def(&t.FencingStep, epoch.FenceHeadroom)
	}
	def(&t.BumpStep, epoch.BumpStep)
}

func def[T ~int | ~int32 | ~int64](v *T, d T) {
	if *v <= 0 {
		*v = d
	}
}

// EngineOptions: all but the callbacks and Tuning are required.
type EngineOptions struct {
	Mirror       string
	Source, Dest *kconn.Dialer
	Store        Store
	Memory       *Memory // one for the process
	Metrics      *Metrics
	Logger       *slog.Logger
	Tuning       Tuning
	// RefreshSource and RefreshDest ask for newer metadata soon; they must not
	// block, and are called often while something is wrong.
	RefreshSource, RefreshDest func()
	// Clusters are the cluster ids of destination and source.
	Clusters func() (self, source string)
	// Unclean tells whether the source of a topic may have unclean leader
	// elections that are followed (epoch.SettingULE). It may change at any time.
	Unclean func(topic string) bool
	// SourceLedger is what the source's own ledger has of a partition, read to
	// its end after the call.
	SourceLedger func(ctx context.Context, topic string, partition int32) epoch.SourceRecord
	// Unready says why an idle partition ([Spec]) of a topic can't be started;
	// sure: it is no use to wait. A look at the source from before since doesn't
	// count. nil: its mirror is not configured here.
	Unready func(topic string, since time.Time) (why string, sure bool)
	// EndTxns ends the transactions open in a destination partition (H9).
	EndTxns func(ctx context.Context, topic string, partition int32) error
	// LastGroups syncs the groups' offsets of a partition before it is STOPPED
	// with these bounds, in a bounded time; nil: nobody does.
	LastGroups func(ctx context.Context, k partKey, b groupBounds) error
	// Cleaner is the destination's; nil: there is none to keep off.
	Cleaner Cleaner
	// Fenced is told that another instance owns the partition now, which has
	// stopped. It must not block; Remove the partition from elsewhere.
	Fenced func(topic string, partition int32)
}

type partKey struct {
	topic     string
	partition int32
}

type laneKey struct {
	broker int32
	lane   int
}

// Engine mirrors partitions of one mirror. Its methods may be called from any
// goroutine, before Run too.
type Engine struct {
	EngineOptions
	src, dst *connPool
	ends     struct{ src, dst *endLooks }
	slow     *slowPool

	mu       sync.Mutex
	group    *errgroup.Group
	ctx      context.Context // of Run; nil before
	stopped  bool            // Run is ending: no more goroutines
	waiting  []func()        // goroutines to start in Run
	parts    map[partKey]*Partition
	source   *Cluster
	dest     *Cluster
	fetchers map[laneKey]*fetcher
	far      map[int32]bool // source brokers a long way off
	routing  bool           // routeSoon is at it
	writers  map[laneKey]*writer
}

// NewEngine makes an engine without partitions.
func NewEngine(o EngineOptions) *Engine {
	o.Tuning.defaults()
	if o.RefreshSource == nil {
		o.RefreshSource = func() {}
	}
	if o.RefreshDest == nil {
		o.RefreshDest = func() {}
	}
	if o.Clusters == nil {
		o.Clusters = func() (string, string) { return "destination", "source" }
	}
	if o.Unclean == nil {
		o.Unclean = func(string) bool { return false }
	}
	if o.SourceLedger == nil {
		o.SourceLedger = func(context.Context, string, int32) epoch.SourceRecord {
			return epoch.SourceRecord{Reading: epoch.Absent}
		}
	}
	if o.EndTxns == nil {
		o.EndTxns = func(context.Context, string, int32) error { return nil }
	}
	if o.Cleaner == nil {
		o.Cleaner = noCleaner{}
	}
	if o.Fenced == nil {
		o.Fenced = func(string, int32) {}
	}
	e := &Engine{
		EngineOptions: o,
		parts:         map[partKey]*Partition{},
		fetchers:      map[laneKey]*fetcher{},
		far:           map[int32]bool{},
		writers:       map[laneKey]*writer{},
	}
	e.src, e.dst = newConnPool(o.Source), newConnPool(o.Dest)
	e.ends.src, e.ends.dst = newEndLooks(e.src), newEndLooks(e.dst)
	e.slow = newSlowPool()
	return e
}

// Run runs everything until ctx ends, and returns when every goroutine has.
// Partitions are not released by it: Remove them first for a clean hand-over.
func (e *Engine) Run(ctx context.Context) error {
	e.mu.Lock()
	if e.ctx != nil {
		e.mu.Unlock()
		return errors.New("mirror: Engine.Run called twice")
	}
	g, ctx := errgroup.WithContext(ctx)
	e.group, e.ctx = g, ctx
	for range e.Tuning.SlowWorkers {
		g.Go(func() error { e.slow.work(ctx); return nil })
	}
	for _, f := range e.waiting {
		f()
	}
	e.waiting = nil
	e.mu.Unlock()
	// The group must not reach zero while goroutines may still be added.
	g.Go(func() error {
		<-ctx.Done()
		e.mu.Lock()
		e.stopped = true
		e.mu.Unlock()
		return nil
	})
	err := g.Wait()
	e.src.close()
	e.dst.close()
	e.mu.Lock()
	for _, p := range e.parts {
		p.shutdown()
	}
	e.mu.Unlock()
	return err
}

// spawn starts f with the engine, or at once when it runs. It returns what
// ends and then waits for it. mu is held.
func (e *Engine) spawn(f func(ctx context.Context)) (stop func()) {
	done := make(chan struct{})
	var cancel atomic.Pointer[context.CancelFunc]
	var stopped atomic.Bool
	start := func() {
		ctx, c := context.WithCancel(e.ctx)
		cancel.Store(&c)
		if stopped.Load() {
			c()
		}
		e.group.Go(func() error {
			defer close(done)
			defer c()
			f(ctx)
			return nil
		})
	}
	started := e.ctx != nil
	if started {
		if e.stopped {
			close(done)
			return func() {}
		}
		start()
	} else {
		e.waiting = append(e.waiting, start)
	}
	return func() {
		stopped.Store(true)
		if c := cancel.Load(); c != nil {
			(*c)()
			<-done
		}
	}
}

// Spec names a partition to mirror. Its ledger record must exist.
type Spec struct {
	Topic     string
	Partition int32
	Compacted bool // the destination topic's cleanup.policy contains compact (hazard H1)
	// KeepsTombs is the source topic's delete.retention.ms (M26); 0: not known.
	KeepsTombs time.Duration
	// Idle: not among the mirror's topics now. It obeys commands, but is not
	// started from STOPPED; it is stopped and watched, not mirrored.
	Idle bool
}

// Add starts a partition from what the ledger says of it. The ledger partition
// must have been acquired.
func (e *Engine) Add(s Spec) *Partition {
	e.mu.Lock()
	defer e.mu.Unlock()
	k := partKey{s.Topic, s.Partition}
	if p := e.parts[k]; p != nil {
		return p
	}
	p := newPartition(e, s)
	e.parts[k] = p
	p.stop = e.spawn(p.run)
	p.setSource(e.source.leader(s.Topic, s.Partition), e.source.sure(s.Topic))
	d := e.dest.leader(s.Topic, s.Partition)
	p.setDest(d)
	if !d.known { // its topic is new
		e.RefreshDest()
	}
	e.routeSoon()
	return p
}

// routeSoon routes once for the many calls that come together when thousands of
// partitions are added or removed. mu is held.
func (e *Engine) routeSoon() {
	if e.routing {
		return
	}
	e.routing = true
	e.spawn(func(ctx context.Context) {
		pause(ctx, 2*time.Millisecond)
		e.mu.Lock()
		defer e.mu.Unlock()
		e.routing = false
		if ctx.Err() == nil {
			e.route()
		}
	})
}

// Remove stops a partition: nothing new is fetched, what is in flight is waited
// for until ctx ends, and the last checkpoint is returned for the caller to
// write. It says Released only when nothing was left in flight (M20). ok is
// false when the partition had nothing to say.
func (e *Engine) Remove(ctx context.Context, topic string, partition int32) (cp ledger.Checkpoint, ok bool) {
	e.mu.Lock()
	k := partKey{topic, partition}
	p := e.parts[k]
	delete(e.parts, k)
	e.mu.Unlock()
	if p == nil {
		return cp, false
	}
	clean := p.quiesce(ctx)
	p.stop()
	cp, ok = p.checkpoint(true, clean)
	p.shutdown()
	e.mu.Lock()
	e.routeSoon()
	e.mu.Unlock()
	return cp, ok
}

// Partition is a running partition, nil when there is none.
func (e *Engine) Partition(topic string, partition int32) *Partition {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.parts[partKey{topic, partition}]
}

// Poke lets partitions look at the ledger again: a command may be there.
func (e *Engine) Poke() {
	for _, p := range e.all() {
		p.poke()
	}
}

// Checkpoints are those of all partitions that moved since they were last asked
// for. The caller writes them at least every 10 s (M22).
func (e *Engine) Checkpoints() []ledger.Checkpoint {
	var out []ledger.Checkpoint
	for _, p := range e.all() {
		if cp, ok := p.checkpoint(false, false); ok {
			out = append(out, cp)
		}
	}
	return out
}

// unsaved says that some of these checkpoints could not be written: they come
// again, also if their partitions never move again.
func (e *Engine) unsaved(cps []ledger.Checkpoint) {
	for i := range cps {
		if p := e.Partition(cps[i].Topic, cps[i].Partition); p != nil {
			p.mu.Lock()
			p.saved = ledger.Checkpoint{Position: -1}
			p.mu.Unlock()
		}
	}
}

func (e *Engine) all() []*Partition {
	e.mu.Lock()
	defer e.mu.Unlock()
	ps := make([]*Partition, 0, len(e.parts))
	for _, p := range e.parts {
		ps = append(ps, p)
	}
	return ps
}

// SetSource hands over newer metadata of the source.
func (e *Engine) SetSource(c *Cluster) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.source = c
	for k, p := range e.parts {
		if c.sure(k.topic) {
			p.setSource(c.leader(k.topic, k.partition), true)
		}
	}
	e.route()
}

// SetDest hands over newer metadata of the destination. A new leader epoch
// makes the partition re-read its tail and open a new generation (F4b), so it
// should be polled every few seconds.
func (e *Engine) SetDest(c *Cluster) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.dest = c
	for k, p := range e.parts {
		if c.sure(k.topic) {
			p.setDest(c.leader(k.topic, k.partition))
		}
	}
	e.route()
}

// route tells fetchers and writers which partitions are theirs. mu is held.
func (e *Engine) route() {
	fetch, write := map[laneKey][]*Partition{}, map[laneKey][]*Partition{}
	from, to := map[int32]string{}, map[int32]string{} // addresses; the newest metadata's, where it has one
	led := map[int32]int{}
	for _, p := range sortParts(slices.Collect(maps.Values(e.parts))) {
		s, d := p.leaders()
		if s.broker >= 0 {
			k := laneKey{s.broker, 0}
			if e.far[s.broker] {
				k.lane = led[s.broker] % farLanes
			}
			led[s.broker]++
			fetch[k] = append(fetch[k], p)
			from[s.broker] = cmp.Or(e.source.Brokers[s.broker], s.addr)
		}
		if d.broker >= 0 {
			k := laneKey{d.broker, int(p.partition) % e.Tuning.Lanes}
			write[k] = append(write[k], p)
			to[d.broker] = cmp.Or(e.dest.Brokers[d.broker], d.addr)
		}
	}
	assign(e, e.fetchers, fetch, from, newFetcher)
	e.share(led)
	assign(e, e.writers, write, to, newWriter)
}

// worker is a fetcher or a writer.
type worker interface {
	comparable
	run(ctx context.Context)
	setParts(ps []*Partition)
	retire()
	address() string
}

// assign makes the workers fit to the partitions wanted of them. mu is held.
func assign[W worker](e *Engine, have map[laneKey]W, want map[laneKey][]*Partition, addrs map[int32]string, start func(e *Engine, broker int32, addr string) W) {
	var none W
	for k, ps := range want {
		w := have[k]
		if addr := addrs[k.broker]; w == none || w.address() != addr {
			if w != none {
				w.retire()
			}
			w = start(e, k.broker, addr)
			have[k] = w
			e.spawn(w.run)
		}
		w.setParts(ps)
	}
	for k, w := range have {
		if want[k] == nil {
			w.retire()
			delete(have, k)
		}
	}
}

func sortParts(ps []*Partition) []*Partition {
	sort.Slice(ps, func(i, j int) bool {
		if ps[i].topic != ps[j].topic {
			return ps[i].topic < ps[j].topic
		}
		return ps[i].partition < ps[j].partition
	})
	return ps
}

// wakeChan is a channel that remembers one wake-up.
type wakeChan chan struct{}

func (w wakeChan) wake() {
	select {
	case w <- struct{}{}:
	default:
	}
}

// pause waits for d or the end of ctx.
func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

func (k partKey) String() string { return fmt.Sprintf("%s/%d", k.topic, k.partition) }
