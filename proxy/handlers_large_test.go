package proxy

import (
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// Dead zones larger than what one request may read (and hold) are got over in
// several requests: each goes on where the last one stopped.
func TestM3LargeDeadZone(t *testing.T) {
	b := newBench(t)
	h := newHistory(t, b.sim.part("m", 0))
	h.append(2, 0)
	h.ts = 5000
	big := simBatch(t, 0, 0, simRecord{0, 9000, strings.Repeat("x", 1<<20)})
	for range 40 {
		h.part.put(append([]byte(nil), big...))
	}
	h.append(3, 0)
	b.mirror("m", 0, h.log)

	tries := 0
	for {
		tries++
		require.Less(t, tries, 6)
		a := offsetsOf(b, 7, 4000)
		if a.ErrorCode == 0 {
			require.EqualValues(t, 2, a.Offset)
			break
		}
		require.Equal(t, retryLater, a.ErrorCode)
	}
	require.Greater(t, tries, 1)
	require.LessOrEqual(t, b.mostBodies, 2, "answers are given back while a look-up goes on")
	b.sim.reads = 0
	require.EqualValues(t, 2, offsetsOf(b, 7, 4001).Offset)
	require.Less(t, b.sim.reads, 10)

	b.h.atlas = atlas{} // another instance
	pos, rounds := int64(0), 0
	for pos < 5 {
		rounds++
		require.Less(t, rounds, 12)
		b.sim.asked = nil
		p := only(t, b.fetch(fetchOne(12, "m", [16]byte{}, pos, 1<<20)))
		require.Zero(t, p.ErrorCode)
		require.Less(t, len(b.sim.asked), 40, "what one request reads is bounded")
		if _, next := readBatches(t, p.RecordBatches); next >= 0 {
			pos = next
		}
	}
	require.Greater(t, rounds, 2)
	require.LessOrEqual(t, b.mostBodies, 3)
}

// Finding a virtual offset in a long log takes few reads: guesses from stamps,
// then halving; and next to none the second time.
func TestLookUpsAreShort(t *testing.T) {
	b := newBench(t)
	h := newHistory(t, b.sim.part("m", 0))
	rnd := rand.New(rand.NewPCG(1, 2))
	for i := range 5000 {
		h.append(1+rnd.IntN(5), int64(rnd.IntN(3)))
		if i%50 == 17 {
			h.foreign(1 + rnd.IntN(20))
		}
	}
	b.mirror("m", 0, h.log)
	most, total := 0, 0
	for range 200 {
		r := h.live[rnd.IntN(len(h.live))]
		b.st = &connState{}
		b.sim.reads = 0
		recs, _ := readBatches(t, only(t, b.fetch(fetchOne(12, "m", [16]byte{}, r.v, 100))).RecordBatches)
		require.NotEmpty(t, recs)
		require.LessOrEqual(t, recs[0].v, r.v)
		most, total = max(most, b.sim.reads), total+b.sim.reads
	}
	t.Logf("reads per look-up: %d in all, %d at most", total/200, most)
	require.Less(t, most, 40)
	require.Less(t, total, 200*16)

	// A reader that goes on where it was needs no look-up: one read a request,
	// or two when the first meets nothing but foreign batches.
	b.st = &connState{}
	pos := int64(0)
	for i := range 50 {
		b.sim.reads = 0
		q := fetchOne(12, "m", [16]byte{}, pos, 2000)
		_, next := readBatches(t, only(t, b.fetch(q)).RecordBatches)
		pos = next
		if i > 0 {
			require.LessOrEqual(t, b.sim.reads, 2)
		}
	}
	for _, q := range b.sim.asked {
		if q, ok := q.(*kmsg.FetchRequest); ok {
			require.LessOrEqual(t, q.MaxBytes, int32(8<<20))
		}
	}
}
