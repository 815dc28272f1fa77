package proxy

import (
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/protocol"
)

// Bits of the operations that metadata says a client may do (KIP-430).
const (
	mayRead   int32 = 1 << 3
	mayDelete int32 = 1 << 6
)

// authorise asks the broker as the client whether it may do op to topics, by
// name; for APIs that can't be asked themselves without an effect. cb gets the
// error of each topic that it may not touch.
func authorise(x exchange, topics []string, op int32, cb func(denied map[string]int16)) {
	denied := map[string]int16{}
	_, hi, ok := x.UpstreamVersion(protocol.KeyMetadata)
	if !ok || hi < 8 {
		for _, t := range topics {
			denied[t] = kerr.UnsupportedVersion.Code
		}
		cb(denied)
		return
	}
	q := kmsg.NewPtrMetadataRequest()
	q.Version = min(hi, 12)
	q.IncludeTopicAuthorizedOperations = true
	q.Topics = []kmsg.MetadataRequestTopic{}
	for _, t := range topics {
		rt := kmsg.NewMetadataRequestTopic()
		rt.Topic = &t
		q.Topics = append(q.Topics, rt)
	}
	ask(x, q, func(r *kmsg.MetadataResponse) {
		for _, t := range topics {
			denied[t] = kerr.UnknownTopicOrPartition.Code
			for i := range r.Topics {
				a := &r.Topics[i]
				if a.Topic == nil || *a.Topic != t {
					continue
				}
				switch {
				case a.ErrorCode != 0 && a.ErrorCode != kerr.LeaderNotAvailable.Code:
					denied[t] = a.ErrorCode
				case a.AuthorizedOperations&op == 0:
					denied[t] = kerr.TopicAuthorizationFailed.Code
				default:
					delete(denied, t)
				}
			}
		}
		cb(denied)
	})
}
