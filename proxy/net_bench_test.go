package proxy

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/binary"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"

	"github.com/lockstep-kafka/lockstep/internal/tlsconf/tlstest"
	"github.com/lockstep-kafka/lockstep/protocol"
)

// plainRelay copies bytes between two sockets with two goroutines: the least a
// proxy has to do. Without splice it copies through user space, as everything
// does that has to look at frames.
func plainRelay(tb testing.TB, broker string, splice bool) (addr string) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			b, err := net.Dial("tcp", broker)
			if err != nil {
				c.Close()
				return
			}
			move := func(dst, src net.Conn) {
				if splice {
					_, _ = io.Copy(dst, src)
				} else {
					_, _ = io.CopyBuffer(struct{ io.Writer }{dst}, struct{ io.Reader }{src}, make([]byte, readBufferBytes))
				}
				_ = dst.(*net.TCPConn).CloseWrite()
			}
			wg.Go(func() { move(b, c); b.Close() })
			wg.Go(func() { move(c, b); c.Close() })
		}
	})
	tb.Cleanup(func() { ln.Close(); wg.Wait() })
	return ln.Addr().String()
}

// BenchmarkPassThrough: requests of one size, pipelined, each with a short
// answer, through Lockstep and through plain relays. Compare MB/s; allocs are
// of the whole process, per frame (the benchmark's own client and broker make
// none).
func BenchmarkPassThrough(b *testing.B) {
	for _, size := range []int{200, 10_000, 1 << 20} {
		for _, way := range []string{"lockstep", "lockstep-tls", "relay", "splice"} {
			b.Run(fmt.Sprintf("produce/%d/%s", size, way), func(b *testing.B) { benchPass(b, way, size, 0) })
		}
	}
	for _, way := range []string{"lockstep", "lockstep-tls", "relay", "splice"} {
		b.Run("fetch/1048576/"+way, func(b *testing.B) { benchPass(b, way, 50, 1<<20) })
	}
}

func benchPass(b *testing.B, way string, ask, answer int) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	defer ln.Close()
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() {
		c, err := ln.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		r := bufio.NewReaderSize(c, 128<<10)
		w := bufio.NewWriterSize(c, 128<<10)
		out := answerFrame(0, make([]byte, answer))
		head := make([]byte, 12)
		for {
			if _, err := io.ReadFull(r, head); err != nil {
				return
			}
			if _, err := r.Discard(int(binary.BigEndian.Uint32(head)) - 8); err != nil {
				return
			}
			copy(out[4:8], head[8:])
			if _, err := w.Write(out); err != nil {
				return
			}
			if r.Buffered() < 12 {
				if w.Flush() != nil {
					return
				}
			}
		}
	})
	var addr string
	ca := tlstest.NewCA(b)
	if strings.HasPrefix(way, "lockstep") {
		listener := Listener{Address: "127.0.0.1:0"}
		if way == "lockstep-tls" {
			cfg := &tls.Config{Certificates: []tls.Certificate{ca.Certificate(b, "lockstep", "lockstep.test")}, DynamicRecordSizingDisabled: true}
			listener.TLS = func() *tls.Config { return cfg }
		}
		p, err := New(Options{
			Listeners: []Listener{listener},
			Bootstrap: []string{ln.Addr().String()},
			Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
				return (&net.Dialer{}).DialContext(ctx, network, ln.Addr().String())
			},
			Limits: Limits{DrainTimeout: -1},
			Logger: slog.New(slog.DiscardHandler),
			Loops:  1,
		})
		if err != nil {
			b.Fatal(err)
		}
		// The brokers aren't looked for: the listener takes one connection only.
		p.topology.client.Close()
		ctx, cancel := context.WithCancel(context.Background())
		wg.Go(func() { _ = p.Run(ctx) })
		defer cancel()
		addr = p.Addr().String()
	} else {
		addr = plainRelay(b, ln.Addr().String(), way == "splice")
	}
	c, err := net.Dial("tcp", addr)
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close()
	if way == "lockstep-tls" {
		c = tls.Client(c, &tls.Config{RootCAs: ca.Pool, ServerName: "lockstep.test", DynamicRecordSizingDisabled: true})
	}
	const batch = 64
	frame := request(protocol.KeyProduce, 9, 0, []byte("bench"), append([]byte{0, 0, 1}, make([]byte, ask)...))
	many := []byte{}
	for range max(1, min(batch, (256<<10)/len(frame))) {
		many = append(many, frame...)
	}
	per := len(many) / len(frame)
	b.SetBytes(int64(len(frame) + answer + 8))
	b.ReportAllocs()
	b.ResetTimer()
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		for left := b.N; left > 0; left -= per {
			if _, err := c.Write(many[:min(per, left)*len(frame)]); err != nil {
				return
			}
		}
	}()
	r := bufio.NewReaderSize(c, 128<<10)
	for range b.N {
		if _, err := r.Discard(8 + answer); err != nil {
			b.Fatal(err)
		}
	}
	b.StopTimer()
	<-sent
}
