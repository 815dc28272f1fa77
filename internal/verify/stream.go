package verify

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/protocol"
)

// chunk is a Fetch answer of one partition.
type chunk struct {
	records []byte
	aborted []kmsg.FetchResponseTopicPartitionAbortedTransaction
	next    int64 // offset behind the last whole batch
	err     error
}

// partStream reads a partition of one side, read_committed, up to an offset. One
// answer is fetched ahead.
type partStream struct {
	c    *cluster
	at   place
	to   int64
	pos  int64 // the next fetch's
	from int64 // what ends at or below isn't shown

	rest    []byte
	aborted *protocol.AbortedTxns
	ahead   chan chunk // nil: no fetch under way
	cancel  context.CancelFunc
	dropped int64 // batches of aborted transactions
}

type place struct {
	topic     string
	partition int32
}

func (c *cluster) stream(at place, from, to int64) *partStream {
	return &partStream{c: c, at: at, to: to, pos: from, from: from, cancel: func() {}}
}

func (s *partStream) next(ctx context.Context) (protocol.Batch, error) {
	for {
		b, err := s.take()
		if b != nil || err != nil {
			return b, err
		}
		if s.pos >= s.to {
			return nil, io.EOF
		}
		if s.ahead == nil {
			s.fetch(ctx)
		}
		got := <-s.ahead // ends with ctx
		s.stop()
		if got.err != nil {
			return nil, got.err
		}
		if got.next <= s.pos { // nothing is left below to
			s.pos = s.to
			continue
		}
		s.rest, s.aborted, s.pos = got.records, protocol.NewAbortedTxns(got.aborted), got.next
		if s.pos < s.to {
			s.fetch(ctx)
		}
	}
}

// take is the next batch of the answer at hand; nil: there is none.
func (s *partStream) take() (protocol.Batch, error) {
	for len(s.rest) > 0 {
		b, rest, err := protocol.NextBatch(s.rest)
		switch {
		case errors.Is(err, protocol.ErrPartialBatch):
			s.rest = nil
			return nil, nil
		case err != nil:
			return nil, fmt.Errorf("%s: %w", s.c.what, err)
		}
		s.rest = rest
		aborted := s.aborted.Pass(b)
		switch {
		case b.NextOffset() <= s.from:
		case aborted:
			s.dropped++
		case b.IsControl(), b.NumRecords() == 0:
		default:
			b.Bare()
			return b, nil
		}
	}
	return nil, nil
}

// fetch asks for the answer at pos, beside.
func (s *partStream) fetch(ctx context.Context) {
	ctx, s.cancel = context.WithCancel(ctx)
	ahead, at, pos, to := make(chan chunk, 1), s.at, s.pos, s.to
	go func() { ahead <- s.c.fetch(ctx, at, pos, to) }()
	s.ahead = ahead
}

func (s *partStream) stop() {
	s.cancel()
	s.ahead, s.cancel = nil, func() {}
}

func (s *partStream) skip(offset int64) {
	s.from = max(s.from, offset)
	if offset <= s.pos {
		return
	}
	s.close()
	s.rest, s.pos = nil, offset
}

// close waits for the fetch under way.
func (s *partStream) close() {
	if s.ahead != nil {
		s.cancel()
		<-s.ahead
	}
	s.stop()
}
