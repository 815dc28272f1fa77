package verify

import (
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// Options of [Run].
type Options struct {
	// Source and Destination are options of a client of each side: seed brokers,
	// security. The destination is a Lockstep's listener.
	Source, Destination []kgo.Opt
	// Topics to compare, by name. Empty: all of the source that Match selects.
	Topics []string
	// Match selects topics of the source; internal is what the source says of
	// one. nil: all that are not internal.
	Match func(topic string, internal bool) bool

	// CaughtUp: compare up to the source's last stable offset, so that a
	// destination that lags differs. Else up to where both are.
	CaughtUp bool
	// Rate bounds the bytes read in a second, both sides together. 0: no bound.
	Rate int
	// Parallel is how many partitions are compared at a time. 0: 4.
	Parallel int
	// Resume is a file in which it is kept what was compared: a later run goes on
	// from there. Empty: none.
	Resume string
	// MaxKeys bounds the keys of a compacted partition that are in memory at a
	// time; if more are needed, it is read several times. 0: 1,000,000.
	MaxKeys int
	// Patience is how long a partition is tried again when it can't be read. 0: 30 s.
	Patience time.Duration
	// Progress is told now and then how far it is; never two calls at a time.
	Progress func(Progress)
}

// Progress is how far a run is.
type Progress struct {
	Done, Total int64 // offsets
	Bytes       int64 // read from both sides
}

const (
	defaultParallel = 4
	defaultMaxKeys  = 1_000_000
	defaultPatience = 30 * time.Second
)

func (o *Options) check() error {
	for _, x := range []struct {
		what string
		n    int
	}{{"rate", o.Rate}, {"parallel", o.Parallel}, {"max keys", o.MaxKeys}, {"patience", int(o.Patience)}} {
		if x.n < 0 {
			return fmt.Errorf("%s may not be negative", x.what)
		}
	}
	if o.Parallel == 0 {
		o.Parallel = defaultParallel
	}
	if o.MaxKeys == 0 {
		o.MaxKeys = defaultMaxKeys
	}
	if o.Patience == 0 {
		o.Patience = defaultPatience
	}
	if o.Match == nil {
		o.Match = func(_ string, internal bool) bool { return !internal }
	}
	return nil
}

// Report is the outcome of a run.
type Report struct {
	Outcome     Outcome           `json:"outcome"`
	Source      string            `json:"source_cluster"`
	Destination string            `json:"destination_cluster"`
	Records     int64             `json:"records"` // compared and found equal
	Bytes       int64             `json:"bytes"`   // read from both sides
	Seconds     float64           `json:"seconds"`
	Partitions  []PartitionReport `json:"partitions"`
}

// Outcome of a run or of a partition.
type Outcome string

// The outcomes. Of a run: Different if one partition is, else Failed if one
// is.
const (
	Equal     Outcome = "equal"
	Different Outcome = "different"
	Failed    Outcome = "not compared"
)

// PartitionReport is the outcome of one partition.
type PartitionReport struct {
	Topic            string  `json:"topic"`
	Partition        int32   `json:"partition"`
	Outcome          Outcome `json:"outcome"`
	SourceStart      int64   `json:"source_start"`
	DestinationStart int64   `json:"destination_start"`
	SourceEnd        int64   `json:"source_end"` // last stable offset
	DestinationEnd   int64   `json:"destination_end"`
	From             int64   `json:"from"` // compared are the records in [From, To)
	To               int64   `json:"to"`
	Resumed          bool    `json:"resumed,omitempty"` // what lies below From was compared by an earlier run
	Records          int64   `json:"records"`
	ByBatch          int64   `json:"batches_compared_as_a_whole"`
	ByRecord         int64   `json:"batches_compared_by_records"` // of the destination
	Epochs           int     `json:"epochs"`
	// Compacted: compared by the last value of each key.
	Compacted bool  `json:"compacted,omitempty"`
	OneSided  int64 `json:"one_sided,omitempty"` // records that one cleaner has removed already and the other not yet
	// DestinationAborted are batches of transactions aborted on the destination:
	// of what a mirror wrote there are none.
	DestinationAborted int64       `json:"destination_aborted,omitempty"`
	Notes              []string    `json:"notes,omitempty"`
	Difference         *Difference `json:"difference,omitempty"`
	Error              string      `json:"error,omitempty"`
}

// Kind of a difference.
type Kind string

// The kinds of difference.
const (
	KindTopic      Kind = "topic"          // missing on the destination
	KindPartition  Kind = "partition"      // on one side only
	KindStart      Kind = "start"          // the destination's log begins behind a record of the source
	KindMissing    Kind = "missing record" // on the destination
	KindExtra      Kind = "extra record"   // on the destination
	KindEpoch      Kind = "leader epoch"
	KindTimestamp  Kind = "timestamp"
	KindKey        Kind = "key"
	KindValue      Kind = "value"
	KindHeaders    Kind = "headers"
	KindCRC        Kind = "crc"         // a batch that consumers would refuse
	KindEpochChain Kind = "epoch chain" // OffsetForLeaderEpoch
	KindStale      Kind = "stale value" // compacted: the last record of a key is on one side only
)

// Difference is the first one of a partition.
type Difference struct {
	Kind        Kind    `json:"kind"`
	Topic       string  `json:"topic"`
	Partition   int32   `json:"partition"`
	Offset      int64   `json:"offset"`
	Source      *Record `json:"source"` // nil: nothing there
	Destination *Record `json:"destination"`
	Detail      string  `json:"detail"`
}

// String is for a person.
func (d *Difference) String() string {
	switch d.Kind {
	case KindTopic:
		return fmt.Sprintf("topic %s: %s", d.Topic, d.Detail)
	case KindPartition:
		return fmt.Sprintf("%s, partition %d: %s", d.Topic, d.Partition, d.Detail)
	}
	s := fmt.Sprintf("%s, partition %d, offset %d: %s: %s", d.Topic, d.Partition, d.Offset, d.Kind, d.Detail)
	if d.Source != nil || d.Destination != nil {
		s += fmt.Sprintf("\n  source:      %s\n  destination: %s", d.Source, d.Destination)
	}
	return s
}
