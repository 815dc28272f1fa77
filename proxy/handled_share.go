package proxy

import (
	"errors"
	"fmt"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/protocol"
)

// Share groups (KIP-932) keep physical offsets, locks and deliveries on the
// broker: a hidden batch would be acquired and never be acknowledged. So they
// are refused on mirror topics, partition by partition (M12).

var shareRefusal = kerr.InvalidRequest.Code

func shareMessage(topic string) string {
	return fmt.Sprintf("topic %s is a mirror topic: share groups can't read it, use a consumer group", topic)
}

// shareTopics sorts the topics of a share request: which are mirrors, by id.
func (h *handlers) shareTopics(ids [][16]byte) (names map[[16]byte]string, all []string) {
	names = map[[16]byte]string{}
	for _, id := range ids {
		if name, ok := h.mirrorTopic("", id); ok && names[id] == "" {
			names[id] = name
			all = append(all, name)
		}
	}
	return names, all
}

// refuseShare is the answer to one partition of a mirror topic.
func refuseShare(name string, denied map[string]int16) (code int16, message *string) {
	if code, ok := denied[name]; ok {
		return code, nil
	}
	m := shareMessage(name)
	return shareRefusal, &m
}

// askShare sends a share request on, addresses in its answer turned into ours;
// its records live on until the exchange ends.
func askShare[R kmsg.Response](x exchange, req kmsg.Request, cb func(R)) {
	x.Ask(req, func(body []byte, err error) {
		if err == nil {
			if to := addresses(x); to != nil {
				body, err = protocol.RewriteAddresses(req.Key(), req.GetVersion(), body, to)
			}
		}
		resp := req.ResponseKind()
		if err == nil {
			err = resp.ReadFrom(body)
		}
		if err != nil {
			if !errors.Is(err, errExchangeOver) {
				x.Close(ReasonProtocolError, err)
			}
			return
		}
		cb(resp.(R))
	})
}

func (h *handlers) handleShareFetch(x exchange, version int16, body []byte) {
	q := kmsg.NewPtrShareFetchRequest()
	if err := protocol.DecodeBody(version, body, q); err != nil {
		badRequest(x, err)
		return
	}
	if !x.State().shareSession(q.MemberID, q.ShareSessionEpoch, h.view.TopicsVersion()) {
		// The broker's session may have a topic in it that has become a mirror
		// topic: the client begins another one, and names its topics again.
		r := q.ResponseKind().(*kmsg.ShareFetchResponse)
		r.ErrorCode = kerr.ShareSessionNotFound.Code
		replyKmsg(x, r)
		return
	}
	var ids [][16]byte
	for _, t := range q.Topics {
		ids = append(ids, t.TopicID)
	}
	names, mirrors := h.shareTopics(ids)
	if len(mirrors) == 0 {
		x.Forward()
		return
	}
	rest := *q
	rest.Topics = nil
	for _, t := range q.Topics {
		if names[t.TopicID] == "" {
			rest.Topics = append(rest.Topics, t)
		}
	}
	rest.MaxWaitMillis = 0 // the refusal is due at once
	authorise(x, mirrors, mayRead, func(denied map[string]int16) {
		askShare(x, &rest, func(r *kmsg.ShareFetchResponse) {
			for _, t := range q.Topics {
				name := names[t.TopicID]
				if name == "" || r.ErrorCode != 0 { // the group, or its session, comes first
					continue
				}
				h.countRefused(name, protocol.KeyShareFetch)
				rt := kmsg.NewShareFetchResponseTopic()
				rt.TopicID = t.TopicID
				for _, p := range t.Partitions {
					a := kmsg.NewShareFetchResponseTopicPartition()
					a.Partition = p.Partition
					a.ErrorCode, a.ErrorMessage = refuseShare(name, denied)
					if len(p.AcknowledgementBatches) > 0 {
						a.AcknowledgeErrorCode, a.AcknowledgeErrorMessage = a.ErrorCode, a.ErrorMessage
					}
					a.Records = []byte{} // Java takes no null here
					rt.Partitions = append(rt.Partitions, a)
				}
				r.Topics = append(r.Topics, rt)
			}
			replyKmsg(x, r)
		})
	})
}

func (h *handlers) handleShareAcknowledge(x exchange, version int16, body []byte) {
	q := kmsg.NewPtrShareAcknowledgeRequest()
	if err := protocol.DecodeBody(version, body, q); err != nil {
		badRequest(x, err)
		return
	}
	var ids [][16]byte
	for _, t := range q.Topics {
		ids = append(ids, t.TopicID)
	}
	names, mirrors := h.shareTopics(ids)
	if len(mirrors) == 0 {
		x.Forward()
		return
	}
	rest := *q
	rest.Topics = nil
	for _, t := range q.Topics {
		if names[t.TopicID] == "" {
			rest.Topics = append(rest.Topics, t)
		}
	}
	authorise(x, mirrors, mayRead, func(denied map[string]int16) {
		askShare(x, &rest, func(r *kmsg.ShareAcknowledgeResponse) {
			for _, t := range q.Topics {
				name := names[t.TopicID]
				if name == "" || r.ErrorCode != 0 { // the group, or its session, comes first
					continue
				}
				h.countRefused(name, protocol.KeyShareAcknowledge)
				rt := kmsg.NewShareAcknowledgeResponseTopic()
				rt.TopicID = t.TopicID
				for _, p := range t.Partitions {
					a := kmsg.NewShareAcknowledgeResponseTopicPartition()
					a.Partition = p.Partition
					a.ErrorCode, a.ErrorMessage = refuseShare(name, denied)
					rt.Partitions = append(rt.Partitions, a)
				}
				r.Topics = append(r.Topics, rt)
			}
			replyKmsg(x, r)
		})
	})
}

func (h *handlers) handleAlterShareOffsets(x exchange, version int16, body []byte) {
	q := kmsg.NewPtrAlterShareGroupOffsetsRequest()
	if err := protocol.DecodeBody(version, body, q); err != nil {
		badRequest(x, err)
		return
	}
	var mirrors []string
	rest := *q
	rest.Topics = nil
	for _, t := range q.Topics {
		if h.view.Topic(t.Topic) {
			mirrors = append(mirrors, t.Topic)
			h.countRefused(t.Topic, protocol.KeyAlterShareOffsets)
		} else {
			rest.Topics = append(rest.Topics, t)
		}
	}
	if len(mirrors) == 0 {
		x.Forward()
		return
	}
	authorise(x, mirrors, mayRead, func(denied map[string]int16) {
		// Without a topic the broker still says whether the group may be altered.
		ask(x, &rest, func(r *kmsg.AlterShareGroupOffsetsResponse) {
			for _, t := range q.Topics {
				if r.ErrorCode != 0 || !h.view.Topic(t.Topic) {
					continue
				}
				rt := kmsg.NewAlterShareGroupOffsetsResponseTopic()
				rt.Topic = t.Topic
				for _, p := range t.Partitions {
					a := kmsg.NewAlterShareGroupOffsetsResponseTopicPartition()
					a.Partition = p.Partition
					m := shareMessage(t.Topic)
					a.ErrorCode, a.ErrorMessage = shareRefusal, &m
					if code, ok := denied[t.Topic]; ok {
						a.ErrorCode, a.ErrorMessage = code, nil
					}
					rt.Partitions = append(rt.Partitions, a)
				}
				r.Topics = append(r.Topics, rt)
			}
			replyKmsg(x, r)
		})
	})
}
