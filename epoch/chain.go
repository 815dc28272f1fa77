// Package epoch is Lockstep's pure core: the virtual log of one mirrored
// partition, its epoch chain, and the rules by which offsets, leader epochs
// and truncations are decided. It has no I/O, no clock and no goroutine.
package epoch

import "sort"

// Entry says that leader epoch Epoch begins at virtual offset Start.
type Entry struct {
	Epoch int32 `json:"e"`
	Start int64 `json:"s"`
}

// Chain maps leader epochs to their first virtual offsets, rising strictly in
// both: Kafka's LeaderEpochFileCache, fed by the source's batches (skipped
// control batches included). A Chain is a value: its methods return a new one
// and never change the receiver, so that snapshots may be shared.
type Chain []Entry

// Newest is the newest epoch known, -1 for an empty chain.
func (c Chain) Newest() int32 {
	if len(c) == 0 {
		return -1
	}
	return c[len(c)-1].Epoch
}

// At is the epoch of the record at offset off, -1 when off lies before the
// first entry.
func (c Chain) At(off int64) int32 {
	i := sort.Search(len(c), func(i int) bool { return c[i].Start > off })
	if i == 0 {
		return -1
	}
	return c[i-1].Epoch
}

// Assign adds (e, start): a no-op when the newest entry has epoch e and start
// is not lower; else entries with epoch >= e or start >= start are dropped
// from the end first (LeaderEpochFileCache.assign).
func (c Chain) Assign(e int32, start int64) Chain {
	if n := len(c); n > 0 && c[n-1].Epoch == e && start >= c[n-1].Start {
		return c
	}
	n := len(c)
	for n > 0 && (c[n-1].Epoch >= e || c[n-1].Start >= start) {
		n--
	}
	out := make(Chain, n, n+1)
	copy(out, c[:n])
	return append(out, Entry{Epoch: e, Start: start})
}

// Truncate drops the entries that start at or above n
// (LeaderEpochFileCache.truncateFromEnd), also when n is at or above the log
// end.
func (c Chain) Truncate(n int64) Chain {
	i := sort.Search(len(c), func(i int) bool { return c[i].Start >= n })
	return c[:i:i]
}

// AdvanceStart moves the log start to n: entries that start at or below n
// collapse into the newest of them, which then starts at n
// (LeaderEpochFileCache.truncateFromStart).
func (c Chain) AdvanceStart(n int64) Chain {
	i := sort.Search(len(c), func(i int) bool { return c[i].Start > n })
	if i == 0 || i == 1 && c[0].Start == n {
		return c
	}
	out := make(Chain, 0, len(c)-i+1)
	out = append(out, Entry{Epoch: c[i-1].Epoch, Start: n})
	return append(out, c[i:]...)
}

// EndOffsetFor answers OffsetForLeaderEpoch for epoch e on a log that ends at
// end: (largest known epoch <= e, where it ends), (-1, -1) when that cannot be
// told (LeaderEpochFileCache.endOffsetFor).
func (c Chain) EndOffsetFor(e int32, end int64) (int32, int64) {
	if e == -1 {
		return -1, -1
	}
	if len(c) > 0 && c.Newest() == e {
		return e, end
	}
	i := sort.Search(len(c), func(i int) bool { return c[i].Epoch > e })
	switch i {
	case len(c): // none above e, or none at all
		return -1, -1
	case 0: // e lies below all known epochs
		return e, c[0].Start
	}
	return c[i-1].Epoch, c[i].Start
}
