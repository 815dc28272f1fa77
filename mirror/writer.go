package mirror

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/internal/kconn"
)

// writer produces to one destination broker for all partitions led there that
// are of its lane: one request at a time, one batch for each partition in it.
type writer struct {
	brokerLoop
	took prometheus.Observer // how long the broker takes for a request
}

func newWriter(e *Engine, broker int32, addr string) *writer {
	w := &writer{took: e.Metrics.produced.WithLabelValues(e.Mirror, itoa(broker))}
	w.init(e, broker, addr)
	return w
}

// idleLimit is how long a connection may lie unused before it is replaced
// rather than tried: brokers close theirs after connections.max.idle.ms (10
// minutes), and a batch sent into a closed one would have an unknown outcome.
const idleLimit = 4 * time.Minute

// sent is one partition's part of a request.
type sent struct {
	p    *Partition
	it   *item
	at   leader
	done bool // its part of the answer was taken in
}

func (w *writer) run(ctx context.Context) {
	ctx, cancel := w.begin(ctx)
	defer cancel()
	var (
		conn *kconn.Conn
		used time.Time
		enc  produceEncoder
		list []sent
	)
	defer func() {
		if conn != nil {
			conn.Close()
		}
	}()
	for try, turn := 0, 0; ctx.Err() == nil; turn++ {
		list = w.collect(list[:0], turn)
		if len(list) == 0 {
			w.sleep(ctx)
			continue
		}
		if conn != nil && time.Since(used) > idleLimit {
			conn.Close()
		}
		var err error
		if conn == nil || conn.Closed() {
			conn, err = w.dial(ctx)
		}
		if err == nil {
			err = w.produce(ctx, conn, &enc, list)
			used = time.Now()
		}
		if err != nil {
			w.broken(ctx, err, list, try)
			try++
		} else {
			try = 0
		}
		for i := range list {
			list[i].it.free()
			list[i] = sent{}
		}
		if err != nil && ctx.Err() == nil {
			pause(ctx, backoff(try-1, tryMin, tryMax))
		}
	}
}

func (w *writer) sleep(ctx context.Context) {
	t := time.NewTimer(time.Second) // refused produces are tried again
	defer t.Stop()
	select {
	case <-w.wake:
	case <-t.C:
	case <-ctx.Done():
	}
}

// roomForOne: the first batch of a request always fits.
const roomForOne = 1 << 30

// collect takes the next batch of each partition up to a request's size; turn
// moves the first one, for fairness.
func (w *writer) collect(list []sent, turn int) []sent {
	ps := w.partitions()
	room := w.eng.Tuning.ProduceMaxBytes
	now := time.Now()
	for i := range ps {
		p := ps[(i+turn)%len(ps)]
		limit := room
		if len(list) == 0 {
			limit = roomForOne
		}
		it, at, ok := p.take(w.broker, limit, now)
		if !ok {
			continue
		}
		list = append(list, sent{p: p, it: it, at: at})
		if room -= it.size; room <= 0 || it.alone {
			break
		}
	}
	return list
}

func (w *writer) dial(ctx context.Context) (*kconn.Conn, error) {
	c, err := w.eng.Dest.Dial(ctx, w.addr)
	if err != nil {
		if !canceled(ctx) {
			w.eng.Metrics.dials.WithLabelValues(w.eng.Mirror, "destination", kconn.Name(err)).Inc()
		}
		return nil, errors.Join(kconn.ErrNotSent, err)
	}
	return c, nil
}

// broken reports a connection error. What was being sent has an unknown
// outcome, unless no byte of it went out; every partition of the broker looks
// at its tail again before the next write (F4b).
func (w *writer) broken(ctx context.Context, err error, list []sent, try int) {
	sure := errors.Is(err, kconn.ErrNotSent)
	if !canceled(ctx) {
		w.eng.Logger.Warn("destination broker: will try again", "mirror", w.eng.Mirror, "conn", w.addr, "err", err, "cause", kconn.Name(err), "try", try)
		w.eng.Metrics.produceErrs.WithLabelValues(w.eng.Mirror, errorCode(err)).Inc()
	}
	for i := range list {
		list[i].p.unsent(list[i].it, sure, err)
	}
	for _, p := range w.partitions() {
		p.disconnected(w.broker)
	}
	w.eng.RefreshDest()
}

// produce sends one request and hands the answers out.
func (w *writer) produce(ctx context.Context, conn *kconn.Conn, enc *produceEncoder, list []sent) error {
	hi := int16(13)
	for i := range list {
		if list[i].at.id.IsZero() {
			hi = 12
		}
	}
	v, err := conn.Version(int16(kmsg.Produce), 3, hi)
	if err != nil {
		conn.Close()
		return errors.Join(kconn.ErrNotSent, err)
	}
	t := &w.eng.Tuning
	began := time.Now()
	buf, err := conn.RoundTripRaw(ctx, int16(kmsg.Produce), v, enc.encode(v, t.Acks, int32(t.ProduceTimeout.Milliseconds()), list), t.ProduceTimeout)
	w.took.Observe(time.Since(began).Seconds())
	if err != nil {
		return err
	}
	defer buf.Release()
	resp := kmsg.NewPtrProduceResponse()
	resp.Version = v
	if err := resp.ReadFrom(buf.Bytes()); err != nil {
		conn.Close()
		return fmt.Errorf("%w: Produce v%d: %w", kconn.ErrNonsense, v, err)
	}
	stale, left := answers(list, v, resp)
	if left != 0 {
		conn.Close()
		return fmt.Errorf("%w: Produce answer names %d partitions, sent were %d", kconn.ErrNonsense, len(list)-left, len(list))
	}
	if stale {
		w.eng.RefreshDest()
	}
	return nil
}

// answers hands the parts of an answer out, one to each that was sent: nothing
// would end the wait of one that is not named because another is named twice.
// left is how many are not named.
func answers(list []sent, v int16, resp *kmsg.ProduceResponse) (stale bool, left int) {
	left = len(list)
	at := 0
	for i := range resp.Topics {
		rt := &resp.Topics[i]
		for j := range rt.Partitions {
			rp := &rt.Partitions[j]
			for range list { // brokers mostly answer in our order
				s := &list[at]
				at = (at + 1) % len(list)
				if s.done || s.p.partition != rp.Partition || v >= 13 && rt.TopicID != s.at.id || v < 13 && rt.Topic != s.p.topic {
					continue
				}
				s.done = true
				if s.p.settle(s.it, rp) {
					stale = true
				}
				left--
				break
			}
		}
	}
	return stale, left
}

// settle takes in the answer for what was in flight. It says whether the
// destination's metadata may be out of date.
func (p *Partition) settle(it *item, a *kmsg.ProduceResponseTopicPartition) (stale bool) {
	src, stale := p.answer(it, a)
	p.eng.kickFetcher(src)
	return stale
}

func (p *Partition) answer(it *item, a *kmsg.ProduceResponseTopicPartition) (src int32, stale bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	src = p.src.broker
	if p.inflight != it {
		return src, false // given up meanwhile
	}
	p.inflight = nil
	defer p.settled()
	outcome := outcomeOf(a.ErrorCode)
	if outcome != produceOK {
		err := kerr.ErrorForCode(a.ErrorCode)
		p.met.produceError(errorCode(err))
		p.errOp = fmt.Sprintf("produce to the destination: %v", err)
	}
	switch outcome {
	case produceRefused:
		// Nothing else was in flight: the place is still free, the same
		// generation goes on there.
		p.dropQueue()
		p.writeWait = time.Now().Add(backoff(p.produceTry, tryMin, tryMax))
		p.sourceWait = p.writeWait
		p.produceTry++
		return src, true
	case produceRejected:
		if it.merged > 0 { // one by one they may be taken, or the right one is named
			p.keepBatches(kerr.ErrorForCode(a.ErrorCode))
			return src, false
		}
		// What is queued behind it would chain to a batch that is not there.
		p.dropQueue()
		p.setTodoErr(rejection(a.ErrorCode, a.ErrorMessage, it.size))
		return src, false
	case produceDoubt:
		p.markUnsure(p.sentAt)
		p.doubt(errorCode(kerr.ErrorForCode(a.ErrorCode)), regen{})
		return src, true
	}
	base := a.BaseOffset
	switch {
	case base < p.expected:
		// The leader lost what it had acknowledged. Our batch lies on a log
		// that lacks its predecessors (H2, F3).
		p.slog.Warn("the destination lost the end of its log", "base", base, "expected", p.expected)
		p.markUnsure(base)
		p.doubt("lost_tail", regen{force: true})
		return src, true
	case base > p.expected:
		p.met.foreign.Inc()
		p.slog.Warn("something else was written into the mirrored partition", "from", p.expected, "to", base)
		if p.compacted {
			p.suspect = &stretch{p.expected, base, it.base}
			p.wake.wake()
		}
	}
	p.confirm(it, base)
	return src, false
}

// confirm: it lies at physical offset base. mu is held.
func (p *Partition) confirm(it *item, base int64) {
	now := time.Now()
	p.tail = tail{vEnd: it.vEnd, chainEnd: it.base + it.count, p: base + it.count, position: it.next, epoch: it.epoch, open: it.open, openAt: it.openAt, gen: p.gen, under: p.gen, at: now.UnixMilli()}
	p.recent.add(p.tail)
	p.expected = p.tail.p
	p.produceTry, p.cutOff = 0, cutOff{}
	p.stats.lastAppend = now
	p.stats.bytes += int64(it.size)
	p.stats.records += it.vEnd - it.base
	p.stats.progressed = true
	p.met.bytes.Add(float64(it.size))
	p.met.batches.Inc()
	p.met.records.Add(float64(it.vEnd - it.base))
	p.sample(it.base, base, it.maxTS)
	if p.phase == phaseRun || p.phase == phaseClosed || p.phase == phasePause {
		p.publish()
	}
	p.advance()
	switch {
	case len(p.queue) == 0:
		p.report()
	case p.queue[0].batch != nil:
		p.knownEpoch(p.queue[0])
	}
}

// unsent: the request with it failed as a whole. sure: no byte of it went out.
func (p *Partition) unsent(it *item, sure bool, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.inflight != it {
		return
	}
	p.inflight = nil
	p.errOp = err.Error()
	if !sure {
		p.markUnsure(p.sentAt)
		p.brokeOff(it, err)
	}
	if p.phase == phaseRun {
		p.doubt("connection", regen{})
	}
	p.settled()
}

// cutOff counts connections in a row that broke with one batch under way.
type cutOff struct {
	base  int64
	times int
}

// A broker answers a request above its socket.request.max.bytes by closing the
// connection: no error code tells. So a batch of more than cutOffSize with
// which cutOffTimes connections in a row were lost, all but the first time alone
// in its request, makes the partition FAILED, rather than open a generation for each try for ever.
const (
	cutOffSize  = 1 << 20
	cutOffTimes = 3
)

// brokeOff: the connection broke with it under way. mu is held.
func (p *Partition) brokeOff(it *item, err error) {
	if it.size <= cutOffSize || errors.Is(err, kconn.ErrTimeout) || errors.Is(err, context.Canceled) {
		return
	}
	if p.cutOff.base != it.base || p.cutOff.times == 0 {
		p.cutOff = cutOff{base: it.base}
	}
	if p.cutOff.times++; p.cutOff.times >= cutOffTimes {
		p.setTodoErr(fail(reasonRejected, "the destination broker closed the connection %d times in a row when the batch of %d bytes at source offset %d was sent: raise socket.request.max.bytes of the destination's brokers well above that size (see the broker's log: \"InvalidReceiveException\"): %w", p.cutOff.times, it.size, it.base, err))
	}
}

// disconnected: the connection to the broker is gone. What this owner knows of
// the tail has to be compared with the log again.
func (p *Partition) disconnected(broker int32) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.phase == phaseRun && p.dst.broker == broker && p.inflight == nil {
		p.doubt("connection", regen{})
	}
}

// kickWriter wakes the writer of a partition.
func (e *Engine) kickWriter(p *Partition, broker int32) {
	e.mu.Lock()
	w := e.writers[laneKey{broker, int(p.partition) % e.Tuning.Lanes}]
	e.mu.Unlock()
	if w != nil {
		w.wake.wake()
	}
}

// kickFetcher wakes the fetchers of a source broker.
func (e *Engine) kickFetcher(broker int32) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for lane := range farLanes {
		if f := e.fetchers[laneKey{broker, lane}]; f != nil {
			f.wake.wake()
		}
	}
}
