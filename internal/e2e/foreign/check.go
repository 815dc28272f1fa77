package foreign

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/internal/testkafka/content"
	"github.com/lockstep-kafka/lockstep/internal/testkafka/oracle"
)

// Checker holds what the clients' output is compared with: the destination's own answers for ordinary topics, the
// source's records for mirrored ones.
type Checker struct {
	// Destination and Proxy are bootstrap addresses.
	Destination, Proxy string
	Job                Job
	// Source are the records of each mirrored topic as a read_committed reader of the source gets them.
	Source map[string][]oracle.Rec
	// Brokers are the addresses under which the proxy shows brokers.
	Brokers []string
}

// Prepare creates what a job needs for a client, at the destination.
func (c *Checker) Prepare(ctx context.Context, client Client) error {
	p := c.Job.Prefix + "-" + client.Name
	for topic, partitions := range map[string]int32{p: 2, p + "-txn": 1, p + "-words": 1, p + "-counts": 1} {
		if err := content.CreateTopic(ctx, c.Destination, topic, partitions, nil); err != nil {
			return err
		}
	}
	if !client.Has(Share) {
		return nil
	}
	cl, err := kgo.NewClient(kgo.SeedBrokers(strings.Split(c.Destination, ",")...))
	if err != nil {
		return fmt.Errorf("foreign: %w", err)
	}
	defer cl.Close()
	for _, group := range []string{p + "-share", p + "-share-mirrored"} {
		req := kmsg.NewPtrIncrementalAlterConfigsRequest()
		r := kmsg.NewIncrementalAlterConfigsRequestResource()
		r.ResourceType, r.ResourceName = kmsg.ConfigResourceTypeGroupConfig, group
		set := kmsg.NewIncrementalAlterConfigsRequestResourceConfig()
		set.Name, set.Value = "share.auto.offset.reset", kmsg.StringPtr("earliest")
		r.Configs = append(r.Configs, set)
		req.Resources = append(req.Resources, r)
		if _, err := req.RequestWith(ctx, cl); err != nil {
			return fmt.Errorf("foreign: group config: %w", err)
		}
	}
	return nil
}

// Check looks at all that a client printed in one case.
func (c *Checker) Check(ctx context.Context, client Client, k Case, lines []Line) error {
	var mine []Line
	done := false
	for _, l := range lines {
		switch {
		case l.Client != client.Name || l.Case != k:
		case l.Error != "":
			return fmt.Errorf("the client failed: %s", l.Error)
		case l.Done:
			done = true
		default:
			mine = append(mine, l)
		}
	}
	if !done {
		return errors.New("the driver did not come to its end")
	}
	p := c.Job.Prefix + "-" + client.Name
	switch k {
	case Produce:
		return c.produced(ctx, client, p, mine)
	case Group, KIP848:
		return c.consumed(ctx, k, p, mine)
	case Admin:
		return c.admin(ctx, client, p, mine)
	case Txn:
		return c.txn(ctx, client, p, mine)
	case Share:
		return c.shared(ctx, p, mine)
	case Streams:
		return c.streams(ctx, p, mine)
	case Tools:
		return c.tools(ctx, p, mine)
	}
	return fmt.Errorf("no case %q", k)
}

// log is what a reader of the destination gets of a topic, by partition and offset.
func (c *Checker) log(ctx context.Context, topic string, partitions int32) (map[[2]int64]oracle.Rec, error) {
	out := map[[2]int64]oracle.Rec{}
	for p := range partitions {
		recs, err := oracle.Dump(ctx, c.Destination, topic, p, oracle.ReadCommitted)
		if err != nil {
			return nil, err
		}
		for _, r := range recs {
			out[[2]int64{int64(p), r.Offset}] = r
		}
	}
	return out, nil
}

// compare says whether lines are the records of want, each once.
func compare(want map[[2]int64]oracle.Rec, got []Line, keys bool) error {
	seen := map[[2]int64]bool{}
	for _, l := range got {
		at := [2]int64{int64(l.Partition), l.Offset}
		w, ok := want[at]
		switch {
		case !ok:
			return fmt.Errorf("%s-%d: offset %d (%q) is not in the log", l.Topic, l.Partition, l.Offset, l.Value)
		case seen[at]:
			return fmt.Errorf("%s-%d: offset %d twice", l.Topic, l.Partition, l.Offset)
		case string(w.Value) != string(l.Value) || keys && string(w.Key) != string(l.Key):
			return fmt.Errorf("%s-%d: offset %d: got %q=%q, the log has %v", l.Topic, l.Partition, l.Offset, l.Key, l.Value, w)
		}
		seen[at] = true
	}
	if len(seen) != len(want) {
		return fmt.Errorf("%d of %d records", len(seen), len(want))
	}
	return nil
}

// produced: offsets as acknowledged are those in the log, and each codec reached the broker as it was asked for
// (PX-007: a client that saw other versions than it expects falls back to none).
func (c *Checker) produced(ctx context.Context, client Client, topic string, got []Line) error {
	want, err := c.log(ctx, topic, 2)
	if err != nil {
		return err
	}
	if err := compare(want, got, false); err != nil {
		return err
	}
	if len(got) != 10*len(client.Codecs) {
		return fmt.Errorf("%d records of %d codecs", len(got), len(client.Codecs))
	}
	for p := range int32(2) {
		batches, err := oracle.Batches(ctx, c.Destination, topic, p)
		if err != nil {
			return err
		}
		for _, b := range batches {
			for _, l := range got {
				if l.Partition == p && l.Offset >= b.Base && l.Offset < b.Next() && l.Codec != codecName(b.Codec()) {
					return fmt.Errorf("written with codec %s, the log has %s: %v", l.Codec, codecName(b.Codec()), b)
				}
			}
		}
	}
	return nil
}

func codecName(c oracle.Codec) string { return []string{"none", "gzip", "snappy", "lz4", "zstd"}[c] }

// consumed: two members of each group got everything once, the second went on where the first had committed, and the
// commits are the ends.
func (c *Checker) consumed(ctx context.Context, k Case, p string, got []Line) error {
	ordinary, err := c.log(ctx, p, 2)
	if err != nil {
		return err
	}
	if err := c.group(ctx, p+"-"+string(k)+"-"+p, p, ordinary, got); err != nil {
		return err
	}
	for _, m := range c.Job.Mirrored {
		if err := c.group(ctx, p+"-"+string(k)+"-"+m.Name, m.Name, c.source(m.Name), got); err != nil {
			return err
		}
	}
	return nil
}

func (c *Checker) source(topic string) map[[2]int64]oracle.Rec {
	out := map[[2]int64]oracle.Rec{}
	for _, r := range c.Source[topic] {
		out[[2]int64{int64(r.Partition), r.Offset}] = r
	}
	return out
}

func (c *Checker) group(ctx context.Context, group, topic string, want map[[2]int64]oracle.Rec, got []Line) error {
	got = slices.DeleteFunc(slices.Clone(got), func(l Line) bool { return l.Topic != topic })
	if err := compare(want, got, true); err != nil {
		return err
	}
	first := map[int32]int64{}
	ends := map[int32]int64{}
	for _, l := range got {
		switch end, ok := ends[l.Partition]; {
		case ok && l.Offset < end:
			return fmt.Errorf("%s-%d: offset %d after %d", topic, l.Partition, l.Offset, end-1)
		case l.Session == 1:
			first[l.Partition] = l.Offset + 1
		case l.Offset < first[l.Partition]:
			return fmt.Errorf("%s-%d: session 2 read %d, session 1 had committed %d", topic, l.Partition, l.Offset, first[l.Partition])
		}
		ends[l.Partition] = l.Offset + 1
	}
	return c.committed(ctx, group, topic, ends)
}

// committed: the group's commits, through the proxy and at the destination itself.
func (c *Checker) committed(ctx context.Context, group, topic string, want map[int32]int64) error {
	for _, addr := range []string{c.Proxy, c.Destination} {
		cl, err := kgo.NewClient(kgo.SeedBrokers(strings.Split(addr, ",")...))
		if err != nil {
			return fmt.Errorf("foreign: %w", err)
		}
		offsets, err := kadm.NewClient(cl).FetchOffsets(ctx, group)
		cl.Close()
		if err != nil {
			return fmt.Errorf("foreign: offsets of %s: %w", group, err)
		}
		got := map[int32]int64{}
		for p, o := range offsets[topic] {
			got[p] = o.At
		}
		if !maps.Equal(got, want) {
			return fmt.Errorf("group %s committed %v of %s, want %v", group, got, topic, want)
		}
	}
	return nil
}

func (c *Checker) admin(ctx context.Context, client Client, p string, got []Line) error {
	if len(got) != 1 || got[0].Admin == nil {
		return fmt.Errorf("%d admin views", len(got))
	}
	v := got[0].Admin
	recs := c.Source[c.Job.Mirrored[0].Name]
	start, end := recs[0].Offset, recs[len(recs)-1].Offset+1
	slices.Sort(v.Addresses)
	switch {
	case v.Partitions != 3:
		return fmt.Errorf("the created topic has %d partitions", v.Partitions)
	case !slices.Equal(v.Addresses, c.Brokers):
		return fmt.Errorf("brokers at %v, want %v", v.Addresses, c.Brokers)
	case client.Has(Group) && !slices.Contains(v.Groups, p+"-group-"+p):
		return fmt.Errorf("groups %v lack %s", v.Groups, p+"-group-"+p)
	case v.Start != start || v.End != end:
		return fmt.Errorf("the mirrored topic is %d…%d, want %d…%d", v.Start, v.End, start, end)
	}
	return c.gone(ctx, p+"-new")
}

func (c *Checker) gone(ctx context.Context, topic string) error {
	return oracle.Retry(ctx, func() error {
		cl, err := kgo.NewClient(kgo.SeedBrokers(strings.Split(c.Destination, ",")...))
		if err != nil {
			return err
		}
		defer cl.Close()
		topics, err := kadm.NewClient(cl).ListTopics(ctx)
		if err == nil && topics.Has(topic) {
			err = fmt.Errorf("topic %s is still there", topic)
		}
		return err
	})
}

func (c *Checker) txn(ctx context.Context, client Client, p string, got []Line) error {
	want, err := c.log(ctx, p+"-txn", 1)
	if err != nil {
		return err
	}
	if err := compare(want, got, true); err != nil {
		return err
	}
	var values []string
	for _, l := range got {
		values = append(values, string(l.Value))
	}
	if !slices.Equal(values, []string{"c0", "c1", "c2", "d0", "d1"}) {
		return fmt.Errorf("read_committed read %v", values)
	}
	if end, err := oracle.LiveEnd(ctx, c.Destination, p+"-txn", 0); err != nil || end < 10 {
		return fmt.Errorf("the log ends at %d: three aborted records and three markers are missing (%w)", end, err)
	}
	at := int64(7)
	if client.Name == "franz-go" { // its transactions commit what was read
		for _, r := range c.Source[c.Job.Mirrored[0].Name] {
			if r.Offset+1 >= at {
				at = r.Offset + 1
				break
			}
		}
	}
	return c.committed(ctx, p+"-txn-offsets", c.Job.Mirrored[0].Name, map[int32]int64{0: at})
}

// shared: the ordinary topic's records, each once, and a clear refusal of the mirrored one.
func (c *Checker) shared(ctx context.Context, p string, got []Line) error {
	want, err := c.log(ctx, p, 2)
	if err != nil {
		return err
	}
	if len(got) == 0 || got[len(got)-1].Refused == "" {
		return errors.New("a share group on a mirrored topic was not refused")
	}
	return compare(want, got[:len(got)-1], true)
}

// streams: each word's counts are 1, 2, 3 … up to how often it is in the input, over the restart.
func (c *Checker) streams(ctx context.Context, p string, got []Line) error {
	input, err := c.log(ctx, p+"-words", 1)
	if err != nil {
		return err
	}
	want, seen := map[string]int64{}, map[string]int64{}
	add := func(r oracle.Rec) {
		if r.Value != nil {
			for _, w := range javaSplit(string(r.Value)) {
				want[w]++
			}
		}
	}
	for _, r := range input {
		add(r)
	}
	for _, r := range c.Source[c.Job.Mirrored[0].Name] {
		add(r)
	}
	for _, l := range got {
		n, err := strconv.ParseInt(string(l.Value), 10, 64)
		if err != nil {
			return fmt.Errorf("count of %q: %w", l.Key, err)
		}
		if seen[string(l.Key)]++; seen[string(l.Key)] != n {
			return fmt.Errorf("%q: count %d, want %d", l.Key, n, seen[string(l.Key)])
		}
	}
	if !maps.Equal(want, seen) {
		return fmt.Errorf("counted %v, want %v", seen, want)
	}
	return nil
}

// javaSplit is Java's split(" "): without empty words at the end.
func javaSplit(s string) []string {
	w := strings.Split(s, " ")
	for len(w) > 1 && w[len(w)-1] == "" {
		w = w[:len(w)-1]
	}
	return w
}

// tools: what the command-line tools print.
func (c *Checker) tools(ctx context.Context, p string, got []Line) error {
	m := c.Job.Mirrored[0].Name
	recs := c.Source[m]
	end := recs[len(recs)-1].Offset + 1
	var offsets []string
	for _, r := range recs {
		offsets = append(offsets, fmt.Sprintf("Offset:%d\n", r.Offset))
	}
	group := p + "-tools-group"
	want := map[string][]string{
		"create": {"Created topic " + p + "-tools"}, "alter": nil, "describe": {"PartitionCount: 3", "Partition: 2\tLeader: "}, "list": {p + "-tools\n", m + "\n"},
		"set-config": {"Completed updating config"}, "configs": {"retention.ms=1234567"}, "producer": nil, "perf": {"97 records sent"},
		"offsets": {p + "-tools:0:", p + "-tools:2:"}, "mirrored-offsets": {fmt.Sprintf("%s:0:%d\n", m, end)},
		"consumer": {"one\n", "two\n", "three\n", "Processed a total of 100 messages"}, "mirrored-consumer": append(offsets, "Processed a total of"),
		"group": {group}, "mirrored-group": {fmt.Sprint(end)}, "groups": {group + "\n", group + "-mirrored\n"}, "reset": {m},
		"delete-group": {"was successful"}, "set-group-config": {"Completed updating config"},
		"share-consumer": {"one\n", "two\n", "three\n", "Processed a total of 100 messages"}, "delete": nil,
	}
	for _, l := range got {
		rest := l.Text
		for _, w := range want[l.Topic] {
			if !strings.Contains(rest, w) {
				return fmt.Errorf("%s printed %q, %q is missing", l.Topic, l.Text, w)
			}
		}
		delete(want, l.Topic)
	}
	if len(want) > 0 {
		return fmt.Errorf("tools that did not run: %v", slices.Sorted(maps.Keys(want)))
	}
	if err := c.committed(ctx, group+"-mirrored", m, map[int32]int64{0: 5}); err != nil {
		return err
	}
	return c.gone(ctx, p+"-tools")
}
