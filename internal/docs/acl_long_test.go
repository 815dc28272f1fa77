//go:build long

package docs_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/internal/e2e"
	"github.com/lockstep-kafka/lockstep/internal/testkafka"
	"github.com/lockstep-kafka/lockstep/internal/testkafka/content"
)

// The rights that docs/security.md lists are enough on real brokers: to mirror, to add a partition, to change a
// config, to take over after a restart, and for lockstep check.
func TestRightsAreEnough(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	authorizer := map[string]string{
		"authorizer.class.name":          "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
		"allow.everyone.if.no.acl.found": "true", // a resource with any ACL is closed but for what is allowed
	}
	src := testkafka.Start(t, testkafka.Options{Name: "source", Props: authorizer})
	dst := testkafka.Start(t, testkafka.Options{Name: "destination", Props: authorizer})
	k, err := content.Get("transactions")
	require.NoError(t, err)
	require.NoError(t, k.Fill(ctx, src, "rights"))
	require.NoError(t, content.CreateTopic(ctx, dst.Bootstrap(), "other", 1, nil))
	var offsets kadm.Offsets
	offsets.AddOffset("rights", 0, 3, -1)
	committed, err := kadm.NewClient(aclClient(t, src)).CommitOffsets(ctx, "rights-group", offsets)
	require.NoError(t, err)
	require.NoError(t, committed.Error())

	_, rights, ok := strings.Cut(page(t, "docs/security.md"), "\n## Rights of Lockstep's own users\n")
	require.True(t, ok)
	rights, _, _ = strings.Cut(rights, "\n## ")
	_, dest, ok := strings.Cut(rights, "\nDestination:\n")
	require.True(t, ok)
	dest, source, ok := strings.Cut(dest, "\nSource:\n")
	require.True(t, ok)
	grant(ctx, t, src, source, kmsg.ACLOperationAlter, kmsg.ACLOperationAlterConfigs) // what this test does on the source
	grant(ctx, t, dst, dest)

	var binary e2e.Binary
	t.Cleanup(binary.Remove)
	l := e2e.Start(t, &binary, e2e.Setup{Source: src, Destination: dst, Include: []string{"rights"}, Mirror: []string{"groups: {interval: 1s}"}})
	l.WaitCaughtUp(ctx, "rights", 1)
	l.CompareRaw(ctx, "rights", 0)
	l.WaitGroup(ctx, "rights", "rights-group", "synced", 3)
	adm := kadm.NewClient(aclClient(t, src))
	_, err = adm.UpdatePartitions(ctx, 2, "rights")
	require.NoError(t, err)
	_, err = adm.AlterTopicConfigs(ctx, []kadm.AlterConfig{{Name: "retention.ms", Value: kadm.StringPtr("-1")}}, "rights")
	require.NoError(t, err)
	l.WaitCaughtUp(ctx, "rights", 2)
	l.Restart()
	l.WaitCaughtUp(ctx, "rights", 2)
	l.CompareRaw(ctx, "rights", 0)

	// And no more than that: what nobody lists is closed.
	_, err = content.Produce(ctx, dst.Bootstrap(), "other", 0, content.Batch(1_700_000_000_000, "k", "v"))
	require.Error(t, err)

	conf := filepath.Join(t.TempDir(), "lockstep.yaml")
	require.NoError(t, os.WriteFile(conf, fmt.Appendf(nil, "listeners:\n- {address: 127.0.0.1:19092, broker_ports: 19100-19149}\n"+
		"destination: {bootstrap: [%q]}\nmirrors:\n- {name: dc1, source: {bootstrap: [%q]}, topics: {include: [rights]}}\n",
		dst.Bootstrap(), src.Bootstrap()), 0o600))
	out, err := exec.CommandContext(ctx, binary.Path(t), "check", "--config", conf).CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Equal(t, 2, strings.Count(string(out), "warn"), "%s", out)
	require.Contains(t, string(out), "the user lacks CREATE on the cluster") // by topic name, as the table says
	require.Contains(t, string(out), "1 of 3 replicas")

	// AU-03: without the rights of the ledger, check names them.
	for what, words := range map[kmsg.ACLResourceType]string{
		kmsg.ACLResourceTypeGroup:           "the user needs Read and Describe on the group __lockstep",
		kmsg.ACLResourceTypeTransactionalId: "the user needs Write and Describe on transactional ids with the prefix",
		kmsg.ACLResourceTypeTopic:           "the user needs Create, Describe, DescribeConfigs, Read and Write on the topic __mirror_state",
	} {
		ungrant(ctx, t, dst, what)
		out, err := exec.CommandContext(ctx, binary.Path(t), "check", "--config", conf, "--json").CombinedOutput()
		require.Error(t, err, "%s", out)
		require.Contains(t, string(out), words)
	}
}

// ungrant takes back what grant gave of one kind of resource.
func ungrant(ctx context.Context, t *testing.T, c *testkafka.Cluster, kind kmsg.ACLResourceType) {
	t.Helper()
	req := kmsg.NewPtrDeleteACLsRequest()
	f := kmsg.NewDeleteACLsRequestFilter()
	f.ResourceType, f.ResourcePatternType = kind, kmsg.ACLResourcePatternTypeAny
	f.Principal, f.Operation, f.PermissionType = kmsg.StringPtr("User:ANONYMOUS"), kmsg.ACLOperationAny, kmsg.ACLPermissionTypeAllow
	req.Filters = append(req.Filters, f)
	resp, err := req.RequestWith(ctx, aclClient(t, c))
	require.NoError(t, err)
	require.NoError(t, kerr.ErrorForCode(resp.Results[0].ErrorCode))
	require.NotEmpty(t, resp.Results[0].MatchingACLs)
}

func aclClient(t *testing.T, c *testkafka.Cluster) *kgo.Client {
	t.Helper()
	cl, err := kgo.NewClient(kgo.SeedBrokers(c.Bootstrap()))
	require.NoError(t, err)
	t.Cleanup(cl.Close)
	return cl
}

// grant closes a cluster but for the rights of a table of security.md (and for what the brokers themselves, who have
// no user of their own here, need).
func grant(ctx context.Context, t *testing.T, c *testkafka.Cluster, table string, more ...kmsg.ACLOperation) {
	t.Helper()
	req := kmsg.NewPtrCreateACLsRequest()
	add := func(user string, kind kmsg.ACLResourceType, name string, pattern kmsg.ACLResourcePatternType, ops ...kmsg.ACLOperation) {
		for _, op := range ops {
			a := kmsg.NewCreateACLsRequestCreation()
			a.ResourceType, a.ResourceName, a.ResourcePatternType = kind, name, pattern
			a.Principal, a.Host, a.Operation, a.PermissionType = "User:"+user, "*", op, kmsg.ACLPermissionTypeAllow
			req.Creations = append(req.Creations, a)
		}
	}
	const me, literal = "ANONYMOUS", kmsg.ACLResourcePatternTypeLiteral
	for _, kind := range []kmsg.ACLResourceType{kmsg.ACLResourceTypeTopic, kmsg.ACLResourceTypeGroup, kmsg.ACLResourceTypeTransactionalId} {
		add("nobody", kind, "*", literal, kmsg.ACLOperationAll)
	}
	for _, name := range []string{"__consumer_offsets", "__transaction_state"} {
		add(me, kmsg.ACLResourceTypeTopic, name, literal, kmsg.ACLOperationCreate)
	}
	add(me, kmsg.ACLResourceTypeCluster, "kafka-cluster", literal, kmsg.ACLOperationClusterAction)
	add(me, kmsg.ACLResourceTypeTopic, "rights", literal, more...)
	n := 0
	for line := range strings.Lines(table) {
		cols := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		if len(cols) != 3 || strings.Contains(cols[0], "resource") || strings.HasPrefix(cols[0], "-") {
			continue
		}
		var ops []kmsg.ACLOperation
		for _, o := range strings.Split(cols[1], ",") {
			op, err := kmsg.ParseACLOperation(strings.TrimSpace(o))
			require.NoError(t, err, line)
			ops = append(ops, op)
		}
		name := "kafka-cluster"
		if m := fileRE.FindStringSubmatch(cols[0]); m != nil {
			name = strings.Replace(m[1], "T", "rights", 1)
		}
		switch what := strings.Fields(cols[0])[0]; what {
		case "topic", "topics":
			add(me, kmsg.ACLResourceTypeTopic, name, literal, ops...)
		case "groups":
			add(me, kmsg.ACLResourceTypeGroup, "rights-group", literal, ops...)
		case "group":
			add(me, kmsg.ACLResourceTypeGroup, name, literal, ops...)
		case "transactional":
			add(me, kmsg.ACLResourceTypeTransactionalId, name, kmsg.ACLResourcePatternTypePrefixed, ops...)
		case "cluster":
			add(me, kmsg.ACLResourceTypeCluster, name, literal, ops...)
		default:
			t.Fatalf("unknown resource %q", cols[0])
		}
		n++
	}
	require.GreaterOrEqual(t, n, 2)
	resp, err := req.RequestWith(ctx, aclClient(t, c))
	require.NoError(t, err)
	for _, r := range resp.Results {
		require.Zero(t, r.ErrorCode, r.ErrorMessage)
	}
}
