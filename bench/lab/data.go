package lab

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"golang.org/x/sync/errgroup"

	"github.com/lockstep-kafka/lockstep/bench/raw"
	"github.com/lockstep-kafka/lockstep/internal/testkafka"
	"github.com/lockstep-kafka/lockstep/protocol"
)

// Shape is how a topic's data looks.
type Shape struct {
	Topic      string
	Partitions int
	Bytes      int64 // of values, in all
	Record     int   // bytes of a value
	Min, Max   int   // records of a batch, evenly spread
	LZ4        bool
	Keys       int // > 0: keyed with so many keys, and compacted
}

// Data is a filled topic of the source.
type Data struct {
	Shape
	Records int64   // that a reader gets
	Stored  int64   // bytes of their batches
	Ends    []int64 // end offset of each partition
}

// variants of a batch are made once and sent again and again.
const variants = 64

// Fill makes the topic and its data on the source, as many batches for each
// partition.
func (l *Lab) Fill(ctx context.Context, s Shape) (Data, error) {
	configs := map[string]string{}
	if s.Keys > 0 {
		configs = map[string]string{
			"cleanup.policy": "compact", "segment.bytes": "1048576", "min.cleanable.dirty.ratio": "0.01", "segment.ms": "2000",
		}
	}
	if err := Create(ctx, l.Source, s.Topic, s.Partitions, configs); err != nil {
		return Data{}, err
	}
	began := time.Now()
	if _, err := Produce(ctx, l.Source.Addr(1), s); err != nil {
		return Data{}, fmt.Errorf("fill %s: %w\n%s", s.Topic, err, l.Source.LogTail(20))
	}
	if s.Keys > 0 {
		if err := l.compacted(ctx, s.Topic); err != nil {
			return Data{}, err
		}
	}
	d := Data{Shape: s, Ends: make([]int64, s.Partitions)}
	err := EachBatch(l.Source, s.Topic, func(p int32, b protocol.Batch) error {
		d.Ends[p] = b.NextOffset()
		d.Records += int64(b.NumRecords())
		d.Stored += int64(b.Size())
		return nil
	})
	l.Logf("%s: %d records, %s stored, in %.1f s", s.Topic, d.Records, MiB(d.Stored), time.Since(began).Seconds())
	return d, err
}

// Produce sends a shape's data to a broker over two connections, and says how
// many records each partition got.
func Produce(ctx context.Context, addr string, s Shape) ([]int64, error) {
	g, gctx := errgroup.WithContext(ctx)
	const conns = 2
	got := make([]int64, s.Partitions)
	for i := range conns {
		g.Go(func() error { return produceShare(gctx, addr, s, i, conns, got) })
	}
	return got, g.Wait()
}

// produceShare sends the share of one connection of several: each request has a
// batch for each of its partitions, up to 8 MiB.
func produceShare(ctx context.Context, addr string, s Shape, i, of int, got []int64) error {
	if i >= s.Partitions {
		return nil
	}
	out, err := raw.NewSender(ctx, addr, s.Topic)
	if err != nil {
		return err
	}
	defer out.Close()
	gen := newGenerator(s, uint64(i))
	want := s.Bytes / int64(s.Partitions) / int64(s.Record)
	for more := true; more; {
		more = false
		var list []raw.Batch
		size := 0
		for p := i; p < s.Partitions; p += of {
			if got[p] >= want {
				continue
			}
			more = true
			b := gen.next()
			list = append(list, raw.Batch{Partition: int32(p), Data: b.data})
			got[p] += int64(b.records)
			if size += len(b.data); size > 8<<20 {
				if err := out.Send(ctx, list); err != nil {
					return err
				}
				list, size = nil, 0
			}
		}
		if len(list) > 0 {
			if err := out.Send(ctx, list); err != nil {
				return err
			}
		}
	}
	return nil
}

// Add appends one more batch to partition 0 of a filled topic, and says how
// many records it has.
func (l *Lab) Add(ctx context.Context, s Shape) (int64, error) {
	out, err := raw.NewSender(ctx, l.Source.Addr(1), s.Topic)
	if err != nil {
		return 0, err
	}
	defer out.Close()
	b := newGenerator(s, 0).next()
	return int64(b.records), out.Send(ctx, []raw.Batch{{Data: b.data}})
}

// compacted waits until the cleaner has nothing to do any more, then keeps it
// from going on.
func (l *Lab) compacted(ctx context.Context, topic string) error {
	var before int64
	for same := 0; same < 3; {
		if err := Sleep(ctx, 2*time.Second); err != nil {
			return err
		}
		var n int64
		if err := EachBatch(l.Source, topic, func(_ int32, b protocol.Batch) error { n += int64(b.NumRecords()); return nil }); err != nil {
			continue // the cleaner swaps files while they are read
		}
		if n == before {
			same++
		} else {
			before, same = n, 0
		}
	}
	adm, err := Admin(l.Source)
	if err != nil {
		return err
	}
	defer adm.Close()
	// The hurry with which the cleaner was made to work is not the topic's nature: mirrors may copy settings.
	lag := strconv.FormatInt(24*time.Hour.Milliseconds(), 10)
	changes := []kadm.AlterConfig{{Op: kadm.SetConfig, Name: "min.compaction.lag.ms", Value: &lag}}
	for _, k := range []string{"segment.bytes", "segment.ms", "min.cleanable.dirty.ratio"} {
		changes = append(changes, kadm.AlterConfig{Op: kadm.DeleteConfig, Name: k})
	}
	answers, err := adm.AlterTopicConfigs(ctx, changes, topic)
	if err == nil && len(answers) > 0 {
		err = answers[0].Err
	}
	if err != nil {
		return fmt.Errorf("settle the settings of %s: %w", topic, err)
	}
	return nil
}

type batch struct {
	data    []byte
	records int
}

type generator struct {
	s     Shape
	r     *rand.Rand
	lz4   kgo.Compressor
	ready []batch
	n     int
}

func newGenerator(s Shape, seed uint64) *generator {
	g := &generator{s: s, r: rand.New(rand.NewPCG(seed, 7))}
	if s.LZ4 {
		g.lz4, _ = kgo.DefaultCompressor(kgo.Lz4Compression()) // errs on unknown codecs only
	}
	return g
}

// next is a batch: keyed ones are all different, others come from the stock.
func (g *generator) next() batch {
	if g.s.Keys == 0 && len(g.ready) == variants {
		g.n++
		return g.ready[g.n%variants]
	}
	n := g.s.Min + g.r.IntN(g.s.Max-g.s.Min+1)
	b := batch{data: g.encode(n), records: n}
	if g.s.Keys == 0 {
		g.ready = append(g.ready, b)
	}
	return b
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// encode makes a v2 batch without producer id.
func (g *generator) encode(n int) []byte {
	var body, rec, value []byte
	for i := range n {
		rec = append(rec[:0], 0, 0) // attributes, timestamp delta
		rec = binary.AppendVarint(rec, int64(i))
		if g.s.Keys > 0 {
			key := strconv.Itoa(g.r.IntN(g.s.Keys))
			rec = append(binary.AppendVarint(rec, int64(len(key))), key...)
		} else {
			rec = binary.AppendVarint(rec, -1)
		}
		value = g.value(value[:0])
		rec = append(binary.AppendVarint(rec, int64(len(value))), value...)
		rec = append(rec, 0) // no headers
		body = append(binary.AppendVarint(body, int64(len(rec))), rec...)
	}
	attributes := uint16(0)
	if g.lz4 != nil {
		packed, codec := g.lz4.Compress(new(bytes.Buffer), body)
		body, attributes = packed, uint16(codec)
	}
	be := binary.BigEndian
	out := make([]byte, protocol.BatchHeaderSize, protocol.BatchHeaderSize+len(body))
	out = append(out, body...)
	be.PutUint32(out[8:], uint32(len(out)-12))
	be.PutUint32(out[12:], ^uint32(0))
	out[16] = 2
	be.PutUint16(out[21:], attributes)
	be.PutUint32(out[23:], uint32(n-1))
	now := uint64(time.Now().UnixMilli())
	be.PutUint64(out[27:], now)
	be.PutUint64(out[35:], now)
	for i := 43; i < 57; i++ { // no producer id, epoch, sequence
		out[i] = 0xff
	}
	be.PutUint32(out[57:], uint32(n))
	be.PutUint32(out[17:], crc32.Checksum(out[21:], castagnoli))
	return out
}

// value looks like an event as JSON: names that repeat, values that don't, so
// that a compressor finds about as much as in practice.
func (g *generator) value(b []byte) []byte {
	end := len(b) + g.s.Record
	for len(b) < end {
		b = append(b, `{"timestamp":"2026-01-01T00:00:00Z","customer":"`...)
		b = strconv.AppendUint(b, g.r.Uint64(), 16)
		b = append(b, `","status":"accepted","amount":`...)
		b = strconv.AppendUint(b, uint64(g.r.Uint32()), 10)
		b = append(b, `},`...)
	}
	return b[:end]
}

// EachBatch walks the batches of a topic in the broker's own files, partition
// by partition. The batch is only valid during the call.
func EachBatch(c *testkafka.Cluster, topic string, visit func(partition int32, b protocol.Batch) error) error {
	files, err := SegmentFiles(c, topic)
	if err != nil {
		return err
	}
	buf := make([]byte, 1<<20)
	for _, f := range files {
		if err := eachIn(f.Path, buf, func(b protocol.Batch) error { return visit(f.Partition, b) }); err != nil {
			return err
		}
	}
	return nil
}

func eachIn(path string, buf []byte, visit func(protocol.Batch) error) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	have := 0
	for {
		n, err := io.ReadFull(f, buf[have:])
		have += n
		end := errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
		if err != nil && !end {
			return err
		}
		rest := buf[:have]
		for {
			b, more, err := protocol.NextBatch(rest)
			if errors.Is(err, io.EOF) || errors.Is(err, protocol.ErrPartialBatch) {
				break
			}
			if err != nil {
				return fmt.Errorf("%s: %w", path, err)
			}
			if err := visit(b); err != nil {
				return err
			}
			rest = more
		}
		if end {
			return nil
		}
		if len(rest) == len(buf) { // a batch larger than the buffer
			buf = append(buf, make([]byte, len(buf))...)
		}
		have = copy(buf, rest)
	}
}

// Segment is a file with batches of one partition.
type Segment struct {
	Partition int32
	Path      string
}

// SegmentFiles are the files of a topic, in order of partition and offset.
func SegmentFiles(c *testkafka.Cluster, topic string) ([]Segment, error) {
	return SegmentFilesIn(c.LogDir(1), topic)
}

// SegmentFilesIn are the files of a topic in a broker's log folder.
func SegmentFilesIn(dir, topic string) (out []Segment, err error) {
	for p := 0; ; p++ {
		folder := filepath.Join(dir, topic+"-"+strconv.Itoa(p))
		if _, err := os.Stat(folder); err != nil {
			if p == 0 {
				return nil, fmt.Errorf("files of %s: %w", topic, err)
			}
			return out, nil
		}
		files, err := filepath.Glob(filepath.Join(folder, "*.log"))
		if err != nil {
			return nil, err
		}
		slices.Sort(files)
		for _, f := range files {
			out = append(out, Segment{int32(p), f})
		}
	}
}
