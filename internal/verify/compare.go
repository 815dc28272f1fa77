package verify

import (
	"context"
	"errors"
	"fmt"
)

// comparison walks both sides of one partition. It does no I/O of its own.
type comparison struct {
	src, dst *walker
	epochs   epochsSeen
	keys     *keyTable // nil: not compacted
	step     func(next int64)

	records           int64
	byBatch, byRecord int64
	skippedTo         int64 // where a log start moved to, 0: nowhere
}

// run compares until the end, or the first difference.
func (c *comparison) run(ctx context.Context) (*Difference, error) {
	for {
		d, more, err := c.next(ctx)
		var moved *movedError
		var corrupt *corruptError
		switch {
		case errors.As(err, &moved):
			c.src.skip(moved.start)
			c.dst.skip(moved.start)
			c.skippedTo = max(c.skippedTo, moved.start)
		case errors.As(err, &corrupt):
			return c.corrupt(corrupt), nil
		case err != nil:
			return nil, err
		case d != nil:
			return d, nil
		case !more:
			return nil, nil
		}
	}
}

// next compares one batch or one record.
func (c *comparison) next(ctx context.Context) (d *Difference, more bool, err error) {
	if err := errors.Join(c.src.fill(ctx), c.dst.fill(ctx)); err != nil {
		return nil, false, err
	}
	if c.src.whole() && c.dst.whole() {
		same, err := c.sameBatch()
		if same || err != nil {
			return nil, true, err
		}
	}
	fresh := c.dst.whole()
	s, err := c.src.record(ctx)
	if err != nil {
		return nil, false, err
	}
	t, err := c.dst.record(ctx)
	if err != nil {
		return nil, false, err
	}
	if fresh {
		c.byRecord++
	}
	switch {
	case s == nil && t == nil:
		return nil, false, nil
	case t == nil || s != nil && s.offset < t.offset:
		if c.keys == nil {
			return c.missing(s, t), false, nil
		}
		err := c.keys.oneSided(onSource, s)
		c.src.pop()
		return nil, true, err
	case s == nil || t.offset < s.offset:
		if c.keys == nil {
			return c.extra(s, t), false, nil
		}
		err := c.keys.oneSided(onDestination, t)
		c.dst.pop()
		return nil, true, err
	}
	if kind, detail := s.differs(t); kind != "" {
		return &Difference{Kind: kind, Offset: s.offset, Source: s.report(t), Destination: t.report(s), Detail: detail}, false, nil
	}
	if c.keys != nil {
		c.keys.both(s)
	}
	c.records++
	c.epochs.saw(s.epoch, s.offset, s.offset+1)
	next := s.offset + 1
	c.src.pop()
	c.dst.pop()
	c.done(next)
	return nil, true, nil
}

// sameBatch compares the two batches as a whole, and goes past them if they are
// the same.
func (c *comparison) sameBatch() (bool, error) {
	s, d := c.src.batch, c.dst.batch
	if s.BaseOffset() != d.BaseOffset() || c.src.epoch != c.dst.epoch || len(s) != len(d) || !s.SameContent(d) {
		return false, nil
	}
	if c.keys != nil && c.keys.waiting() {
		if err := c.src.decode(); err != nil {
			return false, err
		}
		for i := range c.src.recs {
			c.keys.both(&c.src.recs[i])
		}
	}
	c.byBatch++
	c.records += int64(s.NumRecords())
	next := s.NextOffset()
	c.epochs.saw(c.src.epoch, s.BaseOffset(), next)
	c.src.drop()
	c.dst.drop()
	c.done(next)
	return true, nil
}

func (c *comparison) done(next int64) {
	if c.step != nil {
		c.step(next)
	}
}

func (c *comparison) missing(s, t *rec) *Difference {
	detail := "the destination has no record behind it either"
	if t != nil {
		detail = fmt.Sprintf("the destination goes on at offset %d", t.offset)
	}
	return &Difference{Kind: KindMissing, Offset: s.offset, Source: s.report(nil), Detail: detail}
}

func (c *comparison) extra(s, t *rec) *Difference {
	detail := "the source has no record behind it either"
	if s != nil {
		detail = fmt.Sprintf("the source goes on at offset %d", s.offset)
	}
	return &Difference{Kind: KindExtra, Offset: t.offset, Destination: t.report(nil), Detail: detail}
}

// corrupt is the difference of a batch that can't be read: consumers can't
// either. (Two that are equal, byte for byte, are not taken apart.)
func (c *comparison) corrupt(err *corruptError) *Difference {
	d := &Difference{Kind: KindCRC, Offset: err.base}
	side := "destination"
	if b := c.src.batch; b != nil && !c.src.decoded && b.BaseOffset() == err.base && c.src.decode() != nil {
		side = "source"
	}
	d.Detail = fmt.Sprintf("the %s's batch can't be read: %v", side, err.err)
	return d
}

// epochsSeen are the leader epochs of the records that were equal.
type epochsSeen []epochSeen

// epochSeen: the records of an epoch lie in [First, End).
type epochSeen struct {
	Epoch int32 `json:"epoch"`
	First int64 `json:"first"`
	End   int64 `json:"end"`
}

func (e *epochsSeen) saw(epoch int32, first, end int64) {
	if n := len(*e); n > 0 && (*e)[n-1].Epoch == epoch {
		(*e)[n-1].End = end
		return
	}
	*e = append(*e, epochSeen{epoch, first, end})
}
