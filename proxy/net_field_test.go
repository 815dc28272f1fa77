package proxy

import (
	"bufio"
	"context"
	"encoding/binary"
	"math/rand/v2"
	"net"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/protocol"
)

// Faults that users of other proxies met (cases.md, PX-…), as far as no other
// test has them in its name.

// Random bytes, random frames with sane sizes, unknown keys, and clients that
// send a byte now and then (slow loris), many at once: each ends for a reason of
// its own, and a client beside them doesn't notice. No label grows with what
// clients send (PX-113).
func TestGarbageBesideAHealthyClient(t *testing.T) {
	leakCheck(t)
	b, _ := chainBench(t)
	b.h.view, b.h.now = liveView{b.view}, time.Now
	srv := &simServer{t: t, sim: b.sim}
	reg := prometheus.NewRegistry()
	p := testProxy(t, scriptedBroker(t, srv.serve), func(o *Options) {
		o.handler = b.h
		o.Registerer = reg
		o.Limits.MaxFrameBytes = 1 << 20
		o.Limits.HandshakeTimeout, o.Limits.StalledFrameTimeout = 2*time.Second, time.Second
	})
	series := func() (n int) {
		families, err := reg.Gather()
		require.NoError(t, err)
		for _, f := range families {
			n += len(f.Metric)
		}
		return n
	}
	stop := healthy(t, p)
	before := series()
	rnd := rand.New(rand.NewPCG(11, 12))
	var loris []*rawClient
	slow := request(keyHeartbeat, 0, 1, nil, make([]byte, 46))
	for range 20 {
		loris = append(loris, dialRaw(t, p))
	}
	const n = 300
	for i := range n {
		c := dialRaw(t, p)
		junk := make([]byte, 1+rnd.IntN(400))
		for j := range junk {
			junk[j] = byte(rnd.Uint32())
		}
		switch i % 3 {
		case 1: // a frame by its size, with a key nobody knows (a real one's body would be the broker's business)
			junk = append(junk, make([]byte, 12)...)
			protocol.AppendFrameSize(junk[:0], len(junk)-4)
			binary.BigEndian.PutUint16(junk[4:], uint16(100+rnd.IntN(32000)))
		case 2: // a handled request with a body of junk
			junk = request(protocol.KeyListOffsets, int16(rnd.IntN(12)), 3, nil, junk)
		}
		_, _ = c.Write(junk)
		_ = c.CloseWrite()
		c.ended()
		if at := i / 15; i%15 == 0 { // 20 bytes of a request of 60
			for _, l := range loris {
				_, _ = l.Write(slow[at : at+1])
			}
		}
	}
	for _, l := range loris {
		l.ended()
	}
	eventually(t, "all but the healthy one end", func() bool { return p.open.Load() == 1 })
	ended := 0
	for r := range numReasons {
		ended += closedFor(p, r)
	}
	require.Equal(t, n+20, ended)
	require.Equal(t, n/3, closedFor(p, ReasonUnknownAPI))
	require.Positive(t, closedFor(p, ReasonBadFrame))
	require.Equal(t, 20, closedFor(p, ReasonHandshakeTimeout)+closedFor(p, ReasonStalledFrame))
	require.Zero(t, closedFor(p, ReasonInternal))
	require.Equal(t, before, series())
	require.Positive(t, stop())
	b.h.wait()
}

// PX-013: a broker that resets the connection on an ApiVersions it doesn't like:
// the client hears of it as it would without a proxy, and comes back with less.
func TestResetOnApiVersions(t *testing.T) {
	leakCheck(t)
	p := testProxy(t, scriptedBroker(t, func(c *net.TCPConn) {
		serveFrames(func(h protocol.RequestHeader, f []byte) []byte {
			if h.Key == protocol.KeyApiVersions && h.Version > 3 {
				_ = c.SetLinger(0)
				c.Close()
				return nil
			}
			resp := kmsg.NewPtrApiVersionsResponse()
			resp.SetVersion(h.Version)
			return resp.AppendTo(nil)
		})(c)
	}), nil)
	req := kmsg.NewPtrApiVersionsRequest()
	for _, version := range []int16{4, 3, 0} {
		req.SetVersion(version)
		c := dialRaw(t, p)
		c.send(request(protocol.KeyApiVersions, version, 1, []byte("c"), req.AppendTo(nil)))
		if version > 3 {
			require.Empty(t, c.ended())
			eventually(t, "reason", func() bool { return closedFor(p, ReasonBrokerEOF) == 1 })
			continue
		}
		corr, _ := c.answer()
		require.EqualValues(t, 1, corr)
	}
}

// PX-003, PX-111: never more than the broker has, never a key or version that
// Lockstep doesn't know.
func TestOldAndNewBrokers(t *testing.T) {
	leakCheck(t)
	p := testProxy(t, scriptedBroker(t, serveFrames(func(h protocol.RequestHeader, _ []byte) []byte {
		resp := kmsg.NewPtrApiVersionsResponse()
		resp.SetVersion(h.Version)
		for _, k := range [][3]int16{{1, 0, 11}, {3, 0, 99}, {9999, 0, 1}, {0, 3, 9}, {1, 2, 3}, {71, 0, 0}} {
			resp.ApiKeys = append(resp.ApiKeys, kmsg.ApiVersionsResponseApiKey{ApiKey: k[0], MinVersion: k[1], MaxVersion: k[2]})
		}
		return resp.AppendTo(nil)
	})), nil)
	for version := range int16(5) {
		req := kmsg.NewPtrApiVersionsRequest()
		req.SetVersion(version)
		c := dialRaw(t, p)
		c.send(request(protocol.KeyApiVersions, version, 1, []byte("c"), req.AppendTo(nil)))
		_, body := c.answer()
		resp := kmsg.NewPtrApiVersionsResponse()
		require.NoError(t, protocol.DecodeBody(version, body, resp))
		var got [][3]int16
		for _, k := range resp.ApiKeys {
			got = append(got, [3]int16{k.ApiKey, k.MinVersion, k.MaxVersion})
		}
		require.Equal(t, [][3]int16{{1, 4, 11}, {3, 0, 13}, {0, 3, 9}}, got)
	}
}

// PX-047: the broker answers the second request first. Nothing is put in order
// by guessing: neither answer is passed on, the connection ends.
func TestAnswersOutOfOrder(t *testing.T) {
	leakCheck(t)
	p := testProxy(t, scriptedBroker(t, func(c *net.TCPConn) {
		var corrs []int32
		for range 2 {
			f, err := readFrame(c)
			if err != nil {
				return
			}
			corrs = append(corrs, int32(binary.BigEndian.Uint32(f[4:])))
		}
		_, _ = c.Write(append(answerFrame(corrs[1], []byte("second")), answerFrame(corrs[0], []byte("first"))...))
		_, _ = readFrame(c)
	}), nil)
	c := dialRaw(t, p)
	c.send(append(request(keyHeartbeat, 0, 1, nil, nil), request(keyHeartbeat, 0, 2, nil, nil)...))
	require.Empty(t, c.ended())
	eventually(t, "reason", func() bool { return closedFor(p, ReasonProtocolError) == 1 })
}

// PX-049: whatever ids a client picks, the same one for all of its requests even,
// what Lockstep asks on the same connection is never taken for theirs.
func TestClientsUseAnyCorrelationID(t *testing.T) {
	leakCheck(t)
	var asked atomic.Int64
	p := testProxy(t, scriptedBroker(t, serveFrames(func(h protocol.RequestHeader, f []byte) []byte {
		if h.Key == 14 {
			asked.Add(1)
			return []byte("asked")
		}
		return f[h.HeaderLen:]
	})), func(o *Options) {
		o.handler = &stubHandler{key: protocol.KeyListOffsets, do: func(x exchange) {
			left := 3
			for range left {
				x.AskFrame(14, 0, [][]byte{[]byte("q")}, func(body []byte, err error) {
					if left--; left == 0 && err == nil {
						x.Reply([][]byte{body, []byte(" thrice")})
					}
				})
			}
		}}
	})
	for _, corr := range []int32{0, -1, 1<<31 - 1, -1 << 31} {
		c := dialRaw(t, p)
		for i := range 20 {
			c.send(request(keyHeartbeat, 0, corr, nil, []byte{byte(i)}))
			c.send(request(protocol.KeyListOffsets, 1, corr, nil, []byte{byte(i)}))
		}
		for i := range 20 {
			got, body := c.answer()
			require.Equal(t, corr, got)
			require.Equal(t, []byte{byte(i)}, body)
			got, body = c.answer()
			require.Equal(t, corr, got)
			require.Equal(t, "asked thrice", string(body))
		}
	}
	require.EqualValues(t, 4*20*3, asked.Load())
}

// PX-073: leader epoch −1 behind a higher one is what the broker said, so it is
// shown, on mirror topics and others. PX-081 (KIP-1102): the error that tells a
// client to begin anew passes, in Metadata v13's own field.
func TestMetadataOddities(t *testing.T) {
	leakCheck(t)
	b, _ := chainBench(t) // bump 10, newest epoch of the chain 7
	b.h.view, b.h.now = liveView{b.view}, time.Now
	answer := func(version int16, epoch int32, code int16) []byte {
		r := kmsg.NewPtrMetadataResponse()
		r.SetVersion(version)
		r.ErrorCode = code
		for _, name := range []string{"m", "other"} {
			rt := kmsg.NewMetadataResponseTopic()
			rt.Topic = kmsg.StringPtr(name)
			rp := kmsg.NewMetadataResponseTopicPartition()
			rp.Leader, rp.LeaderEpoch = 1, epoch
			rt.Partitions = append(rt.Partitions, rp)
			r.Topics = append(r.Topics, rt)
		}
		return append([]byte{0}, r.AppendTo(nil)...)
	}
	var next atomic.Pointer[[]byte]
	p := testProxy(t, scriptedBroker(t, serveFrames(func(protocol.RequestHeader, []byte) []byte { return *next.Load() })), func(o *Options) { o.handler = b.h })
	c := dialRaw(t, p)
	for _, tc := range []struct {
		version     int16
		epoch, want int32
		code        int16
	}{{9, 20, 30, 0}, {9, -1, -1, 0}, {9, 21, 31, 0}, {12, -1, -1, 0}, {13, 20, 30, 129}, {13, -1, -1, 129}} {
		body := answer(tc.version, tc.epoch, tc.code)
		next.Store(&body)
		req := kmsg.NewPtrMetadataRequest()
		req.SetVersion(tc.version)
		c.send(request(protocol.KeyMetadata, tc.version, 5, nil, req.AppendTo(nil)))
		_, got := c.answer()
		r := kmsg.NewPtrMetadataResponse()
		require.NoError(t, protocol.DecodeBody(tc.version, got[1:], r))
		require.Equal(t, tc.want, r.Topics[0].Partitions[0].LeaderEpoch)
		require.Equal(t, tc.epoch, r.Topics[1].Partitions[0].LeaderEpoch)
		require.Equal(t, tc.code, r.ErrorCode)
	}
}

// PX-079: the cluster id that clients see is the destination's own, in every
// answer that has one, and a live client whose address leads to another cluster
// from one moment to the next (a failover by DNS) goes on there.
func TestClusterIDIsTheDestinations(t *testing.T) {
	leakCheck(t)
	ctx, cancel := context.WithTimeout(t.Context(), 2*testPatience)
	defer cancel()
	first := freePorts(t, 3)
	address := net.JoinHostPort("127.0.0.1", strconv.Itoa(first))
	start := func(id string) (stop func()) {
		cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.ClusterID(id))
		require.NoError(t, err)
		t.Cleanup(cluster.Close)
		opts := testOptions("")
		opts.Dial = nil
		opts.Bootstrap = cluster.ListenAddrs()
		opts.Listeners = []Listener{{Address: address, FirstPort: first + 1, LastPort: first + 2}}
		p, err := New(opts)
		require.NoError(t, err)
		return runProxy(t, p)
	}
	cl, err := kgo.NewClient(kgo.SeedBrokers(address),
		kgo.MetadataMinAge(10*time.Millisecond), kgo.RetryBackoffFn(func(int) time.Duration { return 10 * time.Millisecond }))
	require.NoError(t, err)
	defer cl.Close()
	for _, id := range []string{"source", "destination"} {
		stop := start(id)
		eventually(t, "the client is at "+id, func() bool {
			req := kmsg.NewPtrMetadataRequest()
			req.Topics = []kmsg.MetadataRequestTopic{}
			meta, err := req.RequestWith(ctx, cl)
			return err == nil && meta.ClusterID != nil && *meta.ClusterID == id
		})
		tcp := dialTCP(t, address).(*net.TCPConn)
		raw := &rawClient{tcp, t, bufio.NewReader(tcp)}
		for version := int16(2); version <= 12; version++ {
			req, meta := kmsg.NewPtrMetadataRequest(), kmsg.NewPtrMetadataResponse()
			req.SetVersion(version)
			raw.send(request(protocol.KeyMetadata, version, 1, nil, req.AppendTo(nil)))
			_, body := raw.answer()
			if version >= 9 {
				body = body[1:]
			}
			require.NoError(t, protocol.DecodeBody(version, body, meta))
			require.Equal(t, id, *meta.ClusterID, "Metadata version %d", version)
		}
		resp, err := kmsg.NewPtrDescribeClusterRequest().RequestWith(ctx, cl)
		require.NoError(t, err)
		require.Equal(t, id, resp.ClusterID)
		stop()
	}
}
