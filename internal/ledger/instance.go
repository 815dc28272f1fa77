package ledger

import "time"

// Instance is what one running Lockstep says about itself. Only it writes its
// record.
type Instance struct {
	ID      string    `json:"id"`
	Version string    `json:"version,omitempty"` // of the program
	Address string    `json:"address,omitempty"` // where its admin API listens
	Started time.Time `json:"started"`
	Lease   time.Time `json:"lease"` // it counts as live until then
	// Mirrors are the mirrors of its configuration, with a digest of each setting
	// that must be the same on every instance, by name and key.
	Mirrors map[string]map[string]string `json:"mirrors,omitempty"`
	// ServesUntil is when it stops showing mirror topics, unless it renews its
	// record before: its own view enforces it ([View.ServeUntil]).
	ServesUntil time.Time `json:"servesUntil"`
	// Applied is, for each ledger partition, the offset up to which it has
	// taken the ledger in; the client writes that it had forwarded before are
	// all answered (H10). Empty: none yet.
	Applied []int64 `json:"applied,omitempty"`
}

// unreadable stands for an instance whose record can't be read (a newer
// program's): it renewed it a moment ago, and is waited for as any other (H10).
func unreadable(id string, until time.Time) *Instance {
	return &Instance{ID: id, Version: "not known: its record can't be read here", Lease: until, ServesUntil: until}
}

// Key is the instance's key in the ledger topic.
func (i *Instance) Key() string { return InstanceKey(i.ID) }
