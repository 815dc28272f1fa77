package mirror

import (
	"errors"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/internal/kconn"
	"github.com/lockstep-kafka/lockstep/protocol"
)

// fetched takes in one partition's part of a Fetch answer, if it still stands
// where it asked from. It says whether the source's metadata is out of date.
func (p *Partition) fetched(token uint64, spec fetchSpec, a *kmsg.FetchResponseTopicPartition, buf *kconn.Buffer) (stale bool) {
	if a.ErrorCode != 0 {
		return p.fetchFailed(token, a.ErrorCode)
	}
	stale = p.took(token, spec, a, buf)
	p.mu.Lock()
	dst := p.dst.broker
	p.mu.Unlock()
	p.eng.kickWriter(p, dst)
	return stale
}

func (p *Partition) took(token uint64, spec fetchSpec, a *kmsg.FetchResponseTopicPartition, buf *kconn.Buffer) (stale bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.token != token || p.phase != phaseRun || p.todo.ask != nil || p.walk.position != spec.offset {
		return false
	}
	p.sourceTry = 0
	p.stats.lastFetch = time.Now()
	if p.holdDue() {
		p.wake.wake()
	}
	if p.tail.position >= p.stats.sourceEnd {
		p.stats.caughtUp = p.stats.lastFetch // it was, up to this answer
	}
	if a.LastStableOffset >= 0 {
		p.stats.sourceEnd = a.LastStableOffset
	} else if a.HighWatermark >= 0 {
		p.stats.sourceEnd = a.HighWatermark
	}
	if p.tail.position >= p.stats.sourceEnd && a.DivergingEpoch.EndOffset < 0 {
		p.lateCopy()
		p.caught = p.stats.lastFetch
		if p.switchDue() {
			p.wake.wake()
		}
	}
	if a.LogStartOffset >= 0 {
		p.stats.sourceStart = a.LogStartOffset
		if min(a.LogStartOffset, p.tail.position) > p.log.Start && time.Since(p.advanced) >= advanceEvery {
			p.todo.advance, p.advanced = a.LogStartOffset, time.Now()
			p.wake.wake()
		}
	}
	switch d := a.DivergingEpoch; {
	case d.EndOffset >= 0 || d.Epoch >= 0:
		p.question(&ask{kind: askDiverging, epoch: d.Epoch, end: d.EndOffset})
		return false
	case a.LastStableOffset >= 0 && a.LastStableOffset < spec.offset && a.HighWatermark >= spec.offset:
		// A high watermark below the position is a new leader that has not
		// caught up; a last stable offset alone is a transaction un-decided.
		p.question(&ask{kind: askStable, end: a.LastStableOffset})
		return false
	}
	if p.mayShow < 0 && a.HighWatermark >= spec.offset { // else a new leader's, that has not caught up
		p.mayHaveShown(p.stats.sourceEnd) // whatever an owner of before had
	}
	p.hold(a.LastStableOffset, a.HighWatermark)
	p.stats.verified = spec.current
	if p.setOpen && a.HighWatermark >= 0 {
		p.walk.open.until, p.setOpen = max(a.HighWatermark, a.LastStableOffset), false
	}
	p.errOp = ""
	bad := p.badTries
	var failed error
	p.gathered.on, p.gathered.chainEnd = p.merges(), p.walk.chainEnd
	stop := walkRecords(&p.walk, spec.current, a.RecordBatches, a.AbortedTransactions, func(c chunk) {
		if failed == nil {
			failed = p.gather(c, buf)
		}
	})
	if failed == nil {
		failed = p.flush(buf)
	}
	p.walk.chainEnd = p.gathered.chainEnd // joined batches may end before the walk's count
	switch {
	case failed != nil:
		// What follows it was walked over already.
		p.setTodoErr(failForGood(reasonSourceData, "the source's batch at offset %d can't be stamped: %w", stop.base, failed))
	case stop.kind == stopNewerEpoch:
		stale = true
		p.backOff()
	case stop.kind == stopRebase:
		p.drainThen(func() { p.doubt("rebase", regen{force: true, hasCut: true, cut: stop.base}) })
	case stop.kind == stopBareMirror:
		p.badAnswer(failForGood(reasonBareMirror, "%w", stop.err))
	case stop.kind == stopOldFormat:
		p.badAnswer(failForGood(reasonSourceData, "the source has records of message format v0 or v1 at offset %d, which Lockstep does not convert: %w; let the source rewrite or expire them", stop.base, stop.err))
	case errors.Is(stop.err, protocol.ErrPartialBatch):
		p.badAnswer(fail(reasonSourceData, "the source's data at offset %d: %w", stop.base, stop.err))
	case stop.kind != stopNone:
		p.badAnswer(failForGood(reasonSourceData, "the source's data at offset %d: %w", stop.base, stop.err))
	}
	if p.badTries == bad {
		p.badTries, p.badText = 0, ""
	}
	p.advance()
	p.report()
	return stale
}

// mayHaveShown notes up to where readers may be shown something from now on: a
// batch is shown as soon as the destination has it, also when its answer is lost
// and it is dead in the generation to come. Its records come again, and who has
// read them already waits for them (H12).
//
// Not more than that: OffsetForLeaderEpoch says that the chain's newest epoch
// reaches up to here, and who stands above after an unclean election goes on
// there. The source's end would lead him over the records of an epoch that has
// been fetched, and is not in the chain yet. mu is held.
func (p *Partition) mayHaveShown(end int64) {
	if end > p.mayShow {
		p.mayShow = end
		p.publish()
	}
}

// badAnswers is how many times in a row the source must answer the same before
// what is wrong is taken for its log and not for one garbled answer.
const badAnswers = 5

// badAnswer takes in data that can't be mirrored: it is asked for again, and
// fails the partition if it stays the same. mu is held.
func (p *Partition) badAnswer(err error) {
	if text := err.Error(); text != p.badText {
		p.badTries, p.badText = 0, text
	}
	p.badTries++
	p.met.fetchError("bad_data")
	if p.badTries >= badAnswers {
		p.badTries, p.badText = 0, ""
		p.setTodoErr(err)
		return
	}
	p.errOp = fmt.Sprintf("fetch from the source (answer %d of %d before it FAILS): %v", p.badTries, badAnswers, err)
	d := backoff(p.badTries-1, tryMin, tryMax)
	p.slog.Warn("the source's answer can't be mirrored; it is asked again", "err", err, "in", d)
	p.sourceWait = time.Now().Add(d)
}

// advanceEvery bounds how often a moving log start of the source is written to
// the ledger.
const advanceEvery = time.Second

// question has a source's answer about our end looked into, with nothing queued
// or in flight: what is, may be cut, so it is dropped and asked for again. mu is
// held.
func (p *Partition) question(a *ask) {
	p.drainThen(func() {
		p.todo.ask = a
		p.wake.wake()
	})
}

// drainThen runs f if nothing is queued or in flight. Otherwise the queue is
// dropped, and the source is asked again, and will answer the same way, when
// what is in flight has settled. mu is held.
func (p *Partition) drainThen(f func()) {
	if len(p.queue) == 0 && p.inflight == nil {
		f()
		return
	}
	p.dropQueue()
	p.drain = true
}

// backOff lets the source rest after an error. mu is held.
func (p *Partition) backOff() {
	p.sourceWait = time.Now().Add(backoff(p.sourceTry, tryMin, tryMax))
	p.sourceTry++
}

// holdFetch waits a moment before the same question is asked again. mu is held.
func (p *Partition) holdFetch() { p.sourceWait = time.Now().Add(tryMin) }

// leftOut: the source's answer says nothing of the partition though there was
// room for it. Asked again at once, it would say so again.
func (p *Partition) leftOut(token uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.token != token || p.phase != phaseRun {
		return
	}
	p.met.fetchError(errorCode(kconn.ErrNonsense))
	p.errOp = "fetch from the source: its broker's answer leaves the partition out"
	p.report()
	p.backOff()
}

// fetchFailed takes in an error code (facts.md §3, §5).
func (p *Partition) fetchFailed(token uint64, code int16) (stale bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.token != token || p.phase != phaseRun {
		return false
	}
	err := kerr.ErrorForCode(code)
	p.met.fetchError(errorCode(err))
	p.errOp = fmt.Sprintf("fetch from the source: %v", err)
	p.report()
	switch {
	case code == kerr.OffsetOutOfRange.Code:
		p.question(&ask{kind: askRange})
	case staleMetadata(code):
		p.backOff()
		return true
	case unknownTopic(code):
		// Deleted or created again, if the next metadata says so (setSource).
		p.backOff()
		return true
	case code == kerr.TopicAuthorizationFailed.Code:
		p.setTodoErr(fail(reasonAuth, "Lockstep's user may not read the source topic: give it READ and DESCRIBE there: %w", err))
	case code == kerr.CorruptMessage.Code:
		p.setTodoErr(fail(reasonSourceData, "the source says that its log is corrupt: %w", err))
	default:
		p.backOff()
		return true
	}
	return false
}
