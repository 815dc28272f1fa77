package control

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/lockstep-kafka/lockstep/epoch"
	"github.com/lockstep-kafka/lockstep/internal/ledger"
)

// Selection says which partitions are meant: of one mirror or of all, and
// topics by name, by a regular expression (RE2, the whole name), or all.
type Selection struct {
	Mirror string   `json:"mirror,omitempty"`
	Topics []string `json:"topics,omitempty"`
	Regex  string   `json:"regex,omitempty"`
	All    bool     `json:"all,omitempty"`
}

// String is the selection as flags.
func (s Selection) String() string {
	var f []string
	if s.Mirror != "" {
		f = append(f, "--mirror "+s.Mirror)
	}
	for _, t := range s.Topics {
		f = append(f, "--topic "+t)
	}
	if s.Regex != "" {
		f = append(f, "--regex "+s.Regex)
	}
	if s.All {
		f = append(f, "--all")
	}
	return strings.Join(f, " ")
}

// Error is a refusal: a sentence, what to do about it, and the partitions in
// the way.
type Error struct {
	Kind       ErrorKind `json:"kind"`
	Text       string    `json:"error"`
	Remedy     string    `json:"remedy"`
	Partitions []string  `json:"partitions,omitempty"` // topic-partition STATE
}

// ErrorKind sorts errors for HTTP and exit codes.
type ErrorKind string

// The kinds.
const (
	BadRequest  ErrorKind = "bad_request" // the request itself is wrong
	NotFound    ErrorKind = "not_found"
	Refused     ErrorKind = "refused"     // the partitions are not in a state for it
	Unavailable ErrorKind = "unavailable" // not now: run it again
	Failed      ErrorKind = "failed"
)

func (e *Error) Error() string {
	s := e.Text
	if len(e.Partitions) > 0 {
		s += ":\n  " + strings.Join(e.Partitions, "\n  ")
	}
	if e.Remedy != "" {
		s += "\n" + e.Remedy
	}
	return s
}

const maxTopics = 10_000

// matcher tells which topics are meant. A verb that changes something must be
// told so in words; one that only looks takes all for none.
func (s Selection) matcher(change bool) (func(topic string) bool, error) {
	n := 0
	for _, given := range []bool{len(s.Topics) > 0, s.Regex != "", s.All} {
		if given {
			n++
		}
	}
	switch {
	case n > 1:
		return nil, &Error{Kind: BadRequest, Text: "topics are selected in more than one way", Remedy: "give one of --topic (repeated), --regex, --all"}
	case n == 0 && change:
		return nil, &Error{Kind: BadRequest, Text: "no topics are selected", Remedy: "give --topic (repeated), --regex or --all"}
	case len(s.Topics) > maxTopics:
		return nil, &Error{Kind: BadRequest, Text: fmt.Sprintf("%d topics are too many in one request", len(s.Topics)), Remedy: "use --regex or --all"}
	case s.Regex != "":
		re, err := regexp.Compile("^(?:" + s.Regex + ")$")
		if err != nil {
			return nil, &Error{Kind: BadRequest, Text: err.Error(), Remedy: "write an RE2 expression that matches whole topic names"}
		}
		return re.MatchString, nil
	case len(s.Topics) > 0:
		set := map[string]bool{}
		for _, t := range s.Topics {
			set[t] = true
		}
		return func(t string) bool { return set[t] }, nil
	}
	return func(string) bool { return true }, nil
}

// find are the selected partitions, sorted. unknown, if given, may name those
// of a topic that the ledger does not know.
func (s *Service) find(sel Selection, change bool, unknown func(topic string) ([]*ledger.Partition, error)) ([]*ledger.Partition, error) {
	match, err := sel.matcher(change)
	if err != nil {
		return nil, err
	}
	if !s.o.View.Fresh() {
		return nil, &Error{Kind: Unavailable, Text: "this instance has not read the ledger to its end within the last seconds, so it can't answer for it", Remedy: "look at /readyz, then run it again, or ask another instance"}
	}
	var out []*ledger.Partition
	seen := map[string]bool{}
	for _, p := range s.o.View.All() {
		if !match(p.Topic) || sel.Mirror != "" && mirrorOf(p) != sel.Mirror {
			continue
		}
		out, seen[p.Topic] = append(out, p), true
	}
	if sel.Mirror != "" && !s.known(sel.Mirror) {
		return nil, &Error{Kind: NotFound, Text: fmt.Sprintf("there is no mirror %q", sel.Mirror), Remedy: "`lockstep list` shows the mirrors"}
	}
	for _, t := range sel.Topics {
		if !seen[t] && unknown != nil {
			ps, err := unknown(t)
			if err != nil {
				return nil, err
			}
			out, seen[t] = append(out, ps...), len(ps) > 0
		}
		if !seen[t] {
			return nil, s.notMirrored(t, sel.Mirror)
		}
	}
	if len(out) == 0 && change {
		return nil, &Error{Kind: NotFound, Text: "no mirrored topic is selected", Remedy: "`lockstep describe` shows what there is"}
	}
	return out, nil
}

func by(mirror string) string {
	if mirror == "" {
		return ""
	}
	return fmt.Sprintf(" by %q", mirror)
}

// known tells whether a mirror is declared here or has partitions.
func (s *Service) known(name string) bool {
	if slices.ContainsFunc(s.declared(), func(m Mirror) bool { return m.Name == name }) {
		return true
	}
	return slices.ContainsFunc(s.o.View.All(), func(p *ledger.Partition) bool { return mirrorOf(p) == name })
}

// mirrorOf is the partition's mirror, "" when its record can't be read.
func mirrorOf(p *ledger.Partition) string {
	if p.Record == nil {
		return ""
	}
	return p.Record.Mirror
}

func stateOf(p *ledger.Partition) ledger.State {
	switch {
	case p.Err != nil:
		return stateUnreadable
	case p.Record == nil:
		return epoch.StateUnknown
	}
	return cmp.Or(p.Record.State, "UNKNOWN")
}

// stateUnreadable stands for the state of a partition whose ledger entry can't
// be read.
const stateUnreadable ledger.State = "UNREADABLE"

func name(p *ledger.Partition) string { return fmt.Sprintf("%s-%d", p.Topic, p.Partition) }
