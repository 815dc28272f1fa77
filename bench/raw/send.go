// Package raw sends and reads record batches as they are, one request at a
// time on each connection: as little client as possible, so that a broker or a
// proxy is what is measured.
package raw

import (
	"context"
	"encoding/binary"
	"fmt"
	"net"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/internal/kconn"
)

// Batch is a record batch for a partition, with base offset 0.
type Batch struct {
	Partition int32
	Data      []byte
}

// Sender produces to one topic over one connection; acks=all.
type Sender struct {
	conn  *kconn.Conn
	topic string
	head  []byte
	cuts  []int
	out   net.Buffers
}

const (
	produceVersion = 9 // flexible, topics by name
	fetchVersion   = 12
)

// NewSender connects.
func NewSender(ctx context.Context, addr, topic string) (*Sender, error) {
	c, err := (&kconn.Dialer{ClientID: "bench"}).Init().Dial(ctx, addr)
	if err != nil {
		return nil, err
	}
	return &Sender{conn: c, topic: topic}, nil
}

// Close closes the connection.
func (s *Sender) Close() { _ = s.conn.Close() }

// Send writes at most one batch for each partition in one request, and waits
// for the answer.
func (s *Sender) Send(ctx context.Context, list []Batch) error {
	b, err := s.conn.RoundTripRaw(ctx, int16(kmsg.Produce), produceVersion, s.encode(list), 0)
	if err != nil {
		return err
	}
	defer b.Release()
	resp := kmsg.NewPtrProduceResponse()
	resp.SetVersion(produceVersion)
	if err := resp.ReadFrom(b.Bytes()); err != nil {
		return fmt.Errorf("answer to Produce: %w", err)
	}
	for _, t := range resp.Topics {
		for _, p := range t.Partitions {
			if err := kerr.ErrorForCode(p.ErrorCode); err != nil {
				return fmt.Errorf("produce to %s-%d: %w", t.Topic, p.Partition, err)
			}
		}
	}
	return nil
}

// encode lays out the request's pieces and the batches in turn, for a vectored
// write without a copy.
func (s *Sender) encode(list []Batch) net.Buffers {
	h := append(s.head[:0], 0)                   // no transactional id
	h = binary.BigEndian.AppendUint16(h, 0xffff) // acks=all
	h = binary.BigEndian.AppendUint32(h, 30_000)
	h = binary.AppendUvarint(h, 2) // one topic
	h = append(binary.AppendUvarint(h, uint64(len(s.topic))+1), s.topic...)
	h = binary.AppendUvarint(h, uint64(len(list))+1)
	s.cuts = s.cuts[:0]
	for _, b := range list {
		h = binary.BigEndian.AppendUint32(h, uint32(b.Partition))
		h = binary.AppendUvarint(h, uint64(len(b.Data))+1)
		s.cuts = append(s.cuts, len(h))
		h = append(h, 0) // tags
	}
	h = append(h, 0, 0) // tags of topic and request
	s.head, s.out = h, s.out[:0]
	from := 0
	for i, cut := range s.cuts {
		s.out = append(s.out, h[from:cut], list[i].Data)
		from = cut
	}
	s.out = append(s.out, h[from:])
	return append(net.Buffers(nil), s.out...) // a vectored write eats its slice
}
