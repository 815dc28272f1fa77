package ledger

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
)

// TopicError says what is wrong with the ledger's topic and what to change.
// Retrying doesn't help.
type TopicError struct{ Reason, Remedy string }

func (e *TopicError) Error() string {
	return e.Reason + ": " + e.Remedy
}

func wrongPartitions(n int) error {
	return &TopicError{
		Reason: fmt.Sprintf("it has %d partitions, must have %d, as the number decides where each entry lies", n, Partitions),
		Remedy: "if no mirror has been recorded in it yet, delete it and start again; else its content must be copied to a topic with the right number",
	}
}

// topicConfigs are what the ledger's topic is created with. Small and young
// segments, as the cleaner leaves the active one alone.
func topicConfigs(rf int) map[string]string {
	c := map[string]string{
		"cleanup.policy":                 "compact",
		"unclean.leader.election.enable": "false",
		"compression.type":               "producer",
		"max.message.bytes":              strconv.Itoa(8 << 20), // a record with epoch.MaxSpans spans
		"segment.bytes":                  strconv.Itoa(16 << 20),
		"segment.ms":                     strconv.FormatInt((24 * time.Hour).Milliseconds(), 10),
		"min.cleanable.dirty.ratio":      "0.1",
		"min.insync.replicas":            "1",
	}
	if rf >= 3 {
		c["min.insync.replicas"] = "2"
	}
	return c
}

// EnsureTopic creates the ledger's topic, or checks one that is there. rf is
// the replication factor; 0 means 3, or as many brokers as there are if those
// are fewer. It waits until every partition has a leader. What passes by
// itself (a broker that is down, a leader not yet elected) is retried until
// ctx ends; a topic that can't serve is a [*TopicError].
func EnsureTopic(ctx context.Context, adm *kadm.Client, rf int) error {
	var last error
	for pause := 10 * time.Millisecond; ; pause = min(2*pause, 2*time.Second) { // soon: a topic that was made is there in some milliseconds
		done, err := ensureTopic(ctx, adm, rf)
		switch {
		case err == nil && done:
			return nil
		case errors.Is(err, kerr.TopicAuthorizationFailed), errors.Is(err, kerr.ClusterAuthorizationFailed):
			return fmt.Errorf("ledger topic %s: grant Create, Describe, DescribeConfigs, Read and Write on it: %w", Topic, err)
		case permanent(err):
			return fmt.Errorf("ledger topic %s: %w", Topic, err)
		case err != nil && ctx.Err() == nil:
			last = err
		}
		if !sleep(ctx, pause) {
			if last == nil {
				return fmt.Errorf("ledger topic %s: %w", Topic, context.Cause(ctx))
			}
			return fmt.Errorf("ledger topic %s: %w (last: %w)", Topic, context.Cause(ctx), last)
		}
	}
}

func permanent(err error) bool {
	var te *TopicError
	var ae *kadm.AuthError
	return errors.As(err, &te) || errors.As(err, &ae) ||
		errors.Is(err, kerr.TopicAuthorizationFailed) || errors.Is(err, kerr.ClusterAuthorizationFailed) ||
		errors.Is(err, kerr.SaslAuthenticationFailed) || errors.Is(err, kerr.PolicyViolation) || errors.Is(err, kerr.InvalidConfig)
}

// ensureTopic is one try; done is false when there is more to wait for.
func ensureTopic(ctx context.Context, adm *kadm.Client, rf int) (done bool, err error) {
	// With authorised operations: else kadm answers from a cache 5 s old.
	md, err := adm.Metadata(kadm.WithAuthorizedOps(ctx), Topic)
	if err != nil {
		return false, fmt.Errorf("metadata: %w", err)
	}
	t, ok := md.Topics[Topic]
	if ok && t.Err == nil && len(t.Partitions) > 0 {
		if n := len(t.Partitions); n != Partitions {
			return false, wrongPartitions(n)
		}
		for _, p := range t.Partitions.Sorted() {
			if p.Leader < 0 {
				return false, fmt.Errorf("partition %d has no leader; are its brokers up?", p.Partition)
			}
		}
		return true, checkConfigs(ctx, adm)
	}
	if ok && t.Err != nil && !errors.Is(t.Err, kerr.UnknownTopicOrPartition) {
		return false, fmt.Errorf("metadata: %w", t.Err)
	}
	if rf <= 0 {
		rf = min(3, max(1, len(md.Brokers)))
	}
	cfg := map[string]*string{}
	for k, v := range topicConfigs(rf) {
		cfg[k] = &v
	}
	resp, err := adm.CreateTopic(ctx, Partitions, int16(rf), cfg, Topic)
	switch {
	case err == nil, errors.Is(err, kerr.TopicAlreadyExists):
		// Answered before metadata has it: look again.
		return false, nil
	case errors.Is(err, kerr.InvalidReplicationFactor):
		return false, fmt.Errorf("create with replication factor %d: %w: bring the brokers up, or set destination.ledger_replication_factor", rf, err)
	}
	if resp.ErrMessage != "" {
		err = fmt.Errorf("%w: %s", err, resp.ErrMessage)
	}
	return false, fmt.Errorf("create: %w", err)
}

// checkConfigs refuses a topic whose policy would delete entries or let a
// stale replica lead.
func checkConfigs(ctx context.Context, adm *kadm.Client) error {
	rcs, err := adm.DescribeTopicConfigs(ctx, Topic)
	if err != nil {
		return fmt.Errorf("describe configs: %w", err)
	}
	rc, err := rcs.On(Topic, nil)
	if err != nil {
		return fmt.Errorf("describe configs: %w", err)
	}
	if rc.Err != nil {
		return fmt.Errorf("describe configs: %w", rc.Err)
	}
	have := map[string]string{}
	for _, c := range rc.Configs {
		have[c.Key] = c.MaybeValue()
	}
	want := map[string]string{"cleanup.policy": "compact", "unclean.leader.election.enable": "false"}
	var wrong, fix []string
	for _, k := range slices.Sorted(maps.Keys(want)) {
		if v, ok := have[k]; ok && v != want[k] {
			wrong = append(wrong, k+"="+v)
			fix = append(fix, k+"="+want[k])
		}
	}
	if len(wrong) > 0 {
		return &TopicError{
			Reason: "it has " + strings.Join(wrong, ", "),
			Remedy: "set " + strings.Join(fix, ", ") + " (kafka-configs.sh --alter --topic " + Topic + ")",
		}
	}
	return nil
}
