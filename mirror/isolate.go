package mirror

import (
	"slices"
	"time"
)

// isolation finds out which partitions break a connection to a source broker
// whenever they are in a Fetch, so that the others go on. It is a fetcher
// goroutine's own.
//
// After sentErrors connection errors in a row right after sending, what was
// asked is split in halves that are asked apart, down to single partitions.
// These are asked alone then, with a back-off, until an answer comes.
type isolation struct {
	errors int            // in a row, of requests with all in them
	groups [][]*Partition // to be asked apart, once each
	alone  map[*Partition]*loner
	others bool // it is the turn of those that are not alone
}

// loner is a partition that is asked alone.
type loner struct {
	fails int
	next  time.Time
}

const sentErrors = 2

// prune forgets partitions that are not the fetcher's any more.
func (x *isolation) prune(ps []*Partition) {
	for p := range x.alone {
		if !slices.Contains(ps, p) {
			delete(x.alone, p)
		}
	}
	if len(x.groups) > 0 {
		for i := range x.groups {
			x.groups[i] = slices.DeleteFunc(x.groups[i], func(p *Partition) bool { return !slices.Contains(ps, p) })
		}
	}
}

// apart tells whether a partition is left out of the common request.
func (x *isolation) apart(p *Partition) bool {
	if x.alone[p] != nil {
		return true
	}
	for _, g := range x.groups {
		if slices.Contains(g, p) {
			return true
		}
	}
	return false
}

// answered: a request with these had an answer.
func (x *isolation) answered(list []asked, kind fetchKind) {
	switch kind {
	case fetchGroup:
		x.groups = x.groups[1:]
	case fetchAlone:
		delete(x.alone, list[0].p)
	default:
		x.errors = 0
	}
}

// broke: a request with these was sent and broke the connection. now is set for
// an error that its content explains. The result is the partition found to be
// the cause, if this was the first time.
func (x *isolation) broke(list []asked, kind fetchKind, now bool) (found *Partition) {
	switch kind {
	case fetchAlone:
		l := x.alone[list[0].p]
		l.next = time.Now().Add(backoff(l.fails, tryMin, tryMax))
		l.fails++
		return nil
	case fetchGroup:
		x.groups = x.groups[1:]
	default:
		x.errors++
		if x.errors < sentErrors && !now {
			return nil
		}
		x.errors = 0
	}
	if len(list) == 1 {
		if x.alone == nil {
			x.alone = map[*Partition]*loner{}
		}
		x.alone[list[0].p] = &loner{fails: 1, next: time.Now().Add(tryMin)}
		return list[0].p
	}
	var ps []*Partition
	for i := range list {
		ps = append(ps, list[i].p)
	}
	half := len(ps) / 2
	x.groups = slices.Insert(x.groups, 0, ps[:half:half], ps[half:])
	return nil
}

// fetchKind says with whom a partition is asked.
type fetchKind uint8

const (
	fetchAll   fetchKind = iota // all that are not apart
	fetchGroup                  // a part of those under suspicion
	fetchAlone
)
