package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"

	"golang.org/x/sync/errgroup"

	"github.com/lockstep-kafka/lockstep/bench/lab"
	"github.com/lockstep-kafka/lockstep/bench/raw"
	"github.com/lockstep-kafka/lockstep/protocol"
)

// produce writes the batches of a topic that lies in a broker's folder to
// another broker as they are, as fast as that takes them: what a mirror could
// reach if reading cost nothing. Each connection has its share of the
// partitions and one request in flight.
func produce(ctx context.Context, args []string) error {
	f := flag.NewFlagSet("produce", flag.ExitOnError)
	dir := f.String("dir", "", "log folder of the source broker")
	src := f.String("src", "", "topic there")
	to := f.String("to", "", "broker to write to")
	dst := f.String("dst", "", "topic to write")
	conns := f.Int("conns", 2, "connections")
	if err := f.Parse(args); err != nil {
		return err
	}
	files, err := lab.SegmentFilesIn(*dir, *src)
	if err != nil {
		return err
	}
	g, gctx := errgroup.WithContext(ctx)
	for i := range *conns {
		mine := map[int32][]string{}
		for _, s := range files {
			if int(s.Partition)%*conns == i {
				mine[s.Partition] = append(mine[s.Partition], s.Path)
			}
		}
		if len(mine) > 0 {
			g.Go(func() error { return produceFiles(gctx, *to, *dst, mine) })
		}
	}
	if err := g.Wait(); err != nil {
		return err
	}
	<-ctx.Done() // the bench still wants to know what this process has used
	return nil
}

func produceFiles(ctx context.Context, to, topic string, files map[int32][]string) error {
	out, err := raw.NewSender(ctx, to, topic)
	if err != nil {
		return err
	}
	defer out.Close()
	var parts []*partitionReader
	for p, paths := range files {
		parts = append(parts, &partitionReader{partition: p, paths: paths})
	}
	defer func() {
		for _, p := range parts {
			p.close()
		}
	}()
	for {
		list := make([]raw.Batch, 0, len(parts))
		size := 0
		flush := func() error {
			if len(list) == 0 {
				return nil
			}
			err := out.Send(ctx, list)
			list, size = list[:0], 0
			return err
		}
		any := false
		for _, p := range parts {
			b, err := p.next()
			if errors.Is(err, io.EOF) {
				continue
			}
			if err != nil {
				return err
			}
			any = true
			list = append(list, raw.Batch{Partition: p.partition, Data: b})
			if size += len(b); size > 8<<20 {
				if err := flush(); err != nil {
					return err
				}
			}
		}
		if err := flush(); err != nil {
			return err
		}
		if !any {
			return nil
		}
	}
}

// partitionReader reads one batch at a time out of segment files and makes it
// fit for Produce, into a buffer of its own.
type partitionReader struct {
	partition int32
	paths     []string
	f         *os.File
	buf       []byte
}

func (r *partitionReader) next() ([]byte, error) {
	for {
		if r.f == nil {
			if len(r.paths) == 0 {
				return nil, io.EOF
			}
			f, err := os.Open(r.paths[0])
			if err != nil {
				return nil, err
			}
			r.f, r.paths = f, r.paths[1:]
		}
		b, err := r.read()
		if err == nil {
			return b, nil
		}
		if !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
			return nil, err
		}
		r.close()
	}
}

func (r *partitionReader) read() ([]byte, error) {
	if r.buf == nil {
		r.buf = make([]byte, protocol.BatchHeaderSize)
	}
	if _, err := io.ReadFull(r.f, r.buf[:protocol.BatchHeaderSize]); err != nil {
		return nil, err
	}
	size := protocol.Batch(r.buf).Size()
	if size < protocol.BatchHeaderSize {
		return nil, io.EOF // the preallocated end of a file
	}
	if size > len(r.buf) {
		r.buf = append(r.buf, make([]byte, size-len(r.buf))...)
	}
	if _, err := io.ReadFull(r.f, r.buf[protocol.BatchHeaderSize:size]); err != nil {
		return nil, err
	}
	b, _, err := protocol.NextBatch(r.buf[:size])
	if err != nil {
		return nil, fmt.Errorf("%s: %w", r.f.Name(), err)
	}
	if err := b.WriteStamp(protocol.Stamp{V: b.BaseOffset()}); err != nil {
		return nil, fmt.Errorf("%s: %w", r.f.Name(), err)
	}
	return b, nil
}

func (r *partitionReader) close() {
	if r.f != nil {
		_ = r.f.Close()
		r.f = nil
	}
}
