package proxy

import (
	"bytes"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/epoch"
	"github.com/lockstep-kafka/lockstep/internal/ledger"
	"github.com/lockstep-kafka/lockstep/protocol"
)

// listOffsets is one ListOffsets request with a mirror topic in it. The broker
// is asked for ordinary topics, and for STOPPED partitions, as the client did;
// and for the physical answers of mirrored partitions, read_uncommitted (a
// broker's read_committed answer means nothing on a mirrored span, M8). Those of
// mirror partitions are then turned into what is shown.
type listOffsets struct {
	h       *handlers
	x       exchange
	q       *kmsg.ListOffsetsRequest
	resp    *kmsg.ListOffsetsResponse
	raw     map[partKey]kmsg.ListOffsetsResponseTopicPartition // of mirror partitions
	lookups []*offsetLookup
	spent   int64
}

// offsetLookup is one mirror partition in it.
type offsetLookup struct {
	key       partKey
	timestamp int64
	current   int32
	isolation int8 // that of the client for a STOPPED partition, else read_uncommitted
	log       *ledger.Partition
	raw       kmsg.ListOffsetsResponseTopicPartition
	out       kmsg.ListOffsetsResponseTopicPartition
}

func (h *handlers) handleListOffsets(x exchange, version int16, body []byte) {
	q, err := protocol.DecodeListOffsetsRequest(version, body)
	if err != nil {
		badRequest(x, err)
		return
	}
	f := &listOffsets{h: h, x: x, q: q, resp: kmsg.NewPtrListOffsetsResponse(), raw: map[partKey]kmsg.ListOffsetsResponseTopicPartition{}}
	f.resp.Version = version
	rest := *q
	rest.Topics = nil
	native := rest
	mirror := rest
	mirror.IsolationLevel = 0
	for _, t := range q.Topics {
		if !h.view.Topic(t.Topic) {
			rest.Topics = append(rest.Topics, t)
			continue
		}
		mirrored, stopped := t, t
		mirrored.Partitions, stopped.Partitions = nil, nil
		for _, p := range t.Partitions {
			l := &offsetLookup{key: partKey{t.Topic, p.Partition}, timestamp: p.Timestamp, current: p.CurrentLeaderEpoch}
			l.log = h.partition(l.key, [16]byte{})
			p.CurrentLeaderEpoch = -1
			if l.log != nil {
				p.CurrentLeaderEpoch = fencedBy(l.log, l.current)
			}
			f.lookups = append(f.lookups, l)
			if l.log != nil && nativeSpan(l.log.Log) != nil {
				l.isolation = q.IsolationLevel
				stopped.Partitions = append(stopped.Partitions, p)
			} else {
				mirrored.Partitions = append(mirrored.Partitions, p)
			}
		}
		if len(mirrored.Partitions) > 0 {
			mirror.Topics = append(mirror.Topics, mirrored)
		}
		if len(stopped.Partitions) > 0 {
			native.Topics = append(native.Topics, stopped)
		}
	}
	if len(f.lookups) == 0 {
		x.Forward()
		return
	}
	if len(rest.Topics) > 0 {
		ask(x, &rest, func(r *kmsg.ListOffsetsResponse) {
			f.resp.ThrottleMillis = r.ThrottleMillis
			f.resp.Topics = append(f.resp.Topics, r.Topics...)
		})
	}
	var questions []*kmsg.ListOffsetsRequest
	for _, q := range [...]*kmsg.ListOffsetsRequest{&native, &mirror} {
		if len(q.Topics) > 0 {
			questions = append(questions, q)
		}
	}
	for i, q := range questions {
		ask(x, q, func(r *kmsg.ListOffsetsResponse) {
			f.resp.ThrottleMillis = max(f.resp.ThrottleMillis, r.ThrottleMillis)
			for _, t := range r.Topics {
				for _, p := range t.Partitions {
					f.raw[partKey{t.Topic, p.Partition}] = p
				}
			}
			if i == len(questions)-1 {
				inTurn(len(f.lookups), func(i int, next func()) { f.translate(f.lookups[i], next) }, f.reply)
			}
		})
	}
}

// translate makes of the broker's physical answer what is shown.
func (f *listOffsets) translate(l *offsetLookup, next func()) {
	l.out = kmsg.NewListOffsetsResponseTopicPartition()
	l.out.Partition, l.out.ErrorCode = l.key.partition, kerr.UnknownServerError.Code
	raw, ok := f.raw[l.key]
	if !ok {
		raw = l.out
	}
	p := f.h.partition(l.key, [16]byte{})
	switch {
	case raw.ErrorCode != 0:
		l.fail(raw.ErrorCode)
		next()
		return
	case p == nil || l.log == nil:
		l.fail(retryLater)
		next()
		return
	case f.q.Version == 0: // a list of segment starts: has no meaning here
		l.fail(kerr.UnsupportedVersion.Code)
		next()
		return
	}
	if _, ok := physicalEpoch(p, l.current); !ok || p.Log.Bump != l.log.Log.Bump && l.current >= 0 {
		l.fail(kerr.FencedLeaderEpoch.Code)
		next()
		return
	}
	if spansOf(p) != spansOf(l.log) { // stopped, or started again, meanwhile
		l.fail(retryLater)
		next()
		return
	}
	l.log, l.raw = p, raw
	rd := &reader{h: f.h, x: f.x, key: l.key, spent: &f.spent, isolation: l.isolation}
	rd.sound(p, true, func(code int16) {
		if code != 0 {
			l.fail(code)
			next()
			return
		}
		f.turn(l, rd, raw, next)
	})
}

// turn makes what is shown of a broker's answer.
func (f *listOffsets) turn(l *offsetLookup, rd *reader, raw kmsg.ListOffsetsResponseTopicPartition, next func()) {
	switch ts := l.timestamp; {
	case ts == protocol.TimestampLatest:
		f.latest(l, rd, raw.Offset, next)
	case ts == protocol.TimestampEarliest, ts == protocol.TimestampEarliestLocal && raw.Offset >= 0:
		f.earliest(l, rd, raw.Offset, next)
	case raw.Offset < 0: // none
		l.answer(-1, -1, -1)
		next()
	case ts == protocol.TimestampMax && f.q.Version >= 7:
		f.maxTimestamp(l, rd, raw.Offset, raw.Timestamp, next)
	case ts == protocol.TimestampLatestTiered, ts == protocol.TimestampEarliestUpload:
		f.mapped(l, rd, raw.Offset, next)
	default:
		f.byTime(l, rd, raw.Offset, ts, next)
	}
}

func (l *offsetLookup) fail(code int16) {
	l.out = kmsg.NewListOffsetsResponseTopicPartition()
	l.out.Partition, l.out.ErrorCode = l.key.partition, code
	l.out.Timestamp, l.out.Offset, l.out.LeaderEpoch = -1, -1, -1
}

// answer: the epoch is one of the chain, never the one shown in metadata, which
// OffsetForLeaderEpoch would later know nothing of (M13).
func (l *offsetLookup) answer(v, timestamp int64, epoch int32) {
	l.fail(0)
	l.out.Offset, l.out.Timestamp, l.out.LeaderEpoch = v, timestamp, epoch
}

// latest is the virtual end below the broker's high watermark hw, in both
// isolation levels: no transaction is open below a mirrored span. A reader up
// to it never waits at a hole in the tail (H11).
func (f *listOffsets) latest(l *offsetLookup, r *reader, hw int64, next func()) {
	r.tail(l.log, hw, func(e ends, code int16) {
		if code != 0 {
			l.fail(code)
		} else {
			pe := l.log.Log.Chain.Newest()
			if nativeSpan(l.log.Log) != nil {
				pe = nativeEpoch(l.log.Log, hw, e.virtual, l.raw.LeaderEpoch)
			}
			l.answer(e.virtual, -1, pe)
		}
		next()
	})
}

// earliest is the virtual log start (M7); for -4 the same from the local start.
func (f *listOffsets) earliest(l *offsetLookup, r *reader, physical int64, next func()) {
	r.bounds(func(code int16) {
		if code != 0 {
			l.fail(code)
			next()
			return
		}
		r.start = physical
		r.virtualStart(l.log, func(v int64, code int16) {
			s := nativeSpan(l.log.Log)
			switch {
			case code != 0:
				l.fail(code)
			case s != nil && physical < s.PStart && v >= s.VStart:
				f.startInNative(l, r, s, v, next)
				return
			default:
				l.answer(v, -1, nativeEpoch(l.log.Log, physical, v, l.raw.LeaderEpoch))
			}
			next()
		})
	})
}

// startInNative: all that is left is in the open native span, from v on. The
// broker's answer is of what lies dead before that, and of an earlier epoch: the
// batch there tells.
func (f *listOffsets) startInNative(l *offsetLookup, r *reader, s *epoch.Span, v int64, next func()) {
	p, pe := s.PStart+v-s.VStart, s.PEpoch
	r.scan(l.log.Log, p, r.end, probeBytes, func(_ protocol.Batch, e epoch.Batch) bool {
		pe = e.PEpoch
		return false
	}, func(end scanEnd) {
		if end.code != 0 {
			l.fail(end.code)
		} else {
			l.answer(v, -1, nativeEpoch(l.log.Log, p, v, pe))
		}
		next()
	})
}

// mapped turns a physical offset into the virtual one of the record there, or
// of the next one shown.
func (f *listOffsets) mapped(l *offsetLookup, r *reader, p int64, next func()) {
	r.bounds(func(code int16) {
		if code != 0 {
			l.fail(code)
			next()
			return
		}
		r.firstLive(l.log, p, r.end, func(h hit, ok bool, code int16) {
			switch {
			case code != 0:
				l.fail(code)
				next()
			case !ok:
				f.latest(l, r, r.end, next)
			default:
				f.recordAt(l, h, next, func(delta int64, _ int64) bool { return h.at.P+delta >= p })
			}
		})
	})
}

// byTime finds the first record shown with a timestamp at or above ts. Before
// the broker's answer p no record at all has one, so only what lies at or
// behind p matters; when p is dead or hidden, the next live batches decide.
func (f *listOffsets) byTime(l *offsetLookup, r *reader, p, ts int64, next func()) {
	f.atTime(l, r, p, ts, false, next)
}

// atTime: indexed says that p already comes from the time index.
func (f *listOffsets) atTime(l *offsetLookup, r *reader, p, ts int64, indexed bool, next func()) {
	r.bounds(func(code int16) {
		if code != 0 {
			l.fail(code)
			next()
			return
		}
		r.firstLive(l.log, p, r.end, func(h hit, ok bool, code int16) {
			switch {
			case code != 0:
				l.fail(code)
				next()
			case !ok:
				l.answer(-1, -1, -1)
				next()
			case h.head.Control:
				f.atTime(l, r, h.at.PEnd, ts, indexed, next)
			case h.batch.MaxTimestamp() >= ts:
				// If it is not there after all (a wrong maximum in the header),
				// the next one.
				found := func() {
					if l.out.ErrorCode == 0 && l.out.Offset < 0 {
						f.atTime(l, r, h.at.PEnd, ts, indexed, next)
						return
					}
					next()
				}
				r.reachable(l.log, h, func(ok bool, code int16) {
					switch {
					case code != 0:
						l.fail(code)
						next()
					case !ok: // behind a gap (H2)
						l.answer(-1, -1, -1)
						next()
					default:
						f.recordAt(l, h, found, func(delta, t int64) bool { return t >= ts && h.at.P+delta >= p })
					}
				})
			case indexed:
				f.atTime(l, r, h.at.PEnd, ts, true, next)
			default:
				// The broker's answer is not shown, and what follows it is older:
				// without an index every look-up would read on from here (M8).
				f.index(l, r, p, func(x *timeline, code int16) {
					if code != 0 {
						l.fail(code)
						next()
						return
					}
					at, ok := x.first(ts)
					if !ok {
						l.answer(-1, -1, -1)
						next()
						return
					}
					f.atTime(l, r, max(at, p), ts, true, next)
				})
			}
		})
	})
}

// maxTimestamp: the broker's answer if it is shown; else the largest timestamp
// of what is.
func (f *listOffsets) maxTimestamp(l *offsetLookup, r *reader, p, ts int64, next func()) {
	r.bounds(func(code int16) {
		if code != 0 {
			l.fail(code)
			next()
			return
		}
		r.firstLive(l.log, p, min(p+1, r.end), func(h hit, ok bool, code int16) {
			switch {
			case code != 0:
				l.fail(code)
				next()
			case ok && !h.head.Control:
				// p itself may be the end of the batch (older brokers, compressed ones).
				f.recordAt(l, h, next, func(delta, t int64) bool { return t >= ts && h.at.P+delta >= r.start })
			default:
				f.index(l, r, r.start, func(x *timeline, code int16) {
					if code != 0 {
						l.fail(code)
						next()
						return
					}
					ts, at, ok := x.max()
					if !ok {
						l.answer(-1, -1, -1)
						next()
						return
					}
					f.atTime(l, r, at, ts, true, next)
				})
			}
		})
	})
}

// index extends the partition's time index, which begins at from or before, to
// the high watermark.
func (f *listOffsets) index(l *offsetLookup, r *reader, from int64, done func(x *timeline, code int16)) {
	x := r.chart(l.log).timeline(max(from, r.start), r.start)
	start := x.end()
	if start >= r.end {
		done(x, 0)
		return
	}
	r.scan(l.log.Log, start, r.end, maxScanBytes, func(b protocol.Batch, e epochBatch) bool {
		_, live, ahead := place(l.log.Log, e)
		if live && !e.Control {
			x.add(e.P, e.PEnd(), b.MaxTimestamp())
		}
		return !ahead
	}, func(end scanEnd) { done(x, end.code) })
}

// recordAt finds, on a worker, the first record of a live batch that want
// accepts (its offset delta as it lies here, and its timestamp), and answers
// with it; with -1 when there is none.
func (f *listOffsets) recordAt(l *offsetLookup, h hit, next func(), want func(delta, timestamp int64) bool) {
	b := protocol.Batch(bytes.Clone(h.batch))
	least := l.log.Log.Start // which may lie inside the batch
	v, ts := int64(-1), int64(-1)
	var err error
	f.h.work.offload(f.x, func() {
		v, ts, err = findRecord(b, h, least, want)
	}, func() {
		switch {
		case err != nil:
			f.x.Log().Error("a batch can't be read", "topic", l.key.topic, "partition", l.key.partition, "offset", h.at.V, "err", err)
			l.fail(kerr.CorruptMessage.Code)
		case v < 0:
			l.answer(-1, -1, -1)
		default:
			l.answer(v, ts, h.at.Epoch)
		}
		next()
	})
}

// reply puts the answers together, topics as the client named them.
func (f *listOffsets) reply() {
	at := map[string]int{}
	for _, l := range f.lookups {
		i, ok := at[l.key.topic]
		if !ok {
			i = len(f.resp.Topics)
			at[l.key.topic] = i
			t := kmsg.NewListOffsetsResponseTopic()
			t.Topic = l.key.topic
			f.resp.Topics = append(f.resp.Topics, t)
		}
		f.resp.Topics[i].Partitions = append(f.resp.Topics[i].Partitions, l.out)
	}
	replyKmsg(f.x, f.resp)
}
