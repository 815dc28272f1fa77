package check

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strconv"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/internal/config"
	"github.com/lockstep-kafka/lockstep/internal/ledger"
	"github.com/lockstep-kafka/lockstep/internal/plural"
	"github.com/lockstep-kafka/lockstep/mirror"
)

// topics looks at what the mirror would take over.
func (k *checker) topics(ctx context.Context, m *config.Mirror, src, dst *side) {
	filter, err := mirror.NewTopicFilter(m.Topics.Include, m.Topics.Exclude)
	if err != nil {
		k.add(Fail, m.Name, "topics", "%v", err)
		return
	}
	all, err := src.adm.ListTopics(kadm.WithAuthorizedOps(ctx))
	if err != nil {
		k.add(Fail, m.Name, "topics", "can't be listed: %v", err)
		return
	}
	var names []string
	partitions, bad := 0, 0
	for name, t := range all {
		if ok, _ := filter.Select(name, t.IsInternal); !ok {
			continue
		}
		names = append(names, name)
		partitions += len(t.Partitions)
		if t.Err != nil {
			bad++
			k.add(Fail, m.Name, "topics", "topic %s can't be used: %v", name, t.Err)
			continue
		}
		if l := lacking(t, kmsg.ACLOperationRead, kmsg.ACLOperationDescribe, kmsg.ACLOperationDescribeConfigs); l != "" {
			bad++
			k.add(Fail, m.Name, "rights", "the user lacks %s on topic %s of the source: add the ACLs", l, name)
		}
	}
	slices.Sort(names)
	if len(names) == 0 {
		k.add(Warn, m.Name, "topics", "none of the source's %d topics matches topics.include and is not excluded", len(all))
		return
	}
	if bad == 0 {
		k.add(OK, m.Name, "topics", "%s with %s can be read", plural.Of(len(names), "topic"), plural.Of(partitions, "partition"))
	}
	largest := k.sourceConfigs(ctx, m, src, names)
	if dst != nil {
		k.requestSize(ctx, m, dst, largest)
		k.existing(ctx, m, src, dst, names)
	}
}

// sourceConfigs finds the largest batch the source may hold, and compacted
// topics.
func (k *checker) sourceConfigs(ctx context.Context, m *config.Mirror, src *side, names []string) (largest int64) {
	rcs, err := src.adm.DescribeTopicConfigs(ctx, names...)
	if err != nil {
		k.add(Fail, m.Name, "configs", "topic configs of the source can't be read: %v", err)
		return 0
	}
	for _, rc := range rcs {
		if rc.Err != nil {
			k.add(Fail, m.Name, "configs", "configs of topic %s of the source can't be read (needs DescribeConfigs): %v", rc.Name, rc.Err)
			continue
		}
		for _, c := range rc.Configs {
			if c.Key == "max.message.bytes" {
				if n, err := strconv.ParseInt(c.MaybeValue(), 10, 64); err == nil {
					largest = max(largest, n)
				}
			}
		}
	}
	if limit := int64(k.c.Limits.MaxFrameBytes); largest > limit {
		k.add(Fail, m.Name, "limits", "a topic of the source allows batches of %d bytes, limits.max_frame_bytes is %d: raise it", largest, limit)
	}
	return largest
}

// requestSize compares with what a broker of the destination takes in one
// request; its topic limits are set by the mirror itself.
func (k *checker) requestSize(ctx context.Context, m *config.Mirror, dst *side, largest int64) {
	rcs, err := dst.adm.DescribeBrokerConfigs(ctx, dst.meta.Brokers.NodeIDs()...)
	if err != nil {
		return // said already
	}
	for _, rc := range rcs {
		for _, c := range rc.Configs {
			if n, err := strconv.ParseInt(c.MaybeValue(), 10, 64); err == nil && c.Key == "socket.request.max.bytes" && n < largest+1<<16 {
				k.add(Fail, m.Name, "limits", "a topic of the source allows batches of %d bytes, broker %s of the destination takes requests up to %d (%s): raise it there", largest, rc.Name, n, c.Key)
				return
			}
		}
	}
	k.add(OK, m.Name, "limits", "batches up to %d bytes fit; topics are created with the source's max.message.bytes and open timestamp bounds", largest)
}

// existing finds topics on the destination that hold records of another
// origin.
func (k *checker) existing(ctx context.Context, m *config.Mirror, src, dst *side, names []string) {
	have, err := dst.adm.ListTopics(kadm.WithAuthorizedOps(ctx), append(names, ledger.Topic)...)
	if err != nil {
		k.add(Fail, m.Name, "destination topics", "can't be listed: %v", err)
		return
	}
	_, mirrored := have[ledger.Topic]
	mirrored = mirrored && have[ledger.Topic].Err == nil
	var found []string
	for _, name := range names {
		t, ok := have[name]
		if !ok || t.Err != nil {
			continue
		}
		found = append(found, name)
		if l := lacking(t, kmsg.ACLOperationWrite, kmsg.ACLOperationRead, kmsg.ACLOperationDescribe); l != "" {
			k.add(Fail, m.Name, "rights", "the user lacks %s on topic %s of the destination: add the ACLs", l, name)
		}
	}
	if len(found) == 0 {
		k.add(OK, m.Name, "destination topics", "none of the %d topics exists yet: they will be created", len(names))
		return
	}
	foreign := found
	if mirrored {
		foreign = k.inLedger(ctx, m, dst, found, len(names))
	}
	full, err := withRecords(ctx, dst, foreign)
	switch {
	case err != nil:
		k.add(Warn, m.Name, "destination topics", "%v", err)
	case len(full) > 0:
		k.withRecords(ctx, m, src, dst, have, full)
	case !mirrored:
		k.add(OK, m.Name, "destination topics", "%d of %d topics exist and are empty", len(found), len(names))
	}
}

// inLedger compares with what the ledger says of the topics; foreign are those
// that it doesn't know.
func (k *checker) inLedger(ctx context.Context, m *config.Mirror, dst *side, found []string, of int) (foreign []string) {
	owners, err := mirrorsInLedger(ctx, dst.opts)
	if err != nil {
		k.add(Fail, m.Name, "ledger", "topic %s can't be read (needs Read and Describe on it): %v", ledger.Topic, err)
		return nil
	}
	var ours, other []string
	var name string
	for _, t := range found {
		switch by, ok := owners[t]; {
		case !ok:
			foreign = append(foreign, t)
		case by != m.Name:
			other, name = append(other, t), by
		default:
			ours = append(ours, t)
		}
	}
	if len(other) > 0 {
		k.add(Fail, m.Name, "ledger", "%v belong to mirror %q in the ledger: was this mirror renamed? Give it that name again, or exclude them", other, name)
	}
	k.add(OK, m.Name, "ledger", "%d of %d topics are mirrored already", len(ours), of)
	return foreign
}

// mirrorsInLedger reads the ledger once: topic to mirror name.
func mirrorsInLedger(ctx context.Context, opts []kgo.Opt) (map[string]string, error) {
	v, err := ledger.ReadOnce(ctx, ledger.ViewOptions{Client: opts, Logger: slog.New(slog.DiscardHandler)})
	out := map[string]string{}
	for _, p := range v.All() {
		if p.Record != nil {
			out[p.Topic] = p.Record.Mirror
		}
	}
	return out, err
}

// withRecords finds the partitions that hold records, and where they end.
func withRecords(ctx context.Context, s *side, names []string) (map[string]map[int32]int64, error) {
	if len(names) == 0 {
		return nil, nil
	}
	start, err := s.adm.ListStartOffsets(ctx, names...)
	if err != nil {
		return nil, fmt.Errorf("offsets can't be listed: %w", err)
	}
	end, err := s.adm.ListEndOffsets(ctx, names...)
	if err != nil {
		return nil, fmt.Errorf("offsets can't be listed: %w", err)
	}
	full := map[string]map[int32]int64{}
	end.Each(func(e kadm.ListedOffset) {
		if b, ok := start.Lookup(e.Topic, e.Partition); ok && e.Offset > b.Offset {
			if full[e.Topic] == nil {
				full[e.Topic] = map[int32]int64{}
			}
			full[e.Topic][e.Partition] = e.Offset
		}
	})
	return full, nil
}
