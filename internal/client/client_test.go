package client

import (
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// A broker is asked for its versions once on each connection, also one that does
// not know the newest version of that question: a source may be far away.
func TestVersionsAreAskedOnce(t *testing.T) {
	c, err := kfake.NewCluster(kfake.NumBrokers(1))
	require.NoError(t, err)
	defer c.Close()
	var mu sync.Mutex
	var asked []int16
	c.ControlKey(int16(kmsg.ApiVersions), func(r kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		mu.Lock()
		defer mu.Unlock()
		asked = append(asked, r.GetVersion())
		return nil, nil, false
	})
	cl, err := kgo.NewClient(Options(c.ListenAddrs(), Security{})...)
	require.NoError(t, err)
	defer cl.Close()
	for range 2 { // the seed's connection, and the broker's
		_, err = kmsg.NewPtrMetadataRequest().RequestWith(t.Context(), cl)
		require.NoError(t, err)
	}
	mu.Lock()
	defer mu.Unlock()
	require.Equal(t, []int16{3, 3}, asked)
}
