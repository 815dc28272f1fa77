package proxy

import (
	"fmt"
	"testing"

	"github.com/lockstep-kafka/lockstep/epoch"
	"github.com/lockstep-kafka/lockstep/internal/ledger"
	"github.com/lockstep-kafka/lockstep/protocol"
)

// BenchmarkShow: one partition's part of a fetched answer, from the broker's
// bytes to what the client gets: each batch judged by its stamp, and its header
// put back. Per batch, whatever the number of records in it.
func BenchmarkShow(b *testing.B) {
	for _, records := range []int{1, 1000} {
		b.Run(fmt.Sprintf("records=%d", records), func(b *testing.B) {
			const batches = 64
			var wire []byte
			var stamps []protocol.Stamp
			for i := range batches {
				v := int64(i * records)
				x := dense(b, v, records, 1000)
				s := protocol.Stamp{V: v, Epoch: 3, Gen: 1}
				if err := x.WriteStamp(s); err != nil {
					b.Fatal(err)
				}
				x.SetBase(v, 7)
				wire, stamps = append(wire, x...), append(stamps, s)
			}
			p := &fetchPart{chain: -1, log: &ledger.Partition{Live: &ledger.Live{}, Log: &epoch.Log{
				Spans: []epoch.Span{{Kind: epoch.Mirrored, Gen: 1, PEpoch: 7, PEnd: -1}}, Chain: epoch.Chain{{Epoch: 3}}, LastGen: 1,
			}}}
			b.ReportAllocs()
			for b.Loop() {
				out := p.choose(wire)
				if len(out.batches) != batches {
					b.Fatalf("%d batches are shown", len(out.batches))
				}
				for i := range out.batches {
					x := protocol.Batch(wire[out.batches[i].from:out.batches[i].to])
					x.Restore(out.batches[i].at.V, 3)
					if err := x.WriteStamp(stamps[i]); err != nil { // for the next time
						b.Fatal(err)
					}
					x.SetBase(stamps[i].V, 7)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/batches, "ns/batch")
		})
	}
}
