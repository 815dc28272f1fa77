package proxy

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/epoch"
	"github.com/lockstep-kafka/lockstep/protocol"
)

func produceReq(acks int16, topics map[string][]byte) *kmsg.ProduceRequest {
	q := kmsg.NewPtrProduceRequest()
	q.Version, q.Acks, q.TimeoutMillis = 9, acks, 1000
	for _, name := range []string{"m", "other"} {
		if records, ok := topics[name]; ok {
			p := kmsg.NewProduceRequestTopicPartition()
			p.Records = records
			q.Topics = append(q.Topics, kmsg.ProduceRequestTopic{Topic: name, Partitions: []kmsg.ProduceRequestTopicPartition{p}})
		}
	}
	return q
}

func produceOne(b *bench, batch protocol.Batch) kmsg.ProduceResponseTopicPartition {
	r := respond[*kmsg.ProduceResponse](b, produceReq(-1, map[string][]byte{"m": batch}))
	require.Len(b.t, r.Topics, 1)
	return r.Topics[0].Partitions[0]
}

func deleteOne(b *bench, offset int64) kmsg.DeleteRecordsResponseTopicPartition {
	q := kmsg.NewPtrDeleteRecordsRequest()
	q.Version, q.TimeoutMillis = 2, 1000
	q.Topics = []kmsg.DeleteRecordsRequestTopic{{Topic: "m", Partitions: []kmsg.DeleteRecordsRequestTopicPartition{{Partition: 0, Offset: offset}}}}
	return respond[*kmsg.DeleteRecordsResponse](b, q).Topics[0].Partitions[0]
}

// M15: writing to a mirror fails at once with a message that names mirror and
// state; the rest of a mixed request is served; acks=0 closes the connection.
func TestM15ProduceIsRefused(t *testing.T) {
	b, h := chainBench(t)
	before := h.part.end()
	a := produceOne(b, dense(t, 0, 1, 5))
	require.Equal(t, kerr.PolicyViolation.Code, a.ErrorCode)
	require.NotNil(t, a.ErrorMessage)
	require.Contains(t, *a.ErrorMessage, "dc1")
	require.Contains(t, *a.ErrorMessage, "MIRRORING")
	require.EqualValues(t, -1, a.BaseOffset)

	other := b.sim.part("other", 0)
	both := map[string][]byte{"m": dense(t, 0, 1, 5), "other": dense(t, 0, 3, 5)}
	r := respond[*kmsg.ProduceResponse](b, produceReq(-1, both))
	require.Len(t, r.Topics, 2)
	for _, rt := range r.Topics {
		want := int16(0)
		if rt.Topic == "m" {
			want = kerr.PolicyViolation.Code
		}
		require.Equal(t, want, rt.Partitions[0].ErrorCode, rt.Topic)
	}
	require.EqualValues(t, 3, other.end())
	require.Equal(t, before, h.part.end(), "nothing was written to the mirror")

	res := b.run(produceReq(0, both))
	require.Equal(t, ReasonAcks0Refused, res.closed)
	require.ErrorContains(t, res.err, "dc1")
	require.EqualValues(t, 3, other.end())

	require.True(t, b.run(produceReq(-1, map[string][]byte{"other": both["other"]})).forwarded)
	require.False(t, b.h.concerns(protocol.RequestHeader{Key: 0, Version: 9}, produceReq(-1, map[string][]byte{"other": both["other"]}).AppendTo(nil)))
	require.True(t, b.h.concerns(protocol.RequestHeader{Key: 0, Version: 9}, produceReq(-1, both).AppendTo(nil)))
}

// stopped makes the bench's partition a STOPPED one with a native span.
func stopped(t *testing.T, b *bench, h *history) {
	l, err := h.log.OpenNative(h.vend, h.part.end(), h.part.epoch, 1000)
	require.NoError(t, err)
	b.mirror("m", 0, l.WithLiveEnd(h.pend))
	b.view.parts[partKey{"m", 0}].Record.State = epoch.StateStopped
}

// M14: a batch that looks like a stamp is never passed on to a mirror topic.
func TestM14StampsFromClients(t *testing.T) {
	b, h := chainBench(t)
	stopped(t, b, h)
	before := h.part.end()
	a := produceOne(b, stamp(t, dense(t, 0, 1, 5), protocol.Stamp{V: 4, Epoch: 3}))
	require.Equal(t, kerr.InvalidRecord.Code, a.ErrorCode)
	require.Equal(t, before, h.part.end())
}

// H8: a Produce answer is mapped by the span that contains its base.
func TestH8ProduceToStopped(t *testing.T) {
	b, h := chainBench(t)
	h.foreign(5)
	stopped(t, b, h)
	a := produceOne(b, dense(t, 0, 1, 5))
	require.Zero(t, a.ErrorCode)
	require.EqualValues(t, 12, a.BaseOffset)
	p := b.view.parts[partKey{"m", 0}]
	_, ok := nativeOffset(p, 3)
	require.False(t, ok, "in a mirrored span")
	// Read back: unstamped, shifted, with the span's own bump.
	f := respond[*kmsg.FetchResponse](b, fetchOne(11, "m", [16]byte{}, 12, 1000)).Topics[0].Partitions[0]
	recs, next := readBatches(t, f.RecordBatches)
	require.Len(t, recs, 1)
	require.EqualValues(t, 12, recs[0].v)
	require.Equal(t, h.part.epoch+p.Log.Bump, recs[0].epoch)
	require.Equal(t, next, f.HighWatermark)
	require.EqualValues(t, 13, offsetsOf(b, 7, protocol.TimestampLatest).Offset)
}

// M7: DeleteRecords on a mirror is refused, and deletes nothing.
func TestM7DeleteRecordsIsRefused(t *testing.T) {
	b, h := chainBench(t)
	for _, offset := range []int64{3, -1} {
		a := deleteOne(b, offset)
		require.Equal(t, kerr.PolicyViolation.Code, a.ErrorCode)
		require.EqualValues(t, -1, a.LowWatermark)
	}
	require.Zero(t, h.part.start)
}

// M13: leader epochs shown are physical + bump, -1 stays, and never below the
// newest epoch of the records.
func TestM13MetadataEpochs(t *testing.T) {
	b, _ := chainBench(t)
	r := kmsg.NewPtrMetadataResponse()
	r.Version = 9
	for _, name := range []string{"m", "other"} {
		topic := kmsg.NewMetadataResponseTopic()
		topic.Topic = kmsg.StringPtr(name)
		for _, e := range []int32{5, -1} {
			p := kmsg.NewMetadataResponseTopicPartition()
			p.LeaderEpoch = e
			topic.Partitions = append(topic.Partitions, p)
		}
		r.Topics = append(r.Topics, topic)
	}
	body, err := b.h.response(3, 9, r.AppendTo(nil))
	require.NoError(t, err)
	require.NoError(t, r.ReadFrom(body))
	require.EqualValues(t, 15, r.Topics[0].Partitions[0].LeaderEpoch)
	require.EqualValues(t, -1, r.Topics[0].Partitions[1].LeaderEpoch)
	require.EqualValues(t, 5, r.Topics[1].Partitions[0].LeaderEpoch)

	p := b.view.parts[partKey{"m", 0}]
	p.Record.Log.Bump = 0
	require.EqualValues(t, 7, b.h.shownEpoch("m", [16]byte{}, 0, 5), "never below the records'")
	// Fetch agrees with what metadata shows.
	f := fetchOne(12, "m", [16]byte{}, 0, 1000)
	f.Topics[0].Partitions[0].CurrentLeaderEpoch = 7
	require.Zero(t, respond[*kmsg.FetchResponse](b, f).Topics[0].Partitions[0].ErrorCode)
	f.Topics[0].Partitions[0].CurrentLeaderEpoch = 4
	require.Equal(t, kerr.FencedLeaderEpoch.Code, respond[*kmsg.FetchResponse](b, f).Topics[0].Partitions[0].ErrorCode)
	f.Topics[0].Partitions[0].CurrentLeaderEpoch = 8
	require.Equal(t, kerr.UnknownLeaderEpoch.Code, respond[*kmsg.FetchResponse](b, f).Topics[0].Partitions[0].ErrorCode)
}

// takes buffers nothing while there is no mirror topic.
func TestTakes(t *testing.T) {
	b := newBench(t)
	require.False(t, b.h.takes(protocol.RequestHeader{Key: 1, Version: 12}))
	b.mirror("m", 0, logOf(t))
	for key := range int16(92) {
		want := slices.Contains([]int16{0, 1, 2, 20, 21, 23, 33, 37, 44, 78, 79, 91}, key)
		require.Equal(t, want, b.h.takes(protocol.RequestHeader{Key: key}), "key %d", key)
	}
}
