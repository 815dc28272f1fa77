package protocol

import "fmt"

// FetchRequest is a Fetch request v0 to v18. Reading one into a value that was
// used before keeps its slices. Tags alias the body; names are copied.
type FetchRequest struct {
	Version int16
	// ReplicaID is −1 for consumers. From v15 it is read out of tag 1 (replica
	// state, KIP-903) and written only by way of Tags.
	ReplicaID      int32
	MaxWaitMillis  int32
	MinBytes       int32
	MaxBytes       int32 // v3+, else 2^31-1
	IsolationLevel int8  // v4+; 0 read_uncommitted, 1 read_committed
	SessionID      int32 // v7+; 0: none yet
	SessionEpoch   int32 // v7+; −1: no session, 0: new one (KIP-227)
	Topics         []FetchRequestTopic
	Forgotten      []FetchForgottenTopic // v7+
	Rack           string                // v11+
	Tags           Tags                  // v12+: 0 cluster id, 1 replica state
}

// FetchRequestTopic: Name up to v12, ID from v13.
type FetchRequestTopic struct {
	Name       string
	ID         [16]byte
	Partitions []FetchRequestPartition
	Tags       Tags
}

// FetchRequestPartition is one partition asked for; see NewFetchRequestPartition.
type FetchRequestPartition struct {
	Partition          int32
	CurrentLeaderEpoch int32 // v9+; −1: not checked
	FetchOffset        int64
	LastFetchedEpoch   int32 // v12+; −1: no divergence check
	LogStartOffset     int64 // v5+; followers only, −1 else
	MaxBytes           int32
	// Tags: 0 replica directory, 1 the follower's high watermark (v18). Both
	// are for followers only, and physical: leave them out of a translated request.
	Tags Tags
}

// NewFetchRequestPartition has −1 where Kafka's default is −1.
func NewFetchRequestPartition(partition int32) FetchRequestPartition {
	return FetchRequestPartition{Partition: partition, CurrentLeaderEpoch: -1, LastFetchedEpoch: -1, LogStartOffset: -1}
}

// FetchForgottenTopic: partitions to drop from the session.
type FetchForgottenTopic struct {
	Name       string
	ID         [16]byte
	Partitions []int32
	Tags       Tags
}

const (
	fetchFlexible = 12
	fetchTopicIDs = 13
	fetchMax      = 18
)

// Reset empties q, keeps its slices, and sets Kafka's defaults.
func (q *FetchRequest) Reset(version int16) {
	*q = FetchRequest{
		Version: version, ReplicaID: -1, MaxBytes: 1<<31 - 1, SessionEpoch: -1,
		Topics: q.Topics[:0], Forgotten: q.Forgotten[:0], Rack: q.Rack,
	}
}

// AddTopic appends an empty topic and returns it, valid until the next AddTopic.
func (q *FetchRequest) AddTopic(name string, id [16]byte) *FetchRequestTopic {
	var t *FetchRequestTopic
	q.Topics, t = grow(q.Topics)
	*t = FetchRequestTopic{Name: name, ID: id, Partitions: t.Partitions[:0]}
	return t
}

// Decode reads a body of the given version. On an error q is unusable.
func (q *FetchRequest) Decode(version int16, body []byte) error {
	if version < 0 || version > fetchMax {
		return fmt.Errorf("%w: Fetch v%d", ErrUnknownVersion, version)
	}
	q.Reset(version)
	r := wireReader{b: body, flex: version >= fetchFlexible}
	if version <= 14 {
		q.ReplicaID = r.i32()
	}
	q.MaxWaitMillis = r.i32()
	q.MinBytes = r.i32()
	if version >= 3 {
		q.MaxBytes = r.i32()
	}
	if version >= 4 {
		q.IsolationLevel = r.i8()
	}
	if version >= 7 {
		q.SessionID = r.i32()
		q.SessionEpoch = r.i32()
	}
	n, _ := r.arrayLen(fetchTopicMin(version))
	for range n {
		var t *FetchRequestTopic
		q.Topics, t = grow(q.Topics)
		t.decode(version, &r)
		if r.err != nil {
			break
		}
	}
	if version >= 7 {
		n, _ := r.arrayLen(fetchTopicMin(version))
		for range n {
			var t *FetchForgottenTopic
			q.Forgotten, t = grow(q.Forgotten)
			t.decode(version, &r)
			if r.err != nil {
				break
			}
		}
	}
	if version >= 11 {
		q.Rack = keepString(q.Rack, r.str())
	} else {
		q.Rack = ""
	}
	q.Tags = r.tags()
	if version >= 15 {
		if state, ok := q.Tags.Get(1); ok {
			in := wireReader{b: state}
			q.ReplicaID = in.i32()
			if in.err != nil {
				r.fail(in.err)
			}
		}
	}
	if err := r.done(); err != nil {
		return fmt.Errorf("fetch request v%d: %w", version, err)
	}
	return nil
}

// fetchTopicMin is the least number of bytes of a topic with no partitions.
func fetchTopicMin(version int16) int {
	switch {
	case version >= fetchTopicIDs:
		return 16 + 1 + 1
	case version >= fetchFlexible:
		return 1 + 1 + 1
	}
	return 2 + 4
}

func (t *FetchRequestTopic) decode(version int16, r *wireReader) {
	t.Partitions = t.Partitions[:0]
	if version >= fetchTopicIDs {
		t.Name, t.ID = "", r.uuid()
	} else {
		t.Name, t.ID = keepString(t.Name, r.str()), [16]byte{}
	}
	n, _ := r.arrayLen(16)
	for range n {
		p := NewFetchRequestPartition(r.i32())
		if version >= 9 {
			p.CurrentLeaderEpoch = r.i32()
		}
		p.FetchOffset = r.i64()
		if version >= 12 {
			p.LastFetchedEpoch = r.i32()
		}
		if version >= 5 {
			p.LogStartOffset = r.i64()
		}
		p.MaxBytes = r.i32()
		p.Tags = r.tags()
		if r.err != nil {
			return
		}
		t.Partitions = append(t.Partitions, p)
	}
	t.Tags = r.tags()
}

func (t *FetchForgottenTopic) decode(version int16, r *wireReader) {
	t.Partitions = t.Partitions[:0]
	if version >= fetchTopicIDs {
		t.Name, t.ID = "", r.uuid()
	} else {
		t.Name, t.ID = keepString(t.Name, r.str()), [16]byte{}
	}
	n, _ := r.arrayLen(4)
	for range n {
		t.Partitions = append(t.Partitions, r.i32())
	}
	t.Tags = r.tags()
}

// AppendTo appends the body in version q.Version.
func (q *FetchRequest) AppendTo(dst []byte) []byte {
	v, flex := q.Version, q.Version >= fetchFlexible
	if v <= 14 {
		dst = appendI32(dst, q.ReplicaID)
	}
	dst = appendI32(dst, q.MaxWaitMillis)
	dst = appendI32(dst, q.MinBytes)
	if v >= 3 {
		dst = appendI32(dst, q.MaxBytes)
	}
	if v >= 4 {
		dst = append(dst, byte(q.IsolationLevel))
	}
	if v >= 7 {
		dst = appendI32(dst, q.SessionID)
		dst = appendI32(dst, q.SessionEpoch)
	}
	dst = appendCount(dst, len(q.Topics), flex)
	for i := range q.Topics {
		t := &q.Topics[i]
		dst = appendFetchTopic(dst, v, t.Name, t.ID)
		dst = appendCount(dst, len(t.Partitions), flex)
		for j := range t.Partitions {
			dst = t.Partitions[j].appendTo(dst, v)
		}
		if flex {
			dst = t.Tags.appendTo(dst)
		}
	}
	if v >= 7 {
		dst = appendCount(dst, len(q.Forgotten), flex)
		for i := range q.Forgotten {
			t := &q.Forgotten[i]
			dst = appendFetchTopic(dst, v, t.Name, t.ID)
			dst = appendCount(dst, len(t.Partitions), flex)
			for _, p := range t.Partitions {
				dst = appendI32(dst, p)
			}
			if flex {
				dst = t.Tags.appendTo(dst)
			}
		}
	}
	if v >= 11 {
		dst = appendStr(dst, q.Rack, flex)
	}
	if flex {
		dst = q.Tags.appendTo(dst)
	}
	return dst
}

func (p *FetchRequestPartition) appendTo(dst []byte, v int16) []byte {
	dst = appendI32(dst, p.Partition)
	if v >= 9 {
		dst = appendI32(dst, p.CurrentLeaderEpoch)
	}
	dst = appendI64(dst, p.FetchOffset)
	if v >= 12 {
		dst = appendI32(dst, p.LastFetchedEpoch)
	}
	if v >= 5 {
		dst = appendI64(dst, p.LogStartOffset)
	}
	dst = appendI32(dst, p.MaxBytes)
	if v >= fetchFlexible {
		dst = p.Tags.appendTo(dst)
	}
	return dst
}

func appendFetchTopic(dst []byte, version int16, name string, id [16]byte) []byte {
	if version >= fetchTopicIDs {
		return append(dst, id[:]...)
	}
	return appendStr(dst, name, version >= fetchFlexible)
}
