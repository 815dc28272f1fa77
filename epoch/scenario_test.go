package epoch

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	"github.com/stretchr/testify/require"
)

// TestScenarios runs testdata/*.txt: one scenario per hazard or rule, readable
// without the code. Notation: `0+3 v5 g1 e2 pe4` is a physical batch at p0 of
// 3 offsets, stamped v5, generation 1, source epoch 2, physical epoch 4
// (default 0); without v it is unstamped.
func TestScenarios(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, path := range files {
		t.Run(filepath.Base(path), func(t *testing.T) {
			s := &scenario{l: &Log{}}
			datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
				return s.run(t, d)
			})
		})
	}
}

// TestScenariosCoverHazards fails when a scenario of the list is removed.
func TestScenariosCoverHazards(t *testing.T) {
	have := map[string]bool{}
	files, err := filepath.Glob("testdata/*.txt")
	require.NoError(t, err)
	for _, f := range files {
		b, err := os.ReadFile(f)
		require.NoError(t, err)
		for _, m := range regexp.MustCompile(`(?m)^(?:scenario |# E3 \()id=([^\s)]+)`).FindAllStringSubmatch(string(b), -1) {
			have[m[1]] = true
		}
	}
	for _, id := range []string{
		"facts-1", "facts-2", "facts-3",
		"H1", "H2", "H3", "H5", "H6", "H11", "H12", "H14", "M1", "M2", "M7", "M8", "M9", "M11", "M22",
		"F2", "F3", "F4a", "F4b", "F4c", "F4d", "F6", "F7", "F8", "F9", "F12", "F13",
		"H15-shadow", "H15-loss", "H1-keep", "E1", "E2", "E3", "E4", "E5", "E6", "alignment", "stopping", "ule", "flip", "fencing", "H4", "H7", "H9", "H10", "H15", "H17",
		"H3-opening", "H5-stop", "H6-history", "M4", "M5", "M10", "M11-stop", "M14", "M18", "M18-both", "M25", "M26",
		"F1", "F1-stop", "F2-history", "F4d-ule", "F5", "F5-tail", "F6-stop", "F10", "F11", "F13-retry", "stop-below-start", "native-whole", "native-before",
	} {
		require.True(t, have[id], "no scenario for %s in testdata", id)
	}
}

type scenario struct {
	l    *Log
	sh   *Shadow
	phys []Batch
	c    Chain
	ix   *Index
	tx   *TimeIndex

	w     *sides
	trace []string
}

func (s *scenario) run(t *testing.T, d *datadriven.TestData) string {
	switch d.Cmd {
	case "scenario":
		*s = scenario{l: &Log{}}
		return ""
	case "log":
		s.l = parseLog(t, d.Input)
		if err := s.l.Validate(); err != nil {
			return err.Error()
		}
		return dumpLog(s.l)
	case "phys":
		s.phys = nil
		fallthrough
	case "append":
		for _, line := range lines(d.Input) {
			s.phys = append(s.phys, parseBatch(t, line))
		}
		return ""
	case "walk":
		return s.walk(d)
	case "recover":
		return s.recover(t, d)
	case "native-end":
		return fmt.Sprint(s.l.NativeEnd(num(d, "pend", 0)))
	case "endoffset":
		return s.endOffset(d)
	case "fetch":
		return s.fetch(t, d)
	case "truncate":
		return s.truncate(t, d)
	case "outofrange":
		a, at := OutOfRange(num(d, "position", 0), num(d, "start", 0), num(d, "end", 0))
		return fmt.Sprintf("%s at %d", [...]string{"", "go on", "cut", "restart"}[a], at)
	case "chain":
		return s.chain(t, d)
	case "allowed":
		return allowedTable(d)
	case "can":
		return canTable(d)
	case "index":
		return s.index(t, d)
	case "times":
		return s.times(t, d)
	case "seek":
		p, from, span := s.l.SeekV(s.ix, num(d, "v", 0))
		return fmt.Sprintf("read from p%d (v%d), span %d", p, from, span)
	case "skip":
		return fmt.Sprintf("p%d", s.l.SkipTo(num(d, "p", 0)))
	case "shown":
		return fmt.Sprintf("%d", s.l.Shown(int32(num(d, "pe", 0))))
	case "hw":
		last := Placed{}
		for _, x := range s.phys {
			if pl, v := s.l.Classify(x); x.P == num(d, "last", -1) && v == Live {
				last = pl
			}
		}
		return fmt.Sprintf("%d", s.l.HighWatermark(last, num(d, "hw", 0), num(d, "known", 0)))
	case "nextgen":
		return s.nextGen(d)
	case "beside", "work", "switch", "view-lost":
		return s.shadow(t, d)
	case "joined":
		return dumpChain(s.l.Joined(parseChain(t, d.Input)))
	}
	if out, ok := s.lifecycle(t, d); ok {
		return out
	}
	return s.change(t, d)
}

// shadow runs what is done to a log that is built beside s.l.
func (s *scenario) shadow(t *testing.T, d *datadriven.TestData) string {
	b, err := Book{Log: s.l, Shadow: s.sh}, error(nil)
	pend, pe, gen := num(d, "pend", 0), int32(num(d, "pe", 0)), int16(num(d, "gen", 0))
	switch d.Cmd {
	case "beside":
		b, err = b.Beside(ShadowStart{From: num(d, "from", 0), Keep: d.HasArg("keep"), Local: d.HasArg("local"), Target: num(d, "target", 0), PEnd: pend, PEpoch: pe, Gen: gen})
	case "work":
		b = b.WithWork(b.Work().WithEpoch(int32(num(d, "e", 0)), num(d, "start", 0)))
	case "view-lost":
		b, err = b.ViewLost(CutTo{T: num(d, "t", 0), PEnd: pend, PEpoch: pe, Gen: gen})
	case "switch":
		if pos := num(d, "position", -1); pos >= 0 && !b.Shadow.Due(pos, num(d, "source-end", -1)) {
			return "not yet"
		}
		b, err = b.Switch(num(d, "t", 0))
	}
	if err != nil {
		return err.Error()
	}
	require.NoError(t, b.ValidateShadow())
	s.l, s.sh = b.Log, b.Shadow
	out := "shown:\n" + dumpLog(s.l)
	if s.sh != nil {
		out += fmt.Sprintf("\nbeside, until %d:\n%s", s.sh.Target, dumpLog(&s.sh.Log))
	}
	return out
}

func (s *scenario) change(t *testing.T, d *datadriven.TestData) string {
	at, end, pe, gen := num(d, "t", 0), num(d, "pend", 0), int32(num(d, "pe", 0)), int16(num(d, "gen", 0))
	before := fmt.Sprintf("%+v", *s.l)
	var n *Log
	var err error
	switch d.Cmd {
	case "cut":
		if d.HasArg("live") {
			n, err = s.l.CutLive(at, end, pe, gen)
		} else {
			n, err = s.l.Cut(at, end, pe, gen)
		}
	case "open-native":
		n, err = s.l.OpenNative(at, end, pe, int32(num(d, "step", 1)))
	case "restart":
		n, err = s.l.Restart(num(d, "start", 0), end, pe, gen)
	case "epoch":
		n = s.l.WithEpoch(int32(num(d, "e", 0)), num(d, "start", 0))
	case "advance":
		n = s.l.AdvanceStart(num(d, "n", 0))
	case "drop-below":
		n = s.l.DropBelow(num(d, "p", 0))
	case "live-end":
		n = s.l.WithLiveEnd(num(d, "p", 0))
	default:
		t.Fatalf("unknown command %q", d.Cmd)
	}
	require.Equal(t, before, fmt.Sprintf("%+v", *s.l), "a change must not touch the old snapshot")
	if err != nil {
		return err.Error()
	}
	require.NoError(t, n.Validate())
	s.l = n
	return dumpLog(n)
}

func (s *scenario) walk(d *datadriven.TestData) string {
	w := s.l.Walk(num(d, "v", 0), !d.HasArg("loose")).Lenient(num(d, "lenient", 0))
	var b strings.Builder
	for _, x := range s.phys {
		if x.PEnd() <= num(d, "from", 0) {
			continue
		}
		pl, v := w.Next(x)
		fmt.Fprintf(&b, "p%-3d %s", x.P, v)
		if v == Live || v == Below {
			fmt.Fprintf(&b, " %d..%d(%d)", pl.V, pl.VEnd, pl.Epoch)
			if d.HasArg("spans") {
				fmt.Fprintf(&b, " span %d", pl.Span)
			}
		}
		b.WriteByte('\n')
	}
	fmt.Fprintf(&b, "end %d", w.V())
	if w.ChainEnd() != w.V() {
		fmt.Fprintf(&b, ", chain end %d", w.ChainEnd())
	}
	return b.String()
}

func (s *scenario) recover(t *testing.T, d *datadriven.TestData) string {
	in := RecoverInput{
		PStart: num(d, "pstart", 0), PEnd: num(d, "pend", 0), LeaderEpoch: int32(num(d, "pe", 0)),
		Unsure: d.HasArg("unsure"), UnsureBase: num(d, "unsure", 0), MayLand: d.HasArg("mayland"), CleanedBelow: num(d, "cleaned", 0),
	}
	if d.HasArg("cp-p") {
		v := num(d, "cp-v", 0)
		in.Checkpoint = &Checkpoint{
			Gen: int16(num(d, "cp-gen", 0)), V: v, ChainEnd: num(d, "cp-chain", v), P: num(d, "cp-p", 0),
			Position: num(d, "cp-position", v), Open: d.HasArg("cp-open"), Under: int16(num(d, "cp-under", 0)),
		}
	}
	r := s.l.Recover(in)
	var b strings.Builder
	for range 100 {
		from, to, ok := r.Next()
		if !ok {
			break
		}
		fmt.Fprintf(&b, "read [%d, %d)\n", from, to)
		for _, x := range s.phys {
			if x.PEnd() > from && x.P < to {
				r.Feed(x)
			}
		}
	}
	o := r.Result()
	if o.NeedVCount {
		fmt.Fprintf(&b, "needs the records of the batch at p%d\n", o.Last.P)
		for _, x := range s.phys {
			if x.P == o.Last.P {
				x.VCount = num(d, "vcount", 0)
				r.Feed(x)
			}
		}
		o = r.Result()
	}
	fmt.Fprintf(&b, "%s: end %d, position %d, chain end %d, live to p%d, last epoch %d", o.Basis, o.VEnd, o.Position, o.ChainEnd, o.LivePEnd, o.LastEpoch)
	for _, f := range []struct {
		on   bool
		name string
	}{{o.Open, "open"}, {o.Gap, "gap"}, {o.Lost, "lost"}} {
		if f.on {
			b.WriteString(", " + f.name)
		}
	}
	if o.Open {
		fmt.Fprintf(&b, ", closed at %d", o.ClosedV)
	}
	if d := o.Dead; d.Any() || d.SameAhead > 0 {
		fmt.Fprintf(&b, "\ndead behind live: %d same branch ahead, %d same branch below (from v%d), %d foreign", d.SameAhead, d.SameBelow, d.LowestV, d.Foreign)
	}
	if o.NewGeneration {
		b.WriteString("\nnew generation: " + o.Why)
	}
	require.Equal(t, o.NewGeneration, o.Why != "")
	return b.String()
}

func (s *scenario) endOffset(d *datadriven.TestData) string {
	var b strings.Builder
	for _, f := range strings.Fields(d.Input) {
		e, _ := strconv.Atoi(f)
		re, end := s.l.EndOffsetFrom(int32(e), num(d, "start", 0), num(d, "position", 0))
		fmt.Fprintf(&b, "%d → (%d, %d)\n", e, re, end)
	}
	return b.String()
}

func (s *scenario) fetch(t *testing.T, d *datadriven.TestData) string {
	base := FetchCheck{
		CurrentLeaderEpoch: -1, LastFetchedEpoch: -1, LeaderEpoch: int32(num(d, "shown", 0)), Start: num(d, "start", s.l.Start),
		VirtualEnd: num(d, "end", 0), Position: num(d, "position", num(d, "end", 0)),
	}
	base.EverShown = num(d, "evershown", base.Position)
	var b strings.Builder
	for _, line := range lines(d.Input) {
		c := base
		for _, f := range strings.Fields(line) {
			k, v, _ := strings.Cut(f, "=")
			n, err := strconv.ParseInt(v, 10, 64)
			require.NoError(t, err)
			switch k {
			case "offset":
				c.Offset = n
			case "current":
				c.CurrentLeaderEpoch = int32(n)
			case "last":
				c.LastFetchedEpoch = int32(n)
			}
		}
		a, e := s.l.CheckFetch(c)
		fmt.Fprintf(&b, "%s → %s", line, a)
		if a == FetchDiverging {
			fmt.Fprintf(&b, " (%d, %d)", e.Epoch, e.Start)
		} else {
			require.Equal(t, Entry{-1, -1}, e)
		}
		b.WriteByte('\n')
	}
	return b.String()
}

func (s *scenario) truncate(t *testing.T, d *datadriven.TestData) string {
	c := parseChain(t, d.Input)
	at, again := c.TruncateTo(int32(num(d, "epoch", 0)), num(d, "end", 0), num(d, "local", 0))
	if again {
		return fmt.Sprintf("cut to %d, ask again with epoch %d", at, c.Truncate(at).Newest())
	}
	return fmt.Sprintf("cut to %d, done", at)
}

func (s *scenario) chain(t *testing.T, d *datadriven.TestData) string {
	if d.Input != "" {
		s.c = parseChain(t, d.Input)
	}
	switch {
	case d.HasArg("assign"):
		s.c = s.c.Assign(int32(num(d, "assign", 0)), num(d, "at", 0))
	case d.HasArg("truncate"):
		s.c = s.c.Truncate(num(d, "truncate", 0))
	case d.HasArg("start"):
		s.c = s.c.AdvanceStart(num(d, "start", 0))
	}
	return dumpChain(s.c)
}

func (s *scenario) nextGen(d *datadriven.TestData) string {
	from, to := num(d, "used-from", 1), num(d, "used-to", 0)
	g, err := s.l.NextGeneration(func(g int16) bool { return int64(g) >= from && int64(g) <= to })
	if err != nil {
		return err.Error()
	}
	return strconv.Itoa(int(g))
}

func (s *scenario) index(t *testing.T, d *datadriven.TestData) string {
	if s.ix == nil {
		s.ix = NewIndex(int(num(d, "limit", 100)))
	}
	for _, line := range lines(d.Input) {
		var v, p int64
		_, err := fmt.Sscanf(line, "v%d p%d", &v, &p)
		require.NoError(t, err)
		s.ix.Add(v, p)
	}
	switch {
	case d.HasArg("cut"):
		s.ix.DropFromV(num(d, "cut", 0))
	case d.HasArg("lost"):
		s.ix.DropFrom(num(d, "lost", 0))
	case d.HasArg("below"):
		s.ix.DropBelow(num(d, "below", 0))
	}
	var b strings.Builder
	for _, x := range s.ix.s {
		fmt.Fprintf(&b, "v%d p%d\n", x.V, x.P)
	}
	return b.String()
}

func (s *scenario) times(t *testing.T, d *datadriven.TestData) string {
	if s.tx == nil {
		s.tx = NewTimeIndex(int(num(d, "limit", 100)))
	}
	var b strings.Builder
	for _, line := range lines(d.Input) {
		var p, ts int64
		_, err := fmt.Sscanf(line, "p%d ts%d", &p, &ts)
		require.NoError(t, err)
		if !s.tx.Add(p, ts) {
			fmt.Fprintf(&b, "p%d refused\n", p)
		}
	}
	switch {
	case d.HasArg("drop"):
		fmt.Fprintf(&b, "add again from p%d\n", s.tx.DropFrom(num(d, "drop", 0)))
	case d.HasArg("find"):
		p, ok := s.tx.FirstAtOrAbove(num(d, "find", 0))
		fmt.Fprintf(&b, "p%d %v\n", p, ok)
	case d.HasArg("max"):
		ts, p, ok := s.tx.Max()
		fmt.Fprintf(&b, "ts%d p%d %v\n", ts, p, ok)
	}
	return b.String()
}

func allowedTable(d *datadriven.TestData) string {
	var b strings.Builder
	for _, line := range lines(d.Input) {
		f := strings.Fields(line) // FROM TO [previous]
		ok := Allowed(State(f[0]), State(f[1]))
		if len(f) > 2 {
			ok = AllowedBack(State(f[0]), State(f[2]), State(f[1]))
		}
		fmt.Fprintf(&b, "%s: %s\n", line, map[bool]string{true: "yes", false: "no"}[ok])
	}
	return b.String()
}

func canTable(d *datadriven.TestData) string {
	var b strings.Builder
	for _, line := range lines(d.Input) {
		f := strings.Fields(line)
		var st []State
		for _, x := range f[1:] {
			st = append(st, State(x))
		}
		can := map[string]func(...State) bool{"start": CanStart, "pause": CanPause, "resume": CanResume, "delete": CanDelete}[f[0]]
		fmt.Fprintf(&b, "%s: %s\n", line, map[bool]string{true: "yes", false: "no"}[can(st...)])
	}
	return b.String()
}
