package protocol

import (
	"encoding/binary"
	"fmt"
)

// EpochFunc gives the leader epoch to show for a partition, given the broker's.
// The topic has a name, an id (not zero), or both, as the answer has it. It is
// not asked for −1 (unknown), which stays.
type EpochFunc func(topic string, id [16]byte, partition, epoch int32) int32

// AdjustLeaderEpochs changes the leader epochs in a response body **in place**
// (they have a fixed width, so nothing moves): Metadata v7+,
// DescribeTopicPartitions, and CurrentLeader in Produce v10+, ShareFetch and
// ShareAcknowledge answers. Fetch answers of mirror topics go through
// FetchResponse instead. Other keys and versions stay as they are. After an
// error the body may be half changed: close the connection.
func AdjustLeaderEpochs(key, version int16, body []byte, f EpochFunc) error {
	a, ok := LookupAPI(key)
	if !ok || !a.Has(TouchEpochs) {
		return nil
	}
	e := epochPatcher{wireReader: wireReader{b: body, flex: a.Flexible(version)}, f: f}
	switch key {
	case KeyProduce:
		if version < 10 {
			return nil
		}
		e.produce(version)
	case KeyMetadata:
		if version < 7 {
			return nil
		}
		e.metadata(version)
	case KeyDescribeTopicPartitions:
		e.describeTopicPartitions()
	case KeyShareFetch, KeyShareAcknowledge:
		e.share(key, version)
	default:
		return nil
	}
	if e.err != nil {
		return fmt.Errorf("leader epochs in %s v%d: %w", a.Name, version, e.err)
	}
	return nil
}

type epochPatcher struct {
	wireReader
	f     EpochFunc
	topic string
	id    [16]byte
}

// epoch reads a leader epoch and writes the one to show.
func (e *epochPatcher) epoch(partition int32) {
	at := e.off
	old := e.i32()
	if e.err != nil || old < 0 {
		return
	}
	if now := e.f(e.topic, e.id, partition, old); now != old {
		binary.BigEndian.PutUint32(e.b[at:], uint32(now))
	}
}

func (e *epochPatcher) ints() {
	n, _ := e.arrayLen(4)
	e.span(4 * n)
}

// produce: CurrentLeader is tag 0 of a partition (KIP-951).
func (e *epochPatcher) produce(version int16) {
	topics, _ := e.arrayLen(produceTopicMin(version))
	for range topics {
		if version >= produceTopicIDs {
			e.id = e.uuid()
		} else {
			e.topic = keepString(e.topic, e.str())
		}
		partitions, _ := e.arrayLen(4 + 2 + 8 + 8 + 8 + 3)
		for range partitions {
			p := e.i32()
			e.span(2 + 8 + 8 + 8) // error, base offset, append time, log start
			records, _ := e.arrayLen(6)
			for range records {
				e.i32()
				e.nullableString()
				e.tags()
			}
			e.nullableString() // message
			for range e.tagCount() {
				tag, data, _ := e.tag()
				if tag != 0 || e.err != nil {
					continue
				}
				in := epochPatcher{wireReader: wireReader{b: data, flex: true}, f: e.f, topic: e.topic, id: e.id}
				in.i32() // leader
				in.epoch(p)
				if in.err != nil {
					e.fail(in.err)
				}
			}
		}
		e.tags()
		if e.err != nil {
			return
		}
	}
}

// share: CurrentLeader is a plain struct there.
func (e *epochPatcher) share(key, version int16) {
	e.span(4 + 2) // throttle, error
	e.nullableString()
	if version >= 2 || key == KeyShareFetch && version >= 1 {
		e.i32() // acquisition lock timeout
	}
	topics, _ := e.arrayLen(16 + 2)
	for range topics {
		e.id = e.uuid()
		partitions, _ := e.arrayLen(4 + 2 + 1 + 8 + 1 + 1)
		for range partitions {
			p := e.i32()
			e.i16()
			e.nullableString()
			if key == KeyShareFetch {
				e.i16() // acknowledge error
				e.nullableString()
			}
			e.i32() // leader
			e.epoch(p)
			e.tags()
			if key == KeyShareFetch {
				e.nullableBytes() // records
				acquired, _ := e.arrayLen(8 + 8 + 2 + 1)
				for range acquired {
					e.span(8 + 8 + 2)
					e.tags()
				}
			}
			e.tags()
			if e.err != nil {
				return
			}
		}
		e.tags()
	}
}
