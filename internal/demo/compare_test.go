package demo

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"
)

// The demo's last word must not be able to be "equal" when it isn't: each
// field that it speaks of, changed alone, is a difference.
func TestEqualFindsDifferences(t *testing.T) {
	record := func(change func(*kgo.Record)) []*kgo.Record {
		r := &kgo.Record{
			Offset: 7, LeaderEpoch: 3, Timestamp: time.UnixMilli(1000), Key: []byte("k"), Value: []byte("v"),
			Headers: []kgo.RecordHeader{{Key: "h", Value: []byte("x")}},
		}
		change(r)
		return []*kgo.Record{r}
	}
	same := func(*kgo.Record) {}
	require.NoError(t, equal(record(same), record(same)))
	for name, change := range map[string]func(*kgo.Record){
		"offset":          func(r *kgo.Record) { r.Offset++ },
		"leader epoch":    func(r *kgo.Record) { r.LeaderEpoch++ },
		"timestamp":       func(r *kgo.Record) { r.Timestamp = time.UnixMilli(1001) },
		"key or value":    func(r *kgo.Record) { r.Value = []byte("w") },
		"headers differ":  func(r *kgo.Record) { r.Headers[0].Value = []byte("y") },
		"key or value di": func(r *kgo.Record) { r.Key = nil },
	} {
		require.ErrorContains(t, equal(record(same), record(change)), name)
	}
	require.ErrorContains(t, equal(record(same), nil), "0 records, the source has 1")
	require.ErrorContains(t, equal(nil, record(same)), "1 records, the source has 0")
}
