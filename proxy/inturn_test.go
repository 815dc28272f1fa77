package proxy

import (
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// Steps that are done at once cost no stack, those that are not are waited for,
// and all come in order.
func TestInTurn(t *testing.T) {
	const n = 10_000
	var order []int
	var later func()
	deepest, ended := 0, 0
	pcs := make([]uintptr, n)
	inTurn(n, func(i int, next func()) {
		order = append(order, i)
		deepest = max(deepest, runtime.Callers(0, pcs))
		if i%100 == 50 {
			later = next
			return
		}
		next()
	}, func() { ended++ })
	for i := 50; i < n; i += 100 {
		require.Len(t, order, i+1, "a step that is not done is waited for")
		require.Zero(t, ended)
		later()
	}
	require.Equal(t, 1, ended)
	require.Less(t, deepest, 50)
	for i, v := range order {
		require.Equal(t, i, v)
	}
	inTurn(0, nil, func() { ended++ })
	require.Equal(t, 2, ended)
}

// A request with very many partitions that are answered at once costs no stack
// either: each of them nested in the one before would end the process, where the
// frame is only large enough.
func TestManyPartitionsNeedNoStack(t *testing.T) {
	const n = 2000
	b := newBench(t)
	for i := range int32(n) {
		h := newHistory(t, b.sim.part("m", i))
		h.append(1, 0)
		b.mirror("m", i, h.log)
	}
	deepest := 0
	pcs := make([]uintptr, 100*n)
	b.onReply = func() { deepest = max(deepest, runtime.Callers(0, pcs)) }

	fetch := fetchOne(12, "", [16]byte{}, 0, 0)
	fetch.Topics = []kmsg.FetchRequestTopic{{Topic: "m"}}
	list := kmsg.NewPtrListOffsetsRequest()
	list.Version, list.Topics = 7, []kmsg.ListOffsetsRequestTopic{{Topic: "m"}}
	epochs := kmsg.NewPtrOffsetForLeaderEpochRequest()
	epochs.Version, epochs.Topics = 4, []kmsg.OffsetForLeaderEpochRequestTopic{{Topic: "m"}}
	for i := range int32(n) {
		fetch.Topics[0].Partitions = append(fetch.Topics[0].Partitions, wants("m", i, 0).Partitions...)
		p := kmsg.NewListOffsetsRequestTopicPartition()
		p.Partition, p.Timestamp = i, -1
		list.Topics[0].Partitions = append(list.Topics[0].Partitions, p)
		e := kmsg.NewOffsetForLeaderEpochRequestTopicPartition()
		e.Partition, e.LeaderEpoch = i, 0
		epochs.Topics[0].Partitions = append(epochs.Topics[0].Partitions, e)
	}
	require.Len(t, b.fetch(fetch).Topics[0].Partitions, n)
	require.Len(t, respond[*kmsg.ListOffsetsResponse](b, list).Topics[0].Partitions, n)
	require.Len(t, respond[*kmsg.OffsetForLeaderEpochResponse](b, epochs).Topics[0].Partitions, n)
	require.Positive(t, deepest)
	require.Less(t, deepest, 500)
}
