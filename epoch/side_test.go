package epoch

// One Lockstep in front of one model cluster: its ledger (book), and the
// volatile owner, which acts by the package's decisions alone, one action per
// call, so that a crash can come between any two.

import (
	"fmt"
	"slices"
	"strings"
)

type side struct {
	w    *sides
	name string
	k    *kafka

	book           Book // durable
	path           []string
	why            string // of FAILED
	discard        bool
	support        bool
	step, headroom int32
	zombies        []kbatch // writes given up that may still land
	own            *owner

	shown     int32
	pairLoss  map[string]int // cluster → its losses when the pair about it was stored here
	baseLoss  int            // the source's losses when what we share with it was proven
	suspect   bool           // the source lost something since our last good fetch
	ownLost   bool           // or we did, since: an old tail may have come back with epochs that phase one lets pass
	valid     bool           // one good fetch since the alignment
	unsettled map[int]bool   // ids acknowledged here
	lineages  int
}

type owner struct {
	ready    bool // position is known
	pos      int64
	chainEnd int64
	last     int32
	inflight []kbatch
	doubt    bool
	al       *Alignment
	alStep   AlignStep
	st       *Stop
	readLoss int // losses when STOPPING read the log
	tr       *Truncation
}

func newSide(w *sides, name string, replicas int) *side {
	return &side{
		w: w, name: name, k: newKafka(replicas), step: 1, headroom: FenceHeadroom, support: true,
		book:     Book{State: StateUnknown, Log: &Log{}, Self: Identity{Cluster: name, TopicID: "t" + name}},
		pairLoss: map[string]int{}, unsettled: map[int]bool{},
	}
}

func (s *side) log() *Log {
	if s.book.Log.Open() == nil {
		return Adopt(nil, 0)
	}
	return s.book.Log
}

type lrec struct {
	Placed
	ids  []int
	kind byte
}

// live is the virtual log: what the package calls live in the confirmed log.
func (s *side) live() []lrec {
	l := s.log()
	w := l.Walk(l.Spans[0].VStart, true)
	var out []lrec
	for _, b := range s.k.read() {
		pl, v := w.Next(b.Batch)
		if v == Live && b.PEnd() > s.k.pStart {
			out = append(out, lrec{pl, b.ids, b.kind})
		}
	}
	return out
}

func (s *side) vStart() int64 {
	l := s.log()
	if lv := s.live(); len(lv) > 0 {
		v := lv[0].V
		if lv[0].P < s.k.pStart {
			v += s.k.pStart - lv[0].P
		}
		return max(v, l.Start)
	}
	return max(l.Start, s.vEnd())
}

func (s *side) vEnd() int64 {
	r := s.recovered(s.k.hw())
	return max(r.VEnd, s.log().Start)
}

// position shown: a native span that has no record yet begins at LMO.
func (s *side) position() int64 {
	if o := s.log().Open(); o.Kind == Native {
		return max(s.vEnd(), o.VStart)
	} else if s.own != nil && s.own.ready {
		return max(s.vEnd(), s.own.pos)
	}
	return s.vEnd()
}

// chain is the joined chain.
func (s *side) chain() Chain { return s.log().Joined(s.k.leader().epochs) }

func (s *side) lead() int32 { return s.log().Shown(s.k.pe) }

func (s *side) recovered(pEnd int64) Recovered {
	in := RecoverInput{PStart: s.k.pStart, PEnd: pEnd, LeaderEpoch: s.k.pe}
	in.MayLand = s.own == nil || s.own.doubt
	if l := s.log(); l.Open().Kind == Native && l.NativeLost(s.k.leader().epochs, s.k.leader().end()) == nil {
		v := l.NativeEnd(pEnd)
		return Recovered{VEnd: v, Position: v}
	}
	r := s.log().Recover(in)
	for range 200 {
		from, to, ok := r.Next()
		if !ok {
			return r.Result()
		}
		for _, b := range s.k.read() {
			if b.PEnd() > s.k.pStart && b.PEnd() > from && b.P < to {
				r.Feed(b.Batch)
			}
		}
	}
	panic("recovery does not end")
}

func (s *side) round(t int64) int64 {
	for _, b := range s.live() {
		if b.V < t && t < b.VEnd {
			return b.V
		}
	}
	return t
}

func (s *side) lineage() string {
	s.lineages++
	return fmt.Sprintf("%s%d", s.name, s.lineages)
}

func (s *side) gen() int16 {
	g, err := s.book.Log.NextGeneration(nil)
	s.w.no(err)
	return g
}

// settle looks for a loss below the native span (H4, F5), as the owner of a
// STOPPED partition does whenever the leader epoch has changed; until then the
// proxy refuses Produce and Fetch.
func (s *side) settle() {
	if s.book.Log.Open() == nil || s.book.State != StateStopped && (!s.book.BeforeCut() || s.book.State == StateStopping) {
		return
	}
	r := s.book.Log.NativeLost(s.k.leader().epochs, s.k.leader().end())
	if r == nil {
		return
	}
	s.repair(*r)
}

func (s *side) repair(r Repair) {
	b, err := s.book.Repair(r, s.recovered(min(r.P, s.k.hw())).VEnd)
	s.w.no(err)
	s.put(b, "repair: native span %v", b.Log.Open())
}

func (s *side) put(b Book, f string, a ...any) {
	if b.Log.Open() != nil {
		s.w.no(b.Log.Validate())
	}
	s.book = b
	s.w.stat[strings.Fields(f)[0]]++
	s.w.logf("%s: "+f, append([]any{s.name}, a...)...)
}

// ---- clients

// write is a client's Produce: acknowledged when every replica in sync has it.
func (s *side) write(n int64, kind byte, acked bool) (kbatch, bool) {
	if s.book.State != StateStopped && s.book.State != StateUnknown {
		return kbatch{}, false
	}
	s.settle()
	if kind == 'c' {
		n = 1
	}
	b := s.k.append(kbatch{Batch: Batch{Count: n, Control: kind == 'c'}, ids: s.w.newIDs(n), kind: kind})
	s.w.logf("%s: client writes p%d+%d %c %v under %d", s.name, b.P, n, kind, b.ids, s.k.pe)
	if !acked {
		return b, true
	}
	s.k.sync()
	lv := s.live()
	s.w.that(len(lv) > 0 && slices.Equal(lv[len(lv)-1].ids, b.ids), "%s: accepted client write %v is not in the virtual log", s.name, b.ids)
	if len(lv) > 0 {
		e := lv[len(lv)-1].Epoch
		s.w.that(e == s.lead(), "%s: client write has epoch %d, shown is %d", s.name, e, s.lead())
		if i := len(s.log().Spans) - 1; i > 0 {
			for _, x := range lv {
				s.w.that(x.Span == i || x.Epoch < e, "%s: native epoch %d is not above %d", s.name, e, x.Epoch)
			}
			for _, p := range s.book.Pairs {
				s.w.that(p.LME < e, "%s: native epoch %d is not above LME %d", s.name, e, p.LME)
			}
		}
	}
	if kind == 'd' {
		for _, id := range b.ids {
			s.unsettled[id] = true
		}
	}
	return b, true
}

// ---- lifecycle

func (s *side) start(src *side) bool {
	if !CanStart(s.book.State) {
		return false
	}
	s.settle()
	b := s.book
	if b.Log.Open() == nil {
		b.Log = Adopt(s.k.leader().epochs, s.vStart())
	}
	b, err := b.To(StateLogAlignment)
	s.w.no(err)
	b.Source = Identity{Cluster: src.name, TopicID: src.book.Self.TopicID}
	s.path = src.record().PathOf(src.name)
	s.valid = false
	s.own = &owner{}
	s.put(b, "LOG_ALIGNMENT with %s", src.name)
	return true
}

func (s *side) source() *side { return s.w.by[s.book.Source.Cluster] }

// record is the side's ledger record as the other cluster reads it.
func (s *side) record() SourceRecord {
	if s.book.State == StateUnknown {
		return SourceRecord{Reading: Absent}
	}
	return SourceRecord{
		Reading: Present, State: s.book.State, Before: s.book.BeforeCut(), From: s.book.Source.Cluster, Path: s.path,
		Lineage: s.book.Self.Lineage, Past: s.book.Self.Before, TopicID: s.book.Self.TopicID, Pairs: s.book.Pairs,
	}
}

func (s *side) stop() bool {
	b, err := s.book.To(StateStopping)
	if err != nil || s.own == nil || s.book.State == StateStopping {
		return false
	}
	s.own.al, s.own.tr = nil, nil
	s.put(b, "STOPPING")
	return true
}

func (s *side) fail(why string, retry bool) {
	b, err := s.book.To(StateFailed)
	s.w.no(err)
	s.why = why
	s.put(b, "FAILED (retry %v): %s", retry, why)
}

// recover is the operator's, and a retry: back to the state before.
func (s *side) recover() bool {
	if s.book.State != StateFailed || s.own == nil {
		return false
	}
	b, err := s.book.To(s.book.Previous)
	s.w.no(err)
	s.own.al = nil
	s.put(b, "back to %s", b.State)
	return true
}

func (s *side) crash() {
	if s.own == nil {
		return
	}
	s.zombies = append(s.zombies, s.own.inflight...)
	s.own = nil
	s.w.logf("%s: owner crashes", s.name)
}

func (s *side) takeover() bool {
	if s.own != nil || !s.book.State.Active() {
		return false
	}
	s.own = &owner{}
	s.w.logf("%s: take-over", s.name)
	if !s.book.BeforeCut() && s.book.State != StateStopping {
		s.own.doubt = true
		s.newGen(MaxVirtualOffset)
	}
	return true
}

// ---- LOG_ALIGNMENT

func (s *side) align() bool {
	if s.own == nil || s.book.State != StateLogAlignment {
		return false
	}
	src := s.source()
	a := s.own.al
	if a == nil {
		a = &Alignment{Cluster: src.name, TopicID: src.book.Self.TopicID}
		s.own.al = a
	}
	a.Book, a.Discard = s.book, s.discard
	st := a.Next()
	s.own.alStep = st
	switch st.Do {
	case AlignGate:
		s.k.sync()
		a.GateClosed = true
	case AlignReadLocal:
		a.Local = s.local()
	case AlignRepair:
		s.repair(st.Repair)
		a.Local = nil
	case AlignReadPair:
		r := src.record()
		a.Record = &r
	case AlignRound:
		t := s.round(st.T)
		a.Rounded = &t
		if r := s.recovered(s.k.hw()); a.Local.PEpoch != s.k.pe || r.VEnd != a.Local.VEnd || a.Local.PEnd != s.k.leader().end() {
			s.own.al = nil // the log has moved under us
		}
	case AlignCut:
		s.alignCut(a, st, src)
	case AlignInstances:
		a.Taken = true
	case AlignMirror:
		b, err := s.book.To(StateMirroring)
		s.w.no(err)
		s.own.al = nil
		s.resume()
		b.Log, b.Pairs, b.Self = s.book.Log, s.book.Pairs, s.book.Self
		s.put(b, "MIRRORING from %d", s.own.pos)
	case AlignWait:
		a.Record = nil
	case AlignFail:
		s.fail(st.Why, st.Retry)
		s.own.al = nil
	default:
		s.w.that(false, "align: %d?", st.Do)
	}
	return true
}

func (s *side) local() *LocalLog {
	r := s.recovered(s.k.hw())
	lv := s.live()
	return &LocalLog{
		PEnd: s.k.leader().end(), PEpoch: s.k.pe, Broker: s.k.leader().epochs, VStart: s.vStart(), VEnd: r.VEnd, LSO: r.VEnd,
		LiveNative: slices.ContainsFunc(lv, func(x lrec) bool { return x.kind == 'd' && s.log().Spans[x.Span].Kind == Native }),
	}
}

func (s *side) alignCut(a *Alignment, st AlignStep, src *side) {
	if a.Local.PEpoch != s.k.pe || a.Local.PEnd != s.k.leader().end() {
		s.own.al = nil
		return
	}
	src.settle()
	b, err := a.Cut(st, src.vStart(), s.gen(), s.lineage())
	s.w.no(err)
	switch st.Holder {
	case HeldByUs:
		s.baseLoss, s.ownLost = s.pairLoss[src.name], s.k.losses > s.pairLoss["own"+src.name]
	case HeldBySource:
		s.baseLoss, s.ownLost = src.pairLoss["own"+s.name], s.k.losses > src.pairLoss[s.name]
	default:
		s.baseLoss, s.ownLost = src.k.losses, false
	}
	var gone []lrec
	for _, x := range s.live() {
		if x.kind == 'd' && (st.Empty || x.V >= b.Log.Open().VStart) {
			gone = append(gone, x)
		}
	}
	s.w.stat["align by "+string(st.Holder)]++
	if len(gone) > 0 {
		s.w.stat["align cuts live"]++
	}
	s.w.cut(s, gone)
	s.put(b, "phase one by %s %v: cut to %d, empty %v, chain %v", st.Holder, st.Pair, b.Log.Open().VStart, st.Empty, b.Log.Chain)
}

// ---- STOPPING

func (s *side) stopStep(stale bool) bool {
	if s.own == nil || s.book.State != StateStopping {
		return false
	}
	st := s.own.st
	if st == nil {
		st = &Stop{BumpStep: s.step, Leader: s.k.pe}
		s.own.st = st
	}
	st.Book = s.book
	if !stale {
		st.Leader = s.k.pe
	}
	d := st.Next()
	switch d.Do {
	case StopQuiesce:
		s.zombies = append(s.zombies, s.own.inflight...)
		s.own.inflight, st.Quiet = nil, true
	case StopRead:
		st.Leader, st.Opened, s.own.readLoss = s.k.pe, nil, s.k.losses
		st.Read = &StopReading{PEpoch: s.k.pe, PEnd: s.k.hw(), Broker: s.k.leader().epochs, Recovered: s.recovered(s.k.hw())}
	case StopOpen:
		x := s.k.append(kbatch{kind: 'o', Batch: Batch{Count: 1, Stamped: true, V: d.Opening.LMO, VCount: 1, Gen: d.Opening.Gen, Epoch: 0, Flags: FlagHidden}})
		s.k.sync()
		if s.k.hw() >= x.PEnd() {
			st.Opened = &StopOpened{PEnd: x.PEnd(), PEpoch: x.PEpoch}
		}
	case StopWrite:
		if !s.book.BeforeCut() {
			s.pairLoss[s.book.Source.Cluster] = s.baseLoss
			s.pairLoss["own"+s.book.Source.Cluster] = s.own.readLoss
		}
		s.own = nil
		was := s.live()
		defer s.w.cutByStop(s, was)
		s.put(d.Book, "STOPPED, pair %v, span %v, chain %v", d.Pair, *d.Book.Log.Open(), d.Book.Log.Chain)
	default:
		s.w.that(false, "stop: %d?", d.Do)
	}
	return true
}
