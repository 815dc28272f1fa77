package protocol

import (
	"bytes"
	"fmt"
	"hash/crc32"
	"testing"
)

// Time of stamp, restore and CRC update must not grow with the batch, and they
// must not allocate; the full pass is there for comparison.
func BenchmarkBatch(b *testing.B) {
	for _, size := range []int{1 << 10, 64 << 10, 1 << 20} {
		batch := make(Batch, size)
		for i := range batch {
			batch[i] = byte(i * i >> 5)
		}
		batch[offMagic] = 2
		batch.putInt32(offLength, int32(size-sizePrefix))
		batch.putInt32(offNumRecords, 10)
		batch.putInt32(offLastOffsetDelta, 9)
		batch.setAttributes(int16(CodecZstd))
		batch.renewCRC()
		run := func(name string, f func(i int)) {
			b.Run(fmt.Sprintf("%s/%dKiB", name, size>>10), func(b *testing.B) {
				b.ReportAllocs()
				for i := 0; b.Loop(); i++ {
					f(i)
				}
			})
		}
		run("stamp", func(i int) {
			if err := batch.WriteStamp(Stamp{V: int64(i), Gen: 3, Epoch: 7}); err != nil {
				b.Fatal(err)
			}
		})
		run("restore", func(i int) {
			batch.putProducer(-2-int64(i), 3, 7) // or there would be nothing to change the second time
			batch.Restore(int64(i), int32(i))
		})
		var crc uint32
		run("crc-update", func(i int) { crc = CRCUpdate(crc, uint32(i), uint32(i)*31+1, size-offNumRecords) })
		run("crc-full", func(int) { crc = crc32.Checksum(batch[offAttributes:], crcTable) })
	}
}

// The slow path, per batch of 64 KiB uncompressed: for sizing the worker pool.
func BenchmarkSlowPath(b *testing.B) {
	for _, codec := range allCodecs {
		holes := benchHoles(b, codec)
		r := NewRecoder(DefaultMaxOut)
		dense, err := r.Densify(holes, false)
		if err != nil {
			b.Fatal(err)
		}
		b.Run(fmt.Sprintf("densify/%v", codec), func(b *testing.B) {
			b.ReportAllocs()
			b.SetBytes(64 << 10)
			for b.Loop() {
				if _, err := r.Densify(holes, false); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run(fmt.Sprintf("undensify/%v", codec), func(b *testing.B) {
			b.ReportAllocs()
			b.SetBytes(64 << 10)
			for b.Loop() {
				if _, err := r.Undensify(dense, 0, 0, false); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func benchHoles(b *testing.B, codec Codec) Batch {
	tb := testBatch{}
	tb.head.Attributes = int16(codec)
	tb.head.LastOffsetDelta = 128
	for i := range 64 {
		value := bytes.Repeat([]byte(fmt.Sprintf("value %d of a compacted topic; ", i*7919)), 33)
		r := testRecord(int32(2*i), value)
		tb.records = append(tb.records, r)
	}
	return tb.build(b)
}
