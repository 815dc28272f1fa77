package mirror

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/epoch"
	"github.com/lockstep-kafka/lockstep/internal/kconn"
	"github.com/lockstep-kafka/lockstep/internal/ledger"
	"github.com/lockstep-kafka/lockstep/protocol"
)

// stopping takes one step of STOPPING (DESIGN §8). Nothing of it is kept but
// the ledger write at its end and, when an owner dies before it, one hidden
// batch more: so it begins anew after any crash. The source is never asked.
func (p *Partition) stopping(ctx context.Context) error {
	if !p.quiet(ctx, quietTime) {
		return nil
	}
	p.mu.Lock()
	p.reload()
	rec, dst := p.rec, p.dst
	if p.st == nil {
		p.st = &epoch.Stop{BumpStep: p.eng.Tuning.BumpStep, Quiet: true, Compacted: p.compacted}
		p.live.Retract()
	}
	st := p.st
	p.mu.Unlock()
	self, _ := p.eng.Clusters()
	st.Book, st.Leader = bookOf(rec, self), dst.epoch
	step := st.Next()
	if step.Do != epoch.StopWrite {
		if err := p.reachable(rec, dst); err != nil {
			return err
		}
	}
	switch step.Do {
	case epoch.StopRead:
		st.Opened = nil
		return p.stopRead(ctx, st, rec, dst)
	case epoch.StopClosed:
		return p.stopClosed(ctx, st, rec, dst)
	case epoch.StopRebuild:
		return p.stopRebuild(ctx, st, step, rec, dst)
	case epoch.StopCopy:
		return p.stopCopy(ctx, st, dst)
	case epoch.StopOpen:
		return p.stopOpen(ctx, st, step.Opening, dst)
	case epoch.StopWaitTxns:
		st.Unstable = false
		p.waitFor(ctx, []string{"open transactions in the destination's log"}, awaitPause)
		if err := p.eng.EndTxns(ctx, p.topic, p.partition); err != nil {
			return fmt.Errorf("end open transactions: %w", err)
		}
		st.Read, st.Opened = nil, nil
		return nil
	case epoch.StopWrite:
		if !p.lastGroups(ctx, st, step.Book.Log) {
			return nil
		}
		return p.stopped(ctx, step, st)
	}
	return fail(reasonLedger, "STOPPING can't go on: step %d, %s", step.Do, step.Why)
}

// reachable tells why the destination's partition can't be asked now.
func (p *Partition) reachable(rec *ledger.Record, dst leader) error {
	switch {
	case !dst.known:
		return errNoTopic
	case dst.broker < 0:
		return errNoLeader
	case dst.epoch < 0:
		return fail(reasonDestination, "the destination tells no leader epochs, so that a mirror can't know what it has lost: Kafka 2.8 or later does, and what is compatible with it")
	case !dst.id.IsZero() && !rec.TopicID.IsZero() && dst.id != rec.TopicID:
		return failForGood(reasonRecreated, "the destination topic was deleted and created again (id %s, mirrored into was %s): delete the mirror's partitions and mirror anew", dst.id, rec.TopicID)
	}
	return nil
}

// stopRead reads the log again under the leader epoch known now.
func (p *Partition) stopRead(ctx context.Context, st *epoch.Stop, rec *ledger.Record, dst leader) error {
	l := &rec.Log
	p.mu.Lock()
	m, awaits := p.memory(), p.awaits
	p.mu.Unlock()
	cp := p.usable(rec)
	var lost *epoch.Repair
	ph, err := p.readEnds(ctx, dst, l, m, cp)
	if err != nil {
		return err
	}
	err = p.eng.dst.with(ctx, dst.addr, func(c *kconn.Conn) (err error) {
		r := &epoch.StopReading{PEpoch: dst.epoch, PEnd: ph.end}
		if l.Open().Kind == epoch.Native {
			if r.Broker, err = p.nativeChain(ctx, c, l.Open(), dst, ph); err != nil {
				return err
			}
			if lost = l.NativeLost(r.Broker, ph.end); lost != nil {
				return nil
			}
			v := l.NativeEnd(ph.end)
			r.Recovered = epoch.Recovered{VEnd: v, Position: v}
		} else if r.Recovered, _, err = p.reread(ctx, c, l, dst, ph, cp, m); err != nil {
			return err
		} else if p.compacted {
			if err = p.givenUp(ctx, c, l, dst, ph, 0, &r.Recovered); err != nil {
				return err
			}
			if awaits > r.Recovered.Position {
				r.Recovered.Dead.SameAhead++ // seen before, further up in the log
			}
		}
		st.Read = r
		return nil
	})
	if err != nil || lost == nil {
		return err
	}
	return p.repair(ctx, rec, dst, *lost) // H4; then it is read again
}

// givenUp looks at what lies between the live end of each closed generation and
// the next one, that is, at writes of unknown outcome that were made once more,
// for those whose copy has not come (H1). What lies in front of physical offset
// from is left out.
func (p *Partition) givenUp(ctx context.Context, c *kconn.Conn, l *epoch.Log, dst leader, ph physical, from int64, r *epoch.Recovered) error {
	for i := range len(l.Spans) - 1 {
		s, next := &l.Spans[i], &l.Spans[i+1]
		if s.Kind != epoch.Mirrored || s.PEnd < 0 {
			continue
		}
		err := readBatches(ctx, c, dst, p.topic, p.partition, max(s.PEnd, ph.start, from), min(next.PStart, ph.end), func(raw protocol.Batch) error {
			b := readHeader(raw)
			if err := countV(raw, &b); err != nil {
				return err
			}
			if b.P >= s.PEnd {
				r.Dead.Left(b, l.Chain, next.VStart, r.Position)
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// stopClosed looks further back for the end of a batch that leaves no source
// transaction open (M11).
func (p *Partition) stopClosed(ctx context.Context, st *epoch.Stop, rec *ledger.Record, dst leader) error {
	r := &st.Read.Recovered
	l := &rec.Log
	return p.eng.dst.with(ctx, dst.addr, func(c *kconn.Conn) error {
		start, err := listOffset(ctx, c, p.topic, p.partition, dst.epoch, tsEarliest)
		if err != nil {
			return err
		}
		r.ClosedV = max(l.Start, l.Spans[0].VStart) // all of it lies inside one
		return p.backwards(ctx, c, dst, start, r.Last.P, func(raw protocol.Batch, b epoch.Batch) (bool, error) {
			pl, v := l.Classify(b)
			if v != epoch.Live || b.Flags&epoch.FlagOpen != 0 || pl.V >= r.VEnd {
				return false, nil
			}
			if err := countV(raw, &b); err != nil {
				return false, err
			}
			pl, _ = l.Classify(b)
			r.ClosedV = max(r.ClosedV, pl.VEnd)
			return true, nil
		})
	})
}

// stopOpen appends the span-opening batch (H3) and reads it back: the broker
// has written into it the leader epoch it was appended under.
func (p *Partition) stopOpen(ctx context.Context, st *epoch.Stop, o epoch.Opening, dst leader) error {
	raw, err := openingBatch(o, genOf(st.Book.Log), time.Now())
	if err != nil {
		return fail(reasonLedger, "span-opening batch: %w", err)
	}
	var found *epoch.StopOpened
	err = p.eng.dst.with(ctx, dst.addr, func(c *kconn.Conn) error {
		base, err := produceOne(ctx, c, dst, p.topic, p.partition, raw, p.eng.Tuning.ProduceTimeout)
		if err != nil {
			return err
		}
		found = nil
		err = readBatches(ctx, c, dst, p.topic, p.partition, base, base+1, func(b protocol.Batch) error {
			if s, ok := b.ReadStamp(); ok && b.BaseOffset() == base && s.Flags&epoch.FlagHidden != 0 && s.V == o.LMO {
				found = &epoch.StopOpened{PEnd: b.NextOffset(), PEpoch: b.PartitionLeaderEpoch()}
			}
			return nil
		})
		if p.compacted && base != st.Read.PEnd {
			found = nil // something landed in front of it that was not looked at (H1)
		}
		return err
	})
	if err != nil {
		return err
	}
	if found == nil { // not there: the leader lost it
		st.Read = nil
		return nil
	}
	stable, err := p.eng.ends.dst.stable(ctx, dst.addr, partKey{p.topic, p.partition}, dst.epoch)
	if err != nil {
		return err
	}
	st.Opened, st.Unstable = found, stable < found.PEnd
	return nil
}

// stopped makes the partition STOPPED: pair, bump, chain, native span and state
// in one write.
func (p *Partition) stopped(ctx context.Context, step epoch.StopStep, st *epoch.Stop) error {
	p.mu.Lock()
	left := &ledger.Left{Offset: -1, Epoch: -1, Timestamp: -1, SourceEnd: p.stats.sourceEnd, At: time.Now().UTC()}
	ts := p.lastTS
	p.mu.Unlock()
	if s := p.eng.Store.Partition(p.topic, p.partition); left.SourceEnd < 0 && s != nil && s.Checkpoint != nil {
		left.SourceEnd = s.Checkpoint.SourceEnd
	}
	if st.Opened != nil {
		left.Offset, left.Epoch = step.Pair.LMO, step.Pair.LME
		if left.Offset < 0 {
			left.Offset = step.Book.Log.Open().VStart
		}
		if st.Read.Recovered.Basis == epoch.BasisLog {
			left.Timestamp = ts
		}
	}
	if st.Read != nil && st.Read.Recovered.Open && left.Offset < st.Read.Recovered.Position {
		p.slog.Warn("source transactions that were not whole here are left out, with all that lies behind the first of them",
			"from", left.Offset, "position", st.Read.Recovered.Position)
	}
	err := p.put(ctx, func(r *ledger.Record) {
		setBook(r, step.Book)
		r.Error, r.Retries = "", 0
		if st.Opened != nil {
			r.Left, r.Checked = left, st.Opened.PEpoch
		}
	})
	if err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.slog.Info("state", "from", epoch.StateStopping, "to", epoch.StateStopped,
		"pair", step.Pair, "end", left.Offset, "sourceEnd", left.SourceEnd, "epoch", step.Book.Log.Shown(p.dst.epoch))
	p.errOp = ""
	p.live.Forget(0)
	p.enter("")
	return nil
}

// openingBatch is the span-opening batch: one keyed record, stamped and hidden.
func openingBatch(o epoch.Opening, gen int16, at time.Time) (protocol.Batch, error) {
	value, err := json.Marshal(o)
	if err != nil {
		return nil, err
	}
	rec := []byte{0, 0, 0} // attributes, timestamp and offset delta
	key := o.Key()
	rec = append(binary.AppendVarint(rec, int64(len(key))), key...)
	rec = append(binary.AppendVarint(rec, int64(len(value))), value...)
	rec = append(rec, 0) // no headers
	rb := kmsg.NewRecordBatch()
	rb.Magic, rb.PartitionLeaderEpoch = 2, -1
	rb.ProducerID, rb.ProducerEpoch, rb.FirstSequence = -1, -1, -1
	rb.FirstTimestamp, rb.MaxTimestamp = at.UnixMilli(), at.UnixMilli()
	rb.NumRecords = 1
	rb.Records = append(binary.AppendVarint(nil, int64(len(rec))), rec...)
	rb.Length = int32(49 + len(rb.Records))
	b := protocol.Batch(rb.AppendTo(nil))
	binary.BigEndian.PutUint32(b[17:], crc32.Checksum(b[21:], crc32.MakeTable(crc32.Castagnoli)))
	err = b.WriteStamp(protocol.Stamp{V: o.LMO, Flags: epoch.FlagHidden, Gen: max(gen, 0), Epoch: max(o.LME, 0)})
	return b, err
}

// produceOne appends one batch with acks=all. Any error leaves open whether it
// is there.
func produceOne(ctx context.Context, c *kconn.Conn, l leader, topic string, p int32, raw protocol.Batch, timeout time.Duration) (base int64, err error) {
	hi := int16(13)
	if l.id.IsZero() {
		hi = 12
	}
	v, err := c.Version(int16(kmsg.Produce), 3, hi)
	if err != nil {
		return 0, err
	}
	var enc produceEncoder
	part := &Partition{topic: topic, partition: p}
	bufs := enc.encode(v, -1, int32(timeout.Milliseconds()), []sent{{p: part, it: &item{batch: raw}, at: l}})
	buf, err := c.RoundTripRaw(ctx, int16(kmsg.Produce), v, bufs, timeout)
	if err != nil {
		return 0, err
	}
	defer buf.Release()
	resp := kmsg.NewPtrProduceResponse()
	resp.Version = v
	if err := resp.ReadFrom(buf.Bytes()); err != nil {
		c.Close()
		return 0, fmt.Errorf("%w: Produce v%d: %w", kconn.ErrNonsense, v, err)
	}
	if len(resp.Topics) != 1 || len(resp.Topics[0].Partitions) != 1 {
		return 0, fmt.Errorf("%w: Produce answer without the partition", kconn.ErrNonsense)
	}
	a := &resp.Topics[0].Partitions[0]
	if outcomeOf(a.ErrorCode) == produceRejected {
		return 0, rejection(a.ErrorCode, a.ErrorMessage, len(raw))
	}
	if err := kerr.ErrorForCode(a.ErrorCode); err != nil {
		return 0, fmt.Errorf("produce: %w", err)
	}
	return a.BaseOffset, nil
}
