package proxy

import (
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/protocol"
)

// Offsets of mirror topics in answers that pass.

// describeProducers shows where a producer's open transaction began in virtual
// offsets; -1 where that can't be told, or is hidden (M13).
func (h *handlers) describeProducers(version int16, body []byte) ([]byte, error) {
	r := kmsg.NewPtrDescribeProducersResponse()
	if err := protocol.DecodeBody(version, body, r); err != nil {
		return nil, err
	}
	for i := range r.Topics {
		t := &r.Topics[i]
		if !h.view.Topic(t.Topic) {
			continue
		}
		for j := range t.Partitions {
			a := &t.Partitions[j]
			p := h.partition(partKey{t.Topic, a.Partition}, [16]byte{})
			for k := range a.ActiveProducers {
				at := &a.ActiveProducers[k].CurrentTxnStartOffset
				if *at < 0 {
					continue
				}
				v, ok := int64(-1), false
				if p != nil {
					v, ok = nativeOffset(p, *at)
				}
				if *at = v; !ok {
					*at = -1
				}
			}
		}
	}
	return r.AppendTo(nil), nil
}

// describeShareOffsets: a share group's offsets on a mirror topic are physical
// ones of a group that can't read it (M12).
func (h *handlers) describeShareOffsets(version int16, body []byte) ([]byte, error) {
	r := kmsg.NewPtrDescribeShareGroupOffsetsResponse()
	if err := protocol.DecodeBody(version, body, r); err != nil {
		return nil, err
	}
	for i := range r.Groups {
		for j := range r.Groups[i].Topics {
			t := &r.Groups[i].Topics[j]
			if !h.view.Topic(t.Topic) {
				continue
			}
			for k := range t.Partitions {
				a := &t.Partitions[k]
				if a.ErrorCode != 0 {
					continue // the broker's own: it goes with no offset
				}
				a.StartOffset, a.LeaderEpoch = -1, -1
				if version >= 1 {
					a.Lag = -1
				}
				m := shareMessage(t.Topic)
				a.ErrorCode, a.ErrorMessage = shareRefusal, &m
			}
		}
	}
	return r.AppendTo(nil), nil
}
