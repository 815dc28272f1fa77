package proxy

import (
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/protocol"
)

// handleDeleteRecords refuses to delete records of mirror partitions: where the
// log begins is the source's to say (M7). The broker is asked as the client to
// delete up to offset 0 there, which changes nothing but is authorised first;
// ordinary topics go along in the same request as they are.
func (h *handlers) handleDeleteRecords(x exchange, version int16, body []byte) {
	q, err := protocol.DecodeDeleteRecordsRequest(version, body)
	if err != nil {
		badRequest(x, err)
		return
	}
	refused := map[partKey]int16{}
	for i := range q.Topics {
		t := &q.Topics[i]
		if !h.view.Topic(t.Topic) {
			continue
		}
		for j := range t.Partitions {
			k := partKey{t.Topic, t.Partitions[j].Partition}
			t.Partitions[j].Offset = 0
			// A STOPPED partition is refused too until v→p of a deletion target
			// in a hole or a dead zone is settled (DESIGN §9).
			refused[k] = kerr.PolicyViolation.Code
			if h.partition(k, [16]byte{}) == nil {
				refused[k] = retryLater
			}
			if h.count.refused != nil {
				h.count.refused(k.topic, k.partition, "DeleteRecords")
			}
		}
	}
	if len(refused) == 0 {
		x.Forward()
		return
	}
	ask(x, q, func(r *kmsg.DeleteRecordsResponse) {
		for i := range r.Topics {
			t := &r.Topics[i]
			for j := range t.Partitions {
				a := &t.Partitions[j]
				code, ok := refused[partKey{t.Topic, a.Partition}]
				if !ok {
					continue
				}
				a.LowWatermark = -1 // a physical offset
				if a.ErrorCode == 0 || a.ErrorCode == kerr.OffsetOutOfRange.Code {
					a.ErrorCode = code
				}
			}
		}
		replyKmsg(x, r)
	})
}
