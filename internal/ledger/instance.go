package ledger

import "time"

// Instance is what one running Lockstep says about itself. Only it writes its
// record.
type Instance struct {
	ID      string    `json:"id"`
	Version string    `json:"version,omitempty"` // of the program
	Address string    `json:"address,omitempty"` // where its admin API listens
	Started time.Time `json:"started"`
	Lease   time.Time `json:"lease"` // it serves nothing from its view after this
}

// Key is the instance's key in the ledger topic.
func (i *Instance) Key() string { return InstanceKey(i.ID) }
