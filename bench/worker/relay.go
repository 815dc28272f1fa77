package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"net"
	"sync"
	"time"
)

// relay moves bytes from each connection to one of its own and back: read into
// a buffer, write it, as any proxy in user space has to. With a delay, what is
// read is written that much later, so that a round trip takes twice as long.
func relay(ctx context.Context, args []string) error {
	f := flag.NewFlagSet("relay", flag.ExitOnError)
	listen := f.String("listen", "", "address to listen on")
	to := f.String("to", "", "address to connect to")
	delay := f.Duration("delay", 0, "how much later bytes arrive, in each direction")
	if err := f.Parse(args); err != nil {
		return err
	}
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", *listen)
	if err != nil {
		return err
	}
	defer context.AfterFunc(ctx, func() { _ = l.Close() })()
	fmt.Println("ready") // the bench waits for it
	var all sync.WaitGroup
	defer all.Wait()
	for {
		c, err := l.Accept()
		if err != nil {
			return err
		}
		all.Go(func() { carry(ctx, c, *to, *delay) })
	}
}

func carry(ctx context.Context, a net.Conn, to string, delay time.Duration) {
	defer func() { _ = a.Close() }()
	b, err := (&net.Dialer{}).DialContext(ctx, "tcp", to)
	if err != nil {
		return
	}
	defer func() { _ = b.Close() }()
	defer context.AfterFunc(ctx, func() { _, _ = a.Close(), b.Close() })()
	pump := pumpNow
	if delay > 0 {
		pump = func(dst, src net.Conn) { pumpLater(dst, src, delay) }
	}
	var both sync.WaitGroup
	both.Go(func() { pump(b, a); closeWrite(b) })
	both.Go(func() { pump(a, b); closeWrite(a) })
	both.Wait()
}

func closeWrite(c net.Conn) {
	if t, ok := c.(*net.TCPConn); ok {
		_ = t.CloseWrite()
	}
}

const chunk = 256 << 10

func pumpNow(dst, src net.Conn) {
	// The wrappers hide ReadFrom and WriteTo: no splice, the bytes pass through this process.
	_, _ = io.CopyBuffer(struct{ io.Writer }{dst}, struct{ io.Reader }{src}, make([]byte, chunk))
}

// pumpLater holds at most 512 chunks, 128 MiB: more than a bandwidth of 1 GB/s
// fills in 100 ms.
func pumpLater(dst, src net.Conn, delay time.Duration) {
	type piece struct {
		due  time.Time
		data []byte
	}
	pool := sync.Pool{New: func() any { b := make([]byte, chunk); return &b }}
	pieces := make(chan piece, 512)
	var sending sync.WaitGroup
	defer sending.Wait()
	defer close(pieces)
	sending.Go(func() {
		failed := false
		for p := range pieces {
			if !failed {
				time.Sleep(time.Until(p.due))
				_, err := dst.Write(p.data)
				failed = err != nil
			}
			b := p.data[:chunk]
			pool.Put(&b)
		}
	})
	for {
		b := *pool.Get().(*[]byte)
		n, err := src.Read(b)
		if n > 0 {
			pieces <- piece{time.Now().Add(delay), b[:n]}
		}
		if err != nil {
			return
		}
	}
}
