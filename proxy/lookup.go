package proxy

import (
	"bytes"

	"github.com/lockstep-kafka/lockstep/epoch"
	"github.com/lockstep-kafka/lockstep/internal/ledger"
	"github.com/lockstep-kafka/lockstep/protocol"
)

// hit is a live batch: a copy when a look-up found it, a piece of the answer in
// a Fetch.
type hit struct {
	batch protocol.Batch
	head  epoch.Batch
	at    epoch.Placed
}

// firstLive finds the first live batch that ends above physical offset from and
// begins below to. ok false and code 0: there is none.
func (r *reader) firstLive(lp *ledger.Partition, from, to int64, cb func(h hit, ok bool, code int16)) {
	var found hit
	l, c := lp.Log, r.chart(lp)
	dead := from
	r.scan(l, c.skip(from), to, probeBytes, func(b protocol.Batch, e epoch.Batch) bool {
		at, live, ahead := place(l, e)
		switch {
		case live:
			found = hit{bytes.Clone(b), e, at} // the read's buffer goes
		case !ahead:
			dead = e.PEnd()
		}
		return !live && !ahead
	}, func(end scanEnd) {
		if dead > from {
			c.noteDead(from, dead)
		}
		cb(found, found.batch != nil, end.code)
	})
}

// search is one look-up of the physical offset to read virtual offset v from:
// bisection of a span by the stamps of its batches, with guesses first, as the
// virtual and the physical distance mostly are the same.
type search struct {
	r     *reader
	log   *ledger.Partition
	chart *chart
	v     int64

	lo, loEnd int64 // the live batch at lo begins at or below v; it ends at loEnd (= lo: none known)
	hi        int64 // every live batch at or above hi begins above v
	guess     int64
	steps     int
	cb        func(p int64, code int16)
}

// maxGuesses steps may be guesses; then every other step halves the range.
const maxGuesses = 4

// locate finds where to read for virtual offset v: a physical offset before
// which no live batch ends above v, close to the batch that contains v or, if
// none does, to the first one behind it.
func (r *reader) locate(p *ledger.Partition, v int64, cb func(at int64, code int16)) {
	l := p.Log
	i := max(l.SpanAtV(v), 0)
	s := l.Spans[i]
	r.bounds(func(code int16) {
		if code != 0 {
			cb(-1, code)
			return
		}
		hi := r.end
		if i+1 < len(l.Spans) {
			hi = min(hi, l.Spans[i+1].PStart)
		}
		if s.PEnd >= 0 {
			hi = min(hi, s.PEnd)
		}
		lo := max(s.PStart, r.start)
		if s.Kind == epoch.Native {
			cb(max(lo, s.PStart+v-s.VStart), 0)
			return
		}
		f := &search{r: r, log: p, chart: r.chart(p), v: v, lo: lo, loEnd: lo, hi: hi, cb: cb}
		f.guess = s.PStart + v - s.VStart
		if known, ok := f.chart.floor(v); ok && known.V >= s.VStart && known.P > lo && known.P < hi {
			f.lo, f.loEnd = known.P, known.P
			f.guess = known.P + v - known.V
		}
		f.step()
	})
}

func (f *search) step() {
	if f.loEnd >= f.hi {
		f.cb(f.lo, 0)
		return
	}
	q := f.loEnd + (f.hi-f.loEnd)/2
	if f.steps < maxGuesses || f.steps%2 == 0 {
		q = min(max(f.guess, f.loEnd), f.hi-1)
	}
	f.steps++
	f.r.firstLive(f.log, q, f.hi, func(h hit, _ bool, code int16) { f.judge(q, h, code) })
}

func (f *search) judge(q int64, h hit, code int16) {
	switch {
	case code != 0:
		f.cb(-1, code)
		return
	case h.batch == nil:
		f.hi = q
	case h.at.V > f.v:
		f.hi = min(q, h.at.P)
		f.guess = h.at.P - (h.at.V - f.v)
	default:
		f.chart.add(h.at.V, h.at.P)
		f.lo, f.loEnd = h.at.P, h.at.PEnd
		f.guess = h.at.P + (f.v - h.at.V)
		end := h.head.ChainEnd()
		switch {
		case f.v < end:
			f.hi = f.loEnd // it contains v
		case f.v == end && h.head.VCount != 0:
			f.lo = f.loEnd // what comes next begins at v or above
			f.hi = f.loEnd
		}
	}
	f.step()
}
