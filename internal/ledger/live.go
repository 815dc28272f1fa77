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
	EverShown int64 // highest end or position ever shown
	Gen       int16 // the open generation it was seen in: [Partition.Tail]
}

// Status is what describe and the metrics say about a partition that this
// instance owns.
type Status struct {
	SourceStart, SourceEnd int64 // of the source's log; -1: not known
	SourceEpoch            int32 // the source's leader epoch, -1: not known
	Position               int64 // first source offset not yet mirrored
	LastFetch, LastAppend  time.Time
	Error                  string // of the last failed try, "" after a good one
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
