package protocol

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// feedAll streams body in chunks of random sizes and returns what was to be sent.
func feedAll(rnd *rand.Rand, t *TailRewriter, body []byte) ([]byte, error) {
	var out []byte
	for off := 0; ; {
		n := min(1+rnd.IntN(40), len(body)-off)
		chunk := append([]byte(nil), body[off:off+n]...)
		pass, tail, err := t.Feed(chunk)
		if err != nil {
			return out, err
		}
		out = append(out, chunk[:pass]...)
		off += n
		if tail != nil {
			return append(out, tail...), nil
		}
		if off == len(body) {
			return out, fmt.Errorf("no tail after %d bytes", off)
		}
	}
}

func endpointsOf(resp kmsg.Response) (ids []int32, hosts []string, ports []int32) {
	add := func(id int32, host string, port int32) {
		ids, hosts, ports = append(ids, id), append(hosts, host), append(ports, port)
	}
	switch r := resp.(type) {
	case *kmsg.FetchResponse:
		for _, b := range r.Brokers {
			add(b.NodeID, b.Host, b.Port)
		}
	case *kmsg.ProduceResponse:
		for _, b := range r.Brokers {
			add(b.NodeID, b.Host, b.Port)
		}
	case *kmsg.ShareFetchResponse:
		for _, b := range r.NodeEndpoints {
			add(b.NodeID, b.Host, b.Port)
		}
	case *kmsg.ShareAcknowledgeResponse:
		for _, b := range r.NodeEndpoints {
			add(b.NodeID, b.Host, b.Port)
		}
	}
	return ids, hosts, ports
}

func TestTailRewriterEveryVersion(t *testing.T) {
	eachVersion(40, func(a API, v int16, _ kmsg.Request, resp kmsg.Response, rnd *rand.Rand) {
		body := resp.AppendTo(nil)
		for _, host := range []string{"p", "proxy.example.org", strings.Repeat("very-long.", 20)} {
			f := func(id int32, _ string, _ int32) (string, int32, bool) { return host, 19092, true }
			tr, ok := NewTailRewriter(a.Key, v, len(body), f)
			shape, _ := endpointShape(a.Key, v)
			require.Equal(t, shape != nil, ok)
			if !ok {
				continue
			}
			out, err := feedAll(rnd, tr, body)
			require.NoError(t, err, "%s v%d", a.Name, v)
			require.Len(t, out, len(body), "%s v%d: the size was sent already", a.Name, v)
			got := kmsg.ResponseForKey(a.Key)
			require.NoError(t, DecodeBody(v, out, got))
			_, hosts, ports := endpointsOf(resp)
			_, gotHosts, gotPorts := endpointsOf(got)
			require.LessOrEqual(t, len(gotHosts), len(hosts))
			if len(host) == 1 {
				require.Len(t, gotHosts, len(hosts))
			}
			for i := range gotHosts {
				if _, _, p := endpointsOf(resp); hosts[i] == "" {
					require.Equal(t, p[i], gotPorts[i])
					continue
				}
				ids, _, _ := endpointsOf(resp)
				if ids[i] < 0 {
					require.Equal(t, hosts[i], gotHosts[i])
					continue
				}
				require.Equal(t, host, gotHosts[i], "no address of a broker gets through")
				require.EqualValues(t, 19092, gotPorts[i])
			}
			_ = ports
		}
	})
}

// Every length of a new host against every length of an old one.
func TestTailKeepsItsLength(t *testing.T) {
	upTo := func(n uint32) (out []uint32) {
		for i := range n {
			out = append(out, i+1)
		}
		return out
	}
	for _, tags := range [][]uint32{nil, upTo(1), upTo(126), upTo(127), {1000}, {20_000}, {1<<32 - 1}} {
		for old := 1; old < 300; old += 23 {
			for length := 1; length < 300; length += 3 {
				r := kmsg.NewPtrFetchResponse()
				r.Version = 16
				r.Brokers = []kmsg.FetchResponseBroker{{NodeID: 1, Host: strings.Repeat("b", old), Port: 9092, Rack: kmsg.StringPtr("rack")}}
				for _, tag := range tags {
					r.UnknownTags.Set(tag, nil)
				}
				body := r.AppendTo(nil)
				tr, _ := NewTailRewriter(KeyFetch, 16, len(body), func(int32, string, int32) (string, int32, bool) { return strings.Repeat("p", length), 1, true })
				pass, tail, err := tr.Feed(body)
				if len(tags) == 1 && tags[0] == 1<<32-1 && err != nil {
					continue // no number is left for the filler
				}
				require.NoError(t, err)
				require.Equal(t, len(body), pass+len(tail), "%d to %d", old, length)
				got := kmsg.NewPtrFetchResponse()
				require.NoError(t, DecodeBody(16, append(body[:pass:pass], tail...), got))
				if length <= old-2 {
					require.Len(t, got.Brokers, 1, "%d to %d", old, length)
				}
			}
		}
	}
}

func TestTailRewriterErrors(t *testing.T) {
	f := mapAddress
	_, ok := NewTailRewriter(KeyFetch, 15, 10, f)
	require.False(t, ok)
	tr, ok := NewTailRewriter(KeyFetch, 16, 12, f)
	require.True(t, ok)
	_, _, err := tr.Feed(make([]byte, 13))
	require.ErrorIs(t, err, ErrTrailing)
	// Ends within the topics.
	tr, _ = NewTailRewriter(KeyFetch, 16, 12, f)
	_, _, err = tr.Feed([]byte{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9, 1})
	require.ErrorIs(t, err, ErrShort)
	// A tail beyond reason isn't buffered.
	tr, _ = NewTailRewriter(KeyFetch, 16, 3<<20, f)
	_, _, err = tr.Feed(make([]byte, 11))
	require.ErrorIs(t, err, ErrTailTooLong)
	// Varint without end.
	tr, _ = NewTailRewriter(KeyFetch, 16, 100, f)
	_, _, err = tr.Feed([]byte{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff})
	require.ErrorIs(t, err, ErrVarint)
}

func BenchmarkTailRewriter(b *testing.B) {
	body := manyPartitions(100, 16<<10)
	b.SetBytes(int64(len(body)))
	b.ReportAllocs()
	for b.Loop() {
		tr, _ := NewTailRewriter(KeyFetch, 16, len(body), mapAddress)
		for off := 0; off < len(body); off += 64 << 10 {
			if _, _, err := tr.Feed(body[off:min(off+64<<10, len(body))]); err != nil {
				b.Fatal(err)
			}
		}
	}
}
