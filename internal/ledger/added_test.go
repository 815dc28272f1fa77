package ledger

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// What was set is read back by every view; an ACL entry that can't be read is an
// error, never an empty list.
func TestAddedIsRemembered(t *testing.T) {
	c := newCluster(t)
	c.ensure()
	ctx := c.ctx()
	v := c.view(ViewOptions{})
	w := c.writer(v)
	require.NoError(t, v.WaitReady(ctx))
	require.Nil(t, v.TopicConfigs("orders"))
	require.NoError(t, w.PutTopicConfigs(ctx, "orders", map[string]string{"retention.ms": "5"}))
	require.Equal(t, map[string]string{"retention.ms": "5"}, v.TopicConfigs("orders"))
	a := sampleACLs()
	b := &ACLs{Mirror: "dc1", Shard: 8, Rules: []ACL{{Resource: "GROUP", Name: "g"}}}
	for _, x := range []*ACLs{a, b, {Mirror: "dc2", Shard: 7, Rules: b.Rules}} {
		require.NoError(t, w.PutACLs(ctx, x))
	}
	got, err := v.ACLs("dc1")
	require.NoError(t, err)
	require.Equal(t, []ACL{a.Rules[0], b.Rules[0]}, got)
	require.Nil(t, v.Partition("t", 0), "nothing of it is a mirror partition")
	require.Empty(t, v.Topics())

	key := ACLsKey("dc1", 8)
	n := PartitionFor(key, Partitions)
	require.NoError(t, v.WaitFor(ctx, n, c.put(n, key, []byte("{"))+1))
	_, err = v.ACLs("dc1")
	require.Error(t, err)
	_, err = v.ACLs("dc2")
	require.NoError(t, err)
}
