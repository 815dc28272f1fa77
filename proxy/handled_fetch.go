package proxy

import (
	"errors"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/lockstep-kafka/lockstep/protocol"
)

// fetch is one Fetch request with a mirror partition in it (or in its session):
//
//	session → plan (look-ups) → ask the broker → judge each partition → answer,
//	or ask again while there is nothing and the client still waits.
type fetch struct {
	h *handlers
	x exchange
	q *protocol.FetchRequest

	session *fetchSession
	full    bool
	parts   []*fetchPart
	byKey   map[wantedKey]*fetchPart
	readers map[partKey]*reader

	deadline time.Time
	spent    int64 // bytes of batches read
	rounds   int   // that brought nothing to show

	resp     protocol.FetchResponse // newest answer of the broker
	ruResp   protocol.FetchResponse // of the read_uncommitted side request (H16)
	held     [][]byte               // their buffers
	throttle int32
}

// heldPause is how long a round is put off when something is there that may not
// be shown yet: a gap the owner has to rule on, or an epoch not read back.
const heldPause = 100 * time.Millisecond

// maxFetchRead bounds what one Fetch reads, and holds in memory, in search of
// something to show. The next one goes on from there.
const maxFetchRead = 16 << 20

func (h *handlers) handleFetch(x exchange, version int16, body []byte) {
	q := &protocol.FetchRequest{}
	if err := q.Decode(version, body); err != nil {
		badRequest(x, err)
		return
	}
	plan := h.planSession(x.State(), q)
	switch {
	case plan.forward:
		x.Forward()
		return
	case plan.code != 0:
		replyFetch(x, &protocol.FetchResponse{Version: version, ErrorCode: plan.code})
		return
	}
	f := &fetch{
		h: h, x: x, q: q, session: plan.session, full: plan.full,
		byKey: map[wantedKey]*fetchPart{}, readers: map[partKey]*reader{},
		deadline: h.now().Add(time.Duration(max(q.MaxWaitMillis, 0)) * time.Millisecond),
	}
	for _, w := range plan.wants {
		if f.byKey[w.key()] != nil {
			continue // named twice: once is enough, as for a broker
		}
		p := &fetchPart{wanted: w}
		var name string
		if name, p.mirror = h.mirrorTopic(w.topic, w.id); p.mirror {
			p.partKey = partKey{name, w.partition}
		}
		p.refuse(0)
		f.parts = append(f.parts, p)
		f.byKey[w.key()] = p
	}
	f.plan()
}

func (f *fetch) reader(k partKey) *reader {
	r := f.readers[k]
	if r == nil {
		r = &reader{h: f.h, x: f.x, key: k, spent: &f.spent}
		f.readers[k] = r
	}
	return r
}

// ask sends the translated request: always full and without a session. Whoever
// is to be read comes first, as a broker gives data to the first ones.
func (f *fetch) ask() {
	var main, side, tiny []*fetchPart
	wait := f.deadline.Sub(f.h.now())
	for _, p := range f.parts {
		switch {
		case p.mirror && p.decided():
			tiny = append(tiny, p)
			wait = 0
		case p.mirror && f.q.IsolationLevel != 0 && f.x.State().cursor(p.partKey, p.log).ru:
			side = append(side, p)
		default:
			main = append(main, p)
		}
	}
	main = append(main, tiny...)
	switch {
	case len(side) == 0:
		f.send(main, wait, f.q.IsolationLevel, &f.resp, f.judge)
	case len(main) == 0:
		f.send(side, wait, 0, &f.ruResp, f.judge)
	default:
		f.send(side, 0, 0, &f.ruResp, func() {
			for i := range f.ruResp.Topics {
				for j := range f.ruResp.Topics[i].Partitions {
					if len(f.ruResp.Topics[i].Partitions[j].Records) > 0 {
						wait = 0
					}
				}
			}
			f.send(main, wait, f.q.IsolationLevel, &f.resp, f.judge)
		})
	}
}

func (f *fetch) send(parts []*fetchPart, wait time.Duration, isolation int8, into *protocol.FetchResponse, done func()) {
	q := &protocol.FetchRequest{}
	q.Reset(f.q.Version)
	q.MaxWaitMillis = int32(max(wait, 0) / time.Millisecond)
	q.MinBytes, q.IsolationLevel, q.Rack = f.q.MinBytes, isolation, f.q.Rack
	q.MaxBytes = min(f.q.MaxBytes, f.upstreamMax())
	q.SessionID, q.SessionEpoch = 0, sessionEpochFinal
	var t *protocol.FetchRequestTopic
	for _, p := range parts {
		if t == nil || t.Name != p.topic || t.ID != p.id {
			t = q.AddTopic(p.topic, p.id)
		}
		t.Partitions = append(t.Partitions, p.upstream())
	}
	f.x.AskFrame(protocol.KeyFetch, q.Version, [][]byte{q.AppendTo(nil)}, func(body []byte, err error) {
		if err == nil {
			f.held = append(f.held, body)
			err = into.Decode(q.Version, body)
		}
		if err != nil {
			if !errors.Is(err, errExchangeOver) {
				f.x.Close(ReasonProtocolError, err)
			}
			return
		}
		f.throttle = max(f.throttle, into.ThrottleMillis)
		if into.ErrorCode != 0 {
			replyFetch(f.x, &protocol.FetchResponse{Version: f.q.Version, ThrottleMillis: f.throttle, ErrorCode: into.ErrorCode})
			return
		}
		done()
	})
}

// rationer is implemented by an exchange that knows how much memory is left.
type rationer interface{ ration(most int32) int32 }

// upstreamMax is the most that is asked of the broker at once.
func (f *fetch) upstreamMax() int32 {
	if r, ok := f.x.(rationer); ok {
		return r.ration(f.h.fetchUpstreamMax)
	}
	return f.h.fetchUpstreamMax
}

// upstream is the partition as the broker is asked for it.
func (p *fetchPart) upstream() protocol.FetchRequestPartition {
	a := protocol.NewFetchRequestPartition(p.partition)
	a.MaxBytes = p.maxBytes
	if !p.mirror {
		a.CurrentLeaderEpoch, a.LastFetchedEpoch, a.FetchOffset, a.LogStartOffset = p.currentEpoch, p.lastEpoch, p.offset, p.logStart
		return a
	}
	a.FetchOffset = p.p
	if p.decided() {
		a.MaxBytes = 1
	}
	if p.log != nil && !p.unfenced {
		if pe, ok := physicalEpoch(p.log, p.currentEpoch); ok {
			a.CurrentLeaderEpoch = pe
		}
	}
	// Once tried, the joined chain has been asked: the broker itself doesn't know
	// an epoch in which nothing is left, the ledger does.
	if p.log != nil && !p.decided() && !p.tried && asksBroker(p.log.Log, p.lastEpoch) && p.p >= p.log.Log.Open().PStart {
		a.LastFetchedEpoch = p.lastEpoch - p.log.Log.Open().Bump
	}
	return a
}

// answered decides, when every partition has been judged, between an answer and
// another round.
func (f *fetch) answered() {
	held, moved, again := false, false, false
	for _, p := range f.parts {
		switch p.outcome {
		case outAnswer:
			f.reply()
			return
		case outAgain:
			again = true
		case outHeld:
			held = true
		case outMoved:
			moved = true
		}
	}
	left := f.deadline.Sub(f.h.now())
	switch {
	case again: // each partition at most once for each reason
		f.again()
	case left <= 0 || f.spent > maxFetchRead || !held && !moved:
		f.reply()
	case moved:
		f.again()
	default:
		f.x.After(min(left, heldPause), f.again)
	}
}

// again starts another round: every partition is looked at anew, since the
// ledger may have moved.
func (f *fetch) again() {
	f.rounds++
	for _, r := range f.readers {
		r.bounded = false
	}
	for _, body := range f.held { // nothing of it will be shown
		f.x.Release(body)
	}
	f.held = f.held[:0]
	// What the broker leaves out next time must not be found in what it said
	// last time: that lies in buffers which have been given back.
	f.resp.Topics, f.ruResp.Topics = f.resp.Topics[:0], f.ruResp.Topics[:0]
	f.plan()
}

// reply answers the client: everything, or in an incremental answer what the
// session's client doesn't know yet.
func (f *fetch) reply() {
	resp := &protocol.FetchResponse{Version: f.q.Version, ThrottleMillis: f.throttle}
	if f.session != nil {
		resp.SessionID = f.session.id
	}
	if to := addresses(f.x); to != nil {
		resp.NodeEndpoints = f.resp.NodeEndpoints
		resp.MapEndpoints(to)
	}
	given := map[wantedKey]bool{}
	var t *protocol.FetchTopic
	for _, p := range f.parts {
		if p.absent {
			continue
		}
		a := &p.answer
		data := len(a.Records) > 0
		if data {
			given[p.key()] = true
		}
		if f.session != nil {
			must := f.session.record(answered{
				key: p.key(), hw: a.HighWatermark, logStart: a.LogStartOffset, data: data,
				always: a.ErrorCode != 0 || a.Diverging.Set || a.PreferredReplica >= 0, failed: a.ErrorCode != 0,
			})
			if !must && !f.full {
				continue
			}
		}
		if t == nil || t.Name != p.topic || t.ID != p.id {
			t = resp.AddTopic(p.topic, p.id)
		}
		t.Partitions = append(t.Partitions, *a)
	}
	if f.session != nil {
		f.session.rotate(given)
	}
	replyFetch(f.x, resp)
}

func replyFetch(x exchange, resp *protocol.FetchResponse) {
	var parts protocol.Parts
	resp.Encode(&parts)
	x.Reply(parts.Bufs())
}

// passable says whether a broker's error on a mirror partition is for the
// client: all are, but the ones that speak of physical offsets.
func passable(code int16) bool {
	return code != 0 && code != kerr.OffsetOutOfRange.Code
}
