package measure

import (
	"sync"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// Latency keeps durations from a microsecond to ten minutes with three
// significant digits. Whoever records decides from when a duration counts: to
// be free of coordinated omission, from when something was due, not from when
// a late sender got to it.
type Latency struct {
	mu sync.Mutex
	h  *hdrhistogram.Histogram
}

// NewLatency makes an empty one.
func NewLatency() *Latency {
	return &Latency{h: hdrhistogram.New(1, (10 * time.Minute).Microseconds(), 3)}
}

// Record adds a duration; one below zero counts as zero, one above the range
// as the range's end.
func (l *Latency) Record(d time.Duration) {
	us := min(max(d.Microseconds(), 0), (10 * time.Minute).Microseconds())
	l.mu.Lock()
	defer l.mu.Unlock()
	_ = l.h.RecordValue(us) // in range
}

// Count is how many were recorded.
func (l *Latency) Count() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.h.TotalCount()
}

// Quantile is in milliseconds; q from 0 to 1.
func (l *Latency) Quantile(q float64) float64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return float64(l.h.ValueAtPercentile(q*100)) / 1000
}

// Max is in milliseconds.
func (l *Latency) Max() float64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return float64(l.h.Max()) / 1000
}
