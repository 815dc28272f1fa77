package mirror

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"math"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/epoch"
	"github.com/lockstep-kafka/lockstep/internal/ledger"
	"github.com/lockstep-kafka/lockstep/protocol"
)

// rawBatch builds an uncompressed v2 batch of n records "v<offset>".
type rawBatch struct {
	base     int64
	n        int
	epoch    int32
	pid      int64 // 0: none (-1)
	txn      bool
	control  bool
	abort    bool
	empty    bool
	holes    bool // every other record is missing; n counts the ones there
	logTime  bool
	maxTS    int64
	lastHole int // offsets behind the last record, gone
}

func (r rawBatch) bytes() protocol.Batch {
	if r.pid == 0 {
		r.pid = -1
	}
	if r.maxTS == 0 {
		r.maxTS = 1000
	}
	var recs []byte
	step := 1
	if r.holes {
		step = 2
	}
	n := r.n
	if r.empty {
		n = 0
	}
	for i := range n {
		var b []byte
		b = append(b, 0)
		b = binary.AppendVarint(b, 0)
		b = binary.AppendVarint(b, int64(i*step))
		key, val := []byte(fmt.Sprintf("k%d", i)), []byte(fmt.Sprintf("v%d", r.base+int64(i*step)))
		if r.control {
			typ := byte(1)
			if r.abort {
				typ = 0
			}
			key, val = []byte{0, 0, 0, typ}, []byte{0, 0, 0, 0, 0, 0}
		}
		b = binary.AppendVarint(b, int64(len(key)))
		b = append(b, key...)
		b = binary.AppendVarint(b, int64(len(val)))
		b = append(b, val...)
		b = binary.AppendVarint(b, 0)
		recs = append(binary.AppendVarint(recs, int64(len(b))), b...)
	}
	h := make([]byte, 61)
	binary.BigEndian.PutUint64(h, uint64(r.base))
	binary.BigEndian.PutUint32(h[8:], uint32(49+len(recs)))
	binary.BigEndian.PutUint32(h[12:], uint32(r.epoch))
	h[16] = 2
	var attr uint16
	if r.logTime {
		attr |= 8
	}
	if r.txn || r.control {
		attr |= 16
	}
	if r.control {
		attr |= 32
	}
	binary.BigEndian.PutUint16(h[21:], attr)
	binary.BigEndian.PutUint32(h[23:], uint32((r.n-1)*step+r.lastHole))
	binary.BigEndian.PutUint64(h[27:], uint64(r.maxTS))
	binary.BigEndian.PutUint64(h[35:], uint64(r.maxTS))
	binary.BigEndian.PutUint64(h[43:], uint64(r.pid))
	if r.pid == -1 {
		binary.BigEndian.PutUint16(h[51:], math.MaxUint16)
		binary.BigEndian.PutUint32(h[53:], math.MaxUint32)
	}
	binary.BigEndian.PutUint32(h[57:], uint32(n))
	out := append(h, recs...)
	binary.BigEndian.PutUint32(out[17:], crc32.Checksum(out[21:], crc32.MakeTable(crc32.Castagnoli)))
	return out
}

// fakeLog is one partition of a fakeBroker.
type fakeLog struct {
	batches []protocol.Batch
	start   int64
	epoch   int32 // leader epoch
	chain   epoch.Chain
	lso     int64 // -1: the end
	aborted []kmsg.FetchResponseTopicPartitionAbortedTransaction
	// abortedEnd, if set, are the markers' offsets: a broker doesn't list what
	// ended before the fetch offset.
	abortedEnd []int64
}

func (l *fakeLog) end() int64 {
	if n := len(l.batches); n > 0 {
		return l.batches[n-1].NextOffset()
	}
	return l.start
}

func (l *fakeLog) append(b protocol.Batch) {
	l.batches = append(l.batches, b)
	l.chain = l.chain.Assign(b.PartitionLeaderEpoch(), b.BaseOffset())
}

// land is append behind all that is there, as the broker does it.
func (l *fakeLog) land(b protocol.Batch) {
	b.SetBase(l.end(), l.epoch)
	l.append(b)
}

// truncate drops batches from the first that ends above to.
func (l *fakeLog) truncate(to int64) {
	for n := len(l.batches); n > 0 && l.batches[n-1].NextOffset() > to; n-- {
		l.batches = l.batches[:n-1]
	}
	l.chain = l.chain.Truncate(l.end())
}

// fakeBroker speaks just enough of the protocol for an engine, on real sockets,
// and can be told to misbehave. One serves any number of partitions.
type fakeBroker struct {
	t      *testing.T
	ln     net.Listener
	wg     sync.WaitGroup
	id     ledger.ID
	mu     sync.Mutex
	logs   map[partKey]*fakeLog
	open   map[net.Conn]bool
	onList func(*kmsg.ListOffsetsRequest) error // called without mu; an error hangs up
	listed func(*kmsg.ListOffsetsRequest)       // called without mu, when the answer is made and not sent yet
	// asked is called, without mu, when an OffsetForLeaderEpoch is answered and the
	// answer is not sent yet.
	asked atomic.Pointer[func()]
	// onProduce may answer for a partition itself: code -1 closes the
	// connection instead of answering. It is called with mu held, before the
	// append; appended says what it did itself.
	corrupt   bool // batches with a wrong CRC are left to onProduce
	onProduce func(k partKey, l *fakeLog, b protocol.Batch) (code int16, handled bool)
	onFetch   func(req *kmsg.FetchRequest)
	// breakFetch closes the connection instead of answering, garble changes what
	// is read from a partition; with mu held.
	breakFetch func(req *kmsg.FetchRequest) bool
	garble     func(p int32, records []byte) []byte
	leaveOut   map[int32]bool // partitions that a Fetch answer, given at once, says nothing of
	hurry      bool           // a Fetch is answered at once, whatever there is
	answerMax  int            // bytes of records in a Fetch answer; 0: no limit
	produces   int
	changed    chan struct{}
	maxFetch   int16
}

func newFakeBroker(t *testing.T) *fakeBroker {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	b := &fakeBroker{t: t, ln: ln, id: ledger.ID{1, 2, byte(ln.Addr().(*net.TCPAddr).Port)}, logs: map[partKey]*fakeLog{}, open: map[net.Conn]bool{}, changed: make(chan struct{}), maxFetch: 18}
	b.wg.Go(func() { b.accept(ln) })
	t.Cleanup(b.close)
	return b
}

func (b *fakeBroker) close() {
	b.ln.Close()
	b.mu.Lock()
	for c := range b.open {
		c.Close()
	}
	b.mu.Unlock()
	b.wg.Wait()
}

// dropConns closes all connections.
func (b *fakeBroker) dropConns() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for c := range b.open {
		c.Close()
	}
}

func (b *fakeBroker) accept(ln net.Listener) {
	for {
		c, err := ln.Accept()
		if err != nil {
			return
		}
		b.mu.Lock()
		b.open[c] = true
		b.mu.Unlock()
		b.wg.Go(func() {
			defer func() {
				c.Close()
				b.mu.Lock()
				delete(b.open, c)
				b.mu.Unlock()
			}()
			_ = b.serve(c)
		})
	}
}

func (b *fakeBroker) log(topic string, p int32) *fakeLog {
	k := partKey{topic, p}
	if b.logs[k] == nil {
		b.logs[k] = &fakeLog{lso: -1}
	}
	return b.logs[k]
}

// with runs f on a partition's log and lets long polls look again.
func (b *fakeBroker) with(topic string, p int32, f func(l *fakeLog)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	f(b.log(topic, p))
	b.touch()
}

func (b *fakeBroker) touch() {
	close(b.changed)
	b.changed = make(chan struct{})
}

// cluster is the broker's metadata.
func (b *fakeBroker) cluster() *Cluster {
	b.mu.Lock()
	defer b.mu.Unlock()
	c := &Cluster{Brokers: map[int32]string{1: b.ln.Addr().String()}, Topics: map[string]*TopicMeta{}}
	for k, l := range b.logs {
		t := c.Topics[k.topic]
		if t == nil {
			t = &TopicMeta{ID: b.idOf(k.topic)}
			c.Topics[k.topic] = t
		}
		for len(t.Partitions) <= int(k.partition) {
			t.Partitions = append(t.Partitions, PartitionMeta{-1, -1})
		}
		t.Partitions[k.partition] = PartitionMeta{1, l.epoch}
	}
	return c
}

var errHangUp = errors.New("hang up")

func (b *fakeBroker) serve(c net.Conn) error {
	for {
		var size [4]byte
		if _, err := io.ReadFull(c, size[:]); err != nil {
			return err
		}
		frame := make([]byte, binary.BigEndian.Uint32(size[:]))
		if _, err := io.ReadFull(c, frame); err != nil {
			return err
		}
		key, version := int16(binary.BigEndian.Uint16(frame)), int16(binary.BigEndian.Uint16(frame[2:]))
		corr := frame[4:8]
		body := frame[10+int(binary.BigEndian.Uint16(frame[8:])):]
		req := kmsg.RequestForKey(key)
		req.SetVersion(version)
		if req.IsFlexible() {
			body = body[1:]
		}
		if err := req.ReadFrom(body); err != nil {
			return err
		}
		resp, err := b.handle(req)
		if err != nil {
			return err
		}
		resp.SetVersion(version)
		out := append([]byte{0, 0, 0, 0}, corr...)
		if resp.IsFlexible() && key != 18 {
			out = append(out, 0)
		}
		out = resp.AppendTo(out)
		binary.BigEndian.PutUint32(out, uint32(len(out)-4))
		if _, err := c.Write(out); err != nil {
			return err
		}
	}
}

func (b *fakeBroker) handle(req kmsg.Request) (kmsg.Response, error) {
	switch r := req.(type) {
	case *kmsg.ApiVersionsRequest:
		resp := kmsg.NewPtrApiVersionsResponse()
		for _, k := range [][3]int16{{0, 3, 13}, {1, 4, b.maxFetch}, {2, 1, 7}, {18, 0, 3}, {23, 2, 4}} {
			resp.ApiKeys = append(resp.ApiKeys, kmsg.ApiVersionsResponseApiKey{ApiKey: k[0], MinVersion: k[1], MaxVersion: k[2]})
		}
		return resp, nil
	case *kmsg.ProduceRequest:
		return b.produce(r)
	case *kmsg.FetchRequest:
		return b.fetch(r)
	case *kmsg.ListOffsetsRequest:
		if b.onList != nil {
			if err := b.onList(r); err != nil {
				return nil, err
			}
		}
		resp := b.listOffsets(r)
		if b.listed != nil {
			b.listed(r)
		}
		return resp, nil
	case *kmsg.OffsetForLeaderEpochRequest:
		resp := b.epochEnd(r)
		if f := b.asked.Load(); f != nil {
			(*f)()
		}
		return resp, nil
	}
	return nil, fmt.Errorf("fake broker: unexpected %T", req)
}

// idOf is a topic's id: the broker's for "t". mu is held.
func (b *fakeBroker) idOf(topic string) ledger.ID {
	id := b.id
	id[15] = topic[0] - 't'
	return id
}

// name is the name of the topic with an id, "t" for one that it has no more. mu
// is held.
func (b *fakeBroker) name(topic string, id ledger.ID) string {
	if topic != "" {
		return topic
	}
	for k := range b.logs {
		if b.idOf(k.topic) == id {
			return k.topic
		}
	}
	return "t"
}

func fenced(cur int32, l *fakeLog) int16 {
	switch {
	case cur < 0 || cur == l.epoch:
		return 0
	case cur < l.epoch:
		return kerr.FencedLeaderEpoch.Code
	}
	return kerr.UnknownLeaderEpoch.Code
}

func (b *fakeBroker) produce(r *kmsg.ProduceRequest) (kmsg.Response, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	defer b.touch()
	b.produces++
	resp := kmsg.NewPtrProduceResponse()
	hangUp := false
	for _, t := range r.Topics {
		rt := kmsg.NewProduceResponseTopic()
		rt.Topic, rt.TopicID = t.Topic, t.TopicID
		for _, p := range t.Partitions {
			k := partKey{b.name(t.Topic, t.TopicID), p.Partition}
			l := b.log(k.topic, k.partition)
			a := kmsg.NewProduceResponseTopicPartition()
			a.Partition, a.BaseOffset = p.Partition, -1
			batch, rest, err := protocol.NextBatch(append([]byte(nil), p.Records...))
			if err != nil || len(rest) > 0 || batch.BaseOffset() != 0 || !batch.CheckCRC() && !b.corrupt || batch.HasHoles() || batch.IsTransactional() {
				b.t.Errorf("a broker would refuse this batch: %v", err)
				a.ErrorCode = kerr.InvalidRecord.Code
			} else {
				handled := false
				if b.onProduce != nil {
					a.ErrorCode, handled = b.onProduce(k, l, batch)
				}
				if !handled {
					a.BaseOffset = l.end()
					batch.SetBase(a.BaseOffset, l.epoch)
					l.append(batch)
				}
				hangUp = hangUp || a.ErrorCode == -1
			}
			rt.Partitions = append(rt.Partitions, a)
		}
		resp.Topics = append(resp.Topics, rt)
	}
	if hangUp {
		return nil, errHangUp
	}
	return resp, nil
}

func (b *fakeBroker) fetch(r *kmsg.FetchRequest) (kmsg.Response, error) {
	deadline := time.Now().Add(time.Duration(r.MaxWaitMillis) * time.Millisecond)
	for {
		b.mu.Lock()
		if b.onFetch != nil {
			b.onFetch(r)
		}
		if b.breakFetch != nil && b.breakFetch(r) {
			b.mu.Unlock()
			return nil, errHangUp
		}
		resp, some := b.read(r)
		changed := b.changed
		b.mu.Unlock()
		wait := time.Until(deadline)
		if some || wait <= 0 || b.hurry {
			return resp, nil
		}
		select {
		case <-changed:
		case <-time.After(wait):
		}
	}
}

func (b *fakeBroker) read(r *kmsg.FetchRequest) (resp *kmsg.FetchResponse, some bool) {
	resp = kmsg.NewPtrFetchResponse()
	used := 0
	for _, t := range r.Topics {
		rt := kmsg.NewFetchResponseTopic()
		rt.Topic, rt.TopicID = t.Topic, t.TopicID
		for _, p := range t.Partitions {
			if b.leaveOut[p.Partition] {
				some = true
				continue
			}
			l := b.log(b.name(t.Topic, t.TopicID), p.Partition)
			if b.answerMax > 0 { // in the order of the request, until it is full
				if p.PartitionMaxBytes = min(p.PartitionMaxBytes, int32(b.answerMax-used)); p.PartitionMaxBytes <= 0 {
					p.FetchOffset = l.end()
				}
			}
			a := kmsg.NewFetchResponseTopicPartition()
			a.Partition, a.HighWatermark, a.LastStableOffset, a.LogStartOffset = p.Partition, -1, -1, -1
			a.ErrorCode = fenced(p.CurrentLeaderEpoch, l)
			last := p.LastFetchedEpoch
			e, end := l.chain.EndOffsetFor(last, l.end())
			switch {
			case a.ErrorCode != 0:
			case r.Version >= 12 && last >= 0 && end < 0 && (len(l.chain) > 0 || last > l.epoch),
				p.FetchOffset < l.start:
				a.ErrorCode = kerr.OffsetOutOfRange.Code
			case r.Version >= 12 && last >= 0 && end >= 0 && (e < last || end < p.FetchOffset):
				a.HighWatermark, a.LastStableOffset, a.LogStartOffset = l.end(), l.end(), l.start
				a.DivergingEpoch.Epoch, a.DivergingEpoch.EndOffset = e, end
				some = true
			case p.FetchOffset > l.end():
				a.ErrorCode = kerr.OffsetOutOfRange.Code
			default:
				a.HighWatermark, a.LastStableOffset, a.LogStartOffset = l.end(), l.end(), l.start
				if l.lso >= 0 {
					a.LastStableOffset = l.lso
				}
				for i, x := range l.aborted {
					if len(l.abortedEnd) == 0 || l.abortedEnd[i] >= p.FetchOffset {
						a.AbortedTransactions = append(a.AbortedTransactions, x)
					}
				}
				limit := l.end()
				if r.IsolationLevel == 1 {
					limit = a.LastStableOffset
				}
				a.RecordBatches = []byte{}
				for _, x := range l.batches {
					if x.NextOffset() > p.FetchOffset && x.BaseOffset() < limit {
						if len(a.RecordBatches) > 0 && len(a.RecordBatches)+len(x) > int(p.PartitionMaxBytes) {
							break
						}
						a.RecordBatches = append(a.RecordBatches, x...)
					}
				}
				if b.garble != nil {
					a.RecordBatches = b.garble(p.Partition, a.RecordBatches)
				}
				used += len(a.RecordBatches)
				some = some || len(a.RecordBatches) > 0 || a.LastStableOffset < p.FetchOffset
			}
			some = some || a.ErrorCode != 0
			rt.Partitions = append(rt.Partitions, a)
		}
		resp.Topics = append(resp.Topics, rt)
	}
	return resp, some
}

func (b *fakeBroker) listOffsets(r *kmsg.ListOffsetsRequest) kmsg.Response {
	b.mu.Lock()
	defer b.mu.Unlock()
	resp := kmsg.NewPtrListOffsetsResponse()
	for _, t := range r.Topics {
		rt := kmsg.NewListOffsetsResponseTopic()
		rt.Topic = t.Topic
		for _, p := range t.Partitions {
			l := b.log(t.Topic, p.Partition)
			a := kmsg.NewListOffsetsResponseTopicPartition()
			a.Partition, a.ErrorCode = p.Partition, fenced(p.CurrentLeaderEpoch, l)
			a.Offset = l.end()
			switch {
			case p.Timestamp == tsEarliest:
				a.Offset = l.start
			case r.IsolationLevel == 1 && l.lso >= 0:
				a.Offset = min(a.Offset, l.lso)
			}
			rt.Partitions = append(rt.Partitions, a)
		}
		resp.Topics = append(resp.Topics, rt)
	}
	return resp
}

func (b *fakeBroker) epochEnd(r *kmsg.OffsetForLeaderEpochRequest) kmsg.Response {
	b.mu.Lock()
	defer b.mu.Unlock()
	resp := kmsg.NewPtrOffsetForLeaderEpochResponse()
	for _, t := range r.Topics {
		rt := kmsg.NewOffsetForLeaderEpochResponseTopic()
		rt.Topic = t.Topic
		for _, p := range t.Partitions {
			l := b.log(t.Topic, p.Partition)
			a := kmsg.NewOffsetForLeaderEpochResponseTopicPartition()
			a.Partition, a.ErrorCode = p.Partition, fenced(p.CurrentLeaderEpoch, l)
			a.LeaderEpoch, a.EndOffset = l.chain.EndOffsetFor(p.LeaderEpoch, l.end())
			rt.Partitions = append(rt.Partitions, a)
		}
		resp.Topics = append(resp.Topics, rt)
	}
	return resp
}
