package protocol

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"math"
)

// Places of the fields of a v2 record batch (Kafka's DefaultRecordBatch). The
// CRC covers everything from the attributes on.
const (
	offBaseOffset      = 0
	offLength          = 8
	offLeaderEpoch     = 12
	offMagic           = 16
	offCRC             = 17
	offAttributes      = 21
	offLastOffsetDelta = 23
	offBaseTimestamp   = 27
	offMaxTimestamp    = 35
	offProducerID      = 43
	offProducerEpoch   = 51
	offBaseSequence    = 53
	offNumRecords      = 57

	// BatchHeaderSize is the size in bytes of a v2 batch without its records.
	BatchHeaderSize = 61

	sizePrefix = 12 // base offset and length: what the length field doesn't count
	magicV2    = 2
)

// Bits of the attributes field.
const (
	attrCodec         = 0x07
	attrLogAppendTime = 1 << 3
	attrTransactional = 1 << 4
	attrControl       = 1 << 5
	attrDeleteHorizon = 1 << 6
)

// Codec is a batch's compression, the lowest three attribute bits.
type Codec uint8

// The five codecs that Kafka knows (CompressionType).
const (
	CodecNone   Codec = 0
	CodecGzip   Codec = 1
	CodecSnappy Codec = 2
	CodecLZ4    Codec = 3
	CodecZstd   Codec = 4
)

// String is the codec's name as in Kafka's compression.type.
func (c Codec) String() string {
	switch c {
	case CodecNone:
		return "none"
	case CodecGzip:
		return "gzip"
	case CodecSnappy:
		return "snappy"
	case CodecLZ4:
		return "lz4"
	case CodecZstd:
		return "zstd"
	}
	return fmt.Sprintf("codec %d", uint8(c))
}

// What can be wrong with a batch. Errors returned by this package wrap one of
// these and say what was found.
var (
	// ErrPartialBatch: the bytes end inside a batch. Normal at the end of a
	// Fetch answer, which is cut at its size limit: drop the rest, ask again.
	ErrPartialBatch = errors.New("partial record batch")
	// ErrMagic: message format v0/v1 (or one newer than v2).
	ErrMagic = errors.New("record batch is not of message format v2")
	// ErrCorruptBatch: sizes, counts or records that contradict each other.
	ErrCorruptBatch = errors.New("corrupt record batch")
	// ErrCRC: the batch's CRC-32C is wrong. Such a batch is never given a right one.
	ErrCRC = errors.New("record batch with a wrong CRC")
	// ErrControlBatch: brokers refuse control batches from clients; skip it.
	ErrControlBatch = errors.New("control batch")
	// ErrEmptyBatch: no records (an emptied, compacted batch); brokers refuse it; skip it.
	ErrEmptyBatch = errors.New("record batch without records")
	// ErrHoles: fewer records than offsets; brokers refuse it. Densify it first.
	ErrHoles = errors.New("record batch with holes")
	// ErrLogAppendTime: timestamp type LogAppendTime. Densify it first: brokers
	// refuse it, or put the producer's times in place of the append time.
	ErrLogAppendTime = errors.New("record batch with timestamp type LogAppendTime")
)

// Batch is the bytes of exactly one v2 record batch, as NextBatch cuts it out
// of a buffer (header of 61 bytes, then records, maybe compressed). Accessors
// and the methods that change it in place neither check nor allocate; on
// anything else than a slice from NextBatch they may panic.
type Batch []byte

// NextBatch cuts the first batch off b. Both results alias b. At the end of b
// it returns io.EOF, for a trailing part of a batch ErrPartialBatch, for v0/v1
// messages ErrMagic, for lengths and counts that can't be ErrCorruptBatch. It
// looks at the header only: CRC and records are not checked.
func NextBatch(b []byte) (Batch, []byte, error) {
	if len(b) == 0 {
		return nil, nil, io.EOF
	}
	if len(b) <= offMagic {
		return nil, b, ErrPartialBatch
	}
	if m := b[offMagic]; m != magicV2 {
		return nil, b, fmt.Errorf("%w: magic %d at offset %d; rewrite the topic with a client and broker of Kafka 0.11 or later",
			ErrMagic, m, Batch(b).BaseOffset())
	}
	length := int32(binary.BigEndian.Uint32(b[offLength:]))
	if length < BatchHeaderSize-sizePrefix {
		return nil, b, fmt.Errorf("%w: length %d is less than a header's %d", ErrCorruptBatch, length, BatchHeaderSize-sizePrefix)
	}
	size := int64(length) + sizePrefix
	if size > int64(len(b)) {
		return nil, b, ErrPartialBatch
	}
	batch := Batch(b[:size:size])
	n, last := batch.NumRecords(), batch.LastOffsetDelta()
	switch {
	case batch.BaseOffset() < 0 || last < 0:
		return nil, b, fmt.Errorf("%w: base offset %d, last offset delta %d", ErrCorruptBatch, batch.BaseOffset(), last)
	case batch.BaseOffset()+int64(last)+1 < 0:
		return nil, b, fmt.Errorf("%w: base offset %d and last offset delta %d overflow", ErrCorruptBatch, batch.BaseOffset(), last)
	case n < 0 || int64(n) > int64(last)+1:
		return nil, b, fmt.Errorf("%w: %d records in %d offsets", ErrCorruptBatch, n, int64(last)+1)
	}
	return batch, b[size:], nil
}

// HoleBatch is a batch without records in place of offsets [v, end), as Kafka's
// cleaner leaves them: a reader goes on at end.
func HoleBatch(v, end int64, epoch int32) Batch {
	b := make(Batch, BatchHeaderSize)
	b.SetBase(v, epoch)
	b.putInt32(offLength, BatchHeaderSize-sizePrefix)
	b[offMagic] = magicV2
	b.putInt32(offLastOffsetDelta, int32(min(end-v, math.MaxInt32)-1))
	b.putInt64(offBaseTimestamp, -1)
	b.putInt64(offMaxTimestamp, -1)
	b.putProducer(-1, -1, -1)
	binary.BigEndian.PutUint32(b[offCRC:], crc32.Checksum(b[offAttributes:], crcTable))
	return b
}

// BaseOffset is the offset of the batch's first record (kept by the cleaner
// when that record goes).
func (b Batch) BaseOffset() int64 { return b.int64(offBaseOffset) }

// Size is the batch's whole size in bytes: 12 + its length field.
func (b Batch) Size() int { return int(b.int32(offLength)) + sizePrefix }

// PartitionLeaderEpoch is the epoch of the leader that appended the batch. Not
// under the CRC.
func (b Batch) PartitionLeaderEpoch() int32 { return b.int32(offLeaderEpoch) }

// Magic is the message format: 2.
func (b Batch) Magic() int8 { return int8(b[offMagic]) }

// CRC is the CRC-32C field.
func (b Batch) CRC() uint32 { return binary.BigEndian.Uint32(b[offCRC:]) }

// Attributes is the attributes field.
func (b Batch) Attributes() int16 { return int16(binary.BigEndian.Uint16(b[offAttributes:])) }

// LastOffsetDelta is the last offset minus the base offset (kept by the
// cleaner when that record goes).
func (b Batch) LastOffsetDelta() int32 { return b.int32(offLastOffsetDelta) }

// BaseTimestamp is, in ms, what the records' timestamp deltas are relative to:
// the first record's time, or the delete horizon when HasDeleteHorizon.
func (b Batch) BaseTimestamp() int64 { return b.int64(offBaseTimestamp) }

// MaxTimestamp is the largest timestamp in ms, or the append time of the whole
// batch when LogAppendTime.
func (b Batch) MaxTimestamp() int64 { return b.int64(offMaxTimestamp) }

// ProducerID is the producer id, -1 for none, <= -2 for a stamp.
func (b Batch) ProducerID() int64 { return b.int64(offProducerID) }

// ProducerEpoch is the producer's epoch, -1 for none.
func (b Batch) ProducerEpoch() int16 { return int16(binary.BigEndian.Uint16(b[offProducerEpoch:])) }

// BaseSequence is the first record's sequence number, -1 for none.
func (b Batch) BaseSequence() int32 { return b.int32(offBaseSequence) }

// NumRecords is the number of records in the batch.
func (b Batch) NumRecords() int32 { return b.int32(offNumRecords) }

// NextOffset is the offset behind the batch.
func (b Batch) NextOffset() int64 { return b.BaseOffset() + int64(b.LastOffsetDelta()) + 1 }

// IsControl tells transaction markers and other control batches.
func (b Batch) IsControl() bool { return b.Attributes()&attrControl != 0 }

// IsTransactional tells batches written in a transaction.
func (b Batch) IsTransactional() bool { return b.Attributes()&attrTransactional != 0 }

// Codec is the batch's compression; values above 4 are unknown to Kafka.
func (b Batch) Codec() Codec { return Codec(b.Attributes() & attrCodec) }

// LogAppendTime tells that every record's timestamp is MaxTimestamp.
func (b Batch) LogAppendTime() bool { return b.Attributes()&attrLogAppendTime != 0 }

// HasDeleteHorizon tells that BaseTimestamp is the time from which the cleaner
// may remove tombstones and markers in this batch (KIP-534).
func (b Batch) HasDeleteHorizon() bool { return b.Attributes()&attrDeleteHorizon != 0 }

// HasHoles tells that there are fewer records than offsets, as in a batch that
// the cleaner has thinned out. Record offsets rise, so without it they are dense.
func (b Batch) HasHoles() bool { return b.NumRecords() != b.LastOffsetDelta()+1 }

func (b Batch) int32(at int) int32 { return int32(binary.BigEndian.Uint32(b[at:])) }
func (b Batch) int64(at int) int64 { return int64(binary.BigEndian.Uint64(b[at:])) }

func (b Batch) putInt32(at int, v int32) { binary.BigEndian.PutUint32(b[at:], uint32(v)) }
func (b Batch) putInt64(at int, v int64) { binary.BigEndian.PutUint64(b[at:], uint64(v)) }

func (b Batch) setAttributes(a int16) { binary.BigEndian.PutUint16(b[offAttributes:], uint16(a)) }
