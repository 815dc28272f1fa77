package ledger

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/internal/kconn"
)

// ledgerVersions caps what the ledger's clients speak: Fetch and Produce by
// topic name, and transactions as they were before KIP-890's second part, in
// which EndTxn would change the producer's epoch. Brokers 2.8 to 4.x know them
// all.
func ledgerVersions() kgo.Opt {
	v := kconn.ClientVersions()
	v.SetMaxKeyVersion(int16(kmsg.Produce), 11)
	v.SetMaxKeyVersion(int16(kmsg.Fetch), 12)
	v.SetMaxKeyVersion(int16(kmsg.Metadata), 12)
	v.SetMaxKeyVersion(int16(kmsg.InitProducerID), 4)
	v.SetMaxKeyVersion(int16(kmsg.AddPartitionsToTxn), 3)
	v.SetMaxKeyVersion(int16(kmsg.EndTxn), 4)
	return kgo.MaxVersions(v)
}

// ledgerLeaders asks who leads the ledger's partitions; -1: nobody.
func ledgerLeaders(ctx context.Context, cl *kgo.Client) (leaders [Partitions]int32, err error) {
	req := kmsg.NewPtrMetadataRequest()
	t := kmsg.NewMetadataRequestTopic()
	t.Topic = kmsg.StringPtr(Topic)
	req.Topics = append(req.Topics, t)
	resp, err := req.RequestWith(ctx, cl)
	if err != nil {
		return leaders, err
	}
	if len(resp.Topics) != 1 {
		return leaders, fmt.Errorf("metadata of %d topics, asked for one", len(resp.Topics))
	}
	if err := kerr.ErrorForCode(resp.Topics[0].ErrorCode); err != nil {
		return leaders, err
	}
	if n := len(resp.Topics[0].Partitions); n != Partitions {
		return leaders, wrongPartitions(n)
	}
	for i := range leaders {
		leaders[i] = -1
	}
	for _, p := range resp.Topics[0].Partitions {
		if p.Partition < 0 || p.Partition >= Partitions {
			return leaders, fmt.Errorf("metadata names partition %d", p.Partition)
		}
		leaders[p.Partition] = p.Leader
	}
	return leaders, nil
}

// listOffset asks for -2 the log start, for -1 the high watermark.
func listOffset(ctx context.Context, cl *kgo.Client, broker, p int32, at int64) (int64, error) {
	req := kmsg.NewPtrListOffsetsRequest()
	req.ReplicaID = -1
	t := kmsg.NewListOffsetsRequestTopic()
	t.Topic = Topic
	rp := kmsg.NewListOffsetsRequestTopicPartition()
	rp.Partition, rp.Timestamp, rp.CurrentLeaderEpoch = p, at, -1
	t.Partitions = append(t.Partitions, rp)
	req.Topics = append(req.Topics, t)
	kresp, err := cl.Broker(int(broker)).Request(ctx, req)
	if err != nil {
		return -1, err
	}
	resp := kresp.(*kmsg.ListOffsetsResponse)
	if len(resp.Topics) != 1 || len(resp.Topics[0].Partitions) != 1 {
		return -1, errors.New("ListOffsets: no answer for the partition asked about")
	}
	a := resp.Topics[0].Partitions[0]
	if err := kerr.ErrorForCode(a.ErrorCode); err != nil {
		return -1, err
	}
	return a.Offset, nil
}

// lastBatch walks batch headers: where the last whole batch ends and its
// leader epoch; (-1, -1) for none. Emptied batches count: their offsets are
// read too.
func lastBatch(b []byte) (end int64, epoch int32) {
	end, epoch = -1, -1
	for len(b) >= 61 {
		size := int64(binary.BigEndian.Uint32(b[8:])) + 12
		if size < 61 || size > int64(len(b)) || b[16] != 2 {
			break
		}
		end = int64(binary.BigEndian.Uint64(b)) + int64(binary.BigEndian.Uint32(b[23:])) + 1
		epoch = int32(binary.BigEndian.Uint32(b[12:]))
		b = b[size:]
	}
	return end, epoch
}
