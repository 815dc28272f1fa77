package ledger

import (
	"bytes"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"
	"pgregory.net/rapid"

	"github.com/lockstep-kafka/lockstep/internal/histories"
)

// The values are those of Kafka's own UtilsTest.testMurmur2.
func TestMurmur2(t *testing.T) {
	for in, want := range map[string]int32{
		"21":                         -973932308,
		"foobar":                     -790332482,
		"a-little-bit-long-string":   -985981536,
		"a-little-bit-longer-string": -1486304829,
		"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
		"abc": 479470107,
	} {
		require.Equal(t, want, int32(murmur2(in)), in)
	}
}

// A plain Kafka client puts a record where we do.
func TestPartitionForIsTheDefaultPartitioner(t *testing.T) {
	p := kgo.StickyKeyPartitioner(nil).ForTopic(Topic)
	histories.Check(t, func(t *rapid.T) {
		key := rapid.String().Draw(t, "key")
		if key == "" {
			key = "x"
		}
		got := PartitionFor(key, Partitions)
		if want := p.Partition(kgo.KeyStringRecord(key, ""), Partitions); int(got) != want {
			t.Fatalf("key %q: partition %d, a kgo client says %d", key, got, want)
		}
	})
}

func TestKeys(t *testing.T) {
	for _, k := range []Key{
		{Kind: KindRecord, Topic: "orders", Partition: 12},
		{Kind: KindRecord, Topic: "i", Partition: 3},
		{Kind: KindRecord, Topic: "c", Partition: 0},
		{Kind: KindCheckpoint, Topic: "c", Partition: 0},
		{Kind: KindCheckpoint, Topic: "i", Partition: 7},
		{Kind: KindCheckpoint, Topic: "orders", Partition: 12},
		{Kind: KindCommand, Topic: "d", Partition: 3},
		{Kind: KindInstance, ID: "3"},
		{Kind: KindInstance, ID: "a/b"},
		{Kind: KindMirror, ID: "dc1"},
		{Kind: KindConfigs, ID: "t"},
		{Kind: KindRecord, Topic: "t", Partition: 1},
		{Kind: KindACLs, ID: "dc1/31"},
	} {
		got, err := ParseKey([]byte(k.String()))
		require.NoError(t, err)
		require.Equal(t, k, got, k.String())
	}
	require.Equal(t, PartitionOf("orders", 12), Key{Kind: KindCheckpoint, Topic: "orders", Partition: 12}.LedgerPartition())
	for _, bad := range []string{
		"t//", "t//a b", "a//", "a//dc1", "a///1", "a//dc1/", "a//dc1/32", "a//dc1/-1", "a//dc1/01", "a//dc1/1/2",
		"", "/", "orders", "orders/", "orders/x", "orders/-1", "orders/01", "orders/+1", "orders/2147483648", "/3", "./1", "../1", "a b/1",
		"e/orders/1", "d/orders/", "d//1", "c/orders/", "c//1", "i//", "a/b/c/1", strings.Repeat("t", 250) + "/0", "orders/1/",
	} {
		_, err := ParseKey([]byte(bad))
		require.Error(t, err, "%q", bad)
		require.Contains(t, err.Error(), "ledger key")
	}
}

func FuzzParseKey(f *testing.F) {
	f.Add([]byte("orders/1"))
	f.Add([]byte("c/orders/1"))
	f.Add([]byte("i//x"))
	f.Fuzz(func(t *testing.T, b []byte) {
		k, err := ParseKey(b)
		if err != nil {
			return
		}
		if !bytes.Equal([]byte(k.String()), b) {
			t.Fatalf("%q is read as %q", b, k)
		}
		_ = k.LedgerPartition()
	})
}
