package verify

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"golang.org/x/sync/errgroup"
	"golang.org/x/time/rate"
)

// Run compares. An error means that nothing was compared, or that ctx ended, or
// that the resume file couldn't be written; the report is what is known by then.
// What keeps single partitions from being compared is in the report.
func Run(ctx context.Context, o Options) (Report, error) {
	if err := o.check(); err != nil {
		return Report{Outcome: Failed}, err
	}
	r := &run{o: o, began: time.Now()}
	if o.Rate > 0 {
		r.limit = rate.NewLimiter(rate.Limit(o.Rate), max(o.Rate, 1))
	}
	src, err := r.connect("source", o.Source)
	if err != nil {
		return Report{Outcome: Failed}, err
	}
	defer src.cl.Close()
	dst, err := r.connect("destination", o.Destination)
	if err != nil {
		return Report{Outcome: Failed}, err
	}
	defer dst.cl.Close()
	r.src, r.dst = src, dst
	err = r.run(ctx)
	return r.finish(), err
}

type run struct {
	o        Options
	began    time.Time
	limit    *rate.Limiter
	src, dst *cluster
	keeper   *keeper
	report   Report

	partitions []*PartitionReport

	mu       sync.Mutex
	progress Progress
	told     time.Time
}

func (r *run) connect(what string, opts []kgo.Opt) (*cluster, error) {
	cl, err := kgo.NewClient(opts...)
	if err != nil {
		return nil, fmt.Errorf("client of the %s: %w", what, err)
	}
	c := &cluster{what: what, cl: cl, adm: kadm.NewClient(cl), limit: r.limit, maxBytes: answerBytes, patience: r.o.Patience, hole: min(5*time.Second, r.o.Patience/2), read: r.readBytes}
	if r.o.Rate > 0 {
		c.maxBytes = int32(min(answerBytes, r.o.Rate))
	}
	return c, nil
}

func (r *run) run(ctx context.Context) error {
	var err error
	if r.report.Source, err = r.src.id(ctx); err != nil {
		return err
	}
	if r.report.Destination, err = r.dst.id(ctx); err != nil {
		return err
	}
	if r.keeper, err = openState(r.o.Resume, r.report.Source, r.report.Destination); err != nil {
		return err
	}
	parts, err := r.plan(ctx)
	if err != nil {
		return err
	}
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(r.o.Parallel)
	for _, p := range parts {
		g.Go(func() error {
			p.compare(gctx)
			r.done(p)
			return gctx.Err()
		})
	}
	return errors.Join(g.Wait(), r.keeper.save())
}

// plan finds the partitions and where they begin and end: the destination's
// ends first, so that the source must have all of it.
func (r *run) plan(ctx context.Context) ([]*partition, error) {
	srcTopics, err := r.src.topics(ctx, r.o.Topics...)
	if err != nil {
		return nil, err
	}
	names := r.o.Topics
	if len(names) == 0 {
		for _, t := range srcTopics {
			if r.o.Match(t.name, t.internal) {
				names = append(names, t.name)
			}
		}
	}
	names = slices.Compact(slices.Sorted(slices.Values(names)))
	if len(names) == 0 {
		return nil, errors.New("the source has no topic that is selected")
	}
	dstTopics, err := r.dst.topics(ctx, names...)
	if err != nil {
		return nil, err
	}
	var both []string
	for _, n := range names {
		s, d := srcTopics[n], dstTopics[n]
		switch {
		case s.err != nil || len(s.partitions) == 0:
			return nil, fmt.Errorf("topic %s on the source: %w", n, orMissing(s.err))
		case d.err != nil || len(d.partitions) == 0:
			r.add(PartitionReport{Topic: n, Partition: -1, Outcome: Different, Difference: &Difference{
				Kind: KindTopic, Topic: n, Partition: -1, Detail: fmt.Sprintf("the destination: %v", orMissing(d.err)),
			}})
			continue
		}
		both = append(both, n)
	}
	if len(both) == 0 {
		return nil, nil
	}
	srcConfigs, srcErr := r.src.configs(ctx, both)
	dstConfigs, dstErr := r.dst.configs(ctx, both)
	var starts, ends [2]kadm.ListedOffsets
	order := []side{onDestination, onSource}
	if r.o.CaughtUp {
		slices.Reverse(order) // so that the destination has had the time
	}
	for _, s := range order {
		c := r.src
		if s == onDestination {
			c = r.dst
		}
		if starts[s], ends[s], err = c.ends(ctx, both); err != nil {
			return nil, err
		}
	}
	var parts []*partition
	for _, n := range both {
		s, d := srcTopics[n], dstTopics[n]
		for _, id := range union(s.partitions, d.partitions) {
			at := place{n, id}
			if onS, onD := slices.Contains(s.partitions, id), slices.Contains(d.partitions, id); !onS || !onD {
				where := map[bool]string{true: "source", false: "destination"}[onS]
				r.add(PartitionReport{Topic: n, Partition: id, Outcome: Different, Difference: &Difference{
					Kind: KindPartition, Topic: n, Partition: id, Detail: "it is on the " + where + " only",
				}})
				continue
			}
			p := &partition{at: at, maxKeys: r.o.MaxKeys, caughtUp: r.o.CaughtUp, report: r.add(PartitionReport{Topic: n, Partition: id})}
			p.src, p.dst = half{c: r.src, configs: srcConfigs[n]}, half{c: r.dst, configs: dstConfigs[n]}
			for _, x := range []struct {
				into *int64
				from kadm.ListedOffsets
			}{{&p.src.start, starts[onSource]}, {&p.src.end, ends[onSource]}, {&p.dst.start, starts[onDestination]}, {&p.dst.end, ends[onDestination]}} {
				l, ok := x.from.Lookup(n, id)
				if !ok || l.Err != nil {
					p.report.Outcome, p.report.Error = Failed, fmt.Sprintf("its ends can't be told: %v", orMissing(l.Err))
				}
				*x.into = l.Offset
			}
			if p.report.Outcome == Failed {
				continue
			}
			if err := errors.Join(srcErr, dstErr); err != nil {
				p.note("%v: if the topic is compacted, it was compared as if it were not", err)
			}
			p.ids = partState{SourceTopic: s.id.String(), DestinationTopic: d.id.String()}
			p.resume = r.keeper.of(at, p.ids.SourceTopic, p.ids.DestinationTopic)
			p.bounds()
			r.progress.Total += p.report.To - p.report.From
			p.told = p.report.From
			p.step = func(next int64, seen epochsSeen) { r.step(p, next, seen) }
			parts = append(parts, p)
		}
	}
	return parts, nil
}

func orMissing(err error) error {
	if err == nil {
		return errors.New("it isn't there")
	}
	return err
}

func union(a, b []int32) []int32 {
	all := map[int32]bool{}
	for _, x := range append(slices.Clone(a), b...) {
		all[x] = true
	}
	return slices.Sorted(maps.Keys(all))
}

func (r *run) add(p PartitionReport) *PartitionReport {
	r.partitions = append(r.partitions, &p)
	return &p
}

// stepOffsets is how far a partition goes on before it tells.
const stepOffsets = 4096

// step takes in that all below next is equal.
func (r *run) step(p *partition, next int64, seen epochsSeen) {
	p.reached, p.seen = next, seen
	if next-p.told >= stepOffsets {
		r.tell(p)
	}
}

func (r *run) tell(p *partition) {
	if n := p.reached - p.told; n > 0 {
		p.told = p.reached
		r.advance(n, 0)
	}
	if !p.report.Compacted && len(p.seen) > 0 {
		p.ids.Next, p.ids.Epochs = p.reached, p.seen
		r.keeper.compared(p.at, p.ids)
	}
}

// done is for a partition that has ended.
func (r *run) done(p *partition) {
	if p.report.Outcome == Equal { // holes at the end
		p.reached = max(p.reached, p.report.To)
	}
	r.tell(p)
}

func (r *run) readBytes(n int) { r.advance(0, int64(n)) }

// tellEvery bounds how often Options.Progress is called.
const tellEvery = 100 * time.Millisecond

func (r *run) advance(offsets, bytes int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.progress.Done = min(r.progress.Done+offsets, r.progress.Total)
	r.progress.Bytes += bytes
	if r.o.Progress != nil && (time.Since(r.told) >= tellEvery || r.progress.Done == r.progress.Total) {
		r.told = time.Now()
		r.o.Progress(r.progress)
	}
}

func (r *run) finish() Report {
	out := r.report
	out.Outcome, out.Bytes, out.Seconds, out.Partitions = Equal, r.progress.Bytes, time.Since(r.began).Seconds(), []PartitionReport{}
	if len(r.partitions) == 0 {
		out.Outcome = Failed
	}
	for _, p := range r.partitions {
		if p.Outcome == "" {
			p.Outcome, p.Error = Failed, "ended before it was compared"
		}
		if p.Outcome == Different || p.Outcome == Failed && out.Outcome != Different {
			out.Outcome = p.Outcome
		}
		out.Records += p.Records
		out.Partitions = append(out.Partitions, *p)
	}
	return out
}
