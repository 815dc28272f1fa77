package clients

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/lockstep-kafka/lockstep/internal/testkafka/oracle"
)

// franzTimestamp is what franz-go makes of a timestamp: it goes through nanoseconds in an int64, and wraps beyond
// the year 2262.
func franzTimestamp(ms int64) int64 { return time.Unix(0, ms*1e6).UnixMilli() }

// FranzRead reads with franz-go. It needs Read.Expect (or Max) to know when it has everything.
func FranzRead(ctx context.Context, r Read) (Result, error) {
	ctx, cancel := context.WithTimeout(ctx, r.timeout())
	defer cancel()
	opts := []kgo.Opt{kgo.SeedBrokers(strings.Split(r.Bootstrap, ",")...), kgo.ClientID("franz-go"), kgo.FetchMaxWait(100 * time.Millisecond)}
	if r.Isolation == oracle.ReadCommitted {
		opts = append(opts, kgo.FetchIsolationLevel(kgo.ReadCommitted()))
	}
	reset := kgo.NewOffset().AtStart()
	switch r.Reset {
	case "latest":
		reset = kgo.NewOffset().AtEnd()
	case "none":
		reset = kgo.NoResetOffset()
	}
	opts = append(opts, kgo.ConsumeResetOffset(reset))
	switch {
	case r.Subscribe || r.From == "group":
		opts = append(opts, kgo.ConsumerGroup(r.Group), kgo.ConsumeTopics(r.Topic), kgo.DisableAutoCommit(), kgo.ConsumeStartOffset(reset))
	default:
		at, err := r.franzOffset()
		if err != nil {
			return Result{}, err
		}
		ps := map[int32]kgo.Offset{}
		for p := range max(r.Partitions, 1) {
			ps[int32(p)] = at
		}
		opts = append(opts, kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{r.Topic: ps}))
	}
	cl, err := kgo.NewClient(opts...)
	if err != nil {
		return Result{}, fmt.Errorf("clients: franz-go: %w", err)
	}
	defer cl.Close()
	res, last, err := franzPoll(ctx, cl, r)
	if err != nil || !r.Commit {
		return res, err
	}
	if err := cl.CommitRecords(ctx, last...); err != nil {
		return res, fmt.Errorf("clients: franz-go: commit: %w", err)
	}
	committed, err := kadm.NewClient(cl).FetchOffsets(ctx, r.Group)
	if err != nil {
		return res, fmt.Errorf("clients: franz-go: fetch offsets: %w", err)
	}
	committed.Each(func(o kadm.OffsetResponse) {
		res.Meta = append(res.Meta, Meta{What: "committed", Partition: o.Partition, Offset: o.At, LeaderEpoch: o.LeaderEpoch})
	})
	return res, nil
}

func (r Read) franzOffset() (kgo.Offset, error) {
	kind, x, _ := strings.Cut(r.From, ":")
	n, err := strconv.ParseInt(x, 10, 64)
	if err != nil && x != "" {
		return kgo.Offset{}, fmt.Errorf("clients: from %q: %w", r.From, err)
	}
	switch kind {
	case "", "earliest":
		return kgo.NewOffset().AtStart(), nil
	case "offset":
		o := kgo.NewOffset().At(n)
		if r.Epoch != nil {
			o = o.WithEpoch(*r.Epoch)
		}
		return o, nil
	case "timestamp":
		return kgo.NewOffset().AfterMilli(n), nil
	}
	return kgo.Offset{}, fmt.Errorf("clients: from %q", r.From)
}

// franzPoll reads until the wanted number is there, then 300 ms more to see whether too many come.
func franzPoll(ctx context.Context, cl *kgo.Client, r Read) (res Result, last []*kgo.Record, err error) {
	want := r.Expect
	if r.Max > 0 {
		want = r.Max
	}
	for done := false; ; {
		pctx, cancel := context.WithCancel(ctx)
		full := len(res.Recs) >= want && (!r.Follow || r.Max != 0)
		if full {
			cancel()
			if r.Max > 0 {
				return res, last, nil
			}
			pctx, cancel = context.WithTimeout(ctx, 300*time.Millisecond)
		}
		fs := cl.PollFetches(pctx)
		over := ended(pctx)
		cancel()
		for _, fe := range fs.Errors() {
			var lost *kgo.ErrDataLoss
			switch {
			case errors.Is(fe.Err, context.DeadlineExceeded) || errors.Is(fe.Err, context.Canceled):
			case errors.As(fe.Err, &lost):
				res.Meta = append(res.Meta, Meta{What: "truncation", Partition: lost.Partition, Offset: lost.ResetTo, LeaderEpoch: -1, Message: fe.Err.Error()})
			default:
				return res, last, fmt.Errorf("clients: franz-go: %s-%d: %w", fe.Topic, fe.Partition, fe.Err)
			}
		}
		fs.EachRecord(func(k *kgo.Record) {
			if r.Max == 0 || len(res.Recs) < r.Max {
				res.Recs, last = append(res.Recs, franzRec(k)), append(last, k)
				done = done || r.each(res.Recs[len(res.Recs)-1])
			}
		})
		switch {
		case done:
			return res, last, nil
		case full && over:
			return res, last, nil
		case over:
			res.Meta = append(res.Meta, Meta{What: "timeout"})
			return res, last, nil
		}
	}
}

func ended(ctx context.Context) bool { return ctx.Err() != nil }

func franzRec(k *kgo.Record) oracle.Rec {
	out := oracle.Rec{
		Partition: k.Partition, Offset: k.Offset, LeaderEpoch: k.LeaderEpoch, Timestamp: k.Timestamp.UnixMilli(),
		TimestampType: oracle.CreateTime, Key: k.Key, Value: k.Value,
	}
	if k.Attrs.TimestampType() == 1 {
		out.TimestampType = oracle.LogAppendTime
	}
	for _, h := range k.Headers {
		out.Headers = append(out.Headers, oracle.Header{Key: h.Key, Value: h.Value})
	}
	return out
}
