package demo

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sort"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

// compare waits until the proxy shows everything that the source has
// committed, then compares three readers of it, record by record, with a
// read_committed reader of the source: the group that ran all the time, and a
// fresh reader in each isolation level.
func (d *demo) compare(ctx context.Context, v *view) error {
	_, _ = fmt.Fprintln(d.o.Out, "\nThe traffic has ended. Comparing what a consumer reads through the proxy with the source:")
	var names []string
	for t := range topics {
		names = append(names, t)
	}
	sort.Strings(names)
	var errs []error
	for _, t := range names {
		for p := range topics[t] {
			if err := d.comparePartition(ctx, v, t, p); err != nil {
				_, _ = fmt.Fprintf(d.o.Out, "  %s-%d: DIFFERENT: %v\n", t, p, err)
				errs = append(errs, fmt.Errorf("%s-%d: %w", t, p, err))
			}
		}
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("the virtual log differs from the source: %w", err)
	}
	_, _ = fmt.Fprintln(d.o.Out, "Equal: offset, leader epoch, timestamp, key, value and headers of every record.")
	return nil
}

func (d *demo) comparePartition(ctx context.Context, v *view, t string, p int32) error {
	want, err := readAll(ctx, d.source.ListenAddrs(), t, p, kgo.ReadCommitted(), func(int64) bool { return true })
	if err != nil {
		return fmt.Errorf("read the source: %w", err)
	}
	if len(want) == 0 {
		return errors.New("the source has no record: nothing would be compared")
	}
	last := want[len(want)-1].Offset
	caughtUp := func(end int64) bool { return end > last }
	for _, level := range []struct {
		name string
		iso  kgo.IsolationLevel
	}{{"read_committed", kgo.ReadCommitted()}, {"read_uncommitted", kgo.ReadUncommitted()}} {
		got, err := readAll(ctx, []string{d.proxy}, t, p, level.iso, caughtUp)
		if err != nil {
			return fmt.Errorf("read through the proxy: %w", err)
		}
		if err := equal(want, got); err != nil {
			return fmt.Errorf("%s: %w", level.name, err)
		}
	}
	// The group began at the source's log start, which has not moved since.
	for {
		n, _ := v.reader.read(t, p)
		if n >= len(want) || ctx.Err() != nil {
			break
		}
		v.reader.poll(ctx)
	}
	v.reader.mu.Lock()
	got := v.reader.got[t][p]
	v.reader.mu.Unlock()
	if err := equal(want, got); err != nil {
		return fmt.Errorf("the group: %w", err)
	}
	_, _ = fmt.Fprintf(d.o.Out, "  %s-%d: %d records equal, offsets %d to %d, epochs %d to %d\n", t, p, len(want), want[0].Offset, last, want[0].LeaderEpoch, want[len(want)-1].LeaderEpoch)
	return nil
}

// readAll reads a partition from its start to its end, once enough(end) holds.
func readAll(ctx context.Context, seeds []string, topic string, p int32, iso kgo.IsolationLevel, enough func(end int64) bool) ([]*kgo.Record, error) {
	c, err := kgo.NewClient(kgo.SeedBrokers(seeds...), kgo.FetchIsolationLevel(iso), kgo.KeepControlRecords(),
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: {p: kgo.NewOffset().AtStart()}}))
	if err != nil {
		return nil, err
	}
	defer c.Close()
	var end int64
	for {
		ends, err := kadm.NewClient(c).ListEndOffsets(ctx, topic)
		if err == nil {
			err = ends.Error()
		}
		if err == nil {
			e, _ := ends.Lookup(topic, p)
			if end = e.Offset; enough(end) {
				break
			}
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("the end stays at %d: %w", end, errors.Join(ctx.Err(), err))
		case <-time.After(50 * time.Millisecond):
		}
	}
	var out []*kgo.Record
	for next := int64(0); next < end; {
		fs := c.PollFetches(ctx)
		if err := fs.Err(); err != nil {
			return nil, err
		}
		fs.EachRecord(func(r *kgo.Record) {
			next = r.Offset + 1
			if !r.Attrs.IsControl() {
				out = append(out, r)
			}
		})
	}
	return out, nil
}

// equal names the first difference.
func equal(want, got []*kgo.Record) error {
	for i := range min(len(want), len(got)) {
		w, g := want[i], got[i]
		switch {
		case w.Offset != g.Offset:
			return fmt.Errorf("record %d: offset %d, the source has %d", i, g.Offset, w.Offset)
		case w.LeaderEpoch != g.LeaderEpoch:
			return fmt.Errorf("offset %d: leader epoch %d, the source has %d", w.Offset, g.LeaderEpoch, w.LeaderEpoch)
		case !w.Timestamp.Equal(g.Timestamp):
			return fmt.Errorf("offset %d: timestamp %v, the source has %v", w.Offset, g.Timestamp, w.Timestamp)
		case !bytes.Equal(w.Key, g.Key) || !bytes.Equal(w.Value, g.Value):
			return fmt.Errorf("offset %d: key or value differs", w.Offset)
		case fmt.Sprint(w.Headers) != fmt.Sprint(g.Headers):
			return fmt.Errorf("offset %d: headers differ", w.Offset)
		}
	}
	if len(want) != len(got) {
		return fmt.Errorf("%d records, the source has %d", len(got), len(want))
	}
	return nil
}
