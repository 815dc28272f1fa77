package ledger

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

// TransactionalIDPrefix and the number of a ledger partition make up the
// transactional id its owner writes with.
const TransactionalIDPrefix = "lockstep-ledger-"

// TransactionTimeout is how long an owner's unfinished transaction can hide
// later writes before the coordinator ends it (M19). A new owner's Acquire
// ends it at once.
const TransactionTimeout = 10 * time.Second

// AcquireTimeout bounds one try to acquire a ledger partition: while it waits,
// writes there, and who wants to write elsewhere after them, wait too.
const AcquireTimeout = 10 * time.Second

var errAcquire = fmt.Errorf("the destination took longer than %v", AcquireTimeout)

var (
	// ErrFenced says that somebody else has acquired the ledger partition since (or our
	// own transaction was ended by its timeout, which looks the same). The
	// owner stops at once. It may acquire again only when a heartbeat that was
	// answered after this says that it still is the owner; else two owners
	// would fence one another for ever.
	ErrFenced = errors.New("fenced: another instance writes this ledger partition now")
	// ErrUnknownOutcome says that the commit was sent and its answer never
	// came, or was unclear. The write may or may not be there. Acquire again, then look at the view.
	ErrUnknownOutcome = errors.New("outcome unknown: acquire the ledger partition again, then read the entry")
	// ErrNotAcquired says to call Acquire first. An error in the middle of a write
	// leads here too: the next Acquire ends what was left open.
	ErrNotAcquired = errors.New("ledger partition not acquired")
	// ErrConflict says that the record's state epoch isn't the view's plus
	// one: it was made from an older record.
	ErrConflict = errors.New("made from a record that is not the newest")
)

// WriterOptions of a [Writer]. Client and View are required.
type WriterOptions struct {
	Client []kgo.Opt // how the destination is reached
	View   *View     // must be running: a write returns when it was read back
	Logger *slog.Logger
}

// Writer writes to the ledger. Its methods may be called from anywhere; those
// for one ledger partition take turns, and writes that wait for theirs go
// together (group.go).
//
// After any error but [ErrConflict] and one from encoding, the ledger
// partition must be acquired again. Without [ErrUnknownOutcome] the write did
// not happen.
type Writer struct {
	view  *View
	log   *slog.Logger
	cl    *kgo.Client
	parts [Partitions]producer

	acquiring time.Duration // AcquireTimeout

	life    context.Context // ends with Close
	cancel  context.CancelFunc
	working sync.WaitGroup // goroutines that commit

	mu           sync.Mutex
	leaders      map[int32]int32
	coordinators map[int32]int32 // by ledger partition
}

// producer is the transactional producer of one ledger partition.
type producer struct {
	commits  commits
	turn     chan struct{} // holds one token; who has it may use the rest
	acquired bool
	fenced   bool // not acquired because somebody else did since: only Acquire helps
	id       int64
	epoch    int16
	seq      int32
}

// NewWriter makes a writer and its client; nothing is sent yet.
func NewWriter(o WriterOptions) (*Writer, error) {
	opts := append(slices.Clone(o.Client), ledgerVersions(), kgo.ClientID("lockstep-ledger"))
	cl, err := kgo.NewClient(opts...)
	if err != nil {
		return nil, fmt.Errorf("ledger: client for the destination: %w", err)
	}
	w := &Writer{
		view: o.View, log: cmp.Or(o.Logger, slog.Default()), cl: cl,
		leaders: map[int32]int32{}, coordinators: map[int32]int32{}, acquiring: AcquireTimeout,
	}
	w.life, w.cancel = context.WithCancel(context.Background())
	for i := range w.parts {
		w.parts[i].turn, w.parts[i].id = make(chan struct{}, 1), -1
	}
	return w, nil
}

// Close closes the connections. Calls under way fail.
func (w *Writer) Close() {
	w.mu.Lock() // no goroutine is started after this
	w.cancel()
	w.mu.Unlock()
	w.working.Wait()
	w.cl.Close()
}

// lock takes the turn on a ledger partition.
func (w *Writer) lock(ctx context.Context, n int32) (*producer, error) {
	if n < 0 || n >= Partitions {
		return nil, fmt.Errorf("ledger: no partition %d, it has %d", n, Partitions)
	}
	p := &w.parts[n]
	select {
	case p.turn <- struct{}{}:
		return p, nil
	case <-ctx.Done():
		return nil, fmt.Errorf("ledger partition %d: waiting for a write before: %w", n, context.Cause(ctx))
	}
}

func (p *producer) unlock() { <-p.turn }

func txnID(n int32) string { return TransactionalIDPrefix + strconv.Itoa(int(n)) }

// Acquire makes this writer the only one of ledger partition n: it fences the
// one before and ends its open transaction (InitProducerId), and waits until
// the view has read what was written until then. Only after that may the
// caller act on what the view says (M19).
//
// It fences whoever writes there: call it only as the partition's owner.
func (w *Writer) Acquire(ctx context.Context, n int32) error {
	ctx, cancel := context.WithTimeoutCause(ctx, w.acquiring, errAcquire)
	defer cancel()
	p, err := w.lock(ctx, n)
	if err != nil {
		return err
	}
	defer p.unlock()
	return w.begin(ctx, n, p, -1, -1)
}

// Renew acquires n again after a write of ours that failed, but fences nobody:
// if somebody else has acquired it since, the answer is [ErrFenced] (KIP-360: a
// producer's epoch rises only from the one it names).
func (w *Writer) Renew(ctx context.Context, n int32) error {
	ctx, cancel := context.WithTimeoutCause(ctx, w.acquiring, errAcquire)
	defer cancel()
	p, err := w.lock(ctx, n)
	if err != nil {
		return err
	}
	defer p.unlock()
	if p.acquired {
		return nil // another write of ours was first
	}
	if err := p.refused(n); p.fenced || p.id < 0 {
		return err
	}
	// What was left open is ended first: else the coordinator ends it by raising
	// the epoch, and takes us for fenced.
	if err = w.abort(ctx, n, p); err == nil {
		err = w.begin(ctx, n, p, p.id, p.epoch)
	}
	if errors.Is(err, kerr.InvalidProducerIDMapping) || errors.Is(err, ErrFenced) {
		p.fenced = true
		return errors.Join(ErrFenced, err)
	}
	return err
}

// refused is why a write can't be made now.
func (p *producer) refused(n int32) error {
	if p.fenced {
		return fmt.Errorf("ledger partition %d: %w: %w", n, ErrNotAcquired, ErrFenced)
	}
	return fmt.Errorf("ledger partition %d: %w", n, ErrNotAcquired)
}

// begin is Acquire, with the turn on n held; id and epoch are those of our
// producer, -1 for whoever's.
func (w *Writer) begin(ctx context.Context, n int32, p *producer, id int64, epoch int16) error {
	p.acquired = false
	id, epoch, err := w.initProducer(ctx, n, id, epoch)
	if err != nil {
		return fmt.Errorf("ledger partition %d: acquire: %w", n, err)
	}
	p.id, p.epoch, p.seq, p.fenced = id, epoch, 0, false
	end, err := w.end(ctx, n)
	if err != nil {
		return fmt.Errorf("ledger partition %d: acquire: its end: %w", n, err)
	}
	if err := w.view.WaitFor(ctx, n, end); err != nil {
		return fmt.Errorf("ledger partition %d: acquire: %w", n, err)
	}
	p.acquired = true
	return nil
}

// Release forgets that n was acquired: writes fail until the next Acquire.
// Nothing is sent.
func (w *Writer) Release(ctx context.Context, n int32) error {
	p, err := w.lock(ctx, n)
	if err != nil {
		return err
	}
	p.acquired, p.id = false, -1
	p.unlock()
	return nil
}

// Put writes a record, and returns when the view shows it. The record must be
// the view's with changes ([Record.Next]; state epoch 1 for a new one). It may
// be used again after Put returns.
func (w *Writer) Put(ctx context.Context, r *Record) error {
	value, err := r.Encode()
	if err != nil {
		return err
	}
	check := func() error { return w.newest(r) }
	if err := w.submit(ctx, PartitionOf(r.Topic, r.Partition), check, entry{key: r.Key(), value: value}); err != nil {
		return fmt.Errorf("ledger entry %q: %w", r.Key(), err)
	}
	return nil
}

// PutAll is Put for many records: those of one ledger partition go in one
// transaction, as far as there is room. Each has its own error.
func (w *Writer) PutAll(ctx context.Context, rs []*Record) []error {
	errs := make([]error, len(rs))
	by := map[int32][]int{}
	writes := make([]*write, len(rs))
	for i, r := range rs {
		value, err := r.Encode()
		if err != nil {
			errs[i] = err
			continue
		}
		n := PartitionOf(r.Topic, r.Partition)
		by[n] = append(by[n], i)
		writes[i] = &write{
			ctx: ctx, entries: []entry{{key: r.Key(), value: value}}, done: make(chan struct{}),
			check: func() error { return w.newest(r) },
		}
	}
	for n, list := range by {
		xs := make([]*write, len(list))
		for j, i := range list {
			xs[j] = writes[i]
		}
		if err := w.enqueue(n, xs...); err != nil {
			for _, x := range xs {
				x.settle(err)
			}
		}
	}
	for n, list := range by {
		for _, i := range list {
			if err := w.settled(n, writes[i]); err != nil {
				errs[i] = fmt.Errorf("ledger entry %q: %w", rs[i].Key(), err)
			}
		}
	}
	return errs
}

// Delete writes tombstones for a mirror partition's record, checkpoint and
// command in one transaction. Its pairs and native spans are forgotten with
// it (H3): only for topics that are gone.
func (w *Writer) Delete(ctx context.Context, topic string, partition int32) error {
	err := w.submit(ctx, PartitionOf(topic, partition), nil,
		entry{key: CheckpointKey(topic, partition)}, entry{key: CommandKey(topic, partition)}, entry{key: RecordKey(topic, partition)})
	if err != nil {
		return fmt.Errorf("ledger entry %q: delete: %w", RecordKey(topic, partition), err)
	}
	return nil
}

func (w *Writer) newest(r *Record) error {
	var have int64
	if cur := w.view.Partition(r.Topic, r.Partition); cur != nil {
		if cur.Err != nil {
			return fmt.Errorf("not overwritten: %w", cur.Err)
		}
		have = cur.Record.StateEpoch
	}
	if r.StateEpoch != have+1 {
		return fmt.Errorf("state epoch %d, the ledger has %d: %w", r.StateEpoch, have, ErrConflict)
	}
	return nil
}

// PutCheckpoints writes checkpoints, those of one ledger partition in one
// transaction, and returns when the view shows them. All ledger partitions
// must have been acquired. The error joins those of the ledger partitions that
// failed; the others' checkpoints are written.
func (w *Writer) PutCheckpoints(ctx context.Context, cps []Checkpoint) error {
	by := map[int32][]entry{}
	for i := range cps {
		value, err := cps[i].Encode()
		if err != nil {
			return err
		}
		n := PartitionOf(cps[i].Topic, cps[i].Partition)
		by[n] = append(by[n], entry{key: cps[i].Key(), value: value})
	}
	var (
		wg   sync.WaitGroup
		mu   sync.Mutex
		errs []error
	)
	for n, es := range by {
		wg.Go(func() {
			if err := w.submit(ctx, n, nil, es...); err != nil {
				mu.Lock()
				defer mu.Unlock()
				errs = append(errs, fmt.Errorf("%d checkpoints: %w", len(es), err))
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// PutInstance writes what an instance says about itself, and returns when it
// is stored. Only the instance writes its key, whoever owns the ledger
// partition: so this is no part of the owner's transactions.
func (w *Writer) PutInstance(ctx context.Context, i *Instance) error {
	value, err := i.Encode()
	if err != nil {
		return err
	}
	return w.named(ctx, entry{key: i.Key(), value: value})
}

// PutCommands writes what the operator wants of partitions, and returns when it
// is stored; the partitions' owners act on it. Any instance may, so it is no part
// of the owners' transactions. Those of one ledger partition go together, so that
// a topic's partitions act together too. The error joins those of the ledger
// partitions that failed; the others' commands are stored.
func (w *Writer) PutCommands(ctx context.Context, cs ...Command) error {
	by := map[int32][]entry{}
	for i := range cs {
		c := &cs[i]
		if c.Mirror == "" || c.Topic == "" || c.Seq <= 0 {
			return fmt.Errorf("ledger entry %q: a command needs mirror, topic and a sequence number", c.Key())
		}
		value, err := c.Encode()
		if err != nil {
			return err
		}
		n := PartitionOf(c.Topic, c.Partition)
		by[n] = append(by[n], entry{key: c.Key(), value: value})
	}
	var (
		wg   sync.WaitGroup
		mu   sync.Mutex
		errs []error
	)
	for n, es := range by {
		wg.Go(func() {
			if err := w.plain(ctx, n, es...); err != nil {
				mu.Lock()
				defer mu.Unlock()
				errs = append(errs, err)
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// DeleteInstance removes an instance.
func (w *Writer) DeleteInstance(ctx context.Context, id string) error {
	return w.named(ctx, entry{key: InstanceKey(id)})
}

// transact writes entries in one transaction and waits until the view has read
// them; the turn on n is held.
func (w *Writer) transact(ctx context.Context, n int32, p *producer, es []entry) (err error) {
	p.acquired = false // until all went well
	defer func() { p.fenced = errors.Is(err, ErrFenced) }()
	// The coordinator ends what takes longer; then nothing would be known.
	tctx, cancel := context.WithTimeoutCause(ctx, TransactionTimeout*4/5, errSlow)
	defer cancel()
	if err := w.addPartition(tctx, n, p); err != nil {
		return fmt.Errorf("partition %d: begin: %w", n, err)
	}
	base, err := w.produce(tctx, n, transactional(n, p, es))
	if err != nil {
		return fmt.Errorf("partition %d: produce: %w", n, err)
	}
	if err := w.commit(tctx, n, p); err != nil {
		return fmt.Errorf("partition %d: commit: %w", n, err)
	}
	p.seq += int32(len(es)) // a producer of one partition never reaches 2^31 writes
	if err := w.view.WaitFor(ctx, n, base+int64(len(es))); err != nil {
		return fmt.Errorf("partition %d: written, but not read back: %w", n, errors.Join(ErrUnknownOutcome, err))
	}
	p.acquired = true
	return nil
}

var errSlow = fmt.Errorf("the destination took longer than %v", TransactionTimeout*4/5)
