package proxy

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics are the numbers of the proxy; their count is fixed, no label comes
// from a client.
type metrics struct {
	closed       [numReasons]prometheus.Counter
	clientIn     prometheus.Counter
	clientOut    prometheus.Counter
	upstreamIn   prometheus.Counter
	upstreamOut  prometheus.Counter
	dialFailures prometheus.Counter
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
	if reg == nil {
		return m, nil
	}
	for _, c := range []prometheus.Collector{closed, bytes, m.dialFailures, open, buffered} {
		if err := reg.Register(c); err != nil {
			return nil, fmt.Errorf("register the proxy's metrics: %w", err)
		}
	}
	return m, nil
}
