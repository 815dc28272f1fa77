package check

import (
	"testing"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/internal/ledger"
)

// AU-03: each right without which nothing is mirrored is looked for, and named
// with the ACL to add; so is what keeps the ledger from being made.
func TestLedgerRights(t *testing.T) {
	for name, tc := range map[string]struct {
		key    kmsg.Key
		answer func(kmsg.Request) kmsg.Response // nil: as it is
		level  Level
		what   string
		text   string
	}{
		"group": {kmsg.Heartbeat, func(q kmsg.Request) kmsg.Response {
			r := q.ResponseKind().(*kmsg.HeartbeatResponse)
			r.ErrorCode = kerr.GroupAuthorizationFailed.Code
			return r
		}, Fail, "rights", "Read and Describe on the group __lockstep"},
		"transactions": {kmsg.EndTxn, func(q kmsg.Request) kmsg.Response {
			r := q.ResponseKind().(*kmsg.EndTxnResponse)
			r.ErrorCode = kerr.TransactionalIDAuthorizationFailed.Code
			return r
		}, Fail, "rights", `transactional ids with the prefix "lockstep-ledger-"`},
		"topic":    {kmsg.CreateTopics, creation(kerr.TopicAuthorizationFailed.Code), Fail, "rights", "Create, Describe, DescribeConfigs, Read and Write on the topic __mirror_state"},
		"replicas": {kmsg.CreateTopics, creation(kerr.InvalidReplicationFactor.Code), Fail, "ledger", "set destination.ledger_replication_factor"},
	} {
		t.Run(name, func(t *testing.T) {
			src, dst := cluster(t, "S"), cluster(t, "D")
			create(t, src, "orders", 1)
			dst.ControlKey(int16(tc.key), func(q kmsg.Request) (kmsg.Response, error, bool) {
				dst.KeepControl()
				resp := tc.answer(q)
				return resp, nil, resp != nil
			})
			find(t, Run(t.Context(), parse(t, src, dst, "19100-19149")), tc.level, "destination", tc.what, tc.text)
		})
	}
	t.Run("one broker", func(t *testing.T) {
		src, dst := cluster(t, "S"), cluster(t, "D", kfake.NumBrokers(1))
		create(t, src, "orders", 1)
		find(t, Run(t.Context(), parse(t, src, dst, "19100-19149")), Warn, "destination", "ledger", "will be created with 1 of 3 replicas")
		create(t, dst, ledger.Topic, ledger.Partitions)
		find(t, Run(t.Context(), parse(t, src, dst, "19100-19149")), Warn, "destination", "ledger", "has 1 of 3 replicas")
	})
}

// creation refuses trials of the ledger's topic.
func creation(code int16) func(kmsg.Request) kmsg.Response {
	return func(q kmsg.Request) kmsg.Response {
		req := q.(*kmsg.CreateTopicsRequest)
		if !req.ValidateOnly || req.Topics[0].Topic != ledger.Topic {
			return nil
		}
		r := q.ResponseKind().(*kmsg.CreateTopicsResponse)
		rt := kmsg.NewCreateTopicsResponseTopic()
		rt.Topic, rt.ErrorCode = ledger.Topic, code
		r.Topics = append(r.Topics, rt)
		return r
	}
}
