package mirror

import (
	"context"
	"fmt"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/internal/kconn"
	"github.com/lockstep-kafka/lockstep/protocol"
)

// Special timestamps of ListOffsets.
const (
	tsLatest   = -1
	tsEarliest = -2
)

// listOffset asks a partition's leader, at leader epoch cur (-1: no check), for
// an end of its log, READ_UNCOMMITTED: -2 earliest, -1 latest (the high
// watermark).
func listOffset(ctx context.Context, c *kconn.Conn, topic string, p, cur int32, ts int64) (int64, error) {
	return listOffsetAs(ctx, c, topic, p, cur, ts, 0)
}

// stableOffset asks for the last stable offset, at or below the high
// watermark. A new leader answers only when its high watermark has reached its
// epoch's start (KIP-207), so nothing that was decided before is open in it.
func stableOffset(ctx context.Context, c *kconn.Conn, topic string, p, cur int32) (int64, error) {
	return listOffsetAs(ctx, c, topic, p, cur, tsLatest, 1)
}

func listOffsetAs(ctx context.Context, c *kconn.Conn, topic string, p, cur int32, ts int64, isolation int8) (int64, error) {
	v, err := c.Version(int16(kmsg.ListOffsets), 1+int16(isolation), 7)
	if err != nil {
		return 0, err
	}
	rp := kmsg.NewListOffsetsRequestTopicPartition()
	rp.Partition, rp.CurrentLeaderEpoch, rp.Timestamp = p, cur, ts
	rt := kmsg.NewListOffsetsRequestTopic()
	rt.Topic, rt.Partitions = topic, append(rt.Partitions, rp)
	req := kmsg.NewPtrListOffsetsRequest()
	req.Version, req.ReplicaID, req.IsolationLevel, req.Topics = v, -1, isolation, append(req.Topics, rt)
	r, err := c.Request(ctx, req)
	if err != nil {
		return 0, err
	}
	for _, t := range r.(*kmsg.ListOffsetsResponse).Topics {
		for _, a := range t.Partitions {
			if t.Topic == topic && a.Partition == p {
				if err := kerr.ErrorForCode(a.ErrorCode); err != nil {
					return 0, fmt.Errorf("ListOffsets: %w", err)
				}
				return a.Offset, nil
			}
		}
	}
	return 0, fmt.Errorf("%w: ListOffsets answer without the partition", kconn.ErrNonsense)
}

// endOfEpoch asks OffsetForLeaderEpoch: facts.md §2.
func endOfEpoch(ctx context.Context, c *kconn.Conn, topic string, p, cur, epoch int32) (int32, int64, error) {
	v, err := c.Version(int16(kmsg.OffsetForLeaderEpoch), 2, 4)
	if err != nil {
		return 0, 0, err
	}
	rp := kmsg.NewOffsetForLeaderEpochRequestTopicPartition()
	rp.Partition, rp.CurrentLeaderEpoch, rp.LeaderEpoch = p, cur, epoch
	rt := kmsg.NewOffsetForLeaderEpochRequestTopic()
	rt.Topic, rt.Partitions = topic, append(rt.Partitions, rp)
	req := kmsg.NewPtrOffsetForLeaderEpochRequest()
	req.Version, req.ReplicaID, req.Topics = v, -1, append(req.Topics, rt)
	r, err := c.Request(ctx, req)
	if err != nil {
		return 0, 0, err
	}
	for _, t := range r.(*kmsg.OffsetForLeaderEpochResponse).Topics {
		for _, a := range t.Partitions {
			if t.Topic == topic && a.Partition == p {
				if err := kerr.ErrorForCode(a.ErrorCode); err != nil {
					return 0, 0, fmt.Errorf("OffsetForLeaderEpoch: %w", err)
				}
				return a.LeaderEpoch, a.EndOffset, nil
			}
		}
	}
	return 0, 0, fmt.Errorf("%w: OffsetForLeaderEpoch answer without the partition", kconn.ErrNonsense)
}

// fetchOnce is one Fetch of one destination partition.
func fetchOnce(ctx context.Context, c *kconn.Conn, l leader, topic string, p int32, from int64, most int32, isolation int8) (*kmsg.FetchResponseTopicPartition, error) {
	hi := int16(18)
	if l.id.IsZero() {
		hi = 12
	}
	v, err := c.Version(int16(kmsg.Fetch), 4, hi)
	if err != nil {
		return nil, err
	}
	rp := kmsg.NewFetchRequestTopicPartition()
	rp.Partition, rp.CurrentLeaderEpoch, rp.FetchOffset, rp.PartitionMaxBytes = p, l.epoch, from, most
	rt := kmsg.NewFetchRequestTopic()
	rt.Topic, rt.TopicID, rt.Partitions = topic, l.id, append(rt.Partitions, rp)
	req := kmsg.NewPtrFetchRequest()
	req.Version, req.ReplicaID, req.MinBytes, req.MaxBytes, req.IsolationLevel = v, -1, 1, most, isolation
	req.SessionID, req.SessionEpoch = 0, -1
	req.Topics = append(req.Topics, rt)
	r, err := c.Request(ctx, req)
	if err != nil {
		return nil, err
	}
	resp := r.(*kmsg.FetchResponse)
	if err := kerr.ErrorForCode(resp.ErrorCode); err != nil {
		return nil, fmt.Errorf("fetch: %w", err)
	}
	if len(resp.Topics) != 1 || len(resp.Topics[0].Partitions) != 1 {
		return nil, fmt.Errorf("%w: Fetch answer without the partition", kconn.ErrNonsense)
	}
	a := &resp.Topics[0].Partitions[0]
	if err := kerr.ErrorForCode(a.ErrorCode); err != nil {
		return nil, fmt.Errorf("fetch: %w", err)
	}
	return a, nil
}

// readBatches reads a destination partition's batches in [from, to) up to the
// high watermark, READ_UNCOMMITTED, in order, whole ones, the first of which
// may begin below from; it ends early where the broker has no more. f stops it
// with an error.
func readBatches(ctx context.Context, c *kconn.Conn, l leader, topic string, p int32, from, to int64, f func(protocol.Batch) error) error {
	for from < to {
		most := int32(1 << 20)
		if to-from == 1 {
			most = 1 // the one batch that holds it
		}
		a, err := fetchOnce(ctx, c, l, topic, p, from, most, 0)
		if err != nil {
			return err
		}
		at := from
		for rest := a.RecordBatches; len(rest) > 0; {
			var b protocol.Batch
			if b, rest, err = protocol.NextBatch(rest); err != nil {
				break // the partial batch behind the last whole one
			}
			if b.BaseOffset() >= to {
				return nil
			}
			if b.NextOffset() <= from {
				continue
			}
			if err := f(b); err != nil {
				return err
			}
			at = b.NextOffset()
		}
		if at == from {
			return nil
		}
		from = at
	}
	return nil
}
