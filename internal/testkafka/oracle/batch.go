package oracle

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"

	"github.com/klauspost/compress/s2"
	"github.com/klauspost/compress/zstd"
	"github.com/pierrec/lz4/v4"
)

// Codec is a batch's compression, by its number in the attributes.
type Codec int16

// The five codecs of the v2 batch format.
const (
	None Codec = iota
	Gzip
	Snappy
	LZ4
	Zstd
)

// Batch is the header of a v2 record batch, with the records' bytes as they were on the wire.
type Batch struct {
	Base          int64
	Epoch         int32
	Attributes    int16
	LastDelta     int32
	BaseTimestamp int64
	MaxTimestamp  int64
	ProducerID    int64
	ProducerEpoch int16
	Sequence      int32
	Count         int32
	Records       []byte // still compressed
}

const batchHeader = 61

// Codec is the compression of the records.
func (b Batch) Codec() Codec { return Codec(b.Attributes & 7) }

// LogAppend says that the batch's maximum timestamp stands for every record.
func (b Batch) LogAppend() bool { return b.Attributes&8 != 0 }

// Transactional says that the batch belongs to a transaction.
func (b Batch) Transactional() bool { return b.Attributes&16 != 0 }

// Control says that the batch holds a transaction marker.
func (b Batch) Control() bool { return b.Attributes&32 != 0 }

// DeleteHorizon says that the base timestamp is the time after which tombstones go.
func (b Batch) DeleteHorizon() bool { return b.Attributes&64 != 0 }

// Next is the offset after the batch.
func (b Batch) Next() int64 { return b.Base + int64(b.LastDelta) + 1 }

// String is one line for messages.
func (b Batch) String() string {
	return fmt.Sprintf("{base=%d lastDelta=%d n=%d e%d attr=%#x pid=%d/%d seq=%d}", b.Base, b.LastDelta, b.Count, b.Epoch, b.Attributes,
		b.ProducerID, b.ProducerEpoch, b.Sequence)
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// ParseBatches reads the whole batches in b; a partial one at its end is left out. The CRC is checked.
func ParseBatches(b []byte) ([]Batch, error) {
	var out []Batch
	for len(b) >= batchHeader {
		n := int(int32(binary.BigEndian.Uint32(b[8:]))) + 12
		if n < batchHeader {
			return out, fmt.Errorf("oracle: a batch of %d bytes", n)
		}
		if n > len(b) {
			break
		}
		if b[16] != 2 {
			return out, fmt.Errorf("oracle: magic %d", b[16])
		}
		if crc := binary.BigEndian.Uint32(b[17:]); crc != crc32.Checksum(b[21:n], castagnoli) {
			return out, fmt.Errorf("oracle: wrong CRC in the batch at %d", int64(binary.BigEndian.Uint64(b)))
		}
		out = append(out, Batch{
			Base: int64(binary.BigEndian.Uint64(b)), Epoch: int32(binary.BigEndian.Uint32(b[12:])),
			Attributes: int16(binary.BigEndian.Uint16(b[21:])), LastDelta: int32(binary.BigEndian.Uint32(b[23:])),
			BaseTimestamp: int64(binary.BigEndian.Uint64(b[27:])), MaxTimestamp: int64(binary.BigEndian.Uint64(b[35:])),
			ProducerID: int64(binary.BigEndian.Uint64(b[43:])), ProducerEpoch: int16(binary.BigEndian.Uint16(b[51:])),
			Sequence: int32(binary.BigEndian.Uint32(b[53:])), Count: int32(binary.BigEndian.Uint32(b[57:])),
			Records: b[batchHeader:n],
		})
		b = b[n:]
	}
	return out, nil
}

// Recs decodes the batch's records.
func (b Batch) Recs(partition int32) ([]Rec, error) {
	raw, err := Decompress(b.Codec(), b.Records)
	if err != nil {
		return nil, fmt.Errorf("oracle: batch at %d: %w", b.Base, err)
	}
	r := reader{b: raw}
	var out []Rec
	for range b.Count {
		rec := Rec{Partition: partition, LeaderEpoch: b.Epoch, TimestampType: CreateTime}
		r.varint() // length
		r.take(1)  // attributes
		rec.Timestamp = b.BaseTimestamp + r.varint()
		rec.Offset = b.Base + r.varint()
		rec.Key, rec.Value = r.bytes(), r.bytes()
		if b.LogAppend() {
			rec.Timestamp, rec.TimestampType = b.MaxTimestamp, LogAppendTime
		}
		for range r.varint() {
			rec.Headers = append(rec.Headers, Header{Key: string(r.bytes()), Value: r.bytes()})
			if r.err != nil {
				break
			}
		}
		if r.err != nil {
			return nil, fmt.Errorf("oracle: batch at %d: %w", b.Base, r.err)
		}
		out = append(out, rec)
	}
	if len(r.b) != 0 {
		return nil, fmt.Errorf("oracle: batch at %d: %d bytes behind the last record", b.Base, len(r.b))
	}
	return out, nil
}

// AbortMarker says whether a control batch ends its transaction by an abort. A marker whose record was cleaned away
// ends nothing.
func (b Batch) AbortMarker() (bool, error) {
	recs, err := b.Recs(0)
	if err != nil || len(recs) == 0 {
		return false, err
	}
	if k := recs[0].Key; len(k) == 4 {
		return k[2] == 0 && k[3] == 0, nil
	}
	return false, fmt.Errorf("oracle: control record key %x", recs[0].Key)
}

var errShort = errors.New("record ends early")

type reader struct {
	b   []byte
	err error
}

func (r *reader) varint() int64 {
	v, n := binary.Varint(r.b)
	if n <= 0 {
		r.err = errShort
		return 0
	}
	r.b = r.b[n:]
	return v
}

func (r *reader) take(n int64) []byte {
	if r.err != nil || n > int64(len(r.b)) {
		r.err = errShort
		return nil
	}
	out := r.b[:n:n]
	r.b = r.b[n:]
	return out
}

func (r *reader) bytes() []byte {
	n := r.varint()
	if n < 0 || r.err != nil {
		return nil
	}
	if n == 0 {
		return []byte{}
	}
	return r.take(n)
}

// Decompress undoes a codec as Kafka's clients write it.
func Decompress(c Codec, b []byte) ([]byte, error) {
	switch c {
	case None:
		return b, nil
	case Gzip:
		r, err := gzip.NewReader(bytes.NewReader(b))
		if err != nil {
			return nil, err
		}
		return io.ReadAll(r)
	case Snappy:
		return unsnappy(b)
	case LZ4:
		return io.ReadAll(lz4.NewReader(bytes.NewReader(b)))
	case Zstd:
		r, err := zstd.NewReader(bytes.NewReader(b), zstd.WithDecoderConcurrency(1))
		if err != nil {
			return nil, err
		}
		defer r.Close()
		return io.ReadAll(r)
	}
	return nil, fmt.Errorf("codec %d", c)
}

var xerial = []byte{0x82, 'S', 'N', 'A', 'P', 'P', 'Y', 0}

// unsnappy reads both forms in use: raw blocks, and Java's framing (16-byte header, then length-prefixed blocks).
func unsnappy(b []byte) ([]byte, error) {
	if !bytes.HasPrefix(b, xerial) {
		return s2.Decode(nil, b)
	}
	var out []byte
	for b = b[16:]; len(b) >= 4; {
		n := int(binary.BigEndian.Uint32(b))
		if n > len(b)-4 {
			return nil, errShort
		}
		d, err := s2.Decode(nil, b[4:4+n])
		if err != nil {
			return nil, err
		}
		out, b = append(out, d...), b[4+n:]
	}
	return out, nil
}

// Compress applies a codec. Snappy is written as one raw block, as librdkafka and franz-go do.
func Compress(c Codec, b []byte) ([]byte, error) {
	var buf bytes.Buffer
	var w io.WriteCloser
	switch c {
	case None:
		return b, nil
	case Snappy:
		return s2.EncodeSnappy(nil, b), nil
	case Gzip:
		w = gzip.NewWriter(&buf)
	case LZ4:
		w = lz4.NewWriter(&buf)
	case Zstd:
		z, err := zstd.NewWriter(&buf, zstd.WithEncoderConcurrency(1))
		if err != nil {
			return nil, err
		}
		w = z
	default:
		return nil, fmt.Errorf("codec %d", c)
	}
	if _, err := w.Write(b); err != nil {
		return nil, err
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return buf.Bytes(), nil
}
