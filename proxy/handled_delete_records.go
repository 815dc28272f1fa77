package proxy

import (
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/epoch"
	"github.com/lockstep-kafka/lockstep/internal/ledger"
	"github.com/lockstep-kafka/lockstep/protocol"
)

// deletion is one mirror partition in a DeleteRecords request.
type deletion struct {
	key  partKey
	log  *ledger.Partition
	v    int64 // as asked, -1: to the high watermark
	p    *kmsg.DeleteRecordsRequestTopicPartition
	code int16 // refused
}

// deleteRecords is one DeleteRecords request with a mirror topic in it. Where a
// mirrored log begins is the source's to say: refused (M7); the broker is asked
// as the client to delete up to offset 0 there, which changes nothing but is
// authorised first. On STOPPED partitions the offset is turned into the physical
// one of the record there, or of the next one shown. Ordinary topics go along in
// the same request as they are.
type deleteRecords struct {
	h     *handlers
	x     exchange
	q     *kmsg.DeleteRecordsRequest
	parts []*deletion
	spent int64
}

func (h *handlers) handleDeleteRecords(x exchange, version int16, body []byte) {
	q, err := protocol.DecodeDeleteRecordsRequest(version, body)
	if err != nil {
		badRequest(x, err)
		return
	}
	x.OnEnd(h.writes.begin())
	f := &deleteRecords{h: h, x: x, q: q}
	for i := range q.Topics {
		t := &q.Topics[i]
		if !h.view.Topic(t.Topic) {
			continue
		}
		for j := range t.Partitions {
			d := &deletion{key: partKey{t.Topic, t.Partitions[j].Partition}, p: &t.Partitions[j], v: t.Partitions[j].Offset}
			d.log = h.partition(d.key, [16]byte{})
			switch {
			case d.log == nil:
				d.code = retryLater
			case !d.log.Record.State.Writable():
				d.code = kerr.PolicyViolation.Code
			}
			if d.code != 0 && h.count.refused != nil {
				h.count.refused(d.key.topic, d.key.partition, "DeleteRecords")
			}
			f.parts = append(f.parts, d)
		}
	}
	if len(f.parts) == 0 {
		x.Forward()
		return
	}
	inTurn(len(f.parts), func(i int, next func()) { f.translate(f.parts[i], next) }, f.send)
}

// translate finds the physical offset.
func (f *deleteRecords) translate(d *deletion, next func()) {
	if d.code == 0 && d.v < 0 {
		next()
		return
	}
	d.p.Offset = 0
	if d.code != 0 {
		next()
		return
	}
	r := &reader{h: f.h, x: f.x, key: d.key, spent: &f.spent}
	f.find(d, r, func(p int64, code int16) {
		if d.code = code; code == 0 {
			d.p.Offset = p
		}
		next()
	})
}

// find is the physical offset up to which everything below d.v lies, and nothing
// that is shown at or above it.
func (f *deleteRecords) find(d *deletion, r *reader, cb func(p int64, code int16)) {
	r.bounds(func(code int16) {
		if code != 0 {
			cb(0, code)
			return
		}
		r.tail(d.log, r.end, func(e ends, code int16) {
			switch {
			case code != 0:
				cb(0, code)
				return
			case d.v > e.virtual:
				cb(0, kerr.OffsetOutOfRange.Code)
				return
			}
			r.locate(d.log, d.v, func(at int64, code int16) {
				if code != 0 {
					cb(0, code)
					return
				}
				f.firstAt(d, r, at, cb)
			})
		})
	})
}

// firstAt goes on from physical offset at to the first batch that has something
// at or above d.v.
func (f *deleteRecords) firstAt(d *deletion, r *reader, at int64, cb func(p int64, code int16)) {
	r.firstLive(d.log, at, r.end, func(h hit, ok bool, code int16) {
		switch {
		case code != 0 || !ok:
			cb(r.end, code)
		case h.at.V >= d.v:
			cb(h.at.P, 0)
		case h.head.Flags&epoch.FlagRenumbered != 0 && h.head.Stamped:
			r.endOf(h, func(v int64, code int16) {
				if code == 0 && v <= d.v {
					f.firstAt(d, r, h.at.PEnd, cb)
					return
				}
				cb(h.at.P, code) // where in it is not worth looking: less is deleted
			})
		case h.at.VEnd <= d.v:
			f.firstAt(d, r, h.at.PEnd, cb)
		default:
			cb(h.at.P+d.v-h.at.V, 0)
		}
	})
}

func (f *deleteRecords) send() {
	for _, d := range f.parts { // the ledger may have moved meanwhile
		now := f.h.partition(d.key, [16]byte{})
		switch {
		case d.code != 0:
		case now == nil || spansOf(now) != spansOf(d.log):
			d.code, d.p.Offset = retryLater, 0
		case !now.Record.State.Writable():
			d.code, d.p.Offset = kerr.PolicyViolation.Code, 0
		}
	}
	ask(f.x, f.q, func(r *kmsg.DeleteRecordsResponse) {
		asked := make(map[partKey][]*deletion, len(f.parts)) // a client may name a partition twice
		for _, d := range f.parts {
			asked[d.key] = append(asked[d.key], d)
		}
		for i := range r.Topics {
			t := &r.Topics[i]
			for j := range t.Partitions {
				a := &t.Partitions[j]
				k := partKey{t.Topic, a.Partition}
				if ds := asked[k]; len(ds) > 0 {
					ds[0].answer(a)
					if len(ds) > 1 {
						asked[k] = ds[1:]
					}
				}
			}
		}
		replyKmsg(f.x, r)
	})
}

func (d *deletion) answer(a *kmsg.DeleteRecordsResponseTopicPartition) {
	low := a.LowWatermark
	a.LowWatermark = -1 // a physical offset
	switch {
	case d.code != 0:
		if a.ErrorCode == 0 || a.ErrorCode == kerr.OffsetOutOfRange.Code {
			a.ErrorCode = d.code
		}
	case a.ErrorCode != 0:
	case d.v >= 0:
		a.LowWatermark = d.v
	default:
		if v, ok := nativeOffset(d.log, low); ok {
			a.LowWatermark = v
		}
	}
}
