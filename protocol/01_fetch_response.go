package protocol

import "fmt"

// FetchResponse is a Fetch answer v0 to v18. Decode leaves Records aliasing the
// body and copies nothing but names; Encode writes the rest into one buffer and
// leaves the payload where it is. Used again and again, a value allocates
// nothing at its usual size.
type FetchResponse struct {
	Version        int16
	ThrottleMillis int32 // v1+
	ErrorCode      int16 // v7+: session errors
	SessionID      int32 // v7+
	Topics         []FetchTopic
	NodeEndpoints  []NodeEndpoint // v16+, next to NOT_LEADER_OR_FOLLOWER and FENCED_LEADER_EPOCH
	Tags           Tags           // v12+, unknown ones
}

// FetchTopic: Name up to v12, ID from v13.
type FetchTopic struct {
	Name       string
	ID         [16]byte
	Partitions []FetchPartition
	Tags       Tags
}

// FetchPartition is the answer for one partition. Make new ones with
// FetchTopic.AddPartition: zero isn't the default of all fields.
type FetchPartition struct {
	Partition        int32
	ErrorCode        int16
	HighWatermark    int64
	LastStableOffset int64                // v4+; −1: unknown
	LogStartOffset   int64                // v5+; −1: unknown
	Aborted          []AbortedTransaction // v4+
	AbortedNull      bool                 // null instead of an empty list (read_uncommitted)
	PreferredReplica int32                // v11+; −1: none
	Diverging        EpochEnd             // v12+, tag 0
	CurrentLeader    LeaderEpoch          // v12+, tag 1
	Snapshot         EpochEnd             // v12+, tag 2
	Tags             Tags                 // unknown ones
	// Records are pieces of record data in order. Decode gives one (none when
	// empty); an encoder may put any number, of any buffers. The last batch of
	// what a broker sends may be cut off.
	Records     [][]byte
	RecordsNull bool // null instead of empty; brokers send empty
}

// AbortedTransaction of read_committed answers.
type AbortedTransaction struct {
	ProducerID  int64
	FirstOffset int64
	Tags        Tags
}

// EpochEnd is an epoch and an end offset; the field is there only when Set.
type EpochEnd struct {
	Set       bool
	Epoch     int32
	EndOffset int64
	Tags      Tags
}

// LeaderEpoch is a leader and its epoch; the field is there only when Set.
type LeaderEpoch struct {
	Set    bool
	Leader int32
	Epoch  int32
	Tags   Tags
}

// NodeEndpoint is the address of a leader (KIP-951).
type NodeEndpoint struct {
	NodeID  int32
	Host    string
	Port    int32
	Rack    string
	HasRack bool
	Tags    Tags
}

// Reset empties p, keeps its slices, and sets Kafka's defaults.
func (p *FetchPartition) Reset(partition int32) {
	clear(p.Records)
	*p = FetchPartition{
		Partition: partition, LastStableOffset: -1, LogStartOffset: -1, PreferredReplica: -1,
		Aborted: p.Aborted[:0], Records: p.Records[:0],
	}
}

// Reset empties r and lets go of every buffer it aliases; slices are kept.
func (r *FetchResponse) Reset(version int16) {
	topics := r.Topics[:cap(r.Topics)]
	for i := range topics {
		t := &topics[i]
		t.Tags = Tags{}
		ps := t.Partitions[:cap(t.Partitions)]
		for j := range ps {
			ps[j].Reset(0)
			clear(ps[j].Aborted[:cap(ps[j].Aborted)])
		}
		t.Partitions = t.Partitions[:0]
	}
	clear(r.NodeEndpoints)
	*r = FetchResponse{Version: version, Topics: r.Topics[:0], NodeEndpoints: r.NodeEndpoints[:0]}
}

// AddTopic appends an empty topic and returns it, valid until the next AddTopic.
func (r *FetchResponse) AddTopic(name string, id [16]byte) *FetchTopic {
	var t *FetchTopic
	r.Topics, t = grow(r.Topics)
	*t = FetchTopic{Name: name, ID: id, Partitions: t.Partitions[:0]}
	return t
}

// AddPartition appends a partition with defaults and returns it, valid until
// the next AddPartition.
func (t *FetchTopic) AddPartition(partition int32) *FetchPartition {
	var p *FetchPartition
	t.Partitions, p = grow(t.Partitions)
	p.Reset(partition)
	return p
}

// MapEndpoints maps the addresses in NodeEndpoints.
func (r *FetchResponse) MapEndpoints(f AddressFunc) {
	for i := range r.NodeEndpoints {
		e := &r.NodeEndpoints[i]
		if e.NodeID < 0 || e.Host == "" {
			continue
		}
		if h, p, ok := f(e.NodeID, e.Host, e.Port); ok {
			e.Host, e.Port = h, p
		}
	}
}

// Decode reads a body of the given version. On an error r is unusable.
func (r *FetchResponse) Decode(version int16, body []byte) error {
	if version < 0 || version > fetchMax {
		return fmt.Errorf("%w: Fetch v%d", ErrUnknownVersion, version)
	}
	*r = FetchResponse{Version: version, Topics: r.Topics[:0], NodeEndpoints: r.NodeEndpoints[:0]}
	w := wireReader{b: body, flex: version >= fetchFlexible}
	if version >= 1 {
		r.ThrottleMillis = w.i32()
	}
	if version >= 7 {
		r.ErrorCode = w.i16()
		r.SessionID = w.i32()
	}
	n, _ := w.arrayLen(fetchTopicMin(version))
	for range n {
		var t *FetchTopic
		r.Topics, t = grow(r.Topics)
		t.decode(version, &w)
		if w.err != nil {
			break
		}
	}
	for range w.tagCount() {
		tag, data, raw := w.tag()
		if w.err != nil {
			break
		}
		if tag != 0 || version < 16 {
			r.Tags.add(raw)
			continue
		}
		if err := r.decodeEndpoints(data); err != nil {
			w.fail(err)
		}
	}
	if err := w.done(); err != nil {
		return fmt.Errorf("fetch answer v%d: %w", version, err)
	}
	return nil
}

func (r *FetchResponse) decodeEndpoints(data []byte) error {
	w := wireReader{b: data, flex: true}
	n, _ := w.arrayLen(11)
	for range n {
		var e *NodeEndpoint
		r.NodeEndpoints, e = grow(r.NodeEndpoints)
		*e = NodeEndpoint{NodeID: w.i32(), Host: string(w.str()), Port: w.i32()}
		if rack, ok := w.nullableString(); ok {
			e.Rack, e.HasRack = string(rack), true
		}
		e.Tags = w.tags()
		if w.err != nil {
			break
		}
	}
	return w.done()
}

func (t *FetchTopic) decode(version int16, w *wireReader) {
	t.Partitions = t.Partitions[:0]
	if version >= fetchTopicIDs {
		t.Name, t.ID = "", w.uuid()
	} else {
		t.Name, t.ID = keepString(t.Name, w.str()), [16]byte{}
	}
	least := 4 + 2 + 8 + 4 // partition, error, high watermark, records
	switch {
	case version >= fetchFlexible:
		least = 4 + 2 + 8 + 8 + 8 + 1 + 4 + 1 + 1
	case version >= 4:
		least += 8 + 4
	}
	n, _ := w.arrayLen(least)
	for range n {
		t.AddPartition(w.i32()).decode(version, w)
		if w.err != nil {
			return
		}
	}
	t.Tags = w.tags()
}

func (p *FetchPartition) decode(version int16, w *wireReader) {
	p.ErrorCode = w.i16()
	p.HighWatermark = w.i64()
	if version >= 4 {
		p.LastStableOffset = w.i64()
	}
	if version >= 5 {
		p.LogStartOffset = w.i64()
	}
	if version >= 4 {
		n, ok := w.arrayLen(16)
		p.AbortedNull = !ok
		for range n {
			a := AbortedTransaction{ProducerID: w.i64(), FirstOffset: w.i64(), Tags: w.tags()}
			if w.err != nil {
				return
			}
			p.Aborted = append(p.Aborted, a)
		}
	}
	if version >= 11 {
		p.PreferredReplica = w.i32()
	}
	rec, ok := w.nullableBytes()
	p.RecordsNull = !ok
	if len(rec) > 0 {
		p.Records = append(p.Records, rec)
	}
	for range w.tagCount() {
		tag, data, raw := w.tag()
		if w.err != nil {
			return
		}
		in := wireReader{b: data, flex: true}
		switch tag {
		case 0:
			p.Diverging = EpochEnd{Set: true, Epoch: in.i32(), EndOffset: in.i64(), Tags: in.tags()}
		case 1:
			p.CurrentLeader = LeaderEpoch{Set: true, Leader: in.i32(), Epoch: in.i32(), Tags: in.tags()}
		case 2:
			p.Snapshot = EpochEnd{Set: true, EndOffset: in.i64(), Epoch: in.i32(), Tags: in.tags()}
		default:
			p.Tags.add(raw)
			continue
		}
		if err := in.done(); err != nil {
			w.fail(fmt.Errorf("tagged field %d: %w", tag, err))
		}
	}
}

// Encode writes the body in version r.Version into parts (after a Reset of it).
// Record data is not copied.
func (r *FetchResponse) Encode(parts *Parts) {
	parts.Reset()
	v, flex := r.Version, r.Version >= fetchFlexible
	if v >= 1 {
		parts.meta = appendI32(parts.meta, r.ThrottleMillis)
	}
	if v >= 7 {
		parts.meta = appendI16(parts.meta, r.ErrorCode)
		parts.meta = appendI32(parts.meta, r.SessionID)
	}
	parts.meta = appendCount(parts.meta, len(r.Topics), flex)
	for i := range r.Topics {
		t := &r.Topics[i]
		parts.meta = appendFetchTopic(parts.meta, v, t.Name, t.ID)
		parts.meta = appendCount(parts.meta, len(t.Partitions), flex)
		for j := range t.Partitions {
			t.Partitions[j].encode(v, parts)
		}
		if flex {
			parts.meta = t.Tags.appendTo(parts.meta)
		}
	}
	if !flex {
		return
	}
	if v < 16 || len(r.NodeEndpoints) == 0 {
		parts.meta = r.Tags.appendTo(parts.meta)
		return
	}
	content := appendCount(nil, len(r.NodeEndpoints), true)
	for _, e := range r.NodeEndpoints {
		content = appendI32(content, e.NodeID)
		content = appendStr(content, e.Host, true)
		content = appendI32(content, e.Port)
		if e.HasRack {
			content = appendStr(content, e.Rack, true)
		} else {
			content = appendNullStr(content, true)
		}
		content = e.Tags.appendTo(content)
	}
	parts.meta = appendUvarint(parts.meta, uint32(r.Tags.Count)+1)
	parts.meta = appendUvarint(parts.meta, 0)
	parts.meta = appendUvarint(parts.meta, uint32(len(content)))
	parts.meta = append(parts.meta, content...)
	parts.meta = append(parts.meta, r.Tags.Raw...)
}

func (p *FetchPartition) encode(v int16, parts *Parts) {
	flex := v >= fetchFlexible
	m := parts.meta
	m = appendI32(m, p.Partition)
	m = appendI16(m, p.ErrorCode)
	m = appendI64(m, p.HighWatermark)
	if v >= 4 {
		m = appendI64(m, p.LastStableOffset)
	}
	if v >= 5 {
		m = appendI64(m, p.LogStartOffset)
	}
	if v >= 4 {
		if p.AbortedNull && len(p.Aborted) == 0 {
			m = appendNullCount(m, flex)
		} else {
			m = appendCount(m, len(p.Aborted), flex)
		}
		for _, a := range p.Aborted {
			m = appendI64(m, a.ProducerID)
			m = appendI64(m, a.FirstOffset)
			if flex {
				m = a.Tags.appendTo(m)
			}
		}
	}
	if v >= 11 {
		m = appendI32(m, p.PreferredReplica)
	}
	size := 0
	for _, b := range p.Records {
		size += len(b)
	}
	if size == 0 && p.RecordsNull {
		m = appendNullCount(m, flex)
	} else {
		m = appendCount(m, size, flex) // bytes have the same length form as arrays
	}
	parts.meta = m
	for _, b := range p.Records {
		parts.payload(b)
	}
	if flex {
		parts.meta = p.appendTags(parts.meta)
	}
}

func (p *FetchPartition) appendTags(m []byte) []byte {
	n := p.Tags.Count
	for _, set := range [...]bool{p.Diverging.Set, p.CurrentLeader.Set, p.Snapshot.Set} {
		if set {
			n++
		}
	}
	m = appendUvarint(m, uint32(n))
	if d := &p.Diverging; d.Set {
		m = appendUvarint(m, 0)
		m = appendUvarint(m, uint32(12+d.Tags.wireLen()))
		m = appendI32(m, d.Epoch)
		m = appendI64(m, d.EndOffset)
		m = d.Tags.appendTo(m)
	}
	if l := &p.CurrentLeader; l.Set {
		m = appendUvarint(m, 1)
		m = appendUvarint(m, uint32(8+l.Tags.wireLen()))
		m = appendI32(m, l.Leader)
		m = appendI32(m, l.Epoch)
		m = l.Tags.appendTo(m)
	}
	if s := &p.Snapshot; s.Set {
		m = appendUvarint(m, 2)
		m = appendUvarint(m, uint32(12+s.Tags.wireLen()))
		m = appendI64(m, s.EndOffset)
		m = appendI32(m, s.Epoch)
		m = s.Tags.appendTo(m)
	}
	return append(m, p.Tags.Raw...)
}
