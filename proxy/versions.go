package proxy

import (
	"fmt"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/protocol"
)

// versions is what a broker speaks of what we have reviewed, by key.
type versions struct {
	ranges map[int16][2]int16
}

func (v *versions) get(key int16) (minVersion, maxVersion int16, ok bool) {
	if v == nil {
		return 0, 0, false
	}
	r, ok := v.ranges[key]
	return r[0], r[1], ok
}

// add narrows a range as the table has it down to what a broker said.
func (v *versions) add(key, minVersion, maxVersion int16) {
	api, ok := protocol.LookupAPI(key)
	if !ok || !api.Advertised() {
		return
	}
	if minVersion, maxVersion = max(minVersion, api.Min), min(maxVersion, api.Max); minVersion <= maxVersion {
		v.ranges[key] = [2]int16{minVersion, maxVersion}
	}
}

// intersect is what both speak.
func (v *versions) intersect(o *versions) *versions {
	out := &versions{ranges: map[int16][2]int16{}}
	for key, a := range v.ranges {
		if b, ok := o.ranges[key]; ok {
			if lo, hi := max(a[0], b[0]), min(a[1], b[1]); lo <= hi {
				out.ranges[key] = [2]int16{lo, hi}
			}
		}
	}
	return out
}

// rewriteApiVersions answers with what both the broker speaks and we have
// reviewed, and keeps it: it is exact for this connection.
func (s *session) rewriteApiVersions(version int16, body []byte) ([]byte, error) {
	out, err := protocol.IntersectApiVersions(body, version, protocol.ApiVersionsOptions{})
	if err != nil {
		return nil, err
	}
	resp := kmsg.NewPtrApiVersionsResponse()
	if len(out) < 2 || out[0]|out[1] != 0 { // an error, 35 has a v0 body: nothing to learn
		return out, nil
	}
	resp.SetVersion(version)
	if err := resp.ReadFrom(out); err != nil {
		return nil, fmt.Errorf("read the broker's versions: %w", err)
	}
	s.known = &versions{ranges: make(map[int16][2]int16, len(resp.ApiKeys))}
	for _, k := range resp.ApiKeys {
		s.known.add(k.ApiKey, k.MinVersion, k.MaxVersion)
	}
	return out, nil
}
