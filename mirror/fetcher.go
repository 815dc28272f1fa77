package mirror

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/internal/kconn"
)

// fetcher reads from one source broker for all partitions led there.
type fetcher struct {
	brokerLoop
	lanes atomic.Int32 // over how many connections the broker is read; 0: one
}

func newFetcher(e *Engine, broker int32, addr string) *fetcher {
	f := &fetcher{}
	f.init(e, broker, addr)
	return f
}

func (f *fetcher) run(ctx context.Context) {
	ctx, cancel := f.begin(ctx)
	defer cancel()
	var conn *kconn.Conn
	defer func() {
		if conn != nil {
			conn.Close()
		}
	}()
	var iso isolation
	var fresh newcomers
	answers := 0 // on this connection
	for try, turn, idle := 0, 0, 0; ctx.Err() == nil; {
		if conn == nil || conn.Closed() {
			var err error
			answers = 0
			if conn, err = f.dial(ctx); err != nil {
				f.broken(ctx, err, try, f.partitions())
				try++
				continue
			}
		}
		asked, kind, wait, again := f.collect(turn, conn, &iso)
		if len(asked) == 0 {
			f.sleep(ctx, again)
			continue
		}
		if kind == fetchAll {
			wait = fresh.wait(len(asked), wait)
		}
		sent := time.Now()
		last, err := f.fetch(ctx, conn, asked, wait)
		turn++
		if kind == fetchAll && last >= 0 { // those behind it got nothing because the answer was full
			turn = asked[last].at + 1
		}
		if err != nil {
			f.blame(&iso, asked, kind, err)
			if kind == fetchAlone { // has a back-off of its own
				f.broken(ctx, err, 0, []*Partition{asked[0].p})
				continue
			}
			f.broken(ctx, err, try, f.partitions())
			try++
			continue
		}
		iso.answered(asked, kind)
		try = 0
		switch answers++; {
		case answers == settled: // by now the round trip is known
			f.eng.distance(f.broker, conn.RTT() > farAway)
		case answers == 1 && conn.RTT() > surelyFar:
			f.eng.distance(f.broker, true)
		}
		if last >= 0 || time.Since(sent) >= wait {
			idle = 0
		} else if idle++; idle > hasty { // it doesn't hold requests until there is something
			f.sleep(ctx, min(wait, tryMin))
		}
	}
}

// hasty is how many answers in a row may come without records and sooner than
// asked for, as they do when a partition has an error, before there is a pause
// between them.
const hasty = 3

func (f *fetcher) dial(ctx context.Context) (*kconn.Conn, error) {
	c := f.eng.src.takeSpare(f.addr)
	if c == nil {
		var err error
		if c, err = f.eng.Source.Dial(ctx, f.addr); err != nil {
			if !canceled(ctx) {
				f.eng.Metrics.dials.WithLabelValues(f.eng.Mirror, "source", kconn.Name(err)).Inc()
			}
			return nil, err
		}
	}
	c.Alloc = func(ctx context.Context, n int) (*kconn.Buffer, error) {
		return f.eng.Memory.get(ctx, f.eng.Source.Pool, n)
	}
	return c, nil
}

// blame looks for the partition that makes requests fail.
func (f *fetcher) blame(iso *isolation, list []asked, kind fetchKind, err error) {
	if errors.Is(err, kconn.ErrNotSent) || errors.Is(err, context.Canceled) {
		return // says nothing about what was asked
	}
	large := errors.Is(err, kconn.ErrFrameTooLarge)
	if p := iso.broke(list, kind, large); p != nil {
		p.slog.Warn("fetching the partition breaks the connection to the source broker: it is asked alone from now on", "conn", f.addr, "err", err)
	}
	if large && len(list) == 1 {
		list[0].p.tooLarge(list[0].token, err)
	}
}

// tooLarge: an answer with nothing but this partition's next batch is above what
// is accepted.
func (p *Partition) tooLarge(token uint64, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.token == token && p.phase == phaseRun {
		p.setTodoErr(fail(reasonSourceData, "the source's batch at offset %d is too large: raise limits.max_frame_bytes above its size: %w", p.walk.position, err))
	}
}

// broken reports a connection error and waits.
func (f *fetcher) broken(ctx context.Context, err error, try int, concerned []*Partition) {
	if canceled(ctx) {
		return
	}
	d := backoff(try, tryMin, tryMax)
	f.eng.Logger.Warn("source broker: will try again", "mirror", f.eng.Mirror, "conn", f.addr, "err", err, "cause", kconn.Name(err), "in", d)
	f.eng.Metrics.fetchErrs.WithLabelValues(f.eng.Mirror, errorCode(err)).Inc()
	for _, p := range concerned {
		p.note(err)
	}
	f.eng.RefreshSource()
	pause(ctx, d)
}

// sleep waits for a change, or until a partition's back-off is over.
func (f *fetcher) sleep(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-f.wake:
	case <-t.C:
	case <-ctx.Done():
	}
}

// asked is one partition's part of a request.
type asked struct {
	p     *Partition
	at    int // among the fetcher's partitions
	token uint64
	spec  fetchSpec
	told  bool // it is in the answer
}

// fetchSpec is what to ask for.
type fetchSpec struct {
	offset    int64
	current   int32 // CurrentLeaderEpoch
	lastEpoch int32 // LastFetchedEpoch
	id        [16]byte
}

// busyWait is how long a broker may hold a fetch that leaves out a partition
// whose queue is full: it will want data again long before the ordinary wait is
// over.
const busyWait = 10 * time.Millisecond

// newcomers shortens the wait of fetches while partitions join: the first of
// a mirror that starts would keep the others out for FetchWaitMax when it has
// no more data.
type newcomers struct {
	n    int // partitions in the fetch before
	most time.Duration
}

// wait is the wait of a fetch of n partitions, at most wait: short after some
// have joined, and twice as long with each fetch since.
func (c *newcomers) wait(n int, wait time.Duration) time.Duration {
	c.most *= 2
	if n > c.n {
		c.most = busyWait
	}
	c.n = n
	c.most = min(c.most, wait)
	return c.most
}

// collect finds the partitions that can take data. turn says which is the first,
// as brokers fill an answer in the order of the request. again: when to look
// anew if there is none.
func (f *fetcher) collect(turn int, conn *kconn.Conn, iso *isolation) (list []asked, kind fetchKind, wait, again time.Duration) {
	ps := f.partitions()
	r, _ := conn.Versions(int16(kmsg.Fetch))
	now := time.Now()
	limit := func(ps []*Partition) int { return 2 * int(f.partitionBytes(conn, len(ps))) }
	iso.prune(ps)
	for ; len(iso.groups) > 0; iso.groups = iso.groups[1:] {
		if list, _, _ = f.ready(iso.groups[0], 0, r.Max >= 12, limit(iso.groups[0]), now); len(list) > 0 {
			return list, fetchGroup, busyWait, 0
		}
	}
	if len(iso.alone) == 0 {
		list, wait, again = f.ready(ps, turn, r.Max >= 12, limit(ps), now)
		return list, fetchAll, wait, again
	}
	list, wait, again = f.ready(slices.DeleteFunc(slices.Clone(ps), iso.apart), turn, r.Max >= 12, limit(ps), now)
	if iso.others = !iso.others; iso.others && len(list) > 0 {
		return list, fetchAll, wait, again // in turns, so that neither waits for the other for ever
	}
	for p, l := range iso.alone {
		if left := l.next.Sub(now); left > 0 {
			again = min(again, left)
		} else if one, _, _ := f.ready([]*Partition{p}, 0, r.Max >= 12, limit(ps), now); len(one) > 0 {
			return one, fetchAlone, busyWait, 0
		}
	}
	return list, fetchAll, wait, again
}

// ready are those of ps that can take data: that have less than limit bytes
// queued.
func (f *fetcher) ready(ps []*Partition, turn int, truncates bool, limit int, now time.Time) (list []asked, wait, again time.Duration) {
	wait, again = f.eng.Tuning.FetchWaitMax, time.Second
	for i := range ps {
		at := (i + turn) % len(ps)
		p := ps[at]
		spec, token, st := p.fetchSpec(f.broker, truncates, limit, now)
		switch st {
		case fetchReady:
			list = append(list, asked{p: p, at: at, token: token, spec: spec})
		case fetchFull:
			wait = min(wait, busyWait)
		case fetchWaits:
			wait = min(wait, 2*tryMin)
			again = min(again, tryMin)
		}
	}
	return list, wait, again
}

// maxBytes is what is asked for at most: an answer with it fits into a frame, and
// over several connections each brings a part. A batch in an answer that is not
// written yet keeps all of it in memory.
func (f *fetcher) maxBytes() int32 {
	most := min(f.eng.Tuning.FetchMaxBytes, farBytes/max(f.lanes.Load(), 1))
	if limit := f.eng.Source.MaxFrame; limit > 0 {
		most = min(most, limit-limit/8)
	}
	return most
}

// surelyFar is the round trip that is believed after one answer, for the time
// being.
const surelyFar = 4 * farAway

// farBytes is how much is asked for at most over all connections to a source
// broker: it may be under way for a round trip. farAnswer is as much of it as one
// answer brings where there are connections enough; a little below a size of
// buffers, so that nothing is wasted.
const (
	farBytes  = farLanes * farAnswer
	farAnswer = 4<<20 - 64<<10
)

// farAway is the round trip from which on fetches get larger than
// FetchPartitionMaxBytes: one answer for each round trip is all that a
// partition gets.
const farAway = 5 * time.Millisecond

// settled is after how many answers a connection's round trip is believed: the
// first ones may have waited for a broker that was busy.
const settled = 5

// partitionBytes is what is asked of one partition of n at most.
func (f *fetcher) partitionBytes(conn *kconn.Conn, n int) int32 {
	return stretched(f.eng.Tuning.FetchPartitionMaxBytes, f.maxBytes(), n, conn.RTT())
}

// stretched makes own larger in proportion to a long round trip, as long as an
// answer of all bytes has room for n of them.
func stretched(own, all int32, n int, rtt time.Duration) int32 {
	if rtt > farAway {
		own = int32(min(int64(own)*int64(1+rtt/farAway), max(int64(all)/int64(max(n, 1)), int64(own))))
	}
	return min(own, all)
}

type fetchState uint8

const (
	fetchNot   fetchState = iota // until something else happens
	fetchReady                   // now
	fetchFull                    // when the queue drains
	fetchWaits                   // when its back-off is over
)

// fetchSpec says what to ask the source for.
func (p *Partition) fetchSpec(broker int32, truncates bool, limit int, now time.Time) (fetchSpec, uint64, fetchState) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.phase != phaseRun || p.src.broker != broker || p.todo.ask != nil || p.todo.err != nil:
		return fetchSpec{}, 0, fetchNot
	case p.shadowing() && !p.prepared():
		return fetchSpec{}, 0, fetchNot
	case now.Before(p.sourceWait):
		return fetchSpec{}, 0, fetchWaits
	case p.drain && (len(p.queue) > 0 || p.inflight != nil):
		return fetchSpec{}, 0, fetchFull
	case p.queued >= limit || len(p.queue) >= maxQueue:
		return fetchSpec{}, 0, fetchFull
	}
	if !truncates && p.walk.epoch >= 0 && p.asked != p.src.epoch {
		if len(p.queue) > 0 || p.inflight != nil {
			p.drain = true
			return fetchSpec{}, 0, fetchFull
		}
		p.todo.ask = &ask{kind: askEpoch}
		p.wake.wake()
		return fetchSpec{}, 0, fetchNot
	}
	return fetchSpec{offset: p.walk.position, current: p.src.epoch, lastEpoch: p.walk.epoch, id: p.src.id}, p.token, fetchReady
}

// maxQueue bounds a queue of many tiny batches.
const maxQueue = 4096

// fetch sends one request and hands the answers out. last is the last one in list
// of which there were records, -1: of none.
func (f *fetcher) fetch(ctx context.Context, conn *kconn.Conn, list []asked, wait time.Duration) (last int, err error) {
	hi := int16(18)
	for i := range list {
		if list[i].spec.id == [16]byte{} {
			hi = 12
		}
	}
	v, err := conn.Version(int16(kmsg.Fetch), 4, hi)
	if err != nil {
		conn.Close()
		return -1, err
	}
	req := kmsg.NewPtrFetchRequest()
	req.Version, req.ReplicaID, req.MaxWaitMillis, req.MinBytes = v, -1, int32(wait.Milliseconds()), 1
	req.MaxBytes, req.IsolationLevel = f.maxBytes(), 1
	req.SessionID, req.SessionEpoch = 0, -1
	partition := f.partitionBytes(conn, len(list))
	byID := make(map[[16]byte]string, len(list))
	place := make(map[partKey]int, len(list))
	for i := range list {
		a := &list[i]
		at := len(req.Topics) - 1
		if at < 0 || req.Topics[at].Topic != a.p.topic { // in the order of the list, though a topic may come twice: see turn
			rt := kmsg.NewFetchRequestTopic()
			rt.Topic, rt.TopicID = a.p.topic, a.spec.id
			req.Topics = append(req.Topics, rt)
			byID[a.spec.id] = a.p.topic
			at++
		}
		rp := kmsg.NewFetchRequestTopicPartition()
		rp.Partition, rp.CurrentLeaderEpoch, rp.FetchOffset = a.p.partition, a.spec.current, a.spec.offset
		rp.LastFetchedEpoch, rp.PartitionMaxBytes = a.spec.lastEpoch, partition
		req.Topics[at].Partitions = append(req.Topics[at].Partitions, rp)
		place[partKey{a.p.topic, a.p.partition}] = i
	}
	buf, err := conn.RoundTripRaw(ctx, req.Key(), v, net.Buffers{req.AppendTo(nil)}, wait)
	if err != nil {
		return -1, err
	}
	defer buf.Release()
	resp := kmsg.NewPtrFetchResponse()
	resp.Version = v
	if err := resp.ReadFrom(buf.Bytes()); err != nil { // record bytes alias buf
		conn.Close()
		return -1, fmt.Errorf("%w: Fetch v%d: %w", kconn.ErrNonsense, v, err)
	}
	if err := kerr.ErrorForCode(resp.ErrorCode); err != nil {
		if unknownTopic(resp.ErrorCode) { // of topic ids, for the whole request
			for i := range list {
				list[i].p.fetchFailed(list[i].token, resp.ErrorCode)
			}
			return -1, nil
		}
		return -1, fmt.Errorf("fetch: %w", err)
	}
	stale := false
	last = -1
	for i := range resp.Topics {
		rt := &resp.Topics[i]
		name := rt.Topic
		if v >= 13 {
			name = byID[rt.TopicID]
		}
		for j := range rt.Partitions {
			rp := &rt.Partitions[j]
			n, ok := place[partKey{name, rp.Partition}]
			if !ok {
				conn.Close()
				return -1, fmt.Errorf("%w: Fetch answer for %s/%d, which was not asked for", kconn.ErrNonsense, name, rp.Partition)
			}
			if len(rp.RecordBatches) > 0 {
				last = max(last, n)
			}
			a := &list[n]
			a.told = true
			if a.p.fetched(a.token, a.spec, rp, buf) {
				stale = true
			}
		}
	}
	for i := range list {
		if a := &list[i]; !a.told && last < 0 { // else it may have been full
			a.p.leftOut(a.token)
			stale = true
		}
	}
	if stale {
		f.eng.RefreshSource()
	}
	return last, nil
}

func itoa(n int32) string { return strconv.Itoa(int(n)) }
