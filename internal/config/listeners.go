package config

import (
	"fmt"
	"net"
	"reflect"
	"strconv"
	"strings"
)

// checkListeners checks each listener, and that they don't contradict.
func (c *Config) checkListeners(bad report) {
	if len(c.Listeners) == 0 {
		bad("listeners", "one listener is needed at least: give address and broker_ports")
	}
	for i := range c.Listeners {
		l, key := &c.Listeners[i], fmt.Sprintf("listeners[%d]", i)
		l.check(key, bad)
		if l.BrokerCertificate != (BrokerCertificate{}) {
			c.checkBrokerCertificate(l.BrokerCertificate, key+".broker_certificate", bad)
		}
		for j := range i {
			l.against(&c.Listeners[j], key, fmt.Sprintf("listeners[%d]", j), bad)
		}
	}
}

func (l *Listener) check(key string, bad report) {
	host, port, err := net.SplitHostPort(l.Address)
	if err != nil {
		bad(key+".address", "%q is not host:port", l.Address)
		return
	}
	l.TLS.check(key+".tls", bad)
	if l.SNI != (SNI{}) {
		l.checkSNI(key, bad)
		return
	}
	if l.AdvertisedHost == "" {
		l.AdvertisedHost = host
	}
	if ip := net.ParseIP(l.AdvertisedHost); l.AdvertisedHost == "" || ip != nil && ip.IsUnspecified() {
		bad(key+".advertised_host", "clients can't connect to %q: give the name or address under which they reach this machine", l.AdvertisedHost)
	}
	if l.BrokerPorts.First == 0 {
		bad(key+".broker_ports", "is missing: give FIRST-LAST, one port for each broker id from 0 up (or sni, a name for each)")
	} else if p, err := strconv.Atoi(port); err == nil && p >= l.BrokerPorts.First && p <= l.BrokerPorts.Last {
		bad(key+".broker_ports", "%s holds the port of address (%d): choose a range without it", l.BrokerPorts, p)
	}
	if a := l.AdvertisedPorts; a.First != 0 && a.Last-a.First != l.BrokerPorts.Last-l.BrokerPorts.First {
		bad(key+".advertised_ports", "%s and broker_ports %s must be equally many: each broker has one of both", a, l.BrokerPorts)
	}
}

func (l *Listener) checkSNI(key string, bad report) {
	if !l.TLS.Enabled {
		bad(key+".sni", "needs tls: brokers are told apart by the name in the TLS hello")
	}
	if l.BrokerPorts.First != 0 || l.AdvertisedPorts.First != 0 {
		bad(key+".broker_ports", "and sni exclude each other: brokers have a port each, or a name each")
	}
	if l.AdvertisedHost != "" {
		bad(key+".advertised_host", "is not used with sni: bootstrap_host and broker_host are what clients are told")
	}
	before, after, ok := strings.Cut(l.SNI.BrokerHost, "%d")
	switch {
	case !ok || strings.Contains(before+after, "%"):
		bad(key+".sni.broker_host", "%q must hold %%d once, for the broker id, as in broker-%%d.kafka.example: two brokers must not share an address", l.SNI.BrokerHost)
	case !hostName(before + "0" + after):
		bad(key+".sni.broker_host", "%q is no host name: letters, digits, dots and dashes", l.SNI.BrokerHost)
	}
	switch name := strings.ToLower(l.SNI.BootstrapHost); {
	case !hostName(name):
		bad(key+".sni.bootstrap_host", "%q is no host name: letters, digits, dots and dashes; clients can't ask for an address by SNI", name)
	case ok:
		id, ok1 := strings.CutPrefix(name, strings.ToLower(before))
		id, ok2 := strings.CutSuffix(id, strings.ToLower(after))
		if _, err := strconv.ParseUint(id, 10, 32); ok1 && ok2 && err == nil {
			bad(key+".sni.bootstrap_host", "%s is the name of broker %s: choose another", name, id)
		}
	}
	if p := l.SNI.AdvertisedPort; p < 0 || p > 65535 {
		bad(key+".sni.advertised_port", "%d is not a port", p)
	}
}

// hostName tells whether s may stand in a TLS hello as server name.
func hostName(s string) bool {
	if s == "" || len(s) > 253 || net.ParseIP(s) != nil {
		return false
	}
	for label := range strings.SplitSeq(s, ".") {
		if label == "" || len(label) > 63 || strings.Trim(label, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_") != "" {
			return false
		}
	}
	return true
}

func (t ListenerTLS) check(key string, bad report) {
	if !t.Enabled {
		if !reflect.ValueOf(t).IsZero() {
			bad(key, "has settings but is not enabled: set enabled: true or remove them")
		}
		return
	}
	if t.CertFile == "" || t.KeyFile == "" {
		bad(key, "needs cert_file and key_file")
	}
	wanted := t.ClientAuth == ClientAuthOptional || t.ClientAuth == ClientAuthRequired
	if wanted != (t.ClientCAFile != "") {
		bad(key+".client_auth", "and client_ca_file go together: optional or required with a file, or neither")
	}
	checkVersions(key, t.MinVersion, t.CipherSuites, bad)
}

// checkBrokerCertificate: it must be for something, and not Lockstep's own.
func (c *Config) checkBrokerCertificate(b BrokerCertificate, key string, bad report) {
	if b.CertFile == "" || b.KeyFile == "" {
		bad(key, "needs cert_file and key_file")
	}
	if !c.Destination.TLS.Enabled {
		bad(key, "is for brokers with TLS: set destination.tls, or remove it")
	}
	if b.CertFile != "" && b.CertFile == c.Destination.TLS.CertFile {
		bad(key, "is Lockstep's own: its clients would have Lockstep's rights; give them one of their own")
	}
}

// against checks that no port is opened twice, and that no advertised address
// means one broker at one listener and another at the other.
func (l *Listener) against(o *Listener, key, other string, bad report) {
	host, port, err := net.SplitHostPort(l.Address)
	oHost, oPort, oErr := net.SplitHostPort(o.Address)
	if err != nil || oErr != nil {
		return // told
	}
	if host == oHost || anyHost(host) || anyHost(oHost) {
		p, _ := strconv.Atoi(port)
		op, _ := strconv.Atoi(oPort)
		switch {
		case p == op && p != 0:
			bad(key+".address", "port %d is that of %s too: choose another", p, other)
		case o.BrokerPorts.holds(p):
			bad(key+".address", "port %d is in broker_ports of %s: choose another", p, other)
		case l.BrokerPorts.holds(op):
			bad(key+".broker_ports", "%s holds the port of %s (%d): choose a range without it", l.BrokerPorts, other, op)
		case l.BrokerPorts.meets(o.BrokerPorts):
			bad(key+".broker_ports", "%s and %s of %s have ports in common: choose a range without", l.BrokerPorts, o.BrokerPorts, other)
		}
	}
	a, b := l.shown(), o.shown()
	if strings.EqualFold(l.AdvertisedHost, o.AdvertisedHost) && a.First != b.First && a.meets(b) {
		bad(key, "shows some brokers at addresses where %s shows others (%s, ports %s and %s): an address must stand for one broker only", other, l.AdvertisedHost, a, b)
	}
	if l.SNI != (SNI{}) && strings.EqualFold(l.SNI.BootstrapHost, o.SNI.BootstrapHost) && !strings.EqualFold(l.SNI.BrokerHost, o.SNI.BrokerHost) {
		bad(key+".sni", "has the bootstrap_host of %s, and other names for the brokers: give it another", other)
	}
}

// shown are the ports that clients are told.
func (l *Listener) shown() PortRange {
	if l.AdvertisedPorts.First != 0 {
		return l.AdvertisedPorts
	}
	return l.BrokerPorts
}

func anyHost(host string) bool {
	ip := net.ParseIP(host)
	return host == "" || ip != nil && ip.IsUnspecified()
}

func (p PortRange) holds(port int) bool { return port != 0 && port >= p.First && port <= p.Last }

func (p PortRange) meets(o PortRange) bool {
	return p.First != 0 && o.First != 0 && p.First <= o.Last && o.First <= p.Last
}
