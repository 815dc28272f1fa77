package protocol

import "github.com/twmb/franz-go/pkg/kmsg"

// DecodeDeleteRecordsRequest reads v0 to v2. Offset −1 is the high watermark.
func DecodeDeleteRecordsRequest(version int16, b []byte) (*kmsg.DeleteRecordsRequest, error) {
	q := kmsg.NewPtrDeleteRecordsRequest()
	return q, DecodeBody(version, b, q)
}

// DecodeDeleteRecordsResponse reads v0 to v2.
func DecodeDeleteRecordsResponse(version int16, b []byte) (*kmsg.DeleteRecordsResponse, error) {
	r := kmsg.NewPtrDeleteRecordsResponse()
	return r, DecodeBody(version, b, r)
}
