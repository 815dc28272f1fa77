package ledger

import (
	"encoding/hex"
	"fmt"
	"slices"
	"time"

	"github.com/lockstep-kafka/lockstep/epoch"
)

// Topic is the ledger's topic in the destination cluster.
const Topic = "__mirror_state"

// Partitions is how many partitions the topic has. The key decides the
// partition, so the number never changes ([EnsureTopic] and [View] check it).
const Partitions = 50

// State of a mirror partition (facts §1).
type State = epoch.State

// ID is a Kafka topic id.
type ID [16]byte

// IsZero tells whether the id is absent: clusters older than 2.8 have none.
func (id ID) IsZero() bool { return id == ID{} }

func (id ID) String() string { return hex.EncodeToString(id[:]) }

// MarshalText writes 32 hex digits, nothing for the zero id.
func (id ID) MarshalText() ([]byte, error) {
	if id.IsZero() {
		return []byte{}, nil
	}
	return []byte(id.String()), nil
}

// UnmarshalText reads what MarshalText wrote.
func (id *ID) UnmarshalText(b []byte) error {
	if len(b) == 0 {
		*id = ID{}
		return nil
	}
	if len(b) != 2*len(id) {
		return fmt.Errorf("topic id has %d characters, want %d hex digits", len(b), 2*len(id))
	}
	_, err := hex.Decode(id[:], b)
	return err
}

// Record is what the ledger knows about one mirror partition. Records that
// come from a [View] are shared: change a [Record.Next], never the original.
type Record struct {
	V         int // format read; Encode always writes the newest, [Kind.Format]
	Mirror    string
	Topic     string
	Partition int32

	State    State
	Desired  State // where the operator wants it
	Previous State // before FAILED: where a retry goes back to (F13)
	// StateEpoch counts the writes of this record, from 1. A write carries
	// the epoch of the record it replaces plus one.
	StateEpoch int64
	Error      string // why FAILED; while STOPPED, why the newest start was refused
	Retries    int    // tries since the last success

	Log epoch.Log // start, spans, chain, bump, maxEpoch
	// Shadow is a log that is built beside it on a compacted topic (H15); nil:
	// none. The owner writes to it, readers see Log.
	Shadow *epoch.Shadow
	// Lacks: values of keys may be missing that the source has (epoch.Book.Lacks).
	Lacks bool
	// Cleaner is what the destination topic's own configs were that are changed
	// to keep the cleaner off while there is a shadow ("": not set); they are
	// put back before it is forgotten. nil: not changed.
	Cleaner map[string]string
	// CopyFrom is when the copy from the source's log start was begun that a
	// compacted topic shows or builds; zero: not known (M26).
	CopyFrom time.Time
	// Plain: the topic was not compacted for a while (epoch.Book.Plain), or nobody
	// noted that it was (formats 1 and 2).
	Plain bool

	Lineage       string // random id of one unbroken history of the log (H7)
	TopicID       ID     // of the topic in this (the destination) cluster (M22)
	SourceTopicID ID     // zero when the source has no topic ids
	SourceCluster string // cluster id
	Path          []string
	Pairs         []Pair

	DiscardLocal bool // start was told to drop local records

	CommandSeq int64 // of the newest [Command] taken in
	// Past and SourcePast are earlier lineages of this log and of the source's,
	// and how far each still is theirs; SourceLineage is the source's, "" when
	// the source had no record when it was aligned with.
	Past          []epoch.Past
	SourceLineage string
	SourcePast    []epoch.Past
	Left          *Left // what the newest stop left behind
	Cut           *Cut  // what the newest start took out; nil: none yet, or an older version's
	// CutAt is the state epoch of the newest write that cut the log: what a
	// checkpoint of before says was shown, may be gone.
	CutAt int64
	// Checked is, while STOPPED, the destination's leader epoch up to which the
	// native span was found whole (H4, F5): under a later one clients are
	// answered retriable errors until the owner has looked.
	Checked int32
}

// Cut is what a start took out of the log shown here: offsets from From to
// before End, none if they are the same.
type Cut struct {
	From int64 `json:"from"`
	End  int64 `json:"end"`
}

// Left is what a stop leaves behind: up to where the source was mirrored, and
// how far it went as far as is known.
type Left struct {
	Offset    int64     `json:"offset"`       // LMO: the first source offset that is not here
	Epoch     int32     `json:"epoch"`        // of the last mirrored batch, -1: none
	Timestamp int64     `json:"timestamp"`    // largest one of the last mirrored batch, ms; -1: not known
	SourceEnd int64     `json:"sourceEnd"`    // the source's last known end, -1: not known
	At        time.Time `json:"at,omitempty"` // when stopped
}

// Pair is what a finished mirroring left behind: up to where this log and that
// of another cluster are the same. It counts only while cluster id, topic id
// and lineage are still the same (H7).
type Pair struct {
	Cluster string `json:"cluster"`
	TopicID ID     `json:"topicId"`
	Lineage string `json:"lineage"`
	LME     int32  `json:"lme"` // last mirrored leader epoch, -1: nothing
	LMO     int64  `json:"lmo"` // the position at stop, -1: nothing
}

// Work is the log that the owner writes to: the shadow, when there is one.
func (r *Record) Work() *epoch.Log {
	if r.Shadow != nil {
		return &r.Shadow.Log
	}
	return &r.Log
}

// Key is the record's key in the ledger topic.
func (r *Record) Key() string { return RecordKey(r.Topic, r.Partition) }

// Next is a copy that shares nothing changeable with r, with the state epoch
// of the write that replaces r.
func (r *Record) Next() *Record {
	n := *r
	n.StateEpoch++
	n.Path = slices.Clone(r.Path)
	n.Pairs = slices.Clone(r.Pairs)
	n.Past = slices.Clone(r.Past)
	n.SourcePast = slices.Clone(r.SourcePast)
	if r.Left != nil {
		l := *r.Left
		n.Left = &l
	}
	if r.Cut != nil {
		c := *r.Cut
		n.Cut = &c
	}
	n.Log.Spans = slices.Clone(r.Log.Spans)
	n.Log.Chain = slices.Clone(r.Log.Chain)
	if r.Shadow != nil {
		s := *r.Shadow
		s.Log.Spans, s.Log.Chain = slices.Clone(s.Log.Spans), slices.Clone(s.Log.Chain)
		n.Shadow = &s
	}
	return &n
}
