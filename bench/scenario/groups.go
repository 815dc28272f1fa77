package scenario

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"golang.org/x/sync/errgroup"

	"github.com/lockstep-kafka/lockstep/bench/lab"
	"github.com/lockstep-kafka/lockstep/bench/peer"
)

// groupPrefix begins the names of the groups that the bench makes.
const groupPrefix = "bench-group-"

// manyGroups measures from the start of Lockstep until the committed offsets of
// so many consumer groups are on the destination.
func manyGroups(ctx context.Context, l *lab.Lab, profile string, n int) (map[string]float64, error) {
	const topic = "grouped"
	d, err := l.Fill(ctx, lab.Shape{Topic: topic, Partitions: 4, Bytes: 1 << 20, Record: 1024, Min: 16, Max: 16})
	if err != nil {
		return nil, err
	}
	from, err := lab.Admin(l.Source)
	if err != nil {
		return nil, err
	}
	defer from.Close()
	to, err := lab.Admin(l.Dest)
	if err != nil {
		return nil, err
	}
	defer to.Close()
	for _, adm := range []*kadm.Client{from, to} {
		if err := deleteGroups(ctx, adm); err != nil {
			return nil, err
		}
	}
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(16)
	for i := range n {
		g.Go(func() error {
			var at kadm.Offsets
			for p, end := range d.Ends {
				at.AddOffset(topic, int32(p), end, -1)
			}
			return from.CommitAllOffsets(gctx, fmt.Sprintf("%s%d", groupPrefix, i), at)
		})
	}
	if err := g.Wait(); err != nil {
		return nil, fmt.Errorf("commit on the source: %w", err)
	}
	began := time.Now()
	p, err := peer.StartLockstep(ctx, l, peer.LockstepOptions{Topics: []string{topic}, Profile: profile, Extra: "groups: {interval: 1s}"})
	if err != nil {
		return nil, err
	}
	defer p.End()
	for {
		have, err := countGroups(ctx, to)
		if err != nil {
			return nil, err
		}
		if len(have) >= n {
			break
		}
		if err := p.Ended(); err != nil {
			return nil, err
		}
		if time.Since(began) > 5*time.Minute {
			return nil, fmt.Errorf("%d of %d groups are on the destination\n%s", len(have), n, p.Tail())
		}
		if err := lab.Sleep(ctx, 100*time.Millisecond); err != nil {
			return nil, err
		}
	}
	v := map[string]float64{"seconds": time.Since(began).Seconds()}
	u, err := p.Usage()
	if err != nil {
		return nil, err
	}
	v["cpu_s"], v["rss_mb"] = u.CPU.Seconds(), float64(u.Peak)/1e6
	return v, errors.Join(deleteGroups(ctx, from), deleteGroups(ctx, to))
}

func countGroups(ctx context.Context, adm *kadm.Client) (names []string, err error) {
	all, err := adm.ListGroups(ctx)
	if err != nil {
		return nil, fmt.Errorf("list groups: %w", err)
	}
	for _, g := range all.Groups() {
		if strings.HasPrefix(g, groupPrefix) {
			names = append(names, g)
		}
	}
	return names, nil
}

func deleteGroups(ctx context.Context, adm *kadm.Client) error {
	names, err := countGroups(ctx, adm)
	if err != nil || len(names) == 0 {
		return err
	}
	_, err = adm.DeleteGroups(ctx, names...)
	return err
}
