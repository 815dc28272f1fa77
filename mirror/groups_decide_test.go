package mirror

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/lockstep-kafka/lockstep/epoch"
	"github.com/lockstep-kafka/lockstep/internal/histories"
)

// groupLog is a mirrored log from 0 with a chain.
func groupLog(t require.TestingT, chain ...epoch.Entry) *epoch.Log {
	l, err := (&epoch.Log{}).Restart(0, 0, 0, 0)
	require.NoError(t, err)
	for _, e := range chain {
		l = l.WithEpoch(e.Epoch, e.Start)
	}
	return l
}

func at(l *epoch.Log, end int64) *groupBounds {
	return &groupBounds{log: l, start: l.Start, end: end, position: end, verified: -1}
}

func TestGroupDecisions(t *testing.T) {
	chain := []epoch.Entry{{Epoch: 2, Start: 0}, {Epoch: 4, Start: 100}, {Epoch: 6, Start: 995}}
	l := groupLog(t, chain...)
	cutLog, err := l.CutLive(500, 2000, 0, 1) // was 1040 long; epoch 6 is gone with the cut
	require.NoError(t, err)
	started := *l
	started.Start = 300
	verified := at(l, 1040)
	verified.verified = 9
	exact := at(l, 1040)
	exact.exact = true
	synced := func(src, dst groupOffset) *syncedOffset { return &syncedOffset{src, dst} }
	for _, x := range []struct {
		name     string
		src, dst groupOffset
		last     *syncedOffset
		b        *groupBounds
		cut      int64
		want     groupDecision
	}{
		{"inside the range: offset and epoch stay", groupOffset{200, 4}, noOffset, nil, at(l, 1040), -1, groupDecision{true, groupOffset{200, 4}, GroupSynced}},
		{"OT-03: offset 0 is an offset", groupOffset{0, -1}, noOffset, nil, at(l, 1040), -1, groupDecision{true, groupOffset{0, 2}, GroupSynced}},
		{"OT-01: above the end", groupOffset{2000, 6}, noOffset, nil, at(l, 1040), -1, groupDecision{true, groupOffset{1040, 6}, GroupSynced}},
		{"OT-25: below the start", groupOffset{100, 2}, noOffset, nil, at(&started, 1040), -1, groupDecision{true, groupOffset{300, 4}, GroupSynced}},
		{"without epoch: the chain's", groupOffset{100, -1}, noOffset, nil, at(l, 1040), -1, groupDecision{true, groupOffset{100, 2}, GroupSynced}},
		{"H13 (i): on the lost branch", groupOffset{1010, 4}, noOffset, nil, at(l, 1040), -1, groupDecision{true, groupOffset{995, 4}, GroupSynced}},
		{"H13 (i): synced before the cut", groupOffset{1010, 4}, groupOffset{1010, 4}, synced(groupOffset{1010, 4}, groupOffset{1010, 4}), at(l, 1040), -1, groupDecision{true, groupOffset{995, 4}, GroupSynced}},
		{"H13 (ii): moved here without epoch, then cut", groupOffset{110, 4}, groupOffset{120, -1}, nil, at(l, 1040), 105, groupDecision{true, groupOffset{110, 4}, GroupSynced}},
		{"H13 (ii): the source has no commit", noOffset, groupOffset{120, -1}, nil, at(l, 1040), 105, groupDecision{true, groupOffset{105, 4}, GroupSynced}},
		{"H13 (ii): an epoch of here that was cut", noOffset, groupOffset{600, 6}, nil, at(cutLog, 800), 500, groupDecision{true, groupOffset{500, 4}, GroupSynced}},
		{"epoch not mirrored yet", groupOffset{1040, 9}, noOffset, nil, at(l, 1040), -1, groupDecision{reason: GroupEpochUnknown}},
		{"OT-09: an epoch without records, position checked under it", groupOffset{1040, 9}, noOffset, nil, verified, -1, groupDecision{true, groupOffset{1040, 6}, GroupSynced}},
		{"OT-11: null", noOffset, noOffset, nil, at(l, 1040), -1, groupDecision{reason: GroupNull}},
		{"garbled", groupOffset{-7, 4}, noOffset, nil, at(l, 1040), -1, groupDecision{reason: GroupGarbled}},
		{"PX-077: the epoch that a group with a broken coordinator had", groupOffset{7, math.MinInt32}, noOffset, nil, at(l, 1040), -1, groupDecision{reason: GroupGarbled}},
		{"garbled epoch", groupOffset{7, -4}, noOffset, nil, at(l, 1040), -1, groupDecision{reason: GroupGarbled}},
		{"in step", groupOffset{200, 4}, groupOffset{200, 4}, nil, at(l, 1040), -1, groupDecision{false, groupOffset{200, 4}, GroupSynced}},
		{"only here, on what was cut, and nothing of the new branch has come yet (H13 ii)", noOffset, groupOffset{120, 4}, nil, at(groupLog(t, epoch.Entry{Epoch: 4, Start: 0}), 105), 105, groupDecision{commit: true, to: groupOffset{105, 4}, reason: GroupSynced}},
		{"moved here", groupOffset{200, 4}, groupOffset{201, 4}, nil, at(l, 1040), -1, groupDecision{reason: GroupMoved}},
		{"moved here since we synced", groupOffset{200, 4}, groupOffset{201, 4}, synced(groupOffset{200, 4}, groupOffset{200, 4}), at(l, 1040), -1, groupDecision{reason: GroupMoved}},
		{"the source passed it", groupOffset{202, 4}, groupOffset{201, 4}, nil, at(l, 1040), -1, groupDecision{true, groupOffset{202, 4}, GroupSynced}},
		{"M23: an end that lags", groupOffset{1000, 6}, groupOffset{1000, 6}, synced(groupOffset{1000, 6}, groupOffset{1000, 6}), at(groupLog(t, chain[:2]...), 900), -1, groupDecision{reason: GroupEpochUnknown}},
		{"M23: an end that lags, old epoch", groupOffset{990, 4}, groupOffset{990, 4}, synced(groupOffset{990, 4}, groupOffset{990, 4}), at(groupLog(t, chain[:2]...), 900), -1, groupDecision{reason: GroupEndBehind}},
		{"M23: the source's commit fell", groupOffset{150, 4}, groupOffset{200, 4}, synced(groupOffset{200, 4}, groupOffset{200, 4}), at(l, 1040), -1, groupDecision{true, groupOffset{150, 4}, GroupSynced}},
		{"M23: it fell, and the end lags behind even that", groupOffset{980, 4}, groupOffset{990, 4}, synced(groupOffset{990, 4}, groupOffset{990, 4}), at(groupLog(t, chain[:2]...), 900), -1, groupDecision{reason: GroupEndBehind}},
		{"the end is final: nothing may stand above it", groupOffset{1000, 6}, groupOffset{1050, 6}, nil, exact, -1, groupDecision{true, groupOffset{1000, 6}, GroupSynced}},
	} {
		t.Run(x.name, func(t *testing.T) { require.Equal(t, x.want, decideGroup(x.src, x.dst, x.last, x.b, x.cut)) })
	}
}

// A native span that a failback has cut is known from the ledger alone, also
// after a restart (H13 ii).
func TestH13CutOfNativeSpan(t *testing.T) {
	l := groupLog(t, epoch.Entry{Epoch: 4, Start: 0})
	native, err := l.OpenNative(100, 111, 0, 1000)
	require.NoError(t, err)
	back, err := native.CutLive(105, 131, 1, 1) // it had held 100…120
	require.NoError(t, err)
	var p groupPart
	p.look(*at(back, 200), 0, 1)
	require.EqualValues(t, 105, p.cut(0, groupOffset{120, -1}))
	require.EqualValues(t, -1, p.cut(0, groupOffset{121, -1}), "it had never reached that")
	require.EqualValues(t, -1, p.cut(1, groupOffset{120, -1}), "looked at since")
	whole, err := native.Cut(120, 131, 1, 1)
	require.NoError(t, err)
	var q groupPart
	q.look(*at(whole, 200), 0, 1)
	require.EqualValues(t, -1, q.cut(0, groupOffset{115, -1}), "nothing was cut")
	// And a cut between two looks.
	var r groupPart
	r.look(*at(native, 120), 0, 1)
	r.look(*at(back, 105), 0, 2)
	require.EqualValues(t, 105, r.cut(1, groupOffset{120, -1}))
	r.look(*at(back, 140), 0, 3)
	require.EqualValues(t, 105, r.cut(1, groupOffset{120, -1}), "until the group was looked at")
	require.EqualValues(t, -1, r.cut(2, groupOffset{120, -1}))
}

// groupWorld is a source log that loses tails to unclean elections, a mirror
// that follows it with a lag, a group on the source and the same group here.
type groupWorld struct {
	t        *rapid.T
	ids      int
	src      []groupRec
	epoch    int32
	mine     []groupRec // the mirrored records
	log      *epoch.Log
	gen      int16
	pEnd     int64
	commit   groupOffset
	read     []groupRec // what the group had read at the commit
	dst      groupOffset
	dstRead  []groupRec
	own      bool // dst is of a client here
	entry    groupEntry
	part     groupPart
	cycle    int32
	verified int32
}

type groupRec struct {
	id    int
	epoch int32
}

func common(a, b []groupRec) int64 {
	n := 0
	for n < len(a) && n < len(b) && a[n] == b[n] {
		n++
	}
	return int64(n)
}

func (w *groupWorld) write() {
	for range rapid.IntRange(1, 5).Draw(w.t, "n") {
		w.ids++
		w.src = append(w.src, groupRec{w.ids, w.epoch})
	}
}

// elect: clean or unclean.
func (w *groupWorld) elect() {
	if rapid.Bool().Draw(w.t, "unclean") {
		w.src = w.src[:rapid.IntRange(0, len(w.src)).Draw(w.t, "keep"):len(w.src)]
		w.src = append([]groupRec(nil), w.src...)
	}
	w.epoch += int32(rapid.IntRange(1, 2).Draw(w.t, "by"))
}

// follow mirrors up to some place, cutting first what the source lost.
func (w *groupWorld) follow() {
	same := common(w.src, w.mine)
	if same < int64(len(w.mine)) {
		w.gen++
		n, err := w.log.CutLive(same, w.pEnd, 0, w.gen)
		if err != nil {
			w.t.Fatal(err)
		}
		w.log, w.mine = n, append([]groupRec(nil), w.mine[:same]...)
	}
	w.verified = w.epoch
	to := rapid.IntRange(len(w.mine), len(w.src)).Draw(w.t, "to")
	for _, r := range w.src[len(w.mine):to] {
		if r.epoch != w.log.Chain.Newest() {
			w.log = w.log.WithEpoch(r.epoch, int64(len(w.mine)))
		}
		w.mine = append(w.mine, r)
		w.pEnd++
	}
}

// newGeneration: a take-over, nothing is cut.
func (w *groupWorld) newGeneration() {
	if w.log.Open().VStart == int64(len(w.mine)) {
		return
	}
	w.gen++
	n, err := w.log.Cut(int64(len(w.mine)), w.pEnd, 0, w.gen)
	if err != nil {
		w.t.Fatal(err)
	}
	w.log = n
}

func offsetOf(t *rapid.T, log []groupRec, latest int32) groupOffset {
	at := rapid.IntRange(0, len(log)).Draw(t, "at")
	c := groupOffset{int64(at), -1}
	if at > 0 && rapid.Bool().Draw(t, "epoch") {
		c.epoch = log[at-1].epoch
	} else if at == len(log) && rapid.Bool().Draw(t, "of the leader") {
		c.epoch = latest
	}
	return c
}

func (w *groupWorld) commitThere() {
	w.commit = offsetOf(w.t, w.src, w.epoch)
	w.read = append([]groupRec(nil), w.src[:w.commit.offset]...)
}

func (w *groupWorld) moveHere() {
	w.dst = offsetOf(w.t, w.mine, -1)
	w.dstRead, w.own = append([]groupRec(nil), w.mine[:w.dst.offset]...), true
}

// sync is one cycle for the one group. lag is how far behind the end known is.
func (w *groupWorld) sync() {
	w.cycle++
	end := int64(len(w.mine))
	b := groupBounds{log: w.log, end: end, position: end, verified: w.verified}
	if rapid.IntRange(0, 9).Draw(w.t, "stale") == 0 {
		b.end = rapid.Int64Range(0, end).Draw(w.t, "end")
		b.position = b.end
	}
	w.part.look(b, 0, w.cycle)
	e := &w.entry
	e.src = w.commit
	var last *syncedOffset
	if e.ours {
		last = &e.last
	}
	b = w.part.bounds
	cut := w.part.cut(e.looked, w.dst)
	d := decideGroup(w.commit, w.dst, last, &b, cut)
	e.looked = w.cycle
	was := w.dst
	if d.commit || d.reason == GroupSynced {
		if d.to.offset > b.end || d.to.offset < b.start {
			w.t.Fatalf("%+v lies outside [%d, %d]", d.to, b.start, b.end)
		}
		if re, off := w.log.EndOffsetFor(d.to.epoch, end); d.to.epoch >= 0 && (re < 0 || off < d.to.offset) {
			w.t.Fatalf("OT-23: a consumer at %+v would find a truncation (%d, %d): %v", d.to, re, off, w.log.Chain)
		}
	}
	if d.commit {
		// Never a step back but above a cut, or when the source's fell and this is
		// ours (M23).
		fell := last != nil && was == last.dst && w.commit.offset < last.src.offset
		lost := was.offset > common(w.dstRead, w.mine)
		cutBelow := cut >= 0 && was.offset > cut // without epoch it can't be told better
		if d.to.offset < was.offset && !fell && !lost && (was.epoch >= 0 || !cutBelow) {
			w.t.Fatalf("%+v went back to %+v: source %+v, last %+v, bounds %+v", was, d.to, w.commit, last, b)
		}
		w.dst, w.own = d.to, false
		w.dstRead = append([]groupRec(nil), w.mine[:d.to.offset]...)
	}
	if d.commit || d.reason == GroupSynced {
		e.inStep(timeZero, d.to)
		// H13 (i): nothing of the log here is skipped that the group had not read
		// there, if its commit has an epoch.
		if read := common(w.read, w.mine); w.commit.epoch >= 0 && w.commit.offset == int64(len(w.read)) && d.to.offset > read && w.commit.offset > 0 && w.read[len(w.read)-1].epoch == w.commit.epoch {
			w.t.Fatalf("%+v skips from %d on: source %+v, chain %v", d.to, read, w.commit, w.log.Chain)
		}
	}
}

// settle lets the mirror catch up: the group is exactly where it is on the
// source, unless it has moved here.
func (w *groupWorld) settle() {
	w.follow()
	for len(w.mine) != len(w.src) || common(w.src, w.mine) != int64(len(w.src)) {
		w.follow()
		if len(w.mine) < len(w.src) {
			w.write()
		}
	}
	w.cycle++
	end := int64(len(w.mine))
	w.part.look(groupBounds{log: w.log, end: end, position: end, verified: w.verified}, 0, w.cycle)
	var last *syncedOffset
	if w.entry.ours {
		last = &w.entry.last
	}
	d := decideGroup(w.commit, w.dst, last, &w.part.bounds, w.part.cut(w.entry.looked, w.dst))
	valid := common(w.read, w.src) == w.commit.offset
	if !valid || d.reason == GroupMoved && (w.own || w.dst.epoch < 0 || w.entry.ours) {
		return
	}
	if d.reason != GroupSynced || d.to.offset != w.commit.offset {
		w.t.Fatalf("%+v here, %+v there: %+v, chain %v, end %d, verified %d", w.dst, w.commit, d, w.log.Chain, end, w.verified)
	}
}

func TestGroupHistories(t *testing.T) {
	histories.Check(t, func(t *rapid.T) {
		l := groupLog(t)
		w := &groupWorld{t: t, log: l, commit: noOffset, dst: noOffset, verified: -1}
		w.write()
		w.commitThere()
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			switch rapid.IntRange(0, 7).Draw(t, "step") {
			case 0, 1:
				w.write()
			case 2:
				w.elect()
			case 3:
				w.follow()
			case 4:
				w.newGeneration()
			case 5:
				w.commitThere()
			case 6:
				w.moveHere()
			default:
				w.sync()
			}
		}
		w.settle()
	})
}

var timeZero = time.Unix(1_700_000_000, 0)
