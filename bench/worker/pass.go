package main

import (
	"context"
	"flag"

	"github.com/lockstep-kafka/lockstep/bench/raw"
	"github.com/lockstep-kafka/lockstep/protocol"
)

// passBatches sends on what it reads, batch by batch, each Fetch and each Produce in
// turn: as little as there can be between two brokers. It keeps no offsets and
// survives no error.
func passBatches(ctx context.Context, args []string) error {
	f := flag.NewFlagSet("pass", flag.ExitOnError)
	from := f.String("from", "", "address of the source broker")
	to := f.String("to", "", "address of the destination broker")
	src := f.String("src", "", "topic to read")
	dst := f.String("dst", "", "topic to write")
	partitions := f.Int("partitions", 1, "of both topics")
	if err := f.Parse(args); err != nil {
		return err
	}
	var ps []int32
	for p := range *partitions {
		ps = append(ps, int32(p))
	}
	in, err := raw.NewReader(ctx, *from, *src, ps)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := raw.NewSender(ctx, *to, *dst)
	if err != nil {
		return err
	}
	defer out.Close()
	for {
		if _, err := in.Take(ctx, func(list []raw.Batch) error { return passOn(ctx, out, list) }); err != nil {
			return err
		}
	}
}

// passOn sends one batch of each partition at a time, as brokers want it.
func passOn(ctx context.Context, out *raw.Sender, list []raw.Batch) error {
	for len(list) > 0 {
		var now, later []raw.Batch
		taken := map[int32]bool{}
		for _, b := range list {
			if taken[b.Partition] {
				later = append(later, b)
				continue
			}
			taken[b.Partition] = true
			// A stamp takes the producer's id out, so that no broker minds it.
			if err := protocol.Batch(b.Data).WriteStamp(protocol.Stamp{}); err != nil {
				return err
			}
			now = append(now, b)
		}
		if err := out.Send(ctx, now); err != nil {
			return err
		}
		list = later
	}
	return nil
}
