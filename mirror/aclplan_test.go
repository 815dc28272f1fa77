package mirror

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/lockstep-kafka/lockstep/internal/histories"
	"github.com/lockstep-kafka/lockstep/internal/ledger"
)

func acl(resource, name, pattern, who, op, permission string) ledger.ACL {
	return ledger.ACL{Resource: resource, Name: name, Pattern: pattern, Principal: "User:" + who, Host: "*", Operation: op, Permission: permission}
}

func topicRule(name, who, op string) ledger.ACL {
	return acl("TOPIC", name, "LITERAL", who, op, "ALLOW")
}

func TestACLSelection(t *testing.T) {
	o, err := NewACLOptions([]string{"topic:.*", "group:app-.*"}, []string{"topic:secret.*"}, []string{"User:admin"})
	require.NoError(t, err)
	f, err := NewTopicFilter([]string{"orders.*", "secret"}, nil)
	require.NoError(t, err)
	for _, x := range []struct {
		r    ledger.ACL
		want bool
	}{
		{topicRule("orders", "a", "READ"), true},
		{topicRule("other", "a", "READ"), false}, // not mirrored: another topic may have that name here
		{topicRule("secret", "a", "READ"), false},
		{topicRule("orders", "admin", "READ"), false},
		{topicRule("*", "a", "READ"), true},
		{acl("TOPIC", "oth", "PREFIXED", "a", "READ", "ALLOW"), true},
		{acl("GROUP", "app-1", "LITERAL", "a", "READ", "ALLOW"), true},
		{acl("GROUP", "x", "LITERAL", "a", "READ", "ALLOW"), false},
		{acl("CLUSTER", "kafka-cluster", "LITERAL", "a", "ALTER", "ALLOW"), false},
	} {
		require.Equal(t, x.want, o.selects(x.r, f), "%s", &x.r)
	}
	_, err = NewACLOptions(nil, []string{"("}, nil)
	require.ErrorContains(t, err, "ACL expression")
}

// AC-03: what lets somebody change a mirrored topic waits for the failover;
// reading doesn't, and a refusal never waits.
func TestAC03HeldBack(t *testing.T) {
	f, err := NewTopicFilter([]string{"orders.*"}, nil)
	require.NoError(t, err)
	s := &source{admin: &topicAdmin{filter: f}}
	mirrored := map[string]bool{"orders": true, "orders.old": false}
	for _, x := range []struct {
		r    ledger.ACL
		want bool
	}{
		{topicRule("orders", "a", "WRITE"), true},
		{topicRule("orders", "a", "ALL"), true},
		{topicRule("orders", "a", "READ"), false},
		{topicRule("orders.old", "a", "WRITE"), false},
		{topicRule("orders.new", "a", "WRITE"), true}, // to be mirrored
		{topicRule("*", "a", "WRITE"), true},
		{acl("TOPIC", "ord", "PREFIXED", "a", "WRITE", "ALLOW"), true},
		{acl("TOPIC", "orders.", "PREFIXED", "a", "WRITE", "ALLOW"), false},
		{acl("TOPIC", "orders", "LITERAL", "a", "WRITE", "DENY"), false},
		{acl("GROUP", "orders", "LITERAL", "a", "ALL", "ALLOW"), false},
	} {
		require.Equal(t, x.want, s.heldBack(x.r, mirrored), "%s", &x.r)
	}
	want := []ledger.ACL{topicRule("orders", "a", "ALL"), topicRule("orders", "b", "WRITE"), topicRule("orders", "c", "READ")}
	p := planACLs(want, nil, nil, func(r ledger.ACL) bool { return s.heldBack(r, mirrored) })
	require.Equal(t, []ledger.ACL{topicRule("orders", "a", "ALL"), topicRule("orders", "b", "WRITE")}, p.held)
	require.Equal(t, []ledger.ACL{topicRule("orders", "a", "DESCRIBE"), topicRule("orders", "a", "DESCRIBE_CONFIGS"), topicRule("orders", "a", "READ"), topicRule("orders", "c", "READ")}, p.create)

	after := planACLs(want, p.create, p.memory, func(ledger.ACL) bool { return false })
	require.Equal(t, []ledger.ACL{topicRule("orders", "a", "ALL"), topicRule("orders", "b", "WRITE")}, after.create)
	require.Len(t, after.remove, 3, "the parts of ALL")
}

// AC-01, AC-05 and all that can go wrong: whatever changes on both sides, and
// wherever a sync is cut off, only rules that Lockstep has added are ever
// removed, all that is wanted is there after a sync, and a sync that finds
// nothing changed does nothing.
func TestACLsProperty(t *testing.T) {
	var rules []ledger.ACL
	for _, name := range []string{"a", "b"} {
		for _, op := range []string{"READ", "WRITE", "ALL", "DESCRIBE"} {
			rules = append(rules, topicRule(name, "u", op))
		}
	}
	rules = append(rules, acl("TOPIC", "a", "LITERAL", "u", "WRITE", "DENY"), acl("GROUP", "g", "LITERAL", "u", "READ", "ALLOW"))
	histories.Check(t, func(t *rapid.T) {
		const operator, lockstep = "operator", "lockstep"
		src, dst := map[ledger.ACL]bool{}, map[ledger.ACL]string{}
		stopped := map[string]bool{}
		var memory []ledger.ACL
		held := func(r ledger.ACL) bool { return changes(r) && !stopped[r.Name] }
		sync := func(reachable bool, steps int) aclPlan {
			var want []ledger.ACL
			if reachable {
				want = slices.Collect(maps.Keys(src))
			} else {
				for _, r := range memory {
					if r.Wanted {
						want = append(want, r)
					}
				}
			}
			p := planACLs(want, slices.Collect(maps.Keys(dst)), memory, held)
			if steps > 0 {
				memory = p.memory
			}
			if steps > 1 {
				for _, r := range p.create {
					if dst[r] != "" {
						t.Fatalf("created again: %s", &r)
					}
					dst[r] = lockstep
				}
			}
			if steps > 2 {
				for _, r := range p.remove {
					if dst[r] != lockstep {
						t.Fatalf("removed what %q had added: %s", dst[r], &r)
					}
					delete(dst, r)
				}
			}
			return p
		}
		intended := func(r ledger.ACL) bool { // a sync was cut off before it added it
			return slices.ContainsFunc(memory, func(m ledger.ACL) bool { return m.Added && bare(m) == r })
		}
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			r := rapid.SampledFrom(rules).Draw(t, "rule")
			switch rapid.SampledFrom([]string{"source", "operator", "operator removes", "topic", "cut off", "source away", "sync"}).Draw(t, "what") {
			case "source":
				if src[r] {
					delete(src, r)
				} else {
					src[r] = true
				}
			case "operator":
				if dst[r] == "" && !intended(r) {
					dst[r] = operator
				}
			case "operator removes":
				delete(dst, r)
			case "topic":
				stopped[r.Name] = !stopped[r.Name]
			case "cut off":
				sync(true, rapid.IntRange(0, 2).Draw(t, "steps done"))
			case "source away":
				sync(false, 3)
			case "sync":
				sync(true, 3)
				for r := range src {
					if !held(r) && dst[r] == "" {
						t.Fatalf("missing: %s", &r)
					}
					if held(r) && dst[r] == lockstep {
						t.Fatalf("given too early: %s", &r)
					}
				}
				for r, by := range dst {
					all := r
					all.Operation = "ALL"
					if by == lockstep && !src[r] && !src[all] {
						t.Fatalf("left behind: %s", &r)
					}
				}
				sync(true, 3) // forgets what it removed
				was := slices.Clone(memory)
				if p := sync(true, 3); len(p.create)+len(p.remove) > 0 || !slices.Equal(was, memory) {
					t.Fatalf("nothing changed, and yet: %+v", p)
				}
			}
		}
	})
}

// AC-01: 5,000 rules cost one write of the ledger's shards, and a change of one
// costs one rule.
func TestAC01Deltas(t *testing.T) {
	var want []ledger.ACL
	for i := range 5000 {
		want = append(want, topicRule(fmt.Sprintf("t%04d", i/5), fmt.Sprintf("u%d", i%5), "READ"))
	}
	never := func(ledger.ACL) bool { return false }
	p := planACLs(want, nil, nil, never)
	require.Len(t, p.create, 5000)
	shards := map[int]int{}
	for _, r := range p.memory {
		shards[r.ACLShard()]++
	}
	require.Len(t, shards, ledger.ACLShards)
	for n, k := range shards {
		require.Less(t, k, 300, "shard %d", n)
	}
	have := append(slices.Clone(p.create), topicRule("own", "x", "READ"))
	q := planACLs(append(want[1:], topicRule("new", "u0", "READ")), have, p.memory, never)
	require.Equal(t, []ledger.ACL{topicRule("new", "u0", "READ")}, q.create)
	require.Equal(t, []ledger.ACL{want[0]}, q.remove, "and not the operator's own (AC-05)")
	differ := map[int]bool{}
	before := map[ledger.ACL]bool{}
	for _, r := range p.memory {
		before[r] = true
	}
	for _, r := range q.memory {
		if !before[r] {
			differ[r.ACLShard()] = true
		}
	}
	require.LessOrEqual(t, len(differ), 2)
}
