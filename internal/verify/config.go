package verify

import (
	"fmt"
	"net"
	"slices"
	"strings"

	"github.com/lockstep-kafka/lockstep/internal/client"
	"github.com/lockstep-kafka/lockstep/internal/config"
	"github.com/lockstep-kafka/lockstep/mirror"
)

// Where is the destination, if not the configuration's first listener, and how
// to trust it.
type Where struct {
	Bootstrap []string
	TLS       bool // the first listener's otherwise
	CAFile    string
	CertFile  string
	KeyFile   string
	Name      string // in the certificate
}

// FromConfig makes the options for a mirror of a configuration ("": the only
// one): both sides and the mirror's topics. Credentials for the destination are
// the configuration's own, which the proxy passes on.
func FromConfig(c *config.Config, name string, w Where) (Options, error) {
	m, err := mirrorOf(c, name)
	if err != nil {
		return Options{}, err
	}
	src, _, err := client.Source(m.Source)
	if err != nil {
		return Options{}, err
	}
	if len(w.Bootstrap) == 0 {
		w.listener(&c.Listeners[0])
	}
	sec, err := client.NewSecurity("destination "+strings.Join(w.Bootstrap, ","), config.TLS{
		Enabled: w.TLS || w.CAFile != "" || w.CertFile != "", CAFile: w.CAFile, CertFile: w.CertFile, KeyFile: w.KeyFile, ServerName: w.Name,
	}, c.Destination.SASL)
	if err != nil {
		return Options{}, fmt.Errorf("destination: %w", err)
	}
	f, err := mirror.NewTopicFilter(m.Topics.Include, m.Topics.Exclude)
	if err != nil {
		return Options{}, err
	}
	return Options{
		Source: src, Destination: client.Options(w.Bootstrap, sec),
		Match: func(topic string, internal bool) bool { ok, _ := f.Select(topic, internal); return ok },
	}, nil
}

// listener is where a client on this machine finds it.
func (w *Where) listener(l *config.Listener) {
	host, port, err := net.SplitHostPort(l.Address)
	if err != nil { // the configuration has been checked
		host = l.Address
	}
	ip := net.ParseIP(host)
	switch {
	case l.SNI != (config.SNI{}):
		host = l.SNI.BootstrapHost
	case l.TLS.Enabled, host == "", ip != nil && ip.IsUnspecified():
		host = l.AdvertisedHost
	}
	w.Bootstrap = []string{net.JoinHostPort(host, port)}
	if l.TLS.Enabled {
		w.TLS = true
		if w.CAFile == "" {
			w.CAFile = l.TLS.CertFile // just what it presents
		}
	}
}

func mirrorOf(c *config.Config, name string) (*config.Mirror, error) {
	var names []string
	for i := range c.Mirrors {
		names = append(names, c.Mirrors[i].Name)
	}
	i := slices.Index(names, name)
	switch {
	case i >= 0:
		return &c.Mirrors[i], nil
	case name == "" && len(names) == 1:
		return &c.Mirrors[0], nil
	case len(names) == 0:
		return nil, fmt.Errorf("the configuration has no mirror")
	case name == "":
		return nil, fmt.Errorf("the configuration has several mirrors: name one of %s with --mirror", strings.Join(names, ", "))
	}
	return nil, fmt.Errorf("the configuration has no mirror %q, only %s", name, strings.Join(names, ", "))
}
