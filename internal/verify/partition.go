package verify

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
)

// half is one side of a partition.
type half struct {
	c          *cluster
	start, end int64 // before the comparison
	configs    configs
}

// partition is one that is compared.
type partition struct {
	at       place
	src, dst half
	resume   *partState // nil: from the start
	maxKeys  int
	caughtUp bool
	report   *PartitionReport
	step     func(next int64, seen epochsSeen)

	// For step: how far it is, what was told of it, and what the resume file says.
	reached, told int64
	seen          epochsSeen
	ids           partState
}

func (p *partition) side(s side) *half {
	if s == onSource {
		return &p.src
	}
	return &p.dst
}

// bounds says what is compared.
func (p *partition) bounds() {
	r := p.report
	r.SourceStart, r.DestinationStart, r.SourceEnd, r.DestinationEnd = p.src.start, p.dst.start, p.src.end, p.dst.end
	r.Compacted = p.src.configs.compact || p.dst.configs.compact
	r.From, r.To = max(p.src.start, p.dst.start), min(p.src.end, p.dst.end)
	if p.caughtUp {
		r.To = p.src.end
	}
	if p.resume != nil && !r.Compacted && p.resume.Next > r.From {
		r.From, r.Resumed = p.resume.Next, true
	}
	r.To = max(r.From, r.To)
}

// compare fills in the report.
func (p *partition) compare(ctx context.Context) {
	r := p.report
	d, err := p.find(ctx)
	switch {
	case err != nil:
		r.Outcome, r.Error = Failed, err.Error()
	case d != nil:
		d.Topic, d.Partition = p.at.topic, p.at.partition
		r.Outcome, r.Difference = Different, d
	default:
		r.Outcome = Equal
	}
}

func (p *partition) note(format string, args ...any) {
	p.report.Notes = append(p.report.Notes, fmt.Sprintf(format, args...))
}

func (p *partition) find(ctx context.Context) (*Difference, error) {
	r := p.report
	if r.Resumed {
		same, err := p.uncut(ctx)
		if err != nil {
			return nil, err
		}
		if !same {
			p.note("a log was cut, or begun anew, since the earlier run: compared from the start")
			p.resume, r.Resumed = nil, false
			p.bounds()
		}
	}
	if !r.Compacted && !r.Resumed {
		if d, err := p.starts(ctx); d != nil || err != nil {
			return d, err
		}
	}
	seen, d, err := p.records(ctx)
	if d != nil || err != nil {
		return d, err
	}
	r.Epochs = len(seen)
	if d, err := p.epochChain(ctx, seen); d != nil || err != nil {
		return d, err
	}
	return p.behind(ctx)
}

// starts compares where the logs begin. A destination that begins further on
// may do so by its own retention, or because there is no record between.
func (p *partition) starts(ctx context.Context) (*Difference, error) {
	if p.dst.start < p.src.start {
		p.note("the destination still shows offsets %d to %d, which the source has deleted", p.dst.start, min(p.src.start, p.dst.end)-1)
		return nil, nil
	}
	var first *Record
	var err error
	if p.dst.start > p.src.start {
		err = p.eachRecord(ctx, p.src.c, p.src.start, min(p.dst.start, p.src.end), func(x *rec) bool {
			first = x.report(nil)
			return false
		})
	}
	var moved *movedError
	if errors.As(err, &moved) {
		return nil, nil // they are gone on the source too
	}
	if first == nil || err != nil {
		return nil, err
	}
	switch x := p.dst.configs; {
	case x.bytes, x.retentionMS >= 0 && first.Timestamp+x.retentionMS <= time.Now().UnixMilli():
		p.note("the destination's retention has deleted offsets %d to %d, which the source still has", first.Offset, p.dst.start-1)
		return nil, nil
	}
	return &Difference{
		Kind: KindStart, Offset: first.Offset, Source: first,
		Detail: fmt.Sprintf("the destination's log begins at offset %d", p.dst.start),
	}, nil
}

// records compares [From, To), a compacted partition by as many readings as its
// keys need.
func (p *partition) records(ctx context.Context) (epochsSeen, *Difference, error) {
	if !p.report.Compacted {
		return p.walk(ctx, nil)
	}
	for shards := uint64(1); ; shards *= 4 {
		seen, d, err := p.walkShards(ctx, shards)
		if !errors.Is(err, errTooManyKeys) {
			if shards > 1 {
				p.note("read %d times, for its keys", shards)
			}
			return seen, d, err
		}
	}
}

func (p *partition) walkShards(ctx context.Context, shards uint64) (seen epochsSeen, d *Difference, err error) {
	seed := maphash.MakeSeed()
	for shard := range shards {
		keys := newKeyTable(seed, p.maxKeys, shard, shards)
		if seen, d, err = p.walk(ctx, keys); d != nil || err != nil {
			return seen, d, err
		}
		p.report.OneSided = keys.count
		if d, err = p.settle(ctx, keys); d != nil || err != nil {
			return seen, d, err
		}
	}
	return seen, nil, nil
}

// walk reads both sides once.
func (p *partition) walk(ctx context.Context, keys *keyTable) (epochsSeen, *Difference, error) {
	r := p.report
	srcFrom, dstFrom := r.From, r.From
	if keys != nil { // what one side has deleted is judged by key
		srcFrom, dstFrom = p.src.start, p.dst.start
	}
	src := p.src.c.stream(p.at, srcFrom, min(r.To, p.src.end))
	defer src.close()
	dst := p.dst.c.stream(p.at, dstFrom, min(r.To, p.dst.end))
	defer dst.close()
	c := &comparison{
		src: newWalker(src, srcFrom, min(r.To, p.src.end)),
		dst: newWalker(dst, dstFrom, min(r.To, p.dst.end)), keys: keys,
	}
	if r.Resumed {
		c.epochs = append(c.epochs, p.resume.Epochs...)
	}
	c.step = func(next int64) { p.step(next, c.epochs) }
	d, err := c.run(ctx)
	r.Records, r.ByBatch, r.ByRecord, r.DestinationAborted = c.records, c.byBatch, c.byRecord, dst.dropped
	if c.skippedTo > 0 {
		p.note("a log's start moved to %d while it was read: what lies below was not compared to its end", c.skippedTo)
	}
	return c.epochs, d, err
}

// behind is for a destination that has more than the source: what was asked
// for first, so the source must have all of it.
func (p *partition) behind(ctx context.Context) (*Difference, error) {
	if p.dst.end > p.src.end && p.caughtUp { // asked for first
		end, err := p.src.c.offset(ctx, p.at, p.src.c.adm.ListCommittedOffsets)
		if err != nil {
			return nil, fmt.Errorf("end of the source: %w", err)
		}
		p.src.end = max(p.src.end, min(end, p.dst.end))
	}
	if p.dst.end <= p.src.end {
		if n := p.report.SourceEnd - p.report.To; n > 0 {
			p.note("the source has %d more offsets: not compared", n)
		}
		return nil, nil
	}
	var d *Difference
	err := p.eachRecord(ctx, p.dst.c, max(p.src.end, p.report.From), p.dst.end, func(x *rec) bool {
		d = &Difference{
			Kind: KindExtra, Offset: x.offset, Destination: x.report(nil),
			Detail: fmt.Sprintf("the source's last stable offset is %d", p.src.end),
		}
		return false
	})
	return d, err
}

// epochChain asks both sides for the end of every epoch seen. Every answer must
// part the records seen of this epoch from those of the next: where no record
// is, the sides may differ (a batch that was compacted away, a marker).
func (p *partition) epochChain(ctx context.Context, seen epochsSeen) (*Difference, error) {
	for _, s := range []side{onSource, onDestination} {
		h := p.side(s)
		for i, e := range seen {
			gotEpoch, end, err := h.c.endOfEpoch(ctx, p.at, e.Epoch)
			switch {
			case errors.Is(err, kerr.UnsupportedVersion), errors.Is(err, kerr.TopicAuthorizationFailed):
				p.note("the epoch chain can't be compared: %s: %v", h.c.what, err)
				return nil, nil
			case err != nil:
				return nil, fmt.Errorf("OffsetForLeaderEpoch of the %s: %w", h.c.what, err)
			case gotEpoch == e.Epoch && end >= e.End && (i+1 == len(seen) || end <= seen[i+1].First):
				continue
			}
			start, err := h.c.offset(ctx, p.at, h.c.adm.ListStartOffsets)
			if err != nil {
				return nil, fmt.Errorf("start of the %s: %w", h.c.what, err)
			}
			if start > e.First {
				continue // retention took the epoch's beginning meanwhile
			}
			d := &Difference{Kind: KindEpochChain, Offset: e.First}
			d.Detail = fmt.Sprintf("epoch %d has the records %d to %d; OffsetForLeaderEpoch answers (epoch %d, end %d) on the %s",
				e.Epoch, e.First, e.End-1, gotEpoch, end, h.c.what)
			if i+1 < len(seen) {
				d.Detail += fmt.Sprintf(", and epoch %d begins with %d", seen[i+1].Epoch, seen[i+1].First)
			}
			return d, nil
		}
	}
	return nil, nil
}

func (c *cluster) endOfEpoch(ctx context.Context, at place, epoch int32) (gotEpoch int32, end int64, err error) {
	err = c.retry(ctx, func() error {
		var req kadm.OffsetForLeaderEpochRequest
		req.Add(at.topic, at.partition, epoch)
		resp, err := c.adm.OffsetForLeaderEpoch(ctx, req)
		a, ok := resp[at.topic][at.partition]
		switch {
		case ok && a.Err != nil:
			return a.Err
		case ok:
			gotEpoch, end = a.LeaderEpoch, a.EndOffset
			return nil
		case err == nil:
			err = kerr.UnknownTopicOrPartition
		}
		return err
	})
	return gotEpoch, end, err
}

// uncut tells whether what an earlier run compared is still there, as a
// follower would ask.
func (p *partition) uncut(ctx context.Context) (bool, error) {
	n := len(p.resume.Epochs)
	if n == 0 {
		return false, nil
	}
	last := p.resume.Epochs[n-1]
	for _, s := range []side{onSource, onDestination} {
		h := p.side(s)
		e, end, err := h.c.endOfEpoch(ctx, p.at, last.Epoch)
		switch {
		case errors.Is(err, kerr.UnsupportedVersion), errors.Is(err, kerr.TopicAuthorizationFailed):
			return true, nil
		case err != nil:
			return false, fmt.Errorf("OffsetForLeaderEpoch of the %s: %w", h.c.what, err)
		case e != last.Epoch || end < last.End:
			return false, nil
		}
	}
	return true, nil
}
