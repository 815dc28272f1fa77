package check

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/internal/client"
	"github.com/lockstep-kafka/lockstep/protocol"
)

// probeTopic is created for one batch and deleted again.
const probeTopic = "__lockstep_probe"

// probe writes one stamped batch to the destination and reads it back: all of
// Lockstep rests on the broker keeping the stamp.
func (k *checker) probe(ctx context.Context, s *side, _ client.Security) {
	err := k.probeStamp(ctx, s)
	if err != nil {
		k.add(Fail, s.where, "stamp", "%v", err)
		return
	}
	k.add(OK, s.where, "stamp", "a stamped batch comes back as it was written (topic %s, deleted again)", probeTopic)
}

func (k *checker) probeStamp(ctx context.Context, s *side) (err error) {
	if _, err := s.adm.CreateTopic(ctx, 1, -1, nil, probeTopic); err != nil && !errors.Is(err, kerr.TopicAlreadyExists) {
		return fmt.Errorf("create topic %s for the probe (needs Create): %w", probeTopic, err)
	}
	defer func() {
		if _, derr := s.adm.DeleteTopic(ctx, probeTopic); derr != nil && err == nil {
			err = fmt.Errorf("delete topic %s after the probe (needs Delete; delete it by hand): %w", probeTopic, derr)
		}
	}()
	t, err := awaitLeader(ctx, s.adm)
	if err != nil {
		return err
	}
	leader := s.cl.Broker(int(t.Partitions[0].Leader))
	want := protocol.Stamp{V: 1<<50 - 2, Hole: 7, Flags: 4, Gen: 321, Epoch: 654}
	batch := oneRecord()
	if err := batch.WriteStamp(want); err != nil {
		return fmt.Errorf("stamp the probe batch: %w", err)
	}
	preq := kmsg.NewPtrProduceRequest()
	preq.Acks, preq.TimeoutMillis = -1, 10000
	pt := kmsg.NewProduceRequestTopic()
	pt.Topic, pt.TopicID = probeTopic, t.ID
	pp := kmsg.NewProduceRequestTopicPartition()
	pp.Records = batch
	pt.Partitions = append(pt.Partitions, pp)
	preq.Topics = append(preq.Topics, pt)
	presp, err := preq.RequestWith(ctx, leader)
	if err != nil {
		return fmt.Errorf("write the probe batch: %w", err)
	}
	p := presp.Topics[0].Partitions[0]
	if err := kerr.ErrorForCode(p.ErrorCode); err != nil {
		msg := ""
		if p.ErrorMessage != nil {
			msg = *p.ErrorMessage
		}
		return fmt.Errorf("the destination refuses a stamped batch: %w (%s)", err, msg)
	}
	got, err := readBack(ctx, s, t, p.BaseOffset)
	if err != nil {
		return err
	}
	stamp, ok := got.ReadStamp()
	if !ok || stamp != want || !got.CheckCRC() {
		return fmt.Errorf("the destination changes stamps (wrote %+v, read %+v): it can't hold a mirror", want, stamp)
	}
	return nil
}

func awaitLeader(ctx context.Context, adm *kadm.Client) (kadm.TopicDetail, error) {
	for {
		ts, err := adm.ListTopics(ctx, probeTopic)
		if err == nil {
			if t := ts[probeTopic]; t.Err == nil && len(t.Partitions) == 1 && t.Partitions[0].Leader >= 0 {
				return t, nil
			}
		}
		select {
		case <-ctx.Done():
			return kadm.TopicDetail{}, fmt.Errorf("topic %s gets no leader: %w", probeTopic, errors.Join(ctx.Err(), err))
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func readBack(ctx context.Context, s *side, t kadm.TopicDetail, offset int64) (protocol.Batch, error) {
	for {
		freq := kmsg.NewPtrFetchRequest()
		freq.ReplicaID, freq.MaxWaitMillis, freq.MinBytes, freq.MaxBytes, freq.SessionEpoch = -1, 500, 1, 1<<20, -1
		ft := kmsg.NewFetchRequestTopic()
		ft.Topic, ft.TopicID = probeTopic, t.ID
		fp := kmsg.NewFetchRequestTopicPartition()
		fp.FetchOffset, fp.PartitionMaxBytes, fp.CurrentLeaderEpoch, fp.LastFetchedEpoch = offset, 1<<20, -1, -1
		ft.Partitions = append(ft.Partitions, fp)
		freq.Topics = append(freq.Topics, ft)
		resp, err := freq.RequestWith(ctx, s.cl.Broker(int(t.Partitions[0].Leader)))
		if err != nil {
			return nil, fmt.Errorf("read the probe batch: %w", err)
		}
		for _, rt := range resp.Topics {
			for _, rp := range rt.Partitions {
				if err := kerr.ErrorForCode(rp.ErrorCode); err != nil {
					return nil, fmt.Errorf("read the probe batch (needs Read): %w", err)
				}
				if b, _, err := protocol.NextBatch(rp.RecordBatches); err == nil && b.BaseOffset() == offset {
					return b, nil
				}
			}
		}
		if ctx.Err() != nil {
			return nil, fmt.Errorf("the probe batch does not come back: %w", ctx.Err())
		}
	}
}

// oneRecord is a batch with one record, as a client would send it.
func oneRecord() protocol.Batch {
	now := time.Now().UnixMilli()
	body := []byte{0, 0, 0, 1, 10, 'p', 'r', 'o', 'b', 'e', 0} // attributes, time and offset deltas, no key, value, no headers
	rec := append(binary.AppendVarint(nil, int64(len(body))), body...)
	b := kmsg.RecordBatch{
		PartitionLeaderEpoch: -1, Magic: 2, FirstTimestamp: now, MaxTimestamp: now,
		ProducerID: -1, ProducerEpoch: -1, FirstSequence: -1, NumRecords: 1, Records: rec,
	}
	b.Length = int32(protocol.BatchHeaderSize - 12 + len(rec))
	raw := b.AppendTo(nil)
	binary.BigEndian.PutUint32(raw[17:], crc32.Checksum(raw[21:], crc32.MakeTable(crc32.Castagnoli)))
	return raw
}
