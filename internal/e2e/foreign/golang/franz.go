package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

type franz struct{}

func (franz) codecs() []string { return []string{"none", "gzip", "snappy", "lz4", "zstd"} }

func (franz) client(opts ...kgo.Opt) (*kgo.Client, error) {
	return kgo.NewClient(append([]kgo.Opt{kgo.SeedBrokers(bootstrap...), kgo.ClientID("franz-go")}, opts...)...)
}

func (f franz) produce(ctx context.Context, topic, codec string, values []string) ([]rec, error) {
	c := map[string]kgo.CompressionCodec{
		"none": kgo.NoCompression(), "gzip": kgo.GzipCompression(), "snappy": kgo.SnappyCompression(),
		"lz4": kgo.Lz4Compression(), "zstd": kgo.ZstdCompression(),
	}[codec]
	cl, err := f.client(kgo.ProducerBatchCompression(c), kgo.ProducerLinger(10*time.Millisecond))
	if err != nil {
		return nil, err
	}
	defer cl.Close()
	var out []rec
	for _, r := range cl.ProduceSync(ctx, f.records(topic, values)...) {
		if r.Err != nil {
			return out, r.Err
		}
		out = append(out, franzRec(r.Record))
	}
	return out, nil
}

func (franz) records(topic string, values []string) []*kgo.Record {
	var out []*kgo.Record
	for i, v := range values {
		out = append(out, &kgo.Record{Topic: topic, Key: fmt.Appendf(nil, "k%d", i), Value: []byte(v)})
	}
	return out
}

func franzRec(r *kgo.Record) rec { return rec{r.Partition, r.Offset, r.Key, r.Value} }

func (f franz) consume(ctx context.Context, topic, group string, n int, newProtocol bool) ([]rec, error) {
	opts := []kgo.Opt{
		kgo.ConsumerGroup(group), kgo.ConsumeTopics(topic), kgo.DisableAutoCommit(), kgo.FetchMaxWait(200 * time.Millisecond),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
	}
	if newProtocol {
		opts = append(opts, kgo.ServerSideBalancer(), kgo.Balancers(kgo.RangeBalancer()))
	}
	cl, err := f.client(opts...)
	if err != nil {
		return nil, err
	}
	defer cl.Close()
	var out []rec
	for len(out) < n {
		fs := cl.PollRecords(ctx, n-len(out))
		if err := fs.Err(); err != nil {
			return out, err
		}
		rs := fs.Records()
		for _, r := range rs {
			out = append(out, franzRec(r))
		}
		if err := cl.CommitRecords(ctx, rs...); err != nil {
			return out, err
		}
	}
	return out, nil
}

func (f franz) admin(ctx context.Context, create, mirrored string) (adminView, error) {
	var v adminView
	cl, err := f.client()
	if err != nil {
		return v, err
	}
	defer cl.Close()
	a := kadm.NewClient(cl)
	if _, err := a.CreateTopic(ctx, 3, 1, nil, create); err != nil {
		return v, err
	}
	meta, err := a.Metadata(ctx, create)
	if err != nil {
		return v, err
	}
	for len(meta.Topics[create].Partitions) == 0 { // a broker's metadata may lag behind the controller's answer
		select {
		case <-ctx.Done():
			return v, ctx.Err()
		case <-time.After(100 * time.Millisecond):
		}
		if meta, err = a.Metadata(ctx, create); err != nil {
			return v, err
		}
	}
	v.Partitions = len(meta.Topics[create].Partitions)
	for _, b := range meta.Brokers {
		v.Addresses = append(v.Addresses, fmt.Sprintf("%s:%d", b.Host, b.Port))
	}
	groups, err := a.ListGroups(ctx)
	if err != nil {
		return v, err
	}
	v.Groups = groups.Groups()
	start, err := a.ListStartOffsets(ctx, mirrored)
	if err != nil {
		return v, err
	}
	end, err := a.ListEndOffsets(ctx, mirrored)
	if err != nil {
		return v, err
	}
	v.Start, v.End = start[mirrored][0].Offset, end[mirrored][0].Offset
	_, err = a.DeleteTopic(ctx, create)
	return v, err
}

func (f franz) txn(ctx context.Context, topic, mirrored, group, id string) error {
	cl, err := f.client(kgo.TransactionalID(id))
	if err != nil {
		return err
	}
	defer cl.Close()
	for _, t := range []struct {
		values []string
		how    kgo.TransactionEndTry
	}{{[]string{"c0", "c1", "c2"}, kgo.TryCommit}, {[]string{"x0", "x1", "x2"}, kgo.TryAbort}} {
		if err := cl.BeginTransaction(); err != nil {
			return err
		}
		if err := cl.ProduceSync(ctx, f.records(topic, t.values)...).FirstErr(); err != nil {
			return err
		}
		if err := cl.EndTransaction(ctx, t.how); err != nil {
			return err
		}
	}
	cl.Close()
	s, err := kgo.NewGroupTransactSession(
		kgo.SeedBrokers(bootstrap...), kgo.TransactionalID(id), kgo.ConsumerGroup(group), kgo.ConsumeTopics(mirrored),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.RequireStableFetchOffsets(),
	)
	if err != nil {
		return err
	}
	defer s.Close()
	for next := int64(0); next < 7; {
		fs := s.PollRecords(ctx, 1)
		if err := fs.Err(); err != nil {
			return err
		}
		fs.EachRecord(func(r *kgo.Record) { next = r.Offset + 1 })
	}
	if err := s.Begin(); err != nil {
		return err
	}
	if err := s.ProduceSync(ctx, f.records(topic, []string{"d0", "d1"})...).FirstErr(); err != nil {
		return err
	}
	ok, err := s.End(ctx, kgo.TryCommit)
	if err == nil && !ok {
		err = errors.New("the transaction was aborted")
	}
	return err
}

func (f franz) share(ctx context.Context, topic, group string, n int) ([]rec, error) {
	cl, err := f.client(kgo.ShareGroup(group), kgo.ConsumeTopics(topic))
	if err != nil {
		return nil, err
	}
	defer cl.Close()
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	var out []rec
	for len(out) < n {
		fs := cl.PollFetches(ctx)
		if err := fs.Err(); err != nil {
			return out, err
		}
		fs.EachRecord(func(r *kgo.Record) { out = append(out, franzRec(r)); r.Ack(kgo.AckAccept) })
	}
	return out, nil
}
