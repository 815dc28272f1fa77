package diverged

import (
	"fmt"

	"github.com/lockstep-kafka/lockstep/protocol"
)

// Record is a diverged record as it was shown. Bytes are base64 in JSON; nil
// ones are null.
type Record struct {
	Offset    int64    `json:"offset"`
	Epoch     int32    `json:"epoch"`
	Timestamp int64    `json:"timestamp"` // ms
	Key       []byte   `json:"key"`
	Value     []byte   `json:"value"`
	Headers   []Header `json:"headers"`
	Origin    Origin   `json:"origin"`
}

// Header is one of a record's headers; both parts are base64 in JSON.
type Header struct {
	Key   []byte `json:"key"`
	Value []byte `json:"value"`
}

// records calls f for the diverged records of a dead batch, which it changes.
// What f gets aliases the batch.
func (f *Found) records(d Dead, b protocol.Batch, met seen, each func(Record) error) error {
	if d.Aborted {
		return nil
	}
	b = append(protocol.Batch(nil), b...)
	switch {
	case d.renumbered:
		var err error
		if b, err = protocol.Undensify(b, d.V, d.Epoch, d.logAppend); err != nil {
			return fmt.Errorf("physical offset %d: %w", d.P, err)
		}
	case d.Origin == Mirrored && d.logAppend:
		b.RestoreLogAppend(d.V, d.Epoch)
	case d.Origin == Mirrored:
		b.Restore(d.V, d.Epoch)
	}
	var err error
	walkErr := protocol.Records(b, func(r protocol.RecordView) bool {
		v := d.V + int64(r.OffsetDelta)
		if f.copied(d.Epoch, v, v+1) || !met.first(d.Epoch, v) {
			return true
		}
		rec := Record{Offset: v, Epoch: d.Epoch, Timestamp: b.Timestamp(r), Key: r.Key, Value: r.Value, Headers: []Header{}, Origin: d.Origin}
		if err = r.EachHeader(func(k, val []byte) bool {
			rec.Headers = append(rec.Headers, Header{Key: k, Value: val})
			return true
		}); err == nil {
			err = each(rec)
		}
		return err == nil
	})
	if err == nil {
		err = walkErr
	}
	if err != nil {
		return fmt.Errorf("physical offset %d: %w", d.P, err)
	}
	return nil
}
