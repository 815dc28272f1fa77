package proxy

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics are the numbers of the proxy. No label comes from a client: topics
// are mirror topics, and the rest is fixed.
type metrics struct {
	closed       [numReasons]prometheus.Counter
	clientIn     prometheus.Counter
	clientOut    prometheus.Counter
	upstreamIn   prometheus.Counter
	upstreamOut  prometheus.Counter
	dialFailures prometheus.Counter
	handlers     handlerCounters
}

// newMetrics registers with reg unless it is nil.
func newMetrics(reg prometheus.Registerer, p *Proxy) (*metrics, error) {
	m := &metrics{}
	closed := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "lockstep_closed_connections_total",
		Help: "Client connections that ended, by reason.",
	}, []string{"reason"})
	for r := range numReasons {
		m.closed[r] = closed.WithLabelValues(r.String())
	}
	bytes := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "lockstep_proxy_bytes_total",
		Help: "Bytes that passed the proxy: side is client or broker, direction is seen from Lockstep (in: received).",
	}, []string{"side", "direction"})
	m.clientIn = bytes.WithLabelValues("client", "in")
	m.clientOut = bytes.WithLabelValues("client", "out")
	m.upstreamIn = bytes.WithLabelValues("broker", "in")
	m.upstreamOut = bytes.WithLabelValues("broker", "out")
	m.dialFailures = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "lockstep_broker_dial_failures_total",
		Help: "Failed attempts to connect a client to a broker.",
	})
	hidden := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "lockstep_hidden_batches_total",
		Help: "Batches of mirror topics that were read for clients and not shown: dead, foreign or duplicate ones.",
	}, []string{"topic"})
	alarms := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "lockstep_direct_writer_alarms_total",
		Help: "Fetches that met an open transaction in a mirrored span: someone writes to a mirror topic past the proxy.",
	}, []string{"topic"})
	refused := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "lockstep_refused_requests_total",
		Help: "Requests on mirror topics that were refused because the partition is not STOPPED.",
	}, []string{"topic", "api"})
	unsound := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "lockstep_native_span_lost_total",
		Help: "Requests answered with a retriable error because the destination lost records below a STOPPED partition's local ones, until that is settled.",
	}, []string{"topic"})
	deadDup := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "lockstep_dead_produce_answers_total",
		Help: "Produced batches whose offset, as the broker answered it, is of a record that was cut: the producer got an error instead.",
	}, []string{"topic"})
	blind := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "lockstep_fetches_without_epoch_above_cut_total",
		Help: "Fetches of clients that send no leader epochs, at a position above a cut: they go on in what is there now, as with Kafka itself.",
	}, []string{"topic"})
	m.handlers = handlerCounters{
		unsound: func(topic string, _ int32) { unsound.WithLabelValues(topic).Inc() },
		deadDup: func(topic string, _ int32) { deadDup.WithLabelValues(topic).Inc() },
		blind:   func(topic string, _ int32) { blind.WithLabelValues(topic).Inc() },
		hidden:  func(topic string, _ int32, n int) { hidden.WithLabelValues(topic).Add(float64(n)) },
		alarm:   func(topic string, _ int32) { alarms.WithLabelValues(topic).Inc() },
		refused: func(topic string, _ int32, api string) { refused.WithLabelValues(topic, api).Inc() },
	}
	open := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "lockstep_open_connections",
		Help: "Client connections now.",
	}, func() float64 { return float64(p.open.Load()) })
	buffered := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "lockstep_proxy_buffered_bytes",
		Help: "Bytes of clients and brokers that wait in Lockstep's own buffers.",
	}, func() float64 {
		now, _ := p.engine.held()
		return float64(now)
	})
	waiting := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "lockstep_proxy_memory_waiting",
		Help: "Requests and answers that wait for room in limits.proxy_memory.",
	}, func() float64 { return float64(p.budget.waiting.Load()) })
	readable := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "lockstep_ledger_readable",
		Help: "1 while the ledger was read to its end within the lease, 0 while mirror topics are not served.",
	}, func() float64 {
		if p.view == nil || p.view.Fresh() {
			return 1
		}
		return 0
	})
	if reg == nil {
		return m, nil
	}
	for _, c := range []prometheus.Collector{closed, bytes, m.dialFailures, hidden, alarms, refused, unsound, deadDup, blind, open, buffered, waiting, readable} {
		if err := reg.Register(c); err != nil {
			return nil, fmt.Errorf("register the proxy's metrics: %w", err)
		}
	}
	return m, nil
}
