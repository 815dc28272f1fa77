package mirror

import (
	"log/slog"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// H9, TX-09: a transaction that a coordinator will end is ended by taking its
// transactional id over; one that is open in the log only, by a marker, also when
// its producer id is known. One that has ended meanwhile is left alone.
func TestH9EndTransactions(t *testing.T) {
	type txn struct {
		state string // "": no coordinator knows it
		here  bool   // it has this partition
	}
	for name, x := range map[string]struct {
		open    []int64 // producer ids, of the first look
		later   []int64 // of the next
		known   map[int64]txn
		fenced  []string
		markers []int64
		code    int16 // of ListTransactions
		fails   string
	}{
		"nothing open":                {},
		"ongoing":                     {open: []int64{1}, known: map[int64]txn{1: {"Ongoing", true}}, fenced: []string{"t1"}},
		"being ended":                 {open: []int64{1}, known: map[int64]txn{1: {"PrepareCommit", true}}, fenced: []string{"t1"}},
		"unknown":                     {open: []int64{1}, later: []int64{1}, markers: []int64{1}},
		"known, idle":                 {open: []int64{1}, later: []int64{1}, known: map[int64]txn{1: {"Empty", false}}, markers: []int64{1}},
		"known, open elsewhere":       {open: []int64{1}, later: []int64{1}, known: map[int64]txn{1: {"Ongoing", false}}, markers: []int64{1}},
		"known, ended meanwhile":      {open: []int64{1}, known: map[int64]txn{1: {"CompleteCommit", false}}},
		"several":                     {open: []int64{1, 2, 3}, later: []int64{3, 1}, known: map[int64]txn{1: {"Ongoing", true}, 2: {"Empty", false}, 3: {"Dead", false}}, fenced: []string{"t1"}, markers: []int64{3}},
		"coordinators can't be asked": {open: []int64{1}, later: []int64{1}, code: kerr.ClusterAuthorizationFailed.Code, fails: "list its transactions"},
	} {
		t.Run(name, func(t *testing.T) {
			c, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(1, "t"))
			require.NoError(t, err)
			defer c.Close()
			looks := 0
			c.ControlKey(int16(kmsg.DescribeProducers), func(req kmsg.Request) (kmsg.Response, error, bool) {
				c.KeepControl()
				resp := req.ResponseKind().(*kmsg.DescribeProducersResponse)
				rt := kmsg.NewDescribeProducersResponseTopic()
				rt.Topic = "t"
				rp := kmsg.NewDescribeProducersResponseTopicPartition()
				open := x.open
				if looks++; looks > 1 {
					open = x.later
				}
				for _, id := range append(slices.Clone(open), 9) {
					a := kmsg.NewDescribeProducersResponseTopicPartitionActiveProducer()
					a.ProducerID, a.ProducerEpoch, a.CoordinatorEpoch, a.CurrentTxnStartOffset = id, int32(id), -1, 10*id
					if id == 9 {
						a.CurrentTxnStartOffset = -1
					}
					rp.ActiveProducers = append(rp.ActiveProducers, a)
				}
				rt.Partitions = append(rt.Partitions, rp)
				resp.Topics = append(resp.Topics, rt)
				return resp, nil, true
			})
			c.ControlKey(int16(kmsg.ListTransactions), func(req kmsg.Request) (kmsg.Response, error, bool) {
				c.KeepControl()
				resp := req.ResponseKind().(*kmsg.ListTransactionsResponse)
				resp.ErrorCode = x.code
				for id, k := range x.known {
					s := kmsg.NewListTransactionsResponseTransactionState()
					s.TransactionalID, s.ProducerID, s.TransactionState = "t"+itoa(int32(id)), id, k.state
					resp.TransactionStates = append(resp.TransactionStates, s)
				}
				return resp, nil, true
			})
			c.ControlKey(int16(kmsg.DescribeTransactions), func(req kmsg.Request) (kmsg.Response, error, bool) {
				c.KeepControl()
				resp := req.ResponseKind().(*kmsg.DescribeTransactionsResponse)
				for id, k := range x.known {
					s := kmsg.NewDescribeTransactionsResponseTransactionState()
					s.TransactionalID, s.ProducerID, s.State = "t"+itoa(int32(id)), id, k.state
					st := kmsg.NewDescribeTransactionsResponseTransactionStateTopic()
					st.Topic, st.Partitions = "t", []int32{1}
					if k.here {
						st.Partitions = []int32{0, 1}
					}
					s.Topics = append(s.Topics, st)
					resp.TransactionStates = append(resp.TransactionStates, s)
				}
				return resp, nil, true
			})
			var fenced []string
			c.ControlKey(int16(kmsg.InitProducerID), func(req kmsg.Request) (kmsg.Response, error, bool) {
				c.KeepControl()
				fenced = append(fenced, *req.(*kmsg.InitProducerIDRequest).TransactionalID)
				return req.ResponseKind(), nil, true
			})
			var markers []int64
			c.ControlKey(int16(kmsg.WriteTxnMarkers), func(req kmsg.Request) (kmsg.Response, error, bool) {
				c.KeepControl()
				resp := req.ResponseKind().(*kmsg.WriteTxnMarkersResponse)
				for _, m := range req.(*kmsg.WriteTxnMarkersRequest).Markers {
					markers = append(markers, m.ProducerID)
					require.Equal(t, int16(m.ProducerID), m.ProducerEpoch)
					require.Equal(t, []any{false, int32(0), "t", []int32{0}}, []any{m.Committed, m.CoordinatorEpoch, m.Topics[0].Topic, m.Topics[0].Partitions})
					rm := kmsg.NewWriteTxnMarkersResponseMarker()
					rm.ProducerID = m.ProducerID
					resp.Markers = append(resp.Markers, rm)
				}
				return resp, nil, true
			})
			cl := fakeClient(t, c)
			m := &Manager{client: cl, admin: kadm.NewClient(cl), log: slog.New(slog.DiscardHandler)}
			err = m.endTxns(t.Context(), "t", 0)
			if x.fails == "" {
				require.NoError(t, err)
			} else {
				require.ErrorContains(t, err, x.fails)
			}
			require.Equal(t, x.fenced, fenced)
			require.Equal(t, x.markers, markers)
		})
	}
}
