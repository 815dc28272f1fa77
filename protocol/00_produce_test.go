package protocol

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/internal/wiregen"
)

const policyViolation = 44

func TestProduceEveryVersion(t *testing.T) {
	var q ProduceRequest
	var parts Parts
	for v := int16(0); v <= produceMax; v++ {
		for i := range 60 {
			rnd := rand.New(rand.NewPCG(uint64(v), uint64(i)))
			k := kmsg.NewPtrProduceRequest()
			wiregen.Fill(rnd, k, true)
			k.Version = v
			body := k.AppendTo(nil)
			require.NoError(t, q.Decode(v, body))
			require.Equal(t, v < 3, q.OldRecords())
			require.Equal(t, k.Acks, q.Acks)
			require.Equal(t, k.TimeoutMillis, q.TimeoutMillis)
			if v >= 3 && k.TransactionID != nil {
				require.Equal(t, *k.TransactionID, string(q.TransactionalID))
			} else {
				require.Nil(t, q.TransactionalID)
			}
			q.EncodeAllowed(&parts)
			require.Equal(t, body, parts.Append(nil), "v%d: nothing refused, nothing changed", v)
			refuseSome(t, rnd, k, &q, body)
			q.EncodeAllowed(&parts)
			require.Equal(t, k.AppendTo(nil), parts.Append(nil), "v%d", v)
		}
	}
	require.ErrorIs(t, q.Decode(14, nil), ErrUnknownVersion)
}

// refuseSome refuses at random in q, and removes the same from k.
func refuseSome(t *testing.T, rnd *rand.Rand, k *kmsg.ProduceRequest, q *ProduceRequest, body []byte) {
	t.Helper()
	topics := k.Topics[:0]
	refused, all := 0, 0
	for i, kt := range k.Topics {
		had := len(kt.Partitions)
		kept := kt.Partitions[:0]
		for j, kp := range kt.Partitions {
			p := &q.Topics[i].Partitions[j]
			require.Equal(t, kp.Partition, p.Partition)
			require.Equal(t, string(kp.Records), string(p.Records))
			require.Equal(t, string(kp.Records), string(body[p.RecordsStart:p.RecordsEnd]))
			all++
			if rnd.IntN(2) == 0 {
				p.Refuse(policyViolation, "mirror m is MIRRORING")
				require.True(t, p.Refused())
				refused++
				continue
			}
			kept = append(kept, kp)
		}
		kt.Partitions = kept
		if len(kept) > 0 || had == 0 {
			topics = append(topics, kt)
		}
	}
	k.Topics = topics
	gotRefused, gotAll := q.Count()
	require.Equal(t, refused, gotRefused)
	require.Equal(t, all, gotAll)
}

func TestProduceAnswers(t *testing.T) {
	for v := int16(0); v <= produceMax; v++ {
		k := kmsg.NewPtrProduceRequest()
		k.Version, k.Acks = v, 1
		for i, name := range []string{"a", "b", "c"} {
			topic := kmsg.ProduceRequestTopic{Topic: name, TopicID: [16]byte{byte(i + 1)}}
			for p := range int32(2) {
				topic.Partitions = append(topic.Partitions, kmsg.ProduceRequestTopicPartition{Partition: p, Records: []byte("xyz")})
			}
			k.Topics = append(k.Topics, topic)
		}
		var q ProduceRequest
		require.NoError(t, q.Decode(v, k.AppendTo(nil)))
		// a-0, b-0 and b-1 refused; the broker answers a-1, c-0, c-1.
		for _, p := range []*ProducePartition{&q.Topics[0].Partitions[0], &q.Topics[1].Partitions[0], &q.Topics[1].Partitions[1]} {
			p.Refuse(policyViolation, "mirror m is MIRRORING")
		}

		alone := kmsg.NewPtrProduceResponse()
		require.NoError(t, DecodeBody(v, q.AppendAnswer(nil), alone))
		require.Len(t, alone.Topics, 2)
		require.Len(t, alone.Topics[0].Partitions, 1)
		require.Len(t, alone.Topics[1].Partitions, 2)

		broker := kmsg.NewPtrProduceResponse()
		broker.Version, broker.ThrottleMillis = v, 17
		for _, i := range []int{2, 0} {
			topic := kmsg.NewProduceResponseTopic()
			topic.Topic, topic.TopicID = k.Topics[i].Topic, k.Topics[i].TopicID
			if v >= 13 {
				topic.Topic = ""
			}
			p := kmsg.NewProduceResponseTopicPartition()
			p.Partition, p.BaseOffset = 1, 77
			topic.Partitions = append(topic.Partitions, p)
			broker.Topics = append(broker.Topics, topic)
		}
		if v >= 9 {
			broker.UnknownTags.Set(99, []byte("kept"))
		}
		merged, err := q.MergeAnswer(broker.AppendTo(nil))
		require.NoError(t, err)
		got := kmsg.NewPtrProduceResponse()
		require.NoError(t, DecodeBody(v, merged, got))
		require.Len(t, got.Topics, 3)
		seen := map[string]int16{}
		for _, topic := range got.Topics {
			name := topic.Topic
			if v >= 13 {
				name = string('a' + rune(topic.TopicID[0]) - 1)
			}
			for _, p := range topic.Partitions {
				seen[name+string('0'+p.Partition)] = p.ErrorCode
				if p.ErrorCode == 0 {
					require.EqualValues(t, 77, p.BaseOffset)
					continue
				}
				require.EqualValues(t, -1, p.BaseOffset)
				if v >= 8 {
					require.Equal(t, "mirror m is MIRRORING", *p.ErrorMessage)
				}
				require.EqualValues(t, -1, p.LogAppendTime)
			}
		}
		require.Equal(t, map[string]int16{"a0": 44, "a1": 0, "b0": 44, "b1": 44, "c1": 0}, seen)
		if v >= 1 {
			require.EqualValues(t, 17, got.ThrottleMillis)
		}
		if v >= 9 {
			require.Equal(t, 1, got.UnknownTags.Len())
		}
		_, err = q.MergeAnswer([]byte{1})
		require.Error(t, err)
	}
}

// Bodies by hand: acks −1, timeout 500, topic "t" (or an id), partition 2, records "abc".
func TestProduceGolden(t *testing.T) {
	for v, in := range map[int16]string{
		0:  `ffff 000001f4 00000001 0001 74 00000001 00000002 00000003 616263`,
		3:  `ffff ffff 000001f4 00000001 0001 74 00000001 00000002 00000003 616263`,
		9:  `00 ffff 000001f4 02 02 74 02 00000002 04 616263 00 01 05 01 7a 00`,
		13: `03 7478 ffff 000001f4 02 000102030405060708090a0b0c0d0e0f 02 00000002 04 616263 00 00 00`,
	} {
		body := unhex(t, in)
		var q ProduceRequest
		require.NoError(t, q.Decode(v, body), "v%d", v)
		require.EqualValues(t, -1, q.Acks)
		p := q.Topics[0].Partitions[0]
		require.EqualValues(t, 2, p.Partition)
		require.Equal(t, "abc", string(p.Records))
		if v == 13 {
			require.Equal(t, "tx", string(q.TransactionalID))
			require.EqualValues(t, 15, q.Topics[0].ID[15])
		} else {
			require.Equal(t, "t", q.Topics[0].Name)
		}
		for n := range body {
			require.Error(t, new(ProduceRequest).Decode(v, body[:n]), "v%d cut at %d", v, n)
		}
		q.Topics[0].Partitions[0].Refuse(44, "no")
		var parts Parts
		q.EncodeAllowed(&parts)
		k := kmsg.NewPtrProduceRequest()
		require.NoError(t, DecodeBody(v, parts.Append(nil), k))
		require.Empty(t, k.Topics)
	}
	// v9 answer by hand: topic t, partition 2, error 44, offsets −1, no record errors, message "no".
	var q ProduceRequest
	require.NoError(t, q.Decode(9, unhex(t, `00 ffff 000001f4 02 02 74 02 00000002 04 616263 00 00 00`)))
	q.Topics[0].Partitions[0].Refuse(44, "no")
	require.Equal(t, unhex(t, `02 02 74 02 00000002 002c ffffffffffffffff ffffffffffffffff ffffffffffffffff 01 03 6e6f 00 00 00000000 00`), q.AppendAnswer(nil))
}

// Null records, null and empty transactional ids.
func TestProduceNulls(t *testing.T) {
	for _, v := range []int16{3, 8, 9, 13} {
		for _, id := range []*string{nil, kmsg.StringPtr("")} {
			k := kmsg.NewPtrProduceRequest()
			k.Version, k.TransactionID = v, id
			k.Topics = []kmsg.ProduceRequestTopic{{Partitions: []kmsg.ProduceRequestTopicPartition{{Partition: 1}, {Partition: 2, Records: []byte{}}}}}
			var q ProduceRequest
			require.NoError(t, q.Decode(v, k.AppendTo(nil)))
			require.Equal(t, id == nil, q.TransactionalID == nil)
			require.Nil(t, q.Topics[0].Partitions[0].Records)
			require.NotNil(t, q.Topics[0].Partitions[1].Records)
		}
	}
}

func BenchmarkProduceWalk100Partitions(b *testing.B) {
	k := kmsg.NewPtrProduceRequest()
	k.Version = 13
	k.Topics = []kmsg.ProduceRequestTopic{{TopicID: [16]byte{1}}}
	for i := range int32(100) {
		k.Topics[0].Partitions = append(k.Topics[0].Partitions, kmsg.ProduceRequestTopicPartition{Partition: i, Records: make([]byte, 16<<10)})
	}
	body := k.AppendTo(nil)
	var q ProduceRequest
	b.SetBytes(int64(len(body)))
	b.ReportAllocs()
	for b.Loop() {
		if err := q.Decode(13, body); err != nil {
			b.Fatal(err)
		}
	}
}
