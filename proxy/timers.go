package proxy

import (
	"container/heap"
	"time"
)

// timer is one callback of a loop's timer queue.
type timer struct {
	when time.Time
	f    func()
	i    int // place in the heap, -1: not in it
}

// timerQueue is a heap by time. One runtime timer per loop waits for its head,
// so timers cost nothing while they wait.
type timerQueue []*timer

func (q timerQueue) Len() int           { return len(q) }
func (q timerQueue) Less(i, j int) bool { return q[i].when.Before(q[j].when) }
func (q timerQueue) Swap(i, j int) {
	q[i], q[j] = q[j], q[i]
	q[i].i, q[j].i = i, j
}

func (q *timerQueue) Push(x any) {
	t := x.(*timer)
	t.i = len(*q)
	*q = append(*q, t)
}

func (q *timerQueue) Pop() any {
	old := *q
	t := old[len(old)-1]
	old[len(old)-1] = nil
	*q = old[:len(old)-1]
	t.i = -1
	return t
}

// afterFunc runs f on the loop after d; the result cancels it (no-op when it
// ran). Loop only.
func (l *loop) afterFunc(d time.Duration, f func()) (cancel func()) {
	t := &timer{when: time.Now().Add(d), f: f}
	heap.Push(&l.timers, t)
	if t.i == 0 {
		l.wake.Reset(d)
	}
	return func() {
		if t.i >= 0 {
			heap.Remove(&l.timers, t.i)
		}
	}
}

// runTimers runs what is due and sets the runtime timer for the rest.
func (l *loop) runTimers() {
	now := time.Now()
	for len(l.timers) > 0 && !l.timers[0].when.After(now) {
		t := heap.Pop(&l.timers).(*timer)
		t.f()
	}
	if len(l.timers) > 0 {
		l.wake.Reset(max(0, l.timers[0].when.Sub(now)))
	}
}
