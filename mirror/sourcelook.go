package mirror

import (
	"context"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kmsg"
	"golang.org/x/sync/errgroup"

	"github.com/lockstep-kafka/lockstep/internal/ledger"
)

// A source may be far away, and each question that waits for the answer to
// another one then costs a round trip more until the first record is here. So
// what does not stand on other answers is asked together, before anything is
// known of the destination, and what was found serves until what it is for is
// ours to do.

// sourceLook is what the source was found to have.
type sourceLook struct {
	began, listed time.Time // listed: when the topics were
	cluster       string
	meta          *Cluster                    // of what was found
	found         map[string]kadm.TopicDetail // topics that are selected
	left          map[string]string           // those that are included and left out all the same, with the reason
	bare          map[string]bool             // topics that the source itself mirrors, read past its proxy
	configs       map[string]topicConfigs
}

// lookGood is how long a look serves a sync that could not be finished for want
// of ledger partitions.
const lookGood = 15 * time.Second

// look asks the source for its topics and their configs, and looks at its
// endpoint beside. It writes nothing, and needs no ledger of ours.
func (s *source) look(ctx context.Context) (*sourceLook, error) {
	l := &sourceLook{began: time.Now()}
	g, gctx := errgroup.WithContext(ctx)
	beside := !s.led.known() // else that ledger is read after the topics are listed
	g.Go(func() (err error) {
		if !beside {
			_, err = brokers(gctx, s.client) // one that never answers is called by its name, soon
			return err
		}
		_, l.bare, err = s.sourceView(gctx, l.began)
		return err
	})
	listsLedger := false
	g.Go(func() error {
		all, err := askMetadata(gctx, s.client, nil)
		if err != nil {
			return fmt.Errorf("list the source's topics: %w", err)
		}
		l.listed = time.Now()
		topics := detailsOf(all)
		_, listsLedger = topics[ledger.Topic]
		if all.ClusterID != nil {
			l.cluster = *all.ClusterID
		}
		if l.found, l.left = s.admin.selected(topics); s.deleted() {
			clear(l.found)
			clear(l.left)
		}
		l.meta = clusterOf(only(all, l.found))
		for _, addr := range s.engine.unfetched(l.meta) {
			s.m.wg.Go(func() { s.engine.src.warm(s.m.life, addr) })
		}
		var configErr error
		if l.configs, configErr = configs(gctx, s.admin.src, sortedKeys(l.found)...); l.configs == nil {
			return configErr // else the topics without are reported one by one
		}
		return nil
	})
	if err := g.Wait(); err != nil {
		return nil, err
	}
	// A topic that the source mirrors is in its ledger before it is there. So
	// where there was a ledger, only one that was looked for after the topics
	// were listed counts; where the list has none, and one may be described,
	// there was none then.
	if !beside || listsLedger || s.led.known() {
		var err error
		if _, l.bare, err = s.sourceView(ctx, l.listed); err != nil {
			return nil, err
		}
	}
	return l, nil
}

// only is a metadata answer with some of its topics.
func only(all *kmsg.MetadataResponse, topics map[string]kadm.TopicDetail) *kmsg.MetadataResponse {
	some := *all
	some.Topics = nil
	for _, t := range all.Topics {
		if t.Topic == nil {
			continue
		}
		if _, ok := topics[*t.Topic]; ok {
			some.Topics = append(some.Topics, t)
		}
	}
	return &some
}

// lookResult is a look and how it went.
type lookResult struct {
	*sourceLook
	err error
}

func (s *source) looks(ctx context.Context) lookResult {
	ctx, cancel := context.WithTimeout(ctx, syncLimit)
	defer cancel()
	l, err := s.look(ctx)
	return lookResult{l, err}
}

// unfetched are the source brokers that will be asked for ends before anything is
// fetched; none once that has begun.
func (e *Engine) unfetched(c *Cluster) (addrs []string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.source != nil {
		return nil
	}
	set := map[string]bool{}
	for topic, t := range c.Topics {
		for p := range t.Partitions {
			if l := c.leader(topic, int32(p)); l.broker >= 0 {
				set[l.addr] = true
			}
		}
	}
	return sortedKeys(set)
}

// firstSource is SetSource for an engine that was not told of the source yet:
// what is known of its topics so far.
func (e *Engine) firstSource(c *Cluster) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.source != nil {
		return
	}
	e.source = c
	for k, p := range e.parts {
		if c.Topics[k.topic] != nil {
			p.setSource(c.leader(k.topic, k.partition), true)
		}
	}
	e.route()
}
