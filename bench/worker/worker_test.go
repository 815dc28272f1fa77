package main

import (
	"context"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-kafka/lockstep/internal/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// pass sends data through a relay to an echo and returns what came back.
func pass(t *testing.T, data []byte, delay time.Duration) (got []byte, took time.Duration) {
	t.Helper()
	echo, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { _ = echo.Close() }()
	front, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { _ = front.Close() }()
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	defer all.Wait()
	defer cancel()
	all.Go(func() {
		if c, err := echo.Accept(); err == nil {
			_, _ = io.Copy(c, c)
			_ = c.Close()
		}
	})
	all.Go(func() {
		if c, err := front.Accept(); err == nil {
			carry(ctx, c, echo.Addr().String(), delay)
		}
	})
	c, err := net.Dial("tcp", front.Addr().String())
	require.NoError(t, err)
	defer func() { _ = c.Close() }()
	began := time.Now()
	all.Go(func() {
		_, _ = c.Write(data)
		_ = c.(*net.TCPConn).CloseWrite()
	})
	got, err = io.ReadAll(c)
	require.NoError(t, err)
	return got, time.Since(began)
}

func TestRelayKeepsTheBytes(t *testing.T) {
	data := make([]byte, 3<<20)
	for i := range data {
		data[i] = byte(i * i >> 8)
	}
	got, _ := pass(t, data, 0)
	require.Equal(t, data, got)
	got, took := pass(t, data, 30*time.Millisecond)
	require.Equal(t, data, got)
	require.GreaterOrEqual(t, took, 60*time.Millisecond, "there and back")
}
