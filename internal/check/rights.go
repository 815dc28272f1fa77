package check

import (
	"context"
	"errors"
	"fmt"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/internal/ledger"
	"github.com/lockstep-kafka/lockstep/mirror"
)

// ledgerRights tries whether Lockstep's user may do what the ledger and the
// instances' group take. It changes nothing, but that a new cluster makes its
// topics of groups and transactions, as with any client.
func (k *checker) ledgerRights(ctx context.Context, s *side) {
	bad := false
	for _, try := range []struct {
		what  string
		right string
		do    func(context.Context, *side) error
	}{
		{"the group " + mirror.Group, "Read and Describe on the group " + mirror.Group, joinGroup},
		{"the transactions of the ledger", fmt.Sprintf("Write and Describe on transactional ids with the prefix %q", ledger.TransactionalIDPrefix), endTxn},
		{"the ledger's topic", fmt.Sprintf("Create, Describe, DescribeConfigs, Read and Write on the topic %s", ledger.Topic), k.ledgerTopic},
	} {
		tctx, cancel := context.WithTimeout(ctx, connectTimeout)
		err := try.do(tctx, s)
		cancel()
		switch {
		case err == nil:
		case errors.Is(err, kerr.GroupAuthorizationFailed), errors.Is(err, kerr.TransactionalIDAuthorizationFailed),
			errors.Is(err, kerr.TopicAuthorizationFailed), errors.Is(err, kerr.ClusterAuthorizationFailed):
			k.add(Fail, s.where, "rights", "nothing can be mirrored: the user needs %s: %v", try.right, err)
			bad = true
		default:
			k.add(Fail, s.where, "ledger", "nothing can be mirrored: %s: %v", try.what, err)
			bad = true
		}
	}
	if !bad {
		k.add(OK, s.where, "ledger", "its topic, its transactions and the group %s may be used", mirror.Group)
	}
}

// joinGroup: a heartbeat of a member that there isn't takes the right that a
// member takes.
func joinGroup(ctx context.Context, s *side) error {
	req := kmsg.NewPtrHeartbeatRequest()
	req.Group, req.MemberID = mirror.Group, "lockstep-check"
	resp, err := req.RequestWith(ctx, s.cl)
	if err == nil {
		err = kerr.ErrorForCode(resp.ErrorCode)
	}
	return refusal(err, "offsets.topic.replication.factor")
}

// endTxn: the end of a transaction that there isn't.
func endTxn(ctx context.Context, s *side) error {
	req := kmsg.NewPtrEndTxnRequest()
	req.TransactionalID = ledger.TransactionalIDPrefix + "check"
	resp, err := req.RequestWith(ctx, s.cl)
	if err == nil {
		err = kerr.ErrorForCode(resp.ErrorCode)
	}
	return refusal(err, "transaction.state.log.replication.factor")
}

// refusal is what matters of the answer to a request that can't succeed: the
// broker's other errors say that it was let in.
func refusal(err error, factor string) error {
	var answered *kerr.Error
	switch {
	case errors.Is(err, kerr.GroupAuthorizationFailed), errors.Is(err, kerr.TransactionalIDAuthorizationFailed):
		return err
	case errors.Is(err, kerr.CoordinatorNotAvailable), errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("no broker coordinates it: is %s at most the number of brokers that are up? %w", factor, err)
	case errors.As(err, &answered):
		return nil
	}
	return err
}

// ledgerTopic: the topic's authorised operations, or a trial of its creation.
func (k *checker) ledgerTopic(ctx context.Context, s *side) error {
	md, err := s.adm.Metadata(kadm.WithAuthorizedOps(ctx), ledger.Topic)
	if err != nil {
		return err
	}
	t := md.Topics[ledger.Topic]
	switch {
	case errors.Is(t.Err, kerr.UnknownTopicOrPartition):
		rf := k.c.Destination.LedgerReplicationFactor
		if rf == 0 {
			rf = min(3, len(s.meta.Brokers))
		}
		resp, err := s.adm.ValidateCreateTopics(ctx, ledger.Partitions, int16(rf), nil, ledger.Topic)
		if err == nil {
			err = resp[ledger.Topic].Err
		}
		switch {
		case errors.Is(err, kerr.TopicAlreadyExists):
		case errors.Is(err, kerr.InvalidReplicationFactor):
			return fmt.Errorf("it can't be created with %d replicas: %w: bring the brokers up, or set destination.ledger_replication_factor", rf, err)
		case err != nil:
			return fmt.Errorf("create it: %w %s", err, resp[ledger.Topic].ErrMessage)
		case rf < 3:
			k.add(Warn, s.where, "ledger", "the topic %s, without which mirrors are lost, will be created with %d of 3 replicas: no more brokers are up, or destination.ledger_replication_factor says so", ledger.Topic, rf)
		}
		return nil
	case t.Err != nil:
		return t.Err
	}
	for _, p := range t.Partitions.Sorted() {
		if n := len(p.Replicas); n < 3 {
			k.add(Warn, s.where, "ledger", "the topic %s, without which mirrors are lost, has %d of 3 replicas: raise them with kafka-reassign-partitions.sh", ledger.Topic, n)
			break
		}
	}
	if lack := lacking(t, kmsg.ACLOperationDescribe, kmsg.ACLOperationDescribeConfigs, kmsg.ACLOperationRead, kmsg.ACLOperationWrite); lack != "" {
		return fmt.Errorf("%w: it lacks %s", kerr.TopicAuthorizationFailed, lack)
	}
	return nil
}
