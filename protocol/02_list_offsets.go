package protocol

import "github.com/twmb/franz-go/pkg/kmsg"

// Special timestamps of ListOffsets. Kafka 2.1 takes those below −2 as plain
// timestamps: ask only what the version below knows.
const (
	TimestampLatest         int64 = -1
	TimestampEarliest       int64 = -2
	TimestampMax            int64 = -3 // v7+, KIP-734
	TimestampEarliestLocal  int64 = -4 // v8+, KIP-405
	TimestampLatestTiered   int64 = -5 // v9+, KIP-1005
	TimestampEarliestUpload int64 = -6 // v11+, KIP-1023
)

// DecodeListOffsetsRequest reads v0 to v11.
func DecodeListOffsetsRequest(version int16, b []byte) (*kmsg.ListOffsetsRequest, error) {
	q := kmsg.NewPtrListOffsetsRequest()
	return q, DecodeBody(version, b, q)
}

// DecodeListOffsetsResponse reads v0 to v11.
func DecodeListOffsetsResponse(version int16, b []byte) (*kmsg.ListOffsetsResponse, error) {
	r := kmsg.NewPtrListOffsetsResponse()
	return r, DecodeBody(version, b, r)
}
