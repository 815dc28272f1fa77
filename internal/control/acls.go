package control

import (
	"context"
	"fmt"
	"time"
)

// ACLs is what a sync of a mirror's ACLs would change now.
type ACLs struct {
	Mirror  string   `json:"mirror"`
	Enabled bool     `json:"enabled"`
	DryRun  bool     `json:"dry_run"`
	Add     []string `json:"add"`
	Remove  []string `json:"remove"`
	// HeldBack are rules that wait until the topics they cover are STOPPED.
	HeldBack []string `json:"held_back"`
	InStep   int      `json:"in_step"` // rules that need nothing
	// NotUnderstood is how many rules are of kinds this release doesn't know.
	NotUnderstood int    `json:"not_understood"`
	SourceError   string `json:"source_error,omitempty"` // the rules are those the source had before
}

// ACLs compares now, and changes nothing.
func (s *Service) ACLs(ctx context.Context, mirror string) (*ACLs, error) {
	if mirror == "" {
		return nil, &Error{Kind: BadRequest, Text: "no mirror is named", Remedy: "name it with --mirror"}
	}
	declared := false
	for _, m := range s.declared() {
		declared = declared || m.Name == mirror
	}
	if !declared || s.o.ACLs == nil {
		return nil, &Error{Kind: NotFound, Text: fmt.Sprintf("this instance's configuration has no mirror %q", mirror), Remedy: "ask an instance that has: `lockstep list` shows the mirrors"}
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	a, err := s.o.ACLs(ctx, mirror)
	if err != nil {
		return nil, &Error{Kind: Unavailable, Text: fmt.Sprintf("the ACLs can't be compared: %v", err), Remedy: "see docs/operations.md, \"ACLs\", for the rights it takes"}
	}
	return a, nil
}
