package control

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/lockstep-kafka/lockstep/internal/ledger"
)

// SettingsRequest switches support for unclean leader elections of the source,
// of a mirror as a whole or of some of its topics. It takes effect on all
// instances at once, without a restart.
type SettingsRequest struct {
	Mirror string   `json:"mirror"`
	Topics []string `json:"topics,omitempty"`
	// UncleanLeaderElection is "true", "false", or "config" for what the
	// configuration (a topic: the mirror) says.
	UncleanLeaderElection string `json:"unclean_leader_election"`
	By                    string `json:"by,omitempty"`
}

// Settings are a mirror's as they are now.
type Settings struct {
	Mirror                string          `json:"mirror"`
	UncleanLeaderElection bool            `json:"unclean_leader_election"`
	Topics                map[string]bool `json:"topics,omitempty"` // those that differ by a verb
}

// Set changes a mirror's settings and returns them.
func (s *Service) Set(ctx context.Context, r SettingsRequest) (*Settings, error) {
	if r.Mirror == "" {
		return nil, &Error{Kind: BadRequest, Text: "no mirror is named", Remedy: "name it with --mirror"}
	}
	if !s.o.View.Fresh() {
		return nil, &Error{Kind: Unavailable, Text: "this instance has not read the ledger to its end within the last seconds", Remedy: "look at /readyz, then run it again"}
	}
	if !s.known(r.Mirror) {
		return nil, &Error{Kind: NotFound, Text: fmt.Sprintf("there is no mirror %q", r.Mirror), Remedy: "`lockstep list` shows the mirrors"}
	}
	if len(r.Topics) > maxTopics {
		return nil, &Error{Kind: BadRequest, Text: "too many topics", Remedy: "switch the mirror as a whole"}
	}
	var on *bool
	switch r.UncleanLeaderElection {
	case "true", "false":
		v := r.UncleanLeaderElection == "true"
		on = &v
	case "config":
	default:
		return nil, &Error{Kind: BadRequest, Text: fmt.Sprintf("unclean_leader_election can't be %q", r.UncleanLeaderElection), Remedy: "write true, false or config"}
	}
	err := s.change(ctx, r.Mirror, r.By, func(m *ledger.MirrorSettings) {
		if len(r.Topics) == 0 {
			m.UncleanElections = on
			return
		}
		if m.TopicUncleanElections == nil {
			m.TopicUncleanElections = map[string]bool{}
		}
		for _, t := range r.Topics {
			if on == nil {
				delete(m.TopicUncleanElections, t)
			} else {
				m.TopicUncleanElections[t] = *on
			}
		}
	})
	if err != nil {
		return nil, err
	}
	out := &Settings{Mirror: r.Mirror, UncleanLeaderElection: s.o.UncleanElections(r.Mirror, "")}
	if m := s.o.View.MirrorSettings(r.Mirror); m != nil {
		out.Topics = maps.Clone(m.TopicUncleanElections)
	}
	return out, nil
}

// differing are the live instances that have other settings for a mirror than
// this one, with the keys.
func (s *Service) differing(m Mirror) map[string][]string {
	out := map[string][]string{}
	for _, i := range s.o.View.Instances() {
		theirs, ok := i.Mirrors[m.Name]
		if !ok || i.ID == s.o.ID || !s.o.Now().Before(i.Lease) {
			continue
		}
		if keys := unequal(m.Fingerprint, theirs); len(keys) > 0 {
			out[i.ID] = keys
		}
	}
	return out
}

// Differing are the other live instances whose configuration of a mirror that
// is declared here differs, with the keys: mirror, instance, keys.
func (s *Service) Differing() map[string]map[string][]string {
	out := map[string]map[string][]string{}
	for _, m := range s.declared() {
		if d := s.differing(m); len(d) > 0 {
			out[m.Name] = d
		}
	}
	return out
}

func unequal(a, b map[string]string) []string {
	set := map[string]bool{}
	for k, v := range a {
		if b[k] != v {
			set[k] = true
		}
	}
	for k := range b {
		if _, ok := a[k]; !ok {
			set[k] = true
		}
	}
	return slices.Sorted(maps.Keys(set))
}
