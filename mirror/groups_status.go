package mirror

import (
	"cmp"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// GroupStatus is a group's offset of one partition as this instance knows it.
// Partition is -1, and Topic empty, when it stands for a whole group.
type GroupStatus struct {
	Mirror    string
	Group     string
	Topic     string
	Partition int32

	SourceOffset      int64 // -1: none, or not known
	SourceEpoch       int32
	DestinationOffset int64 // -1: none, or not known
	DestinationEpoch  int32
	Lag               int64 // records here behind the destination's offset; -1: not known
	Reason            GroupReason
	Error             string
	Since             time.Time // since when Reason
	Synced            time.Time // last time in step; zero: never
}

// Groups are the group offsets of all mirrors that keep says to keep, as this
// instance knows them: those of the partitions that it mirrors. Sorted.
func (m *Manager) Groups(keep func(mirror, group, topic string) bool) []GroupStatus {
	var out []GroupStatus
	for _, s := range m.sources {
		if s.groups != nil {
			out = append(out, s.groups.status(s.o.Name, keep)...)
		}
	}
	slices.SortFunc(out, func(a, b GroupStatus) int {
		return cmp.Or(cmp.Compare(a.Mirror, b.Mirror), cmp.Compare(a.Group, b.Group), cmp.Compare(a.Topic, b.Topic), cmp.Compare(a.Partition, b.Partition))
	})
	return out
}

func (s *groupSync) status(mirror string, keep func(mirror, group, topic string) bool) []GroupStatus {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []GroupStatus
	for name, g := range s.groups {
		if g.reason != 0 && len(g.entries) == 0 && keep(mirror, name, "") {
			out = append(out, GroupStatus{
				Mirror: mirror, Group: name, Partition: -1, SourceOffset: -1, SourceEpoch: -1, DestinationOffset: -1, DestinationEpoch: -1, Lag: -1,
				Reason: g.reason, Error: g.err, Since: time.Unix(g.since, 0),
			})
		}
		for i := range g.entries {
			e := &g.entries[i]
			if !keep(mirror, name, e.part.topic) {
				continue
			}
			r := GroupStatus{
				Mirror: mirror, Group: name, Topic: e.part.topic, Partition: e.part.partition,
				SourceOffset: e.src.offset, SourceEpoch: e.src.epoch, DestinationOffset: e.dst.offset, DestinationEpoch: e.dst.epoch,
				Lag: e.lag(), Reason: e.reason, Since: time.Unix(e.since, 0),
			}
			if e.synced > 0 {
				r.Synced = time.Unix(e.synced, 0)
			}
			if e.reason != GroupSynced {
				r.Error = g.err
			}
			if g.reason != 0 {
				r.Reason, r.Since = g.reason, time.Unix(g.since, 0)
			}
			out = append(out, r)
		}
	}
	return out
}

// lag is how many offsets the group has before it here, counted from the log's
// start if its commit lies below that.
func (e *groupEntry) lag() int64 {
	if e.dst.offset < 0 || e.part.seen == nil {
		return -1
	}
	b := &e.part.bounds
	return max(b.end-max(e.dst.offset, b.start), 0)
}

// reasons counts the offsets by reason, for the metrics. mu is not held.
func (s *groupSync) reasons() (by map[GroupReason]int, synced int, done time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	by = map[GroupReason]int{}
	for _, g := range s.groups {
		if g.reason != 0 {
			by[g.reason]++
			continue
		}
		all := true
		for i := range g.entries {
			by[g.entries[i].reason]++
			all = all && g.entries[i].reason == GroupSynced
		}
		if all {
			synced++
		}
	}
	return by, synced, s.done
}

// groupsMetrics are those of all mirrors; groupMetrics one mirror's.
type groupsMetrics struct {
	commits, failed *prometheus.CounterVec
	errors          *prometheus.CounterVec
	cycle           *prometheus.GaugeVec

	mu    sync.Mutex
	syncs map[string]*groupSync
	start time.Time
}

type groupMetrics struct {
	mirror          string
	commits, failed prometheus.Counter
	errors          *prometheus.CounterVec
	cycle           prometheus.Gauge
}

func newGroupsMetrics(r prometheus.Registerer) *groupsMetrics {
	m := &groupsMetrics{
		commits: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "lockstep_groups_commits_total", Help: "Commits of group offsets sent to the destination: one for each group that changed.",
		}, []string{"mirror"}),
		failed: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "lockstep_groups_sync_failures_total", Help: "Syncs of group offsets that failed as a whole.",
		}, []string{"mirror"}),
		errors: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "lockstep_groups_commit_errors_total", Help: "Commits of group offsets that the destination refused or didn't answer, by code.",
		}, []string{"mirror", "code"}),
		cycle: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "lockstep_groups_sync_seconds", Help: "Time that the newest sync of all groups took.",
		}, []string{"mirror"}),
		syncs: map[string]*groupSync{}, start: time.Now(),
	}
	if r != nil {
		r.MustRegister(m.commits, m.failed, m.errors, m.cycle, groupsCollector{m})
	}
	return m
}

func (m *groupsMetrics) of(mirror string) *groupMetrics {
	return &groupMetrics{
		mirror: mirror, commits: m.commits.WithLabelValues(mirror), failed: m.failed.WithLabelValues(mirror), errors: m.errors,
		cycle: m.cycle.WithLabelValues(mirror),
	}
}

func (m *groupsMetrics) add(mirror string, s *groupSync) {
	m.mu.Lock()
	m.syncs[mirror] = s
	m.mu.Unlock()
}

var (
	descGroups = prometheus.NewDesc("lockstep_groups_synced", "Groups of which every offset is in step, of the partitions that this instance mirrors.", []string{"mirror"}, nil)
	descSkips  = prometheus.NewDesc("lockstep_groups_offsets", "Offsets of groups (one for each group and partition) by what became of them: synced, or why not.", []string{"mirror", "reason"}, nil)
	descAge    = prometheus.NewDesc("lockstep_groups_sync_age_seconds", "Time since the newest whole sync of group offsets.", []string{"mirror"}, nil)
)

type groupsCollector struct{ m *groupsMetrics }

func (c groupsCollector) Describe(ch chan<- *prometheus.Desc) {
	ch <- descGroups
	ch <- descSkips
	ch <- descAge
}

func (c groupsCollector) Collect(ch chan<- prometheus.Metric) {
	c.m.mu.Lock()
	defer c.m.mu.Unlock()
	for name, s := range c.m.syncs {
		by, synced, done := s.reasons()
		if done.IsZero() {
			done = c.m.start
		}
		ch <- prometheus.MustNewConstMetric(descGroups, prometheus.GaugeValue, float64(synced), name)
		ch <- prometheus.MustNewConstMetric(descAge, prometheus.GaugeValue, time.Since(done).Seconds(), name)
		for r := GroupSynced; r < groupReasonEnd; r++ {
			ch <- prometheus.MustNewConstMetric(descSkips, prometheus.GaugeValue, float64(by[r]), name, r.String())
		}
	}
}
