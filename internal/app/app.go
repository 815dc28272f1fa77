// Package app puts a Lockstep process together from its configuration: ledger,
// mirrors, proxy and admin server, in the order in which they need each other.
package app

import (
	"context"
	crand "crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"golang.org/x/sync/errgroup"

	"github.com/lockstep-kafka/lockstep/internal/admin"
	"github.com/lockstep-kafka/lockstep/internal/client"
	"github.com/lockstep-kafka/lockstep/internal/config"
	"github.com/lockstep-kafka/lockstep/internal/control"
	"github.com/lockstep-kafka/lockstep/internal/ledger"
	"github.com/lockstep-kafka/lockstep/internal/tlsconf"
	"github.com/lockstep-kafka/lockstep/internal/version"
	"github.com/lockstep-kafka/lockstep/mirror"
	"github.com/lockstep-kafka/lockstep/proxy"
)

// Options of Run besides the configuration.
type Options struct {
	LogTo io.Writer
	Ready chan<- struct{} // closed when clients can be served; may be nil
	// Reload follows a configuration file; nil: the configuration stays.
	Reload *Reload
}

// app is a process put together, not yet running.
type app struct {
	id        string // of this instance
	log       *slog.Logger
	switches  *switches
	reg       *prometheus.Registry
	adm       *kadm.Client
	rf        int
	view      *ledger.View
	writer    *ledger.Writer
	registrar *ledger.Registrar
	control   *control.Service
	mirrors   *mirrorSlot
	opts      []kgo.Opt       // of own clients of the destination
	sec       client.Security // and of its other connections
	proxy     *proxy.Proxy
	admin     *admin.Server // nil: no address
	tls       []tlsconf.Reloader
	closes    []func()
}

// Run runs until ctx ends and everything has been handed over and closed. What
// can be found wrong at the start is an error at once; later trouble is
// retried and shown by /readyz, log and metrics.
func Run(ctx context.Context, c *config.Config, o Options) error {
	a, err := build(c, o)
	if err != nil {
		return err
	}
	defer a.close()
	a.log.Info("starting", "instance", a.id, "version", version.String(), "mirrors", len(c.Mirrors))

	// The proxy drains after ctx ends and still needs the view then.
	life, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	back, life := errgroup.WithContext(life)
	if a.admin != nil {
		back.Go(func() error { return a.admin.Run(life) })
	}
	back.Go(func() error {
		if err := a.ensureLedger(life); life.Err() == nil && err != nil {
			return err
		}
		return a.view.Run(life)
	})
	back.Go(func() error {
		if a.waitView(life) {
			if err := a.onlyOne(c.Admin.Address); err != nil {
				return err
			}
			warnNameless(a.log, c, func(mirror string) bool { return a.uncleanElections(mirror, "") })
			return a.registrar.Run(life)
		}
		return nil
	})
	back.Go(func() error { a.compareConfigs(life); return nil })
	back.Go(func() error { tlsconf.Watch(life, lookEvery, a.log, a.tls...); return nil })
	if o.Reload != nil {
		back.Go(func() error { a.reload(life, c, *o.Reload); return nil })
	}
	front, frontCtx := errgroup.WithContext(ctx)
	front.Go(func() error { return a.proxy.Run(frontCtx) })
	front.Go(func() error { return a.runMirrors(frontCtx, c.Admin.Address) })
	front.Go(func() error {
		select {
		case <-life.Done():
			return back.Wait()
		case <-frontCtx.Done():
			return nil
		}
	})
	if o.Ready != nil {
		front.Go(func() error { a.tellReady(frontCtx, o.Ready); return nil })
	}
	err = front.Wait()
	end()
	if e := back.Wait(); err == nil {
		err = e
	}
	if errors.Is(err, context.Canceled) && ctx.Err() != nil {
		err = nil
	}
	if err != nil {
		a.log.Error("ended", "err", err)
		return err
	}
	a.log.Info("ended")
	return nil
}

// waitView is false when ctx ended before the first full read of the ledger.
func (a *app) waitView(ctx context.Context) bool { return a.view.WaitReady(ctx) == nil }

// onlyOne refuses to take over the group membership of a live instance with
// the same id at another admin address: the two would fence one another for
// ever. A restart at the same address goes on at once.
func (a *app) onlyOne(address string) error {
	for _, i := range a.view.Instances() {
		if i.ID == a.id && i.Address != "" && i.Address != address && time.Now().Before(i.Lease) {
			return fmt.Errorf("instance.id %q is in use by a live instance (admin address %s, seen alive until %s): give each its own id; if that one is gone, start again after that time", a.id, i.Address, i.Lease.Format(time.RFC3339))
		}
	}
	return nil
}

// ensureFirst and ensureWait are how long the destination may take to answer,
// the first time and later, before the log says that it does not. A wrong address
// is told at once.
const (
	ensureFirst = 2 * time.Second
	ensureWait  = 10 * time.Second
)

// ensureBackoff is the longest pause between two tries: each try with a wrong
// password counts on the brokers, too.
const ensureBackoff = 30 * time.Second

// ensureLedger makes the ledger's topic; a destination that can't be reached
// yet is waited for, and the log says so.
func (a *app) ensureLedger(ctx context.Context) error {
	limit := ensureFirst
	for wait := time.Second; ; wait = min(2*wait, ensureBackoff) {
		try, cancel := context.WithTimeout(ctx, limit)
		err := ledger.EnsureTopic(try, a.adm, a.rf)
		if err != nil && try.Err() != nil {
			err = fmt.Errorf("not within %v: %w", limit, err)
		}
		limit = ensureWait
		cancel()
		var wrong *ledger.TopicError
		if err == nil || ctx.Err() != nil {
			return ctx.Err()
		}
		if errors.As(err, &wrong) {
			return err
		}
		a.log.Warn("the ledger's topic is not ready: nothing is mirrored, and mirror topics are not served", "err", err, "retry_in", wait)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(wait/2 + rand.N(wait/2)):
		}
	}
}

func (a *app) ready() error {
	if err := a.proxy.Ready(); err != nil {
		return err
	}
	if !a.view.Fresh() {
		return fmt.Errorf("the ledger has not been read to its end within the last %s", ledger.DefaultLease)
	}
	return nil
}

func (a *app) tellReady(ctx context.Context, ready chan<- struct{}) {
	for a.ready() != nil {
		select {
		case <-ctx.Done():
			return
		case <-time.After(20 * time.Millisecond):
		}
	}
	close(ready)
}

func (a *app) close() {
	for i := len(a.closes) - 1; i >= 0; i-- {
		a.closes[i]()
	}
}

func build(c *config.Config, o Options) (_ *app, err error) {
	a := &app{id: instanceID(c), switches: newSwitches(c), reg: prometheus.NewRegistry(), rf: c.Destination.LedgerReplicationFactor}
	a.log = newLogger(c.Log, &a.switches.level, o.LogTo)
	a.reg.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	defer func() {
		if err != nil {
			a.close()
		}
	}()
	opts, sec, err := client.Destination(c.Destination)
	if err != nil {
		return nil, err
	}
	a.follow(sec)
	cl, err := kgo.NewClient(opts...)
	if err != nil {
		return nil, fmt.Errorf("client for the destination: %w", err)
	}
	a.closes = append(a.closes, cl.Close)
	a.adm = kadm.NewClient(cl)
	a.view = ledger.NewView(ledger.ViewOptions{Client: opts, Logger: a.log})
	if a.writer, err = ledger.NewWriter(ledger.WriterOptions{Client: opts, View: a.view, Logger: a.log}); err != nil {
		return nil, err
	}
	a.closes = append(a.closes, a.writer.Close)
	if a.proxy, err = newProxy(c, a, opts, sec); err != nil {
		return nil, err
	}
	a.opts, a.sec = opts, sec
	first, err := a.newMirrors(c)
	if err != nil {
		a.proxy.Close()
		return nil, err
	}
	a.mirrors = newMirrorSlot(first)
	a.registrar = ledger.NewRegistrar(ledger.RegistrarOptions{
		ID: a.id, Version: version.String(), Address: c.Admin.Address, Mirrors: fingerprints(c),
		View: a.view, Writer: a.writer, Drain: a.proxy.Drain, Logger: a.log,
	})
	a.control = newControl(c, a)
	if c.Admin.Address != "" {
		if a.admin, err = admin.New(admin.Options{
			Address: c.Admin.Address, TokenFile: c.Admin.TokenFile, Gatherer: prometheus.Gatherers{a.reg, a.mirrors}, Ready: a.ready, Status: a.status,
			Routes: admin.API(a.control),
		}); err != nil {
			a.proxy.Close()
			first.close()
			return nil, err
		}
	}
	return a, nil
}

func proxyLimits(l *config.Limits) proxy.Limits {
	p := proxy.Limits{
		MaxFrameBytes: int(l.MaxFrameBytes), MaxConnections: l.MaxConnections, MaxConnectionsPerIP: l.MaxConnectionsPerIP, MaxInFlight: l.MaxInFlight,
		Memory: int64(l.ProxyMemory), ClientOutboundMax: int(l.ClientOutboundMax), IdleTimeout: l.IdleTimeout.Std(), HandshakeTimeout: l.HandshakeTimeout.Std(),
		FetchUpstreamMax: int32(l.FetchUpstreamMaxBytes), StalledFrameTimeout: l.StalledFrameTimeout.Std(), DrainTimeout: l.DrainTimeout.Std(), DrainDelay: l.DrainDelay.Std(),
		MaxAge: l.MaxConnectionAge.Std(),
	}
	if p.DrainTimeout == 0 {
		p.DrainTimeout = -1
	}
	return p
}

// newControl answers for operators.
func newControl(c *config.Config, a *app) *control.Service {
	o := control.Options{View: a.view, Writer: a.writer, ID: a.id, UncleanElections: a.uncleanElections, Ends: a.ends, PartitionCount: a.partitionCount, Topics: a.topics, ACLs: a.acls, Groups: a.groups, SourceAway: a.sourceAway, Unselected: a.unselected}
	o.Mirrors = declared(c)
	return control.New(o)
}

func declared(c *config.Config) (out []control.Mirror) {
	for i := range c.Mirrors {
		m := &c.Mirrors[i]
		out = append(out, control.Mirror{Name: m.Name, Source: strings.Join(m.Source.Bootstrap, ","), Fingerprint: m.Fingerprint()})
	}
	return out
}

// topics are those that are not mirrored, as the mirrors of this instance know.
func (a *app) topics() (rows []control.Topic, left int) {
	m := a.mirrors.manager()
	if m == nil {
		return nil, 0
	}
	all, left := m.Topics()
	for _, t := range all {
		rows = append(rows, control.Topic(t))
	}
	return rows, left
}

// sourceAway is since when a mirror's source has not answered.
func (a *app) sourceAway(name string) (since time.Time, why string) {
	if m := a.mirrors.manager(); m != nil {
		since, why = m.SourceAway(name)
	}
	return since, why
}

// unselected tells whether a partition's topic is selected no more.
func (a *app) unselected(r *ledger.Record) bool {
	m := a.mirrors.manager()
	return m != nil && m.Unselected(r)
}

// acls is what a sync of a mirror's ACLs would change now.
func (a *app) acls(ctx context.Context, name string) (*control.ACLs, error) {
	m := a.mirrors.manager()
	if m == nil {
		return nil, mirror.ErrNoMirror
	}
	d, err := m.ACLDiff(ctx, name)
	if err != nil {
		return nil, err
	}
	return &control.ACLs{
		Mirror: d.Mirror, Enabled: d.Enabled, DryRun: d.DryRun, Add: texts(d.Create), Remove: texts(d.Remove), HeldBack: texts(d.Held),
		SourceError: d.SourceError, InStep: d.InStep, NotUnderstood: d.NotUnderstood,
	}, nil
}

func texts(rules []ledger.ACL) []string {
	out := make([]string, len(rules))
	for i := range rules {
		out[i] = rules[i].String()
	}
	return out
}

// ends are the high watermarks of destination topics; what can't be found out
// soon is left out.
func (a *app) ends(ctx context.Context, topics []string) map[string]map[int32]int64 {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	listed, err := a.adm.ListEndOffsets(ctx, topics...)
	if err != nil {
		a.log.Debug("ends of topics not listed", "err", err)
	}
	out := map[string]map[int32]int64{}
	listed.Each(func(o kadm.ListedOffset) {
		if o.Err != nil {
			return
		}
		if out[o.Topic] == nil {
			out[o.Topic] = map[int32]int64{}
		}
		out[o.Topic][o.Partition] = o.Offset
	})
	return out
}

// partitionCount is how many partitions a destination topic has, 0 when there
// is no such topic.
func (a *app) partitionCount(ctx context.Context, topic string) (int32, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	md, err := a.adm.Metadata(ctx, topic)
	if err != nil {
		return 0, err
	}
	t := md.Topics[topic]
	if errors.Is(t.Err, kerr.UnknownTopicOrPartition) {
		return 0, nil
	}
	return int32(len(t.Partitions)), t.Err
}

// warnNameless says what a name that no restart keeps costs: after a kill this
// instance is another one, and the one before is waited for.
func warnNameless(log *slog.Logger, c *config.Config, unclean func(mirror string) bool) {
	if c.Instance.ID != "" {
		return
	}
	for i := range c.Mirrors {
		if m := c.Mirrors[i].Name; unclean(m) {
			log.Warn("instance.id is not set, and unclean elections are supported: once this process was killed, starts and recoveries wait for it under its old name until `lockstep forget`; set instance.id to a name that outlives a restart", "mirror", m)
		}
	}
}

// instanceID is the configured id, or a name that no other process has.
func instanceID(c *config.Config) string {
	if c.Instance.ID != "" {
		return c.Instance.ID
	}
	host, err := os.Hostname()
	if err != nil || host == "" {
		host = "lockstep"
	}
	return host + "-" + crand.Text()[:8]
}

func newLogger(c config.Log, level slog.Leveler, to io.Writer) *slog.Logger {
	o := &slog.HandlerOptions{Level: level}
	if c.Format == "json" {
		return slog.New(quiet(slog.NewJSONHandler(to, o)))
	}
	return slog.New(quiet(slog.NewTextHandler(to, o)))
}
