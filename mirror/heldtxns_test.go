package mirror

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/internal/ledger"
)

// TX-03: what is shown of a last stable offset that stands still.
func TestHeldBack(t *testing.T) {
	p := &Partition{held: heldBack{offset: -1}}
	p.hold(10, 10)
	require.Nil(t, p.heldStatus())
	p.hold(10, 12)
	require.Nil(t, p.heldStatus(), "every transaction does this for a moment")
	p.held.since = p.held.since.Add(-heldAfter)
	p.hold(10, 15)
	require.Equal(t, [2]int64{10, 15}, [2]int64{p.heldStatus().Offset, p.heldStatus().HighWatermark})
	p.hold(11, 15)
	require.Nil(t, p.heldStatus(), "it went on")
	p.held.since = p.held.since.Add(-heldAfter)
	p.hold(-1, 15)
	require.Nil(t, p.heldStatus(), "a source without last stable offsets")
}

// TX-03: open transactions are told from hanging ones by what the coordinators
// know.
func TestOpenTxnsOf(t *testing.T) {
	mine := kadm.TopicsSet{}
	mine.Add("t", 1)
	other := kadm.TopicsSet{}
	other.Add("t", 2)
	open := make([]openProducer, 5)
	for i, x := range [][3]int64{{5, 70, 0}, {4, 50, 1000}, {6, 60, 0}, {7, 80, 0}, {8, 90, 0}} {
		open[i].partKey = partKey{"t", 1}
		open[i].ProducerID, open[i].CurrentTxnStartOffset, open[i].LastTimestamp = x[0], x[1], x[2]
	}
	open[0].ProducerEpoch = 3
	known := map[int64]kadm.DescribedTransaction{
		4: {TxnID: "a", State: "Ongoing", StartTimestamp: 900, Topics: mine},
		5: {TxnID: "b", State: "Ongoing", Topics: other},
		6: {TxnID: "c", State: "Empty"},
		7: {TxnID: "d", State: "Ongoing"}, // listed only
	}
	got := openTxnsOf(open, known, true)
	require.Equal(t, []ledger.SourceTxn{
		{ProducerID: 4, TransactionalID: "a", State: "Ongoing", FirstOffset: 50, Started: time.UnixMilli(900), LastWrite: time.UnixMilli(1000)},
		{ProducerID: 6, TransactionalID: "c", State: "Empty", FirstOffset: 60, Hanging: true},
		{ProducerID: 5, ProducerEpoch: 3, TransactionalID: "b", State: "Ongoing", FirstOffset: 70, Hanging: true},
		{ProducerID: 7, TransactionalID: "d", State: "Ongoing", FirstOffset: 80},
		{ProducerID: 8, FirstOffset: 90, Hanging: true},
	}, got)
	require.False(t, openTxnsOf(open, nil, false)[4].Hanging, "nobody could be asked")
}

// A source that doesn't say, by version or right, is no fault of the mirror's:
// the reason is shown.
func TestLookUpTxnsRefused(t *testing.T) {
	for _, x := range []struct {
		name string
		code int16
		want string
	}{{"no right", kerr.TopicAuthorizationFailed.Code, "needs Read on the topic"}, {"too old", -1, "Kafka 2.8"}} {
		t.Run(x.name, func(t *testing.T) {
			c, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(1, "t"))
			require.NoError(t, err)
			defer c.Close()
			c.ControlKey(int16(kmsg.DescribeProducers), func(req kmsg.Request) (kmsg.Response, error, bool) {
				c.KeepControl()
				resp := req.ResponseKind().(*kmsg.DescribeProducersResponse)
				if x.code < 0 {
					return nil, kerr.UnsupportedVersion, true
				}
				rt := kmsg.NewDescribeProducersResponseTopic()
				rt.Topic = "t"
				rp := kmsg.NewDescribeProducersResponseTopicPartition()
				rp.ErrorCode = x.code
				rt.Partitions = append(rt.Partitions, rp)
				resp.Topics = append(resp.Topics, rt)
				return resp, nil, true
			})
			p := &Partition{topic: "t", held: heldBack{offset: 3, since: time.Now().Add(-time.Hour)}}
			ctx := t.Context()
			err = lookUpTxns(ctx, fakeClient(t, c), []*Partition{p})
			require.ErrorContains(t, err, "describe its producers")
			require.Contains(t, p.heldStatus().Error, x.want)
			require.Empty(t, p.heldStatus().Transactions)
		})
	}
}
