package diverged

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/internal/ledger"
	"github.com/lockstep-kafka/lockstep/protocol"
)

// Reader reads the destination physically, with Lockstep's own credentials.
type Reader struct {
	cl  *kgo.Client
	adm *kadm.Client
}

// NewReader takes a client of the destination; it must read at its brokers, not
// through a proxy.
func NewReader(cl *kgo.Client) *Reader { return &Reader{cl: cl, adm: kadm.NewClient(cl)} }

// part is a partition as it lies there now.
type part struct {
	topic      string
	id         kadm.TopicID
	partition  int32
	start, end int64
	compacted  bool
}

// Partition scans one mirror partition.
func (r *Reader) Partition(ctx context.Context, p *ledger.Partition) (*Partition, error) {
	if p.Err != nil {
		return nil, fmt.Errorf("%s-%d: %w", p.Topic, p.Partition, p.Err)
	}
	at, err := r.look(ctx, p.Topic, p.Partition)
	if err != nil {
		return nil, fmt.Errorf("%s-%d: %w", p.Topic, p.Partition, err)
	}
	s := NewScan(p.Log, at.compacted)
	if err := r.batches(ctx, at, at.start, at.end, func(b protocol.Batch) error { s.Take(b); return nil }); err != nil {
		return nil, fmt.Errorf("%s-%d: %w", p.Topic, p.Partition, err)
	}
	f, err := s.End()
	if err != nil {
		return nil, fmt.Errorf("%s-%d: %w", p.Topic, p.Partition, err)
	}
	return &Partition{r: r, at: at, found: f}, nil
}

// Partition is a scanned one.
type Partition struct {
	r     *Reader
	at    part
	found *Found
}

// Unknown are batches whose offsets can't be told: see [Found.Unknown].
func (p *Partition) Unknown() int { return p.found.Unknown }

// Each calls f for every diverged record, in physical order: oldest history
// first. What f gets is valid during the call.
func (p *Partition) Each(ctx context.Context, f func(Record) error) error {
	met := seen{}
	for i := 0; i < len(p.found.dead); {
		d := p.found.dead[i]
		next := i
		// Neighbours come with one fetch.
		err := p.r.batches(ctx, p.at, d.P, p.at.end, func(b protocol.Batch) error {
			if next >= len(p.found.dead) || b.BaseOffset() < p.found.dead[next].P {
				if next >= len(p.found.dead) || p.found.dead[next].P-b.BaseOffset() > farAway {
					return errFar
				}
				return nil
			}
			if b.BaseOffset() == p.found.dead[next].P {
				if err := p.found.records(p.found.dead[next], b, met, f); err != nil {
					return err
				}
			}
			for next < len(p.found.dead) && p.found.dead[next].P <= b.BaseOffset() {
				next++
			}
			return nil
		})
		if err != nil && !errors.Is(err, errFar) {
			return fmt.Errorf("%s-%d: %w", p.at.topic, p.at.partition, err)
		}
		i = max(next, i+1)
	}
	return nil
}

// errFar ends a reading: the next dead batch lies far behind.
var errFar = errors.New("far away")

const farAway = 10_000 // offsets

// Ranges are the diverged records by leader epoch.
func (p *Partition) Ranges(ctx context.Context) ([]Range, error) {
	var pts []point
	err := p.Each(ctx, func(r Record) error {
		pts = append(pts, point{v: r.Offset, time: r.Timestamp, epoch: r.Epoch, origin: r.Origin})
		return nil
	})
	return rangesOf(pts), err
}

func (r *Reader) look(ctx context.Context, topic string, partition int32) (part, error) {
	at := part{topic: topic, partition: partition, start: -1, end: -1}
	md, err := r.adm.Metadata(ctx, topic)
	if err != nil {
		return at, fmt.Errorf("the destination's metadata: %w", err)
	}
	t := md.Topics[topic]
	if t.Err != nil {
		return at, fmt.Errorf("the topic on the destination: %w", t.Err)
	}
	at.id = t.ID
	for _, w := range []struct {
		list func(context.Context, ...string) (kadm.ListedOffsets, error)
		into *int64
	}{{r.adm.ListStartOffsets, &at.start}, {r.adm.ListEndOffsets, &at.end}} {
		l, err := w.list(ctx, topic)
		o, ok := l.Lookup(topic, partition)
		if err == nil {
			err = o.Err
		}
		if err == nil && !ok {
			err = kerr.UnknownTopicOrPartition
		}
		if err != nil {
			return at, fmt.Errorf("ends of the log: %w", err)
		}
		*w.into = o.Offset
	}
	cs, err := r.adm.DescribeTopicConfigs(ctx, topic)
	if err != nil {
		return at, fmt.Errorf("configs of the topic: %w", err)
	}
	for _, c := range cs {
		for _, kv := range c.Configs {
			if kv.Key == "cleanup.policy" {
				at.compacted = slices.Contains(strings.Split(kv.MaybeValue(), ","), "compact")
			}
		}
	}
	return at, nil
}

// patience is how long a partition without leader is tried again.
const patience = 30 * time.Second

// batches reads whole batches in [from, to), read_uncommitted.
func (r *Reader) batches(ctx context.Context, at part, from, to int64, f func(protocol.Batch) error) error {
	var since time.Time
	for from < to {
		data, err := r.fetch(ctx, at, from)
		if err != nil {
			if since.IsZero() {
				since = time.Now()
			}
			if !kerr.IsRetriable(err) || time.Since(since) > patience {
				return fmt.Errorf("read the destination at physical offset %d: %w", from, err)
			}
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(200 * time.Millisecond):
			}
			continue
		}
		since = time.Time{}
		next := from
		for rest := data; len(rest) > 0; {
			var b protocol.Batch
			if b, rest, err = protocol.NextBatch(rest); err != nil {
				break // the partial batch behind the last whole one
			}
			if b.BaseOffset() >= to {
				return nil
			}
			if b.NextOffset() <= next {
				continue
			}
			next = b.NextOffset()
			if err := f(b); err != nil {
				return err
			}
		}
		if next == from {
			return fmt.Errorf("read the destination at physical offset %d: no whole batch came", from)
		}
		from = next
	}
	return nil
}

func (r *Reader) fetch(ctx context.Context, at part, from int64) ([]byte, error) {
	md, err := r.adm.Metadata(ctx, at.topic)
	if err != nil {
		return nil, err
	}
	leader := md.Topics[at.topic].Partitions[at.partition].Leader
	if leader < 0 {
		return nil, kerr.LeaderNotAvailable
	}
	rp := kmsg.NewFetchRequestTopicPartition()
	rp.Partition, rp.CurrentLeaderEpoch, rp.FetchOffset, rp.PartitionMaxBytes = at.partition, -1, from, 4<<20
	rt := kmsg.NewFetchRequestTopic()
	rt.Topic, rt.TopicID, rt.Partitions = at.topic, at.id, append(rt.Partitions, rp)
	req := kmsg.NewPtrFetchRequest()
	req.ReplicaID, req.MinBytes, req.MaxBytes, req.MaxWaitMillis = -1, 1, 8<<20, 500
	req.SessionID, req.SessionEpoch = 0, -1
	req.Topics = append(req.Topics, rt)
	kresp, err := r.cl.Broker(int(leader)).Request(ctx, req)
	if err != nil {
		return nil, err
	}
	resp := kresp.(*kmsg.FetchResponse)
	if err := kerr.ErrorForCode(resp.ErrorCode); err != nil {
		return nil, err
	}
	if len(resp.Topics) != 1 || len(resp.Topics[0].Partitions) != 1 {
		return nil, errors.New("the broker's answer lacks the partition")
	}
	a := &resp.Topics[0].Partitions[0]
	return a.RecordBatches, kerr.ErrorForCode(a.ErrorCode)
}
