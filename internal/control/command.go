package control

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/lockstep-kafka/lockstep/epoch"
	"github.com/lockstep-kafka/lockstep/internal/ledger"
	"github.com/lockstep-kafka/lockstep/internal/plural"
)

// Verb is what an operator asks for.
type Verb string

// The verbs that change something.
const (
	Start   Verb = "start"
	Stop    Verb = "stop"
	Pause   Verb = "pause"
	Resume  Verb = "resume"
	Recover Verb = "recover"
	Delete  Verb = "delete"
)

// goals are where a verb leads to.
var goals = map[Verb]ledger.State{
	Start: epoch.StateMirroring, Stop: epoch.StateStopped, Pause: epoch.StatePaused, Resume: epoch.StateMirroring,
	Recover: "", Delete: epoch.StateStopped,
}

// Request is one verb on a selection.
type Request struct {
	Verb Verb `json:"verb"`
	Selection
	DiscardLocal bool `json:"discard_local,omitempty"` // start: drop local records that the source lacks
	// WaitMillis is how long the answer may take, 0: only the commands are
	// stored.
	WaitMillis int `json:"wait_ms,omitempty"`
	// Poll asks on for what an earlier request began: nothing is written.
	Poll bool   `json:"poll,omitempty"`
	By   string `json:"by,omitempty"` // who asks, for the record
}

// Result is how far a verb is.
type Result struct {
	Verb       Verb      `json:"verb"`
	Done       bool      `json:"done"`
	Failed     bool      `json:"failed"` // nothing more comes of at least one partition without doing something
	Partitions []Outcome `json:"partitions"`
}

// Outcome is a partition's part in it.
type Outcome struct {
	Partition
	Outcome string `json:"outcome"` // done, waiting, failed
	Text    string `json:"text,omitempty"`
}

// The outcomes.
const (
	OutcomeDone    = "done"
	OutcomeWaiting = "waiting"
	OutcomeFailed  = "failed"
)

// MaxWait bounds [Request.WaitMillis].
const MaxWait = 25 * time.Second

// Command does a verb. Its error is nil or an [*Error]; nothing was written
// then, or some commands, and running it again goes on.
func (s *Service) Command(ctx context.Context, r Request) (*Result, error) {
	if _, ok := goals[r.Verb]; !ok {
		return nil, &Error{Kind: BadRequest, Text: fmt.Sprintf("unknown verb %q", r.Verb), Remedy: "verbs are start, stop, pause, resume, recover, delete"}
	}
	if r.DiscardLocal && r.Verb != Start {
		return nil, &Error{Kind: BadRequest, Text: "discard_local goes with start only", Remedy: "leave it out"}
	}
	if r.Verb == Delete {
		return s.delete(ctx, r)
	}
	found, err := s.find(r.Selection, true, s.unknown(ctx, r))
	if err != nil {
		return nil, err
	}
	if err := s.allowed(r, found); err != nil {
		return nil, err
	}
	seqs := map[string]int64{}
	if !r.Poll {
		if err := s.revive(ctx, r, found); err != nil {
			return nil, err
		}
		if seqs, err = s.write(ctx, r, found); err != nil {
			return nil, err
		}
	}
	return s.await(ctx, r, found, seqs)
}

// unknown names the partitions of a topic that is on the destination and that
// no mirror has begun with: start --discard-local is how a mirror of the
// configuration may take it. nil for other verbs.
func (s *Service) unknown(ctx context.Context, r Request) func(string) ([]*ledger.Partition, error) {
	if r.Verb != Start || r.Mirror == "" || s.o.PartitionCount == nil {
		return nil
	}
	return func(topic string) ([]*ledger.Partition, error) {
		n, err := s.o.PartitionCount(ctx, topic)
		if err != nil {
			return nil, &Error{Kind: Unavailable, Text: fmt.Sprintf("topic %s can't be looked up on the destination: %v", topic, err), Remedy: "run it again"}
		}
		var out []*ledger.Partition
		for p := range n {
			out = append(out, &ledger.Partition{Topic: topic, Partition: p, Command: s.o.View.Command(topic, p)})
		}
		return out, nil
	}
}

// verbOf is the verb that wrote a command.
func verbOf(c *ledger.Command) string {
	v, _, _ := strings.Cut(c.By, " ")
	return v
}

// begun tells whether the partition's newest command is of this verb, and not
// used up by a state that has nothing to do with it.
func begun(v Verb, p *ledger.Partition) bool {
	c := p.Command
	if c == nil || verbOf(c) != string(v) {
		return false
	}
	if p.Record == nil || c.Seq > p.Record.CommandSeq {
		return true
	}
	return v == Recover || p.Record.Desired == goals[v]
}

// allowed holds a verb to facts §1: every selected partition must be in a state
// for it, or on the way where this verb has sent it before.
func (s *Service) allowed(r Request, found []*ledger.Partition) error {
	var fits func(ledger.State) bool
	var remedy string
	switch r.Verb {
	case Start:
		fits = func(st ledger.State) bool { return st == epoch.StateStopped || st == epoch.StateUnknown }
		remedy = "start needs every selected partition STOPPED: `lockstep stop` the others first, `lockstep resume` PAUSED ones, or select less"
	case Pause:
		fits = func(st ledger.State) bool {
			return st == epoch.StateMirroring || st == epoch.StatePausing || st == epoch.StatePaused
		}
		remedy = "pause needs every selected partition MIRRORING: wait for those on the way, `lockstep recover` FAILED ones, or select less"
	case Resume:
		fits = func(st ledger.State) bool { return st == epoch.StatePaused }
		remedy = "resume needs every selected partition PAUSED: STOPPED ones take `lockstep start`"
	case Stop:
		fits = func(st ledger.State) bool { return st != stateUnreadable && st != epoch.StateUnknown }
		remedy = "the ledger entries of these can't be read: see docs/operations.md, \"The ledger topic is lost or unreadable\""
	default:
		fits = func(st ledger.State) bool { return st != stateUnreadable }
		remedy = "the ledger entries of these can't be read: see docs/operations.md, \"The ledger topic is lost or unreadable\""
	}
	var bad []string
	for _, p := range found {
		if st := stateOf(p); !fits(st) && !begun(r.Verb, p) {
			bad = append(bad, name(p)+" "+string(st))
		}
	}
	if len(bad) > 0 {
		return &Error{Kind: Refused, Text: fmt.Sprintf("%s is refused: of %d selected partitions %d are in no state for it", r.Verb, len(found), len(bad)), Remedy: remedy, Partitions: bad}
	}
	return nil
}

// needed tells whether a command has to be written: not when the partition is
// where the verb leads, or a command of the verb is on its way.
func (r Request) needed(p *ledger.Partition) bool {
	c := p.Command
	if p.Record == nil {
		return c == nil || verbOf(c) != string(r.Verb) || c.DiscardLocal != r.DiscardLocal
	}
	pending := c != nil && c.Seq > p.Record.CommandSeq
	if pending {
		return verbOf(c) != string(r.Verb) || c.DiscardLocal != r.DiscardLocal
	}
	st := p.Record.State
	if r.Verb == Recover {
		return st == epoch.StateFailed
	}
	switch {
	case st == goals[r.Verb] && p.Record.Desired == goals[r.Verb]:
		return false
	case st == epoch.StateFailed: // a try of its own
		return true
	}
	return p.Record.Desired != goals[r.Verb] || c == nil || verbOf(c) != string(r.Verb)
}

// write stores the commands that are needed and says which sequence number
// each partition has to take in.
func (s *Service) write(ctx context.Context, r Request, found []*ledger.Partition) (map[string]int64, error) {
	seqs := map[string]int64{}
	now := s.o.Now()
	var cs []ledger.Command
	for _, p := range found {
		if !r.needed(p) {
			continue
		}
		c := ledger.Command{
			Mirror: cmp.Or(mirrorOf(p), r.Mirror), Topic: p.Topic, Partition: p.Partition, Desired: goals[r.Verb],
			Seq: now.UnixMilli(), Recover: r.Verb == Recover, DiscardLocal: r.DiscardLocal,
			By: strings.TrimSpace(string(r.Verb) + " " + r.By), At: now.UTC(),
		}
		if p.Record != nil {
			c.Seq = max(c.Seq, p.Record.CommandSeq+1)
		}
		if p.Command != nil {
			c.Seq = max(c.Seq, p.Command.Seq+1)
		}
		seqs[name(p)] = c.Seq
		cs = append(cs, c)
	}
	if err := s.o.Writer.PutCommands(ctx, cs...); err != nil {
		return nil, &Error{Kind: Unavailable, Text: fmt.Sprintf("not all commands could be stored in the ledger: %v", err), Remedy: "run it again: it goes on with the others"}
	}
	return seqs, nil
}

// await waits until every partition is done or failed, or the time is over.
func (s *Service) await(ctx context.Context, r Request, found []*ledger.Partition, seqs map[string]int64) (*Result, error) {
	ctx, cancel := context.WithTimeout(ctx, min(time.Duration(max(r.WaitMillis, 0))*time.Millisecond, MaxWait))
	defer cancel()
	for {
		changed := s.o.View.Changed()
		now := make([]*ledger.Partition, 0, len(found))
		left, failed := 0, false
		outs := make([]Outcome, len(found))
		for i, p := range found {
			cur := s.o.View.Partition(p.Topic, p.Partition)
			if cur == nil {
				cur = p
			}
			now = append(now, cur)
			o, text := outcome(r.Verb, cur, seqs[name(p)])
			outs[i] = Outcome{Outcome: o, Text: text}
			failed = failed || o == OutcomeFailed
			if o == OutcomeWaiting {
				left++
			}
		}
		if left > 0 && ctx.Err() == nil {
			select {
			case <-changed:
			case <-ctx.Done():
			}
			continue
		}
		dctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer cancel()
		for i, d := range s.describe(dctx, now) {
			outs[i].Partition = d
		}
		return &Result{Verb: r.Verb, Done: left == 0 && !failed, Failed: failed, Partitions: outs}, nil
	}
}

// outcome judges a partition that had to take in command seq (0: none).
func outcome(v Verb, p *ledger.Partition, seq int64) (string, string) {
	if p.Record == nil {
		if p.Err != nil {
			return OutcomeFailed, p.Err.Error()
		}
		return OutcomeWaiting, "no instance has begun with it"
	}
	r := p.Record
	if p.Command != nil && verbOf(p.Command) == string(v) {
		seq = max(seq, p.Command.Seq)
	}
	if seq > r.CommandSeq {
		if v == Start && p.Live != nil {
			if st, ok := p.Live.Status(); ok && st.Error != "" {
				return OutcomeWaiting, st.Error
			}
		}
		return OutcomeWaiting, "the instance that owns it has not taken the command in"
	}
	c := p.Command
	if c != nil && verbOf(c) != string(v) && (seq > 0 && c.Seq > seq || seq == 0 && v != Recover && cmp.Or(c.Desired, goals[v]) != goals[v]) {
		return OutcomeFailed, fmt.Sprintf("overtaken by `%s`", c.By)
	}
	switch st := r.State; {
	case v == Recover:
		if st == epoch.StateFailed {
			return OutcomeFailed, r.Error
		}
		return OutcomeDone, ""
	case st == goals[v]:
		return OutcomeDone, ""
	case st == epoch.StateFailed, v == Start && st == epoch.StateStopped && r.Error != "":
		return OutcomeFailed, r.Error
	}
	return OutcomeWaiting, ""
}

// delete marks a mirror as deleted. Its partitions' records stay: their pairs
// say up to where both clusters are the same.
func (s *Service) delete(ctx context.Context, r Request) (*Result, error) {
	if r.Mirror == "" {
		return nil, &Error{Kind: BadRequest, Text: "delete is for a mirror as a whole", Remedy: "name it with --mirror"}
	}
	if len(r.Topics) > 0 || r.Regex != "" {
		return nil, &Error{Kind: BadRequest, Text: "delete is for a mirror as a whole, not for topics", Remedy: "to end mirroring of some topics, stop them and exclude them in the configuration"}
	}
	r.All = true
	found, err := s.find(Selection{Mirror: r.Mirror}, false, nil)
	if err != nil {
		return nil, err
	}
	var bad []string
	for _, p := range found {
		if st := stateOf(p); st != epoch.StateStopped {
			bad = append(bad, name(p)+" "+string(st))
		}
	}
	if len(bad) > 0 {
		return nil, &Error{Kind: Refused, Text: fmt.Sprintf("mirror %s has %s not STOPPED", r.Mirror, plural.Of(len(bad), "partition")), Remedy: "`lockstep stop --mirror " + r.Mirror + " --all` first", Partitions: bad}
	}
	if old := s.o.View.MirrorSettings(r.Mirror); !r.Poll && (old == nil || !old.Deleted) {
		if err := s.change(ctx, r.Mirror, r.By, func(m *ledger.MirrorSettings) { m.Deleted = true }); err != nil {
			return nil, err
		}
	}
	res := &Result{Verb: Delete, Done: true}
	for _, d := range s.describe(ctx, found) {
		res.Partitions = append(res.Partitions, Outcome{Partition: d, Outcome: OutcomeDone})
	}
	return res, nil
}

// revive takes a deletion back when something of the mirror is started again.
func (s *Service) revive(ctx context.Context, r Request, found []*ledger.Partition) error {
	if r.Verb != Start {
		return nil
	}
	mirrors := map[string]bool{}
	for _, p := range found {
		mirrors[mirrorOf(p)] = true
	}
	for m := range mirrors {
		if old := s.o.View.MirrorSettings(m); old != nil && old.Deleted {
			if !slices.ContainsFunc(s.declared(), func(x Mirror) bool { return x.Name == m }) {
				return &Error{Kind: Refused, Text: fmt.Sprintf("mirror %s was deleted, and this instance's configuration does not declare it", m), Remedy: "declare it under mirrors and restart, then start it"}
			}
			if err := s.change(ctx, m, r.By, func(x *ledger.MirrorSettings) { x.Deleted = false }); err != nil {
				return err
			}
		}
	}
	return nil
}

// change writes a mirror's settings anew.
func (s *Service) change(ctx context.Context, mirror, by string, f func(*ledger.MirrorSettings)) error {
	m := &ledger.MirrorSettings{Name: mirror}
	if old := s.o.View.MirrorSettings(mirror); old != nil {
		m = old.Clone()
	}
	f(m)
	m.By, m.At = by, s.o.Now().UTC()
	if err := s.o.Writer.PutMirrorSettings(ctx, m); err != nil {
		return &Error{Kind: Unavailable, Text: fmt.Sprintf("the ledger could not be written: %v", err), Remedy: "run it again"}
	}
	return nil
}
