package mirror

import (
	"context"
	"errors"
	"fmt"

	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/lockstep-kafka/lockstep/internal/kconn"
)

// Why a partition fails: short, stable words for metrics and describe.
const (
	reasonBareMirror  = "bare_mirror"
	reasonRecreated   = "topic_recreated"
	reasonDeleted     = "topic_deleted"
	reasonTruncation  = "truncation"
	reasonForeign     = "foreign_records"
	reasonRejected    = "rejected_by_destination"
	reasonAuth        = "authorization"
	reasonSourceData  = "source_data"
	reasonLedger      = "ledger"
	reasonDestination = "destination"
	reasonSource      = "source"
	reasonLoop        = "mirror_loop"
	// The source's own ledger can't be read, or not understood.
	reasonSourceLedger = "source_ledger"
)

// ErrBareMirror: the source's batches carry Lockstep's stamps, so it is a
// mirror itself and was read past its proxy (hazard H18).
var ErrBareMirror = errors.New("the source is itself a Lockstep mirror and is read without its proxy: set source.bootstrap to the addresses of that proxy")

// failure is what makes a partition FAILED.
type failure struct {
	reason    string
	permanent bool // only `recover` or a new start helps: no retry by itself
	err       error
}

func (f *failure) Error() string { return f.err.Error() }
func (f *failure) Unwrap() error { return f.err }

// outside tells failures that have nothing to do with the data: rights and
// connections. They have no limit of tries.
func (f *failure) outside() bool {
	if f.permanent {
		return false
	}
	switch f.reason {
	case reasonAuth, reasonSourceLedger:
		return true
	}
	var ke *kerr.Error
	return !errors.As(f.err, &ke) && kconn.IsConnection(f.err)
}

func fail(reason, format string, a ...any) error {
	return &failure{reason: reason, err: fmt.Errorf(format, a...)}
}

func failForGood(reason, format string, a ...any) error {
	return &failure{reason: reason, permanent: true, err: fmt.Errorf(format, a...)}
}

// errorCode is the metric label of a broker's error code or of a connection's
// error.
func errorCode(err error) string {
	var ke *kerr.Error
	if errors.As(err, &ke) {
		return ke.Message
	}
	return kconn.Name(err)
}

// staleMetadata tells codes that say we asked the wrong broker or with the
// wrong leader epoch, or too early: refresh metadata and ask again.
func staleMetadata(code int16) bool {
	switch code {
	case kerr.NotLeaderForPartition.Code, kerr.FencedLeaderEpoch.Code, kerr.UnknownLeaderEpoch.Code,
		kerr.LeaderNotAvailable.Code, kerr.ReplicaNotAvailable.Code, kerr.KafkaStorageError.Code,
		kerr.OffsetNotAvailable.Code, kerr.ListenerNotFound.Code:
		return true
	}
	return false
}

// unknownTopic tells codes that a deleted or re-created topic gives, but also
// one that was created a moment ago.
func unknownTopic(code int16) bool {
	switch code {
	case kerr.UnknownTopicOrPartition.Code, kerr.UnknownTopicID.Code, kerr.InconsistentTopicID.Code:
		return true
	}
	return false
}

// produceOutcome is what an error code in a Produce answer says.
type produceOutcome uint8

const (
	produceOK       produceOutcome = iota
	produceRefused                 // surely not appended, may work later
	produceRejected                // surely not appended, won't work until a setting changes
	produceDoubt                   // may be appended, now or later
)

func outcomeOf(code int16) produceOutcome {
	switch code {
	case 0:
		return produceOK
	case kerr.NotEnoughReplicas.Code, kerr.ThrottlingQuotaExceeded.Code:
		return produceRefused
	case kerr.MessageTooLarge.Code, kerr.RecordListTooLarge.Code, kerr.InvalidTimestamp.Code, kerr.InvalidRecord.Code, kerr.CorruptMessage.Code,
		kerr.PolicyViolation.Code, kerr.TopicAuthorizationFailed.Code, kerr.ClusterAuthorizationFailed.Code,
		kerr.UnsupportedCompressionType.Code, kerr.UnsupportedForMessageFormat.Code, kerr.InvalidRequiredAcks.Code,
		kerr.UnsupportedVersion.Code, kerr.InvalidTopicException.Code:
		return produceRejected
	}
	// NOT_LEADER too: a leader that steps down while it waits for the replicas
	// answers so, and the batch may be in the log.
	return produceDoubt
}

// rejection is the failure for a batch that the destination does not take,
// with the setting to change.
func rejection(code int16, message *string, size int) error {
	err := kerr.ErrorForCode(code)
	text := ""
	if message != nil && *message != "" {
		text = ": " + *message
	}
	advice := "see the destination broker's log"
	reason := reasonRejected
	switch code {
	case kerr.MessageTooLarge.Code, kerr.RecordListTooLarge.Code:
		advice = fmt.Sprintf("raise max.message.bytes of the destination topic above %d (and the brokers' socket.request.max.bytes if need be)", size)
	case kerr.InvalidTimestamp.Code:
		advice = "raise message.timestamp.before.max.ms and message.timestamp.after.max.ms of the destination topic"
	case kerr.InvalidRecord.Code:
		advice = "a destination topic with cleanup.policy=compact takes no record without a key, and one with another message.timestamp.* than the mirror set refuses old or future ones: compare its configs with the source's"
	case kerr.CorruptMessage.Code:
		advice = "the batch is corrupt on the source, or was damaged on the way: read it there with kafka-dump-log"
	case kerr.TopicAuthorizationFailed.Code, kerr.ClusterAuthorizationFailed.Code:
		advice = "Lockstep's user needs WRITE on the destination topic"
		reason = reasonAuth
	case kerr.UnsupportedCompressionType.Code:
		advice = "the destination is too old for the source's compression"
	}
	return fail(reason, "the destination refuses a batch of %d bytes: %w%s; %s", size, err, text, advice)
}

// canceled tells an error that only says that we are being stopped.
func canceled(ctx context.Context) bool { return ctx.Err() != nil }
