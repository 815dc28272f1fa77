// Package client builds the options of Lockstep's own Kafka clients from the
// configuration.
package client

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl"

	"github.com/lockstep-kafka/lockstep/internal/config"
	"github.com/lockstep-kafka/lockstep/internal/kconn"
	"github.com/lockstep-kafka/lockstep/internal/tlsconf"
)

// ID is the client id of all of Lockstep's own connections.
const ID = "lockstep"

// Security is what a connection to a cluster needs besides an address.
type Security struct {
	TLS  *tlsconf.Client // nil: plaintext
	SASL sasl.Mechanism  // nil: none
}

// NewSecurity reads the files that the configuration names.
func NewSecurity(what string, t config.TLS, s config.SASL) (Security, error) {
	tc, err := t.Client(what)
	if err != nil {
		return Security{}, err
	}
	m, err := Mechanism(s)
	if err != nil {
		return Security{}, err
	}
	if m != nil {
		m = newLogins(m)
	}
	return Security{TLS: tc, SASL: m}, nil
}

// dialTimeout is for TCP and TLS together.
const dialTimeout = 10 * time.Second

// dial opens a TLS connection with the settings as they are now.
func (s Security) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	return (&tls.Dialer{Config: s.TLS.Config(addr)}).DialContext(ctx, network, addr)
}

// TLSFor are the TLS settings of the next connection to addr; nil: plaintext.
func (s Security) TLSFor() func(addr string) *tls.Config {
	if s.TLS == nil {
		return nil
	}
	return s.TLS.Config
}

// Options of a kgo client for a cluster.
func Options(bootstrap []string, sec Security) []kgo.Opt {
	opts := []kgo.Opt{
		kgo.SeedBrokers(bootstrap...), kgo.ClientID(ID),
		// kadm answers from kgo's metadata cache, which is 5 s old by default:
		// too old to notice leaders and new topics.
		kgo.MetadataMinAge(100 * time.Millisecond),
		kgo.MaxVersions(kconn.ClientVersions()),
	}
	if sec.TLS != nil {
		opts = append(opts, kgo.Dialer(sec.dial))
	}
	if sec.SASL != nil {
		opts = append(opts, kgo.SASL(sec.SASL))
	}
	return opts
}

// Source is Options for a mirror's source.
func Source(s config.Source) ([]kgo.Opt, Security, error) {
	sec, err := NewSecurity("source "+strings.Join(s.Bootstrap, ","), s.TLS, s.SASL)
	if err != nil {
		return nil, Security{}, fmt.Errorf("source: %w", err)
	}
	return Options(s.Bootstrap, sec), sec, nil
}

// Destination is Options for the destination.
func Destination(d config.Destination) ([]kgo.Opt, Security, error) {
	sec, err := NewSecurity("destination", d.TLS, d.SASL)
	if err != nil {
		return nil, Security{}, fmt.Errorf("destination: %w", err)
	}
	return Options(d.Bootstrap, sec), sec, nil
}
