package ledger

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/lockstep-kafka/lockstep/epoch"
)

// ErrNewer says that the value was written by a newer program. It is shown as broken,
// never read in part: an older program can't know what the rest means.
var ErrNewer = errors.New("written in a newer format; run the same version of lockstep everywhere")

// recordJSON is a [Record] as it stands in the topic.
type recordJSON struct {
	V         int    `json:"v"`
	Mirror    string `json:"mirror"`
	Topic     string `json:"topic"`
	Partition int32  `json:"partition"`

	State      State  `json:"state"`
	Desired    State  `json:"desired,omitempty"`
	Previous   State  `json:"previous,omitempty"`
	StateEpoch int64  `json:"stateEpoch"`
	Error      string `json:"error,omitempty"`
	Retries    int    `json:"retries,omitempty"`

	epoch.Log               // inlined; a golden test holds its fields to the format number
	Shadow    *epoch.Shadow `json:"shadow,omitempty"`

	Lacks    bool              `json:"lacks,omitempty"`
	Cleaner  map[string]string `json:"cleaner,omitempty"`
	CopyFrom time.Time         `json:"copyFrom,omitzero"`
	Plain    bool              `json:"plain,omitempty"`

	Lineage       string   `json:"lineage"`
	TopicID       ID       `json:"topicId"`
	SourceTopicID ID       `json:"sourceTopicId"`
	SourceCluster string   `json:"sourceCluster"`
	Path          []string `json:"path,omitempty"`
	Pairs         []Pair   `json:"pairs,omitempty"`
	DiscardLocal  bool     `json:"discardLocal,omitempty"`

	CommandSeq    int64        `json:"commandSeq,omitempty"`
	Past          []epoch.Past `json:"past,omitempty"`
	SourceLineage string       `json:"sourceLineage,omitempty"`
	SourcePast    []epoch.Past `json:"sourcePast,omitempty"`
	Left          *Left        `json:"left,omitempty"`
	Cut           *Cut         `json:"cut,omitempty"`
	Checked       int32        `json:"checked,omitempty"`
	CutAt         int64        `json:"cutAt,omitempty"`
}

type commandJSON struct {
	V int `json:"v"`
	Command
}

type mirrorSettingsJSON struct {
	V int `json:"v"`
	MirrorSettings
}

type topicConfigsJSON struct {
	V int `json:"v"`
	TopicConfigs
}

type aclsJSON struct {
	V int `json:"v"`
	ACLs
}

type checkpointJSON struct {
	V         int    `json:"v"`
	Topic     string `json:"topic"`
	Partition int32  `json:"partition"`
	Lineage   string `json:"lineage"`
	Gen       int16  `json:"gen"`

	VEnd      int64 `json:"vEnd"`
	ChainEnd  int64 `json:"chainEnd"`
	P         int64 `json:"p"`
	Position  int64 `json:"position"`
	LastEpoch int32 `json:"lastEpoch"`
	EndShown  int64 `json:"endShown"`
	SourceEnd int64 `json:"sourceEnd"`
	Open      bool  `json:"open,omitempty"`
	Under     int16 `json:"under,omitempty"`

	StateEpoch int64     `json:"stateEpoch,omitempty"`
	CaughtUp   time.Time `json:"caughtUp,omitzero"`

	At       time.Time `json:"at"`
	Released bool      `json:"released,omitempty"`
}

type instanceJSON struct {
	V int `json:"v"`
	Instance
}

// Decode reads an entry of the ledger topic: a *[Record], a *[Checkpoint], a
// *[Command], an *[Instance], *[MirrorSettings], *[TopicConfigs] or *[ACLs] by the kind of its key; nil for a nil value (a tombstone). Every
// error names the key. What can't be read whole and for certain is an error:
// another format number ([ErrNewer]), an unknown field, a value that belongs
// to another key, a virtual log that breaks its invariants.
func Decode(key, value []byte) (any, error) {
	k, err := ParseKey(key)
	if err != nil {
		return nil, err
	}
	if value == nil {
		return nil, nil //nolint:nilnil // a tombstone is no error and no entry
	}
	v, err := decodeAs(k, value)
	if err != nil {
		return nil, fmt.Errorf("ledger entry %q: %w", k, err)
	}
	return v, nil
}

func decodeAs(k Key, value []byte) (any, error) {
	switch k.Kind {
	case KindCheckpoint:
		return decodeCheckpoint(k, value)
	case KindInstance:
		return decodeInstance(k, value)
	case KindCommand:
		return decodeCommand(k, value)
	case KindMirror:
		return decodeMirrorSettings(k, value)
	case KindConfigs:
		return decodeTopicConfigs(k, value)
	case KindACLs:
		return decodeACLs(k, value)
	}
	return decodeRecord(k, value)
}

func decodeRecord(k Key, value []byte) (*Record, error) {
	var j recordJSON
	if err := unmarshal(value, k.Kind, &j); err != nil {
		return nil, err
	}
	if j.Topic != k.Topic || j.Partition != k.Partition {
		return nil, fmt.Errorf("the value is about %s", RecordKey(j.Topic, j.Partition))
	}
	switch {
	case !j.State.Valid():
		return nil, fmt.Errorf("unknown state %q", j.State)
	case j.Desired != "" && !j.Desired.Valid(), j.Previous != "" && !j.Previous.Valid():
		return nil, fmt.Errorf("unknown desired or previous state %q, %q", j.Desired, j.Previous)
	case j.StateEpoch < 1:
		return nil, fmt.Errorf("state epoch %d, want 1 or more", j.StateEpoch)
	}
	r := &Record{
		V: j.V, Mirror: j.Mirror, Topic: j.Topic, Partition: j.Partition,
		State: j.State, Desired: j.Desired, Previous: j.Previous, StateEpoch: j.StateEpoch, Error: j.Error, Retries: j.Retries,
		Log: j.Log, Shadow: j.Shadow, Lacks: j.Lacks, Cleaner: j.Cleaner, CopyFrom: j.CopyFrom, Plain: j.Plain || j.V < 3,
		Lineage: j.Lineage, TopicID: j.TopicID, SourceTopicID: j.SourceTopicID, SourceCluster: j.SourceCluster,
		Path: j.Path, Pairs: j.Pairs, DiscardLocal: j.DiscardLocal,
		CommandSeq: j.CommandSeq, Past: j.Past, SourceLineage: j.SourceLineage, SourcePast: j.SourcePast, Left: j.Left, Cut: j.Cut, Checked: j.Checked, CutAt: j.CutAt,
	}
	if j.V < 4 && r.Shadow != nil { // or may be
		r.Shadow.Anew, r.Lacks = !r.Shadow.Local, r.Shadow.Local
	}
	if err := r.Log.Validate(); err != nil {
		return nil, fmt.Errorf("virtual log: %w", err)
	}
	if err := r.Shadow.Validate(&r.Log); err != nil {
		return nil, fmt.Errorf("virtual log: %w", err)
	}
	return r, nil
}

func decodeCheckpoint(k Key, value []byte) (*Checkpoint, error) {
	var j checkpointJSON
	if err := unmarshal(value, k.Kind, &j); err != nil {
		return nil, err
	}
	if j.Topic != k.Topic || j.Partition != k.Partition {
		return nil, fmt.Errorf("the value is about %s", CheckpointKey(j.Topic, j.Partition))
	}
	return &Checkpoint{
		Topic: j.Topic, Partition: j.Partition, Lineage: j.Lineage, Gen: j.Gen,
		V: j.VEnd, ChainEnd: j.ChainEnd, P: j.P, Position: j.Position, LastEpoch: j.LastEpoch, EndShown: j.EndShown, SourceEnd: j.SourceEnd, Open: j.Open, Under: j.Under,
		StateEpoch: j.StateEpoch, CaughtUp: j.CaughtUp, At: j.At, Released: j.Released,
	}, nil
}

func decodeInstance(k Key, value []byte) (*Instance, error) {
	var j instanceJSON
	if err := unmarshal(value, k.Kind, &j); err != nil {
		return nil, err
	}
	if j.ID != k.ID {
		return nil, fmt.Errorf("the value is about instance %q", j.ID)
	}
	if n := len(j.Applied); n != 0 && n != Partitions {
		return nil, fmt.Errorf("%d acknowledged offsets, want %d", n, Partitions)
	}
	return &j.Instance, nil
}

func decodeCommand(k Key, value []byte) (*Command, error) {
	var j commandJSON
	if err := unmarshal(value, k.Kind, &j); err != nil {
		return nil, err
	}
	switch {
	case j.Topic != k.Topic || j.Partition != k.Partition:
		return nil, fmt.Errorf("the value is about %s", CommandKey(j.Topic, j.Partition))
	case j.Desired != "" && !j.Desired.Valid():
		return nil, fmt.Errorf("unknown desired state %q", j.Desired)
	}
	return &j.Command, nil
}

func decodeMirrorSettings(k Key, value []byte) (*MirrorSettings, error) {
	var j mirrorSettingsJSON
	if err := unmarshal(value, k.Kind, &j); err != nil {
		return nil, err
	}
	if j.Name != k.ID {
		return nil, fmt.Errorf("the value is about mirror %q", j.Name)
	}
	return &j.MirrorSettings, nil
}

func decodeTopicConfigs(k Key, value []byte) (*TopicConfigs, error) {
	var j topicConfigsJSON
	if err := unmarshal(value, k.Kind, &j); err != nil {
		return nil, err
	}
	if j.Topic != k.ID {
		return nil, fmt.Errorf("the value is about topic %q", j.Topic)
	}
	return &j.TopicConfigs, nil
}

func decodeACLs(k Key, value []byte) (*ACLs, error) {
	var j aclsJSON
	if err := unmarshal(value, k.Kind, &j); err != nil {
		return nil, err
	}
	if j.Key() != k.String() {
		return nil, fmt.Errorf("the value is about %q", j.Key())
	}
	return &j.ACLs, nil
}

// unmarshal reads one JSON object of a format this program knows, strictly.
func unmarshal(value []byte, kind Kind, into any) error {
	if !utf8.Valid(value) {
		return errors.New("garbled: not UTF-8")
	}
	format, err := formatOf(value)
	if err != nil {
		return err
	}
	switch {
	case format > kind.Format():
		return fmt.Errorf("format %d, newest known here %d: %w", format, kind.Format(), ErrNewer)
	case format < 1:
		return fmt.Errorf("garbled: format %d", format)
	}
	d := json.NewDecoder(bytes.NewReader(value))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		return fmt.Errorf("garbled: %w", err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return errors.New("garbled: something follows the value")
	}
	return nil
}

// formatOf is a value's format number, which is the first field of all that
// Lockstep writes.
func formatOf(value []byte) (int, error) {
	if rest, ok := bytes.CutPrefix(value, []byte(`{"v":`)); ok {
		if digits, _, ok := bytes.Cut(rest, []byte{','}); ok {
			if n, err := strconv.Atoi(string(digits)); err == nil {
				return n, nil
			}
		}
	}
	var head map[string]json.RawMessage
	if err := json.Unmarshal(value, &head); err != nil {
		return 0, fmt.Errorf("garbled: %w", err)
	}
	var format int
	if err := json.Unmarshal(head["v"], &format); err != nil {
		return 0, errors.New(`garbled: no format number in "v"`)
	}
	return format, nil
}

// Encode writes a value in the newest format. Like [Decode] it refuses a
// record whose virtual log breaks its invariants: what is written could not be
// read back.
func (r *Record) Encode() ([]byte, error) {
	if err := r.Log.Validate(); err != nil {
		return nil, fmt.Errorf("ledger entry %q: virtual log: %w", r.Key(), err)
	}
	return r.check(json.Marshal(recordJSON{
		V: KindRecord.Format(), Mirror: r.Mirror, Topic: r.Topic, Partition: r.Partition,
		State: r.State, Desired: r.Desired, Previous: r.Previous, StateEpoch: r.StateEpoch, Error: r.Error, Retries: r.Retries,
		Log: r.Log, Shadow: r.Shadow, Lacks: r.Lacks, Cleaner: r.Cleaner, CopyFrom: r.CopyFrom, Plain: r.Plain,
		Lineage: r.Lineage, TopicID: r.TopicID, SourceTopicID: r.SourceTopicID, SourceCluster: r.SourceCluster,
		Path: r.Path, Pairs: r.Pairs, DiscardLocal: r.DiscardLocal,
		CommandSeq: r.CommandSeq, Past: r.Past, SourceLineage: r.SourceLineage, SourcePast: r.SourcePast, Left: r.Left, Cut: r.Cut, Checked: r.Checked, CutAt: r.CutAt,
	}))
}

// check reads back what was encoded: the cheapest place to find out that
// nobody could.
func (r *Record) check(b []byte, err error) ([]byte, error) {
	if err != nil {
		return nil, fmt.Errorf("ledger entry %q: %w", r.Key(), err)
	}
	if _, err := Decode([]byte(r.Key()), b); err != nil {
		return nil, fmt.Errorf("not written: %w", err)
	}
	return b, nil
}

// Encode writes a value in the newest format.
func (c *Checkpoint) Encode() ([]byte, error) {
	b, err := json.Marshal(checkpointJSON{
		V: KindCheckpoint.Format(), Topic: c.Topic, Partition: c.Partition, Lineage: c.Lineage, Gen: c.Gen,
		VEnd: c.V, ChainEnd: c.ChainEnd, P: c.P, Position: c.Position, LastEpoch: c.LastEpoch, EndShown: c.EndShown, SourceEnd: c.SourceEnd, Open: c.Open, Under: c.Under,
		StateEpoch: c.StateEpoch, CaughtUp: c.CaughtUp, At: c.At, Released: c.Released,
	})
	if err != nil {
		return nil, fmt.Errorf("ledger entry %q: %w", c.Key(), err)
	}
	return b, nil
}

// Encode writes a value in the newest format.
func (i *Instance) Encode() ([]byte, error) {
	b, err := json.Marshal(instanceJSON{V: KindInstance.Format(), Instance: *i})
	if err != nil {
		return nil, fmt.Errorf("ledger entry %q: %w", i.Key(), err)
	}
	return b, nil
}

// Encode writes a value in the newest format.
func (c *Command) Encode() ([]byte, error) {
	b, err := json.Marshal(commandJSON{V: KindCommand.Format(), Command: *c})
	if err != nil {
		return nil, fmt.Errorf("ledger entry %q: %w", c.Key(), err)
	}
	return b, nil
}

// Encode writes a value in the newest format.
func (m *MirrorSettings) Encode() ([]byte, error) {
	b, err := json.Marshal(mirrorSettingsJSON{V: KindMirror.Format(), MirrorSettings: *m})
	if err != nil {
		return nil, fmt.Errorf("ledger entry %q: %w", m.Key(), err)
	}
	return b, nil
}

// Encode writes a value in the newest format.
func (c *TopicConfigs) Encode() ([]byte, error) {
	b, err := json.Marshal(topicConfigsJSON{V: KindConfigs.Format(), TopicConfigs: *c})
	if err != nil {
		return nil, fmt.Errorf("ledger entry %q: %w", c.Key(), err)
	}
	return b, nil
}

// Encode writes a value in the newest format.
func (a *ACLs) Encode() ([]byte, error) {
	b, err := json.Marshal(aclsJSON{V: KindACLs.Format(), ACLs: *a})
	if err != nil {
		return nil, fmt.Errorf("ledger entry %q: %w", a.Key(), err)
	}
	return b, nil
}
