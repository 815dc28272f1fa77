package ledger

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// Renew goes on after a failed write of one's own, with or without a transaction
// left open, and fences nobody.
func TestRenewFencesNobody(t *testing.T) {
	c := newCluster(t)
	c.ensure()
	ctx := c.ctx()
	va, vb := c.view(ViewOptions{}), c.view(ViewOptions{})
	a, b := c.writer(va), c.writer(vb)
	n := PartitionOf("orders", 0)
	require.ErrorIs(t, a.Renew(ctx, n), ErrNotAcquired, "it was never ours")
	require.NoError(t, a.Acquire(ctx, n))
	require.NoError(t, a.Renew(ctx, n))
	fail := func(open bool) {
		p, err := a.lock(ctx, n)
		require.NoError(t, err)
		if open {
			require.NoError(t, a.addPartition(ctx, n, p))
			_, err = a.produce(ctx, n, transactional(n, p, []entry{{key: CommandKey("x", 1)}}))
			require.NoError(t, err)
		}
		p.acquired = false
		p.unlock()
	}
	r := newRecord(0)
	require.NoError(t, a.Put(ctx, r))
	for _, open := range []bool{false, true, true, false} {
		fail(open)
		next := va.Partition("orders", 0).Record.Next()
		require.ErrorIs(t, a.Put(ctx, next), ErrNotAcquired)
		require.NotErrorIs(t, a.Put(ctx, next), ErrFenced)
		require.NoError(t, a.Renew(ctx, n), "open: %v", open)
		require.NoError(t, a.Put(ctx, next))
	}
	for _, open := range []bool{false, true} {
		require.NoError(t, a.Acquire(ctx, n))
		fail(open)
		require.NoError(t, b.Acquire(ctx, n))
		require.ErrorIs(t, a.Renew(ctx, n), ErrFenced, "open: %v", open)
		require.ErrorIs(t, a.Renew(ctx, n), ErrFenced)
		require.ErrorIs(t, a.Put(ctx, va.Partition("orders", 0).Record.Next()), ErrFenced)
		require.NoError(t, b.Put(ctx, vb.Partition("orders", 0).Record.Next()), "the other one was not fenced")
	}
}
