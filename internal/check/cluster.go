package check

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/kversion"

	"github.com/lockstep-kafka/lockstep/internal/client"
	"github.com/lockstep-kafka/lockstep/internal/config"
)

// need is an API version without which a side can't be used (bad), or only
// with less (warn).
type need struct {
	key     int16
	version int16
	level   Level
	why     string
}

var destinationNeeds = []need{
	{key: int16(kmsg.Produce), version: 3, level: Fail, why: "record batches of format 2 carry the stamp"},
	{key: int16(kmsg.Fetch), version: 4, level: Fail, why: "record batches of format 2 carry the stamp"},
	{key: int16(kmsg.EndTxn), version: 0, level: Fail, why: "the ledger is written in transactions"},
	{key: int16(kmsg.Metadata), version: 10, level: Fail, why: "topic ids: Kafka 2.8 or later"},
}

var sourceNeeds = []need{
	{key: int16(kmsg.OffsetForLeaderEpoch), version: 2, level: Fail, why: "leader epochs: Kafka 2.1 or later"},
	{key: int16(kmsg.Fetch), version: 12, level: Warn, why: "below it a truncation is found by OffsetForLeaderEpoch, not by the fetch"},
}

// versions asks each broker what it speaks.
func (k *checker) versions(ctx context.Context, s *side, needs []need) {
	guesses := map[string][]int32{}
	for _, b := range s.meta.Brokers {
		req := kmsg.NewPtrApiVersionsRequest()
		req.ClientSoftwareName, req.ClientSoftwareVersion = client.ID, "check" // refused without
		resp, err := req.RequestWith(ctx, s.cl.Broker(int(b.NodeID)))
		if err == nil {
			err = kerr.ErrorForCode(resp.ErrorCode)
		}
		if err != nil {
			k.add(Fail, s.where, "broker", "broker %d at %s:%d can't be used, though it is advertised: %v", b.NodeID, b.Host, b.Port, explain(err))
			continue
		}
		v := kversion.FromApiVersionsResponse(resp)
		guesses[v.VersionGuess()] = append(guesses[v.VersionGuess()], b.NodeID)
		for _, n := range needs {
			if top, ok := v.LookupMaxKeyVersion(n.key); !ok || top < n.version {
				k.add(n.level, s.where, "version", "broker %d has %s only up to v%d, v%d is wanted: %s", b.NodeID, kmsg.NameForKey(n.key), top, n.version, n.why)
			}
		}
	}
	for guess, ids := range guesses {
		slices.Sort(ids)
		k.add(OK, s.where, "version", "brokers %v speak like Kafka %s", ids, guess)
	}
}

// brokerPorts finds brokers without a port of their own behind the proxy.
func (k *checker) brokerPorts(s *side) {
	for i := range k.c.Listeners {
		l := &k.c.Listeners[i]
		for _, b := range s.meta.Brokers {
			if _, ok := l.BrokerPorts.Port(b.NodeID); !ok && l.SNI == (config.SNI{}) {
				k.add(Fail, s.where, "ports", "listeners[%d].broker_ports %s has no port for broker id %d: widen the range", i, l.BrokerPorts, b.NodeID)
			}
		}
	}
}

// groupTimeout compares instance.session_timeout with what brokers allow.
func (k *checker) groupTimeout(ctx context.Context, s *side) {
	ids := s.meta.Brokers.NodeIDs()
	rcs, err := s.adm.DescribeBrokerConfigs(ctx, ids...)
	if err != nil {
		k.add(Warn, s.where, "configs", "broker configs can't be read (needs DescribeConfigs on the cluster): %v", err)
		return
	}
	want := k.c.Instance.SessionTimeout.Std().Milliseconds()
	for _, rc := range rcs {
		if rc.Err != nil {
			k.add(Warn, s.where, "configs", "configs of broker %s can't be read (needs DescribeConfigs on the cluster): %v", rc.Name, rc.Err)
			return
		}
		for _, c := range rc.Configs {
			v, err := strconv.ParseInt(c.MaybeValue(), 10, 64)
			if err != nil {
				continue
			}
			if c.Key == "group.min.session.timeout.ms" && want < v || c.Key == "group.max.session.timeout.ms" && want > v {
				k.add(Fail, s.where, "session timeout", "instance.session_timeout is %d ms, broker %s has %s=%d: change one of them", want, rc.Name, c.Key, v)
			}
		}
	}
}

// clusterRights asks which cluster operations Lockstep's user may do.
func (k *checker) clusterRights(ctx context.Context, s *side) {
	req := kmsg.NewPtrDescribeClusterRequest()
	req.IncludeClusterAuthorizedOperations = true
	resp, err := req.RequestWith(ctx, s.cl)
	if err != nil {
		k.add(Warn, s.where, "rights", "can't be asked for: %v", err)
		return
	}
	ops := kadm.DecodeACLOperations(resp.ClusterAuthorizedOperations)
	if len(ops) == 0 {
		k.add(Warn, s.where, "rights", "the cluster doesn't say what this user may do")
		return
	}
	var lacking []string
	for _, op := range []kadm.ACLOperation{kmsg.ACLOperationCreate, kmsg.ACLOperationDescribe} {
		if !slices.Contains(ops, op) {
			lacking = append(lacking, op.String())
		}
	}
	if len(lacking) > 0 {
		k.add(Warn, s.where, "rights", "the user lacks %s on the cluster: topics must then be created by hand, or Create be given by topic name", strings.Join(lacking, ", "))
		return
	}
	k.add(OK, s.where, "rights", "topics can be created (%d cluster operations allowed)", len(ops))
}

// lacking lists which of the wanted operations a topic's answer doesn't allow.
func lacking(t kadm.TopicDetail, want ...kadm.ACLOperation) string {
	if len(t.AuthorizedOperations) == 0 {
		return ""
	}
	var out []string
	for _, op := range want {
		if !slices.Contains(t.AuthorizedOperations, op) {
			out = append(out, fmt.Sprint(op))
		}
	}
	return strings.Join(out, ", ")
}
