package proxy

import (
	"crypto/tls"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"
)

// SNI tells brokers apart by the name that clients ask for in their TLS hello,
// all on one port.
type SNI struct {
	BootstrapHost  string // name for bootstrap
	BrokerHost     string // names of the brokers, with one %d for the id
	AdvertisedPort int    // 0: the port of the listener
}

// bootstrap is the broker id of a connection that any broker may serve.
const bootstrap int32 = -1

// errUnknownSNI: the hello's name leads nowhere.
var errUnknownSNI = errors.New("TLS hello with a server name that is not this listener's")

// brokerNames are the names of an SNI.
type brokerNames struct {
	bootstrap, before, after string
	settings                 atomic.Pointer[[2]*tls.Config] // as given, and with check
}

func newBrokerNames(s SNI) (*brokerNames, error) {
	before, after, ok := strings.Cut(strings.ToLower(s.BrokerHost), "%d")
	n := &brokerNames{bootstrap: strings.ToLower(s.BootstrapHost), before: before, after: after}
	if !ok || strings.Contains(after, "%") || strings.Contains(before, "%") {
		return nil, fmt.Errorf("sni broker_host %q must hold %%d once, for the broker id: else brokers would share an address", s.BrokerHost)
	}
	if n.bootstrap == "" {
		return nil, errors.New("sni needs a bootstrap_host")
	}
	if id, ok := n.brokerID(n.bootstrap); ok && id != bootstrap {
		return nil, fmt.Errorf("sni bootstrap_host %s is the name of broker %d: choose another", s.BootstrapHost, id)
	}
	return n, nil
}

// host is the name of a broker.
func (n *brokerNames) host(id int32) string {
	return n.before + strconv.Itoa(int(id)) + n.after
}

// brokerID is the broker with that name; bootstrap for the bootstrap's.
func (n *brokerNames) brokerID(name string) (id int32, ok bool) {
	name = strings.ToLower(name)
	digits, ok1 := strings.CutPrefix(name, n.before)
	digits, ok2 := strings.CutSuffix(digits, n.after)
	if ok1 && ok2 {
		if v, err := strconv.ParseInt(digits, 10, 32); err == nil && v >= 0 && n.host(int32(v)) == name {
			return int32(v), true
		}
	}
	return bootstrap, name == n.bootstrap
}

// with are the settings with a check of the name, so that a client with a wrong
// one is refused in the handshake. They stay the same for as long as cfg does:
// session tickets belong to them. crypto/tls sends the alert that is meant for
// this, unrecognized_name, only where it has no certificate at all, and for an
// error internal_error; so wrong names get settings without one.
func (n *brokerNames) with(cfg *tls.Config) *tls.Config {
	if s := n.settings.Load(); s != nil && s[0] == cfg {
		return s[1]
	}
	checked := cfg.Clone()
	nobody := &tls.Config{MinVersion: tls.VersionTLS12, SessionTicketsDisabled: true}
	checked.GetConfigForClient = func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
		if _, ok := n.brokerID(hello.ServerName); ok {
			return nil, nil
		}
		if pipe, ok := hello.Conn.(*tlsPipe); ok {
			pipe.refused = n.refused(hello.ServerName)
		}
		return nobody, nil
	}
	n.settings.Store(&[2]*tls.Config{cfg, checked})
	return checked
}

// refused is what to say of a hello with a wrong name.
func (n *brokerNames) refused(name string) error {
	if name == "" {
		return fmt.Errorf("%w: it names none; clients must connect by host name, to %s", errUnknownSNI, n.bootstrap)
	}
	return fmt.Errorf("%w: %q; bootstrap is %s, broker 0 is %s", errUnknownSNI, name, n.bootstrap, n.host(0))
}
