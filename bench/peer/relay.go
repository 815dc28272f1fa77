package peer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/lockstep-kafka/lockstep/bench/lab"
	"github.com/lockstep-kafka/lockstep/bench/measure"
)

// StartRelay starts a plain relay in front of an address, with a delay in each
// direction if wanted.
func StartRelay(ctx context.Context, l *lab.Lab, listen, to string, delay time.Duration) (*Process, error) {
	p, err := start(l, "relay", l.Program("worker"), "relay", "-listen", listen, "-to", to, "-delay", delay.String())
	if err != nil {
		return nil, err
	}
	// Not by dialling: that would be a connection to the other side.
	for {
		if b, _ := os.ReadFile(p.log); string(b) == "ready\n" {
			return p, nil
		}
		if err := p.Ended(); err != nil {
			return nil, err
		}
		if err := lab.Sleep(ctx, 10*time.Millisecond); err != nil {
			p.End()
			return nil, err
		}
	}
}

// RelayFiles sends files through a plain relay, as a broker sends them
// (sendfile), to somebody who only reads: what moving these bytes costs at
// least. It returns the time and the relay's usage.
func RelayFiles(ctx context.Context, l *lab.Lab, paths []string) (took time.Duration, bytes int64, u measure.Usage, err error) {
	sink, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return 0, 0, u, err
	}
	defer func() { _ = sink.Close() }()
	in, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return 0, 0, u, err
	}
	addr := in.Addr().String()
	_ = in.Close()
	p, err := StartRelay(ctx, l, addr, sink.Addr().String(), 0)
	if err != nil {
		return 0, 0, u, err
	}
	defer p.End()
	out, err := (&net.Dialer{}).DialContext(ctx, "tcp", addr)
	if err != nil {
		return 0, 0, u, err
	}
	defer func() { _ = out.Close() }()
	defer context.AfterFunc(ctx, func() { _, _ = out.Close(), sink.Close() })()
	began := time.Now()
	var g errgroup.Group
	g.Go(func() error {
		c, err := sink.Accept()
		if err != nil {
			return err
		}
		defer func() { _ = c.Close() }()
		buf := make([]byte, 1<<20)
		for {
			n, err := c.Read(buf)
			bytes += int64(n)
			if errors.Is(err, io.EOF) {
				return nil
			}
			if err != nil {
				return err
			}
		}
	})
	for _, path := range paths {
		f, err := os.Open(path)
		if err != nil {
			return 0, 0, u, err
		}
		_, err = io.Copy(out, f)
		_ = f.Close()
		if err != nil {
			return 0, 0, u, fmt.Errorf("feed the relay: %w", err)
		}
	}
	_ = out.(*net.TCPConn).CloseWrite()
	if err := g.Wait(); err != nil {
		return 0, 0, u, fmt.Errorf("behind the relay: %w", err)
	}
	took = time.Since(began)
	u, err = p.Usage()
	return took, bytes, u, err
}
