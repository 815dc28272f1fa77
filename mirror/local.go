package mirror

import (
	"context"
	"errors"

	"github.com/lockstep-kafka/lockstep/epoch"
	"github.com/lockstep-kafka/lockstep/internal/kconn"
	"github.com/lockstep-kafka/lockstep/internal/ledger"
	"github.com/lockstep-kafka/lockstep/protocol"
)

// What STOPPED, STOPPING and LOG_ALIGNMENT look up in the destination's own
// log.

type protocolBatch = protocol.Batch

var (
	errNoTopic  = errors.New("the destination does not have the topic (yet)")
	errNoLeader = errors.New("the destination partition has no leader")
	errFound    = errors.New("found") // ends a read early
)

func notFound(err error) error {
	if errors.Is(err, errFound) {
		return nil
	}
	return err
}

// watch looks at a STOPPED log under a leader epoch that is new: a destination
// that has lost its tail below the native span needs another (H4, F5). Until
// the ledger has the answer clients get retriable errors.
func (p *Partition) watch(ctx context.Context) error {
	p.mu.Lock()
	p.reload()
	rec, dst := p.rec, p.dst
	p.mu.Unlock()
	if err := p.reachable(rec, dst); err != nil {
		return err
	}
	var lost *epoch.Repair
	err := p.eng.dst.with(ctx, dst.addr, func(c *kconn.Conn) error {
		ph, err := p.nativeEnds(ctx, c, dst)
		if err != nil {
			return err
		}
		chain, err := p.nativeChain(ctx, c, rec.Log.Open(), dst, ph)
		if err != nil {
			return err
		}
		lost = rec.Log.NativeLost(chain, ph.end)
		return nil
	})
	if err != nil {
		return err
	}
	if lost != nil {
		return p.repair(ctx, rec, dst, *lost)
	}
	return p.put(ctx, func(r *ledger.Record) { r.Checked = dst.epoch })
}

// watchDue tells whether a STOPPED partition has a leader epoch that was not
// looked at. mu is held.
func (p *Partition) watchDue() bool {
	return p.dst.known && p.dst.broker >= 0 && p.dst.epoch > p.rec.Checked && p.rec.Log.Open() != nil
}

// repair opens a native span in place of the one whose beginning is lost.
func (p *Partition) repair(ctx context.Context, rec *ledger.Record, dst leader, r epoch.Repair) error {
	l := &rec.Log
	var vEnd int64
	err := p.eng.dst.with(ctx, dst.addr, func(c *kconn.Conn) error {
		ph, err := p.nativeEnds(ctx, c, dst)
		if err != nil {
			return err
		}
		ph.end = min(ph.end, r.P)
		ph.bound = ph.end
		vEnd, err = p.liveEnd(ctx, c, l, dst, ph)
		return err
	})
	if err != nil {
		return err
	}
	self, _ := p.eng.Clusters()
	// The leader's own epoch: what clients write from now on is shown under it.
	b, err := bookOf(rec, self).Repair(r, vEnd)
	if err != nil {
		return fail(reasonLedger, "%w", err)
	}
	p.met.generation("native_lost")
	p.slog.Warn("the destination lost records that were written here: a new native span begins",
		"was", *l.Open(), "now", *b.Log.Open(), "epoch", dst.epoch)
	return p.put(ctx, func(n *ledger.Record) {
		setBook(n, b)
		n.Checked = dst.epoch
	})
}

// nativeEnds are the ends of a log nobody here writes to.
func (p *Partition) nativeEnds(ctx context.Context, c *kconn.Conn, dst leader) (ph physical, err error) {
	if ph.start, err = listOffset(ctx, c, p.topic, p.partition, dst.epoch, tsEarliest); err != nil {
		return ph, err
	}
	ph.end, err = listOffset(ctx, c, p.topic, p.partition, dst.epoch, tsLatest)
	ph.bound = ph.end
	return ph, err
}

// liveEnd is the virtual end of what is live below ph.end.
func (p *Partition) liveEnd(ctx context.Context, c *kconn.Conn, l *epoch.Log, dst leader, ph physical) (int64, error) {
	if i := l.SpanAtP(ph.end - 1); i >= 0 && l.Spans[i].Kind == epoch.Native {
		v := l.Spans[i].VStart + ph.end - l.Spans[i].PStart
		if i+1 < len(l.Spans) {
			v = min(v, l.Spans[i+1].VStart)
		}
		return v, nil
	}
	got, _, err := p.reread(ctx, c, l, dst, ph, nil, memory{unsure: -1})
	return got.VEnd, err
}

// memory is what the owner knows from before, not from the ledger.
type memory struct {
	known  bool // tail is what was confirmed to it
	tail   tail
	recent []tail // confirmed before it, some of them, oldest first
	unsure int64  // -1: none
	// below, if not 0: look at all that lies at or behind it (suspect).
	below int64
}

// memory is what this owner remembers. mu is held.
func (p *Partition) memory() memory {
	m := memory{known: p.everRan, tail: p.tail, recent: p.recent.list(), unsure: p.unsure}
	if p.suspect != nil {
		m.below = p.suspect.from
	}
	return m
}

// reread finds the last live batch below ph.bound. The anchor is what the
// reading rested on.
func (p *Partition) reread(ctx context.Context, c *kconn.Conn, l *epoch.Log, dst leader, ph physical, cp *ledger.Checkpoint, m memory) (epoch.Recovered, *epoch.Checkpoint, error) {
	anchor, err := p.anchor(ctx, c, l, dst, ph, cp, m)
	if err != nil {
		return epoch.Recovered{}, nil, err
	}
	in := epoch.RecoverInput{
		PStart: ph.start, PEnd: ph.end, LeaderEpoch: dst.epoch,
		Unsure: ph.bound < ph.end || m.unsure >= 0, UnsureBase: ph.bound,
		// Another owner's last write may land at any time; a clean hand-over
		// would say no, but one ledger write is needed to take over anyway.
		MayLand: !m.known, Checkpoint: anchor,
	}
	if p.compacted {
		in.CleanedBelow = ph.end
	}
	got, err := p.readTail(ctx, c, l, dst, in)
	return got, anchor, err
}

// brokerChain is the leader's own epoch chain from physical offset from on
// (M25): read a batch, ask where its epoch ends, read on there.
func (p *Partition) brokerChain(ctx context.Context, c *kconn.Conn, dst leader, from int64, ph physical) (epoch.Chain, error) {
	w := epoch.NewChainWalk(max(from, ph.start), ph.end)
	for !w.Done() {
		e := int32(-1)
		err := readBatches(ctx, c, dst, p.topic, p.partition, w.Read(), ph.end, func(raw protocolBatch) error {
			e = raw.PartitionLeaderEpoch()
			return errFound
		})
		if err := notFound(err); err != nil {
			return nil, err
		}
		ask := w.Batch(e)
		if w.Done() {
			break
		}
		_, end, err := endOfEpoch(ctx, c, p.topic, p.partition, dst.epoch, ask)
		if err != nil {
			return nil, err
		}
		w.Answer(end)
	}
	chain := w.Chain()
	if dst.epoch > chain.Newest() {
		// Nothing was appended under it: it begins at the end, where a leader
		// notes the start of its epoch.
		chain = chain.Assign(dst.epoch, ph.end)
	}
	return chain, nil
}

// nativeChain is the leader's own epoch chain as far as the open native span s
// needs it: from the batch in front of the span on, or from where its log
// first has a later epoch than the span was opened under.
func (p *Partition) nativeChain(ctx context.Context, c *kconn.Conn, s *epoch.Span, dst leader, ph physical) (epoch.Chain, error) {
	from := max(s.PStart-1, 0)
	_, end, err := endOfEpoch(ctx, c, p.topic, p.partition, dst.epoch, s.PEpoch)
	if err != nil {
		return nil, err
	}
	if end >= 0 {
		from = min(from, end)
	}
	return p.brokerChain(ctx, c, dst, from, ph)
}

// backwards reads ever longer stretches in front of physical offset hi, each
// forward, until f has said in one that it is done.
func (p *Partition) backwards(ctx context.Context, c *kconn.Conn, dst leader, start, hi int64, f func(protocolBatch, epoch.Batch) (bool, error)) error {
	for step, done := int64(1), false; hi > start && !done; step *= 4 {
		lo := max(start, hi-step)
		first := lo
		err := readBatches(ctx, c, dst, p.topic, p.partition, lo, hi, func(raw protocolBatch) error {
			b := readHeader(raw)
			first = min(first, b.P)
			d, err := f(raw, b)
			done = done || d
			return err
		})
		if err != nil {
			return err
		}
		hi = first
	}
	return nil
}

// readHeader is what the rules need of a physical batch. VCount stays 0 for a
// renumbered one: it stands in its records.
func readHeader(raw protocol.Batch) epoch.Batch {
	b := epoch.Batch{P: raw.BaseOffset(), Count: int64(raw.LastOffsetDelta()) + 1, PEpoch: raw.PartitionLeaderEpoch(), Control: raw.IsControl()}
	s, ok := raw.ReadStamp()
	if !ok {
		return b
	}
	b.Stamped, b.V, b.Hole, b.Flags, b.Gen, b.Epoch = true, s.V, s.Hole, s.Flags, s.Gen, s.Epoch
	if s.Flags&epoch.FlagRenumbered == 0 {
		b.VCount = b.Count
	}
	return b
}

// countV fills in the virtual length of a renumbered batch.
func countV(raw protocolBatch, b *epoch.Batch) error {
	if !b.Stamped || b.VCount != 0 {
		return nil
	}
	n, err := protocol.VirtualCount(raw)
	if err != nil {
		return fail(reasonDestination, "the destination's batch at offset %d can't be read: %w", b.P, err)
	}
	b.VCount = n
	return nil
}
