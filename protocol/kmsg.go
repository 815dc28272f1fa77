package protocol

import "fmt"

// kmsgBody is any kmsg request or response.
type kmsgBody interface {
	Key() int16
	MaxVersion() int16
	SetVersion(int16)
	ReadFrom([]byte) error
}

// DecodeBody reads a request or response body with kmsg, for APIs where speed
// doesn't matter. Strings and slices are copies. What remains after the last
// field, and versions the table doesn't know, are errors.
func DecodeBody(version int16, b []byte, into kmsgBody) error {
	a, ok := LookupAPI(into.Key())
	if !ok {
		return fmt.Errorf("%w %d", ErrUnknownAPI, into.Key())
	}
	if version < 0 || version > a.Max {
		return fmt.Errorf("%w: %s v%d, known up to v%d", ErrUnknownVersion, a.Name, version, a.Max)
	}
	into.SetVersion(version)
	if err := into.ReadFrom(b); err != nil {
		return fmt.Errorf("%s v%d, %d bytes: %w", a.Name, version, len(b), err)
	}
	return nil
}
