package mirror

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/epoch"
)

func join(bs ...rawBatch) (out []byte) {
	for _, b := range bs {
		out = append(out, b.bytes()...)
	}
	return out
}

type abortedList = []kmsg.FetchResponseTopicPartitionAbortedTransaction

func aborted(pidFirst ...int64) (out abortedList) {
	for i := 0; i < len(pidFirst); i += 2 {
		out = append(out, kmsg.FetchResponseTopicPartitionAbortedTransaction{ProducerID: pidFirst[i], FirstOffset: pidFirst[i+1]})
	}
	return out
}

// show writes chunks as "base-next/epoch", skipped ones in parentheses, with
// h<hole>, o(pen), r(enumbered), l(og append).
func show(cs []chunk) string {
	var out []string
	for _, c := range cs {
		s := fmt.Sprintf("%d-%d/%d", c.base, c.next, c.epoch)
		if c.batch == nil {
			out = append(out, "("+s+")")
			continue
		}
		if c.stamp.Hole > 0 {
			s += fmt.Sprintf("h%d", c.stamp.Hole)
		}
		for _, f := range []struct {
			bit  uint8
			name string
		}{{epoch.FlagOpen, "o"}, {epoch.FlagRenumbered, "r"}, {epoch.FlagLogAppend, "l"}} {
			if c.stamp.Flags&f.bit != 0 {
				s += f.name
			}
		}
		out = append(out, s)
	}
	return strings.Join(out, " ")
}

func walkAll(st *walkState, known int32, records []byte, ab abortedList) (string, walkStop) {
	var cs []chunk
	stop := walkRecords(st, known, records, ab, func(c chunk) { cs = append(cs, c) })
	return show(cs), stop
}

func TestWalkRecords(t *testing.T) {
	fresh := walkState{epoch: -1}
	for _, tc := range []struct {
		name    string
		st      walkState
		known   int32
		records []byte
		aborted abortedList
		want    string
		stop    stopKind
		base    int64
		after   int64
	}{
		{"nothing", fresh, 9, nil, nil, "", stopNone, 0, 0},
		{"plain", fresh, 9, join(rawBatch{base: 0, n: 3}, rawBatch{base: 3, n: 2, epoch: 1}), nil, "0-3/0 3-5/1", stopNone, 0, 5},
		{"partial tail", fresh, 9, join(rawBatch{base: 0, n: 3}, rawBatch{base: 3, n: 2})[:130], nil, "0-3/0", stopNone, 0, 3},
		{"only a part of a batch", fresh, 9, join(rawBatch{base: 0, n: 3})[:40], nil, "", stopCorrupt, 0, 0},
		{
			"committed transaction", fresh, 9,
			join(rawBatch{base: 0, n: 2, pid: 7, txn: true}, rawBatch{base: 2, n: 1, pid: 7, control: true}, rawBatch{base: 3, n: 1}),
			nil, "0-2/0o (2-3/0) 3-4/0h1", stopNone, 0, 4,
		},
		{
			"aborted transaction", fresh, 9,
			join(rawBatch{base: 0, n: 2, pid: 7, txn: true}, rawBatch{base: 2, n: 1, pid: 7, control: true, abort: true}, rawBatch{base: 3, n: 1}),
			aborted(7, 0), "(0-3/0) 3-4/0h3", stopNone, 0, 4,
		},
		{
			"interleaved", fresh, 9,
			join(
				rawBatch{base: 0, n: 1, pid: 7, txn: true}, // aborted
				rawBatch{base: 1, n: 1, pid: 8, txn: true}, // committed
				rawBatch{base: 2, n: 1, pid: 7, txn: true}, // aborted
				rawBatch{base: 3, n: 1, pid: 9},            // idempotent, not transactional
				rawBatch{base: 4, n: 1, pid: 8, control: true},
				rawBatch{base: 5, n: 1, pid: 7, control: true, abort: true},
				rawBatch{base: 6, n: 1, pid: 7, txn: true}, // the next one, committed
				rawBatch{base: 7, n: 1, pid: 7, control: true},
			),
			aborted(7, 0), "(0-1/0) 1-2/0h1o (2-3/0) 3-4/0h1o (4-6/0) 6-7/0h2o (7-8/0)", stopNone, 0, 8,
		},
		{
			"same producer aborts, commits, aborts; list unordered and with one beyond", fresh, 9,
			join(
				rawBatch{base: 0, n: 1, pid: 7, txn: true}, rawBatch{base: 1, n: 1, pid: 7, control: true, abort: true},
				rawBatch{base: 2, n: 1, pid: 7, txn: true}, rawBatch{base: 3, n: 1, pid: 7, control: true},
				rawBatch{base: 4, n: 1, pid: 7, txn: true}, rawBatch{base: 5, n: 1, pid: 7, control: true, abort: true},
			),
			aborted(7, 4, 7, 0, 9, 100), "(0-2/0) 2-3/0h2o (3-6/0)", stopNone, 0, 6,
		},
		{
			"a transaction that began before the position",
			walkState{position: 10, floor: 10, chainEnd: 10, epoch: 2},
			9,
			join(rawBatch{base: 10, n: 1, pid: 7, txn: true, epoch: 2}, rawBatch{base: 11, n: 1, pid: 7, control: true, abort: true, epoch: 2}, rawBatch{base: 12, n: 1, epoch: 2}),
			aborted(7, 3), "(10-12/2) 12-13/2h2", stopNone, 0, 13,
		},
		{
			"emptied by the cleaner: data, marker, aborted data gone", fresh, 9,
			join(
				rawBatch{base: 2, n: 3, empty: true, pid: 5},
				rawBatch{base: 5, n: 1, empty: true, pid: 7, control: true, abort: true},
				rawBatch{base: 9, n: 1, epoch: 1},
			),
			aborted(7, 3), "(2-6/0) 9-10/1h9", stopNone, 0, 10,
		},
		{"holes", fresh, 9, join(rawBatch{base: 2, n: 3, holes: true, lastHole: 1}, rawBatch{base: 8, n: 1}), nil, "2-8/0h2r 8-9/0h3", stopNone, 0, 9},
		{"log append time", fresh, 9, join(rawBatch{base: 0, n: 3, logTime: true}), nil, "0-3/0l", stopNone, 0, 3},
		{"a control batch has its own epoch", fresh, 9, join(rawBatch{base: 0, n: 1}, rawBatch{base: 1, n: 1, pid: 7, control: true, epoch: 3}, rawBatch{base: 2, n: 1, pid: 8, control: true, epoch: 4}), nil, "0-1/0 (1-2/3) (2-3/4)", stopNone, 0, 3},
		{"hole of 254", fresh, 9, join(rawBatch{base: 254, n: 1}), nil, "254-255/0h254", stopNone, 0, 255},
		{"hole of 255", fresh, 9, join(rawBatch{base: 255, n: 1}), nil, "255-256/0h255", stopNone, 0, 256},
		{"hole of a million", fresh, 9, join(rawBatch{base: 1e6, n: 1}), nil, "1000000-1000001/0h255", stopNone, 0, 1e6 + 1},
		{"UL-03 epoch above the one asked with", fresh, 3, join(rawBatch{base: 0, n: 1, epoch: 3}, rawBatch{base: 1, n: 1, epoch: 4}), nil, "0-1/3", stopNewerEpoch, 1, 1},
		{"no check without a known epoch", fresh, -1, join(rawBatch{base: 0, n: 1, epoch: 4}), nil, "0-1/4", stopNone, 0, 1},
		{"epochs fall", fresh, 9, join(rawBatch{base: 0, n: 1, epoch: 3}, rawBatch{base: 1, n: 1, epoch: 2}), nil, "0-1/3", stopEpochFell, 1, 1},
		{"H18 stamped", fresh, 9, join(rawBatch{base: 0, n: 1}, rawBatch{base: 1, n: 1, pid: -3}), nil, "0-1/0", stopBareMirror, 1, 1},
		{"F8 log start inside a batch", walkState{position: 6, floor: 6, chainEnd: 6, epoch: -1}, 9, join(rawBatch{base: 5, n: 3}), nil, "", stopRebase, 5, 6},
		{"F8 after the cut", walkState{position: 6, floor: 5, chainEnd: 5, epoch: -1}, 9, join(rawBatch{base: 5, n: 3}, rawBatch{base: 8, n: 1}), nil, "5-8/0 8-9/0", stopNone, 0, 9},
		{"M9 wholly mirrored already", walkState{position: 8, floor: 8, chainEnd: 8}, 9, join(rawBatch{base: 5, n: 3}, rawBatch{base: 8, n: 1}), nil, "8-9/0", stopNone, 0, 9},
		{"M9 partly mirrored", walkState{position: 6, floor: 6, chainEnd: 6}, 9, join(rawBatch{base: 5, n: 3}), nil, "", stopRebase, 5, 6},
		{"a marker that the position lies in", walkState{position: 6, floor: 6, chainEnd: 6}, 9, join(rawBatch{base: 5, n: 3, empty: true}), nil, "(6-8/0)", stopNone, 0, 8},
		{"corrupt length", fresh, 9, append(join(rawBatch{base: 0, n: 1}), append(make([]byte, 16), append([]byte{2}, make([]byte, 80)...)...)...), nil, "0-1/0", stopCorrupt, 1, 1},
		{"offset beyond a stamp", walkState{position: 1 << 50, floor: 1 << 50, chainEnd: 1 << 50}, 9, join(rawBatch{base: 1 << 50, n: 1}), nil, "", stopOffsetRange, 1 << 50, 1 << 50},
		{"M11 nothing known about what was begun before", walkState{position: 4, floor: 4, chainEnd: 4, open: openTxns{until: 7}}, 9, join(rawBatch{base: 4, n: 2}, rawBatch{base: 6, n: 1}), nil, "4-6/0o 6-7/0", stopNone, 0, 7},
	} {
		t.Run(tc.name, func(t *testing.T) {
			st := tc.st
			before := string(tc.records)
			got, stop := walkAll(&st, tc.known, tc.records, tc.aborted)
			require.Equal(t, tc.want, got)
			require.Equal(t, tc.stop, stop.kind, "%v", stop.err)
			if stop.kind != stopNone {
				require.Equal(t, tc.base, stop.base)
			}
			require.Equal(t, tc.after, st.position)
			require.Equal(t, before, string(tc.records), "input changed")
		})
	}
	t.Run("message format v1", func(t *testing.T) {
		b := rawBatch{base: 0, n: 1}.bytes()
		b[16] = 1
		_, stop := walkAll(&walkState{epoch: -1}, 9, b, nil)
		require.Equal(t, stopOldFormat, stop.kind)
		// Elsewhere it is no message, just bytes.
		_, stop = walkAll(&walkState{position: 5, epoch: -1}, 9, b, nil)
		require.Equal(t, stopCorrupt, stop.kind)
		b[16] = 7
		_, stop = walkAll(&walkState{epoch: -1}, 9, b, nil)
		require.Equal(t, stopCorrupt, stop.kind)
	})
	t.Run("the first batch is never a partial one", func(t *testing.T) {
		b := rawBatch{base: 0, n: 1}.bytes()
		_, stop := walkAll(&walkState{epoch: -1}, 9, b[:len(b)-1], nil)
		require.Equal(t, stopCorrupt, stop.kind)
	})
}

// TestWalkRecordsSplit: however an answer is cut into several, and wherever a
// batch is cut off, the chunks and the chain are the same.
func TestWalkRecordsSplit(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 300 {
		var all []rawBatch
		var list abortedList
		var ends []int64 // of the markers: a broker doesn't list what ended before an answer
		off, e := int64(0), int32(0)
		open := map[int64]int64{} // pid -> first offset
		for range 30 {
			b := rawBatch{base: off, n: 1 + rng.IntN(4), epoch: e}
			pid := int64(1 + rng.IntN(3))
			switch rng.IntN(7) {
			case 0:
				e++
				continue
			case 1:
				off += int64(rng.IntN(300))
				continue
			case 2, 3:
				b.pid, b.txn = pid, true
				if _, ok := open[pid]; !ok {
					open[pid] = off
				}
			case 4:
				first, ok := open[pid]
				if !ok {
					continue
				}
				b.n, b.pid, b.control, b.abort = 1, pid, true, rng.IntN(2) == 0
				if b.abort {
					list, ends = append(list, aborted(pid, first)...), append(ends, off)
				}
				delete(open, pid)
			case 5:
				b.holes = b.n > 1
			}
			all = append(all, b)
			off = b.bytes().NextOffset()
		}
		whole := walkState{epoch: -1}
		want, stop := walkAll(&whole, math.MaxInt32, join(all...), append(abortedList(nil), list...))
		require.Equal(t, stopNone, stop.kind)

		parts := walkState{epoch: -1}
		var cs []chunk
		for parts.position < whole.position {
			// As a broker answers: from the batch that holds the position.
			var answer []byte
			n := 1 + rng.IntN(4)
			for _, b := range all {
				x := b.bytes()
				if x.NextOffset() > parts.position && n > 0 {
					answer = append(answer, x...)
					n--
				}
			}
			cut := len(all[0].bytes())
			if len(answer) > 2*cut && rng.IntN(2) == 0 {
				answer = answer[:len(answer)-1-rng.IntN(20)]
			}
			at := parts.position
			var some abortedList
			for i := range list {
				if ends[i] >= at {
					some = append(some, list[i])
				}
			}
			stop := walkRecords(&parts, math.MaxInt32, answer, some, func(c chunk) { cs = append(cs, c) })
			require.Equal(t, stopNone, stop.kind)
			if parts.position == at {
				t.Fatal("stands still")
			}
		}
		// Skipped stretches may be split differently; data may not.
		data := func(s string) (out []string) {
			for _, f := range strings.Fields(s) {
				if f[0] != '(' {
					out = append(out, f)
				}
			}
			return out
		}
		require.Equal(t, data(want), data(show(cs)))
		require.Equal(t, whole.position, parts.position)
		require.Equal(t, whole.chainEnd, parts.chainEnd)
	}
}
