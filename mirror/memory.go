package mirror

import (
	"context"
	"sync/atomic"

	"golang.org/x/sync/semaphore"
)

// Memory bounds the source data that a process holds (limits.mirror_memory).
// One is shared by all engines.
type Memory struct {
	limit int64
	sem   *semaphore.Weighted
	used  atomic.Int64
}

// NewMemory allows limit bytes; a single response may be larger, and is then
// let in alone.
func NewMemory(limit int64) *Memory {
	return &Memory{limit: limit, sem: semaphore.NewWeighted(limit)}
}

// acquire waits until n bytes are free, first come, first served, and returns
// what gives them back.
func (m *Memory) acquire(ctx context.Context, n int) (release func(), err error) {
	w := min(int64(n), m.limit)
	if err := m.sem.Acquire(ctx, w); err != nil {
		return nil, err
	}
	m.used.Add(w)
	return func() {
		m.used.Add(-w)
		m.sem.Release(w)
	}, nil
}

// Used is what is held now, in bytes.
func (m *Memory) Used() int64 { return m.used.Load() }
