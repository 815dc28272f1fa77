package mirror

import (
	"bytes"
	"fmt"

	"github.com/lockstep-kafka/lockstep/internal/ledger"
)

// maxTries bounds how many writes of unknown outcome are remembered.
const maxTries = 16

// trying remembers a write before it is made. mu is held.
func (p *Partition) trying(r *ledger.Record) {
	if len(p.tries) == maxTries {
		p.tries = p.tries[1:]
	}
	p.tries = append(p.tries, r)
}

// foreign tells whether the ledger holds a record that this owner has neither
// written nor tried to: another instance acted as the owner meanwhile, and what
// is in memory here is out of date (DESIGN §4, hazard M20). mu is held.
func (p *Partition) foreign() bool {
	s := p.eng.Store.Partition(p.topic, p.partition)
	if p.rec == nil || s == nil || s.Record == nil || s.Record.StateEpoch <= p.rec.StateEpoch {
		return false
	}
	have, err := s.Record.Encode()
	if err != nil {
		return true
	}
	for _, t := range p.tries {
		if b, err := t.Encode(); err == nil && bytes.Equal(b, have) {
			return false
		}
	}
	return true
}

// superseded is foreign for what runs by itself: a partition that rests here
// may have become another mirror's.
func (p *Partition) superseded() bool {
	return p.phase != phaseIdle && p.phase != phaseClosed && !p.idleOnly && p.foreign()
}

// supersededBy is the error that ends the partition here.
func (p *Partition) supersededBy() error {
	return fmt.Errorf("the ledger has a record of %s/%d that this instance did not write: %w", p.topic, p.partition, ledger.ErrFenced)
}
