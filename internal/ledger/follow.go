package ledger

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/internal/kconn"
)

const (
	// retryPause is how long a view waits after an error before it asks again.
	retryPause = 200 * time.Millisecond
	// fetchPartitionBytes and fetchBytes bound one answer. A larger batch is
	// still returned whole (KIP-74), so nothing gets stuck.
	fetchPartitionBytes = 1 << 20
	fetchBytes          = 8 << 20
)

// follower is the view's place in one ledger partition; under View.mu.
type follower struct {
	leader   int32 // broker that is asked now; -1: none
	position int64 // next offset to read
	epoch    int32 // leader epoch of the batch before it, -1: none
	started  bool  // something was read, or the log start found
	awaited  int64 // offset of the newest record in a state that waits for acknowledgements, -1: none
	endAt    time.Time

	// loading holds back what is read until the end is reached for the first
	// time (then it is nil), so that no half-read state is ever shown.
	loading map[string]change
	reload  bool // the topic lost writes: what is not read again is lost
}

func (f *follower) reset(position int64) {
	f.position, f.epoch, f.started, f.awaited = position, -1, false, -1
	f.endAt, f.loading = time.Time{}, map[string]change{}
}

// Run follows the ledger until ctx ends (then it returns nil) or the topic
// turns out not to be a ledger. Everything else is retried: while the cluster
// can't be read the view is not fresh, and that is all.
func (v *View) Run(ctx context.Context) error {
	opts := append(slices.Clone(v.opts.Client), ledgerVersions(), kgo.ClientID("lockstep-ledger"), kgo.RequestRetries(2))
	cl, err := kgo.NewClient(opts...)
	if err != nil {
		return fmt.Errorf("ledger: client for the destination: %w", err)
	}
	defer cl.Close()
	r := &reader{v: v, cl: cl, kick: make(chan struct{}, 1), running: map[int32]bool{}, decomp: kgo.DefaultDecompressor()}
	// Fetchers end by themselves when ctx does; the cancel is for the case
	// that the topic is not usable.
	ctx, cancel := context.WithCancel(ctx)
	defer r.wg.Wait()
	defer cancel()
	for {
		// Without an error too: a leader that the cluster has replaced may
		// still answer, with an end that is no longer the end.
		wait := v.opts.Lease / 4
		leaders, err := ledgerLeaders(ctx, cl)
		var perm *TopicError
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.As(err, &perm):
			return fmt.Errorf("ledger topic %s: %w", Topic, err)
		case err != nil:
			v.log.Warn("ledger: can't look up the topic's leaders", "topic", Topic, "err", kconn.OfClient(cl, err))
			wait = retryPause
		default:
			if !r.assign(ctx, leaders) {
				wait = retryPause
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-r.kick:
			if !sleep(ctx, retryPause) {
				return nil
			}
		case <-time.After(wait):
		}
	}
}

// reader is one run of a view.
type reader struct {
	v      *View
	cl     *kgo.Client
	decomp kgo.Decompressor
	kick   chan struct{} // look up the leaders again

	wg      sync.WaitGroup
	running map[int32]bool // brokers with a fetcher; under View.mu
}

func (r *reader) again() {
	select {
	case r.kick <- struct{}{}:
	default:
	}
}

// assign gives each partition to its leader's fetcher; false when one has no
// leader.
func (r *reader) assign(ctx context.Context, leaders [Partitions]int32) (complete bool) {
	r.v.mu.Lock()
	defer r.v.mu.Unlock()
	complete = true
	for p, id := range leaders {
		r.v.parts[p].leader = id
		if id < 0 {
			complete = false
			continue
		}
		if !r.running[id] {
			r.running[id] = true
			r.wg.Go(func() { r.fetchFrom(ctx, id) })
		}
	}
	return complete
}

// movingTries is how often a read may fail while leaders move, or have just been
// made as at the first start, before it is told: for two seconds.
const movingTries = 3 + int(2*time.Second/retryPause)

// firstPause is how long a fetcher that has never had an answer waits at first:
// the leaders of a new topic are there in some milliseconds.
const firstPause = 20 * time.Millisecond

// triesUnsaid is at which failed try in a row the log says so.
func triesUnsaid(err error) int {
	for _, moving := range []error{kerr.NotLeaderForPartition, kerr.LeaderNotAvailable, kerr.UnknownTopicOrPartition, kerr.FencedLeaderEpoch, kerr.UnknownLeaderEpoch} {
		if errors.Is(err, moving) {
			return movingTries
		}
	}
	return 1
}

// fetchFrom reads the partitions that a broker leads, until it leads none.
func (r *reader) fetchFrom(ctx context.Context, broker int32) {
	failed, told := 0, false // in a row
	pause := firstPause
	// What is there is asked for without a wait for more, as long as that gets on.
	soon := true
	for {
		req, n := r.request(broker, soon)
		if n == 0 || ctx.Err() != nil {
			r.v.mu.Lock()
			// Asked again under the lock: assign may just have come.
			if again := ctx.Err() == nil && r.leads(broker); again {
				r.v.mu.Unlock()
				continue
			}
			delete(r.running, broker)
			r.v.mu.Unlock()
			return
		}
		moved, err := r.fetch(ctx, broker, req)
		if err != nil && ctx.Err() == nil {
			if failed++; !told && failed >= triesUnsaid(err) {
				told = true
				r.v.log.Warn("ledger: can't read", "broker", broker, "partitions", n, "err", err)
			}
			r.again()
			sleep(ctx, pause)
			pause, soon = min(2*pause, retryPause), true
			continue
		}
		pause, soon = retryPause, moved && r.loading(broker)
		if told && err == nil {
			r.v.log.Info("ledger: read again", "broker", broker, "partitions", n)
		}
		failed, told = 0, false
	}
}

// loading tells whether a partition that broker leads has not been read to its
// end.
func (r *reader) loading(broker int32) bool {
	r.v.mu.Lock()
	defer r.v.mu.Unlock()
	for i := range r.v.parts {
		if st := &r.v.parts[i]; st.leader == broker && st.loading != nil {
			return true
		}
	}
	return false
}

func (r *reader) leads(broker int32) bool {
	for i := range r.v.parts {
		if r.v.parts[i].leader == broker {
			return true
		}
	}
	return false
}

// request asks for all partitions that broker leads. No fetch session: every
// answer then says for each partition where its end is. soon: also if there is
// nothing new.
func (r *reader) request(broker int32, soon bool) (*kmsg.FetchRequest, int) {
	req := kmsg.NewPtrFetchRequest()
	req.ReplicaID = -1
	if !soon {
		req.MaxWaitMillis = int32(r.v.opts.FetchWait.Milliseconds())
	}
	req.MinBytes = 1
	req.MaxBytes = fetchBytes
	req.IsolationLevel = 1 // read_committed
	req.SessionEpoch = -1
	t := kmsg.NewFetchRequestTopic()
	t.Topic = Topic
	r.v.mu.Lock()
	defer r.v.mu.Unlock()
	for i := range r.v.parts {
		st := &r.v.parts[i]
		if st.leader != broker {
			continue
		}
		p := kmsg.NewFetchRequestTopicPartition()
		p.Partition = int32(i)
		p.FetchOffset = st.position
		p.CurrentLeaderEpoch = -1
		p.LastFetchedEpoch = st.epoch // a lost tail is then answered as diverging
		p.LogStartOffset = -1
		p.PartitionMaxBytes = fetchPartitionBytes
		t.Partitions = append(t.Partitions, p)
	}
	req.Topics = append(req.Topics, t)
	return req, len(t.Partitions)
}

// fetch asks once and takes in the answer. The error is the first one of the
// request or of a partition in it. moved: some partition was read further, or
// found to be read to its end.
func (r *reader) fetch(ctx context.Context, broker int32, req *kmsg.FetchRequest) (moved bool, _ error) {
	asked := make(map[int32]int64, Partitions)
	for _, p := range req.Topics[0].Partitions {
		asked[p.Partition] = p.FetchOffset
	}
	// The lease counts from before the question: the answer is not newer.
	sent := time.Now()
	// A broker that hangs is given up well within the lease.
	ctx, cancel := context.WithTimeoutCause(ctx, r.v.opts.FetchWait+max(r.v.opts.Lease/4, time.Second), errHangs)
	defer cancel()
	kresp, err := r.cl.Broker(int(broker)).Request(ctx, req)
	if err != nil {
		return false, err
	}
	resp := kresp.(*kmsg.FetchResponse)
	if err := kerr.ErrorForCode(resp.ErrorCode); err != nil {
		return false, err
	}
	var first error
	some := false
	for ti := range resp.Topics {
		if resp.Topics[ti].Topic != Topic {
			continue
		}
		for pi := range resp.Topics[ti].Partitions {
			rp := &resp.Topics[ti].Partitions[pi]
			off, ok := asked[rp.Partition]
			if !ok {
				continue
			}
			delete(asked, rp.Partition)
			some = some || len(rp.RecordBatches) > 0
			more, err := r.take(ctx, broker, rp, off, sent)
			if err != nil && first == nil {
				first = fmt.Errorf("ledger partition %d: %w", rp.Partition, err)
			}
			moved = moved || more
		}
	}
	if len(asked) > 0 && !some && first == nil { // else it may have been full
		return moved, fmt.Errorf("%w: %d of %d partitions are not in it", errNonsense, len(asked), len(req.Topics[0].Partitions))
	}
	return moved, first
}

// take takes in one partition's answer to a fetch at offset off. moved:
// it was read further, or found to be read to its end.
func (r *reader) take(ctx context.Context, broker int32, rp *kmsg.FetchResponseTopicPartition, off int64, sent time.Time) (moved bool, _ error) {
	err := kerr.ErrorForCode(rp.ErrorCode)
	switch {
	case errors.Is(err, kerr.OffsetOutOfRange):
		return false, r.outOfRange(ctx, broker, rp.Partition, off)
	case err != nil:
		return false, err
	case rp.DivergingEpoch.EndOffset >= 0:
		r.lost(rp.Partition, broker, off, 0, fmt.Sprintf("it ends epoch %d at %d", rp.DivergingEpoch.Epoch, rp.DivergingEpoch.EndOffset))
		return false, nil
	}
	fp, next := kgo.ProcessFetchPartition(kgo.ProcessFetchPartitionOpts{
		Offset: off, IsolationLevel: kgo.ReadCommitted(), Topic: Topic, Partition: rp.Partition,
	}, rp, r.decomp, nil)
	if fp.Err != nil {
		return false, fmt.Errorf("batch at or after offset %d: %w", off, fp.Err)
	}
	end, epoch := lastBatch(rp.RecordBatches)
	if end > next { // batches with no records left in them
		next = end
	}
	changes := make([]change, 0, len(fp.Records))
	var foreign []error
	for _, rec := range fp.Records {
		c, err := readEntry(rp.Partition, rec.Key, rec.Value, rec.Offset)
		if err != nil && rec.Value == nil {
			continue // a tombstone in the wrong place, as stock tools put it: of nothing
		}
		if err != nil {
			r.v.log.Error("ledger: foreign record", "ledgerPartition", rp.Partition, "offset", rec.Offset, "err", err)
			foreign = append(foreign, fmt.Errorf("at %s-%d offset %d: %w", Topic, rp.Partition, rec.Offset, err))
			continue
		}
		changes = append(changes, c)
	}

	v := r.v
	v.mu.Lock()
	defer v.mu.Unlock()
	st := &v.parts[rp.Partition]
	if st.position != off || st.leader != broker {
		return false, nil // overtaken
	}
	for _, err := range foreign {
		v.broken[fmt.Sprintf("%s-%d", Topic, rp.Partition)] = err
	}
	if next > off {
		st.position, st.started = next, true
		if epoch >= 0 {
			st.epoch = epoch
		}
	}
	atEnd := st.position >= rp.LastStableOffset
	moved = next > off || atEnd && st.loading != nil
	if st.loading == nil {
		v.apply(changes)
	} else {
		for _, c := range changes {
			st.loading[c.key.String()] = c
		}
		if atEnd {
			v.loaded(rp.Partition)
		}
	}
	if atEnd {
		st.endAt = sent
		v.markFresh()
	}
	if moved { // what WaitFor looks at
		close(v.moved)
		v.moved = make(chan struct{})
	}
	return moved, nil
}

// loaded shows what a first or renewed reading of a partition found; mu held.
func (v *View) loaded(p int32) {
	st := &v.parts[p]
	found := st.loading
	st.loading = nil
	changes := make([]change, 0, len(found))
	for _, c := range found {
		changes = append(changes, c)
	}
	if st.reload {
		v.compare(p, found)
	}
	st.reload = false
	v.apply(changes)
}

// compare marks the entries that a renewed reading did not bring back; mu
// held. Those that it did bring back are judged by their state epoch: the same
// one is the same record.
func (v *View) compare(p int32, found map[string]change) {
	touched := map[*slot]bool{}
	v.index.each(func(sl *slot) {
		if sl.home != p {
			return
		}
		if _, ok := found[CheckpointKey(sl.topic, sl.partition)]; !ok {
			sl.setCheckpoint(nil, nil)
		}
		if _, ok := found[CommandKey(sl.topic, sl.partition)]; !ok {
			sl.setCommand(nil, nil)
		}
		c, ok := found[RecordKey(sl.topic, sl.partition)]
		switch rec, _ := c.val.(*Record); {
		case !ok:
			sl.setLost()
		case rec != nil && rec.StateEpoch == sl.highest:
			sl.highest-- // taken in again
		}
		touched[sl] = true
	})
	v.publish(nil, touched)
	for _, key := range v.named() {
		if _, ok := found[key.String()]; !ok && key.LedgerPartition() == p {
			v.dropNamed(key)
		}
	}
}

// outOfRange finds out why a fetch at off was refused: the log begins later
// (records were deleted before we first read), or it has lost what we read.
func (r *reader) outOfRange(ctx context.Context, broker, p int32, off int64) error {
	start, err := listOffset(ctx, r.cl, broker, p, -2)
	if err != nil {
		return fmt.Errorf("log start: %w", err)
	}
	r.v.mu.Lock()
	st := &r.v.parts[p]
	if !st.started && st.position == off && start > off {
		st.position, st.started = start, true
		r.v.mu.Unlock()
		return nil
	}
	r.v.mu.Unlock()
	r.lost(p, broker, off, start, fmt.Sprintf("it begins at %d", start))
	return nil
}

// lost begins to read a partition anew, from start.
func (r *reader) lost(p, broker int32, off, start int64, why string) {
	v := r.v
	v.mu.Lock()
	defer v.mu.Unlock()
	st := &v.parts[p]
	if st.position != off || st.leader != broker {
		return
	}
	v.log.Error("ledger: the topic lost records that were read; reading it anew, nothing is served meanwhile",
		"topic", Topic, "ledgerPartition", p, "offset", off, "why", why)
	st.reset(start)
	st.reload = true
	v.fresh.Store(nil)
}

var errHangs = errors.New("the broker does not answer")

func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
