package mirror

import (
	"context"
	"errors"
	"sync"

	"github.com/lockstep-kafka/lockstep/epoch"
	"github.com/lockstep-kafka/lockstep/internal/kconn"
	"github.com/lockstep-kafka/lockstep/protocol"
)

// slowPool re-encodes batches that a broker won't take as they are (DESIGN §6)
// on a few goroutines, and merges small ones. What waits is bounded by Memory: each job's batch lies
// in a fetch buffer.
type slowPool struct {
	mu   sync.Mutex
	jobs []slowJob
	wake wakeChan
}

type slowJob struct {
	p     *Partition
	it    *item
	batch protocol.Batch
	merge []protocol.Batch // instead of batch: to be made one
	stamp protocol.Stamp
	buf   *kconn.Buffer // retained while the job lives
}

func newSlowPool() *slowPool { return &slowPool{wake: make(wakeChan, 1)} }

func (s *slowPool) submit(j slowJob) {
	j.buf.Retain()
	s.mu.Lock()
	s.jobs = append(s.jobs, j)
	s.mu.Unlock()
	s.wake.wake()
}

func (s *slowPool) next() (slowJob, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.jobs) == 0 {
		return slowJob{}, false
	}
	j := s.jobs[0]
	s.jobs[0] = slowJob{}
	s.jobs = s.jobs[1:]
	if len(s.jobs) > 0 {
		s.wake.wake() // another worker may help
	}
	return j, true
}

// work runs jobs until ctx ends, then drops what is left.
func (s *slowPool) work(ctx context.Context) {
	rec := protocol.NewRecoder(protocol.DefaultMaxOut)
	for {
		j, ok := s.next()
		switch {
		case ok && ctx.Err() != nil:
			j.buf.Release()
		case ok:
			j.run(rec)
		case ctx.Err() != nil:
			return
		default:
			select {
			case <-s.wake:
			case <-ctx.Done():
			}
		}
	}
}

func (j slowJob) run(rec *protocol.Recoder) {
	defer j.buf.Release()
	p := j.p
	out, buf, err := j.encode(rec)
	p.mu.Lock()
	p.reencoded(j.it, out, buf, err)
	src, dst := p.src.broker, p.dst.broker
	p.mu.Unlock()
	if err != nil {
		p.eng.kickFetcher(src)
	}
	p.eng.kickWriter(p, dst)
}

// encode makes the batch to be written, in a buffer that counts like an answer.
func (j slowJob) encode(rec *protocol.Recoder) (out protocol.Batch, buf *kconn.Buffer, err error) {
	e := j.p.eng
	rec.Alloc = func(n int) []byte {
		buf = e.Memory.take(e.Source.Pool, n)
		return buf.Empty()
	}
	defer func() {
		if err != nil && buf != nil {
			buf.Release()
		}
	}()
	switch {
	case j.merge != nil && j.stamp.Flags&epoch.FlagRenumbered != 0:
		out, err = rec.MergeSparse(j.merge)
	case j.merge != nil:
		out, err = rec.Merge(j.merge)
	default:
		out, err = rec.Densify(j.batch, j.batch.LogAppendTime())
	}
	if err == nil {
		err = out.WriteStamp(j.stamp)
	}
	if err == nil && (buf == nil || !buf.Holds(out)) { // larger than was reckoned with
		if buf != nil {
			buf.Release()
		}
		buf = e.Memory.take(e.Source.Pool, len(out))
		out = append(buf.Empty(), out...)
	}
	return out, buf, err
}

// reencoded takes in the slow path's result. mu is held.
func (p *Partition) reencoded(it *item, out protocol.Batch, buf *kconn.Buffer, err error) {
	if it.dropped {
		if err == nil {
			buf.Release()
		}
		return
	}
	if err != nil && it.merged > 0 {
		p.keepBatches(err)
		return
	}
	if err != nil {
		advice := "read it on the source with kafka-dump-log"
		if errors.Is(err, protocol.ErrTooLarge) {
			advice = "it decompresses to more than Lockstep allows one batch"
		}
		it.err = failForGood(reasonSourceData, "the source's batch at offset %d can't be re-encoded: %w; %s", it.base, err, advice)
		return
	}
	p.queued += out.Size() - it.size
	it.free() // the source's bytes are no longer needed
	it.batch, it.buf, it.size, it.ready = out, buf, out.Size(), true
}
