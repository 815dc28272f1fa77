package peer

import (
	"context"
	"strconv"

	"github.com/lockstep-kafka/lockstep/bench/lab"
)

// StartPass makes the destination's topic and starts what passes batches on.
func StartPass(ctx context.Context, l *lab.Lab, topic string, partitions int) (*Process, error) {
	if err := lab.Create(ctx, l.Dest, topic, partitions, nil); err != nil {
		return nil, err
	}
	return start(l, "pass", l.Program("worker"), "pass", "-from", l.Source.Addr(1), "-to", l.Dest.Addr(1), "-src", topic, "-dst", topic,
		"-partitions", strconv.Itoa(partitions))
}
