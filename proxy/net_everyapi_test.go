package proxy

import (
	"encoding/hex"
	"flag"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"reflect"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/internal/ledger"
	"github.com/lockstep-kafka/lockstep/internal/wiregen"
	"github.com/lockstep-kafka/lockstep/protocol"
)

var update = flag.Bool("update", false, "write the golden files anew")

// apiCall is one request and its answer as they stand on the wire, sizes included.
type apiCall struct {
	api             protocol.API
	version         int16
	variant         int
	request, answer []byte // answer nil: none
	resp            kmsg.Response
	headerTags      bool // unknown tagged fields in the answer's header
}

const apiVariants = 6

// apiCalls are random calls of one API in every reviewed version, the same ones
// in every run. With mirrors a Fetch has no session: those are the proxy's own
// then (M3), and it knows of none.
func apiCalls(api protocol.API, mirrors bool) (calls []apiCall) {
	for version := api.Min; version <= api.Max; version++ {
		for variant := range apiVariants {
			rnd := rand.New(rand.NewPCG(uint64(api.Key)<<16|uint64(version), uint64(variant)))
			req := kmsg.RequestForKey(api.Key)
			req.SetVersion(version)
			resp := req.ResponseKind()
			wiregen.Fill(rnd, req, variant%3 > 0)
			wiregen.Fill(rnd, resp, variant%3 > 0)
			c := apiCall{api: api, version: version, variant: variant, resp: resp}
			for c.pinned() && c.hasAddresses() && !c.namesBrokers() {
				wiregen.Fill(rnd, resp, true)
			}
			answered := true
			switch req := req.(type) {
			case *kmsg.ProduceRequest:
				req.Acks = []int16{1, 0, -1}[variant%3]
				answered = req.Acks != 0
			case *kmsg.FetchRequest:
				if mirrors {
					req.SessionID, req.SessionEpoch = 0, -1
				}
			case *kmsg.ShareFetchRequest:
				if mirrors {
					req.ShareSessionEpoch = -1
				}
			case *kmsg.SASLHandshakeRequest:
				if version == 0 { // refused, so that requests follow
					req.Mechanism = "PLAIN"
					resp.(*kmsg.SASLHandshakeResponse).ErrorCode = 33
				}
			}
			if r, ok := resp.(*kmsg.ApiVersionsResponse); ok {
				realApiVersions(rnd, r)
			}
			corr := int32(rnd.Uint32()) // PX-049: any id at all
			var clientID []byte
			if variant%2 == 1 {
				clientID = wiregen.Bytes(rnd, 40)
			}
			c.request = headerWithTags(rnd, api.RequestHeaderVersion(version) >= 2 && variant > 3,
				protocol.AppendRequestHeader(make([]byte, 4), api.Key, version, corr, clientID))
			c.request = req.AppendTo(c.request)
			protocol.AppendFrameSize(c.request[:0], len(c.request)-4)
			if answered {
				c.headerTags = api.ResponseHeaderVersion(version) >= 1 && variant > 3
				c.answer = headerWithTags(rnd, c.headerTags, protocol.AppendResponseHeader(make([]byte, 4), api.Key, version, corr))
				c.answer = resp.AppendTo(c.answer)
				protocol.AppendFrameSize(c.answer[:0], len(c.answer)-4)
			}
			calls = append(calls, c)
		}
	}
	return calls
}

// headerWithTags puts unknown tagged fields at the end of a header, which has
// none so far.
func headerWithTags(rnd *rand.Rand, add bool, header []byte) []byte {
	if !add {
		return header
	}
	var tags kmsg.Tags
	for range 1 + rnd.IntN(3) {
		tags.Set(uint32(50+rnd.IntN(500)), wiregen.Bytes(rnd, 100))
	}
	header[len(header)-1] = byte(tags.Len())
	return tags.AppendEach(header)
}

// realApiVersions: a broker newer than Lockstep, with keys nobody knows (PX-111)
// and versions nobody has reviewed.
func realApiVersions(rnd *rand.Rand, r *kmsg.ApiVersionsResponse) {
	r.ErrorCode, r.ApiKeys = 0, nil
	for key := int16(0); key < 120; key++ {
		if rnd.IntN(3) > 0 {
			k := kmsg.NewApiVersionsResponseApiKey()
			k.ApiKey, k.MinVersion, k.MaxVersion = key, int16(rnd.IntN(3)), int16(rnd.IntN(30))
			r.ApiKeys = append(r.ApiKeys, k)
		}
	}
	k := kmsg.NewApiVersionsResponseApiKey()
	k.ApiKey, k.MaxVersion = 9999, 3
	r.ApiKeys = append(r.ApiKeys, k)
}

// pinned calls stand in the golden file, if they are changed.
func (c apiCall) pinned() bool { return c.variant%3 == 2 }

// hasAddresses: kmsg writes and reads the tagged fields of KIP-951 in earlier
// versions, too.
func (c apiCall) hasAddresses() bool {
	since := map[int16]int16{protocol.KeyProduce: 10, protocol.KeyFetch: 16}[c.api.Key]
	return c.api.Has(protocol.TouchAddresses) && c.version >= since
}

func (c apiCall) namesBrokers() bool {
	want, _ := c.shown(func(int32, string, int32) (string, int32, bool) { return "x", 1, true })
	return string(want.AppendTo(nil)) != string(c.resp.AppendTo(nil))
}

// shown is what the client must get for the broker's answer, by kmsg, and not by
// the code under test. exact false: nodes and filler at its end are compared by
// their meaning.
func (c apiCall) shown(advertise protocol.AddressFunc) (want kmsg.Response, exact bool) {
	want = kmsg.ResponseForKey(c.api.Key)
	want.SetVersion(c.version)
	body := c.resp.AppendTo(nil)
	if err := want.ReadFrom(body); err != nil {
		panic(err)
	}
	if d, ok := want.(*kmsg.DescribeClusterResponse); ok && c.version >= 1 && d.EndpointType == 2 {
		return want, true
	}
	if c.hasAddresses() {
		mapBrokers(reflect.ValueOf(want), advertise)
	}
	streams := (c.api.Key == protocol.KeyFetch && c.version >= 16 || c.api.Key == protocol.KeyShareFetch) && !c.headerTags
	return want, !streams
}

// mapBrokers maps every node's address, by reflection.
func mapBrokers(v reflect.Value, f protocol.AddressFunc) {
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() {
			mapBrokers(v.Elem(), f)
		}
	case reflect.Slice:
		for i := range v.Len() {
			mapBrokers(v.Index(i), f)
		}
	case reflect.Struct:
		id, host, port := v.FieldByName("NodeID"), v.FieldByName("Host"), v.FieldByName("Port")
		if id.IsValid() && host.IsValid() && port.IsValid() && id.Int() >= 0 && host.String() != "" {
			if h, p, ok := f(int32(id.Int()), host.String(), int32(port.Int())); ok {
				host.SetString(h)
				port.SetInt(int64(p))
			}
		}
		for i := range v.NumField() {
			if f0 := v.Type().Field(i); f0.IsExported() && f0.Name != "UnknownTags" {
				mapBrokers(v.Field(i), f)
			}
		}
	}
}

// PX-017, PX-021, PX-023, PX-025, PX-055, PX-113: every request and answer that
// kmsg knows, of every API and version, with null and empty arrays, unknown
// tagged fields at every level and any correlation id, through the proxy and back:
// both ends get the same bytes, except for the brokers' addresses and for
// ApiVersions. Those are golden too, in testdata. Once without a mirror topic, once
// with one that none of the requests names, so that handlers decode and pass.
func TestEveryAPI(t *testing.T) {
	leakCheck(t)
	golden := map[string]string{}
	for _, mirrors := range []bool{false, true} {
		var script atomic.Pointer[[]apiCall]
		p := testProxy(t, scriptedBroker(t, func(c *net.TCPConn) {
			calls := *script.Load()
			if len(calls) > 0 && !calls[0].api.Advertised() {
				if f, err := readFrame(c); err == nil {
					t.Errorf("%s got through: %x", calls[0].api.Name, f)
				}
				return
			}
			for i, call := range calls {
				frame, err := readFrame(c)
				if err != nil && i == 0 {
					return // the connection of a refused API, seen late
				}
				if err != nil {
					t.Errorf("%s v%d: %v", call.api.Name, call.version, err)
					return
				}
				if string(frame) != string(call.request[4:]) {
					t.Errorf("%s v%d variant %d: the broker got %x, sent were %x", call.api.Name, call.version, call.variant, frame, call.request[4:])
					return
				}
				if _, err := c.Write(call.answer); err != nil {
					return
				}
			}
		}), func(o *Options) {
			o.Listeners[0].AdvertisedHost = "lockstep.example"
			o.Listeners[0].FirstPort, o.Listeners[0].LastPort = 0, -1 // binds none
			if mirrors {
				view := &fakeView{fresh: true, freshAt: time.Now(), version: 1, topics: map[string]bool{"a mirror topic": true}, parts: map[partKey]*ledger.Partition{}}
				h := newHandlers(handlerOptions{View: view, Logger: slog.New(slog.DiscardHandler)})
				o.handler = h
			}
		})
		front := p.fronts[0]
		for _, api := range protocol.APIs() {
			calls := apiCalls(api, mirrors)
			script.Store(&calls)
			if !api.Advertised() {
				before := closedFor(p, ReasonUnknownAPI)
				for i, call := range calls {
					if i%apiVariants > 0 {
						continue
					}
					c := dialRaw(t, p)
					c.send(call.request)
					require.Empty(t, c.ended(), api.Name)
					before++
				}
				eventually(t, "reason", func() bool { return closedFor(p, ReasonUnknownAPI) == before })
				continue
			}
			c := dialRaw(t, p)
			sent := make(chan struct{})
			go func() {
				defer close(sent)
				for _, call := range calls {
					if _, err := c.Write(call.request); err != nil {
						return
					}
				}
			}()
			for _, call := range calls {
				if call.answer == nil {
					continue
				}
				name := fmt.Sprintf("%s v%d variant %d", api.Name, call.version, call.variant)
				frame, err := readFrame(c.r)
				require.NoError(t, err, name)
				got := append(protocol.AppendFrameSize(nil, len(frame)), frame...)
				if api.Key != protocol.KeyApiVersions {
					call.compare(t, name, got, front.advertise)
				}
				if string(got) != string(call.answer) {
					require.True(t, api.Has(protocol.TouchAddresses) || api.Key == protocol.KeyApiVersions, "%s: changed", name)
					if call.pinned() {
						golden[name] = hex.EncodeToString(call.answer) + "\n  " + hex.EncodeToString(got)
					}
				}
			}
			<-sent
			require.NoError(t, c.CloseWrite())
			require.Empty(t, c.ended(), api.Name)
		}
	}
	compareGolden(t, "testdata/every_api.txt", golden)
	// Whatever DESIGN.md says is changed was changed, in each version.
	for _, api := range protocol.APIs() {
		for v := api.Min; v <= api.Max; v++ {
			changed := slices.ContainsFunc(sortedKeys(golden), func(n string) bool { return strings.HasPrefix(n, fmt.Sprintf("%s v%d ", api.Name, v)) })
			touched := apiCall{api: api, version: v}.hasAddresses() || api.Key == protocol.KeyApiVersions
			require.Equal(t, touched, changed, "%s v%d", api.Name, v)
		}
	}
}

// PX-017, PX-019: the versions around the reviewed ranges are never guessed; but
// ApiVersions, where they are answered the v0 way, with the range (PX-001).
func TestVersionsAround(t *testing.T) {
	leakCheck(t)
	p := testProxy(t, scriptedBroker(t, serveFrames(sumAnswer)), nil)
	closed := 0
	for _, api := range protocol.APIs() {
		for _, version := range []int16{-1, api.Min - 1, api.Max + 1, 127} {
			if api.Key == protocol.KeyApiVersions && version > api.Max {
				continue
			}
			c := dialRaw(t, p)
			c.send(request(api.Key, version, 1, []byte("c"), make([]byte, 8)))
			require.Empty(t, c.ended(), "%s v%d", api.Name, version)
			closed++
		}
	}
	eventually(t, "reason", func() bool { return closedFor(p, ReasonUnknownAPI) == closed })
}

func (c apiCall) compare(t *testing.T, name string, got []byte, advertise protocol.AddressFunc) {
	t.Helper()
	want, exact := c.shown(advertise)
	header := len(c.answer) - len(c.resp.AppendTo(nil))
	require.Equal(t, c.answer[4:header], got[4:header], "%s: the header", name)
	if exact {
		require.Equal(t, hex.EncodeToString(want.AppendTo(nil)), hex.EncodeToString(got[header:]), name)
		return
	}
	require.Len(t, got, len(c.answer), "%s: the size was sent before", name)
	read := kmsg.ResponseForKey(c.api.Key)
	require.NoError(t, protocol.DecodeBody(c.version, got[header:], read))
	have, ought := nodes(read), nodes(want)
	require.LessOrEqual(t, len(have), len(ought), name)
	require.Equal(t, fmt.Sprint(ought[:len(have)]), fmt.Sprint(have), name)
	require.Equal(t, hex.EncodeToString(want.AppendTo(nil)), hex.EncodeToString(read.AppendTo(nil)), "%s: all but the end", name)
}

// nodes takes the node endpoints out of an answer, and what may be filler.
func nodes(resp kmsg.Response) (out []string) {
	switch r := resp.(type) {
	case *kmsg.FetchResponse:
		for _, b := range r.Brokers {
			out = append(out, fmt.Sprint(b.NodeID, b.Host, b.Port))
		}
		r.Brokers, r.UnknownTags = nil, kmsg.Tags{}
	case *kmsg.ShareFetchResponse:
		for _, b := range r.NodeEndpoints {
			out = append(out, fmt.Sprint(b.NodeID, b.Host, b.Port))
		}
		r.NodeEndpoints, r.UnknownTags = nil, kmsg.Tags{}
	}
	return out
}

// compareGolden compares with a file of names, each followed by indented lines.
func compareGolden(t *testing.T, file string, have map[string]string) {
	t.Helper()
	var b strings.Builder
	for _, name := range sortedKeys(have) {
		fmt.Fprintf(&b, "%s\n  %s\n", name, have[name])
	}
	if *update {
		require.NoError(t, os.MkdirAll("testdata", 0o755))
		require.NoError(t, os.WriteFile(file, []byte(b.String()), 0o644))
	}
	want, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, string(want), b.String(), "look at the difference; go test ./proxy -run %s -update writes %s anew", t.Name(), file)
}

func sortedKeys(m map[string]string) (names []string) {
	for name := range m {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}
