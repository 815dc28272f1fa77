package diverged

import (
	"cmp"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/lockstep-kafka/lockstep/epoch"
	"github.com/lockstep-kafka/lockstep/protocol"
)

// Origin says how a diverged record came here.
type Origin string

// The origins.
const (
	Mirrored Origin = "mirrored" // from the source
	Native   Origin = "native"   // written here by a client, while STOPPED
)

// Dead is a dead batch and the offsets it had.
type Dead struct {
	P       int64 // physical base offset
	V, VEnd int64 // virtual range, by its header
	Epoch   int32 // as it was shown
	Origin  Origin
	Records int32
	Aborted bool // of a transaction that was aborted

	renumbered, logAppend bool
	pid                   int64 // of a transactional one, else -1
}

// Scan takes a partition's physical batches in order and sorts out the dead
// ones. It keeps their headers only. Not safe for concurrent use.
type Scan struct {
	log     *epoch.Log
	lenient bool
	walker  *epoch.Walker

	live    epoch.Chain // of the live batches met
	liveEnd int64
	dead    []Dead
	zone    *zone
	unknown int // unstamped batches whose offsets nobody can tell

	open map[int64][]int // transactional dead batches not decided yet, by producer id
	err  error
}

// zone is a stretch that was native and is not in the ledger any more.
type zone struct {
	start int64 // physical
	o     epoch.Opening
}

// NewScan begins at a partition's physical log start. compacted: the cleaner
// may have removed batches, so gaps mean nothing.
func NewScan(l *epoch.Log, compacted bool) *Scan {
	return &Scan{log: l, lenient: compacted, open: map[int64][]int{}}
}

// header is what the rules need of a batch.
func header(b protocol.Batch) epoch.Batch {
	count := int64(b.LastOffsetDelta()) + 1
	h := epoch.Batch{P: b.BaseOffset(), Count: count, PEpoch: b.PartitionLeaderEpoch(), VCount: count, Control: b.IsControl()}
	if s, ok := b.ReadStamp(); ok {
		h.Stamped, h.V, h.Hole, h.Flags, h.Gen, h.Epoch = true, s.V, s.Hole, s.Flags, s.Gen, s.Epoch
		if s.Flags&epoch.FlagRenumbered != 0 {
			h.VCount, _ = protocol.VirtualCount(b) // 0: by its header then
		}
	}
	return h
}

// Take takes the next batch.
func (s *Scan) Take(b protocol.Batch) {
	h := header(b)
	if h.Control && !h.Stamped {
		s.marker(b)
		return
	}
	pl, v := s.log.Classify(h)
	if v == epoch.Live {
		if s.walker == nil {
			s.walker = s.log.Walk(pl.V, false)
			if s.lenient {
				s.walker.Lenient(epoch.MaxVirtualOffset)
			}
		}
		pl, v = s.walker.Next(h)
	}
	switch v {
	case epoch.Live, epoch.Below:
		s.zone = nil
		s.live = s.live.Assign(pl.Epoch, pl.V)
		s.liveEnd = max(s.liveEnd, pl.VEnd)
	case epoch.Hidden:
		s.opening(b)
	case epoch.Invalid:
		s.unknown++
	default:
		s.deadBatch(b, h, pl)
	}
}

// opening remembers where a native stretch began.
func (s *Scan) opening(b protocol.Batch) {
	err := protocol.Records(b, func(r protocol.RecordView) bool {
		var o epoch.Opening
		if json.Unmarshal(r.Value, &o) == nil && o.V == 1 {
			s.zone = &zone{start: b.NextOffset(), o: o}
		}
		return false
	})
	s.err = cmp.Or(s.err, err)
}

func (s *Scan) deadBatch(b protocol.Batch, h epoch.Batch, pl epoch.Placed) {
	d := Dead{P: h.P, Records: b.NumRecords(), pid: -1}
	switch {
	case h.Stamped && h.Flags&epoch.FlagHidden != 0:
		s.opening(b)
		return
	case h.Stamped:
		if s.zone != nil && newer(h.Gen, s.zone.o.Gen) {
			s.zone = nil // mirroring began anew
		}
		d.V, d.VEnd, d.Epoch, d.Origin = h.V, pl.VEnd, h.Epoch, Mirrored
		d.renumbered, d.logAppend = h.Flags&epoch.FlagRenumbered != 0, h.Flags&epoch.FlagLogAppend != 0
	case pl.Span >= 0 && s.log.Spans[pl.Span].Kind == epoch.Native && pl.V >= 0:
		d.V, d.VEnd, d.Epoch, d.Origin = pl.V, pl.VEnd, pl.Epoch, Native
	case s.zone != nil && h.P >= s.zone.start && !s.behind(h.P):
		d.V = h.P - s.zone.start + s.zone.o.LMO
		d.VEnd, d.Epoch, d.Origin = d.V+h.Count, h.PEpoch+s.zone.o.Bump, Native
	default:
		s.unknown++
		return
	}
	if d.Origin == Native && b.IsTransactional() {
		d.pid = b.ProducerID()
		s.open[d.pid] = append(s.open[d.pid], len(s.dead))
	}
	s.dead = append(s.dead, d)
}

// behind tells whether a span of the ledger begins between the zone's start
// and p: then p is not of the zone.
func (s *Scan) behind(p int64) bool {
	i := s.log.SpanAtP(p)
	return i >= 0 && s.log.Spans[i].PStart > s.zone.start
}

// newer tells whether generation a was given out after b; numbers wrap.
func newer(a, b int16) bool {
	d := (int32(a) - int32(b)) & 0x7fff
	return d > 0 && d < 0x4000
}

// marker decides the dead batches of a transaction (KIP-98: the control
// record's key is version and type, both int16; 0 is abort).
func (s *Scan) marker(b protocol.Batch) {
	at := s.open[b.ProducerID()]
	if len(at) == 0 {
		return
	}
	aborted := false
	err := protocol.Records(b, func(r protocol.RecordView) bool {
		aborted = len(r.Key) >= 4 && binary.BigEndian.Uint16(r.Key[2:]) == 0
		return false
	})
	s.err = cmp.Or(s.err, err)
	for _, i := range at {
		s.dead[i].Aborted = aborted
	}
	delete(s.open, b.ProducerID())
}

// Found is what a scan has found.
type Found struct {
	below   epoch.Chain // the ledger's, for what lies below the first live batch met
	live    epoch.Chain
	liveEnd int64
	dead    []Dead
	// Unknown are unstamped batches in a mirrored stretch: direct writes past
	// the proxy, or native ones whose span-opening batch is gone.
	Unknown int
}

// End ends the scan. Batches that hold nothing but copies of live records are
// left out.
func (s *Scan) End() (*Found, error) {
	if s.err != nil {
		return nil, fmt.Errorf("a batch can't be read: %w", s.err)
	}
	f := &Found{below: s.log.Chain, live: s.live, liveEnd: s.liveEnd, Unknown: s.unknown}
	for _, d := range s.dead {
		if !f.copied(d.Epoch, d.V, d.VEnd) {
			f.dead = append(f.dead, d)
		}
	}
	return f, nil
}

// copied tells whether the live log has all of [v, vEnd) under epoch e: then it
// is the same records, as in Kafka offset and leader epoch name a record.
func (f *Found) copied(e int32, v, vEnd int64) bool {
	at := func(v int64) int32 {
		if len(f.live) == 0 || v < f.live[0].Start {
			return f.below.At(v)
		}
		return f.live.At(v)
	}
	return vEnd <= f.liveEnd && at(v) == e && at(vEnd-1) == e
}

// Range is a stretch of diverged records of one leader epoch.
type Range struct {
	First   int64  `json:"first_offset"`
	Last    int64  `json:"last_offset"`
	Epoch   int32  `json:"epoch"`
	Origin  Origin `json:"origin"`
	Records int64  `json:"records"`
	MinTime int64  `json:"min_timestamp"` // ms
	MaxTime int64  `json:"max_timestamp"`
}

// seen are the records met already, by epoch: the same one may lie there in
// several generations.
type seen map[int32]map[int64]bool

func (s seen) first(e int32, v int64) bool {
	if s[e] == nil {
		s[e] = map[int64]bool{}
	}
	if s[e][v] {
		return false
	}
	s[e][v] = true
	return true
}

// rangesOf sorts records into ranges: holes within an epoch don't part them.
func rangesOf(recs []point) []Range {
	slices.SortFunc(recs, func(a, b point) int { return cmp.Or(cmp.Compare(a.epoch, b.epoch), cmp.Compare(a.v, b.v)) })
	var out []Range
	for _, r := range recs {
		if n := len(out); n > 0 && out[n-1].Epoch == r.epoch && out[n-1].Origin == r.origin {
			x := &out[n-1]
			x.Last, x.Records, x.MinTime, x.MaxTime = r.v, x.Records+1, min(x.MinTime, r.time), max(x.MaxTime, r.time)
			continue
		}
		out = append(out, Range{First: r.v, Last: r.v, Epoch: r.epoch, Origin: r.origin, Records: 1, MinTime: r.time, MaxTime: r.time})
	}
	return out
}

type point struct {
	v, time int64
	epoch   int32
	origin  Origin
}
