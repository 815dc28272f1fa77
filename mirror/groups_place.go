package mirror

import (
	"context"
	"fmt"

	"github.com/lockstep-kafka/lockstep/epoch"
	"github.com/lockstep-kafka/lockstep/internal/kconn"
)

// engineLogs are the logs of the partitions of a source's engine.
type engineLogs struct{ s *source }

func (e engineLogs) physical(ctx context.Context, k partKey, l *epoch.Log, v int64) (at int64, err error) {
	err = e.read(ctx, k, func(p *Partition, c *kconn.Conn, dst leader, ph physical) (err error) {
		at, err = p.physicalAt(ctx, c, l, dst, ph, v)
		return err
	})
	return at, err
}

func (e engineLogs) virtual(ctx context.Context, k partKey, l *epoch.Log, at int64) (v int64, err error) {
	err = e.read(ctx, k, func(p *Partition, c *kconn.Conn, dst leader, ph physical) (err error) {
		v, err = p.virtualAt(ctx, c, l, dst, ph, max(at, ph.start))
		return err
	})
	return v, err
}

// read reads in a partition's own log.
func (e engineLogs) read(ctx context.Context, k partKey, f func(p *Partition, c *kconn.Conn, dst leader, ph physical) error) error {
	p := e.s.engine.Partition(k.topic, k.partition)
	if p == nil {
		return fmt.Errorf("partition %d of %s isn't mirrored here any more", k.partition, k.topic)
	}
	p.mu.Lock()
	rec, dst := p.rec, p.dst
	p.mu.Unlock()
	if rec == nil {
		return errNoTopic
	}
	if err := p.reachable(rec, dst); err != nil {
		return err
	}
	return p.eng.dst.with(ctx, dst.addr, func(c *kconn.Conn) error {
		ph, err := p.nativeEnds(ctx, c, dst)
		if err != nil {
			return err
		}
		return f(p, c, dst, ph)
	})
}

// physicalAt is the physical offset of the first live record at or behind
// virtual offset v, or where the next one will be at the earliest; in a
// renumbered batch, its base.
func (p *Partition) physicalAt(ctx context.Context, c *kconn.Conn, l *epoch.Log, dst leader, ph physical, v int64) (int64, error) {
	for i := max(l.SpanAtV(v), 0); ; i++ {
		s := &l.Spans[i]
		lo, hi, last := max(s.PStart, ph.start), ph.end, i+1 == len(l.Spans)
		if !last {
			hi = min(hi, l.Spans[i+1].PStart)
		}
		v = max(v, s.VStart)
		if s.Kind == epoch.Native {
			if at := max(lo, s.PStart+v-s.VStart); at < hi || last {
				return at, nil
			}
			continue
		}
		at, end, err := p.liveAt(ctx, c, l, dst, i, lo, hi, v)
		if err != nil || at >= 0 {
			return at, err
		}
		if last {
			return end, nil
		}
	}
}

// liveAt is where in [lo, hi), a part of mirrored span i, the first live record
// at or behind virtual offset v is, -1: nowhere; and the end of the last live
// batch in front of it, as far as it came by one.
func (p *Partition) liveAt(ctx context.Context, c *kconn.Conn, l *epoch.Log, dst leader, i int, lo, hi, v int64) (at, end int64, err error) {
	from, err := p.bisect(ctx, c, l, dst, lo, hi, v)
	if err != nil {
		return -1, -1, err
	}
	at, end = -1, from
	err = readBatches(ctx, c, dst, p.topic, p.partition, from, hi, func(raw protocolBatch) error {
		b := readHeader(raw)
		pl, verdict := l.Classify(b)
		if verdict != epoch.Live || pl.Span != i {
			return nil
		}
		if err := countV(raw, &b); err != nil {
			return err
		}
		if pl, _ = l.Classify(b); pl.VEnd <= v {
			end = pl.PEnd
			return nil
		}
		at = pl.P
		if b.Flags&epoch.FlagRenumbered == 0 {
			at += max(v-pl.V, 0)
		}
		return errFound
	})
	return at, end, notFound(err)
}
