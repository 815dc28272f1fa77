package mirror

import (
	"context"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/lockstep-kafka/lockstep/epoch"
	"github.com/lockstep-kafka/lockstep/internal/kconn"
	"github.com/lockstep-kafka/lockstep/protocol"
)

// A missing right has no limit of tries: once it is granted, the partition goes
// on by itself.
func TestAuthorizationRecoversByItself(t *testing.T) {
	r := newRig(t, 1)
	r.tuning.RetryAttempts = 3
	var refused atomic.Int32
	r.dst.onProduce = func(partKey, *fakeLog, protocol.Batch) (int16, bool) {
		if refused.Add(1) <= 12 {
			return kerr.TopicAuthorizationFailed.Code, true
		}
		return 0, false
	}
	r.write(0, rawBatch{base: 0, n: 1})
	r.start()
	r.reached(0, 1)
	r.same(0)
	failed := 0
	for _, x := range r.store.written() {
		if x.State == epoch.StateFailed {
			failed++
			require.Less(t, x.Retries, 3)
		}
	}
	require.Equal(t, 12, failed)
}

func TestOutsideFailures(t *testing.T) {
	is := func(err error) bool {
		var f *failure
		require.ErrorAs(t, err, &f)
		return f.outside()
	}
	require.True(t, is(fail(reasonAuth, "%w", kerr.TopicAuthorizationFailed)))
	require.True(t, is(fail(reasonDestination, "read: %w", kconn.ErrRefused)))
	require.True(t, is(fail(reasonSourceLedger, "unreadable")))
	require.False(t, is(failForGood(reasonSourceLedger, "garbled")))
	require.False(t, is(fail(reasonRejected, "%w", kerr.MessageTooLarge)))
	require.False(t, is(fail(reasonSourceData, "%w", kerr.CorruptMessage)))
}

// A cluster that takes connections and never answers is named.
func TestNoAnswer(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer ln.Close()
	cl, err := kgo.NewClient(kgo.SeedBrokers(ln.Addr().String()))
	require.NoError(t, err)
	defer cl.Close()
	begun := time.Now()
	_, err = brokers(context.Background(), cl)
	require.ErrorContains(t, err, "no answer from "+ln.Addr().String())
	require.Equal(t, "timeout", kconn.Name(err))
	require.Less(t, time.Since(begun), 2*answerWait)
}
