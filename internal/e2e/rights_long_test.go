//go:build long

package e2e_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/internal/e2e"
	"github.com/lockstep-kafka/lockstep/internal/testkafka"
	"github.com/lockstep-kafka/lockstep/internal/testkafka/content"
)

// guarded are brokers with an authorizer. Nobody needs a rule on a resource that has none.
var guarded = map[string]string{
	"authorizer.class.name":          "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
	"allow.everyone.if.no.acl.found": "true",
}

// rule is one ACL for a user; "ANONYMOUS" is everybody here.
type rule struct {
	kind  kmsg.ACLResourceType
	name  string
	op    kmsg.ACLOperation
	user  string
	allow bool
}

func (r rule) permission() kmsg.ACLPermissionType {
	if r.allow {
		return kmsg.ACLPermissionTypeAllow
	}
	return kmsg.ACLPermissionTypeDeny
}

func aclClientOf(t *testing.T, c *testkafka.Cluster) *kgo.Client {
	t.Helper()
	cl, err := kgo.NewClient(kgo.SeedBrokers(c.Seeds()...))
	require.NoError(t, err)
	t.Cleanup(cl.Close)
	return cl
}

func addRules(ctx context.Context, t *testing.T, c *testkafka.Cluster, rules ...rule) {
	t.Helper()
	req := kmsg.NewPtrCreateACLsRequest()
	for _, r := range rules {
		a := kmsg.NewCreateACLsRequestCreation()
		a.ResourceType, a.ResourceName, a.ResourcePatternType = r.kind, r.name, kmsg.ACLResourcePatternTypeLiteral
		a.Principal, a.Host, a.Operation, a.PermissionType = "User:"+r.user, "*", r.op, r.permission()
		req.Creations = append(req.Creations, a)
	}
	resp, err := req.RequestWith(ctx, aclClientOf(t, c))
	require.NoError(t, err)
	for _, r := range resp.Results {
		require.Zero(t, r.ErrorCode, "%v", r.ErrorMessage)
	}
}

func removeRules(ctx context.Context, t *testing.T, c *testkafka.Cluster, rules ...rule) {
	t.Helper()
	req := kmsg.NewPtrDeleteACLsRequest()
	for _, r := range rules {
		f := kmsg.NewDeleteACLsRequestFilter()
		f.ResourceType, f.ResourceName, f.ResourcePatternType = r.kind, kmsg.StringPtr(r.name), kmsg.ACLResourcePatternTypeLiteral
		f.Principal, f.Operation, f.PermissionType = kmsg.StringPtr("User:"+r.user), r.op, r.permission()
		req.Filters = append(req.Filters, f)
	}
	resp, err := req.RequestWith(ctx, aclClientOf(t, c))
	require.NoError(t, err)
	for _, r := range resp.Results {
		require.Zero(t, r.ErrorCode, "%v", r.ErrorMessage)
		require.Len(t, r.MatchingACLs, 1)
	}
}

func rulesOf(ctx context.Context, t *testing.T, c *testkafka.Cluster) map[rule]bool {
	t.Helper()
	req := kmsg.NewPtrDescribeACLsRequest()
	req.ResourceType, req.ResourcePatternType, req.Operation, req.PermissionType = 1, 1, 1, 1
	resp, err := req.RequestWith(ctx, aclClientOf(t, c))
	require.NoError(t, err)
	require.Zero(t, resp.ErrorCode)
	out := map[rule]bool{}
	for _, res := range resp.Resources {
		for _, a := range res.ACLs {
			out[rule{res.ResourceType, res.ResourceName, a.Operation, a.Principal[len("User:"):], a.PermissionType == kmsg.ACLPermissionTypeAllow}] = true
		}
	}
	return out
}

// AU-03, one right after the other is lost while records are mirrored: it is named, only what needs it waits, and all
// goes on when it is back. Nothing is restarted.
func TestRightsLostAndBack(t *testing.T) {
	ctx := withTimeout(t, 10*time.Minute)
	src := testkafka.Start(t, testkafka.Options{Name: "source", Props: guarded})
	dst := testkafka.Start(t, testkafka.Options{Name: "destination", Props: guarded})
	for _, topic := range []string{"right-a", "right-b"} {
		require.NoError(t, content.CreateTopic(ctx, src.Bootstrap(), topic, 1, nil))
	}
	l := e2e.Start(t, &binary, e2e.Setup{Source: src, Destination: dst, Include: []string{"right-.*"}})
	n := 0
	put := func(topic string) {
		n++
		_, err := content.Produce(ctx, src.Bootstrap(), topic, 0, content.Batch(time.Now().UnixMilli(), "k", fmt.Sprint(n)))
		require.NoError(t, err)
	}
	put("right-a")
	put("right-b")
	l.WaitCaughtUp(ctx, "right-a", 1)
	l.WaitCaughtUp(ctx, "right-b", 1)
	said := func() string {
		_, body, err := l.Get(ctx, "/v1/status")
		require.NoError(t, err)
		var st struct {
			Topics     []struct{ Topic, Text string }
			Partitions []struct{ Topic, Error string }
		}
		require.NoError(t, json.Unmarshal([]byte(body), &st))
		out := ""
		for _, x := range st.Topics {
			if x.Topic == "right-a" {
				out += x.Text + "\n"
			}
		}
		for _, x := range st.Partitions {
			if x.Topic == "right-a" {
				out += x.Error + "\n"
			}
		}
		return out
	}
	const topic = kmsg.ACLResourceTypeTopic
	for _, x := range []struct {
		name    string
		cluster *testkafka.Cluster
		op      kmsg.ACLOperation
		goesOn  bool // what runs goes on without the right
		says    []string
	}{
		{"source READ", src, kmsg.ACLOperationRead, false, []string{"source", "READ"}},
		{"source DESCRIBE_CONFIGS", src, kmsg.ACLOperationDescribeConfigs, true, []string{"source", "DescribeConfigs"}},
		{"source DESCRIBE", src, kmsg.ACLOperationDescribe, true, []string{"source", "Describe"}},
		{"destination WRITE", dst, kmsg.ACLOperationWrite, false, []string{"destination", "WRITE"}},
		{"destination DESCRIBE_CONFIGS", dst, kmsg.ACLOperationDescribeConfigs, true, []string{"DescribeConfigs"}},
		{"destination ALTER_CONFIGS", dst, kmsg.ACLOperationAlterConfigs, true, []string{"destination", "AlterConfigs"}},
		{"destination DESCRIBE", dst, kmsg.ACLOperationDescribe, true, []string{"destination", "Describe"}},
	} {
		t.Run(x.name, func(t *testing.T) {
			everyone := rule{topic, "right-a", kmsg.ACLOperationAll, "ANONYMOUS", true}
			deny := rule{topic, "right-a", x.op, "ANONYMOUS", false}
			addRules(ctx, t, x.cluster, everyone, deny)
			if x.op == kmsg.ACLOperationAlterConfigs {
				require.NoError(t, content.SetConfig(ctx, src.Bootstrap(), "right-a", "retention.ms", "987654321"))
			}
			if x.op != kmsg.ACLOperationDescribe || x.cluster != src {
				put("right-a")
			}
			until(ctx, t, x.name+" is named", func() bool {
				text := said()
				for _, s := range x.says {
					if !strings.Contains(text, s) {
						return false
					}
				}
				return true
			})
			t.Log(said())
			put("right-b")
			l.For(t).WaitCaughtUp(ctx, "right-b", 1)
			if x.goesOn && x.op != kmsg.ACLOperationDescribe {
				l.For(t).WaitCaughtUp(ctx, "right-a", 1)
			}
			removeRules(ctx, t, x.cluster, deny, everyone)
			put("right-a")
			l.For(t).WaitCaughtUp(ctx, "right-a", 1)
			until(ctx, t, "nothing is said any more", func() bool { return said() == "\n" || said() == "" })
			l.For(t).CompareRaw(ctx, "right-a", 0)
		})
	}

	// The ledger, and the group that shares the work.
	for _, r := range []rule{
		{topic, "__mirror_state", kmsg.ACLOperationWrite, "ANONYMOUS", false},
		{topic, "__mirror_state", kmsg.ACLOperationRead, "ANONYMOUS", false},
		{kmsg.ACLResourceTypeGroup, "__lockstep", kmsg.ACLOperationRead, "ANONYMOUS", false},
	} {
		t.Run(fmt.Sprint(r.name, " ", r.op), func(t *testing.T) {
			everyone := r
			everyone.op, everyone.allow = kmsg.ACLOperationAll, true
			addRules(ctx, t, dst, everyone, r)
			put("right-a")
			select {
			case <-ctx.Done():
			case <-time.After(12 * time.Second): // longer than a lease
			}
			removeRules(ctx, t, dst, r, everyone)
			put("right-b")
			for _, name := range []string{"right-a", "right-b"} {
				l.For(t).WaitCaughtUp(ctx, name, 1)
				l.For(t).CompareRaw(ctx, name, 0)
			}
		})
	}
}

// ACLs on real brokers (AC-01, AC-03, AC-05): a dry run, then in step; what lets somebody write comes with the
// failover; what the destination has of its own stays; and what a client may do is what the rules say.
func TestACLsOnRealBrokers(t *testing.T) {
	ctx := withTimeout(t, 6*time.Minute)
	src := testkafka.Start(t, testkafka.Options{Name: "source", Props: guarded})
	dst := testkafka.Start(t, testkafka.Options{Name: "destination", Props: guarded})
	require.NoError(t, content.CreateTopic(ctx, src.Bootstrap(), "acl", 1, nil))
	_, err := content.Produce(ctx, src.Bootstrap(), "acl", 0, content.Batch(time.Now().UnixMilli(), "k", "v"))
	require.NoError(t, err)
	const topic, group = kmsg.ACLResourceTypeTopic, kmsg.ACLResourceTypeGroup
	all := rule{topic, "acl", kmsg.ACLOperationAll, "ANONYMOUS", true}
	read, write := rule{topic, "acl", kmsg.ACLOperationRead, "bob", true}, rule{topic, "acl", kmsg.ACLOperationWrite, "bob", true}
	reader := rule{group, "app", kmsg.ACLOperationRead, "bob", true}
	own := rule{topic, "acl", kmsg.ACLOperationDescribe, "carol", true}
	parts := []rule{}
	for _, op := range []kmsg.ACLOperation{kmsg.ACLOperationRead, kmsg.ACLOperationDescribe, kmsg.ACLOperationDescribeConfigs} {
		parts = append(parts, rule{topic, "acl", op, "dave", true})
	}
	full := rule{topic, "acl", kmsg.ACLOperationAll, "dave", true}
	addRules(ctx, t, src, all, read, write, reader, full, rule{topic, "unmirrored", kmsg.ACLOperationRead, "bob", true})
	addRules(ctx, t, dst, all, own)
	l := e2e.Start(t, &binary, e2e.Setup{Source: src, Destination: dst, Include: []string{"acl"}, Mirror: []string{"acls:", "  enabled: true", `  exclude_principals: ["User:ANONYMOUS"]`}})
	l.WaitCaughtUp(ctx, "acl", 1)
	here := func(want ...rule) {
		t.Helper()
		m := map[rule]bool{}
		for _, r := range want {
			m[r] = true
		}
		var got map[rule]bool
		defer func() {
			if t.Failed() {
				t.Logf("have %v", got)
			}
		}()
		until(ctx, t, fmt.Sprint(want), func() bool {
			got = rulesOf(ctx, t, dst)
			if len(got) != len(m) {
				return false
			}
			for r := range m {
				if !got[r] {
					return false
				}
			}
			return true
		})
	}
	base := append([]rule{all, own, read, reader}, parts...)
	here(base...)
	var diff struct {
		Add, Remove []string
		HeldBack    []string `json:"held_back"`
		InStep      int      `json:"in_step"`
	}
	l.Verb(ctx, &diff, "acls", "--mirror", "dc1")
	require.Empty(t, diff.Add)
	require.Empty(t, diff.Remove)
	require.Len(t, diff.HeldBack, 2)

	removeRules(ctx, t, src, reader)
	here(append([]rule{all, own, read}, parts...)...)

	require.NoError(t, src.Kill(1))
	l.Verb(ctx, nil, "stop", "--topic", "acl", "--timeout", "1m")
	here(all, own, read, write, full)
}
