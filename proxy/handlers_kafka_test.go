package proxy

import (
	"context"
	"encoding/binary"
	"io"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/internal/testkafka"
	"github.com/lockstep-kafka/lockstep/protocol"
)

// What the refusals and look-ups rely on in a broker, on real Kafka: an empty
// produce, and a deletion up to offset 0, are authorised first and then change
// nothing; a fetch of one byte returns one whole batch.
func TestBrokerFactsOfHandlers(t *testing.T) {
	c := testkafka.Start(t, testkafka.Options{Props: map[string]string{
		"authorizer.class.name":          "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
		"allow.everyone.if.no.acl.found": "true",
		"super.users":                    "User:nobody",
	}})
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	cl, err := kgo.NewClient(kgo.SeedBrokers(c.Bootstrap()))
	require.NoError(t, err)
	defer cl.Close()
	adm := kadm.NewClient(cl)
	raw := dialFacts(t, c.Addr(1))
	for _, topic := range []string{"open", "denied"} {
		_, err := adm.CreateTopic(ctx, 1, 1, nil, topic)
		require.NoError(t, err)
		for _, b := range []protocol.Batch{dense(t, 0, 3, 1000), dense(t, 3, 2, 1000)} {
			require.Eventually(t, func() bool {
				q := kmsg.NewPtrProduceRequest()
				q.Acks, q.TimeoutMillis = -1, 5000
				b.SetBase(0, -1)
				q.Topics = []kmsg.ProduceRequestTopic{{Topic: topic, Partitions: []kmsg.ProduceRequestTopicPartition{{Records: b}}}}
				q.Version = 9
				r := factAsk[*kmsg.ProduceResponse](raw, q)
				return r.Topics[0].Partitions[0].ErrorCode == 0
			}, 30*time.Second, 100*time.Millisecond)
		}
	}
	acls := kadm.NewACLs().Topics("denied").Deny("User:ANONYMOUS").DenyHosts().
		Operations(kadm.OpWrite, kadm.OpDelete).ResourcePatternType(kadm.ACLPatternLiteral)
	_, err = adm.CreateACLs(ctx, acls)
	require.NoError(t, err)
	allow := kadm.NewACLs().Topics("denied").Allow("User:ANONYMOUS").AllowHosts().
		Operations(kadm.OpRead, kadm.OpDescribe).ResourcePatternType(kadm.ACLPatternLiteral)
	_, err = adm.CreateACLs(ctx, allow)
	require.NoError(t, err)

	for _, version := range []int16{3, 7, 9, 12} {
		for topic, want := range map[string]int16{
			"open": kerr.InvalidRecord.Code, "denied": kerr.TopicAuthorizationFailed.Code, "missing": kerr.UnknownTopicOrPartition.Code,
		} {
			require.Eventually(t, func() bool {
				q := kmsg.NewPtrProduceRequest()
				q.Acks, q.TimeoutMillis = -1, 5000
				q.Topics = []kmsg.ProduceRequestTopic{{Topic: topic, Partitions: []kmsg.ProduceRequestTopicPartition{{Records: []byte{}}}}}
				q.Version = version
				r := factAsk[*kmsg.ProduceResponse](raw, q)
				code := r.Topics[0].Partitions[0].ErrorCode
				t.Logf("empty produce v%d to %s: %v", version, topic, kerr.ErrorForCode(code))
				return code == want
			}, 10*time.Second, 100*time.Millisecond, "produce v%d to %s", version, topic)
		}
	}
	for topic, want := range map[string]int16{"open": 0, "denied": kerr.TopicAuthorizationFailed.Code} {
		q := kmsg.NewPtrDeleteRecordsRequest()
		q.TimeoutMillis = 5000
		q.Topics = []kmsg.DeleteRecordsRequestTopic{{Topic: topic, Partitions: []kmsg.DeleteRecordsRequestTopicPartition{{Offset: 0}}}}
		q.Version = 2
		r := factAsk[*kmsg.DeleteRecordsResponse](raw, q)
		require.Equal(t, want, r.Topics[0].Partitions[0].ErrorCode, topic)
	}
	start, err := adm.ListStartOffsets(ctx, "open")
	require.NoError(t, err)
	end, err := adm.ListEndOffsets(ctx, "open")
	require.NoError(t, err)
	s, _ := start.Lookup("open", 0)
	e, _ := end.Lookup("open", 0)
	require.EqualValues(t, 0, s.Offset)
	require.EqualValues(t, 5, e.Offset, "the empty produce wrote nothing")

	for _, c := range []struct{ from, base int64 }{{0, 0}, {1, 0}, {3, 3}, {4, 3}} {
		q := fetchOne(12, "open", [16]byte{}, c.from, 1)
		q.MaxBytes = 1
		q.Version = 12
		r := factAsk[*kmsg.FetchResponse](raw, q)
		b, rest, err := protocol.NextBatch(r.Topics[0].Partitions[0].RecordBatches)
		require.NoError(t, err)
		require.Equal(t, c.base, b.BaseOffset())
		require.Empty(t, rest, "one batch, the one that holds the offset")
	}
}

// franz-go through the whole proxy, on real Kafka.
func TestMirrorOverKafka(t *testing.T) {
	c := testkafka.Start(t, testkafka.Options{})
	cl, err := kgo.NewClient(kgo.SeedBrokers(c.Seeds()...))
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	_, err = kadm.NewClient(cl).CreateTopics(ctx, 1, 1, map[string]*string{"retention.ms": kadm.StringPtr("-1")}, "m", "other")
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		m, err := kadm.NewClient(cl).Metadata(ctx, "m", "other")
		return err == nil && m.Topics["m"].Partitions[0].Leader >= 0 && m.Topics["other"].Partitions[0].Leader >= 0 && len(m.Topics) == 2
	}, 30*time.Second, 50*time.Millisecond)
	cl.Close()
	readMirrorWithFranz(t, c.Seeds())
}

// factConn sends requests in the version they say.
type factConn struct {
	t *testing.T
	c net.Conn
}

func dialFacts(t *testing.T, addr string) *factConn {
	c, err := net.Dial("tcp", addr)
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	return &factConn{t, c}
}

func factAsk[R kmsg.Response](r *factConn, q kmsg.Request) R {
	frame := protocol.AppendRequestHeader(make([]byte, 4), q.Key(), q.GetVersion(), 1, []byte("facts"))
	frame = q.AppendTo(frame)
	binary.BigEndian.PutUint32(frame, uint32(len(frame)-4))
	require.NoError(r.t, r.c.SetDeadline(time.Now().Add(time.Minute)))
	_, err := r.c.Write(frame)
	require.NoError(r.t, err)
	var size [4]byte
	_, err = io.ReadFull(r.c, size[:])
	require.NoError(r.t, err)
	body := make([]byte, binary.BigEndian.Uint32(size[:]))
	_, err = io.ReadFull(r.c, body)
	require.NoError(r.t, err)
	_, n, err := protocol.ParseResponseHeader(q.Key(), q.GetVersion(), body)
	require.NoError(r.t, err)
	resp := q.ResponseKind()
	require.NoError(r.t, resp.ReadFrom(body[n:]))
	return resp.(R)
}
