package protocol

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
)

// Stamp is what a mirrored batch says of itself in producerId, producerEpoch
// and baseSequence (DESIGN §1). Flags and Hole as in package epoch.
type Stamp struct {
	V     int64 // virtual base offset, 0 … 2^50-1
	Hole  uint8 // offsets skipped between the chain end of the batch before and V; 255: that many or more
	Flags uint8 // 5 bits
	Gen   int16 // generation, >= 0
	Epoch int32 // leader epoch on the source, >= 0
}

// Layout of x, where producerId = -(2+x): V in the low 50 bits, then 8 bits
// hole, 5 bits flags.
const (
	stampHoleShift = 50
	stampFlagShift = 58
	stampMaxV      = 1<<stampHoleShift - 1
	stampMaxFlags  = 30 // 31 would not always fit into an int64
	stampFlagMask  = 31
)

// ErrStamp: a stamp with a value that its field can't hold.
var ErrStamp = errors.New("stamp out of range")

func (s Stamp) check() error {
	switch {
	case s.V < 0 || s.V > stampMaxV:
		return fmt.Errorf("%w: virtual offset %d, largest is 2^50-1", ErrStamp, s.V)
	case s.Flags > stampMaxFlags:
		return fmt.Errorf("%w: flags %#x, largest are %#x", ErrStamp, s.Flags, stampMaxFlags)
	case s.Gen < 0:
		return fmt.Errorf("%w: generation %d", ErrStamp, s.Gen)
	case s.Epoch < 0:
		return fmt.Errorf("%w: leader epoch %d", ErrStamp, s.Epoch)
	}
	return nil
}

func (s Stamp) producerID() int64 {
	return -(2 + (s.V | int64(s.Hole)<<stampHoleShift | int64(s.Flags)<<stampFlagShift))
}

// WriteStamp makes a source batch ready for Produce, in place: the stamp goes
// into the producer fields, the base offset becomes 0 and the transactional bit
// is cleared (brokers want both so); the CRC is updated, not recomputed, so a
// wrong one stays as wrong. partitionLeaderEpoch is left alone (the broker sets
// it). Unchanged and an error: a stamp out of range (ErrStamp), and what a
// broker would refuse or spoil: ErrControlBatch and ErrEmptyBatch (skip them),
// ErrHoles and ErrLogAppendTime (Densify first).
func (b Batch) WriteStamp(s Stamp) error {
	if err := s.check(); err != nil {
		return err
	}
	if err := b.producible(); err != nil {
		return err
	}
	before := b.headCRC()
	b.setAttributes(b.Attributes() &^ attrTransactional)
	b.putProducer(s.producerID(), s.Gen, s.Epoch)
	b.fixCRC(before)
	b.putInt64(offBaseOffset, 0)
	return nil
}

// producible tells, from the header, what keeps a broker from taking the batch
// as it is.
func (b Batch) producible() error {
	switch {
	case b.IsControl():
		return ErrControlBatch
	case b.NumRecords() == 0:
		return ErrEmptyBatch
	case b.HasHoles():
		return ErrHoles
	case b.LogAppendTime():
		return ErrLogAppendTime
	}
	return nil
}

// ReadStamp reads the stamp; false: there is none (producerId >= -1). It only
// takes the fields apart: flags may be unknown ones and, in a batch that
// Lockstep didn't write, Gen or Epoch negative.
func (b Batch) ReadStamp() (Stamp, bool) {
	pid := b.ProducerID()
	if pid >= -1 {
		return Stamp{}, false
	}
	x := -2 - pid
	return Stamp{
		V:     x & stampMaxV,
		Hole:  uint8(x >> stampHoleShift),
		Flags: uint8(x>>stampFlagShift) & stampFlagMask,
		Gen:   b.ProducerEpoch(),
		Epoch: b.BaseSequence(),
	}, true
}

// Restore shows a stamped batch as the source had it, in place: base offset v,
// leader epoch, producer fields -1; the CRC is updated, not recomputed. For
// batches with neither of the flags renumbered (Undensify) and log-append-time
// (RestoreLogAppend).
func (b Batch) Restore(v int64, epoch int32) { b.restore(v, epoch, 0) }

// RestoreLogAppend is Restore for a batch stamped log-append-time but not
// renumbered: it also puts the timestamp type back.
func (b Batch) RestoreLogAppend(v int64, epoch int32) { b.restore(v, epoch, attrLogAppendTime) }

func (b Batch) restore(v int64, epoch int32, attributes int16) {
	before := b.headCRC()
	b.setAttributes(b.Attributes() | attributes)
	b.putProducer(-1, -1, -1)
	b.fixCRC(before)
	b.SetBase(v, epoch)
}

// Bare takes from a batch, in place, what its producer left in the header: the
// producer fields become -1, the transactional bit 0; the CRC is updated, not
// recomputed. A batch of a source and the one that Restore makes of its mirrored
// copy are then equal from the CRC on, byte for byte.
func (b Batch) Bare() {
	before := b.headCRC()
	b.setAttributes(b.Attributes() &^ attrTransactional)
	b.putProducer(-1, -1, -1)
	b.fixCRC(before)
}

// SameContent tells whether two batches are equal from the CRC on: all but base
// offset, size and leader epoch.
func (b Batch) SameContent(o Batch) bool { return bytes.Equal(b[offCRC:], o[offCRC:]) }

// SetBase sets base offset and leader epoch, which lie outside the CRC: all
// that a batch of a native span needs to be shown.
func (b Batch) SetBase(v int64, epoch int32) {
	b.putInt64(offBaseOffset, v)
	b.putInt32(offLeaderEpoch, epoch)
}

func (b Batch) putProducer(id int64, epoch int16, sequence int32) {
	b.putInt64(offProducerID, id)
	binary.BigEndian.PutUint16(b[offProducerEpoch:], uint16(epoch))
	b.putInt32(offBaseSequence, sequence)
}
