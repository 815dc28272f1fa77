package proxy

import (
	"github.com/lockstep-kafka/lockstep/protocol"
)

// response shows the leader epochs of mirror topics in passed-through answers:
// physical epoch + bump, -1 stays (M13); in Metadata, DescribeTopicPartitions
// and the share APIs' CurrentLeader; and offsets (rewritten_offsets.go). Produce and Fetch answers of mirror topics
// are made by their handlers.
func (h *handlers) response(key, version int16, body []byte) ([]byte, error) {
	switch key {
	case protocol.KeyFetch:
		return body, h.noMirrors(version, body)
	case protocol.KeyDescribeProducers:
		if h.view.Any() {
			return h.describeProducers(version, body)
		}
		return body, nil
	case protocol.KeyDescribeShareOffsets:
		if h.view.Any() {
			return h.describeShareOffsets(version, body)
		}
		return body, nil
	case protocol.KeyMetadata, protocol.KeyDescribeTopicPartitions, protocol.KeyShareFetch, protocol.KeyShareAcknowledge:
	default:
		return body, nil
	}
	if !h.view.Any() {
		return body, nil
	}
	err := protocol.AdjustLeaderEpochs(key, version, body, h.shownEpoch)
	return body, err
}

// noMirrors refuses a Fetch answer with a mirror topic in it: it was asked for
// before the topic became one, so its offsets are physical.
func (h *handlers) noMirrors(version int16, body []byte) error {
	var r protocol.FetchResponse
	if err := r.Decode(version, body); err != nil {
		return err
	}
	for i := range r.Topics {
		if _, ok := h.mirrorTopic(r.Topics[i].Name, r.Topics[i].ID); ok {
			return errTopicsMoved
		}
	}
	return nil
}

// topicsVersion implements topicsVersioner.
func (h *handlers) topicsVersion() uint64 { return h.view.TopicsVersion() }

// shownEpoch is the leader epoch shown for the broker's pe. It is never below
// the newest epoch of the partition's records: a consumer whose committed epoch
// is above the metadata's would refresh it for ever (facts §4). Fetch fences by
// the broker's own epoch less the bump, so the two move together.
func (h *handlers) shownEpoch(topic string, id [16]byte, partition, pe int32) int32 {
	if topic != "" && id != [16]byte{} {
		h.noteID(topic, id)
	}
	name, ok := h.mirrorTopic(topic, id)
	if !ok {
		return pe
	}
	p := h.view.Partition(name, partition)
	if p == nil || p.Err != nil || p.Log == nil {
		return pe
	}
	return max(p.Log.Shown(pe), p.Log.Chain.Newest())
}

// noteID remembers an id that a broker shows for a mirror topic's name, but
// that the ledger does not know.
func (h *handlers) noteID(topic string, id [16]byte) {
	if !h.view.Topic(topic) {
		return
	}
	if _, known := h.view.TopicByID(id); known {
		return
	}
	if _, seen := h.strangers.LoadOrStore(id, topic); !seen {
		h.log.Debug("a mirror topic has an id that the ledger does not know (yet)", "topic", topic, "id", id)
	}
}
