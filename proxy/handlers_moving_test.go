package proxy

import (
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
	"pgregory.net/rapid"

	"github.com/lockstep-kafka/lockstep/internal/histories"
	"github.com/lockstep-kafka/lockstep/protocol"
)

// loseAndMirrorAgain is lose followed by what the owner then does: the same
// source records once more, in a new generation.
func (h *history) loseAndMirrorAgain(n int) {
	before := slices.Clone(h.live)
	h.lose(n)
	src := h.src
	for i := len(h.live); i < len(before); {
		r := before[i]
		h.src, h.ts = r.epoch, r.ts
		n := int(r.end - r.batch)
		recs := make([]simRecord, n)
		for j := range recs {
			recs[j] = simRecord{int32(j), r.ts, before[i+j].value}
		}
		h.put(simBatch(h.t, r.batch, int32(n-1), recs...), r.batch, int64(n), 0)
		for j := range recs {
			h.live[len(h.live)-n+j].value = recs[j].value
		}
		i += n
	}
	h.src = src
}

// follower is a consumer with epochs, as Java's: it fetches with the leader
// epoch that metadata shows and the epoch of its last record, truncates where
// it is told to, and remembers what it has.
type follower struct {
	b       *bench
	t       *rapid.T
	has     []liveRecord
	pos     int64
	current int32
	last    int32
	session int32
	epoch   int32

	// old: Fetch below v12. The position is validated by OffsetForLeaderEpoch
	// whenever the leader epoch in metadata rises.
	old      bool
	validate bool
}

func (c *follower) refresh(h *history) {
	now := c.b.h.shownEpoch("m", [16]byte{}, 0, h.part.epoch)
	c.validate = c.validate || c.old && c.last >= 0 && now > c.current
	c.current = now
}

// truncate does what a broker's (epoch, end) asks for.
func (c *follower) truncate(e int32, end int64) {
	require.LessOrEqual(c.t, e, c.last)
	c.pos, c.last = min(c.pos, end), e
	c.has = slices.DeleteFunc(c.has, func(r liveRecord) bool { return r.v >= c.pos })
}

// validated asks where the epoch of the last record ends.
func (c *follower) validated(h *history) {
	a := epochEnd(c.b, 4, c.last, c.current)
	switch a.ErrorCode {
	case 0:
	case kerr.FencedLeaderEpoch.Code, kerr.UnknownLeaderEpoch.Code, retryLater:
		c.refresh(h)
		return
	default:
		require.FailNow(c.t, "unexpected", "%v", kerr.ErrorForCode(a.ErrorCode))
	}
	require.GreaterOrEqual(c.t, a.EndOffset, int64(0), "at %d, epoch %d: truncation that nobody can place", c.pos, c.last)
	if c.validate = false; a.EndOffset < c.pos || a.LeaderEpoch < c.last {
		c.truncate(a.LeaderEpoch, a.EndOffset)
	}
}

// step fetches once. branches are the sets of live records that the ledger has,
// or had since the view last read it.
func (c *follower) step(h *history, branches [][]liveRecord, maxBytes int32) {
	if c.validate {
		c.validated(h)
		return
	}
	version := int16(12)
	if c.old {
		version = 11
	}
	q := fetchOne(version, "m", [16]byte{}, c.pos, maxBytes)
	q.MaxWaitMillis = 0
	q.SessionID, q.SessionEpoch = c.session, c.epoch
	p := &q.Topics[0].Partitions[0]
	p.CurrentLeaderEpoch, p.LastFetchedEpoch = c.current, c.last
	r := c.b.run(q)
	require.False(c.t, r.forwarded)
	require.NoError(c.t, r.err)
	resp := q.ResponseKind().(*kmsg.FetchResponse)
	require.NoError(c.t, resp.ReadFrom(r.body))
	require.Zero(c.t, resp.ErrorCode)
	c.session, c.epoch = resp.SessionID, nextSessionEpoch(c.epoch)
	if len(resp.Topics) == 0 {
		return
	}
	a := resp.Topics[0].Partitions[0]
	switch a.ErrorCode {
	case 0:
	case kerr.FencedLeaderEpoch.Code, kerr.UnknownLeaderEpoch.Code, retryLater:
		c.refresh(h)
		return
	default:
		require.FailNow(c.t, "unexpected", "%v at %d, epoch %d", kerr.ErrorForCode(a.ErrorCode), c.pos, c.last)
	}
	if d := a.DivergingEpoch; d.EndOffset >= 0 {
		require.Empty(c.t, a.RecordBatches)
		c.truncate(d.Epoch, d.EndOffset)
		return
	}
	recs, next := readBatches(c.t, a.RecordBatches)
	var got []liveRecord
	for _, r := range recs {
		if r.v >= c.pos {
			got = append(got, r)
		}
	}
	ok := len(got) == 0
	for _, live := range branches {
		i := 0
		for i < len(live) && live[i].v < c.pos {
			i++
		}
		n := 0
		for n < len(got) && i+n < len(live) && sameRecord(got[n], live[i+n]) {
			n++
		}
		ok = ok || n == len(got)
	}
	require.True(c.t, ok, "at %d: %v is of no branch", c.pos, got)
	if next >= 0 {
		c.has = append(c.has, got...)
		c.pos = next
		for rest := a.RecordBatches; len(rest) > 0; { // a marker's epoch counts too
			b, after, err := protocol.NextBatch(rest)
			require.NoError(c.t, err)
			c.last, rest = b.PartitionLeaderEpoch(), after
		}
	}
}

// told are the records that the reader has, but for those that were lost where the
// log has a hole now: as with Kafka itself, who has no epochs of its own for all
// that it read is sent to the hole's end, or told nothing.
func (c *follower) told(h *history) (out []liveRecord) {
	live, chain := map[int64]bool{}, h.joined()
	for _, r := range h.live {
		live[r.v] = true
	}
	for _, r := range c.has {
		if live[r.v] || chain.At(r.v) == r.epoch {
			out = append(out, r)
		}
	}
	return out
}

func sameRecord(a, b liveRecord) bool {
	return a.v == b.v && a.epoch == b.epoch && a.ts == b.ts && a.value == b.value
}

// TestReadersOfAMovingLog: an owner that appends, is taken over, cuts, and whose
// destination loses its tail, an instance that learns of it late, and a reader
// in between. The reader never gets anything but a stretch of the log as the
// ledger has, or lately had it; in the end it has exactly what is live.
func TestReadersOfAMovingLog(t *testing.T) {
	histories.Check(t, func(rt *rapid.T) {
		b := newBenchOn(t, rt)
		h := newHistory(rt, b.sim.part("m", 0))
		shown := int64(0)
		publish := func() [][]liveRecord {
			lp := b.mirror("m", 0, h.log)
			lp.Checkpoint = h.checkpoint()
			if !h.native {
				lp.Checkpoint.EndShown = max(h.vend, shown)
				shown = max(shown, h.vend)
			}
			return [][]liveRecord{slices.Clone(h.live)}
		}
		branches := publish()
		c := &follower{b: b, t: rt, last: -1, old: rapid.Bool().Draw(rt, "old")}
		c.refresh(h)
		steps := rapid.IntRange(1, 60).Draw(rt, "steps")
		for range steps {
			if h.native {
				if drawMoving(rt, h) {
					c.step(h, branches, rapid.Int32Range(1, 400).Draw(rt, "max"))
				}
				if !h.lost {
					branches = append(publish(), branches...)
				}
				continue
			}
			switch rapid.IntRange(0, 14).Draw(rt, "op") {
			case 14:
				h.stop(rapid.Int64Range(0, 2).Draw(rt, "tail"), rapid.Int32Range(1, 50).Draw(rt, "bump"))
				shown = h.vend
				branches = append(publish(), branches...)
			case 0, 1, 2:
				h.ts++
				h.append(rapid.IntRange(1, 3).Draw(rt, "n"), rapid.SampledFrom([]int64{0, 0, 1, 300}).Draw(rt, "hole"))
			case 3:
				h.foreign(rapid.IntRange(1, 4).Draw(rt, "n"))
			case 4:
				h.src++
			case 5:
				h.takeOver()
			case 6:
				h.elect()
			case 7:
				h.src++
				h.cut(rapid.SampledFrom(h.bases()).Draw(rt, "cut"))
				shown = h.vend
				// The new branch begins with a record at the cut, of the new epoch.
				h.append(1, 0)
			case 8:
				h.loseAndMirrorAgain(rapid.IntRange(1, 4).Draw(rt, "lost"))
			case 9:
				if h.gen() > 1 {
					// (A view that lags takes it for live. It is what the source
					// has, too, and this model's owner would mirror something else.)
					branches = publish()
					h.late(rapid.Int16Range(1, h.gen()-1).Draw(rt, "gen"), 2)
				}
			case 10:
				branches = publish()
			default:
				c.step(h, branches, rapid.Int32Range(1, 400).Draw(rt, "max"))
			}
			branches = append(branches, slices.Clone(h.live))
		}
		if h.lost {
			h.repair()
		}
		branches = publish()
		c.refresh(h)
		for i := range 3*len(h.part.batches) + 30 {
			if c.pos == h.end() && len(c.told(h)) == len(h.live) && i > 3 {
				break
			}
			c.step(h, branches, 200)
		}
		require.Equal(rt, fmt.Sprint(records(h.live)), fmt.Sprint(records(c.told(h))))
	})
}

// records leaves out where records lie.
func records(l []liveRecord) (out []liveRecord) {
	for _, r := range l {
		out = append(out, liveRecord{v: r.v, epoch: r.epoch, ts: r.ts, value: r.value})
	}
	return out
}

// drawMoving is one step of a STOPPED partition, or false for one of its reader.
func drawMoving(t *rapid.T, h *history) (read bool) {
	op := rapid.IntRange(0, 9).Draw(t, "native op")
	switch {
	case h.lost && op == 0:
		h.repair()
	case h.lost && op == 1: // a client writes where the owner has not ruled yet
		h.ts++
		h.part.put(dense(t, 9_000_000, 1, h.ts))
	case h.lost:
		return true
	case op <= 1:
		h.ts++
		h.write(rapid.IntRange(1, 3).Draw(t, "n"), -1, false)
	case op == 2:
		h.transact(rapid.Bool().Draw(t, "abort"), 2, 1)
	case op == 3:
		h.part.lead(h.part.epoch + 1)
	case op == 4:
		h.loseOnly(rapid.IntRange(1, 5).Draw(t, "lost"))
	case op == 5:
		h.startAgain(rapid.SampledFrom(h.bases()).Draw(t, "cut"))
		h.append(1, 0)
	case op == 6: // a write of an old owner lands
		h.part.put(stamp(t, dense(t, 0, 2, h.ts), protocol.Stamp{V: h.log.Spans[0].VStart, Gen: 0, Epoch: max(h.src, 0)}))
		h.sync()
	default:
		return true
	}
	return false
}
