package protocol

import (
	"fmt"
	"slices"
)

// AddressFunc maps the address of a broker. ok false leaves it as it is. It is
// not asked for "no node": id below 0, or an empty host.
type AddressFunc func(nodeID int32, host string, port int32) (newHost string, newPort int32, ok bool)

// RewriteAddresses maps every broker address in a response body (wire.md §1).
// Everything else, unknown tagged fields included, stays byte for byte. The
// answer is body itself when nothing changed, else a new slice; body is never
// written to. Keys and versions without addresses come back as they are, and so
// do DescribeCluster answers that list controllers (endpoint type 2).
//
// Addresses that are deliberately left alone: DescribeQuorum v2 (controllers)
// and StreamsGroupHeartbeat/-Describe (the applications' own endpoints).
//
// A large Fetch answer should not be buffered for this: see TailRewriter.
func RewriteAddresses(key, version int16, body []byte, f AddressFunc) ([]byte, error) {
	a, ok := LookupAPI(key)
	if !ok || !a.Has(TouchAddresses) {
		return body, nil
	}
	out, err := rewriteAddresses(a, version, body, f)
	if err != nil {
		return nil, fmt.Errorf("rewrite addresses in %s v%d: %w", a.Name, version, err)
	}
	return out, nil
}

func rewriteAddresses(a API, version int16, body []byte, f AddressFunc) ([]byte, error) {
	p := patcher{r: wireReader{b: body, flex: a.Flexible(version)}, f: f}
	r := &p.r
	switch a.Key {
	case KeyMetadata:
		p.metadata(version)
	case KeyFindCoordinator:
		p.coordinators(version)
	case KeyDescribeCluster:
		if !p.describeCluster(version) {
			return body, r.err
		}
	default:
		shape, tagged := endpointShape(a.Key, version)
		if shape == nil {
			return body, nil
		}
		var s skimmer
		s.start(shape)
		n, done, err := s.feed(body)
		if err == nil && !done {
			err = ErrShort
		}
		if err != nil {
			return nil, fmt.Errorf("at byte %d of %d: %w", n, len(body), err)
		}
		t, err := parseTail(body[n:], tagged)
		if err != nil {
			return nil, err
		}
		if !t.mapWith(f) {
			return body, nil
		}
		return t.appendTo(slices.Clone(body[:n])), nil
	}
	if r.err != nil {
		return nil, r.err
	}
	return p.finish(), nil
}

// patcher copies a body and puts other bytes in place of some spans of it.
type patcher struct {
	r      wireReader
	f      AddressFunc
	out    []byte
	copied int // bytes of r.b that out covers
}

// address reads node id, host, port and writes the mapped ones.
func (p *patcher) address() {
	r := &p.r
	id := r.i32()
	at := r.off
	host, ok := r.nullableString()
	port := r.i32()
	if r.err != nil || !ok || id < 0 || len(host) == 0 {
		return
	}
	h, n, ok := p.f(id, string(host), port)
	if !ok || h == string(host) && n == port {
		return
	}
	if p.out == nil {
		p.out = make([]byte, 0, len(r.b)+64)
	}
	p.out = append(p.out, r.b[p.copied:at]...)
	p.out = appendStr(p.out, h, r.flex)
	p.out = appendI32(p.out, n)
	p.copied = r.off
}

func (p *patcher) finish() []byte {
	if p.out == nil {
		return p.r.b
	}
	return append(p.out, p.r.b[p.copied:]...)
}

// endpoint is one entry of NodeEndpoints (KIP-951) as it stood on the wire.
type endpoint struct {
	id, port int32
	host     string
	rack     []byte // nil: null
	tags     Tags
}

// tail is the end of an answer: the node endpoints and the top-level tagged fields.
type tail struct {
	tagged    bool // endpoints are tag 0, else a plain array in front of the section
	found     bool // the array is there
	endpoints []endpoint
	before    Tags // fields in front of tag 0; by order there are none
	after     Tags
	last      uint32 // highest tag seen
}

func parseTail(b []byte, tagged bool) (t tail, err error) {
	r := wireReader{b: b, flex: true}
	t.tagged = tagged
	if !tagged {
		t.endpoints, t.found = readEndpoints(&r)
	}
	for range r.tagCount() {
		tag, data, raw := r.tag()
		if r.err != nil {
			break
		}
		t.last = max(t.last, tag)
		switch {
		case tagged && tag == 0 && !t.found:
			in := wireReader{b: data, flex: true}
			t.endpoints, t.found = readEndpoints(&in)
			if err := in.done(); err != nil {
				return t, fmt.Errorf("node endpoints: %w", err)
			}
		case t.found || !tagged:
			t.after.add(raw)
		default:
			t.before.add(raw)
		}
	}
	return t, r.done()
}

func readEndpoints(r *wireReader) (es []endpoint, found bool) {
	n, ok := r.arrayLen(11)
	if !ok {
		return nil, false
	}
	for range n {
		var e endpoint
		e.id = r.i32()
		e.host = string(r.str())
		e.port = r.i32()
		if rack, ok := r.nullableString(); ok {
			e.rack = rack
		}
		e.tags = r.tags()
		if r.err != nil {
			return nil, false
		}
		es = append(es, e)
	}
	return es, true
}

// mapWith maps the endpoints; false when none changed.
func (t *tail) mapWith(f AddressFunc) (changed bool) {
	for i := range t.endpoints {
		e := &t.endpoints[i]
		if e.id < 0 || e.host == "" {
			continue
		}
		if h, p, ok := f(e.id, e.host, e.port); ok && (h != e.host || p != e.port) {
			e.host, e.port = h, p
			changed = true
		}
	}
	return changed
}

func (t *tail) appendTo(dst []byte) []byte {
	n := t.before.Count + t.after.Count
	if !t.tagged {
		dst = appendEndpoints(dst, t.endpoints)
	} else if t.found {
		n++
	}
	dst = appendUvarint(dst, uint32(n))
	dst = append(dst, t.before.Raw...)
	if t.tagged && t.found {
		content := appendEndpoints(nil, t.endpoints)
		dst = appendUvarint(dst, 0)
		dst = appendUvarint(dst, uint32(len(content)))
		dst = append(dst, content...)
	}
	return append(dst, t.after.Raw...)
}

func appendEndpoints(dst []byte, es []endpoint) []byte {
	dst = appendCount(dst, len(es), true)
	for _, e := range es {
		dst = appendI32(dst, e.id)
		dst = appendStr(dst, e.host, true)
		dst = appendI32(dst, e.port)
		if e.rack == nil {
			dst = appendNullStr(dst, true)
		} else {
			dst = appendStr(dst, e.rack, true)
		}
		dst = e.tags.appendTo(dst)
	}
	return dst
}
