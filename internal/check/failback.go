package check

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/internal/client"
	"github.com/lockstep-kafka/lockstep/internal/config"
	"github.com/lockstep-kafka/lockstep/internal/kconn"
	"github.com/lockstep-kafka/lockstep/internal/ledger"
	"github.com/lockstep-kafka/lockstep/internal/plural"
)

// withRecords says what will become of topics on the destination that hold
// records which this mirror didn't write: those that the source has mirrored
// from here are taken over (failback), others are left alone.
func (k *checker) withRecords(ctx context.Context, m *config.Mirror, src, dst *side, have kadm.TopicDetails, full map[string]map[int32]int64) {
	names := slices.Sorted(maps.Keys(full))
	there, err := src.adm.ListTopics(ctx, names...)
	var v *ledger.View
	if err == nil {
		v, err = sourceLedger(ctx, src)
	}
	if err != nil {
		k.add(Fail, m.Name, "destination topics", "%v hold records, and the source's ledger (topic %s there) can't be read, so it can't be told whether they are the source's (needs Read and Describe on it): %v",
			names, ledger.Topic, err)
		return
	}
	var foreign, shared []string
	var cut int64
	for _, t := range names {
		only, ok := int64(0), v != nil
		for p, end := range full[t] {
			up := int64(-1)
			if ok {
				up = sharedUpTo(v.Partition(t, p), ledger.ID(there[t].ID), dst.meta.Cluster, ledger.ID(have[t].ID))
			}
			ok = ok && up >= 0
			only += max(end-up, 0)
		}
		if !ok {
			foreign = append(foreign, t)
			continue
		}
		shared = append(shared, t)
		cut += only
	}
	if len(foreign) > 0 {
		k.add(Fail, m.Name, "destination topics", "%v hold records of another origin: they will be left alone; rename or delete them, or exclude them", foreign)
	}
	if len(shared) == 0 {
		return
	}
	if !proxied(ctx, src) {
		k.add(Fail, m.Name, "destination topics", "%v were mirrored by the source from here, and it is read without its Lockstep: set source.bootstrap to the addresses of that proxy", shared)
		return
	}
	const what = "%v were mirrored by the source from here: they are taken over when the mirror starts, with what both sides share"
	if cut == 0 {
		k.add(OK, m.Name, "destination topics", what, shared)
		return
	}
	k.add(Warn, m.Name, "destination topics", what+"; cut then: %s that only this side has (lockstep diverged lists and exports them)", shared, plural.Of(cut, "offset"))
}

// sharedUpTo is up to which offset the source's ledger says that its partition
// is the same as that of a topic on the destination; -1: it says nothing.
// source is the id that the source's topic has now.
func sharedUpTo(p *ledger.Partition, source ledger.ID, cluster string, topic ledger.ID) int64 {
	if p == nil || p.Record == nil || p.Record.TopicID != source {
		return -1
	}
	up := int64(-1)
	for _, pair := range p.Record.Pairs {
		if pair.Cluster == cluster && pair.TopicID == topic && pair.LME >= 0 {
			up = max(up, pair.LMO)
		}
	}
	return up
}

// sourceLedger reads the source's ledger, nil if it has none.
func sourceLedger(ctx context.Context, src *side) (*ledger.View, error) {
	ts, err := src.adm.ListTopics(ctx, ledger.Topic)
	if err == nil {
		err = ts[ledger.Topic].Err
	}
	if errors.Is(err, kerr.UnknownTopicOrPartition) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return ledger.ReadOnce(ctx, ledger.ViewOptions{Client: src.opts, Logger: slog.New(slog.DiscardHandler)})
}

// proxied tells whether a side is reached through a Lockstep.
func proxied(ctx context.Context, s *side) bool {
	req := kmsg.NewPtrApiVersionsRequest()
	req.ClientSoftwareName, req.ClientSoftwareVersion = client.ID, "check" // refused without
	resp, err := req.RequestWith(ctx, s.cl)
	if err != nil {
		return false
	}
	return slices.ContainsFunc(resp.SupportedFeatures, func(f kmsg.ApiVersionsResponseSupportedFeature) bool { return f.Name == kconn.LockstepFeature })
}
