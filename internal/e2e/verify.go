package e2e

import (
	"context"
	"strings"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/lockstep-kafka/lockstep/internal/verify"
)

// Verify is `lockstep verify` of topics (none: all that are not internal), in this process: all that the source has must be here, and
// nothing else.
func (l *Lockstep) Verify(ctx context.Context, topics ...string) verify.Report {
	l.t.Helper()
	r, err := verify.Run(ctx, verify.Options{
		Source:      []kgo.Opt{kgo.SeedBrokers(strings.Split(l.setup.Source.Bootstrap(), ",")...)},
		Destination: []kgo.Opt{kgo.SeedBrokers(l.Bootstrap())},
		Topics:      topics,
		CaughtUp:    true,
	})
	if err != nil {
		l.t.Fatalf("verify: %v\n%s", err, l.LogTail(40))
	}
	for i := range r.Partitions {
		p := &r.Partitions[i]
		switch {
		case p.Difference != nil:
			l.t.Errorf("verify: %s", p.Difference)
		case p.Error != "":
			l.t.Errorf("verify: %s, partition %d: %s", p.Topic, p.Partition, p.Error)
		case p.DestinationAborted > 0:
			l.t.Errorf("verify: %s, partition %d: %d aborted batches on the destination", p.Topic, p.Partition, p.DestinationAborted)
		}
		l.t.Logf("verify: %s, partition %d: %d records, batches %d whole, %d by records, %d epochs, %v %d", p.Topic, p.Partition, p.Records, p.ByBatch, p.ByRecord, p.Epochs, p.Notes, p.OneSided)
	}
	if l.t.Failed() {
		l.t.Fatalf("%s", l.LogTail(40))
	}
	return r
}
