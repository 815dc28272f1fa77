package mirror

import "github.com/prometheus/client_golang/prometheus"

// managerMetrics are those of ownership and topics; the engine has its own.
type managerMetrics struct {
	ledgerPartitions prometheus.Gauge
	syncFailures     *prometheus.CounterVec
	failedTopics     *prometheus.GaugeVec
}

func newManagerMetrics(r prometheus.Registerer) *managerMetrics {
	m := &managerMetrics{
		ledgerPartitions: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "lockstep_ledger_partitions_owned", Help: "Ledger partitions, and so shares of the mirrors, that this instance owns.",
		}),
		syncFailures: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "lockstep_topic_sync_failures_total", Help: "Syncs of topics with the source that failed as a whole.",
		}, []string{"mirror"}),
		failedTopics: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "lockstep_topic_failed", Help: "1 for a topic that can't be mirrored, with the reason.",
		}, []string{"mirror", "topic", "reason"}),
	}
	if r != nil {
		r.MustRegister(m.ledgerPartitions, m.syncFailures, m.failedTopics)
	}
	return m
}

func (m *managerMetrics) owned(n int) { m.ledgerPartitions.Set(float64(n)) }

func (m *managerMetrics) syncFailed(mirror string) { m.syncFailures.WithLabelValues(mirror).Inc() }

func (m *managerMetrics) topicFailed(mirror, topic, reason string, failed bool) {
	m.failedTopics.DeletePartialMatch(prometheus.Labels{"mirror": mirror, "topic": topic})
	if failed {
		m.failedTopics.WithLabelValues(mirror, topic, reason).Set(1)
	}
}
