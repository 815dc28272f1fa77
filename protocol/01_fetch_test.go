package protocol

import (
	"encoding/hex"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/internal/wiregen"
)

func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.Join(strings.Fields(s), ""))
	require.NoError(t, err)
	return b
}

func TestFetchEveryVersion(t *testing.T) {
	var q FetchRequest
	var r FetchResponse
	var parts Parts
	for v := int16(0); v <= fetchMax; v++ {
		for i := range 60 {
			rnd := rand.New(rand.NewPCG(uint64(v), uint64(i)))
			kq := kmsg.NewPtrFetchRequest()
			wiregen.Fill(rnd, kq, true)
			kq.Version = v
			in := kq.AppendTo(nil)
			require.NoError(t, q.Decode(v, in))
			require.Equal(t, in, q.AppendTo(nil), "v%d", v)
			requireFetchRequest(t, kq, &q)

			kr := kmsg.NewPtrFetchResponse()
			wiregen.Fill(rnd, kr, true)
			kr.Version = v
			body := kr.AppendTo(nil)
			require.NoError(t, r.Decode(v, body))
			requireFetchResponse(t, kr, &r)
			r.Encode(&parts)
			require.Equal(t, body, parts.Append(nil), "v%d", v)
			require.Equal(t, len(body), parts.Size())
		}
	}
	require.ErrorIs(t, q.Decode(19, nil), ErrUnknownVersion)
	require.ErrorIs(t, r.Decode(-1, nil), ErrUnknownVersion)
}

func requireFetchRequest(t *testing.T, k *kmsg.FetchRequest, q *FetchRequest) {
	t.Helper()
	v := k.Version
	require.Equal(t, len(k.Topics), len(q.Topics))
	require.Equal(t, k.MaxWaitMillis, q.MaxWaitMillis)
	if v >= 15 {
		require.Equal(t, k.ReplicaState.ID, q.ReplicaID)
	} else {
		require.Equal(t, k.ReplicaID, q.ReplicaID)
	}
	for i, kt := range k.Topics {
		qt := q.Topics[i]
		if v >= 13 {
			require.Equal(t, kt.TopicID, qt.ID)
		} else {
			require.Equal(t, kt.Topic, qt.Name)
		}
		require.Equal(t, len(kt.Partitions), len(qt.Partitions))
		for j, kp := range kt.Partitions {
			qp := qt.Partitions[j]
			require.Equal(t, kp.Partition, qp.Partition)
			require.Equal(t, kp.FetchOffset, qp.FetchOffset)
			require.Equal(t, kp.PartitionMaxBytes, qp.MaxBytes)
			if v >= 9 {
				require.Equal(t, kp.CurrentLeaderEpoch, qp.CurrentLeaderEpoch)
			} else {
				require.EqualValues(t, -1, qp.CurrentLeaderEpoch)
			}
			if v >= 12 {
				require.Equal(t, kp.LastFetchedEpoch, qp.LastFetchedEpoch)
			} else {
				require.EqualValues(t, -1, qp.LastFetchedEpoch)
			}
		}
	}
	if v >= 7 {
		require.Equal(t, k.SessionID, q.SessionID)
		require.Equal(t, k.SessionEpoch, q.SessionEpoch)
		require.Equal(t, len(k.ForgottenTopics), len(q.Forgotten))
		for i, f := range k.ForgottenTopics {
			require.Equal(t, len(f.Partitions), len(q.Forgotten[i].Partitions))
		}
	} else {
		require.EqualValues(t, -1, q.SessionEpoch)
	}
}

func requireFetchResponse(t *testing.T, k *kmsg.FetchResponse, r *FetchResponse) {
	t.Helper()
	require.Equal(t, len(k.Topics), len(r.Topics))
	for i, kt := range k.Topics {
		rt := r.Topics[i]
		require.Equal(t, len(kt.Partitions), len(rt.Partitions))
		for j, kp := range kt.Partitions {
			p := rt.Partitions[j]
			require.Equal(t, kp.Partition, p.Partition)
			require.Equal(t, kp.ErrorCode, p.ErrorCode)
			require.Equal(t, kp.HighWatermark, p.HighWatermark)
			if len(kp.RecordBatches) == 0 { // null or empty; the re-encoded bytes tell which
				require.Empty(t, slices.Concat(p.Records...))
			} else {
				require.Len(t, p.Records, 1)
				require.Equal(t, kp.RecordBatches, p.Records[0])
			}
			if k.Version >= 4 {
				require.Equal(t, len(kp.AbortedTransactions), len(p.Aborted))
			}
			if k.Version >= 12 {
				require.Equal(t, LeaderEpoch{true, kp.CurrentLeader.LeaderID, kp.CurrentLeader.LeaderEpoch, p.CurrentLeader.Tags}, p.CurrentLeader)
				require.Equal(t, kp.DivergingEpoch.EndOffset, p.Diverging.EndOffset)
				require.Equal(t, kp.SnapshotID.Epoch, p.Snapshot.Epoch)
			} else {
				require.False(t, p.CurrentLeader.Set)
			}
		}
	}
	if k.Version >= 16 {
		require.Equal(t, len(k.Brokers), len(r.NodeEndpoints))
	}
}

// Bodies by hand from the message definitions, one partition each.
func TestFetchRequestGolden(t *testing.T) {
	const fixed4 = `ffffffff 000001f4 00000001 00100000 01`
	for v, in := range map[int16]string{
		4:  fixed4 + `00000001 0001 74 00000001 00000002 0000000000000005 00000400`,
		11: fixed4 + `00000007 00000001 00000001 0001 74 00000001 00000002 00000009 0000000000000005 ffffffffffffffff 00000400 00000001 0001 75 00000001 00000003 0001 72`,
		12: fixed4 + `00000007 00000001 02 02 74 02 00000002 00000009 0000000000000005 00000008 ffffffffffffffff 00000400 00 00 02 02 75 02 00000003 00 02 72 00`,
		13: fixed4 + `00000007 00000001 02 000102030405060708090a0b0c0d0e0f 02 00000002 00000009 0000000000000005 00000008 ffffffffffffffff 00000400 00 00 01 02 72 00`,
		// Replica state {id −1, epoch −1} as tag 1, cluster id "c" as tag 0.
		16: `000001f4 00000001 00100000 01 00000007 00000001 02 000102030405060708090a0b0c0d0e0f 02 00000002 00000009 0000000000000005 00000008 ffffffffffffffff 00000400 00 00 01 02 72 02 00 02 02 63 01 0d ffffffff ffffffffffffffff 00`,
		// Partition tag 1: high watermark 5.
		18: `000001f4 00000001 00100000 01 00000007 00000001 02 000102030405060708090a0b0c0d0e0f 02 00000002 00000009 0000000000000005 00000008 ffffffffffffffff 00000400 01 01 08 0000000000000005 00 01 02 72 00`,
	} {
		body := unhex(t, in)
		var q FetchRequest
		require.NoError(t, q.Decode(v, body), "v%d", v)
		p := q.Topics[0].Partitions[0]
		require.EqualValues(t, 2, p.Partition)
		require.EqualValues(t, 5, p.FetchOffset)
		require.EqualValues(t, 1024, p.MaxBytes)
		require.EqualValues(t, 1, q.IsolationLevel)
		require.EqualValues(t, -1, q.ReplicaID)
		require.EqualValues(t, 500, q.MaxWaitMillis)
		if v >= 11 {
			require.EqualValues(t, 7, q.SessionID)
			require.EqualValues(t, 9, p.CurrentLeaderEpoch)
			require.Equal(t, "r", q.Rack)
		}
		if v >= 12 {
			require.EqualValues(t, 8, p.LastFetchedEpoch)
		}
		require.Equal(t, body, q.AppendTo(nil), "v%d", v)
		require.NoError(t, DecodeBody(v, body, kmsg.NewPtrFetchRequest()))
	}
}

func TestFetchResponseGolden(t *testing.T) {
	const (
		id = `000102030405060708090a0b0c0d0e0f`
		p4 = `00000002 0000 000000000000000a 0000000000000009 `
		p5 = p4 + `0000000000000003 `
		p  = `00000002 0006 000000000000000a 0000000000000009 0000000000000003 01 ffffffff 04 616263 `
	)
	for v, in := range map[int16]string{
		4:  `00000000 00000001 0001 74 00000001` + p4 + `ffffffff 00000003 616263`,
		11: `00000000 0000 00000007 00000001 0001 74 00000001` + p5 + `00000001 0000000000000063 0000000000000004 ffffffff 00000003 616263`,
		12: `00000000 0000 00000007 02 02 74 02` + p + `01 01 09 00000001 00000007 00 00 00`,
		13: `00000000 0000 00000007 02` + id + `02` + p + `03 00 0d 00000005 0000000000000009 00 01 09 00000001 00000007 00 02 0d 0000000000000001 00000002 00 00 00`,
		16: `00000000 0000 00000007 02` + id + `02` + p + `01 01 09 00000001 00000007 00 00 01 00 0e 02 00000001 02 62 00002384 02 72 00`,
		18: `00000000 0000 00000007 02` + id + `02` + p + `02 01 09 00000001 00000007 00 63 01 7a 00 02 00 0d 02 00000001 02 62 00002384 00 00 64 01 79`,
	} {
		body := unhex(t, in)
		var r FetchResponse
		require.NoError(t, r.Decode(v, body), "v%d", v)
		p := r.Topics[0].Partitions[0]
		require.EqualValues(t, 10, p.HighWatermark)
		require.EqualValues(t, 9, p.LastStableOffset)
		require.Equal(t, "abc", string(p.Records[0]))
		require.EqualValues(t, -1, p.PreferredReplica)
		if v >= 12 {
			require.EqualValues(t, 1, p.CurrentLeader.Leader)
			require.EqualValues(t, 7, p.CurrentLeader.Epoch)
		}
		if v == 13 {
			require.Equal(t, EpochEnd{Set: true, Epoch: 5, EndOffset: 9}, p.Diverging)
			require.Equal(t, EpochEnd{Set: true, Epoch: 2, EndOffset: 1}, p.Snapshot)
		}
		if v >= 16 {
			require.Equal(t, "b", r.NodeEndpoints[0].Host)
			r.MapEndpoints(func(int32, string, int32) (string, int32, bool) { return "b", 9092, true })
		}
		var parts Parts
		r.Encode(&parts)
		require.Equal(t, body, parts.Append(nil), "v%d", v)
	}
}

// What a broker never sends but Kafka allows: nulls, empty parts, several pieces of records.
func TestFetchResponseShapes(t *testing.T) {
	for _, v := range []int16{4, 11, 12, 18} {
		var r FetchResponse
		r.Reset(v)
		topic := r.AddTopic("t", [16]byte{1})
		p := topic.AddPartition(3)
		p.Records = append(p.Records, []byte("ab"), nil, []byte("cd"))
		p.AbortedNull = true
		q := topic.AddPartition(4)
		q.RecordsNull = true
		q.Diverging = EpochEnd{Set: true, Epoch: 0, EndOffset: 0}
		topic.AddPartition(5)
		var parts Parts
		r.Encode(&parts)
		k := kmsg.NewPtrFetchResponse()
		require.NoError(t, DecodeBody(v, parts.Append(nil), k))
		ps := k.Topics[0].Partitions
		require.Equal(t, "abcd", string(ps[0].RecordBatches))
		require.Nil(t, ps[0].AbortedTransactions)
		require.Nil(t, ps[1].RecordBatches)
		require.NotNil(t, ps[2].RecordBatches)
		require.EqualValues(t, -1, ps[2].PreferredReadReplica)
		require.EqualValues(t, -1, ps[2].DivergingEpoch.Epoch)
		if v >= 12 {
			require.EqualValues(t, 0, ps[1].DivergingEpoch.Epoch)
		}
		var again FetchResponse
		require.NoError(t, again.Decode(v, parts.Append(nil)))
		require.True(t, again.Topics[0].Partitions[1].RecordsNull)
		require.True(t, again.Topics[0].Partitions[0].AbortedNull)
		require.False(t, again.Topics[0].Partitions[2].AbortedNull)
	}
}

// The payload is not copied: pieces alias the body, and the value lets go on Reset.
func TestFetchResponseAliases(t *testing.T) {
	body := manyPartitions(3, 100)
	var r FetchResponse
	require.NoError(t, r.Decode(13, body))
	var parts Parts
	r.Encode(&parts)
	bufs := parts.Bufs()
	require.Len(t, bufs, 7)
	bufs[1][0] ^= 0xff
	require.NotEqual(t, manyPartitions(3, 100), body)
	r.Reset(13)
	parts.Reset()
	for _, p := range r.Topics[:1][0].Partitions[:3] {
		require.Empty(t, p.Records)
		require.Nil(t, p.Records[:1][0])
	}
	require.Nil(t, parts.cuts[:1][0].payload)
}

func TestFetchBrokenInput(t *testing.T) {
	for _, v := range []int16{4, 11, 12, 13, 18} {
		rnd := rand.New(rand.NewPCG(7, uint64(v)))
		kq, kr := kmsg.NewPtrFetchRequest(), kmsg.NewPtrFetchResponse()
		wiregen.Fill(rnd, kq, true)
		wiregen.Fill(rnd, kr, true)
		kq.Version, kr.Version = v, v
		q, r := kq.AppendTo(nil), kr.AppendTo(nil)
		for n := range q {
			require.Error(t, new(FetchRequest).Decode(v, q[:n]), "v%d cut at %d", v, n)
		}
		for n := range r {
			require.Error(t, new(FetchResponse).Decode(v, r[:n]), "v%d cut at %d", v, n)
		}
		require.ErrorIs(t, new(FetchRequest).Decode(v, append(q, 0)), ErrTrailing)
		require.ErrorIs(t, new(FetchResponse).Decode(v, append(r, 0)), ErrTrailing)
	}
}

// manyPartitions is a v13 body with one topic of n partitions of size bytes.
func manyPartitions(n, size int) []byte {
	r := kmsg.NewPtrFetchResponse()
	r.Version = 13
	topic := kmsg.NewFetchResponseTopic()
	for i := range n {
		p := kmsg.NewFetchResponseTopicPartition()
		p.Partition, p.HighWatermark = int32(i), 1000
		p.RecordBatches = make([]byte, size)
		topic.Partitions = append(topic.Partitions, p)
	}
	r.Topics = append(r.Topics, topic)
	return r.AppendTo(nil)
}

func TestFetchReuseAllocatesNothing(t *testing.T) {
	body := manyPartitions(100, 1<<10)
	var r FetchResponse
	var parts Parts
	run := func() {
		if err := r.Decode(13, body); err != nil {
			t.Fatal(err)
		}
		r.Encode(&parts)
		parts.Bufs()
	}
	run()
	require.Zero(t, testing.AllocsPerRun(20, run))
}

func BenchmarkFetchResponse100Partitions(b *testing.B) {
	body := manyPartitions(100, 16<<10)
	var r FetchResponse
	var parts Parts
	b.SetBytes(int64(len(body)))
	b.ReportAllocs()
	for b.Loop() {
		if err := r.Decode(13, body); err != nil {
			b.Fatal(err)
		}
		r.Encode(&parts)
		if len(parts.Bufs()) != 201 {
			b.Fatal("pieces")
		}
	}
}

func BenchmarkFetchRequest100Partitions(b *testing.B) {
	var q FetchRequest
	q.Reset(13)
	topic := q.AddTopic("", [16]byte{1})
	for i := range 100 {
		topic.Partitions = append(topic.Partitions, NewFetchRequestPartition(int32(i)))
	}
	body := q.AppendTo(nil)
	dst := body[:0:0]
	b.ReportAllocs()
	for b.Loop() {
		if err := q.Decode(13, body); err != nil {
			b.Fatal(err)
		}
		dst = q.AppendTo(dst[:0])
	}
}
