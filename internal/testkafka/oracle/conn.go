// Package oracle reads Kafka logs over the raw wire, with no client library's logic in between and none of
// Lockstep's own code: what tests compare everything else with.
package oracle

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

const maxResponse = 256 << 20

// Conn speaks the protocol over one TCP connection: the version is the caller's, nothing is retried.
type Conn struct {
	c    net.Conn
	corr int32
	form *kmsg.RequestFormatter
	max  map[int16]int16
}

// Dial connects to one broker and asks for its API versions.
func Dial(ctx context.Context, addr string) (*Conn, error) {
	var d net.Dialer
	nc, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("oracle: %w", err)
	}
	c := &Conn{c: nc, form: kmsg.NewRequestFormatter(kmsg.FormatterClientID("oracle")), max: map[int16]int16{}}
	r := kmsg.NewPtrApiVersionsRequest()
	resp, err := c.send(ctx, r)
	if err != nil {
		_ = nc.Close()
		return nil, err
	}
	for _, k := range resp.(*kmsg.ApiVersionsResponse).ApiKeys {
		c.max[k.ApiKey] = k.MaxVersion
	}
	return c, nil
}

// Close closes the connection.
func (c *Conn) Close() { _ = c.c.Close() }

// Do sends req at the lowest of limit, the broker's and kmsg's highest version, and waits for the answer.
func (c *Conn) Do(ctx context.Context, req kmsg.Request, limit int16) (kmsg.Response, error) {
	m, ok := c.max[req.Key()]
	if !ok {
		return nil, fmt.Errorf("oracle: the broker doesn't know %s", kmsg.NameForKey(req.Key()))
	}
	req.SetVersion(min(limit, m, req.MaxVersion()))
	return c.send(ctx, req)
}

func (c *Conn) send(ctx context.Context, req kmsg.Request) (kmsg.Response, error) {
	name := kmsg.NameForKey(req.Key())
	stop := context.AfterFunc(ctx, func() { _ = c.c.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	c.corr++
	if _, err := c.c.Write(c.form.AppendRequest(nil, req, c.corr)); err != nil {
		return nil, fmt.Errorf("oracle: write %s: %w", name, err)
	}
	var sz [4]byte
	if _, err := io.ReadFull(c.c, sz[:]); err != nil {
		return nil, fmt.Errorf("oracle: read %s: %w", name, err)
	}
	n := binary.BigEndian.Uint32(sz[:])
	if n < 4 || n > maxResponse {
		return nil, fmt.Errorf("oracle: %s: answer of %d bytes", name, n)
	}
	b := make([]byte, n)
	if _, err := io.ReadFull(c.c, b); err != nil {
		return nil, fmt.Errorf("oracle: read %s: %w", name, err)
	}
	if got := int32(binary.BigEndian.Uint32(b)); got != c.corr {
		return nil, fmt.Errorf("oracle: %s: correlation id %d, want %d", name, got, c.corr)
	}
	b = b[4:]
	resp := req.ResponseKind()
	resp.SetVersion(req.GetVersion())
	if req.Key() != 18 && resp.IsFlexible() {
		if len(b) == 0 || b[0] != 0 {
			return nil, fmt.Errorf("oracle: %s: tags in the answer's header", name)
		}
		b = b[1:]
	}
	if err := resp.ReadFrom(b); err != nil {
		return nil, fmt.Errorf("oracle: decode %s: %w", name, err)
	}
	return resp, nil
}

// DialAny connects to the first address of a comma-separated bootstrap list that answers.
func DialAny(ctx context.Context, bootstrap string) (*Conn, error) {
	var errs []error
	for _, a := range strings.Split(bootstrap, ",") {
		c, err := Dial(ctx, a)
		if err == nil {
			return c, nil
		}
		errs = append(errs, err)
	}
	return nil, errors.Join(errs...)
}

// BrokerIDs are the brokers in one broker's metadata (KRaft lists unfenced ones only).
func BrokerIDs(ctx context.Context, addr string) (map[int32]string, error) {
	c, err := Dial(ctx, addr)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	r := kmsg.NewPtrMetadataRequest()
	r.Topics = []kmsg.MetadataRequestTopic{}
	resp, err := c.Do(ctx, r, 9)
	if err != nil {
		return nil, err
	}
	ids := map[int32]string{}
	for _, b := range resp.(*kmsg.MetadataResponse).Brokers {
		ids[b.NodeID] = net.JoinHostPort(b.Host, fmt.Sprint(b.Port))
	}
	return ids, nil
}

// Partition is what Metadata says of one partition. Leader -1: none.
type Partition struct {
	Leader, Epoch int32
	ISR, Replicas []int32
	Addr          string // of the leader
}

// Lookup asks for a partition's leader. A partition without one is no error.
func Lookup(ctx context.Context, bootstrap, topic string, partition int32) (Partition, error) {
	c, err := DialAny(ctx, bootstrap)
	if err != nil {
		return Partition{}, err
	}
	defer c.Close()
	r := kmsg.NewPtrMetadataRequest()
	t := kmsg.NewMetadataRequestTopic()
	t.Topic = &topic
	r.Topics = append(r.Topics, t)
	resp, err := c.Do(ctx, r, 12)
	if err != nil {
		return Partition{}, err
	}
	m := resp.(*kmsg.MetadataResponse)
	for _, t := range m.Topics {
		if err := kerr.ErrorForCode(t.ErrorCode); err != nil {
			return Partition{}, fmt.Errorf("oracle: metadata of %s: %w", topic, err)
		}
		for _, p := range t.Partitions {
			if p.Partition != partition {
				continue
			}
			out := Partition{Leader: p.Leader, Epoch: p.LeaderEpoch, ISR: p.ISR, Replicas: p.Replicas}
			for _, b := range m.Brokers {
				if b.NodeID == p.Leader {
					out.Addr = net.JoinHostPort(b.Host, fmt.Sprint(b.Port))
				}
			}
			return out, nil
		}
	}
	return Partition{}, fmt.Errorf("oracle: %s-%d: no such partition", topic, partition)
}

// DialLeader connects to a partition's leader.
func DialLeader(ctx context.Context, bootstrap, topic string, partition int32) (*Conn, Partition, error) {
	p, err := Lookup(ctx, bootstrap, topic, partition)
	if err != nil {
		return nil, p, err
	}
	if p.Addr == "" {
		return nil, p, fmt.Errorf("oracle: %s-%d has no leader: %w", topic, partition, kerr.LeaderNotAvailable)
	}
	c, err := Dial(ctx, p.Addr)
	return c, p, err
}
