package proxy

import (
	"bytes"
	"errors"

	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/lockstep-kafka/lockstep/epoch"
	"github.com/lockstep-kafka/lockstep/internal/ledger"
	"github.com/lockstep-kafka/lockstep/protocol"
)

// What a client gets of a broker's answer: the live batches of one span, put
// back as they were on the source, classified by the ledger view at answer
// time.

// judge decides about the partitions of this round.
func (f *fetch) judge() {
	f.collect()
	inTurn(len(f.parts), func(i int, next func()) {
		p := f.parts[i]
		switch {
		case p.absent:
			p.outcome = outNothing
			next()
		case !p.mirror:
			p.outcome = outNothing
			if _, became := f.h.mirrorTopic(p.topic, p.id); became { // meanwhile: what there is of it is physical (M3)
				p.fail(retryLater)
			} else if a := &p.answer; a.ErrorCode != 0 || len(a.Records) > 0 || a.Diverging.Set || a.PreferredReplica >= 0 {
				p.outcome = outAnswer
			}
			next()
		default:
			f.judgePart(p, next)
		}
	}, f.answered)
}

// collect gives each partition what the broker said of it.
func (f *fetch) collect() {
	for _, p := range f.parts {
		p.absent = true
	}
	for _, resp := range [...]*protocol.FetchResponse{&f.resp, &f.ruResp} {
		for i := range resp.Topics {
			t := &resp.Topics[i]
			for j := range t.Partitions {
				if p := f.byKey[wantedKey{t.Name, t.ID, t.Partitions[j].Partition}]; p != nil {
					p.answer, p.absent = t.Partitions[j], false
				}
			}
		}
	}
	f.ruResp.Topics = f.ruResp.Topics[:0]
}

// fail makes the partition's answer an error.
func (p *fetchPart) fail(code int16) {
	p.answer = protocol.FetchPartition{
		Partition: p.partition, ErrorCode: code, HighWatermark: -1, LastStableOffset: -1, LogStartOffset: -1, PreferredReplica: -1,
	}
	p.outcome = outAnswer
}

// failAgain: an error, unless the client can wait for another round.
func (p *fetchPart) failAgain() {
	p.fail(retryLater)
	p.outcome = outAgain
}

func (f *fetch) judgePart(p *fetchPart, done func()) {
	now := f.h.partition(p.partKey, p.id)
	raw := p.answer
	switch {
	case passable(raw.ErrorCode):
		f.passError(p, raw, now)
		done()
		return
	case p.decided():
		p.fail(p.code)
		if p.code == 0 {
			p.answer.Diverging = protocol.EpochEnd{Set: true, Epoch: p.split.Epoch, EndOffset: p.split.Start}
		}
		done()
		return
	case now == nil:
		p.fail(retryLater)
		done()
		return
	case p.moved(now):
		done()
		return
	case raw.ErrorCode == kerr.OffsetOutOfRange.Code, raw.Diverging.Set:
		f.outOfRange(p, done)
		return
	}
	p.log = now
	f.show(p, raw, done)
}

// passError hands on an error of the broker: authorisation, unknown topic, not
// leader, fenced.
func (f *fetch) passError(p *fetchPart, raw protocol.FetchPartition, now *ledger.Partition) {
	if raw.ErrorCode == kerr.UnknownLeaderEpoch.Code && !p.unfenced && now != nil && p.currentEpoch >= 0 && p.currentEpoch <= now.Log.Chain.Newest() {
		p.unfenced = true
		p.failAgain()
		return
	}
	p.fail(raw.ErrorCode)
	if l := raw.CurrentLeader; l.Set && now != nil {
		if l.Epoch >= 0 {
			l.Epoch = max(now.Log.Shown(l.Epoch), now.Log.Chain.Newest())
		}
		p.answer.CurrentLeader = l
	}
}

// moved re-checks the partition against the ledger as it is when the answer
// comes, which may be a long poll later (M3): after a cut the client's position
// may lie on the lost branch, and it has to learn the new leader epoch first.
func (p *fetchPart) moved(now *ledger.Partition) bool {
	if now.Log == p.log.Log {
		return false
	}
	cut, respanned := now.Log.Bump != p.log.Log.Bump, spansOf(now) != spansOf(p.log)
	p.log = now
	switch {
	case cut && p.currentEpoch >= 0:
		p.fail(kerr.FencedLeaderEpoch.Code)
		return true
	case cut:
		p.fail(retryLater)
		return true
	case respanned:
		// What was asked for, the physical offset and the chain end there, is of
		// the span list before: the same virtual offset may lie elsewhere now, and
		// in the middle of a batch.
		p.failAgain()
		return true
	}
	if answer, _ := p.check(ends{maxOffset, maxOffset, maxOffset}, now.Log.Start); answer != epoch.FetchRead {
		p.fail(retryLater) // asked again, it is settled with care
		return true
	}
	return false
}

// outOfRange: the broker has nothing at the physical offset we asked for, which
// says nothing of the virtual one; or, in the open native span, something else
// than the client has read. Look again, with care (H12).
func (f *fetch) outOfRange(p *fetchPart, done func()) {
	f.x.State().cursor(p.partKey, p.log).doubt()
	if p.tried { // found again, refused again: a follower that lags, or a leader that lost its tail
		p.fail(retryLater)
		done()
		return
	}
	p.tried = true
	f.reader(p.partKey).bounded = false
	f.confirm(p, func() {
		p.failAgain()
		if p.decided() {
			p.fail(p.code)
			if p.code == 0 {
				p.answer.Diverging = protocol.EpochEnd{Set: true, Epoch: p.split.Epoch, EndOffset: p.split.Start}
			}
		}
		done()
	})
}

// shown is a live batch to be shown, from its place in the answer's records.
type shown struct {
	hit
	from, to int            // in the records
	slow     protocol.Batch // what the client gets, for a batch that had to be re-encoded
}

// pick is what a walk over an answer's records found.
type pick struct {
	batches []shown
	next    int64 // physical offset to read on from
	chain   int64 // chain end there, -1: not known
	held    bool
	hidden  int
	pe      int32 // newest physical epoch of what lies in the open native span
	deadPE  int32 // the same of what is dead there, -1: nothing is
}

// choose walks over the records and picks what may be shown: live batches of
// one span that chain, from the one that holds the offset asked for.
func (p *fetchPart) choose(records []byte) pick {
	l := p.log.Log
	w := l.Walk(p.offset, false)
	if p.chain >= 0 {
		w = l.Walk(p.chain, true)
	}
	w.Lenient(confirmed(p.log))
	out := pick{next: p.p, chain: p.chain, deadPE: -1}
	rest := records
	for len(rest) > 0 {
		b, after, err := protocol.NextBatch(rest)
		if err != nil {
			// A trailing part is dropped; what can't be read at all is never shown.
			out.held = out.held || !errors.Is(err, protocol.ErrPartialBatch)
			break
		}
		from := len(records) - len(rest)
		rest = after
		e := headerOf(b)
		if e.PEnd() <= p.p {
			continue
		}
		if behind := jump(l, e.P); behind > e.P { // the dead end of a closed span
			out.hidden++
			out.next = behind
			continue
		}
		at, verdict := w.Next(e)
		switch verdict {
		case epoch.Live:
		case epoch.Gap, epoch.Invalid:
			out.held = true
			return out
		default:
			if verdict != epoch.Below {
				out.hidden++
			}
			if s := nativeSpan(l); s != nil && e.P >= s.PStart {
				out.deadPE = e.PEpoch
			}
			out.next = e.PEnd()
			continue
		}
		if l.Spans[at.Span].Kind == epoch.Mirrored && at.Epoch > l.Chain.Newest() {
			out.held = true // of an epoch that is not read back from the ledger yet
			return out
		}
		if n := len(out.batches); n > 0 {
			if n == 1 && out.batches[0].at.VEnd <= p.offset && at.V <= p.offset {
				out.batches = out.batches[:0] // renumbered, and all of it lies before what is asked for
			} else if at.Span != out.batches[0].at.Span {
				return out // one span an answer (M10)
			}
		}
		if at.Span == len(l.Spans)-1 && !e.Stamped {
			out.pe = max(out.pe, e.PEpoch)
		}
		out.batches = append(out.batches, shown{hit: hit{b, e, at}, from: from, to: from + len(b)})
		out.next, out.chain = e.PEnd(), e.ChainEnd()
		if !e.Stamped {
			out.chain = at.VEnd
		}
	}
	return out
}

// show makes the partition's answer of what the broker sent.
func (f *fetch) show(p *fetchPart, raw protocol.FetchPartition, done func()) {
	var records []byte
	if len(raw.Records) > 0 {
		records = raw.Records[0]
	}
	f.spent += int64(len(records))
	f.alarm(p, raw)
	out := p.choose(records)
	if out.hidden > 0 && f.h.count.hidden != nil {
		f.h.count.hidden(p.partKey.topic, p.partKey.partition, out.hidden)
	}
	f.vouch(p, out.pe, func(code int16) {
		if code != 0 {
			p.fail(code)
			done()
			return
		}
		f.slow(p, &out, func() {
			f.overHole(p, raw, out, func(code int16) {
				if code != 0 {
					p.fail(code)
					done()
					return
				}
				f.finish(p, raw, out, records, done)
			})
		})
	})
}

// vouch looks, when there is something of a leader epoch in the open native span
// that this instance has not met yet, whether that leader still had everything
// below the span (H4, F5). A new epoch costs one look-up for all connections.
func (f *fetch) vouch(p *fetchPart, pe int32, done func(code int16)) {
	s := nativeSpan(p.log.Log)
	c := f.h.atlas.chart(p.partKey, p.log)
	if s == nil || pe <= s.PEpoch || pe <= c.vouched(0) {
		done(0)
		return
	}
	f.reader(p.partKey).sound(p.log, true, func(code int16) {
		if code == 0 {
			f.h.atlas.chartUnder(p.partKey, p.log, max(pe, c.leader)).vouched(pe)
		}
		done(code)
	})
}

// slow re-encodes renumbered batches on a worker. It works on copies: the
// answer's buffer may be gone before it is done.
func (f *fetch) slow(p *fetchPart, out *pick, done func()) {
	type job struct {
		i    int
		b    protocol.Batch
		v    int64
		e    int32
		flag bool
	}
	var jobs []job
	for i := range out.batches {
		if s := &out.batches[i]; s.head.Flags&epoch.FlagRenumbered != 0 && s.head.Stamped {
			jobs = append(jobs, job{i, bytes.Clone(s.batch), s.at.V, s.at.Epoch, s.head.Flags&epoch.FlagLogAppend != 0})
		}
	}
	if len(jobs) == 0 {
		done()
		return
	}
	var err error
	f.h.work.offload(f.x, func() {
		r := protocol.NewRecoder(protocol.DefaultMaxOut)
		for i := range jobs {
			j := &jobs[i]
			var b protocol.Batch
			if b, err = r.Undensify(j.b, j.v, j.e, j.flag); err != nil {
				jobs = jobs[:i]
				return
			}
			j.b = bytes.Clone(b) // the recoder may use its buffer again
		}
	}, func() {
		end := len(out.batches)
		for _, j := range jobs {
			out.batches[j.i].slow = j.b
			out.batches[j.i].at.VEnd = j.b.NextOffset()
			end = j.i + 1
		}
		if err != nil {
			// Everything before it is shown; it and all behind it wait.
			f.x.Log().Error("a renumbered batch can't be put back", "topic", p.partKey.topic, "partition", p.partKey.partition, "err", err)
			n := 0
			for n < len(out.batches) && (out.batches[n].head.Flags&epoch.FlagRenumbered == 0 || out.batches[n].slow != nil) {
				n++
			}
			if n < len(out.batches) {
				out.next, out.chain = out.batches[n].at.P, -1
			}
			out.batches, out.held = out.batches[:max(n, min(end, n))], true
		}
		done()
	})
}

// finish puts the picked batches back and fills in the rest of the answer.
func (f *fetch) finish(p *fetchPart, raw protocol.FetchPartition, out pick, records []byte, done func()) {
	c := f.x.State().cursor(p.partKey, p.log)
	var pieces [][]byte
	end, last := int64(-1), -1
	for i := range out.batches {
		s := &out.batches[i]
		if s.at.VEnd <= p.offset {
			continue // renumbered, and after all it lies before what is asked for
		}
		end = s.at.VEnd
		switch {
		case s.slow != nil:
			pieces, last = append(pieces, s.slow), -1
			continue
		case !s.head.Stamped:
			s.batch.SetBase(s.at.V, s.at.Epoch)
		case s.head.Flags&epoch.FlagLogAppend != 0:
			s.batch.RestoreLogAppend(s.at.V, s.at.Epoch)
		default:
			s.batch.Restore(s.at.V, s.at.Epoch)
		}
		if last >= 0 && last == s.from { // neighbours stay one piece
			n := len(pieces) - 1
			pieces[n] = records[s.from-len(pieces[n]) : s.to]
		} else {
			pieces = append(pieces, records[s.from:s.to])
		}
		last = s.to
	}
	if !f.sentOn(c, p) {
		c.hole = -1
	}
	c.deadPE = max(c.deadPE, out.deadPE)
	p.outcome = outNothing
	to := f.hole(p, c, raw, out)
	switch {
	case len(pieces) == 0 && to >= 0 && c.hole < 0:
		pieces = append(pieces, f.sendOver(c, p, out, to))
	case len(pieces) > 0:
		p.outcome = outAnswer
		f.h.atlas.chart(p.partKey, p.log).add(out.batches[0].at.V, out.batches[0].at.P)
		c.advance(mark{p.offset, p.p, p.chain})
		c.advance(mark{end, out.next, out.chain})
		c.seen = max(c.seen, end)
	case out.held:
		p.outcome = outHeld
		c.advance(mark{p.offset, out.next, out.chain})
		if out.chain < 0 { // so it rests on a look-up: the next try begins with a new one
			c.lose()
			f.h.atlas.chart(p.partKey, p.log).forget()
		}
	case out.next > p.p:
		p.outcome = f.passedOver(p, c, out.next)
		c.advance(mark{p.offset, out.next, out.chain})
	case c.ru && f.q.IsolationLevel != 0 && !p.sided:
		p.outcome = outAgain
	case p.astray(p.p):
		c.lose()
	}
	p.sided = c.ru
	if raw.PreferredReplica >= 0 {
		p.outcome = outAnswer
	}
	p.answer = protocol.FetchPartition{
		Partition: p.partition, PreferredReplica: raw.PreferredReplica, Records: pieces,
		AbortedNull: f.q.IsolationLevel == 0, LogStartOffset: -1,
	}
	p.marks(raw, out, end, c.seen)
	f.logStart(p, raw.LogStartOffset, done)
}

// marks fills in high watermark, last stable offset and aborted transactions.
func (p *fetchPart) marks(raw protocol.FetchPartition, out pick, end, seen int64) {
	l := p.log.Log
	open := l.Spans[len(l.Spans)-1]
	known := endBelow(p.log, raw.HighWatermark)
	hw := max(end, seen, l.Start, l.Spans[0].VStart)
	if known.ok {
		hw = max(hw, known.v) // H14: never by the distance to the broker's own
	}
	a := &p.answer
	a.HighWatermark, a.LastStableOffset = hw, hw
	if open.Kind == epoch.Native && raw.HighWatermark >= open.PStart {
		shift := open.VStart - open.PStart
		a.HighWatermark = raw.HighWatermark + shift
		a.LastStableOffset = max(raw.LastStableOffset, open.PStart) + shift
	}
	if len(out.batches) > 0 {
		if s := l.Spans[out.batches[0].at.Span]; s.Kind == epoch.Native {
			// No transaction is open where a span begins or ends (H9). One that began
			// elsewhere has its marker elsewhere too: a client that is told of it
			// would drop what the same producer wrote here (M10).
			limit := maxOffset
			if i := out.batches[0].at.Span; i+1 < len(l.Spans) {
				limit = l.Spans[i+1].PStart
			}
			for _, t := range raw.Aborted {
				if t.FirstOffset < s.PStart || t.FirstOffset >= limit {
					continue
				}
				t.FirstOffset += s.VStart - s.PStart
				a.Aborted = append(a.Aborted, t)
			}
		}
	}
}

// logStart fills in the virtual log start, looking for the first live batch
// when retention has moved the physical one since somebody last did.
func (f *fetch) logStart(p *fetchPart, physical int64, done func()) {
	if physical < 0 {
		done()
		return
	}
	if v, ok := f.h.atlas.chart(p.partKey, p.log).startKnown(p.log, physical); ok {
		p.answer.LogStartOffset = v
		done()
		return
	}
	f.reader(p.partKey).virtualStart(p.log, func(v int64, code int16) {
		if code == 0 {
			p.answer.LogStartOffset = v
		}
		done()
	})
}

// alarm: below a mirrored span no transaction can be open (H9), so a last stable
// offset below the high watermark there comes from somebody who writes past the
// proxy. It would hold up read_committed readers for as long as he likes: this
// partition is read uncommitted from now on; stamps decide anyway (H16).
func (f *fetch) alarm(p *fetchPart, raw protocol.FetchPartition) {
	if f.q.IsolationLevel == 0 || raw.LastStableOffset < 0 || raw.LastStableOffset >= raw.HighWatermark {
		return
	}
	l := p.log.Log
	if i := l.SpanAtP(raw.LastStableOffset); i < 0 || l.Spans[i].Kind != epoch.Mirrored {
		return
	}
	c := f.x.State().cursor(p.partKey, p.log)
	if c.ru {
		return
	}
	c.ru = true
	f.x.Log().Warn("a transaction is open in a mirrored partition: somebody writes to the destination past Lockstep",
		"topic", p.partKey.topic, "partition", p.partKey.partition, "lastStable", raw.LastStableOffset, "highWatermark", raw.HighWatermark)
	if f.h.count.alarm != nil {
		f.h.count.alarm(p.partKey.topic, p.partKey.partition)
	}
}
