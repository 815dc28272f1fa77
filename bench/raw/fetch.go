package raw

import (
	"context"
	"errors"
	"fmt"
	"net"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/internal/kconn"
	"github.com/lockstep-kafka/lockstep/protocol"
)

// Reader reads partitions of one topic over one connection.
type Reader struct {
	conn *kconn.Conn
	req  *kmsg.FetchRequest
	took []Batch
	// Next are the offsets to go on at, by partition.
	Next map[int32]int64
}

// NewReader connects and begins at offset 0 of each partition.
func NewReader(ctx context.Context, addr, topic string, partitions []int32) (*Reader, error) {
	c, err := (&kconn.Dialer{ClientID: "bench"}).Init().Dial(ctx, addr)
	if err != nil {
		return nil, err
	}
	r := &Reader{conn: c, req: kmsg.NewPtrFetchRequest(), Next: map[int32]int64{}}
	r.req.SetVersion(fetchVersion)
	r.req.ReplicaID, r.req.MaxWaitMillis, r.req.MinBytes, r.req.MaxBytes, r.req.SessionEpoch = -1, 500, 1, 8<<20, -1
	t := kmsg.NewFetchRequestTopic()
	t.Topic = topic
	for _, p := range partitions {
		fp := kmsg.NewFetchRequestTopicPartition()
		fp.Partition, fp.CurrentLeaderEpoch, fp.LastFetchedEpoch, fp.PartitionMaxBytes = p, -1, -1, 1<<20
		t.Partitions = append(t.Partitions, fp)
		r.Next[p] = 0
	}
	r.req.Topics = []kmsg.FetchRequestTopic{t}
	return r, nil
}

// Close closes the connection.
func (r *Reader) Close() { _ = r.conn.Close() }

// Fetch asks once for all partitions and returns how many records came.
// Partitions take turns as to who is first.
func (r *Reader) Fetch(ctx context.Context) (records int64, err error) {
	return r.Take(ctx, func([]Batch) error { return nil })
}

// Take is Fetch, and hands over the batches, which are valid until take returns.
func (r *Reader) Take(ctx context.Context, take func([]Batch) error) (records int64, err error) {
	r.took = r.took[:0]
	ps := r.req.Topics[0].Partitions
	ps = append(ps[1:], ps[0])
	for i := range ps {
		ps[i].FetchOffset = r.Next[ps[i].Partition]
	}
	r.req.Topics[0].Partitions = ps
	b, err := r.conn.RoundTripRaw(ctx, int16(kmsg.Fetch), fetchVersion, net.Buffers{r.req.AppendTo(nil)}, 0)
	if err != nil {
		return 0, err
	}
	defer b.Release()
	resp := kmsg.NewPtrFetchResponse()
	resp.SetVersion(fetchVersion)
	if err := resp.ReadFrom(b.Bytes()); err != nil {
		return 0, fmt.Errorf("answer to Fetch: %w", err)
	}
	if err := kerr.ErrorForCode(resp.ErrorCode); err != nil {
		return 0, fmt.Errorf("fetch: %w", err)
	}
	for _, t := range resp.Topics {
		for _, p := range t.Partitions {
			if err := kerr.ErrorForCode(p.ErrorCode); err != nil {
				return 0, fmt.Errorf("fetch %s-%d at %d: %w", t.Topic, p.Partition, r.Next[p.Partition], err)
			}
			for rest := p.RecordBatches; len(rest) > 0; {
				batch, more, err := protocol.NextBatch(rest)
				if errors.Is(err, protocol.ErrPartialBatch) {
					break // cut off by the size asked for
				}
				if err != nil {
					return 0, fmt.Errorf("fetch %s-%d: %w", t.Topic, p.Partition, err)
				}
				rest = more
				if batch.NextOffset() <= r.Next[p.Partition] {
					continue
				}
				records += int64(batch.NumRecords())
				r.Next[p.Partition] = batch.NextOffset()
				r.took = append(r.took, Batch{p.Partition, batch})
			}
		}
	}
	return records, take(r.took)
}

// EndOffset is where a partition ends, as it is told at addr.
func EndOffset(ctx context.Context, addr, topic string, partition int32) (int64, error) {
	c, err := (&kconn.Dialer{ClientID: "bench"}).Init().Dial(ctx, addr)
	if err != nil {
		return 0, err
	}
	defer func() { _ = c.Close() }()
	req := kmsg.NewPtrListOffsetsRequest()
	req.SetVersion(7)
	req.ReplicaID = -1
	t := kmsg.NewListOffsetsRequestTopic()
	t.Topic = topic
	p := kmsg.NewListOffsetsRequestTopicPartition()
	p.Partition, p.Timestamp, p.CurrentLeaderEpoch = partition, -1, -1
	t.Partitions = append(t.Partitions, p)
	req.Topics = append(req.Topics, t)
	resp, err := c.Request(ctx, req)
	if err != nil {
		return 0, err
	}
	topics := resp.(*kmsg.ListOffsetsResponse).Topics
	if len(topics) != 1 || len(topics[0].Partitions) != 1 {
		return 0, fmt.Errorf("end of %s-%d: not in the answer", topic, partition)
	}
	got := topics[0].Partitions[0]
	if err := kerr.ErrorForCode(got.ErrorCode); err != nil {
		return 0, fmt.Errorf("end of %s-%d: %w", topic, partition, err)
	}
	return got.Offset, nil
}
