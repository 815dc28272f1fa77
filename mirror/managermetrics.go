package mirror

import "github.com/prometheus/client_golang/prometheus"

// managerMetrics are those of ownership and topics; the engine has its own.
type managerMetrics struct {
	ledgerPartitions prometheus.Gauge
	syncFailures     *prometheus.CounterVec
	failedTopics     *prometheus.GaugeVec
	sources          *prometheus.GaugeVec
	aclRules         *prometheus.GaugeVec
	aclFailures      *prometheus.CounterVec
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
		sources: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "lockstep_mirror_source_up", Help: "1 while the source answers, 0 while it can't be asked for metadata or topics.",
		}, []string{"mirror"}),
		aclRules: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "lockstep_acl_rules", Help: "ACLs of a mirror at its newest sync: in_step, to_add, to_remove, held_back until a failover.",
		}, []string{"mirror", "kind"}),
		aclFailures: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "lockstep_acl_sync_failures_total", Help: "Syncs of ACLs that failed.",
		}, []string{"mirror"}),
	}
	if r != nil {
		r.MustRegister(m.ledgerPartitions, m.syncFailures, m.failedTopics, m.sources, m.aclRules, m.aclFailures)
	}
	return m
}

func (m *managerMetrics) owned(n int) { m.ledgerPartitions.Set(float64(n)) }

// sourceUp says whether the source answered just now.
func (m *managerMetrics) sourceUp(mirror string, up bool) {
	v := 0.0
	if up {
		v = 1
	}
	m.sources.WithLabelValues(mirror).Set(v)
}

func (m *managerMetrics) syncFailed(mirror string) { m.syncFailures.WithLabelValues(mirror).Inc() }

func (m *managerMetrics) topicFailed(mirror, topic, reason string, failed bool) {
	m.failedTopics.DeletePartialMatch(prometheus.Labels{"mirror": mirror, "topic": topic})
	if failed {
		m.failedTopics.WithLabelValues(mirror, topic, reason).Set(1)
	}
}

func (m *managerMetrics) aclsFailed(mirror string) { m.aclFailures.WithLabelValues(mirror).Inc() }

func (m *managerMetrics) acls(mirror string, p aclPlan) {
	for kind, n := range map[string]int{
		"in_step": p.inStep(), "to_add": len(p.create), "to_remove": len(p.remove), "held_back": len(p.held),
	} {
		m.aclRules.WithLabelValues(mirror, kind).Set(float64(n))
	}
}
