package ledger

import (
	"sync/atomic"
	"time"
)

// Tail is the end of a mirror partition as its owner, if it is this instance,
// knows it right now. Readers elsewhere find it out from the log.
type Tail struct {
	Known     bool
	VEnd      int64 // virtual end: of the last live batch
	Position  int64 // first source offset not yet mirrored, >= VEnd
	PEnd      int64 // physical end of the last live batch
	PEpoch    int32 // the destination's leader epoch under which this was seen
	EverShown int64 // nothing above it was ever shown; at least Position
	Sure      bool  // EverShown is: the source has been asked for its end since
	Gen       int16 // the open generation it was seen in: [Partition.Tail]
	Newest    int32 // the chain's newest epoch of then: [Partition.Tail]
}

// Status is what describe and the metrics say about a partition that this
// instance owns.
type Status struct {
	SourceStart, SourceEnd int64 // of the source's log; -1: not known
	SourceEpoch            int32 // the source's leader epoch, -1: not known
	Position               int64 // first source offset not yet mirrored
	LastFetch, LastAppend  time.Time
	Error                  string // of the last failed try, "" after a good one
	Held                   *Held  // nil: no transaction of the source holds it back for long
}

// Held says that the source's last stable offset stands still below its high
// watermark: what lies between can't be mirrored before a transaction has ended.
type Held struct {
	Offset        int64       `json:"offset"` // the last stable one
	HighWatermark int64       `json:"high_watermark"`
	Since         time.Time   `json:"since"`           // seen there first by this instance
	Transactions  []SourceTxn `json:"transactions"`    // open ones, by first offset
	Error         string      `json:"error,omitempty"` // why the source doesn't name them, or not fully
}

// SourceTxn is a transaction open on the source.
type SourceTxn struct {
	ProducerID      int64  `json:"producer_id"`
	ProducerEpoch   int16  `json:"producer_epoch"`
	TransactionalID string `json:"transactional_id,omitempty"` // "": not known
	State           string `json:"state,omitempty"`            // as its coordinator has it
	// Hanging: no coordinator has this partition in a transaction of the producer.
	// It will not end by itself, unless only the right to describe its
	// transactional id is missing.
	Hanging     bool      `json:"hanging"`
	FirstOffset int64     `json:"first_offset"`
	Started     time.Time `json:"started,omitzero"` // zero: not known
	LastWrite   time.Time `json:"last_write,omitzero"`
}

// Live is what this instance knows about a mirror partition besides the
// ledger. It is shared by all snapshots of the partition, and safe for
// concurrent use.
type Live struct {
	tail   atomic.Pointer[Tail]
	status atomic.Pointer[Status]
	lookup
}

// Publish makes t the tail that readers see. [Live.Retract] takes it back.
func (l *Live) Publish(t Tail) {
	t.Known = true
	l.tail.Store(&t)
}

// Retract says that this instance no longer knows the tail: ownership went.
func (l *Live) Retract() { l.tail.Store(nil) }

// Tail is what was published last; Known is false when nothing was.
func (l *Live) Tail() Tail {
	if t := l.tail.Load(); t != nil {
		return *t
	}
	return Tail{}
}

// SetStatus replaces the status numbers.
func (l *Live) SetStatus(s Status) { l.status.Store(&s) }

// Status is what was set last; ok is false when nothing was.
func (l *Live) Status() (s Status, ok bool) {
	if p := l.status.Load(); p != nil {
		return *p, true
	}
	return Status{SourceStart: -1, SourceEnd: -1, SourceEpoch: -1}, false
}
