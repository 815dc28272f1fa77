package proxy

import (
	"math"
	"math/rand/v2"
)

// Fetch sessions as a broker keeps them (KIP-227; Kafka's FetchSession.scala),
// ended here for every session that has, or had, a mirror partition in it: what
// the client has been shown decides what an incremental answer may leave out,
// and only the proxy knows that (M3).

// Session epochs with a meaning of their own (FetchMetadata).
const (
	sessionEpochInitial int32 = 0
	sessionEpochFinal   int32 = -1
)

// wanted is one partition as a client asks for it: everything in the client's
// terms.
type wanted struct {
	topic        string   // by name (Fetch v0–12), else ""
	id           [16]byte // by id (v13+), else zero
	partition    int32
	offset       int64
	currentEpoch int32 // -1: not given
	lastEpoch    int32 // -1: not given
	logStart     int64 // followers only
	maxBytes     int32
}

type wantedKey struct {
	topic     string
	id        [16]byte
	partition int32
}

func (w *wanted) key() wantedKey { return wantedKey{w.topic, w.id, w.partition} }

// sessionPart is a partition of a session with what it was last answered.
type sessionPart struct {
	wanted
	hw, logStart int64 // -1: must be answered
}

type fetchSession struct {
	id    int32
	epoch int32 // of the next request
	byID  bool
	parts map[wantedKey]*sessionPart
	order []*sessionPart // in the order to read them: who was given data goes last
}

func nextSessionEpoch(e int32) int32 {
	switch {
	case e < 0:
		return sessionEpochFinal
	case e == math.MaxInt32:
		return 1
	}
	return e + 1
}

// newSession makes a session of the partitions of a full request. nil: too
// many; the client is then served without one, as by a broker whose cache is
// full.
func (s *connState) newSession(byID bool, parts []wanted) *fetchSession {
	if len(parts) == 0 || len(parts) > maxPartitionsPerSess {
		return nil
	}
	if s.sessions == nil {
		s.sessions = map[int32]*fetchSession{}
	}
	if len(s.sessions) >= maxSessionsPerConn {
		clear(s.sessions) // their client starts anew at FETCH_SESSION_ID_NOT_FOUND
	}
	fs := &fetchSession{epoch: nextSessionEpoch(sessionEpochInitial), byID: byID, parts: map[wantedKey]*sessionPart{}}
	for fs.id == 0 || s.sessions[fs.id] != nil {
		fs.id = rand.Int32N(math.MaxInt32-1) + 1
	}
	fs.update(parts, nil)
	s.sessions[fs.id] = fs
	return fs
}

// update applies an incremental request: partitions added or changed, and
// partitions forgotten. False: the session would grow too large.
func (fs *fetchSession) update(parts []wanted, forgotten []wantedKey) bool {
	for i := range parts {
		k := parts[i].key()
		if sp := fs.parts[k]; sp != nil {
			sp.wanted = parts[i]
			continue
		}
		if len(fs.parts) >= maxPartitionsPerSess {
			return false
		}
		sp := &sessionPart{wanted: parts[i], hw: -1, logStart: -1}
		fs.parts[k] = sp
		fs.order = append(fs.order, sp)
	}
	if len(forgotten) == 0 {
		return true
	}
	for _, k := range forgotten {
		delete(fs.parts, k)
	}
	kept := fs.order[:0]
	for _, sp := range fs.order {
		if fs.parts[sp.key()] == sp {
			kept = append(kept, sp)
		}
	}
	clear(fs.order[len(kept):])
	fs.order = kept
	return true
}

// wants lists the session's partitions in the order to read them.
func (fs *fetchSession) wants() []wanted {
	out := make([]wanted, len(fs.order))
	for i, sp := range fs.order {
		out[i] = sp.wanted
	}
	return out
}

// answered is what matters of a partition's answer to the session.
type answered struct {
	key          wantedKey
	hw, logStart int64
	data         bool // records in it
	always       bool // an error, a diverging epoch or a preferred replica
	failed       bool // an error
}

// record notes an answer, and says whether an incremental one must carry it
// (CachedPartition.maybeUpdateResponseData).
func (fs *fetchSession) record(a answered) bool {
	sp := fs.parts[a.key]
	if sp == nil {
		return true
	}
	must := a.data || a.always || sp.hw != a.hw || sp.logStart != a.logStart
	sp.hw, sp.logStart = a.hw, a.logStart
	if a.failed {
		sp.hw = -1 // so that its next answer, whatever it is, is sent
	}
	return must
}

// rotate puts partitions that were given data last, so that a size limit
// starves none.
func (fs *fetchSession) rotate(data map[wantedKey]bool) {
	if len(data) == 0 {
		return
	}
	kept := make([]*sessionPart, 0, len(fs.order))
	var moved []*sessionPart
	for _, sp := range fs.order {
		if data[sp.key()] {
			moved = append(moved, sp)
		} else {
			kept = append(kept, sp)
		}
	}
	fs.order = append(kept, moved...)
}
