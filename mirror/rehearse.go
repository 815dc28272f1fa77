package mirror

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/lockstep-kafka/lockstep/epoch"
	"github.com/lockstep-kafka/lockstep/internal/kconn"
	"github.com/lockstep-kafka/lockstep/internal/ledger"
)

// A start closes its topic to clients' writes before all else, and when it fails
// they stay closed out until somebody stops it. So what can be told beforehand
// is looked at while the partition is still STOPPED: a start that can't succeed
// is refused, one that can't be judged yet is held, and clients notice neither.

// leaves tells whether obeying cmd (nil: what is desired already) leaves
// STOPPED. mu is held.
func (p *Partition) leaves(cmd *ledger.Command) bool {
	want := p.rec.Desired
	if cmd != nil && cmd.Desired != "" && accepts(p.rec.State, cmd.Desired) {
		want = cmd.Desired
	}
	return p.rec.State == epoch.StateStopped && want == epoch.StateMirroring
}

// rehearse says why a start is refused, "" when nothing speaks against it. An
// error holds it.
func (p *Partition) rehearse(ctx context.Context, discard bool) (refused string, err error) {
	p.mu.Lock()
	if p.rehearsed.IsZero() {
		p.rehearsed = time.Now()
	}
	rec, src, dst, since := p.rec, p.src, p.dst, p.rehearsed
	p.mu.Unlock()
	switch {
	case p.idleOnly && p.eng.Unready == nil:
		return "its mirror is not in the configuration of the instance that owns the partition: declare it there under mirrors", nil
	case p.idleOnly:
		why, sure := p.eng.Unready(p.topic, since)
		if sure {
			return why, nil
		}
		return "", held(errors.New(why))
	}
	var f *failure
	switch err := p.reachable(rec, dst); {
	case errors.As(err, &f) && f.permanent:
		return f.Error(), nil
	case err != nil:
		return "", held(err)
	}
	self, source := p.eng.Clusters()
	if self == "" || source == "" || !src.known {
		return "", held(errNotKnown)
	}
	al := epoch.Alignment{Book: bookOf(rec, self), Cluster: source, TopicID: idText(src.id), Discard: discard}
	al.Book.Self.TopicID = idText(dst.id)
	for {
		switch step := al.Rehearse(); step.Do {
		case epoch.AlignReadPair:
			r := p.eng.SourceLedger(ctx, p.topic, p.partition)
			al.Record = &r
		case epoch.AlignReadLocal:
			native, err := p.holdsNative(ctx, rec, dst)
			if err != nil {
				return "", held(err)
			}
			al.Local = &epoch.LocalLog{LiveNative: native}
		case epoch.AlignFail:
			if step.Retry {
				return "", held(errors.New(step.Why))
			}
			return step.Why, nil
		case epoch.AlignWait:
			return "", held(errors.New(step.Why))
		default:
			return "", nil
		}
		if ctx.Err() != nil {
			return "", ctx.Err()
		}
	}
}

// holdsNative tells whether records that clients wrote here are in the log.
func (p *Partition) holdsNative(ctx context.Context, rec *ledger.Record, dst leader) (native bool, err error) {
	err = p.eng.dst.with(ctx, dst.addr, func(c *kconn.Conn) error {
		ph, err := p.nativeEnds(ctx, c, dst)
		native = err == nil && liveNative(&rec.Log, ph)
		return err
	})
	return native, err
}

var errNotKnown = errors.New("the clusters, or the source's partition, are not known yet")

func held(err error) error {
	return fmt.Errorf("the start waits, and the topic stays STOPPED and writable: %w", err)
}

// refuseStart notes that a start came to nothing; cmd is the command that asked for
// it, if one did.
func refuseStart(r *ledger.Record, cmd *ledger.Command, why string) {
	if cmd != nil {
		r.CommandSeq = cmd.Seq
	}
	r.Desired, r.Error = epoch.StateStopped, why
}

// unready says why a partition of ours that is not among those of the topics at
// hand can't be started; sure: no later look will find otherwise, but for
// something that an operator does. It goes by a look at the source that began
// after since.
func (s *source) unready(topic string, since time.Time) (why string, sure bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.topics[topic]
	switch {
	case !s.synced.After(since):
		s.resync.wake()
		if s.err != nil {
			return s.err.Error(), false
		}
		return "the source is being asked for its topics", false
	case t == nil && s.left[topic] != "":
		return "the mirror leaves the topic out: " + s.left[topic], true
	case t == nil:
		return "the source has no such topic, or the mirror does not select it (topics.include, topics.exclude)", true
	case verdict(t.err):
		return t.err.Error(), true
	case t.err != nil && !errors.Is(t.err, errPending):
		return t.err.Error(), false // the next look comes by itself
	}
	s.wake.wake()
	return "the topic is being looked at", false
}

// verdict tells whether err, of a look at a topic, is what was found there and
// not what kept from looking: a broker away, a write that timed out.
func verdict(err error) bool {
	var t *topicError
	var k *kerr.Error
	return errors.As(err, &t) && (!errors.As(err, &k) || !k.Retriable)
}
