package ledger

import "time"

// Command says where the operator wants a mirror partition. Any instance may
// write it; the partition's owner acts on it once, when its Seq is above the
// record's CommandSeq, and says so in the record.
type Command struct {
	Mirror    string `json:"mirror"`
	Topic     string `json:"topic"`
	Partition int32  `json:"partition"`

	Desired State `json:"desired,omitempty"` // MIRRORING, PAUSED or STOPPED; "": as it is
	// Seq rises from command to command: the unix time in ms, or one more than
	// the newest command's.
	Seq          int64     `json:"seq"`
	Recover      bool      `json:"recover,omitempty"`      // FAILED: back to the state before, retries counted anew
	DiscardLocal bool      `json:"discardLocal,omitempty"` // start: drop local records that the source lacks
	By           string    `json:"by,omitempty"`           // who asked
	At           time.Time `json:"at"`
}

// Key is the command's key in the ledger topic.
func (c *Command) Key() string { return CommandKey(c.Topic, c.Partition) }
