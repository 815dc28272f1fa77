package proxy

import (
	"bufio"
	"bytes"
	"io"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/protocol"
)

// movingHandler knows which topic is a mirror topic, from some moment on.
type movingHandler struct {
	noHandler
	version atomic.Uint64
	mirror  string
}

func (h *movingHandler) topicsVersion() uint64 { return h.version.Load() }

func (h *movingHandler) response(key, version int16, body []byte) ([]byte, error) {
	if key != protocol.KeyFetch {
		return body, nil
	}
	var r protocol.FetchResponse
	if err := r.Decode(version, body); err != nil {
		return nil, err
	}
	for _, t := range r.Topics {
		if t.Name == h.mirror {
			return nil, errTopicsMoved
		}
	}
	return body, nil
}

// A Fetch that waits at the broker while its topic becomes a mirror topic was
// asked with physical offsets: its answer never reaches the client (M3). Of
// other topics it does.
func TestFetchUnderWayWhenTopicsMove(t *testing.T) {
	leakCheck(t)
	answer := func(topic string) []byte {
		r := kmsg.NewPtrFetchResponse()
		r.SetVersion(12)
		rt := kmsg.NewFetchResponseTopic()
		rt.Topic = topic
		rp := kmsg.NewFetchResponseTopicPartition()
		rp.RecordBatches = bytes.Repeat([]byte{7}, 100_000)
		rt.Partitions = append(rt.Partitions, rp)
		r.Topics = append(r.Topics, rt)
		return append([]byte{0}, r.AppendTo(nil)...) // no header tags
	}
	for _, topic := range []string{"mirror", "ordinary"} {
		t.Run(topic, func(t *testing.T) {
			asked, release := make(chan struct{}), make(chan struct{})
			h := &movingHandler{mirror: "mirror"}
			p := testProxy(t, scriptedBroker(t, serveFrames(func(protocol.RequestHeader, []byte) []byte {
				close(asked)
				<-release
				return answer(topic)
			})), func(o *Options) { o.handler = h })
			c := dialRaw(t, p)
			c.send(request(protocol.KeyFetch, 12, 5, nil, []byte("body")))
			<-asked
			h.version.Add(1)
			close(release)
			if topic == "mirror" {
				require.Empty(t, c.ended())
				return
			}
			corr, body := c.answer()
			require.Equal(t, int32(5), corr)
			require.Equal(t, answer(topic), body)
		})
	}
}

// The same when only the start of the answer's head was here before the topic
// became one.
func TestFetchHeadHereWhenTopicsMove(t *testing.T) {
	leakCheck(t)
	for _, version := range []int16{11, 12} {
		for n := 1; n <= 7; n++ {
			rest := make(chan struct{})
			h := &movingHandler{mirror: "mirror"}
			p := testProxy(t, scriptedBroker(t, func(c *net.TCPConn) {
				if _, err := readFrame(bufio.NewReader(c)); err != nil {
					return
				}
				r := kmsg.NewPtrFetchResponse()
				r.SetVersion(version)
				rt := kmsg.NewFetchResponseTopic()
				rt.Topic = "mirror"
				r.Topics = append(r.Topics, rt)
				var body []byte
				if version >= 12 {
					body = []byte{0} // no header tags
				}
				frame := answerFrame(5, r.AppendTo(body))
				_, _ = c.Write(frame[:n])
				<-rest
				_, _ = c.Write(frame[n:])
				_, _ = io.Copy(io.Discard, c)
			}), func(o *Options) { o.handler = h })
			c := dialRaw(t, p)
			c.send(request(protocol.KeyFetch, version, 5, nil, []byte("body")))
			require.Eventually(t, func() bool { return testutil.ToFloat64(p.m.upstreamIn) >= float64(n) }, time.Minute, time.Millisecond)
			h.version.Add(1)
			close(rest)
			require.Empty(t, c.ended(), "version %d, %d bytes", version, n)
		}
	}
}
