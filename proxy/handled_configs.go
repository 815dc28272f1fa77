package proxy

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/protocol"
)

// AlterConfigs and IncrementalAlterConfigs: what would break a mirror is refused
// on its topics (M17), the rest passes. The broker judges first, with
// validate_only.

// guarded are the configs that a mirror sets, or relies on, while it runs
// (facts §7, H1).
var guarded = map[string]bool{
	"cleanup.policy":                      true,
	"compression.type":                    true,
	"message.timestamp.type":              true,
	"message.timestamp.before.max.ms":     true,
	"message.timestamp.after.max.ms":      true,
	"message.timestamp.difference.max.ms": true,
	"min.compaction.lag.ms":               true,
	"max.compaction.lag.ms":               true,
}

const maxMessageBytes = "max.message.bytes"

// deadInFront says whether dead records may lie between live ones of a topic:
// its log has more behind a closed span's live end than a span-opening batch.
// Compaction would then keep a dead record and drop a live one (H1, M17).
func (h *handlers) deadInFront(topic string) bool {
	for _, p := range h.mirrored(topic) {
		if p.Log == nil || p.Err != nil {
			return true
		}
		for i := 0; i+1 < len(p.Log.Spans); i++ {
			if s := p.Log.Spans[i]; s.PEnd < 0 || p.Log.Spans[i+1].PStart-s.PEnd > 1 {
				return true
			}
		}
	}
	return false
}

// refuseConfig says why one change of a topic's config is refused. lowers:
// max.message.bytes is, or may be, below what it was.
func (h *handlers) refuseConfig(topic, name, value string, lowers bool) (code int16, message string) {
	if guarded[name] || name == maxMessageBytes && lowers {
		if code, message = h.notStopped(topic, "changing "+name); code != 0 {
			return code, message
		}
	}
	if name == "cleanup.policy" && strings.Contains(value, "compact") && h.view.Topic(topic) && h.deadInFront(topic) {
		return kerr.PolicyViolation.Code, fmt.Sprintf("topic %s has records that a failback has cut, in front of live ones: compaction would keep the wrong ones", topic)
	}
	return 0, ""
}

// handleAlterConfigs refuses every change of a topic that is mirrored: what the
// request does not name goes back to its default.
func (h *handlers) handleAlterConfigs(x exchange, version int16, body []byte) {
	q := kmsg.NewPtrAlterConfigsRequest()
	if err := protocol.DecodeBody(version, body, q); err != nil {
		badRequest(x, err)
		return
	}
	refused := map[string]refusal{}
	rest, trial := *q, *q
	rest.Resources, trial.Resources = nil, nil
	trial.ValidateOnly = true
	for _, r := range q.Resources {
		var code int16
		var message string
		if r.ResourceType == kmsg.ConfigResourceTypeTopic && h.view.Topic(r.ResourceName) {
			code, message = h.notStopped(r.ResourceName, "replacing all its configs (use an incremental change)")
			for _, c := range r.Configs {
				if code == 0 && c.Value != nil {
					code, message = h.refuseConfig(r.ResourceName, c.Name, *c.Value, false)
				}
			}
		}
		if code == 0 {
			rest.Resources = append(rest.Resources, r)
			continue
		}
		refused[r.ResourceName] = refusal{code, message}
		trial.Resources = append(trial.Resources, r)
		h.countRefused(r.ResourceName, protocol.KeyAlterConfigs)
	}
	if len(refused) == 0 {
		x.Forward()
		return
	}
	type place struct {
		kind kmsg.ConfigResourceType
		name string
	}
	resp := kmsg.NewPtrAlterConfigsResponse()
	resp.Version = version
	given := map[place]kmsg.AlterConfigsResponseResource{}
	reply := func() {
		for _, r := range q.Resources {
			if a, ok := given[place{r.ResourceType, r.ResourceName}]; ok {
				resp.Resources = append(resp.Resources, a)
			}
		}
		replyKmsg(x, resp)
	}
	ask(x, &trial, func(r *kmsg.AlterConfigsResponse) {
		resp.ThrottleMillis = r.ThrottleMillis
		for _, a := range r.Resources {
			if no := refused[a.ResourceName]; a.ErrorCode == 0 {
				a.ErrorCode, a.ErrorMessage = no.code, &no.message
			}
			given[place{a.ResourceType, a.ResourceName}] = a
		}
		if len(rest.Resources) == 0 {
			reply()
			return
		}
		ask(x, &rest, func(r *kmsg.AlterConfigsResponse) {
			resp.ThrottleMillis = max(resp.ThrottleMillis, r.ThrottleMillis)
			for _, a := range r.Resources {
				given[place{a.ResourceType, a.ResourceName}] = a
			}
			reply()
		})
	})
}

// incremental is one IncrementalAlterConfigs request.
type incremental struct {
	h *handlers
	x exchange
	q *kmsg.IncrementalAlterConfigsRequest
}

func (h *handlers) handleIncrementalAlterConfigs(x exchange, version int16, body []byte) {
	f := &incremental{h: h, x: x, q: kmsg.NewPtrIncrementalAlterConfigsRequest()}
	if err := protocol.DecodeBody(version, body, f.q); err != nil {
		badRequest(x, err)
		return
	}
	sizes := kmsg.NewPtrDescribeConfigsRequest()
	for _, r := range f.q.Resources {
		if r.ResourceType != kmsg.ConfigResourceTypeTopic || !h.view.Topic(r.ResourceName) {
			continue
		}
		for _, c := range r.Configs {
			if c.Name == maxMessageBytes && c.Value != nil {
				d := kmsg.NewDescribeConfigsRequestResource()
				d.ResourceType, d.ResourceName, d.ConfigNames = r.ResourceType, r.ResourceName, []string{maxMessageBytes}
				sizes.Resources = append(sizes.Resources, d)
			}
		}
	}
	_, hi, ok := x.UpstreamVersion(sizes.Key())
	if len(sizes.Resources) == 0 || !ok {
		f.judge(nil)
		return
	}
	sizes.Version = min(hi, 4)
	ask(x, sizes, func(r *kmsg.DescribeConfigsResponse) {
		now := map[string]int64{}
		for _, d := range r.Resources {
			for _, c := range d.Configs {
				if c.Name == maxMessageBytes && c.Value != nil {
					if n, err := strconv.ParseInt(*c.Value, 10, 64); err == nil {
						now[d.ResourceName] = n
					}
				}
			}
		}
		f.judge(now)
	})
}

// lowers says whether a change of max.message.bytes may be to less than it is,
// by what it is now for each topic as far as that is known.
func lowers(c *kmsg.IncrementalAlterConfigsRequestResourceConfig, now int64, known bool) bool {
	if c.Op != kmsg.IncrementalAlterConfigOpSet || c.Value == nil || !known {
		return true
	}
	n, err := strconv.ParseInt(*c.Value, 10, 64)
	return err == nil && n < now
}

func (f *incremental) judge(now map[string]int64) {
	h, q := f.h, f.q
	refused := map[string]refusal{}
	rest, trial := *q, *q
	rest.Resources, trial.Resources = nil, nil
	trial.ValidateOnly = true
	for _, r := range q.Resources {
		var no refusal
		if r.ResourceType == kmsg.ConfigResourceTypeTopic && h.view.Topic(r.ResourceName) {
			for i := range r.Configs {
				c := &r.Configs[i]
				value := ""
				if c.Value != nil && c.Op != kmsg.IncrementalAlterConfigOpSubtract {
					value = *c.Value
				}
				size, known := now[r.ResourceName]
				if code, message := h.refuseConfig(r.ResourceName, c.Name, value, lowers(c, size, known)); code != 0 {
					no = refusal{code, message}
					break
				}
			}
		}
		if no.code == 0 {
			rest.Resources = append(rest.Resources, r)
			continue
		}
		refused[r.ResourceName] = no
		trial.Resources = append(trial.Resources, r)
		h.countRefused(r.ResourceName, protocol.KeyIncrementalAlterConfigs)
	}
	if len(refused) == 0 {
		f.x.Forward()
		return
	}
	f.answer(&rest, &trial, refused)
}

func (f *incremental) answer(rest, trial *kmsg.IncrementalAlterConfigsRequest, refused map[string]refusal) {
	type place struct {
		kind kmsg.ConfigResourceType
		name string
	}
	resp := kmsg.NewPtrIncrementalAlterConfigsResponse()
	resp.Version = f.q.Version
	given := map[place]kmsg.IncrementalAlterConfigsResponseResource{}
	reply := func() {
		for _, r := range f.q.Resources {
			if a, ok := given[place{r.ResourceType, r.ResourceName}]; ok {
				resp.Resources = append(resp.Resources, a)
			}
		}
		replyKmsg(f.x, resp)
	}
	ask(f.x, trial, func(r *kmsg.IncrementalAlterConfigsResponse) {
		resp.ThrottleMillis = r.ThrottleMillis
		for _, a := range r.Resources {
			if no := refused[a.ResourceName]; a.ErrorCode == 0 {
				a.ErrorCode, a.ErrorMessage = no.code, &no.message
			}
			given[place{a.ResourceType, a.ResourceName}] = a
		}
		if len(rest.Resources) == 0 {
			reply()
			return
		}
		ask(f.x, rest, func(r *kmsg.IncrementalAlterConfigsResponse) {
			resp.ThrottleMillis = max(resp.ThrottleMillis, r.ThrottleMillis)
			for _, a := range r.Resources {
				given[place{a.ResourceType, a.ResourceName}] = a
			}
			reply()
		})
	})
}
