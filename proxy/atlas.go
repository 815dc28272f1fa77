package proxy

import (
	"sync"

	"github.com/lockstep-kafka/lockstep/epoch"
	"github.com/lockstep-kafka/lockstep/internal/ledger"
)

// atlas is what this instance's readers have learned about the physical logs
// of mirror partitions, for all connections: hints only, batches describe
// themselves. Safe for concurrent use.
type atlas struct {
	mu     sync.Mutex
	charts map[partKey]*chart
}

// maxCharts and maxSamples bound it: 16 bytes a sample, 24 a timestamp.
const (
	maxCharts  = 50_000
	maxSamples = 1024
)

// chart is one partition's page, of one set of spans and one leader epoch of the
// destination. When either changes the page is another one: who began to read
// before that notes what it found on the page of before, which nobody opens any
// more.
type chart struct {
	spans  spanSet
	leader int32 // newest physical leader epoch that a reader met; -1: none so far

	mu    sync.Mutex
	index *epoch.Index // (v, p) of live batches

	dead []deadRange // stretches without a live batch that were read through

	pe int32 // newest physical epoch in the open native span whose leader was asked

	startP, startV int64 // the first live batch at or above physical log start startP begins at startV

	times *timeline // nil: not needed so far
}

func newChart(set spanSet, leader int32) *chart {
	return &chart{spans: set, leader: leader, index: epoch.NewIndex(maxSamples), startP: -1, startV: -1}
}

// chart returns the partition's page, a new one when the spans have changed.
func (a *atlas) chart(k partKey, p *ledger.Partition) *chart { return a.chartUnder(k, p, -1) }

// chartUnder is chart for what is read from the leader of physical epoch pe (-1:
// not known). A later leader begins a new page: what lay at the end of the log
// may be lost, and other records lie there. An earlier one gets a page of its
// own, which goes with the reader.
func (a *atlas) chartUnder(k partKey, p *ledger.Partition, pe int32) *chart {
	set := spansOf(p)
	a.mu.Lock()
	defer a.mu.Unlock()
	c, known := a.charts[k]
	switch {
	case known && c.spans == set && pe >= 0 && pe < c.leader:
		return newChart(set, pe)
	case known && c.spans == set && pe <= c.leader:
		return c
	}
	c = newChart(set, pe)
	if a.charts == nil || !known && len(a.charts) >= maxCharts {
		a.charts = map[partKey]*chart{}
	}
	a.charts[k] = c
	return c
}

// deadRange: no live batch ends in (from, to] physically.
type deadRange struct{ from, to int64 }

const maxDeadRanges = 32

// noteDead remembers a stretch, so that a look-up that was given up, or the next
// one, does not read it again.
func (c *chart) noteDead(from, to int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range c.dead {
		if d := &c.dead[i]; from <= d.to && to >= d.from {
			d.from, d.to = min(d.from, from), max(d.to, to)
			return
		}
	}
	if len(c.dead) == maxDeadRanges {
		c.dead = c.dead[1:]
	}
	c.dead = append(c.dead, deadRange{from, to})
}

// skip is the first physical offset at or behind p that isn't known as dead.
func (c *chart) skip(p int64) int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, d := range c.dead {
		if p >= d.from && p < d.to {
			p = d.to
		}
	}
	return p
}

// add notes a live batch.
func (c *chart) add(v, p int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.index.Add(v, p)
}

// skipBack is the largest physical offset at or below p that has no known dead
// stretch right before it.
func (c *chart) skipBack(p int64) int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := len(c.dead) - 1; i >= 0; i-- {
		if d := c.dead[i]; p > d.from && p <= d.to {
			p = d.from
		}
	}
	return p
}

// forget drops the samples.
func (c *chart) forget() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.index, c.dead = epoch.NewIndex(maxSamples), nil
}

// floor is the known live batch nearest to virtual offset v, not above it.
func (c *chart) floor(v int64) (epoch.Sample, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.index.Floor(v)
}

// vouched notes that the leader of physical epoch pe had lost nothing below the
// open native span, and returns the newest such epoch.
func (c *chart) vouched(pe int32) int32 {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.pe = max(c.pe, pe)
	return c.pe
}

func (c *chart) setStart(p, v int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.startP, c.startV = p, v
}

// start is the virtual offset of the first live batch at or above physical log
// start p, if somebody has looked.
func (c *chart) start(p int64) (v int64, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.startV, c.startP == p && p >= 0
}

// timeline returns the time index that begins at from or before, a new one when
// there is none, or when its maximum lies below the log's start now. Whoever
// fills it asks that one, whatever becomes of the page meanwhile.
func (c *chart) timeline(from, start int64) *timeline {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.times == nil || c.times.from > from || c.times.outlived(start) {
		c.times = &timeline{from: from, to: from, index: epoch.NewTimeIndex(maxSamples)}
	}
	return c.times
}

// timeline is a time index of every live batch in the physical range [from, to).
// Several connections may fill it at once: each reads on from where it ends, in
// order.
type timeline struct {
	from int64

	mu    sync.Mutex
	to    int64
	index *epoch.TimeIndex
}

// end is where to read on.
func (t *timeline) end() int64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.to
}

// add takes the next live batch: p its base, pEnd its end.
func (t *timeline) add(p, pEnd, maxTimestamp int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if pEnd > t.to { // else another connection was here first
		t.index.Add(max(p, t.from), maxTimestamp)
		t.to = pEnd
	}
}

// outlived: the batch with the largest timestamp is gone.
func (t *timeline) outlived(start int64) bool {
	_, p, ok := t.max()
	return ok && p < start
}

func (t *timeline) first(ts int64) (p int64, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.index.FirstAtOrAbove(ts)
}

func (t *timeline) max() (ts, p int64, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.index.Max()
}
