package protocol

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/internal/wiregen"
)

func TestApiVersionsGolden(t *testing.T) {
	// v0: Fetch 0–17, Metadata 0–99, LeaderAndIsr, key 500, telemetry.
	got, err := IntersectApiVersions(unhex(t, `0000 00000005 0001 0000 0011 0003 0000 0063 0004 0000 0007 01f4 0000 0001 0047 0000 0000`), 0, ApiVersionsOptions{})
	require.NoError(t, err)
	require.Equal(t, unhex(t, `0000 00000002 0001 0004 0011 0003 0000 000d`), got)

	// v3: Produce 0–13 with a tagged field; throttle 9; no features, an unknown tagged field.
	got, err = IntersectApiVersions(unhex(t, `0000 02 0000 0000 000d 01 05 01 78 00000009 01 09 01 79`), 3, ApiVersionsOptions{})
	require.NoError(t, err)
	require.Equal(t, unhex(t, `0000 02 0000 0000 000d 01 05 01 78 00000009 02 00 15 02 0f 6c6f636b737465702e70726f7879 0001 0001 00 09 01 79`), got)

	require.Equal(t, unhex(t, `0023 00000001 0012 0000 0004`), UnsupportedApiVersionsBody())
	// What a broker says to a version above its own passes as the v0 body it is.
	got, err = IntersectApiVersions(unhex(t, `0023 00000001 0012 0000 0003`), 4, ApiVersionsOptions{})
	require.NoError(t, err)
	require.Equal(t, unhex(t, `0023 00000001 0012 0000 0003`), got)
}

func TestApiVersionsEveryVersion(t *testing.T) {
	for v := int16(0); v <= 4; v++ {
		for i := range 200 {
			rnd := rand.New(rand.NewPCG(uint64(v), uint64(i)))
			in := kmsg.NewPtrApiVersionsResponse()
			wiregen.Fill(rnd, in, true)
			in.Version, in.ErrorCode = v, 0
			in.ApiKeys = nil
			for range rnd.IntN(100) {
				least := int16(rnd.IntN(6))
				in.ApiKeys = append(in.ApiKeys, kmsg.ApiVersionsResponseApiKey{
					ApiKey: int16(rnd.IntN(110)) - 3, MinVersion: least, MaxVersion: least + int16(rnd.IntN(20)),
				})
			}
			body := in.AppendTo(nil)
			want := kmsg.NewPtrApiVersionsResponse()
			require.NoError(t, DecodeBody(v, body, want))
			want.ApiKeys = want.ApiKeys[:0]
			for _, k := range in.ApiKeys {
				a, ok := LookupAPI(k.ApiKey)
				k.MinVersion, k.MaxVersion = max(k.MinVersion, a.Min), min(k.MaxVersion, a.Max)
				if ok && a.Advertised() && k.MinVersion <= k.MaxVersion {
					want.ApiKeys = append(want.ApiKeys, k)
				}
			}
			plain, err := IntersectApiVersions(body, v, ApiVersionsOptions{NoFeature: true})
			require.NoError(t, err)
			require.Equal(t, want.AppendTo(nil), plain)
			has, err := HasFeature(plain, v)
			require.NoError(t, err)
			require.False(t, has)

			f := kmsg.NewApiVersionsResponseSupportedFeature()
			f.Name, f.MinVersion, f.MaxVersion = FeatureName, 1, 1
			want.SupportedFeatures = append(want.SupportedFeatures, f)
			got, err := IntersectApiVersions(body, v, ApiVersionsOptions{})
			require.NoError(t, err)
			require.Equal(t, want.AppendTo(nil), got)
			has, err = HasFeature(got, v)
			require.NoError(t, err)
			require.Equal(t, v >= 3, has)

			again, err := IntersectApiVersions(got, v, ApiVersionsOptions{})
			require.NoError(t, err)
			require.Equal(t, got, again, "a proxy behind a proxy")
			for n := range body {
				_, err := IntersectApiVersions(body[:n], v, ApiVersionsOptions{})
				require.Error(t, err)
			}
		}
	}
}

func TestApiVersionsMaxOverride(t *testing.T) {
	in := unhex(t, `0000 00000001 0003 0000 0063`)
	got, err := IntersectApiVersions(in, 0, ApiVersionsOptions{Max: map[int16]int16{3: 20}})
	require.NoError(t, err)
	require.Equal(t, unhex(t, `0000 00000001 0003 0000 0014`), got)
}
