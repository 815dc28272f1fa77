// Package proxy is Lockstep's data path for clients: it listens like a Kafka
// cluster, passes everything through to the brokers of the destination, and
// answers what touches mirror topics from their virtual logs.
//
// The net part (engine, conn, session, request, response, xchg, listener, dial,
// topology, drain) knows frames and headers only. What a request means is
// behind the interfaces exchange and requestHandler (exchange.go).
package proxy

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/lockstep-kafka/lockstep/internal/ledger"
)

// Options of New.
type Options struct {
	Listeners []Listener
	// Bootstrap addresses of the destination, host:port; all are tried.
	Bootstrap []string
	// TLS to the destination's brokers, for clients' connections: the settings
	// for the next one to addr; nil: plaintext.
	TLS func(addr string) *tls.Config
	// ClientOptions are TLS and SASL of Lockstep's own connection to the
	// destination, by which it knows the brokers.
	ClientOptions []kgo.Opt
	// Dial opens connections for clients; nil: a net.Dialer's.
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)
	// Refresh is how often the brokers are listed without a reason; 0: 60 s.
	Refresh time.Duration
	Loops   int // event loops; 0: one per usable CPU
	Limits  Limits
	// View of the ledger: which topics are mirrors, and how they are to be
	// shown. nil: none, everything passes through.
	View *ledger.View
	// FetchUpstreamMaxBytes is the most that is asked of a broker for one client
	// Fetch that touches mirror topics; 0: 8 MiB.
	FetchUpstreamMaxBytes int32

	Logger     *slog.Logger          // nil: slog.Default()
	Registerer prometheus.Registerer // nil: no metrics

	handler requestHandler // tests
}

// Limits bound what clients can use. A zero field gets the default.
type Limits struct {
	MaxFrameBytes       int           // 100 MiB
	MaxConnections      int           // 10000
	MaxConnectionsPerIP int           // none
	MaxInFlight         int           // 1000: requests of one connection that wait for their answer
	Memory              int64         // 512 MiB: bound on what is held for all clients (budget.go)
	FetchUpstreamMax    int32         // Options.FetchUpstreamMaxBytes
	ClientOutboundMax   int           // 4 MiB: high-water mark of what waits for one slow peer
	IdleTimeout         time.Duration // 10 min
	HandshakeTimeout    time.Duration // 10 s: first request, and reaching the broker
	StalledFrameTimeout time.Duration // 30 s: within this time a request that was begun makes progress
	MaxAge              time.Duration // none: how long a connection may be open (age.go)
	DrainDelay          time.Duration // none: from the end of Run's context to the end of accepting
	DrainTimeout        time.Duration // 30 s; negative: none
}

func (l Limits) withDefaults() Limits {
	set := func(n *int, d int) {
		if *n == 0 {
			*n = d
		}
	}
	wait := func(n *time.Duration, d time.Duration) {
		if *n == 0 {
			*n = d
		}
	}
	set(&l.MaxFrameBytes, 100<<20)
	set(&l.MaxConnections, 10000)
	set(&l.MaxInFlight, 1000)
	set(&l.ClientOutboundMax, 4<<20)
	if l.Memory == 0 {
		l.Memory = 512 << 20
	}
	wait(&l.IdleTimeout, 10*time.Minute)
	wait(&l.HandshakeTimeout, 10*time.Second)
	wait(&l.StalledFrameTimeout, 30*time.Second)
	wait(&l.DrainTimeout, 30*time.Second)
	l.DrainTimeout = max(l.DrainTimeout, 0)
	return l
}

// linger is how long a closed connection may take to get rid of what it still
// has to say.
func (l Limits) linger() time.Duration { return l.HandshakeTimeout }

// Proxy serves clients.
type Proxy struct {
	log       *slog.Logger
	lim       atomic.Pointer[Limits] // SetLimits replaces it
	bootstrap []string
	dial      func(ctx context.Context, network, addr string) (net.Conn, error)
	tls       func(addr string) *tls.Config
	fronts    []*frontend
	topology  *topology
	handler   requestHandler
	view      *ledger.View // nil: no mirrors are known of
	handlers  *handlers    // the same, when there is a view
	engine    *engine
	budget    *budget
	m         *metrics
	logged    [numReasons]closeLog

	ctx    context.Context // of dials; ends after the drain
	cancel context.CancelFunc
	wg     sync.WaitGroup // goroutines but the loops
	open   atomic.Int64   // client connections
	admission
	sleep    func(time.Duration)
	nextSeed atomic.Uint32
	ending   atomic.Bool // Run's context has ended
	draining atomic.Bool
}

// New binds all ports; clients are served by Run, which must be called (or
// Close, to give the ports back).
func New(opts Options) (_ *Proxy, err error) {
	if len(opts.Listeners) == 0 || len(opts.Bootstrap) == 0 {
		return nil, errors.New("proxy needs a listener and a bootstrap address of the destination")
	}
	p := &Proxy{
		log: opts.Logger, bootstrap: opts.Bootstrap, tls: opts.TLS,
		dial: opts.Dial, handler: opts.handler, sleep: time.Sleep,
	}
	if p.log == nil {
		p.log = slog.Default()
	}
	if p.dial == nil {
		p.dial = (&net.Dialer{}).DialContext
	}
	p.SetLimits(opts.Limits)
	p.from = make(map[netip.Addr]int)
	p.ctx, p.cancel = context.WithCancel(context.Background())
	defer func() {
		if err != nil {
			p.Close()
		}
	}()
	if p.engine, err = newEngine(opts.Loops, p.log); err != nil {
		return nil, err
	}
	p.budget = newBudget(p.engine, func() int64 { return p.limits().Memory })
	if p.m, err = newMetrics(opts.Registerer, p); err != nil {
		return nil, err
	}
	refresh := opts.Refresh
	if refresh <= 0 {
		refresh = time.Minute
	}
	if p.topology, err = newTopology(opts.Bootstrap, opts.ClientOptions, refresh, p.log); err != nil {
		return nil, err
	}
	for _, cfg := range opts.Listeners {
		f, err := p.bind(p.ctx, cfg)
		if err != nil {
			return nil, err
		}
		p.fronts = append(p.fronts, f)
	}
	if opts.View != nil && p.handler == nil {
		p.handlers = newHandlers(handlerOptions{
			View: opts.View, Logger: p.log, FetchUpstreamMax: opts.FetchUpstreamMaxBytes,
			Counters: p.m.handlers,
		})
		p.handler, p.view = p.handlers, opts.View
	}
	if p.handler == nil {
		p.handler = noHandler{}
	}
	return p, nil
}

func (p *Proxy) limits() *Limits { return p.lim.Load() }

// SetLimits changes what is looked at from now on; zero fields get defaults.
// Connections that are open keep what they have: none is closed for a limit
// that was lowered.
func (p *Proxy) SetLimits(l Limits) {
	l = l.withDefaults()
	p.lim.Store(&l)
	if p.budget != nil {
		p.budget.giveBack(0) // a higher bound lets those go on that wait
	}
}

// Close gives back what New took; only for a Proxy that Run was not called on.
func (p *Proxy) Close() {
	p.cancel()
	for _, f := range p.fronts {
		f.close()
	}
	if p.topology != nil {
		p.topology.client.Close()
	}
	if p.engine != nil {
		p.engine.closePollers()
	}
}

// Run serves clients until ctx ends, then drains: it stops accepting, lets open
// requests finish, and returns when the last connection is closed, or after
// limits.DrainTimeout. It returns nil then.
func (p *Proxy) Run(ctx context.Context) error {
	// Before the first full read of the ledger nobody knows which topics are
	// mirrors: nothing may pass (hazard H10). The ports are bound, so clients
	// that come early wait.
	if p.view != nil {
		_ = p.view.WaitReady(ctx) // its only error is that of ctx
	}
	select {
	case <-ctx.Done():
		p.ending.Store(true)
		p.Close()
		return nil
	default:
	}
	p.engine.start()
	p.topology.onBrokers = func(ids []int32) {
		for _, f := range p.fronts {
			f.logMap(ids)
		}
	}
	p.wg.Go(func() { p.topology.run(p.ctx) })
	arriving, refuse := context.WithCancel(p.ctx)
	defer refuse()
	var accepting sync.WaitGroup
	for _, f := range p.fronts {
		for _, ln := range f.lns {
			accepting.Go(func() { f.serve(arriving, ln) })
		}
		f.logStart()
	}
	<-ctx.Done()
	p.ending.Store(true)
	if d := p.limits().DrainDelay; d > 0 {
		p.log.Info("not ready any more; clients are still accepted for a while, so that load balancers notice first", "for", d)
		p.sleep(d)
	}
	for _, f := range p.fronts {
		f.close()
	}
	accepting.Wait()
	refuse() // those that are not clients yet
	p.drain()
	p.closeAll() // first: a dial that p.cancel ends would else say that the broker can't be reached
	p.cancel()
	p.engine.stop()
	p.wg.Wait()
	if p.handlers != nil {
		p.handlers.wait()
	}
	return nil
}

// Addr is the bootstrap address of the first listener.
func (p *Proxy) Addr() net.Addr { return p.fronts[0].lns[0].Addr() }

// Ready says what is missing before clients can be served: nil when the
// destination's brokers are known.
func (p *Proxy) Ready() error {
	if p.ending.Load() {
		return errors.New("shutting down")
	}
	if len(p.topology.snap.Load().brokers) == 0 {
		return errors.New("the destination's brokers are not known yet")
	}
	return nil
}
