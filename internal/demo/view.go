package demo

import (
	"context"
	"fmt"
	"io"
	"sort"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

// view draws source, destination and lag of each partition once a second.
type view struct {
	d        *demo
	reader   *reader
	src, dst *kadm.Client
}

func newView(d *demo, r *reader) (*view, error) {
	src, err := kgo.NewClient(kgo.SeedBrokers(d.source.ListenAddrs()...), kgo.MetadataMinAge(200*time.Millisecond))
	if err != nil {
		return nil, fmt.Errorf("view of the source: %w", err)
	}
	dst, err := kgo.NewClient(kgo.SeedBrokers(d.proxy), kgo.MetadataMinAge(200*time.Millisecond))
	if err != nil {
		src.Close()
		return nil, fmt.Errorf("view of the proxy: %w", err)
	}
	return &view{d: d, reader: r, src: kadm.NewClient(src), dst: kadm.NewClient(dst)}, nil
}

func (v *view) intro() string {
	return fmt.Sprintf(`Lockstep mirrors cluster demo-source into cluster demo-destination, both in this process.
Any Kafka client can connect to the proxy while this runs:   %s
It sees the source's own offsets and leader epochs.   Metrics: http://127.0.0.1:%d/metrics

`, v.d.proxy, v.d.o.Port-1)
}

func (v *view) run(ctx context.Context) error {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	start := time.Now()
	for {
		rows, err := v.rows(ctx)
		if ctx.Err() == nil {
			v.draw(rows, time.Since(start), err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

type row struct {
	topic               string
	partition           int32
	srcStart, srcEnd    int64
	srcEpoch            int32
	dstStart, dstEnd    int64
	dstEpoch, readEpoch int32
	lag                 int64
	read                int
}

func (v *view) rows(ctx context.Context) ([]row, error) {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	// The source last: what the proxy shows then can't seem to be ahead of it.
	dst, err := look(ctx, v.dst)
	if err != nil {
		return nil, fmt.Errorf("the proxy doesn't show the topics yet, or their leaders move: %w", err)
	}
	src, err := look(ctx, v.src)
	if err != nil {
		return nil, fmt.Errorf("leaders move on the source: %w", err)
	}
	var rows []row
	for t, n := range topics {
		for p := range n {
			s, d := src[t][p], dst[t][p]
			r := row{topic: t, partition: p, srcStart: s.start, srcEnd: s.end, srcEpoch: s.epoch, dstStart: d.start, dstEnd: d.end, dstEpoch: d.epoch}
			r.lag = max(s.end-d.end, 0)
			r.read, r.readEpoch = v.reader.read(t, p)
			rows = append(rows, r)
		}
	}
	sort.Slice(rows, func(i, j int) bool {
		return rows[i].topic < rows[j].topic || rows[i].topic == rows[j].topic && rows[i].partition < rows[j].partition
	})
	return rows, nil
}

type ends struct {
	start, end int64
	epoch      int32
}

// look asks one side for starts, ends and leader epochs, as any tool would.
func look(ctx context.Context, c *kadm.Client) (map[string]map[int32]ends, error) {
	var names []string
	for t := range topics {
		names = append(names, t)
	}
	meta, err := c.ListTopics(ctx, names...)
	if err == nil {
		err = meta.Error()
	}
	if err != nil {
		return nil, err
	}
	start, err := c.ListStartOffsets(ctx, names...)
	if err == nil {
		err = start.Error()
	}
	if err != nil {
		return nil, err
	}
	end, err := c.ListEndOffsets(ctx, names...)
	if err == nil {
		err = end.Error()
	}
	if err != nil {
		return nil, err
	}
	out := map[string]map[int32]ends{}
	for t, n := range topics {
		out[t] = map[int32]ends{}
		for p := range n {
			s, _ := start.Lookup(t, p)
			e, _ := end.Lookup(t, p)
			out[t][p] = ends{start: s.Offset, end: e.Offset, epoch: meta[t].Partitions[p].LeaderEpoch}
		}
	}
	return out, nil
}

// draw shows the newest table, over the one before where there is a terminal.
// Without rows it says why.
func (v *view) draw(rows []row, since time.Duration, why error) {
	out := v.d.o.Out
	if v.d.o.Terminal {
		_, _ = io.WriteString(out, "\x1b[2J\x1b[H"+v.intro())
	}
	if why != nil {
		_, _ = fmt.Fprintf(out, "%4.0f s   no table just now: %v\n", since.Seconds(), why)
		return
	}
	w := table.NewWriter()
	w.SetStyle(table.StyleLight)
	w.AppendHeader(table.Row{"", "source", "source", "source", "through the proxy", "through the proxy", "through the proxy", "", "reader", "reader"}, table.RowConfig{AutoMerge: true})
	w.AppendHeader(table.Row{"topic-partition", "start", "end", "epoch", "start", "end", "epoch shown", "lag", "records", "last epoch"})
	for _, r := range rows {
		w.AppendRow(table.Row{fmt.Sprintf("%s-%d", r.topic, r.partition), r.srcStart, r.srcEnd, r.srcEpoch, r.dstStart, r.dstEnd, r.dstEpoch, r.lag, r.read, r.readEpoch})
	}
	t := v.d.traffic
	w.SetCaption("%4.0f s   %d records written, %d of them in aborted transactions, %d leader changes on the source", since.Seconds(), t.written.Load(), t.aborted.Load(), t.moves.Load())
	_, _ = io.WriteString(out, w.Render()+"\n")
}

func (v *view) close() {
	v.src.Close()
	v.dst.Close()
}
