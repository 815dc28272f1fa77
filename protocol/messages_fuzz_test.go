package protocol

import (
	"bytes"
	"math/rand/v2"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// Seeds beyond testdata/fuzz: small bodies of every version of a message.
func seedBodies(f *testing.F, key int16, response bool, add func(version int16, body []byte)) {
	f.Helper()
	eachVersion(1, func(a API, v int16, req kmsg.Request, resp kmsg.Response, _ *rand.Rand) {
		if a.Key != key {
			return
		}
		if response {
			add(v, resp.AppendTo(nil))
		} else {
			add(v, req.AppendTo(nil))
		}
	})
}

func FuzzParseRequestHeader(f *testing.F) {
	f.Fuzz(func(t *testing.T, frame []byte) {
		h, err := ParseRequestHeader(frame)
		if err == nil {
			if h.HeaderLen < 8 || h.HeaderLen > len(frame) || len(h.ClientID) > len(frame) {
				t.Fatalf("%+v", h)
			}
			back := AppendRequestHeader(nil, h.Key, h.Version, h.CorrelationID, h.ClientID)
			again, err := ParseRequestHeader(back)
			require.NoError(t, err)
			require.Equal(t, h.ClientID, again.ClientID)
		}
		_, _, _ = ReadFrameSize(frame, 8, 1<<20)
		_, _, _ = ParseResponseHeader(h.Key, h.Version, frame)
	})
}

func FuzzFetchRequest(f *testing.F) {
	seedBodies(f, KeyFetch, false, func(v int16, b []byte) { f.Add(v, b) })
	f.Fuzz(func(t *testing.T, version int16, body []byte) {
		var q FetchRequest
		if q.Decode(version, body) != nil {
			return
		}
		again := q.AppendTo(nil)
		require.LessOrEqual(t, len(again), len(body), "only shorter forms of lengths")
		var p FetchRequest
		require.NoError(t, p.Decode(version, again))
		require.Equal(t, again, p.AppendTo(nil))
	})
}

func FuzzFetchResponse(f *testing.F) {
	seedBodies(f, KeyFetch, true, func(v int16, b []byte) { f.Add(v, b) })
	f.Fuzz(func(t *testing.T, version int16, body []byte) {
		saved := bytes.Clone(body)
		var r, s FetchResponse
		if r.Decode(version, body) != nil {
			return
		}
		var parts Parts
		r.Encode(&parts)
		again := parts.Append(nil)
		require.LessOrEqual(t, len(again), len(body))
		require.NoError(t, s.Decode(version, again))
		s.Encode(&parts)
		require.Equal(t, again, parts.Append(nil))
		require.Equal(t, saved, body)
		r.Reset(version)
	})
}

func FuzzProduceRequest(f *testing.F) {
	seedBodies(f, KeyProduce, false, func(v int16, b []byte) { f.Add(v, b) })
	f.Fuzz(func(t *testing.T, version int16, body []byte) {
		var q ProduceRequest
		if q.Decode(version, body) != nil {
			return
		}
		n := 0
		for i := range q.Topics {
			for j := range q.Topics[i].Partitions {
				if n++; n%2 == 0 {
					q.Topics[i].Partitions[j].Refuse(44, "no")
				}
			}
		}
		refused, all := q.Count()
		require.Equal(t, n, all)
		var parts Parts
		q.EncodeAllowed(&parts)
		var p ProduceRequest
		require.NoError(t, p.Decode(version, parts.Append(nil)))
		_, left := p.Count()
		require.Equal(t, all-refused, left)
		if len(q.AppendAnswer(nil)) == 0 {
			t.Fatal("no answer")
		}
	})
}

// A broker's answer to what is left of a Produce request gets the refused
// partitions added, or is an error.
func FuzzProduceAnswer(f *testing.F) {
	var requests [][]byte
	var versions []int16
	seedBodies(f, KeyProduce, false, func(v int16, b []byte) { requests, versions = append(requests, b), append(versions, v) })
	i := 0
	seedBodies(f, KeyProduce, true, func(_ int16, b []byte) { f.Add(versions[i], requests[i], b); i++ })
	f.Fuzz(func(t *testing.T, version int16, request, answer []byte) {
		var q ProduceRequest
		if q.Decode(version, request) != nil {
			return
		}
		refused := 0
		for i := range q.Topics {
			for j := range q.Topics[i].Partitions {
				if (i+j)%2 == 0 {
					q.Topics[i].Partitions[j].Refuse(44, "no")
					refused++
				}
			}
		}
		merged, err := q.MergeAnswer(answer)
		if err != nil {
			return
		}
		resp := kmsg.NewPtrProduceResponse()
		require.NoError(t, DecodeBody(version, merged, resp))
		no := 0
		for _, rt := range resp.Topics {
			for _, rp := range rt.Partitions {
				if rp.ErrorCode == 44 && rp.BaseOffset == -1 {
					no++
				}
			}
		}
		require.GreaterOrEqual(t, no, refused)
	})
}

// fuzzKeys: answers with addresses or epochs, by the fuzzer's choice.
var fuzzKeys = []int16{KeyProduce, KeyFetch, KeyMetadata, KeyFindCoordinator, KeyDescribeCluster, KeyDescribeTopicPartitions, KeyShareFetch, KeyShareAcknowledge}

func FuzzAnswers(f *testing.F) {
	for i, key := range fuzzKeys {
		seedBodies(f, key, true, func(v int16, b []byte) { f.Add(uint8(i), v, b) })
	}
	f.Fuzz(func(t *testing.T, which uint8, version int16, body []byte) {
		key := fuzzKeys[int(which)%len(fuzzKeys)]
		a, _ := LookupAPI(key)
		if version < 0 || version > a.Max {
			return
		}
		saved := bytes.Clone(body)
		out, err := RewriteAddresses(key, version, body, mapAddress)
		require.Equal(t, saved, body, "the input was written to")
		if err == nil {
			// Mapped again with "leave it": the same bytes.
			again, err := RewriteAddresses(key, version, out, func(_ int32, host string, port int32) (string, int32, bool) { return host, port, true })
			require.NoError(t, err)
			require.Equal(t, out, again)
		}
		tr, ok := NewTailRewriter(key, version, len(body), mapAddress)
		if ok {
			streamed, terr := feedBy(tr, body, 3)
			whole := bytes.Clone(body)
			tr, _ = NewTailRewriter(key, version, len(body), mapAddress)
			once, oerr := feedBy(tr, whole, len(body))
			require.Equal(t, oerr == nil, terr == nil)
			require.Equal(t, err == nil, terr == nil, "%v, %v", err, terr)
			if terr == nil {
				require.Equal(t, once, streamed)
				require.Len(t, streamed, len(body))
			}
		}
		if AdjustLeaderEpochs(key, version, body, bumpEpoch) == nil {
			require.NoError(t, AdjustLeaderEpochs(key, version, body, bumpEpoch))
			// The test's function is its own inverse, but where it made −1.
			require.Len(t, body, len(saved))
		}
	})
}

func feedBy(tr *TailRewriter, body []byte, size int) (out []byte, err error) {
	for off := 0; off < len(body); off += size {
		chunk := body[off:min(off+size, len(body))]
		pass, tail, err := tr.Feed(chunk)
		if err != nil {
			return nil, err
		}
		out = append(append(out, chunk[:pass]...), tail...)
	}
	if len(body) == 0 {
		return nil, ErrShort
	}
	return out, nil
}

func FuzzIntersectApiVersions(f *testing.F) {
	seedBodies(f, KeyApiVersions, true, func(v int16, b []byte) { f.Add(v, b) })
	f.Fuzz(func(t *testing.T, version int16, body []byte) {
		if version < 0 || version > 4 {
			return
		}
		out, err := IntersectApiVersions(body, version, ApiVersionsOptions{})
		if err != nil {
			return
		}
		again, err := IntersectApiVersions(out, version, ApiVersionsOptions{})
		require.NoError(t, err)
		require.Equal(t, out, again)
	})
}

// kmsg reads the rest: it must not panic on anything a client sends.
func FuzzDecodeBody(f *testing.F) {
	for _, key := range []int16{KeyListOffsets, KeyOffsetForLeaderEpoch, KeyDeleteRecords} {
		seedBodies(f, key, false, func(v int16, b []byte) { f.Add(key, v, b) })
	}
	f.Fuzz(func(_ *testing.T, key, version int16, body []byte) {
		if req := kmsg.RequestForKey(key); req != nil {
			_ = DecodeBody(version, body, req)
		}
	})
}

// A count that the bytes left can't hold is refused before anything is made for it.
func TestHugeCounts(t *testing.T) {
	huge := bytes.Repeat([]byte{0x7f, 0xff, 0xff, 0xff}, 64) // as an int32 count, as a length
	flex := append(make([]byte, 10), 0xff, 0xff, 0xff, 0xff, 0x0f, 1, 2, 3)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for _, body := range [][]byte{huge, flex} {
		for v := range int16(fetchMax + 1) {
			_ = new(FetchRequest).Decode(v, body)
			_ = new(FetchResponse).Decode(v, body)
			_ = new(ProduceRequest).Decode(min(v, produceMax), body)
			for _, key := range fuzzKeys {
				a, _ := LookupAPI(key)
				_, _ = RewriteAddresses(key, min(v, a.Max), body, mapAddress)
			}
			_, _ = IntersectApiVersions(body, min(v, 4), ApiVersionsOptions{})
		}
	}
	runtime.ReadMemStats(&after)
	require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(8<<20))
}
