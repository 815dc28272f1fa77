// Package config is Lockstep's configuration: one strict YAML file. Types,
// defaults and the texts of the reference stand here; load.go reads and checks
// a file, reference.go writes docs/config.md from the same tags.
package config

import (
	"time"
)

// Config is the whole file. Field tags: yaml is the key, doc the sentence of
// the reference; defaults are those of Default.
type Config struct {
	Listeners   []Listener  `yaml:"listeners" doc:"Where clients connect: one or more addresses; [listeners.md](listeners.md) has examples."`
	Destination Destination `yaml:"destination" doc:"The cluster behind the proxy: clients are passed through to it, mirrors are written into it."`
	Mirrors     []Mirror    `yaml:"mirrors" doc:"What is mirrored into the destination. May be empty: then this instance mirrors nothing, and serves what others mirror."`
	Admin       Admin       `yaml:"admin" doc:"Health, metrics and status over HTTP."`
	Instance    Instance    `yaml:"instance" doc:"This process among the Locksteps in front of one destination."`
	Limits      Limits      `yaml:"limits" doc:"Bounds on memory, connections and time."`
	Log         Log         `yaml:"log" doc:"Logging, to standard error."`
}

// Listener is one bootstrap address and the addresses of the brokers behind it.
type Listener struct {
	Address           string            `yaml:"address" doc:"host:port that clients use as bootstrap address; with sni for the brokers too."`
	AdvertisedHost    string            `yaml:"advertised_host" doc:"Host name that clients are told for every broker. Default: the host of address; 0.0.0.0 and :: are refused. Not with sni."`
	BrokerPorts       PortRange         `yaml:"broker_ports" doc:"Ports for the brokers, FIRST-LAST: broker id n is at FIRST+n, over restarts too. A broker id without a port is an error in the log, and clients are told a name that doesn't exist, never its own address. One of broker_ports and sni."`
	AdvertisedPorts   PortRange         `yaml:"advertised_ports" doc:"Ports that clients are told instead of broker_ports, as many: where a NAT or container publishes them under other numbers."`
	SNI               SNI               `yaml:"sni" doc:"A name for each broker instead of a port: all on the port of address, told apart by the server name in the TLS hello. Needs tls."`
	TLS               ListenerTLS       `yaml:"tls" doc:"TLS of the clients. It ends in Lockstep."`
	ProxyProtocol     ProxyProtocol     `yaml:"proxy_protocol" doc:"off, allowed or required: whether a connection begins with a header of the PROXY protocol, v1 or v2, that tells the client's address. Anyone who can connect can claim any address by it: let only the load balancer connect. Default: off."`
	BrokerCertificate BrokerCertificate `yaml:"broker_certificate" doc:"A certificate for the brokers, presented on the connections of this listener's clients, for a destination that demands one. To the brokers every client of this listener is its subject then, unless it authenticates with SASL: [listeners.md](listeners.md#a-destination-that-demands-client-certificates)."`
}

// SNI is a name for each broker.
type SNI struct {
	BootstrapHost  string `yaml:"bootstrap_host" doc:"Name that clients use for bootstrap."`
	BrokerHost     string `yaml:"broker_host" doc:"Names of the brokers, with %d for the id, as broker-%d.kafka.example: needs a DNS entry (a wildcard will do) and a certificate that holds them. A client that asks for another name is refused."`
	AdvertisedPort int    `yaml:"advertised_port" doc:"Port that clients are told. 0: the port of address."`
}

// ListenerTLS is TLS of clients.
type ListenerTLS struct {
	Enabled      bool       `yaml:"enabled" doc:"Accept TLS, and nothing else."`
	CertFile     string     `yaml:"cert_file" doc:"PEM file with the certificate, followed by its chain. This and the next two are loaded again when they change; open connections stay."`
	KeyFile      string     `yaml:"key_file" doc:"PEM file with its key."`
	ClientCAFile string     `yaml:"client_ca_file" doc:"PEM file with the authorities that sign clients' certificates."`
	ClientAuth   ClientAuth `yaml:"client_auth" doc:"none, optional or required: whether clients must show a certificate of client_ca_file. It decides who may connect; the brokers don't learn of it. Default: none."`
	MinVersion   TLSVersion `yaml:"min_version" doc:"Least TLS version, 1.2 or 1.3. Default: 1.2."`
	CipherSuites []string   `yaml:"cipher_suites" doc:"Cipher suites of TLS 1.2, by their standard names. Default: Go's choice of secure ones. Those of TLS 1.3 can't be chosen."`
}

// BrokerCertificate is what brokers are shown on clients' connections.
type BrokerCertificate struct {
	CertFile string `yaml:"cert_file" doc:"PEM file with the certificate. Loaded again when it changes, as the key."`
	KeyFile  string `yaml:"key_file" doc:"PEM file with its key."`
}

// Destination is the cluster behind the proxy.
type Destination struct {
	Bootstrap               []string `yaml:"bootstrap" doc:"host:port of some of its brokers; all are tried."`
	TLS                     TLS      `yaml:"tls" doc:"TLS of all connections to it."`
	SASL                    SASL     `yaml:"sasl" doc:"Credentials of Lockstep's own connections. Clients' credentials pass through untouched."`
	LedgerReplicationFactor int      `yaml:"ledger_replication_factor" doc:"Replicas of the topic __mirror_state. 0: three, or as many as there are brokers."`
}

// Source is the cluster that a mirror reads.
type Source struct {
	Bootstrap []string `yaml:"bootstrap" doc:"host:port of some of the source's brokers; all are tried."`
	TLS       TLS      `yaml:"tls" doc:"TLS of the connections to the source."`
	SASL      SASL     `yaml:"sasl" doc:"Credentials for the source."`
}

// TLS of a connection that Lockstep opens.
type TLS struct {
	Enabled            bool       `yaml:"enabled" doc:"Use TLS."`
	CAFile             string     `yaml:"ca_file" doc:"PEM file with the authorities to trust. Default: the system's. This and the next two are loaded again when they change; open connections stay."`
	CertFile           string     `yaml:"cert_file" doc:"PEM file with the client certificate; needs key_file."`
	KeyFile            string     `yaml:"key_file" doc:"PEM file with the client key; needs cert_file."`
	ServerName         string     `yaml:"server_name" doc:"Name to ask for (SNI), and to verify in the broker's certificate. Default: the host dialled."`
	InsecureSkipVerify bool       `yaml:"insecure_skip_verify" doc:"Accept any certificate. For tests only."`
	MinVersion         TLSVersion `yaml:"min_version" doc:"Least TLS version, 1.2 or 1.3. Default: 1.2."`
	CipherSuites       []string   `yaml:"cipher_suites" doc:"Cipher suites of TLS 1.2, by their standard names. Default: Go's choice of secure ones. Those of TLS 1.3 can't be chosen."`
}

// SASL credentials; no secret ever stands in the file.
type SASL struct {
	Mechanism    string `yaml:"mechanism" doc:"PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER or AWS_MSK_IAM; examples: [security.md](security.md#credentials-of-locksteps-own). Empty: no SASL."`
	Username     string `yaml:"username" doc:"User name, for PLAIN and SCRAM."`
	PasswordFile string `yaml:"password_file" doc:"File that holds the password; surrounding white space is dropped. It is read again at each login. One of password_file and password_env."`
	PasswordEnv  string `yaml:"password_env" doc:"Environment variable that holds the password."`
	OAuth        OAuth  `yaml:"oauth" doc:"Where the token of OAUTHBEARER comes from: a file, or a token endpoint (client credentials)."`
	AWS          AWS    `yaml:"aws" doc:"Where the keys of AWS_MSK_IAM come from. Without a file: the environment variables AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN."`
}

// OAuth is where a token comes from.
type OAuth struct {
	TokenFile        string            `yaml:"token_file" doc:"File that holds a token, which somebody else renews. It is read again at each login. One of token_file and token_url."`
	TokenURL         string            `yaml:"token_url" doc:"Token endpoint that is asked with grant_type=client_credentials; https, or http on this machine."`
	ClientID         string            `yaml:"client_id" doc:"Client id for the endpoint."`
	ClientSecretFile string            `yaml:"client_secret_file" doc:"File that holds the client secret; read again whenever the endpoint is asked. One of client_secret_file and client_secret_env."`
	ClientSecretEnv  string            `yaml:"client_secret_env" doc:"Environment variable that holds the client secret."`
	Scope            string            `yaml:"scope" doc:"Scopes to ask for, separated by blanks."`
	Audience         string            `yaml:"audience" doc:"Audience to ask for, where the endpoint wants one."`
	CAFile           string            `yaml:"ca_file" doc:"PEM file with the authorities to trust at the endpoint. Default: the system's."`
	Extensions       map[string]string `yaml:"extensions" doc:"SASL extensions for the broker (KIP-342), as logicalCluster: lkc-1."`
}

// AWS is where AWS keys come from.
type AWS struct {
	CredentialsFile string `yaml:"credentials_file" doc:"File in the format of AWS's shared credentials (aws_access_key_id, aws_secret_access_key, aws_session_token). It is read again at each login."`
	Profile         string `yaml:"profile" doc:"Its section. Empty: default."`
}

// Mirror is a named source with its filters.
type Mirror struct {
	Name                   string   `yaml:"name" doc:"Unique name: letters, digits, dot, dash, underscore."`
	Source                 Source   `yaml:"source" doc:"The cluster to read."`
	Topics                 Topics   `yaml:"topics" doc:"Which topics."`
	Configs                Configs  `yaml:"configs" doc:"Which topic configs follow the source."`
	ACLs                   ACLs     `yaml:"acls" doc:"Which of the source's ACLs are added to the destination."`
	Groups                 Groups   `yaml:"groups" doc:"Which consumer groups' offsets follow the source."`
	ReplicationFactor      int      `yaml:"replication_factor" doc:"Of topics created on the destination. 0: the destination's default."`
	UncleanLeaderElection  bool     `yaml:"unclean_leader_election" doc:"Support for unclean leader elections on the source. true: what the source lost is cut here too, then mirroring goes on. false: such a partition is FAILED. Also accepted as mirror.unclean.leader.election.enable and mirror.support.unclean.leader.election. Takes effect without a restart."`
	BumpStep               int32    `yaml:"bump_step" doc:"By how much the leader epoch shown rises at least when a partition is STOPPED, so that writers here never reach the source's epochs (hazard M1)."`
	Acks                   Acks     `yaml:"acks" doc:"all: a record counts as mirrored when every in-sync replica has it. leader: when the leader has it; offsets shown still come only from below the high watermark."`
	FetchMaxBytes          Bytes    `yaml:"fetch_max_bytes" doc:"Most bytes of one fetch answer from a source broker."`
	FetchPartitionMaxBytes Bytes    `yaml:"fetch_partition_max_bytes" doc:"Most bytes of one partition in it; a larger batch comes alone. Over a round trip of more than 5 ms in proportion more, where few partitions share an answer."`
	FetchWaitMax           Duration `yaml:"fetch_wait_max" doc:"How long a source broker may hold a fetch that has no data."`
	MetadataRefresh        Duration `yaml:"metadata_refresh" doc:"How often topics, partitions, configs and leaders are looked at without a reason."`
	MinCompactionLag       Duration `yaml:"min_compaction_lag" doc:"Floor for min.compaction.lag.ms of compacted topics on the destination while they are mirrored (hazard H1)."`
	MergeSmallBatches      bool     `yaml:"merge_small_batches" doc:"While behind, write neighbouring batches of up to 64 KiB (16 KiB compressed) as one. Records, offsets, epochs and timestamps stay as they are; where one batch ends and the next begins doesn't. false: every batch stays one."`
	RetryBackoffMin        Duration `yaml:"retry_backoff_min" doc:"First pause before a FAILED partition is tried again; doubles, with jitter."`
	RetryBackoffMax        Duration `yaml:"retry_backoff_max" doc:"Longest such pause."`
	RetryAttempts          int      `yaml:"retry_attempts" doc:"Tries before a FAILED partition waits for the operator."`

	contradicts bool // unclean_leader_election and its aliases differ
}

// Topics selects topics by regular expressions.
type Topics struct {
	Include []string `yaml:"include" doc:"RE2 expressions; a topic is mirrored when one matches its whole name."`
	Exclude []string `yaml:"exclude" doc:"RE2 expressions; exclude wins over include."`
}

// Configs selects topic configs by regular expressions.
type Configs struct {
	Include []string `yaml:"include" doc:"RE2 expressions; a config that is set on the source's topic is set here too when one matches its whole key. What a mirror needs for itself (docs/operations.md) follows in any case."`
	Exclude []string `yaml:"exclude" doc:"RE2 expressions; exclude wins over include."`
}

// ACLs selects the source's ACLs by regular expressions.
type ACLs struct {
	Enabled           bool     `yaml:"enabled" doc:"Copy the source's ACLs, and take away again what was copied when the source has it no more. What is the destination's own stays."`
	DryRun            bool     `yaml:"dry_run" doc:"Change nothing: lockstep acls shows what would be."`
	Include           []string `yaml:"include" doc:"RE2 expressions for type:name of a rule's resource; types are topic, group, transactional_id, cluster, delegation_token, user. A rule for one topic is copied only where that topic is mirrored."`
	Exclude           []string `yaml:"exclude" doc:"RE2 expressions; exclude wins over include."`
	ExcludePrincipals []string `yaml:"exclude_principals" doc:"RE2 expressions for principals whose rules are not copied, such as User:admin."`
	WritesAtOnce      bool     `yaml:"writes_at_once" doc:"false: rules that allow to change a topic (WRITE, CREATE, DELETE, ALTER, ALTER_CONFIGS, ALL) are held back until every mirror topic that they cover is STOPPED; of ALL, reading is given at once. true: they are added like all others; the proxy refuses writes to mirror topics all the same, clients that bypass it are not stopped."`
}

// Groups selects consumer groups whose committed offsets are carried over.
type Groups struct {
	Enabled  bool     `yaml:"enabled" doc:"Carry committed offsets of the mirrored topics over, while a group has no members on the destination, and once more when a partition is stopped."`
	Include  []string `yaml:"include" doc:"RE2 expressions; a group is carried over when one matches its whole name."`
	Exclude  []string `yaml:"exclude" doc:"RE2 expressions; exclude wins over include."`
	Interval Duration `yaml:"interval" doc:"How often the source's offsets are looked at. At least 1s."`
}

// Admin is the HTTP endpoint.
type Admin struct {
	Address   string `yaml:"address" doc:"host:port of /livez, /readyz, /metrics and the status API. Empty: none. Anything but loopback needs token_file."`
	TokenFile string `yaml:"token_file" doc:"File with a bearer token that every request but /livez and /readyz must carry."`
}

// Instance names this process.
type Instance struct {
	ID             string   `yaml:"id" doc:"Stable name of this instance; set, a restart takes its partitions back at once. Default: random, a restart waits for session_timeout after a crash."`
	SessionTimeout Duration `yaml:"session_timeout" doc:"After this time without a heartbeat another instance takes over. Within the destination's group.min/max.session.timeout.ms."`
}

// Limits bound what the process uses.
type Limits struct {
	MaxFrameBytes         Bytes    `yaml:"max_frame_bytes" doc:"Largest request or rewritten answer; a larger frame closes its connection."`
	MaxConnections        int      `yaml:"max_connections" doc:"Client connections at once. A change counts for new ones."`
	MaxConnectionsPerIP   int      `yaml:"max_connections_per_ip" doc:"Client connections at once from one address. 0: no limit; clients behind one NAT or load balancer share an address."`
	MaxInFlight           int      `yaml:"max_in_flight" doc:"Unanswered requests of one connection; while there are so many, the client is not read."`
	ProxyMemory           Bytes    `yaml:"proxy_memory" doc:"Bytes held for all clients together: what waits for slow ones, and requests and answers that have to be whole. Kept below it by reading less of brokers and clients."`
	ClientOutboundMax     Bytes    `yaml:"client_outbound_max" doc:"Bytes waiting for a slow reader before its broker is no longer read."`
	FetchUpstreamMaxBytes Bytes    `yaml:"fetch_upstream_max_bytes" doc:"Most bytes asked of a broker for one client fetch that touches mirror topics."`
	MirrorMemory          Bytes    `yaml:"mirror_memory" doc:"Bytes of memory for what is fetched from sources and not yet written, over all mirrors."`
	IdleTimeout           Duration `yaml:"idle_timeout" doc:"A client connection without traffic is closed after this time."`
	StalledFrameTimeout   Duration `yaml:"stalled_frame_timeout" doc:"A client that has begun a request must send the rest of it, or 64 KiB, within each such time."`
	HandshakeTimeout      Duration `yaml:"handshake_timeout" doc:"Time for a new connection's first request, and for reaching the broker while Lockstep knows none yet or addresses do not answer."`
	MaxConnectionAge      Duration `yaml:"max_connection_age" doc:"A client connection is closed in order, between its requests, when it is 80 to 100 % of this old (each one's share is random), so that clients spread over instances that came later. 0: never."`
	DrainTimeout          Duration `yaml:"drain_timeout" doc:"On SIGTERM: time over which client connections are closed once their requests are answered; fewer than some hundred are closed sooner, 50 ms for each."`
	DrainDelay            Duration `yaml:"drain_delay" doc:"On SIGTERM: time during which clients are still accepted while /readyz says no already, so that a load balancer notices first. 0: none."`
}

// Log sets up logging.
type Log struct {
	Level  string `yaml:"level" doc:"debug, info, warn or error."`
	Format string `yaml:"format" doc:"text or json."`
}

// Default has every default; a file only says what differs.
func Default() Config {
	return Config{
		Admin:    Admin{Address: "127.0.0.1:9644"},
		Instance: Instance{SessionTimeout: Duration(10 * time.Second)},
		Limits: Limits{
			MaxFrameBytes:         100 << 20,
			MaxConnections:        10000,
			MaxInFlight:           1000,
			ProxyMemory:           512 << 20,
			ClientOutboundMax:     4 << 20,
			FetchUpstreamMaxBytes: 8 << 20,
			MirrorMemory:          32 << 20,
			IdleTimeout:           Duration(10 * time.Minute),
			StalledFrameTimeout:   Duration(30 * time.Second),
			HandshakeTimeout:      Duration(10 * time.Second),
			DrainTimeout:          Duration(30 * time.Second),
		},
		Log: Log{Level: "info", Format: "text"},
	}
}

// DefaultMirror has the defaults of one entry of mirrors.
func DefaultMirror() Mirror {
	return Mirror{
		Topics:                 Topics{Exclude: []string{"__.*"}},
		Configs:                Configs{Include: []string{".*"}},
		ACLs:                   ACLs{Include: []string{"topic:.*", "group:.*", "transactional_id:.*"}, Exclude: []string{"topic:__.*"}},
		Groups:                 Groups{Enabled: true, Include: []string{".*"}, Interval: Duration(time.Minute)},
		BumpStep:               1000,
		Acks:                   AcksAll,
		FetchMaxBytes:          16 << 20,
		FetchPartitionMaxBytes: 1 << 20,
		FetchWaitMax:           Duration(500 * time.Millisecond),
		MetadataRefresh:        Duration(time.Minute),
		MinCompactionLag:       Duration(time.Hour),
		MergeSmallBatches:      true,
		RetryBackoffMin:        Duration(100 * time.Millisecond),
		RetryBackoffMax:        Duration(300 * time.Second),
		RetryAttempts:          20,
	}
}

// UnmarshalYAML fills in an entry's defaults before its keys are read, and takes
// the names that KIP-1279 gave to unclean_leader_election, in its newer and its
// older text.
func (m *Mirror) UnmarshalYAML(unmarshal func(any) error) error {
	type Plain Mirror
	type entry struct {
		Plain `yaml:",inline"`
		New   *bool `yaml:"mirror.unclean.leader.election.enable"`
		Old   *bool `yaml:"mirror.support.unclean.leader.election"`
	}
	e, other := entry{Plain: Plain(DefaultMirror())}, entry{Plain: Plain(DefaultMirror())}
	other.UncleanLeaderElection = !e.UncleanLeaderElection
	if err := unmarshal(&e); err != nil {
		return err
	}
	if err := unmarshal(&other); err != nil {
		return err
	}
	var said []bool
	if e.UncleanLeaderElection == other.UncleanLeaderElection { // else the key isn't there
		said = append(said, e.UncleanLeaderElection)
	}
	for _, b := range []*bool{e.New, e.Old} {
		if b != nil {
			said = append(said, *b)
		}
	}
	*m = Mirror(e.Plain)
	for _, b := range said {
		m.UncleanLeaderElection = b
		m.contradicts = m.contradicts || b != said[0]
	}
	return nil
}
