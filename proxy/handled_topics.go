package proxy

import (
	"fmt"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/epoch"
	"github.com/lockstep-kafka/lockstep/internal/ledger"
	"github.com/lockstep-kafka/lockstep/protocol"
)

// DeleteTopics and CreatePartitions: refused on a topic of which a partition is
// mirrored (M17). What the broker itself says against it comes first.

// mirrored are the partitions of a mirror topic.
func (h *handlers) mirrored(topic string) (out []*ledger.Partition) {
	for _, p := range h.view.All() {
		if p.Topic == topic {
			out = append(out, p)
		}
	}
	return out
}

// notStopped says why a change that a mirror would not survive is refused on a
// topic; code 0: it isn't.
func (h *handlers) notStopped(topic, what string) (code int16, message string) {
	if !h.view.Topic(topic) {
		return 0, ""
	}
	if !h.view.Fresh() {
		return kerr.RequestTimedOut.Code, fmt.Sprintf("topic %s belongs to a mirror whose state is not known right now", topic)
	}
	for _, p := range h.mirrored(topic) {
		switch {
		case p.Err != nil || p.Record == nil:
			return kerr.PolicyViolation.Code, fmt.Sprintf("topic %s belongs to a mirror whose state can't be read: %s is refused", topic, what)
		case p.Record.State != epoch.StateStopped:
			return kerr.PolicyViolation.Code, fmt.Sprintf("topic %s is mirrored by mirror %q, its partition %d is %s: %s is refused until the mirror is stopped",
				topic, p.Record.Mirror, p.Partition, p.Record.State, what)
		}
	}
	return 0, ""
}

func (h *handlers) countRefused(topic string, key int16) {
	if h.count.refused != nil {
		api, _ := protocol.LookupAPI(key)
		h.count.refused(topic, -1, api.Name)
	}
}

// refusal is an answer of ours.
type refusal struct {
	code    int16
	message string
}

// topicRef is a topic as a request names it: by name or by id.
type topicRef struct {
	name string
	id   [16]byte
}

func (h *handlers) handleDeleteTopics(x exchange, version int16, body []byte) {
	q := kmsg.NewPtrDeleteTopicsRequest()
	if err := protocol.DecodeBody(version, body, q); err != nil {
		badRequest(x, err)
		return
	}
	var all []topicRef
	var names []string // of the refused
	refused := map[topicRef]refusal{}
	consider := func(t topicRef) bool {
		all = append(all, t)
		name, ok := h.mirrorTopic(t.name, t.id)
		if !ok {
			return false
		}
		code, message := h.notStopped(name, "its deletion")
		if code != 0 {
			refused[t] = refusal{code, message}
			names = append(names, name)
			h.countRefused(name, protocol.KeyDeleteTopics)
		}
		return code != 0
	}
	rest := *q
	rest.Topics, rest.TopicNames = nil, nil
	for _, name := range q.TopicNames {
		if !consider(topicRef{name: name}) {
			rest.TopicNames = append(rest.TopicNames, name)
		}
	}
	for _, t := range q.Topics {
		ref := topicRef{id: t.TopicID}
		if t.Topic != nil {
			ref = topicRef{name: *t.Topic}
		}
		if !consider(ref) {
			rest.Topics = append(rest.Topics, t)
		}
	}
	if len(refused) == 0 {
		x.Forward()
		return
	}
	resp := kmsg.NewPtrDeleteTopicsResponse()
	resp.Version = version
	given := map[topicRef]kmsg.DeleteTopicsResponseTopic{}
	reply := func() {
		for _, ref := range all {
			if t, ok := given[ref]; ok {
				resp.Topics = append(resp.Topics, t)
			}
		}
		replyKmsg(x, resp)
	}
	authorise(x, names, mayDelete, func(denied map[string]int16) {
		for ref, no := range refused {
			t := kmsg.NewDeleteTopicsResponseTopic()
			name, _ := h.mirrorTopic(ref.name, ref.id)
			t.Topic, t.TopicID = &name, ref.id
			t.ErrorCode, t.ErrorMessage = no.code, &no.message
			if code, ok := denied[name]; ok {
				t.ErrorCode, t.ErrorMessage = code, nil
				if ref.name == "" {
					t.Topic = nil // an id doesn't give its name away
				}
			}
			given[ref] = t
		}
		if len(rest.TopicNames)+len(rest.Topics) == 0 {
			reply()
			return
		}
		ask(x, &rest, func(r *kmsg.DeleteTopicsResponse) {
			resp.ThrottleMillis = r.ThrottleMillis
			for _, t := range r.Topics {
				if t.TopicID != [16]byte{} {
					given[topicRef{id: t.TopicID}] = t
				}
				if t.Topic != nil {
					given[topicRef{name: *t.Topic}] = t
				}
			}
			reply()
		})
	})
}

func (h *handlers) handleCreatePartitions(x exchange, version int16, body []byte) {
	q := kmsg.NewPtrCreatePartitionsRequest()
	if err := protocol.DecodeBody(version, body, q); err != nil {
		badRequest(x, err)
		return
	}
	refused := map[string]refusal{}
	rest, trial := *q, *q
	rest.Topics, trial.Topics = nil, nil
	trial.ValidateOnly = true
	for _, t := range q.Topics {
		code, message := h.notStopped(t.Topic, "adding partitions")
		if code == 0 {
			rest.Topics = append(rest.Topics, t)
			continue
		}
		refused[t.Topic] = refusal{code, message}
		trial.Topics = append(trial.Topics, t)
		h.countRefused(t.Topic, protocol.KeyCreatePartitions)
	}
	if len(refused) == 0 {
		x.Forward()
		return
	}
	resp := kmsg.NewPtrCreatePartitionsResponse()
	resp.Version = version
	given := map[string]kmsg.CreatePartitionsResponseTopic{}
	reply := func() {
		for _, t := range q.Topics {
			if a, ok := given[t.Topic]; ok {
				resp.Topics = append(resp.Topics, a)
			}
		}
		replyKmsg(x, resp)
	}
	ask(x, &trial, func(r *kmsg.CreatePartitionsResponse) {
		resp.ThrottleMillis = r.ThrottleMillis
		for _, t := range r.Topics {
			if no := refused[t.Topic]; t.ErrorCode == 0 {
				t.ErrorCode, t.ErrorMessage = no.code, &no.message
			}
			given[t.Topic] = t
		}
		if len(rest.Topics) == 0 {
			reply()
			return
		}
		ask(x, &rest, func(r *kmsg.CreatePartitionsResponse) {
			resp.ThrottleMillis = max(resp.ThrottleMillis, r.ThrottleMillis)
			for _, t := range r.Topics {
				given[t.Topic] = t
			}
			reply()
		})
	})
}
