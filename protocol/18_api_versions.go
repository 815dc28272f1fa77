package protocol

import (
	"encoding/binary"
	"fmt"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// FeatureName is the supported feature by which a proxy tells that it is one
// (versions 1 to 1). A mirror whose source is itself a mirror must find it: else
// it would read bare physical offsets (H18).
const FeatureName = "lockstep.proxy"

const errUnsupportedVersion = 35

// ApiVersionsOptions: the zero value is right for clients.
type ApiVersionsOptions struct {
	// NoFeature leaves FeatureName out.
	NoFeature bool
	// Max raises the highest version shown of single keys above the reviewed
	// one, at the operator's own risk: such a version may carry addresses or
	// offsets that nobody maps. Its request header must be like the reviewed one's.
	Max map[int16]int16
}

// IntersectApiVersions rewrites a broker's ApiVersions answer: keys the table
// doesn't know, and those not meant for clients, go; ranges shrink to what was
// reviewed, and a key without a common version goes. From v3 the feature
// FeatureName is added; everything else (throttle, features, finalized features
// with their epoch, ZkMigrationReady, unknown tagged fields) stays as it is.
//
// version is the request's; an answer with error 35 has a v0 body all the same.
func IntersectApiVersions(body []byte, version int16, opts ApiVersionsOptions) ([]byte, error) {
	if unsupportedVersion(body) {
		version = 0
	}
	a, _ := LookupAPI(KeyApiVersions)
	r := wireReader{b: body, flex: a.Flexible(version)}
	out := make([]byte, 0, len(body)+len(FeatureName)+16)
	out = appendI16(out, r.i16())
	n, _ := r.arrayLen(6)
	keys := make([]byte, 0, 7*n)
	kept := 0
	for range n {
		key, least, most := r.i16(), r.i16(), r.i16()
		tags := r.tags()
		if r.err != nil {
			break
		}
		a, ok := LookupAPI(key)
		if !ok || !a.Advertised() {
			continue
		}
		least = max(least, a.Min)
		most = min(most, max(a.Max, opts.Max[key]))
		if least > most {
			continue
		}
		keys = appendI16(keys, key)
		keys = appendI16(keys, least)
		keys = appendI16(keys, most)
		if r.flex {
			keys = tags.appendTo(keys)
		}
		kept++
	}
	out = appendCount(out, kept, r.flex)
	out = append(out, keys...)
	if version >= 1 {
		out = appendI32(out, r.i32()) // throttle
	}
	if r.flex {
		out = r.features(out, !opts.NoFeature)
	}
	if err := r.done(); err != nil {
		return nil, fmt.Errorf("ApiVersions answer v%d: %w", version, err)
	}
	return out, nil
}

// unsupportedVersion: the answer has a v0 body, whatever was asked.
func unsupportedVersion(body []byte) bool {
	return len(body) >= 2 && int16(binary.BigEndian.Uint16(body)) == errUnsupportedVersion
}

// features copies the tagged fields and adds FeatureName to tag 0, the
// supported features.
func (r *wireReader) features(out []byte, add bool) []byte {
	var all Tags
	var old []byte
	has := false
	for range r.tagCount() {
		tag, data, raw := r.tag()
		if r.err != nil {
			return out
		}
		if tag == 0 && add && !has {
			old, has = data, true
			continue
		}
		all.add(raw)
	}
	if !add {
		return all.appendTo(out)
	}
	// Entries that are there already are copied as they are, one of our name
	// excepted (a proxy behind a proxy).
	in := wireReader{b: old, flex: true}
	n := 0
	var entries []byte
	if has {
		n, _ = in.arrayLen(6)
	}
	count := 1
	for range n {
		start := in.off
		name := in.str()
		in.span(4)
		in.tags()
		if in.err == nil && string(name) != FeatureName {
			entries = append(entries, in.b[start:in.off]...)
			count++
		}
	}
	if err := in.done(); err != nil {
		r.fail(fmt.Errorf("supported features: %w", err))
		return out
	}
	content := appendCount(nil, count, true)
	content = append(content, entries...)
	content = appendStr(content, FeatureName, true)
	content = append(content, 0, 1, 0, 1, 0) // min, max, tags
	out = appendUvarint(out, uint32(all.Count)+1)
	out = appendUvarint(out, 0)
	out = appendUvarint(out, uint32(len(content)))
	out = append(out, content...)
	return append(out, all.Raw...)
}

// HasFeature says whether an ApiVersions answer comes from a proxy (v3+; older
// answers can't tell).
func HasFeature(body []byte, version int16) (bool, error) {
	if unsupportedVersion(body) {
		version = 0
	}
	resp := kmsg.NewPtrApiVersionsResponse()
	if err := DecodeBody(version, body, resp); err != nil {
		return false, err
	}
	for _, f := range resp.SupportedFeatures {
		if f.Name == FeatureName {
			return true, nil
		}
	}
	return false, nil
}

// UnsupportedApiVersionsBody answers an ApiVersions request of a version the
// table doesn't know: a v0 body with error 35 that lists just the range of
// ApiVersions itself, so that the client can ask again (KIP-511). Its header is
// v0 as ever.
func UnsupportedApiVersionsBody() []byte {
	a, _ := LookupAPI(KeyApiVersions)
	b := appendI16(nil, errUnsupportedVersion)
	b = appendI32(b, 1)
	b = appendI16(b, a.Key)
	b = appendI16(b, a.Min)
	return appendI16(b, a.Max)
}
