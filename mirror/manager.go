package mirror

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"golang.org/x/sync/errgroup"

	"github.com/lockstep-kafka/lockstep/epoch"
	"github.com/lockstep-kafka/lockstep/internal/kconn"
	"github.com/lockstep-kafka/lockstep/internal/ledger"
)

// Access is how a cluster is reached: by kgo for what is rare, by kconn for
// records.
type Access struct {
	Client []kgo.Opt
	Dialer *kconn.Dialer
}

// MirrorOptions are one mirror's settings.
type MirrorOptions struct {
	Name              string
	Source            Access
	Filter            *TopicFilter
	ReplicationFactor int           // 0: the destination's default
	Configs           ConfigFilter  // which topic configs follow the source
	MinCompactionLag  time.Duration // hazard H1
	Refresh           time.Duration // of topics and configs
	ACLs              ACLOptions
	Groups            *GroupOptions // nil: group offsets are not synced
	// UncleanElections: what the configuration says of epoch.SettingULE; a verb
	// may say otherwise ([ledger.MirrorSettings]), and [Manager.SetUnclean].
	UncleanElections bool
	Tuning
}

// Options of a Manager; all are required but the mirrors.
type Options struct {
	Mirrors        []MirrorOptions
	Destination    Access
	View           *ledger.View   // must be running
	Writer         *ledger.Writer // Run doesn't close it
	MemoryLimit    int64          // bytes fetched and not yet written
	InstanceID     string         // static group membership when set
	SessionTimeout time.Duration
	Logger         *slog.Logger
	Registerer     prometheus.Registerer
	// Unclean tells whether a topic of a mirror follows unclean leader elections
	// of its source; nil: MirrorOptions and the ledger's settings do.
	Unclean func(mirror, topic string) bool
}

// Manager runs the mirrors of one instance: it shares the ledger's partitions
// with other instances, follows the sources' topics, and starts and stops the
// partitions that are its to mirror.
type Manager struct {
	opts    Options
	log     *slog.Logger
	owned   *owned
	owner   *Owner
	takes   *takes
	saves   saves
	metrics *managerMetrics
	groups  *groupsMetrics
	client  *kgo.Client // destination
	admin   *kadm.Client
	dest    *poller
	sources []*source
	keeper  *Engine                // partitions of mirrors that are not configured any more
	cluster atomic.Pointer[string] // id of the destination's
	learned chan struct{}          // closed when cluster is known
	life    context.Context        // of engines and of what looks at sources
	end     context.CancelFunc
	ahead   sync.Once // LookAhead
	wg      sync.WaitGroup
}

// New connects nothing yet.
func New(o Options) (*Manager, error) {
	m := &Manager{opts: o, log: o.Logger, learned: make(chan struct{}), owned: newOwned(o.View, o.Writer), metrics: newManagerMetrics(o.Registerer), groups: newGroupsMetrics(o.Registerer)}
	m.life, m.end = context.WithCancel(context.Background())
	var err error
	if m.client, err = kgo.NewClient(o.Destination.Client...); err != nil {
		return nil, fmt.Errorf("client for the destination: %w", err)
	}
	m.admin = kadm.NewClient(m.client)
	m.dest = newPoller(m.client, m.topics, m.setDest, func(err error) {
		m.log.Warn("destination metadata not refreshed", "err", err)
	})
	if m.owner, err = NewOwner(OwnerOptions{
		Client: o.Destination.Client, Logger: o.Logger, SessionTimeout: o.SessionTimeout, InstanceID: o.InstanceID,
		Release: m.release,
	}); err != nil {
		m.Close()
		return nil, err
	}
	m.owned.healthy = m.owner.Healthy
	m.takes = newTakes(m.owned, func(n int32) bool { return !m.owner.HandsOver(n) }, m.log)
	m.owned.fenced = func(n int32) {
		m.log.Warn("fenced: another instance writes the ledger partition", "ledger_partition", n)
		m.owner.Fenced(n)
	}
	memory := NewMemory(o.MemoryLimit)
	metrics := NewMetrics(o.Registerer)
	m.keeper = m.newEngine(nil, MirrorOptions{Source: o.Destination}, memory, metrics)
	for _, mo := range o.Mirrors {
		s, err := m.newSource(mo, memory, metrics)
		if err != nil {
			m.Close()
			return nil, err
		}
		m.sources = append(m.sources, s)
	}
	metrics.absent = m.absent
	return m, nil
}

// absent lists the partitions that should be mirrored here and aren't running:
// the source can't be reached since the start, or the group is lost, so that
// nobody knows whose they are.
func (m *Manager) absent() []absentKey {
	var out []absentKey
	lost, mine := !m.owner.Healthy(), m.owned.mine()
	m.opts.View.Each(func(e *ledger.Partition) {
		r := e.Record
		if r == nil || r.State == epoch.StateStopped || !lost && !mine[e.Home] {
			return
		}
		for _, s := range m.sources {
			if s.o.Name == r.Mirror && s.engine.Partition(e.Topic, e.Partition) == nil {
				out = append(out, absentKey{r.Mirror, e.Topic, e.Partition})
			}
		}
	})
	return out
}

func (m *Manager) newSource(o MirrorOptions, memory *Memory, metrics *Metrics) (*source, error) {
	client, err := kgo.NewClient(o.Source.Client...)
	if err != nil {
		return nil, fmt.Errorf("mirror %s: client for the source: %w", o.Name, err)
	}
	rf := int16(-1)
	if o.ReplicationFactor > 0 {
		rf = int16(o.ReplicationFactor)
	}
	s := &source{
		o: o, m: m, log: m.log.With("mirror", o.Name), client: client, wake: make(wakeChan, 1), resync: make(wakeChan, 1), gained: make(wakeChan, 1), ahead: make(chan lookResult, 1), led: sourceLedger{turn: make(chan struct{}, 1)},
		admin:  &topicAdmin{src: kadm.NewClient(client), dst: m.admin, from: client, to: m.client, filter: o.Filter, rf: rf, rules: configRules{filter: o.Configs, minLag: o.MinCompactionLag}},
		topics: map[string]*topicSync{},
	}
	s.poll = newPoller(client, s.names, func(c *Cluster) {
		s.reached(nil)
		s.engine.SetSource(c)
	}, func(err error) {
		s.reached(err)
		s.log.Warn("source metadata not refreshed", "err", err)
	})
	s.rules = []uncleanRule{{on: o.UncleanElections}}
	if err := m.groupSyncOf(s); err != nil {
		client.Close()
		return nil, fmt.Errorf("mirror %s: clients for groups: %w", o.Name, err)
	}
	s.engine = m.newEngine(s, o, memory, metrics)
	return s, nil
}

// source is a mirror's source, nil when this instance's configuration has no such
// mirror.
func (m *Manager) source(mirror string) *source {
	if i := slices.IndexFunc(m.sources, func(s *source) bool { return s.o.Name == mirror }); i >= 0 {
		return m.sources[i]
	}
	return nil
}

// newEngine makes the engine of a mirror, or with s nil the keeper's, which
// mirrors nothing.
func (m *Manager) newEngine(s *source, o MirrorOptions, memory *Memory, metrics *Metrics) *Engine {
	eo := EngineOptions{
		Mirror: o.Name, Source: o.Source.Dialer, Dest: m.opts.Destination.Dialer, Store: m.owned,
		Memory: memory, Metrics: metrics, Logger: m.log, Tuning: o.Tuning,
		RefreshDest: m.dest.refresh, Fenced: m.fenced, EndTxns: m.endTxns,
		Cleaner:  topicCleaner{m},
		Clusters: func() (string, string) { return m.self(), "" },
	}
	if s != nil {
		if s.groups != nil {
			eo.LastGroups = s.groups.last
		}
		eo.RefreshSource, eo.Clusters, eo.SourceLedger, eo.Unclean, eo.Unready = s.poll.refresh, s.clusters, s.sourceRecord, s.unclean, s.unready
	}
	return NewEngine(eo)
}

// Stay has Run end without leaving the group: another Manager of this instance
// takes over.
func (m *Manager) Stay() { m.owner.Stay() }

// LookAhead begins to ask the sources for what they have, so that it is there
// when the ledger has been read: a source may be far away. Nothing is written.
// Run or Close must follow.
func (m *Manager) LookAhead() {
	m.ahead.Do(func() {
		for _, s := range m.sources {
			s.setLife(m.life)
			m.wg.Go(func() { s.ahead <- s.looks(m.life) })
		}
	})
}

// Close gives back what New took, when Run is not called.
func (m *Manager) Close() {
	m.end()
	m.wg.Wait()
	m.client.Close()
	for _, s := range m.sources {
		s.client.Close()
		s.engine.src.close()
		if s.groups != nil {
			s.groups.close()
		}
	}
}

// Run mirrors until ctx ends, then hands over cleanly: nothing in flight, the
// last checkpoints written, the group left.
func (m *Manager) Run(ctx context.Context) error {
	defer m.Close()
	m.LookAhead()
	if err := m.opts.View.WaitReady(ctx); err != nil {
		return err
	}
	// The engines must outlive ctx until their partitions are released.
	engines, life := errgroup.WithContext(m.life)
	for _, e := range m.engines() {
		engines.Go(func() error { return e.Run(life) })
	}
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		select {
		case <-life.Done(): // an engine ended by itself
			return engines.Wait()
		case <-ctx.Done():
			return nil
		}
	})
	g.Go(func() error { return m.owner.Run(ctx) })
	g.Go(func() error { return m.learnCluster(ctx) })
	g.Go(func() error { return m.follow(ctx) })
	g.Go(func() error { return m.notice(ctx) })
	g.Go(func() error { return m.checkpoints(ctx) })
	g.Go(func() error { return m.dest.run(ctx) })
	for _, s := range m.sources {
		g.Go(func() error { return s.run(ctx) })
		g.Go(func() error { return s.poll.run(ctx) })
		g.Go(func() error { return s.followTxns(ctx) })
		if s.o.ACLs.Enabled {
			g.Go(func() error { return s.followACLs(ctx) })
		}
		if s.groups != nil {
			g.Go(func() error { return s.groups.run(ctx) })
		}
	}
	err := g.Wait()
	// The owner has released what it owned; what is left is stopped without.
	all := map[int32]bool{}
	for n := range int32(ledger.Partitions) {
		all[n] = true
	}
	var wg sync.WaitGroup
	for _, e := range m.engines() {
		wg.Go(func() { m.stopAll(context.WithoutCancel(ctx), e, all) })
	}
	wg.Wait()
	m.end()
	m.wg.Wait()
	if e := engines.Wait(); err == nil && e != nil {
		err = e
	}
	return err
}

// takenTogether is how long what was acquired waits for what still is: one look
// at topics and partitions for all is less work.
const takenTogether = time.Second

// follow takes ledger partitions that the group gives to this instance.
func (m *Manager) follow(ctx context.Context) error {
	defer m.takes.close()
	news, due := true, false
	var soon <-chan time.Time
	for {
		changed := m.owner.Changes()
		// What is lost is dropped at once and all together, before anything is
		// waited for; what was fenced stops before it may be taken again.
		owns := m.owner.Owned()
		m.takes.end(func(n int32) bool { return !slices.Contains(owns, n) })
		if lost := m.owned.left(owns); len(lost) > 0 {
			m.lose(ctx, lost)
			news = true
			continue // that takes time
		}
		for _, n := range owns {
			if !m.owned.has(n) {
				m.takes.begin(ctx, n)
			}
		}
		switch {
		case news && (due || m.takes.running() == 0):
			news, soon = false, nil
			m.metrics.owned(len(m.owned.list()))
			for _, s := range m.sources {
				s.wake.wake()
				s.gained.wake()
			}
		case news && soon == nil:
			soon = time.After(takenTogether)
		}
		due = false
		select {
		case <-changed:
			news = true
		case <-m.takes.ended:
			news = true
		case <-soon:
			soon, due = nil, true
		case <-ctx.Done():
			return nil
		}
	}
}

// lose stops what was ours until now, without a word in the ledger.
func (m *Manager) lose(ctx context.Context, lps map[int32]bool) {
	m.owned.forget(lps)
	var wg sync.WaitGroup
	for _, e := range m.engines() {
		wg.Go(func() { m.stopAll(ctx, e, lps) })
	}
	wg.Wait()
	m.owned.stopped(lps)
}

// release is called before ledger partitions go to another instance: it stops
// their partitions and writes their last checkpoints.
func (m *Manager) release(ctx context.Context, lps []int32) {
	set := map[int32]bool{}
	for _, n := range lps {
		set[n] = true
	}
	m.takes.end(func(n int32) bool { return set[n] })
	var wg sync.WaitGroup
	for _, e := range m.engines() {
		wg.Go(func() { m.stopAll(ctx, e, set) })
	}
	wg.Wait()
	m.owned.forget(set)
	m.owned.stopped(set)
	for _, n := range lps {
		_ = m.opts.Writer.Release(ctx, n)
	}
}

// fenced: another instance writes the ledger partition of a partition of ours.
// The group will say whose it is.
func (m *Manager) fenced(topic string, partition int32) {
	m.owned.fence(ledger.PartitionOf(topic, partition))
}

// checkpointEvery is below the 10 s of hazard M22.
const checkpointEvery = 5 * time.Second

func (m *Manager) checkpoints(ctx context.Context) error {
	tick := time.NewTicker(checkpointEvery)
	defer tick.Stop()
	defer m.saves.wg.Wait()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
		for _, s := range m.sources {
			m.checkpoint(ctx, s)
		}
		if pool := m.opts.Destination.Dialer.Pool; pool != nil { // one for all engines
			pool.Age()
		}
	}
}

// checkpoint writes the checkpoints of a mirror's partitions that have moved. It
// waits for none.
func (m *Manager) checkpoint(ctx context.Context, s *source) {
	by := map[int32][]ledger.Checkpoint{}
	for _, cp := range s.engine.Checkpoints() {
		n := ledger.PartitionOf(cp.Topic, cp.Partition)
		by[n] = append(by[n], cp)
	}
	for n, cps := range by {
		begun := m.saves.begin(saveKey{s.o.Name, n}, func() {
			if err := m.owned.checkpoint(ctx, cps); err != nil && ctx.Err() == nil {
				s.engine.unsaved(cps)
				m.log.Warn("checkpoints not written", "mirror", s.o.Name, "err", err)
			}
		})
		if !begun {
			s.engine.unsaved(cps)
		}
	}
}

// saves are the checkpoints being written: those of one ledger partition don't
// wait for another's, whose brokers may hang.
type saves struct {
	wg  sync.WaitGroup
	mu  sync.Mutex
	now map[saveKey]bool
}

type saveKey struct {
	mirror string
	n      int32 // ledger partition
}

// begin runs f on a goroutine of its own; false: the one before is still at it.
func (x *saves) begin(k saveKey, f func()) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.now[k] {
		return false
	}
	if x.now == nil {
		x.now = map[saveKey]bool{}
	}
	x.now[k] = true
	x.wg.Go(func() {
		f()
		x.mu.Lock()
		defer x.mu.Unlock()
		delete(x.now, k)
	})
	return true
}

// topics are all whose destination metadata some engine needs.
func (m *Manager) topics() []string {
	set := map[string]bool{}
	for _, e := range m.engines() {
		for _, p := range e.all() {
			set[p.topic] = true
		}
	}
	return sortedKeys(set)
}

func (m *Manager) setDest(c *Cluster) {
	for _, e := range m.engines() {
		e.SetDest(c)
	}
}

// knownConfigs are the topic configs that the destination knows, with its own
// defaults, as its ledger topic shows them.
func (m *Manager) knownConfigs(ctx context.Context) (topicConfigs, error) {
	cs, err := configs(ctx, m.admin, ledger.Topic)
	if err != nil {
		return nil, fmt.Errorf("the destination: %w", err)
	}
	return cs[ledger.Topic], nil
}
