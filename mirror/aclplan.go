package mirror

import (
	"cmp"
	"regexp"
	"slices"
	"strings"

	"github.com/lockstep-kafka/lockstep/internal/ledger"
)

// ACLOptions are a mirror's settings for copying the source's ACLs.
type ACLOptions struct {
	Enabled bool
	DryRun  bool // only say what would be done
	// Include and Exclude match "type:name" of a rule's resource (topic, group,
	// transactional_id, cluster, …); Users matches principals that are left out.
	Include, Exclude, Users []*regexp.Regexp
	// AtOnce: rules that let somebody change a mirror topic are not held back
	// until it is STOPPED.
	AtOnce bool
}

// NewACLOptions compiles the expressions.
func NewACLOptions(include, exclude, users []string) (o ACLOptions, err error) {
	for _, x := range []struct {
		list []string
		to   *[]*regexp.Regexp
	}{{include, &o.Include}, {exclude, &o.Exclude}, {users, &o.Users}} {
		if *x.to, err = wholeNames("ACL", x.list); err != nil {
			return o, err
		}
	}
	return o, nil
}

// selects tells whether a rule of the source is copied. One for a single topic
// is only where the mirror mirrors that topic.
func (o *ACLOptions) selects(r ledger.ACL, f *TopicFilter) bool {
	what := strings.ToLower(r.Resource) + ":" + r.Name
	switch {
	case !matches(o.Include, what), matches(o.Exclude, what), matches(o.Users, r.Principal):
		return false
	case r.Resource == "TOPIC" && r.Pattern == "LITERAL" && r.Name != "*":
		return f.Match(r.Name)
	}
	return true
}

// changes tells whether a rule lets somebody change a topic.
func changes(r ledger.ACL) bool {
	if r.Resource != "TOPIC" || r.Permission != "ALLOW" {
		return false
	}
	switch r.Operation {
	case "ALL", "WRITE", "CREATE", "DELETE", "ALTER", "ALTER_CONFIGS":
		return true
	}
	return false
}

// readOnly is what of a rule is given while it is held back.
func readOnly(r ledger.ACL) []ledger.ACL {
	if r.Operation != "ALL" {
		return nil
	}
	var out []ledger.ACL
	for _, op := range []string{"DESCRIBE", "DESCRIBE_CONFIGS", "READ"} {
		r.Operation = op
		out = append(out, r)
	}
	return out
}

// aclPlan is how the destination's rules are brought to what is wanted.
type aclPlan struct {
	create, remove, held []ledger.ACL
	memory               []ledger.ACL // to be remembered first
}

// planACLs compares. want are the source's selected rules, have all of the
// destination's, memory what the ledger remembers. held says which rules are
// held back for now. Only what the memory says was added by Lockstep is ever
// removed; what was there already is not taken over.
func planACLs(want, have, memory []ledger.ACL, held func(ledger.ACL) bool) aclPlan {
	var p aclPlan
	there := map[ledger.ACL]bool{}
	for _, r := range have {
		there[bare(r)] = true
	}
	wanted, given, added := map[ledger.ACL]bool{}, map[ledger.ACL]bool{}, map[ledger.ACL]bool{}
	for _, r := range want {
		r = bare(r)
		if wanted[r] {
			continue
		}
		wanted[r] = true
		if !held(r) {
			given[r] = true
			continue
		}
		p.held = append(p.held, r)
		for _, part := range readOnly(r) {
			given[part] = true
		}
	}
	for r := range given {
		if !there[r] {
			p.create = append(p.create, r)
			added[r] = true
		}
	}
	for _, r := range memory {
		was := r.Added
		switch r = bare(r); {
		case !was || added[r]:
		case given[r]: // and there
			added[r] = true
		case there[r]: // forgotten at the next sync, when it is gone
			p.remove = append(p.remove, r)
			added[r] = true
		}
	}
	for r := range wanted {
		p.memory = append(p.memory, ledger.ACL{Resource: r.Resource, Name: r.Name, Pattern: r.Pattern, Principal: r.Principal, Host: r.Host, Operation: r.Operation, Permission: r.Permission, Wanted: true, Added: added[r]})
		delete(added, r)
	}
	for r := range added {
		r.Added = true
		p.memory = append(p.memory, r)
	}
	for _, list := range [][]ledger.ACL{p.create, p.remove, p.held, p.memory} {
		slices.SortFunc(list, compareACLs)
	}
	return p
}

// inStep is how many rules are as they should be.
func (p *aclPlan) inStep() int { return len(p.memory) - len(p.create) - len(p.remove) - len(p.held) }

// bare is the rule alone.
func bare(r ledger.ACL) ledger.ACL {
	r.Wanted, r.Added = false, false
	return r
}

func compareACLs(a, b ledger.ACL) int {
	return cmp.Or(
		cmp.Compare(a.Resource, b.Resource), cmp.Compare(a.Name, b.Name), cmp.Compare(a.Pattern, b.Pattern), cmp.Compare(a.Principal, b.Principal),
		cmp.Compare(a.Host, b.Host), cmp.Compare(a.Operation, b.Operation), cmp.Compare(a.Permission, b.Permission),
	)
}

// covers tells whether a rule's resource covers a topic.
func covers(r ledger.ACL, topic string) bool {
	switch {
	case r.Resource != "TOPIC":
		return false
	case r.Pattern == "PREFIXED":
		return strings.HasPrefix(topic, r.Name)
	}
	return r.Name == topic || r.Name == "*"
}
