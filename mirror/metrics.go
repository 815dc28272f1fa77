package mirror

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/lockstep-kafka/lockstep/epoch"
)

// Metrics are the mirror's Prometheus collectors, one set for a process.
type Metrics struct {
	bytes, batches, records                     *prometheus.CounterVec
	slow, merged                                *prometheus.CounterVec
	gens, foreign, gaps, gapOffsets, lateCopies *prometheus.CounterVec
	fetchErrs, produceErrs, fails               *prometheus.CounterVec
	dials                                       *prometheus.CounterVec
	produced                                    *prometheus.HistogramVec

	mu    sync.Mutex
	parts map[*Partition]struct{}
	// What is not running although it should: its lag must not vanish from the
	// alerts just when nothing moves.
	absent  func() []absentKey
	left    map[absentKey]absentLag // as it was when it stopped running
	started time.Time
}

type absentKey struct {
	mirror, topic string
	partition     int32
}

type absentLag struct {
	since          time.Time // when it was caught up, as far as known
	offsets, bytes int64
}

// NewMetrics makes the collectors and registers them, if there is a registerer.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	vec := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "lockstep", Subsystem: "mirror", Name: name, Help: help}, labels)
	}
	m := &Metrics{
		bytes:       vec("bytes_total", "Bytes of record batches appended to the destination.", "mirror", "topic"),
		batches:     vec("batches_total", "Record batches appended to the destination.", "mirror", "topic"),
		records:     vec("offsets_total", "Source offsets of the batches appended.", "mirror", "topic"),
		slow:        vec("slow_batches_total", "Batches re-encoded: holes inside, or timestamp type LogAppendTime.", "mirror", "topic"),
		merged:      vec("merged_batches_total", "Small source batches that were written together with their neighbours.", "mirror", "topic"),
		gens:        vec("generations_total", "New generations by cause.", "mirror", "topic", "cause"),
		foreign:     vec("foreign_batches_total", "Times that something not written by this owner was found in front of a batch.", "mirror", "topic"),
		lateCopies:  vec("late_copies_total", "Copies of compacted topics that took longer than the source keeps tombstones.", "mirror", "topic"),
		gaps:        vec("gaps_total", "Times that the source's retention passed the mirror.", "mirror", "topic"),
		gapOffsets:  vec("gap_offsets_total", "Source offsets that were removed before they were mirrored.", "mirror", "topic"),
		fetchErrs:   vec("fetch_errors_total", "Failed fetches from the source by code.", "mirror", "code"),
		produceErrs: vec("produce_errors_total", "Failed produces to the destination by code.", "mirror", "code"),
		fails:       vec("failed_total", "Times that a partition went FAILED, by reason.", "mirror", "topic", "reason"),
		dials:       vec("connect_errors_total", "Failed connections by side and cause.", "mirror", "side", "cause"),
		produced: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Namespace: "lockstep", Subsystem: "mirror", Name: "produce_seconds", Help: "Time that a produce request to a destination broker took, failed ones included.",
			Buckets: prometheus.ExponentialBuckets(0.001, 4, 8),
		}, []string{"mirror", "broker"}),
		parts:   map[*Partition]struct{}{},
		absent:  func() []absentKey { return nil },
		left:    map[absentKey]absentLag{},
		started: time.Now(),
	}
	if reg != nil {
		reg.MustRegister(m.bytes, m.batches, m.records, m.slow, m.merged, m.gens, m.foreign, m.gaps, m.gapOffsets, m.lateCopies, m.fetchErrs, m.produceErrs, m.fails, m.dials, m.produced, lagCollector{m})
	}
	return m
}

// partMetrics are the counters of one partition, bound to their labels once.
type partMetrics struct {
	m                              *Metrics
	mirror, topic                  string
	bytes, batches                 prometheus.Counter
	records, slow, merged, foreign prometheus.Counter
	gaps, gapOffsets, lateCopies   prometheus.Counter
}

func (m *Metrics) partition(mirror, topic string) partMetrics {
	return partMetrics{
		m: m, mirror: mirror, topic: topic,
		bytes: m.bytes.WithLabelValues(mirror, topic), batches: m.batches.WithLabelValues(mirror, topic),
		records: m.records.WithLabelValues(mirror, topic), slow: m.slow.WithLabelValues(mirror, topic), merged: m.merged.WithLabelValues(mirror, topic),
		foreign: m.foreign.WithLabelValues(mirror, topic),
		gaps:    m.gaps.WithLabelValues(mirror, topic), gapOffsets: m.gapOffsets.WithLabelValues(mirror, topic), lateCopies: m.lateCopies.WithLabelValues(mirror, topic),
	}
}

func (p *partMetrics) generation(cause string) {
	p.m.gens.WithLabelValues(p.mirror, p.topic, cause).Inc()
}

func (p *partMetrics) failures(reason string) {
	p.m.fails.WithLabelValues(p.mirror, p.topic, reason).Inc()
}

func (p *partMetrics) fetchError(code string) { p.m.fetchErrs.WithLabelValues(p.mirror, code).Inc() }

func (p *partMetrics) produceError(code string) {
	p.m.produceErrs.WithLabelValues(p.mirror, code).Inc()
}

// verdict counts what a re-read of the tail met.
func (p *partMetrics) verdict(v epoch.Verdict, n int) {
	if v == epoch.Foreign {
		p.foreign.Add(float64(n))
	}
}

func (m *Metrics) add(p *Partition) { m.mu.Lock(); m.parts[p] = struct{}{}; m.mu.Unlock() }

// remove takes a partition out, which is p.mu's holder's own doing; its lag
// stays known.
func (m *Metrics) remove(p *Partition) {
	l := p.lag()
	k := absentKey{p.eng.Mirror, p.topic, p.partition}
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.parts, p)
	m.left[k] = absentLag{since: time.Now().Add(-l.Time), offsets: l.Offsets, bytes: l.Bytes}
}

// Lag is how far a partition is behind its source.
type Lag struct {
	Offsets int64         // source offsets up to its last stable offset
	Bytes   int64         // estimated by the mean size so far
	Time    time.Duration // since it had caught up last
}

// staleAfter is how old the last good fetch may be: a partition that isn't
// fetched is not caught up, whatever its numbers say. An idle one is fetched
// all the time.
const staleAfter = 5 * time.Second

// Lag is zero when the partition has caught up, or isn't to be mirrored now
// (STOPPED). While nothing can be fetched its time grows.
func (p *Partition) Lag() Lag {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.lag()
}

// lag is Lag; p.mu is held.
func (p *Partition) lag() Lag {
	var l Lag
	if p.rec != nil && (p.rec.State == epoch.StateStopped || p.rec.State == epoch.StateStopping) {
		return l
	}
	if time.Since(p.stats.lastFetch) > staleAfter {
		l.Time = time.Since(p.stats.caughtUp)
	}
	if p.stats.sourceEnd > p.tail.position {
		l.Offsets = p.stats.sourceEnd - p.tail.position
		l.Time = time.Since(p.stats.caughtUp)
		if p.stats.records > 0 {
			l.Bytes = int64(float64(l.Offsets) * float64(p.stats.bytes) / float64(p.stats.records))
		}
	}
	return l
}

var (
	lagLabels  = []string{"mirror", "topic", "partition"}
	descLag    = prometheus.NewDesc("lockstep_mirror_lag_records", "Source offsets not yet mirrored.", lagLabels, nil)
	descLagB   = prometheus.NewDesc("lockstep_mirror_lag_bytes", "Estimated bytes not yet mirrored.", lagLabels, nil)
	descLagT   = prometheus.NewDesc("lockstep_mirror_lag_seconds", "Time since the partition had caught up.", lagLabels, nil)
	descFailed = prometheus.NewDesc("lockstep_mirror_partition_failed", "1 while the partition is FAILED.", lagLabels, nil)
)

// lagCollector computes the lag of every partition when it is asked for.
type lagCollector struct{ m *Metrics }

func (c lagCollector) Describe(ch chan<- *prometheus.Desc) {
	ch <- descLag
	ch <- descLagB
	ch <- descLagT
	ch <- descFailed
}

func (c lagCollector) Collect(ch chan<- prometheus.Metric) {
	c.m.mu.Lock()
	ps := make([]*Partition, 0, len(c.m.parts))
	for p := range c.m.parts {
		ps = append(ps, p)
	}
	c.m.mu.Unlock()
	for _, p := range ps {
		l, failed := p.Lag(), 0.0
		if p.Status().Failed {
			failed = 1
		}
		labels := []string{p.eng.Mirror, p.topic, itoa(p.partition)}
		ch <- prometheus.MustNewConstMetric(descLag, prometheus.GaugeValue, float64(l.Offsets), labels...)
		ch <- prometheus.MustNewConstMetric(descLagB, prometheus.GaugeValue, float64(l.Bytes), labels...)
		ch <- prometheus.MustNewConstMetric(descLagT, prometheus.GaugeValue, l.Time.Seconds(), labels...)
		ch <- prometheus.MustNewConstMetric(descFailed, prometheus.GaugeValue, failed, labels...)
	}
	for _, k := range c.m.absent() {
		c.m.mu.Lock()
		was, ok := c.m.left[k]
		c.m.mu.Unlock()
		if !ok {
			was.since = c.m.started
		}
		labels := []string{k.mirror, k.topic, itoa(k.partition)}
		ch <- prometheus.MustNewConstMetric(descLag, prometheus.GaugeValue, float64(was.offsets), labels...)
		ch <- prometheus.MustNewConstMetric(descLagB, prometheus.GaugeValue, float64(was.bytes), labels...)
		ch <- prometheus.MustNewConstMetric(descLagT, prometheus.GaugeValue, time.Since(was.since).Seconds(), labels...)
		ch <- prometheus.MustNewConstMetric(descFailed, prometheus.GaugeValue, 0, labels...)
	}
}
