package epoch

import "sort"

// Sample says that a live batch begins at virtual offset V and physical
// offset P.
type Sample struct{ V, P int64 }

// Index is a bounded, sparse list of samples over the live batches of one
// partition, to find the physical offset of a virtual one in few round trips.
// It is only a hint: batches describe themselves. Live batches rise in both
// coordinates, so one list serves all spans. Not safe for concurrent use; the
// zero value holds nothing and takes nothing, see NewIndex.
type Index struct {
	s    []Sample
	max  int
	step int64 // least virtual distance between samples; doubles whenever the list is full
}

// NewIndex holds at most limit samples (16 bytes each; at least 2).
func NewIndex(limit int) *Index { return &Index{max: max(limit, 2), step: 1} }

// Len is the number of samples held.
func (x *Index) Len() int { return len(x.s) }

// Add takes a sample of a live batch, in any order. Samples that contradict
// it heal themselves: of two samples the one that lies later physically is
// right, as a cut appends the new branch behind the old one.
func (x *Index) Add(v, p int64) {
	if x.max == 0 {
		return
	}
	i := sort.Search(len(x.s), func(i int) bool { return x.s[i].V >= v })
	if i > 0 && x.s[i-1].P >= p {
		return // v above, p not behind: of a branch that was cut
	}
	j := i
	for j < len(x.s) && x.s[j].P <= p {
		j++ // v not below, p not behind: cut since, or this very sample
	}
	if j < len(x.s) && x.s[j].V == v {
		return
	}
	if i > 0 && v-x.s[i-1].V < x.step || j < len(x.s) && x.s[j].V-v < x.step {
		x.s = append(x.s[:i], x.s[j:]...)
		return
	}
	if i == j {
		if len(x.s) == x.max {
			x.thin()
			x.Add(v, p)
			return
		}
		x.s = append(x.s, Sample{})
		copy(x.s[i+1:], x.s[i:])
	} else {
		x.s = append(x.s[:i+1], x.s[j:]...)
	}
	x.s[i] = Sample{V: v, P: p}
}

// thin doubles the distance until something went; at least every second
// sample does when they lie evenly.
func (x *Index) thin() {
	for n := len(x.s); len(x.s) == n; {
		x.step *= 2
		out := x.s[:1]
		for _, s := range x.s[1:] {
			if s.V-out[len(out)-1].V >= x.step {
				out = append(out, s)
			}
		}
		x.s = out
	}
}

// Floor is the sample with the largest V at or below v.
func (x *Index) Floor(v int64) (Sample, bool) {
	i := sort.Search(len(x.s), func(i int) bool { return x.s[i].V > v })
	if i == 0 {
		return Sample{}, false
	}
	return x.s[i-1], true
}

// FloorP is the sample with the largest P at or below p.
func (x *Index) FloorP(p int64) (Sample, bool) {
	i := sort.Search(len(x.s), func(i int) bool { return x.s[i].P > p })
	if i == 0 {
		return Sample{}, false
	}
	return x.s[i-1], true
}

// DropFromV forgets samples at virtual offset t and above: a cut to t.
func (x *Index) DropFromV(t int64) {
	x.s = x.s[:sort.Search(len(x.s), func(i int) bool { return x.s[i].V >= t })]
}

// DropFrom forgets samples at physical offset p and behind: a lost tail.
func (x *Index) DropFrom(p int64) {
	x.s = x.s[:sort.Search(len(x.s), func(i int) bool { return x.s[i].P >= p })]
}

// DropBelow forgets samples below physical offset p: retention.
func (x *Index) DropBelow(p int64) {
	x.s = append(x.s[:0], x.s[sort.Search(len(x.s), func(i int) bool { return x.s[i].P >= p }):]...)
}

// Follow forgets what a change of the log from old to l made untrue: samples at
// or above the first span that old did not have, virtually or physically.
// Call it with every new snapshot of a partition, before samples found under
// it are added; drop samples found under an older one.
func (x *Index) Follow(old, l *Log) {
	for i := range l.Spans {
		s := &l.Spans[i]
		known := false
		if old != nil {
			if j := old.SpanAtP(s.PStart); j >= 0 {
				o := &old.Spans[j]
				known = o.Kind == s.Kind && o.Gen == s.Gen && o.VStart == s.VStart && o.PStart == s.PStart && o.PEpoch == s.PEpoch
			}
		}
		if !known {
			x.DropFromV(s.VStart)
			x.DropFrom(s.PStart)
			return
		}
	}
}

// SeekV is the physical offset at which to begin to read for virtual offset v,
// and the span it lies in (-1: no span; p is then the first span's start). A
// walk from there is Walk(from, false): from is v, or the virtual offset of
// the batch at p when the index knows one, which makes the chain exact from
// it on. Live batches that hold or follow v lie at or behind p. x may be nil.
func (l *Log) SeekV(x *Index, v int64) (p, from int64, span int) {
	span = l.SpanAtV(v)
	if span < 0 {
		if len(l.Spans) == 0 {
			return 0, v, -1
		}
		return l.SkipTo(l.Spans[0].PStart), v, -1
	}
	s := &l.Spans[span]
	if s.Kind == Native {
		p = s.PStart + v - s.VStart
		if span+1 < len(l.Spans) {
			p = min(p, l.Spans[span+1].PStart)
		}
		return l.SkipTo(p), v, l.SpanAtP(l.SkipTo(p))
	}
	p, from = s.PStart, v
	if x != nil {
		if f, ok := x.Floor(v); ok && f.V >= s.VStart && l.SpanAtP(f.P) == span {
			p, from = f.P, f.V
		}
	}
	if q := l.SkipTo(p); q != p {
		return q, v, l.SpanAtP(q)
	}
	return p, from, span
}

// SkipTo is the first physical offset at or behind p where a live batch may
// begin: it jumps over the rest of closed spans whose live end is known
// (hazard M7), so that dead zones are not read.
func (l *Log) SkipTo(p int64) int64 {
	i := l.SpanAtP(p)
	if i < 0 {
		if len(l.Spans) == 0 {
			return p
		}
		i, p = 0, l.Spans[0].PStart
	}
	for ; i+1 < len(l.Spans) && l.Spans[i].PEnd >= 0 && p >= l.Spans[i].PEnd; i++ {
		p = l.Spans[i+1].PStart
	}
	return p
}

// TimeIndex is a sparse running maximum of the timestamps (ms) of the live
// batches of one span, or of consecutive ones (hazard M8). A running maximum
// is monotone, so look-ups are exact up to its sparseness. Dead batches never
// enter it; when a cut makes live ones dead, DropFrom the first of them, or
// begin anew. Not safe for concurrent use; see NewTimeIndex.
type TimeIndex struct {
	e   []timeEntry
	max int
	p   int64 // last batch added
	any bool
}

// timeEntry: the batches from p up to the next entry's raise the maximum to
// ts, reached by the one at last.
type timeEntry struct{ p, last, ts int64 }

// NewTimeIndex holds at most limit entries (24 bytes each; at least 2).
func NewTimeIndex(limit int) *TimeIndex { return &TimeIndex{max: max(limit, 2)} }

// Add takes the next live batch: physical offsets must rise. False, and
// nothing done, when they do not.
func (x *TimeIndex) Add(p, maxTs int64) bool {
	if x.any && p <= x.p {
		return false
	}
	x.p, x.any = p, true
	n := len(x.e)
	if n > 0 && maxTs <= x.e[n-1].ts {
		return true
	}
	if n >= max(x.max, 2) {
		// Merge pairs: first p, later maximum; look-ups still begin early enough.
		out := x.e[:0]
		for i := 0; i < n; i += 2 {
			m := x.e[i]
			if i+1 < n {
				m.last, m.ts = x.e[i+1].last, x.e[i+1].ts
			}
			out = append(out, m)
		}
		x.e = out
	}
	x.e = append(x.e, timeEntry{p: p, last: p, ts: maxTs})
	return true
}

// FirstAtOrAbove is the physical offset to search from for the first record
// with a timestamp at or above ts: no live batch before it holds one, and one
// at or behind it does. False: none of the batches added holds one.
func (x *TimeIndex) FirstAtOrAbove(ts int64) (p int64, ok bool) {
	i := sort.Search(len(x.e), func(i int) bool { return x.e[i].ts >= ts })
	if i == len(x.e) {
		return -1, false
	}
	return x.e[i].p, true
}

// Max is the largest timestamp added and the physical offset of the first
// batch that holds it; false when nothing was added.
func (x *TimeIndex) Max() (ts, p int64, ok bool) {
	if len(x.e) == 0 {
		return -1, -1, false
	}
	m := x.e[len(x.e)-1]
	return m.ts, m.last, true
}

// End is the physical offset of the last batch added, -1 for none.
func (x *TimeIndex) End() int64 {
	if !x.any {
		return -1
	}
	return x.p
}

// DropFrom forgets the batches at physical offset p and behind (a cut or a
// lost tail) and returns the offset from which live batches must be added
// again: p, or earlier when an entry covers batches on both sides.
func (x *TimeIndex) DropFrom(p int64) int64 {
	if !x.any || x.p < p {
		return p
	}
	n := sort.Search(len(x.e), func(i int) bool { return x.e[i].p >= p })
	x.e = x.e[:n]
	from := p
	if n > 0 && x.e[n-1].last >= p {
		from = x.e[n-1].p
		x.e = x.e[:n-1]
	}
	// p-1 and not the last batch's own offset, which is not kept: Add must
	// take any batch from here on.
	x.p, x.any = from-1, len(x.e) > 0
	return from
}
