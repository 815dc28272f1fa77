package proxy

import "time"

// stallBytes is the least that must move within a time limit: a peer that sends
// or takes a byte now and then (slow loris) is as good as one that does nothing.
const stallBytes = 64 << 10

// stall is how far both sides of a session have come when it was last looked
// at; nothing is looked at where bytes move.
type stall struct {
	in int64 // bytes of the client so far

	frame    int64     // which frame the client is in; 0: in none, or it is not read
	frameAt  time.Time // since when that is looked at
	frameIn  int64     // in, then
	backlog  int64     // bytes that wait for the client; 0: none
	backAt   time.Time
	backSent int64 // bytes taken by the client, then
}

// stalledFrame says whether the client has begun a request and sends too little
// of it. It is no stall while we don't read the client.
func (s *session) stalledFrame(now time.Time, limit time.Duration) bool {
	st := &s.stall
	if !s.req.midFrame() || s.upstreamFull || s.upstream == nil || s.asked.claim != nil || len(s.pending) > 0 {
		st.frame = 0
		return false
	}
	frame := 2*s.requests + 1 // requests are counted when their header is there
	if len(s.req.carry) > 0 {
		frame++
	}
	if st.frame != frame || st.in-st.frameIn >= stallBytes {
		st.frame, st.frameAt, st.frameIn = frame, now, st.in
		return false
	}
	return now.Sub(st.frameAt) >= limit
}

// slowConsumer says whether something waits for the client, and it takes too
// little of it.
func (s *session) slowConsumer(now time.Time, limit time.Duration) bool {
	st := &s.stall
	waits := int64(s.client.buffered())
	sent := s.client.progress()
	if waits == 0 {
		st.backlog = 0
		return false
	}
	if st.backlog == 0 || sent-st.backSent >= min(st.backlog, stallBytes) {
		st.backlog, st.backAt, st.backSent = waits, now, sent
		return false
	}
	return now.Sub(st.backAt) >= limit
}
