package main

import (
	"encoding/binary"
	"fmt"
	"maps"
	"net"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// Traffic is what went over a cluster's sockets for one kind of request.
type Traffic struct {
	Requests      int64 `json:"requests"`
	RequestBytes  int64 `json:"request_bytes"` // sizes and headers included
	ResponseBytes int64 `json:"response_bytes"`
	// Seconds are from each request's arrival to its answer, added up.
	Seconds float64 `json:"seconds"`
}

func (t Traffic) minus(o Traffic) Traffic {
	return Traffic{t.Requests - o.Requests, t.RequestBytes - o.RequestBytes, t.ResponseBytes - o.ResponseBytes, t.Seconds - o.Seconds}
}

func (t Traffic) plus(o Traffic) Traffic {
	return Traffic{t.Requests + o.Requests, t.RequestBytes + o.RequestBytes, t.ResponseBytes + o.ResponseBytes, t.Seconds + o.Seconds}
}

// counter counts frames at a fake cluster's listeners, by client id and API.
type counter struct {
	mu    sync.Mutex
	kinds map[string]Traffic
}

func newCounter() *counter { return &counter{kinds: map[string]Traffic{}} }

// listen is for kfake.ListenFn.
func (c *counter) listen(network, address string) (net.Listener, error) {
	l, err := net.Listen(network, address)
	if err != nil {
		return nil, err
	}
	return countedListener{l, c}, nil
}

// since is what was counted after an earlier copy.
func (c *counter) since(before map[string]Traffic) map[string]Traffic {
	out := map[string]Traffic{}
	for k, t := range c.now() {
		if d := t.minus(before[k]); d.Requests > 0 {
			out[k] = d
		}
	}
	return out
}

func (c *counter) now() map[string]Traffic {
	c.mu.Lock()
	defer c.mu.Unlock()
	return maps.Clone(c.kinds)
}

func (c *counter) add(kind string, t Traffic) {
	c.mu.Lock()
	c.kinds[kind] = c.kinds[kind].plus(t)
	c.mu.Unlock()
}

type countedListener struct {
	net.Listener
	c *counter
}

func (l countedListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &countedConn{Conn: conn, c: l.c, asked: map[int32]question{}}, nil
}

// countedConn is the broker's end of a connection: it reads requests and
// writes answers. A side is used by one goroutine at a time.
type countedConn struct {
	net.Conn
	c       *counter
	in, out frames
	mu      sync.Mutex
	asked   map[int32]question // by correlation id
}

type question struct {
	kind string
	at   time.Time
}

func (c *countedConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.in.feed(b[:n], func(head []byte, size int64) {
		kind, id := request(head)
		c.mu.Lock()
		c.asked[id] = question{kind, time.Now()}
		c.mu.Unlock()
		c.c.add(kind, Traffic{Requests: 1, RequestBytes: size})
	})
	return n, err
}

func (c *countedConn) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	c.out.feed(b[:n], func(head []byte, size int64) {
		if len(head) < 8 {
			return
		}
		id := int32(binary.BigEndian.Uint32(head[4:]))
		c.mu.Lock()
		q, ok := c.asked[id]
		delete(c.asked, id)
		c.mu.Unlock()
		if !ok { // its request was cut off
			return
		}
		c.c.add(q.kind, Traffic{ResponseBytes: size, Seconds: time.Since(q.at).Seconds()})
	})
	return n, err
}

// request tells client id and API of a request, and its correlation id.
func request(head []byte) (kind string, id int32) {
	if len(head) < 14 {
		return "?", 0
	}
	key := int16(binary.BigEndian.Uint16(head[4:]))
	id = int32(binary.BigEndian.Uint32(head[8:]))
	client := ""
	if n := int(int16(binary.BigEndian.Uint16(head[12:]))); n > 0 && len(head) >= 14+n {
		client = string(head[14 : 14+n])
	}
	return fmt.Sprintf("%s %s", client, kmsg.NameForKey(key)), id
}

// headBytes of a frame are kept: enough for size, request header and client id.
const headBytes = 64

// frames cuts a stream into Kafka's frames.
type frames struct {
	head []byte
	left int64 // of the frame, behind head
	size int64
}

func (f *frames) feed(b []byte, done func(head []byte, size int64)) {
	for len(b) > 0 {
		want := 4
		if f.size > 0 {
			want = int(min(f.size, headBytes))
		}
		if n := want - len(f.head); n > 0 {
			n = min(n, len(b))
			f.head, b = append(f.head, b[:n]...), b[n:]
			if len(f.head) == 4 && f.size == 0 {
				f.size = 4 + int64(binary.BigEndian.Uint32(f.head))
				f.left = f.size - min(f.size, headBytes)
			}
			if f.size == 0 || int64(len(f.head)) < min(f.size, headBytes) {
				continue
			}
		}
		n := min(f.left, int64(len(b)))
		f.left, b = f.left-n, b[n:]
		if f.left == 0 {
			done(f.head, f.size)
			f.head, f.size = f.head[:0], 0
		}
	}
}
