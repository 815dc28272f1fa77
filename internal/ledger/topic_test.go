package ledger

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

func (c *cluster) config(key string) string {
	rcs, err := c.adm.DescribeTopicConfigs(c.ctx(), Topic)
	require.NoError(c.t, err)
	for _, cfg := range rcs[0].Configs {
		if cfg.Key == key {
			return cfg.MaybeValue()
		}
	}
	return "absent"
}

func TestEnsureTopic(t *testing.T) {
	c := newCluster(t)
	c.ensure()
	c.ensure() // there already
	require.Equal(t, "compact", c.config("cleanup.policy"))
	require.Equal(t, "false", c.config("unclean.leader.election.enable"))
	if c.fake != nil {
		require.Equal(t, "2", c.config("min.insync.replicas"))
	}
	md, err := c.adm.Metadata(c.ctx(), Topic)
	require.NoError(t, err)
	require.Len(t, md.Topics[Topic].Partitions, Partitions)
}

func TestEnsureTopicRefuses(t *testing.T) {
	for name, x := range map[string]struct {
		partitions int32
		policy     string
		want       []string
	}{
		"partitions": {3, "compact", []string{"3 partitions", "50"}},
		"policy":     {Partitions, "delete", []string{"cleanup.policy=delete", "set cleanup.policy=compact"}},
		"both":       {Partitions, "compact,delete", []string{"set cleanup.policy=compact"}},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t)
			_, err := c.adm.CreateTopic(c.ctx(), x.partitions, 1, map[string]*string{"cleanup.policy": &x.policy}, Topic)
			require.NoError(t, err)
			err = EnsureTopic(c.ctx(), c.adm, 0)
			var te *TopicError
			require.ErrorAs(t, err, &te)
			for _, w := range x.want {
				require.ErrorContains(t, err, w)
			}
			if x.partitions != Partitions {
				err := NewView(ViewOptions{Client: c.opts()}).Run(c.ctx())
				require.ErrorAs(t, err, &te, "nor does a view follow it")
			}
		})
	}
}

// A broker is down: INVALID_REPLICATION_FACTOR until it is back.
func TestEnsureTopicWaitsForBrokers(t *testing.T) {
	c := newFake(t)
	refuse := func(n int) {
		c.fake.ControlKey(int16(kmsg.CreateTopics), func(kreq kmsg.Request) (kmsg.Response, error, bool) {
			if n--; n < 0 {
				return nil, nil, false
			}
			c.fake.KeepControl()
			req := kreq.(*kmsg.CreateTopicsRequest)
			resp := req.ResponseKind().(*kmsg.CreateTopicsResponse)
			rt := kmsg.NewCreateTopicsResponseTopic()
			rt.Topic, rt.ErrorCode = Topic, kerr.InvalidReplicationFactor.Code
			resp.Topics = append(resp.Topics, rt)
			return resp, nil, true
		})
	}
	refuse(2)
	c.ensure()
	c.deleteTopic()
	refuse(1000)
	ctx, cancel := context.WithTimeout(c.ctx(), 300*time.Millisecond)
	defer cancel()
	err := EnsureTopic(ctx, c.adm, 3)
	require.ErrorIs(t, err, kerr.InvalidReplicationFactor)
	require.ErrorContains(t, err, "ledger_replication_factor")
}
