package raw

import (
	"bytes"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kmsg"
)

func TestEncodeIsAProduceRequest(t *testing.T) {
	s := &Sender{topic: "topic"}
	for range 2 { // its memory is used again
		body := bytes.Join(s.encode([]Batch{{3, []byte("one")}, {7, bytes.Repeat([]byte("x"), 300)}}), nil)
		req := kmsg.NewPtrProduceRequest()
		req.SetVersion(produceVersion)
		require.NoError(t, req.ReadFrom(slices.Clone(body)))
		require.EqualValues(t, -1, req.Acks)
		require.Nil(t, req.TransactionID)
		require.Len(t, req.Topics, 1)
		require.Equal(t, "topic", req.Topics[0].Topic)
		ps := req.Topics[0].Partitions
		require.Len(t, ps, 2)
		require.EqualValues(t, 3, ps[0].Partition)
		require.Equal(t, "one", string(ps[0].Records))
		require.Len(t, ps[1].Records, 300)
		require.Equal(t, body, req.AppendTo(nil))
	}
}
