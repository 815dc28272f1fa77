package content

import (
	"context"
	"encoding/binary"
	"fmt"
	"hash/crc32"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/internal/testkafka/oracle"
)

// HangTransaction leaves a transaction in a partition that no coordinator will ever end: a transactional batch of a
// producer that never told its coordinator. The broker's check against just that is off meanwhile. It returns the
// producer id and the offset; end aborts it, as an operator would.
func HangTransaction(ctx context.Context, bootstrap, topic string, partition int32, txnID string) (pid, offset int64, end func(context.Context) error, err error) {
	cl, err := kgo.NewClient(kgo.SeedBrokers(seeds(bootstrap)...))
	if err != nil {
		return 0, 0, nil, fmt.Errorf("content: %w", err)
	}
	defer cl.Close()
	verification := func(on string) error {
		_, err := kadm.NewClient(cl).AlterBrokerConfigs(ctx, []kadm.AlterConfig{{Op: kadm.SetConfig, Name: "transaction.partition.verification.enable", Value: &on}})
		return err
	}
	if err := verification("false"); err != nil {
		return 0, 0, nil, fmt.Errorf("content: %w", err)
	}
	defer func() {
		if on := verification("true"); err == nil {
			err = on
		}
	}()
	init := kmsg.NewPtrInitProducerIDRequest()
	init.TransactionalID, init.TransactionTimeoutMillis = &txnID, 60_000
	id, err := init.RequestWith(ctx, cl)
	if err == nil {
		err = kerr.ErrorForCode(id.ErrorCode)
	}
	if err != nil {
		return 0, 0, nil, fmt.Errorf("content: producer id: %w", err)
	}
	b := Batch(baseTime, "hanging", "never decided")
	be := binary.BigEndian
	be.PutUint16(b[21:], be.Uint16(b[21:])|1<<4)
	be.PutUint64(b[43:], uint64(id.ProducerID))
	be.PutUint16(b[51:], uint16(id.ProducerEpoch))
	be.PutUint32(b[53:], 0)
	be.PutUint32(b[17:], crc32.Checksum(b[21:], castagnoli))
	c, _, err := oracle.DialLeader(ctx, bootstrap, topic, partition)
	if err != nil {
		return 0, 0, nil, err
	}
	defer c.Close()
	req := kmsg.NewPtrProduceRequest()
	req.TransactionID, req.Acks, req.TimeoutMillis = &txnID, -1, 10_000
	rt := kmsg.NewProduceRequestTopic()
	rt.Topic = topic
	rp := kmsg.NewProduceRequestTopicPartition()
	rp.Partition, rp.Records = partition, b
	rt.Partitions = append(rt.Partitions, rp)
	req.Topics = append(req.Topics, rt)
	err = oracle.Retry(ctx, func() error { // the setting takes a moment
		resp, err := c.Do(ctx, req, 9)
		if err != nil {
			return err
		}
		a := resp.(*kmsg.ProduceResponse).Topics[0].Partitions[0]
		offset = a.BaseOffset
		if a.ErrorCode == kerr.InvalidTxnState.Code {
			return kerr.NotLeaderForPartition // try again
		}
		return kerr.ErrorForCode(a.ErrorCode)
	})
	if err != nil {
		return 0, 0, nil, fmt.Errorf("content: hanging transaction: %w", err)
	}
	epoch := id.ProducerEpoch
	return id.ProducerID, offset, func(ctx context.Context) error {
		cl, err := kgo.NewClient(kgo.SeedBrokers(seeds(bootstrap)...))
		if err != nil {
			return fmt.Errorf("content: %w", err)
		}
		defer cl.Close()
		set := kadm.TopicsSet{}
		set.Add(topic, partition)
		rs, err := kadm.NewClient(cl).WriteTxnMarkers(ctx, kadm.TxnMarkers{ProducerID: id.ProducerID, ProducerEpoch: epoch, Topics: set})
		if err != nil {
			return fmt.Errorf("content: abort marker: %w", err)
		}
		for _, r := range rs.SortedPartitions() {
			if r.Err != nil {
				return fmt.Errorf("content: abort marker: %w", r.Err)
			}
		}
		return WaitDecided(ctx, bootstrap, topic, partition)
	}, nil
}
