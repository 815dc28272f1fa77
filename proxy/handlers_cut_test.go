package proxy

import (
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// Consumers in the middle of a cut, after an unclean election on the source:
// positions above it are never continued silently.

// cutBench has a reader's position 12, epoch 7, at the end; then the log is cut
// to 9 while it polls, and goes on to 15 under epoch 8.
func cutBench(t *testing.T) (b *bench, cut func()) {
	b, h := chainBench(t)
	return b, func() {
		h.cut(9)
		h.src = 8
		h.append(3, 0)
		h.append(3, 0)
		b.mirror("m", 0, h.log)
		b.onWait = nil
	}
}

func cutFetch(version int16, offset int64, current, last int32) *kmsg.FetchRequest {
	q := fetchOne(version, "m", [16]byte{}, offset, 1000)
	q.Topics[0].Partitions[0].CurrentLeaderEpoch, q.Topics[0].Partitions[0].LastFetchedEpoch = current, last
	return q
}

func TestM2CutWhileReading(t *testing.T) {
	for _, version := range []int16{9, 11, 12} {
		b, cut := cutBench(t)
		last := int32(-1)
		if version >= 12 {
			last = 7
		}
		b.onWait = cut // in the middle of the long poll
		p := only(t, b.fetch(cutFetch(version, 12, 15, last)))
		require.Equal(t, kerr.FencedLeaderEpoch.Code, p.ErrorCode)
		require.Empty(t, p.RecordBatches)
		// Again with the old leader epoch: the same.
		require.Equal(t, kerr.FencedLeaderEpoch.Code, only(t, b.fetch(cutFetch(version, 12, 15, last))).ErrorCode)
		// Metadata shows the new one, with it the position is looked at.
		require.EqualValues(t, 16, b.h.shownEpoch("m", [16]byte{}, 0, 5))
		a := epochEnd(b, 4, 7, 16)
		require.Zero(t, a.ErrorCode)
		require.EqualValues(t, 5, a.LeaderEpoch)
		require.EqualValues(t, 9, a.EndOffset)
		if version >= 12 {
			p = only(t, b.fetch(cutFetch(version, 12, 16, last)))
			require.Zero(t, p.ErrorCode)
			require.EqualValues(t, 5, p.DivergingEpoch.Epoch)
			require.EqualValues(t, 9, p.DivergingEpoch.EndOffset)
			require.Empty(t, p.RecordBatches)
		}
		p = only(t, b.fetch(cutFetch(version, 9, 16, map[bool]int32{true: 5, false: -1}[version >= 12])))
		recs, _ := readBatches(t, p.RecordBatches)
		require.Len(t, recs, 6)
		require.EqualValues(t, 8, recs[0].epoch)
	}
}

// The cut comes while the broker is still asked, and its answer holds what was
// cut: it is not shown.
func TestM2CutBeforeTheAnswer(t *testing.T) {
	b, h := chainBench(t)
	b.sim.onFetch = func() {
		b.sim.onFetch = nil
		h.cut(9)
		b.mirror("m", 0, h.log)
	}
	p := only(t, b.fetch(cutFetch(12, 9, 15, 5)))
	require.Equal(t, kerr.FencedLeaderEpoch.Code, p.ErrorCode)
	require.Empty(t, p.RecordBatches)
}

// Clients without epochs go on in what is there now, as with Kafka itself; they
// are counted.
func TestBlindReadersAreCounted(t *testing.T) {
	b, cut := cutBench(t)
	blind := 0
	b.h.count.blind = func(topic string, _ int32) {
		require.Equal(t, "m", topic)
		blind++
	}
	require.Zero(t, only(t, b.fetch(cutFetch(4, 9, -1, -1))).ErrorCode) // up to 12
	b.onWait = cut
	require.Equal(t, retryLater, only(t, b.fetch(cutFetch(4, 12, -1, -1))).ErrorCode)
	require.Zero(t, blind)
	p := only(t, b.fetch(cutFetch(4, 12, -1, -1)))
	require.Zero(t, p.ErrorCode)
	require.Equal(t, 1, blind)
	recs, next := readBatches(t, p.RecordBatches)
	require.EqualValues(t, 12, recs[0].v)
	require.EqualValues(t, 15, next)
	only(t, b.fetch(cutFetch(4, next, -1, -1)))
	require.Equal(t, 1, blind)

	// Below the cut there is nothing to count; nor with epochs.
	b, cut = cutBench(t)
	b.h.count.blind = func(string, int32) { blind++ }
	only(t, b.fetch(cutFetch(4, 4, -1, -1)))
	cut()
	only(t, b.fetch(cutFetch(4, 4, -1, -1)))
	only(t, b.fetch(cutFetch(12, 12, 15, 7)))
	require.Equal(t, 1, blind)
}
