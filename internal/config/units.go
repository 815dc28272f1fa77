package config

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/goccy/go-yaml/ast"
)

// Bytes is a size: a whole number of bytes, or with KiB, MiB, GiB.
type Bytes int64

// Duration is a time span as Go writes it: 500ms, 10s, 1h30m.
type Duration time.Duration

// PortRange is FIRST-LAST, both included.
type PortRange struct{ First, Last int }

// Acks is how many replicas confirm a mirrored batch.
type Acks string

// The two settings of acks.
const (
	AcksAll    Acks = "all"
	AcksLeader Acks = "leader"
)

// valueError is a bad value with its place in the file.
type valueError struct {
	line int
	key  string
	err  error
}

func (e *valueError) Error() string { return fmt.Sprintf("line %d: %s: %v", e.line, e.key, e.err) }
func (e *valueError) Unwrap() error { return e.err }

// place adds line and key to a value's error.
func place(n ast.Node, err error) error {
	if err == nil {
		return nil
	}
	path := n.GetPath()
	return &valueError{line: nodeLine(n), key: path[strings.LastIndexByte(path, '.')+1:], err: err}
}

// scalar is a node's text without quotes and white space.
func scalar(s string) string { return strings.Trim(strings.TrimSpace(s), `"'`) }

var units = []struct {
	suffix string
	factor int64
}{{"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}, {"B", 1}, {"", 1}}

// UnmarshalYAML reads 16MiB or 1048576.
func (b *Bytes) UnmarshalYAML(n ast.Node) error { return place(n, b.parse(n.String())) }

func (b *Bytes) parse(t string) error {
	s := scalar(t)
	for _, u := range units {
		if n, ok := strings.CutSuffix(s, u.suffix); ok {
			v, err := strconv.ParseInt(strings.TrimSpace(n), 10, 64)
			if err != nil || v < 0 || v > (1<<62)/u.factor {
				break
			}
			*b = Bytes(v * u.factor)
			return nil
		}
	}
	return fmt.Errorf("%q is not a size: write a number of bytes, or one with KiB, MiB or GiB", s)
}

// String writes the size with the largest unit that divides it.
func (b Bytes) String() string {
	for _, u := range units[:3] {
		if b != 0 && int64(b)%u.factor == 0 {
			return strconv.FormatInt(int64(b)/u.factor, 10) + u.suffix
		}
	}
	return strconv.FormatInt(int64(b), 10)
}

// Set and Type make it a flag of the command line.
func (b *Bytes) Set(t string) error { return b.parse(t) }

// Type is what flags show.
func (b *Bytes) Type() string { return "size" }

// UnmarshalYAML reads 500ms.
func (d *Duration) UnmarshalYAML(n ast.Node) error { return place(n, d.parse(n.String())) }

func (d *Duration) parse(t string) error {
	t = scalar(t)
	v, err := time.ParseDuration(t)
	if err != nil || v < 0 {
		return fmt.Errorf("%q is not a time span: write 500ms, 10s, 5m or 1h", t)
	}
	*d = Duration(v)
	return nil
}

// Std is the standard library's type.
func (d Duration) Std() time.Duration { return time.Duration(d) }

// String leaves out the zero tail that time.Duration writes (1h0m0s).
func (d Duration) String() string {
	s := time.Duration(d).String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

// UnmarshalYAML reads 19100-19149.
func (p *PortRange) UnmarshalYAML(n ast.Node) error { return place(n, p.parse(n.String())) }

func (p *PortRange) parse(t string) error {
	t = scalar(t)
	a, b, ok := strings.Cut(t, "-")
	first, err1 := strconv.Atoi(a)
	last, err2 := strconv.Atoi(b)
	if !ok || err1 != nil || err2 != nil || first < 1 || last > 65535 || first > last {
		return fmt.Errorf("%q is not a port range: write FIRST-LAST, for example 19100-19149", t)
	}
	p.First, p.Last = first, last
	return nil
}

// Port is the port of broker id, false when the range has none for it.
func (p PortRange) Port(id int32) (int, bool) {
	if id < 0 || int64(id) > int64(p.Last-p.First) {
		return 0, false
	}
	return p.First + int(id), true
}

func (p PortRange) String() string {
	if p.First == 0 {
		return ""
	}
	return fmt.Sprintf("%d-%d", p.First, p.Last)
}

// UnmarshalYAML reads all or leader.
func (a *Acks) UnmarshalYAML(n ast.Node) error { return place(n, a.parse(n.String())) }

func (a *Acks) parse(t string) error {
	t = scalar(t)
	switch Acks(t) {
	case AcksAll, AcksLeader:
		*a = Acks(t)
		return nil
	}
	return fmt.Errorf("%q is not a setting of acks: write all or leader", t)
}

// ProxyProtocol is whether clients' connections begin with a PROXY header.
type ProxyProtocol string

// ClientAuth is whether clients must show a certificate.
type ClientAuth string

// TLSVersion is a version of TLS.
type TLSVersion string

// The settings of these. Empty is the default.
const (
	ProxyOff      ProxyProtocol = "off"
	ProxyAllowed  ProxyProtocol = "allowed"
	ProxyRequired ProxyProtocol = "required"

	ClientAuthNone     ClientAuth = "none"
	ClientAuthOptional ClientAuth = "optional"
	ClientAuthRequired ClientAuth = "required"

	TLS12 TLSVersion = "1.2"
	TLS13 TLSVersion = "1.3"
)

// UnmarshalYAML reads off, allowed or required.
func (p *ProxyProtocol) UnmarshalYAML(n ast.Node) error {
	return place(n, word(n.String(), p, ProxyOff, ProxyAllowed, ProxyRequired))
}

// UnmarshalYAML reads none, optional or required.
func (a *ClientAuth) UnmarshalYAML(n ast.Node) error {
	return place(n, word(n.String(), a, ClientAuthNone, ClientAuthOptional, ClientAuthRequired))
}

// UnmarshalYAML reads 1.2 or 1.3.
func (v *TLSVersion) UnmarshalYAML(n ast.Node) error {
	return place(n, word(n.String(), v, TLS12, TLS13))
}

// word takes one of a few words.
func word[T ~string](text string, to *T, all ...T) error {
	text = scalar(text)
	if !slices.Contains(all, T(text)) {
		return fmt.Errorf("%q is none of %v", text, all)
	}
	*to = T(text)
	return nil
}
