package ledger

import "time"

// Checkpoint says how far a mirror partition was when its owner last wrote it
// down. It bounds recovery's walk and keeps the end of a log that retention
// has emptied (M22); while live batches are left, they are the truth.
type Checkpoint struct {
	Topic     string
	Partition int32
	Lineage   string // of the log it speaks of; another one: ignore it
	Gen       int16  // generation of the last live batch
	Under     int16  // generation that was open

	V        int64 // virtual end: of the last live batch, true also when it is renumbered
	ChainEnd int64 // where the next batch's hole counts from
	P        int64 // physical end of that batch
	Position int64 // first source offset not yet mirrored, skipped ones counted
	// LastEpoch is the source's leader epoch of the last batch seen, skipped
	// ones included; -1: none.
	LastEpoch int32
	EndShown  int64 // nothing above it was ever shown to a client (H12), if SourceEnd is known
	SourceEnd int64 // the source's last known end, -1: none
	Open      bool  // a source transaction was open at Position (M11)

	// StateEpoch is that of the record it was made under: EndShown counts only if
	// nothing was cut since ([Record.CutAt]).
	StateEpoch int64
	// CaughtUp is when the position last was at the source's end; zero: never in
	// this log (M26).
	CaughtUp time.Time

	At time.Time
	// Released: a clean hand-over, nothing was in flight. The next owner needs
	// no new generation.
	Released bool
}

// Shown is EndShown, -1 when the record says that the log was cut since.
func (c *Checkpoint) Shown(r *Record) int64 {
	if c.StateEpoch < r.CutAt {
		return -1
	}
	return c.EndShown
}

// Key is the checkpoint's key in the ledger topic.
func (c *Checkpoint) Key() string { return CheckpointKey(c.Topic, c.Partition) }
