package main

import (
	"encoding/json"
	"fmt"
	"os"
	"time"

	"github.com/lockstep-kafka/lockstep/bench/measure"
)

// Measured is what the model rests on and is checked against.
type Measured struct {
	Started time.Time       `json:"started"`
	Machine measure.Machine `json:"machine"`
	Load    float64         `json:"load"` // average of the minute before it began
	Commit  string          `json:"commit"`
	Note    string          `json:"note,omitempty"`
	Parts   Parts           `json:"parts"`
	Points  []Point         `json:"points"`
}

// Parts are constants: bytes exactly, times as the least of several tries.
type Parts struct {
	CheckpointBytes     float64 `json:"checkpoint_bytes"`      // one record in a batch, key and value
	RecordBytes         float64 `json:"record_bytes"`          // a mirrored partition's record, one generation
	InstanceBytes       float64 `json:"instance_bytes"`        // an instance's record
	BatchBytes          float64 `json:"batch_bytes"`           // header of a ledger batch
	MarkerBytes         float64 `json:"marker_bytes"`          // a transaction's commit marker in the log
	MetadataBytes       float64 `json:"metadata_bytes"`        // of one partition in an answer, 3 replicas
	FetchAskBytes       float64 `json:"fetch_ask_bytes"`       // of one partition in a Fetch
	FetchAnswerBytes    float64 `json:"fetch_answer_bytes"`    // of one partition without records in its answer
	CheckpointDecodeNs  float64 `json:"checkpoint_decode_ns"`  // per checkpoint read from the ledger
	CheckpointDecodeAlc float64 `json:"checkpoint_decode_alc"` // allocations
	CheckpointEncodeNs  float64 `json:"checkpoint_encode_ns"`
	RecordDecodeNs      float64 `json:"record_decode_ns"`
	ViewApplyNs         float64 `json:"view_apply_ns"` // per checkpoint: read, decoded and shown by a running View
	ViewBytes           float64 `json:"view_bytes"`    // heap of a View per partition
	ScanNs              []Scan  `json:"scan_ns"`       // View.All of a View with so many partitions
}

// Scan is the cost of one look at all partitions of a View.
type Scan struct {
	Partitions int     `json:"partitions"`
	AllNs      float64 `json:"all_ns"`
}

// Point is one size at which a whole Lockstep ran, between two fake clusters.
type Point struct {
	Partitions int     `json:"partitions"`
	Topics     int     `json:"topics"`
	Brokers    int     `json:"brokers"` // of each cluster
	Load       float64 `json:"load"`
	StartS     float64 `json:"start_s"` // until all partitions had mirrored a batch
	Start      Phase   `json:"start"`   // all of that
	Idle       Phase   `json:"idle"`    // nothing is written on the source
	Busy       Phase   `json:"busy"`    // one record for each partition every few seconds
	BusyWrites int64   `json:"busy_writes"`
	// BusyCPU is CPU time of the busy phase, in s, by what it was for.
	BusyCPU    map[string]float64 `json:"busy_cpu_s"`
	HeapBytes  float64            `json:"heap_bytes"` // after a collection
	Goroutines float64            `json:"goroutines"`
	Join       Join               `json:"join"`
}

// Join is what it took until a second instance had its half, while nothing was
// written on the source.
type Join struct {
	Seconds  float64 `json:"seconds"`
	Txns     int64   `json:"txns"`     // ledger transactions of both
	Acquired int64   `json:"acquired"` // ledger partitions
}

// Phase is what was counted in some time.
type Phase struct {
	Seconds float64            `json:"seconds"`
	CPU     float64            `json:"cpu_s"` // of the Lockstep process
	Source  map[string]Traffic `json:"source"`
	Dest    map[string]Traffic `json:"destination"`
}

func load(path string) (*Measured, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("measured points (make them with -measure): %w", err)
	}
	m := &Measured{}
	if err := json.Unmarshal(b, m); err != nil {
		return nil, fmt.Errorf("measured points %s: %w", path, err)
	}
	return m, nil
}

func (m *Measured) save(path string) error {
	b, err := json.MarshalIndent(m, "", " ")
	if err != nil {
		return fmt.Errorf("measured points: %w", err)
	}
	if err := os.WriteFile(path, append(b, '\n'), 0o644); err != nil {
		return fmt.Errorf("measured points: %w", err)
	}
	return nil
}
