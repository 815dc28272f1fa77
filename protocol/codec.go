package protocol

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/snappy"
	"github.com/klauspost/compress/zstd"
	"github.com/pierrec/lz4/v4"
)

var (
	// ErrTooLarge: a batch decompresses to more than the caller allows.
	ErrTooLarge = errors.New("record batch decompresses to more than is allowed")
	// ErrCodec: a compression that Kafka doesn't know (attribute bits 5–7).
	ErrCodec = errors.New("unknown compression")
)

// Kafka's snappy is xerial's framing: this header, then blocks of
// int32 length + raw snappy (SnappyOutputStream). Some clients write one raw
// snappy block instead; Java reads both.
var (
	xerialMagic  = []byte{0x82, 'S', 'N', 'A', 'P', 'P', 'Y', 0}
	xerialHeader = append(xerialMagic[:8:8], 0, 0, 0, 1, 0, 0, 0, 1) // version 1, readable from version 1
)

const (
	xerialBlock = 32 << 10 // what Java's client writes
	// A snappy element of 3 bytes yields 64 at most, so a block that claims
	// more than this factor lies; it isn't given the memory it asks for.
	snappyMaxRatio = 24

	// zstd: the limit holds for the window a frame declares too, and small
	// batches declare large ones; 8 MiB is what RFC 8878 asks of every decoder.
	zstdMinMemory = 8 << 20

	keepScratch = 4 << 20 // buffers above this aren't kept for the next batch
)

// codecs holds one (de)compressor of each kind, made when first needed. Not
// for concurrent use.
type codecs struct {
	maxOut int // bytes that one batch may decompress to

	gzipR *gzip.Reader
	lz4R  *lz4.Reader
	zstdR *zstd.Decoder
	gzipW *gzip.Writer
	lz4W  *lz4.Writer
	zstdW *zstd.Encoder
}

// decompress appends to dst what src decompresses to: at most maxOut bytes
// (ErrTooLarge). Memory stays near that (zstd: near 8 MiB if that is more).
func (c *codecs) decompress(dst []byte, codec Codec, src []byte) ([]byte, error) {
	var err error
	limit := c.maxOut
	switch codec {
	case CodecGzip:
		if c.gzipR == nil {
			c.gzipR = new(gzip.Reader)
		}
		if err = c.gzipR.Reset(bytes.NewReader(src)); err == nil {
			dst, err = readBounded(dst, c.gzipR, limit)
		}
	case CodecSnappy:
		dst, err = unsnappy(dst, src, limit)
	case CodecLZ4:
		if c.lz4R == nil {
			c.lz4R = lz4.NewReader(nil)
		}
		c.lz4R.Reset(bytes.NewReader(src))
		dst, err = readBounded(dst, c.lz4R, limit)
	case CodecZstd:
		if c.zstdR == nil {
			c.zstdR, err = zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true),
				zstd.WithDecoderMaxMemory(max(uint64(limit), zstdMinMemory)))
		}
		start := len(dst)
		if err == nil {
			dst, err = c.zstdR.DecodeAll(src, dst)
		}
		if errors.Is(err, zstd.ErrDecoderSizeExceeded) || len(dst)-start > limit {
			err = ErrTooLarge
		}
	default:
		return nil, fmt.Errorf("%w %d", ErrCodec, codec)
	}
	switch {
	case errors.Is(err, ErrTooLarge):
		return nil, fmt.Errorf("%w: %d bytes of %v, limit %d", ErrTooLarge, len(src), codec, limit)
	case err != nil:
		return nil, fmt.Errorf("%w: %v: %w", ErrCorruptBatch, codec, err)
	}
	return dst, nil
}

func readBounded(dst []byte, r io.Reader, limit int) ([]byte, error) {
	start := len(dst)
	for {
		if len(dst) == cap(dst) {
			dst = slices.Grow(dst, max(4096, min(len(dst), limit)))
		}
		n, err := r.Read(dst[len(dst):cap(dst)])
		dst = dst[:len(dst)+n]
		switch {
		case len(dst)-start > limit:
			return nil, ErrTooLarge
		case err == io.EOF:
			return dst, nil
		case err != nil:
			return nil, err
		}
	}
}

func unsnappy(dst, src []byte, limit int) ([]byte, error) {
	if !bytes.HasPrefix(src, xerialMagic) {
		return unsnappyBlock(dst, src, limit)
	}
	start := len(dst)
	for len(src) > 0 {
		if bytes.HasPrefix(src, xerialMagic) { // also between blocks: joined streams
			if len(src) < len(xerialHeader) {
				return nil, io.ErrUnexpectedEOF
			}
			src = src[len(xerialHeader):]
			continue
		}
		if len(src) < 4 {
			return nil, io.ErrUnexpectedEOF
		}
		n := int64(binary.BigEndian.Uint32(src))
		if src = src[4:]; n > int64(len(src)) {
			return nil, io.ErrUnexpectedEOF
		}
		var err error
		if dst, err = unsnappyBlock(dst, src[:n], limit-(len(dst)-start)); err != nil {
			return nil, err
		}
		src = src[n:]
	}
	return dst, nil
}

func unsnappyBlock(dst, src []byte, limit int) ([]byte, error) {
	n, err := snappy.DecodedLen(src)
	switch {
	case err != nil:
		return nil, err
	case n > limit:
		return nil, ErrTooLarge
	case n > snappyMaxRatio*len(src):
		return nil, snappy.ErrCorrupt
	}
	dst = slices.Grow(dst, n)
	if _, err = snappy.Decode(dst[len(dst):len(dst)+n], src); err != nil {
		return nil, err
	}
	return dst[:len(dst)+n], nil
}

// compress appends src, compressed as Kafka's clients read it, to dst.
func (c *codecs) compress(dst []byte, codec Codec, src []byte) ([]byte, error) {
	switch codec {
	case CodecNone:
		return append(dst, src...), nil
	case CodecGzip:
		if c.gzipW == nil {
			c.gzipW = gzip.NewWriter(nil)
		}
		out := appender{dst}
		c.gzipW.Reset(&out)
		return out.finish(c.gzipW, src)
	case CodecSnappy:
		dst = append(dst, xerialHeader...)
		var block []byte
		for part := range slices.Chunk(src, xerialBlock) {
			block = snappy.Encode(block[:cap(block)], part)
			dst = binary.BigEndian.AppendUint32(dst, uint32(len(block)))
			dst = append(dst, block...)
		}
		return dst, nil
	case CodecLZ4:
		if c.lz4W == nil {
			// Java's reader wants independent blocks; 64 KiB and no checksums
			// are what its writer does.
			c.lz4W = lz4.NewWriter(nil)
			if err := c.lz4W.Apply(lz4.BlockSizeOption(lz4.Block64Kb), lz4.ChecksumOption(false)); err != nil {
				return nil, err
			}
		}
		out := appender{dst}
		c.lz4W.Reset(&out)
		return out.finish(c.lz4W, src)
	case CodecZstd:
		if c.zstdW == nil {
			var err error
			if c.zstdW, err = zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1)); err != nil {
				return nil, err
			}
		}
		return c.zstdW.EncodeAll(src, dst), nil
	}
	return nil, fmt.Errorf("%w %d", ErrCodec, codec)
}

// appender is an io.Writer at the end of a slice.
type appender struct{ b []byte }

func (a *appender) Write(p []byte) (int, error) {
	a.b = append(a.b, p...)
	return len(p), nil
}

func (a *appender) finish(w io.WriteCloser, src []byte) ([]byte, error) {
	if _, err := w.Write(src); err != nil {
		return nil, err
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return a.b, nil
}
