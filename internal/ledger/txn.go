package ledger

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// attempt is how long a partition's leader is given before it is looked up
// again: it may hang, and another lead.
const attempt = 3 * time.Second

// entry is a record to be written; a nil value is a tombstone.
type entry struct {
	key   string
	value []byte
}

// size is about what the entry takes in a batch.
func (e *entry) size() int { return len(e.key) + len(e.value) + 32 }

// outcome sorts a broker's answer.
func outcome(err error) (retry bool, _ error) {
	switch {
	case err == nil:
		return false, nil
	case errors.Is(err, kerr.InvalidProducerEpoch), errors.Is(err, kerr.ProducerFenced),
		errors.Is(err, kerr.InvalidTxnState): // the transaction that we opened is not open: somebody ended it
		return false, fmt.Errorf("%w (%w)", ErrFenced, err)
	case errors.Is(err, kerr.ConcurrentTransactions): // the transaction before is still being ended
		return true, err
	case errors.Is(err, kerr.TransactionalIDAuthorizationFailed):
		return false, fmt.Errorf("%w: grant Write and Describe on transactional ids with the prefix %q", err, TransactionalIDPrefix)
	case errors.Is(err, kerr.TopicAuthorizationFailed):
		return false, fmt.Errorf("%w: grant Read, Write and Describe on topic %s", err, Topic)
	}
	return kerr.IsRetriable(err), err
}

// retry calls try until it succeeds, fails for good, or ctx ends.
func (w *Writer) retry(ctx context.Context, try func() error) error {
	for pause := 5 * time.Millisecond; ; pause = min(2*pause, 500*time.Millisecond) {
		again, err := outcome(try())
		if err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return fmt.Errorf("%w (last: %w)", context.Cause(ctx), err)
		}
		if !again && !connection(err) {
			return err
		}
		if !sleep(ctx, pause) {
			return fmt.Errorf("%w (last: %w)", context.Cause(ctx), err)
		}
	}
}

// connection tells whether an error is none of a broker's answers: a broken or
// refused connection, an unknown broker.
func connection(err error) bool {
	var ke *kerr.Error
	return !errors.As(err, &ke) && !errors.Is(err, errNonsense) && !errors.Is(err, kgo.ErrClientClosed)
}

// errNonsense: an answer without what was asked for.
var errNonsense = errors.New("the broker's answer does not fit the question")

func (w *Writer) initProducer(ctx context.Context, n int32, oldID int64, oldEpoch int16) (id int64, epoch int16, err error) {
	err = w.retry(ctx, func() error {
		req := kmsg.NewPtrInitProducerIDRequest()
		req.TransactionalID = kmsg.StringPtr(txnID(n))
		req.TransactionTimeoutMillis = int32(TransactionTimeout.Milliseconds())
		req.ProducerID, req.ProducerEpoch = oldID, oldEpoch
		return w.ask(ctx, n, req, func(r kmsg.Response) error {
			resp := r.(*kmsg.InitProducerIDResponse)
			id, epoch = resp.ProducerID, resp.ProducerEpoch
			return kerr.ErrorForCode(resp.ErrorCode)
		})
	})
	return id, epoch, err
}

func (w *Writer) addPartition(ctx context.Context, n int32, p *producer) error {
	return w.retry(ctx, func() error {
		req := kmsg.NewPtrAddPartitionsToTxnRequest()
		req.TransactionalID = txnID(n)
		req.ProducerID, req.ProducerEpoch = p.id, p.epoch
		t := kmsg.NewAddPartitionsToTxnRequestTopic()
		t.Topic, t.Partitions = Topic, []int32{n}
		req.Topics = append(req.Topics, t)
		return w.ask(ctx, n, req, func(r kmsg.Response) error {
			resp := r.(*kmsg.AddPartitionsToTxnResponse)
			if len(resp.Topics) != 1 || len(resp.Topics[0].Partitions) != 1 {
				return errNonsense
			}
			return kerr.ErrorForCode(resp.Topics[0].Partitions[0].ErrorCode)
		})
	})
}

// abort ends the transaction that may be open, if it is ours.
func (w *Writer) abort(ctx context.Context, n int32, p *producer) error {
	err := w.retry(ctx, func() error {
		req := kmsg.NewPtrEndTxnRequest()
		req.TransactionalID = txnID(n)
		req.ProducerID, req.ProducerEpoch = p.id, p.epoch
		return w.ask(ctx, n, req, func(r kmsg.Response) error {
			if err := kerr.ErrorForCode(r.(*kmsg.EndTxnResponse).ErrorCode); !errors.Is(err, kerr.InvalidTxnState) { // none is open
				return err
			}
			return nil
		})
	})
	if err != nil {
		return fmt.Errorf("ledger partition %d: end what is open: %w", n, err)
	}
	return nil
}

// errNoAnswer: a request was sent, and what became of it is not known.
var errNoAnswer = errors.New("no answer")

// ask asks the coordinator of ledger partition n once; judge turns its answer
// into an error. The coordinator is looked for anew after any error: the
// client's own Request dials a dead one until the time is over (LA-07). The
// error is errNoAnswer if the request may have been carried out unseen.
func (w *Writer) ask(ctx context.Context, n int32, req kmsg.Request, judge func(kmsg.Response) error) error {
	id, err := w.coordinator(ctx, n)
	if err != nil {
		return err
	}
	actx, cancel := context.WithTimeout(ctx, attempt)
	defer cancel()
	resp, err := w.cl.Broker(int(id)).Request(actx, req)
	if err != nil {
		err = fmt.Errorf("%w: %w", errNoAnswer, err)
	} else {
		err = judge(resp)
	}
	if err != nil {
		w.forgetCoordinator(n)
	}
	return err
}

// commit ends the transaction. From the first try whose answer is lost or
// unclear on, the commit may have been stored, whatever a later try is
// answered: so nothing below this may try again unseen (the client's own
// Request would).
func (w *Writer) commit(ctx context.Context, n int32, p *producer) error {
	unclear := false
	err := w.retry(ctx, func() error {
		req := kmsg.NewPtrEndTxnRequest()
		req.TransactionalID = txnID(n)
		req.ProducerID, req.ProducerEpoch = p.id, p.epoch
		req.Commit = true
		err := w.ask(ctx, n, req, func(r kmsg.Response) error {
			err := kerr.ErrorForCode(r.(*kmsg.EndTxnResponse).ErrorCode)
			unclear = unclear || err != nil && !refused(err)
			return err
		})
		unclear = unclear || errors.Is(err, errNoAnswer)
		return err
	})
	if err != nil && unclear {
		return errors.Join(ErrUnknownOutcome, err)
	}
	return err
}

// refused tells whether an answer to EndTxn says for certain that this request
// stored nothing.
func refused(err error) bool {
	for _, e := range []*kerr.Error{
		kerr.InvalidProducerEpoch, kerr.ProducerFenced, kerr.InvalidTxnState, kerr.InvalidProducerIDMapping,
		kerr.ConcurrentTransactions, kerr.NotCoordinator, kerr.CoordinatorLoadInProgress, kerr.TransactionalIDAuthorizationFailed,
	} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// coordinator is the broker that keeps the transactions of ledger partition n.
func (w *Writer) coordinator(ctx context.Context, n int32) (int32, error) {
	w.mu.Lock()
	id, ok := w.coordinators[n]
	w.mu.Unlock()
	if ok {
		return id, nil
	}
	id, err := w.findCoordinator(ctx, n)
	if err == nil {
		w.mu.Lock()
		w.coordinators[n] = id
		w.mu.Unlock()
	}
	return id, err
}

func (w *Writer) forgetCoordinator(n int32) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.coordinators, n)
}

func (w *Writer) findCoordinator(ctx context.Context, n int32) (int32, error) {
	req := kmsg.NewPtrFindCoordinatorRequest()
	req.CoordinatorKey, req.CoordinatorType = txnID(n), 1
	req.CoordinatorKeys = []string{txnID(n)} // version 4 and later
	resp, err := req.RequestWith(ctx, w.cl)
	if err != nil {
		return -1, err
	}
	if len(resp.Coordinators) == 1 {
		return resp.Coordinators[0].NodeID, kerr.ErrorForCode(resp.Coordinators[0].ErrorCode)
	}
	return resp.NodeID, kerr.ErrorForCode(resp.ErrorCode)
}

// produce writes one batch to ledger partition n and answers its base offset.
// Trying the same batch again is safe: the broker knows its sequence.
func (w *Writer) produce(ctx context.Context, n int32, b batch) (base int64, err error) {
	err = w.retry(ctx, func() error {
		leader, err := w.leader(ctx, n)
		if err != nil {
			return err
		}
		req := kmsg.NewPtrProduceRequest()
		req.TransactionID = b.txn
		req.Acks = -1
		req.TimeoutMillis = int32(attempt.Milliseconds())
		t := kmsg.NewProduceRequestTopic()
		t.Topic = Topic
		rp := kmsg.NewProduceRequestTopicPartition()
		rp.Partition, rp.Records = n, b.bytes
		t.Partitions = append(t.Partitions, rp)
		req.Topics = append(req.Topics, t)
		actx, cancel := context.WithTimeout(ctx, attempt)
		defer cancel()
		kresp, err := w.cl.Broker(int(leader)).Request(actx, req)
		if err != nil {
			w.forget(n)
			return err
		}
		resp := kresp.(*kmsg.ProduceResponse)
		if len(resp.Topics) != 1 || len(resp.Topics[0].Partitions) != 1 {
			return errNonsense
		}
		a := resp.Topics[0].Partitions[0]
		if err := kerr.ErrorForCode(a.ErrorCode); err != nil {
			w.forget(n)
			if a.ErrorMessage != nil {
				return fmt.Errorf("%w: %s", err, *a.ErrorMessage)
			}
			return err
		}
		base = a.BaseOffset
		return nil
	})
	return base, err
}

// end is where ledger partition n ends now: its high watermark.
func (w *Writer) end(ctx context.Context, n int32) (end int64, err error) {
	err = w.retry(ctx, func() error {
		leader, err := w.leader(ctx, n)
		if err != nil {
			return err
		}
		actx, cancel := context.WithTimeout(ctx, attempt)
		defer cancel()
		if end, err = listOffset(actx, w.cl, leader, n, -1); err != nil {
			w.forget(n)
		}
		return err
	})
	return end, err
}

// named writes one entry outside transactions.
func (w *Writer) named(ctx context.Context, e entry) error {
	k, err := ParseKey([]byte(e.key))
	if err != nil {
		return err
	}
	return w.plain(ctx, k.LedgerPartition(), e)
}

// plain writes entries of ledger partition n outside transactions, together as
// far as there is room.
func (w *Writer) plain(ctx context.Context, n int32, es ...entry) error {
	for len(es) > 0 {
		some, size := 1, es[0].size()
		for some < len(es) && size+es[some].size() <= groupBytes {
			size += es[some].size()
			some++
		}
		b := batch{bytes: encodeBatch(-1, -1, -1, false, es[:some])}
		if _, err := w.produce(ctx, n, b); err != nil {
			return fmt.Errorf("ledger entries (%d, the first is %q): %w", len(es), es[0].key, err)
		}
		es = es[some:]
	}
	return nil
}

func (w *Writer) leader(ctx context.Context, n int32) (int32, error) {
	w.mu.Lock()
	id, ok := w.leaders[n]
	w.mu.Unlock()
	if ok {
		return id, nil
	}
	all, err := ledgerLeaders(ctx, w.cl)
	if err != nil {
		return -1, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for i, id := range all {
		if id >= 0 {
			w.leaders[int32(i)] = id
		} else {
			delete(w.leaders, int32(i))
		}
	}
	if id, ok = w.leaders[n]; !ok {
		return -1, kerr.LeaderNotAvailable
	}
	return id, nil
}

func (w *Writer) forget(n int32) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.leaders, n)
}

// batch is an encoded record batch and the transaction it belongs to.
type batch struct {
	txn   *string
	bytes []byte
}

func transactional(n int32, p *producer, es []entry) batch {
	return batch{txn: kmsg.StringPtr(txnID(n)), bytes: encodeBatch(p.id, p.epoch, p.seq, true, es)}
}

// encodeBatch makes a v2 record batch, uncompressed (KIP-98).
func encodeBatch(pid int64, epoch int16, seq int32, txn bool, es []entry) []byte {
	now := time.Now().UnixMilli()
	rb := kmsg.NewRecordBatch()
	rb.Magic = 2
	rb.PartitionLeaderEpoch = -1
	rb.ProducerID, rb.ProducerEpoch, rb.FirstSequence = pid, epoch, seq
	rb.FirstTimestamp, rb.MaxTimestamp = now, now
	rb.NumRecords = int32(len(es))
	rb.LastOffsetDelta = rb.NumRecords - 1
	if txn {
		rb.Attributes = 1 << 4
	}
	for i, e := range es {
		rec := kmsg.NewRecord()
		rec.OffsetDelta = int32(i)
		rec.Key, rec.Value = []byte(e.key), e.value
		// The length field counts what follows it and is itself a varint, so
		// it is known only after encoding: one byte long while it is 0.
		rec.Length = int32(len(rec.AppendTo(nil)) - 1)
		rb.Records = rec.AppendTo(rb.Records)
	}
	// 49 bytes from partitionLeaderEpoch to the number of records.
	rb.Length = int32(49 + len(rb.Records))
	b := rb.AppendTo(nil)
	crc := crc32.Checksum(b[21:], crc32.MakeTable(crc32.Castagnoli))
	rb.CRC = int32(crc)
	return rb.AppendTo(b[:0])
}
