// Package tlsconf makes TLS settings from files, and makes them anew when the
// files change: a Client for connections that Lockstep opens, a Server for those
// that it accepts. A connection keeps what it was opened with.
package tlsconf

import (
	"bytes"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
)

// Common are the settings of both sides. Empty names: no such file.
type Common struct {
	CAFile       string // who signs the other side's certificates
	CertFile     string // own certificate, with its chain
	KeyFile      string
	MinVersion   uint16   // 0: TLS 1.2
	CipherSuites []uint16 // of TLS 1.2; empty: Go's choice
}

// ClientOptions are settings of connections that Lockstep opens.
type ClientOptions struct {
	Common
	ServerName         string // name to ask for and to verify; "": the host dialled
	InsecureSkipVerify bool
}

// ClientAuth is what a server wants of clients' certificates.
type ClientAuth uint8

// What a server wants.
const (
	NoClientCert       ClientAuth = iota // doesn't ask for one
	OptionalClientCert                   // asks; one that is given must be valid
	RequireClientCert                    // refuses clients without one
)

// ServerOptions are settings of connections that Lockstep accepts. CAFile signs
// clients' certificates.
type ServerOptions struct {
	Common
	ClientAuth ClientAuth
}

// files are settings made of files. The first load must succeed; later, what
// can't be loaded changes nothing.
type files struct {
	what  string // for errors and logs
	names []string
	make  func(content map[string][]byte) (*tls.Config, error)

	current atomic.Pointer[tls.Config]

	mu     sync.Mutex // of Reload
	loaded [sha256.Size]byte
	failed [sha256.Size]byte // what was seen last, if that could not be loaded
	told   bool              // the error about failed was returned
}

func newFiles(what string, names []string, mk func(map[string][]byte) (*tls.Config, error)) (*files, error) {
	f := &files{what: what, make: mk}
	for _, n := range names {
		if n != "" && !slices.Contains(f.names, n) {
			f.names = append(f.names, n)
		}
	}
	content, err := f.read()
	if err != nil {
		return nil, err
	}
	cfg, err := mk(content)
	if err != nil {
		return nil, err
	}
	f.current.Store(cfg)
	f.loaded = sum(content, f.names)
	return f, nil
}

func (f *files) read() (map[string][]byte, error) {
	content := make(map[string][]byte, len(f.names))
	var errs error
	for _, n := range f.names {
		b, err := os.ReadFile(n)
		if err != nil {
			errs = errors.Join(errs, err)
		}
		content[n] = b
	}
	return content, errs
}

func sum(content map[string][]byte, names []string) [sha256.Size]byte {
	h := sha256.New()
	for _, n := range names {
		fmt.Fprintf(h, "%d\x00", len(content[n]))
		h.Write(content[n])
	}
	return [sha256.Size]byte(h.Sum(nil))
}

// What names the settings in logs.
func (f *files) What() string { return f.what }

// Reload looks at the files, and makes the settings anew if their content
// changed. What can't be loaded is an error once, when it is seen for the second
// time: certificate and key are rarely replaced in one moment.
func (f *files) Reload() (changed bool, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	content, err := f.read()
	now := sum(content, f.names)
	if err == nil {
		if now == f.loaded {
			f.failed, f.told = [sha256.Size]byte{}, false
			return false, nil
		}
		var cfg *tls.Config
		if cfg, err = f.make(content); err == nil {
			f.current.Store(cfg)
			f.loaded, f.failed, f.told = now, [sha256.Size]byte{}, false
			return true, nil
		}
	}
	if now != f.failed {
		f.failed, f.told = now, false
		return false, nil
	}
	if f.told {
		return false, nil
	}
	f.told = true
	return false, err
}

// base has what both sides share.
func (c Common) base(content map[string][]byte) (*tls.Config, error) {
	cfg := &tls.Config{
		MinVersion:   c.MinVersion,
		CipherSuites: c.CipherSuites,
		// Small records at the start of a connection help browsers only.
		DynamicRecordSizingDisabled: true,
	}
	if cfg.MinVersion == 0 {
		cfg.MinVersion = tls.VersionTLS12
	}
	if c.CertFile != "" {
		cert, err := tls.X509KeyPair(content[c.CertFile], content[c.KeyFile])
		if err != nil {
			return nil, fmt.Errorf("load certificate %s with key %s: %w", c.CertFile, c.KeyFile, err)
		}
		cfg.Certificates = []tls.Certificate{cert}
	}
	return cfg, nil
}

func (c Common) authorities(content map[string][]byte) (*x509.CertPool, error) {
	if c.CAFile == "" {
		return nil, nil
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(content[c.CAFile]) {
		return nil, fmt.Errorf("%s holds no PEM certificate", c.CAFile)
	}
	return pool, nil
}

// Client is TLS of connections that Lockstep opens to one cluster.
type Client struct{ *files }

// NewClient loads the files.
func NewClient(what string, o ClientOptions) (*Client, error) {
	f, err := newFiles(what, []string{o.CAFile, o.CertFile, o.KeyFile}, func(content map[string][]byte) (*tls.Config, error) {
		cfg, err := o.base(content)
		if err != nil {
			return nil, err
		}
		cfg.ServerName, cfg.InsecureSkipVerify = o.ServerName, o.InsecureSkipVerify
		if cfg.RootCAs, err = o.authorities(content); err != nil {
			return nil, err
		}
		return cfg, nil
	})
	if err != nil {
		return nil, fmt.Errorf("TLS of %s: %w", what, err)
	}
	return &Client{f}, nil
}

// Config are the settings now, for a connection to addr (host:port). Not to be
// changed.
func (c *Client) Config(addr string) *tls.Config { return For(c.current.Load(), addr) }

// For gives cfg the name of the host in addr, unless it has a name.
func For(cfg *tls.Config, addr string) *tls.Config {
	if cfg.ServerName != "" {
		return cfg
	}
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		host = addr
	}
	cfg = cfg.Clone()
	cfg.ServerName = host
	return cfg
}

// SameSubject tells whether both present certificates of one subject: to a
// broker they are the same principal.
func (c *Client) SameSubject(other *Client) bool {
	a, b := leaf(c.current.Load()), leaf(other.current.Load())
	return a != nil && b != nil && bytes.Equal(a.RawSubject, b.RawSubject)
}

// Subject of the certificate that is presented, "" for none.
func (c *Client) Subject() string {
	if l := leaf(c.current.Load()); l != nil {
		return l.Subject.String()
	}
	return ""
}

func leaf(cfg *tls.Config) *x509.Certificate {
	if len(cfg.Certificates) == 0 {
		return nil
	}
	return cfg.Certificates[0].Leaf // X509KeyPair fills it in
}

// Server is TLS of connections that Lockstep accepts.
type Server struct{ *files }

// NewServer loads the files.
func NewServer(what string, o ServerOptions) (*Server, error) {
	f, err := newFiles(what, []string{o.CAFile, o.CertFile, o.KeyFile}, func(content map[string][]byte) (*tls.Config, error) {
		cfg, err := o.base(content)
		if err != nil {
			return nil, err
		}
		if len(cfg.Certificates) == 0 {
			return nil, errors.New("a listener needs a certificate")
		}
		if cfg.ClientCAs, err = o.authorities(content); err != nil {
			return nil, err
		}
		switch o.ClientAuth {
		case OptionalClientCert:
			cfg.ClientAuth = tls.VerifyClientCertIfGiven
		case RequireClientCert:
			cfg.ClientAuth = tls.RequireAndVerifyClientCert
		}
		if o.ClientAuth != NoClientCert && cfg.ClientCAs == nil {
			return nil, errors.New("clients' certificates can't be verified without a file of authorities")
		}
		return cfg, nil
	})
	if err != nil {
		return nil, fmt.Errorf("TLS of %s: %w", what, err)
	}
	return &Server{f}, nil
}

// Config are the settings now. Not to be changed. Each has session tickets of
// its own: after a reload nobody gets in with a ticket of before.
func (s *Server) Config() *tls.Config { return s.current.Load() }

// CipherSuite finds a suite of TLS 1.2 by its standard name. Those that Go holds
// for insecure are refused.
func CipherSuite(name string) (uint16, error) {
	var all []string
	for _, s := range tls.CipherSuites() {
		if !slices.Contains(s.SupportedVersions, tls.VersionTLS12) {
			if s.Name == name {
				return 0, fmt.Errorf("%s is of TLS 1.3, whose suites are always on", name)
			}
			continue
		}
		if s.Name == name {
			return s.ID, nil
		}
		all = append(all, s.Name)
	}
	return 0, fmt.Errorf("%q is no secure cipher suite of TLS 1.2: use some of %s", name, strings.Join(all, ", "))
}
