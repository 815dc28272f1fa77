package verify

import (
	"context"
	"fmt"
)

// settle looks up, on the other side, the keys whose newest record is on one
// side only, and gives the first difference that is left.
func (p *partition) settle(ctx context.Context, t *keyTable) (*Difference, error) {
	if !t.waiting() {
		return nil, nil
	}
	var first *waitingKey
	for _, lacking := range []side{onSource, onDestination} {
		left, err := p.lookUp(ctx, t, lacking)
		if err != nil {
			return nil, err
		}
		for _, w := range left {
			if first == nil || w.offset < first.offset {
				still, err := p.recordAt(ctx, w.side, w.offset)
				if err != nil {
					return nil, err
				}
				if still != nil { // else it has been cleaned away here too
					first = &w
				}
			}
		}
	}
	if first == nil {
		return nil, nil
	}
	r, err := p.recordAt(ctx, first.side, first.offset)
	if r == nil || err != nil {
		return nil, err
	}
	d := &Difference{Kind: KindStale, Offset: first.offset}
	what, where := "newest record", p.side(first.side.other()).c.what
	if first.tombstone {
		what = "tombstone"
	}
	d.Detail = fmt.Sprintf("a key's %s is missing on the %s, which has no later one of this key", what, where)
	if first.side == onSource {
		d.Source = r
	} else {
		d.Destination = r
	}
	return d, nil
}

// lookUp reads a side again and gives the keys waiting for it that it doesn't
// settle.
func (p *partition) lookUp(ctx context.Context, t *keyTable, lacking side) ([]waitingKey, error) {
	type seen struct {
		waitingKey
		older bool // an older record of the key is here
	}
	wanted := map[uint64]*seen{}
	for h, w := range t.keys {
		if w.side != lacking {
			wanted[h] = &seen{waitingKey: w}
		}
	}
	if len(wanted) == 0 {
		return nil, nil
	}
	s := p.side(lacking)
	start, err := s.c.offset(ctx, p.at, s.c.adm.ListStartOffsets)
	if err != nil {
		return nil, fmt.Errorf("start of the %s: %w", s.c.what, err)
	}
	end, err := s.c.offset(ctx, p.at, s.c.adm.ListCommittedOffsets)
	if err != nil {
		return nil, fmt.Errorf("end of the %s: %w", s.c.what, err)
	}
	err = p.eachRecord(ctx, s.c, start, end, func(r *rec) bool {
		if r.view.Key == nil {
			return true
		}
		h, _ := t.hash(r.view.Key)
		w := wanted[h]
		switch {
		case w == nil:
		case r.offset > w.offset:
			delete(wanted, h)
		default:
			w.older = true
		}
		return len(wanted) > 0
	})
	if err != nil {
		return nil, err
	}
	var left []waitingKey
	for _, w := range wanted {
		switch {
		case w.tombstone && !w.older: // and what it deleted is gone
		case w.offset < start && (lacking == onSource || s.configs.deletes()):
		default:
			left = append(left, w.waitingKey)
		}
	}
	return left, nil
}

// eachRecord reads a stretch of one side until f says no.
func (p *partition) eachRecord(ctx context.Context, c *cluster, from, to int64, f func(*rec) bool) error {
	in := c.stream(p.at, from, to)
	defer in.close()
	w := newWalker(in, from, to)
	for {
		r, err := w.record(ctx)
		if err != nil || r == nil || !f(r) {
			return err
		}
		w.pop()
	}
}

// recordAt is the record at an offset, nil: none.
func (p *partition) recordAt(ctx context.Context, s side, offset int64) (found *Record, err error) {
	err = p.eachRecord(ctx, p.side(s).c, offset, offset+1, func(r *rec) bool {
		found = r.report(nil)
		return false
	})
	return found, err
}
