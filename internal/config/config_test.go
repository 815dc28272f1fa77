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

const goodTwo = `listeners:
  - address: 0.0.0.0:19092
    advertised_host: kafka.example
    broker_ports: 19100-19149
    advertised_ports: 29100-29149
    proxy_protocol: off
  - address: 0.0.0.0:9093
    sni:
      bootstrap_host: kafka.example
      broker_host: broker-%d.kafka.example
      advertised_port: 443
    tls:
      enabled: true
      cert_file: server.crt
      key_file: server.key
      client_ca_file: clients.pem
      client_auth: required
      min_version: 1.3
    proxy_protocol: required
    broker_certificate: {cert_file: apps.crt, key_file: apps.key}
destination:
  bootstrap: ["127.0.0.1:9092"]
  tls:
    enabled: true
    cert_file: own.crt
    key_file: own.key
    min_version: "1.2"
    cipher_suites: [TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384]
`

func TestListeners(t *testing.T) {
	c, err := Parse([]byte(goodTwo))
	require.NoError(t, err)
	require.Equal(t, ProxyOff, c.Listeners[0].ProxyProtocol)
	require.Equal(t, ProxyRequired, c.Listeners[1].ProxyProtocol)
	require.Equal(t, TLS13, c.Listeners[1].TLS.MinVersion)
	require.Equal(t, TLS12, c.Destination.TLS.MinVersion)
	more := func(entry string) string { return "  - " + entry + "\ndestination:" }
	for _, x := range []struct{ name, from, to, want string }{
		{"ids on one address (PX-035)", "broker-%d.kafka", "broker.kafka", "line 10: listeners[1].sni.broker_host: \"broker.kafka.example\" must hold %d once"},
		{"two ids in a name", "broker-%d.kafka", "broker-%d.%d.kafka", "must hold %d once"},
		{"no host name", "broker-%d.kafka", "broker_%d..kafka", "is no host name"},
		{"bootstrap is a broker", "bootstrap_host: kafka.example", "bootstrap_host: Broker-3.kafka.example", "is the name of broker 3"},
		{"bootstrap by address", "bootstrap_host: kafka.example", "bootstrap_host: 10.0.0.1", "is no host name"},
		{"sni without tls", "      enabled: true\n      cert_file: server.crt", "      enabled: false\n      cert_file: server.crt", "needs tls: brokers are told apart"},
		{"sni and ports", "    sni:", "    broker_ports: 19200-19210\n    sni:", "and sni exclude each other"},
		{"unlike many ports", "29100-29149", "29100-29148", "line 5: listeners[0].advertised_ports: 29100-29148 and broker_ports 19100-19149 must be equally many"},
		{"no key", "      key_file: server.key\n", "", "listeners[1].tls: needs cert_file and key_file"},
		{"clients without CA", "      client_ca_file: clients.pem\n", "", "client_auth: and client_ca_file go together"},
		{"bad word", "client_auth: required", "client_auth: always", "line 17: client_auth: \"always\" is none of [none optional required]"},
		{"old version", "min_version: 1.3", "min_version: 1.1", "min_version: \"1.1\" is none of [1.2 1.3]"},
		{"bad mode", "proxy_protocol: required", "proxy_protocol: yes", "line 19: proxy_protocol: \"yes\" is none of [off allowed required]"},
		{"bad suite", "[TLS_ECDHE_ECDSA", "[RC4, TLS_ECDHE_ECDSA", "destination.tls.cipher_suites[0]: \"RC4\" is no secure cipher suite"},
		{"suite of 1.3", "[TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384]", "[TLS_AES_128_GCM_SHA256]", "whose suites are always on"},
		{"suites and 1.3", `min_version: "1.2"`, "min_version: 1.3", "which min_version excludes"},
		{"Lockstep's own certificate", "apps.crt", "own.crt", "broker_certificate: is Lockstep's own"},
		{"port of another", "0.0.0.0:9093", "0.0.0.0:19120", "port 19120 is in broker_ports of listeners[0]"},
		{"the same port", "0.0.0.0:9093", "127.0.0.1:19092", "port 19092 is that of listeners[0] too"},
		{"ports in common", "destination:", more("{address: \"0.0.0.0:9094\", advertised_host: x, broker_ports: 19140-19160}"), "19140-19160 and 19100-19149 of listeners[0] have ports in common"},
		{"two brokers at one address", "destination:", more("{address: \"0.0.0.0:9094\", advertised_host: Kafka.example, broker_ports: 19200-19249, advertised_ports: 29110-29159}"), "an address must stand for one broker only"},
	} {
		t.Run(x.name, func(t *testing.T) {
			text := strings.Replace(goodTwo, x.from, x.to, 1)
			require.NotEqual(t, goodTwo, text)
			_, err := Parse([]byte(text))
			require.ErrorContains(t, err, x.want)
		})
	}
	// Inside and outside by different addresses of this machine, under the same
	// names: that is no contradiction.
	same := strings.Replace(goodTwo, "destination:", more("{address: \"127.0.0.1:9094\", advertised_host: kafka.example, broker_ports: 19200-19249, advertised_ports: 29100-29149}"), 1)
	_, err = Parse([]byte(same))
	require.NoError(t, err)
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
		{"connections too short", "mirrors:", "limits: {max_connection_age: 9s}\nmirrors:", "line 6: limits.max_connection_age: 9s is below 10s"},
		{"limit above the protocol's", "mirrors:", "limits: {max_frame_bytes: 2GiB}\nmirrors:", "line 6: limits.max_frame_bytes: 2GiB is more than"},
		{"limit that would wrap to nothing", "mirrors:", "limits: {fetch_upstream_max_bytes: 4GiB}\nmirrors:", "line 6: limits.fetch_upstream_max_bytes: 4GiB is more than"},
		{"a word for a list", `include: ["orders.*"]`, `include: orders`, "line 11: include: string was used where sequence is expected: it is a list: write [VALUE, …]"},
		{"a word for keys", "topics:\n      include: [\"orders.*\"]", "topics: orders", "it has keys of its own"},
		{"a tab", "    broker_ports:", "\tbroker_ports:", "indent with spaces"},
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

func TestTLSFileIsMissing(t *testing.T) {
	_, err := TLS{Enabled: true, CAFile: "nowhere.pem"}.Client("destination")
	require.ErrorContains(t, err, "nowhere.pem")
}

// Each mistake in credentials is named with its remedy; nothing that might be a secret in the wrong place is repeated.
func TestSASL(t *testing.T) {
	const secret = "s3cr3t-Canary!"
	for _, x := range []struct{ name, sasl, want string }{
		{"scram", "{mechanism: SCRAM-SHA-512, username: u, password_file: p}", ""},
		{"token file", "{mechanism: OAUTHBEARER, oauth: {token_file: t, extensions: {logicalCluster: lkc-1}}}", ""},
		{"client credentials", "{mechanism: OAUTHBEARER, oauth: {token_url: \"https://idp/token\", client_id: i, client_secret_env: S, scope: a b, audience: x, ca_file: c}}", ""},
		{"on this machine", "{mechanism: OAUTHBEARER, oauth: {token_url: \"http://127.0.0.1:1/token\", client_id: i, client_secret_env: S}}", ""},
		{"aws", "{mechanism: AWS_MSK_IAM}", ""},
		{"aws file", "{mechanism: AWS_MSK_IAM, aws: {credentials_file: c, profile: p}}", ""},

		{"no mechanism", "{username: u}", "destination.sasl.mechanism: is missing: write PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER or AWS_MSK_IAM"},
		{"no password", "{mechanism: PLAIN, username: u}", "line 4: destination.sasl: needs one of password_file and password_env"},
		{"password in the file", "{mechanism: PLAIN, username: u, password: " + secret + "}", "password: unknown key"},
		{"password for its variable", "{mechanism: PLAIN, username: u, password_env: " + secret + "}", "is no name of an environment variable"},
		{"user of a token", "{mechanism: OAUTHBEARER, username: u, oauth: {token_file: t}}", "username and password are not for OAUTHBEARER"},
		{"no token", "{mechanism: OAUTHBEARER}", "destination.sasl.oauth: needs one of token_file and token_url"},
		{"two tokens", "{mechanism: OAUTHBEARER, oauth: {token_file: t, token_url: \"https://x/\"}}", "needs one of token_file and token_url"},
		{"secret for nothing", "{mechanism: OAUTHBEARER, oauth: {token_file: t, client_id: i}}", "go with token_url"},
		{"no secret", "{mechanism: OAUTHBEARER, oauth: {token_url: \"https://x/\", client_id: i}}", "needs one of client_secret_file and client_secret_env"},
		{"no client", "{mechanism: OAUTHBEARER, oauth: {token_url: \"https://x/\", client_secret_env: S}}", "oauth.client_id: is missing"},
		{"no url", "{mechanism: OAUTHBEARER, oauth: {token_url: " + secret + ", client_id: i, client_secret_env: S}}", "is no URL of the form"},
		{"secret in the url", "{mechanism: OAUTHBEARER, oauth: {token_url: \"https://i:" + secret + "@x/\", client_id: i, client_secret_env: S}}", "has credentials in it"},
		{"in the clear", "{mechanism: OAUTHBEARER, oauth: {token_url: \"http://idp/token\", client_id: i, client_secret_env: S}}", "use https"},
		{"extension", "{mechanism: OAUTHBEARER, oauth: {token_file: t, extensions: {auth: x}}}", "\"auth\" is no name of an extension"},
		{"extension's value", "{mechanism: OAUTHBEARER, oauth: {token_file: t, extensions: {a: \"x\\x01" + secret + "\"}}}", "the value of a is empty or has control characters"},
		{"oauth of another", "{mechanism: PLAIN, username: u, password_env: P, oauth: {token_file: t}}", "destination.sasl.oauth: is only for OAUTHBEARER"},
		{"aws of another", "{mechanism: PLAIN, username: u, password_env: P, aws: {profile: t}}", "destination.sasl.aws: is only for AWS_MSK_IAM"},
		{"profile of nothing", "{mechanism: AWS_MSK_IAM, aws: {profile: t}}", "aws.profile: needs credentials_file"},
		{"a list", "{mechanism: PLAIN, username: u, password_file: [" + secret + "]}", "line 4: password_file"},
		{"no map", secret, "line 4: sasl"},
	} {
		t.Run(x.name, func(t *testing.T) {
			_, err := Parse([]byte("listeners: [{address: \"127.0.0.1:19092\", broker_ports: 19100-19149}]\ndestination:\n  bootstrap: [\"127.0.0.1:9092\"]\n  sasl: " + x.sasl + "\n"))
			if x.want == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorContains(t, err, x.want)
			require.NotContains(t, err.Error(), secret)
		})
	}
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
