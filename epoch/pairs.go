package epoch

import (
	"fmt"
	"slices"
)

// Identity names one unbroken history of a partition's log (hazard H7).
// Cluster, topic id and lineage are opaque: only equality counts, and the
// order of cluster ids in CheckLoop. A cluster without topic ids has TopicID
// "". Lineage is "" for a log that Lockstep never emptied: a record made for a
// topic that already had records keeps it, so that pairs written while the
// topic had no record yet stay valid.
type Identity struct {
	Cluster string
	TopicID string
	Lineage string
	// Before lists earlier lineages of this log and how far it still is
	// theirs. A log that was cut and then filled from a third cluster gets a
	// new lineage (Renew), and pairs that name the old one count up to there.
	Before []Past
}

// Past is an earlier lineage: below offset Below this log is still its.
type Past struct {
	Lineage string `json:"lineage"`
	Below   int64  `json:"below"`
}

// maxPast bounds Before: pairs that name a lineage further back count as none.
const maxPast = 16

// Renew is id with a new lineage after a cut to t; what lay below t is still
// of the older lineages.
func (id Identity) Renew(lineage string, t int64) Identity {
	n := id
	n.Lineage = lineage
	n.Before = lowerPast(append(slices.Clone(id.Before), Past{id.Lineage, t}), t)
	n.Before = n.Before[max(0, len(n.Before)-maxPast):]
	return n
}

// lowerPast is past after a cut to t.
func lowerPast(past []Past, t int64) []Past {
	var out []Past
	for _, p := range past {
		if p.Below = min(p.Below, t); p.Below > 0 {
			out = append(out, p)
		}
	}
	return out
}

// Pair says up to where a log is the same as that of another cluster: records
// with epoch <= LME and offset < LMO (facts.md E3, E4). Cluster, TopicID and
// Lineage name the other log as it was then. It is proven, so it changes only
// with a cut, in the same ledger write, or in a STOPPING that comes after phase
// one's cut (hazard F1).
type Pair struct {
	Cluster string
	TopicID string
	Lineage string
	LME     int32 // last mirrored leader epoch, -1: nothing
	LMO     int64 // position at stop, -1: nothing
}

// NoPair is (-1, -1): nothing is shared.
func NoPair() Pair { return Pair{LME: -1, LMO: -1} }

// None tells that the pair proves nothing.
func (p Pair) None() bool { return p.LME < 0 || p.LMO < 0 }

// String is "(LME, LMO)".
func (p Pair) String() string { return fmt.Sprintf("(%d, %d)", p.LME, p.LMO) }

// For is what the pair proves about the log that is id now: itself when
// cluster, topic id and lineage are equal, lowered when the lineage is an
// earlier one of id's, NoPair when not (hazard H7).
func (p Pair) For(id Identity) Pair {
	if p.None() || p.Cluster != id.Cluster || p.TopicID != id.TopicID {
		return NoPair()
	}
	if p.Lineage == id.Lineage {
		return p
	}
	for _, b := range id.Before {
		if b.Lineage == p.Lineage {
			p.LMO = min(p.LMO, b.Below)
			return p
		}
	}
	return NoPair()
}

// below tells whether p proves less than q.
func (p Pair) below(q Pair) bool {
	if p.None() || q.None() {
		return p.None() && !q.None()
	}
	return p.LMO < q.LMO || p.LMO == q.LMO && p.LME < q.LME
}

// ValidPair is the largest of pairs that counts for id, NoPair for none.
func ValidPair(pairs []Pair, id Identity) Pair {
	best := NoPair()
	for _, p := range pairs {
		if v := p.For(id); best.below(v) {
			best = v
		}
	}
	return best
}

// PairHolder says in whose ledger a pair stands.
type PairHolder string

// The holders.
const (
	HeldByNone   PairHolder = "none"
	HeldBySource PairHolder = "source" // the source mirrored us before
	HeldByUs     PairHolder = "own"    // we mirrored this source before (M4)
)

// ChoosePair is T1 of phase one: the larger of the source's valid pair for us
// and our own valid pair for this source. Both are proven common prefixes
// (hazard M4).
func ChoosePair(sources []Pair, us Identity, own []Pair, source Identity) (Pair, PairHolder) {
	s, o := ValidPair(sources, us), ValidPair(own, source)
	switch {
	case s.None() && o.None():
		return NoPair(), HeldByNone
	case s.below(o):
		return o, HeldByUs
	}
	return s, HeldBySource
}

// LowerPairs is pairs after a cut to t: every pair above it proves
// (epoch at t-1, t) only, and nothing when the log was emptied. chain is the
// joined chain of the log that is cut. Goes into the ledger write of the cut
// (hazards H7, F1).
func LowerPairs(pairs []Pair, chain Chain, t int64, emptied bool) []Pair {
	out := slices.Clone(pairs)
	for i := range out {
		p := &out[i]
		switch {
		case p.None():
		case emptied:
			p.LME, p.LMO = -1, -1
		case t < p.LMO:
			if p.LME, p.LMO = min(p.LME, chain.At(t-1)), t; p.LME < 0 || t <= 0 {
				p.LME, p.LMO = -1, -1
			}
		}
	}
	return out
}

// SetPair is pairs with p in place of the one for the same cluster, topic id
// and lineage; those of that cluster's former topics and lineages go, they
// can't become valid again but through Before, where p proves more.
func SetPair(pairs []Pair, p Pair) []Pair {
	out := slices.DeleteFunc(slices.Clone(pairs), func(q Pair) bool { return q.Cluster == p.Cluster })
	return append(out, p)
}

// Reading says how the look at another cluster's ledger record ended.
type Reading uint8

// The readings; the zero value is none of them.
const (
	Absent     Reading = iota + 1 // a full, authorised, read_committed read to the ledger's end found none
	Present                       // there is a record
	Unreadable                    // anything else: ACL, partition offline, time-out. Never (-1, -1) (hazard M5)
	Garbled                       // a record of a newer version, or not understood: an operator must look
)

// SourceRecord is the source's ledger record of the partition as read.
type SourceRecord struct {
	Reading Reading
	Err     string // Unreadable, Garbled: what went wrong, with the key
	Bare    bool   // Unreadable: the source is a mirror, reached past its proxy (H18)

	State   State
	Before  bool     // phase one's cut of its present mirroring is not made yet
	From    string   // cluster id it mirrors from
	Path    []string // cluster ids upstream of it, From first
	Lineage string
	Past    []Past
	TopicID string // its own topic id, as the record has it
	// StoppedAt is when it stopped mirroring, in ms; 0: not known, or it has not.
	StoppedAt int64
	Pairs     []Pair
}

// Identity is the source log's identity: cluster and topicID as its metadata
// say now, the lineage from the record. A log without a record has lineage "".
func (s SourceRecord) Identity(cluster, topicID string) Identity {
	id := Identity{Cluster: cluster, TopicID: topicID}
	if s.Reading == Present && s.TopicID == topicID {
		id.Lineage, id.Before = s.Lineage, s.Past
	}
	return id
}

// PairsNow is what its pairs are worth: none when its topic was made anew
// since (H7 iii).
func (s SourceRecord) PairsNow(topicID string) []Pair {
	if s.Reading != Present || s.TopicID != topicID {
		return nil
	}
	return s.Pairs
}

// PathOf is our path while we mirror this source.
func (s SourceRecord) PathOf(cluster string) []string {
	path := []string{cluster}
	if s.Reading == Present && s.State.Active() {
		path = append(path, s.Path...)
	}
	return path
}

// LoopVerdict is the outcome of the loop check.
type LoopVerdict uint8

// The verdicts; the zero value is none of them.
const (
	LoopNone LoopVerdict = iota + 1
	LoopWait             // the other side is about to decide: look again
	LoopFail             // FAILED "mirror loop"
)

// CheckLoop tells whether mirroring this source closes a loop (hazard M18). It
// must be asked after our LOG_ALIGNMENT is in the ledger, so that of two that
// start at once at least one sees the other, and again now and then while
// mirroring, as paths grow upstream. us is our cluster id, before: phase one's
// cut is not made.
//
// A source that is FAILED counts as mirroring (F13). Whoever has cut goes on
// and the newcomer fails; among equals the largest cluster id of the loop
// does, and the others wait until it has. A FAILED source of that id which has
// not cut may be mirrored: before it cuts it must ask again, and finds us.
func CheckLoop(us string, before bool, cluster string, s SourceRecord) LoopVerdict {
	if s.Reading != Present || !s.State.Active() {
		return LoopNone
	}
	if s.State == StateStopping {
		return LoopWait
	}
	i := slices.Index(s.Path, us)
	if s.From != us && i < 0 {
		return LoopNone
	}
	largest := max(us, cluster)
	for j := 0; j < i; j++ {
		largest = max(largest, s.Path[j])
	}
	switch {
	case before && !s.Before, largest == us && before == s.Before:
		return LoopFail
	case !before && s.Before, !before, s.State == StateFailed && largest == cluster:
		return LoopNone
	case s.State == StateFailed:
		return LoopFail
	}
	return LoopWait
}
