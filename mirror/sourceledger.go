package mirror

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/lockstep-kafka/lockstep/epoch"
	"github.com/lockstep-kafka/lockstep/internal/kconn"
	"github.com/lockstep-kafka/lockstep/internal/ledger"
)

// sourceLedger is what the source's own ledger says, if the source is a
// Lockstep. It is followed from the first question on.
type sourceLedger struct {
	// turn holds a token during a look at the endpoint, so that one look serves
	// all who wait for it; who has it waits for the source, at most lookWait.
	turn chan struct{}

	mu      sync.Mutex // never over a look
	looked  time.Time  // when the newest look began
	proxied bool       // the source's endpoint is a Lockstep
	there   bool       // there is a ledger without one in front
	addrs   []string   // brokers that the source lists
	bare    map[string]bool
	err     error
	view    *ledger.View
	done    chan error
}

// ledgerWait is how long a read of the source's ledger may take.
const ledgerWait = 15 * time.Second

// lookWait is how long a look at the source's endpoint may take, with a read of
// a ledger that is not followed.
const lookWait = time.Minute

// sourceRecord is what the source's ledger has of a partition, read to its end
// after the call. What can't be read is said, never taken for absent (M5).
func (s *source) sourceRecord(ctx context.Context, topic string, partition int32) epoch.SourceRecord {
	return s.sourceRecordSince(ctx, topic, partition, time.Now())
}

func (s *source) sourceRecordSince(ctx context.Context, topic string, partition int32, since time.Time) epoch.SourceRecord {
	v, bare, err := s.sourceView(ctx, since)
	if err == nil && bare[topic] {
		err = ErrBareMirror
	}
	if err == nil && v != nil {
		err = s.readSince(ctx, v, since)
	}
	switch {
	case err != nil:
		return epoch.SourceRecord{Reading: epoch.Unreadable, Err: err.Error(), Bare: errors.Is(err, ErrBareMirror)}
	case v == nil:
		return epoch.SourceRecord{Reading: epoch.Absent}
	}
	return sourceRecord(v.Partition(topic, partition))
}

// readSince waits until all of a ledger was read to an end asked for after
// since.
func (s *source) readSince(ctx context.Context, v *ledger.View, since time.Time) error {
	ctx, cancel := context.WithTimeout(ctx, ledgerWait)
	defer cancel()
	for {
		if at := v.FreshAt(); at.After(since) {
			return nil
		}
		s.led.mu.Lock()
		done := s.led.done
		s.led.mu.Unlock()
		select {
		case err := <-done:
			s.led.mu.Lock()
			s.led.view = nil
			s.led.mu.Unlock()
			return fmt.Errorf("the source's ledger can't be followed: %w", errors.Join(err, errors.New("it ended")))
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			return fmt.Errorf("the source's ledger (topic %s there) could not be read to its end within %v: grant Read and Describe on it", ledger.Topic, ledgerWait)
		}
	}
}

// sourceView looks at the source's endpoint, after since. view is nil when the
// source has no Lockstep in front; bare are then the topics that it mirrors all
// the same.
func (s *source) sourceView(ctx context.Context, since time.Time) (view *ledger.View, bare map[string]bool, err error) {
	l := &s.led
	select {
	case l.turn <- struct{}{}:
	case <-ctx.Done():
		return nil, nil, context.Cause(ctx)
	}
	defer func() { <-l.turn }()
	l.mu.Lock()
	fresh := l.looked.After(since)
	l.mu.Unlock()
	if !fresh {
		began := time.Now()
		lctx, cancel := context.WithTimeout(ctx, lookWait)
		e, err := s.endpoint(lctx, l.addresses())
		cancel()
		if ctx.Err() != nil { // says nothing to the others
			return nil, nil, context.Cause(ctx)
		}
		l.mu.Lock()
		l.looked, l.proxied, l.bare, l.err = began, e.proxied, e.bare, err
		l.there = e.there || err != nil && l.there
		if e.addrs != nil {
			l.addrs = e.addrs
		}
		l.mu.Unlock()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err != nil {
		return nil, nil, l.err
	}
	if !l.proxied {
		return nil, l.bare, nil
	}
	if l.view == nil {
		life := s.life
		if life == nil {
			return nil, nil, errors.New("ending")
		}
		v := ledger.NewView(ledger.ViewOptions{Client: s.o.Source.Client, Logger: s.log.With("ledger", "source")})
		done := make(chan error, 1)
		s.m.wg.Go(func() { done <- v.Run(life) })
		l.view, l.done = v, done
	}
	return l.view, nil, nil
}

// findLoops looks at the paths upstream again: they grow while we mirror
// (hazard M18).
func (s *source) findLoops() {
	s.led.mu.Lock()
	v := s.led.view
	s.led.mu.Unlock()
	self, source := s.clusters()
	if v == nil || self == "" || source == "" || !v.Fresh() {
		return
	}
	for _, p := range s.engine.all() {
		if epoch.CheckLoop(self, false, source, sourceRecord(v.Partition(p.topic, p.partition))) == epoch.LoopFail {
			p.mu.Lock()
			if p.copying() {
				p.setTodoErr(failForGood(reasonLoop, "mirror loop: the source %s mirrors this topic from here over other clusters. Stop one of them", source))
			}
			p.mu.Unlock()
		}
	}
}

// known tells whether the newest look found a ledger that is no Lockstep's in
// front.
func (l *sourceLedger) known() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.there
}

func (l *sourceLedger) addresses() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.addrs
}

// endpoint is what a source is reached through.
type endpoint struct {
	addrs   []string // its brokers
	proxied bool     // they are a Lockstep's
	there   bool     // else: there is a ledger all the same
	bare    map[string]bool
}

// endpoint tells whether the source is reached through a Lockstep, and if not
// which of its topics are mirrors all the same (hazard H18): physical offsets
// there are not the topic's own. One of the addresses listed before is dialled
// while the source is asked, and given up if it is not listed any more.
func (s *source) endpoint(ctx context.Context, before []string) (e endpoint, err error) {
	var addr string
	var conn *kconn.Conn
	var dialling sync.WaitGroup
	dctx, giveUp := context.WithCancel(ctx)
	defer giveUp()
	if len(before) > 0 {
		addr = before[rand.IntN(len(before))]
		dialling.Go(func() { conn, _ = s.o.Source.Dialer.Dial(dctx, addr) })
	}
	var c *Cluster
	err = answered(ctx, s.client, func(ctx context.Context) (err error) {
		c, err = metadata(ctx, s.client, []string{ledger.Topic})
		return err
	})
	if err == nil && len(c.Brokers) == 0 {
		err = errors.New("it lists no broker")
	}
	if err == nil {
		e.addrs = slices.Collect(maps.Values(c.Brokers))
	}
	listed := slices.Contains(e.addrs, addr)
	if !listed {
		giveUp()
	}
	dialling.Wait()
	if err == nil && (conn == nil || !listed) {
		if conn != nil {
			_ = conn.Close()
		}
		conn, err = s.o.Source.Dialer.Dial(ctx, e.addrs[0])
	}
	if conn != nil {
		e.proxied = conn.IsLockstep()
		_ = conn.Close()
	}
	if err != nil {
		return endpoint{addrs: e.addrs}, fmt.Errorf("reach the source: %w", err)
	}
	e.bare = map[string]bool{}
	err = c.Unsure[ledger.Topic]
	switch {
	case err != nil: // unreadable is not absent (hazard M5)
		return e, fmt.Errorf("look for a ledger on the source (needs Describe and Read on topic %s there, to tell mirrors from topics): %w", ledger.Topic, err)
	case e.proxied || c.Topics[ledger.Topic] == nil:
		return e, nil
	}
	e.there = true
	e.bare, err = ledgerTopics(ctx, s.o.Source.Client, s.log)
	return e, err
}

// ledgerTopics reads a ledger once, to its end.
func ledgerTopics(ctx context.Context, client []kgo.Opt, log *slog.Logger) (map[string]bool, error) {
	v, err := ledger.ReadOnce(ctx, ledger.ViewOptions{Client: client, Logger: log})
	if err != nil {
		return nil, fmt.Errorf("the source has a ledger (%s) that can't be read, so it can't be told which of its topics are mirrors: %w", ledger.Topic, err)
	}
	return v.Topics(), nil
}
