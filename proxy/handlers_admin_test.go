package proxy

import (
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/epoch"
	"github.com/lockstep-kafka/lockstep/internal/ledger"
	"github.com/lockstep-kafka/lockstep/protocol"
)

// adminBroker answers administrators: topics it deletes, grows or configures
// are noted in did.
type adminBroker struct {
	t     testing.TB
	b     *bench
	did   []string
	tried []string // with validate_only
	sizes map[string]string
	may   int32
	group int16 // share requests' error
}

func newAdminBroker(t testing.TB, b *bench) *adminBroker {
	a := &adminBroker{t: t, b: b, sizes: map[string]string{}, may: mayRead | mayDelete}
	b.sim.admin = a.answer
	return a
}

func (a *adminBroker) note(topic string, trial bool) int16 {
	if trial {
		a.tried = append(a.tried, topic)
	} else {
		a.did = append(a.did, topic)
	}
	return a.b.sim.deny[topic][0]
}

func (a *adminBroker) answer(req kmsg.Request) kmsg.Response {
	resp := req.ResponseKind()
	switch q := req.(type) {
	case *kmsg.MetadataRequest:
		require.True(a.t, q.IncludeTopicAuthorizedOperations)
		require.False(a.t, q.AllowAutoTopicCreation)
		for _, t := range q.Topics {
			rt := kmsg.NewMetadataResponseTopic()
			rt.Topic, rt.TopicID, rt.AuthorizedOperations = t.Topic, t.TopicID, a.may
			r := resp.(*kmsg.MetadataResponse)
			r.Topics = append(r.Topics, rt)
		}
	case *kmsg.DeleteTopicsRequest:
		r := resp.(*kmsg.DeleteTopicsResponse)
		for _, name := range q.TopicNames {
			rt := kmsg.NewDeleteTopicsResponseTopic()
			rt.Topic, rt.ErrorCode = &name, a.note(name, false)
			r.Topics = append(r.Topics, rt)
		}
		for _, t := range q.Topics {
			rt := kmsg.NewDeleteTopicsResponseTopic()
			name := a.b.sim.ids[t.TopicID]
			if t.Topic != nil {
				name = *t.Topic
			}
			rt.Topic, rt.TopicID, rt.ErrorCode = &name, t.TopicID, a.note(name, false)
			r.Topics = append(r.Topics, rt)
		}
	case *kmsg.CreatePartitionsRequest:
		r := resp.(*kmsg.CreatePartitionsResponse)
		for _, t := range q.Topics {
			rt := kmsg.NewCreatePartitionsResponseTopic()
			rt.Topic, rt.ErrorCode = t.Topic, a.note(t.Topic, q.ValidateOnly)
			r.Topics = append(r.Topics, rt)
		}
	case *kmsg.AlterConfigsRequest:
		r := resp.(*kmsg.AlterConfigsResponse)
		for _, t := range q.Resources {
			rt := kmsg.NewAlterConfigsResponseResource()
			rt.ResourceType, rt.ResourceName, rt.ErrorCode = t.ResourceType, t.ResourceName, a.note(t.ResourceName, q.ValidateOnly)
			r.Resources = append(r.Resources, rt)
		}
	case *kmsg.IncrementalAlterConfigsRequest:
		r := resp.(*kmsg.IncrementalAlterConfigsResponse)
		for _, t := range q.Resources {
			rt := kmsg.NewIncrementalAlterConfigsResponseResource()
			rt.ResourceType, rt.ResourceName, rt.ErrorCode = t.ResourceType, t.ResourceName, a.note(t.ResourceName, q.ValidateOnly)
			r.Resources = append(r.Resources, rt)
		}
	case *kmsg.DescribeConfigsRequest:
		r := resp.(*kmsg.DescribeConfigsResponse)
		for _, t := range q.Resources {
			rt := kmsg.NewDescribeConfigsResponseResource()
			rt.ResourceName = t.ResourceName
			for _, name := range t.ConfigNames {
				c := kmsg.NewDescribeConfigsResponseResourceConfig()
				c.Name, c.Value = name, kmsg.StringPtr(a.sizes[t.ResourceName])
				rt.Configs = append(rt.Configs, c)
			}
			r.Resources = append(r.Resources, rt)
		}
	case *kmsg.ShareFetchRequest:
		r := resp.(*kmsg.ShareFetchResponse)
		r.ErrorCode = a.group
		for _, t := range q.Topics {
			rt := kmsg.NewShareFetchResponseTopic()
			rt.TopicID = t.TopicID
			rt.Partitions = append(rt.Partitions, kmsg.NewShareFetchResponseTopicPartition())
			r.Topics = append(r.Topics, rt)
		}
	case *kmsg.ShareAcknowledgeRequest, *kmsg.AlterShareGroupOffsetsRequest:
	default:
		require.FailNow(a.t, "unexpected", "%T", req)
	}
	return resp
}

// M17: deleting a mirrored topic is refused, by name and by id; the others in
// the request go, and the answers come in the request's order.
func TestM17DeleteTopics(t *testing.T) {
	b, h := chainBench(t)
	a := newAdminBroker(t, b)
	q := kmsg.NewPtrDeleteTopicsRequest()
	q.Version = 5
	q.TopicNames = []string{"x", "m", "y"}
	r := respond[*kmsg.DeleteTopicsResponse](b, q)
	require.Len(t, r.Topics, 3)
	for i, name := range q.TopicNames {
		require.Equal(t, name, *r.Topics[i].Topic)
		if name == "m" {
			require.Equal(t, kerr.PolicyViolation.Code, r.Topics[i].ErrorCode)
			require.Contains(t, *r.Topics[i].ErrorMessage, "dc1")
			require.Contains(t, *r.Topics[i].ErrorMessage, "MIRRORING")
		} else {
			require.Zero(t, r.Topics[i].ErrorCode)
		}
	}
	require.Equal(t, []string{"x", "y"}, a.did)

	id, other := b.id("m", 1), b.id("x", 2)
	q = kmsg.NewPtrDeleteTopicsRequest()
	q.Version = 6
	for _, id := range [][16]byte{id, other} {
		q.Topics = append(q.Topics, kmsg.DeleteTopicsRequestTopic{TopicID: id})
	}
	r = respond[*kmsg.DeleteTopicsResponse](b, q)
	require.Equal(t, kerr.PolicyViolation.Code, r.Topics[0].ErrorCode)
	require.Equal(t, id, r.Topics[0].TopicID)
	require.Equal(t, other, r.Topics[1].TopicID)
	require.Zero(t, r.Topics[1].ErrorCode)

	// Who may not delete it hears that, and nothing of mirrors.
	a.may = mayRead
	r = respond[*kmsg.DeleteTopicsResponse](b, q)
	require.Equal(t, kerr.TopicAuthorizationFailed.Code, r.Topics[0].ErrorCode)
	require.Nil(t, r.Topics[0].ErrorMessage)
	require.Nil(t, r.Topics[0].Topic)

	stopped(t, b, h)
	require.True(t, b.run(q).forwarded)
	b.view.parts[partKey{"m", 1}] = &ledger.Partition{Topic: "m", Partition: 1, Err: errStuck}
	require.False(t, b.run(q).forwarded, "a partition whose record can't be read")
}

// M17: partitions are not added while a topic is mirrored.
func TestM17CreatePartitions(t *testing.T) {
	b, h := chainBench(t)
	a := newAdminBroker(t, b)
	q := kmsg.NewPtrCreatePartitionsRequest()
	q.Version = 3
	for _, name := range []string{"x", "m"} {
		q.Topics = append(q.Topics, kmsg.CreatePartitionsRequestTopic{Topic: name, Count: 9})
	}
	r := respond[*kmsg.CreatePartitionsResponse](b, q)
	require.Equal(t, "x", r.Topics[0].Topic)
	require.Zero(t, r.Topics[0].ErrorCode)
	require.Equal(t, kerr.PolicyViolation.Code, r.Topics[1].ErrorCode)
	require.Equal(t, []string{"x"}, a.did)
	require.Equal(t, []string{"m"}, a.tried)
	b.sim.deny["m"] = map[int16]int16{0: kerr.TopicAuthorizationFailed.Code}
	r = respond[*kmsg.CreatePartitionsResponse](b, q)
	require.Equal(t, kerr.TopicAuthorizationFailed.Code, r.Topics[1].ErrorCode)
	stopped(t, b, h)
	require.True(t, b.run(q).forwarded)
}

func incrementalReq(topic string, configs ...kmsg.IncrementalAlterConfigsRequestResourceConfig) *kmsg.IncrementalAlterConfigsRequest {
	q := kmsg.NewPtrIncrementalAlterConfigsRequest()
	q.Version = 1
	for _, name := range []string{topic, "x"} {
		r := kmsg.NewIncrementalAlterConfigsRequestResource()
		r.ResourceType, r.ResourceName, r.Configs = kmsg.ConfigResourceTypeTopic, name, configs
		q.Resources = append(q.Resources, r)
	}
	return q
}

func setConfig(name, value string) kmsg.IncrementalAlterConfigsRequestResourceConfig {
	return kmsg.IncrementalAlterConfigsRequestResourceConfig{Name: name, Value: &value}
}

// M17: configs that a mirror relies on can't be changed under it; harmless ones
// can.
func TestM17Configs(t *testing.T) {
	b, h := chainBench(t)
	a := newAdminBroker(t, b)
	a.sizes["m"] = "1000"
	for _, c := range []struct {
		name, value string
		refused     bool
	}{
		{"cleanup.policy", "compact", true},
		{"message.timestamp.type", "LogAppendTime", true},
		{"compression.type", "zstd", true},
		{"min.compaction.lag.ms", "0", true},
		{"max.message.bytes", "999", true},
		{"max.message.bytes", "1000", false},
		{"max.message.bytes", "nonsense", false}, // the broker's to refuse
		{"retention.ms", "1", false},
		{"delete.retention.ms", "1", false},
	} {
		a.did, a.tried = nil, nil
		q := incrementalReq("m", setConfig("retention.bytes", "7"), setConfig(c.name, c.value))
		res := b.run(q)
		require.Equal(t, !c.refused, res.forwarded, c.name)
		if !c.refused {
			continue
		}
		r := kmsg.NewPtrIncrementalAlterConfigsResponse()
		r.Version = 1
		require.NoError(t, r.ReadFrom(res.body))
		require.Equal(t, "m", r.Resources[0].ResourceName)
		require.Equal(t, kerr.PolicyViolation.Code, r.Resources[0].ErrorCode)
		require.Contains(t, *r.Resources[0].ErrorMessage, c.name)
		require.Zero(t, r.Resources[1].ErrorCode)
		require.Equal(t, []string{"x"}, a.did)
		require.Equal(t, []string{"m"}, a.tried)
	}
	drop := kmsg.IncrementalAlterConfigsRequestResourceConfig{Name: "max.message.bytes", Op: kmsg.IncrementalAlterConfigOpDelete}
	require.False(t, b.run(incrementalReq("m", drop)).forwarded)

	whole := kmsg.NewPtrAlterConfigsRequest()
	whole.Version = 1
	for _, name := range []string{"x", "m"} {
		rc := kmsg.NewAlterConfigsRequestResource()
		rc.ResourceType, rc.ResourceName = kmsg.ConfigResourceTypeTopic, name
		rc.Configs = []kmsg.AlterConfigsRequestResourceConfig{{Name: "retention.ms", Value: kmsg.StringPtr("1")}}
		whole.Resources = append(whole.Resources, rc)
	}
	r := respond[*kmsg.AlterConfigsResponse](b, whole)
	require.Zero(t, r.Resources[0].ErrorCode)
	require.Equal(t, kerr.PolicyViolation.Code, r.Resources[1].ErrorCode)

	stopped(t, b, h)
	require.True(t, b.run(whole).forwarded)
	require.True(t, b.run(incrementalReq("m", setConfig("cleanup.policy", "compact"))).forwarded)

	// With a dead zone in front of live records compaction stays refused.
	h.cut(4)
	h.src = 9
	h.append(2, 0)
	stopped(t, b, h)
	require.False(t, b.run(incrementalReq("m", setConfig("cleanup.policy", "compact,delete"))).forwarded)
	require.True(t, b.run(incrementalReq("m", setConfig("compression.type", "zstd"))).forwarded)
}

// M12, M3: a topic becomes a mirror topic while a share session at the broker has
// it: requests that name no topic would bring its records for ever.
func TestM12ShareSessionWhenTopicsMove(t *testing.T) {
	b, _ := chainBench(t)
	newAdminBroker(t, b)
	other := b.id("x", 2)
	member := "a"
	ask := func(epoch int32, ids ...[16]byte) result {
		q := kmsg.NewPtrShareFetchRequest()
		q.Version, q.MemberID, q.ShareSessionEpoch = 1, &member, epoch
		for _, id := range ids {
			rt := kmsg.NewShareFetchRequestTopic()
			rt.TopicID = id
			rt.Partitions = append(rt.Partitions, kmsg.NewShareFetchRequestTopicPartition())
			q.Topics = append(q.Topics, rt)
		}
		return b.run(q)
	}
	refused := func(r result) bool {
		resp := kmsg.NewPtrShareFetchResponse()
		resp.Version = 1
		return !r.forwarded && resp.ReadFrom(r.body) == nil && resp.ErrorCode == kerr.ShareSessionNotFound.Code
	}
	require.True(t, refused(ask(3)), "begun before there was a mirror topic, or elsewhere")
	require.True(t, ask(0, other).forwarded)
	require.True(t, ask(1).forwarded)
	b.mirror("x", 0, logOf(t))
	b.id("x", 2)
	require.True(t, refused(ask(2)))
	require.False(t, ask(0, other).forwarded)
	require.False(t, refused(ask(0, other)))
	require.True(t, ask(1).forwarded, "it has no mirror topic in it")
	require.True(t, ask(-1).forwarded)
	require.True(t, refused(ask(2)))
	for i := range 100 {
		member = string(rune('a' + i))
		require.True(t, ask(0).forwarded)
		require.True(t, ask(1).forwarded)
	}
	require.LessOrEqual(t, len(b.st.shares), maxSessionsPerConn)
}

// M12: share groups are refused on mirror topics, the rest of a request is
// served.
func TestM12ShareGroups(t *testing.T) {
	b, _ := chainBench(t)
	a := newAdminBroker(t, b)
	id, other := b.id("m", 1), b.id("x", 2)
	q := kmsg.NewPtrShareFetchRequest()
	q.Version = 1
	for _, id := range [][16]byte{id, other} {
		rt := kmsg.NewShareFetchRequestTopic()
		rt.TopicID = id
		rt.Partitions = append(rt.Partitions, kmsg.NewShareFetchRequestTopicPartition())
		q.Topics = append(q.Topics, rt)
	}
	r := respond[*kmsg.ShareFetchResponse](b, q)
	require.Len(t, r.Topics, 2)
	codes := map[[16]byte]int16{}
	for _, rt := range r.Topics {
		codes[rt.TopicID] = rt.Partitions[0].ErrorCode
		if rt.TopicID == id {
			require.Contains(t, *rt.Partitions[0].ErrorMessage, "mirror")
			require.NotNil(t, rt.Partitions[0].Records, "a Java client can't read null records")
		}
	}
	require.Equal(t, map[[16]byte]int16{id: shareRefusal, other: 0}, codes)
	a.may = 0
	r = respond[*kmsg.ShareFetchResponse](b, q)
	require.Equal(t, kerr.TopicAuthorizationFailed.Code, r.Topics[1].Partitions[0].ErrorCode)
	// Who may not use the group learns nothing of the topic.
	a.group = kerr.GroupAuthorizationFailed.Code
	one := *q
	one.Topics = one.Topics[:1]
	r = respond[*kmsg.ShareFetchResponse](b, &one)
	require.Equal(t, kerr.GroupAuthorizationFailed.Code, r.ErrorCode)
	require.Empty(t, r.Topics)
	a.group = 0
	q.Topics = q.Topics[1:]
	require.True(t, b.run(q).forwarded)

	a.may = mayRead
	ack := kmsg.NewPtrShareAcknowledgeRequest()
	ack.Version = 1
	at := kmsg.NewShareAcknowledgeRequestTopic()
	at.TopicID = id
	at.Partitions = append(at.Partitions, kmsg.NewShareAcknowledgeRequestTopicPartition())
	ack.Topics = append(ack.Topics, at)
	require.Equal(t, shareRefusal, respond[*kmsg.ShareAcknowledgeResponse](b, ack).Topics[0].Partitions[0].ErrorCode)

	alter := kmsg.NewPtrAlterShareGroupOffsetsRequest()
	alter.Topics = []kmsg.AlterShareGroupOffsetsRequestTopic{{Topic: "m", Partitions: []kmsg.AlterShareGroupOffsetsRequestTopicPartition{{}}}}
	require.Equal(t, shareRefusal, respond[*kmsg.AlterShareGroupOffsetsResponse](b, alter).Topics[0].Partitions[0].ErrorCode)

	d := kmsg.NewPtrDescribeShareGroupOffsetsResponse()
	d.Version = 1
	for _, name := range []string{"m", "x"} {
		p := kmsg.NewDescribeShareGroupOffsetsResponseGroupTopicPartition()
		p.StartOffset = 7
		d.Groups = append(d.Groups, kmsg.DescribeShareGroupOffsetsResponseGroup{
			GroupID: "g", Topics: []kmsg.DescribeShareGroupOffsetsResponseGroupTopic{{Topic: name, Partitions: []kmsg.DescribeShareGroupOffsetsResponseGroupTopicPartition{p}}},
		})
	}
	body, err := b.h.response(protocol.KeyDescribeShareOffsets, 1, d.AppendTo(nil))
	require.NoError(t, err)
	require.NoError(t, d.ReadFrom(body))
	require.EqualValues(t, -1, d.Groups[0].Topics[0].Partitions[0].StartOffset)
	require.Equal(t, shareRefusal, d.Groups[0].Topics[0].Partitions[0].ErrorCode)
	require.EqualValues(t, 7, d.Groups[1].Topics[0].Partitions[0].StartOffset)
}

// M13: where an open transaction began is shown in virtual offsets, -1 where the
// record is not shown.
func TestM13DescribeProducers(t *testing.T) {
	b, h := chainBench(t)
	h.foreign(4)
	ps := h.part.end()
	stopped(t, b, h)
	r := kmsg.NewPtrDescribeProducersResponse()
	p := kmsg.NewDescribeProducersResponseTopicPartition()
	for _, at := range []int64{-1, ps + 3, ps - 2, 1} {
		a := kmsg.NewDescribeProducersResponseTopicPartitionActiveProducer()
		a.CurrentTxnStartOffset = at
		p.ActiveProducers = append(p.ActiveProducers, a)
	}
	r.Topics = []kmsg.DescribeProducersResponseTopic{{Topic: "m", Partitions: []kmsg.DescribeProducersResponseTopicPartition{p}}}
	body, err := b.h.response(protocol.KeyDescribeProducers, 0, r.AppendTo(nil))
	require.NoError(t, err)
	require.NoError(t, r.ReadFrom(body))
	var got []int64
	for _, a := range r.Topics[0].Partitions[0].ActiveProducers {
		got = append(got, a.CurrentTxnStartOffset)
	}
	require.Equal(t, []int64{-1, h.vend + 3, -1, -1}, got)
	require.Equal(t, epoch.Native, b.view.parts[partKey{"m", 0}].Log.Open().Kind)
}

// A request that is only looked into for mirror topics, and is larger than any
// real one, is not decoded.
func TestLargestHandledRequest(t *testing.T) {
	leakCheck(t)
	p := testProxy(t, scriptedBroker(t, serveFrames(sumAnswer)), func(o *Options) {
		o.handler = &stubHandler{key: protocol.KeyListOffsets, do: func(x exchange) { x.Reply(nil) }}
	})
	c := dialRaw(t, p)
	frame := binary.BigEndian.AppendUint32(nil, 100<<20)
	frame = append(frame, 0, 2, 0, 1, 0, 0, 0, 9, 0xff, 0xff)
	c.send(frame)
	c.ended()
	eventually(t, "reason", func() bool { return closedFor(p, ReasonFrameTooLarge) == 1 })
	held, most := p.engine.held()
	require.LessOrEqual(t, held, int64(1<<20))
	require.LessOrEqual(t, most, int64(1<<20))
}
