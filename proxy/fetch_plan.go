package proxy

import (
	"math"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/lockstep-kafka/lockstep/epoch"
	"github.com/lockstep-kafka/lockstep/internal/ledger"
	"github.com/lockstep-kafka/lockstep/protocol"
)

// What is to be read: which partitions (the session decides), from which
// physical offsets (the look-up), and which are answered with an error of ours.

// fetchPart is one partition of a running Fetch.
type fetchPart struct {
	wanted
	mirror  bool
	partKey partKey // of a mirror partition

	log   *ledger.Partition // the snapshot it was planned under
	p     int64             // physical offset to read from
	chain int64             // chain end there, -1: not known
	code  int16             // our own answer; the broker is asked nonetheless, an error of its comes first
	split epoch.Entry       // our own answer: DivergingEpoch, when its epoch is >= 0
	// unfenced: the client's leader epoch is the one shown, though the broker's
	// own plus bump is still below it (see shownEpoch).
	unfenced bool
	// tried: OFFSET_OUT_OF_RANGE of the broker was looked into already.
	tried bool
	// sided: it was asked for in the read_uncommitted side request (H16).
	sided bool

	// absent: the broker left it out of its answer (its size limit was
	// reached); so do we.
	absent  bool
	outcome outcome
	answer  protocol.FetchPartition
}

// outcome of one round for one partition.
type outcome uint8

const (
	outNothing outcome = iota // nothing there
	outMoved                  // only hidden batches: reads on behind them
	outHeld                   // something is there that may not be shown yet
	outAgain                  // must be asked for once more, in another way
	outAnswer                 // data, an error, or something else that the client waits for
)

// decided says whether our own answer stands before anything is read.
func (p *fetchPart) decided() bool { return p.code != 0 || p.split.Epoch >= 0 }

func (p *fetchPart) refuse(code int16) { p.code, p.split = code, epoch.Entry{Epoch: -1, Start: -1} }

// wantedOf lists what a Fetch request names.
func wantedOf(q *protocol.FetchRequest) (parts []wanted, forgotten []wantedKey) {
	for i := range q.Topics {
		t := &q.Topics[i]
		for _, p := range t.Partitions {
			parts = append(parts, wanted{
				topic: t.Name, id: t.ID, partition: p.Partition, offset: p.FetchOffset,
				currentEpoch: p.CurrentLeaderEpoch, lastEpoch: p.LastFetchedEpoch, logStart: p.LogStartOffset, maxBytes: p.MaxBytes,
			})
		}
	}
	for _, t := range q.Forgotten {
		for _, p := range t.Partitions {
			forgotten = append(forgotten, wantedKey{t.Name, t.ID, p})
		}
	}
	return parts, forgotten
}

// sessionPlan is what the session part of a Fetch comes to.
type sessionPlan struct {
	forward bool
	code    int16         // session error
	session *fetchSession // nil: none, or not ours
	full    bool          // every partition is answered
	wants   []wanted
}

// planSession applies KIP-227 to the sessions that the proxy keeps, and decides
// whether the request is any of its business.
func (h *handlers) planSession(st *connState, q *protocol.FetchRequest) sessionPlan {
	parts, forgotten := wantedOf(q)
	version, mirrored := h.view.TopicsVersion(), false // in this order: what comes meanwhile makes another one
	for i := range parts {
		if _, mirrored = h.mirrorTopic(parts[i].topic, parts[i].id); mirrored {
			break
		}
	}
	byID := q.Version >= 13
	if q.Version < 7 || q.SessionEpoch == sessionEpochFinal || q.SessionEpoch == sessionEpochInitial {
		_, ours := st.sessions[q.SessionID]
		delete(st.sessions, q.SessionID)
		creates := q.Version >= 7 && q.SessionEpoch == sessionEpochInitial
		switch {
		case !mirrored && !ours:
			if creates {
				st.passedVersion, st.hasPassed = version, true
			}
			return sessionPlan{forward: true}
		case creates:
			return sessionPlan{session: st.newSession(byID, parts), full: true, wants: parts}
		}
		return sessionPlan{full: true, wants: parts}
	}
	fs := st.sessions[q.SessionID]
	switch {
	case fs == nil && (mirrored || !st.hasPassed || st.passedVersion != version):
		// A broker's session in which a partition is, or may be, a mirror's
		// now; or one of ours that went with its connection.
		return sessionPlan{code: kerr.FetchSessionIDNotFound.Code}
	case fs == nil:
		return sessionPlan{forward: true}
	case fs.epoch != q.SessionEpoch:
		return sessionPlan{code: kerr.InvalidFetchSessionEpoch.Code}
	case fs.byID != byID:
		return sessionPlan{code: kerr.FetchSessionTopicIDError.Code}
	case !fs.update(parts, forgotten):
		delete(st.sessions, q.SessionID)
		return sessionPlan{code: kerr.FetchSessionIDNotFound.Code}
	}
	if len(fs.parts) == 0 { // as a broker: the session is over
		delete(st.sessions, q.SessionID)
		return sessionPlan{full: true}
	}
	fs.epoch = nextSessionEpoch(fs.epoch)
	return sessionPlan{session: fs, wants: fs.wants()}
}

// plan finds out what to ask for each partition; then it asks.
func (f *fetch) plan() {
	inTurn(len(f.parts), func(i int, next func()) {
		if p := f.parts[i]; p.mirror {
			f.planPart(p, next)
			return
		}
		next()
	}, f.ask)
}

// planPart decides about one mirror partition: an error of ours, or the
// physical offset to read from.
func (f *fetch) planPart(p *fetchPart, done func()) {
	p.refuse(0)
	p.log = f.h.partition(p.partKey, p.id)
	switch {
	case f.q.Version < 4: // a broker would convert down, and stamps would go (M16)
		p.refuse(kerr.UnsupportedVersion.Code)
		done()
		return
	case p.log == nil:
		p.refuse(retryLater)
		done()
		return
	}
	f.blind(p)
	if _, ok := physicalEpoch(p.log, p.currentEpoch); !ok {
		p.refuse(kerr.FencedLeaderEpoch.Code)
		done()
		return
	}
	// The upper end is not looked at yet: it moves all the time, and most
	// readers stand where they were told to go on.
	first := p.log.Log.Start
	switch answer, _ := p.check(ends{maxOffset, maxOffset, maxOffset}, first); answer {
	case epoch.FetchRead:
		if c := f.x.State().cursor(p.partKey, p.log); !c.early.IsZero() && f.h.now().Sub(c.early) >= earlyAgain {
			f.confirm(p, done)
			return
		}
		f.seek(p, done)
	case epoch.FetchUnknownEpoch:
		p.refuse(kerr.UnknownLeaderEpoch.Code)
		done()
	default:
		f.confirm(p, done)
	}
}

// blind counts readers without epochs that stand above a cut: nothing can tell
// them, as with Kafka itself.
func (f *fetch) blind(p *fetchPart) {
	c := f.x.State().cursors[p.partKey]
	l := p.log.Log
	if c == nil || p.currentEpoch >= 0 || p.lastEpoch >= 0 || c.bump >= l.Bump || c.next.v != p.offset {
		return
	}
	if s := l.Open(); s.Kind == epoch.Mirrored && s.VStart < p.offset && f.h.count.blind != nil {
		f.h.count.blind(p.partKey.topic, p.partKey.partition)
	}
}

// check is what a broker would say before it reads (facts §3). The leader
// epoch is checked by the broker itself.
func (p *fetchPart) check(e ends, start int64) (epoch.FetchAnswer, epoch.Entry) {
	shown, last := p.currentEpoch, p.lastEpoch
	if shown < 0 {
		shown = math.MaxInt32
	}
	if asksBroker(p.log.Log, last) {
		last = -1 // asked with the Fetch itself, or by settle
	}
	return p.log.Log.CheckFetch(epoch.FetchCheck{
		Offset: p.offset, CurrentLeaderEpoch: -1, LastFetchedEpoch: last, LeaderEpoch: shown,
		Start: start, VirtualEnd: e.virtual, Position: e.position, EverShown: e.shown,
	})
}

// seek finds the physical offset to read from.
func (f *fetch) seek(p *fetchPart, done func()) {
	c := f.x.State().cursor(p.partKey, p.log)
	if m, ok := c.find(p.offset); ok && (f.rounds > 0 || m.p == c.far || !p.astray(m.p)) {
		p.p, p.chain = m.p, m.chain
		done()
		return
	}
	r := f.reader(p.partKey)
	r.bounds(func(code int16) {
		if code != 0 {
			p.p = 0
			p.refuse(code)
			done()
			return
		}
		r.virtualStart(p.log, func(start int64, code int16) {
			switch {
			case code != 0:
				p.refuse(code)
				done()
			case p.offset < start:
				f.confirm(p, done)
			case nativeSpan(p.log.Log) != nil: // the broker knows the end
				f.locate(p, r, -1, done)
			case p.offset <= max(endBelow(p.log, r.end).position, p.log.Log.Open().VStart):
				f.locate(p, r, -1, done)
			default:
				r.tail(p.log, r.end, func(e ends, code int16) {
					switch {
					case code != 0:
						p.refuse(code)
						done()
					case p.offset > e.position:
						f.confirm(p, done)
					default:
						f.locate(p, r, e.virtual, done)
					}
				})
			}
		})
	})
}

func (f *fetch) locate(p *fetchPart, r *reader, seen int64, done func()) {
	r.locate(p.log, p.offset, func(at int64, code int16) {
		p.p, p.chain = at, -1
		if code != 0 {
			p.p = 0
			p.refuse(code)
		} else {
			c := f.x.State().cursor(p.partKey, p.log)
			c.advance(mark{p.offset, at, -1})
			c.seen = max(c.seen, seen)
		}
		done()
	})
}

// confirm settles what looks like a destructive answer, after ledger and tail
// were read anew (H12); what can't be settled is retried.
func (f *fetch) confirm(p *fetchPart, done func()) {
	f.h.reread(f.x, func(ok bool) {
		if p.log = f.h.partition(p.partKey, p.id); !ok || p.log == nil {
			p.refuse(retryLater)
			done()
			return
		}
		f.look(p, f.reader(p.partKey), done)
	})
}

// look reads start and end anew, and settles.
func (f *fetch) look(p *fetchPart, r *reader, done func()) {
	refuse := func(code int16) bool {
		if code != 0 {
			p.refuse(code)
			done()
		}
		return code != 0
	}
	r.bounded = false
	r.sound(p.log, true, func(code int16) {
		if refuse(code) {
			return
		}
		r.bounds(func(code int16) {
			if refuse(code) {
				return
			}
			r.virtualStart(p.log, func(start int64, code int16) {
				if refuse(code) {
					return
				}
				r.tail(p.log, r.end, func(e ends, code int16) {
					if !refuse(code) {
						f.settleNative(p, r, e, start, done)
					}
				})
			})
		})
	})
}

// settleNative is settle for a last fetched epoch of the open native span, which
// the broker knows about; any other passes.
func (f *fetch) settleNative(p *fetchPart, r *reader, e ends, start int64, done func()) {
	if nativeSpan(p.log.Log) != nil && !p.tried {
		// What lies above the high watermark may be in range all the same: the
		// broker knows.
		e = ends{maxOffset, maxOffset, -1}
	}
	if !asksBroker(p.log.Log, p.lastEpoch) {
		f.settle(p, r, e, start, done)
		return
	}
	r.endOffset(p.log, p.lastEpoch, func(at int32, end int64, code int16) {
		switch {
		case code != 0:
			p.refuse(code)
		case at < 0 || p.offset < start:
			p.refuse(kerr.OffsetOutOfRange.Code)
		case at < p.lastEpoch || end < p.offset:
			p.refuse(0)
			p.split = epoch.Entry{Epoch: at, Start: end}
		default:
			f.settle(p, r, e, start, done)
			return
		}
		done()
	})
}

func (f *fetch) settle(p *fetchPart, r *reader, e ends, start int64, done func()) {
	answer, split := p.check(e, start)
	c := f.x.State().cursor(p.partKey, p.log)
	if c.early = (time.Time{}); answer == epoch.FetchNotAvailable {
		c.early = f.h.now()
	}
	switch answer {
	case epoch.FetchRead, epoch.FetchEmpty:
		if e.virtual == maxOffset {
			e.virtual = -1
		}
		f.locate(p, r, e.virtual, done)
		return
	case epoch.FetchNotAvailable:
		// Shown before, not there now, and nothing was cut: wait at the end.
		f.locate(p, r, e.virtual, done)
		return
	case epoch.FetchUnknownEpoch:
		p.refuse(kerr.UnknownLeaderEpoch.Code)
	case epoch.FetchDiverging:
		p.refuse(0)
		p.split = split
	case epoch.FetchOutOfRange:
		p.refuse(kerr.OffsetOutOfRange.Code)
	default:
		p.refuse(retryLater)
	}
	done()
}
