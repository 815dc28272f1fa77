package mirror

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/internal/ledger"
)

// endTxns ends the transactions that are open in a partition of the
// destination (hazard H9): each that a coordinator will end by InitProducerId on
// its transactional id, which fences its producer as its own restart would; a
// hanging one, which no coordinator counts as open there (its producer id may
// well be known), by an abort marker.
func (m *Manager) endTxns(ctx context.Context, topic string, partition int32) error {
	k := partKey{topic, partition}
	open, err := m.openTxns(ctx, k)
	if err != nil || len(open) == 0 {
		return err
	}
	ids := map[int64]bool{}
	for _, x := range open {
		ids[x.ProducerID] = true
	}
	known, err := coordinated(ctx, m.admin, ids)
	if err != nil {
		return fmt.Errorf("%s-%d on the destination: %w (needs Describe on transactional ids)", topic, partition, err)
	}
	var still []openProducer // once more: one that has ended meanwhile looks like a hanging one
	var errs []error
	for _, x := range open {
		d, ok := known[x.ProducerID]
		hanging := !ok || !inTxn(d, x)
		if hanging {
			if still == nil {
				if still, err = m.openTxns(ctx, k); err != nil {
					return err
				}
			}
			if !slices.ContainsFunc(still, x.same) {
				continue
			}
			err = m.abortMarker(ctx, x)
		} else {
			err = m.fence(ctx, d.TxnID)
		}
		m.log.Info("ended an open transaction", "topic", topic, "partition", partition, "producer_id", x.ProducerID,
			"transactional_id", d.TxnID, "hanging", hanging, "offset", x.CurrentTxnStartOffset, "err", err)
		if err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// openTxns are the producers whose transactions are open in a partition of the
// destination.
func (m *Manager) openTxns(ctx context.Context, k partKey) ([]openProducer, error) {
	open, failed := describeOpen(ctx, m.client, []*Partition{{topic: k.topic, partition: k.partition}})
	if err := failed[k]; err != nil {
		return nil, fmt.Errorf("%s-%d on the destination: %w", k.topic, k.partition, err)
	}
	return open[k], nil
}

func (x openProducer) same(o openProducer) bool {
	return x.ProducerID == o.ProducerID && x.ProducerEpoch == o.ProducerEpoch && x.CurrentTxnStartOffset == o.CurrentTxnStartOffset
}

// fence takes a transactional id over, which ends its transaction.
func (m *Manager) fence(ctx context.Context, id string) error {
	req := kmsg.NewPtrInitProducerIDRequest()
	req.TransactionalID = &id
	req.TransactionTimeoutMillis = int32(ledger.TransactionTimeout.Milliseconds())
	req.ProducerID, req.ProducerEpoch = -1, -1
	resp, err := req.RequestWith(ctx, m.client)
	if err == nil {
		err = kerr.ErrorForCode(resp.ErrorCode)
	}
	if errors.Is(err, kerr.ConcurrentTransactions) {
		return nil // it is being ended; the caller looks again
	}
	if err != nil {
		return fmt.Errorf("end the transaction of transactional id %q (needs Write on it): %w", id, err)
	}
	return nil
}

func (m *Manager) abortMarker(ctx context.Context, x openProducer) error {
	set := kadm.TopicsSet{}
	set.Add(x.topic, x.partition)
	rs, err := m.admin.WriteTxnMarkers(ctx, kadm.TxnMarkers{
		ProducerID: x.ProducerID, ProducerEpoch: int16(x.ProducerEpoch), CoordinatorEpoch: max(x.CoordinatorEpoch, 0), Topics: set,
	})
	if err != nil {
		return fmt.Errorf("abort a hanging transaction of producer id %d (needs ClusterAction): %w", x.ProducerID, err)
	}
	for _, r := range rs.SortedPartitions() {
		if r.Err != nil {
			return fmt.Errorf("abort a hanging transaction of producer id %d on %s-%d (needs ClusterAction): %w", x.ProducerID, r.Topic, r.Partition, r.Err)
		}
	}
	return nil
}
