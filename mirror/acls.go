package mirror

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/lockstep-kafka/lockstep/epoch"
	"github.com/lockstep-kafka/lockstep/internal/ledger"
)

// ACLDiff is what a sync of a mirror's ACLs would change now.
type ACLDiff struct {
	Mirror                string
	Enabled, DryRun       bool
	Create, Remove, Held  []ledger.ACL
	SourceError           string // the source can't be asked: the rules are those it had
	InStep, NotUnderstood int    // rules that need nothing; rules of kinds this release doesn't know
}

// ErrNoMirror: this instance's configuration has no such mirror.
var ErrNoMirror = errors.New("no such mirror in this instance's configuration")

// ACLDiff compares now, and changes nothing.
func (m *Manager) ACLDiff(ctx context.Context, mirror string) (*ACLDiff, error) {
	s := m.source(mirror)
	if s == nil {
		return nil, fmt.Errorf("mirror %q: %w", mirror, ErrNoMirror)
	}
	p, d, err := s.planACLs(ctx)
	if err != nil {
		return nil, err
	}
	d.Create, d.Remove, d.Held = p.create, p.remove, p.held
	return d, nil
}

// followACLs keeps the destination's ACLs in step while this instance is the one
// to do it: every refresh, and soon after topics were stopped or started.
func (s *source) followACLs(ctx context.Context) error {
	tick := time.NewTicker(s.o.Refresh)
	defer tick.Stop()
	owner := ledger.ACLsOwner(s.o.Name)
	var was map[string]bool
	var told string
	due := true
	for ctx.Err() == nil {
		changed := s.m.opts.View.Changed()
		now := s.mirrored()
		if due = due || !maps.Equal(was, now); due && s.m.owned.has(owner) && !s.deleted() {
			err := s.syncACLs(ctx)
			was, due = now, false // after an error again at the next tick
			switch {
			case err == nil:
				told = ""
			case ctx.Err() == nil:
				s.m.metrics.aclsFailed(s.o.Name)
				if text := err.Error(); text != told {
					told = text
					s.log.Error("ACLs are not in step: tried again every metadata_refresh; nothing else waits for it", "err", err)
				}
			}
		}
		select {
		case <-tick.C:
			due = true
		case <-changed:
			pause(ctx, aclPause)
		case <-ctx.Done():
		}
	}
	return nil
}

// aclPause bounds how often a busy ledger is looked over for topics that were
// stopped or started.
const aclPause = time.Second

// mirrored are the topics of this destination that nobody may write to.
func (s *source) mirrored() map[string]bool {
	out := map[string]bool{}
	s.m.opts.View.Each(func(e *ledger.Partition) {
		out[e.Topic] = out[e.Topic] || e.Record == nil || e.Record.State != epoch.StateStopped
	})
	return out
}

// syncACLs brings the destination's rules to what is wanted: the ledger first,
// then what is missing, then what is too many.
func (s *source) syncACLs(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	p, d, err := s.planACLs(ctx)
	if err != nil {
		return err
	}
	s.m.metrics.acls(s.o.Name, p)
	if s.o.ACLs.DryRun {
		if len(p.create)+len(p.remove) > 0 {
			s.log.Info("dry run of the ACLs: `lockstep acls` lists them", "to_add", len(p.create), "to_remove", len(p.remove), "held_back", len(p.held))
		}
		return nil
	}
	if err := s.rememberACLs(ctx, p.memory); err != nil {
		return err
	}
	if err := createACLs(ctx, s.m.client, p.create); err != nil {
		return err
	}
	if err := deleteACLs(ctx, s.m.client, p.remove); err != nil {
		return err
	}
	if len(p.create)+len(p.remove) > 0 {
		s.log.Info("ACLs brought in step", "added", len(p.create), "removed", len(p.remove), "held_back", len(p.held))
	}
	if d.SourceError != "" {
		return errors.New(d.SourceError)
	}
	return nil
}

// sourceACLWait bounds how long a dead source keeps writers waiting after a
// failover.
const sourceACLWait = 10 * time.Second

func (s *source) planACLs(ctx context.Context) (aclPlan, *ACLDiff, error) {
	d := &ACLDiff{Mirror: s.o.Name, Enabled: s.o.ACLs.Enabled, DryRun: s.o.ACLs.DryRun}
	memory, err := s.m.opts.View.ACLs(s.o.Name)
	if err != nil {
		return aclPlan{}, nil, err
	}
	have, n, err := listACLs(ctx, s.m.client)
	if errors.Is(err, kerr.SecurityDisabled) {
		return aclPlan{}, nil, fmt.Errorf("the destination has no authorizer, so it keeps no ACLs and lets everybody do everything: set authorizer.class.name on its brokers, or leave acls.enabled off (%w)", err)
	}
	if err != nil {
		return aclPlan{}, nil, fmt.Errorf("list the destination's ACLs (needs Describe on the cluster there): %w", err)
	}
	d.NotUnderstood = n
	sctx, cancel := context.WithTimeout(ctx, sourceACLWait)
	all, n, err := listACLs(sctx, s.client)
	cancel()
	d.NotUnderstood += n
	var want []ledger.ACL
	switch {
	case err == nil:
		for _, r := range all {
			if s.o.ACLs.selects(r, s.admin.filter) {
				want = append(want, r)
			}
		}
	case errors.Is(err, kerr.SecurityDisabled):
		return aclPlan{}, nil, fmt.Errorf("the source has no authorizer, so there are no ACLs to copy: leave acls.enabled off (%w)", err)
	default:
		// At a failover the source may be gone: what was held back is in the ledger.
		d.SourceError = fmt.Sprintf("list the source's ACLs (needs Describe on the cluster there): %v", err)
		for _, r := range memory {
			if r.Wanted {
				want = append(want, r)
			}
		}
	}
	mirrored := s.mirrored()
	p := planACLs(want, have, memory, func(r ledger.ACL) bool { return !s.o.ACLs.AtOnce && s.heldBack(r, mirrored) })
	d.InStep = p.inStep()
	return p, d, nil
}

// heldBack tells whether a rule that allows changes covers a topic that is
// mirrored, or is to be.
func (s *source) heldBack(r ledger.ACL, mirrored map[string]bool) bool {
	if !changes(r) {
		return false
	}
	known := false
	for topic, busy := range mirrored {
		if covers(r, topic) {
			if busy {
				return true
			}
			known = true
		}
	}
	return !known && r.Pattern == "LITERAL" && s.admin.filter.Match(r.Name)
}

// rememberACLs writes the shards of the memory that differ.
func (s *source) rememberACLs(ctx context.Context, memory []ledger.ACL) error {
	was, err := s.m.opts.View.ACLs(s.o.Name)
	if err != nil {
		return err
	}
	split := func(list []ledger.ACL) (out [ledger.ACLShards][]ledger.ACL) {
		for _, r := range list {
			n := r.ACLShard()
			out[n] = append(out[n], r)
		}
		return out
	}
	before, after := split(was), split(memory)
	for n := range after {
		slices.SortFunc(before[n], compareACLs)
		slices.SortFunc(after[n], compareACLs)
		if slices.Equal(before[n], after[n]) {
			continue
		}
		if err := s.m.opts.Writer.PutACLs(ctx, &ledger.ACLs{Mirror: s.o.Name, Shard: n, Rules: after[n]}); err != nil {
			return err
		}
	}
	return nil
}
