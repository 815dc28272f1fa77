package control

import (
	"context"
	"fmt"
	"time"

	"github.com/lockstep-kafka/lockstep/epoch"
	"github.com/lockstep-kafka/lockstep/internal/ledger"
)

// Instance is a registered Lockstep.
type Instance struct {
	ID      string    `json:"id"`
	Version string    `json:"version,omitempty"`
	Address string    `json:"address,omitempty"`
	Started time.Time `json:"started"`
	Lease   time.Time `json:"lease"`
	Live    bool      `json:"live"`
	Self    bool      `json:"self"`
	// Behind is how many ledger records it has not taken in; -1: all of it, it
	// has acknowledged nothing yet.
	Behind int64 `json:"behind"`
	// Awaited are partitions that wait for it, at most maxAwaited of them, and
	// how many there are.
	Awaited      []string `json:"awaited,omitempty"`
	AwaitedCount int      `json:"awaited_count"`
}

// maxAwaited bounds the partitions named for one instance.
const maxAwaited = 5

// ForgetRequest removes an instance that is gone for good.
type ForgetRequest struct {
	Instance string `json:"instance"`
}

// Instances are the registered instances, by id, with what waits for whom.
func (s *Service) Instances() []Instance {
	all := s.o.View.Instances()
	parts := s.o.View.All()
	out := make([]Instance, 0, len(all))
	for _, i := range all {
		x := Instance{
			ID: i.ID, Version: i.Version, Address: i.Address, Started: i.Started, Lease: i.Lease,
			Live: s.o.Now().Before(i.Lease), Self: i.ID == s.o.ID, Behind: -1,
		}
		if len(i.Applied) == ledger.Partitions {
			x.Behind = 0
		}
		for _, p := range parts {
			if p.Record == nil {
				continue
			}
			if x.Behind >= 0 && i.Applied[ledger.PartitionOf(p.Topic, p.Partition)] <= p.RecordOffset {
				x.Behind++
			}
			if st := p.Record.State; st != epoch.StateLogAlignment && st != epoch.StateULERecovery {
				continue
			}
			if len(ledger.Waiting([]*ledger.Instance{i}, p, s.o.UncleanElections(p.Record.Mirror, p.Topic), s.o.Now())) == 0 {
				continue
			}
			if x.AwaitedCount++; len(x.Awaited) < maxAwaited {
				x.Awaited = append(x.Awaited, ledger.RecordKey(p.Topic, p.Partition))
			}
		}
		out = append(out, x)
	}
	return out
}

// Forget removes an instance's registration, so that alignments and recoveries
// no longer wait for it. One that may still serve is refused: it would go on
// showing what the others have cut.
func (s *Service) Forget(ctx context.Context, r ForgetRequest) (*Instance, error) {
	if r.Instance == "" {
		return nil, &Error{Kind: BadRequest, Text: "no instance is named", Remedy: "`lockstep instances` lists them"}
	}
	if !s.o.View.Fresh() {
		return nil, &Error{Kind: Unavailable, Text: "this instance has not read the ledger to its end within the last seconds", Remedy: "look at /readyz, then run it again"}
	}
	for _, i := range s.Instances() {
		if i.ID != r.Instance {
			continue
		}
		if over := i.Lease.Add(ledger.RequestTimeout); s.o.Now().Before(over) {
			return nil, &Error{Kind: Refused, Text: fmt.Sprintf("instance %s may still serve clients: its lease and their last writes are over at %s", i.ID, over.UTC().Format(time.RFC3339)), Remedy: "end its process, then run it again after that time"}
		}
		if err := s.o.Writer.DeleteInstance(ctx, i.ID); err != nil {
			return nil, &Error{Kind: Unavailable, Text: fmt.Sprintf("the ledger could not be written: %v", err), Remedy: "run it again"}
		}
		return &i, nil
	}
	return nil, &Error{Kind: NotFound, Text: fmt.Sprintf("there is no instance %q", r.Instance), Remedy: "`lockstep instances` lists them"}
}
