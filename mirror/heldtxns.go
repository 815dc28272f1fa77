package mirror

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/internal/ledger"
)

// A transaction that is open on the source holds its partition back, and only
// it: nothing behind the last stable offset is mirrored. One that stays open is
// looked up there, for describe and status.
const (
	heldAfter = 3 * time.Second  // how long a last stable offset must stand still
	heldEvery = 3 * time.Second  // between two looks
	heldRest  = time.Minute      // after one that the source refused
	heldWait  = 10 * time.Second // for an answer
	heldMost  = 200              // partitions in one look
)

// heldBack is a last stable offset below the high watermark.
type heldBack struct {
	offset, high int64     // offset -1: nothing is held back
	since        time.Time // when it was seen there first
	found        []ledger.SourceTxn
	err          string // why nobody is found
}

// hold takes in both ends of an answer. mu is held.
func (p *Partition) hold(stable, high int64) {
	switch {
	case stable < 0 || high <= stable:
		p.held = heldBack{offset: -1}
	case p.held.offset != stable:
		p.held = heldBack{offset: stable, high: high, since: time.Now()}
	default:
		p.held.high = high
	}
}

// heldStatus is for [ledger.Status]; nil: nothing, or not for long. mu is held.
func (p *Partition) heldStatus() *ledger.Held {
	h := &p.held
	if h.offset < 0 || time.Since(h.since) < heldAfter {
		return nil
	}
	return &ledger.Held{Offset: h.offset, HighWatermark: h.high, Since: h.since, Transactions: h.found, Error: h.err}
}

// heldBack are the partitions to look up, those held for the longest time
// first.
func (e *Engine) heldBack() []*Partition {
	type at struct {
		p     *Partition
		since time.Time
	}
	var all []at
	for _, p := range e.all() {
		p.mu.Lock()
		if p.heldStatus() != nil && p.phase == phaseRun {
			all = append(all, at{p, p.held.since})
		}
		p.mu.Unlock()
	}
	slices.SortFunc(all, func(a, b at) int { return a.since.Compare(b.since) })
	var out []*Partition
	for _, x := range all[:min(len(all), heldMost)] {
		out = append(out, x.p)
	}
	return out
}

// followTxns looks up who holds partitions back. A source that doesn't say
// (Kafka before 2.8, a missing right) is asked again seldom.
func (s *source) followTxns(ctx context.Context) error {
	told := ""
	rest := heldEvery
	for ctx.Err() == nil {
		pause(ctx, rest)
		rest = heldEvery
		held := s.engine.heldBack()
		if len(held) == 0 {
			continue
		}
		err := lookUpTxns(ctx, s.client, held)
		text := ""
		if err != nil && ctx.Err() == nil {
			rest, text = heldRest, err.Error()
			if text != told {
				s.log.Warn("the source doesn't say which transactions are open", "err", err, "cause", errorCode(err))
			}
		}
		told = text
	}
	return nil
}

// lookUpTxns asks the source for the open transactions of partitions, and keeps
// them there. The error is the first of what could not be told.
func lookUpTxns(ctx context.Context, cl *kgo.Client, held []*Partition) error {
	ctx, cancel := context.WithTimeout(ctx, heldWait)
	defer cancel()
	open, failed := describeOpen(ctx, cl, held)
	ids := map[int64]bool{}
	for _, xs := range open {
		for _, x := range xs {
			ids[x.ProducerID] = true
		}
	}
	txns, listErr := coordinated(ctx, kadm.NewClient(cl), ids)
	var first error
	for _, p := range held {
		k := partKey{p.topic, p.partition}
		err := failed[k]
		if err == nil {
			err = listErr
		}
		if first == nil {
			first = err
		}
		p.heldBy(openTxnsOf(open[k], txns, listErr == nil), err)
	}
	return first
}

// openProducer is a producer whose transaction is open in a partition.
type openProducer struct {
	partKey
	kmsg.DescribeProducersResponseTopicPartitionActiveProducer
}

// describeOpen asks the partitions' leaders. (kadm would give up all for the
// sake of one topic that may not be read.)
func describeOpen(ctx context.Context, cl *kgo.Client, held []*Partition) (open map[partKey][]openProducer, failed map[partKey]error) {
	open, failed = map[partKey][]openProducer{}, map[partKey]error{}
	topics := map[string][]int32{}
	for _, p := range held {
		topics[p.topic] = append(topics[p.topic], p.partition)
		failed[partKey{p.topic, p.partition}] = errors.New("describe its producers: no answer")
	}
	req := kmsg.NewPtrDescribeProducersRequest()
	for _, t := range sortedKeys(topics) {
		rt := kmsg.NewDescribeProducersRequestTopic()
		rt.Topic, rt.Partitions = t, topics[t]
		req.Topics = append(req.Topics, rt)
	}
	for _, shard := range cl.RequestSharded(ctx, req) {
		if shard.Err != nil {
			asked, _ := shard.Req.(*kmsg.DescribeProducersRequest)
			if asked == nil {
				asked = req
			}
			for _, t := range asked.Topics {
				for _, p := range t.Partitions {
					failed[partKey{t.Topic, p}] = fmt.Errorf("describe its producers (needs Kafka 2.8 or later): %w", shard.Err)
				}
			}
			continue
		}
		for _, t := range shard.Resp.(*kmsg.DescribeProducersResponse).Topics {
			for _, p := range t.Partitions {
				k := partKey{t.Topic, p.Partition}
				delete(failed, k)
				if err := kerr.ErrorForCode(p.ErrorCode); err != nil {
					failed[k] = fmt.Errorf("describe its producers (needs Read on the topic): %w", err)
				}
				for _, x := range p.ActiveProducers {
					if x.CurrentTxnStartOffset >= 0 {
						open[k] = append(open[k], openProducer{k, x})
					}
				}
			}
		}
	}
	return open, failed
}

// coordinated are the transactions that a cluster's coordinators know of these
// producer ids.
func coordinated(ctx context.Context, adm *kadm.Client, ids map[int64]bool) (map[int64]kadm.DescribedTransaction, error) {
	out := map[int64]kadm.DescribedTransaction{}
	if len(ids) == 0 {
		return out, nil
	}
	list := make([]int64, 0, len(ids))
	for id := range ids {
		list = append(list, id)
	}
	listed, err := adm.ListTransactions(ctx, list, nil)
	if err != nil {
		return out, fmt.Errorf("list its transactions: %w", err)
	}
	if len(listed) == 0 {
		return out, nil
	}
	for _, t := range listed {
		out[t.ProducerID] = kadm.DescribedTransaction{TxnID: t.TxnID, State: t.State}
	}
	described, err := adm.DescribeTransactions(ctx, listed.TransactionalIDs()...)
	if err != nil {
		return out, nil //nolint:nilerr // the names are known; only when they began is not
	}
	for _, d := range described {
		if _, known := out[d.ProducerID]; known && d.Err == nil {
			out[d.ProducerID] = d
		}
	}
	return out, nil
}

// openTxnsOf puts together what leader and coordinator know; sure: the
// coordinators were asked.
func openTxnsOf(open []openProducer, known map[int64]kadm.DescribedTransaction, sure bool) []ledger.SourceTxn {
	var out []ledger.SourceTxn
	for _, x := range open {
		t := ledger.SourceTxn{ProducerID: x.ProducerID, ProducerEpoch: int16(x.ProducerEpoch), FirstOffset: x.CurrentTxnStartOffset}
		if x.LastTimestamp > 0 {
			t.LastWrite = time.UnixMilli(x.LastTimestamp)
		}
		d, ok := known[x.ProducerID]
		t.TransactionalID, t.State = d.TxnID, d.State
		t.Hanging = sure && (!ok || !inTxn(d, x))
		if d.StartTimestamp > 0 {
			t.Started = time.UnixMilli(d.StartTimestamp)
		}
		out = append(out, t)
	}
	slices.SortFunc(out, func(a, b ledger.SourceTxn) int {
		if a.FirstOffset != b.FirstOffset {
			return int(min(max(a.FirstOffset-b.FirstOffset, -1), 1))
		}
		return strings.Compare(a.TransactionalID, b.TransactionalID)
	})
	return out
}

// inTxn tells whether a coordinator will end x by itself, by what it knows of
// its producer id.
func inTxn(d kadm.DescribedTransaction, x openProducer) bool {
	switch d.State {
	case "Empty", "CompleteCommit", "CompleteAbort", "Dead":
		return false
	}
	if d.Topics == nil { // listed, not described
		return true
	}
	_, in := d.Topics[x.topic][x.partition]
	return in
}

// heldBy takes in what was found.
func (p *Partition) heldBy(found []ledger.SourceTxn, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.held.offset < 0 {
		return
	}
	p.held.found, p.held.err = found, ""
	if err != nil {
		p.held.err = err.Error()
	}
	p.report()
}
