package protocol

import (
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// A kmsg that knows more than the table must not go unnoticed. Lower clamps are listed here.
func TestTableCoversKmsg(t *testing.T) {
	clamped := map[int16]int16{KeyApiVersions: 4}
	require.Len(t, table, kmsg.MaxKey+1, "kmsg knows other keys than the table: review them, and add or remove lines")
	for key := range int16(kmsg.MaxKey + 1) {
		a, ok := LookupAPI(key)
		require.True(t, ok)
		require.Equal(t, key, a.Key, "the index is the key")
		req := kmsg.RequestForKey(key)
		require.NotNil(t, req, "key %d", key)
		want := req.MaxVersion()
		if c, ok := clamped[key]; ok {
			want = c
		}
		require.Equal(t, want, a.Max, "%s: kmsg knows up to v%d: review the new version for addresses, offsets, epochs", a.Name, req.MaxVersion())
		require.True(t, strings.EqualFold(kmsg.NameForKey(key), a.Name) || key == 45, "%s: kmsg says %s", a.Name, kmsg.NameForKey(key))
		for v := range a.Max + 1 {
			req.SetVersion(v)
			require.Equal(t, req.IsFlexible(), a.Flexible(v), "%s v%d", a.Name, v)
			require.Equal(t, req.ResponseKind().IsFlexible(), a.Flexible(v), "%s v%d", a.Name, v)
		}
		require.LessOrEqual(t, a.Min, a.Max)
		if a.Touch != 0 {
			require.NotEmpty(t, a.Why, a.Name)
		}
		require.NotEmpty(t, a.Offsets, "%s: say how offsets and epochs of mirror topics are treated, or none", a.Name)
	}
	_, ok := LookupAPI(-1)
	require.False(t, ok)
	_, ok = LookupAPI(kmsg.MaxKey + 1)
	require.False(t, ok)
}

// Every response that has a host or port in it is either rewritten or on the
// list of those that must not be (wire.md §1), or never passes.
func TestNoUnknownAddresses(t *testing.T) {
	left := []string{
		"DescribeQuorum",             // controllers
		"DescribeAcls", "DeleteAcls", // of the rule, not of a broker
		"StreamsGroupHeartbeat", "StreamsGroupDescribe", // the applications' own
	}
	for _, a := range table {
		found := hasField(reflect.TypeOf(kmsg.ResponseForKey(a.Key)).Elem(), "Host")
		expected := a.Has(TouchAddresses) || slices.Contains(left, a.Name)
		if !a.Advertised() {
			continue
		}
		require.Equal(t, found, expected, a.Name)
	}
}

// Every response with a leader epoch field is marked.
func TestNoUnknownEpochs(t *testing.T) {
	for _, a := range table {
		typ := reflect.TypeOf(kmsg.ResponseForKey(a.Key)).Elem()
		if a.Advertised() && a.Key != 8 && a.Key != 9 && hasField(typ, "LeaderEpoch") {
			want := a.Has(TouchEpochs) || a.Name == "DescribeQuorum" || a.Name == "OffsetForLeaderEpoch"
			want = want || a.Key == KeyDescribeShareOffsets && a.Has(TouchOffsets)
			require.True(t, want, a.Name)
		}
	}
}

// Every message with an offset or a leader epoch in it says what becomes of it on
// mirror topics, and no other does.
func TestNoUnknownOffsets(t *testing.T) {
	words := []string{"Offset", "LeaderEpoch", "Watermark"}
	not := []string{"MaxNumOffsets", "TaskOffsetIntervalMillis", "OffsetCommit"} // numbers of something else
	for _, a := range table {
		if !a.Advertised() {
			require.Equal(t, none, a.Offsets, "%s never passes", a.Name)
			continue
		}
		var found []string
		for _, m := range []any{kmsg.RequestForKey(a.Key), kmsg.ResponseForKey(a.Key)} {
			eachField(reflect.TypeOf(m).Elem(), func(f reflect.StructField) {
				if f.Type.Kind() != reflect.Slice && f.Type.Kind() != reflect.Struct && !slices.Contains(not, f.Name) &&
					slices.ContainsFunc(words, func(w string) bool { return strings.Contains(f.Name, w) }) {
					found = append(found, f.Name)
				}
			})
		}
		require.Equal(t, len(found) > 0, a.Offsets != none, "%s: %v", a.Name, found)
		if a.Has(TouchOffsets | TouchEpochs) {
			require.NotEqual(t, none, a.Offsets, a.Name)
		}
	}
}

func eachField(t reflect.Type, fn func(f reflect.StructField)) {
	switch t.Kind() {
	case reflect.Pointer, reflect.Slice:
		eachField(t.Elem(), fn)
	case reflect.Struct:
		for i := range t.NumField() {
			if f := t.Field(i); f.IsExported() {
				fn(f)
				eachField(f.Type, fn)
			}
		}
	}
}

func hasField(t reflect.Type, name string) bool {
	switch t.Kind() {
	case reflect.Pointer, reflect.Slice:
		return hasField(t.Elem(), name)
	case reflect.Struct:
		for i := range t.NumField() {
			f := t.Field(i)
			if f.Name == name || f.IsExported() && hasField(f.Type, name) {
				return true
			}
		}
	}
	return false
}

func TestAdvertised(t *testing.T) {
	blocked := []int16{4, 5, 6, 7, 52, 53, 54, 56, 58, 59, 62, 63, 67, 70, 71, 72, 73, 82, 83, 84, 85, 86, 87}
	for _, a := range APIs() {
		require.Equal(t, !slices.Contains(blocked, a.Key), a.Advertised(), a.Name)
	}
	fetch, _ := LookupAPI(KeyFetch)
	require.EqualValues(t, 4, fetch.Min)
}

func TestHeadersOfEveryVersion(t *testing.T) {
	id := "client-1"
	formatter := kmsg.NewRequestFormatter(kmsg.FormatterClientID(id))
	eachVersion(2, func(a API, v int16, req kmsg.Request, resp kmsg.Response, rnd *rand.Rand) {
		corr := int32(rnd.Uint32())
		if a.Key == KeyControlledShutdown && v == 0 {
			return // kmsg's formatter leaves body and size out
		}
		frame := formatter.AppendRequest(nil, req, corr)
		size, ok, err := ReadFrameSize(frame, 8, 1<<20)
		require.NoError(t, err)
		require.True(t, ok)
		require.Equal(t, len(frame)-4, size)
		frame = frame[4:]
		h, err := ParseRequestHeader(frame)
		require.NoError(t, err, "%s v%d", a.Name, v)
		require.Equal(t, a.Key, h.Key)
		require.Equal(t, v, h.Version)
		require.Equal(t, corr, h.CorrelationID)
		if a.RequestHeaderVersion(v) > 0 {
			require.Equal(t, id, string(h.ClientID))
		}
		require.Equal(t, string(req.AppendTo(nil)), string(frame[h.HeaderLen:]), "%s v%d", a.Name, v)
		require.Equal(t, frame[:h.HeaderLen], AppendRequestHeader(nil, a.Key, v, corr, []byte(id)), "%s v%d", a.Name, v)

		body := resp.AppendTo(nil)
		answer := append(AppendResponseHeader(nil, a.Key, v, corr), body...)
		c, n, err := ParseResponseHeader(a.Key, v, answer)
		require.NoError(t, err)
		require.Equal(t, corr, c)
		require.Equal(t, body, answer[n:])
		wantLen := 4
		if resp.IsFlexible() && a.Key != KeyApiVersions {
			wantLen = 5
		}
		require.Equal(t, wantLen, n)
	})
}

func TestHeaderCases(t *testing.T) {
	// Null client id, unknown tagged fields in the header.
	h, err := ParseRequestHeader([]byte{0, 3, 0, 9, 0, 0, 0, 7, 0xff, 0xff, 1, 5, 2, 'x', 'y', 'b'})
	require.NoError(t, err)
	require.Nil(t, h.ClientID)
	require.Equal(t, 15, h.HeaderLen)
	require.Equal(t, "Metadata", h.Name())

	h, err = ParseRequestHeader([]byte{0, 18, 0, 5, 0, 0, 0, 7, 0xff, 0xff, 0, 1})
	require.ErrorIs(t, err, ErrUnknownVersion)
	require.EqualValues(t, 7, h.CorrelationID)
	require.Equal(t, 11, h.HeaderLen)

	h, err = ParseRequestHeader([]byte{3, 0xe8, 0, 5, 0, 0, 0, 7})
	require.ErrorIs(t, err, ErrUnknownAPI)
	require.EqualValues(t, 1000, h.Key)
	require.Equal(t, "key 1000", h.Name())

	for _, bad := range [][]byte{nil, {0, 3}, {0, 3, 0xff, 0xff, 0, 0, 0, 1, 0, 0}, {0, 3, 0, 1, 0, 0, 0, 1}, {0, 3, 0, 1, 0, 0, 0, 1, 0, 9, 'x'}, {0, 3, 0, 9, 0, 0, 0, 1, 0, 0}} {
		_, err := ParseRequestHeader(bad)
		require.ErrorIs(t, err, ErrHeader, "%x", bad)
	}
	_, _, err = ParseResponseHeader(1000, 0, []byte{0, 0, 0, 1})
	require.ErrorIs(t, err, ErrUnknownAPI)
	_, _, err = ParseResponseHeader(3, 9, []byte{0, 0, 0, 1})
	require.ErrorIs(t, err, ErrHeader)
}

func TestFrameSize(t *testing.T) {
	for _, c := range []struct {
		in   string
		size int
		ok   bool
		err  error
	}{
		{"\x00\x00\x00", 0, false, nil},
		{"\x00\x00\x00\x08", 8, true, nil},
		{"\x00\x00\x04\x00", 1024, true, nil},
		{"\x00\x00\x04\x01", 0, false, ErrFrameTooLarge},
		{"\x00\x00\x00\x07", 0, false, ErrFrameTiny},
		{"\xff\xff\xff\xff", 0, false, ErrFrameNegative},
		{"\x16\x03\x01\x02\x00", 0, false, ErrLooksLikeTLS},
		{"\x15\x03\x03\x00\x02", 0, false, ErrLooksLikeTLS},
		{"GET / HTTP/1.1", 0, false, ErrLooksLikeHTTP},
		{"POST /", 0, false, ErrLooksLikeHTTP},
		{"HTTP/1.1 200", 0, false, ErrLooksLikeHTTP},
	} {
		size, ok, err := ReadFrameSize([]byte(c.in), 8, 1024)
		require.Equal(t, c.size, size, "%q", c.in)
		require.Equal(t, c.ok, ok, "%q", c.in)
		require.ErrorIs(t, err, c.err, "%q", c.in)
	}
	require.Equal(t, []byte{0, 0, 1, 0}, AppendFrameSize(nil, 256))
}

func TestMaxHandled(t *testing.T) {
	produce, _ := LookupAPI(KeyProduce)
	fetch, _ := LookupAPI(KeyFetch)
	require.Equal(t, 100<<20, produce.MaxHandled(100<<20))
	require.Equal(t, 4<<20, fetch.MaxHandled(100<<20))
	require.Equal(t, 1<<20, fetch.MaxHandled(1<<20))
}
