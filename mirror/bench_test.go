package mirror

import (
	"fmt"
	"testing"

	"github.com/lockstep-kafka/lockstep/protocol"
)

// BenchmarkTakeIn: a fetched answer walked and stamped, per answer of 64
// batches, whatever the number of records in them.
func BenchmarkTakeIn(b *testing.B) {
	for _, records := range []int{1, 1000} {
		b.Run(fmt.Sprintf("records=%d", records), func(b *testing.B) {
			var answer []byte
			for i := range 64 {
				answer = append(answer, rawBatch{base: int64(i * records), n: records, epoch: 3}.bytes()...)
			}
			source := append([]byte(nil), answer...)
			seen := 0
			take := func(c chunk) {
				if c.stamp.Gen = 1; c.batch.WriteStamp(c.stamp) == nil {
					seen++
				}
			}
			b.ReportAllocs()
			for b.Loop() {
				copy(answer, source)
				seen = 0
				if stop := walkRecords(&walkState{epoch: -1}, 3, answer, nil, take); stop.kind != stopNone || seen != 64 {
					b.Fatalf("%d batches, %+v", seen, stop)
				}
			}
		})
	}
}

// BenchmarkEncode: a Produce request of 100 partitions laid out for a vectored
// write.
func BenchmarkEncode(b *testing.B) {
	var list []sent
	batch := protocol.Batch(make([]byte, 16<<10))
	for i := range int32(100) {
		list = append(list, sent{p: &Partition{topic: "topic", partition: i}, it: &item{batch: batch}})
	}
	var enc produceEncoder
	b.ReportAllocs()
	for b.Loop() {
		if len(enc.encode(13, -1, 30_000, list)) < 200 {
			b.Fatal("too few pieces")
		}
	}
}
