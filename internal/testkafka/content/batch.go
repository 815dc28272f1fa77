package content

import (
	"encoding/binary"
	"hash/crc32"
	"strings"

	"github.com/lockstep-kafka/lockstep/internal/testkafka/oracle"
)

// record is what is written: offsets and epochs are the broker's.
type record struct {
	ts         int64 // ms
	key, value []byte
	headers    []oracle.Header
}

// rec is a record without headers.
func rec(ts int64, key, value string) record {
	return record{ts: ts, key: []byte(key), value: []byte(value)}
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// encode makes one v2 batch of records, as a client without a producer id writes it. Timestamps stay the int64 that
// they are: no client library does that for every value.
func encode(codec oracle.Codec, recs []record) ([]byte, error) {
	var body []byte
	first, last := recs[0].ts, recs[0].ts
	for i, r := range recs {
		last = max(last, r.ts)
		b := []byte{0} // attributes
		b = binary.AppendVarint(b, r.ts-first)
		b = binary.AppendVarint(b, int64(i))
		b = appendBytes(b, r.key)
		b = appendBytes(b, r.value)
		b = binary.AppendVarint(b, int64(len(r.headers)))
		for _, h := range r.headers {
			b = appendBytes(b, []byte(h.Key))
			b = appendBytes(b, h.Value)
		}
		body = binary.AppendVarint(body, int64(len(b)))
		body = append(body, b...)
	}
	packed, err := oracle.Compress(codec, body)
	if err != nil {
		return nil, err
	}
	be := binary.BigEndian
	out := make([]byte, 61, 61+len(packed))
	out = append(out, packed...)
	be.PutUint32(out[8:], uint32(len(out)-12))
	be.PutUint32(out[12:], ^uint32(0))
	out[16] = 2
	be.PutUint16(out[21:], uint16(codec))
	be.PutUint32(out[23:], uint32(len(recs)-1))
	be.PutUint64(out[27:], uint64(first))
	be.PutUint64(out[35:], uint64(last))
	for i := 43; i < 57; i++ { // no producer id, epoch, sequence
		out[i] = 0xff
	}
	be.PutUint32(out[57:], uint32(len(recs)))
	be.PutUint32(out[17:], crc32.Checksum(out[21:], castagnoli))
	return out, nil
}

func appendBytes(b, v []byte) []byte {
	if v == nil {
		return binary.AppendVarint(b, -1)
	}
	b = binary.AppendVarint(b, int64(len(v)))
	return append(b, v...)
}

// Batch is an uncompressed batch of one record, for Produce.
func Batch(ts int64, key, value string) []byte {
	b, err := encode(oracle.None, []record{rec(ts, key, value)})
	if err != nil {
		panic(err) // no codec, no error
	}
	return b
}

// BatchOf is one batch of records "key=value" (a value of null is a tombstone), step milliseconds apart.
func BatchOf(codec oracle.Codec, ts, step int64, kvs ...string) []byte {
	recs := make([]record, len(kvs))
	for i, kv := range kvs {
		k, v, _ := strings.Cut(kv, "=")
		recs[i] = rec(ts+int64(i)*step, k, v)
		if v == "null" {
			recs[i].value = nil
		}
	}
	b, err := encode(codec, recs)
	if err != nil {
		panic(err) // all codecs are known
	}
	return b
}

// BatchOfBytes is a batch of one record of any bytes.
func BatchOfBytes(codec oracle.Codec, ts int64, key, value []byte) []byte {
	b, err := encode(codec, []record{{ts: ts, key: key, value: value}})
	if err != nil {
		panic(err) // all codecs are known
	}
	return b
}
