package protocol

import (
	"bytes"
	"errors"
	"io"
	"testing"
)

// The seeds are the batches of testdata/java_batches.txt. Whatever comes in, no
// target may panic; TestDecompressionBombs looks at what is allocated.

func seedBatches(f *testing.F, add func(Batch)) {
	for _, b := range javaBatches(f) {
		add(b)
	}
}

// fuzzLimit is what the slow path may decompress to here.
const fuzzLimit = 1 << 20

// firstBatch cuts a batch off fuzzed bytes and makes its CRC right, or the
// fuzzer would never get past that.
func firstBatch(in []byte) (Batch, bool) {
	b, _, err := NextBatch(bytes.Clone(in))
	if err != nil {
		return nil, false
	}
	b.renewCRC()
	return b, true
}

func FuzzNextBatch(f *testing.F) {
	seedBatches(f, func(b Batch) { f.Add([]byte(b)) })
	f.Fuzz(func(t *testing.T, in []byte) {
		rest, total := in, 0
		for {
			b, next, err := NextBatch(rest)
			if err != nil {
				known := errors.Is(err, io.EOF) || errors.Is(err, ErrPartialBatch) || errors.Is(err, ErrMagic) || errors.Is(err, ErrCorruptBatch)
				if !known || !bytes.Equal(next, rest) {
					t.Fatalf("error %v", err)
				}
				break
			}
			if len(b) != b.Size() || len(b) < BatchHeaderSize || b.NextOffset() <= b.BaseOffset() {
				t.Fatalf("size %d of %d, offsets %d to %d", len(b), b.Size(), b.BaseOffset(), b.NextOffset())
			}
			total += len(b)
			rest = next
		}
		if total+len(rest) != len(in) {
			t.Fatalf("%d + %d bytes of %d", total, len(rest), len(in))
		}
	})
}

func FuzzReadStamp(f *testing.F) {
	seedBatches(f, func(b Batch) {
		f.Add([]byte(b))
		stamped := Batch(bytes.Clone(b))
		stamped.putProducer(Stamp{V: 100, Hole: 3, Flags: 5}.producerID(), 2, 5)
		f.Add([]byte(stamped))
	})
	f.Fuzz(func(t *testing.T, in []byte) {
		b, ok := firstBatch(in)
		if !ok {
			return
		}
		s, has := b.ReadStamp()
		if has != (b.ProducerID() <= -2) {
			t.Fatal("a stamp is a producer id of -2 and below")
		}
		if has && s.check() == nil {
			if s.producerID() != b.ProducerID() || b.producible() != nil {
				return
			}
			again := Batch(bytes.Clone(b))
			if err := again.WriteStamp(s); err != nil {
				t.Fatal(err)
			}
			if got, _ := again.ReadStamp(); got != s || !again.CheckCRC() {
				t.Fatalf("%v became %v", s, got)
			}
		}
		b.Restore(s.V, s.Epoch)
		if !b.CheckCRC() || b.ProducerID() != -1 {
			t.Fatal("restored wrongly")
		}
	})
}

func FuzzRecords(f *testing.F) {
	seedBatches(f, func(b Batch) { f.Add([]byte(b)) })
	f.Fuzz(func(t *testing.T, in []byte) {
		b, ok := firstBatch(in)
		if !ok {
			return
		}
		n, last := int32(0), int32(-1)
		err := NewRecoder(fuzzLimit).Records(b, func(r RecordView) bool {
			headers := 0
			if err := r.EachHeader(func(_, _ []byte) bool { headers++; return true }); err != nil || headers != r.NumHeaders {
				t.Fatalf("%d of %d headers: %v", headers, r.NumHeaders, err)
			}
			if r.OffsetDelta <= last || r.OffsetDelta > b.LastOffsetDelta() {
				t.Fatalf("delta %d after %d", r.OffsetDelta, last)
			}
			n, last = n+1, r.OffsetDelta
			return true
		})
		if err == nil && n != b.NumRecords() {
			t.Fatalf("%d of %d records", n, b.NumRecords())
		}
	})
}

func FuzzDensify(f *testing.F) {
	seedBatches(f, func(b Batch) { f.Add([]byte(b)) })
	f.Fuzz(func(t *testing.T, in []byte) {
		b, ok := firstBatch(in)
		if !ok {
			return
		}
		r := NewRecoder(fuzzLimit)
		holes, logAppend := b.HasHoles(), b.LogAppendTime()
		d, err := r.Densify(b, logAppend)
		if err != nil {
			return
		}
		if err := d.WriteStamp(Stamp{}); err != nil || !d.CheckCRC() {
			t.Fatalf("can't be stamped: %v", err)
		}
		if !holes {
			return
		}
		shown, err := NewRecoder(64*fuzzLimit).Undensify(d, b.BaseOffset(), 0, logAppend)
		if err != nil || shown.NextOffset() != b.NextOffset() || !shown.CheckCRC() {
			t.Fatalf("doesn't come back: %v", err)
		}
		read := func(b Batch) (all []byte) {
			err := NewRecoder(fuzzLimit).Records(b, func(r RecordView) bool {
				all = append(all, byte(r.OffsetDelta), byte(b.Timestamp(r)), byte(r.Attributes), byte(r.NumHeaders))
				all = append(append(all, r.keyValue...), r.Headers...)
				return true
			})
			if err != nil {
				t.Fatal(err)
			}
			return all
		}
		if !bytes.Equal(read(b), read(shown)) {
			t.Fatal("records differ")
		}
	})
}

func FuzzUndensify(f *testing.F) {
	seedBatches(f, func(b Batch) {
		if d, err := Densify(b, b.LogAppendTime(), fuzzLimit); err == nil {
			f.Add([]byte(d), b.LogAppendTime())
		}
	})
	f.Fuzz(func(t *testing.T, in []byte, logAppend bool) {
		b, ok := firstBatch(in)
		if !ok {
			return
		}
		r := NewRecoder(fuzzLimit)
		shown, err := r.Undensify(b, 5, 1, logAppend)
		if err != nil {
			return
		}
		n, err := r.VirtualCount(b)
		if err != nil || n != shown.NextOffset()-5 || !shown.CheckCRC() {
			t.Fatalf("%d offsets, virtual count %d: %v", shown.NextOffset()-5, n, err)
		}
		if _, _, err := NextBatch(shown); err != nil {
			t.Fatal(err)
		}
	})
}

// Whatever claims to be compressed: an error, or no more than the limit.
func FuzzDecompress(f *testing.F) {
	var c codecs
	for codec := CodecGzip; codec <= CodecZstd; codec++ {
		for _, plain := range [][]byte{nil, []byte("abc"), make([]byte, fuzzLimit+1)} {
			c.maxOut = len(plain)
			if b, err := c.compress(nil, codec, plain); err == nil {
				f.Add(uint8(codec), b)
			}
		}
	}
	f.Fuzz(func(t *testing.T, codec uint8, src []byte) {
		c := codecs{maxOut: fuzzLimit}
		out, err := c.decompress([]byte("x"), Codec(codec), src)
		if err == nil && (len(out) > fuzzLimit+1 || out[0] != 'x') {
			t.Fatalf("%d bytes", len(out))
		}
	})
}
