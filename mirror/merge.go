package mirror

import (
	"github.com/lockstep-kafka/lockstep/epoch"
	"github.com/lockstep-kafka/lockstep/internal/kconn"
	"github.com/lockstep-kafka/lockstep/protocol"
)

// Small neighbours that came in one answer are written as one batch
// (protocol.Recoder.Merge): with one unacknowledged batch for each partition
// (M21), small ones would each cost a round trip. When the mirror has caught
// up, an answer brings one batch, and nothing is merged.
//
// Only batches that agree in all that a stamp says are joined: leader epoch,
// open transaction, no hole between them. Whatever is cut later is cut to the
// base of the merged batch and fetched again.
const (
	// mergeSmall: to copy a larger batch costs more than its round trip.
	mergeSmall = 64 << 10
	// mergeSmallCompressed is lower: a compressed one has to be compressed anew.
	mergeSmallCompressed = 16 << 10
	// mergeMax is how large a merged batch may get, before compression; below
	// the 1 MiB that topics take by default.
	mergeMax = 512 << 10
)

// mergeRun is what has been gathered of an answer and is not queued yet.
type mergeRun struct {
	on   bool // for this answer
	list []chunk
	size int
}

// joins tells whether c can be written in one batch with what is gathered.
func (r *mergeRun) joins(c chunk) bool {
	n := len(r.list)
	if n == 0 {
		return true
	}
	last := r.list[n-1]
	return r.size+c.batch.Size() <= mergeMax && last.next == c.base && last.epoch == c.epoch && c.stamp.Hole == 0 &&
		last.stamp.Flags == c.stamp.Flags && last.batch.MergesWith(c.batch)
}

// small tells whether c is worth merging.
func small(c chunk) bool {
	if c.batch == nil || c.slow || c.batch.HasDeleteHorizon() {
		return false
	}
	if c.batch.Codec() == protocol.CodecNone {
		return c.batch.Size() <= mergeSmall
	}
	return c.batch.Size() <= mergeSmallCompressed
}

// merges tells whether batches may be joined. Not where the source may lose
// records in an unclean election: the cut would fall inside, and what lies in
// front of it in the same batch be gone until it is mirrored again. Nor in what
// is written anew beside what is shown: who mirrors from here may stand between
// two batches, and would have to go back to the first (F8). mu is held.
func (p *Partition) merges() bool {
	return !p.eng.Tuning.KeepBatches && !p.eng.Unclean(p.topic) && !p.shadowing()
}

// gather queues c, or holds it back for its neighbours; [Partition.flush] has
// to be called after the last one. mu is held.
func (p *Partition) gather(c chunk, buf *kconn.Buffer) error {
	if !p.gathered.on || p.unmerged || !small(c) {
		if err := p.flush(buf); err != nil {
			return err
		}
		return p.enqueue(c, buf)
	}
	if !p.gathered.joins(c) {
		if err := p.flush(buf); err != nil {
			return err
		}
	}
	p.gathered.list = append(p.gathered.list, c)
	p.gathered.size += c.batch.Size()
	return nil
}

// flush queues what is gathered. mu is held.
func (p *Partition) flush(buf *kconn.Buffer) error {
	list, size := p.gathered.list, p.gathered.size
	if len(list) == 0 {
		return nil
	}
	first, last := list[0], list[len(list)-1]
	defer func() {
		clear(list)
		p.gathered.list, p.gathered.size = list[:0], 0
	}()
	if len(list) == 1 {
		return p.enqueue(first, buf)
	}
	it := &item{
		batch: first.batch, // until they are merged; without one it would be a stretch to skip
		base:  first.base, vEnd: last.next, next: last.next, count: last.next - first.base, epoch: first.epoch,
		open: first.stamp.Flags&epoch.FlagOpen != 0, openAt: first.stamp.Flags&epoch.FlagOpen != 0, size: size, merged: len(list), buf: buf,
	}
	batches := make([]protocol.Batch, len(list))
	for i, c := range list {
		batches[i] = c.batch
		it.maxTS = max(it.maxTS, c.maxTS)
	}
	stamp := first.stamp
	stamp.Gen = p.gen
	buf.Retain()
	p.queue = append(p.queue, it)
	p.queued += size
	p.met.merged.Add(float64(len(list)))
	p.eng.slow.submit(slowJob{p: p, it: it, merge: batches, stamp: stamp, buf: buf})
	return nil
}

// keepBatches: merging went wrong, for a reason that may lie in one of the
// batches or in their size together. From now on they are written one by one,
// so that an error names the right one. Nothing of the queue is in flight, or
// what is was surely not appended. mu is held.
func (p *Partition) keepBatches(err error) {
	p.unmerged = true
	p.slog.Warn("small batches of this partition are no longer merged", "err", err)
	p.dropQueue()
}
