package ledger

import (
	"sync"

	"github.com/lockstep-kafka/lockstep/epoch"
)

// Bounds of the look-up hints of one partition: 32 KiB and 6 KiB at most, and
// nothing until something is added.
const (
	indexSamples = 2048
	timeEntries  = 256
)

// lookup holds hints for finding physical offsets in few round trips. They
// are only hints: batches describe themselves. Readers and the owner add what
// they pass.
type lookup struct {
	mu    sync.Mutex
	index epoch.Index
	times epoch.TimeIndex
}

func newLive() *Live {
	return &Live{lookup: lookup{index: *epoch.NewIndex(indexSamples), times: *epoch.NewTimeIndex(timeEntries)}}
}

// Sample notes that a live batch begins at virtual offset v and physical
// offset p. Any order will do.
func (l *lookup) Sample(v, p int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.index.Add(v, p)
}

// Seek is [epoch.Log.SeekV] with the partition's index.
func (l *lookup) Seek(log *epoch.Log, v int64) (p, from int64, span int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return log.SeekV(&l.index, v)
}

// Index calls f with the index, alone.
func (l *lookup) Index(f func(*epoch.Index)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	f(&l.index)
}

// Times calls f with the index of timestamps, alone.
func (l *lookup) Times(f func(*epoch.TimeIndex)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	f(&l.times)
}

// Forget drops what is known at or behind physical offset p, after a cut or a
// lost tail.
func (l *lookup) Forget(p int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.index.DropFrom(p)
	l.times.DropFrom(p)
}
