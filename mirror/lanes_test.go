package mirror

import (
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// Over several connections each answer is a part, of what is under way and so of
// what is held.
func TestAnswersOverSeveralConnections(t *testing.T) {
	r := newRig(t, 1)
	r.start()
	r.stop() // what is looked at is a fetcher of our own
	f := newFetcher(r.eng, 1, "")
	most := func(lanes int32) int32 { f.lanes.Store(lanes); return f.maxBytes() }
	require.EqualValues(t, 16<<20, most(0))
	require.EqualValues(t, 16<<20, most(1))
	require.EqualValues(t, 2*farAnswer, most(farLanes/2))
	require.EqualValues(t, farAnswer, most(farLanes))
	r.eng.Tuning.FetchMaxBytes = 1000
	require.EqualValues(t, 1000, most(farLanes))
	r.eng.Source.MaxFrame = 800
	require.EqualValues(t, 700, most(farLanes))
}

// Whose turn it is moves on behind those that an answer was full of.
func TestFetchesTakeTurns(t *testing.T) {
	const parts = 8
	r := newRig(t, parts)
	r.start()
	one, two := rawBatch{base: 0, n: 1}, rawBatch{base: 1, n: 1}
	var first []int32
	r.src.mu.Lock()
	r.src.answerMax = 3 * one.bytes().Size()
	r.src.onFetch = func(q *kmsg.FetchRequest) {
		ps := q.Topics[0].Partitions
		if len(ps) != parts {
			return // some don't run yet
		}
		if len(first) == 0 {
			for p := range int32(parts) { // two of the first one, one of the next
				r.src.log("t", p).append(one.bytes())
				r.src.log("t", p).append(two.bytes())
			}
		}
		first = append(first, ps[0].Partition)
	}
	r.src.mu.Unlock()
	for p := range int32(parts) {
		r.reached(p, 2)
	}
	r.src.mu.Lock()
	defer r.src.mu.Unlock()
	require.Equal(t, []int32{first[0], (first[0] + 2) % parts, (first[0] + 4) % parts, (first[0] + 6) % parts}, first[:4])
}

// The same with several topics: a request keeps to the order of the turn, so that
// the topic whose partitions fill the answers doesn't come first each time.
func TestFetchesTakeTurnsOfSeveralTopics(t *testing.T) {
	const large, small, asks = 400, 4, 20
	r := newRig(t, 2)
	r.topic("u", 1)
	r.tuning.FetchPartitionMaxBytes = 4 << 20 // no queue is ever full
	r.start()
	for _, s := range r.specs {
		eventually(t, "at work", func() bool { x := r.eng.Partition(s.Topic, s.Partition); return x != nil && x.running() })
	}
	batch := func(i int64) []byte { return rawBatch{base: 1000 + i*300, n: 300}.bytes() }
	n, got := 0, -1
	r.src.mu.Lock()
	r.src.answerMax = len(batch(0)) + 1 // a batch each of two partitions
	r.src.onFetch = func(q *kmsg.FetchRequest) {
		n++
		for _, rt := range q.Topics {
			if r.src.name(rt.Topic, rt.TopicID) == "u" && rt.Partitions[0].FetchOffset == 1000+small*300 && got < 0 {
				got = n
			}
		}
	}
	for p := range int32(2) {
		l := r.src.log("t", p)
		for i := range int64(large) {
			l.append(batch(i))
		}
	}
	for i := range int64(small) {
		r.src.log("u", 0).append(batch(i))
	}
	r.src.touch()
	r.src.mu.Unlock()
	eventually(t, "all of the small topic", func() bool { return r.eng.Partition("u", 0).Status().Position == 1000+small*300 })
	r.src.mu.Lock()
	defer r.src.mu.Unlock()
	require.Less(t, got, asks, "how often was asked before all of the small topic had come")
}
