package e2e_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/plain"

	"github.com/lockstep-kafka/lockstep/internal/kconn"
	"github.com/lockstep-kafka/lockstep/internal/testkafka/content"
)

// question is one request about a topic; its version is the highest that all know, at most Max when that is given.
type question struct {
	name string
	max  int16
	req  func(topic string, id [16]byte) kmsg.Request
}

// fill makes requests of one kind.
func fill[R kmsg.Request](req R, set func(r R, topic string, id [16]byte)) func(string, [16]byte) kmsg.Request {
	return func(topic string, id [16]byte) kmsg.Request {
		r := reflect.New(reflect.TypeOf(req).Elem()).Interface().(R)
		if d, ok := any(r).(interface{ Default() }); ok {
			d.Default()
		}
		set(r, topic, id)
		return r
	}
}

const shareMember = "AAAAAAAAAAAAAAAAAAAAAQ"

func questions() []question {
	group := "g"
	return []question{
		{"Metadata", 0, fill(&kmsg.MetadataRequest{}, func(r *kmsg.MetadataRequest, topic string, _ [16]byte) {
			r.Topics = []kmsg.MetadataRequestTopic{{Topic: &topic}}
			r.IncludeTopicAuthorizedOperations = true
		})},
		{"Metadata by id", 0, fill(&kmsg.MetadataRequest{}, func(r *kmsg.MetadataRequest, _ string, id [16]byte) {
			r.Topics = []kmsg.MetadataRequestTopic{{TopicID: id}}
		})},
		{"Metadata of all", 0, fill(&kmsg.MetadataRequest{}, func(r *kmsg.MetadataRequest, _ string, _ [16]byte) { r.Topics = nil })},
		{"DescribeTopicPartitions", 0, fill(&kmsg.DescribeTopicPartitionsRequest{}, func(r *kmsg.DescribeTopicPartitionsRequest, topic string, _ [16]byte) {
			r.Topics = []kmsg.DescribeTopicPartitionsRequestTopic{{Topic: topic}}
			r.ResponsePartitionLimit = 10
		})},
		{"Produce", 12, produceRequest},
		{"Produce by id", 0, produceRequest},
		{"Fetch", 12, fetchRequest},
		{"Fetch by id", 0, fetchRequest},
		{"ListOffsets", 0, fill(&kmsg.ListOffsetsRequest{}, func(r *kmsg.ListOffsetsRequest, topic string, _ [16]byte) {
			r.ReplicaID = -1
			p := kmsg.NewListOffsetsRequestTopicPartition()
			p.Timestamp = -1
			r.Topics = []kmsg.ListOffsetsRequestTopic{{Topic: topic, Partitions: []kmsg.ListOffsetsRequestTopicPartition{p}}}
		})},
		{"OffsetForLeaderEpoch", 0, fill(&kmsg.OffsetForLeaderEpochRequest{}, func(r *kmsg.OffsetForLeaderEpochRequest, topic string, _ [16]byte) {
			r.ReplicaID = -1
			p := kmsg.NewOffsetForLeaderEpochRequestTopicPartition()
			r.Topics = []kmsg.OffsetForLeaderEpochRequestTopic{{Topic: topic, Partitions: []kmsg.OffsetForLeaderEpochRequestTopicPartition{p}}}
		})},
		{"DeleteRecords", 0, fill(&kmsg.DeleteRecordsRequest{}, func(r *kmsg.DeleteRecordsRequest, topic string, _ [16]byte) {
			r.TimeoutMillis = 5000
			r.Topics = []kmsg.DeleteRecordsRequestTopic{{Topic: topic, Partitions: []kmsg.DeleteRecordsRequestTopicPartition{{Offset: 1}}}}
		})},
		{"DeleteTopics by names", 5, fill(&kmsg.DeleteTopicsRequest{}, func(r *kmsg.DeleteTopicsRequest, topic string, _ [16]byte) {
			r.TimeoutMillis, r.TopicNames = 5000, []string{topic}
		})},
		{"DeleteTopics", 0, fill(&kmsg.DeleteTopicsRequest{}, func(r *kmsg.DeleteTopicsRequest, topic string, _ [16]byte) {
			r.TimeoutMillis, r.Topics = 5000, []kmsg.DeleteTopicsRequestTopic{{Topic: &topic}}
		})},
		{"DeleteTopics by id", 0, fill(&kmsg.DeleteTopicsRequest{}, func(r *kmsg.DeleteTopicsRequest, _ string, id [16]byte) {
			r.TimeoutMillis, r.Topics = 5000, []kmsg.DeleteTopicsRequestTopic{{TopicID: id}}
		})},
		{"CreatePartitions", 0, fill(&kmsg.CreatePartitionsRequest{}, func(r *kmsg.CreatePartitionsRequest, topic string, _ [16]byte) {
			r.TimeoutMillis, r.Topics = 5000, []kmsg.CreatePartitionsRequestTopic{{Topic: topic, Count: 2}}
		})},
		{"CreateTopics", 0, fill(&kmsg.CreateTopicsRequest{}, func(r *kmsg.CreateTopicsRequest, topic string, _ [16]byte) {
			r.TimeoutMillis, r.Topics = 5000, []kmsg.CreateTopicsRequestTopic{{Topic: topic, NumPartitions: 1, ReplicationFactor: 1}}
		})},
		{"AlterConfigs", 0, fill(&kmsg.AlterConfigsRequest{}, func(r *kmsg.AlterConfigsRequest, topic string, _ [16]byte) {
			v := "compact"
			r.Resources = []kmsg.AlterConfigsRequestResource{{ResourceType: kmsg.ConfigResourceTypeTopic, ResourceName: topic, Configs: []kmsg.AlterConfigsRequestResourceConfig{{Name: "cleanup.policy", Value: &v}}}}
		})},
		{"IncrementalAlterConfigs", 0, fill(&kmsg.IncrementalAlterConfigsRequest{}, func(r *kmsg.IncrementalAlterConfigsRequest, topic string, _ [16]byte) {
			v := "compact"
			r.Resources = []kmsg.IncrementalAlterConfigsRequestResource{{ResourceType: kmsg.ConfigResourceTypeTopic, ResourceName: topic, Configs: []kmsg.IncrementalAlterConfigsRequestResourceConfig{{Name: "cleanup.policy", Value: &v}}}}
		})},
		{"DescribeConfigs", 0, fill(&kmsg.DescribeConfigsRequest{}, func(r *kmsg.DescribeConfigsRequest, topic string, _ [16]byte) {
			r.Resources = []kmsg.DescribeConfigsRequestResource{{ResourceType: kmsg.ConfigResourceTypeTopic, ResourceName: topic}}
		})},
		{"DescribeProducers", 0, fill(&kmsg.DescribeProducersRequest{}, func(r *kmsg.DescribeProducersRequest, topic string, _ [16]byte) {
			r.Topics = []kmsg.DescribeProducersRequestTopic{{Topic: topic, Partitions: []int32{0}}}
		})},
		{"ShareFetch", 0, fill(&kmsg.ShareFetchRequest{}, func(r *kmsg.ShareFetchRequest, _ string, id [16]byte) {
			member := shareMember
			r.GroupID, r.MemberID, r.MaxBytes, r.MaxRecords, r.BatchSize = &group, &member, 1<<20, 10, 10
			r.Topics = []kmsg.ShareFetchRequestTopic{{TopicID: id, Partitions: []kmsg.ShareFetchRequestTopicPartition{{}}}}
		})},
		{"ShareAcknowledge", 0, fill(&kmsg.ShareAcknowledgeRequest{}, func(r *kmsg.ShareAcknowledgeRequest, _ string, id [16]byte) {
			member := "AAAAAAAAAAAAAAAAAAAAAg" // without a session
			r.GroupID, r.MemberID, r.ShareSessionEpoch = &group, &member, 1
			r.Topics = []kmsg.ShareAcknowledgeRequestTopic{{TopicID: id, Partitions: []kmsg.ShareAcknowledgeRequestTopicPartition{{}}}}
		})},
		{"DescribeShareGroupOffsets", 0, fill(&kmsg.DescribeShareGroupOffsetsRequest{}, func(r *kmsg.DescribeShareGroupOffsetsRequest, topic string, _ [16]byte) {
			r.Groups = []kmsg.DescribeShareGroupOffsetsRequestGroup{{GroupID: "sg", Topics: []kmsg.DescribeShareGroupOffsetsRequestGroupTopic{{Topic: topic, Partitions: []int32{0}}}}}
		})},
		{"AlterShareGroupOffsets", 0, fill(&kmsg.AlterShareGroupOffsetsRequest{}, func(r *kmsg.AlterShareGroupOffsetsRequest, topic string, _ [16]byte) {
			r.GroupID = "sg"
			r.Topics = []kmsg.AlterShareGroupOffsetsRequestTopic{{Topic: topic, Partitions: []kmsg.AlterShareGroupOffsetsRequestTopicPartition{{}}}}
		})},
		{"OffsetCommit", 9, fill(&kmsg.OffsetCommitRequest{}, func(r *kmsg.OffsetCommitRequest, topic string, _ [16]byte) {
			r.Group, r.Generation = group, -1
			r.Topics = []kmsg.OffsetCommitRequestTopic{{Topic: topic, Partitions: []kmsg.OffsetCommitRequestTopicPartition{{Offset: 1, LeaderEpoch: -1}}}}
		})},
		{"OffsetCommit by id", 0, fill(&kmsg.OffsetCommitRequest{}, func(r *kmsg.OffsetCommitRequest, _ string, id [16]byte) {
			r.Group, r.Generation = group, -1
			r.Topics = []kmsg.OffsetCommitRequestTopic{{TopicID: id, Partitions: []kmsg.OffsetCommitRequestTopicPartition{{Offset: 1, LeaderEpoch: -1}}}}
		})},
		{"OffsetFetch", 9, offsetFetchRequest},
		{"OffsetFetch by id", 0, offsetFetchRequest},
		{"OffsetDelete", 0, fill(&kmsg.OffsetDeleteRequest{}, func(r *kmsg.OffsetDeleteRequest, topic string, _ [16]byte) {
			r.Group = group
			r.Topics = []kmsg.OffsetDeleteRequestTopic{{Topic: topic, Partitions: []kmsg.OffsetDeleteRequestTopicPartition{{}}}}
		})},
		{"TxnOffsetCommit", 0, fill(&kmsg.TxnOffsetCommitRequest{}, func(r *kmsg.TxnOffsetCommitRequest, topic string, _ [16]byte) {
			r.TransactionalID, r.Group, r.ProducerID, r.Generation = "x", group, 1, -1
			r.Topics = []kmsg.TxnOffsetCommitRequestTopic{{Topic: topic, Partitions: []kmsg.TxnOffsetCommitRequestTopicPartition{{Offset: 1, LeaderEpoch: -1}}}}
		})},
		{"AddPartitionsToTxn", 3, fill(&kmsg.AddPartitionsToTxnRequest{}, func(r *kmsg.AddPartitionsToTxnRequest, topic string, _ [16]byte) {
			r.TransactionalID, r.ProducerID = "x", 1
			r.Topics = []kmsg.AddPartitionsToTxnRequestTopic{{Topic: topic, Partitions: []int32{0}}}
		})},
	}
}

func produceRequest(topic string, id [16]byte) kmsg.Request {
	r := kmsg.NewPtrProduceRequest()
	r.Acks, r.TimeoutMillis = -1, 5000
	r.Topics = []kmsg.ProduceRequestTopic{{Topic: topic, TopicID: id, Partitions: []kmsg.ProduceRequestTopicPartition{{Records: content.Batch(1_700_000_000_000, "k", "v")}}}}
	return r
}

func fetchRequest(topic string, id [16]byte) kmsg.Request {
	r := kmsg.NewPtrFetchRequest()
	r.SessionEpoch, r.MaxBytes = -1, 1<<20
	p := kmsg.NewFetchRequestTopicPartition()
	p.PartitionMaxBytes = 1 << 20
	r.Topics = []kmsg.FetchRequestTopic{{Topic: topic, TopicID: id, Partitions: []kmsg.FetchRequestTopicPartition{p}}}
	return r
}

func offsetFetchRequest(topic string, id [16]byte) kmsg.Request {
	r := kmsg.NewPtrOffsetFetchRequest()
	g := kmsg.NewOffsetFetchRequestGroup()
	g.Group = "g"
	g.Topics = []kmsg.OffsetFetchRequestGroupTopic{{Topic: topic, TopicID: id, Partitions: []int32{0}}}
	r.Groups = []kmsg.OffsetFetchRequestGroup{g}
	return r
}

// said is what an answer says: all error codes, by where they stand; with full, everything but addresses, times and
// texts. Texts that speak of mirrors are told in any case.
func said(v reflect.Value, path string, full bool, out *[]string) {
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() {
			said(v.Elem(), path, full, out)
		}
	case reflect.Slice:
		if v.Type().Elem().Kind() == reflect.Uint8 {
			if full {
				*out = append(*out, fmt.Sprintf("%s=%x", path, v.Bytes()))
			}
			return
		}
		if full {
			*out = append(*out, fmt.Sprintf("%s: %d", path, v.Len()))
		}
		for i := range v.Len() {
			said(v.Index(i), fmt.Sprintf("%s[%d]", path, i), full, out)
		}
	case reflect.Struct:
		for i := range v.NumField() {
			f := v.Type().Field(i)
			switch {
			case path == ".Topics[0]" && f.Name == "TopicID" && isAlterShare(v): // the proxy leaves it out
			case !f.IsExported(), f.Name == "Version", f.Name == "ThrottleMillis", f.Name == "Brokers", f.Name == "NodeEndpoints", f.Name == "UnknownTags":
			case strings.HasSuffix(f.Name, "ErrorMessage"):
				if m, ok := v.Field(i).Interface().(*string); ok && m != nil && strings.Contains(*m, "mirror") {
					*out = append(*out, path+"."+f.Name+" speaks of mirrors")
				}
			default:
				said(v.Field(i), path+"."+f.Name, full, out)
			}
		}
	default:
		if code := strings.HasSuffix(path, "ErrorCode"); code {
			*out = append(*out, fmt.Sprintf("%s=%v", path, kerr.TypedErrorForCode(int16(v.Int()))))
		} else if full {
			*out = append(*out, fmt.Sprintf("%s=%v", path, v.Interface()))
		}
	}
}

func isAlterShare(v reflect.Value) bool {
	return v.Type() == reflect.TypeFor[kmsg.AlterShareGroupOffsetsResponseTopic]()
}

// byDesign are the differences that DESIGN.md wants, for clients that have the right to do it: user/request/topic, and
// the code that the proxy answers.
var byDesign = map[string]string{
	"reader/ShareFetch/moving":  "INVALID_REQUEST",
	"reader/ShareFetch/stopped": "INVALID_REQUEST",

	"describer/DescribeShareGroupOffsets/moving":  "INVALID_REQUEST",
	"describer/DescribeShareGroupOffsets/stopped": "INVALID_REQUEST",
	"reader/DescribeShareGroupOffsets/moving":     "INVALID_REQUEST",
	"reader/DescribeShareGroupOffsets/stopped":    "INVALID_REQUEST",
	"reader/AlterShareGroupOffsets/moving":        "INVALID_REQUEST",
	"reader/AlterShareGroupOffsets/stopped":       "INVALID_REQUEST",
}

// authorisation asks broker and proxy the same, as several users, about mirror topics and others: the proxy tells
// nobody more than the broker does.
func (s *secured) authorisation(ctx context.Context) {
	t := s.t
	_, err := s.dstAdm.CreateTopic(ctx, 1, 1, nil, "else")
	require.NoError(t, err)
	all := []kadm.ACLOperation{kadm.OpRead, kadm.OpWrite, kadm.OpDescribe, kadm.OpDelete, kadm.OpAlter, kadm.OpAlterConfigs, kadm.OpDescribeConfigs}
	s.allow(ctx, kadm.NewACLs().Groups("g", "sg").TransactionalIDs("x").Allow("User:other", "User:describer", "User:reader").Operations(kadm.OpAll))
	s.allow(ctx, kadm.NewACLs().Topics("else").Allow("User:other").Operations(all...))
	s.allow(ctx, kadm.NewACLs().Topics("moving", "stopped").Allow("User:describer").Operations(kadm.OpDescribe))
	s.allow(ctx, kadm.NewACLs().Topics("moving", "stopped").Allow("User:reader").Operations(kadm.OpRead))

	listed, err := s.dstAdm.ListTopicsWithInternal(ctx)
	require.NoError(t, err)
	var wrong []string
	asked := 0
	for _, user := range []string{"nobody", "other", "describer", "reader"} {
		dial := func(addr string) *kconn.Conn {
			d := &kconn.Dialer{
				TLS:  func(string) *tls.Config { c := s.tls(); c.ServerName = "127.0.0.1"; return c },
				SASL: []sasl.Mechanism{plain.Auth{User: user, Pass: clientPassword}.AsMechanism()},
			}
			c, err := d.Init().Dial(ctx, addr)
			require.NoError(t, err)
			return c
		}
		direct, through := dial(s.dstAddr), dial(s.l.BrokerAddr(1))
		for _, q := range questions() {
			for _, topic := range []string{"moving", "stopped", "else", "nowhere", "__mirror_state"} {
				if user == "other" && topic == "else" {
					continue // may do it
				}
				id := [16]byte(listed[topic].ID)
				if topic == "nowhere" {
					id = [16]byte(bytes.Repeat([]byte{7}, 16))
				}
				var got [2][]string
				for i, c := range []*kconn.Conn{direct, through} {
					req := q.req(topic, id)
					hi := req.MaxVersion()
					if q.max > 0 {
						hi = q.max
					}
					for _, other := range []*kconn.Conn{direct, through} {
						v, err := other.Version(req.Key(), 0, hi)
						require.NoError(t, err, q.name)
						hi = min(hi, v)
					}
					req.SetVersion(hi)
					resp, err := c.Request(ctx, req)
					require.NoError(t, err, "%s %s %s at %s", user, q.name, topic, c.Addr())
					said(reflect.ValueOf(resp), "", user == "nobody" || user == "other", &got[i])
				}
				asked++
				where := user + "/" + q.name + "/" + topic
				if want, ok := byDesign[where]; ok {
					if !slices.ContainsFunc(got[1], func(x string) bool { return strings.HasSuffix(x, "="+want) || strings.Contains(x, "="+want+":") }) {
						wrong = append(wrong, fmt.Sprintf("%s: %v, want %s", where, got[1], want))
					}
					continue
				}
				if !slices.Equal(got[0], got[1]) {
					wrong = append(wrong, fmt.Sprintf("%s:\n  broker  %v\n  through %v", where, got[0], got[1]))
				}
			}
		}
		_ = direct.Close()
		_ = through.Close()
	}
	require.Empty(t, wrong, "%d of %d differ:\n%s", len(wrong), asked, strings.Join(wrong, "\n"))
	t.Logf("%d questions, answered alike", asked)
}
