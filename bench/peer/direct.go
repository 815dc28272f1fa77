package peer

import (
	"context"

	"github.com/lockstep-kafka/lockstep/bench/lab"
)

// StartProduce makes the destination's topic and writes the source's batches
// into it, straight from the source broker's files.
func StartProduce(ctx context.Context, l *lab.Lab, topic, dst string, partitions int) (*Process, error) {
	if err := lab.Create(ctx, l.Dest, dst, partitions, nil); err != nil {
		return nil, err
	}
	return start(l, "produce", l.Program("worker"), "produce", "-dir", l.Source.LogDir(1), "-src", topic, "-to", l.Dest.Addr(1), "-dst", dst)
}
