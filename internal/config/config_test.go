package config

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

const good = `listeners:
  - address: 127.0.0.1:19092
    broker_ports: 19100-19149
destination:
  bootstrap: ["127.0.0.1:9092"]
mirrors:
  - name: dc1
    source:
      bootstrap: ["10.0.0.1:9092"]
    topics:
      include: ["orders.*"]
    fetch_max_bytes: 32MiB
`

func TestGoodFileAndDefaults(t *testing.T) {
	c, err := Parse([]byte(good))
	require.NoError(t, err)
	require.Equal(t, "127.0.0.1", c.Listeners[0].AdvertisedHost)
	require.Equal(t, PortRange{19100, 19149}, c.Listeners[0].BrokerPorts)
	m := c.Mirrors[0]
	require.Equal(t, Bytes(32<<20), m.FetchMaxBytes)
	require.Equal(t, AcksAll, m.Acks)
	require.Equal(t, []string{"__.*"}, m.Topics.Exclude, "the default exclude stays when only include is given")
	require.Equal(t, time.Minute, m.MetadataRefresh.Std())
	require.Equal(t, 10*time.Second, c.Instance.SessionTimeout.Std())

	port, ok := c.Listeners[0].BrokerPorts.Port(49)
	require.True(t, ok)
	require.Equal(t, 19149, port)
	_, ok = c.Listeners[0].BrokerPorts.Port(50)
	require.False(t, ok)
	_, ok = c.Listeners[0].BrokerPorts.Port(-1)
	require.False(t, ok)
}

// Each bad file: an error that names line, key and remedy.
func TestBadFiles(t *testing.T) {
	for _, x := range []struct{ name, from, to, want string }{
		{"unknown key", "broker_ports:", "broker_port:", "line 3: broker_port: unknown key"},
		{"unknown key in a mirror", "    fetch_max_bytes: 32MiB", "    fetch_max: 32MiB", "line 12: fetch_max: unknown key"},
		{"bad size", "32MiB", "32 lots", "line 12: fetch_max_bytes: \"32 lots\" is not a size"},
		{"bad ports", "19100-19149", "19149-19100", "line 3: broker_ports: \"19149-19100\" is not a port range"},
		{"no ports", "    broker_ports: 19100-19149\n", "", "line 2: listeners[0].broker_ports: is missing"},
		{"ports hold the address", "19100-19149", "19000-19149", "line 3: listeners[0].broker_ports: 19000-19149 holds the port of address"},
		{"any address advertised", "127.0.0.1:19092", "0.0.0.0:19092", "listeners[0].advertised_host: clients can't connect to"},
		{"not host:port", `["127.0.0.1:9092"]`, `["127.0.0.1"]`, "line 5: destination.bootstrap[0]: \"127.0.0.1\" is not host:port"},
		{"bad expression", "orders.*", "orders(", "line 11: mirrors[0].topics.include[0]: error parsing regexp"},
		{"no include", `include: ["orders.*"]`, `include: []`, "line 11: mirrors[0].topics.include: is missing"},
		{"bad name", "dc1", "dc 1", "line 7: mirrors[0].name:"},
		{"bump step", "    fetch_max_bytes: 32MiB", "    bump_step: 0", "line 12: mirrors[0].bump_step: 0 is not between"},
		{"said twice", "    fetch_max_bytes: 32MiB", "    unclean_leader_election: false\n    mirror.unclean.leader.election.enable: true", "line 12: mirrors[0].unclean_leader_election: stands there under two names"},
		{"acks", "    fetch_max_bytes: 32MiB", "    acks: some", "line 12: acks: \"some\" is not a setting"},
		{"admin open to all", "mirrors:", "admin: {address: \"0.0.0.0:9644\"}\nmirrors:", "line 6: admin.address: \"0.0.0.0:9644\" can be reached from other machines: set admin.token_file"},
		{"password nowhere", "mirrors:", "  sasl: {mechanism: PLAIN, username: u}\nmirrors:", "line 6: destination.sasl: needs one of password_file and password_env"},
		{"mechanism", "mirrors:", "  sasl: {mechanism: GSSAPI, username: u, password_env: P}\nmirrors:", "destination.sasl.mechanism: \"GSSAPI\" is not supported"},
		{"tls off but set", "mirrors:", "  tls: {ca_file: x}\nmirrors:", "destination.tls: has settings but is not enabled"},
		{"not YAML", "listeners:", "listeners: [", "line "},
		{"key twice", "mirrors:", "destination: {}\nmirrors:", "line 6: destination: mapping key \"destination\" already defined"},
		{"limit too small", "mirrors:", "limits: {mirror_memory: 1KiB}\nmirrors:", "line 6: limits.mirror_memory: is below the least"},
		{"a list for a string", "127.0.0.1:19092", "[a, b]", "line 2: address:"},
	} {
		t.Run(x.name, func(t *testing.T) {
			s := strings.Replace(good, x.from, x.to, 1)
			require.NotEqual(t, good, s, "the case must change the file")
			_, err := Parse([]byte(s))
			require.ErrorContains(t, err, x.want)
		})
	}
	_, err := Parse(nil)
	require.ErrorContains(t, err, "is empty")
	_, err = Load("nowhere.yaml")
	require.ErrorContains(t, err, "does not exist")
}

// The switch has three names (facts §8).
func TestUncleanLeaderElectionNames(t *testing.T) {
	for _, key := range []string{"unclean_leader_election", "mirror.unclean.leader.election.enable", "mirror.support.unclean.leader.election"} {
		for _, on := range []string{"true", "false"} {
			c, err := Parse([]byte(good + "    " + key + ": " + on + "\n"))
			require.NoError(t, err, key)
			require.Equal(t, on == "true", c.Mirrors[0].UncleanLeaderElection, key)
			require.Equal(t, Bytes(32<<20), c.Mirrors[0].FetchMaxBytes)
		}
	}
	c, err := Parse([]byte(good))
	require.NoError(t, err)
	require.False(t, c.Mirrors[0].UncleanLeaderElection)
	require.EqualValues(t, 1000, c.Mirrors[0].BumpStep)
}

func TestUnits(t *testing.T) {
	for in, want := range map[string]Bytes{"0": 0, "17": 17, "2KiB": 2048, "1 GiB": 1 << 30, "5B": 5} {
		var b Bytes
		require.NoError(t, b.parse(in))
		require.Equal(t, want, b)
	}
	for _, in := range []string{"", "-1", "9999999999GiB", "1KB", "MiB"} {
		var b Bytes
		require.Error(t, b.parse(in), in)
	}
	require.Equal(t, "64MiB", Bytes(64<<20).String())
	require.Equal(t, "1h", Duration(time.Hour).String())
	require.Equal(t, "1m30s", Duration(90*time.Second).String())
	require.Equal(t, "100ms", Duration(100*time.Millisecond).String())
}

func TestSecrets(t *testing.T) {
	t.Setenv("LOCKSTEP_TEST_PASSWORD", "secret")
	m, err := SASL{Mechanism: "SCRAM-SHA-256", Username: "u", PasswordEnv: "LOCKSTEP_TEST_PASSWORD"}.Auth()
	require.NoError(t, err)
	require.Equal(t, "SCRAM-SHA-256", m.Name())
	_, err = SASL{Mechanism: "PLAIN", Username: "u", PasswordEnv: "LOCKSTEP_TEST_NO_SUCH"}.Auth()
	require.ErrorContains(t, err, "LOCKSTEP_TEST_NO_SUCH is not set")
	_, err = TLS{Enabled: true, CAFile: "nowhere.pem"}.Client("destination")
	require.ErrorContains(t, err, "nowhere.pem")
}

func TestReferenceIsCurrent(t *testing.T) {
	have, err := os.ReadFile("../../docs/config.md")
	require.NoError(t, err, "run: make docs")
	require.Equal(t, Reference(), string(have), "docs/config.md differs from the code: run make docs")
}

func TestExampleLoads(t *testing.T) {
	c, err := Load("../../deploy/lockstep.yaml")
	require.NoError(t, err)
	require.NotEmpty(t, c.Mirrors)
}
