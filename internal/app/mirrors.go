package app

import (
	"context"
	"fmt"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/twmb/franz-go/pkg/sasl"

	"github.com/lockstep-kafka/lockstep/internal/client"
	"github.com/lockstep-kafka/lockstep/internal/config"
	"github.com/lockstep-kafka/lockstep/internal/kconn"
	"github.com/lockstep-kafka/lockstep/internal/tlsconf"
	"github.com/lockstep-kafka/lockstep/mirror"
)

// mirrors are all mirrors of one configuration. Another configuration of them
// replaces them as a whole (runMirrors): what runs is handed over as at the end of
// a process, to this very process, and goes on from the ledger.
type mirrors struct {
	manager *mirror.Manager // nil: no mirror is configured
	reg     *prometheus.Registry
	tls     []tlsconf.Reloader
}

func (s *mirrors) close() {
	if s.manager != nil {
		s.manager.Close()
	}
}

// mirrorSlot holds the mirrors that run, and those that are to run next.
type mirrorSlot struct {
	mu   sync.Mutex
	now  *mirrors
	next *mirrors
	over bool          // runMirrors has ended: nothing runs any more
	wake chan struct{} // a token may be left of what step has taken already
}

func newMirrorSlot(first *mirrors) *mirrorSlot {
	return &mirrorSlot{now: first, wake: make(chan struct{}, 1)}
}

// manager of the mirrors that run; nil: none.
func (s *mirrorSlot) manager() *mirror.Manager {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.now.manager
}

// Gather makes the slot a gatherer of the metrics of what runs now.
func (s *mirrorSlot) Gather() ([]*dto.MetricFamily, error) {
	s.mu.Lock()
	reg := s.now.reg
	s.mu.Unlock()
	return reg.Gather()
}

// replace has other mirrors run, soon.
func (s *mirrorSlot) replace(next *mirrors) {
	s.mu.Lock()
	old := s.next
	s.next = next
	if s.over {
		old, s.next = next, nil
	}
	s.mu.Unlock()
	if old != nil {
		old.close()
	}
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// waits tells whether others are to run. Without them what runs must go on: a
// set that has ended can't run again.
func (s *mirrorSlot) waits() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.next != nil
}

// step makes the next mirrors those that run.
func (s *mirrorSlot) step() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.next != nil {
		s.now, s.next = s.next, nil
	}
}

// goesOn tells whether the next mirrors are any.
func (s *mirrorSlot) goesOn() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.next != nil && s.next.manager != nil
}

// end closes what never ran.
func (s *mirrorSlot) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.over = true
	if s.next != nil {
		s.next.close()
		s.next = nil
	}
}

// runMirrors runs the mirrors of the newest configuration until ctx ends, or
// until they end by themselves, which is an error.
func (a *app) runMirrors(ctx context.Context, address string) error {
	defer a.mirrors.end()
	if m := a.mirrors.now.manager; m != nil && ctx.Err() == nil {
		m.LookAhead()
	}
	err := ctx.Err()
	if err == nil && a.waitView(ctx) {
		err = a.onlyOne(address)
	}
	if err != nil || ctx.Err() != nil {
		a.mirrors.now.close()
		if ctx.Err() != nil {
			return nil
		}
		return err
	}
	for {
		again, err := a.runOnce(ctx, a.mirrors.now)
		if err != nil {
			a.log.Error("the mirrors have ended, so this instance ends", "err", err)
		}
		if !again || err != nil {
			return err
		}
		a.mirrors.step()
		a.log.Info("the mirrors run with their new settings")
	}
}

// runOnce runs one set of mirrors until ctx ends or others are to run (again).
func (a *app) runOnce(ctx context.Context, set *mirrors) (again bool, err error) {
	run, stop := context.WithCancel(ctx)
	defer stop()
	var wg sync.WaitGroup
	defer wg.Wait()
	defer stop()
	wg.Go(func() { tlsconf.Watch(run, lookEvery, a.log, set.tls...) })
	done := make(chan error, 1)
	if set.manager != nil {
		wg.Go(func() { done <- set.manager.Run(run) })
	}
	for ended := false; !again && !ended; {
		select {
		case err := <-done: // by itself
			return false, err
		case <-ctx.Done():
			ended = true
		case <-a.mirrors.wake:
			again = a.mirrors.waits()
		}
	}
	if again && set.manager != nil && a.mirrors.goesOn() {
		set.manager.Stay()
	}
	stop()
	if set.manager == nil {
		return again, nil
	}
	err = <-done
	if again && err != nil && ctx.Err() == nil {
		a.log.Warn("the mirrors ended with an error before their new settings are taken", "err", err)
		err = nil
	}
	return again && ctx.Err() == nil, err
}

// newMirrors makes what a configuration's mirrors need; nothing connects yet.
func (a *app) newMirrors(c *config.Config) (*mirrors, error) {
	set := &mirrors{reg: prometheus.NewRegistry()}
	if len(c.Mirrors) == 0 {
		return set, nil
	}
	// What the slow path makes comes on top of what the limit lets in. With less
	// room for idle buffers, both were made anew each time while it was in use.
	pool := &kconn.Pool{Keep: 2 * int(c.Limits.MirrorMemory)}
	dialer := func(s client.Security) *kconn.Dialer {
		d := &kconn.Dialer{TLS: s.TLSFor(), ClientID: client.ID, MaxFrame: int32(c.Limits.MaxFrameBytes), Pool: pool}
		if s.SASL != nil {
			d.SASL = []sasl.Mechanism{s.SASL}
		}
		return d.Init()
	}
	o := mirror.Options{
		Destination: mirror.Access{Client: a.opts, Dialer: dialer(a.sec)},
		View:        a.view, Writer: a.writer, MemoryLimit: int64(c.Limits.MirrorMemory),
		Unclean:    a.uncleanElections,
		InstanceID: c.Instance.ID, SessionTimeout: c.Instance.SessionTimeout.Std(), Logger: a.log, Registerer: set.reg,
	}
	for _, m := range c.Mirrors {
		srcOpts, srcSec, err := client.Source(m.Source)
		if err != nil {
			return nil, fmt.Errorf("mirror %s: %w", m.Name, err)
		}
		if srcSec.TLS != nil {
			set.tls = append(set.tls, srcSec.TLS)
		}
		filter, err := mirror.NewTopicFilter(m.Topics.Include, m.Topics.Exclude)
		if err != nil {
			return nil, fmt.Errorf("mirror %s: %w", m.Name, err)
		}
		configs, err := mirror.NewConfigFilter(m.Configs.Include, m.Configs.Exclude)
		if err != nil {
			return nil, fmt.Errorf("mirror %s: %w", m.Name, err)
		}
		acls, err := mirror.NewACLOptions(m.ACLs.Include, m.ACLs.Exclude, m.ACLs.ExcludePrincipals)
		if err != nil {
			return nil, fmt.Errorf("mirror %s: %w", m.Name, err)
		}
		acls.Enabled, acls.DryRun, acls.AtOnce = m.ACLs.Enabled, m.ACLs.DryRun, m.ACLs.WritesAtOnce
		acks := int16(-1)
		if m.Acks == config.AcksLeader {
			acks = 1
		}
		groups, err := groupOptions(&m)
		if err != nil {
			return nil, fmt.Errorf("mirror %s: %w", m.Name, err)
		}
		o.Mirrors = append(o.Mirrors, mirror.MirrorOptions{
			Name: m.Name, Source: mirror.Access{Client: srcOpts, Dialer: dialer(srcSec)}, Filter: filter,
			Groups:            groups,
			UncleanElections:  m.UncleanLeaderElection,
			Configs:           configs,
			ACLs:              acls,
			ReplicationFactor: m.ReplicationFactor, MinCompactionLag: m.MinCompactionLag.Std(), Refresh: m.MetadataRefresh.Std(),
			Tuning: mirror.Tuning{
				Acks: acks, FetchMaxBytes: int32(m.FetchMaxBytes), FetchPartitionMaxBytes: int32(m.FetchPartitionMaxBytes),
				FetchWaitMax: m.FetchWaitMax.Std(), RetryMin: m.RetryBackoffMin.Std(), RetryMax: m.RetryBackoffMax.Std(), RetryAttempts: m.RetryAttempts,
				BumpStep: m.BumpStep, KeepBatches: !m.MergeSmallBatches,
			},
		})
	}
	var err error
	if set.manager, err = mirror.New(o); err != nil {
		return nil, err
	}
	return set, nil
}
