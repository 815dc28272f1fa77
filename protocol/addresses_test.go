package protocol

import (
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// isTouched: these answers get other addresses; all others stay byte for byte.
func isTouched(key, v int16) bool {
	switch key {
	case KeyMetadata, KeyFindCoordinator, KeyDescribeCluster, KeyShareFetch, KeyShareAcknowledge:
		return true
	case KeyProduce:
		return v >= 10
	case KeyFetch:
		return v >= 16
	}
	return false
}

func TestRewriteAddressesEveryVersion(t *testing.T) {
	changed := map[int16]int{}
	eachVersion(20, func(a API, v int16, _ kmsg.Request, resp kmsg.Response, _ *rand.Rand) {
		before := resp.AppendTo(nil)
		saved := append([]byte(nil), before...)
		got, err := RewriteAddresses(a.Key, v, before, mapAddress)
		require.NoError(t, err, "%s v%d", a.Name, v)
		require.Equal(t, saved, before, "%s v%d: the input was written to", a.Name, v)
		if isTouched(a.Key, v) {
			if d, ok := resp.(*kmsg.DescribeClusterResponse); !ok || v == 0 || d.EndpointType != 2 {
				mapStructs(reflect.ValueOf(resp))
			}
		}
		require.Equal(t, resp.AppendTo(nil), got, "%s v%d", a.Name, v)
		if string(got) != string(saved) {
			changed[a.Key]++
		}
		if isTouched(a.Key, v) && len(saved) > 0 {
			for _, cut := range []int{0, len(saved) / 3, len(saved) - 1} {
				// Shorter input: an error, or the addresses were complete. Never a panic.
				_, _ = RewriteAddresses(a.Key, v, saved[:cut], mapAddress)
			}
		}
	})
	for _, a := range table {
		require.Equal(t, a.Has(TouchAddresses), changed[a.Key] > 0, a.Name)
	}
}

// Node −1 without a host is no broker, in every version of every answer: it
// stays, and nobody is asked for its address. So do the endpoints of Streams
// applications.
func TestNoNodeStays(t *testing.T) {
	f := func(int32, string, int32) (string, int32, bool) { return "proxy", 1, true }
	eachVersion(5, func(a API, v int16, _ kmsg.Request, resp kmsg.Response, _ *rand.Rand) {
		if !a.Has(TouchAddresses) && !strings.HasPrefix(a.Name, "StreamsGroup") {
			return
		}
		if a.Has(TouchAddresses) {
			noNode(reflect.ValueOf(resp))
		}
		body := resp.AppendTo(nil)
		got, err := RewriteAddresses(a.Key, v, body, f)
		require.NoError(t, err)
		require.Equal(t, body, got, "%s v%d", a.Name, v)
		if tr, ok := NewTailRewriter(a.Key, v, len(body), f); ok {
			out, err := feedBy(tr, body, len(body))
			require.NoError(t, err)
			require.Equal(t, body, out, "%s v%d", a.Name, v)
		}
	})
}

// noNode makes every broker in a message "none".
func noNode(v reflect.Value) {
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() {
			noNode(v.Elem())
		}
	case reflect.Slice:
		for i := range v.Len() {
			noNode(v.Index(i))
		}
	case reflect.Struct:
		if id, host := v.FieldByName("NodeID"), v.FieldByName("Host"); id.IsValid() && host.IsValid() {
			id.SetInt(-1)
			host.SetString("")
		}
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() && v.Field(i).Type() != tagsType {
				noNode(v.Field(i))
			}
		}
	}
}

func TestDescribeClusterControllersStay(t *testing.T) {
	resp := kmsg.NewPtrDescribeClusterResponse()
	resp.Version, resp.EndpointType = 1, 2
	resp.Brokers = []kmsg.DescribeClusterResponseBroker{{NodeID: 3, Host: "controller", Port: 9093}}
	in := resp.AppendTo(nil)
	got, err := RewriteAddresses(KeyDescribeCluster, 1, in, mapAddress)
	require.NoError(t, err)
	require.Equal(t, in, got)
	resp.EndpointType = 1
	got, err = RewriteAddresses(KeyDescribeCluster, 1, resp.AppendTo(nil), mapAddress)
	require.NoError(t, err)
	require.NotEqual(t, in, got)
}

// Golden: FindCoordinator v0, by hand. error 0, node 1, "b", 9092.
func TestFindCoordinatorGolden(t *testing.T) {
	f := func(id int32, host string, port int32) (string, int32, bool) {
		require.Equal(t, "b", host)
		return "px", port + 1, true
	}
	got, err := RewriteAddresses(KeyFindCoordinator, 0, []byte{0, 0, 0, 0, 0, 1, 0, 1, 'b', 0, 0, 0x23, 0x84}, f)
	require.NoError(t, err)
	require.Equal(t, []byte{0, 0, 0, 0, 0, 1, 0, 2, 'p', 'x', 0, 0, 0x23, 0x85}, got)
	// No coordinator: −1, "", −1 stays.
	none := []byte{0, 15, 0xff, 0xff, 0xff, 0xff, 0, 0, 0xff, 0xff, 0xff, 0xff}
	got, err = RewriteAddresses(KeyFindCoordinator, 0, none, f)
	require.NoError(t, err)
	require.Equal(t, none, got)
	// v4: throttle, one coordinator "g", node 1, "b", 9092, no error, null message, tag 9 "z".
	got, err = RewriteAddresses(KeyFindCoordinator, 4, []byte{0, 0, 0, 0, 2, 2, 'g', 0, 0, 0, 1, 2, 'b', 0, 0, 0x23, 0x84, 0, 0, 0, 1, 9, 1, 'z', 0}, f)
	require.NoError(t, err)
	require.Equal(t, []byte{0, 0, 0, 0, 2, 2, 'g', 0, 0, 0, 1, 3, 'p', 'x', 0, 0, 0x23, 0x85, 0, 0, 0, 1, 9, 1, 'z', 0}, got)
}

// Golden: Metadata v9, by hand: throttle, one broker (1, "b", 9092, rack "r"), cluster null,
// controller 1, one topic "t" with partition 0, leader 1, epoch 5.
func TestMetadataGolden(t *testing.T) {
	in := []byte{
		0, 0, 0, 0, 2, 0, 0, 0, 1, 2, 'b', 0, 0, 0x23, 0x84, 2, 'r', 0, 0, 0, 0, 0, 1,
		2, 0, 0, 2, 't', 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 5, 2, 0, 0, 0, 1, 2, 0, 0, 0, 1, 1, 0,
		0x80, 0, 0, 0, 0, 0x80, 0, 0, 0, 0,
	}
	got, err := RewriteAddresses(KeyMetadata, 9, in, func(int32, string, int32) (string, int32, bool) { return "", 1, true })
	require.NoError(t, err)
	want := append([]byte{0, 0, 0, 0, 2, 0, 0, 0, 1, 1, 0, 0, 0, 1}, in[15:]...)
	require.Equal(t, want, got)
	err = AdjustLeaderEpochs(KeyMetadata, 9, in, func(topic string, id [16]byte, p, e int32) int32 {
		require.Equal(t, "t", topic)
		require.Zero(t, p)
		return e + 1000
	})
	require.NoError(t, err)
	m := kmsg.NewPtrMetadataResponse()
	require.NoError(t, DecodeBody(9, in, m))
	require.EqualValues(t, 1005, m.Topics[0].Partitions[0].LeaderEpoch)
}

func bumpEpoch(_ string, _ [16]byte, partition, epoch int32) int32 { return epoch ^ partition&0xffff }

// Expected change of leader epochs by kmsg's structs.
func adjustStructs(resp kmsg.Response, v int16) {
	fix := func(p int32, e *int32) {
		if *e >= 0 {
			*e = bumpEpoch("", [16]byte{}, p, *e)
		}
	}
	switch r := resp.(type) {
	case *kmsg.MetadataResponse:
		for i := range r.Topics {
			for j := range r.Topics[i].Partitions {
				p := &r.Topics[i].Partitions[j]
				fix(p.Partition, &p.LeaderEpoch)
			}
		}
	case *kmsg.DescribeTopicPartitionsResponse:
		for i := range r.Topics {
			for j := range r.Topics[i].Partitions {
				p := &r.Topics[i].Partitions[j]
				fix(p.Partition, &p.LeaderEpoch)
			}
		}
	case *kmsg.ProduceResponse:
		for i := range r.Topics {
			for j := range r.Topics[i].Partitions {
				p := &r.Topics[i].Partitions[j]
				if v >= 10 {
					fix(p.Partition, &p.CurrentLeader.LeaderEpoch)
				}
			}
		}
	case *kmsg.ShareFetchResponse:
		for i := range r.Topics {
			for j := range r.Topics[i].Partitions {
				p := &r.Topics[i].Partitions[j]
				fix(p.Partition, &p.CurrentLeader.LeaderEpoch)
			}
		}
	case *kmsg.ShareAcknowledgeResponse:
		for i := range r.Topics {
			for j := range r.Topics[i].Partitions {
				p := &r.Topics[i].Partitions[j]
				fix(p.Partition, &p.CurrentLeader.LeaderEpoch)
			}
		}
	}
}

func TestAdjustLeaderEpochsEveryVersion(t *testing.T) {
	changed := map[int16]int{}
	eachVersion(20, func(a API, v int16, _ kmsg.Request, resp kmsg.Response, _ *rand.Rand) {
		body := resp.AppendTo(nil)
		saved := string(body)
		require.NoError(t, AdjustLeaderEpochs(a.Key, v, body, bumpEpoch), "%s v%d", a.Name, v)
		adjustStructs(resp, v)
		require.Equal(t, resp.AppendTo(nil), body, "%s v%d", a.Name, v)
		if saved != string(body) {
			changed[a.Key]++
		}
	})
	require.Len(t, changed, 5)
}
