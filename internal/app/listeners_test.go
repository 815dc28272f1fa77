package app

import (
	"bytes"
	"log/slog"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-kafka/lockstep/internal/client"
	"github.com/lockstep-kafka/lockstep/internal/config"
	"github.com/lockstep-kafka/lockstep/internal/tlsconf/tlstest"
)

// Clients never come to the brokers as Lockstep: not by its certificate, nor by
// another one of the same subject. A certificate for everybody is warned of.
func TestBrokerCertificateIsNotLocksteps(t *testing.T) {
	dir := t.TempDir()
	ca := tlstest.NewCA(t)
	c := config.Default()
	c.Destination.TLS.Enabled = true
	c.Destination.TLS.CertFile, c.Destination.TLS.KeyFile = ca.Files(t, dir, "own", "lockstep")
	own, err := client.NewSecurity("destination", c.Destination.TLS, config.SASL{})
	require.NoError(t, err)
	var log bytes.Buffer
	a := &app{log: slog.New(slog.NewTextHandler(&log, nil))}
	l := config.Listener{Address: "127.0.0.1:0"}
	out, err := newListener(&c, a, &l, own)
	require.NoError(t, err)
	require.Nil(t, out.BrokerTLS)

	l.BrokerCertificate.CertFile, l.BrokerCertificate.KeyFile = ca.Files(t, dir, "renewed", "lockstep")
	_, err = newListener(&c, a, &l, own)
	require.ErrorIs(t, err, errOwnCertificate)

	l.BrokerCertificate.CertFile, l.BrokerCertificate.KeyFile = ca.Files(t, dir, "apps", "apps")
	out, err = newListener(&c, a, &l, own)
	require.NoError(t, err)
	require.Equal(t, "apps", out.BrokerTLS("broker:9092").Certificates[0].Leaf.Subject.CommonName)
	require.Contains(t, log.String(), "subject=\"CN=apps\"")
	bare, err := client.NewSecurity("destination", c.Destination.TLS.WithCertificate(config.BrokerCertificate{}), config.SASL{})
	require.NoError(t, err)
	require.Empty(t, bare.TLS.Subject())
}
