// Package demo is Lockstep's main job on an embedded default: two in-process
// Kafka clusters (kfake), live traffic on the source, a mirror, the proxy, a
// reader behind it, and at the end a comparison record by record.
package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"golang.org/x/sync/errgroup"

	"github.com/lockstep-kafka/lockstep/internal/config"
)

// Options of Run.
type Options struct {
	Out      io.Writer
	Terminal bool          // Out is a terminal: the table is drawn over itself
	Duration time.Duration // 0: until ctx ends
	Port     int           // of the bootstrap address; broker n is at Port+8+n
	// Serve runs Lockstep until ctx ends and closes ready when it can serve.
	Serve func(ctx context.Context, c *config.Config, ready chan<- struct{}) error
}

const (
	brokers    = 3
	portOffset = 8 // first broker port behind the bootstrap port
)

// topics of the demo and their partition counts.
var topics = map[string]int32{"orders": 3, "payments": 1}

// Run ends with an error when what was read through the proxy differs from the
// source. A cancelled ctx is a normal end: the comparison is made all the same.
func Run(ctx context.Context, o Options) error {
	logger := kfake.WithLogger(kfake.BasicLogger(io.Discard, kfake.LogLevelNone))
	source, err := kfake.NewCluster(logger, kfake.NumBrokers(brokers), kfake.ClusterID("demo-source"))
	if err != nil {
		return fmt.Errorf("start the source cluster: %w", err)
	}
	defer source.Close()
	dest, err := kfake.NewCluster(logger, kfake.NumBrokers(brokers), kfake.ClusterID("demo-destination"))
	if err != nil {
		return fmt.Errorf("start the destination cluster: %w", err)
	}
	defer dest.Close()

	traffic, err := newTraffic(ctx, source)
	if err != nil {
		return err
	}
	defer traffic.close()

	// Lockstep lives longer than ctx: the comparison at the end reads through it.
	life, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	proxyAddr := net.JoinHostPort("127.0.0.1", fmt.Sprint(o.Port))
	ready := make(chan struct{})
	served := make(chan error, 1)
	go func() { served <- o.Serve(life, demoConfig(source, dest, proxyAddr, o.Port), ready) }()
	select {
	case <-ready:
	case err := <-served:
		return fmt.Errorf("lockstep ended at its start: %w", err)
	}
	d := &demo{o: o, source: source, traffic: traffic, proxy: proxyAddr}
	err = d.show(ctx)
	end()
	return errors.Join(err, <-served)
}

type demo struct {
	o       Options
	source  *kfake.Cluster
	traffic *traffic
	proxy   string
}

// show runs traffic, reader and table until ctx or the time ends, then stops
// the traffic and compares.
func (d *demo) show(ctx context.Context) error {
	live := ctx
	if d.o.Duration > 0 {
		var cancel context.CancelFunc
		live, cancel = context.WithTimeout(ctx, d.o.Duration)
		defer cancel()
	}
	reader, err := newReader(d.proxy)
	if err != nil {
		return err
	}
	defer reader.close()
	view, err := newView(d, reader)
	if err != nil {
		return err
	}
	defer view.close()
	_, _ = io.WriteString(d.o.Out, view.intro())
	g, gctx := errgroup.WithContext(live)
	g.Go(func() error { return d.traffic.run(gctx) })
	g.Go(func() error { return reader.run(gctx) })
	g.Go(func() error { return view.run(gctx) })
	if err := g.Wait(); err != nil && live.Err() == nil {
		return err
	}
	check, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()
	return d.compare(check, view)
}

// demoConfig is a config file's content for the two clusters.
func demoConfig(source, dest *kfake.Cluster, proxy string, port int) *config.Config {
	c := config.Default()
	c.Listeners = []config.Listener{{
		Address: proxy, AdvertisedHost: "127.0.0.1",
		BrokerPorts: config.PortRange{First: port + portOffset, Last: port + portOffset + brokers - 1},
	}}
	c.Destination.Bootstrap = dest.ListenAddrs()
	m := config.DefaultMirror()
	m.Name = "demo"
	m.Source.Bootstrap = source.ListenAddrs()
	m.Topics.Include = []string{".*"}
	m.MetadataRefresh = config.Duration(2 * time.Second)
	c.Mirrors = []config.Mirror{m}
	c.Admin.Address = net.JoinHostPort("127.0.0.1", fmt.Sprint(port-1))
	c.Limits.DrainTimeout = config.Duration(500 * time.Millisecond)
	c.Log.Level = "error"
	return &c
}
