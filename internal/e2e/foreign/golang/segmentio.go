package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	kafka "github.com/segmentio/kafka-go"
)

type segmentio struct{}

func (segmentio) codecs() []string { return []string{"none", "gzip", "snappy", "lz4", "zstd"} }

func (segmentio) produce(ctx context.Context, topic, codec string, values []string) ([]rec, error) {
	var out []rec
	w := &kafka.Writer{
		Addr: kafka.TCP(bootstrap...), Topic: topic, Balancer: &kafka.Hash{}, RequiredAcks: kafka.RequireAll, BatchTimeout: 10 * time.Millisecond,
		Compression: map[string]kafka.Compression{"gzip": kafka.Gzip, "snappy": kafka.Snappy, "lz4": kafka.Lz4, "zstd": kafka.Zstd}[codec],
		Completion: func(ms []kafka.Message, err error) {
			for _, m := range ms {
				if err == nil {
					out = append(out, rec{int32(m.Partition), m.Offset, m.Key, m.Value})
				}
			}
		},
	}
	var ms []kafka.Message
	for i, v := range values {
		ms = append(ms, kafka.Message{Key: fmt.Appendf(nil, "k%d", i), Value: []byte(v)})
	}
	// One partition at a time, as Completion runs on a goroutine for each.
	err := w.WriteMessages(ctx, ms...)
	return out, errors.Join(err, w.Close())
}

func (segmentio) consume(ctx context.Context, topic, group string, n int, _ bool) ([]rec, error) {
	r := kafka.NewReader(kafka.ReaderConfig{
		Brokers: bootstrap, GroupID: group, Topic: topic, StartOffset: kafka.FirstOffset, MaxWait: 200 * time.Millisecond,
		IsolationLevel: kafka.ReadCommitted,
	})
	var out []rec
	for len(out) < n {
		m, err := r.FetchMessage(ctx)
		if err != nil {
			return out, errors.Join(err, r.Close())
		}
		out = append(out, rec{int32(m.Partition), m.Offset, m.Key, m.Value})
		if err := r.CommitMessages(ctx, m); err != nil {
			return out, errors.Join(err, r.Close())
		}
	}
	return out, r.Close()
}

func (segmentio) admin(ctx context.Context, create, mirrored string) (adminView, error) {
	var v adminView
	cl := &kafka.Client{Addr: kafka.TCP(bootstrap...), Timeout: 20 * time.Second}
	made, err := cl.CreateTopics(ctx, &kafka.CreateTopicsRequest{Topics: []kafka.TopicConfig{{Topic: create, NumPartitions: 3, ReplicationFactor: 1}}})
	if err != nil || made.Errors[create] != nil {
		return v, errors.Join(err, made.Errors[create])
	}
	meta, err := cl.Metadata(ctx, &kafka.MetadataRequest{Topics: []string{create}})
	if err != nil {
		return v, err
	}
	for until := time.Now().Add(10 * time.Second); len(meta.Topics) == 0 || meta.Topics[0].Error != nil; {
		if time.Now().After(until) {
			return v, fmt.Errorf("metadata of %s: %+v", create, meta.Topics)
		}
		if meta, err = cl.Metadata(ctx, &kafka.MetadataRequest{Topics: []string{create}}); err != nil {
			return v, err
		}
	}
	v.Partitions = len(meta.Topics[0].Partitions)
	for _, b := range meta.Brokers {
		v.Addresses = append(v.Addresses, fmt.Sprintf("%s:%d", b.Host, b.Port))
	}
	for _, b := range meta.Brokers {
		groups, err := cl.ListGroups(ctx, &kafka.ListGroupsRequest{Addr: kafka.TCP(fmt.Sprintf("%s:%d", b.Host, b.Port))})
		if err != nil {
			return v, err
		}
		for _, g := range groups.Groups {
			v.Groups = append(v.Groups, g.GroupID)
		}
	}
	offs, err := cl.ListOffsets(ctx, &kafka.ListOffsetsRequest{Topics: map[string][]kafka.OffsetRequest{mirrored: {kafka.FirstOffsetOf(0), kafka.LastOffsetOf(0)}}})
	if err != nil {
		return v, err
	}
	v.Start, v.End = offs.Topics[mirrored][0].FirstOffset, offs.Topics[mirrored][0].LastOffset
	gone, err := cl.DeleteTopics(ctx, &kafka.DeleteTopicsRequest{Topics: []string{create}})
	if err != nil {
		return v, err
	}
	return v, gone.Errors[create]
}

var errNone = errors.New("kafka-go has none")

func (segmentio) txn(context.Context, string, string, string, string) error { return errNone }

func (segmentio) share(context.Context, string, string, int) ([]rec, error) { return nil, errNone }
