package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/IBM/sarama"
)

type saramaClient struct{}

func (saramaClient) codecs() []string { return []string{"none", "gzip", "snappy", "lz4", "zstd"} }

func (saramaClient) config() *sarama.Config {
	c := sarama.NewConfig()
	c.Version, c.ClientID = sarama.MaxVersion, "sarama"
	c.Producer.Return.Successes, c.Producer.RequiredAcks = true, sarama.WaitForAll
	c.Producer.Idempotent, c.Net.MaxOpenRequests = true, 1
	c.Consumer.Return.Errors, c.Consumer.Offsets.Initial = true, sarama.OffsetOldest
	c.Consumer.Offsets.AutoCommit.Enable = false
	c.Consumer.IsolationLevel = sarama.ReadCommitted
	c.Consumer.MaxWaitTime = 200 * time.Millisecond
	c.Consumer.Group.Heartbeat.Interval = 300 * time.Millisecond
	return c
}

func (s saramaClient) produce(_ context.Context, topic, codec string, values []string) ([]rec, error) {
	conf := s.config()
	if err := conf.Producer.Compression.UnmarshalText([]byte(codec)); err != nil {
		return nil, err
	}
	p, err := sarama.NewSyncProducer(bootstrap, conf)
	if err != nil {
		return nil, err
	}
	ms := saramaMessages(topic, values)
	err = p.SendMessages(ms)
	var out []rec
	for _, m := range ms {
		k, _ := m.Key.Encode()
		v, _ := m.Value.Encode()
		out = append(out, rec{m.Partition, m.Offset, k, v})
	}
	return out, errors.Join(err, p.Close())
}

func saramaMessages(topic string, values []string) []*sarama.ProducerMessage {
	var ms []*sarama.ProducerMessage
	for i, v := range values {
		ms = append(ms, &sarama.ProducerMessage{Topic: topic, Key: sarama.StringEncoder(fmt.Sprintf("k%d", i)), Value: sarama.StringEncoder(v)})
	}
	return ms
}

func (s saramaClient) consume(ctx context.Context, topic, group string, n int, _ bool) ([]rec, error) {
	g, err := sarama.NewConsumerGroup(bootstrap, group, s.config())
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	h := &saramaHandler{recs: make(chan *sarama.ConsumerMessage), took: make(chan bool), done: make(chan struct{})}
	ended := make(chan error, 1)
	go func() {
		var err error
		for ctx.Err() == nil && err == nil {
			err = g.Consume(ctx, []string{topic}, h)
		}
		ended <- err
	}()
	var out []rec
	var failed error
	for len(out) < n && failed == nil {
		select {
		case m := <-h.recs:
			out = append(out, rec{m.Partition, m.Offset, m.Key, m.Value})
			h.took <- len(out) == n
			if len(out) == n {
				<-h.done
			}
		case err := <-g.Errors():
			failed = err
		case <-ctx.Done():
			failed = ctx.Err()
		}
	}
	cancel()
	return out, errors.Join(failed, <-ended, g.Close())
}

// saramaHandler hands over one record at a time, is told whether it was the last one wanted, and then commits. (A
// commit waits behind the fetch on the same connection, so there is one for all.)
type saramaHandler struct {
	recs chan *sarama.ConsumerMessage
	took chan bool
	done chan struct{}
}

func (*saramaHandler) Setup(sarama.ConsumerGroupSession) error   { return nil }
func (*saramaHandler) Cleanup(sarama.ConsumerGroupSession) error { return nil }

func (h *saramaHandler) ConsumeClaim(s sarama.ConsumerGroupSession, c sarama.ConsumerGroupClaim) error {
	for m := range c.Messages() {
		select {
		case h.recs <- m:
			s.MarkMessage(m, "")
			if <-h.took {
				s.Commit()
				h.done <- struct{}{}
			}
		case <-s.Context().Done():
			return nil
		}
	}
	return nil
}

func (s saramaClient) admin(_ context.Context, create, mirrored string) (adminView, error) {
	var v adminView
	cl, err := sarama.NewClient(bootstrap, s.config())
	if err != nil {
		return v, err
	}
	a, err := sarama.NewClusterAdminFromClient(cl)
	if err != nil {
		return v, err
	}
	defer func() { _ = a.Close() }()
	if err := a.CreateTopic(create, &sarama.TopicDetail{NumPartitions: 3, ReplicationFactor: 1}, false); err != nil {
		return v, err
	}
	for until := time.Now().Add(10 * time.Second); ; {
		meta, err := a.DescribeTopics([]string{create})
		if err != nil {
			return v, err
		}
		if errors.Is(meta[0].Err, sarama.ErrNoError) {
			v.Partitions = len(meta[0].Partitions)
			break
		}
		if time.Now().After(until) {
			return v, meta[0].Err
		}
	}
	brokers, _, err := a.DescribeCluster()
	if err != nil {
		return v, err
	}
	for _, b := range brokers {
		v.Addresses = append(v.Addresses, b.Addr())
	}
	groups, err := a.ListConsumerGroups()
	if err != nil {
		return v, err
	}
	for g := range groups {
		v.Groups = append(v.Groups, g)
	}
	if v.Start, err = cl.GetOffset(mirrored, 0, sarama.OffsetOldest); err != nil {
		return v, err
	}
	if v.End, err = cl.GetOffset(mirrored, 0, sarama.OffsetNewest); err != nil {
		return v, err
	}
	return v, a.DeleteTopic(create)
}

func (s saramaClient) txn(_ context.Context, topic, mirrored, group, id string) error {
	conf := s.config()
	conf.Producer.Transaction.ID = id
	p, err := sarama.NewSyncProducer(bootstrap, conf)
	if err != nil {
		return err
	}
	defer func() { _ = p.Close() }()
	for _, t := range []struct {
		values []string
		end    func() error
	}{
		{[]string{"c0", "c1", "c2"}, p.CommitTxn},
		{[]string{"x0", "x1", "x2"}, p.AbortTxn},
		{[]string{"d0", "d1"}, func() error {
			o := map[string][]*sarama.PartitionOffsetMetadata{mirrored: {{Partition: 0, Offset: 7, LeaderEpoch: -1}}}
			if err := p.AddOffsetsToTxn(o, group); err != nil {
				return err
			}
			return p.CommitTxn()
		}},
	} {
		if err := p.BeginTxn(); err != nil {
			return err
		}
		if err := p.SendMessages(saramaMessages(topic, t.values)); err != nil {
			return err
		}
		if err := t.end(); err != nil {
			return err
		}
	}
	return nil
}

func (saramaClient) share(context.Context, string, string, int) ([]rec, error) {
	return nil, errors.New("sarama has none")
}
