package oracle

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// Isolation is a reader's isolation level, by its number on the wire.
type Isolation int8

// The isolation levels.
const (
	ReadUncommitted Isolation = iota
	ReadCommitted
)

// String is the name that clients' settings use.
func (i Isolation) String() string {
	if i == ReadCommitted {
		return "read_committed"
	}
	return "read_uncommitted"
}

// Special timestamps of ListOffsets.
const (
	Latest   int64 = -1
	Earliest int64 = -2
)

// Offset is an answer of ListOffsets.
type Offset struct {
	Offset, Timestamp int64
	LeaderEpoch       int32
}

// ListOffset asks a partition's leader for one timestamp.
func ListOffset(ctx context.Context, bootstrap, topic string, partition int32, iso Isolation, ts int64) (Offset, error) {
	var out Offset
	err := Retry(ctx, func() error {
		c, _, err := DialLeader(ctx, bootstrap, topic, partition)
		if err != nil {
			return err
		}
		defer c.Close()
		out, err = listOffset(ctx, c, topic, partition, iso, ts)
		return err
	})
	return out, err
}

func listOffset(ctx context.Context, c *Conn, topic string, partition int32, iso Isolation, ts int64) (Offset, error) {
	r := kmsg.NewPtrListOffsetsRequest()
	r.ReplicaID, r.IsolationLevel = -1, int8(iso)
	t := kmsg.NewListOffsetsRequestTopic()
	t.Topic = topic
	p := kmsg.NewListOffsetsRequestTopicPartition()
	p.Partition, p.Timestamp, p.CurrentLeaderEpoch = partition, ts, -1
	t.Partitions = append(t.Partitions, p)
	r.Topics = append(r.Topics, t)
	resp, err := c.Do(ctx, r, 9)
	if err != nil {
		return Offset{}, err
	}
	got := resp.(*kmsg.ListOffsetsResponse).Topics
	if len(got) != 1 || len(got[0].Partitions) != 1 {
		return Offset{}, fmt.Errorf("oracle: ListOffsets of %s-%d: empty answer", topic, partition)
	}
	a := got[0].Partitions[0]
	if err := kerr.ErrorForCode(a.ErrorCode); err != nil {
		return Offset{}, fmt.Errorf("oracle: ListOffsets %d of %s-%d: %w", ts, topic, partition, err)
	}
	return Offset{Offset: a.Offset, Timestamp: a.Timestamp, LeaderEpoch: a.LeaderEpoch}, nil
}

// Retry calls f again, a little later each time, while its error is one that Kafka clients retry; for half a minute at
// most, as leaders take a while to be elected on a busy machine.
func Retry(ctx context.Context, f func() error) error {
	wait := 50 * time.Millisecond
	for try := 0; ; try++ {
		err := f()
		if err == nil || try == 30 || !kerr.IsRetriable(err) {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(wait):
		}
		wait = min(2*wait, time.Second)
	}
}

// Dump is a partition from its earliest to its latest offset at that level (the last stable one for
// ReadCommitted), as a correct consumer shows it: records below the log start are cut off a batch, control records
// are left out, and with ReadCommitted aborted ones too.
func Dump(ctx context.Context, bootstrap, topic string, partition int32, iso Isolation) ([]Rec, error) {
	var recs []Rec
	err := read(ctx, bootstrap, topic, partition, iso, func() { recs = nil }, func(b Batch, start int64, aborted bool) error {
		if b.Control() || aborted {
			return nil
		}
		r, err := b.Recs(partition)
		recs = append(recs, slices.DeleteFunc(r, func(x Rec) bool { return x.Offset < start })...)
		return err
	})
	return recs, err
}

// Batches is every batch of a partition, control and aborted ones included, from the first to the high watermark.
func Batches(ctx context.Context, bootstrap, topic string, partition int32) ([]Batch, error) {
	var out []Batch
	err := read(ctx, bootstrap, topic, partition, ReadUncommitted, func() { out = nil }, func(b Batch, _ int64, _ bool) error {
		out = append(out, b)
		return nil
	})
	return out, err
}

// read walks the batches; reset is called before each attempt.
func read(ctx context.Context, bootstrap, topic string, partition int32, iso Isolation, reset func(),
	each func(b Batch, start int64, aborted bool) error,
) error {
	return Retry(ctx, func() error {
		reset()
		return readOnce(ctx, bootstrap, topic, partition, iso, each)
	})
}

func readOnce(ctx context.Context, bootstrap, topic string, partition int32, iso Isolation,
	each func(b Batch, start int64, aborted bool) error,
) error {
	c, _, err := DialLeader(ctx, bootstrap, topic, partition)
	if err != nil {
		return err
	}
	defer c.Close()
	first, err := listOffset(ctx, c, topic, partition, iso, Earliest)
	if err != nil {
		return err
	}
	last, err := listOffset(ctx, c, topic, partition, iso, Latest)
	if err != nil {
		return err
	}
	w := walker{start: first.Offset, pos: first.Offset, end: last.Offset, iso: iso, open: map[int64]bool{}, each: each}
	for w.pos < w.end {
		p, err := Fetch(ctx, c, topic, partition, w.pos, iso)
		if err != nil {
			return err
		}
		if err := w.answer(p); err != nil {
			return fmt.Errorf("oracle: %s-%d at %d: %w", topic, partition, w.pos, err)
		}
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("oracle: %s-%d at %d of %d: %w", topic, partition, w.pos, w.end, err)
		}
	}
	return nil
}

// Fetch is one fetch of one partition without a session (v12), 8 MiB and 500 ms at most.
func Fetch(ctx context.Context, c *Conn, topic string, partition int32, offset int64, iso Isolation) (kmsg.FetchResponseTopicPartition, error) {
	r := kmsg.NewPtrFetchRequest()
	r.ReplicaID, r.IsolationLevel, r.MaxWaitMillis, r.MinBytes, r.MaxBytes = -1, int8(iso), 500, 1, 8<<20
	r.SessionEpoch = -1
	t := kmsg.NewFetchRequestTopic()
	t.Topic = topic
	p := kmsg.NewFetchRequestTopicPartition()
	p.Partition, p.FetchOffset, p.PartitionMaxBytes = partition, offset, 8<<20
	p.CurrentLeaderEpoch, p.LastFetchedEpoch = -1, -1
	t.Partitions = append(t.Partitions, p)
	r.Topics = append(r.Topics, t)
	var none kmsg.FetchResponseTopicPartition
	resp, err := c.Do(ctx, r, 12)
	if err != nil {
		return none, err
	}
	f := resp.(*kmsg.FetchResponse)
	if err := kerr.ErrorForCode(f.ErrorCode); err != nil {
		return none, fmt.Errorf("oracle: fetch %s-%d: %w", topic, partition, err)
	}
	if len(f.Topics) != 1 || len(f.Topics[0].Partitions) != 1 {
		return none, fmt.Errorf("oracle: fetch %s-%d: empty answer", topic, partition)
	}
	a := f.Topics[0].Partitions[0]
	if err := kerr.ErrorForCode(a.ErrorCode); err != nil {
		return a, fmt.Errorf("oracle: fetch %s-%d at %d: %w", topic, partition, offset, err)
	}
	return a, nil
}

// walker follows the aborted transactions as a consumer does: a producer is in one from the first offset that the
// answer lists for it to its next abort marker.
type walker struct {
	start, pos, end int64
	iso             Isolation
	open            map[int64]bool
	each            func(b Batch, start int64, aborted bool) error
}

func (w *walker) answer(p kmsg.FetchResponseTopicPartition) error {
	batches, err := ParseBatches(p.RecordBatches)
	if err != nil {
		return err
	}
	aborted := slices.Clone(p.AbortedTransactions)
	slices.SortFunc(aborted, func(a, b kmsg.FetchResponseTopicPartitionAbortedTransaction) int {
		return int(a.FirstOffset - b.FirstOffset)
	})
	clear(w.open)
	for _, b := range batches {
		for len(aborted) > 0 && aborted[0].FirstOffset < b.Next() {
			w.open[aborted[0].ProducerID] = true
			aborted = aborted[1:]
		}
		drop := w.iso == ReadCommitted && w.open[b.ProducerID] && b.Transactional()
		if b.Control() {
			abort, err := b.AbortMarker()
			if err != nil {
				return err
			}
			if abort {
				delete(w.open, b.ProducerID)
			}
		}
		if b.Next() <= w.pos {
			return fmt.Errorf("the batch %v lies below the position", b)
		}
		if b.Base >= w.end {
			w.pos = w.end
			return nil
		}
		if err := w.each(b, w.start, drop); err != nil {
			return err
		}
		w.pos = b.Next()
	}
	return nil
}

// LiveEnd is where the log ends for who mirrors only what read_committed readers get: the end of the last batch
// below the last stable offset that is neither a control batch nor aborted nor emptied; the log's start when there
// is none.
func LiveEnd(ctx context.Context, bootstrap, topic string, partition int32) (int64, error) {
	first, err := ListOffset(ctx, bootstrap, topic, partition, ReadCommitted, Earliest)
	if err != nil {
		return 0, err
	}
	end := first.Offset
	err = read(ctx, bootstrap, topic, partition, ReadCommitted, func() { end = first.Offset }, func(b Batch, _ int64, aborted bool) error {
		if !b.Control() && !aborted && b.Count > 0 {
			end = max(end, b.Next())
		}
		return nil
	})
	return end, err
}

// EndOffsetFor asks a partition's leader for the end offset of a leader epoch (OffsetForLeaderEpoch v3).
func EndOffsetFor(ctx context.Context, bootstrap, topic string, partition, epoch int32) (gotEpoch int32, end int64, err error) {
	err = Retry(ctx, func() error {
		c, _, err := DialLeader(ctx, bootstrap, topic, partition)
		if err != nil {
			return err
		}
		defer c.Close()
		r := kmsg.NewPtrOffsetForLeaderEpochRequest()
		r.ReplicaID = -1
		t := kmsg.NewOffsetForLeaderEpochRequestTopic()
		t.Topic = topic
		p := kmsg.NewOffsetForLeaderEpochRequestTopicPartition()
		p.Partition, p.CurrentLeaderEpoch, p.LeaderEpoch = partition, -1, epoch
		t.Partitions = append(t.Partitions, p)
		r.Topics = append(r.Topics, t)
		resp, err := c.Do(ctx, r, 3)
		if err != nil {
			return err
		}
		got := resp.(*kmsg.OffsetForLeaderEpochResponse).Topics
		if len(got) != 1 || len(got[0].Partitions) != 1 {
			return fmt.Errorf("oracle: OffsetForLeaderEpoch of %s-%d: empty answer", topic, partition)
		}
		a := got[0].Partitions[0]
		gotEpoch, end = a.LeaderEpoch, a.EndOffset
		if err := kerr.ErrorForCode(a.ErrorCode); err != nil {
			return fmt.Errorf("oracle: OffsetForLeaderEpoch %d of %s-%d: %w", epoch, topic, partition, err)
		}
		return nil
	})
	return gotEpoch, end, err
}
