// Command copier is the plain consumer-to-producer copier that the bench
// compares with: what a Go user would write with franz-go's defaults. It runs
// until it is told to end.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/twmb/franz-go/pkg/kgo"
)

func main() {
	from := flag.String("from", "", "bootstrap servers of the source")
	to := flag.String("to", "", "bootstrap servers of the destination")
	src := flag.String("src", "", "topic to read")
	dst := flag.String("dst", "", "topic to write")
	compression := flag.String("compression", "none", "none or lz4")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *from, *to, *src, *dst, *compression); err != nil && ctx.Err() == nil {
		fmt.Fprintln(os.Stderr, "copier:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, from, to, src, dst, compression string) error {
	codec := kgo.NoCompression()
	if compression == "lz4" {
		codec = kgo.Lz4Compression()
	}
	consumer, err := kgo.NewClient(kgo.SeedBrokers(strings.Split(from, ",")...), kgo.ConsumeTopics(src), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	if err != nil {
		return err
	}
	defer consumer.Close()
	producer, err := kgo.NewClient(kgo.SeedBrokers(strings.Split(to, ",")...), kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.ProducerBatchCompression(codec))
	if err != nil {
		return err
	}
	defer producer.Close()
	failed := make(chan error, 1)
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
			producer.Produce(ctx, &kgo.Record{Topic: dst, Partition: r.Partition, Key: r.Key, Value: r.Value, Headers: r.Headers, Timestamp: r.Timestamp},
				func(_ *kgo.Record, err error) {
					if err != nil && !errors.Is(err, context.Canceled) {
						select {
						case failed <- err:
						default:
						}
					}
				})
		})
	}
}
