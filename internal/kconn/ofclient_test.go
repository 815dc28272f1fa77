package kconn

import (
	"encoding/binary"
	"io"
	"net"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"
)

// A client whose first answer doesn't come says which addresses it was given, and
// doesn't guess that TLS is missing.
func TestClosedBeforeTheFirstAnswer(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	var wg sync.WaitGroup
	wg.Go(func() { // as a proxy whose brokers are away
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			// The whole request is read: what is closed with bytes unread is reset.
			var size [4]byte
			if _, err := io.ReadFull(c, size[:]); err == nil {
				_, _ = io.CopyN(io.Discard, c, int64(binary.BigEndian.Uint32(size[:])))
			}
			_ = c.Close()
		}
	})
	defer wg.Wait()
	defer func() { _ = ln.Close() }()
	cl, err := kgo.NewClient(kgo.SeedBrokers(ln.Addr().String()), kgo.RequestRetries(0))
	require.NoError(t, err)
	defer cl.Close()
	err = OfClient(cl, cl.Ping(t.Context()))
	require.ErrorIs(t, err, ErrClosed)
	require.Equal(t, "closed", Name(err))
	require.ErrorContains(t, err, ln.Addr().String())
	require.NotContains(t, err.Error(), "is TLS missing")
	require.Equal(t, io.ErrShortWrite, OfClient(cl, io.ErrShortWrite))
}
