package peer

import (
	"context"
	"fmt"
	"os/exec"
	"strings"

	"github.com/lockstep-kafka/lockstep/bench/lab"
)

// HAProxyPath is where it is, or an ErrMissing that says how to have it.
func HAProxyPath() (string, error) {
	for _, name := range []string{"haproxy", "/usr/sbin/haproxy"} {
		if p, err := exec.LookPath(name); err == nil {
			return p, nil
		}
	}
	return "", fmt.Errorf("HAProxy: %w: apt-get install haproxy", ErrMissing)
}

// HAProxyVersion is its own word for it; "" where it is missing.
func HAProxyVersion(ctx context.Context) string {
	p, err := HAProxyPath()
	if err != nil {
		return ""
	}
	out, err := exec.CommandContext(ctx, p, "-v").Output()
	if err != nil {
		return ""
	}
	first, _, _ := strings.Cut(string(out), "\n")
	return strings.TrimSpace(first)
}

// StartHAProxy starts a plain TCP relay in front of the destination: clients
// dial the lab's Near.Outer, and the broker tells them that address.
func StartHAProxy(ctx context.Context, l *lab.Lab) (*Process, error) {
	program, err := HAProxyPath()
	if err != nil {
		return nil, err
	}
	path, err := tempFile(l, "haproxy-*.cfg", haproxyConfig(l.Near))
	if err != nil {
		return nil, err
	}
	p, err := start(l, "haproxy", program, "-f", path)
	if err != nil {
		return nil, err
	}
	return p, p.listening(ctx, l.Near.Outer)
}

func haproxyConfig(r lab.Relayed) string {
	return fmt.Sprintf(`global
  nbthread 2
  maxconn 8000
defaults
  mode tcp
  timeout connect 5s
  timeout client 1h
  timeout server 1h
frontend clients
  bind %s
  default_backend brokers
backend brokers
  server one %s
`, r.Outer, r.Inner)
}
