package config

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"net"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
)

// Load reads and checks a file. Its errors name file, line, key and remedy.
func Load(path string) (*Config, error) {
	b, err := os.ReadFile(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("config file %s does not exist: name one with --config (docs/config.md has every key)", path)
	case err != nil:
		return nil, fmt.Errorf("read config file %s: %w", path, err)
	}
	c, err := Parse(b)
	if err != nil {
		return nil, fmt.Errorf("config file %s: %w", path, err)
	}
	return c, nil
}

// Parse is Load for bytes at hand.
func Parse(b []byte) (*Config, error) {
	c := Default()
	if strings.TrimSpace(string(b)) == "" {
		return nil, errors.New("the file is empty: it needs at least listeners and destination.bootstrap (deploy/lockstep.yaml is an example)")
	}
	if err := yaml.UnmarshalWithOptions(b, &c, yaml.Strict()); err != nil {
		return nil, explain(err)
	}
	if p := c.problems(); len(p) > 0 {
		lines := lineFinder(b)
		slices.SortStableFunc(p, func(a, b problem) int { return lines(a.key) - lines(b.key) })
		errs := make([]error, len(p))
		for i, x := range p {
			errs[i] = fmt.Errorf("line %d: %s: %s", lines(x.key), x.key, x.text)
		}
		return nil, errors.Join(errs...)
	}
	return &c, nil
}

// explain turns the YAML library's errors (which carry the place) into one
// line that says what to do.
func explain(err error) error {
	line := func(e yaml.Error) int {
		if t := e.GetToken(); t != nil && t.Position != nil {
			return t.Position.Line
		}
		return 1
	}
	var unknown *yaml.UnknownFieldError
	if errors.As(err, &unknown) {
		key := unknown.GetToken().Value
		return fmt.Errorf("line %d: %s: unknown key: remove it or correct its spelling (docs/config.md has every key)", line(unknown), key)
	}
	var value *valueError
	if errors.As(err, &value) {
		return value
	}
	var ye yaml.Error
	if errors.As(err, &ye) {
		return fmt.Errorf("line %d: %s: %s%s", line(ye), keyOf(ye), ye.GetMessage(), shape(ye.GetMessage()))
	}
	return err
}

// shape is what to write instead, where the library only says what it found.
func shape(message string) string {
	switch {
	case strings.Contains(message, "sequence is expected"):
		return ": it is a list: write [VALUE, …], or each value on a line of its own after a dash"
	case strings.Contains(message, "mapping is expected"):
		return ": it has keys of its own: write them below it, indented"
	case strings.Contains(message, "found character '\t'"):
		return ": that is a tab: indent with spaces"
	}
	return ""
}

// keyOf is the key in front of the token an error points at.
func keyOf(e yaml.Error) string {
	for t := e.GetToken(); t != nil; t = t.Prev {
		if t.Next != nil && t.Next.Value == ":" {
			return t.Value
		}
	}
	return "file"
}

// lineFinder finds the line of a key path such as mirrors[1].source.bootstrap;
// a key that is not in the file is at its nearest parent's line.
func lineFinder(b []byte) func(key string) int {
	f, err := parser.ParseBytes(b, 0)
	return func(key string) int {
		for err == nil && key != "" {
			p, perr := yaml.PathString("$." + key)
			if perr == nil {
				if n, nerr := p.FilterFile(f); nerr == nil && n != nil {
					if line := nodeLine(n); line > 0 {
						return line
					}
				}
			}
			cut := strings.LastIndexAny(key, ".[")
			key = key[:max(cut, 0)]
		}
		return 1
	}
}

func nodeLine(n ast.Node) int {
	if t := n.GetToken(); t != nil && t.Position != nil {
		return t.Position.Line
	}
	return 0
}

type problem struct{ key, text string }

// problems checks what types alone can't say.
func (c *Config) problems() (ps []problem) {
	bad := func(key, format string, args ...any) { ps = append(ps, problem{key, fmt.Sprintf(format, args...)}) }
	c.checkListeners(bad)
	checkEndpoint("destination", c.Destination.Bootstrap, c.Destination.TLS, c.Destination.SASL, bad)
	if c.Destination.LedgerReplicationFactor < 0 {
		bad("destination.ledger_replication_factor", "may not be negative: 0 chooses by the number of brokers")
	}
	seen := map[string]bool{}
	for i := range c.Mirrors {
		m, key := &c.Mirrors[i], fmt.Sprintf("mirrors[%d]", i)
		if seen[m.Name] {
			bad(key+".name", "mirror %q stands twice: names must differ", m.Name)
		}
		seen[m.Name] = true
		m.check(key, bad)
	}
	if a := c.Admin.Address; a != "" {
		host, _, err := net.SplitHostPort(a)
		switch {
		case err != nil:
			bad("admin.address", "%q is not host:port", a)
		case !loopback(host) && c.Admin.TokenFile == "":
			bad("admin.address", "%q can be reached from other machines: set admin.token_file, or use 127.0.0.1", a)
		}
	}
	if s := c.Instance.SessionTimeout; s < Duration(1e9) {
		bad("instance.session_timeout", "%s is below 1s", s)
	}
	c.Limits.check(bad)
	if !oneOf(c.Log.Level, "debug", "info", "warn", "error") {
		bad("log.level", "%q: write debug, info, warn or error", c.Log.Level)
	}
	if !oneOf(c.Log.Format, "text", "json") {
		bad("log.format", "%q: write text or json", c.Log.Format)
	}
	return ps
}

type report func(key, format string, args ...any)

func checkEndpoint(key string, bootstrap []string, t TLS, s SASL, bad report) {
	if len(bootstrap) == 0 {
		bad(key+".bootstrap", "is missing: give host:port of at least one broker")
	}
	for i, a := range bootstrap {
		if host, _, err := net.SplitHostPort(a); err != nil || host == "" {
			bad(fmt.Sprintf("%s.bootstrap[%d]", key, i), "%q is not host:port", a)
		}
	}
	if (t.CertFile == "") != (t.KeyFile == "") {
		bad(key+".tls", "cert_file and key_file go together: give both or none")
	}
	checkVersions(key+".tls", t.MinVersion, t.CipherSuites, bad)
	if !t.Enabled && !reflect.ValueOf(t).IsZero() {
		bad(key+".tls", "has settings but is not enabled: set enabled: true or remove them")
	}
	s.check(key+".sasl", bad)
}

// minConnectionAge is the least limits.max_connection_age.
const minConnectionAge = Duration(10 * time.Second)

// maxWire is the largest size in Kafka's protocol.
const maxWire = math.MaxInt32

// maxBumpStep leaves room for two thousand failovers in an int32 leader epoch.
const maxBumpStep = 1_000_000

var mirrorName = regexp.MustCompile(`^[A-Za-z0-9._-]+$`)

func (m *Mirror) check(key string, bad report) {
	if !mirrorName.MatchString(m.Name) {
		bad(key+".name", "%q: a name is letters, digits, dot, dash and underscore", m.Name)
	}
	checkEndpoint(key+".source", m.Source.Bootstrap, m.Source.TLS, m.Source.SASL, bad)
	if len(m.Topics.Include) == 0 {
		bad(key+".topics.include", "is missing: nothing would be mirrored; write [\".*\"] for all topics")
	}
	for name, list := range map[string][]string{
		"topics.include": m.Topics.Include, "topics.exclude": m.Topics.Exclude, "configs.include": m.Configs.Include, "configs.exclude": m.Configs.Exclude,
		"acls.include": m.ACLs.Include, "acls.exclude": m.ACLs.Exclude, "acls.exclude_principals": m.ACLs.ExcludePrincipals,
	} {
		for i, x := range list {
			if _, err := regexp.Compile(x); err != nil {
				bad(fmt.Sprintf("%s.%s[%d]", key, name, i), "%v", err)
			}
		}
	}
	for name, list := range map[string][]string{"include": m.Groups.Include, "exclude": m.Groups.Exclude} {
		for i, x := range list {
			if _, err := regexp.Compile(x); err != nil {
				bad(fmt.Sprintf("%s.groups.%s[%d]", key, name, i), "%v", err)
			}
		}
	}
	if m.Groups.Enabled && len(m.Groups.Include) == 0 {
		bad(key+".groups.include", "is empty: no group would be carried over; write [\".*\"] for all groups, or enabled: false")
	}
	if m.Groups.Interval < Duration(1e9) {
		bad(key+".groups.interval", "%s is below 1s", m.Groups.Interval)
	}
	if m.ReplicationFactor < 0 {
		bad(key+".replication_factor", "may not be negative: 0 is the destination's default")
	}
	if m.contradicts {
		bad(key+".unclean_leader_election", "stands there under two names that say different things: keep one")
	}
	if m.BumpStep < 1 || m.BumpStep > maxBumpStep {
		bad(key+".bump_step", "%d is not between 1 and %d", m.BumpStep, maxBumpStep)
	}
	if m.FetchPartitionMaxBytes < 1 || m.FetchMaxBytes < m.FetchPartitionMaxBytes {
		bad(key+".fetch_max_bytes", "must be at least fetch_partition_max_bytes, and that at least 1")
	}
	if m.FetchMaxBytes > maxWire {
		bad(key+".fetch_max_bytes", "%s is more than Kafka's protocol can say (at most %d)", m.FetchMaxBytes, maxWire)
	}
	if m.MetadataRefresh < Duration(1e8) {
		bad(key+".metadata_refresh", "%s is below 100ms", m.MetadataRefresh)
	}
	if m.RetryBackoffMin < Duration(1e6) || m.RetryBackoffMax < m.RetryBackoffMin {
		bad(key+".retry_backoff_min", "must be at least 1ms and not above retry_backoff_max")
	}
	if m.RetryAttempts < 1 {
		bad(key+".retry_attempts", "must be at least 1")
	}
	if m.FetchWaitMax < Duration(1e6) {
		bad(key+".fetch_wait_max", "%s is below 1ms", m.FetchWaitMax)
	}
}

func (l *Limits) check(bad report) {
	for key, v := range map[string]struct{ have, least int64 }{
		"max_frame_bytes":          {int64(l.MaxFrameBytes), 1 << 20},
		"max_connections":          {int64(l.MaxConnections), 1},
		"max_connections_per_ip":   {int64(l.MaxConnectionsPerIP), 0},
		"max_in_flight":            {int64(l.MaxInFlight), 1},
		"stalled_frame_timeout":    {int64(l.StalledFrameTimeout), 1e8},
		"drain_delay":              {int64(l.DrainDelay), 0},
		"proxy_memory":             {int64(l.ProxyMemory), 32 << 20},
		"client_outbound_max":      {int64(l.ClientOutboundMax), 64 << 10},
		"fetch_upstream_max_bytes": {int64(l.FetchUpstreamMaxBytes), 64 << 10},
		"mirror_memory":            {int64(l.MirrorMemory), 8 << 20},
		"idle_timeout":             {int64(l.IdleTimeout), 1e9},
		"handshake_timeout":        {int64(l.HandshakeTimeout), 1e8},
	} {
		if v.have < v.least {
			bad("limits."+key, "is below the least that works (%d)", v.least)
		}
	}
	if l.MaxConnectionAge != 0 && l.MaxConnectionAge < minConnectionAge {
		bad("limits.max_connection_age", "%s is below %s: clients would do little but connect; 0 is no limit", l.MaxConnectionAge, minConnectionAge)
	}
	for key, v := range map[string]Bytes{
		"max_frame_bytes": l.MaxFrameBytes, "client_outbound_max": l.ClientOutboundMax, "fetch_upstream_max_bytes": l.FetchUpstreamMaxBytes,
	} {
		if v > maxWire {
			bad("limits."+key, "%s is more than Kafka's protocol can say (at most %d)", v, maxWire)
		}
	}
}

func oneOf(s string, all ...string) bool {
	for _, x := range all {
		if s == x {
			return true
		}
	}
	return false
}

func loopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}
