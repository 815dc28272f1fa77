package proxy

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/protocol"
)

// liveView is a fakeView that is always fresh, by the real clock.
type liveView struct{ *fakeView }

func (liveView) FreshAt() time.Time { return time.Now() }

// spoilt says what the broker sends in place of an answer (a frame with its
// size), and whether it then closes.
type spoilt func(answer []byte) (send []byte, then error)

// simServer is the handlers' simulated broker behind a real socket. Of a client
// whose id says "spoil N" the Nth answer after ApiVersions is spoilt.
type simServer struct {
	t     *testing.T
	mu    sync.Mutex
	sim   *sim
	spoil atomic.Pointer[spoilt]
	hit   atomic.Int64 // answers that were spoilt
}

func (s *simServer) serve(c *net.TCPConn) {
	r := bufio.NewReader(c)
	for n := 0; ; n++ {
		frame, err := readFrame(r)
		if err != nil {
			return
		}
		h, err := protocol.ParseRequestHeader(frame)
		if err != nil {
			s.t.Errorf("the broker can't read %x: %v", frame, err)
			return
		}
		req := kmsg.RequestForKey(h.Key)
		if err := protocol.DecodeBody(h.Version, frame[h.HeaderLen:], req); err != nil {
			s.t.Errorf("the broker can't read %s: %v", h.Name(), err)
			return
		}
		answer := protocol.AppendResponseHeader(make([]byte, 4), h.Key, h.Version, h.CorrelationID)
		answer = s.answer(req).AppendTo(answer)
		protocol.AppendFrameSize(answer[:0], len(answer)-4)
		var then error
		if string(h.ClientID) == fmt.Sprint("spoil ", n) {
			s.hit.Add(1)
			answer, then = (*s.spoil.Load())(answer)
		}
		if _, err := c.Write(answer); err != nil || then != nil {
			return
		}
	}
}

func (s *simServer) answer(req kmsg.Request) kmsg.Response {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch req.(type) {
	case *kmsg.ApiVersionsRequest:
		resp := kmsg.NewPtrApiVersionsResponse()
		resp.SetVersion(req.GetVersion())
		for _, api := range protocol.APIs() {
			if api.Advertised() {
				resp.ApiKeys = append(resp.ApiKeys, kmsg.ApiVersionsResponseApiKey{ApiKey: api.Key, MinVersion: api.Min, MaxVersion: api.Max})
			}
		}
		return resp
	case *kmsg.HeartbeatRequest:
		return req.ResponseKind()
	}
	return s.sim.answer(req)
}

// mirrorRequests name the mirror topic m in every API that has a handler, in the
// lowest, a middle and the highest version.
func mirrorRequests(t testing.TB, h *handlers, id [16]byte) (out []kmsg.Request) {
	for _, api := range protocol.APIs() {
		if h.handlerOf(api.Key) == nil {
			continue
		}
		for _, v := range []int16{api.Min, (api.Min + api.Max) / 2, api.Max} {
			req := kmsg.RequestForKey(api.Key)
			req.SetVersion(v)
			switch q := req.(type) {
			case *kmsg.ProduceRequest:
				q.Acks = -1
				rt := kmsg.NewProduceRequestTopic()
				rt.Topic, rt.TopicID = "m", id
				rp := kmsg.NewProduceRequestTopicPartition()
				rp.Records = idempotent(dense(t, 0, 1, 5), 7)
				rt.Partitions = append(rt.Partitions, rp)
				q.Topics = append(q.Topics, rt)
			case *kmsg.FetchRequest:
				q.MaxBytes, q.SessionEpoch = 1<<20, -1
				rt := kmsg.NewFetchRequestTopic()
				rt.Topic, rt.TopicID = "m", id
				rp := kmsg.NewFetchRequestTopicPartition()
				rp.FetchOffset, rp.PartitionMaxBytes, rp.CurrentLeaderEpoch = 3, 1<<20, -1
				rt.Partitions = append(rt.Partitions, rp)
				q.Topics = append(q.Topics, rt)
			case *kmsg.ListOffsetsRequest:
				rt := kmsg.NewListOffsetsRequestTopic()
				rt.Topic = "m"
				rp := kmsg.NewListOffsetsRequestTopicPartition()
				rp.Timestamp, rp.MaxNumOffsets = 6, 1
				rt.Partitions = append(rt.Partitions, rp)
				q.Topics = append(q.Topics, rt)
			case *kmsg.DeleteRecordsRequest:
				rt := kmsg.NewDeleteRecordsRequestTopic()
				rt.Topic = "m"
				rp := kmsg.NewDeleteRecordsRequestTopicPartition()
				rp.Offset = 1
				rt.Partitions = append(rt.Partitions, rp)
				q.Topics = append(q.Topics, rt)
			case *kmsg.OffsetForLeaderEpochRequest:
				q.ReplicaID = -1
				rt := kmsg.NewOffsetForLeaderEpochRequestTopic()
				rt.Topic = "m"
				rp := kmsg.NewOffsetForLeaderEpochRequestTopicPartition()
				rp.LeaderEpoch, rp.CurrentLeaderEpoch = 5, -1
				rt.Partitions = append(rt.Partitions, rp)
				q.Topics = append(q.Topics, rt)
			case *kmsg.DeleteTopicsRequest:
				name := "m"
				q.TopicNames = []string{name}
				q.Topics = []kmsg.DeleteTopicsRequestTopic{{Topic: &name}}
			case *kmsg.CreatePartitionsRequest:
				q.Topics = []kmsg.CreatePartitionsRequestTopic{{Topic: "m", Count: 3}}
			case *kmsg.AlterConfigsRequest:
				rc := kmsg.NewAlterConfigsRequestResource()
				rc.ResourceType, rc.ResourceName = kmsg.ConfigResourceTypeTopic, "m"
				q.Resources = append(q.Resources, rc)
			case *kmsg.IncrementalAlterConfigsRequest:
				rc := kmsg.NewIncrementalAlterConfigsRequestResource()
				rc.ResourceType, rc.ResourceName = kmsg.ConfigResourceTypeTopic, "m"
				rc.Configs = append(rc.Configs, setConfig("max.message.bytes", "5"))
				q.Resources = append(q.Resources, rc)
			case *kmsg.ShareFetchRequest:
				q.GroupID, q.MemberID = kmsg.StringPtr("g"), kmsg.StringPtr("me")
				rt := kmsg.NewShareFetchRequestTopic()
				rt.TopicID = id
				rt.Partitions = append(rt.Partitions, kmsg.NewShareFetchRequestTopicPartition())
				q.Topics = append(q.Topics, rt)
			case *kmsg.ShareAcknowledgeRequest:
				q.GroupID, q.MemberID = kmsg.StringPtr("g"), kmsg.StringPtr("me")
				rt := kmsg.NewShareAcknowledgeRequestTopic()
				rt.TopicID = id
				rt.Partitions = append(rt.Partitions, kmsg.NewShareAcknowledgeRequestTopicPartition())
				q.Topics = append(q.Topics, rt)
			case *kmsg.AlterShareGroupOffsetsRequest:
				q.GroupID = "g"
				q.Topics = []kmsg.AlterShareGroupOffsetsRequestTopic{{Topic: "m", Partitions: []kmsg.AlterShareGroupOffsetsRequestTopicPartition{{Partition: 0}}}}
			default:
				t.Fatalf("no request for the handler of %s", api.Name)
			}
			out = append(out, req)
		}
	}
	return out
}

// healthy runs one client that asks all the time and gets the same answers;
// stop says how often.
func healthy(t *testing.T, p *Proxy) (stop func() int) {
	c := dialRaw(t, p)
	require.NoError(t, c.SetDeadline(time.Time{}))
	end, done := make(chan struct{}), make(chan int)
	beat := kmsg.NewPtrHeartbeatRequest()
	list := kmsg.NewPtrListOffsetsRequest()
	list.SetVersion(4)
	rt := kmsg.NewListOffsetsRequestTopic()
	rt.Topic = "m"
	rp := kmsg.NewListOffsetsRequestTopicPartition()
	rp.Timestamp = -2
	rt.Partitions = append(rt.Partitions, rp)
	list.Topics = append(list.Topics, rt)
	go func() {
		n := 0
		defer func() { done <- n }()
		var first [2]string
		for {
			select {
			case <-end:
				return
			default:
			}
			for i, req := range []kmsg.Request{beat, list} {
				if _, err := c.Write(request(req.Key(), req.GetVersion(), int32(n), []byte("healthy"), req.AppendTo(nil))); err != nil {
					t.Errorf("the healthy connection: %v", err)
					return
				}
				frame, err := readFrame(c.r)
				if err != nil || int(binary.BigEndian.Uint32(frame)) != n {
					t.Errorf("the healthy connection: answer %d, %v", n, err)
					return
				}
				if n == 0 {
					first[i] = string(frame[4:])
				} else if first[i] != string(frame[4:]) {
					t.Errorf("the healthy connection: another answer to request %d", i)
					return
				}
			}
			n++
			time.Sleep(time.Millisecond)
		}
	}()
	return func() int {
		close(end)
		n := <-done
		c.Close()
		return n
	}
}

var errCut = errors.New("cut")

// nonsense are the ways in which a broker's answer can be spoilt.
func nonsense(rnd *rand.Rand) spoilt {
	return func(a []byte) ([]byte, error) {
		body := a[min(len(a), 8):]
		switch rnd.IntN(10) {
		case 0: // cut, with the size of what is left
			a = a[:8+rnd.IntN(len(body)+1)]
			protocol.AppendFrameSize(a[:0], len(a)-4)
		case 1: // nothing behind the header
			a = a[:8]
			protocol.AppendFrameSize(a[:0], 4)
		case 2:
			for i := range body {
				body[i] = byte(rnd.Uint32())
			}
		case 3, 4, 5:
			for range 1 + rnd.IntN(8) {
				if len(body) > 0 {
					body[rnd.IntN(len(body))] ^= 1 << rnd.IntN(8)
				}
			}
		case 6: // a huge count or length somewhere
			if len(body) >= 4 {
				binary.BigEndian.PutUint32(body[rnd.IntN(len(body)-3):], []uint32{0x7fffffff, 0xffffffff, 0x80000000, 0xffffff7f}[rnd.IntN(4)])
			}
		case 7: // more than there should be
			a = append(a, make([]byte, 1+rnd.IntN(50))...)
			protocol.AppendFrameSize(a[:0], len(a)-4)
		case 8: // another's answer (PX-047)
			a[7]++
		case 9: // ends anywhere
			return a[:rnd.IntN(len(a))], errCut
		}
		return a, nil
	}
}

// A broker that answers nonsense to what Lockstep asks it for a handled request,
// or ends in the middle of an answer: the client gets an answer or the end of its
// connection, for the right reason; nothing panics, hangs or leaks, and another
// client doesn't notice.
func TestNonsenseToHandlers(t *testing.T) {
	leakCheck(t)
	rounds := 8
	if testing.Short() {
		rounds = 2
	}
	for name, start := range map[string]func(*testing.T) (*bench, *history){"mirroring": chainBench, "stopped": stoppedBench} {
		t.Run(name, func(t *testing.T) {
			b, _ := start(t)
			id := b.id("m", 9)
			newAdminBroker(t, b)
			b.h.view, b.h.now = liveView{b.view}, time.Now
			srv := &simServer{t: t, sim: b.sim}
			p := testProxy(t, scriptedBroker(t, srv.serve), func(o *Options) {
				o.handler = b.h
				o.Limits.MaxFrameBytes = 1 << 20
			})
			stop := healthy(t, p)
			rnd := rand.New(rand.NewPCG(3, 14))
			spoil := nonsense(rnd)
			srv.spoil.Store(&spoil)
			answered, closed := 0, 0
			for _, req := range mirrorRequests(t, b.h, id) {
				for range rounds {
					c := dialRaw(t, p)
					clientID := fmt.Appendf(nil, "spoil %d", 1+rnd.IntN(3))
					versions := kmsg.NewPtrApiVersionsRequest()
					c.send(request(protocol.KeyApiVersions, 0, 1, clientID, versions.AppendTo(nil)))
					c.answer()
					c.send(request(req.Key(), req.GetVersion(), 2, clientID, req.AppendTo(nil)))
					frame, err := readFrame(c.r)
					var ne net.Error
					require.False(t, errors.As(err, &ne) && ne.Timeout(), "%s v%d: no answer and no end", kmsg.NameForKey(req.Key()), req.GetVersion())
					if err == nil {
						require.EqualValues(t, 2, binary.BigEndian.Uint32(frame))
						answered++
					} else {
						closed++
					}
					c.Close()
				}
			}
			eventually(t, "all but the healthy one end", func() bool { return p.open.Load() == 1 })
			for r := range numReasons {
				switch r {
				case ReasonClientEOF, ReasonBrokerEOF, ReasonProtocolError, ReasonFrameTooLarge:
				default:
					require.Zero(t, closedFor(p, r), r.String())
				}
			}
			require.Positive(t, closedFor(p, ReasonProtocolError))
			require.Positive(t, closedFor(p, ReasonBrokerEOF))
			require.Positive(t, answered)
			require.Greater(t, srv.hit.Load(), int64(answered+closed)/4)
			t.Logf("answered %d, closed %d, spoilt %d", answered, closed, srv.hit.Load())
			require.Positive(t, stop())
			b.h.wait()
		})
	}
}

// A broker that closes at each byte of an answer that Lockstep rewrites, streams
// with another end, or asked for itself: what reaches the client is nothing, or
// what stands before the part that is held back, and never a wrong address.
func TestBrokerClosesInRewrittenAnswers(t *testing.T) {
	leakCheck(t)
	b, _ := chainBench(t)
	b.h.view, b.h.now = liveView{b.view}, time.Now
	var answer atomic.Pointer[[]byte]
	var cut atomic.Int64
	p := testProxy(t, scriptedBroker(t, func(c *net.TCPConn) {
		if _, err := readFrame(c); err == nil {
			_, _ = c.Write((*answer.Load())[:cut.Load()])
		}
	}), func(o *Options) { o.handler = b.h })
	meta := kmsg.NewPtrMetadataResponse()
	meta.SetVersion(1)
	meta.Brokers = []kmsg.MetadataResponseBroker{{NodeID: 3, Host: "internal.example", Port: 9092}}
	fetch := kmsg.NewPtrShareFetchResponse()
	fetch.SetVersion(1)
	fetch.Topics = []kmsg.ShareFetchResponseTopic{{TopicID: [16]byte{1}, Partitions: []kmsg.ShareFetchResponseTopicPartition{{Records: []byte("records")}}}}
	fetch.NodeEndpoints = []kmsg.ShareFetchResponseNodeEndpoint{{NodeID: 3, Host: "internal.example", Port: 9092}}
	list := kmsg.NewPtrListOffsetsResponse()
	list.SetVersion(4)
	rt := kmsg.NewListOffsetsResponseTopic()
	rt.Topic = "m"
	rt.Partitions = append(rt.Partitions, kmsg.NewListOffsetsResponseTopicPartition())
	list.Topics = append(list.Topics, rt)
	listReq := kmsg.NewPtrListOffsetsRequest()
	listReq.SetVersion(4)
	qt := kmsg.NewListOffsetsRequestTopic()
	qt.Topic = "m"
	qt.Partitions = append(qt.Partitions, kmsg.NewListOffsetsRequestTopicPartition())
	listReq.Topics = append(listReq.Topics, qt)
	shareReq := kmsg.NewPtrShareFetchRequest()
	shareReq.SetVersion(1)
	metaReq := kmsg.NewPtrMetadataRequest()
	metaReq.SetVersion(1)
	total := 0
	for _, tc := range []struct {
		req  kmsg.Request
		resp kmsg.Response
	}{{metaReq, meta}, {shareReq, fetch}, {listReq, list}} {
		key, version := tc.req.Key(), tc.req.GetVersion()
		whole := tc.resp.AppendTo(protocol.AppendResponseHeader(make([]byte, 4), key, version, 7))
		protocol.AppendFrameSize(whole[:0], len(whole)-4)
		answer.Store(&whole)
		for n := range whole {
			cut.Store(int64(n))
			c := dialRaw(t, p)
			c.send(request(key, version, 7, []byte("c"), tc.req.AppendTo(nil)))
			rest := c.ended()
			require.NotContains(t, string(rest), "internal")
			if key != protocol.KeyShareFetch {
				require.Empty(t, rest)
			} else {
				require.Equal(t, whole[:len(rest)], rest)
			}
			total++
		}
	}
	eventually(t, "reasons", func() bool { return closedFor(p, ReasonBrokerEOF) == total })
}

// Each handled request, cut at each byte: the client closes in the middle, and
// nothing of it reaches the broker.
func TestClientClosesInHandledRequests(t *testing.T) {
	leakCheck(t)
	b, _ := chainBench(t)
	id := b.id("m", 9)
	b.h.view, b.h.now = liveView{b.view}, time.Now
	p := testProxy(t, scriptedBroker(t, func(c *net.TCPConn) {
		if got, _ := io.ReadAll(c); len(got) > 0 {
			t.Errorf("the broker got %x", got)
		}
	}), func(o *Options) { o.handler = b.h })
	total := 0
	for i, req := range mirrorRequests(t, b.h, id) {
		frame := request(req.Key(), req.GetVersion(), 7, []byte("c"), req.AppendTo(nil))
		for n := 1 + i%3; n < len(frame); n += 3 { // each byte, over the three versions
			c := dialRaw(t, p)
			c.send(frame[:n])
			if n%2 == 0 {
				require.NoError(t, c.CloseWrite())
				require.Empty(t, c.ended())
			} else {
				c.Close()
			}
			total++
		}
	}
	eventually(t, "reasons", func() bool { return closedFor(p, ReasonClientEOF) == total })
	b.h.wait()
}
