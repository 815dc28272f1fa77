package config

import (
	"crypto/tls"
	"fmt"

	"github.com/lockstep-kafka/lockstep/internal/tlsconf"
)

// Client loads the TLS settings of own connections, nil when TLS is off. what
// names the cluster in errors and logs.
func (t TLS) Client(what string) (*tlsconf.Client, error) {
	if !t.Enabled {
		return nil, nil
	}
	suites, err := suites(t.CipherSuites)
	if err != nil {
		return nil, err
	}
	return tlsconf.NewClient(what, tlsconf.ClientOptions{
		Common: tlsconf.Common{
			CAFile: t.CAFile, CertFile: t.CertFile, KeyFile: t.KeyFile,
			MinVersion: t.MinVersion.number(), CipherSuites: suites,
		},
		ServerName: t.ServerName, InsecureSkipVerify: t.InsecureSkipVerify,
	})
}

// Server loads the TLS settings of a listener, nil when TLS is off.
func (t ListenerTLS) Server(what string) (*tlsconf.Server, error) {
	if !t.Enabled {
		return nil, nil
	}
	suites, err := suites(t.CipherSuites)
	if err != nil {
		return nil, err
	}
	return tlsconf.NewServer(what, tlsconf.ServerOptions{
		Common: tlsconf.Common{
			CAFile: t.ClientCAFile, CertFile: t.CertFile, KeyFile: t.KeyFile,
			MinVersion: t.MinVersion.number(), CipherSuites: suites,
		},
		ClientAuth: map[ClientAuth]tlsconf.ClientAuth{
			ClientAuthOptional: tlsconf.OptionalClientCert, ClientAuthRequired: tlsconf.RequireClientCert,
		}[t.ClientAuth],
	})
}

// WithCertificate are the same settings with another certificate; the zero one
// for none.
func (t TLS) WithCertificate(c BrokerCertificate) TLS {
	t.CertFile, t.KeyFile = c.CertFile, c.KeyFile
	return t
}

func (v TLSVersion) number() uint16 {
	if v == TLS13 {
		return tls.VersionTLS13
	}
	return tls.VersionTLS12
}

func suites(names []string) (ids []uint16, err error) {
	for _, n := range names {
		id, err := tlsconf.CipherSuite(n)
		if err != nil {
			return nil, fmt.Errorf("cipher_suites: %w", err)
		}
		ids = append(ids, id)
	}
	return ids, nil
}

// checkVersions checks what TLS of both sides has in common.
func checkVersions(key string, v TLSVersion, names []string, bad report) {
	for i, n := range names {
		if _, err := tlsconf.CipherSuite(n); err != nil {
			bad(fmt.Sprintf("%s.cipher_suites[%d]", key, i), "%v", err)
		}
	}
	if v == TLS13 && len(names) > 0 {
		bad(key+".cipher_suites", "are of TLS 1.2, which min_version excludes: remove one of the two")
	}
}
