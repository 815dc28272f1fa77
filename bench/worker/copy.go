package main

import (
	"context"
	"errors"
	"flag"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// copyTopic is the plain consumer-to-producer copier: what a Go user would
// write, with franz-go's defaults or with settings for throughput.
func copyTopic(ctx context.Context, args []string) error {
	f := flag.NewFlagSet("copy", flag.ExitOnError)
	from := f.String("from", "", "bootstrap servers of the source")
	to := f.String("to", "", "bootstrap servers of the destination")
	src := f.String("src", "", "topic to read")
	dst := f.String("dst", "", "topic to write")
	compression := f.String("compression", "none", "none or lz4")
	tuned := f.Bool("tuned", false, "bigger fetches, 1 MB batches, 5 ms linger, acks=1")
	if err := f.Parse(args); err != nil {
		return err
	}
	in := []kgo.Opt{
		kgo.SeedBrokers(strings.Split(*from, ",")...), kgo.ConsumeTopics(*src), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
	}
	out := []kgo.Opt{
		kgo.SeedBrokers(strings.Split(*to, ",")...), kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.ProducerBatchCompression(map[bool]kgo.CompressionCodec{true: kgo.Lz4Compression(), false: kgo.NoCompression()}[*compression == "lz4"]),
	}
	if *tuned {
		in = append(in, kgo.FetchMaxPartitionBytes(4<<20), kgo.FetchMaxBytes(32<<20))
		out = append(out, kgo.ProducerBatchMaxBytes(1_000_000), kgo.ProducerLinger(5*time.Millisecond), kgo.MaxBufferedRecords(50_000),
			kgo.RequiredAcks(kgo.LeaderAck()), kgo.DisableIdempotentWrite())
	}
	consumer, err := kgo.NewClient(in...)
	if err != nil {
		return err
	}
	defer consumer.Close()
	producer, err := kgo.NewClient(out...)
	if err != nil {
		return err
	}
	defer producer.Close()
	failed := make(chan error, 1)
	done := func(_ *kgo.Record, err error) {
		if err != nil && !errors.Is(err, context.Canceled) {
			select {
			case failed <- err:
			default:
			}
		}
	}
	for {
		fs := consumer.PollFetches(ctx)
		select {
		case err := <-failed:
			return err
		default:
		}
		if err := fs.Err0(); err != nil {
			return err
		}
		fs.EachRecord(func(r *kgo.Record) {
			producer.Produce(ctx, &kgo.Record{Topic: *dst, Partition: r.Partition, Key: r.Key, Value: r.Value, Headers: r.Headers, Timestamp: r.Timestamp}, done)
		})
	}
}
