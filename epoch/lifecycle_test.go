package epoch

// Commands of testdata/*.txt for the life of a mirror.

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	"github.com/stretchr/testify/require"
)

// words of a line: plain ones and key=value.
type words struct {
	w  []string
	kv map[string]string
}

func parseWords(line string) words {
	w := words{kv: map[string]string{}}
	for _, f := range strings.Fields(line) {
		if k, v, ok := strings.Cut(f, "="); ok {
			w.kv[k] = v
		} else {
			w.w = append(w.w, f)
		}
	}
	return w
}

func (w words) n(key string, def int64) int64 {
	v, ok := w.kv[key]
	if !ok {
		return def
	}
	n, err := strconv.ParseInt(v, 10, 64)
	if err != nil {
		panic(key + ": " + err.Error())
	}
	return n
}

func (w words) has(x string) bool {
	for _, y := range w.w {
		if x == y {
			return true
		}
	}
	return false
}

func (w words) list(key string) []string {
	if w.kv[key] == "" {
		return nil
	}
	return strings.Split(w.kv[key], ",")
}

func (w words) chain(t *testing.T, key string) Chain {
	return parseChain(t, strings.Join(w.list(key), " "))
}

// parsePairs: `A/t/l(1,2);B/t/l(3,4)`.
func parsePairs(s string) []Pair {
	var out []Pair
	for _, f := range strings.Split(s, ";") {
		if f == "" {
			continue
		}
		id, at, _ := strings.Cut(strings.TrimSuffix(f, ")"), "(")
		i := strings.Split(id, "/")
		p := Pair{Cluster: i[0], TopicID: i[1], Lineage: i[2]}
		if _, err := fmt.Sscanf(at, "%d,%d", &p.LME, &p.LMO); err != nil {
			panic(f)
		}
		out = append(out, p)
	}
	return out
}

func dumpPairs(ps []Pair) string {
	if len(ps) == 0 {
		return "no pairs"
	}
	var f []string
	for _, p := range ps {
		f = append(f, fmt.Sprintf("%s/%s/%s(%d,%d)", p.Cluster, p.TopicID, p.Lineage, p.LME, p.LMO))
	}
	return strings.Join(f, ";")
}

// parseIdentity: `A/t/l` and past=l0:50,l1:70.
func parseIdentity(s string, w words) Identity {
	i := strings.Split(s, "/")
	id := Identity{Cluster: i[0], TopicID: i[1], Lineage: i[2]}
	for _, p := range w.list("past") {
		l, n, _ := strings.Cut(p, ":")
		b, _ := strconv.ParseInt(n, 10, 64)
		id.Before = append(id.Before, Past{l, b})
	}
	return id
}

func parseRecord(w words) *SourceRecord {
	r := &SourceRecord{
		Reading: Present, State: State(w.kv["state"]), Before: w.has("before"), From: w.kv["from"], Path: w.list("path"),
		Lineage: w.kv["lineage"], TopicID: w.kv["topic"], Pairs: parsePairs(w.kv["pairs"]), Err: "key t/0",
	}
	for name, v := range map[string]Reading{"absent": Absent, "unreadable": Unreadable, "garbled": Garbled} {
		if w.has(name) {
			r.Reading = v
		}
	}
	return r
}

// lifecycle runs the commands of this file; false: not one of them.
func (s *scenario) lifecycle(t *testing.T, d *datadriven.TestData) (string, bool) {
	switch d.Cmd {
	case "align":
		return s.alignTable(t, d), true
	case "stopping":
		return s.stopTable(t, d), true
	case "source-says":
		return truncTable(t, d), true
	case "fence":
		return s.fenceTable(d), true
	case "loop":
		return loopTable(d), true
	case "pairs":
		return s.pairTable(t, d), true
	case "await":
		return awaitTable(d), true
	case "native-lost":
		if r := s.l.NativeLost(parseChain(t, d.Input), num(d, "pend", 0)); r != nil {
			return fmt.Sprintf("lost: new native span from p%d under %d", r.P, r.PEpoch) + map[bool]string{true: ", or further down"}[r.Partial], true
		}
		return "whole", true
	case "repair":
		b, err := Book{Log: s.l, State: StateStopped}.Repair(Repair{P: num(d, "p", 0), PEpoch: int32(num(d, "pe", 0))}, num(d, "end", 0))
		require.NoError(t, err)
		s.l = b.Log
		return dumpLog(s.l), true
	case "join":
		s.l = s.l.Join(parseChain(t, d.Input))
		return dumpLog(s.l), true
	case "chain-walk":
		return chainWalk(t, d), true
	case "opening-batch":
		o := Opening{LMO: num(d, "lmo", 0), Bump: int32(num(d, "bump", 0)), Chain: parseChain(t, d.Input), Gen: int16(num(d, "gen", 0))}
		s.l = o.Log(num(d, "pend", 0), int32(num(d, "pe", 0)))
		require.NoError(t, s.l.Validate())
		return o.Key() + "\n" + dumpLog(s.l), true
	case "clusters":
		s.clusters(d)
		return "", true
	case "do":
		return s.do(t, d), true
	}
	return "", false
}

func (s *scenario) alignTable(t *testing.T, d *datadriven.TestData) string {
	var us, src Identity
	a := &Alignment{Book: Book{State: StateLogAlignment, Log: s.l}, GateClosed: true, Away: -1, AwaySource: -1}
	var source words
	for _, line := range lines(d.Input) {
		w := parseWords(line)
		switch w.w[0] {
		case "us":
			us = parseIdentity(w.w[1], w)
			a.Book.Self = us
		case "own":
			a.Book.Pairs = parsePairs(w.kv["pairs"])
		case "source":
			source = w
			src = parseIdentity(w.w[1]+"/", w)
			a.Cluster, a.TopicID = src.Cluster, src.TopicID
			a.Record = parseRecord(w)
		case "local":
			a.Local = &LocalLog{
				PEnd: w.n("pend", 0), PEpoch: int32(w.n("pe", 0)), VStart: w.n("start", 0), VEnd: w.n("end", 0), LSO: w.n("lso", w.n("end", 0)),
				LSOBehind: w.kv["lso"] != "", LiveNative: w.has("native"), Broker: w.chain(t, "broker"), NoChain: w.has("nochain"),
			}
			if w.kv["answer"] != "" {
				e := w.chain(t, "answer")[0]
				a.Local.EpochEnd = &e
			}
		case "opt":
			a.Discard, a.Compacted, a.Taken = w.has("discard-local"), w.has("compacted"), w.has("taken")
			a.Book.Lacks, a.Book.Plain = w.has("lacks"), w.has("plain")
			a.GateClosed = !w.has("gate-open")
			a.Away, a.AwaySource, a.KeepTombs = w.n("away", -1), w.n("away", -1), w.n("keep", 0)
			if _, ok := w.kv["rounded"]; ok {
				n := w.n("rounded", 0)
				a.Rounded = &n
			}
		}
	}
	st := a.Next()
	if st.Do == AlignRound && a.Rounded == nil {
		a.Rounded = &st.T
		st = a.Next()
	}
	switch st.Do {
	case AlignCut:
		out := fmt.Sprintf("cut to %d by %s %s", st.T, st.Holder, st.Pair)
		if st.Empty {
			out = fmt.Sprintf("drop the log, by %s %s", st.Holder, st.Pair)
		}
		if st.Live {
			out += ", live records go"
		}
		if st.Shadow {
			out += ", as a shadow generation"
		}
		if d.HasArg("apply") {
			g, err := s.l.NextGeneration(nil)
			require.NoError(t, err)
			b, err := a.Cut(st, source.n("start", 0), g, "new")
			require.NoError(t, err)
			s.l = b.Log
			out += "\n" + dumpLog(s.l) + "\n" + dumpPairs(b.Pairs) + fmt.Sprintf("\nlineage %s before %v", b.Self.Lineage, b.Self.Before)
		}
		return out
	case AlignFail:
		return fmt.Sprintf("FAILED, retry %v: %s", st.Retry, st.Why)
	case AlignAskEpoch:
		return fmt.Sprintf("ask the own leader for the end of epoch %d", st.Epoch)
	}
	out := map[AlignAction]string{
		AlignGate: "wait for the gate", AlignReadLocal: "read the log again", AlignReadPair: "read the source's ledger", AlignRepair: "repair the native span",
		AlignWait: "wait", AlignEndTxns: "end open transactions", AlignInstances: "wait for the instances", AlignMirror: "MIRRORING",
	}[st.Do]
	if st.Why != "" {
		out += ": " + st.Why
	}
	return out
}

func (s *scenario) stopTable(t *testing.T, d *datadriven.TestData) string {
	st := &Stop{Book: Book{State: StateStopping, Log: s.l, Source: Identity{Cluster: "S", TopicID: "t", Lineage: "l"}}, BumpStep: int32(num(d, "step", 1))}
	var out []string
	for _, line := range lines(d.Input) {
		w := parseWords(line)
		switch w.w[0] {
		case "own":
			st.Book.Pairs = parsePairs(w.kv["pairs"])
			continue
		case "quiet":
			st.Quiet = true
		case "plain":
			st.Book.Plain = true
		case "leader":
			st.Leader = int32(w.n("pe", 0))
		case "read":
			st.Opened = nil
			st.Leader = int32(w.n("pe", 0))
			st.Read = &StopReading{PEpoch: st.Leader, PEnd: w.n("pend", 0), Broker: w.chain(t, "broker"), Recovered: Recovered{
				Position: w.n("position", 0), Open: w.has("open"), ClosedV: w.n("closed", -1),
			}}
			if w.has("dead") {
				st.Read.Recovered.Dead.Foreign = 1
			}
		case "opened":
			st.Opened = &StopOpened{PEnd: w.n("pend", 0), PEpoch: int32(w.n("pe", 0))}
			st.Unstable = w.has("unstable")
		case "compacted":
			st.Compacted = true
		case "crash":
			st = &Stop{Book: st.Book, BumpStep: st.BumpStep}
		}
		step := st.Next()
		o := map[StopAction]string{
			StopQuiesce: "stop fetching and writing", StopRead: "read the log again", StopClosed: "look further back for a closed batch", StopRebuild: "copy what is shown behind what is dead", StopCopy: "copy on",
			StopOpen: "append the span-opening batch", StopWaitTxns: "wait for open transactions", StopWrite: "STOPPED",
		}[step.Do]
		switch step.Do {
		case StopOpen:
			o += fmt.Sprintf(": LMO %d, LME %d, bump %d", step.Opening.LMO, step.Opening.LME, step.Opening.Bump)
		case StopWrite:
			o += fmt.Sprintf(", pair %s\n%s\n%s", step.Pair, dumpLog(step.Book.Log), dumpPairs(step.Book.Pairs))
			require.NoError(t, step.Book.Log.Validate())
			if d.HasArg("apply") {
				s.l = step.Book.Log
			}
		}
		if step.Again {
			o += ", all of it"
		}
		out = append(out, line+" → "+o)
	}
	return strings.Join(out, "\n")
}

func truncTable(t *testing.T, d *datadriven.TestData) string {
	x := &Truncation{
		Position: num(d, "position", 0), VEnd: num(d, "end", num(d, "position", 0)), Start: num(d, "start", 0),
		Support: d.HasArg("support"), Compacted: d.HasArg("compacted"),
	}
	x.RereadEnd = num(d, "reread", x.Position)
	var out []string
	for _, line := range lines(d.Input) {
		f := strings.Fields(line)
		var a, b int64
		if len(f) > 1 {
			a, _ = strconv.ParseInt(f[1], 10, 64)
		}
		if len(f) > 2 {
			b, _ = strconv.ParseInt(f[2], 10, 64)
		}
		switch f[0] {
		case "chain":
			x.Chain = parseChain(t, strings.Join(f[1:], " "))
			continue
		case "diverging":
			x.Diverging(int32(a), b)
		case "out-of-range":
			x.OutOfRange()
		case "range":
			x.Ranged(a, b)
		case "unstable":
			x.Unstable()
		case "stable":
			x.Stable(a)
		case "ask":
			x.Ask()
		}
		st := x.Next()
		o := map[TruncAction]string{TruncGoOn: "go on", TruncAskLSO: "ask its stable offset", TruncAskEnds: "ask its start and end"}[st.Do]
		switch st.Do {
		case TruncAskEnd:
			o = fmt.Sprintf("ask the end of epoch %d", st.Epoch)
		case TruncCut:
			o = fmt.Sprintf("cut to %d and go on", st.T)
		case TruncULE:
			o = fmt.Sprintf("cut to %d, ULE_RECOVERY", st.T)
		case TruncShadow:
			o = fmt.Sprintf("mirror anew as a shadow generation, cut %d", st.T)
		case TruncRestart:
			o = fmt.Sprintf("restart at %d: %s", st.T, st.Why)
		case TruncFail:
			o = "FAILED: " + st.Why
		}
		out = append(out, line+" → "+o)
	}
	return strings.Join(out, "\n")
}

func (s *scenario) fenceTable(d *datadriven.TestData) string {
	pe := int32(num(d, "pe", 0))
	var out []string
	for _, f := range strings.Fields(d.Input) {
		e, _ := strconv.Atoi(f)
		v := s.l.FenceFor(int32(e), pe)
		n := s.l.Raised(int32(e), pe, int32(num(d, "headroom", int64(FenceHeadroom))))
		out = append(out, fmt.Sprintf("%s → %s, shown %d", f, [...]string{"", "append", "append, raise later", "EPOCH_FENCING first"}[v], n.Shown(pe)))
	}
	return strings.Join(out, "\n")
}

func loopTable(d *datadriven.TestData) string {
	var out []string
	for _, line := range lines(d.Input) {
		usLine, srcLine, _ := strings.Cut(line, "|")
		u, w := parseWords(usLine), parseWords(srcLine)
		r := parseRecord(w)
		if r.From == "" && len(r.Path) > 0 {
			r.From = r.Path[0]
		}
		v := CheckLoop(u.w[0], u.has("before"), w.w[0], *r)
		out = append(out, fmt.Sprintf("%s → %s", line, [...]string{"", "go on", "wait", "FAILED mirror loop"}[v]))
	}
	return strings.Join(out, "\n")
}

func (s *scenario) pairTable(t *testing.T, d *datadriven.TestData) string {
	var out []string
	var ps []Pair
	for _, line := range lines(d.Input) {
		w := parseWords(line)
		switch w.w[0] {
		case "pairs":
			ps = parsePairs(w.w[1])
			continue
		case "for":
			out = append(out, line+" → "+ValidPair(ps, parseIdentity(w.w[1], w)).String())
		case "cut":
			ps = LowerPairs(ps, w.chain(t, "chain"), w.n("t", 0), w.has("empty"))
			out = append(out, line+" → "+dumpPairs(ps))
		case "set":
			ps = SetPair(ps, parsePairs(w.w[1])[0])
			out = append(out, line+" → "+dumpPairs(ps))
		case "renew":
			id := parseIdentity(w.w[1], w).Renew(w.w[2], w.n("t", 0))
			out = append(out, fmt.Sprintf("%s → %s before %v", line, id.Lineage, id.Before))
		}
	}
	return strings.Join(out, "\n")
}

func awaitTable(d *datadriven.TestData) string {
	var all []Instance
	for _, line := range lines(d.Input) {
		w := parseWords(line)
		all = append(all, Instance{ID: w.w[0], Taken: w.n("taken", 0), LeaseOver: w.has("away")})
	}
	ids := Awaited(all, num(d, "need", 0), d.HasArg("known"))
	if len(ids) == 0 {
		return "nobody"
	}
	return strings.Join(ids, " ")
}

func chainWalk(t *testing.T, d *datadriven.TestData) string {
	w := NewChainWalk(num(d, "start", 0), num(d, "end", 0))
	var out []string
	in := lines(d.Input)
	for i := 0; !w.Done() && i+1 < len(in); i += 2 {
		b, a := parseWords(in[i]), parseWords(in[i+1])
		read := w.Read()
		e := w.Batch(int32(b.n("e", 0)))
		w.Answer(a.n("end", 0))
		out = append(out, fmt.Sprintf("read at %d, ask for epoch %d", read, e))
	}
	require.True(t, w.Done())
	if d.HasArg("leads") {
		w.Leads(int32(num(d, "leads", 0)))
	}
	return strings.Join(out, "\n") + "\n" + dumpChain(w.Chain())
}

// ---- whole histories on the model clusters

func (s *scenario) clusters(d *datadriven.TestData) {
	var names []string
	for _, a := range d.CmdArgs {
		if len(a.Vals) == 0 {
			names = append(names, a.Key)
		}
	}
	s.trace = nil
	s.w = newSides(fataler{}, func(l string) { s.trace = append(s.trace, l) }, 3, names...)
	for _, x := range s.w.all {
		x.step, x.headroom = int32(num(d, "step", 1)), int32(num(d, "headroom", 0))
	}
}

type fataler struct{}

func (fataler) Fatalf(f string, a ...any) { panic(fmt.Sprintf(f, a...)) }

// do: one line an event, the answer is the trace of it with `trace`, else what
// `show` prints.
func (s *scenario) do(t *testing.T, d *datadriven.TestData) string {
	var out []string
	for _, line := range lines(d.Input) {
		w := parseWords(line)
		n := len(s.trace)
		if w.w[0] == "show" {
			for _, x := range s.w.all {
				out = append(out, x.show())
			}
			continue
		}
		s.event(t, line, s.w.by[w.w[0]], w)
		s.w.check()
		if d.HasArg("trace") || w.has("!") {
			out = append(out, s.trace[n:]...)
		}
	}
	return strings.Join(out, "\n")
}

func (s *scenario) event(t *testing.T, line string, c *side, w words) {
	arg := func() int {
		if len(w.w) > 2 {
			n, err := strconv.Atoi(w.w[2])
			require.NoError(t, err, line)
			return n
		}
		return 1
	}
	switch w.w[1] {
	case "write", "aborted", "marker":
		for range arg() {
			_, ok := c.write(1, w.w[1][0]-('w'-'d')*b2b(w.w[1] == "write")-('m'-'c')*b2b(w.w[1] == "marker"), !w.has("unacked"))
			require.True(t, ok, line)
		}
	case "batch":
		_, ok := c.write(int64(arg()), 'd', true)
		require.True(t, ok, line)
	case "foreign":
		b := c.k.append(kbatch{Batch: Batch{Count: 1}, kind: 'd'})
		c.k.leader().log[len(c.k.leader().log)-1].ids = s.w.newIDs(b.Count)
		c.k.sync()
	case "elect":
		for range arg() {
			i := (c.k.lead + 1) % 3
			for !c.k.isr[i] {
				i = (i + 1) % 3
			}
			require.True(t, c.k.elect(i, false))
		}
	case "unclean":
		was := c.k.losses
		c.k.elect(arg(), true)
		for _, x := range s.w.all {
			x.suspect = x.suspect || x != c && c.k.losses > was
		}
	case "leave":
		c.k.leave(arg())
	case "join":
		c.k.join(arg())
	case "start":
		c.discard, c.support = w.has("discard-local"), !w.has("unsupported")
		require.True(t, c.start(s.w.by[w.w[2]]), line)
	case "support":
		c.support = true
	case "align":
		for range int(w.n("steps", 50)) {
			was := c.book.State
			if !c.align() || was != c.book.State || c.own.alStep.Do == AlignWait {
				break
			}
		}
	case "drain":
		s.w.drain(c)
	case "mirror":
		for range arg() {
			c.mirror()
		}
	case "deliver":
		c.deliver(strings.Join(w.w[2:], " "))
	case "late":
		require.True(t, c.zombie(0))
	case "stop":
		c.stop()
		for range int(w.n("steps", 50)) {
			if c.book.State == StateStopping {
				c.stopStep(false)
			}
		}
	case "crash":
		c.crash()
	case "takeover":
		c.takeover()
	case "recover":
		c.recover()
	case "settle":
		c.settle()
	default:
		t.Fatalf("%s?", line)
	}
}

func b2b(b bool) byte {
	if b {
		return 1
	}
	return 0
}

func (s *side) show() string {
	var f []string
	for _, x := range s.live() {
		for v := x.V; v < x.VEnd; v++ {
			f = append(f, fmt.Sprintf("%d(%d)%s", v, x.Epoch, map[byte]string{'a': "aborted", 'c': "marker"}[x.kind]))
		}
	}
	out := fmt.Sprintf("%s %s: %s | chain %s, shown %d", s.name, s.book.State, strings.Join(f, " "), dumpChain(s.chain()), s.lead())
	for _, p := range s.book.Pairs {
		out += fmt.Sprintf(", pair for %s %s", p.Cluster, p)
	}
	if s.book.State == StateFailed {
		out += "\n  " + s.why
	}
	return out
}
