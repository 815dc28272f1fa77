package verify

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"strings"
	"time"

	"github.com/lockstep-kafka/lockstep/protocol"
)

// Record is a record as it is reported.
type Record struct {
	Offset        int64    `json:"offset"`
	Epoch         int32    `json:"epoch"`
	Timestamp     int64    `json:"timestamp"` // ms
	LogAppendTime bool     `json:"log_append_time,omitempty"`
	Key           Bytes    `json:"key"`
	Value         Bytes    `json:"value"`
	Headers       []Header `json:"headers"`
}

// Header is one of a record's headers.
type Header struct {
	Key   Bytes `json:"key"`
	Value Bytes `json:"value"`
}

// Bytes are abbreviated: Hex and Text are the bytes from At on, as many as are
// shown.
type Bytes struct {
	Null bool   `json:"null,omitempty"`
	Size int    `json:"size"`
	At   int    `json:"at,omitempty"`
	Hex  string `json:"hex,omitempty"`
	Text string `json:"text,omitempty"`
}

const (
	shownBytes   = 48 // of each byte string
	shownBefore  = 16 // of them in front of the first difference
	shownHeaders = 20
)

// excerpt shows b around its first difference from other.
func excerpt(b, other []byte) Bytes {
	e := Bytes{Null: b == nil, Size: len(b)}
	same := 0
	for same < len(b) && same < len(other) && b[same] == other[same] {
		same++
	}
	if same < len(b) && same >= shownBytes {
		e.At = same - shownBefore
	}
	shown := b[e.At:min(len(b), e.At+shownBytes)]
	e.Hex = hex.EncodeToString(shown)
	e.Text = strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' {
			return '.'
		}
		return r
	}, string(bytes.ToValidUTF8(shown, []byte("."))))
	return e
}

// String is for a person.
func (b Bytes) String() string {
	switch {
	case b.Null:
		return "null"
	case b.Size == 0:
		return "empty"
	}
	before, after := "", ""
	if b.At > 0 {
		before = fmt.Sprintf("… from byte %d: ", b.At)
	}
	if b.At+len(b.Hex)/2 < b.Size {
		after = " …"
	}
	return fmt.Sprintf("%d bytes: %s%s%s (%q)", b.Size, before, b.Hex, after, b.Text)
}

// String is for a person.
func (r *Record) String() string {
	if r == nil {
		return "no record"
	}
	kind := "CreateTime"
	if r.LogAppendTime {
		kind = "LogAppendTime"
	}
	var b strings.Builder
	fmt.Fprintf(&b, "offset %d, leader epoch %d, timestamp %d (%s, %s)", r.Offset, r.Epoch, r.Timestamp, when(r.Timestamp), kind)
	fmt.Fprintf(&b, "\n    key     %s\n    value   %s", r.Key, r.Value)
	for i, h := range r.Headers {
		if i == shownHeaders {
			fmt.Fprintf(&b, "\n    … %d headers in all", len(r.Headers))
			break
		}
		fmt.Fprintf(&b, "\n    header  %s = %s", h.Key, h.Value)
	}
	return b.String()
}

func when(ms int64) string {
	const year10000 = 253402300800000
	if ms < 0 || ms >= year10000 {
		return "no date"
	}
	return time.UnixMilli(ms).UTC().Format("2006-01-02T15:04:05.000Z")
}

// rec is one record of a batch, as it is compared. It lives as long as its
// batch is the walker's.
type rec struct {
	offset    int64
	epoch     int32
	time      int64
	logAppend bool
	view      protocol.RecordView
}

// report is the record for a Difference from o, which may be nil.
func (r *rec) report(o *rec) *Record {
	if r == nil {
		return nil
	}
	var other protocol.RecordView
	if o != nil {
		other = o.view
	}
	out := &Record{
		Offset: r.offset, Epoch: r.epoch, Timestamp: r.time, LogAppendTime: r.logAppend,
		Key: excerpt(r.view.Key, other.Key), Value: excerpt(r.view.Value, other.Value), Headers: []Header{},
	}
	_ = r.view.EachHeader(func(k, v []byte) bool {
		out.Headers = append(out.Headers, Header{Key: excerpt(k, nil), Value: excerpt(v, nil)})
		return true
	})
	return out
}

// differs says in what two records of one offset differ.
func (r *rec) differs(o *rec) (Kind, string) {
	switch {
	case r.epoch != o.epoch:
		return KindEpoch, fmt.Sprintf("%d on the source, %d on the destination", r.epoch, o.epoch)
	case r.time != o.time:
		return KindTimestamp, fmt.Sprintf("%d on the source, %d on the destination", r.time, o.time)
	case r.logAppend != o.logAppend:
		return KindTimestamp, "of another type"
	case !sameBytes(r.view.Key, o.view.Key):
		return KindKey, firstByte(r.view.Key, o.view.Key)
	case !sameBytes(r.view.Value, o.view.Value):
		return KindValue, firstByte(r.view.Value, o.view.Value)
	case r.view.NumHeaders != o.view.NumHeaders:
		return KindHeaders, fmt.Sprintf("%d on the source, %d on the destination", r.view.NumHeaders, o.view.NumHeaders)
	case !bytes.Equal(r.view.Headers, o.view.Headers) && !sameHeaders(&r.view, &o.view):
		return KindHeaders, "of another content"
	}
	return "", ""
}

func sameBytes(a, b []byte) bool { return (a == nil) == (b == nil) && bytes.Equal(a, b) }

// sameHeaders compares headers whose lengths may be encoded in more bytes than
// needed.
func sameHeaders(a, b *protocol.RecordView) bool {
	list := func(r *protocol.RecordView) (out [][2][]byte) {
		_ = r.EachHeader(func(k, v []byte) bool { out = append(out, [2][]byte{k, v}); return true })
		return out
	}
	x, y := list(a), list(b)
	if len(x) != len(y) {
		return false
	}
	for i := range x {
		if !sameBytes(x[i][0], y[i][0]) || !sameBytes(x[i][1], y[i][1]) {
			return false
		}
	}
	return true
}

func firstByte(s, d []byte) string {
	switch {
	case s == nil || d == nil:
		return "null on one side"
	case len(s) != len(d):
		return fmt.Sprintf("%d bytes on the source, %d on the destination", len(s), len(d))
	}
	i := 0
	for s[i] == d[i] {
		i++
	}
	return fmt.Sprintf("byte %d of %d is %#02x on the source, %#02x on the destination", i, len(s), s[i], d[i])
}
