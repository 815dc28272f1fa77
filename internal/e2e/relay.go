package e2e

import (
	"encoding/binary"
	"errors"
	"io"
	"net"
	"sync"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// Relay stands in front of one broker. It hands requests and answers on frame by frame, and may change the ApiVersions
// answers and hold requests back. The broker has to advertise the relay's address to those who come through it
// (testkafka.Listener).
type Relay struct {
	listen net.Listener
	to     string
	wg     sync.WaitGroup

	mu       sync.Mutex
	conns    map[net.Conn]bool
	closed   bool
	maxFetch int16 // 0: the broker's own
	answered map[int16]int
	age      int // of MaxFetch
	pass     func(key int16, frame []byte) bool
}

// StartRelay relays from an address to another until the test's end.
func StartRelay(t testing.TB, from, to string) *Relay {
	t.Helper()
	l, err := net.Listen("tcp", from)
	if err != nil {
		t.Fatal(err)
	}
	r := &Relay{listen: l, to: to, conns: map[net.Conn]bool{}, answered: map[int16]int{}}
	r.wg.Go(r.accept)
	t.Cleanup(func() {
		r.mu.Lock()
		r.closed = true
		r.mu.Unlock()
		_ = l.Close()
		r.Cut()
		r.wg.Wait()
	})
	return r
}

// MaxFetch lowers the newest Fetch version in ApiVersions answers (0: no more), and closes all connections: a broker of
// another version has taken this one's place.
func (r *Relay) MaxFetch(v int16) {
	r.mu.Lock()
	r.maxFetch = v
	clear(r.answered)
	r.age++
	r.mu.Unlock()
	r.Cut()
}

// Fetches is how many Fetch requests of each version were handed on since MaxFetch.
func (r *Relay) Fetches() map[int16]int {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := map[int16]int{}
	for v, n := range r.answered {
		out[v] = n
	}
	return out
}

// OnRequest sets what looks at each request before it is handed on (nil: nothing). False: it is not handed on, and its
// connection is closed.
func (r *Relay) OnRequest(f func(key int16, frame []byte) bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.pass = f
}

// Cut closes all connections.
func (r *Relay) Cut() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for c := range r.conns {
		_ = c.Close()
	}
	clear(r.conns)
}

func (r *Relay) accept() {
	for {
		c, err := r.listen.Accept()
		if err != nil {
			return
		}
		r.wg.Go(func() { r.serve(c) })
	}
}

func (r *Relay) keep(c net.Conn) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		_ = c.Close()
		return false
	}
	r.conns[c] = true
	return true
}

func (r *Relay) serve(client net.Conn) {
	defer func() { _ = client.Close() }()
	if !r.keep(client) {
		return
	}
	broker, err := net.Dial("tcp", r.to)
	if err != nil {
		return
	}
	defer func() { _ = broker.Close() }()
	if !r.keep(broker) {
		return
	}
	r.mu.Lock()
	age := r.age
	r.mu.Unlock()
	var mu sync.Mutex
	versions := map[int32]int16{} // ApiVersions requests under way: their versions
	var wg sync.WaitGroup
	wg.Go(func() {
		defer func() { _ = client.Close(); _ = broker.Close() }()
		_ = frames(client, func(f []byte) error {
			if len(f) < 8 {
				return errors.New("short")
			}
			key, version, corr := int16(binary.BigEndian.Uint16(f)), int16(binary.BigEndian.Uint16(f[2:])), int32(binary.BigEndian.Uint32(f[4:]))
			r.mu.Lock()
			if key == int16(kmsg.Fetch) && age == r.age { // not what one of before had still to say
				r.answered[version]++
			}
			pass := r.pass
			r.mu.Unlock()
			if pass != nil && !pass(key, f) {
				return errors.New("held back")
			}
			if key == int16(kmsg.ApiVersions) {
				mu.Lock()
				versions[corr] = version
				mu.Unlock()
			}
			return writeFrame(broker, f)
		})
	})
	_ = frames(broker, func(f []byte) error {
		if len(f) < 4 {
			return errors.New("short")
		}
		mu.Lock()
		v, is := versions[int32(binary.BigEndian.Uint32(f))]
		delete(versions, int32(binary.BigEndian.Uint32(f)))
		mu.Unlock()
		if is {
			f = r.lowered(f, v)
		}
		return writeFrame(client, f)
	})
	_ = client.Close()
	_ = broker.Close()
	wg.Wait()
}

func (r *Relay) lowered(f []byte, version int16) []byte {
	r.mu.Lock()
	limit := r.maxFetch
	r.mu.Unlock()
	resp := kmsg.NewPtrApiVersionsResponse()
	resp.SetVersion(version)
	if limit == 0 || resp.ReadFrom(f[4:]) != nil {
		return f
	}
	for i := range resp.ApiKeys {
		if k := &resp.ApiKeys[i]; k.ApiKey == int16(kmsg.Fetch) {
			k.MaxVersion = min(k.MaxVersion, limit)
		}
	}
	return resp.AppendTo(append([]byte(nil), f[:4]...))
}

func frames(c net.Conn, each func([]byte) error) error {
	var size [4]byte
	for {
		if _, err := io.ReadFull(c, size[:]); err != nil {
			return err
		}
		f := make([]byte, binary.BigEndian.Uint32(size[:]))
		if _, err := io.ReadFull(c, f); err != nil {
			return err
		}
		if err := each(f); err != nil {
			return err
		}
	}
}

func writeFrame(c net.Conn, f []byte) error {
	_, err := c.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(f))), f...))
	return err
}
