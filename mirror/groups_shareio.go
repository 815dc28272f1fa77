package mirror

import (
	"context"
	"errors"
	"fmt"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

var errNoShareAPI = errors.New("the coordinator doesn't offer share groups' offsets (AlterShareGroupOffsets, Kafka 4.1 and later)")

// shareOffsets is as offsets, for the start offsets of share groups. Their
// leader epochs say nothing about records: none is given.
func (c *groupCluster) shareOffsets(ctx context.Context, groups []string, take func(string, []kmsg.OffsetFetchResponseGroupTopic, error)) {
	tell := func(group string, ts []kmsg.OffsetFetchResponseGroupTopic, err error) {
		switch {
		case errors.Is(err, kerr.GroupIDNotFound): // it has no offsets
			ts, err = nil, nil
		case err != nil:
			c.forget(group, err)
		}
		take(group, ts, err)
	}
	at, failed := c.locate(ctx, groups)
	for g, err := range failed {
		tell(g, nil, err)
	}
	for broker, list := range at {
		for ; len(list) > 0; list = list[min(groupsAFetch, len(list)):] {
			chunk := list[:min(groupsAFetch, len(list))]
			got, err := c.describeShares(ctx, broker, chunk)
			for _, name := range chunk {
				g, ok := got[name]
				switch {
				case err != nil:
					tell(name, nil, err)
				case !ok:
					tell(name, nil, fmt.Errorf("DescribeShareGroupOffsets answer of broker %d is without the group: %w", broker, kerr.CoordinatorNotAvailable))
				default:
					tell(name, shareTopics(g), withMessage(g.ErrorCode, g.ErrorMessage))
				}
			}
		}
	}
}

func (c *groupCluster) describeShares(ctx context.Context, broker int32, groups []string) (map[string]*kmsg.DescribeShareGroupOffsetsResponseGroup, error) {
	if can, err := c.offers(ctx, broker); err != nil {
		return nil, err
	} else if !can.share {
		return nil, errNoShareAPI
	}
	req := kmsg.NewPtrDescribeShareGroupOffsetsRequest()
	for _, g := range groups {
		rg := kmsg.NewDescribeShareGroupOffsetsRequestGroup()
		rg.GroupID = g // of all topics
		req.Groups = append(req.Groups, rg)
	}
	r, err := c.cl.Broker(int(broker)).RetriableRequest(ctx, req)
	if err != nil {
		return nil, err
	}
	resp := r.(*kmsg.DescribeShareGroupOffsetsResponse)
	out := make(map[string]*kmsg.DescribeShareGroupOffsetsResponseGroup, len(resp.Groups))
	for i := range resp.Groups {
		out[resp.Groups[i].GroupID] = &resp.Groups[i]
	}
	return out, nil
}

func shareTopics(g *kmsg.DescribeShareGroupOffsetsResponseGroup) (ts []kmsg.OffsetFetchResponseGroupTopic) {
	for i := range g.Topics {
		t := kmsg.OffsetFetchResponseGroupTopic{Topic: g.Topics[i].Topic}
		for _, p := range g.Topics[i].Partitions {
			t.Partitions = append(t.Partitions, kmsg.OffsetFetchResponseGroupTopicPartition{
				Partition: p.Partition, Offset: p.StartOffset, LeaderEpoch: -1, ErrorCode: p.ErrorCode,
			})
		}
		ts = append(ts, t)
	}
	return ts
}

// withMessage is an error of an answer, with the broker's words if it has some.
func withMessage(code int16, message *string) error {
	err := kerr.ErrorForCode(code)
	if err != nil && message != nil && *message != "" {
		return fmt.Errorf("%s: %w", *message, err)
	}
	return err
}

// alterShare sets where a share group starts, which brokers allow without
// members only, and make the group for. It gives one error for each, nil: set.
func (c *groupCluster) alterShare(ctx context.Context, group string, list []groupCommit) []error {
	req := kmsg.NewPtrAlterShareGroupOffsetsRequest()
	req.GroupID = group
	topics := map[string]int{}
	for i := range list {
		x := &list[i]
		ti, ok := topics[x.topic]
		if !ok {
			ti = len(req.Topics)
			topics[x.topic] = ti
			t := kmsg.NewAlterShareGroupOffsetsRequestTopic()
			t.Topic = x.topic
			req.Topics = append(req.Topics, t)
		}
		p := kmsg.NewAlterShareGroupOffsetsRequestTopicPartition()
		p.Partition, p.StartOffset = x.partition, x.offset
		req.Topics[ti].Partitions = append(req.Topics[ti].Partitions, p)
	}
	return c.change(ctx, group, list, func(broker int32, tell func(string, int32, error) bool) error {
		if can, err := c.offers(ctx, broker); err != nil {
			return err
		} else if !can.share {
			return errNoShareAPI
		}
		r, err := c.cl.Broker(int(broker)).Request(ctx, req)
		if err != nil {
			return err
		}
		resp := r.(*kmsg.AlterShareGroupOffsetsResponse)
		if err := withMessage(resp.ErrorCode, resp.ErrorMessage); err != nil {
			return err
		}
		for _, t := range resp.Topics {
			for _, p := range t.Partitions {
				tell(t.Topic, p.Partition, withMessage(p.ErrorCode, p.ErrorMessage))
			}
		}
		return nil
	})
}
