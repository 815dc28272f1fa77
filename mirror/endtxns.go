package mirror

import (
	"context"
	"errors"
	"fmt"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/internal/ledger"
)

// endTxns ends the transactions that are open in a partition of the
// destination (hazard H9): each that a coordinator knows by InitProducerId on
// its transactional id, which fences its producer as its own restart would; a
// hanging one, that none knows, by an abort marker.
func (m *Manager) endTxns(ctx context.Context, topic string, partition int32) error {
	set := kadm.TopicsSet{}
	set.Add(topic, partition)
	described, err := m.admin.DescribeProducers(ctx, set)
	if err != nil {
		return fmt.Errorf("describe the producers of %s-%d on the destination: %w", topic, partition, err)
	}
	var open []kadm.DescribedProducer
	for _, t := range described {
		for _, p := range t.Partitions {
			if p.Err != nil {
				return fmt.Errorf("describe the producers of %s-%d on the destination (needs Read on the topic): %w", topic, partition, p.Err)
			}
			for _, x := range p.ActiveProducers {
				if x.CurrentTxnStartOffset >= 0 {
					open = append(open, x)
				}
			}
		}
	}
	if len(open) == 0 {
		return nil
	}
	ids := make([]int64, 0, len(open))
	for _, x := range open {
		ids = append(ids, x.ProducerID)
	}
	known, err := m.admin.ListTransactions(ctx, ids, nil)
	if err != nil {
		return fmt.Errorf("list transactions on the destination (needs Describe on transactional ids): %w", err)
	}
	names := map[int64]string{}
	for _, t := range known {
		names[t.ProducerID] = t.TxnID
	}
	var errs []error
	for _, x := range open {
		name, ok := names[x.ProducerID]
		if ok {
			err = m.fence(ctx, name)
		} else {
			err = m.abortMarker(ctx, x, set)
		}
		m.log.Info("ended an open transaction", "topic", topic, "partition", partition, "producer_id", x.ProducerID,
			"transactional_id", name, "hanging", !ok, "offset", x.CurrentTxnStartOffset, "err", err)
		if err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
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

func (m *Manager) abortMarker(ctx context.Context, x kadm.DescribedProducer, set kadm.TopicsSet) error {
	rs, err := m.admin.WriteTxnMarkers(ctx, kadm.TxnMarkers{
		ProducerID: x.ProducerID, ProducerEpoch: x.ProducerEpoch, CoordinatorEpoch: max(x.CoordinatorEpoch, 0), Topics: set,
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
