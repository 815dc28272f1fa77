package check

import (
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"go.uber.org/goleak"

	"github.com/lockstep-kafka/lockstep/internal/config"
	"github.com/lockstep-kafka/lockstep/internal/leaktest"
)

func cluster(t *testing.T, id string, opts ...kfake.Opt) *kfake.Cluster {
	t.Helper()
	c, err := kfake.NewCluster(append(opts, kfake.ClusterID(id))...)
	require.NoError(t, err)
	t.Cleanup(c.Close)
	return c
}

func parse(t *testing.T, src, dst *kfake.Cluster, ports string) *config.Config {
	t.Helper()
	c, err := config.Parse(fmt.Appendf(nil, `
listeners: [{address: "127.0.0.1:19092", broker_ports: %q}]
destination: {bootstrap: [%q]}
mirrors: [{name: dc1, source: {bootstrap: [%q]}, topics: {include: ["orders.*"]}}]
`, ports, dst.ListenAddrs()[0], src.ListenAddrs()[0]))
	require.NoError(t, err)
	return c
}

// find is the finding about what at where; it must be of the level and say
// text.
func find(t *testing.T, fs []Finding, level Level, where, what, text string) {
	t.Helper()
	for _, f := range fs {
		if f.Level == level && f.Where == where && f.What == what && strings.Contains(f.Detail, text) {
			return
		}
	}
	require.Failf(t, "finding missing", "%s %s %s %q in:\n%v", level, where, what, text, fs)
}

func create(t *testing.T, c *kfake.Cluster, topic string, records int) {
	t.Helper()
	cl, err := kgo.NewClient(kgo.SeedBrokers(c.ListenAddrs()...))
	require.NoError(t, err)
	defer cl.Close()
	_, err = kadm.NewClient(cl).CreateTopic(t.Context(), 1, 1, nil, topic)
	require.NoError(t, err)
	for range records {
		require.NoError(t, cl.ProduceSync(t.Context(), &kgo.Record{Topic: topic, Value: []byte("x")}).FirstErr())
	}
}

func TestAllIsWell(t *testing.T) {
	defer leaktest.None(t, goleak.IgnoreCurrent())
	src, dst := cluster(t, "S"), cluster(t, "D")
	create(t, src, "orders", 1)
	create(t, src, "other", 1)
	fs := Run(t.Context(), parse(t, src, dst, "19100-19149"))
	require.False(t, Failed(fs), "%v", fs)
	find(t, fs, OK, "destination", "reach", "cluster id D")
	find(t, fs, OK, "destination", "stamp", "comes back as it was written")
	find(t, fs, OK, "destination", "ledger", "may be used")
	find(t, fs, OK, "dc1", "topics", "1 topic with 1 partition can be read")
	find(t, fs, OK, "dc1", "destination topics", "none of the 1 topics exists yet")
	find(t, fs, OK, "dc1", "groups", "that match: 0 ")
	src.Close()
	dst.Close()
}

// AU-03: a missing right on a group is named, with the ACL to add.
func TestGroupRights(t *testing.T) {
	src, dst := cluster(t, "S"), cluster(t, "D")
	create(t, src, "orders", 1)
	cl, err := kgo.NewClient(kgo.SeedBrokers(src.ListenAddrs()...))
	require.NoError(t, err)
	defer cl.Close()
	var os kadm.Offsets
	os.AddOffset("orders", 0, 1, 0)
	_, err = kadm.NewClient(cl).CommitOffsets(t.Context(), "billing", os)
	require.NoError(t, err)
	fs := Run(t.Context(), parse(t, src, dst, "19100-19149"))
	require.False(t, Failed(fs), "%v", fs)
	find(t, fs, OK, "dc1", "groups", "that match: 1 ")
	dst.ControlKey(int16(kmsg.Heartbeat), func(req kmsg.Request) (kmsg.Response, error, bool) {
		dst.KeepControl()
		resp := req.ResponseKind().(*kmsg.HeartbeatResponse)
		resp.ErrorCode = kerr.GroupAuthorizationFailed.Code
		return resp, nil, true
	})
	find(t, Run(t.Context(), parse(t, src, dst, "19100-19149")), Fail, "dc1", "rights", "lacks READ on consumer groups [billing] of the destination")
}

func TestFindings(t *testing.T) {
	src, dst := cluster(t, "S"), cluster(t, "D")
	create(t, src, "orders", 1)
	create(t, dst, "orders", 3)

	t.Run("foreign topic", func(t *testing.T) {
		fs := Run(t.Context(), parse(t, src, dst, "19100-19149"))
		require.True(t, Failed(fs))
		find(t, fs, Fail, "dc1", "destination topics", "[orders] hold records of another origin")
	})
	t.Run("no port for a broker", func(t *testing.T) {
		fs := Run(t.Context(), parse(t, src, dst, "19100-19101"))
		find(t, fs, Fail, "destination", "ports", "no port for broker id 2")
	})
	t.Run("same cluster", func(t *testing.T) {
		fs := Run(t.Context(), parse(t, src, src, "19100-19149"))
		find(t, fs, Fail, "dc1", "loop", "the same cluster (S)")
	})
	t.Run("destination away", func(t *testing.T) {
		ln, err := net.Listen("tcp", "127.0.0.1:0") // a port that nobody listens on
		require.NoError(t, err)
		require.NoError(t, ln.Close())
		c := parse(t, src, dst, "19100-19149")
		c.Destination.Bootstrap = []string{"127.0.0.1:" + strconv.Itoa(ln.Addr().(*net.TCPAddr).Port)}
		fs := Run(t.Context(), c)
		find(t, fs, Fail, "destination", "reach", "connection refused")
		find(t, fs, OK, "dc1", "reach", "cluster id S") // the other side is checked all the same
	})
	t.Run("nothing matches", func(t *testing.T) {
		c := parse(t, src, dst, "19100-19149")
		c.Mirrors[0].Topics.Include = []string{"none"}
		find(t, Run(t.Context(), c), Warn, "dc1", "topics", "none of the source's 1 topics")
	})
}

func TestWrongPassword(t *testing.T) {
	src := cluster(t, "S", kfake.EnableSASL(), kfake.Superuser("PLAIN", "admin", "right"))
	dst := cluster(t, "D")
	t.Setenv("LOCKSTEP_TEST_PW", "wrong")
	c := parse(t, src, dst, "19100-19149")
	c.Mirrors[0].Source.SASL = config.SASL{Mechanism: "PLAIN", Username: "admin", PasswordEnv: "LOCKSTEP_TEST_PW"}
	find(t, Run(t.Context(), c), Fail, "dc1", "reach", "are the credentials right")
	t.Setenv("LOCKSTEP_TEST_PW", "right")
	find(t, Run(t.Context(), c), OK, "dc1", "reach", "cluster id S")
}

// An instance without a name of its own is told of where somebody will wait for it.
func TestNamelessInstance(t *testing.T) {
	src, dst := cluster(t, "S"), cluster(t, "D")
	create(t, src, "orders", 1)
	c := parse(t, src, dst, "19100-19149")
	warned := func() bool {
		return slices.ContainsFunc(Run(t.Context(), c), func(f Finding) bool { return f.What == "instance.id" && f.Level == Warn })
	}
	require.False(t, warned())
	c.Mirrors[0].UncleanLeaderElection = true
	require.True(t, warned())
	c.Instance.ID = "host-1"
	require.False(t, warned())
}
