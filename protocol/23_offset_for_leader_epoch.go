package protocol

import "github.com/twmb/franz-go/pkg/kmsg"

// DecodeOffsetForLeaderEpochRequest reads v0 to v4. CurrentLeaderEpoch is there
// from v2, ReplicaID from v3.
func DecodeOffsetForLeaderEpochRequest(version int16, b []byte) (*kmsg.OffsetForLeaderEpochRequest, error) {
	q := kmsg.NewPtrOffsetForLeaderEpochRequest()
	return q, DecodeBody(version, b, q)
}

// DecodeOffsetForLeaderEpochResponse reads v0 to v4. The epoch is there from v1.
func DecodeOffsetForLeaderEpochResponse(version int16, b []byte) (*kmsg.OffsetForLeaderEpochResponse, error) {
	r := kmsg.NewPtrOffsetForLeaderEpochResponse()
	return r, DecodeBody(version, b, r)
}
