package ledger

import (
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/lockstep-kafka/lockstep/epoch"
)

// ErrLost says that the ledger topic has lost writes that were already read (an unclean
// election, a deleted or re-created topic, records deleted by hand). What
// remains is older than what was built on it and can't be trusted (H3).
var ErrLost = errors.New("the ledger topic lost writes; compare the partition with its source, then recover or delete the mirror")

// Partition is a mirror partition as the ledger has it. It never changes; the
// view replaces it. Only Live moves, and is the same in all of a partition's
// snapshots.
type Partition struct {
	Topic     string
	Partition int32

	// Err: the ledger has an entry for this partition that can't be read or
	// can't be trusted. Record and Log are nil then: nothing may be assumed,
	// the proxy answers a retriable error, the mirror goes FAILED. Look at it
	// first.
	Err error

	Record     *Record
	Log        *epoch.Log  // = &Record.Log
	Checkpoint *Checkpoint // nil: none
	Command    *Command    // the newest, nil: none
	// RecordOffset is where the record stands in its ledger partition: who has
	// taken in more than that has the record.
	RecordOffset int64
	Live         *Live
	// Home is the ledger partition of the partition's entries.
	Home int32
}

// Tail is what the owner published, if it is of the log as it is in this
// snapshot: after a cut, or another owner's generation, the tail known before
// may hold what is dead now; and one published since a newer epoch came into the
// chain may end behind records of that epoch, which this snapshot would take for
// the epoch before. Known is false when there is none.
func (p *Partition) Tail() Tail {
	if p.Live == nil || p.Log == nil || p.Log.Open() == nil {
		return Tail{}
	}
	if o, t := p.Log.Open(), p.Live.Tail(); o.Kind == epoch.Mirrored && o.Gen == t.Gen && t.Newest <= p.Log.Chain.Newest() {
		return t
	}
	return Tail{}
}

// slot is the place of one partition; it outlives its snapshots.
type slot struct {
	topic     string
	partition int32
	home      int32 // ledger partition
	live      *Live
	cur       atomic.Pointer[Partition] // nil: not a mirror partition

	// What follows is the view's own, under its lock.
	record     *Record
	recordErr  error
	highest    int64 // newest state epoch read since the last tombstone
	checkpoint *Checkpoint
	cpErr      error
	command    *Command
	commandErr error
	recordAt   int64
}

// maxPartition bounds what a garbled key can make the view allocate.
const maxPartition = 1 << 17

// setRecord takes in a record entry: r, or err when it can't be read, or
// neither for a tombstone.
func (s *slot) setRecord(r *Record, err error) {
	switch {
	case err != nil:
		s.record, s.recordErr = nil, err
	case r == nil:
		s.record, s.recordErr, s.highest = nil, nil, 0
	case r.StateEpoch <= s.highest:
		// No writer of ours does this: each write is one above what was read.
		s.record = nil
		s.recordErr = fmt.Errorf("ledger entry %q: state epoch %d follows %d: %w", r.Key(), r.StateEpoch, s.highest, ErrLost)
	default:
		s.record, s.recordErr, s.highest = r, nil, r.StateEpoch
	}
}

func (s *slot) setCommand(c *Command, err error) { s.command, s.commandErr = c, err }

func (s *slot) setCheckpoint(c *Checkpoint, err error) { s.checkpoint, s.cpErr = c, err }

// setLost: the entry was there, and after the ledger lost its tail is not.
func (s *slot) setLost() {
	if s.record != nil || s.recordErr != nil {
		s.record = nil
		s.recordErr = fmt.Errorf("ledger entry %q: gone, it had state epoch %d: %w", RecordKey(s.topic, s.partition), s.highest, ErrLost)
	}
}

// publish builds the partition's next snapshot.
func (s *slot) publish() {
	if s.record == nil && s.recordErr == nil {
		s.cur.Store(nil)
		return
	}
	p := &Partition{Topic: s.topic, Partition: s.partition, Live: s.live, Checkpoint: s.checkpoint, Command: s.command, RecordOffset: s.recordAt, Home: s.home}
	switch {
	case s.recordErr != nil:
		p.Err = s.recordErr
	case s.cpErr != nil:
		p.Err = s.cpErr
	case s.commandErr != nil:
		p.Err = s.commandErr
	default:
		p.Record, p.Log = s.record, &s.record.Log
	}
	s.cur.Store(p)
}
