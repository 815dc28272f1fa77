package proxy

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/epoch"
	"github.com/lockstep-kafka/lockstep/internal/ledger"
	"github.com/lockstep-kafka/lockstep/protocol"
)

// fetch runs a Fetch and returns the answer.
func (b *bench) fetch(q *kmsg.FetchRequest) *kmsg.FetchResponse {
	return respond[*kmsg.FetchResponse](b, q)
}

// only is the answer's only partition.
func only(t require.TestingT, r *kmsg.FetchResponse) kmsg.FetchResponseTopicPartition {
	require.Zero(t, r.ErrorCode)
	require.Len(t, r.Topics, 1)
	require.Len(t, r.Topics[0].Partitions, 1)
	return r.Topics[0].Partitions[0]
}

// sessionFetch is a request of a fetch session.
func sessionFetch(id, epoch int32, topics ...kmsg.FetchRequestTopic) *kmsg.FetchRequest {
	q := fetchOne(12, "", [16]byte{}, 0, 0)
	q.SessionID, q.SessionEpoch, q.Topics = id, epoch, topics
	return q
}

func wants(topic string, partition int32, offset int64) kmsg.FetchRequestTopic {
	p := kmsg.NewFetchRequestTopicPartition()
	p.Partition, p.FetchOffset, p.PartitionMaxBytes = partition, offset, 1<<20
	return kmsg.FetchRequestTopic{Topic: topic, Partitions: []kmsg.FetchRequestTopicPartition{p}}
}

// M3: everything behind the reader is hidden, more than one answer holds. The
// client's incremental requests do not name the partition again, and it gets
// there all the same.
func TestM3HiddenBatchesAndSessions(t *testing.T) {
	b := newBench(t)
	h := newHistory(t, b.sim.part("m", 0))
	h.append(2, 0)
	for range 300 {
		h.foreign(1)
	}
	h.append(1, 0)
	b.mirror("m", 0, h.log)
	w := wants("m", 0, 2)
	w.Partitions[0].PartitionMaxBytes = 200 // two batches an answer
	r := b.fetch(sessionFetch(0, 0, w))
	require.NotZero(t, r.SessionID)
	recs, _ := readBatches(t, only(t, r).RecordBatches)
	require.Len(t, recs, 1)
	require.EqualValues(t, 2, recs[0].v)

	// The same without waiting: each round moves on, though the client asks for
	// the same offset over and over.
	b.st = &connState{}
	q := sessionFetch(0, 0, w)
	q.MaxWaitMillis = 0
	r = b.fetch(q)
	id, e := r.SessionID, int32(1)
	for len(r.Topics) == 0 || len(r.Topics[0].Partitions[0].RecordBatches) == 0 {
		require.Less(t, e, int32(400))
		q = sessionFetch(id, e)
		q.MaxWaitMillis = 0
		r = b.fetch(q)
		require.Zero(t, r.ErrorCode)
		e++
	}
}

// M3: a cut while the client waits in a long poll, with nothing new behind it:
// the client is fenced, and so learns of it.
func TestM3CutDuringLongPoll(t *testing.T) {
	b := newBench(t)
	h := newHistory(t, b.sim.part("m", 0))
	h.append(5, 0)
	h.append(5, 0)
	b.mirror("m", 0, h.log)
	w := wants("m", 0, 10)
	w.Partitions[0].CurrentLeaderEpoch = 15
	r := b.fetch(sessionFetch(0, 0, w))
	require.Zero(t, only(t, r).ErrorCode)
	b.onWait = func() {
		h.cut(5)
		b.mirror("m", 0, h.log)
		b.onWait = nil
	}
	r = b.fetch(sessionFetch(r.SessionID, 1)) // the session knows what is wanted
	require.Equal(t, kerr.FencedLeaderEpoch.Code, only(t, r).ErrorCode)

	// And with the new epoch: divergence, from the virtual chain.
	h.src = 4
	h.append(6, 0)
	b.mirror("m", 0, h.log)
	w.Partitions[0].CurrentLeaderEpoch, w.Partitions[0].LastFetchedEpoch = 16, 3
	p := only(t, b.fetch(sessionFetch(r.SessionID, 2, w)))
	require.Zero(t, p.ErrorCode)
	require.EqualValues(t, 3, p.DivergingEpoch.Epoch)
	require.EqualValues(t, 5, p.DivergingEpoch.EndOffset)
	require.Empty(t, p.RecordBatches)
}

// Sessions as a broker keeps them (KIP-227).
func TestFetchSessions(t *testing.T) {
	b := newBench(t)
	h := newHistory(t, b.sim.part("m", 0))
	h.append(3, 0)
	b.mirror("m", 0, h.log)
	other := b.sim.part("other", 0)
	other.put(dense(t, 0, 2, 5))

	r := b.fetch(sessionFetch(0, 0, wants("m", 0, 0), wants("other", 0, 0)))
	require.Len(t, r.Topics, 2)
	id := r.SessionID
	// Nothing new: nothing in it, after the client's whole wait.
	began := b.now
	r = b.fetch(sessionFetch(id, 1, wants("m", 0, 3), wants("other", 0, 2)))
	require.Empty(t, r.Topics)
	require.Equal(t, id, r.SessionID)
	require.Equal(t, 500*time.Millisecond, b.now.Sub(began))
	// Data of one partition only.
	h.append(1, 0)
	b.mirror("m", 0, h.log)
	r = b.fetch(sessionFetch(id, 2))
	require.Equal(t, "m", r.Topics[0].Topic)
	p := only(t, r)
	require.EqualValues(t, 4, p.HighWatermark)
	// The same epoch again, and one that is ahead.
	require.Equal(t, kerr.InvalidFetchSessionEpoch.Code, b.fetch(sessionFetch(id, 2)).ErrorCode)
	require.Equal(t, kerr.InvalidFetchSessionEpoch.Code, b.fetch(sessionFetch(id, 5)).ErrorCode)
	// Forgotten: not answered any more.
	q := sessionFetch(id, 3)
	q.ForgottenTopics = []kmsg.FetchRequestForgottenTopic{{Topic: "m", Partitions: []int32{0}}}
	require.Empty(t, b.fetch(q).Topics)
	// By id now, in a session by name.
	mid := b.id("m", 7)
	q = fetchOne(13, "", mid, 0, 100)
	q.SessionID, q.SessionEpoch = id, 4
	require.Equal(t, kerr.FetchSessionTopicIDError.Code, b.fetch(q).ErrorCode)
	// Closed: not known any more.
	b.fetch(sessionFetch(id, -1))
	require.Equal(t, kerr.FetchSessionIDNotFound.Code, b.fetch(sessionFetch(id, 4)).ErrorCode)
	require.Empty(t, b.st.sessions)
}

// M3: a broker's own session goes on only while no topic in it can have become
// a mirror's.
func TestM3BrokerSessions(t *testing.T) {
	b := newBench(t)
	b.mirror("m", 0, logOf(t))
	b.sim.part("other", 0)
	// Not created through this connection, or before there was a mirror topic.
	require.Equal(t, kerr.FetchSessionIDNotFound.Code, b.fetch(sessionFetch(77, 4)).ErrorCode)
	require.True(t, b.run(sessionFetch(0, 0, wants("other", 0, 0))).forwarded)
	require.True(t, b.run(sessionFetch(77, 1)).forwarded)
	require.Equal(t, kerr.FetchSessionIDNotFound.Code, b.fetch(sessionFetch(77, 2, wants("m", 0, 0))).ErrorCode)
	b.mirror("other", 0, logOf(t))
	require.Equal(t, kerr.FetchSessionIDNotFound.Code, b.fetch(sessionFetch(77, 2)).ErrorCode)
}

// turningView is a view in which something happens right after it was asked about a topic.
type turningView struct {
	*fakeView
	then func()
}

func (v *turningView) Topic(t string) bool {
	was := v.fakeView.Topic(t)
	v.then()
	return was
}

// M3: a topic becomes a mirror's in the moment in which a Fetch for it is passed on: the broker's session is not
// continued.
func TestM3MirrorWhilePassedOn(t *testing.T) {
	b := newBench(t)
	b.sim.part("other", 0)
	b.h.view = &turningView{b.view, func() {
		if !b.view.topics["other"] {
			b.mirror("other", 0, logOf(t))
		}
	}}
	require.True(t, b.run(sessionFetch(0, 0, wants("other", 0, 0))).forwarded)
	require.Equal(t, kerr.FetchSessionIDNotFound.Code, b.fetch(sessionFetch(77, 1)).ErrorCode)
}

// M3: an ordinary topic of a Fetch becomes a mirror topic while the broker is
// asked for it together with another: nothing physical of it is shown, and the
// client's next request is for the mirror topic.
func TestM3MirrorWhileAskedForWithAnother(t *testing.T) {
	b := newBench(t)
	m := newHistory(t, b.sim.part("m", 0))
	m.append(2, 0)
	b.mirror("m", 0, m.log)
	h := newHistory(t, b.sim.part("other", 0))
	h.append(2, 0)
	h.takeOver()
	h.append(3, 0)
	b.sim.onFetch = func() {
		if !b.view.topics["other"] {
			b.mirror("other", 0, h.log)
		}
	}
	r := b.fetch(sessionFetch(0, 0, wants("m", 0, 0), wants("other", 0, 0)))
	require.NotZero(t, r.SessionID)
	for _, rt := range r.Topics {
		if p := rt.Partitions[0]; rt.Topic == "other" {
			require.Equal(t, retryLater, p.ErrorCode)
			require.Empty(t, p.RecordBatches)
		} else {
			require.Zero(t, p.ErrorCode)
		}
	}
	for _, rt := range b.fetch(sessionFetch(r.SessionID, 1)).Topics {
		if rt.Topic == "other" {
			recs, next := readBatches(t, rt.Partitions[0].RecordBatches)
			require.Len(t, recs, 2)
			require.EqualValues(t, 2, next)
			return
		}
	}
	t.Fatal("not served as a mirror topic")
}

// A size limit starves no partition of a session.
func TestSessionOrderRotates(t *testing.T) {
	b := newBench(t)
	for p := range int32(3) {
		h := newHistory(t, b.sim.part("m", p))
		for range 4 {
			h.append(1, 0)
		}
		b.mirror("m", p, h.log)
	}
	q := sessionFetch(0, 0, wants("m", 0, 0), wants("m", 1, 0), wants("m", 2, 0))
	q.MaxBytes = 1
	r := b.fetch(q)
	given := map[int32]bool{}
	for e := int32(1); e < 4; e++ {
		for _, rt := range r.Topics {
			for _, p := range rt.Partitions {
				given[p.Partition] = given[p.Partition] || len(p.RecordBatches) > 0
			}
		}
		q = sessionFetch(r.SessionID, e)
		q.MaxBytes = 1
		r = b.fetch(q)
	}
	require.Equal(t, map[int32]bool{0: true, 1: true, 2: true}, given)
}

// H14: the high watermark is never the broker's own by its distance: dead zones
// lie in between.
func TestH14HighWatermark(t *testing.T) {
	b := newBench(t)
	h := newHistory(t, b.sim.part("m", 0))
	h.append(100, 0)
	h.append(50, 0)
	h.foreign(50)
	h.takeOver()
	h.append(10, 0)
	lp := b.mirror("m", 0, h.log)
	q := fetchOne(11, "m", [16]byte{}, 0, 1)
	p := only(t, b.fetch(q))
	require.EqualValues(t, 100, p.HighWatermark, "nobody has told the end: that of what is returned")
	lp.Checkpoint = h.checkpoint()
	p = only(t, b.fetch(q))
	require.EqualValues(t, 160, p.HighWatermark)
	require.EqualValues(t, 160, p.LastStableOffset)
	h.part.hw = 150 // the checkpoint's batch is not below it yet
	p = only(t, b.fetch(q))
	require.EqualValues(t, 100, p.HighWatermark)
	require.EqualValues(t, 150, offsetsOf(b, 7, protocol.TimestampLatest).Offset)
}

// H16: a direct writer's open transaction holds up the broker's last stable
// offset; read_committed readers of the mirror are not held up, and only this
// partition is read uncommitted.
func TestH16OpenTransactionInMirroredSpan(t *testing.T) {
	b := newBench(t)
	h := newHistory(t, b.sim.part("m", 0))
	h.append(3, 0)
	h.part.lso = 3
	h.foreign(1)
	h.append(2, 0)
	b.mirror("m", 0, h.log)
	other := b.sim.part("other", 0)
	other.put(dense(t, 0, 2, 5))
	other.lso = 0
	alarms := 0
	b.h.count.alarm = func(string, int32) { alarms++ }
	var got []liveRecord
	pos := int64(0)
	for range 4 {
		q := sessionFetch(0, -1, wants("m", 0, pos), wants("other", 0, 0))
		q.IsolationLevel = 1
		for _, rt := range b.fetch(q).Topics {
			recs, next := readBatches(t, rt.Partitions[0].RecordBatches)
			require.Zero(t, rt.Partitions[0].ErrorCode)
			if rt.Topic == "other" {
				require.Empty(t, recs, "read_committed stays what it is elsewhere")
				continue
			}
			require.Empty(t, rt.Partitions[0].AbortedTransactions)
			if got = append(got, recs...); next > pos {
				pos = next
			}
		}
	}
	require.Len(t, got, 5)
	require.EqualValues(t, 5, pos)
	require.Equal(t, 1, alarms)
}

// H16: what the broker said before the partition was asked for in another way
// lies in a buffer that was given back. If it leaves the partition out then, so
// does the proxy.
func TestH16LeftOutTheSecondTime(t *testing.T) {
	b := newBench(t)
	h := newHistory(t, b.sim.part("m", 0))
	h.append(3, 0)
	h.part.lso = 3
	h.foreign(1)
	h.append(2, 0)
	b.mirror("m", 0, h.log)
	uncommitted := 0
	b.sim.leaveOut = func(q *kmsg.FetchRequest, _ string, _ int32) bool {
		if q.MaxBytes > 1 && q.IsolationLevel == 0 && q.Version > 12 {
			uncommitted++
			return true
		}
		return false
	}
	q := sessionFetch(0, -1, wants("m", 0, 3))
	q.IsolationLevel = 1
	q.SetVersion(13)
	q.Topics[0].TopicID = b.id("m", 7)
	for _, rt := range b.fetch(q).Topics {
		require.Empty(t, rt.Partitions, "the broker said nothing of it")
	}
	require.Equal(t, 1, uncommitted)
}

// M10: one answer holds batches of one span.
func TestM10OneSpanAnAnswer(t *testing.T) {
	b := newBench(t)
	h := newHistory(t, b.sim.part("m", 0))
	h.append(2, 0)
	h.takeOver()
	h.append(2, 0)
	h.append(2, 0)
	b.mirror("m", 0, h.log)
	recs, next := readBatches(t, only(t, b.fetch(fetchOne(11, "m", [16]byte{}, 0, 1<<20))).RecordBatches)
	require.Len(t, recs, 2)
	require.EqualValues(t, 2, next)
	recs, _ = readBatches(t, only(t, b.fetch(fetchOne(11, "m", [16]byte{}, next, 1<<20))).RecordBatches)
	require.Len(t, recs, 4)
}

// M9: a renumbered batch comes back with its holes and its own end.
func TestM9RenumberedBatch(t *testing.T) {
	b := newBench(t)
	h := newHistory(t, b.sim.part("m", 0))
	h.append(2, 0)
	h.ts = 2000
	h.appendHoles(0, 4, 0, 3) // v2 at 2000, v5 at 2001, end 7
	h.append(1, 0)
	b.mirror("m", 0, h.log)
	for _, v := range []int64{2, 3, 5, 6} {
		b.st = &connState{}
		recs, next := readBatches(t, only(t, b.fetch(fetchOne(11, "m", [16]byte{}, v, 1))).RecordBatches)
		require.Len(t, recs, 2, "at %d", v)
		require.EqualValues(t, 2, recs[0].v)
		require.EqualValues(t, 5, recs[1].v)
		require.EqualValues(t, 7, next)
	}
	b.st = &connState{}
	recs, _ := readBatches(t, only(t, b.fetch(fetchOne(11, "m", [16]byte{}, 7, 1<<20))).RecordBatches)
	require.Len(t, recs, 1)
	h.part.batches = h.part.batches[:2] // and as the last batch, whose end stands in its records
	b.st = &connState{}
	require.EqualValues(t, 7, offsetsOf(b, 7, protocol.TimestampLatest).Offset)
	require.EqualValues(t, 2, offsetsOf(b, 7, 2000).Offset)
	require.EqualValues(t, 5, offsetsOf(b, 7, 2001).Offset, "the true offset stands in the record")
}

// M16: below Fetch v4 a broker would convert batches down, and stamps would go.
func TestM16OldFetch(t *testing.T) {
	b := newBench(t)
	h := newHistory(t, b.sim.part("m", 0))
	h.append(2, 0)
	b.mirror("m", 0, h.log)
	for version := range int16(4) {
		q := fetchOne(version, "m", [16]byte{}, 0, 1000)
		p := only(t, b.fetch(q))
		require.Equal(t, kerr.UnsupportedVersion.Code, p.ErrorCode)
		require.Empty(t, p.RecordBatches)
		require.True(t, b.run(fetchOne(version, "other", [16]byte{}, 0, 1000)).forwarded)
	}
}

// H2, F3: readers stop in front of a gap until the owner has ruled.
func TestH2GapStopsReaders(t *testing.T) {
	b := newBench(t)
	h := newHistory(t, b.sim.part("m", 0))
	h.append(3, 0)
	lost := *h
	h.append(2, 0)                                                                  // v3..4, refused by the broker
	h.part.batches, h.live = h.part.batches[:1], lost.live                          // gone
	h.part.put(stamp(t, dense(t, 5, 2, 1), protocol.Stamp{V: 5, Gen: 1, Epoch: 3})) // v5..6 landed
	b.mirror("m", 0, h.log)
	began := b.now
	p := only(t, b.fetch(fetchOne(11, "m", [16]byte{}, 3, 1<<20)))
	require.Zero(t, p.ErrorCode)
	require.Empty(t, p.RecordBatches)
	require.EqualValues(t, 500*time.Millisecond, b.now.Sub(began), "waits, and does not spin")
	recs, _ := readBatches(t, only(t, b.fetch(fetchOne(11, "m", [16]byte{}, 0, 1<<20))).RecordBatches)
	require.Len(t, recs, 3)

	// The owner rules: new generation at 3.
	h.vend, h.chain, h.pend = lost.vend, lost.chain, lost.pend
	h.takeOver()
	h.append(4, 0)
	b.mirror("m", 0, h.log)
	recs, _ = readBatches(t, only(t, b.fetch(fetchOne(11, "m", [16]byte{}, 3, 1<<20))).RecordBatches)
	require.Len(t, recs, 4)
	require.EqualValues(t, 3, recs[0].v)
}

// A batch of an epoch that this instance has not read back from the ledger is
// not shown yet.
func TestEpochNotReadBack(t *testing.T) {
	b := newBench(t)
	h := newHistory(t, b.sim.part("m", 0))
	h.append(2, 0)
	b.mirror("m", 0, h.log)
	h.src = 9
	h.append(2, 0)
	p := only(t, b.fetch(fetchOne(11, "m", [16]byte{}, 2, 1<<20)))
	require.Zero(t, p.ErrorCode)
	require.Empty(t, p.RecordBatches)
	require.EqualValues(t, 2, p.HighWatermark)
	b.mirror("m", 0, h.log)
	recs, _ := readBatches(t, only(t, b.fetch(fetchOne(11, "m", [16]byte{}, 2, 1<<20))).RecordBatches)
	require.Len(t, recs, 2)
}

// The broker's OFFSET_OUT_OF_RANGE speaks of physical offsets, and is never
// passed on: the log was looked at again, and then the client is asked to.
func TestPhysicalOutOfRange(t *testing.T) {
	b := newBench(t)
	h := newHistory(t, b.sim.part("m", 0))
	for range 6 {
		h.append(2, 0)
	}
	b.mirror("m", 0, h.log)
	q := fetchOne(11, "m", [16]byte{}, 0, 1)
	recs, next := readBatches(t, only(t, b.fetch(q)).RecordBatches)
	require.Len(t, recs, 2)
	q.Topics[0].Partitions[0].FetchOffset = next
	h.retain(6) // retention takes what the client stands at
	require.Equal(t, kerr.OffsetOutOfRange.Code, only(t, b.fetch(q)).ErrorCode, "virtually out of range, too")
	q.Topics[0].Partitions[0].FetchOffset = 6
	recs, _ = readBatches(t, only(t, b.fetch(q)).RecordBatches)
	require.Len(t, recs, 2)
	h.part.batches = h.part.batches[:1] // and the destination loses its tail: p8 on
	q.Topics[0].Partitions[0].FetchOffset = 8
	lp := b.view.parts[partKey{"m", 0}]
	lp.Checkpoint = h.checkpoint()
	p := only(t, b.fetch(q))
	require.NotEqual(t, kerr.OffsetOutOfRange.Code, p.ErrorCode)
	require.Empty(t, p.RecordBatches)
}

// A topic that was re-created behind our back has another id; fetched by it, it
// is no ordinary topic: nothing of it is shown with physical offsets (M22).
func TestM22StrangeTopicID(t *testing.T) {
	b := newBench(t)
	h := newHistory(t, b.sim.part("m", 0))
	h.append(2, 0)
	b.mirror("m", 0, h.log)
	known := b.id("m", 1)
	require.Zero(t, only(t, b.fetch(fetchOne(13, "", known, 0, 1000))).ErrorCode)
	again := [16]byte{15: 2}
	b.sim.ids[again] = "m"
	require.EqualValues(t, 15, b.h.shownEpoch("m", again, 0, 5)) // as Metadata shows it
	p := only(t, b.fetch(fetchOne(13, "", again, 0, 1000)))
	require.Equal(t, retryLater, p.ErrorCode)
	require.Empty(t, p.RecordBatches)
	// An id that nobody knows is the broker's business.
	require.True(t, b.run(fetchOne(13, "", [16]byte{15: 9}, 0, 1000)).forwarded)
}

// What the broker decides stays: a preferred replica, its errors, its epochs
// (shifted).
func TestFetchKeepsTheBrokersWord(t *testing.T) {
	b := newBench(t)
	h := newHistory(t, b.sim.part("m", 0))
	h.append(2, 0)
	b.mirror("m", 0, h.log)
	h.part.preferred = 3
	h.part.hw = 0
	p := only(t, b.fetch(fetchOne(11, "m", [16]byte{}, 0, 1000)))
	require.EqualValues(t, 3, p.PreferredReadReplica)
	h.part.preferred, h.part.hw = -1, -1

	q := fetchOne(12, "m", [16]byte{}, 0, 1000)
	for current, want := range map[int32]int16{14: kerr.FencedLeaderEpoch.Code, 15: 0, 16: kerr.UnknownLeaderEpoch.Code, 3: kerr.FencedLeaderEpoch.Code} {
		q.Topics[0].Partitions[0].CurrentLeaderEpoch = current
		require.Equal(t, want, only(t, b.fetch(q)).ErrorCode, "leader epoch %d", current)
	}
	q = fetchOne(12, "m", [16]byte{}, 0, 1000)
	q.Topics[0].Partitions[0].Partition = 8
	require.Equal(t, kerr.UnknownTopicOrPartition.Code, only(t, b.fetch(q)).ErrorCode)
}

// Data that comes during a long poll ends it.
func TestLongPollEndsWithData(t *testing.T) {
	b := newBench(t)
	h := newHistory(t, b.sim.part("m", 0))
	h.append(2, 0)
	b.mirror("m", 0, h.log)
	b.onWait = func() {
		b.onWait = nil
		h.foreign(3)
		h.append(1, 0)
		b.mirror("m", 0, h.log)
	}
	recs, _ := readBatches(t, only(t, b.fetch(fetchOne(11, "m", [16]byte{}, 2, 1000))).RecordBatches)
	require.Len(t, recs, 1)
}

// The log-append-time flag is shown as the timestamp type it stands for.
func TestLogAppendTimeComesBack(t *testing.T) {
	b := newBench(t)
	h := newHistory(t, b.sim.part("m", 0))
	batch := dense(t, 0, 2, 777)
	h.put(batch, 0, 2, epoch.FlagLogAppend)
	b.mirror("m", 0, h.log)
	p := only(t, b.fetch(fetchOne(11, "m", [16]byte{}, 0, 1000)))
	got, _, err := protocol.NextBatch(p.RecordBatches)
	require.NoError(t, err)
	require.True(t, got.LogAppendTime())
	require.True(t, got.CheckCRC())
}

// A new generation that cuts nothing of the source's begins, while a client waits
// in a long poll, below what the client has read, and its first batch reaches
// over that place: the client gets that batch, and no gap. (Found by the soak
// test: a produce of unknown outcome that readers had seen, then merged batches.)
func TestNewGenerationDuringLongPoll(t *testing.T) {
	b := newBench(t)
	h := newHistory(t, b.sim.part("m", 0))
	h.append(5, 0)
	h.append(5, 0)
	b.mirror("m", 0, h.log)
	w := wants("m", 0, 5)
	first := only(t, b.fetch(sessionFetch(0, -1, w)))
	require.NotEmpty(t, first.RecordBatches)
	b.onWait = func() {
		b.onWait = nil
		gen, err := h.log.NextGeneration(nil)
		require.NoError(t, err)
		h.log, err = h.log.Cut(5, h.part.end(), h.part.epoch, gen)
		require.NoError(t, err)
		h.vend, h.chain, h.pend = 5, 5, h.part.end()
		h.append(13, 0) // 5 … 17
		h.append(2, 0)
		b.mirror("m", 0, h.log).Live.Publish(ledger.Tail{VEnd: h.vend, Position: h.vend, PEnd: h.pend, PEpoch: h.part.epoch, EverShown: h.vend, Gen: gen})
	}
	w = wants("m", 0, 10)
	w.Partitions[0].CurrentLeaderEpoch = -1
	got := only(t, b.fetch(sessionFetch(0, -1, w)))
	if len(got.RecordBatches) == 0 {
		got = only(t, b.fetch(sessionFetch(0, -1, w)))
	}
	batch, _, err := protocol.NextBatch(got.RecordBatches)
	require.NoError(t, err)
	require.EqualValues(t, 5, batch.BaseOffset(), "the batch that holds offset 10")
	require.EqualValues(t, 18, batch.NextOffset())
}
