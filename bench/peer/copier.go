package peer

import (
	"context"

	"github.com/lockstep-kafka/lockstep/bench/lab"
)

// CopierOptions of the plain copier.
type CopierOptions struct {
	Source     string // where the source is reached; empty: directly
	Topic, Dst string
	Partitions int
	LZ4, Tuned bool
	Configs    map[string]string // of the destination's topic
}

// StartCopier makes the destination's topic and starts the copier.
func StartCopier(ctx context.Context, l *lab.Lab, o CopierOptions) (*Process, error) {
	if o.Source == "" {
		o.Source = l.Source.Addr(1)
	}
	if err := lab.Create(ctx, l.Dest, o.Dst, o.Partitions, o.Configs); err != nil {
		return nil, err
	}
	args := []string{"copy", "-from", o.Source, "-to", l.Dest.Addr(1), "-src", o.Topic, "-dst", o.Dst}
	if o.LZ4 {
		args = append(args, "-compression", "lz4")
	}
	if o.Tuned {
		args = append(args, "-tuned")
	}
	return start(l, "copier", l.Program("worker"), args...)
}
