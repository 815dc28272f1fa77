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
//
// Those with holes have to be written anew in any case, so they are joined across
// the holes between them too (protocol.Recoder.MergeSparse), and on compacted
// topics, where a hole is the rule, so are the ones that have none inside.
const (
	// mergeSmall: to copy a larger batch costs more than its round trip.
	mergeSmall = 64 << 10
	// mergeSmallCompressed is lower: a compressed one has to be compressed anew.
	mergeSmallCompressed = 16 << 10
	// mergeMax is how large a merged batch may get, before compression; below
	// the 1 MiB that topics take by default.
	mergeMax = 512 << 10
	// mergeSpan is how many source offsets a merged batch may span: whoever wants
	// one of them has to read it.
	mergeSpan = 1 << 20
)

// mergeRun is what has been gathered of an answer and is not queued yet.
type mergeRun struct {
	on     bool // for this answer
	list   []chunk
	size   int
	sparse bool // some of list have holes inside, or between them
	// chainEnd is from where the hole in front of the next batch counts: where the
	// newest queued one ends by its number of records.
	chainEnd int64
}

// joins tells whether c can be written in one batch with what is gathered, and
// whether there are holes in that. compacted: of the topic.
func (r *mergeRun) joins(c chunk, compacted bool) (ok, sparse bool) {
	n := len(r.list)
	if n == 0 {
		return true, holed(c)
	}
	first, last := r.list[0], r.list[n-1]
	switch {
	case r.size+c.batch.Size() > mergeMax || last.epoch != c.epoch || (last.stamp.Flags^c.stamp.Flags)&^epoch.FlagRenumbered != 0:
		return false, false
	case !r.sparse && last.batch.MergesWith(c.batch):
		return true, false
	}
	return (r.sparse || holed(c) || compacted) && c.next-first.base <= mergeSpan && last.batch.JoinsWith(c.batch), true
}

// holed tells whether records are missing inside c.
func holed(c chunk) bool { return c.stamp.Flags&epoch.FlagRenumbered != 0 }

// hole is the hole field of a batch at base that is queued now, with so many
// records.
func (r *mergeRun) hole(base, count int64) uint8 {
	h := hole(base - r.chainEnd)
	r.chainEnd = base + count
	return h
}

// small tells whether c is worth merging.
func small(c chunk) bool {
	if c.batch == nil || c.batch.HasDeleteHorizon() || c.batch.LogAppendTime() {
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
	ok, sparse := p.gathered.joins(c, p.compacted)
	if !ok {
		if err := p.flush(buf); err != nil {
			return err
		}
		sparse = holed(c)
	}
	p.gathered.list = append(p.gathered.list, c)
	p.gathered.size += c.batch.Size()
	p.gathered.sparse = sparse
	return nil
}

// flush queues what is gathered. mu is held.
func (p *Partition) flush(buf *kconn.Buffer) error {
	list, size, sparse := p.gathered.list, p.gathered.size, p.gathered.sparse
	if len(list) == 0 {
		return nil
	}
	first, last := list[0], list[len(list)-1]
	defer func() {
		clear(list)
		p.gathered.list, p.gathered.size, p.gathered.sparse = list[:0], 0, false
	}()
	if len(list) == 1 {
		return p.enqueue(first, buf)
	}
	it := &item{
		batch: first.batch, // until they are merged; without one it would be a stretch to skip
		base:  first.base, vEnd: last.next, next: last.next, epoch: first.epoch,
		open: first.stamp.Flags&epoch.FlagOpen != 0, openAt: first.stamp.Flags&epoch.FlagOpen != 0, size: size, merged: len(list), buf: buf,
	}
	batches := make([]protocol.Batch, len(list))
	for i, c := range list {
		batches[i] = c.batch
		it.count += c.count
		it.maxTS = max(it.maxTS, c.maxTS)
	}
	stamp := first.stamp
	stamp.Gen, stamp.Hole = p.gen, p.gathered.hole(it.base, it.count)
	if sparse {
		stamp.Flags |= epoch.FlagRenumbered
	}
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
